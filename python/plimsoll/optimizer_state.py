"""``optimizer.state`` as long as a step trains: who reads it sees what the step has made, and what is written into it counts."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import torch


class State(defaultdict):
    """A dictionary as PyTorch's optimizers have it, which tells the steps that train by it before somebody looks at it.

    Copies of it, in memory or in a file, are PyTorch's own.
    """

    def __init__(self, content: dict):
        super().__init__(dict, content)
        self._steps: weakref.WeakSet = weakref.WeakSet()

    def _told(self) -> "State":
        for step in list(self._steps):
            step._lend_optimizer()
        return self

    def copy(self) -> defaultdict:
        return defaultdict(dict, self._told().items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict) -> defaultdict:
        import copy

        return copy.deepcopy(self.copy(), memo)

    def __reduce__(self) -> Any:
        return defaultdict, (dict, dict(self.items()))


def _telling(name: str) -> Any:
    method = getattr(defaultdict, name)

    def call(self: State, *given: Any, **named: Any) -> Any:
        return method(self._told(), *given, **named)

    call.__name__ = name
    return call


for _name in ("__getitem__ __setitem__ __delitem__ __contains__ __iter__ __reversed__ __len__ __eq__ __ne__ __repr__ __or__ __ror__ __ior__ "
              "get items keys values pop popitem setdefault update clear").split():
    setattr(State, _name, _telling(_name))


def watch(optimizer: torch.optim.Optimizer, step: Any) -> bool:
    """From now on ``step`` is told. Returns whether its state is another dictionary than the one that the step was told of."""
    state = optimizer.state
    if not isinstance(state, State):
        state = optimizer.state = State(state)
    elif step in state._steps:
        return False
    state._steps.add(step)
    return True


def states_of(optimizer: torch.optim.Optimizer, parameter: Any) -> dict[str, Any]:
    """Of a parameter, as they lie there, with nobody told; an empty dictionary where there are none."""
    return dict.get(optimizer.state, parameter, {})


def keep_states_of(optimizer: torch.optim.Optimizer, parameter: Any) -> dict[str, Any]:
    """The same, and a place for them where there was none."""
    return dict.setdefault(optimizer.state, parameter, {})

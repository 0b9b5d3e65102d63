"""What a forward pass leaves in attributes of modules, as a recurrent network may leave its hidden state, and reads in the next.

A step keeps buffers and parameters, and nothing else, so that it would begin with what was there before the first pass. Hence such
modules are refused by name. What depends on shapes alone (a table that is made when it is first needed), and what is left for others to
look at, is the same in every pass, or not read.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch
from torch import Tensor, nn

from .assume import depends

_OWN = frozenset(vars(nn.Module()))  # fields that every module has


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OWN}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is dict:
        return {key: _mapped(entry, change) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(entry, change) for entry in value)
    return value


def _contents(value: Any, found: list[tuple[Any, Any]]) -> None:
    """The containers that a value consists of, each with a copy of it."""
    if isinstance(value, (dict, list)):
        found.append((value, value.copy()))
    if isinstance(value, (dict, list, tuple)):
        for entry in value.values() if isinstance(value, dict) else value:
            _contents(entry, found)


@contextmanager
def restored(step: nn.Module) -> Iterator[None]:
    """Buffers, and attributes that hold tensors, or could, are afterwards as they were."""
    before = [(module, _attributes(module)) for module in step.modules()]
    containers: list[tuple[Any, Any]] = []
    for module, attributes in before:
        containers.append((module._buffers, module._buffers.copy()))
        for value in attributes.values():
            _contents(value, containers)
    try:
        yield
    finally:
        for container, copy in containers:
            if len(container) != len(copy) or any(a is not b for a, b in zip(_entries(container), _entries(copy))):
                container.clear()
                container.update(copy) if isinstance(container, dict) else container.extend(copy)
        for module, attributes in before:
            for name, value in _attributes(module).items():
                if name not in attributes and any(True for _ in _tensors(value)):
                    del module.__dict__[name]
                elif name in attributes and attributes[name] is not value and any(True for _ in _tensors((value, attributes[name]))):
                    module.__dict__[name] = attributes[name]


def _entries(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


class Left:
    """What one pass left. ``planted`` puts zeros in these places, as if a pass had been: who reads these reads what was carried."""

    def __init__(self, step: nn.Module):
        self._step = step
        self._before = {id(tensor): tensor for _, value in self._all() for tensor in _tensors(value)}
        self._places: list[tuple[nn.Module, str, Any]] = []
        self.names: dict[int, str] = {}  # of planted storages

    def _all(self) -> Iterator[tuple[tuple[str, nn.Module, str], Any]]:
        for path, module in self._step.named_modules():
            for name, value in _attributes(module).items():
                yield (path, module, name), value

    def look(self) -> None:
        """At the end of a pass."""
        self._places = []
        for (path, module, name), value in self._all():
            new = [tensor for tensor in _tensors(value) if id(tensor) not in self._before]
            if any(depends(tensor) for tensor in new):
                full = f"{path}.{name}" if path else name
                self._places.append((module, name, _mapped(value, lambda tensor, full=full: self._zeros(tensor, full))))

    def _zeros(self, like: Tensor, name: str) -> Tensor:
        if id(like) in self._before:
            return like
        zeros = torch.zeros(tuple(like.shape), dtype=like.dtype)
        if depends(like):
            self.names[zeros.untyped_storage()._cdata] = name
        return zeros

    def __bool__(self) -> bool:
        return bool(self.names)

    def plant(self) -> None:
        for module, name, value in self._places:
            module.__dict__[name] = value

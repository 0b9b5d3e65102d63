"""What a forward pass leaves in attributes of modules, as a recurrent network may leave its hidden state, and reads in the next.

A step keeps buffers and parameters, and nothing else, so that it would begin with what was there before the first pass. Hence such
modules are refused by name. What depends on shapes alone (a table that is made when it is first needed), and what is left for others to
look at, is the same in every pass, or not read.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from .chosen import depends

_OWN = frozenset(vars(nn.Module()))  # fields that every module has
_CONTAINERS = (dict, list, tuple, deque)
_DEPTH = 6  # of containers in containers


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OWN}


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _CONTAINERS) and depth > 0:
        for entry in _entries(value):
            yield from _tensors(entry, depth - 1)


def _mapped(value: Any, change: Callable[[Tensor], Tensor], depth: int = _DEPTH) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if not isinstance(value, _CONTAINERS) or depth == 0:
        return value
    if isinstance(value, dict):
        result = value.copy()  # of its own class
        result.update((key, _mapped(entry, change, depth - 1)) for key, entry in value.items())
        return result
    entries = [_mapped(entry, change, depth - 1) for entry in value]
    return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)  # the former: named tuples


def _contents(value: Any, found: list[tuple[Any, Any]], depth: int = _DEPTH) -> None:
    """The containers that a value consists of, each with a copy of it."""
    if not isinstance(value, _CONTAINERS) or depth == 0:
        return
    if not isinstance(value, tuple):
        found.append((value, value.copy()))
    for entry in _entries(value):
        _contents(entry, found, depth - 1)


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


@contextmanager
def forgotten(forget_tables: Callable[[], None]) -> Iterator[None]:
    """Tables that a pass leaves in variables, and in what ``functools.lru_cache`` keeps, have no values where that was an export; the next pass makes them anew."""
    try:
        yield
    finally:
        forget_tables()
        for cache in [o for o in gc.get_objects() if type(o) is functools._lru_cache_wrapper]:
            if cache.cache_info().currsize and _keeps_fake(cache):
                cache.cache_clear()


def _keeps_fake(cache: Any) -> bool:
    waiting = [(kept, _DEPTH) for kept in gc.get_referents(cache)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, FakeTensor):
            return True
        if depth > 0 and (isinstance(value, _CONTAINERS) or type(value).__name__ == "_lru_list_elem"):
            waiting += [(kept, depth - 1) for kept in gc.get_referents(value)]
    return False


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

"""What a forward pass assigns to plain attributes of its modules: counts, flags, lists of numbers.

A step runs no Python, and an export puts such attributes back as they were. So what the network makes of them would stay as it was in the first call: a temperature that
a count anneals, heads that take turns. The model is captured again with the attributes as further calls would find them, and refused where that gives another network.
"""

from __future__ import annotations

import dis
import warnings
from types import CodeType
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch import nn
from torch._subclasses.functional_tensor import FunctionalTensor
from torch._subclasses.fake_tensor import FakeTensor

from .chosen import depends
from .errors import Unsupported, UnsupportedOp
from .settings import _OWN, _PLAIN, _Cells, _Defaults, _Entries, _is_short, _is_users, _Methods, _Mode, _owners, _Read, _same, _Seen, _Slots

_CALLS = (4, 8, 98, 998)  # later ones, whose values are tried as well: counts of 5, 9, 99 and 999, and what comes next
_SYMBOLS = (torch.SymFloat, torch.SymInt, torch.SymBool)
OF_CAPTURES = (*_SYMBOLS, FakeTensor, FunctionalTensor)  # of use within one


class Assigned:
    """Of the modules of a model, and of what its functions read by names (a counter of the loss's): what one pass has changed, from what it found to what it left."""

    def __init__(self, *wholes: nn.Module, functions: Sequence[Callable] = ()):
        modules = [(name, part) for whole in wholes for name, part in whole.named_modules()]
        self._places: dict[int, tuple[str, Any, bool]] = {id(vars(part)): (name, vars(part), _is_users(type(part).__module__)) for name, part in modules}
        self._own = {*self._places}  # which an export puts back by itself
        seen = _Seen(*wholes, *functions)
        for owner, fields in _owners(wholes[0], tuple(functions), seen):
            if not isinstance(fields, (_Defaults, _Entries, _Methods, _Mode, _Slots)) and not (isinstance(fields, _Read) and not isinstance(fields._values, dict)):
                self._places.setdefault(id(fields), (owner, fields, id(fields) not in seen.of_packages))
        self._before: dict[tuple[int, str], Any] = {}
        self._held: dict[tuple[int, str], Any] = {}  # lists and dictionaries themselves
        self.changed: dict[tuple[int, str], tuple[Any, Any]] = {}

    def begin(self) -> None:
        self._held = dict(self._plain())
        self._before = {place: _copied(value) for place, value in self._held.items()}
        self.changed = {}

    def end(self) -> None:
        for place, before in self._before.items():
            fields = self._places[place[0]][1]
            now = fields.get(place[1])
            if _same(before, _copied(now)) or (place[0] not in self._own and not _is_plain(now)):
                continue
            self.changed[place] = (before, _copied(now))
            if place[0] not in self._own:
                _put_back(fields, place[1], self._held[place], before)

    def _plain(self) -> Iterator[tuple[tuple[int, str], Any]]:
        for key, (_, fields, _) in self._places.items():
            for name in list(fields):
                if name not in _OWN and isinstance(name, str) and not name.startswith("__") and _is_plain(value := fields.get(name)):
                    yield (key, name), value

    def name(self, place: tuple[int, str]) -> str:
        return f"{self._places[place[0]][0]}.{place[1]}".strip(".")

    def is_users(self, place: tuple[int, str]) -> bool:
        return self._places[place[0]][2]

    def replaced(self, values: dict[tuple[int, str], Any]) -> "_Replaced":
        return _Replaced([(self._places[key][1], name, value) for (key, name), value in values.items()])


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or _is_short(value)


class _Replaced:
    """Attributes and variables with other values for a while."""

    def __init__(self, values: list[tuple[Any, str, Any]]):
        self._values = values

    def __enter__(self) -> None:
        self._own = [(fields.get(name), _copied(fields.get(name))) for fields, name, _ in self._values]
        for fields, name, value in self._values:
            _put(fields, name, _copied(value))

    def __exit__(self, *_: Any) -> None:
        for (fields, name, _), (own, held) in zip(self._values, self._own):
            _put_back(fields, name, own, held)


def _put_back(fields: Any, name: str, own: Any, held: Any) -> None:
    """What was there, and, of a list or a dictionary, what was in it."""
    _put(fields, name, own)
    if isinstance(own, list):
        own[:] = held
    elif isinstance(own, dict):
        own.clear()
        own.update(held)


def _copied(value: Any) -> Any:
    return list(value) if type(value) is list else dict(value) if type(value) is dict else value


def _after(before: Any, after: Any, calls: int) -> Any:
    """What so many calls more would leave, where each adds the same."""
    if type(after) is dict and type(before) is dict:
        return {key: _after(before.get(key), value, calls) for key, value in after.items()}
    if type(after) is list and type(before) is list and after[: len(before)] == before:
        return after + after[len(before) :] * calls
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in (before, after)):
        return after
    return after + (after - before) * calls


def expect_no_counts(assigned: Assigned, capture: Callable[[], Any], differ: Callable[[Any], bool]) -> None:
    """Raises ``Unsupported`` where the network is another in a further call. ``capture()`` gives the network, and may raise; ``differ(network)`` says whether it is
    another than the first. Warns of what is changed, and changes nothing."""
    first = {place: pair for place, pair in assigned.changed.items() if not isinstance(pair[1], _SYMBOLS)}
    logged = [place for place in assigned.changed if place not in first]
    tried = {place: pair for place, pair in first.items() if isinstance(pair[1], _PLAIN) or _is_short(pair[1])}
    counts: dict[tuple[int, str], tuple[Any, Any]] = {}
    if tried:
        differs = _differs(assigned, {place: after for place, (_, after) in tried.items()}, capture, differ)
        counts = {place: pair for place, pair in tried.items() if place in assigned.changed}
        if differs and not counts:  # what is made once, or kept: it stays as this pass makes it
            _warn(assigned, tried, "the network is captured as in a first call, where it is {before}, and would be another where it is {after}: call the model once before it is compiled, if later calls are what is to be trained")
        trials = [{place: _after(*pair, calls) for place, pair in counts.items()} for calls in _CALLS] if counts else []
        for values in trials:
            differs = differs or _differs(assigned, values, capture, differ)
        if counts and differs:
            told = ", ".join(f"'{assigned.name(place)}' from {before!r} to {after!r}" for place, (before, after) in counts.items())
            raise Unsupported(
                [
                    UnsupportedOp(
                        "an attribute", "", "",
                        f"forward changes {told}, and later calls give another network; a step runs no Python, and would keep the first. Make it a buffer,"
                        " register_buffer('steps', torch.zeros(())), that forward changes in place, or a tensor of the batch, or change it outside of forward",
                    )
                ]
            )
    _warn(assigned, counts, "a step runs no Python: it stays {before}")
    _warn(assigned, {place: (None, None) for place in logged}, "a step runs no Python: it stays as it is. What is to be read after a step is what outputs= names")


def _differs(assigned: Assigned, values: dict, capture: Callable[[], Any], differ: Callable[[Any], bool]) -> bool:
    with assigned.replaced(values):
        try:
            network = capture()
        except Unsupported:  # as where a cache that goes with it is not there
            assigned.changed = {}
            return False
    return differ(network)


def _warn(assigned: Assigned, places: dict, text: str) -> None:
    for place in places:
        if not assigned.is_users(place):
            continue
        before, after = places[place]
        warnings.warn(f"forward changes {assigned.name(place)}; " + text.format(before=repr(before), after=repr(after)), stacklevel=3)


class Logged:
    """Plain variables and entries that a loss, or another function, may write what it computes into, for a log: a capture leaves its own symbols there."""

    def __init__(self, model: nn.Module, *functions: Optional[Callable]):
        self._places = [
            (f"{owner}.{name}", fields, name, value, _copied(value))
            for owner, fields in _owners(model, functions, _Seen(model, *functions))
            for name, value in list(fields.items())
            if isinstance(name, str) and not name.startswith("__") and (isinstance(value, _PLAIN) or _is_short(value) or _is_of_tensors(value))
        ]
        for function in filter(None, (type(model).forward, *functions)):
            code, variables = getattr(function, "__code__", None), getattr(function, "__globals__", {})
            for name in _written_by(code) if code is not None else ():
                if isinstance(variables.get(name), (*_PLAIN, torch.Tensor)):
                    self._places.append((name, variables, name, variables.get(name), variables.get(name)))

    def put_back(self) -> None:
        for told in self._put_back(lambda _: True):
            warnings.warn(f"{told} is written with what is computed; a step runs no Python: it stays as it is. What is to be read after a step is what outputs= names", stacklevel=3)

    def forget_tables(self) -> None:
        """What depends on shapes alone, and is kept for the next pass, has no values: that makes it anew."""
        for _ in self._put_back(lambda value: isinstance(value, FakeTensor) and not depends(value)):
            pass

    def _put_back(self, of: Callable[[Any], bool]) -> Iterator[str]:
        """Those of captures' own that are ``of`` such a kind, as they were; the names of their places."""
        is_left = lambda value: isinstance(value, OF_CAPTURES) and of(value)  # noqa: E731
        for told, fields, name, value, held in self._places:
            now = fields.get(name)
            if is_left(now):
                _put(fields, name, value)
            elif now is value and type(value) is dict and any(is_left(entry) for entry in value.values()):
                value.clear()
                value.update(held)
            elif now is value and type(value) is list and any(is_left(entry) for entry in value):
                value[:] = held
            else:
                continue
            yield told


def _is_of_tensors(value: Any) -> bool:
    """Tables that were kept before."""
    return type(value) is torch.Tensor or type(value) in (dict, list) and all(isinstance(entry, torch.Tensor) for entry in (value.values() if type(value) is dict else value))


def _written_by(code: CodeType) -> set[str]:
    """Global variables that a function assigns."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"}
    return own.union(*(_written_by(part) for part in code.co_consts if isinstance(part, CodeType)))


def _put(fields: Any, name: str, value: Any) -> None:
    if isinstance(fields, _Cells):
        fields[name].cell_contents = value
    elif isinstance(fields, _Entries):
        if not isinstance(fields._entries, tuple):
            fields._entries[fields.keys_of[name]] = value
    else:
        values = fields._values if isinstance(fields, _Read) else fields
        if isinstance(values, dict):  # no class's, whose attributes nobody has written through it
            values[name] = value

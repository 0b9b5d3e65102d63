"""Numbers, flags and tensors that a forward pass may read of its modules, of their configurations and of the loss, and that are no parameters: a network has them as they
were when it was captured.

Before a step they are compared. What has changed is captured anew, as a batch of another shape is, and gets a plan of its own; where the network turns
out to be the same, the number does not matter, and is not looked at again.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import pickle
import random
import sys
import sysconfig
import threading
import warnings
from collections import deque
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin

from . import moving
from .held import untouched
from .values import has_values

_PLAIN = (bool, int, float, str, type(None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_LEAVES = (enum.Enum, np.generic, complex, bytes, range)
_CONTAINERS = (dict, list, tuple, deque)
_HASHED = 1 << 16  # elements of an array, or of a tensor within a value, that is looked at before every step
_MOST = 64  # entries of a list or a dictionary, and of a tensor that is looked at before every step
_OWN = frozenset(vars(nn.Module()))  # fields that every module has


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()
_TORCH, _PLIMSOLL = (str(Path(file).parent) + "/" for file in (torch.__file__, __file__))
_BATCH_NORM = nn.BatchNorm2d.forward.__code__.co_filename
_STANDARD = str(Path(sysconfig.get_paths()["stdlib"])) + "/"
_MOVES = 3  # values of a number after which it is tried as an input
OFTEN = "make it a tensor of the batch, or, of a module, write into it by load_state_dict and put no other in its place"


class _Seen(set):  # type: ignore[type-arg]
    """Ids of what was looked at."""

    def __init__(self, *wholes: Any) -> None:
        super().__init__()
        self.own = {id(part) for whole in wholes if isinstance(whole, nn.Module) for part in whole.modules()}
        self.parts: dict[int, tuple[Any, frozenset]] = {}  # containers and objects whose entries are looked at by themselves, by their ids: these, and the keys
        self.modules: list[tuple[str, nn.Module]] = []  # others that were met, by the names that led there
        self.of_packages: set[int] = set()  # ids of the attributes of objects whose class is an installed package's, or derives from one


def modules_beside(model: nn.Module, *functions: Optional[Callable]) -> dict[str, nn.Module]:
    """Modules with parameters or buffers that the model or these functions may read, and that are no part of the model: a judge, a target network,
    a criterion. By their names there."""
    seen = _Seen(model, *functions)
    for _ in _owners(model, functions, seen):
        pass
    known = set(seen.own)
    found: dict[str, nn.Module] = {}
    for told, module in sorted(seen.modules, key=lambda entry: -sum(1 for _ in entry[1].modules())):  # what holds others first
        tensors = [*module.parameters(), *module.buffers()]
        if id(module) in known or not tensors or any(isinstance(t, UninitializedTensorMixin) or not has_values(t) for t in tensors):
            continue
        known.update(id(part) for part in module.modules())
        name = told.replace(".", "_")
        while name in found or hasattr(nn.ModuleDict, name):
            name += "_"
        found[name] = module
    return found


def places_of(wanted: set[int], model: nn.Module, *functions: Optional[Callable]) -> Iterator[tuple[str, nn.Parameter, moving.Number]]:
    """Where parameters with these ids stand that the model or these functions read by names: a name, the parameter, the place."""
    for told, fields in _owners(model, functions, _Seen(model, *functions)):
        for key, value in list(fields.items()):
            if id(value) in wanted and isinstance(value, nn.Parameter) and (number := _number(f"{told}.{key}", fields, key)) is not None:
                yield f"{told}.{key}".replace(".", "_") if key.isdigit() else key.replace(".", "_"), value, number[1]


def _owners(model: nn.Module, functions: tuple, seen: _Seen) -> Iterator[tuple[str, Any]]:
    """Dictionaries of attributes by the names of what has them. A cell of a closure is one of its own."""
    given = [("model", model), *((getattr(f, "__name__", "loss"), f) for f in functions if f is not None)]
    for title, owner in given:
        if isinstance(owner, MethodType):
            yield from _of_function(title, owner.__func__, seen)
            owner = owner.__self__
            if isinstance(owner, nn.Module) and id(owner) not in seen.own:
                seen.modules.append((title, owner))
        if isinstance(owner, functools.partial):
            yield from _inside(title, owner, seen)
            continue
        for name, part in owner.named_modules() if isinstance(owner, nn.Module) else [("", owner)]:
            if isinstance(part, FunctionType):
                yield from _of_function(title, part, seen)
                continue
            fields = getattr(part, "__dict__", None)
            if not isinstance(fields, dict) or id(fields) in seen:
                continue
            seen.add(id(fields))
            if title != "model" and not isinstance(part, nn.Module) and not all(_is_users(c.__module__) for c in type(part).__mro__[:-1]):
                seen.of_packages.add(id(fields))
            yield (name if title == "model" else f"{title}.{name}").strip(".") or title, fields
            yield (name if title == "model" else f"{title}.{name}").strip(".") or title, _Methods(part)
            if isinstance(part, nn.Module) and id(part) not in seen.own:
                yield f"{title}.{name}".strip("."), _Mode(part)
            if isinstance(part, nn.Module):
                yield name or title, part._buffers
                seen.update((id(part._buffers), id(part._parameters)))
                if title != "model":
                    yield f"{title}.{name}".strip("."), part._parameters
            yield from _of_class(type(part), seen)
            for key, value in list(fields.items()):
                if key not in _OWN:
                    yield from _inside(f"{name}.{key}".strip("."), value, seen)


def _inside(told: str, value: Any, seen: _Seen, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Of what a name stands for: entries, attributes, and what a function of the user's reads in turn."""
    if depth == 0 or id(value) in seen or isinstance(value, _PLAIN) or isinstance(value, Tensor):
        return
    if isinstance(value, FunctionType):
        if _is_users(value.__module__):
            yield from _of_function(told, value, seen, depth - 1)
    elif isinstance(value, MethodType):
        yield from _inside(told, value.__func__, seen, depth)
        yield from _inside(told, value.__self__, seen, depth)
    elif isinstance(value, functools.partial):
        seen.add(id(value))
        yield told, value.keywords
        for key, entry in [("func", value.func), *enumerate(value.args), *value.keywords.items()]:
            yield from _inside(f"{told}.{key}", entry, seen, depth)
    elif isinstance(value, type):
        yield from _of_class(value, seen)
    elif isinstance(value, nn.Module):
        if id(value) in seen.own:  # looked at by itself
            return
        seen.modules.append((told, value))
        for path, module in value.named_modules():
            for fields in (vars(module), module._buffers, module._parameters):
                if id(fields) not in seen:
                    seen.add(id(fields))
                    yield f"{told}.{path}".strip("."), fields
                    if fields is vars(module):
                        yield f"{told}.{path}".strip("."), _Mode(module)
                        yield f"{told}.{path}".strip("."), _Methods(module)
    elif isinstance(value, _CONTAINERS):
        seen.add(id(value))
        by_names = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        if by_names and type(value) is not dict:  # one whose entries are attributes, too
            yield told, value
            seen.parts[id(value)] = value, frozenset(value)
        elif _holds_tensors(value) or (isinstance(value, dict) and depth < 3 and 0 < len(value) <= _MOST):
            yield told, value if by_names else _Entries(value)
            seen.parts[id(value)] = value, frozenset(value if isinstance(value, dict) else range(len(value)))
        if len(value) <= _MOST:
            for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
                yield from _inside(f"{told}.{key}", entry, seen, depth - 1)
    elif _has_attributes(value) and id(vars(value)) not in seen:
        seen.update((id(value), id(vars(value))))
        if dataclasses.is_dataclass(value) and not _is_users(type(value).__module__):
            seen.of_packages.add(id(vars(value)))
        yield told, vars(value)
        seen.parts[id(value)] = value, frozenset(vars(value))
        yield told, _Methods(value)
        yield from _of_class(type(value), seen)
        for key, entry in list(vars(value).items()):
            yield from _inside(f"{told}.{key}", entry, seen, depth - 1)
    elif _is_users(type(value).__module__) and (slots := _Slots(value)):
        seen.add(id(value))
        seen.parts[id(value)] = value, frozenset(slots)
        yield told, slots
        yield from _of_class(type(value), seen)
        for key, entry in slots.items():
            yield from _inside(f"{told}.{key}", entry, seen, depth - 1)


def _has_attributes(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict) and (
        isinstance(value, (Namespace, SimpleNamespace)) or dataclasses.is_dataclass(value) or _is_users(type(value).__module__)
    )


@functools.lru_cache(maxsize=None)
def _is_users(module: Optional[str]) -> bool:
    """Whether a module is the user's own, and no installed package."""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or (module or "").split(".")[0] in ("torch", "plimsoll"):
        return False
    return not {"site-packages", "dist-packages"} & set(Path(file).parts) and Path(sysconfig.get_paths()["stdlib"]) not in Path(file).parents


def _of_class(kind: type, seen: _Seen) -> Iterator[tuple[str, Any]]:
    for c in kind.__mro__:
        if id(c) in seen or not _is_users(c.__module__):
            continue
        seen.add(id(c))
        yield c.__name__, _Read(vars(c), tuple(vars(c)))
        for function in list(vars(c).values()):
            function = function.fget if isinstance(function, property) else getattr(function, "__func__", function)
            if isinstance(function, FunctionType):
                yield from _of_function(c.__name__, function, seen, 2)


def _attributes_of(code: CodeType) -> set[str]:
    """Those that a function, and what is defined within it, names of anything."""
    return {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_ATTR", "LOAD_METHOD")}.union(*(_attributes_of(part) for part in code.co_consts if isinstance(part, CodeType)))


class _Defaults(dict):  # type: ignore[type-arg]
    """What a function's arguments are where nobody gives them."""


def _defaults_of(function: FunctionType) -> _Defaults:
    code, values = function.__code__, function.__defaults__ or ()
    return _Defaults({**dict(zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values)), **(function.__kwdefaults__ or {})})


def _names_of(code: CodeType) -> tuple[str, ...]:
    """The global variables that a function reads, and what is defined within it."""
    own = (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return tuple(dict.fromkeys([*own, *(name for part in code.co_consts if isinstance(part, CodeType) for name in _names_of(part))]))


def _of_function(title: str, function: FunctionType, seen: _Seen, depth: int = 3) -> Iterator[tuple[str, Any]]:
    if id(function) in seen:
        return
    seen.add(id(function))
    code = function.__code__
    names = _names_of(code)
    yield title, _Read(function.__globals__, names)
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    yield title, _Cells(cells)
    held = {name: _Cells.value(cell) for name, cell in cells.items()} | {name: function.__globals__.get(name) for name in names}
    defaults = _defaults_of(function)
    yield title, defaults
    for name, value in {**held, **defaults}.items():
        if isinstance(value, ModuleType) and _is_users(value.__name__):  # settings.weight, losses.focal(...)
            named = tuple(sorted(_attributes_of(code) & vars(value).keys()))
            yield name, _Read(vars(value), named)
            for attribute in named:
                yield from _inside(f"{name}.{attribute}", vars(value)[attribute], seen, depth)
        else:
            yield from _inside(name, value, seen, depth)


def _holds_tensors(value: Any) -> bool:
    entries = list(value.values() if isinstance(value, dict) else value)
    return 0 < len(entries) <= _MOST and any(isinstance(entry, (Tensor, nn.Module)) for entry in entries)


class _Entries(dict):  # type: ignore[type-arg]
    """Those of a list, or of a dictionary whose keys are no names."""

    def __init__(self, entries: Any):
        pairs = list(entries.items() if isinstance(entries, dict) else enumerate(entries))
        super().__init__({str(key): entry for key, entry in pairs})
        self.keys_of = {str(key): key for key, _ in pairs}
        self._entries = entries

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self._entries[self.keys_of[name]]
        except LookupError:
            return default


class _Read(dict):  # type: ignore[type-arg]
    """Those of a dictionary that a function names, as they are now."""

    def __init__(self, values: Mapping[str, Any], names: tuple[str, ...]):
        super().__init__({name: None for name in names if name in values})
        self._values = values

    def items(self) -> Any:
        return [(name, self._values.get(name, _ABSENT)) for name in self]

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)


class _Slots(dict):  # type: ignore[type-arg]
    """Attributes of an object that has no dictionary of them."""

    def __init__(self, owner: Any):
        slots = [getattr(c, "__slots__", ()) for c in type(owner).__mro__]
        super().__init__({name: None for names in slots for name in ([names] if isinstance(names, str) else names) if hasattr(owner, name)})
        self._owner = owner

    def items(self) -> Any:
        return [(name, self.get(name)) for name in self]

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self._owner, name, default)


class _Mode(dict):  # type: ignore[type-arg]
    """Whether a module beside the model is in training mode."""

    def __init__(self, module: nn.Module):
        super().__init__({"training": module.training})
        self._module = module

    def get(self, name: str, default: Any = None) -> Any:
        return self._module.training


class _Methods(dict):  # type: ignore[type-arg]
    """Methods of the user's classes that an object has not of its own: ``model.encode = ...`` puts another one in the place of its class's."""

    def __init__(self, owner: Any):
        found = (name for c in type(owner).__mro__ if _is_users(c.__module__) for name, value in vars(c).items() if isinstance(value, FunctionType))
        super().__init__({name: None for name in found if name not in vars(owner) and name not in ("forward", *_NOT_CALLED)})
        self._fields = vars(owner)

    def items(self) -> Any:
        return [(name, self.get(name)) for name in self]

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, _ABSENT)


_NOT_CALLED = ("__init__", "__repr__", "extra_repr")  # by a forward pass


class _Cells(dict):  # type: ignore[type-arg]
    """Variables of a closure."""

    def items(self) -> Any:
        return [(name, self.value(cell)) for name, cell in super().items()]

    def get(self, name: str, default: Any = None) -> Any:
        return self.value(self[name])

    @staticmethod
    def value(cell: Any) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return _ABSENT


def _kind(fields: Any, name: str, value: Any) -> bool:
    if type(fields) is _Methods:
        return True
    if not isinstance(name, str) or (name in _OWN and type(fields) is not _Mode) or name.startswith("__") or isinstance(value, UninitializedTensorMixin):
        return False
    return isinstance(value, (*_PLAIN, *_FUNCTIONS, Tensor, nn.Module)) or _is_short(value) or _is_whole(value)


def _is_whole(value: Any) -> bool:
    """A value that is looked at as a whole: an array, a set, a list of lists, an object that another may be put in the place of."""
    if isinstance(value, (*_LEAVES, type, np.ndarray, set, frozenset, MethodType, functools.partial, *_CONTAINERS)):
        return not _is_short(value)
    return not isinstance(value, (nn.Module, Tensor)) and (_has_attributes(value) or (_is_users(type(value).__module__) and hasattr(type(value), "__slots__")))


class _Whole:
    """What such a value consists of, as it was. ``parts``: those of its parts that are looked at by themselves."""

    def __init__(self, value: Any, parts: Mapping[int, tuple[Any, frozenset]]):
        self._kept: list = []  # what is told apart by where it lies
        self._parts = parts
        self.form = self._form(value, 4)
        self._is_leaf = isinstance(value, _LEAVES)
        self._plain = repr(value) if self._is_leaf or _is_of_plain(value) else None
        known, keys = parts.get(id(value), (None, frozenset()))
        self._known = (value, len(keys)) if known is value and known is not None and _length_of(value) == len(keys) else None

    def is_untouched(self, now: Any) -> bool:
        """Where that is quickly told."""
        if self._known is not None:
            return now is self._known[0] and _length_of(now) == self._known[1]
        return self._plain is not None and (self._is_leaf or _length_of(now) <= _MOST) and repr(now) == self._plain

    def _form(self, value: Any, depth: int) -> Any:
        if isinstance(value, _PLAIN):
            return type(value).__name__, value if value == value else "nan"
        if isinstance(value, _LEAVES):
            return type(value).__name__, repr(value)
        if isinstance(value, Tensor):
            is_small = value.numel() <= _HASHED
            return "tensor", tuple(value.shape), _text(value) if is_small else (self._place(value), _version(value))
        if isinstance(value, np.ndarray):
            return "array", value.shape, value.dtype.str, hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest() if value.size <= _HASHED and not value.dtype.hasobject else self._place(value)
        if isinstance(value, MethodType):
            return "method", self._place(value.__func__), self._place(value.__self__)
        if depth == 0 or isinstance(value, (nn.Module, type, *_FUNCTIONS)):
            return "at", self._place(value)
        if isinstance(value, functools.partial):
            return "partial", *(self._form(part, depth - 1) for part in (value.func, value.args, value.keywords))
        if isinstance(value, (set, frozenset)):
            return "set", len(value) if len(value) > _MOST else tuple(sorted(repr(self._form(entry, depth - 1)) for entry in value))
        known, keys = self._parts.get(id(value), (None, frozenset()))
        known_keys = keys if known is value else frozenset()
        entries = _entries_of(value)
        if entries is None:
            return (type(value).__name__,)
        return type(value).__name__, self._place(value) if known is value else None, tuple((repr(key), self._form(entry, depth - 1)) for key, entry in entries if key not in known_keys)

    def _place(self, value: Any) -> int:
        self._kept.append(value)
        return id(value)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Whole) and self.form == other.form

    def __repr__(self) -> str:
        return self._plain if self._is_leaf else f"{self.form[0]} ({hashlib.blake2b(repr(self.form).encode(), digest_size=8).hexdigest()})"


def _is_of_plain(value: Any, depth: int = 4) -> bool:
    """Whether a container consists of values that a text tells all of."""
    if isinstance(value, (*_PLAIN, *_LEAVES)):
        return True
    if not isinstance(value, (*_CONTAINERS, set, frozenset)) or depth == 0 or len(value) > _MOST:
        return False
    return all(_is_of_plain(entry, depth - 1) for entry in (value.values() if isinstance(value, dict) else value))


def _length_of(value: Any) -> int:
    """How many entries, or attributes, there are."""
    if isinstance(value, (*_CONTAINERS, set, frozenset)):
        return len(value)
    return len(vars(value)) if _has_attributes(value) else len(_Slots(value)) if _is_users(type(value).__module__) else 0


def _entries_of(value: Any) -> Optional[list[tuple[Any, Any]]]:
    """Of a container or an object, by keys or names; None of a long one."""
    if not isinstance(value, _CONTAINERS):
        value = vars(value) if _has_attributes(value) else _Slots(value) if _is_users(type(value).__module__) else {}
    return None if len(value) > _MOST else list(value.items() if isinstance(value, dict) else enumerate(value))


def _is_short(value: Any) -> bool:
    entries = value.values() if type(value) is dict else value if type(value) in (list, tuple) else None
    return entries is not None and len(value) <= _MOST and all(isinstance(entry, _PLAIN) for entry in entries)


class _Values:
    """A tensor as it was: by its versions, and by what it holds where these differ. A short one by what it holds alone, since a change through .data has no version."""

    def __init__(self, tensor: Tensor):
        self.shape, self.text = tuple(tensor.shape), _text(tensor)
        self.meets(tensor)

    def meets(self, tensor: Tensor) -> None:
        """What it holds is the same in this one."""
        self.tensor, self.version, self.memory = tensor, _version(tensor), _memory(tensor)
        self.short = _short(tensor)

    def is_untouched(self, now: Any) -> bool:
        if self.tensor is not now or self.version != _version(now) or self.memory != _memory(now):
            return False
        short = _short(now) if self.short is not None else None
        return (self.short is None) == (short is None) and (short is None or self.short == short)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Values) and self.shape == other.shape and self.text == other.text

    def __repr__(self) -> str:
        return f"a tensor {self.shape} ({self.text})"


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _memory(tensor: Tensor) -> int:
    with untouched():
        return tensor.data_ptr() if has_values(tensor) else 0


def _short(tensor: Tensor) -> Optional[bytes]:
    """What a tensor of few elements holds."""
    if tensor.numel() > _MOST or not has_values(tensor) or tensor.device.type != "cpu":
        return None
    with untouched():
        return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _text(tensor: Tensor) -> str:
    """Of its bytes."""
    if not has_values(tensor) or tensor.numel() == 0:
        return ""
    with untouched():
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return hashlib.blake2b(data, digest_size=8).hexdigest()


def _held(value: Any, parts: Mapping[int, tuple[Any, frozenset]]) -> Any:
    """A value that stays as it is where what it comes from changes."""
    if isinstance(value, Tensor):
        return _Values(value)
    if _is_whole(value):
        return _Whole(value, parts)
    return dict(value) if type(value) is dict else list(value) if type(value) is list else value


class _Reading(threading.local):
    codes: Optional[set[CodeType]] = None  # where names are read now, what has run


_reading = _Reading()


@contextmanager
def names_read() -> Iterator[set[str]]:
    """What the Python code names that runs in forward passes meanwhile: the user's, that of packages, and torch's modules."""
    codes: set[CodeType] = set()
    names: set[str] = set()
    before, _reading.codes = _reading.codes, codes
    try:
        yield names
    finally:
        _reading.codes = before
        for code in codes:
            if _is_foreign(code.co_filename):
                continue
            read = {*code.co_names, *code.co_freevars, *(const for const in code.co_consts if isinstance(const, str))}
            names |= read - {"num_batches_tracked"} if code.co_filename == _BATCH_NORM else read  # which is read where momentum is None, and that is refused


@contextmanager
def noting_names() -> Iterator[None]:
    """A forward pass. What else an export runs is PyTorch's, and most of it."""
    codes, before = _reading.codes, sys.getprofile()
    if codes is None:
        yield
        return
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code) if event == "call" else None)
    try:
        yield
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:  # cProfile's takes its place itself
            sys.setprofile(None)
            before.enable()


@functools.lru_cache(maxsize=None)
def _is_foreign(file: str) -> bool:
    """Whether a file is what exports are made with, and no module's code."""
    if file.startswith(_TORCH):
        return not file.startswith(_TORCH + "nn/modules/")
    return file.startswith((_PLIMSOLL, "<frozen")) or "/sympy/" in file or "/mpmath/" in file or "/packaging/" in file or (file.startswith(_STANDARD) and "-packages/" not in file)


class Settings:
    """``keep`` those that a forward pass does not itself change: given before a capture, and looked at again after it. ``key()`` tells values apart that differ from
    those of the first capture."""

    def __init__(self, model: nn.Module, *functions: Optional[Callable], without: Iterable[Tensor] = ()):
        own = {id(parameter) for module in (model, *modules_beside(model, *functions).values()) for parameter in module.parameters()} | {id(t) for t in without}
        seen = _Seen(model, *functions)
        named = [(owner, fields, name, value) for owner, fields in _owners(model, functions, seen) for name, value in list(fields.items())]
        self._places = [(owner, fields, name) for owner, fields, name, value in named if _kind(fields, name, value) and id(value) not in own]
        self._generators = [value for *_, value in named if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState))]
        self._of_packages, self._parts = seen.of_packages, seen.parts
        self._modes = [fields for _, fields, _ in self._places if isinstance(fields, _Mode)]
        self._first = [_held(value, self._parts) for value in self._now()]
        self._last = list(self._first)
        self._told: set[int] = set()
        self._met: dict[int, set] = {}  # of numbers, by place: the values that they have had since
        self._met_functions: list = []  # which keys tell apart by where they lie
        self._compared: set[int] = set()  # ids of places that made no difference so far
        self._stay: set[int] = set()  # ids of places of numbers that are no tensors to Python
        self.changing: dict[int, bool] = {}  # buffers that steps change, by their ids; whether the core does
        self.moved: list[moving.Number] = []  # and tensors: those that the network is given with every batch

    def generators(self) -> list[bytes]:
        """The states of generators of random numbers that are the user's own, of Python or numpy."""
        return [pickle.dumps(generator) for generator in self._generators]

    def _now(self) -> list:
        return [fields.get(name, _ABSENT) for _, fields, name in self._places]

    def keep(self, buffers: Mapping[int, bool] = {}) -> "Settings":
        """``buffers`` are those that steps change, by their ids; whether the core does."""
        self.changing.update(buffers)
        self.forget([i for i, now in enumerate(self._now()) if id(now) in buffers or not self._is_as(i, self._first, now)])
        return self

    def leave(self, buffers: Mapping[int, bool]) -> None:
        """Steps change these from now on."""
        self.changing.update(buffers)
        if changing := [i for i, now in enumerate(self._now()) if id(now) in buffers]:
            self.forget(changing)

    def _is_as(self, i: int, held: list, now: Any) -> bool:
        before = held[i]
        if isinstance(before, _Whole):
            return _is_whole(now) and before == _Whole(now, self._parts)
        if not isinstance(before, _Values):
            return _same(before, now)
        return isinstance(now, Tensor) and (before.is_untouched(now) or before == _Values(now))

    def changed(self) -> list[int]:
        found = []
        for i, now in enumerate(self._now()):
            before = self._first[i]
            if before is now or (isinstance(before, (_Values, _Whole)) and before.is_untouched(now)):
                continue
            if not self._is_as(i, self._last, now):
                self._last[i] = _held(now, self._parts)
                if isinstance(now, _FUNCTIONS) or isinstance(self._last[i], _Whole):
                    self._met_functions.append(self._last[i])
            elif isinstance(now, Tensor):
                self._last[i].meets(now)
            if not _same(before, self._last[i]):
                found.append(i)
        return found

    def key(self) -> tuple:
        return tuple(("value", f"{self._name(i)} = {_told(self._last[i])}") for i in self.changed())

    def forget(self, places: Iterable[int]) -> None:
        left = sorted(set(range(len(self._places))) - set(places))
        self._places, self._first, self._last = ([some[i] for i in left] for some in (self._places, self._first, self._last))
        self._told.clear()
        self._met.clear()

    def moving(self) -> list[tuple[moving.Number, list[int]]]:
        """Numbers and tensors that have had a third value, each once, with the places where it stands; those that are tried in vain are not told again."""
        found: dict[tuple, tuple[moving.Number, list[int]]] = {}
        for i in self.changed():
            first, now = self._first[i], self._last[i]
            if isinstance(first, _Values) and isinstance(now, _Values) and first.shape == now.shape:
                first, now = first.text, now.text
            elif isinstance(now, bool) or not isinstance(now, (int, float)) or not isinstance(first, (int, float)):
                continue
            met = self._met.setdefault(i, {first})
            met.add(now)
            if len(met) >= _MOVES and id(self._places[i]) not in self._stay and (number := _number(self._name(i), *self._places[i][1:])) is not None:
                key, told = number
                found.setdefault(key, (told, []))[1].append(i)
        return list(found.values())

    def move(self, number: moving.Number, places: Sequence[int]) -> None:
        """From now on every network is given it."""
        self.moved.append(number)
        gone = {id(self._places[i]) for i in places}
        self.forget([i for i, place in enumerate(self._places) if id(place) in gone])

    def stays(self, places: Sequence[int]) -> None:
        """It cannot be moved."""
        self._stay.update(id(self._places[i]) for i in places)

    def forget_unread(self, known: tuple, names: set[str], live: Collection[int]) -> None:
        """Of what has changed since ``known`` was the key, without a difference to the network: tensors that the network is given as they are (``live``, by their ids), and what
        Python's code did not name. The rest may make a difference yet: a counter that is compared, a tensor of which only the signs count."""
        changed = [i for i, part in zip(self.changed(), self.key()) if part not in known]
        compared = [i for i in changed if self._is_named(i, names) and not (isinstance(self._last[i], _Values) and id(self._last[i].tensor) in live)]
        told = [(self._name(i), id(self._places[i])) for i in compared if id(self._places[i]) not in self._compared]
        self._compared.update(place for _, place in told)
        self.forget(set(changed) - set(compared))
        for name, _ in told:
            warnings.warn(
                f"{name} has changed, which makes no difference to the network, but Python's code reads it: the network is captured anew for each of its values, which"
                " takes seconds. Leave it out of the forward pass and of the loss, or make it a tensor of the batch", stacklevel=2,
            )

    def _is_named(self, i: int, names: set[str]) -> bool:
        """Whether Python's code may read what stands at a place: entries may be read without being named."""
        _, fields, name = self._places[i]
        return name in names or isinstance(fields, _Entries) or (id(fields) in self._parts and isinstance(self._last[i], _Values))

    def forget_unnamed(self, names: set[str]) -> None:
        """What of a trainer, or another object of an installed package, Python's code did not name."""
        unnamed = [i for i, (_, fields, name) in enumerate(self._places) if id(fields) in self._of_packages and name not in names]
        if unnamed:
            self.forget(unnamed)

    @property
    def reads_packages(self) -> bool:
        return bool(self._of_packages)

    def knows(self, modules: Iterable[nn.Module]) -> bool:
        """Whether names lead to them, so that their modes are looked at."""
        known = {id(fields._module) for fields in self._modes}
        return all(id(module) in known for module in modules)

    def tell(self) -> None:
        """Once of each that it has changed."""
        for i in self.changed():
            if i not in self._told:
                self._told.add(i)
                now = self._last[i]
                warnings.warn(
                    f"{self._name(i)} was {_told(self._first[i])} when the step was compiled, and is {_told(now)} now: each of its values gets a plan of its own, at"
                    f" most 16, until it is an input of the network, if Python's code takes a tensor for it. Where it changes often, {OFTEN}", stacklevel=2,
                )

    def _name(self, i: int) -> str:
        return f"{self._places[i][0]}.{self._places[i][2]}"


def _number(name: str, fields: Any, key: str) -> Optional[tuple[tuple, moving.Number]]:
    """Where a number stands, told apart by what it is a variable of, and how it is written; None where it cannot be."""
    if isinstance(fields, (_Defaults, _Slots)):
        return None
    if isinstance(fields, _Cells):
        return (id(fields[key]),), moving.of_cell(name, fields[key])
    if isinstance(fields, _Entries):
        entries, place = fields._entries, fields.keys_of[key]
        return None if isinstance(entries, tuple) else ((id(entries), key), moving.of_entry(name, entries, place))
    values = fields._values if isinstance(fields, _Read) else fields
    return ((id(values), key), moving.of_dictionary(name, values, key)) if isinstance(values, dict) and not isinstance(values, (_Mode, _Methods)) else None


def _told(value: Any) -> str:
    return f"a {type(value).__name__} at {id(value):x}" if isinstance(value, nn.Module) else repr(value)


def _same(a: Any, b: Any) -> bool:
    if a is b or type(a) is not type(b):
        return a is b
    if type(a) is dict:
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b or (a != a and b != b)


def same_network(a: Any, b: Any) -> bool:
    """Whether two forms of one shape of batch are the same: what the core runs, what PyTorch computes before it, and every constant of it."""
    if _network(a) != _network(b) or not _same_tensors(a.converted.values, b.converted.values) or a.captured.inputs != b.captured.inputs:
        return False
    own = [{**form.captured.buffers, **form.captured.parameters} for form in (a, b)]
    if any(own[0].get(name) is not own[1].get(name) for name in a.fed | b.fed):  # of another module, which may be as this one is now
        return False
    preludes = [form.captured.prelude for form in (a, b)]
    if preludes[0].is_empty and preludes[1].is_empty:
        return True
    modules = [prelude.module() for prelude in preludes]
    return str(modules[0].graph) == str(modules[1].graph) and _same_tensors(dict(modules[0].named_buffers()), dict(modules[1].named_buffers()))


def _network(form: Any) -> Any:
    """Without what the values of parameters are like."""
    section = form.section
    return {**section, "tensors": [{k: v for k, v in t.items() if k != "init"} for t in section["tensors"]], "frozen": sorted(section["frozen"])}


def _same_tensors(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[k] is b[k] or (a[k].shape == b[k].shape and torch.equal(a[k], b[k])) for k in a)

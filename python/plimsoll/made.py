"""What tensors hold that are made of shapes and numbers alone, as torch.ones(x.shape) does: a table, a mask for a shape.

While a model is exported no tensor has values. Of such a tensor it is noted how it was made, so that it can be made once more where Python asks for values:
where a mask holds, at how many places, whether at all. A note is an expression and never changes; a tensor that is written into gets another note, or none.

What is made of a batch's tensors too is noted likewise. Where a size is the most places at which any row of a mask holds, or a branch is whether one holds anywhere, and nothing
else helps, a network is captured for what the example has there (``Sizes``): a batch that has something else gets a plan of its own.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

from .chosen import is_most
from .fixed import untraced

_FIELD = "_plimsoll_made"
OF_SHAPES = frozenset("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_tensor".split())
_SEVERAL = frozenset("unbind chunk split meshgrid sort topk max min".split())
_MAKING = frozenset("arange linspace eye zeros ones empty full".split())
_SIZED = _MAKING | frozenset("new_zeros new_ones new_empty new_full view reshape expand broadcast_to narrow repeat tile split split_with_sizes chunk unflatten".split())
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_BATCH = -1  # of what is known while an expression is evaluated: the batch's tensors
_epoch = 0  # of notes: those of another one are void
_consulted: list[int] = []  # forms of what was read by ``values_of``


def _of_batch(i: int) -> Tensor:
    """Stands for a tensor of the batch."""
    raise AssertionError


class Made:
    """A function of numbers and of what was made before."""

    def __init__(self, func: Callable, args: tuple, kwargs: dict, read: tuple = ()):
        self.func, self.args, self.kwargs = func, args, kwargs
        self.is_of_batch = func is _of_batch or any(isinstance(leaf, Made) and leaf.is_of_batch for leaf in pytree.tree_leaves((args, kwargs)))
        # Alike where the same functions are given the same numbers: of what is made of a batch's size, another for each.
        self.form = hash((getattr(func, "__name__", type(func).__name__), *map(_form_of, pytree.tree_leaves((args, kwargs)))))
        self._read = read  # tensors, each with its version: what a function is not to write into

    def values(self, known: Optional[dict[int, Any]] = None) -> Any:
        """``known``: those of other expressions; with a batch's tensors among them all is done on the host, wherever the batch is."""
        known = {} if known is None else known
        waiting = [self]
        while waiting:  # a loop that writes row by row makes long chains
            made = waiting[-1]
            missing = [leaf for leaf in pytree.tree_leaves((made.args, made.kwargs)) if isinstance(leaf, Made) and id(leaf) not in known] if id(made) not in known else []
            if missing:
                waiting.extend(missing)
                continue
            waiting.pop()
            if id(made) not in known:
                known[id(made)] = made._of(known)
        return known[id(self)]

    def _of(self, known: dict[int, Any]) -> Any:
        of_batch = known.get(_BATCH)
        args, kwargs = pytree.tree_map(lambda leaf: known[id(leaf)] if isinstance(leaf, Made) else leaf if of_batch is None else _on_host(leaf), (self.args, self.kwargs))
        result = of_batch[self.args[0]].detach() if self.func is _of_batch else self.func(*args, **kwargs)  # type: ignore[index]
        return result if of_batch is None else pytree.tree_map_only(Tensor, Tensor.cpu, result)

    def has_written(self, but: Any = None) -> bool:
        """Whether the function, which was called meanwhile, has written into a tensor that it was given. Tells once, and holds none of them afterwards."""
        read, self._read = self._read, ()
        return any(tensor is not but and tensor._version != version for tensor, version in read)


def _form_of(leaf: Any) -> Any:
    if isinstance(leaf, Made):
        return leaf.form
    return (leaf.shape, leaf.dtype.str, leaf.tobytes()) if isinstance(leaf, np.ndarray) else repr(leaf)


def consulted() -> list[int]:
    """Of all that was read since this was last asked for, how it was made. Where that is another at another batch size, the network is for one alone: a comparison may turn at any."""
    forms = [*_consulted]
    _consulted.clear()
    return forms


def _on_host(argument: Any) -> Any:
    is_device = isinstance(argument, torch.device) or (isinstance(argument, str) and argument.startswith("cuda"))
    return torch.device("cpu") if is_device else argument


def expression(func: Callable, args: tuple, kwargs: dict) -> Optional[Made]:
    """How the result of a function will be made; None where a tensor among its arguments is made of something else."""
    if is_dynamo_compiling():  # what torch.cond does, of which versions are no numbers
        return None
    leaves, structure = pytree.tree_flatten((args, kwargs))
    is_like = bool(args) and isinstance(args[0], Tensor) and getattr(func, "__name__", "") in OF_SHAPES
    given: list[Any] = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            leaf = _shape_of(leaf) if i == 0 and is_like else note_of(leaf)
            if leaf is None:
                return None
        elif isinstance(leaf, np.ndarray):  # which others may write into
            if func is not torch.tensor:
                return None
            leaf = leaf.copy()
        elif isinstance(leaf, _NUMBERS) or (isinstance(leaf, slice) and any(isinstance(n, (Tensor, *_NUMBERS)) for n in (leaf.start, leaf.stop, leaf.step))):
            return None
        given.append(leaf)
    return Made(func, *pytree.tree_unflatten(given, structure), tuple((leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor)))


def note_of(tensor: Tensor) -> Optional[Made]:
    """How a tensor was made, if nothing was written into it since."""
    if is_dynamo_compiling():
        return None
    made, version, epoch = getattr(tensor, _FIELD, (None, None, None))
    return made if made is not None and epoch == _epoch and version == tensor._version else None


def _note(tensor: Tensor, made: Made) -> None:
    setattr(tensor, _FIELD, (made, tensor._version, _epoch))


def note(result: Any, made: Made) -> None:
    """Of what a function gave, be it several tensors."""
    if made.has_written():
        return
    if isinstance(result, Tensor):
        _note(result, made)
    elif isinstance(result, (tuple, list)) and getattr(made.func, "__name__", "") in _SEVERAL:
        for i, part in enumerate(result):
            _note(part, Made(lambda parts, i: parts[i], (made, i), {}))


def note_written(tensor: Tensor, made: Made) -> None:
    """Of a tensor that a function has written into, its first argument."""
    if made.has_written(tensor):
        return

    def written(before: Tensor, *given: Any, **named: Any) -> Tensor:
        after = before.clone()
        made.func(after, *given, **named)
        return after

    after = Made(written, made.args, made.kwargs)
    after.form = hash(("written", made.form))
    _note(tensor, after)


def forget_all() -> None:
    """Something was written that tells no tensor of it."""
    global _epoch
    _epoch += 1


def is_itself(values: Any) -> Any:
    """Tensors that are known to hold what they do."""
    for value in pytree.tree_leaves(values):
        if isinstance(value, Tensor):
            own = value.detach().clone()
            _note(value, Made(lambda own=own: own, (), {}))
    return values


def is_of_batch(tensors: Sequence[Tensor]) -> None:
    """Those that a forward pass is given, in their order."""
    for i, tensor in enumerate(tensors):
        _note(tensor, Made(_of_batch, (i,), {}))


def values_of(tensor: Any) -> Optional[Tensor]:
    """What a tensor holds for every batch; None where that is not known."""
    made = note_of(tensor) if isinstance(tensor, Tensor) else None
    if made is None or made.is_of_batch:
        return None
    with untraced(), torch.no_grad():
        before = torch.get_rng_state()
        values = made.values()
        if torch.equal(before, torch.get_rng_state()):
            _consulted.append(made.form)
            return values
        torch.set_rng_state(before)  # drawn by a function that nobody knows as one that draws
        return None


class Sizes:
    """Numbers of a batch that decide sizes and branches of a network: those of the example that it was captured for."""

    def __init__(self, example: Sequence[Tensor]):
        self._example = example
        self._asked: dict[int, tuple[Made, int]] = {}  # by the expression's id

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def values(self) -> tuple[int, ...]:
        return tuple(value for _, value in self._asked.values())

    def of(self, number: Tensor) -> Optional[int]:
        """The number that the example has, which a batch is to have as well; None where it does not depend on the batch alone."""
        made = note_of(number)
        if made is None or not made.is_of_batch:
            return None
        if id(made) not in self._asked:
            self._asked[id(made)] = made, _numbers([made], self._example)[0]
        return self._asked[id(made)][1]

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a batch, of the example's shapes, has the same."""
        return _numbers([made for made, _ in self._asked.values()], tensors) == [*self.values]

    def forget_example(self) -> None:
        self._example = []


def _numbers(expressions: Sequence[Made], tensors: Sequence[Tensor]) -> list[int]:
    known: dict[int, Any] = {_BATCH: tensors}
    with untraced(), torch.no_grad():
        before = torch.get_rng_state()
        numbers = [int(made.values(known)) for made in expressions]
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            raise RuntimeError("a random draw decides sizes or branches, which depends on values")
        return numbers


def with_known_sizes(func: Callable, args: tuple, kwargs: dict, sizes: Optional[Sizes] = None) -> tuple[tuple, dict]:
    """Where a size is wanted and a number in a tensor is given, which is known: the number."""
    name = getattr(func, "__name__", "")

    def size(number: Any) -> Any:
        return _size(number, sizes)

    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any(isinstance(i, slice) and any(isinstance(n, Tensor) for n in (i.start, i.stop, i.step)) for i in index):
            return args, kwargs
        index = tuple(slice(*map(size, (i.start, i.stop, i.step))) if isinstance(i, slice) else i for i in index)
        return (args[0], index, *args[2:]), kwargs
    if name not in _SIZED:
        return args, kwargs
    own = 0 if name in _MAKING else 1
    rest, named = pytree.tree_map_only(Tensor, size, (args[own:], kwargs))
    return (*args[:own], *rest), named


def _size(number: Any, sizes: Optional[Sizes]) -> Any:
    if not isinstance(number, Tensor) or number.dim() > 0 or number.dtype != torch.int64:
        return number
    value = values_of(number)
    if value is None and sizes is not None and is_most(number):
        value = sizes.of(number)  # type: ignore[assignment]
    return number if value is None else int(value)


def _shape_of(like: Tensor) -> Optional[Made]:
    if any(isinstance(n, torch.SymInt) for n in like.shape):
        return None
    shape, dtype = tuple(like.shape), like.dtype
    return Made(_like, (shape, dtype), {})


def _like(shape: tuple, dtype: torch.dtype) -> Tensor:
    return torch.empty((), dtype=dtype).expand(shape)

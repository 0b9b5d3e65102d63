"""How many rows a mask chooses, where Python asks: ``idx.size(0) > 0``, ``len(y[mask]) == 0``, ``total / idx.numel()``.

The number depends on values. Whether it is above 0 is answered as ``mask.any()`` is (chosen.py); a tensor is divided by it, or by ``max(1, it)``, as a
tensor, and a reshape that keeps the rows keeps them. All else that Python would do with a number is refused.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
from functools import lru_cache
from types import FrameType
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .chosen import OF_NONE, Asked, Chosen, chosen, counted, marked, places_of, treated

_REFUSED = (
    "how many rows a mask chooses is asked for by Python, which depends on values; it may be compared with 0, and a tensor divided by it or by max(1, it). Take"
    " x[mask].shape[0] for len(x[mask]), which is followed in the division itself alone, and mask.sum() or mask.sum().clamp(min=1) for anything else"
)
_AWAITED = (1 << 40) + 87  # a length that is divided by at once; no other number
_DIVISIONS = frozenset("div true_divide divide __truediv__ __div__".split())
_OTHERS = "add radd sub rsub mul rmul floordiv rfloordiv mod rmod pow rpow truediv rtruediv neg abs int index float hash and or xor lshift rshift".split()


class Count(torch.SymInt):
    """So many rows as a mask chooses, each ``times`` elements. A SymInt is what PyTorch takes for a size without asking which."""

    def __init__(self, of: Chosen, times: int, asked: Asked, least: int = 0):
        self.of, self.times, self.asked, self.least = of, times, asked, least

    def tensor(self, like: Tensor) -> Tensor:
        count = self.of.mask.sum() * self.times
        if self.least == 1 or self.asked.has(self.of.key):
            count = count.clamp(min=1)
        else:
            self.asked.divides(self.of)
        return count.to(like.dtype if like.is_floating_point() else torch.float32)

    def is_same(self, other: Any) -> bool:
        return isinstance(other, Count) and other.times == self.times and other.least == self.least == 0 and other.of.key == self.of.key and other.of.mask.shape == self.of.mask.shape

    def __bool__(self) -> bool:
        return self._compared("ne", 0, sys._getframe(1))

    def __repr__(self) -> str:
        return "how many a mask chooses"

    def _compared(self, name: str, other: Any, frame: FrameType) -> bool:
        from .assume import expected_of

        if self.is_same(other):
            return name in ("eq", "le", "ge")
        answer = expected_of(frame) if type(other) is int and not self.least else None
        if answer is None and (type(other) is not int or (name, other) not in OF_NONE or self.least):
            raise RuntimeError(_REFUSED)
        return self.asked.of_count(self.of.key, OF_NONE[name, other]) if answer is None else answer


def _comparing(name: str) -> Callable:
    return lambda self, other: self._compared(name, other, sys._getframe(1))


def _refusing(*_: Any) -> Any:
    raise RuntimeError(_REFUSED)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Count, f"__{_name}__", _comparing(_name))
for _name in _OTHERS:
    setattr(Count, f"__{_name}__", _refusing)


def expect_as_many(func: Callable, args: tuple) -> None:
    """places.view(3, 4, 2), of what nonzero gives: of 12 rows. A batch that has not as many raises an error when it is given."""
    x = args[0] if args else None
    sizes = tuple(args[1]) if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if getattr(func, "__name__", "") in ("view", "reshape") and places_of(x) and sizes and all(type(n) is int and n > 0 for n in sizes):
        shape = Tensor.size(x)
        torch._check(shape[0] * math.prod(int(n) for n in shape[1:]) == math.prod(sizes))


def has_count(args: tuple) -> bool:
    return any(isinstance(a, Count) or (isinstance(a, (tuple, list)) and any(isinstance(b, Count) for b in a)) for a in args)


def number_of(func: Callable, args: tuple, kwargs: dict, asked: Asked) -> Optional[tuple]:
    """The size, length or number of elements of what a mask chooses or of its places, as (result,); None where this is another call."""
    name, x = getattr(func, "__name__", ""), args[0] if args else None
    if asked.awaited is not None:
        return (_given_awaited(func, args, asked),)
    is_shape = name == "__get__" and getattr(func, "__self__", None) is Tensor.shape
    of = counted(x) if is_shape or name in ("size", "numel", "nelement", "__len__") else None
    if of is None:
        return None
    if name == "__len__":
        return (_length(of, asked),)
    times, others = 1, [int(n) for n in Tensor.size(x)[1:]]
    for n in others:
        times *= n
    if name in ("numel", "nelement"):
        return (Count(of, times, asked),)
    sizes = torch.Size((Count(of, 1, asked), *others))  # type: ignore[arg-type]
    if name == "size" and len(args) + len(kwargs) > 1:
        return (sizes[kwargs.get("dim", args[-1])],)
    return (sizes,)


def with_count(func: Callable, args: tuple, kwargs: dict) -> tuple:
    """The result of a function that is given such a number, as (result,), or (None, arguments without it)."""
    name, x = getattr(func, "__name__", ""), args[0] if args else None
    if name in _DIVISIONS and isinstance(x, Tensor) and isinstance(args[1], Count) and not kwargs:
        return None, (x, args[1].tensor(x))
    if func is torch.sym_max and {type(a) for a in args} == {int, Count}:  # as which max() is called while a model is exported
        count, least = sorted(args, key=lambda a: type(a) is int)
        if least in (0, 1):
            return Count(count.of, count.times, count.asked, max(count.least, least)), ()
    sizes = tuple(args[1]) if len(args) == 2 and isinstance(args[1], (tuple, list)) else tuple(args[1:])
    is_first = bool(sizes) and isinstance(sizes[0], Count) and sizes[0].times == 1 and not has_count(sizes[1:])
    if is_first and isinstance(x, Tensor) and (of := counted(x)) is not None and sizes[0].is_same(Count(of, 1, sizes[0].asked)) and not kwargs:
        own = chosen(x)
        if own is None and name in ("view", "reshape", "expand"):
            return None, (x, -1, *sizes[1:])
        if own is not None and name in ("view", "reshape"):
            return marked(func(x, x.shape[0], *sizes[1:]), own), ()
    if is_first and isinstance(x, Tensor) and name in ("view", "reshape") and not kwargs and _has_rows_of(x, sizes):
        return None, (x, -1, *sizes[1:])
    raise RuntimeError(_REFUSED)


def _has_rows_of(x: Tensor, sizes: tuple) -> bool:
    """Whether loss.view(t.shape) gives the rows of t back, as where the loss is of t.view(-1)."""
    own, of = chosen(x), sizes[0].of
    if own is None or own.key != of.key or sizes[0].least or own.mask.shape[0] * of.width != of.mask.shape[0] * own.width:
        return False
    return all(type(n) is int for n in sizes[1:]) and x.numel() == of.mask.shape[0] * math.prod(sizes[1:])


# --- len(), which Python wants a number of ---------------------------------------------------------------------------


def _length(of: Chosen, asked: Asked) -> int:
    """A length that compares with 0 as the answer is, where that is all that is done with it."""
    from .assume import expected_of

    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename.endswith(("torch/_tensor.py", "torch/overrides.py")) or "/plimsoll/" in frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    comparison = None if frame is None else _comparison(frame)
    if comparison is None:
        raise RuntimeError(_REFUSED)
    if comparison[0] in ("div", "size"):
        asked.awaited = Count(of, 1, asked, least=comparison[1])
        return _AWAITED
    answer = expected_of(frame)
    answer = asked.of_count(of.key, OF_NONE[comparison]) if answer is None else answer
    return max(of.mask.numel(), 1) if answer == OF_NONE[comparison] else 0


def _given_awaited(func: Callable, args: tuple, asked: Asked) -> Any:
    """The one call that may follow when Python has been given a length: tensor / length, or tensor.view(length, ...)."""
    count, asked.awaited = asked.awaited, None
    if getattr(func, "__name__", "") in ("view", "reshape") and args and isinstance(args[0], Tensor):
        sizes = tuple(args[1]) if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        if sizes and type(sizes[0]) is int and sizes[0] == _AWAITED and _AWAITED not in sizes[1:] and count.least == 0:
            result, args = with_count(func, (args[0], count, *sizes[1:]), {})
            return func(*args) if result is None else result
    if getattr(func, "__name__", "") not in _DIVISIONS or len(args) != 2 or not isinstance(args[0], Tensor) or type(args[1]) is not int or args[1] != _AWAITED:
        raise RuntimeError(_REFUSED)
    args = (args[0], count.tensor(args[0]))
    result = treated(func, args, {})
    return func(*args) if result is None else result[0]


_NAMES = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}


def _beside_1(node: ast.AST) -> Optional[ast.expr]:
    """x of max(1, x) or max(x, 1)."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "max" or len(node.args) != 2 or node.keywords:
        return None
    is_1 = [isinstance(n, ast.Constant) and type(n.value) is int and n.value == 1 for n in node.args]
    return node.args[is_1.index(False)] if sum(is_1) == 1 else None


def _comparison(frame: FrameType) -> Optional[tuple[str, int]]:
    """What the call that a frame is at is compared with, where it is compared with a number at once, or decides as it is; or that something is divided by it, or viewed as so many rows."""
    line, end, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return _compared_calls(frame.f_code.co_filename).get((line, end, column, end_column))  # type: ignore[arg-type]


@lru_cache(64)
def _compared_calls(file: str) -> dict[tuple[int, int, int, int], tuple[str, int]]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    found = {}

    def note(node: ast.expr, name: str, other: int) -> None:
        if isinstance(node, ast.Call) and ((name, other) in OF_NONE or (name in ("div", "size") and isinstance(node.func, ast.Name) and node.func.id == "len")):
            found[node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0] = name, other

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.comparators[0], ast.Constant) and type(node.comparators[0].value) is int:
            note(node.left, _NAMES.get(type(node.ops[0]), ""), node.comparators[0].value)
        for test in _tests(node):
            note(test, "ne", 0)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("view", "reshape") and node.args:
            note(node.args[0], "size", 0)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            of_max = _beside_1(node.right)
            note(node.right if of_max is None else of_max, "div", 0 if of_max is None else 1)
    return found  # type: ignore[return-value]


def _tests(node: ast.AST) -> list[ast.expr]:
    """The parts of a condition."""
    parts = [node.test] if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) else []
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        parts = [node.operand]
    for part in parts:
        if isinstance(part, ast.BoolOp):
            parts.extend(part.values)
    return parts

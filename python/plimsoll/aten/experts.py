"""Mixtures of experts as transformers writes them: rows sorted by expert, and a product of each group with its expert's weights.

Which expert a row goes to is known only while the step runs, and a plan wants sizes. So every row meets every expert, and its own
is picked: as many products as there are experts, where a grouped product would do with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.fx import Node

from .registry import CONVERTERS, Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer

EXACT = 1 << 24  # whole numbers below it are exact in f32


def grouped_product(w: "Writer", node: Node, a: Arguments):
    """Rows x[S, K] in groups, the group e up to row offsets[e], times weights[E, K, N]: y[S, N]."""
    x, weight, offsets = a["input"], a["weight"], a["offs"]
    (rows, inner), (experts, _, outer) = w.shape(x), w.shape(weight)
    of_all = _of_all_experts(w, w.reshape(x, [1, rows, inner], "rows"), weight, [experts, rows, outer])
    places = _row_numbers(w, rows)
    ends = w.reshape(offsets, [1, experts], "ends")
    passed = w.pointwise("ge({0},{1})", [w.reshape(places, [rows, 1], "place"), ends], "passed")
    own = w.reduce(passed, "sum", [1], False, "own_number")
    own = w.emit("Cast", [own], [rows], {"dtype": "i64"}, "own", dtype="i64")
    return w.emit("Index", [of_all, own, places], [rows, outer], part="pick")


def _of_all_experts(w: "Writer", rows: str, weight: Node, shape: list[int]) -> str:
    from .layers import _untransposed

    plain, is_transposed = _untransposed(w, weight)
    return w.emit("MatMul", [rows, plain], shape, {"transpose_a": 0, "transpose_b": int(is_transposed)}, "experts")


def _row_numbers(w: "Writer", rows: int) -> str:
    """0, 1, 2, ... as a sum of ones, since there is no constant whose size is the batch's."""
    ones = w.fill([rows], 1.0, "ones")
    counted = w.emit("CumulativeSum", [ones], [rows], {"axis": 0}, "counted")
    places = w.pointwise("sub({0},1.0)", [counted], "counted_from_0")
    return w.emit("Cast", [places], [rows], {"dtype": "i64"}, "row_numbers", dtype="i64")


CONVERTERS["transformers.grouped_mm_fallback.default"] = grouped_product


@converts("histc.default")
def histogram(w: "Writer", node: Node, a: Arguments):
    """How many elements lie in each of equal bins; the last holds its upper end as well."""
    bins, low, high = int(a["bins"]), float(a["min"]), float(a["max"])
    if low >= high:
        raise Refusal("a histogram between the least and the largest element; state min and max")
    count = 1
    for n in w.shape(a["self"]):
        count *= n
    values = w.reshape(a["self"], [count, 1], "column")
    numbers = w.add_constant(torch.arange(bins, dtype=torch.float32).reshape(1, bins))
    form = "and(eq(min(floor(div(mul(sub({0},{2}),{4}),{5})),{6}),{1}),and(ge({0},{2}),le({0},{3})))"
    inside = w.pointwise(form, [values, numbers, low, high, float(bins), high - low, float(bins - 1)], "inside")
    return w.reduce(inside, "sum", [0], False, "")


def bound(w: "Writer", node: Any) -> Optional[int]:
    """What the indices of a sort or a topk lie below, and what is a view of them; None: it is not known."""
    while isinstance(node, Node) and str(node.target) in ("aten.view.default", "aten.expand.default", "aten.permute.default"):
        node = node.args[0]
    is_item = isinstance(node, Node) and getattr(node.target, "__name__", "") == "getitem" and node.args[1] == 1
    source: Any = node.args[0] if is_item else None
    if source is None or not str(source.target).startswith(("aten.sort.", "aten.topk.")):
        return None
    return max(w.shape(source.args[0]), default=1)


_PLACES = ("aten.sort.", "aten.topk.", "aten.max.dim", "aten.min.dim", "aten.median.dim", "aten.kthvalue.")
_SAME = frozenset(f"aten.{name}" for name in "view.default expand.default permute.default unsqueeze.default squeeze.dim squeeze.dims slice.Tensor select.int alias.default clone.default detach.default gather.default repeat.default flip.default roll.default index_select.default".split())


def extent(w: "Writer", node: Any) -> Optional[tuple[int, int]]:
    """The least and the largest that whole numbers may be, by the operators that they come from; None: it is not known."""
    if isinstance(node, (bool, int)):
        return int(node), int(node)
    if not isinstance(node, Node) or w.dtype(node).is_floating_point or w.dtype(node).is_complex:
        return None
    if w.dtype(node) == torch.bool:
        return 0, 1
    known = w.constant(node)
    if known is not None and known.numel() > 0:
        return int(known.min()), int(known.max())
    if node.op != "call_function":
        return None
    if str(node.target) == "aten.full.default":
        return int(node.args[1]), int(node.args[1])  # type: ignore[call-overload]
    if str(node.target).startswith("aten.arange.") and all(isinstance(n, int) for n in node.args):  # of the batch's size, for which a network is captured anew
        numbers = range(*node.args)  # type: ignore[arg-type]
        return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])) if len(numbers) else None
    if str(node.target) in ("aten.where.self", "aten.masked_fill.Scalar"):
        several = [extent(w, x) for x in (node.args[1:] if "where" in str(node.target) else (node.args[0], node.args[2]))]
        return None if None in several else (min(e[0] for e in several), max(e[1] for e in several))  # type: ignore[index]
    if str(node.target) in ("aten.searchsorted.Tensor", "aten.bucketize.Tensor"):
        return 0, w.shape(node.args[0 if "searchsorted" in str(node.target) else 1])[-1]  # type: ignore[arg-type]
    if getattr(node.target, "__name__", "") == "getitem":
        source: Any = node.args[0]
        is_place = node.args[1] == 1 and str(source.target).startswith(_PLACES)
        return (0, max(w.shape(source.args[0]), default=1) - 1) if is_place else None
    name = str(node.target)
    if name in ("aten.argmax.default", "aten.argmin.default"):
        size = 1
        for n in w.shape(node.args[0]):  # type: ignore[arg-type]
            size *= n
        return 0, size - 1
    parts = [extent(w, x) for x in node.args[: 2 if name.endswith((".Tensor", ".Scalar", "mum.default")) else 1]]
    if any(part is None for part in parts):
        return None
    (low, high), *others = parts  # type: ignore[misc]
    if name in _SAME or name == "aten._to_copy.default":
        return low, high
    if name in ("aten.sum.dim_IntList", "aten.sum.default", "aten.cumsum.default"):
        count = 1
        for n in w.shape(node.args[0]):  # type: ignore[arg-type]
            count *= n
        return min(low, low * count), max(high, high * count)
    if name in ("aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default"):
        bounds = [x for x in node.args[1:] if isinstance(x, int)]
        return min([low, *bounds]), max([high, *bounds])
    if name.startswith("aten.add.") and others and not node.kwargs:
        return low + others[0][0], high + others[0][1]  # type: ignore[index]
    if name.startswith("aten.sub.") and others and not node.kwargs:
        return low - others[0][1], high - others[0][0]  # type: ignore[index]
    if name.startswith("aten.remainder.") and others and others[0][0] > 0:  # type: ignore[index]
        return 0, others[0][1] - 1  # type: ignore[index]
    if name in ("aten.maximum.default", "aten.minimum.default") and others:
        pick = max if "max" in name else min
        return pick(low, others[0][0]), pick(high, others[0][1])  # type: ignore[index]
    if name.startswith("aten.mul.") and others:
        ends = [a * b for a in (low, high) for b in others[0]]  # type: ignore[union-attr]
        return min(ends), max(ends)
    return None


def whole(w: "Writer", node: Node, template: str, operands: list) -> Optional[str]:
    """Sums and products of whole numbers that are known to be exact in f32; None where they are not."""
    extents = [extent(w, x) for x in (node, *operands)]
    if w.dtype(node) not in (torch.int64, torch.int32) or any(e is None or max(map(abs, e)) >= EXACT for e in extents):
        return None
    y = w.pointwise(template, operands, "whole")
    return w.emit("Cast", [y], w.shape(node), {"dtype": "i64"}, dtype="i64")

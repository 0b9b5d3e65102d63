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

"""Sums, means, extremes, and what is made of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional, Sequence

import torch
from torch.fx import Node

from .elementwise import log_of_sum
from .registry import Arguments, Expanded, Refusal, axis, converts
from .scatter import is_empty, note_idle

if TYPE_CHECKING:
    from ..writer import Writer

FUNCTIONS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "max": "max", "min": "min"}


def _dims(dim: Optional[Sequence[int] | int], rank: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(rank))
    return sorted(axis(d, rank) for d in ([dim] if isinstance(dim, int) else dim))


# A root, and a power, whose derivative at 0 is 0, as PyTorch has it of norms and deviations.
ROOT = "mul(sqrt(where(eq({0},0.0),1.0,{0})),ne({0},0.0))"
_POWER = "mul(pow(where(eq({0},0.0),1.0,{0}),{1}),ne({0},0.0))"


def _powers(order: float) -> str:
    """The power in a norm, of what is not negative: only one below 1 has an infinite derivative at 0."""
    return _POWER if order < 1 else "pow({0},{1})"


@converts(
    "sum.default",
    "sum.dim_IntList",
    "mean.default",
    "mean.dim",
    "amax.default",
    "amin.default",
    "max.default",
    "min.default",
)
def reduce(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    if name in ("sum", "mean") and is_empty(a["self"]):  # as of the boxes in an image without any
        if name == "mean":
            raise Refusal("the mean of a tensor without elements is not a number; divide a sum by max(1, number)")
        note_idle(w, node, a["self"])
        return Expanded(w.fill([], 0.0), w.shape(node))
    return w.reduce(
        a["self"], FUNCTIONS[name], _dims(a.get("dim"), len(w.shape(a["self"]))), bool(a.get("keepdim")), ""
    )


@converts("max.dim", "min.dim")
def extreme(w: "Writer", node: Node, a: Arguments):
    """The gradient is that of the first of equal elements."""
    name, dim = str(node.target).split(".")[1], axis(a["dim"], len(w.shape(a["self"])))
    shape = [int(n) for n in node.meta["val"][0].shape]
    if not w.shape(a["self"]):
        return w.value(a["self"]), _place(w, w.reshape(a["self"], [1]), 0, name == "max", [])
    one = [1 if d == dim else n for d, n in enumerate(w.shape(a["self"]))]
    place = _place(w, w.value(a["self"]), dim, name == "max", one)
    if not w.is_trained(a["self"]) or w.dtype(a["self"]) != torch.float32:
        return w.reduce(a["self"], name, [dim], a["keepdim"], ""), w.reshape(place, shape)
    return w.reshape(w.emit("Gather", [a["self"], place], one, {"axis": dim}, "largest"), shape), w.reshape(place, shape)


@converts("argmax.default", "argmin.default")
def argmax(w: "Writer", node: Node, a: Arguments):
    is_max = "argmax" in str(node.target)
    if a["dim"] is None:
        return _place(w, w.reshape(a["self"], [math.prod(w.shape(a["self"]))]), 0, is_max, w.shape(node))
    return _place(w, w.value(a["self"]), a["dim"], is_max, w.shape(node))


def _place(w: "Writer", x: str, dim: int, is_max: bool, shape: list[int]) -> str:
    """Where along a dimension the largest or smallest element stands."""
    before = list(w.shape_of[x])
    dim = axis(dim, len(before))
    before[dim] = 1
    attributes = {"axis": dim, "k": 1, "largest": int(is_max)}
    _, places = w.emit("TopK", [x], [before, before], attributes, "place", outputs=("y", "indices"))
    w.dtype_of[places] = "i64"
    return w.reshape(places, shape)


def _along(w: "Writer", a: Arguments) -> tuple[str, int]:
    """The tensor and the dimension asked for; without one, all elements in a row."""
    shape = w.shape(a["self"])
    return (w.value(a["self"]), axis(a["dim"], len(shape))) if "dim" in a else (w.reshape(a["self"], [math.prod(shape)]), 0)


@converts("median.default", "median.dim", "kthvalue.default")
def in_order(w: "Writer", node: Node, a: Arguments):
    """The k-th smallest element; the median is the lower one of two."""
    x, dim = _along(w, a)
    shape = w.shape_of[x]
    k = a["k"] if "k" in a else (shape[dim] + 1) // 2
    y, places = w.emit("Sort", [x], [shape, shape], {"axis": dim, "descending": 0}, "sort", outputs=("y", "indices"))
    w.dtype_of[places] = "i64"
    after = [1 if d == dim else n for d, n in enumerate(shape) if a.get("keepdim") or d != dim]
    value, place = (w.reshape(w.slice(t, dim, k - 1, 1), after) for t in (y, places))
    if "dim" in a:
        return value, place
    return _mean_of_equal(w, x, value) if w.is_trained(a["self"]) else value


def _mean_of_equal(w: "Writer", x: str, value: str) -> str:
    """One number of x, whose gradient goes in equal parts to all that are equal to it."""
    equal = w.value(w.pointwise("eq({0},{1})", [x, w.emit("StopGradient", [value], [], part="found")], "equal"))
    total, number = (w.reduce(t, "sum", [0], False, part) for t, part in ((w.value(w.pointwise("where({1},{0},0.0)", [x, equal], "own")), "total"), (equal, "number")))
    return w.pointwise("div({0},{1})", [total, number])


@converts("quantile.default", "quantile.scalar")
def quantile(w: "Writer", node: Node, a: Arguments):
    """Between the two elements around a rank, which is reckoned in single precision, as PyTorch does."""
    given = w.constant(a["q"]) if isinstance(a["q"], Node) else torch.tensor(a["q"])
    if given is None:
        raise Refusal("quantile with a q that is computed from data; give numbers")
    x, dim = _along(w, {name: value for name, value in a.items() if name != "dim" or value is not None})
    shape = w.shape_of[x]
    if not shape:
        x, shape = w.reshape(x, [1]), [1]
    one = [1 if d == dim else n for d, n in enumerate(shape)]
    y, _ = w.emit("Sort", [x], [shape, shape], {"axis": dim, "descending": 0}, "sort", outputs=("y", "indices"))
    ranks = given.to(torch.float32) * (shape[dim] - 1)
    rounded = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}.get(a["interpolation"])
    found = []
    for rank in (rounded(ranks) if rounded else ranks).flatten().tolist():
        low, high = math.floor(rank), math.ceil(rank)
        part = 0.5 if a["interpolation"] == "midpoint" else rank - low
        value = w.slice(y, dim, low, 1)
        if high > low:
            between = f"add({{0}},mul({part!r},sub({{1}},{{0}})))"
            value = w.value(w.pointwise(between, [value, w.slice(y, dim, high, 1)], "between"))
        found.append(w.reshape(value, [1, *one]))
    return w.reshape(w.concat(found, 0) if len(found) > 1 else found[0], w.shape(node))


@converts("prod.default", "prod.dim_int")
def product_of_all(w: "Writer", node: Node, a: Arguments):
    """Halves multiplied by each other, until one is left."""
    x, dim = _along(w, a)
    while (size := w.shape_of[x][dim]) > 1:
        half = size // 2
        parts = [w.slice(x, dim, begin, half) for begin in (0, half)]
        multiplied = w.value(w.pointwise("mul({0},{1})", parts, "halves"))
        x = w.concat([multiplied, w.slice(x, dim, size - 1, 1)], dim) if size % 2 else multiplied
    return w.reshape(x, w.shape(node))


@converts("cumprod.default")
def cumulative_product(w: "Writer", node: Node, a: Arguments):
    return _cumulative(w, a, "mul({0},{1})")


@converts("logcumsumexp.default")
def cumulative_logsumexp(w: "Writer", node: Node, a: Arguments):
    return _cumulative(w, a, log_of_sum("{0}", "{1}"))


@converts("cummax.default", "cummin.default")
def cumulative_extreme(w: "Writer", node: Node, a: Arguments):
    """Gives (values, None). The last of equal elements counts."""
    return _cumulative(w, a, f"where({'ge' if 'cummax' in str(node.target) else 'le'}({{0}},{{1}}),{{0}},{{1}})"), None


def _cumulative(w: "Writer", a: Arguments, of_two: str) -> str:
    """Each element and the one before it, then and the one two before it, then four: log2(n) steps."""
    x, reach = w.value(a["self"]), 1
    shape = w.shape_of[x]
    dim = axis(a["dim"], len(shape))
    while shape and reach < shape[dim]:
        rest = shape[dim] - reach
        later, earlier = w.slice(x, dim, reach, rest), w.slice(x, dim, 0, rest)
        both = w.value(w.pointwise(of_two, [later, earlier], "times"))
        x = w.concat([w.slice(x, dim, 0, reach), both], dim)
        reach *= 2
    return x


@converts("searchsorted.Tensor", "bucketize.Tensor")
def places_in_order(w: "Writer", node: Node, a: Arguments):
    """How many of the bounds lie below each element."""
    bounds, x = (a["sorted_sequence"], a["self"]) if "sorted_sequence" in a else (a["boundaries"], a["self"])
    if a.get("sorter") is not None:
        raise Refusal("searchsorted with a sorter; sort before")
    right = bool(a["right"]) or a.get("side") == "right"
    *before, count = w.shape(bounds)
    after = w.shape(x)
    if before and before != after[:-1]:
        raise Refusal("bounds of other dimensions than those of what is looked up")
    wide = w.reshape(bounds, [*before, *[1] * (len(after) - len(before)), count], "bounds")
    below = w.pointwise("le({0},{1})" if right else "lt({0},{1})", [wide, w.reshape(x, [*after, 1], "each")], "below")
    number = w.reduce(below, "sum", [len(after)], False, "number")
    return w.emit("Cast", [number], after, {"dtype": "i64"}, dtype="i64")


@converts("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def any_or_all(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    dims = _dims(a.get("dim"), len(w.shape(a["self"])))
    truth = w.pointwise("ne({0},0.0)", [a["self"]], "truth")
    return w.reduce(truth, "max" if name == "any" else "min", dims, bool(a.get("keepdim")), "")


_MOST_ROWS_APART = 25  # of each side, as in PyTorch


@converts("_cdist_forward.default")
def distances(w: "Writer", node: Node, a: Arguments):
    """|x - y|, of each row of x with each of y. Where it is 0 its gradient is 0. By |x|^2 + |y|^2 - 2 x y' where PyTorch does it so,
    since that leaves of small distances little but rounding."""
    x, y = a["x1"], a["x2"]
    (*_, rows, width), (*_, columns, _) = w.shape(x), w.shape(y)
    mode = a["compute_mode"] or 0  # 0: by products of matrices where there are many rows, 1: always, 2: never
    if a["p"] != 2.0 or mode == 2 or (mode == 0 and max(rows, columns) <= _MOST_ROWS_APART):
        return _distances_of_order(w, node, x, y, float(a["p"]))
    batch = w.shape(node)[:-2]
    squares = [w.reduce(w.pointwise("square({0})", [t], "square"), "sum", [len(w.shape(t)) - 1], True) for t in (x, y)]
    other = w.reshape(squares[1], [*w.shape(y)[:-2], 1, columns])
    both = w.emit("MatMul", [x, y], [*batch, rows, columns], {"transpose_a": 0, "transpose_b": 1}, "product")
    return w.pointwise("sqrt(max(sub(add({0},{1}),mul({2},2.0)),1e-30))", [squares[0], other, both])


def _distances_of_order(w: "Writer", node: Node, x: Node, y: Node, order: float):
    """The differences of each row of x and each of y lie there as a whole."""
    if order <= 0:
        raise Refusal(f"distances of order {order}; one above 0 is expected")
    (*batch, rows, columns), width = w.shape(node), w.shape(x)[-1]
    each = w.reshape(x, [*w.shape(x)[:-1], 1, width], "each")
    other = w.reshape(y, [*w.shape(y)[:-2], 1, columns, width], "other")
    apart = w.pointwise("abs(sub({0},{1}))", [each, other], "apart")
    dim = [len(batch) + 2]
    if order == 1.0:
        return w.reduce(apart, "sum", dim, False, "")
    if order == math.inf and not w.is_trained(node):
        return w.reduce(apart, "max", dim, False, "")
    if order == math.inf:  # of several that are farthest apart, each has the whole gradient
        fixed = w.emit("StopGradient", [apart], w.shape_of[apart], part="fixed")
        most = w.reduce(fixed, "max", dim, True, "most")
        own = w.reduce(w.pointwise("where(eq({1},{2}),sub({0},{1}),0.0)", [apart, fixed, most], "own"), "sum", dim, False, "own_sum")
        return w.pointwise("add({0},{1})", [w.reshape(most, w.shape(node), "farthest"), own])
    total = w.reduce(w.pointwise(_powers(order), [apart, order], "powers"), "sum", dim, False, "sum")
    return w.pointwise("pow(max({0},1e-30),{1})", [total, 1 / order], "root")


@converts("_pdist_forward.default")
def distances_of_pairs(w: "Writer", node: Node, a: Arguments):
    """Of each row to every later one."""
    rows, width = w.shape(a["self"])
    first, second = torch.triu_indices(rows, rows, 1)
    pairs = len(first)
    parts = [w.emit("IndexSelect", [a["self"], w.add_constant(i)], [pairs, width], {"axis": 0}, "rows") for i in (first, second)]
    apart, order = w.pointwise("abs(sub({0},{1}))", parts, "apart"), float(a["p"])
    if order <= 0:
        raise Refusal(f"distances of order {order}; one above 0 is expected")
    if order in (1.0, math.inf):
        return w.reduce(apart, "sum" if order == 1 else "max", [1], False, "")
    total = w.reduce(w.pointwise(_powers(order), [apart, order], "powers"), "sum", [1], False, "sum")
    return w.pointwise("pow(max({0},1e-30),{1})", [total, 1 / order], "root")


@converts(
    "var.correction", "var_mean.correction", *(f"{name}.{kind}" for name in ("std", "std_mean") for kind in ("correction", "dim", "default"))
)
def variance(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    shape = w.shape(a["self"])
    dims = _dims(a.get("dim"), len(shape))
    count = math.prod(shape[d] for d in dims)
    correction = int(a["unbiased"]) if "unbiased" in a else 1 if a["correction"] is None else a["correction"]
    if count <= correction:
        raise Refusal(f"the variance of {count} elements less {correction}")
    mean = w.reduce(a["self"], "mean", dims, True, "mean")
    squares = w.pointwise("square(sub({0},{1}))", [a["self"], mean], "squares")
    result: Any = w.reduce(squares, "mean", dims, bool(a.get("keepdim")), "")
    if correction:
        result = w.pointwise("mul({0},{1})", [result, count / (count - correction)], "unbiased")
    if name.startswith("std"):
        result = w.pointwise(ROOT, [result], "sqrt")
    if name == "std":
        return result
    if name == "var":
        return result
    return result, w.reshape(mean, w.shape_of[w.value(result)])


@converts("linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim", "dist.default")
def vector_norm(w: "Writer", node: Node, a: Arguments):
    order = a["ord"] if "ord" in a else a["p"]
    x, dims, order = a["self"], _dims(a.get("dim"), len(w.shape(a["self"]))), 2.0 if order is None else float(order)
    if "other" in a:
        x = w.value(w.pointwise("sub({0},{1})", [a["self"], a["other"]], "apart"))
        dims = list(range(len(w.shape_of[x])))
    a = {**a, "self": x, "keepdim": bool(a.get("keepdim"))}
    if order == math.inf:
        return w.reduce(w.pointwise("abs({0})", [a["self"]], "abs"), "max", dims, a["keepdim"], "")
    if order not in (1.0, 2.0):
        if order <= 0:
            raise Refusal(f"the norm of order {order}; one above 0 is expected")
        powers = w.pointwise(_powers(order).replace("{0}", "abs({0})"), [a["self"], order], "powers")
        return w.pointwise(_POWER, [w.reduce(powers, "sum", dims, a["keepdim"]), 1 / order], "root")
    powers = w.pointwise("square({0})" if order == 2 else "abs({0})", [a["self"]], "powers")
    total = w.reduce(powers, "sum", dims, a["keepdim"], "")
    return w.pointwise(ROOT, [total], "sqrt") if order == 2 else total


@converts("logsumexp.default")
def logsumexp(w: "Writer", node: Node, a: Arguments):
    dims = _dims(a["dim"], len(w.shape(a["self"])))
    top = w.reduce(a["self"], "max", dims, True, "max")
    total = w.reduce(w.pointwise("exp(sub({0},{1}))", [a["self"], top], "exp"), "sum", dims, True, "sum")
    result = w.pointwise("add(log({0}),{1})", [total, top])
    return w.reshape(result, w.shape(node))


@converts("cumsum.default")
def cumsum(w: "Writer", node: Node, a: Arguments):
    """Of whole numbers i64, whatever the dtype that is asked: what reads it takes both."""
    name = w.value(a["self"])
    dtype = "f32" if w.dtype_of[name] == "f32" else "i64"
    return w.emit("CumulativeSum", [name], w.shape(node), {"axis": axis(a["dim"], len(w.shape(node)))}, dtype=dtype)


@converts("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default", "_safe_softmax.default")
def softmax(w: "Writer", node: Node, a: Arguments):
    attributes = {"axis": axis(a["dim"], len(w.shape(node))), "log": int("log" in str(node.target))}
    return w.emit("SoftmaxForward", [a["self"]], w.shape(node), attributes)

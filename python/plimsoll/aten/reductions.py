"""Sums, means, extremes, and what is made of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional, Sequence

from torch.fx import Node

from .registry import Arguments, Refusal, axis, converts

if TYPE_CHECKING:
    from ..writer import Writer

FUNCTIONS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "max": "max", "min": "min"}


def _dims(dim: Optional[Sequence[int] | int], rank: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(rank))
    return sorted(axis(d, rank) for d in ([dim] if isinstance(dim, int) else dim))


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
    return w.reduce(
        a["self"], FUNCTIONS[name], _dims(a.get("dim"), len(w.shape(a["self"]))), bool(a.get("keepdim")), ""
    )


@converts("max.dim", "min.dim")
def extreme(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    values = w.reduce(a["self"], name, _dims(a["dim"], len(w.shape(a["self"]))), a["keepdim"], "")
    return values, None  # the indices are not kept


@converts("var.correction", "std.correction", "var_mean.correction")
def variance(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    shape = w.shape(a["self"])
    dims = _dims(a["dim"], len(shape))
    count = math.prod(shape[d] for d in dims)
    correction = 1 if a["correction"] is None else a["correction"]
    if count <= correction:
        raise Refusal(f"the variance of {count} elements less {correction}")
    mean = w.reduce(a["self"], "mean", dims, True, "mean")
    squares = w.pointwise("square(sub({0},{1}))", [a["self"], mean], "squares")
    result: Any = w.reduce(squares, "mean", dims, a["keepdim"], "")
    if correction:
        result = w.pointwise("mul({0},{1})", [result, count / (count - correction)], "unbiased")
    if name == "std":
        return w.pointwise("sqrt({0})", [result], "sqrt")
    if name == "var":
        return result
    return result, w.reshape(mean, w.shape_of[w.value(result)])


@converts("linalg_vector_norm.default")
def vector_norm(w: "Writer", node: Node, a: Arguments):
    dims, order = _dims(a["dim"], len(w.shape(a["self"]))), float(a["ord"])
    if order == math.inf:
        return w.reduce(w.pointwise("abs({0})", [a["self"]], "abs"), "max", dims, a["keepdim"], "")
    if order not in (1.0, 2.0):
        raise Refusal(f"the norm of order {order}; 1, 2 and infinity are possible")
    powers = w.pointwise("square({0})" if order == 2 else "abs({0})", [a["self"]], "powers")
    total = w.reduce(powers, "sum", dims, a["keepdim"], "")
    return w.pointwise("sqrt({0})", [total], "sqrt") if order == 2 else total


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

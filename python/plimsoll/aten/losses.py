"""Cross entropy in its forms. Other losses arrive as the arithmetic that they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

from torch.fx import Node

from .registry import Arguments, Refusal, axis, converts

if TYPE_CHECKING:
    from ..writer import Writer

REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def _rows(w: "Writer", logits: Node) -> tuple[str, int]:
    """Logits as rows x classes: of N x C x H x W the classes go last."""
    shape = w.shape(logits)
    if len(shape) == 1:
        return w.reshape(logits, [1, shape[0]], "rows"), shape[0]
    last = w.permute(logits, [0, *range(2, len(shape)), 1], "classes_last")
    classes = shape[1]
    return w.reshape(last, [math.prod(shape) // classes, classes], "rows"), classes


@converts("cross_entropy_loss.default")
def cross_entropy(w: "Writer", node: Node, a: Arguments):
    if w.dtype(a["target"]).is_floating_point:
        return _soft_cross_entropy(w, node, a)
    rows, _ = _rows(w, a["self"])
    return _on_rows(w, node, rows, a, float(a["label_smoothing"]))


@converts("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def nll_loss(w: "Writer", node: Node, a: Arguments):
    """Of a log_softmax over the classes: cross entropy of what goes into it."""
    x = a["self"]
    if str(x.target) not in ("aten.log_softmax.int", "aten._log_softmax.default"):
        raise Refusal("nll_loss of anything but log_softmax; use cross_entropy")
    if axis(x.args[1], len(w.shape(x))) != min(1, len(w.shape(x)) - 1):
        raise Refusal("nll_loss of a log_softmax over another dimension than the classes")
    rows, _ = _rows(w, x.args[0])
    return _on_rows(w, node, rows, a, 0.0)


def _on_rows(w: "Writer", node: Node, rows: str, a: Arguments, smoothing: float):
    if a["weight"] is not None:
        raise Refusal("cross entropy with weights of classes")
    reduction = REDUCTIONS[a["reduction"]]
    labels = w.reshape(a["target"], w.shape_of[rows][:1], "labels")
    if reduction == "none":
        return _each_row(w, node, rows, labels, a, smoothing)
    attributes = {"label_smoothing": smoothing, "ignore_index": a["ignore_index"], "reduction": reduction}
    shapes = [[], w.shape_of[rows], []]
    outputs = ("loss", "probabilities", "correct")
    loss, *_ = w.emit("SoftmaxCrossEntropyForward", [rows, labels], shapes, attributes, outputs=outputs)
    return loss


def _each_row(w: "Writer", node: Node, rows: str, labels: str, a: Arguments, smoothing: float):
    """A loss for every row: -log p[label], and zero where the row is ignored."""
    if smoothing:
        raise Refusal("cross entropy with reduction='none' and label smoothing")
    n, classes = w.shape_of[rows]
    logs = w.emit("SoftmaxForward", [rows], [n, classes], {"axis": 1, "log": 1}, "log_softmax")
    column = w.reshape(labels, [n, 1], "column")
    kept = w.pointwise(f"ne({{0}},{float(a['ignore_index'])!r})", [column], "kept")
    inside = w.emit(
        "Cast", [w.pointwise("mul({0},{1})", [column, kept], "inside")], [n, 1], {"dtype": "i64"}, "index", dtype="i64"
    )
    own = w.emit("Gather", [logs, inside], [n, 1], {"axis": 1}, "own")
    return w.reshape(w.pointwise("neg(mul({0},{1}))", [own, kept]), w.shape(node))


def _soft_cross_entropy(w: "Writer", node: Node, a: Arguments):
    """Targets are probabilities: -sum(t * log_softmax(x)), the mean over everything but the classes."""
    x, target, smoothing = a["self"], a["target"], float(a["label_smoothing"])
    if a["weight"] is not None:
        raise Refusal("cross entropy with weights of classes")
    shape = w.shape(x)
    dim = min(1, len(shape) - 1)
    logs = w.emit("SoftmaxForward", [x], shape, {"axis": dim, "log": 1}, "log_softmax")
    if smoothing:
        form = "mul(neg({0}),add(mul({1},{2}),{3}))"
        terms: Any = w.pointwise(form, [logs, target, 1 - smoothing, smoothing / shape[dim]], "terms")
    else:
        terms = w.pointwise("mul(neg({0}),{1})", [logs, target], "terms")
    each = w.reduce(terms, "sum", [dim], False, "each")
    function: Optional[str] = {0: None, 1: "mean", 2: "sum"}[a["reduction"]]
    if function is None:
        return each
    return w.reduce(each, function, list(range(len(w.shape_of[each]))), False, "")

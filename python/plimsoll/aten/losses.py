"""Cross entropy in its forms. Other losses arrive as the arithmetic that they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from .registry import Arguments, Refusal, axis, converts

if TYPE_CHECKING:
    from ..writer import Writer

MOST_STEPS = 512  # of F.ctc_loss
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


@converts("binary_cross_entropy.default")
def binary_cross_entropy(w: "Writer", node: Node, a: Arguments):
    """PyTorch keeps logarithms above -100, and the derivative finite at 0 and 1, where its own would not be: the value is fixed, and its derivative stands beside it."""
    x, target = a["self"], a["target"]
    is_trained = w.is_trained(x)
    fixed = w.emit("StopGradient", [x], w.shape(x), part="fixed") if is_trained else w.value(x)
    value = "sub(mul(sub({1},1.0),max(log1p(neg({0})),-100.0)),mul({1},max(log({0}),-100.0)))"
    if is_trained:
        value = f"add({value},mul(sub({{2}},{{0}}),div(sub({{0}},{{1}}),max(mul(sub(1.0,{{0}}),{{0}}),1e-12))))"
    given = [fixed, target, *([x] if is_trained else [])]
    if a["weight"] is not None:
        value = f"mul({value},{{{len(given)}}})"
        given.append(a["weight"])
    each = w.pointwise(value, given, "each")
    reduction = REDUCTIONS[a["reduction"]]
    if reduction == "none":
        return each
    return w.reduce(each, reduction, range(len(w.shape(x))), False, reduction)


@converts("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def nll_loss(w: "Writer", node: Node, a: Arguments):
    """Of a log_softmax over the classes: cross entropy of what goes into it."""
    x = a["self"]
    of_softmax = str(x.target) in ("aten.log_softmax.int", "aten._log_softmax.default")
    if of_softmax and axis(x.args[1], len(w.shape(x))) == min(1, len(w.shape(x)) - 1):
        rows, _ = _rows(w, x.args[0])
        return _on_rows(w, node, rows, a, 0.0)
    rows, _ = _rows(w, x)
    return _each_row(w, node, rows, a, 0.0)


def _on_rows(w: "Writer", node: Node, rows: str, a: Arguments, smoothing: float):
    reduction = REDUCTIONS[a["reduction"]]
    if reduction == "none" or a["weight"] is not None:
        logs = w.emit("SoftmaxForward", [rows], w.shape_of[rows], {"axis": 1, "log": 1}, "log_softmax")
        return _each_row(w, node, logs, a, smoothing)
    labels = w.reshape(a["target"], w.shape_of[rows][:1], "labels")
    attributes = {"label_smoothing": smoothing, "ignore_index": a["ignore_index"], "reduction": reduction}
    shapes = [[], w.shape_of[rows], []]
    outputs = ("loss", "probabilities", "correct")
    loss, *_ = w.emit("SoftmaxCrossEntropyForward", [rows, labels], shapes, attributes, outputs=outputs)
    return loss


def _each_row(w: "Writer", node: Node, logs: str, a: Arguments, smoothing: float):
    """Of log p, row by row: -weight[label] log p[label], smoothed by the mean of -weight log p; 0 where a row is ignored."""
    n, classes = w.shape_of[logs]
    column = w.reshape(a["target"], [n, 1], "column")
    kept: Any = w.pointwise(f"ne({{0}},{float(a['ignore_index'])!r})", [column], "kept")
    inside = w.emit(
        "Cast", [w.pointwise("mul({0},{1})", [column, kept], "inside")], [n, 1], {"dtype": "i64"}, "index", dtype="i64"
    )
    own = w.emit("Gather", [logs, inside], [n, 1], {"axis": 1}, "own")
    factor, weight = kept, a["weight"]
    if weight is not None:
        flat = w.reshape(inside, [n], "labels")
        picked = w.emit("IndexSelect", [weight, flat], [n], {"axis": 0}, "weight")
        factor = w.pointwise("mul({0},{1})", [w.reshape(picked, [n, 1]), kept], "factor")
    each: Any = w.pointwise("neg(mul({0},{1}))", [own, factor], "each")
    if smoothing:
        even: Any = w.pointwise("mul({0},{1})", [logs, w.reshape(weight, [1, classes])], "even") if weight is not None else logs
        even = w.reduce(even, "mean", [1], True, "mean")
        each = w.pointwise("sub(mul({0},{3}),mul({1},mul({2},{4})))", [each, even, kept, 1 - smoothing, smoothing], "smooth")
    reduction = REDUCTIONS[a["reduction"]]
    if reduction == "none":
        return w.reshape(each, w.shape(node))
    total = w.reduce(each, "sum", [0, 1], False, "sum")
    if reduction == "sum":
        return total
    # Where every row is ignored the mean is no number, as in PyTorch, but its derivative is 0.
    count, counted = (w.reduce(each, "sum", [0, 1], False, name) for each, name in ((factor, "count"), (kept, "rows")))
    return w.pointwise("add(div({0},where(eq({2},0.0),1.0,{1})),mul(0.0,div(1.0,{2})))", [total, count, counted])


def _soft_cross_entropy(w: "Writer", node: Node, a: Arguments):
    """Targets are probabilities: -sum(t * log_softmax(x)), the mean over everything but the classes."""
    x, target, smoothing = a["self"], a["target"], float(a["label_smoothing"])
    shape = w.shape(x)
    dim = min(1, len(shape) - 1)
    logs: Any = w.emit("SoftmaxForward", [x], shape, {"axis": dim, "log": 1}, "log_softmax")
    if a["weight"] is not None:
        weight = w.reshape(a["weight"], [n if d == dim else 1 for d, n in enumerate(shape)], "weight")
        logs = w.pointwise("mul({0},{1})", [logs, weight], "weighted")
    if smoothing:
        form = "mul(neg({0}),add(mul({1},{2}),{3}))"
        terms: Any = w.pointwise(form, [logs, target, 1 - smoothing, smoothing / shape[dim]], "terms")
    else:
        terms = w.pointwise("mul(neg({0}),{1})", [logs, target], "terms")
    each = w.reduce(terms, "sum", [dim], False, "each")
    if a["reduction"] == 0:
        return each
    rows = len(w.shape_of[each])
    total = w.reduce(each, "sum", list(range(rows)), False, "sum")
    if a["reduction"] == 2:
        return total
    return w.pointwise("div({0},{1})", [total, float(math.prod(w.shape_of[each]))])


@converts("plimsoll.alignments.default")
def alignments(w: "Writer", node: Node, a: Arguments):
    """Of F.ctc_loss (ctc.py): a sum in logarithms for every step."""
    from ..ctc import NEVER

    steps, rows, places = w.shape(a["x"])
    if steps > MOST_STEPS:
        raise Refusal(f"F.ctc_loss over {steps} steps; up to {MOST_STEPS} are possible, each with ops of its own. Take shorter pieces, or fewer frames a second")
    until = None if a["fills"] else w.reshape(a["until"], [rows, 1], "until")
    leaps, x = w.value(a["leaps"]), w.value(a["x"])

    def of_step(t: int) -> str:
        return w.reshape(w.slice(x, 0, t, 1, part="of_step"), [rows, places])

    y = w.value(w.pointwise("add({0},{1})", [of_step(0), a["begins"]], "begin"))
    most = "max(max({0},{1}),add({2},{3}))"
    after = f"add({{4}},add({most},log(add(add(exp(sub({{0}},{most})),exp(sub({{1}},{most}))),exp(sub(add({{2}},{{3}}),{most}))))))"
    for t in range(1, steps):
        wide = w.emit("Pad", [y], [rows, places + 2], {"begin": [0, 2], "end": [0, 0], "mode": "constant", "value": NEVER}, "wide")
        operands = [y, w.slice(wide, 1, 1, places, part="next"), w.slice(wide, 1, 0, places, part="leap"), leaps, of_step(t)]
        if until is None:
            y = w.value(w.pointwise(after, operands, "step"))
        else:
            y = w.value(w.pointwise(f"where(gt({{5}},{float(t)}),{after},{{0}})", [*operands, until], "step"))
    ended = w.value(w.pointwise("add({0},{1})", [y, a["ends"]], "end"))
    top = w.reduce(ended, "max", [1], True, "max")
    total = w.reduce(w.pointwise("exp(sub({0},{1}))", [ended, top], "exp"), "sum", [1], True, "sum")
    return w.reshape(w.pointwise("add(log({0}),{1})", [total, top]), [rows])

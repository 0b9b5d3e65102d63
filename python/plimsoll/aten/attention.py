"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

import torch
from torch.fx import Node

from ..hf_attention import visible_keys
from .random import dropped
from .registry import Arguments, Expanded, Refusal, broadcast, converts

if TYPE_CHECKING:
    from ..writer import Readable, Writer


@converts("scaled_dot_product_attention.default")
def attention(w: "Writer", node: Node, a: Arguments):
    q, k, v, mask = a["query"], a["key"], a["value"], a["attn_mask"]
    scale = 1 / math.sqrt(w.shape(q)[-1]) if a["scale"] is None else float(a["scale"])
    causal = bool(a["is_causal"])
    if mask is not None and _hides_nothing(w, mask):
        mask = None
    if mask is not None and _is_causal(w, mask, w.shape(q)[-2], w.shape(k)[-2]):
        mask, causal = None, True
    if mask is not None and w.is_trained(mask):
        return _with_learnt_bias(w, node, a, mask, scale, causal)
    return _attention(w, node, a, None if mask is None else w._base(mask), scale, causal, bool(a["enable_gqa"]))


@converts("plimsoll.attention.default")
def short_masked_attention(w: "Writer", node: Node, a: Arguments):
    """Attention whose mask came in its short form (hf_attention.py)."""
    q, k, padding, texts, left, right = (a[name] for name in ("query", "key", "padding", "texts", "left", "right"))
    queries, keys = w.shape(q)[-2], w.shape(k)[-2]
    scale = 1 / math.sqrt(w.shape(q)[-1]) if a["scale"] is None else float(a["scale"])
    masks = []
    if left is not None or right not in (None, 0):
        masks.append(w.shared_constant(("visible", queries, keys, left, right), lambda: visible_keys(queries, keys, left, right)))
        right = None
    if padding is not None and not _hides_nothing(w, padding):
        masks.append(w.reshape(padding, [w.shape(padding)[0], 1, 1, keys], "padding"))
    if texts is not None and w.number(texts) is None:
        masks.append(_own_text(w, texts, keys))
    if len(masks) > 1:
        raise Refusal("attention with a sliding window, and padding or several texts in a row")
    return _attention(w, node, a, masks[0] if masks else None, scale, right == 0, w.shape(q)[-3] != w.shape(k)[-3])


def _own_text(w: "Writer", texts: Node, keys: int) -> Readable:
    """[batch, 1, keys, keys]: what is added to the scores of keys of another text."""
    rows = w.shape(texts)[0]
    number = w.emit("Cast", [texts], [rows, keys], {"dtype": "f32"}, "texts")
    across, along = (w.reshape(number, shape, "texts") for shape in ([rows, 1, keys, 1], [rows, 1, 1, keys]))
    return w.pointwise("where(ne({0},{1}),-3.0e38,0.0)", [across, along], "other_texts")


def _attention(w: "Writer", node: Node, a: Arguments, mask: Optional[str], scale: float, causal: bool, is_grouped: bool):
    inputs, is_grouped = _of_one_batch(w, a["query"], a["key"], a["value"], is_grouped)
    inputs += [mask] if mask is not None else []
    attributes = {
        "scale": scale,
        "causal": int(causal),
        "dropout": float(a["dropout_p"]),
        "enable_gqa": int(is_grouped),
    }
    if a["dropout_p"] > 0:
        attributes["salt"] = w.next_salt()
        inputs += w.random_inputs()
    return w.emit("AttentionForward", inputs, w.shape(node), attributes)


def _of_one_batch(w: "Writer", q: Node, k: Node, v: Node, is_grouped: bool) -> tuple[list[Readable], bool]:
    """The three with equal sizes before the last two, and whether heads are grouped: one head of keys for all queries is a
    group; what else is broadcast is written out."""
    before = [w.shape(x)[:-2] for x in (q, k, v)]
    if is_grouped or before[0] == before[1] == before[2]:
        return [q, k, v], is_grouped
    if before[1] == before[2] and before[1] == [*before[0][:-1], 1]:
        return [q, k, v], True
    full = broadcast(before)
    return [
        x if shape == full else Expanded(w.value(x), [*full, *w.shape(x)[-2:]]) for x, shape in zip((q, k, v), before)
    ], False


def _hides_nothing(w: "Writer", mask: Node) -> bool:
    nothing = 1.0 if w.dtype(mask) == torch.bool else 0.0
    return w.number(mask) == nothing


def _is_causal(w: "Writer", mask: Node, queries: int, keys: int) -> bool:
    """Whether a constant mask hides what comes later, and nothing else."""
    value = w.constant(mask)
    if value is None or value.shape[-2:] != (queries, keys):
        return False
    visible = torch.ones(queries, keys, dtype=torch.bool).tril()
    if value.dtype != torch.bool:
        hidden = torch.isneginf(value) | (value <= torch.finfo(value.dtype).min)
        if not bool(((value == 0) | hidden).all()):
            return False
        value = ~hidden
    return bool((value == visible).all())


def _with_learnt_bias(w: "Writer", node: Node, a: Arguments, mask: Node, scale: float, causal: bool):
    """Written out, since the mask wants a gradient: softmax(q k' * scale + mask) v."""
    if a["enable_gqa"] or causal:
        raise Refusal("attention with a learnt mask together with is_causal or enable_gqa")
    q, k, v = a["query"], a["key"], a["value"]
    batch, rows, columns = w.shape(node)[:-2], w.shape(q)[-2], w.shape(k)[-2]
    shape = [*batch, rows, columns]
    scores = w.emit("MatMul", [q, k], shape, {"transpose_a": 0, "transpose_b": 1}, "scores")
    scores = w.pointwise("add(mul({0},{2}),{1})", [scores, mask, scale], "bias")
    weights = w.emit("SoftmaxForward", [scores], shape, {"axis": len(shape) - 1, "log": 0}, "softmax")
    weights = dropped(w, weights, a["dropout_p"], "dropout")
    return w.emit("MatMul", [weights, v], w.shape(node), {"transpose_a": 0, "transpose_b": 0})

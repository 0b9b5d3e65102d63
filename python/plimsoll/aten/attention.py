"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional, Sequence

import torch
from torch.fx import Node

from ..masks import Window, window_of
from .random import dropped
from .registry import Arguments, Expanded, Refusal, broadcast, converts

if TYPE_CHECKING:
    from ..writer import Readable, Writer


@converts("scaled_dot_product_attention.default")
def attention(w: "Writer", node: Node, a: Arguments):
    q, k, v, mask = a["query"], a["key"], a["value"], a["attn_mask"]
    scale = 1 / math.sqrt(w.shape(q)[-1]) if a["scale"] is None else float(a["scale"])
    window: Window = (None, 0 if a["is_causal"] else None)
    if mask is not None and _hides_nothing(w, mask):
        mask = None
    known = None if mask is None else w.constant(mask)
    band = None if known is None else window_of(known, w.shape(q)[-2], w.shape(k)[-2])
    if band is not None:
        mask, window = None, band
    if mask is not None and w.is_trained(mask):
        return _with_learnt_bias(w, node, a, mask, scale)
    return _attention(w, node, a, [] if mask is None else [w._base(mask)], scale, window, bool(a["enable_gqa"]))


@converts("plimsoll.attention.default")
def short_masked_attention(w: "Writer", node: Node, a: Arguments):
    """Attention whose mask is in its short form (masks.py)."""
    q, k, keys, texts = (a[name] for name in ("query", "key", "keys", "texts"))
    scale = 1 / math.sqrt(w.shape(q)[-1]) if a["scale"] is None else float(a["scale"])
    further: list[Readable] = [] if keys is None or _hides_nothing(w, keys) else [w._base(keys)]
    documents = texts is not None and w.number(texts) is None
    further += [w._base(texts)] if documents else []
    return _attention(w, node, a, further, scale, (a["left"], a["right"]), w.shape(q)[-3] != w.shape(k)[-3], documents)


def _attention(
    w: "Writer", node: Node, a: Arguments, further: Sequence[Readable], scale: float, window: Window, is_grouped: bool, documents: bool = False
):
    """``further``: the mask, and behind it the documents, where there are such."""
    inputs, is_grouped = _of_one_batch(w, a["query"], a["key"], a["value"], is_grouped)
    inputs += further
    left, right = window
    attributes = {
        "scale": scale,
        "causal": int(right == 0),
        "dropout": float(a["dropout_p"]),
        "enable_gqa": int(is_grouped),
    }
    attributes |= {"window_left": left} if left is not None else {}
    attributes |= {"window_right": right} if right else {}
    attributes |= {"documents": 1} if documents else {}
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


def _with_learnt_bias(w: "Writer", node: Node, a: Arguments, mask: Node, scale: float):
    """Written out, since the mask wants a gradient: softmax(q k' * scale + mask) v."""
    if a["enable_gqa"] or a["is_causal"]:
        raise Refusal("attention with a learnt mask together with is_causal or enable_gqa")
    q, k, v = a["query"], a["key"], a["value"]
    batch, rows, columns = w.shape(node)[:-2], w.shape(q)[-2], w.shape(k)[-2]
    shape = [*batch, rows, columns]
    scores = w.emit("MatMul", [q, k], shape, {"transpose_a": 0, "transpose_b": 1}, "scores")
    scores = w.pointwise("add(mul({0},{2}),{1})", [scores, mask, scale], "bias")
    weights = w.emit("SoftmaxForward", [scores], shape, {"axis": len(shape) - 1, "log": 0}, "softmax")
    weights = dropped(w, weights, a["dropout_p"], "dropout")
    return w.emit("MatMul", [weights, v], w.shape(node), {"transpose_a": 0, "transpose_b": 0})

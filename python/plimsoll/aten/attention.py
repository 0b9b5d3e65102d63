"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from .random import dropped
from .registry import Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer


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
    inputs = [q, k, v] + ([w._base(mask)] if mask is not None else [])
    attributes = {
        "scale": scale,
        "causal": int(causal),
        "dropout": float(a["dropout_p"]),
        "enable_gqa": int(a["enable_gqa"]),
    }
    if a["dropout_p"] > 0:
        attributes["salt"] = w.next_salt()
        inputs += w.random_inputs()
    return w.emit("AttentionForward", inputs, w.shape(node), attributes)


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

"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

import torch
from torch.fx import Node

from ..masks import Window, window_of
from .registry import Arguments, Expanded, broadcast, converts

if TYPE_CHECKING:
    from ..writer import Readable, Writer


@converts("scaled_dot_product_attention.default")
def attention(w: "Writer", node: Node, a: Arguments):
    return _attention(w, node, a, a["attn_mask"], None, (None, 0 if a["is_causal"] else None), bool(a["enable_gqa"]))


@converts("plimsoll.attention.default")
def short_masked_attention(w: "Writer", node: Node, a: Arguments):
    """Attention whose mask is in its short form (masks.py)."""
    texts = None if a["texts"] is None or w.number(a["texts"]) is not None else a["texts"]
    is_grouped = w.shape(a["query"])[-3] != w.shape(a["key"])[-3]
    return _attention(w, node, a, a["keys"], texts, (a["left"], a["right"]), is_grouped)


def _attention(w: "Writer", node: Node, a: Arguments, mask: Optional[Node], texts: Optional[Node], window: Window, is_grouped: bool):
    q, k = a["query"], a["key"]
    band = None if mask is None else _window(w, mask, w.shape(q)[-2], w.shape(k)[-2])
    if band is not None:
        mask, window = None, tuple(min((n for n in side if n is not None), default=None) for side in zip(window, band))  # type: ignore[assignment]
    inputs, is_grouped = _of_one_batch(w, q, k, a["value"], is_grouped)
    inputs += [_seen(w, mask)] if mask is not None else []
    inputs += [w.base(texts)] if texts is not None else []
    left, right = window
    attributes = {
        "scale": 1 / math.sqrt(w.shape(q)[-1]) if a["scale"] is None else float(a["scale"]),
        "causal": int(right == 0),
        "dropout": float(a["dropout_p"]),
        "enable_gqa": int(is_grouped),
    }
    attributes |= {"window_left": left} if left is not None else {}
    attributes |= {"window_right": right} if right else {}
    attributes |= {"documents": 1} if texts is not None else {}
    attributes |= {"softcap": float(a["softcap"])} if a.get("softcap") is not None else {}
    attributes |= {"blind": int(a["blind"])} if a.get("blind") and (mask is not None or left is not None) else {}
    if a["dropout_p"] > 0:
        attributes["salt"] = w.next_salt()
        inputs += w.random_inputs()
    return w.emit("AttentionForward", inputs, w.shape(node), attributes)


def _seen(w: "Writer", mask: Node) -> str:
    """A mask's tensor. Truths that the network computes are numbers, which would be added to the scores: they become bytes."""
    base = w.base(mask)
    if w.dtype(mask) != torch.bool or w.dtype_of[base] == "u8":
        return base
    return w.emit("Cast", [base], w.shape_of[base], {"dtype": "u8"}, "seen", dtype="u8")


def _window(w: "Writer", mask: Node, queries: int, keys: int) -> Optional[Window]:
    """Of a mask that says no more than that."""
    if w.number(mask) == (1.0 if w.dtype(mask) == torch.bool else 0.0):
        return (None, None)
    known = w.constant(mask)
    return None if known is None else window_of(known, queries, keys)


def _of_one_batch(w: "Writer", q: Node, k: Node, v: Node, is_grouped: bool) -> tuple[list[Readable], bool]:
    """The three with equal sizes before the last two, and whether heads are grouped: one head of keys for all queries is a
    group; what else is broadcast is written out."""
    before = [w.shape(x)[:-2] for x in (q, k, v)]
    if is_grouped and before[1] != before[2]:
        return [q, _for_each_query(w, k, before[0]), _for_each_query(w, v, before[0])], False
    if is_grouped or before[0] == before[1] == before[2]:
        return [q, k, v], is_grouped
    if before[1] == before[2] and before[1] == [*before[0][:-1], 1]:
        return [q, k, v], True
    full = broadcast(before)
    return [
        x if shape == full else Expanded(w.value(x), [*full, *w.shape(x)[-2:]]) for x, shape in zip((q, k, v), before)
    ], False


def _for_each_query(w: "Writer", x: Node, before: list[int]) -> str:
    """Every head of keys or values as often as there are heads of queries in its group."""
    *batch, heads, rows, width = w.shape(x)
    if heads == before[-1]:
        return w.value(x)
    one, wide = [*batch, heads, 1, rows, width], [*batch, heads, before[-1] // heads, rows, width]
    return w.reshape(w.emit("Expand", [w.reshape(x, one)], wide, {"shape": wide}, "expand"), [*batch, before[-1], rows, width])

"""Attention of Hugging Face's transformers while a model is captured: what a mask hides, kept short.

Transformers writes a mask as a boolean tensor [batch, 1, queries, keys] as soon as it is exported, although most say no more than
"causal", "the last w keys" and "these keys are padding". So its two registries, of attention functions and of mask functions, hold ours
under the name "sdpa" meanwhile. Our mask function gives the same tensor, and beside it, as an attribute, the short form. Our attention
function reads that and calls ``plimsoll::attention``; then nobody reads the tensor, and it is not in the network. Where a model
does something of its own with a mask, the attribute is gone, and the tensor counts.

A model whose attention is "eager" is left alone: its user wants to see the weights.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

_FIELD = "_plimsoll_mask"
_NAME = "sdpa"


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees: with ``causal`` none that come later; of the others the last ``window``, itself among them; none where
    ``padding`` [batch, keys] is False."""

    causal: bool = False
    window: int = 0  # 0: all
    padding: Optional[Tensor] = None


# --- the operator ----------------------------------------------------------------------------------------------------


@torch.library.custom_op("plimsoll::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, padding: Optional[Tensor], dropout_p: float, scale: Optional[float], causal: bool, window: int
) -> Tensor:
    """Scaled dot-product attention with a mask in its short form; heads of keys are broadcast to groups of heads of queries."""
    visible = visible_keys(query.shape[-2], key.shape[-2], causal, window)
    if padding is not None:
        visible = visible & padding[:, None, None, :].bool()
    return F.scaled_dot_product_attention(query, key, value, visible, dropout_p, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3])


@attention.register_fake
def _(query, key, value, padding, dropout_p, scale, causal, window):
    return query.new_empty([*query.shape[:-1], value.shape[-1]])


def visible_keys(queries: int, keys: int, causal: bool, window: int) -> Tensor:
    """[queries, keys]: True where a query sees a key."""
    behind = torch.arange(queries)[:, None] - torch.arange(keys)[None, :]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        visible &= behind >= 0
    if window:
        visible &= behind < window
    return visible


# --- transformers' interfaces ----------------------------------------------------------------------------------------


@contextmanager
def short_masks() -> Iterator[None]:
    """Transformers' "sdpa" attention is ours meanwhile, if transformers is there at all."""
    masking, attending = (sys.modules.get(f"transformers.{name}") for name in ("masking_utils", "modeling_utils"))
    if masking is None or attending is None:
        yield
        return
    registries = [masking.AttentionMaskInterface._global_mapping, attending.AttentionInterface._global_mapping]
    before = [registry[_NAME] for registry in registries]
    for registry, ours in zip(registries, (_mask_function(masking, before[0]), _attention_function(before[1]))):
        registry[_NAME] = ours
    try:
        yield
    finally:
        for registry, theirs in zip(registries, before):
            registry[_NAME] = theirs


def _mask_function(masking: Any, theirs: Callable) -> Callable:
    def mask(*args: Any, **kwargs: Any) -> Optional[Tensor]:
        result = theirs(*args, **kwargs)
        if isinstance(result, Tensor) and not args:
            short = _short(masking, **kwargs)
            if short is not None:
                setattr(result, _FIELD, short)
        return result

    return mask


def _short(masking: Any, *, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, mask_function: Optional[Callable] = None,
           attention_mask: Optional[Tensor] = None, **_: Any) -> Optional[Mask]:
    if q_length != kv_length or isinstance(q_offset, Tensor) or q_offset != kv_offset:
        return None
    if attention_mask is not None and (attention_mask.dim() != 2 or attention_mask.shape[-1] != kv_length):
        return None
    pattern = _pattern(masking, masking.causal_mask_function if mask_function is None else mask_function, kv_length)
    return None if pattern is None else Mask(*pattern, attention_mask)


def _pattern(masking: Any, function: Callable, length: int) -> Optional[tuple[bool, int]]:
    """Of one of transformers' mask functions, whether it is causal, and its window; None where it is another."""
    if function is masking.causal_mask_function:
        return True, 0
    if function is masking.bidirectional_mask_function:
        return False, 0
    inside = _closed_over(function)
    name = getattr(function, "__qualname__", "")
    if name == "and_masks.<locals>.and_mask" and isinstance(inside.get("mask_functions"), tuple):
        parts = [_pattern(masking, part, length) for part in inside["mask_functions"]]
        if any(part is None for part in parts):
            return None
        windows = [part[1] for part in parts if part[1]]
        return any(part[0] for part in parts), min(windows, default=0)
    if name == "sliding_window_overlay.<locals>.inner_mask" and isinstance(inside.get("sliding_window"), int):
        return False, inside["sliding_window"] if inside["sliding_window"] < length else 0
    return None


def _closed_over(function: Callable) -> dict[str, Any]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return dict(zip(names, (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())))


def _attention_function(theirs: Callable) -> Callable:
    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor], dropout: float = 0.0,
               scaling: Optional[float] = None, is_causal: Optional[bool] = None, **kwargs: Any) -> Any:
        mask = getattr(attention_mask, _FIELD, None)
        if mask is None and attention_mask is None and kwargs.get("position_bias") is None:
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            mask = Mask(causal=bool(causal) and query.shape[2] > 1)
        is_plain = all(kwargs.get(name) is None for name in ("position_bias", "softcap")) and query.shape[2] == key.shape[2]
        if mask is None or not is_plain or (mask.window and mask.padding is not None):
            return theirs(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs)
        if mask.padding is None and not mask.window:
            grouped = query.shape[1] != key.shape[1]
            result = F.scaled_dot_product_attention(query, key, value, None, dropout, mask.causal, scale=scaling, enable_gqa=grouped)
        else:
            result = torch.ops.plimsoll.attention(query, key, value, mask.padding, float(dropout), scaling, mask.causal, mask.window)
        return result.transpose(1, 2).contiguous(), None

    return attend

"""Attention of Hugging Face's transformers while a model is captured: what a mask hides, kept short.

Transformers writes a mask as a boolean tensor [batch, 1, queries, keys] as soon as it is exported, although most say no more than
"causal", "the last w keys" and "these keys are padding". So its two registries, of attention functions and of mask functions, hold ours
under the name "sdpa" meanwhile. Our mask function gives the same tensor, and beside it, as an attribute, the short form. Our attention
function reads that and calls ``plimsoll::attention``; then nobody reads the tensor, and it is not in the network. Where a model
does something of its own with a mask, the attribute is gone, and the tensor counts.

A model whose attention is "eager" writes it out (written_attention.py).
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .masks import within_reach

_FIELD = "_plimsoll_mask"
_NAME = "sdpa"


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees: so many before it and behind it (None: all); none where ``padding`` [batch, keys] is False; and, of several
    texts in a row, those of its own, where ``texts`` [batch, keys] has the same number."""

    left: Optional[int] = None
    right: Optional[int] = None
    padding: Optional[Tensor] = None
    texts: Optional[Tensor] = None


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


# Functions with a backward of their own, in Python, beside the operators whose derivative it is.
_AS_OPERATORS = {("bloom", "GeLUFunction"): "bloom_gelu_forward"}


@contextmanager
def plain_functions() -> Iterator[None]:
    """Transformers' functions of its own are operators meanwhile."""
    ours = []
    for (model, name), forward in _AS_OPERATORS.items():
        module = sys.modules.get(f"transformers.models.{model}.modeling_{model}")
        if hasattr(module, name) and hasattr(module, forward):
            ours.append(getattr(module, name))
            ours[-1].apply = staticmethod(getattr(module, forward))
    try:
        yield
    finally:
        for function in ours:
            del function.apply


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
    found = _parts(masking, masking.causal_mask_function if mask_function is None else mask_function)
    if found is None:
        return None
    reach = (min((part[side] for part in found if side in part), default=None) for side in ("left", "right"))
    texts = [part["texts"] for part in found if "texts" in part]
    positions = [part["positions"] for part in found if "positions" in part]
    if len(positions) > len(texts) or len(texts) > 1:  # transformers 5.17 has texts without positions of their own, 5.24 with them
        return None
    for part in found:
        if "chunk" in part:
            at = positions[0] if positions else torch.arange(kv_length)[None, :]
            texts.append((at - part["padded"][:, None]) // part["chunk"])
    return Mask(*(within_reach(n, kv_length) for n in reach), attention_mask, _joined(texts))


def _joined(numbers: list[Tensor]) -> Optional[Tensor]:
    """One number [batch, keys] for several, each of which stays the same until it changes for good."""
    if len(numbers) < 2:
        return numbers[0].to(torch.int32) if numbers else None
    first, second = numbers
    begins = (torch.diff(first, prepend=first[:, :1]) != 0) | (torch.diff(second, prepend=second[:, :1]) != 0)
    return begins.cumsum(-1).to(torch.int32)


def _parts(masking: Any, function: Callable) -> Optional[list[dict[str, Any]]]:
    """What one of transformers' mask functions asks for, all of which holds; None where it is another function."""
    if function is masking.causal_mask_function:
        return [{"right": 0}]
    if function is masking.bidirectional_mask_function:
        return []
    name, inside = getattr(function, "__qualname__", "").partition(".")[0], _closed_over(function)
    if name == "and_masks":
        parts = [_parts(masking, part) for part in inside.get("mask_functions", ())]
        return None if None in parts or not parts else [entry for part in parts for entry in part]  # type: ignore[union-attr]
    if name == "sliding_window_overlay" and isinstance(inside.get("sliding_window"), int):
        return [{"left": inside["sliding_window"] - 1}]
    if name == "sliding_window_bidirectional_overlay" and isinstance(inside.get("sliding_window"), int):
        return [{"left": inside["sliding_window"], "right": inside["sliding_window"]}]
    if name == "chunked_overlay" and isinstance(inside.get("chunk_size"), int) and isinstance(inside.get("left_padding"), Tensor):
        return [{"chunk": inside["chunk_size"], "padded": inside["left_padding"]}]
    if name == "packed_sequence_mask_function" and isinstance(inside.get("packed_sequence_mask"), Tensor):
        return [{"texts": inside["packed_sequence_mask"]}]
    if name == "remap_positions_for_packed_sequence" and callable(inside.get("mask_function")) and isinstance(inside.get("position_ids"), Tensor):
        within = _parts(masking, inside["mask_function"])  # of one text, positions are consecutive
        return None if within is None else [*within, {"positions": inside["position_ids"]}]
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
            mask = Mask(right=0 if causal and query.shape[2] > 1 else None)
        is_plain = all(kwargs.get(name) is None for name in ("position_bias", "softcap")) and query.shape[2] == key.shape[2]
        if mask is None or not is_plain:
            return theirs(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs)
        if mask.padding is None and mask.texts is None and not _is_window(mask):
            grouped = query.shape[1] != key.shape[1]
            result = F.scaled_dot_product_attention(query, key, value, None, dropout, mask.right == 0, scale=scaling, enable_gqa=grouped)
        else:
            keys = None if mask.padding is None else mask.padding[:, None, None, :].bool()
            result = torch.ops.plimsoll.attention(query, key, value, keys, mask.texts, mask.left, mask.right, float(dropout), scaling)
        return result.transpose(1, 2).contiguous(), None

    return attend


def _is_window(mask: Mask) -> bool:
    return mask.left is not None or mask.right not in (None, 0)

"""SpecAugment's masks of Hugging Face's speech models while a model is captured: drawn by torch for every batch, where transformers draws them by numpy."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Iterator, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

_NAME = "_compute_mask_indices"


def drawn(shape: tuple[int, int], mask_prob: float, mask_length: int, attention_mask: Optional[Tensor] = None, min_masks: int = 0) -> Tensor:
    """[rows, steps]: True in spans of ``mask_length``, of which each row has as many as cover the share ``mask_prob`` of its own length, rounded by chance, and at
    least ``min_masks``. They begin at different steps, and may overlap."""
    rows, steps = shape
    if mask_length < 1 or mask_length > steps:
        raise ValueError(f"`mask_length` has to be from 1 to the length of the sequence, {steps}, and is {mask_length}")
    place = torch.arange(steps)
    lengths = torch.full((rows, 1), steps) if attention_mask is None else attention_mask.detach().sum(-1, keepdim=True)
    starts = (lengths - (mask_length - 1)).clamp(min=0)
    spans = (mask_prob * lengths / mask_length + torch.rand(1)).floor().clamp(min=min_masks, max=steps // mask_length)
    spans = torch.minimum(spans.long(), starts)
    order = torch.where(place < starts, torch.rand(rows, steps), 2.0)
    begins = (order.argsort(-1).argsort(-1) < spans).long()
    begun = begins.cumsum(-1)
    return begun > F.pad(begun, (mask_length, 0))[:, :steps]


@contextmanager
def masks_by_torch() -> Iterator[None]:
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("transformers.models.") and callable(vars(m).get(_NAME))]
    before = [(module, vars(module)[_NAME]) for module in modules]
    for module in modules:
        setattr(module, _NAME, drawn)
    try:
        yield
    finally:
        for module, theirs in before:
            setattr(module, _NAME, theirs)

"""F.ctc_loss while a model is captured: the sums over alignments, step by step, in logarithms.

Between the labels and at both ends stand blanks: 2 S + 1 places. At every step an alignment stays, goes to the next place, or past a blank between two labels that
differ. What is impossible has a logarithm that no step brings back.
"""

from __future__ import annotations

import math
from typing import Any, Sequence, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from .chosen import chosen

NEVER = -1e30  # a logarithm


@torch.library.custom_op("plimsoll::alignments", mutates_args=())
def alignments(x: Tensor, begins: Tensor, leaps: Tensor, ends: Tensor, until: Tensor, fills: bool) -> Tensor:
    """The logarithm of the sum over all alignments [rows], of the logarithms x[steps, rows, places]. Each row ends before the step that ``until`` says;
    with ``fills`` all go to the last."""
    a = x[0] + begins
    for t in range(1, x.shape[0]):
        wide = F.pad(a, (2, 0), value=NEVER)
        after = torch.logsumexp(torch.stack([a, wide[:, 1:-1], wide[:, :-2] + leaps]), 0) + x[t]
        a = torch.where((until > t)[:, None], after, a)
    return torch.logsumexp(a + ends, -1)


@alignments.register_fake
def _(x, begins, leaps, ends, until, fills):
    return x.new_empty(x.shape[1])


Lengths = Union[Tensor, Sequence[int]]


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
) -> Tensor:
    is_one = log_probs.dim() == 2
    if is_one:
        log_probs = log_probs.unsqueeze(1)
    steps, rows, classes = log_probs.shape
    lengths = _as_tensor(target_lengths, rows)
    labels = _in_rows(targets, lengths, steps, rows)
    places = 2 * labels.shape[1] + 1
    place = torch.arange(places)
    own = torch.full((rows, places), blank, dtype=labels.dtype)
    own[:, 1::2] = torch.where(torch.arange(labels.shape[1]) < lengths[:, None], labels, blank)
    before = F.pad(own[:, :-2], (2, 0), value=blank)
    leaps = _never_unless((own != blank) & (own != before) & (place >= 2))
    begins = _never_unless((place == 0) | ((place == 1) & (lengths[:, None] > 0)))
    ends = _never_unless((place == 2 * lengths[:, None]) | ((place == 2 * lengths[:, None] - 1) & (lengths[:, None] > 0)))
    number = torch.arange(rows)[:, None] * classes + own
    of_places = log_probs.permute(1, 2, 0).flatten(0, 1).index_select(0, number.flatten()).unflatten(0, (rows, places)).permute(2, 0, 1)

    fills = not isinstance(input_lengths, Tensor) and all(int(n) == steps for n in input_lengths)
    until = torch.full((rows,), steps) if fills else _as_tensor(input_lengths, rows)
    loss = -torch.ops.plimsoll.alignments(of_places, begins, leaps, ends, until, fills)
    loss = torch.where(loss > -NEVER / 2, 0.0 if zero_infinity else math.inf, loss)
    if reduction == "mean":
        return (loss / lengths.clamp(min=1)).mean()
    return loss.sum() if reduction == "sum" else loss[0] if is_one else loss


def _never_unless(may: Tensor) -> Tensor:
    return torch.where(may, 0.0, NEVER)


def _as_tensor(lengths: Any, rows: int) -> Tensor:
    return lengths.long().reshape(rows) if isinstance(lengths, Tensor) else torch.tensor([int(n) for n in lengths]).reshape(rows)


def _in_rows(targets: Tensor, lengths: Tensor, steps: int, rows: int) -> Tensor:
    """[rows, labels] of labels that stand in rows, one behind the other, or where a mask chose them."""
    found = chosen(targets)
    if found is not None:
        width = found.mask.shape[0] // rows
        order = torch.argsort((~found.mask).reshape(rows, width).long(), dim=1, stable=True)
        return targets.reshape(rows, width).gather(1, order).long()
    if targets.dim() == 2:
        return targets.long()
    begins = lengths.cumsum(0) - lengths
    number = begins[:, None] + torch.arange(min(targets.shape[0], steps))
    return targets[number.clamp(max=targets.shape[0] - 1)].long()



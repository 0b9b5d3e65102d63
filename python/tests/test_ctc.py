"""F.ctc_loss: the sums over alignments, step by step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plimsoll.errors import Unsupported
from support import assert_same, both, floats, start


class Letters(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(3, 5), loss

    def forward(self, x: Tensor, labels: Tensor, frames: Tensor) -> Tensor:
        return self.loss(F.log_softmax(self.layer(x), -1).transpose(0, 1), labels, frames)


def counted(labels: Tensor) -> Tensor:
    return (labels >= 0).sum(-1)


LOSSES = {
    "in_rows": lambda y, t, n: F.ctc_loss(y, t, n, counted(t)),
    "behind_each_other": lambda y, t, n: F.ctc_loss(y, t[t >= 0], n, counted(t), reduction="sum"),
    "of_all_frames": lambda y, t, n: F.ctc_loss(y, t.clamp(min=1), torch.full((y.shape[1],), y.shape[0]), t.clamp(max=1).sum(-1) * 0 + 3, reduction="none").square().sum(),
    "with_another_blank": lambda y, t, n: nn.CTCLoss(blank=4)(y, t.clamp(max=3), n, counted(t)),
    "impossible_ones_left_out": lambda y, t, n: F.ctc_loss(y, t, torch.where(counted(t) == 3, 2, n), counted(t), zero_infinity=True),
}
LABELS = torch.tensor([[1, 1, 3], [2, -1, -1], [-1, -1, -1], [3, 4, -1]])


def batch(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return floats(f"x{rows}", rows, 7, 3) * 3, LABELS[:rows], torch.tensor([7, 5, 6, 3])[:rows]


@pytest.mark.parametrize("kind", LOSSES)
def test_is_pytorchs(kind):
    assert_same(both(start(Letters(LOSSES[kind])), batch(3), run_batch=batch(4), any_batch=True), 1e-7)


def test_lengths_that_are_numbers():
    def loss(y: Tensor, t: Tensor, n: Tensor) -> Tensor:
        return F.ctc_loss(y, t.clamp(min=1), [7, 7, 7], (3, 2, 0))

    assert_same(both(start(Letters(loss)), batch(3), any_batch=False), 1e-7)


def test_labels_in_one_row():
    labels, lengths = torch.tensor([1, 1, 3, 2, 3, 4]), torch.tensor([3, 1, 2])

    def loss(y: Tensor, t: Tensor, n: Tensor) -> Tensor:
        return F.ctc_loss(y, t, n, lengths)

    assert_same(both(start(Letters(loss)), (batch(3)[0], labels, torch.tensor([7, 5, 6])), any_batch=False), 1e-7)


def test_very_many_steps_are_refused():
    with pytest.raises(Unsupported, match="over 600 steps"):
        both(start(Letters(LOSSES["in_rows"])), (floats("x", 2, 600, 3), LABELS[:2], torch.tensor([600, 500])))

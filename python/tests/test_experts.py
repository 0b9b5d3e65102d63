"""Mixtures of experts as transformers writes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from networks import Example
from support import assert_same, both, start

moe = pytest.importorskip("transformers.integrations.moe")


class Experts(nn.Module):
    """Every row goes to the best two of four experts, in the order in which transformers computes it."""

    def __init__(self, width: int = 6, inner: int = 5, experts: int = 4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, inner, width))
        self.down = nn.Parameter(torch.empty(experts, width, inner))

    def forward(self, x):
        rows, experts = x.shape[0], self.up.shape[0]
        shares, chosen = self.router(x).softmax(-1).topk(2)
        sorted_experts, order = chosen.reshape(-1).sort()
        ends = torch.histc(sorted_experts.to(x.dtype), bins=experts, min=0, max=experts - 1).cumsum(0, dtype=torch.int32)
        y = torch.ops.transformers.grouped_mm_fallback(x[order // 2], self.up.transpose(1, 2), ends)
        y = torch.ops.transformers.grouped_mm_fallback(F.silu(y), self.down.transpose(1, 2), ends)
        y = y * shares.reshape(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(2 * rows, device=x.device)
        return x + y[back].view(rows, 2, -1).sum(1)


def classified(output, batch):
    return F.cross_entropy(output, batch[1])


EXAMPLE = Example(lambda: nn.Sequential(Experts(), nn.Linear(6, 3)), classified, ((6,), ()), ("floats", 3))


def test_rows_meet_their_own_experts():
    result = both(start(EXAMPLE.build()), EXAMPLE.batch(5), EXAMPLE.loss, run_batch=EXAMPLE.batch(7))
    assert result.converted.fixed_batch == []
    assert_same(result)

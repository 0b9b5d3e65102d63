"""Mixtures of experts as transformers writes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from networks import Example
from plimsoll import Unsupported
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


class Loop(nn.Module):
    """Experts one after the other, each for the rows that chose it; in the way of ``body``."""

    def __init__(self, body, experts: int = 4):
        super().__init__()
        self.body, self.router, self.head = body, nn.Linear(6, experts), nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 6)) for _ in range(experts))

    def forward(self, x):
        shares, best = self.router(x).softmax(-1).topk(2)
        best = best % 3  # nobody chooses the last
        return self.head(x + self.body(self.experts, x, shares, best))


def by_places(experts, x, w, best):
    out, mask = torch.zeros_like(x), F.one_hot(best, 4).permute(2, 0, 1)
    for e, expert in enumerate(experts):
        row, top = torch.where(mask[e])
        if row.numel() == 0:
            continue
        out.index_add_(0, row, expert(x[row]) * w[row, top, None])
    return out


def of_those_that_are_hit(experts, x, w, best):
    """As Mixtral and SwitchTransformers of transformers have it."""
    out = torch.zeros_like(x)
    with torch.no_grad():
        mask = F.one_hot(best, 5).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for e in hit:
        if e[0] == 4:
            continue
        top, row = torch.where(mask[e].squeeze(0))
        gate, up = F.linear(x[row], experts[e[0]][0].weight.repeat(4, 1)[:12]).chunk(2, dim=-1)
        out.index_add_(0, row, experts[e[0]](F.silu(gate) * up) * w[row, top, None])
    return out


def written_back(experts, x, w, best):
    out = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        rows, top = torch.where(best == e)
        if len(rows) > 0:
            out[rows] += w[rows, top].unsqueeze(-1) * expert(x[rows])
    return out


def of_the_best(experts, x, w, best):
    out = x * 0.5
    for e, expert in enumerate(experts):
        rows = (best[:, 0] == e).nonzero(as_tuple=True)[0]
        if rows.shape[0]:
            out[rows] = expert(x[rows]) * w[rows, 0:1]
    return out


@pytest.mark.parametrize("body", [by_places, of_those_that_are_hit, written_back, of_the_best])
def test_experts_one_after_the_other(body):
    result = both(start(Loop(body)), EXAMPLE.batch(5), EXAMPLE.loss, run_batch=EXAMPLE.batch(7))
    for name in [name for name in result.file if name not in result.eager]:  # nobody chose it: zeros here, none there
        assert ".3." in name and not result.file.pop(name).any()
    assert_same(result)


def test_what_a_loop_over_those_that_are_hit_does_besides_is_refused():
    def counted(experts, x, w, best):
        hit = torch.greater(F.one_hot(best, 4).permute(2, 1, 0).sum(dim=(-1, -2)), 0).nonzero()
        return sum(experts[e[0]](x) for e in hit)

    with pytest.raises(Unsupported, match="does not choose by it"):
        both(start(Loop(counted)), EXAMPLE.batch(5), EXAMPLE.loss)

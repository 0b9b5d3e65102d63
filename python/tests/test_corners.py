"""Gradients where functions have corners: equal elements, bounds, zeros. PyTorch says what they are there."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Branches
from support import assert_same, both


class Added(nn.Module):
    """`body(x + p)`, so that a gradient at 0 counts like any other."""

    def __init__(self, body, *shape: int):
        super().__init__()
        self.body = body
        self.p = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + self.p)


def check(bodies: dict, x: Tensor, tolerance: float = 1e-9) -> None:
    assert_same(both(Branches({name: Added(body, *x.shape[1:]) for name, body in bodies.items()}), x, any_batch=False), tolerance)


def test_on_bounds_and_among_equal_elements():
    x = torch.tensor([-2.0, 0, 0, 1, 1, -1, 0.5, 1, 0, -2, 1, 1]).repeat(4).reshape(2, 4, 6)
    check(
        {
            "clamp": lambda x: x.clamp(-1, 1),
            "clamp_min": lambda x: x.clamp(min=0),
            "clamp_max": lambda x: torch.clamp_max(x, 1),
            "by_tensors": lambda x: x.clamp(torch.full_like(x, -1.0), torch.full_like(x, 1.0)),
            "max": lambda x: x.max(-1)[0],
            "min": lambda x: x.min(1).values,
            "amax": lambda x: x.amax(-1),
            "cummax": lambda x: x.cummax(-1)[0],
            "cummin": lambda x: x.cummin(1)[0],
            "margin": lambda x: F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones_like(x[:, 0]), margin=1.0),
            "hinge": lambda x: F.hinge_embedding_loss(x, -torch.ones_like(x), margin=1.0),
        },
        x,
    )


def test_what_is_farthest_apart_in_several_dimensions():
    check({"cdist": lambda x: torch.cdist(x, x.roll(1, 0) * 0 + 1.0, p=math.inf)}, torch.tensor([[[0.0, 2.0, 1.0], [3.0, -1.0, 1.0], [1.0, 1.0, 1.0]]]))


def test_hardswish_on_its_bounds_in_a_step():
    import plimsoll

    class Bounds(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.tensor([-3.0, 3.0, 0.0, 1.0, -2.5]))

        def forward(self, x):
            return F.hardswish(self.p * x).sum()

    model, eager, batch = Bounds(), Bounds(), torch.ones(1, 5)
    eager(batch).backward()
    before = model.p.detach().clone()
    plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=1.0), example=batch, memory="16MiB")(batch)
    torch.testing.assert_close(before - model.p.detach(), eager.p.grad)


def test_at_zero():
    x = torch.tensor([0.0, 0, 0, 1, 2, 0, 0, 0, 0, 3, 3, 3]).repeat(4).reshape(2, 8, 3)
    check(
        {
            "norm": lambda x: x.norm(dim=-1),
            "cubic": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
            "normalize": lambda x: F.normalize(x, dim=-1, eps=1e-3),
            "cosine": lambda x: F.cosine_similarity(x, x.roll(1, 1), dim=-1, eps=1e-3),
            "std": lambda x: x.std(-1),
            "std_mean": lambda x: torch.std_mean(x, -1, unbiased=False)[0],
            "dist": lambda x: torch.dist(x, x.detach()),
            "sinc": torch.sinc,
        },
        x,
        1e-6,  # numbers of the graph are f32
    )


def test_binary_cross_entropy_of_what_is_0_or_1():
    x = torch.tensor([0.0, 1, 0.25, 1, 0, 0.75]).repeat(2).reshape(2, 6)
    target = torch.tensor([0.0, 0, 1, 1, 1, 0.5])
    check(
        {
            "mean": lambda x: F.binary_cross_entropy(x, target.to(x.dtype).expand_as(x)),
            "weighted": lambda x: F.binary_cross_entropy(x, target.to(x.dtype).expand_as(x), weight=torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=x.dtype), reduction="sum"),
            "each": lambda x: F.binary_cross_entropy(x * 0.5 + 0.1, target.to(x.dtype).expand_as(x), reduction="none"),
        },
        x,
        1e-6,
    )


def test_norms_in_all_their_forms():
    x = torch.linspace(-1, 2, 48).reshape(2, 4, 6)
    check(
        {
            "all": lambda x: x.norm(),
            "one": lambda x: x.norm(1),
            "rows": lambda x: torch.norm(x, p=2, dim=(1, 2), keepdim=True),
            "largest": lambda x: torch.norm(x, p=math.inf, dim=1),
            "std": lambda x: torch.stack([x.std(), x.std(dim=(1, 2), unbiased=False).sum()]),
            "mean": lambda x: sum(torch.std_mean(x, dim=1, keepdim=True)),
        },
        x,
    )

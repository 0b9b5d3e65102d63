"""Values of a batch that decide sizes: a plan for each."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll
from plimsoll.errors import Unsupported
from support import floats


class OfImages(nn.Module):
    """Patches of images of different sizes in a row, as Qwen2-VL has them: each attends to those of its own image."""

    def __init__(self):
        super().__init__()
        self.embed, self.rows, self.columns = nn.Linear(6, 8), nn.Embedding(8, 8), nn.Embedding(8, 8)

    def forward(self, patches: Tensor, image_grid: Tensor) -> Tensor:
        x = self.embed(patches)
        places = torch.cat([torch.cartesian_prod(torch.arange(h), torch.arange(w)) for h, w in image_grid.tolist()])
        x = x + self.rows(places[:, 0]) + self.columns(places[:, 1])
        ends = F.pad(image_grid.prod(-1).cumsum(0), (1, 0))
        parts = x.split((ends[1:] - ends[:-1]).tolist())
        means = torch.stack([F.scaled_dot_product_attention(p[None], p[None], p[None])[0].mean(0) for p in parts])
        is_wide = image_grid[:, 1] > 2
        return means.square().mean() + means[is_wide].sum() + x[: int(ends.max()) : 3].mean()


def batch(*grid: list[int]) -> dict[str, Tensor]:
    sizes = torch.tensor(grid)
    return {"patches": floats(str(grid), int(sizes.prod(-1).sum()), 6), "image_grid": sizes}


def test_a_plan_for_each_of_the_values():
    torch.manual_seed(1)
    ours = OfImages()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (ours, theirs))
    with pytest.warns(UserWarning, match="image_grid"):
        step = plimsoll.compile(ours, optimizer, example=batch([2, 3], [4, 2]), memory="2MiB", threads=1, costs="estimated", progress=False)
    for given in (batch([2, 3], [4, 2]), batch([3, 2], [2, 4]), batch([2, 3], [4, 2]), batch([1, 5])):
        reference.zero_grad()
        loss = theirs(**given)
        loss.backward()
        reference.step()
        assert step(given) == pytest.approx(loss.item(), rel=1e-4)
    assert step.evaluate(batch([3, 3])) == pytest.approx(theirs(**batch([3, 3])).item(), rel=1e-4)
    for (name, expected), found in zip(theirs.state_dict().items(), ours.state_dict().values()):
        assert torch.allclose(found, expected, atol=1e-5), name


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, lengths):
        return self.layer(x[:, : int(lengths.max())]).square().mean()


def test_lengths_are_not_such_values():
    """They are others in every batch."""
    with pytest.raises(Unsupported, match="depends on values"):
        plimsoll.compile(Cut(), torch.optim.SGD(Cut().parameters(), lr=0.1), example={"x": torch.ones(2, 5, 4), "lengths": torch.tensor([5, 3])}, memory="1MiB")

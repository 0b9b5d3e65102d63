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


class WithGlobal(nn.Module):
    """Some places of each text are read by all others, as Longformer has them. Without any there is a layer less."""

    def __init__(self):
        super().__init__()
        self.embed, self.keys, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        y, mask = self.embed(x), kinds > 0
        if mask.flatten().any().item():
            count = mask.long().sum(dim=1)
            most = count.max()
            kept = torch.arange(most) < count.unsqueeze(dim=-1)
            places, filled, left = (part.nonzero(as_tuple=True) for part in (mask, kept, kept == 0))
            some = y.new_zeros(len(y), most, 6)
            some[filled] = self.keys(y)[places]
            scores = (some @ y.mT).view(len(y), most, -1)
            scores[left[0], left[1], :] = torch.finfo(scores.dtype).min
            shares = torch.cat([scores.mT, y], -1).softmax(-1)
            read = shares.narrow(-1, 0, most) @ some + shares[..., most:]
            turned = read.transpose(0, 1).contiguous()
            turned[places[::-1]] = some[filled[0], filled[1]].tanh().view(len(filled[0]), -1)
            y = turned.transpose(0, 1)
        return self.head(y).square().mean()


def of_kinds(*kinds: list[int]) -> tuple[Tensor, Tensor]:
    return floats(str(kinds), len(kinds), 5, 4), torch.tensor(kinds)


def test_a_plan_for_the_most_places_of_a_mask():
    torch.manual_seed(1)
    ours = WithGlobal()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1) for m in (ours, theirs))
    example, one, as_many, none = of_kinds([1, 0, 1, 0, 0], [0, 1, 0, 0, 0]), of_kinds([0, 0, 1, 0, 0], [0, 1, 0, 0, 0]), of_kinds([0, 1, 0, 0, 0], [0, 0, 1, 0, 1]), of_kinds([0] * 5, [0] * 5)
    with pytest.warns(UserWarning, match="whether masks hold"):
        step = plimsoll.compile(ours, optimizer, loss=lambda loss, _: loss, call=lambda m, batch: m(*batch), example=example, memory="2MiB", threads=1, costs="estimated", progress=False)
    for given, plans in ((example, 1), (as_many, 1), (one, 2), (as_many, 2), (none, 3), (of_kinds([1, 1, 0, 0, 0], [0] * 5), 3)):
        reference.zero_grad()
        loss = theirs(*given)
        loss.backward()
        reference.step()
        assert step(given) == pytest.approx(loss.item(), rel=1e-4)
        assert len(step._shapes) == plans
        for (name, expected), found in zip(theirs.state_dict().items(), ours.state_dict().values()):
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), name
    for given in (example, none, one):
        assert step.evaluate(given) == pytest.approx(theirs(*given).item(), rel=1e-4)


def test_the_updates_of_a_layer_that_some_batches_do_not_train_are_counted_apart():
    """As PyTorch counts those of each parameter."""
    torch.manual_seed(1)
    ours = WithGlobal()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.AdamW(m.parameters(), lr=0.05) for m in (ours, theirs))
    some, none = of_kinds([1, 0, 1, 0, 0], [0, 1, 0, 0, 0]), of_kinds([0] * 5, [0] * 5)
    step = plimsoll.compile(ours, optimizer, loss=lambda loss, _: loss, call=lambda m, batch: m(*batch), example=some, memory="2MiB", threads=1, costs="estimated", progress=False)
    for given in (some, none, none, some, none, some):
        reference.zero_grad()
        loss = theirs(*given)
        loss.backward()
        reference.step()
        assert step(given) == pytest.approx(loss.item(), rel=1e-4)
    step.sync()
    assert [optimizer.state[p]["step"] for p in ours.parameters()] == [reference.state[p]["step"] for p in theirs.parameters()]
    for (name, expected), found in zip(theirs.state_dict().items(), ours.state_dict().values()):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), name


def test_batches_that_are_accumulated_train_the_same():
    model = WithGlobal()
    some, none = of_kinds([1, 0, 1, 0, 0], [0, 1, 0, 0, 0]), of_kinds([0] * 5, [0] * 5)
    step = plimsoll.compile(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda loss, _: loss, call=lambda m, batch: m(*batch), example=some, shapes=[none],
        memory="2MiB", threads=1, accumulate=2, costs="estimated", progress=False,
    )  # fmt: skip
    for given in (some, some, none, none, some):
        step(given)
    with pytest.raises(ValueError, match="'keys.bias' is trained by one of the batches whose gradients are accumulated, and not by another"):
        step(none)
    step(some)


def test_a_plan_for_whether_a_mask_holds_anywhere():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, kinds):
            return self.layer(x).sum() if (kinds > 0).any() else self.layer(x).square().mean()

    model = Either()
    some, none = of_kinds([1, 0, 1, 0, 0]), of_kinds([0] * 5)
    with pytest.warns(UserWarning, match="whether masks hold"):
        step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.0), loss=lambda loss, _: loss, call=lambda m, batch: m(*batch), example=some, memory="1MiB", progress=False)
    for given in (some, none, some, none):
        assert step(given) == pytest.approx(model(*given).item(), rel=1e-5)
    assert len(step._shapes) == 2


def test_a_file_holds_for_masks_of_any_number_of_places(tmp_path):
    with pytest.raises(Unsupported, match="train it by plimsoll.compile"):
        plimsoll.export(WithGlobal(), loss=lambda loss, _: loss, call=lambda m, batch: m(*batch), example=of_kinds([1, 0, 1, 0, 0]), path=tmp_path / "net.json")

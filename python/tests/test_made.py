"""What is made of shapes and numbers alone, masks above all: it is known while a network is captured, whatever else is written meanwhile."""

from __future__ import annotations

import copy
import functools
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll
from cases import weighted
from plimsoll.errors import Unsupported
from support import assert_same, both, floats, integers, start


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.layer, self.norm, self.body = nn.Linear(6, 5), nn.LayerNorm(5), body
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5)) for _ in range(3))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.body(self, self.layer(x), labels)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    return floats(f"x{rows}", rows, 4, 6), integers(f"labels{rows}", 5, rows, 4)


def by_language(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As X-MOD has it, where all texts are of one language."""
    languages, out = 1 * torch.ones(len(y)), torch.zeros_like(y)
    for i, expert in enumerate(m.experts):
        mask = languages == i
        out[mask] = expert(y[mask])
    return weighted(out) + weighted(y)


def by_languages(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """The second one has no text."""
    languages, out = torch.arange(len(y)) % 2 * 2, y.clone()
    for i, expert in enumerate(m.experts):
        out[languages == i] = expert(m.norm(y)[languages == i])
    return weighted(out)


def by_places(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """Some places of each row are gathered, as Longformer does it with those that all attend to; of one row fewer."""
    rows, length = y.shape[:2]
    mask = torch.zeros_like(labels)
    mask[:, 0] = 1
    mask[1:, 2] = 1
    mask = mask > 0
    count = mask.long().sum(1)
    most = count.max()
    assert list(y.shape) == [rows, length, 5] and count.min() < most
    kept = torch.arange(most) < count.unsqueeze(-1)
    places, filled, left = (part.nonzero(as_tuple=True) for part in (mask, kept, kept == 0))
    total = y * 2
    total += 1  # writes into another tensor
    some = y.new_zeros(rows, most, 5)
    some[filled] = m.norm(y)[places]
    assert most.view(1).expand(3).tolist() == [2, 2, 2]
    scores = torch.einsum("bld,bsd->bls", y, some).transpose(1, 2)
    scores[left[0], left[1], :] = -1e9
    shares = torch.cat([scores.transpose(1, 2), y], -1).softmax(-1)
    read = shares.narrow(-1, 0, most) @ some + shares.narrow(-1, most, shares.size(-1) - most)
    read = read.transpose(0, 1).contiguous()
    read[places[::-1]] = m.experts[0](some.transpose(0, 1)[filled[::-1]]).view(len(filled[0]), -1)
    if mask.flatten().any().item() and not (mask & ~mask).any():
        read = read + y[:, : most + 1].mean() * total.transpose(0, 1)
    return weighted(read)


def of_no_place(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    out, none = y.clone(), torch.zeros(len(y), 4) > 0
    out[none] = m.norm(y)[none]
    out[none.nonzero(as_tuple=True)] = 3.0
    out[:, 0][torch.zeros(len(y), dtype=torch.bool)] = 4.0
    return weighted(out)


def at_all_places(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    out, every = m.norm(y), torch.ones(len(y), 4, dtype=torch.bool)
    out[every] = m.experts[0](y[every]).relu_()  # what it was has a gradient of zeros
    chosen = y[every]
    chosen[:, 0] = 2.0  # a tensor of its own
    out[every] *= y.flatten(0, 1)
    out[every[:, 0]] = out[every[:, 0]] + y[0]
    return weighted(out) + weighted(chosen) + weighted(y)


def of_no_place_and_looked_at(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """What is done with no rows is read besides, and has no gradient of it."""
    out, none, normed, made = y.clone(), torch.zeros(len(y), 4) > 0, m.norm(y), m.experts[0](y)
    out[none], out[none] = normed[none], made[none]
    return weighted(out) + (2 * normed).detach().sum() + made.argmax(-1).float().sum()


def joined_with_none(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    return weighted(torch.cat([y, m.norm(y[:, torch.zeros(4, dtype=torch.bool)])], 1))


BODIES = [of_no_place_and_looked_at, joined_with_none, by_language, by_languages, by_places, of_no_place, at_all_places]


@pytest.mark.parametrize("body", BODIES)
def test_masks_that_are_the_same_for_every_batch(body):
    result = both(start(Model(body)), batch(4))
    assert_same(result)
    assert set(result.file) == set(result.eager)  # zeros too: weights without a gradient do not decay


def test_masks_of_all_and_of_nothing_leave_the_batch_its_size():
    assert_same(both(start(Model(by_language)), batch(3), run_batch=batch(5)))


@pytest.mark.parametrize("body", [by_language, by_languages, by_places])
def test_steps_as_in_pytorch(body):
    ours, theirs = start(Model(body)), start(Model(body))
    step = plimsoll.compile(ours, torch.optim.AdamW(ours.parameters(), lr=0.01, weight_decay=0.1), example=batch(4), threads=1, costs="estimated", progress=False)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1)
    for rows in (4, 4, 3, 4):
        optimizer.zero_grad()
        loss = theirs(*batch(rows))
        loss.backward()
        optimizer.step()
        assert step(batch(rows)) == pytest.approx(loss.item(), rel=1e-4)
    for (name, expected), found in zip(theirs.state_dict().items(), ours.state_dict().values()):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), name


def not_read_is_not_trained(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """An expert of nothing whose result reaches no loss has no gradient in PyTorch."""
    out, none = y.clone(), torch.zeros(len(y), dtype=torch.bool)
    out[none] = m.experts[0](y[none])
    kept = y.clone()
    kept[none] = m.experts[1](y[none]).detach()
    return weighted(y) + weighted(kept) + out.detach().sum()


def test_what_reaches_no_loss_has_no_gradient():
    result = both(start(Model(not_read_is_not_trained)), batch(3))
    assert_same(result)
    assert set(result.file) == set(result.eager)


# --- what is written meanwhile ---


def by_a_view(mask: Tensor, labels: Tensor) -> Tensor:
    row = mask[1]
    row.fill_(False)
    return mask


def by_foreach(mask: Tensor, labels: Tensor) -> Tensor:
    number = mask.long()
    torch._foreach_add_([number], 1)
    return number == 1


def by_out(mask: Tensor, labels: Tensor) -> Tensor:
    number = torch.zeros(mask.shape, dtype=torch.long)
    torch.add(number, mask, out=number)
    number += 1
    return number == 1


def by_what_the_batch_has(mask: Tensor, labels: Tensor) -> Tensor:
    mask[:, 1] = labels[:, 1] > 2
    return mask


def by_a_view_and_the_batch(mask: Tensor, labels: Tensor) -> Tensor:
    mask.view(-1)[1::2].copy_((labels > 2).view(-1)[1::2])
    return mask


def by_relu(mask: Tensor, labels: Tensor) -> Tensor:
    number = mask * 2.0 - 1
    kept = number
    F.relu(number, inplace=True)
    return kept == 0


@pytest.mark.parametrize("write", [by_a_view, by_foreach, by_out, by_what_the_batch_has, by_a_view_and_the_batch, by_relu])
def test_a_mask_is_what_was_written_into_it(write):
    def body(m: Model, y: Tensor, labels: Tensor) -> Tensor:
        mask = torch.zeros(labels.shape, dtype=torch.bool)
        mask[:, 0] = True
        before = y[mask.clone()].square().sum()
        out = write(mask, labels)
        return before + 3 * y[out].tanh().sum()

    for seed in (3, 4):
        assert_same(both(start(Model(body)), batch(3), run_batch=(batch(3)[0], integers(f"other{seed}", 5, 3, 4))))


def test_a_mask_that_is_written_row_by_row():
    def body(m: Model, y: Tensor, labels: Tensor) -> Tensor:
        mask = torch.zeros(300, dtype=torch.bool)
        for i in range(300):
            mask[i] = i % 3 > 0
        return m.experts[0](y[:, mask[:4]]).square().sum()

    assert_same(both(start(Model(body)), batch(3)))


def test_an_array_that_is_written_into_when_a_tensor_was_made_of_it():
    def body(m: Model, y: Tensor, labels: Tensor) -> Tensor:
        array = np.ones(4)
        mask = torch.tensor(array)
        array[1:] = 0
        return y.square().mean() * (mask.sum().item() + 1)

    assert_same(both(start(Model(body)), batch(3)))


def test_what_is_drawn_is_not_known():
    """By whatever function."""

    def body(m: Model, y: Tensor, labels: Tensor) -> Tensor:
        return y[:, torch._standard_gamma(torch.full((4,), 2.0)) > 1.7].square().sum()

    model = start(Model(body))
    before = torch.get_rng_state()
    with pytest.raises(Unsupported, match="depends? on values"):
        both(model, batch(3))
    assert torch.equal(before, torch.get_rng_state())


def test_a_number_of_the_batch_is_no_size():
    def body(m: Model, y: Tensor, labels: Tensor) -> Tensor:
        count = torch.zeros((), dtype=torch.long)
        count += labels.max()
        return (y.new_ones(count, 5) + y[0, :1]).square().sum()

    with pytest.raises(Unsupported, match="values"):
        both(start(Model(body)), batch(3))


class Beginning(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(6, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        out, mask = torch.zeros_like(y), torch.arange(len(y)) < 4
        out[mask] = self.other(y[mask])
        return out.square().sum()


class Columns(Beginning):
    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.layer(x))[:, torch.arange(5) < 4].square().sum()


@pytest.mark.parametrize("evaluation", [False, True])
def test_a_file_with_a_mask_of_the_batch_size_is_for_that_size(tmp_path, evaluation):
    """At 2 and at 3 it holds everywhere, at 5 it would not."""
    example = floats("begin", 2, 6)
    with pytest.warns(UserWarning, match="batches of 2 only: a mask, or another tensor that Python reads, is made of the batch's size"):
        document = plimsoll.export(Beginning(), example=example, path=tmp_path / "fixed.json", evaluation=evaluation)
    assert document["batch"] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a mask that is the same for all leaves the batch free
        plimsoll.export(Columns(), example=example, path=tmp_path / "free.json", evaluation=evaluation)


class Crops(nn.Module):
    """Crops of several sizes, those of one size at once, as DINO's wrapper does it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.head = nn.Conv1d(2, 3, 3, padding=1), nn.Linear(3, 2)

    def forward(self, crops: list[Tensor]) -> Tensor:
        lengths = torch.tensor([crop.shape[-1] for crop in crops])
        begin, output = 0, torch.empty(0)
        for end in torch.cumsum(torch.unique_consecutive(lengths, return_counts=True)[1], 0):
            output = torch.cat((output, self.layer(torch.cat(crops[begin:end])).mean(2)))
            begin = end
        kinds, places = lengths.unique(return_inverse=True)
        return self.head(output).square().mean() * len(kinds) + places.sum()


def test_what_is_unique_among_shapes_is_known():
    ours, theirs = Crops(), Crops()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (ours, theirs)]
    batches = [[floats(f"crop{i}{k}", 3, 2, length) for k, length in enumerate((8, 8, 5, 5, 5))] for i in range(2)]
    step = plimsoll.compile(ours, optimizers[0], call=lambda model, crops: model(crops), example=batches[0], memory="64MiB", costs="estimated", progress=False)
    for crops in batches:
        optimizers[1].zero_grad()
        expected = theirs(crops)
        expected.backward()
        optimizers[1].step()
        assert step(crops) == pytest.approx(expected.item(), rel=1e-5)


KEPT: dict = {}
TABLE = None


def table(n):
    return torch.arange(float(n))[:, None] * torch.linspace(0, 1, 6)


@functools.lru_cache
def kept_by_python(n):
    return table(n), table(n).cos()


def kept_in_a_dictionary(n):
    if n not in KEPT:
        KEPT[n] = table(n)
    return KEPT[n]


def kept_in_a_default(n, kept={}):
    if n not in kept:
        kept[n] = table(n)
    return kept[n]


def kept_in_a_variable(n):
    global TABLE
    if TABLE is None or len(TABLE) < n:
        TABLE = table(n)
    return TABLE[:n]


class Placed(nn.Module):
    def __init__(self, places):
        super().__init__()
        self.words, self.last, self.places = nn.Embedding(11, 6), nn.Linear(6, 11), places

    def forward(self, x):
        return self.last(torch.tanh(self.words(x) + self.places(x.shape[1])))


@pytest.mark.parametrize("places", [lambda n: kept_by_python(n)[1], kept_in_a_dictionary, kept_in_a_default, kept_in_a_variable], ids=["cache", "dictionary", "default", "variable"])
def test_tables_that_functions_keep_are_made_anew_and_stay_of_use(places):
    torch.manual_seed(0)
    ours = Placed(places)
    theirs = copy.deepcopy(ours)
    theirs.places = {"cache": lambda n: table(n).cos()}.get(getattr(places, "__name__", "").replace("<lambda>", "cache"), table)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    loss = lambda output, batch: F.cross_entropy(output.mT, batch)  # noqa: E731
    batches = [torch.randint(11, (3, n), generator=torch.Generator().manual_seed(n)) for n in (6, 5, 7, 6)]
    step = plimsoll.compile(ours, optimizers[0], loss=loss, example=batches[0], memory="16MiB", costs="estimated")
    for x in batches:
        optimizers[1].zero_grad()
        expected = loss(theirs(x), x)
        expected.backward()
        optimizers[1].step()
        assert step(x) == pytest.approx(expected.item(), rel=1e-4)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)  # what was kept has values

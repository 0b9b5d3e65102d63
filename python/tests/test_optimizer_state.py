"""``optimizer.state`` beside a step: what is read is up to date, and what is written counts, as with PyTorch's own steps."""

import collections
import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import plimsoll

LIMITS = dict(threads=1, costs="estimated", progress=False)


def _network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))


def _batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 3, 8, 8, generator=generator), torch.randint(0, 10, (8,), generator=generator)


def _loss(output, batch):
    return F.cross_entropy(output, batch[1])


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.003),
}


def _tensors(optimizer):
    return [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value) and value.dim()]


def _halve(optimizer):
    for value in _tensors(optimizer):
        value.mul_(0.5)


def _replace(optimizer):
    optimizer.state = collections.defaultdict(dict)


def _write_one(optimizer):
    parameter = optimizer.param_groups[0]["params"][0]
    key = next(key for key, value in optimizer.state[parameter].items() if torch.is_tensor(value) and value.dim())
    optimizer.state[parameter][key] = torch.full_like(parameter, 0.01)


def _load(optimizer):
    content = copy.deepcopy(optimizer.state_dict())
    for state in content["state"].values():
        for key in ("momentum_buffer", "exp_avg"):
            if key in state:
                state[key].zero_()
    optimizer.load_state_dict(content)


EDITS = {"clear": lambda o: o.state.clear(), "replace": _replace, "halve": _halve, "one": _write_one, "load": _load}


def _train(step, model, optimizer, edit, accumulate=1):
    for i in range(6):
        if i == 3:
            edit(optimizer)
        if step is not None:
            for part in range(accumulate):
                step(_batch(accumulate * i + part))
            continue
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = _batch(accumulate * i + part)
            (F.cross_entropy(model(x), y) / accumulate).backward()
        optimizer.step()


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("where", ["arena", "file", "accumulated"])
def test_what_is_written_into_it_counts(name, edit, where, tmp_path):
    more = {"file": dict(spill=f"{tmp_path}:1GiB"), "accumulated": dict(accumulate=2)}.get(where, {})
    accumulate = more.get("accumulate", 1)
    ours, theirs = _network(), _network()
    optimizer, reference = OPTIMIZERS[name](ours.parameters()), OPTIMIZERS[name](theirs.parameters())
    step = plimsoll.compile(ours, optimizer, loss=_loss, example=_batch(0), **more, **LIMITS)
    _train(step, ours, optimizer, EDITS[edit], accumulate)
    _train(None, theirs, reference, EDITS[edit], accumulate)
    for mine, expected in zip(ours.parameters(), theirs.parameters()):
        assert torch.allclose(mine, expected, atol=2e-5)
    for mine, expected in zip(_tensors(optimizer), _tensors(reference), strict=True):
        assert torch.allclose(mine, expected, atol=2e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_is_up_to_date_whoever_reads_it(name):
    ours, theirs = _network(), _network()
    optimizer, reference = OPTIMIZERS[name](ours.parameters()), OPTIMIZERS[name](theirs.parameters())
    step = plimsoll.compile(ours, optimizer, loss=_loss, example=_batch(0), **LIMITS)
    reads = [
        lambda o, m: [o.state[p] for p in m.parameters()],
        lambda o, m: [o.state.get(p) for p in m.parameters()],
        lambda o, m: list(o.state.values()),
        lambda o, m: [state for _, state in o.state.items()],
        lambda o, m: list(dict(o.state).values()),
        lambda o, m: list({**o.state}.values()),
        lambda o, m: list(o.state.copy().values()),
        lambda o, m: list(copy.deepcopy(o).state.values()),
        lambda o, m: list(pickle.loads(pickle.dumps(o)).state.values()),
        lambda o, m: list(_saved(o).state.values()),
    ]
    for i, read in enumerate(reads):
        step(_batch(i))
        reference.zero_grad()
        F.cross_entropy(theirs(_batch(i)[0]), _batch(i)[1]).backward()
        reference.step()
        for mine, expected in zip(read(optimizer, ours), reference.state.values(), strict=True):
            assert mine.keys() == expected.keys()
            for key in mine:
                assert torch.allclose(torch.as_tensor(mine[key]), torch.as_tensor(expected[key]), atol=1e-4)


def _saved(optimizer):
    file = io.BytesIO()
    torch.save(optimizer, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def test_copies_are_pytorchs():
    model = _network()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = plimsoll.compile(model, optimizer, loss=_loss, example=_batch(0), **LIMITS)
    step(_batch(0))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), _saved(optimizer)):
        assert type(other.state) is collections.defaultdict
        assert len(other.state) == 4
    del step
    optimizer.state.clear()
    assert len(optimizer.state) == 0


def test_a_state_dict_does_not_send_the_states_again(monkeypatch):
    model = _network()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = plimsoll.compile(model, optimizer, loss=_loss, example=_batch(0), **LIMITS)
    step(_batch(0))
    pushed = []
    monkeypatch.setattr(type(step), "_push", lambda self, *_: pushed.append(1))
    optimizer.state_dict()
    step(_batch(1))
    assert not pushed
    len(optimizer.state)
    step(_batch(2))
    assert pushed

"""What a forward pass assigns to plain attributes of its modules: a step runs no Python, and would keep what the first call found."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import plimsoll


def _batch():
    return torch.randn(8, 6), torch.randint(0, 3, (8,))


def _loss(output, batch):
    return F.cross_entropy(output, batch[1])


class _Counting(nn.Module):
    def __init__(self, count, use):
        super().__init__()
        self.linear, self.other = nn.Linear(6, 3), nn.Linear(6, 3)
        self.count, self.use = count, use

    def forward(self, x):
        self.count, scale, layer = self.use(self.count)
        return (self.other if layer else self.linear)(x) * scale


def _appended(count):
    return [*count, 1], 1 + 0.1 * len(count), 0


USES = {
    "scale": (0, lambda n: (n + 1, 1 + 0.1 * n, 0)),
    "annealed": (0, lambda n: (n + 1, math.exp(-0.2 * n), 0)),
    "from the fourth on": (0, lambda n: (n + 1, 2.0 if n > 3 else 1.0, 0)),
    "every tenth": (0, lambda n: (n + 1, 2.0 if n % 10 == 9 else 1.0, 0)),
    "taking turns": (False, lambda turn: (not turn, 1.0, turn)),
    "list": ([], _appended),
    "dictionary": ({"n": 0.0}, lambda d: ({"n": d["n"] + 1}, 1 + d["n"], 0)),
}


@pytest.mark.parametrize("use", USES)
def test_a_count_that_the_network_depends_on_is_refused(use):
    model = _Counting(*USES[use])
    before = model.count
    with pytest.raises(plimsoll.Unsupported, match="forward changes 'count'.*buffer"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=_loss, example=_batch(), progress=False)
    assert model.count == before


def test_a_count_in_a_module_below_is_named_by_its_path():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = _Counting(*USES["scale"])

        def forward(self, x):
            return self.inner(x)

    model = Outer()
    with pytest.raises(plimsoll.Unsupported, match="'inner.count' from 0 to 1"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=_loss, example=_batch(), progress=False)


class _Logging(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.calls, self.last, self.width = 0, 0.0, None

    def forward(self, x):
        self.calls += 1
        self.width = x.shape[-1]
        y = self.linear(x)
        self.last = y.mean().item()
        return y


def test_what_makes_no_difference_is_told_and_stays():
    model = _Logging()
    with pytest.warns(UserWarning) as told:
        step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=_loss, example=_batch(), progress=False)
    texts = [str(w.message) for w in told if "forward changes" in str(w.message)]
    assert any("forward changes calls; a step runs no Python: it stays 0" in text for text in texts)
    assert any("forward changes last;" in text and "outputs=" in text for text in texts)
    assert not any("width" in text for text in texts)
    step(_batch())
    assert (model.calls, model.last, model.width) == (0, 0.0, None)


class _Once(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.ready = nn.Linear(6, 3), False

    def forward(self, x):
        y = self.linear(x)
        if not self.ready:
            self.ready = True
            y = y * 2
        return y


def test_what_a_first_call_does_alone_is_told():
    model = _Once()
    with pytest.warns(UserWarning, match="forward changes ready; .* call the model once before"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=_loss, example=_batch(), progress=False)
    model(_batch()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=_loss, example=_batch(), progress=False)


def test_a_count_in_a_buffer_is_kept():
    class Buffer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            self.n += 1
            return self.linear(x) * (1 + 0.1 * self.n)

    model = Buffer()
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=_loss, example=_batch(), progress=False)
    for _ in range(3):
        step(_batch())
    assert model.n.item() == 3


LOG, LIST, LAST = {"x": 0.0}, [], 0.0


def _in_dictionary(output, batch):
    loss = _loss(output, batch)
    LOG["x"] = LOG["y"] = loss.item()
    return loss


def _in_list(output, batch):
    loss = _loss(output, batch)
    LIST.append(loss.detach())
    return loss


def _in_variable(output, batch):
    global LAST
    loss = _loss(output, batch)
    LAST = loss.item()
    return loss


def _in_cell():
    last = 0.0

    def loss(output, batch):
        nonlocal last
        result = _loss(output, batch)
        last = result.item()
        return result

    return loss


class _OfObject:
    def __init__(self):
        self.last, self.all = None, []

    def __call__(self, output, batch):
        loss = _loss(output, batch)
        self.last = loss.item()
        self.all.append(self.last)
        return loss


@pytest.mark.parametrize("loss", [_in_dictionary, _in_list, _in_variable, _in_cell(), _OfObject()])
@pytest.mark.filterwarnings("ignore:.*is written with what is computed")
def test_what_a_loss_logs_stays_as_it_was(loss):
    """And no symbol of a capture's."""
    model = nn.Linear(6, 3)
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, example=_batch(), progress=False)
    step(_batch())
    step(tuple(t[:5] for t in _batch()))
    assert LOG == {"x": 0.0} and LIST == [] and type(LAST) is float
    if isinstance(loss, _OfObject):
        assert loss.last is None and loss.all == []


COUNT = 0


def _by_global():
    def loss(output, batch):
        global COUNT
        COUNT += 1
        return _loss(output, batch) * (2 if COUNT > 3 else 1)

    return loss, lambda: COUNT


def _by_closure():
    count = 0

    def loss(output, batch):
        nonlocal count
        count += 1
        return _loss(output, batch) * (2 if count > 3 else 1)

    return loss, lambda: count


def _by_object():
    class Loss:
        count = 0

        def __call__(self, output, batch):
            self.count = self.count + 1
            return _loss(output, batch) * (2 if self.count > 3 else 1)

    loss = Loss()
    loss.count = 0
    return loss, lambda: loss.count


def _by_list():
    history = []

    def loss(output, batch):
        history.append(1)
        return _loss(output, batch) * (2 if len(history) > 3 else 1)

    return loss, lambda: len(history)


def _by_dictionary():
    state = {"n": 0}

    def loss(output, batch):
        state["n"] += 1
        return _loss(output, batch) * (2 if state["n"] > 3 else 1)

    return loss, lambda: state["n"]


@pytest.mark.parametrize("make", [_by_global, _by_closure, _by_object, _by_list, _by_dictionary], ids=lambda f: f.__name__)
def test_a_count_of_the_loss_that_the_network_depends_on_is_refused(make):
    loss, count = make()
    before, model = count(), nn.Linear(6, 3)
    with pytest.raises(plimsoll.Unsupported, match="forward changes .* from .*, and later calls give another network"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, example=_batch(), costs="estimated", progress=False)
    assert count() == before


def test_a_count_of_the_loss_that_makes_no_difference_stays():
    calls = [0]

    def loss(output, batch):
        calls[0] += 1
        return _loss(output, batch)

    model = nn.Linear(6, 3)
    with pytest.warns(UserWarning, match="a step runs no Python: it stays"):
        step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, example=_batch(), costs="estimated", progress=False)
    step(_batch())
    assert calls == [0]

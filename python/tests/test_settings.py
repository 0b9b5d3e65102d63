"""Numbers and flags of a module that change while it is trained."""

from __future__ import annotations

import collections
import copy
import cProfile
import dataclasses
import enum
import functools
import importlib
import pstats
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll

LIMITS = dict(memory="64MiB", threads=1, costs="estimated", progress=False)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.drop = nn.Linear(4, 3), nn.Dropout(0.0)
        self.scale, self.epoch, self.calls = 1.0, 0, 0
        self.config = SimpleNamespace(is_mirrored=False)

    def forward(self, x):
        self.calls += 1
        x = -x if self.config.is_mirrored else x
        return self.drop(self.inner(x)) * self.scale


BATCH = torch.arange(20.0).reshape(5, 4) / 10 - 1, torch.tensor([0, 1, 2, 1, 0])


def losses(model, changes, steps, compiled, loss=lambda output, batch: F.cross_entropy(output, batch[1])):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = plimsoll.compile(model, optimizer, loss=loss, example=BATCH, **LIMITS) if compiled else None
    found = []
    for i in range(steps):
        changes(model, i)
        if compiled:
            found.append(step(BATCH))
            continue
        optimizer.zero_grad()
        value = loss(model(BATCH[0]), BATCH)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found, step


def expect_same(changes, steps, make=Scaled, loss=lambda output, batch: F.cross_entropy(output, batch[1])):
    model = make()
    expected, _ = losses(copy.deepcopy(model), changes, steps, False, loss)
    found, step = losses(model, changes, steps, True, loss)
    assert found == pytest.approx(expected, rel=1e-5)
    return step


def test_a_number_that_changes_gets_a_plan_for_each_of_its_values():
    with pytest.warns(UserWarning, match=r"model.scale was 1.0 .* is 0.5 now"):
        step = expect_same(lambda model, i: setattr(model, "scale", (1.0, 0.5)[i % 2]), 6)
    assert len(step._shapes) == 2


def test_a_flag_of_a_configuration_is_followed():
    step = expect_same(lambda model, i: setattr(model.config, "is_mirrored", i > 1), 4)
    assert len(step._shapes) == 2


def test_what_the_network_does_not_read_gets_no_plan(recwarn):
    step = expect_same(lambda model, i: setattr(model, "epoch", i), 25)
    assert len(step._shapes) == 1 and not [w for w in recwarn if "was 0 when" in str(w.message)]


def test_a_number_of_the_loss_is_followed():
    weight = [1.0]
    factor = 1.0

    def change(model, i):
        nonlocal factor
        factor = 1.0 if i < 2 else 0.25

    step = expect_same(change, 4, loss=lambda output, batch: factor * F.cross_entropy(output, batch[1]) * weight[0])
    assert len(step._shapes) == 2


class Slotted:
    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 1.0


class Named(dict):
    """Its entries are attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def weighed(output, batch, settings=None, factor=1.0):
    return F.cross_entropy(output, batch[1]) * (settings.factor if settings else factor)


@pytest.mark.parametrize("way, make", [("default", Slotted), ("keyword", lambda: Named(factor=1.0)), ("partial", SimpleNamespace)], ids=["default", "keyword", "partial"])
def test_what_settings_hold_is_followed_however_the_loss_has_them(way, make):
    settings = make()
    settings.factor = 1.0
    ways = {
        "default": lambda output, batch, settings=settings: weighed(output, batch, settings),
        "keyword": lambda output, batch, *, settings=settings: weighed(output, batch, settings),
        "partial": functools.partial(weighed, settings=settings),
    }
    step = expect_same(lambda model, i: setattr(settings, "factor", 1.0 if i < 2 else 0.25), 4, loss=ways[way])
    assert len(step._shapes) == 2


def test_what_a_partial_function_binds_is_followed():
    loss = functools.partial(weighed, factor=1.0)
    expect_same(lambda model, i: loss.keywords.update(factor=1.0 + i // 2), 6, loss=loss)


def test_a_variable_of_another_file_is_followed(tmp_path, monkeypatch):
    (tmp_path / "my_settings.py").write_text("factor = 1.0\ndef scaled(x):\n    return x * factor\n")
    monkeypatch.syspath_prepend(tmp_path)
    my_settings = importlib.import_module("my_settings")
    for loss in (lambda output, batch: my_settings.factor * F.cross_entropy(output, batch[1]), lambda output, batch: my_settings.scaled(F.cross_entropy(output, batch[1]))):
        step = expect_same(lambda model, i: setattr(my_settings, "factor", 1.0 if i < 2 else 0.25), 4, loss=loss)
        assert len(step._shapes) == 2


def test_another_function_in_an_attribute_is_followed():
    class Activated(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.inner, self.act = nn.Linear(4, 3), F.relu

        def forward(self, x):
            return self.act(self.inner(x))

    def change(model, i):
        model.act = (F.relu, torch.tanh, lambda y: y * 2.0, lambda y: y * 3.0, lambda y: y * 4.0, F.relu)[i]

    expect_same(change, 6, make=Activated)


def test_a_layer_of_pytorch_is_followed():
    def change(model, i):
        model[1].momentum = 0.1 if i < 2 else 0.5

    def make():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    model = make()
    other = copy.deepcopy(model)
    losses(model, change, 4, True)
    losses(other, change, 4, False)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_an_evaluation_follows_too():
    model = Scaled()
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=BATCH, **LIMITS)
    for scale in (1.0, 2.0, 0.5):
        model.scale = scale
        with torch.no_grad():
            expected = F.cross_entropy(model(BATCH[0]), BATCH[1]).item()
        assert step.evaluate(BATCH) == pytest.approx(expected, rel=1e-5)


class Compared(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.flag, self.factor = nn.Linear(4, 3), 0, 1.0

    def forward(self, x):
        return self.inner(x) * (2 if self.flag > 100 else 1) * self.factor


@pytest.mark.filterwarnings("ignore:.*has changed", "ignore:.*gets a plan of its own")
def test_an_evaluation_of_a_network_that_is_the_same_is_captured_once_for_each_value(monkeypatch):
    model = Compared()
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=BATCH, **LIMITS)
    captures, capture = [], step._capture_as
    monkeypatch.setattr(step, "_capture_as", lambda batch, training, *rest: (captures.append(training), capture(batch, training, *rest))[1])
    for i, (flag, factor, evaluations) in enumerate([
        (1, 1.0, 1),  # the first is under a value that is another than at compile
        (1, 1.0, 1),
        (2, 1.0, 2),
        (1, 1.0, 2),
        (2, 1.0, 2),
        (2, 3.0, 3),
        (1, 3.0, 4),
        (2, 3.0, 4),
        (101, 3.0, 5),
        (0, 1.0, 6),
        (101, 1.0, 7),
        (101, 3.0, 7),
    ]):  # fmt: skip
        model.flag, model.factor = flag, factor
        with torch.no_grad():
            expected = F.cross_entropy(model(BATCH[0]), BATCH[1]).item()
        assert step.evaluate(BATCH) == pytest.approx(expected, rel=1e-5), i
        assert captures.count(False) == evaluations, i
    assert len({number for _, number in step._evaluations.values()}) == 4


def test_names_are_read_while_a_forward_pass_runs_and_not_while_pytorch_decomposes(monkeypatch):
    """Each call of Python takes many times as long meanwhile."""
    watched, decompose = [], torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", lambda self, *given: (watched.append(sys.getprofile()), decompose(self, *given))[1])
    model = Scaled()
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=BATCH, **LIMITS)
    step((BATCH[0][:4], BATCH[1][:4]))
    assert len(watched) > 2 and watched.count(None) == len(watched)


class Tabled(nn.Module):
    """Buffers that no step changes: one that the network folds into a number, one that it reads, and one that it makes a table of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Linear(4, 3)
        self.register_buffer("factor", torch.tensor(1.0))
        self.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3]))
        self.register_buffer("table", torch.tensor([0.5, 0.25, 1.0]))
        self.kept, self.weights = torch.ones(3), [1.0, 2.0]

    def forward(self, x):
        return self.inner(x) * self.factor + self.inner.bias * self.shift + self.inner(x) * (self.table.view(1, 3) * 2 + 1) * self.kept * self.weights[0]


def put(owner, name):
    def change(model, i):
        if i == 2:
            with torch.no_grad():
                getattr(model, name).mul_(0.5)

    return change


CHANGES = {
    "number": lambda model, i: model.factor.fill_(1.0 if i < 2 else 0.5),
    "read": put(Tabled, "shift"),
    "table": put(Tabled, "table"),
    "replaced": lambda model, i: setattr(model, "table", torch.full((3,), 0.5)) if i == 2 else None,
    "loaded": lambda model, i: model.load_state_dict({**model.state_dict(), "table": torch.full((3,), 0.5)}) if i == 2 else None,
    "through_data": lambda model, i: model.shift.data.mul_(0.5) if i == 2 else None,
    "other_data": lambda model, i: setattr(model.shift, "data", model.shift * 0.5) if i == 2 else None,
    "no_buffer": put(Tabled, "kept"),
    "list": lambda model, i: model.weights.__setitem__(0, 1.0 if i < 2 else 0.25),
}


@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
@pytest.mark.parametrize("name", CHANGES)
def test_tensors_and_lists_that_are_changed_between_steps_count(name):
    expect_same(CHANGES[name], 4, make=Tabled)


@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
def test_tensors_that_a_loss_reads_count():
    weight, held, teacher = torch.ones(3), {"shift": torch.zeros(3)}, nn.Linear(4, 3).requires_grad_(False)
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    start = {name: value.clone() for name, value in teacher.state_dict().items()}

    def change(model, i):
        with torch.no_grad():
            if i == 0:  # of either side
                weight.fill_(1.0), criterion.weight.fill_(1.0), teacher.load_state_dict(start)
                held["shift"] = torch.zeros(3)
            weight.mul_(torch.tensor([1.0, 0.5, 2.0])) if i == 1 else None
            criterion.weight.mul_(torch.tensor([0.5, 0.5, 2.0])) if i == 2 else None
            teacher.weight.mul_(0.5) if i == 3 else None
            if i == 4:
                held["shift"] = torch.tensor([0.1, 0.2, 0.3])

    expect_same(change, 6, loss=lambda o, b: F.cross_entropy(o + held["shift"], b[1], weight=weight) + criterion(o, b[1]) + F.mse_loss(o, teacher(b[0])))


def test_parts_of_the_model_that_are_others_are_told():
    def of_module(model):
        model.inner = nn.Linear(4, 3)

    def of_parameter(model):
        model.inner.weight = nn.Parameter(torch.ones(3, 4))

    def of_hook(model):
        model.inner.register_forward_hook(lambda module, given, output: 2 * output)

    for change in (of_module, of_parameter, of_hook):
        model = Scaled()
        step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda o, b: F.cross_entropy(o, b[1]), example=BATCH, **LIMITS)
        step(BATCH)
        change(model)
        with pytest.raises(ValueError, match="compile anew"):
            step(BATCH)


# --- numbers that change at every step ---------------------------------------------------------------------------------


class Heated(nn.Module):
    """With a temperature, and a share of what is dropped."""

    def __init__(self):
        super().__init__()
        self.inner, self.tau, self.share = nn.Linear(4, 3), 1.0, 0.0

    def forward(self, x):
        return F.dropout(self.inner(x), self.share, self.training) / self.tau * (1 - 0.5 * self.tau)


def captures(monkeypatch):
    """How often something is captured from now on."""
    from plimsoll import step

    count, inner = [0], step.capture

    def counting(*args, **flags):
        count[0] += 1
        return inner(*args, **flags)

    monkeypatch.setattr(step, "capture", counting)
    return count


class Config:
    def __init__(self):
        self.beta = 0.0


def schedule(place, config, cell, model, i):
    value = 0.01 * i if i < 30 else 0.3
    if place == "object":
        config.beta = value
    elif place == "closure":
        cell(value)
    elif place == "dictionary":
        config.__dict__["table"] = {"beta": value}
    else:
        model.tau = 1.0 + value


@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
@pytest.mark.parametrize("place", ["object", "closure", "attribute"])
def test_a_number_that_changes_at_every_step_becomes_an_input(place, monkeypatch):
    counts = captures(monkeypatch)
    sizes = [8, 8, 8, 8, 8, 5]

    def run(ours):
        torch.manual_seed(0)
        model, config, beta = Heated(), Config(), 0.0

        def set_beta(value):
            nonlocal beta
            beta = value

        def loss(o, b):
            return F.cross_entropy(o, b[1]) + (config.beta + beta) * o.square().mean() + (1 - beta) * o.abs().mean()

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule(place, config, set_beta, model, 0)
        step = plimsoll.compile(model, optimizer, loss=loss, example=BATCH, **LIMITS) if ours else None
        losses = []
        for i in range(40):
            schedule(place, config, set_beta, model, i)
            n = min(sizes[i % 6], len(BATCH[0]))
            b = tuple(t[:n] for t in BATCH)
            if ours:
                losses.append(step(b))
                if i % 10 == 9:
                    losses.append(step.evaluate(b))
            else:
                optimizer.zero_grad()
                value = loss(model(b[0]), b)
                value.backward()
                optimizer.step()
                losses.append(value.item())
                if i % 10 == 9:
                    model.eval()
                    with torch.no_grad():
                        losses.append(loss(model(b[0]), b).item())
                    model.train()
        return losses, [p.detach().clone() for p in model.parameters()]

    (ours, weights), (theirs, weights_2) = run(True), run(False)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights, weights_2, rtol=1e-4, atol=1e-5)
    assert counts[0] < 12


@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
def test_a_number_that_python_wants_stays_one():
    model = Heated()
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda o, b: F.cross_entropy(o, b[1]), example=BATCH, **LIMITS)
    with pytest.raises(ValueError, match="has had 16 values.*model.share = "):
        for i in range(20):
            model.share = i / 40
            step(BATCH)
    assert model.share == 16 / 40


@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
def test_a_number_that_is_none_later_is_told():
    model, config = Heated(), Config()
    loss = lambda o, b: F.cross_entropy(o, b[1]) + config.beta * o.mean()  # noqa: E731
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, example=BATCH, **LIMITS)
    for config.beta in (0.1, 0.2, 0.3, 0.4):
        step(BATCH)
    config.beta = None
    with pytest.raises(ValueError, match="beta was a number"):
        step(BATCH)


@pytest.mark.filterwarnings("ignore")
def test_a_counter_that_is_compared_counts_when_it_comes_to_that(monkeypatch):
    class Trainer:
        def __init__(self):
            self.count, self.seen = 0, 0

        def loss(self, o, b):
            return F.cross_entropy(o, b[1]) * (3.0 if self.count >= 4 else 1.0)

    counts = captures(monkeypatch)
    trainer = Trainer()

    def change(model, i):
        trainer.count, trainer.seen = i, i  # of which nothing reads the latter

    expect_same(change, 7, loss=trainer.loss)
    assert counts[0] < 12


@pytest.mark.filterwarnings("ignore")
def test_a_counter_that_nobody_reads_is_not_looked_at_again(monkeypatch):
    counts = captures(monkeypatch)

    class Trainer:
        def __init__(self):
            self.batches_seen = 0

        def loss(self, o, b):
            return F.cross_entropy(o, b[1])

    trainer = Trainer()
    expect_same(lambda model, i: setattr(trainer, "batches_seen", i), 8, loss=trainer.loss)
    assert counts[0] < 4


def test_a_script_may_be_profiled():
    profile = cProfile.Profile()
    profile.enable()
    try:
        model = Scaled()
        step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=BATCH, **LIMITS)
        step((BATCH[0][:4], BATCH[1][:4]))  # its names are read for another shape
    finally:
        profile.disable()
    names = {name for _, _, name in pstats.Stats(profile).stats}
    assert {"compile", "forward", "__call__"} <= names  # also what runs after a forward pass was watched


class Acting(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Linear(4, 3)

    def act(self, x):
        return torch.relu(x)

    def forward(self, x):
        return self.act(self.inner(x))


class Wrapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Acting()

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("kind", [Acting, Wrapping])
def test_a_method_that_an_object_gets_in_the_place_of_its_class_counts(kind):
    def change(model, i):
        owner = model.inner if kind is Wrapping else model
        if i == 2:
            owner.act = torch.tanh if kind is Wrapping else lambda x: torch.tanh(x)
        if i == 4:
            del owner.act

    assert losses(kind(), change, 6, True)[0] == pytest.approx(losses(kind(), change, 6, False)[0], rel=1e-5)


class Phase(enum.Enum):
    FIRST = 1
    SECOND = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    temperature: float = 1.0
    is_shifted: bool = False


Pair = collections.namedtuple("Pair", "scale shift")


def rotated(queue, value):
    queue.append(torch.tensor([1.0, -1.0, 0.5]) * value)
    if not isinstance(queue, collections.deque):
        queue.pop(0)


def kinds_of_values():
    """Of each: what the loss reads, how, and what the user does before each step."""
    zeros = [torch.zeros(3) for _ in range(3)]
    summed = lambda held, output: output + torch.stack(list(held)).sum(0)  # noqa: E731
    return {
        "a deque of tensors": (collections.deque(zeros, maxlen=3), summed, rotated),
        "a list of tensors": ([*zeros], summed, rotated),
        "a list of tensors that grows": ([torch.ones(3)], summed, lambda held, i: held.append(torch.tensor([1.0, -1.0, 0.5]) * i) if i % 2 else None),
        "a dictionary of tensors by numbers": ({k: torch.zeros(3) for k in range(2)}, lambda held, output: output + held[0] - held[1], lambda held, i: held.__setitem__(i % 2, torch.arange(3.0) * i)),
        "an array": (np.ones(3, dtype=np.float32), lambda held, output: output * torch.from_numpy(held), lambda held, i: held.__setitem__(0, 1 + i // 3)),
        "a list of lists": ([[1.0, 2.0], [3.0]], lambda held, output: output * held[1][0] + held[0][1], lambda held, i: held[1].__setitem__(0, 3.0 + i // 3)),
        "a set": ({0}, lambda held, output: output * (1 + sum(held)), lambda held, i: held.add(i // 3)),
        "a list of functions": ([torch.relu], lambda held, output: functools.reduce(lambda y, f: f(y), held, output), lambda held, i: held.append(torch.tanh) if i == 3 else None),
        "signs of a tensor": (torch.tensor([0.6, 0.7, 0.8]), lambda held, output: output * (held > 0).float(), lambda held, i: held.__setitem__(0, (0.6, 0.65, -0.5, -0.4, 0.9, -0.1)[i])),
    }


@pytest.mark.parametrize("kind", kinds_of_values())
@pytest.mark.filterwarnings("ignore")
def test_values_of_any_kind_that_change_between_steps_count(kind):
    expected, found = ([], [])
    for compiled, to in ((False, expected), (True, found)):
        held, read, change = kinds_of_values()[kind]
        loss = lambda output, batch: F.cross_entropy(read(held, output), batch[1])  # noqa: E731
        to += losses(Scaled(), lambda _, i: change(held, i), 6, compiled, loss)[0]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "values, read",
    [
        ((Phase.FIRST, Phase.SECOND), lambda value, output: output if value is Phase.FIRST else output.tanh()),
        ((Frozen(), Frozen(0.5, True)), lambda value, output: output / value.temperature + (output.mean() if value.is_shifted else 0)),
        ((Pair(1.0, 0.0), Pair(2.0, 0.5)), lambda value, output: output * value.scale + value.shift),
        ((np.float32(1.0), np.float32(2.0)), lambda value, output: output * float(value)),
        (([[1.0]], [[2.0]]), lambda value, output: output * value[0][0]),
        ((SimpleNamespace(inner=SimpleNamespace(scale=1.0)), SimpleNamespace(inner=SimpleNamespace(scale=2.0))), lambda value, output: output * value.inner.scale),
        ((nn.ReLU, nn.Tanh), lambda value, output: value()(output)),
    ],
    ids=["enum", "dataclass", "namedtuple", "numpy", "lists", "objects", "class"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_value_that_another_is_put_in_the_place_of_counts(values, read):
    class Trainer:
        held = None

        def loss(self, output, batch):
            return F.cross_entropy(read(self.held, output), batch[1])

    found = []
    for compiled in (False, True):
        trainer = Trainer()
        trainer.held = values[0]
        found.append(losses(Scaled(), lambda _, i: setattr(trainer, "held", values[i // 2 % 2]), 6, compiled, trainer.loss)[0])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_an_object_that_changes_within_and_is_replaced_is_looked_at():
    class Settings:
        def __init__(self, scale):
            self.scale = scale

    class Trainer:
        def loss(self, output, batch):
            return F.cross_entropy(output * self.settings.scale, batch[1])

    found = []
    for compiled in (False, True):
        trainer = Trainer()
        trainer.settings = Settings(1.0)

        def change(_, i):
            if i == 1:
                trainer.settings = Settings(1.0)
            if i == 2:
                trainer.settings.scale = 2.0
            if i == 4:
                trainer.settings = Settings(0.5)

        found.append(losses(Scaled(), change, 6, compiled, trainer.loss)[0])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_names_of_a_batch_that_are_no_names_in_python():
    model = nn.Linear(4, 3)
    batch = {"input-ids": torch.randn(5, 4), "class": torch.tensor([0, 1, 2, 1, 0]), "1": torch.arange(5)}
    loss = lambda output, batch: (F.cross_entropy(output, batch["class"], reduction="none") * (batch["1"] > 1)).mean()  # noqa: E731
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.0), call=lambda model, batch: model(batch["input-ids"]), loss=loss, example=batch, **LIMITS)
    assert step(batch) == pytest.approx(loss(model(batch["input-ids"]), batch).item(), rel=1e-5)


@pytest.mark.parametrize("generator", [random.Random(3), np.random.default_rng(3)], ids=["python", "numpy"])
def test_random_numbers_of_a_generator_of_the_users_own_are_told(generator):
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="draws random numbers of Python or numpy"):
        plimsoll.compile(model, optimizer, loss=lambda output, batch: output.mean() * (2 if generator.random() < 1e-9 else 1), example=BATCH, **LIMITS)

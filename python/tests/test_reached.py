"""Batches that train different parts of a model, as those of several tasks do."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll
from plimsoll.step import Step
from support import floats


class Head(nn.Module):
    def __init__(self, classes: int, width: int):
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(16, width, bias=False), nn.BatchNorm1d(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.hidden(x))))


class Tasks(nn.Module):
    """A head for each task, of which a batch names one."""

    def __init__(self, width: int = 16, has_body: bool = True):
        super().__init__()
        self.body = nn.Linear(16, 16, bias=False) if has_body else nn.Identity()
        self.heads = nn.ModuleDict({"a": Head(4, width), "b": Head(6, width), "c": Head(5, width)})
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor, task: str) -> Tensor:
        return self.heads[task](torch.relu(self.body(x)))


def batches(tasks: str) -> list:
    return [((floats(f"{i}", 6, 16), task), torch.arange(6) % 4) for i, task in enumerate(tasks)]


def compiled(model, optimizer, example, **how):
    how = {"memory": "8MiB", "threads": 1, "costs": "estimated", "progress": False} | how
    return plimsoll.compile(model, optimizer, loss=lambda y, batch: F.cross_entropy(y, batch[1]), call=lambda m, batch: m(*batch[0]), example=example, **how)


def by_pytorch(model, optimizer, given, clip=0.0):
    for (x, task), labels in given:
        optimizer.zero_grad()
        F.cross_entropy(model(x, task), labels).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def expect_alike(ours, theirs, optimizer, reference):
    for (name, expected), found in zip(theirs.state_dict().items(), ours.state_dict().values()):
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5), name
    found = optimizer.state_dict()["state"]
    for i, expected in reference.state_dict()["state"].items():
        for name, value in expected.items():
            if value is not None:
                assert torch.allclose(torch.as_tensor(found[i][name]), torch.as_tensor(value), rtol=1e-3, atol=1e-5), (i, name)


OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd_by_formulas": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
    "adamw": lambda m: torch.optim.AdamW([{"params": m.heads.parameters(), "lr": 0.02}, {"params": m.body.parameters()}], lr=0.01, weight_decay=0.1),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "nadam": lambda m: torch.optim.NAdam(m.parameters(), lr=0.01),
}


def both(kind, has_body=True):
    torch.manual_seed(1)
    ours = Tasks(has_body=has_body)
    theirs = copy.deepcopy(ours)
    return ours, theirs, OPTIMIZERS[kind](ours), OPTIMIZERS[kind](theirs)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_a_batch_does_not_reach_is_left_alone(kind):
    ours, theirs, optimizer, reference = both(kind)
    given = batches("abaacbbac")
    step = compiled(ours, optimizer, given[0], clip_grad_norm=0.5)
    for batch in given:
        step(batch)
    by_pytorch(theirs, reference, given, clip=0.5)
    expect_alike(ours, theirs, optimizer, reference)


def test_a_plan_is_made_once_for_each_task():
    ours, _, optimizer, _ = both("adamw")
    step, given = compiled(ours, optimizer, batches("a")[0]), batches("abcabc")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in given[:3]:
            step(batch)
        core = step._core
        for batch in given:
            step(batch)
    assert step._core is core and len(step._shapes) == 3


@pytest.mark.parametrize("kind", ["adamw", "nadam", "sgd_by_formulas"])
def test_examples_of_all_tasks_may_be_given_at_the_beginning(kind):
    ours, theirs, optimizer, reference = both(kind)
    given = batches("abaacbbac")
    step = compiled(ours, optimizer, given[0], shapes=batches("xbc")[1:])
    core = step._core
    for batch in given:
        step(batch)
    assert step._core is core
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)


def test_tasks_that_share_nothing():
    ours, theirs, optimizer, reference = both("amsgrad", has_body=False)
    given = batches("abcabbca")
    step = compiled(ours, optimizer, given[0])
    for batch in given:
        step(batch)
    assert step._core.number == len(given)
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)


@pytest.mark.parametrize("by_file", [False, True])
def test_it_goes_on_from_what_was_saved(by_file, tmp_path):
    ours, theirs, optimizer, reference = both("adamw")
    given = batches("abaacbbacb")
    step = compiled(ours, optimizer, given[0])
    for batch in given[:5]:
        step(batch)
    if by_file:
        step.save(tmp_path / "step")
    saved = copy.deepcopy((ours.state_dict(), optimizer.state_dict()))
    del step
    ours = Tasks()
    optimizer = OPTIMIZERS["adamw"](ours)
    if by_file:
        step = compiled(ours, optimizer, given[5], shapes=[given[0], given[4]])
        step.load(tmp_path / "step")
    else:
        ours.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        step = compiled(ours, optimizer, given[5])
    for batch in given[5:]:
        step(batch)
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)


def test_a_part_that_does_not_fit_leaves_the_step_as_it_is():
    ours, theirs = (Tasks(width=4000) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizer, reference = (torch.optim.AdamW(m.parameters(), lr=0.001) for m in (ours, theirs))
    a, b, more_a = batches("aba")
    step = compiled(ours, optimizer, a, memory="2MiB")
    step(a)
    with pytest.raises(plimsoll.Infeasible) as refused:
        step(b)
    step(more_a)
    by_pytorch(theirs, reference, [a, more_a])
    expect_alike(ours, theirs, optimizer, reference)
    step = compiled(ours, optimizer, a, memory=refused.value.minimum_bytes)
    step(b)
    by_pytorch(theirs, reference, [b])
    expect_alike(ours, theirs, optimizer, reference)


def test_in_the_midst_of_accumulation_it_is_refused():
    ours, theirs, optimizer, reference = both("adamw")
    given = batches("aabba")
    step = compiled(ours, optimizer, given[0], accumulate=2)
    step(given[0])
    with pytest.raises(ValueError, match="trained by one of the batches whose gradients are accumulated, and not by another"):
        step(given[2])
    for batch in given[1:4]:
        step(batch)
    for pair in (given[:2], given[2:4]):
        reference.zero_grad()
        for (x, task), labels in pair:
            (F.cross_entropy(theirs(x, task), labels) / 2).backward()
        reference.step()
    expect_alike(ours, theirs, optimizer, reference)


def test_evaluation_of_a_task_that_was_not_trained_yet():
    ours, theirs, optimizer, reference = both("adamw")
    a, b = batches("ab")
    step = compiled(ours, optimizer, a)
    step(a)
    by_pytorch(theirs, reference, [a])
    theirs.eval()
    for (x, task), labels in (b, a):
        assert step.evaluate(((x, task), labels)) == pytest.approx(F.cross_entropy(theirs(x, task), labels).item(), rel=1e-4)
    theirs.train()
    step(b)
    by_pytorch(theirs, reference, [b])
    theirs.eval()
    assert step.evaluate(b) == pytest.approx(F.cross_entropy(theirs(*b[0]), b[1]).item(), rel=1e-4)


def test_parameters_that_nothing_trains_cost_no_second_plan():
    ours, _, optimizer, _ = both("adamw")
    a = batches("a")[0]
    step = compiled(ours, optimizer, a)
    step(a)
    core = step._core
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(((a[0][0][:4], "a"), a[1][:4]))
    assert step._core is core


def test_what_no_batch_has_trained_has_no_states():
    ours, theirs, optimizer, reference = both("adamw")
    given = batches("aab")
    step = compiled(ours, optimizer, given[0], shapes=given[2:])
    for batch in given[:2]:
        step(batch)
    by_pytorch(theirs, reference, given[:2])
    assert optimizer.state_dict()["state"].keys() == reference.state_dict()["state"].keys()


def test_the_first_momentum_is_the_gradient_also_where_states_were_read_before():
    ours, theirs, optimizer, reference = both("sgd_by_formulas")
    given = batches("aabcb")
    step = compiled(ours, optimizer, given[0], shapes=given[2:3])
    for batch in given:
        step(batch)
        assert len(optimizer.state) > 0
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)


def test_reading_states_of_tasks_that_share_nothing_keeps_the_gradients_summed():
    ours, theirs, optimizer, reference = both("amsgrad", has_body=False)
    given = batches("aabbaabb")
    step = compiled(ours, optimizer, given[0], accumulate=2)
    for i, batch in enumerate(given):
        step(batch)
        assert len(optimizer.state) > 0 or i == 0
    for pair in zip(given[::2], given[1::2]):
        reference.zero_grad()
        for (x, task), labels in pair:
            (F.cross_entropy(theirs(x, task), labels) / 2).backward()
        reference.step()
    expect_alike(ours, theirs, optimizer, reference)


class Dropped(Tasks):
    def __init__(self):
        super().__init__(has_body=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, task: str) -> Tensor:
        return super().forward(self.dropout(x), task)


def test_what_is_drawn_after_a_file_was_read_is_as_without(tmp_path):
    given = batches("ababaab")

    def made():
        torch.manual_seed(1)
        model = Dropped()
        optimizer = OPTIMIZERS["amsgrad"](model)
        return model, compiled(model, optimizer, given[0], exact=True)

    model, step = made()
    for batch in given[:4]:
        step(batch)
    step.save(tmp_path / "step")
    other, again = made()
    again.load(tmp_path / "step")
    assert [again(batch) for batch in given[4:]] == [step(batch) for batch in given[4:]]
    for (name, expected), found in zip(model.state_dict().items(), other.state_dict().values()):
        assert torch.equal(found, expected), name


class Guided(Tasks):
    """Task "a" reads the head of "b", which no gradient of it reaches."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, task: str) -> Tensor:
        y = super().forward(x, task)
        if task == "a":
            other = F.linear(torch.relu(self.body(x)), self.heads["b"].out.weight)
            found = {"detach": other.detach(), "argmax": other.argmax(1, keepdim=True), "compare": torch.where(other > 0, 1.0, 2.0), "cast": other.long()}[self.how]
            y = y + found.sum(1, keepdim=True) * torch.arange(4.0)
        return y


@pytest.mark.parametrize("how, order", [("detach", "aabba"), ("argmax", "aabba"), ("argmax", "baaab"), ("compare", "baaab"), ("cast", "baaab")])
def test_what_a_batch_reads_without_training_it_another_trains(how, order):
    torch.manual_seed(1)
    ours = Guided(how)
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (ours, theirs))
    given = batches(order)
    step = compiled(ours, optimizer, given[0])
    for batch in given:
        step(batch)
        assert len(optimizer.state) > 0
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_memory_is_taken_anew_leaves_the_step_as_it_is(after, monkeypatch):
    ours, theirs, optimizer, reference = both("adamw")
    given = batches("aabcb")
    step = compiled(ours, optimizer, given[0])
    step(given[0])
    push = Step._push

    def interrupted(self, *how, **more):
        monkeypatch.undo()
        if after:
            push(self, *how, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Step, "_push", interrupted)
    with pytest.raises(KeyboardInterrupt):
        step(given[2])
    for batch in given[1:]:
        step(batch)
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)


class Averaged(Tasks):
    """Task "c" reads a buffer that only "b" changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor, task: str) -> Tensor:
        h = torch.relu(self.body(x))
        if task == "b":
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return self.heads[task](h + self.mean if task == "c" else h)


@pytest.mark.parametrize("order", ["acbcbcac", "cbcbac", "abcbc"])
def test_a_buffer_that_a_batch_read_before_another_changed_it(order):
    torch.manual_seed(1)
    ours = Averaged()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (ours, theirs))
    given = batches(order)
    step = compiled(ours, optimizer, given[0])
    for batch in given:
        step(batch)
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)


class Widened(Averaged):
    """Reads what it makes of its buffer."""

    def forward(self, x: Tensor, task: str) -> Tensor:
        h = torch.relu(self.body(x))
        if self.training:
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return self.heads[task](h + self.mean * 2)


def test_evaluation_reads_a_buffer_as_it_is_now():
    torch.manual_seed(1)
    ours = Widened()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (ours, theirs))
    given = batches("aaa")
    step = compiled(ours, optimizer, given[0])
    for batch in given:
        theirs.eval()
        assert step.evaluate(batch) == pytest.approx(F.cross_entropy(theirs(*batch[0]), batch[1]).item(), rel=1e-5)
        theirs.train()
        step(batch)
        by_pytorch(theirs, reference, [batch])


def test_a_buffer_that_one_of_the_examples_changes_and_another_reads():
    torch.manual_seed(1)
    ours = Averaged()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (ours, theirs))
    given = batches("cbcbac")
    step = compiled(ours, optimizer, given[0], shapes=given[1:2])
    for batch in given:
        step(batch)
    by_pytorch(theirs, reference, given)
    expect_alike(ours, theirs, optimizer, reference)

"""A module's tensors beside its step: whoever reads or writes them, at any time, meets what was trained."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import plimsoll

from test_step import LIMITS, OPTIMIZERS, batch, cross_entropy, network, train_beside


def both(name="momentum", **settings):
    """A step, and PyTorch's own module and optimizer."""
    ours, theirs = network(), network()
    optimizer, reference = OPTIMIZERS[name](ours.parameters()), OPTIMIZERS[name](theirs.parameters())
    step = plimsoll.compile(ours, optimizer, loss=cross_entropy, example=batch(0), **({"memory": "2MiB"} | LIMITS | settings))
    return step, ours, optimizer, theirs, reference


def train_both(step, theirs, reference, first, count=2):
    assert [step(batch(i)) for i in range(first, first + count)] == pytest.approx(train_beside(theirs, reference, count, first), rel=2e-4)


def expect_equal(ours: nn.Module, theirs: nn.Module):
    for (name, mine), expected in zip(ours.named_parameters(), theirs.parameters()):
        assert torch.allclose(mine.detach(), expected.detach(), atol=2e-4), name


def test_any_parameter_read_after_a_step_is_trained():
    step, ours, _, theirs, reference = both()
    train_both(step, theirs, reference, 0)
    weight = ours[0].weight  # PyTorch's layout is not the step's
    assert torch.allclose(weight, theirs[0].weight, atol=2e-4)
    train_both(step, theirs, reference, 2)
    assert torch.allclose(weight, theirs[0].weight, atol=2e-4), "the same tensor, read again"
    assert weight.norm().item() == pytest.approx(theirs[0].weight.norm().item(), rel=1e-3)
    assert isinstance(weight, nn.Parameter) and weight.is_leaf
    train_both(step, theirs, reference, 4, 1)
    assert torch.allclose(torch.from_numpy(weight.detach().numpy()), theirs[0].weight, atol=2e-4)


def test_any_parameter_written_between_steps_is_trained_on():
    step, ours, _, theirs, reference = both()
    train_both(step, theirs, reference, 0)
    with torch.no_grad():
        for module in (ours, theirs):
            for parameter in module.parameters():
                parameter.clamp_(-0.05, 0.05)
            module[4].weight.mul_(2.0)
    train_both(step, theirs, reference, 2)
    expect_equal(ours, theirs)


def test_data_that_another_tensor_takes_the_place_of_is_trained_on():
    step, ours, _, theirs, reference = both()
    train_both(step, theirs, reference, 0)
    for module in (ours, theirs):
        for parameter in module.parameters():
            parameter.data = parameter.data * 0.9
    train_both(step, theirs, reference, 2)
    for module in (ours, theirs):
        for parameter in module.parameters():
            parameter.data = parameter.data.clamp(-0.05, 0.05)
    state = ours.state_dict()  # at once after it was written
    assert all(torch.allclose(state[name], expected, atol=2e-4) for name, expected in theirs.state_dict().items())
    train_both(step, theirs, reference, 4, 1)
    expect_equal(ours, theirs)
    memory = {id(p): p.data_ptr() for p in ours.parameters()}
    train_both(step, theirs, reference, 5, 1)
    assert memory == {id(p): p.data_ptr() for p in ours.parameters()}, "it lies in the arena again"


def test_what_has_diverged_is_evaluated_all_the_same():
    step, ours, *_ = both()
    step(batch(0))
    with torch.no_grad():
        ours[0].weight.fill_(math.nan), ours[4].weight[0].fill_(math.inf)
    assert math.isnan(step.evaluate(batch(0))) and math.isnan(step(batch(1)))


def test_copies_are_pytorchs_own():
    step, ours, _, theirs, reference = both()
    train_both(step, theirs, reference, 0)
    copied, pickled = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
    train_both(step, theirs, reference, 2)
    for other in (copied, pickled):
        assert all(type(p) is nn.Parameter for p in other.parameters())
        other(batch(0)[0]).sum().backward()
        assert not torch.equal(other[0].weight, ours[0].weight), "it is as it was when it was copied"
    copied.load_state_dict(theirs.state_dict())
    expect_equal(ours, copied)


def test_an_average_of_the_weights_beside():
    step, ours, _, theirs, reference = both()
    averages = [AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5)) for module in (ours, theirs)]
    for i in range(4):
        train_both(step, theirs, reference, i, 1)
        for average, module in zip(averages, (ours, theirs)):
            average.update_parameters(module)
    expect_equal(*averages)


def test_loading_state_dicts_while_a_step_trains():
    step, ours, optimizer, theirs, reference = both()
    train_both(step, theirs, reference, 0, 1)
    kept = copy.deepcopy(theirs.state_dict()), copy.deepcopy(reference.state_dict())
    train_both(step, theirs, reference, 1)
    for module, its in ((ours, optimizer), (theirs, reference)):
        module.load_state_dict(kept[0])
        its.load_state_dict(copy.deepcopy(kept[1]))
    train_both(step, theirs, reference, 1)
    expect_equal(ours, theirs)


def test_after_a_step_is_gone_its_tensors_are_plain():
    step, ours, _, theirs, reference = both()
    train_both(step, theirs, reference, 0)
    del step
    assert all(type(p) is nn.Parameter for p in ours.parameters()) and all(type(b) is torch.Tensor for b in ours.buffers())
    expect_equal(ours, theirs)


# --- several steps on the same tensors --------------------------------------------------------------------------------


class Pair(nn.Module):
    """Two of three modules, and a loss that trains those of one optimizer."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(self.first(x))


def test_two_heads_with_a_common_body():
    def parts():
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(64, 10), nn.Linear(64, 10)

    ours, theirs = parts(), parts()
    steps, references = [], []
    for own, body, head in ((True, ours[0], ours[1]), (True, ours[0], ours[2]), (False, theirs[0], theirs[1]), (False, theirs[0], theirs[2])):
        pair = Pair(body, head)
        optimizer = torch.optim.SGD(pair.parameters(), lr=0.1)
        if own:
            steps.append(plimsoll.compile(pair, optimizer, loss=cross_entropy, example=batch(0), memory="2MiB", **LIMITS))
        else:
            references.append((pair, optimizer))
    for i in range(6):
        model, optimizer = references[i % 2]
        assert steps[i % 2](batch(i)) == pytest.approx(train_beside(model, optimizer, 1, i)[0], rel=1e-4), i
    for mine, other in zip(ours, theirs):
        expect_equal(mine, other)


def test_adversaries_train_by_turns():
    def parts():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def judged(judge, made, real):
        logits = judge(torch.cat([made.detach(), real]))
        wanted = torch.cat([torch.zeros(len(made), 1), torch.ones(len(real), 1)])
        return F.binary_cross_entropy_with_logits(logits, wanted)

    def fooled(judge, made):
        return F.binary_cross_entropy_with_logits(judge(made), torch.ones(len(made), 1))

    class Judging(Pair):
        def forward(self, batch):
            return judged(self.second, self.first(batch[0]), batch[1])

    class Fooling(Pair):
        def forward(self, batch):
            return fooled(self.second, self.first(batch[0]))

    class Both:
        def __init__(self, compiled):
            self.maker, self.judge = parts()
            self.first, self.second = Judging(self.maker, self.judge), Fooling(self.maker, self.judge)
            one, two = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (self.judge, self.maker))
            if compiled:
                settings = dict(example=(torch.randn(4, 8), torch.randn(4, 16)), call=lambda m, b: m(b), memory="2MiB", **LIMITS)
                self.steps = [plimsoll.compile(self.first, one, **settings), plimsoll.compile(self.second, two, **settings)]
            else:
                self.steps = [self.by_pytorch(self.first, one), self.by_pytorch(self.second, two)]

        @staticmethod
        def by_pytorch(model, optimizer):
            def step(batch):
                optimizer.zero_grad()
                loss = model(batch)
                loss.backward()
                optimizer.step()
                return loss.item()

            return step

    ours, theirs = Both(True), Both(False)
    generator = torch.Generator().manual_seed(2)
    for i in range(5):
        drawn = torch.randn(4, 8, generator=generator), torch.randn(4, 16, generator=generator)
        assert [step(drawn) for step in ours.steps] == pytest.approx([step(drawn) for step in theirs.steps], rel=1e-4), i
    expect_equal(ours.maker, theirs.maker)
    expect_equal(ours.judge, theirs.judge)


# --- what would make it another network -------------------------------------------------------------------------------


def test_parameters_frozen_later_are_told():
    step, ours, *_ = both()
    step(batch(0))
    ours[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="'0.weight' needs no gradient now.*compile anew"):
        step(batch(1))
    ours[0].weight.requires_grad_(True)
    step(batch(1))


def test_modules_put_into_another_mode_are_told():
    step, ours, *_ = both()
    ours.eval()  # as people do before they evaluate, and then forget; the step trains all the same
    step(batch(0))
    ours.train()
    ours[1].eval()
    with pytest.raises(ValueError, match="module '1' is in evaluation mode now.*compile anew"):
        step(batch(1))


def test_parameters_that_no_gradient_reaches_stay():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.inner, self.spare = network(), nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)

    ours, theirs = Unused(), Unused()
    optimizer, reference = (torch.optim.AdamW(m.parameters(), lr=0.003, weight_decay=0.5) for m in (ours, theirs))
    step = plimsoll.compile(ours, optimizer, loss=cross_entropy, example=batch(0), memory="2MiB", **LIMITS)
    train_both(step, theirs, reference, 0)
    expect_equal(ours, theirs)
    assert torch.equal(ours.spare.weight, theirs.spare.weight), "and no weight decay either"


def test_two_threads_take_turns():
    steps = [both(exact=True)[0] for _ in range(2)]
    errors = []

    def train(step, count):
        try:
            for _ in range(count):
                step(batch(0))
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(str(error))

    threads = [threading.Thread(target=train, args=(steps[0], 10)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    train(steps[1], 20)
    assert not errors
    assert steps[0](batch(1)) == steps[1](batch(1))


def kept(model):
    return {name: parameter.data for name, parameter in model.named_parameters()}


def test_weights_that_are_put_aside_by_data_come_back():
    """As moving averages of weights are evaluated: backup = p.data; p.data = average; ...; p.data = backup."""
    step, ours, _, theirs, reference = both()
    train_both(step, theirs, reference, 0)
    for _ in range(2):
        for model in (ours, theirs):
            backup, told = kept(model), model.state_dict()
            for parameter in model.parameters():
                parameter.data = torch.full_like(parameter.data, 0.25)
            assert torch.equal(next(model.parameters()).detach(), torch.full_like(next(model.parameters()), 0.25))
            if model is ours:
                step.evaluate(batch(0))
            for name, parameter in model.named_parameters():
                assert torch.equal(backup[name], told[name])  # which shares its memory
                parameter.data = backup[name]
        expect_equal(ours, theirs)
        train_both(step, theirs, reference, 2)
    expect_equal(ours, theirs)


def test_weights_that_are_exchanged_by_data_are_the_others():
    step, ours, _, theirs, reference = both()
    train_both(step, theirs, reference, 0)
    for model in (ours, theirs):
        biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        pairs = [(a, b) for i, a in enumerate(biases) for b in biases[i + 1 :] if a.shape == b.shape]
        assert pairs
        for a, b in pairs:
            a.data, b.data = b.data, a.data
    train_both(step, theirs, reference, 2)
    expect_equal(ours, theirs)

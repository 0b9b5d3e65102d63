"""Every optimizer of torch.optim that the core has, beside PyTorch: losses, weights, and what the optimizer says of itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop

import plimsoll

from test_step import LIMITS, batch, cross_entropy, network, train_beside


class Lion(torch.optim.Optimizer):
    """By the paper's algorithm 2, with the groups and the state of lion_pytorch's, for which it is taken here."""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **more):
        super().__init__(parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay, **more))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                change = torch.sign(first * average + (1 - first) * parameter.grad) + group["weight_decay"] * parameter
                average.mul_(second).add_(parameter.grad, alpha=1 - second)
                parameter.sub_(group["lr"] * change)


Lion.__module__ = "lion_pytorch.lion_pytorch"

# An epsilon that is not tiny where the first step would be the sign of the gradient: that of what is nothing but rounding is any.
KINDS = {
    "rmsprop": (RMSprop, dict(lr=0.001, eps=1e-5)),
    "rmsprop-decayed": (RMSprop, dict(lr=0.002, alpha=0.9, eps=1e-4, weight_decay=0.01)),
    "rmsprop-momentum": (RMSprop, dict(lr=0.001, eps=1e-3, momentum=0.9)),
    "rmsprop-centered": (RMSprop, dict(lr=0.002, centered=True, eps=1e-3, momentum=0.5)),
    "adagrad": (Adagrad, dict(lr=0.02, eps=1e-4)),
    "adagrad-all": (Adagrad, dict(lr=0.05, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.3, eps=1e-6)),
    "adadelta": (Adadelta, dict(lr=1.0)),
    "adadelta-all": (Adadelta, dict(lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.01)),
    "adamax": (Adamax, dict(lr=0.005)),
    "adamax-all": (Adamax, dict(lr=0.005, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.01)),
    "nadam": (NAdam, dict(lr=0.003)),
    "nadam-decayed": (NAdam, dict(lr=0.003, betas=(0.8, 0.95), weight_decay=0.01, momentum_decay=0.05)),
    "nadam-decoupled": (NAdam, dict(lr=0.003, weight_decay=0.1, decoupled_weight_decay=True)),
    "radam": (RAdam, dict(lr=0.003)),
    "radam-decayed": (RAdam, dict(lr=0.003, betas=(0.8, 0.9), weight_decay=0.01)),
    "radam-decoupled": (RAdam, dict(lr=0.003, weight_decay=0.1, decoupled_weight_decay=True)),
    "adafactor": (Adafactor, dict(lr=0.01)),
    "adafactor-all": (Adafactor, dict(lr=0.01, beta2_decay=-0.5, eps=(1e-4, 1e-2), d=1.5, weight_decay=0.01)),
    "lion": (Lion, dict(lr=1e-4)),
    "lion-decayed": (Lion, dict(lr=2e-4, betas=(0.8, 0.95), weight_decay=0.1)),
    "adam-amsgrad": (Adam, dict(lr=0.003, amsgrad=True, betas=(0.9, 0.8), weight_decay=0.01)),
    "adamw-amsgrad": (AdamW, dict(lr=0.003, amsgrad=True, betas=(0.9, 0.8), weight_decay=0.05)),
    "sgd-dampened": (SGD, dict(lr=0.05, momentum=0.9, dampening=0.4, weight_decay=1e-3)),
}
MAXIMIZED = {f"{name}-maximized": (kind, dict(given, maximize=True, lr=given["lr"] / 10)) for name, (kind, given) in KINDS.items() if "-" not in name and kind is not Lion}
MAXIMIZED |= {name: (kind, dict(lr=0.001, maximize=True)) for name, kind in (("adam-maximized", Adam), ("adamw-maximized", AdamW), ("sgd-maximized", SGD))}
ALL = KINDS | MAXIMIZED
ONE_OF_EACH = ["rmsprop-centered", "adagrad-all", "adadelta-all", "adamax-all", "nadam-decayed", "radam-decayed", "adafactor-all", "lion-decayed", "adam-amsgrad", "sgd-dampened"]


def optimizer_of(name, parameters):
    kind, given = ALL[name]
    return kind(parameters, **given)


def pair(name):
    models = network(), network()
    return models, tuple(optimizer_of(name, model.parameters()) for model in models)


def compiled(model, optimizer, **given):
    return plimsoll.compile(model, optimizer, loss=cross_entropy, example=batch(0), **{"memory": "2MiB", **LIMITS, **given})


def assert_alike(models, optimizers, tolerance=2e-4):
    """Weights, and everything that the optimizer's state_dict has, by the same names and of the same shapes."""
    expected = models[1].state_dict()
    for key, value in models[0].state_dict().items():
        assert torch.allclose(value.float(), expected[key].float(), atol=tolerance), key
    mine, other = optimizers[0].state_dict(), optimizers[1].state_dict()
    assert mine["param_groups"] == other["param_groups"]
    assert mine["state"].keys() == other["state"].keys()
    for index, state in other["state"].items():
        assert mine["state"][index].keys() == state.keys()
        for key, value in state.items():
            got = mine["state"][index][key]
            assert (got.shape, got.dtype) == (value.shape, value.dtype), key
            assert torch.allclose(got, value, atol=tolerance, rtol=1e-3), (index, key)


@pytest.mark.parametrize("name", ALL)
def test_trains_as_pytorch_does(name):
    models, optimizers = pair(name)
    step = compiled(models[0], optimizers[0])
    losses = [step(batch(i)) for i in range(8)]
    assert losses == pytest.approx(train_beside(models[1], optimizers[1], 8), rel=3e-4)
    assert_alike(models, optimizers)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_clips_and_accumulates(name):
    models, optimizers = pair(name)
    step = compiled(models[0], optimizers[0], accumulate=2, clip_grad_norm=0.5)
    models[1].train()
    for first in range(0, 8, 2):
        optimizers[1].zero_grad()
        for i in (first, first + 1):
            loss = cross_entropy(models[1](batch(i)[0]), batch(i))
            (loss / 2).backward()
            assert step(batch(i)) == pytest.approx(loss.item(), rel=3e-4)
        torch.nn.utils.clip_grad_norm_(models[1].parameters(), 0.5)
        optimizers[1].step()
    assert_alike(models, optimizers)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_number_of_a_group_may_change_from_step_to_step(name):
    kind, given = ALL[name]
    models = network(), network()
    optimizers = []
    for model in models:
        weights, rest = ([p for p in model.parameters() if (p.dim() > 1) == large] for large in (True, False))
        optimizers.append(kind([{"params": weights}, {"params": rest, "lr": given["lr"] / 2, "weight_decay": 0.0}], **given))
    step = compiled(models[0], optimizers[0])
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7) for optimizer in optimizers]
    changes = dict(weight_decay=0.03, eps=(2e-3, 1e-2) if "adafactor" in name else 2e-3, d=1.2, beta2_decay=-0.7, alpha=0.95, momentum=0.6, lr_decay=0.2, rho=0.85, betas=(0.85, 0.9), momentum_decay=0.02, dampening=0.2)
    for i in range(9):
        if i == 4:
            for group in (*optimizers[0].param_groups, *optimizers[1].param_groups):
                group.update({key: value for key, value in changes.items() if key in group})
        assert step(batch(i)) == pytest.approx(train_beside(models[1], optimizers[1], 1, i)[0], rel=5e-4)
        for schedule in schedules:
            schedule.step()
    assert_alike(models, optimizers, 5e-4)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_states_go_from_pytorch_to_the_step_and_back(name, tmp_path):
    models, optimizers = pair(name)
    began, of_optimizer = network(), None
    theirs = optimizer_of(name, began.parameters())
    train_beside(began, theirs, 3)
    for model, optimizer in zip(models, optimizers):
        model.load_state_dict(began.state_dict())
        optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
    step = compiled(models[0], optimizers[0])
    for i in range(3, 6):
        assert step(batch(i)) == pytest.approx(train_beside(models[1], optimizers[1], 1, i)[0], rel=3e-4)
    assert_alike(models, optimizers)
    # Into the step that runs, and on by PyTorch alone.
    models[0].load_state_dict(began.state_dict())
    optimizers[0].load_state_dict(copy.deepcopy(theirs.state_dict()))
    again = [step(batch(i)) for i in range(3, 6)]
    assert_alike(models, optimizers)
    step.save(tmp_path / "step")
    del step
    assert train_beside(models[0], optimizers[0], 2, 6) == pytest.approx(train_beside(models[1], optimizers[1], 2, 6), rel=5e-4)
    # And from the file.
    model, optimizer = network(), None
    optimizer = optimizer_of(name, model.parameters())
    step = compiled(model, optimizer)
    step.load(tmp_path / "step")
    on = [step(batch(i)) for i in (6, 7)]
    assert_alike((model, models[1]), (optimizer, optimizers[1]), 5e-4)
    assert len(again) == 3 and on == pytest.approx([on[0], on[1]])


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_layer_that_is_trained_later_has_its_own_number_of_updates(name):
    models, optimizers = pair(name)
    for model, optimizer in zip(models, optimizers):
        model[9].requires_grad_(False)
    step = compiled(models[0], optimizers[0])
    for i in range(3):
        assert step(batch(i)) == pytest.approx(train_beside(models[1], optimizers[1], 1, i)[0], rel=3e-4)
    for model in models:
        model[9].requires_grad_(True)
    step = compiled(models[0], optimizers[0])
    for i in range(3, 7):
        assert step(batch(i)) == pytest.approx(train_beside(models[1], optimizers[1], 1, i)[0], rel=5e-4)
    assert_alike(models, optimizers, 5e-4)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_budgets_and_files_do_not_change_a_bit(name, tmp_path):
    def trained(**given):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        optimizer = optimizer_of(name, model.parameters())
        if "memory" not in given:
            told = plimsoll.fits(model, optimizer, loss=cross_entropy, example=batch(0), memory="1GiB", exact=True, threads=1, **given)
            given["memory"] = told["minimum_bytes"]
        step = compiled(model, optimizer, exact=True, **given)
        losses = [step(batch(i)) for i in range(3)]
        return losses, {k: v.clone() for k, v in model.state_dict().items()}, step.plan

    losses, expected, plan = trained(memory="1GiB")
    for given in (dict(host_memory="64MiB"), dict(spill=f"{tmp_path}:64MiB")):
        tight_losses, tight, other = trained(**given)
        assert tight_losses == losses and other["measured_peak_bytes"] < plan["measured_peak_bytes"]
        for key, value in expected.items():
            assert torch.equal(tight[key], value), key


def test_convolutions_in_blocks_stay_right():
    """Channels that are no multiple of the block: the padding of weights and states must not do harm."""
    def model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Conv2d(20, 37, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(37, 10))

    for name in ("adagrad", "adamax", "adadelta", "radam"):
        kind, given = ALL[name]
        models = model(), model()
        optimizers = [kind(m.parameters(), **dict(given, eps=0.0 if name == "adagrad" else 1e-7)) for m in models]
        step = plimsoll.compile(models[0], optimizers[0], loss=cross_entropy, example=batch(0), threads=1, progress=False)
        losses = [step(batch(i)) for i in range(4)]
        assert losses == pytest.approx(train_beside(models[1], optimizers[1], 4), rel=3e-4), name


def test_a_form_that_changes_is_refused():
    for name, setting, value, told in (
        ("rmsprop", "centered", True, "centered is another"),
        ("rmsprop", "momentum", 0.5, "its form of momentum"),
        ("adam-amsgrad", "amsgrad", False, "amsgrad is another"),
        ("adamax", "maximize", True, "maximize is another"),
    ):
        model = network()
        optimizer = optimizer_of(name, model.parameters())
        step = compiled(model, optimizer)
        step(batch(0))
        optimizer.param_groups[0][setting] = value
        with pytest.raises(ValueError, match=f"group 0: {told}"):
            step(batch(1))
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = compiled(model, optimizer)
    optimizer.param_groups[0]["dampening"] = 0.5
    with pytest.raises(ValueError, match="dampening and maximize were 0 or False; compile anew"):
        step(batch(0))


def test_groups_may_have_formulas_of_their_own():
    models = network(), network()
    optimizers = []
    for model in models:
        weights, rest = ([p for p in model.parameters() if (p.dim() > 1) == large] for large in (True, False))
        optimizers.append(RMSprop([{"params": weights, "momentum": 0.9}, {"params": rest, "centered": True}], lr=0.002, eps=1e-3))
    step = compiled(models[0], optimizers[0])
    losses = [step(batch(i)) for i in range(5)]
    assert losses == pytest.approx(train_beside(models[1], optimizers[1], 5), rel=3e-4)
    assert_alike(models, optimizers)


@pytest.mark.parametrize("given", [dict(lr=1e-3, scale_parameter=False, relative_step=False), dict(), dict(warmup_init=True, weight_decay=0.1),
                                   dict(lr=1e-3, relative_step=False, beta1=0.9), dict(clip_threshold=0.3, decay_rate=-0.5, eps=(1e-12, 1e-2)), dict(clip_threshold=3.0)])
def test_adafactor_of_transformers(given):
    kind = pytest.importorskip("transformers.optimization").Adafactor
    models = network(), network()
    optimizers = [kind(model.parameters(), **given) for model in models]
    step = compiled(models[0], optimizers[0])
    for i in range(6):
        assert step(batch(i)) == pytest.approx(train_beside(models[1], optimizers[1], 1, i)[0], rel=3e-4)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    for mine, other in zip(*(state.values() for state in states)):
        assert {key: getattr(value, "shape", type(value)) for key, value in mine.items() if key != "RMS"} == {
            key: getattr(value, "shape", type(value)) for key, value in other.items() if key != "RMS"}
        assert mine["step"] == other["step"] == 6
    # On by PyTorch alone, from what the step has left.
    del step
    assert train_beside(models[0], optimizers[0], 2, 6) == pytest.approx(train_beside(models[1], optimizers[1], 2, 6), rel=5e-4)


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH])
def test_groups_of_which_nothing_is_trained(name):
    """One is frozen, as LoRA does with biases; of another no gradient reaches the parameter, which is found behind the others."""
    kind, given = ALL[name]

    def grouped():
        model = network()
        model.unused = torch.nn.Parameter(torch.ones(3))
        weights, rest = ([p for p in model.parameters() if p is not model.unused and (p.dim() > 1) == large] for large in (True, False))
        for parameter in rest:
            parameter.requires_grad_(False)
        return model, kind([{"params": rest, "lr": given["lr"] / 2}, {"params": weights}, {"params": [model.unused]}], **given)

    (mine, my_optimizer), (other, its_optimizer) = grouped(), grouped()
    for model, optimizer in ((mine, my_optimizer), (other, its_optimizer)):
        train_beside(model, optimizer, 2)
    step = compiled(mine, my_optimizer)
    for i in range(2, 5):
        assert step(batch(i)) == pytest.approx(train_beside(other, its_optimizer, 1, i)[0], rel=5e-4)


def test_a_cautious_lion_is_refused():
    model = network()
    with pytest.raises(ValueError, match="cautious"):
        compiled(model, Lion(model.parameters(), cautious_factor=0.5))


def test_weights_by_rows_and_columns_of_any_width_are_updated():
    """The weights of wide layers lie in blocks, of which some are padded."""

    def wide():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 192), torch.nn.ReLU(), torch.nn.Linear(192, 128), torch.nn.ReLU(),
                                   torch.nn.Linear(128, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))

    models = wide(), wide()
    optimizers = [Adafactor(model.parameters(), lr=0.01) for model in models]

    def random_batch(i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(64, 3, 4, 4, generator=generator), torch.randint(10, (64,), generator=generator)

    step = plimsoll.compile(models[0], optimizers[0], loss=cross_entropy, example=random_batch(0), **LIMITS)
    for i in range(6):
        loss = cross_entropy(models[1](random_batch(i)[0]), random_batch(i))
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        assert step(random_batch(i)) == pytest.approx(loss.item(), rel=3e-4)
    assert_alike(models, optimizers)

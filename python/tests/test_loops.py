"""Training loops as people write them around a module, beside PyTorch's own: what happens between two steps."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll

LIMITS = dict(memory="64MiB", threads=1, costs="estimated", progress=False)
BATCH = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def compiled(model, optimizer, **more):
    return plimsoll.compile(model, optimizer, **{"loss": entropy, "example": BATCH, **LIMITS, **more})


def by_pytorch(model, optimizer, batch=BATCH, loss=entropy):
    optimizer.zero_grad()
    value = loss(model(batch[0]), batch)
    value.backward()
    optimizer.step()
    return value.item()


def expect_equal(found, expected):
    for (name, a), b in zip(found.state_dict().items(), expected.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=lambda m: f"{name}: {m}")


def train_both(make, optimizer_of, between=lambda i, model, optimizer, step: None, steps=4):
    """Both by themselves, with the same done between steps."""
    found, expected = make(), make()
    mine, theirs = optimizer_of(found), optimizer_of(expected)
    step = compiled(found, mine)
    for i in range(steps):
        loss, value = step(BATCH), by_pytorch(expected, theirs)
        assert loss == pytest.approx(value, rel=1e-4)
        between(i, found, mine, step)
        between(i, expected, theirs, None)
    step.sync()
    expect_equal(found, expected)
    return step


# --- modes ---


def test_modules_that_are_frozen_by_eval_stay_so():
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 5))
        model.eval()
        model[3].train()  # the head alone
        return model

    train_both(make, sgd)


def test_they_stay_so_for_batches_of_another_size_behind_an_evaluation():
    found = normed()
    found[1].eval()
    expected = copy.deepcopy(found)
    mine, theirs = sgd(found), sgd(expected)
    step = compiled(found, mine)
    short = BATCH[0][:5], BATCH[1][:5]
    for batch in (BATCH, short, BATCH):
        found.eval()  # as one does to evaluate
        assert step(batch) == pytest.approx(by_pytorch(expected, theirs, batch), rel=1e-4)
    expect_equal(found, expected)


def test_what_is_read_or_evaluated_in_inference_mode_is_trained_on_by_either():
    found, expected = normed(), normed()
    mine, theirs = (torch.optim.Adam(m.parameters(), lr=0.01, eps=1e-3) for m in (found, expected))
    with torch.inference_mode():
        step = compiled(found, mine)
    for i in range(4):
        step(BATCH)
        with torch.inference_mode():
            batch = BATCH[0][: 8 - i] + 0.0, BATCH[1][: 8 - i].clone()
            found.eval()
            assert step.evaluate(batch) == pytest.approx(entropy(found(batch[0]), batch).item(), rel=1e-4)
            found.train()
            assert len(mine.state_dict()["state"]) == 6
        by_pytorch(found, mine)
        for _ in range(2):
            by_pytorch(expected, theirs)
    expect_equal(found, expected)


def test_a_model_in_evaluation_mode_is_trained_as_by_train():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    def make(kind):
        torch.manual_seed(0)
        return kind(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))

    found, expected = make(Frozen).eval(), make(Frozen).train()
    step, theirs = compiled(found, sgd(found)), sgd(expected)
    for _ in range(3):
        assert step(BATCH) == pytest.approx(by_pytorch(expected, theirs), rel=1e-4)
    expect_equal(found, expected)


# --- randomness ---


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 5)

    def forward(self, x):
        mask = F.dropout(torch.ones_like(x), 0.5, self.training)
        return self.linear(x * mask), mask


def masked_step(model, optimizer):
    return compiled(model, optimizer, loss=lambda output, batch: F.cross_entropy(output[0], batch[1]), outputs=lambda output: {"mask": output[1]})


def different(masks):
    return len({mask.numpy().tobytes() for mask in masks})


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_every_step_draws_another_mask(kind):
    model, masks = Masked(), []
    first, second = (masked_step(model, kind(model.parameters(), 0.01)) for _ in range(2))
    for _ in range(4):
        first(BATCH)
        masks.append(first.outputs["mask"])
        second(BATCH)
    assert different(masks) == 4  # two steps by turns
    masks, step = [], first
    for _ in range(4):
        step(BATCH)
        masks.append(step.outputs["mask"])
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    assert different(masks) == 4
    model = Masked()
    masks, optimizer = [], kind(model.parameters(), 0.01)
    for _ in range(4):  # compiled anew every epoch
        step = masked_step(model, optimizer)
        step(BATCH)
        masks.append(step.outputs["mask"])
    assert different(masks) == 4


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_saved_step_goes_on_with_the_same_masks(kind, tmp_path):
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 16), nn.Dropout(0.5), nn.Linear(16, 5))
        return compiled(model, kind(model.parameters(), 0.05), exact=True)

    step = make()
    for _ in range(3):
        step(BATCH)
    step.save(tmp_path / "step")
    expected = [step(BATCH) for _ in range(3)]
    other = make()
    for _ in range(2):
        other.load(tmp_path / "step")
        assert [other(BATCH) for _ in range(3)] == expected


def test_random_numbers_of_python_are_told():
    class Drawn(nn.Linear):
        def forward(self, x):
            random.random()
            return super().forward(x)

    model = Drawn(10, 5)
    with pytest.warns(UserWarning, match="random.*every step"):
        compiled(model, sgd(model))

    class DrawnByNumpy(nn.Linear):
        def forward(self, x):
            np.random.rand()
            return super().forward(x)

    model = DrawnByNumpy(10, 5)
    with pytest.warns(UserWarning, match="random.*every step"):
        compiled(model, sgd(model))


# --- batches of other sizes ---


class Branch(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if x.size(0) > 4 else y * 0.5


class InParts(nn.Module):
    """BatchNorm of 16 samples at a time."""

    def __init__(self, *_):
        super().__init__()
        self.linear, self.norm = nn.Linear(10, 5), nn.BatchNorm1d(5)

    def forward(self, x):
        return torch.cat([self.norm(part) for part in self.linear(x).chunk(-(-len(x) // 16))])


@pytest.mark.parametrize(
    "make, loss, sizes",
    [
        (Branch, entropy, (8, 3)),
        (InParts, entropy, (9, 32)),
        (nn.Linear, lambda o, b: entropy(o, b) * (len(b[1]) // 4), (8, 16)),
        (nn.Linear, lambda o, b: entropy(o, b) + o[:4].pow(2).mean(), (8, 3)),
        (nn.Linear, lambda o, b: F.cross_entropy(o, b[1], reduction="none").topk(min(5, len(o)))[0].mean(), (8, 3)),
    ],
)
def test_python_that_asks_for_the_size_is_asked_again(make, loss, sizes):
    torch.manual_seed(0)
    found = make(10, 5)
    expected = copy.deepcopy(found)
    batches = [(torch.randn(n, 10), torch.randint(0, 5, (n,))) for n in sizes]
    mine, theirs = sgd(found), sgd(expected)
    step = compiled(found, mine, loss=loss, example=batches[0])
    for batch in batches:
        assert step(batch) == pytest.approx(by_pytorch(expected, theirs, batch, loss), rel=1e-4)
    with torch.no_grad():
        value = step.evaluate(batches[0]), step.evaluate(batches[1])
        assert value == pytest.approx([loss(expected.eval()(batch[0]), batch).item() for batch in batches], rel=1e-4)


# --- optimizers ---


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 5)

    def forward(self, ids):
        return self.head(torch.tanh(self.words(ids)).mean(1))


def test_more_lengths_than_there_is_room_for_go_on():
    def words(length, by=0):
        return (torch.arange(4 * length).view(4, length) * 7 + by) % 50, torch.arange(4) % 5

    torch.manual_seed(0)
    found = Words()
    expected = copy.deepcopy(found)
    mine, theirs = (torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (found, expected))
    step = plimsoll.compile(found, mine, loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=words(30), **LIMITS)
    lengths = [*range(1, 22), 30, 5, 21, 3]
    with pytest.warns(UserWarning, match="more than 16 shapes"):
        for i, length in enumerate(lengths):
            batch = words(length, i)
            assert step(batch) == pytest.approx(by_pytorch(expected, theirs, batch), rel=1e-4), length
            assert step.evaluate(batch) == pytest.approx(entropy(expected(batch[0]), batch).item(), rel=1e-4), length
            assert len(step._shapes) <= 16 and len(step._evaluations) <= 16
    expect_equal(found, expected)


def test_a_number_of_a_batch_that_never_stays_ends():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(10, 5)

        def forward(self, x, scale):
            return self.layer(x) * scale

    torch.manual_seed(0)
    model = Scaled()
    step = plimsoll.compile(
        model, sgd(model), call=lambda model, batch: model(batch["x"], batch["scale"]), loss=lambda output, batch: output.square().mean(),
        example={"x": BATCH[0], "scale": 0}, **LIMITS,
    )  # fmt: skip
    for scale in range(1, 16):
        step({"x": BATCH[0], "scale": scale})
    with pytest.raises(ValueError, match="has had 16 values"):
        step({"x": BATCH[0], "scale": 16})


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}])
def test_layers_that_are_unfrozen_begin_as_in_pytorch(kind, settings):
    more = settings if kind is torch.optim.SGD else settings | {"eps": 1e-3}

    def run(plim):
        model = small()
        optimizer = kind(model.parameters(), 1e-2, **more)
        for is_trained, steps in ((False, 4), (True, 5)):
            model[0].requires_grad_(is_trained)
            step = compiled(model, optimizer) if plim else None
            for i in range(steps):
                if i == 2:
                    optimizer.param_groups[0]["weight_decay"] = 0.2
                step(BATCH) if plim else by_pytorch(model, optimizer)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(BATCH) if plim else by_pytorch(model, optimizer)
        return model, optimizer.state_dict()["state"]

    (found, mine), (expected, theirs) = run(True), run(False)
    expect_equal(found, expected)
    for i, state in theirs.items():
        for key, value in state.items():
            if value is not None:
                torch.testing.assert_close(torch.as_tensor(mine[i][key]), torch.as_tensor(value), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_update_of_pytorchs_own_counts(kind):
    def between(i, model, optimizer, step):
        if i == 1:
            by_pytorch(model, optimizer)
            optimizer.zero_grad()

    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    train_both(small, lambda model: kind(model.parameters(), 0.01, **more), between)


def test_a_step_that_is_told_to_look_keeps_what_the_optimizer_has():
    def between(i, model, optimizer, step):
        with torch.no_grad():
            model[0].bias.add_(0.01)
        if step is not None:
            step.refresh()

    train_both(small, lambda model: torch.optim.Adam(model.parameters(), 0.01), between)


def test_gradients_that_are_summed_outlive_what_others_do():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.heads = nn.Linear(10, 16), nn.ModuleList([nn.Linear(16, 5), nn.Linear(16, 5)])

        def forward(self, x):
            y = self.body(x).relu()
            return [head(y) for head in self.heads]

    model, expected = Heads(), Heads()
    loss = [lambda o, b, i=i: F.cross_entropy(o[i], b[1]) for i in range(2)]
    trained = lambda m: [[*m.body.parameters(), *m.heads[0].parameters()], list(m.heads[1].parameters())]  # noqa: E731
    optimizers = [torch.optim.SGD(p, 0.1) for p in trained(model)]
    theirs = [torch.optim.SGD(p, 0.1) for p in trained(expected)]
    steps = [compiled(model, optimizers[i], loss=loss[i], accumulate=2) for i in range(2)]
    sums = [[torch.zeros_like(p) for p in group] for group in trained(expected)]
    for n in range(4):
        for i in range(2):
            steps[i](BATCH)
            for total, g in zip(sums[i], torch.autograd.grad(loss[i](expected(BATCH[0]), BATCH) / 2, trained(expected)[i])):
                total += g
            if n % 2:
                for p, total in zip(trained(expected)[i], sums[i]):
                    p.grad = total.clone()
                    total.zero_()
                theirs[i].step()
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    expect_equal(model, expected)


def test_a_norm_is_read_where_nothing_is_clipped():
    model = small()
    step = compiled(model, sgd(model), clip_grad_norm=float("inf"))
    loss = entropy(model(BATCH[0]), BATCH)
    norm = torch.sqrt(sum(g.pow(2).sum() for g in torch.autograd.grad(loss, list(model.parameters()))))
    step(BATCH)
    assert step.gradient_norm == pytest.approx(norm.item(), rel=1e-4)


# --- what is another one than at compile ---


def zero(gradient):
    return gradient * 0


@pytest.mark.parametrize(
    "name, change",
    [
        ("register_hook", lambda model, optimizer: model[0].weight.register_hook(zero)),
        ("register_post_accumulate_grad_hook", lambda model, optimizer: model[0].weight.register_post_accumulate_grad_hook(lambda p: None)),
        ("register_full_backward_hook", lambda model, optimizer: model[2].register_full_backward_hook(lambda m, i, o: None)),
        ("register_step_pre_hook", lambda model, optimizer: optimizer.register_step_pre_hook(lambda o, a, k: None)),
        ("register_step_post_hook", lambda model, optimizer: optimizer.register_step_post_hook(lambda o, a, k: None)),
    ],
)
def test_hooks_that_come_later_are_refused_as_those_before(name, change):
    model = small()
    optimizer = sgd(model)
    step = compiled(model, optimizer)
    compiled(model, optimizer)  # its own hooks are not in the way of another
    handle = change(model, optimizer)
    with pytest.raises(plimsoll.Unsupported, match=name):
        step(BATCH)
    handle.remove()
    step(BATCH)


def test_another_forward_function_or_other_groups_are_told():
    model = small()
    optimizer = torch.optim.SGD([{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 0.0}], 0.1)
    step = compiled(model, optimizer)
    model[1].forward = lambda x: F.relu(x) * 2
    with pytest.raises(ValueError, match="forward function"):
        step(BATCH)
    del model[1].forward
    step(BATCH)
    optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"].pop(0))
    with pytest.raises(ValueError, match="other parameters"):
        step(BATCH)


def test_a_buffer_with_another_tensor_in_its_place_is_told():
    model = normed()
    step = compiled(model, sgd(model))
    model[1].running_mean = torch.zeros(16)
    with pytest.raises(ValueError, match="buffer '1.running_mean'"):
        step(BATCH)


def test_memory_that_moves_to_another_process_is_followed():
    def between(i, model, optimizer, step):
        if i == 1:
            model.share_memory()

    train_both(normed, sgd, between)


def test_a_layer_that_is_used_later_is_trained_from_then_on():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.is_both = nn.Linear(10, 5), nn.Linear(10, 5), False

        def forward(self, x):
            return self.a(x) + self.b(x) if self.is_both else self.a(x)

    def between(i, model, optimizer, step):
        model.is_both = i > 1

    def make():
        torch.manual_seed(0)
        return Two()

    train_both(make, lambda model: torch.optim.Adam(model.parameters(), lr=0.01), between)


# --- what is read indirectly ---

BETA = 1.0
NESTED = {"kl": {"beta": 1.0}}


class Settings:
    beta = 1.0


class Schedule:
    def __init__(self):
        self.beta = 1.0


SCHEDULE = Schedule()


def penalty(output):
    return BETA * output.pow(2).mean()


class ByGlobal(nn.Linear):
    def forward(self, x):
        return super().forward(x) * BETA


class ByObject(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.schedule = Schedule()

    def forward(self, x):
        return super().forward(x) * self.schedule.beta


class Trainer:
    def __init__(self):
        self.beta, self.schedule, self.steps = 1.0, Schedule(), 0

    def loss(self, output, batch):
        return entropy(output, batch) + self.beta * self.schedule.beta * output.pow(2).mean()


TRAINER = Trainer()


def put_global(value, model):
    global BETA
    BETA = value


@pytest.mark.parametrize(
    "make, loss, put",
    [
        (nn.Linear, lambda o, b: entropy(o, b) + penalty(o), put_global),
        (ByGlobal, entropy, put_global),
        (ByObject, entropy, lambda value, model: setattr(model.schedule, "beta", value)),
        (nn.Linear, lambda o, b: entropy(o, b) + SCHEDULE.beta * o.pow(2).mean(), lambda value, model: setattr(SCHEDULE, "beta", value)),
        (nn.Linear, lambda o, b: entropy(o, b) + Settings.beta * o.pow(2).mean(), lambda value, model: setattr(Settings, "beta", value)),
        (nn.Linear, lambda o, b: entropy(o, b) + NESTED["kl"]["beta"] * o.pow(2).mean(), lambda value, model: NESTED["kl"].update(beta=value)),
        (nn.Linear, TRAINER.loss, lambda value, model: setattr(TRAINER.schedule, "beta", value)),
        (nn.Linear, lambda o, b: TRAINER.loss(o, b), lambda value, model: setattr(TRAINER, "beta", value)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
def test_numbers_that_are_read_indirectly_are_followed(make, loss, put):
    torch.manual_seed(0)
    found = make(10, 5)
    expected = copy.deepcopy(found)
    mine, theirs = sgd(found), sgd(expected)
    for model in (found, expected):
        put(1.0, model)
    step = compiled(found, mine, loss=loss)
    for value in (1.0, 3.0, 0.5):
        for model in (found, expected):
            put(value, model)
        assert step(BATCH) == pytest.approx(by_pytorch(expected, theirs, BATCH, loss), rel=1e-4)
        TRAINER.steps += 1  # which nobody reads
    put(1.0, found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_in_a_batch_are_cast(dtype):
    class Weighted(nn.Linear):
        def forward(self, x, weight):
            return super().forward(x) * weight.float()[:, None]

    torch.manual_seed(0)
    model = Weighted(10, 5)
    batch = BATCH[0], torch.rand(8).to(dtype), BATCH[1]
    loss = lambda output, batch: F.cross_entropy(output, batch[2])  # noqa: E731
    expected = loss(model(*batch[:2]), batch).item()
    step = compiled(model, sgd(model), loss=loss, example=batch, call=lambda model, batch: model(*batch[:2]))
    assert step(batch) == pytest.approx(expected, rel=1e-5)


def test_texts_of_a_batch_that_nobody_reads_cost_no_plans():
    torch.manual_seed(0)
    model = nn.Linear(10, 5)
    batch = lambda i, count=8: {"x": BATCH[0][:count], "y": BATCH[1][:count], "files": [f"{i}/{k}.png" for k in range(count)]}  # noqa: E731
    loss = lambda output, batch: F.cross_entropy(output, batch["y"])  # noqa: E731
    step = compiled(model, sgd(model), loss=loss, example=batch(0), call=lambda model, batch: model(batch["x"]))
    for i in range(40):
        step(batch(i))
        step.evaluate(batch(-i))
    step(batch(1, 5))
    step(batch(2, 5))
    assert len(step._shapes) == 2 and len(step._evaluations) == 1


def test_texts_that_are_read_count():
    torch.manual_seed(0)
    model = nn.Linear(10, 5)
    batch = lambda kind: {"x": BATCH[0], "y": BATCH[1], "kind": kind}  # noqa: E731
    call = lambda model, batch: model(batch["x"]) * (2 if batch["kind"] == "twice" else 1)  # noqa: E731
    loss = lambda output, batch: F.cross_entropy(output, batch["y"])  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = compiled(model, optimizer, loss=loss, example=batch("once"), call=call)
    for kind in ("once", "twice", "once", "other", "twice"):
        assert step(batch(kind)) == pytest.approx(loss(call(model, batch(kind)), batch(kind)).item(), rel=1e-5)

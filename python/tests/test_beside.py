"""Modules that the loss reads beside the model: a target network, a judge, a teacher, a criterion with parameters of its own. Each loop against PyTorch."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll

LIMITS = {"memory": "64MiB", "costs": "estimated", "progress": False}
NEAR = {"rtol": 1e-3, "atol": 1e-4}


class Net(nn.Module):
    def __init__(self, into: int = 6, out: int = 4, norm: bool = False):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(into, 8, bias=not norm), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Linear(8, out)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Images(nn.Module):
    """With weights that a step may hold in a layout of its own."""

    def __init__(self, out: int = 4):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Linear(16, out)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def made(make, *args, seed=0, **flags):
    torch.manual_seed(seed)
    return make(*args, **flags)


def same(a, b):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values()):
        torch.testing.assert_close(x, y, **NEAR, msg=lambda text, name=name: f"{name}: {text}")


def moved(target, source, share):
    with torch.no_grad():
        for a, b in zip(target.parameters(), source.parameters()):
            a.lerp_(b, share)


def eager_step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# --- a target network --------------------------------------------------------------------------------------------------


def transitions(i, shape=(6,)):
    g = torch.Generator().manual_seed(100 + i)
    return {
        "state": torch.randn(16, *shape, generator=g), "action": torch.randint(4, (16, 1), generator=g), "reward": torch.randn(16, generator=g),
        "next": torch.randn(16, *shape, generator=g),
    }


def run_dqn(ours, make, shape, update, steps):
    policy, target = made(make), made(make, seed=1)
    target.eval()
    for p in target.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)

    def loss(q, b):
        with torch.no_grad():
            best = target(b["next"]).max(1).values
        return F.smooth_l1_loss(q.gather(1, b["action"]).squeeze(1), b["reward"] + 0.9 * best)

    call = lambda net, b: net(b["state"])  # noqa: E731
    step = plimsoll.compile(policy, optimizer, loss=loss, call=call, example=transitions(0, shape), **LIMITS) if ours else None
    losses = []
    for i in range(steps):
        b = transitions(i, shape)
        losses.append(step(b) if ours else eager_step(optimizer, loss(call(policy, b), b)))
        update(target, policy, i)
    return losses, policy, target


UPDATES = {
    "soft": lambda target, policy, i: moved(target, policy, 0.1),
    "every_third": lambda target, policy, i: target.load_state_dict(policy.state_dict()) if i % 3 == 2 else None,
    "as_in_the_tutorial": lambda target, policy, i: target.load_state_dict(
        {k: policy.state_dict()[k] * 0.1 + v * 0.9 for k, v in target.state_dict().items()}
    ),
    "through_data": lambda target, policy, i: [a.data.copy_(0.9 * a.data + 0.1 * b.data) for a, b in zip(target.parameters(), policy.parameters())],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("kind", ["net", "images"])
def test_a_target_network_follows_at_every_step(kind, update):
    make, shape = (Net, (6,)) if kind == "net" else (Images, (3, 8, 8))
    (ours, policy, target), (theirs, policy_2, target_2) = (run_dqn(way, make, shape, UPDATES[update], 20) for way in (True, False))
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **NEAR)
    same(policy, policy_2)
    same(target, target_2)


@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
def test_a_target_network_that_is_another_module_now_is_read():
    def run(ours):
        policy = made(Net)
        held = {"target": copy.deepcopy(policy)}
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        loss = lambda out, b: F.mse_loss(out, held["target"](b["next"]).detach() + 1)  # noqa: E731
        call = lambda net, b: net(b["state"])  # noqa: E731
        step = plimsoll.compile(policy, optimizer, loss=loss, call=call, example=transitions(0), **LIMITS) if ours else None
        losses = []
        for i in range(6):
            losses.append(step(transitions(i)) if ours else eager_step(optimizer, loss(call(policy, transitions(i)), transitions(i))))
            if i % 2:
                held["target"] = copy.deepcopy(policy)
        return losses

    torch.testing.assert_close(torch.tensor(run(True)), torch.tensor(run(False)), **NEAR)


# --- a generator and its judge -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [False, True])
def test_a_generator_and_its_judge_by_turns(norm):
    def run(ours):
        generator, judge = made(Net, 5, 6, norm=norm), made(Net, 6, 1, norm=norm, seed=1)
        kind = torch.optim.SGD if norm else torch.optim.Adam  # which makes much of gradients that are 0 but for rounding, before a norm
        of_generator, of_judge = (kind(net.parameters(), lr=0.1 if norm else 1e-2) for net in (generator, judge))

        def judged(out, b):
            return F.binary_cross_entropy_with_logits(out, b["truth"])

        def fooled(fake, b):
            return F.binary_cross_entropy_with_logits(judge(fake), torch.ones_like(fake[:, :1]))

        example = {"x": torch.randn(16, 6), "truth": torch.ones(16, 1)}
        if ours:
            step_judge = plimsoll.compile(judge, of_judge, loss=judged, call=lambda net, b: net(b["x"]), example=example, **LIMITS)
            step_generator = plimsoll.compile(generator, of_generator, loss=fooled, call=lambda net, b: net(b["z"]), example={"z": torch.randn(8, 5)}, **LIMITS)
        losses = []
        for i in range(20):
            g = torch.Generator().manual_seed(i)
            real, z = torch.randn(8, 6, generator=g) + 1, torch.randn(8, 5, generator=g)
            with torch.no_grad():
                fake = generator(z)
            b = {"x": torch.cat([real, fake]), "truth": torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])}
            losses.append(step_judge(b) if ours else eager_step(of_judge, judged(judge(b["x"]), b)))
            losses.append(step_generator({"z": z}) if ours else eager_step(of_generator, fooled(generator(z), {"z": z})))
        return losses, generator, judge

    (ours, *models), (theirs, *models_2) = run(True), run(False)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **NEAR)
    for a, b in zip(models, models_2):
        same(a, b)


# --- a teacher ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["closure", "list", "attribute", "method"])
def test_a_teacher_that_is_an_average_of_the_model(place):
    def run(ours):
        model = made(Net, norm=True)
        teacher = copy.deepcopy(model).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        class Trainer:
            def __init__(self):
                self.teacher = teacher

            def loss(self, out, b):
                return F.mse_loss(out, self.teacher(b[0]).detach()) + F.cross_entropy(out, b[1])

        trainer = Trainer()
        teachers = [teacher]
        losses_of = {
            "closure": lambda out, b: F.mse_loss(out, teacher(b[0]).detach()) + F.cross_entropy(out, b[1]),
            "list": lambda out, b: F.mse_loss(out, teachers[0](b[0]).detach()) + F.cross_entropy(out, b[1]),
            "attribute": lambda out, b: F.mse_loss(out, trainer.teacher(b[0]).detach()) + F.cross_entropy(out, b[1]),
            "method": trainer.loss,
        }
        loss, batches = losses_of[place], []
        for i in range(20):
            g = torch.Generator().manual_seed(i)
            batches.append((torch.randn(16, 6, generator=g), torch.randint(4, (16,), generator=g)))
        step = plimsoll.compile(model, optimizer, loss=loss, example=batches[0], **LIMITS) if ours else None
        losses = []
        for b in batches:
            losses.append(step(b) if ours else eager_step(optimizer, loss(model(b[0]), b)))
            moved(teacher, model, 0.2)
            with torch.no_grad():
                for a, c in zip(teacher.buffers(), model.buffers()):
                    a.copy_(c)
        return losses, model, teacher

    (ours, *models), (theirs, *models_2) = run(True), run(False)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **NEAR)
    for a, b in zip(models, models_2):
        same(a, b)


@pytest.mark.filterwarnings("ignore:.*gets a plan of its own")
def test_the_mode_of_a_teacher_is_followed():
    def run(ours):
        model, teacher = made(Net), made(Net, norm=True, seed=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = lambda out, b: F.mse_loss(out, teacher(b["state"]).detach())  # noqa: E731
        call = lambda net, b: net(b["state"])  # noqa: E731
        step = plimsoll.compile(model, optimizer, loss=loss, call=call, example=transitions(0), **LIMITS) if ours else None
        losses = []
        for i in range(6):
            teacher.train(i % 3 != 2)
            losses.append(step(transitions(i)) if ours else eager_step(optimizer, loss(call(model, transitions(i)), transitions(i))))
        return losses, teacher

    (ours, teacher), (theirs, teacher_2) = run(True), run(False)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **NEAR)
    same(teacher, teacher_2)


# --- a criterion with parameters ----------------------------------------------------------------------------------------


class Weighted(nn.Module):
    """Two losses weighted by what is learnt."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, out, b):
        self.seen.add_(out.detach().mean())
        losses = torch.stack([F.cross_entropy(out, b[1]), out.square().mean()])
        return (losses * torch.exp(-self.weights) + self.weights).sum()


def labelled(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(16, 6, generator=g), torch.randint(4, (16,), generator=g)


@pytest.mark.parametrize("given", ["module", "closure"])
def test_a_criterion_is_trained_where_the_optimizer_has_its_parameters(given, tmp_path):
    def run(ours):
        model, criterion = made(Net), Weighted()
        optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": criterion.parameters(), "lr": 0.05}], lr=1e-2)
        loss = criterion if given == "module" else lambda out, b: criterion(out, b)
        step = plimsoll.compile(model, optimizer, loss=loss, example=labelled(0), **LIMITS) if ours else None
        losses = []
        for i in range(8):
            if ours and i == 4:
                step.save(tmp_path / "step")
            losses.append(step(labelled(i)) if ours else eager_step(optimizer, loss(model(labelled(i)[0]), labelled(i))))
        if ours:  # and once more from the middle
            final = [t.clone() for t in (*model.state_dict().values(), *criterion.state_dict().values())]
            step.load(tmp_path / "step")
            assert [step(labelled(i)) for i in range(4, 8)] == losses[4:]
            assert all(map(torch.equal, final, (*model.state_dict().values(), *criterion.state_dict().values())))
        return losses, model, criterion

    (ours, *models), (theirs, *models_2) = run(True), run(False)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **NEAR)
    for a, b in zip(models, models_2):
        same(a, b)


# --- parameters that no module has ---------------------------------------------------------------------------------------

VARIABLE = nn.Parameter(torch.zeros(2))


def weighted(out, b, weights):
    losses = torch.stack([F.cross_entropy(out, b[1]), out.square().mean()])
    return (losses * torch.exp(-weights) + weights).sum()


class Losses:
    def __init__(self, weights):
        self.weights = weights

    def of(self, out, b):
        return weighted(out, b, self.weights)


def by_global(_):
    return lambda out, b: weighted(out, b, VARIABLE)


def by_closure(weights):
    return lambda out, b: weighted(out, b, weights)


def by_entries(weights):
    both = {"first": weights}
    parts = [both["first"], 2.0]
    return lambda out, b: weighted(out, b, parts[0])


def by_dictionary(weights):
    both = {"first": weights}
    return lambda out, b: weighted(out, b, both["first"])


def by_partial(weights):
    return functools.partial(weighted, weights=weights)


@pytest.mark.parametrize(
    "of", [by_global, by_closure, by_entries, by_dictionary, by_partial, lambda weights: Losses(weights).of], ids=["global", "closure", "list", "dictionary", "partial", "method"]
)
def test_parameters_that_are_variables_are_trained(of, tmp_path):
    def run(ours):
        model = made(Net)
        weights = VARIABLE if of is by_global else nn.Parameter(torch.zeros(2))
        with torch.no_grad():
            weights.zero_()
        optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": [weights], "lr": 0.05}], lr=1e-2)
        loss = of(weights)
        step = plimsoll.compile(model, optimizer, loss=loss, example=labelled(0), **LIMITS) if ours else None
        losses, values = [], []
        for i in range(8):
            batch = labelled(i) if i != 5 else tuple(t[:9] for t in labelled(i))
            if ours and i == 4:
                step.save(tmp_path / "step")
            losses.append(step(batch) if ours else eager_step(optimizer, loss(model(batch[0]), batch)))
            values.append(weights.tolist())
        if ours:
            assert step.evaluate(labelled(0)) == pytest.approx(loss(model(labelled(0)[0]), labelled(0)).item(), rel=1e-4)
            step.load(tmp_path / "step")
            assert weights.tolist() == values[3]
            assert [step(labelled(i)) for i in (4,)] == losses[4:5]
        return losses, values

    (ours, weights), (theirs, weights_2) = run(True), run(False)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **NEAR)
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(weights_2), **NEAR)


def test_a_parameter_that_the_forward_pass_finds_by_a_global_name_is_trained():
    class Shifted(Net):
        def forward(self, x):
            return super().forward(x + VARIABLE.sum())

    def run(ours):
        with torch.no_grad():
            VARIABLE.fill_(0.1)
        model = made(Shifted)
        optimizer = torch.optim.SGD([*model.parameters(), VARIABLE], lr=0.1, momentum=0.9)
        step = plimsoll.compile(model, optimizer, loss=lambda out, b: F.cross_entropy(out, b[1]), example=labelled(0), **LIMITS) if ours else None
        losses = [step(labelled(i)) if ours else eager_step(optimizer, F.cross_entropy(model(labelled(i)[0]), labelled(i)[1])) for i in range(5)]
        return losses, VARIABLE.tolist()

    ours, theirs = run(True), run(False)
    torch.testing.assert_close(torch.tensor(ours[0]), torch.tensor(theirs[0]), **NEAR)
    torch.testing.assert_close(torch.tensor(ours[1]), torch.tensor(theirs[1]), **NEAR)


def test_a_parameter_that_no_name_leads_to_is_told():
    model, weights = made(Net), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*model.parameters(), weights], lr=0.1)
    with pytest.raises(ValueError, match="neither the model has"):
        plimsoll.compile(model, optimizer, loss=lambda out, b, weights=weights: weighted(out, b, weights), example=labelled(0), **LIMITS)


def test_parts_of_a_module_beside_that_are_others_are_told():
    model, teacher = made(Net), made(Net, seed=1)
    step = plimsoll.compile(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda o, b: F.mse_loss(o, teacher(b[0]).detach()), example=labelled(0), **LIMITS
    )
    step(labelled(0))
    teacher.last = nn.Linear(8, 4)
    with pytest.raises(ValueError, match="that the loss reads, is another one now"):
        step(labelled(1))


def test_a_module_that_is_named_and_not_read_does_not_matter():
    model, other = made(Net), nn.LazyLinear(3)
    unread = made(Net, seed=1)

    def loss(out, b):
        if out.shape[0] == 12345:
            return other(out).sum() + unread(b[0]).sum()
        return F.cross_entropy(out, b[1])

    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, example=labelled(0), **LIMITS)
    before = step(labelled(0))
    unread.last = nn.Linear(8, 5)
    assert step(labelled(0)) < before

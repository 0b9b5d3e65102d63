"""Gradients where functions have corners: equal elements, bounds, zeros. PyTorch says what they are there."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll
from cases import Branches
from support import assert_same, both


class Added(nn.Module):
    """`body(x + p)`, so that a gradient at 0 counts like any other."""

    def __init__(self, body, *shape: int):
        super().__init__()
        self.body = body
        self.p = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + self.p)


def check(bodies: dict, x: Tensor, tolerance: float = 1e-9) -> None:
    assert_same(both(Branches({name: Added(body, *x.shape[1:]) for name, body in bodies.items()}), x, any_batch=False), tolerance)


def test_on_bounds_and_among_equal_elements():
    x = torch.tensor([-2.0, 0, 0, 1, 1, -1, 0.5, 1, 0, -2, 1, 1]).repeat(4).reshape(2, 4, 6)
    check(
        {
            "clamp": lambda x: x.clamp(-1, 1),
            "clamp_min": lambda x: x.clamp(min=0),
            "clamp_max": lambda x: torch.clamp_max(x, 1),
            "by_tensors": lambda x: x.clamp(torch.full_like(x, -1.0), torch.full_like(x, 1.0)),
            "max": lambda x: x.max(-1)[0],
            "min": lambda x: x.min(1).values,
            "amax": lambda x: x.amax(-1),
            "cummax": lambda x: x.cummax(-1)[0],
            "cummin": lambda x: x.cummin(1)[0],
            "fmax": lambda x: torch.fmax(torch.where(x > 0.7, math.nan, x.flip(2) + 0.3), x),
            "fmin": lambda x: torch.fmin(x, torch.where(x > 0.7, math.nan, x.flip(2) + 0.3)),
            "margin": lambda x: F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones_like(x[:, 0]), margin=1.0),
            "hinge": lambda x: F.hinge_embedding_loss(x, -torch.ones_like(x), margin=1.0),
        },
        x,
    )


def test_what_is_farthest_apart_in_several_dimensions():
    check({"cdist": lambda x: torch.cdist(x, x.roll(1, 0) * 0 + 1.0, p=math.inf)}, torch.tensor([[[0.0, 2.0, 1.0], [3.0, -1.0, 1.0], [1.0, 1.0, 1.0]]]))


def test_hardswish_on_its_bounds_in_a_step():
    class Bounds(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.tensor([-3.0, 3.0, 0.0, 1.0, -2.5]))

        def forward(self, x):
            return F.hardswish(self.p * x).sum()

    model, eager, batch = Bounds(), Bounds(), torch.ones(1, 5)
    eager(batch).backward()
    before = model.p.detach().clone()
    plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=1.0), example=batch, memory="16MiB")(batch)
    torch.testing.assert_close(before - model.p.detach(), eager.p.grad)


def test_at_zero():
    x = torch.tensor([0.0, 0, 0, 1, 2, 0, 0, 0, 0, 3, 3, 3]).repeat(4).reshape(2, 8, 3)
    check(
        {
            "norm": lambda x: x.norm(dim=-1),
            "cubic": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
            "normalize": lambda x: F.normalize(x, dim=-1, eps=1e-3),
            "cosine": lambda x: F.cosine_similarity(x, x.roll(1, 1), dim=-1, eps=1e-3),
            "std": lambda x: x.std(-1),
            "std_mean": lambda x: torch.std_mean(x, -1, unbiased=False)[0],
            "dist": lambda x: torch.dist(x, x.detach()),
            "sinc": torch.sinc,
        },
        x,
        1e-6,  # numbers of the graph are f32
    )


_GAMMA = [0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0, -0.5, -1.25, -2.5, -3.75]


def test_gamma_functions_at_whole_numbers_and_halves():
    check(
        {
            "lgamma": torch.lgamma,
            "digamma": torch.digamma,
            "gammaln": torch.special.gammaln,
            "mvlgamma": lambda x: torch.mvlgamma(x.abs() + 1, 2),
            "xlogy": lambda x: torch.xlogy(x - 1, x.detach().abs()),
            "beta": lambda x: torch.distributions.Beta(x.abs(), x.abs()).log_prob(torch.full_like(x, 0.3)),
            "dirichlet": lambda x: torch.distributions.Dirichlet(x.abs()).log_prob(torch.full_like(x, 1 / 12)),
            "student": lambda x: torch.distributions.StudentT(x.abs()).log_prob(torch.full_like(x, 0.3)),
        },
        torch.tensor(_GAMMA).repeat(2).reshape(2, 12),
        1e-6,
    )


# In a step, by the derivatives of the core: a function, and where it has a corner, a pole nearby, or a side whose numbers are infinite.
CORNERS = {
    "lgamma": (torch.lgamma, [0.0, *_GAMMA]),
    "digamma": (torch.digamma, _GAMMA),
    "multigammaln": (lambda x: torch.special.multigammaln(x, 3), [1.5, 2.0, 3.0, 4.5]),
    "beta": (lambda x: torch.distributions.Beta(x, x).log_prob(torch.tensor([0.1, 0.5, 0.9])), [1.0, 1.0, 1.0]),
    "gamma": (lambda x: torch.distributions.Gamma(x, x).log_prob(torch.tensor([0.1, 0.5, 0.9])), [1.0, 0.5, 2.0]),
    "xlogy": (lambda x: torch.xlogy(x, torch.tensor([0.3, 2.0, 0.5, 0.0])), [0.0, 0.0, 1.0, 0.0]),
    "xlogy_of_numbers": (lambda x: torch.xlogy(x, 3.0) + torch.xlogy(2.0, x), [0.5, 1.0, 2.0]),
    "xlog1py": (lambda x: torch.special.xlog1py(x, torch.tensor([0.3, 2.0, 0.5, -1.0])), [0.0, 0.0, 1.0, 0.0]),
    "softplus": (F.softplus, [0.0, 20.0, 21.0, 100.0, 1000.0, -100.0]),
    "softplus_steep": (lambda x: F.softplus(x, beta=3, threshold=5), [0.0, 1.5, 2.0, 100.0, -100.0]),
    "mish": (F.mish, [0.0, 100.0, -100.0]),
    "celu": (lambda x: F.celu(x, 0.7), [0.0, 100.0, -100.0, 1000.0]),
    "selu": (F.selu, [0.0, 100.0, -100.0, 1000.0]),
    "asinh": (torch.asinh, [0.0, 0.5, -1.0, 1e20, -1e20]),
    "acosh": (torch.acosh, [1.5, 2.0, 1e20]),
    "atan2": (lambda x: torch.atan2(x, torch.tensor([0.0, 0, 0, -1, -1, 1, 1])), [0.0, 1, -1, 0, -1, 1, -1]),
    "atan2_of_x": (lambda x: torch.atan2(torch.tensor([0.0, 0, 0, -1, -1, 1, 1]), x), [0.0, 1, -1, 0, -1, 1, -1]),
    "hypot": (lambda x: torch.hypot(x, torch.tensor([0.0, 1.0, 3.0])), [1.0, 0.0, 4.0]),
    "logaddexp": (lambda x: torch.logaddexp(x, torch.tensor([-math.inf, 1.0, 5.0])), [0.0, 1.0, 5.0]),
    "logcumsumexp": (lambda x: torch.logcumsumexp(torch.cat([torch.full((3,), -math.inf), x]), 0)[3:], [0.0, 1.0, 1.0]),
    "norm_half": (lambda x: torch.linalg.vector_norm(x, ord=0.5), [0.0, 2.0, -3.0]),
    "norm_half_of_zeros": (lambda x: torch.linalg.vector_norm(x, ord=0.5), [0.0, 0.0]),
    "norm_cubic_of_zeros": (lambda x: torch.linalg.vector_norm(x, ord=3), [0.0, 0.0]),
    "cdist_half": (lambda x: torch.cdist(x.view(2, 2), torch.zeros(1, 2), p=0.5), [0.0, 1.0, 0.0, 0.0]),
    "pdist_half": (lambda x: F.pdist(x.view(3, 2), 0.5), [0.0, 1.0, 0.0, 0.0, 2.0, 0.0]),
    "power": (lambda x: x**torch.tensor([0.0, 1, 2, 3, 0.5, 1.5]), [0.0, 0.0, 0.0, -2.0, 4.0, 0.0]),
    "root": (torch.sqrt, [0.0, 1.0, 4.0]),
    "erfinv": (torch.erfinv, [-0.999, 0.0, 0.3, 0.99326205]),
    "logit": (lambda x: torch.logit(x, 0.2), [0.0, 0.2, 0.5, 0.8, 1.0]),
    "sinc": (torch.sinc, [0.0, 0.5, 1.0, -2.0]),
}


class Cornered(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.p = nn.ParameterDict({name: nn.Parameter(torch.tensor(CORNERS[name][1])) for name in names})

    def forward(self, x):
        results = [CORNERS[name][0](p).flatten() for name, p in self.p.items()]
        return x.mean() * torch.stack([(y * torch.arange(1, len(y) + 1)).sum() / 4 for y in results])


@pytest.fixture(scope="module")
def cornered():
    """The gradients of all of them, of PyTorch and of a step."""
    eager, model, batch = Cornered(CORNERS), Cornered(CORNERS), torch.ones(1)
    eager(batch).sum().backward()
    # Where a value is infinite the loss is as well, but no gradient of another function.
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=1.0), example=batch, loss=lambda out, _: out.sum(), call=lambda m, b: m(b), progress=False)
    step(batch)
    return {name: (eager.p[name].grad, torch.tensor(CORNERS[name][1]) - model.p[name].detach()) for name in CORNERS}


@pytest.mark.parametrize("name", CORNERS)
def test_in_a_step(name, cornered):
    expected, found = cornered[name]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4, equal_nan=True)


def test_binary_cross_entropy_of_what_is_0_or_1():
    x = torch.tensor([0.0, 1, 0.25, 1, 0, 0.75]).repeat(2).reshape(2, 6)
    target = torch.tensor([0.0, 0, 1, 1, 1, 0.5])
    check(
        {
            "mean": lambda x: F.binary_cross_entropy(x, target.to(x.dtype).expand_as(x)),
            "weighted": lambda x: F.binary_cross_entropy(x, target.to(x.dtype).expand_as(x), weight=torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=x.dtype), reduction="sum"),
            "each": lambda x: F.binary_cross_entropy(x * 0.5 + 0.1, target.to(x.dtype).expand_as(x), reduction="none"),
        },
        x,
        1e-6,
    )


def test_norms_in_all_their_forms():
    x = torch.linspace(-1, 2, 48).reshape(2, 4, 6)
    check(
        {
            "all": lambda x: x.norm(),
            "one": lambda x: x.norm(1),
            "rows": lambda x: torch.norm(x, p=2, dim=(1, 2), keepdim=True),
            "largest": lambda x: torch.norm(x, p=math.inf, dim=1),
            "std": lambda x: torch.stack([x.std(), x.std(dim=(1, 2), unbiased=False).sum()]),
            "mean": lambda x: sum(torch.std_mean(x, dim=1, keepdim=True)),
        },
        x,
    )


def test_a_batch_of_which_every_label_is_ignored_trains_nothing():
    labels, none = torch.tensor([0, 1, 2, -100]), torch.full((4,), -100)
    for name, loss in {
        "weights": lambda out, b: F.cross_entropy(out, b[1], weight=torch.tensor([1.0, 2.0, 3.0, 4.0])),
        "smoothed": lambda out, b: F.cross_entropy(out, b[1], weight=torch.tensor([1.0, 2.0, 3.0, 4.0]), label_smoothing=0.1),
        "logs": lambda out, b: F.nll_loss(out.square(), b[1]),
    }.items():
        losses, models = [], []
        for ours in (False, True):
            torch.manual_seed(1)
            model = nn.Linear(8, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            step = plimsoll.compile(model, optimizer, loss=loss, example=(torch.ones(4, 8), labels), progress=False) if ours else None
            losses.append([])
            for i, y in enumerate((labels, none, labels)):
                batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(i)), y
                if step:
                    losses[-1].append(step(batch))
                    continue
                optimizer.zero_grad()
                value = loss(model(batch[0]), batch)
                value.backward()
                optimizer.step()
                losses[-1].append(value.item())
            models.append(model)
        assert losses[1] == pytest.approx(losses[0], rel=1e-5, nan_ok=True), name
        assert torch.allclose(models[0].weight, models[1].weight, rtol=1e-5, atol=1e-6), name


def test_the_median_of_all_among_equal_elements():
    check({"median": lambda x: x.median() * x, "of_one": lambda x: x[0, 0, 0].median()}, torch.tensor([1.0, 0, 0, 2, 0, 1]).repeat(4).reshape(2, 2, 6))


def stepped(forward, *batch: Tensor, shape: tuple[int, ...] = (6,)) -> tuple[list[float], list[float]]:
    """Losses of some steps in turns with PyTorch, which trains a parameter p of that shape by ``forward(p, *batch)``."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.linspace(-1, 1, math.prod(shape)).reshape(shape))

        def forward(self, *batch):
            return forward(self.p, *batch)

    ours, theirs = Own(), Own()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    call = lambda model, batch: model(*batch)  # noqa: E731
    step = plimsoll.compile(ours, torch.optim.SGD(ours.parameters(), lr=0.1), example=batch, memory="16MiB", costs="estimated", call=call)
    found, expected = [], []
    for _ in range(3):
        found.append(step(batch))
        optimizer.zero_grad()
        loss = theirs(*batch)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    return found, expected


COUNTED_FROM_THE_END = {
    "rows": lambda p, x, at: ((x * p)[at] * x).sum().sin(),
    "padding": lambda p, x, at: torch.where((at < 0)[:, None], 0.0, (x * p)[at]).square().mean(),
    "columns": lambda p, x, at: ((x * p)[:, at - 1] * at).square().mean(),
    "both": lambda p, x, at: (x * p)[torch.arange(len(x)), at].square().sum(),
    "lengths": lambda p, x, at: (x * p)[torch.arange(len(x)), at.clamp(min=0) - 1].square().sum(),
    "written": lambda p, x, at: (x * p).index_put((torch.arange(len(x)), at), x[:, 0]).square().mean(),
    "added": lambda p, x, at: (x * p).index_put((at - 1,), x * p, accumulate=True).square().mean(),
    "of_the_parameter": lambda p, x, at: ((x * p)[:, p.argmax().view(1) - 6] * x).square().mean() + p[at].mean(),
}


@pytest.mark.parametrize("name", COUNTED_FROM_THE_END)
def test_indices_of_a_batch_that_count_from_the_end(name: str):
    x = torch.linspace(-1, 2, 24).reshape(4, 6)
    found, expected = stepped(COUNTED_FROM_THE_END[name], x, torch.tensor([-1, 2, 0, -3]))
    assert found == pytest.approx(expected, rel=1e-5)


def test_distances_of_few_rows_are_those_of_their_differences():
    points = torch.tensor([[[30.0, 40.0], [30.0, 40.001], [30.25, 40.0]]])
    found, expected = stepped(lambda p, x: torch.cdist(x + p, x + p.detach()).sum((0, 2)).square().sum(), points, shape=(1, 2))
    assert found == pytest.approx(expected, rel=1e-3)
    found, expected = stepped(lambda p, x: torch.cdist((x + p).repeat(1, 9, 1), x, compute_mode="donot_use_mm_for_euclid_dist").mean(), points, shape=(1, 2))
    assert found == pytest.approx(expected, rel=1e-3)

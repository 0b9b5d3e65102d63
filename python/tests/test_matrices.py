"""Inverses, systems, determinants and factors of small matrices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import plimsoll
from cases import Function, weighted
from plimsoll.errors import Unsupported
from support import assert_same, both, floats, start

linalg = torch.linalg


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + 0.5 * torch.eye(x.shape[-1], dtype=x.dtype)


KINDS = {
    "inverse": linalg.inv,
    "a_power": lambda x: linalg.matrix_power(x, -2),
    "determinant": linalg.det,
    "logarithm": lambda x: linalg.slogdet(x)[1] * linalg.slogdet(x)[0],
    "logdet": lambda x: torch.logdet(positive(x)),
    "systems": lambda x: linalg.solve(x, x.flip(-2)[..., :2].tanh()),
    "a_system": lambda x: linalg.solve(x, x[..., 0].exp()),
    "cholesky": lambda x: linalg.cholesky(positive(x)),
    "cholesky_upper": lambda x: linalg.cholesky(positive(x), upper=True),
    "by_a_factor": lambda x: torch.cholesky_solve(x[..., :2], linalg.cholesky(positive(x))) + torch.cholesky_inverse(linalg.cholesky(positive(x)))[..., :2],
    "triangular": lambda x: linalg.solve_triangular(x.tril() + 2 * torch.eye(4, dtype=x.dtype), x[..., :2], upper=False),
    "triangular_upper": lambda x: linalg.solve_triangular(x + 2 * torch.eye(4, dtype=x.dtype), x, upper=True),
    "unit_triangles": lambda x: sum(linalg.solve_triangular(x, x[..., :2], upper=upper, unitriangular=True) for upper in (False, True)),
    "normal": lambda x: torch.distributions.MultivariateNormal(x[..., 0], covariance_matrix=positive(x)).log_prob(x[..., 1]),
    "exponential": torch.matrix_exp,
    "reflections": lambda x: linalg.householder_product(x[..., :3].tril(-1), x[..., 3, :3]),
    "a_few_reflections": lambda x: linalg.householder_product(x.tril(-1), x[..., 0, :2]),
}


class OfOne(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = Function(body, 2, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return weighted(self.body(x))


@pytest.mark.parametrize("kind", KINDS)
def test_are_pytorchs(kind):
    assert_same(both(start(OfOne(KINDS[kind])), floats("x", 2, 2, 4, 4), run_batch=floats("u", 3, 2, 4, 4)))


def test_large_matrices_are_refused():
    with pytest.raises(Unsupported, match="65 x 65"):
        both(start(nn.Sequential(nn.Linear(65, 65), Function(linalg.inv, 65, 65))), floats("x", 1, 65, 65), lambda y, x: y.sum())


class Flow(nn.Module):
    """A linear map whose change of volume counts, an orthogonal one, and a normal distribution with all its covariances."""

    def __init__(self):
        super().__init__()
        self.map, self.spread = nn.Parameter(torch.eye(12).roll(3, 0) + 0.1 * torch.randn(12, 12)), nn.Parameter(torch.randn(4, 4))
        self.turn = parametrizations.orthogonal(nn.Linear(12, 12, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y, covariance = self.turn((x @ self.map).tanh()), positive(self.spread)
        normal = torch.distributions.MultivariateNormal(torch.zeros(4), covariance)
        return y.square().mean() - 0.1 * linalg.slogdet(self.map)[1] + linalg.solve(covariance, x[:, :4].T).square().mean() - normal.log_prob(y[:, :4]).mean()


def test_in_a_step():
    torch.manual_seed(2)
    ours, x = Flow(), torch.randn(8, 12)
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (ours, theirs))
    step = plimsoll.compile(ours, optimizer, example=x, memory="4MiB", threads=1, costs="estimated", progress=False)
    for _ in range(4):
        reference.zero_grad()
        loss = theirs(x)
        loss.backward()
        reference.step()
        assert step(x) == pytest.approx(loss.item(), rel=1e-5)

"""Gradients that a forward pass takes itself."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import plimsoll
from plimsoll.errors import Unsupported
from support import assert_same, both, floats, integers, start


def slope(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), create_graph=True)[0]


class Burgers(nn.Module):
    """A physics-informed network: u_t + u u_x = 0.01 u_xx."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor, t: Tensor, known: Tensor) -> Tensor:
        x, t = x.requires_grad_(True), t.requires_grad_(True)
        u = self.layers(torch.cat([x, t], 1))
        u_x = slope(u, x)
        return (slope(u, t) + u * u_x - 0.01 * slope(u_x, x)).square().mean() + F.mse_loss(u, known)


class Forces(nn.Module):
    """Energies of atoms by their distances, and forces."""

    def __init__(self):
        super().__init__()
        self.kinds, self.pairs = nn.Embedding(4, 5), nn.Sequential(nn.Linear(11, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, kinds: Tensor, places: Tensor, energies: Tensor, forces: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        n = places.shape[1]
        apart = (places[:, :, None] - places[:, None] + torch.eye(n)[..., None]).norm(dim=-1, keepdim=True)
        h = self.kinds(kinds)
        both_ = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), apart], -1)
        energy = self.pairs(both_).sum((1, 2, 3))
        return F.mse_loss(energy, energies) + F.mse_loss(-slope(energy.sum(), places), forces)


class Penalty(nn.Module):
    """Of a critic's slope, between what is real and what is made."""

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.LayerNorm(8), nn.Linear(8, 1))

    def forward(self, real: Tensor, made: Tensor) -> Tensor:
        x = (0.3 * real + 0.7 * made).requires_grad_()
        return self.critic(made).mean() - self.critic(real).mean() + 10 * (slope(self.critic(x), x).norm(2, dim=1) - 1).square().mean()


class OfImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.SiLU(), nn.ConvTranspose2d(4, 2, 3, 2), nn.GELU(), nn.AvgPool2d(3, 2, 1), nn.Flatten(), nn.Linear(72, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = self.layers(x)
        return y.mean() + slope(y.sum(), x).flatten(1).square().sum(1).mean()


class OfChannels(OfImages):
    """By norms of each channel: of a sample's, as critics of images have them, and of a batch's."""

    def __init__(self):
        super().__init__()
        self.layers[1] = nn.InstanceNorm2d(4, affine=True)
        self.layers[2] = nn.Sequential(nn.SiLU(), nn.BatchNorm2d(4), nn.InstanceNorm2d(4))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu"), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # the others have no derivative of their derivative
            y = self.head(self.layer(x))
        return y.mean() + slope(y.square().sum(), x).square().mean()


class Fixed(nn.Module):
    """Without create_graph it is a number; and of several inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x, z = x.requires_grad_(), z.requires_grad_()
        y = (self.layer(x) * self.layer(z).tanh()).exp()
        by_x, by_z = torch.autograd.grad(y.sum(), (x, z))
        return (self.layer(x + 0.1 * by_x) * self.layer(by_z)).mean()


def of(kind, n: int) -> tuple[Tensor, ...]:
    return {
        Burgers: lambda: (floats(f"x{n}", n, 1), floats(f"t{n}", n, 1), floats(f"u{n}", n, 1)),
        Forces: lambda: (integers(f"k{n}", 4, n, 3), floats(f"p{n}", n, 3, 3), floats(f"e{n}", n), floats(f"f{n}", n, 3, 3)),
        Penalty: lambda: (floats(f"r{n}", n, 6), floats(f"m{n}", n, 6)),
        OfImages: lambda: (floats(f"i{n}", n, 1, 9, 9),),
        OfChannels: lambda: (floats(f"i{n}", n, 1, 9, 9),),
        Attending: lambda: (floats(f"a{n}", n, 3, 8),),
        Fixed: lambda: (floats(f"x{n}", n, 6), floats(f"z{n}", n, 6)),
    }[kind]()


@pytest.mark.parametrize("kind", [Burgers, Forces, Penalty, OfImages, OfChannels, Attending, Fixed])
def test_are_pytorchs(kind):
    at_any = kind is not OfChannels  # whose samples share a dimension with channels
    assert_same(both(start(kind()), of(kind, 3), run_batch=of(kind, 4) if at_any else None), 1e-6)


def test_in_a_step():
    torch.manual_seed(1)
    ours = Burgers()
    theirs = copy.deepcopy(ours)
    optimizer, reference = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (ours, theirs))
    step = plimsoll.compile(ours, optimizer, example=of(Burgers, 16), memory="2MiB", threads=1, costs="estimated", progress=False)
    for _ in range(4):
        reference.zero_grad()
        loss = theirs(*(t.clone() for t in of(Burgers, 16)))
        loss.backward()
        reference.step()
        assert step(of(Burgers, 16)) == pytest.approx(loss.item(), rel=1e-4)


def test_an_operator_without_such_a_derivative_is_refused_by_name():
    class Inverse(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            x = x.requires_grad_()
            return slope(F.max_pool1d(self.layer(x), 2), x).square().mean()

    with pytest.raises(Unsupported, match="max_pool"):
        both(start(Inverse()), floats("x", 2, 3, 3))

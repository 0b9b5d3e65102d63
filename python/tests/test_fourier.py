"""Fourier transforms are products with constant matrices, of pairs of numbers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.fft as fft
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll
from cases import Function, weighted
from plimsoll.fourier import factors
from support import assert_same, both, floats, start

pairs = torch.view_as_real


def filled(x: Tensor) -> Tensor:
    """As a Fourier neural operator does it: the low frequencies into a tensor of zeros."""
    out = torch.zeros(len(x), 3, 5, dtype=torch.cfloat)
    out[:, :, :2] = fft.rfft(x)[:, :, :2] * (2 + 1j)
    return fft.irfft(out, n=8)


SMALL = {
    "complex_and_back": lambda x: pairs(fft.ifft(fft.fft(x) * (1 + 0.5j))),
    "two_dimensions": lambda x: fft.fft2(x, norm="ortho").imag,
    "as_fnet": lambda x: fft.fft(fft.fft(x, dim=-1), dim=-2).real,
    "as_a_global_filter": lambda x: fft.irfft2(fft.rfft2(x, norm="ortho") * (1 - 2j), s=(3, 8), norm="ortho"),
    "odd_lengths": lambda x: fft.irfft(fft.rfft(x, dim=1), n=3, dim=1),
    "a_long_convolution": lambda x: fft.irfft(fft.rfft(x, n=16) * fft.rfft(x.flip(-1), n=16), n=16)[..., :8],
    "cut": lambda x: pairs(fft.rfft(x, n=5)),
    "power": lambda x: fft.rfft(x).abs().square(),
    "angle": lambda x: fft.rfft(x)[..., 1:3].angle(),
    "shifted": lambda x: pairs(fft.fftshift(fft.fft(x), dim=-1)),
    "hermitian": lambda x: fft.hfft(fft.rfft(x)),
    "filled": filled,
    "mixed_channels": lambda x: pairs(torch.einsum("bix,io->box", fft.rfft(x), torch.complex(x[0, :, :2], x[1, :, :2]))),
    "a_product": lambda x: pairs(fft.fft(x) @ fft.fft(x).mT),
    "joined": lambda x: pairs(torch.cat([fft.fft(x), x + 0j, torch.stack([fft.ifft(x)[:, 0]], 1)], 1)),
    "divided": lambda x: pairs(fft.fft(x) / (fft.fft(x.flip(1)) + 30)),
    "parts": lambda x: torch.mul(*fft.fft(x).chunk(2, -1)).abs(),
    "exponents": lambda x: torch.exp(1j * x).real + torch.polar(x.abs(), x).imag,
    "hidden": lambda x: pairs(torch.where(x > 0, fft.fft(x), 0)),
    "summed": lambda x: pairs(fft.fft(x).sum(1) + fft.fft(x).mean((1, 2), keepdim=True)[:, 0]),
    "shrunk": lambda x: torch.view_as_complex(F.softshrink(pairs(fft.rfft2(x)), 0.1)).abs(),
    "no_size_has_no_gradient": lambda x: fft.rfft(x * 0).abs() + fft.rfft(x).real,
}


class OfOne(nn.Module):
    def __init__(self, body, *shape: int):
        super().__init__()
        self.body = Function(body, *shape)

    def forward(self, x: Tensor) -> Tensor:
        return weighted(self.body(x))


def check(body, *shape: int) -> None:
    assert_same(both(start(OfOne(body, *shape)), floats("x", 2, *shape), run_batch=floats("y", 3, *shape)), 1e-6)


@pytest.mark.parametrize("kind", SMALL)
def test_small_ones(kind):
    check(SMALL[kind], 3, 8)


@pytest.mark.parametrize("size", [1, 2, 7, 128, 131, 132, 135])
def test_of_every_length(size):
    check(lambda x: pairs(fft.fft(x * (1 + 1j))), 2, size)
    check(lambda x: fft.irfft(fft.rfft(x) * (1 + 0.5j), n=size), 2, size)


def test_a_long_one_is_of_factors():
    assert factors(128) is None and factors(131) is None and factors(1024) == (32, 32)
    model = start(OfOne(lambda x: fft.rfft(x).abs(), 1024))
    sizes = {tuple(t["shape"]) for t in both(model, floats("x", 2, 1024)).section["tensors"] if t["role"] == "statistic"}
    assert max(a * b for a, b, *_ in sizes) < 1024 * 8


@pytest.mark.parametrize("window", [None, torch.hann_window(16)], ids=["plain", "hann"])
def test_short_time_spectra_and_back(window):
    def body(x):
        spectrum = torch.stft(x[:, 0], 16, 4, window=window, return_complex=True)
        return torch.istft(spectrum * (2 + 1j), 16, 4, window=window, length=64) + spectrum.abs().mean()

    check(body, 1, 64)


def test_what_comes_back_may_be_an_output():
    model = OfOne(lambda x: fft.irfft(fft.rfft(x), n=8), 3, 8)
    step = plimsoll.compile(
        model, torch.optim.SGD(model.parameters(), lr=0.0), loss=lambda y, x: weighted(y), call=lambda m, x: m.body(x), outputs=lambda y: y,
        example=floats("x", 2, 3, 8), memory="1MiB", threads=1, costs="estimated", progress=False,
    )  # fmt: skip
    step(floats("x", 2, 3, 8))
    assert torch.allclose(step.outputs["output"], floats("x", 2, 3, 8), atol=1e-6)


# --- parameters that are complex ---


class Operator(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self):
        super().__init__()
        self.lift, self.weight = nn.Conv1d(1, 4, 1), nn.Parameter(torch.rand(4, 4, 5, dtype=torch.cfloat) / 4)
        self.project = nn.Conv1d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        spectrum = torch.zeros(len(x), 4, 9, dtype=torch.cfloat)
        spectrum[:, :, :5] = torch.einsum("bix,iox->box", fft.rfft(x)[:, :, :5], self.weight)
        return self.project(F.gelu(fft.irfft(spectrum, n=16)))


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.05),
}


def pair(number: int) -> tuple[Tensor, Tensor]:
    return floats(f"x{number}", 3, 1, 16), floats(f"y{number}", 3, 1, 16)


def mean_square(output, batch):
    return F.mse_loss(output, batch[1])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_complex_parameters_train_as_in_pytorch(kind, tmp_path):
    torch.manual_seed(3)
    ours = Operator()
    theirs = copy.deepcopy(ours)
    optimizer, reference = OPTIMIZERS[kind](ours.parameters()), OPTIMIZERS[kind](theirs.parameters())
    step = plimsoll.compile(ours, optimizer, loss=mean_square, example=pair(0), memory="2MiB", threads=1, costs="estimated", progress=False)

    def beside(number: int) -> float:
        reference.zero_grad()
        loss = mean_square(theirs(pair(number)[0]), pair(number))
        loss.backward()
        reference.step()
        return loss.item()

    for number in range(4):
        assert step(pair(number)) == pytest.approx(beside(number), rel=1e-4)
    for (key, expected), found in zip(theirs.state_dict().items(), ours.state_dict().values()):
        assert found.dtype == expected.dtype and torch.allclose(found, expected, atol=2e-5), key
    mine, other = optimizer.state_dict()["state"], reference.state_dict()["state"]
    for index, state in other.items():
        for key, value in state.items():
            assert torch.allclose(torch.as_tensor(mine[index][key]), torch.as_tensor(value), atol=1e-4), key
    step.save(tmp_path / "run.safetensors")
    after = step(pair(4))
    step.load(tmp_path / "run.safetensors")
    assert step(pair(4)) == after
    with torch.no_grad():
        ours.weight.mul_(0.5j)
        theirs.load_state_dict(ours.state_dict())
    assert step.evaluate(pair(5)) == pytest.approx(mean_square(theirs(pair(5)[0]), pair(5)).item(), rel=1e-4)

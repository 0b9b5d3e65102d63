"""Families of operators: what the file says gives the loss and the gradients that PyTorch gives."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll
from cases import Branches, Function, weighted
from plimsoll.errors import Unsupported
from support import Both, assert_same, both, floats, integers, start

SHAPE = (3, 4, 6)


def check(branches: dict, *shape: int, tolerance: float = 1e-9):
    x = floats("x", *(shape or (2, *SHAPE))) * 2
    result = both(start(Branches(branches)), x, any_batch=False)
    assert_same(result, tolerance)
    return result


UNARY = {
    "abs": torch.abs,
    "neg": torch.neg,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": lambda x: torch.tan(x * 0.3),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "atan": lambda x: torch.atan(3 * x),
    "asin": lambda x: torch.asin(x.clamp(-0.95, 0.95)),
    "acos": lambda x: torch.acos(x.clamp(-0.95, 0.95)),
    "asinh": torch.asinh,
    "acosh": lambda x: torch.acosh(1.5 + x.abs()),
    "atanh": lambda x: torch.atanh(x.clamp(-0.95, 0.95)),
    "logit": lambda x: torch.logit(torch.sigmoid(x), 0.2),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp2": torch.exp2,
    "square": torch.square,
    "sign": lambda x: torch.sign(x) * x,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "log_sigmoid": F.logsigmoid,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.25),
    "clamp": lambda x: x.clamp(-0.5, 0.4),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda x: x.clamp(max=0.1),
    "power": lambda x: x**3,
    "square_power": lambda x: x**2,
    "base": lambda x: 2.0**x,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "glu": lambda x: F.glu(x, -1),
    "add": lambda x: x + 1.5,
    "rsub": lambda x: 1.5 - x,
    "alpha": lambda x: torch.add(x, x.flip(-1), alpha=0.3),
    "floor": lambda x: torch.floor(x) * x,
    "ceil": lambda x: torch.ceil(x) * x,
    "where": lambda x: torch.where(x > 0.2, x * 2, -x),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.25),
    "maximum": lambda x: torch.maximum(x, x.roll(1, -1)),
    "minimum": lambda x: torch.minimum(x, x.roll(1, -1)),
    "lerp": lambda x: torch.lerp(x, x.roll(1, -1), 0.25),
    "addcmul": lambda x: torch.addcmul(x, x, x.roll(1, 1), value=0.5),
    "logaddexp": lambda x: torch.logaddexp(x, x.roll(1, -1)),
    "logic": lambda x: x * ((x > 0) & (x < 0.5) | ~(x < 1)),
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "prelu": lambda x: F.prelu(x, x.new_tensor([0.25])),
    "softshrink": lambda x: F.softshrink(x, 0.2),
    "hardshrink": lambda x: F.hardshrink(x, 0.2),
}
POSITIVE = {
    "log": torch.log,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log10": torch.log10,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "div": lambda x: x / x.roll(1, -1),
    "rdiv": lambda x: 2.0 / x,
    "pow": lambda x: x ** x.roll(1, -1),
    "root": lambda x: x**0.5,
    "pow_real": lambda x: x**1.7,
    "remainder": lambda x: x % 0.7,
    "xlogy": lambda x: torch.special.xlogy(x, x),
}


def test_elementwise_functions():
    result = check({name: Function(body, *SHAPE) for name, body in UNARY.items()})
    assert "Pointwise" in result.types()


def test_elementwise_functions_of_positive_numbers():
    check({name: Function(lambda x, body=body: body(x.abs() + 0.5), *SHAPE) for name, body in POSITIVE.items()})


def test_broadcasting_is_left_to_the_op():
    def body(x: Tensor) -> Tensor:
        column = x.mean(-1, keepdim=True).expand(*x.shape)
        return x * column + torch.zeros(x.shape[0], 1, 1, 1) + torch.full(SHAPE, 2.0)

    result = check({"f": Function(body, *SHAPE)})
    assert "Expand" not in result.types()


SHAPES = {
    "view": lambda x: x.view(x.shape[0], -1)[:, 3:7],
    "permute": lambda x: x.permute(0, 3, 1, 2),
    "transpose": lambda x: x.transpose(1, -1).contiguous(),
    "unsqueeze": lambda x: x.unsqueeze(1).squeeze(1).flatten(1),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "more": lambda x: x.repeat(2, 1, 1, 1, 2),
    "interleave": lambda x: x.repeat_interleave(2, 1),
    "steps": lambda x: x[:, :, 1::2, 0:6:3],
    "negative": lambda x: x[:, -2:, :-1, -3:-1],
    "select": lambda x: x[:, 1, -1],
    "split": lambda x: torch.cat([t * i for i, t in enumerate(x.split([1, 2, 3], -1))], -1),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "unbind": lambda x: x.unbind(2)[3],
    "stack": lambda x: torch.stack([x, -x], 2),
    "roll": lambda x: torch.roll(x, (1, -2), (1, 3)),
    "flip": lambda x: x.flip(1, 3),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(-1, 4, 3, 6), 2),
    "zeros": lambda x: F.pad(x, (1, 2, 0, 1)),
    "value": lambda x: F.pad(x, (1, 1), value=2.0),
    "infinite": lambda x: F.max_pool2d(F.pad(x, (1, 0, 0, 1), value=-math.inf), 3, 2),
    "filled": lambda x: torch.maximum(x, torch.full_like(x[:, :, :1], -math.inf).expand_as(x)),
    "crop": lambda x: F.pad(x, (-1, -2, 1, 0)),
    "reflect": lambda x: F.pad(x, (2, 1, 1, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1, 1, 1), mode="replicate"),
    "gather": lambda x: x.gather(3, torch.tensor([5, 0, 0, 3]).expand(x.shape[0], 3, 4, 4)),
    "index_select": lambda x: x.index_select(2, torch.tensor([3, 0, 0])),
    "index": lambda x: x[:, :, torch.tensor([[0, -1], [2, 2]])],
    "index_two": lambda x: x[:, torch.tensor([0, 2]), torch.tensor([[1], [3]])],
    "index_front": lambda x: x.permute(1, 2, 0, 3)[torch.tensor([0, 2]), torch.tensor([3, 3])],
    "index_apart": lambda x: x[:, torch.tensor([0, 2]), :, torch.tensor([[1], [5]])],
    "assign": lambda x: _assigned(x),
    "assign_steps": lambda x: _interleaved(x),
    "meshed": lambda x: torch.einsum("ncij,ncjk->nik", x, x.transpose(2, 3)),
    "tile": lambda x: torch.tile(x, (1, 1, 1, 2)),
    "tril": lambda x: torch.tril(x),
    "movedim": lambda x: x.movedim(1, -1),
    "diff": lambda x: x[..., 1:] - x[..., :-1],
    "narrow": lambda x: x.narrow(3, 2, 3),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=3),
    "diagonal_above": lambda x: x.diagonal(2, dim1=-1, dim2=2),
    "diagonal_below": lambda x: x.diagonal(-1, dim1=2, dim2=1),
    "diagonal_written": lambda x: _on_diagonals(x),
    "diagonal_filled": lambda x: (x[0, 0] @ x[0, 0].T).fill_diagonal_(0.5) + (x[0, 0].T @ x[0, 0]).fill_diagonal_(2.0, wrap=True).sum(),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, :, 0, 1:5] * 2, 1, 2, 3),
    "strided": lambda x: _strided(x[0, 0], x[0, 1, :2, :3]),
    "swap": lambda x: x.swapaxes(1, 2),
    "cast": lambda x: x * (x > 0).float(),
    "unfold_free": lambda x: x.unflatten(3, (2, 3)).sum(4),
}


def _assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1] = x[:, 0] * 2
    y[:, :, 1:3] = 0.5
    return y


def _strided(x: Tensor, by: Tensor) -> Tensor:
    y = x.contiguous().clone()
    y.as_strided((2, 3), (6, 1), 8).copy_(by)
    return y


def _on_diagonals(x: Tensor) -> Tensor:
    """As redundancy reduction (Barlow Twins) writes it."""
    y = x.clone()
    torch.diagonal(y, 0, 1, 3).add_(-1).pow_(2)
    torch.diagonal(y, -1, 3, 1).copy_(x[:, :, :, 0].transpose(1, 2))
    return y


def _interleaved(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[..., 0::2] = x[..., 1::2] * 2
    y[..., 1::2] = x[..., ::2]
    y[:, :, -3::2] += x[:, :, :2]
    return y


def test_shapes_slices_joins_and_indices():
    check({name: Function(body, *SHAPE) for name, body in SHAPES.items()})


REDUCTIONS = {
    "sum": lambda x: x.sum() * x.mean(),
    "dims": lambda x: x.sum((1, -1)),
    "keep": lambda x: x - x.mean(-1, keepdim=True),
    "amax": lambda x: x.amax(2),
    "amin": lambda x: x.amin((1, 3), keepdim=True),
    "max": lambda x: x.max(2).values,
    "var": lambda x: x.var((2, 3)),
    "std": lambda x: x.std(1, keepdim=True),
    "biased": lambda x: x.var(-1, correction=0),
    "var_mean": lambda x: torch.var_mean(x, 1)[0] * torch.var_mean(x, 1)[1],
    "norm": lambda x: x.norm(dim=1),
    "norm1": lambda x: x.norm(1, dim=(1, 2)),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(2),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "softmin": lambda x: F.softmin(x, -1),
    "cosine": lambda x: F.cosine_similarity(x, x.roll(1, 1), dim=-1),
    "mse": lambda x: F.mse_loss(x, x.roll(1, 1)),
    "l1": lambda x: F.l1_loss(x, x.roll(1, 1)),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.roll(1, 1)),
    "huber": lambda x: F.huber_loss(x, x.roll(1, 1), delta=0.4),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).float()),
    "kl": lambda x: F.kl_div(F.log_softmax(x, -1), F.softmax(x.roll(1, -1), -1), reduction="batchmean"),
}


def test_reductions_and_softmax():
    check({name: Function(body, *SHAPE) for name, body in REDUCTIONS.items()})


class Take(nn.Module):
    """A layer on the input in another shape."""

    def __init__(self, before, layer: nn.Module, after=lambda y: y):
        super().__init__()
        self.before, self.layer, self.after = before, layer, after
        self.p = nn.Parameter(torch.ones(1))  # without a parameter before it, the layer would be of the prelude

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(self.before(x * self.p)))


def test_linear_layers_and_convolutions():
    images, rows = (lambda x: x), (lambda x: x.flatten(2))
    result = check(
        {
            "linear": Take(lambda x: x.flatten(1), nn.Linear(384, 5)),
            "linear4": Take(images, nn.Linear(8, 3, bias=False)),
            "linear1": Take(lambda x: x[0, 0, 0], nn.Linear(8, 3)),
            "conv": Take(images, nn.Conv2d(6, 4, 3, 2, 1)),
            "grouped": Take(images, nn.Conv2d(6, 4, 3, groups=2, bias=False)),
            "depthwise": Take(images, nn.Conv2d(6, 12, (3, 2), groups=6, padding=(1, 0))),
            "dilated": Take(images, nn.Conv2d(6, 2, 3, dilation=2, padding=2)),
            "same": Take(images, nn.Conv2d(6, 3, (4, 3), padding="same")),
            "conv1d": Take(rows, nn.Conv1d(6, 4, 5, 2, 2)),
            "conv1d_grouped": Take(rows, nn.Conv1d(6, 6, 3, groups=3)),
            "transposed": Take(images, nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1)),
            "transposed_grouped": Take(images, nn.ConvTranspose2d(6, 4, 2, 2, groups=2)),
            "transposed1d": Take(rows, nn.ConvTranspose1d(6, 4, 4, 2)),
            "weight_norm": Take(images, nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 4, 3))),
            "bilinear": Take(lambda x: (x[..., 0], x[..., 1]), Pairwise()),
        },
        2,
        6,
        8,
        8,
    )
    shapes = {t["name"]: t["shape"] for t in result.section["tensors"]}
    assert shapes["branches.grouped.layer.weight"] == [2, 2, 3, 3, 3]
    assert shapes["branches.conv1d.layer.weight"] == [4, 6, 1, 5]


class Pairwise(nn.Module):
    """Products of matrices of several ranks."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8, 5))
        self.v = nn.Parameter(torch.ones(8))

    def forward(self, pair) -> Tensor:
        a, b = pair
        scores = (a @ self.w) @ (b @ self.w).transpose(-1, -2)
        return torch.cat(
            [
                scores.flatten(1),
                torch.bmm(a, b.mT).flatten(1),
                a @ self.v,
                torch.addmm(self.v[:5], a[:, 0], self.w, beta=0.5, alpha=2),
            ],
            1,
        )


def test_pools_and_resizes():
    rows = lambda x: x.flatten(2)  # noqa: E731
    up = lambda **kw: (lambda x: F.interpolate(x, **kw))  # noqa: E731
    cases = {
        "max": lambda x: F.max_pool2d(x, 3, 2, 1),
        "ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
        "avg": lambda x: F.avg_pool2d(x, 2),
        "counted": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "whole": lambda x: F.adaptive_avg_pool2d(x, 1),
        "uneven": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
        "even": lambda x: F.adaptive_avg_pool2d(x, (4, 2)),
        "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 3),
        "avg1d": lambda x: F.avg_pool1d(rows(x), 3, 2),
        "max1d": lambda x: F.max_pool1d(rows(x), 4),
        "adaptive1d": lambda x: F.adaptive_avg_pool1d(rows(x), 8),
        "nearest": up(scale_factor=2),
        "bilinear": up(scale_factor=2, mode="bilinear", align_corners=False),
        "corners": up(size=(12, 5), mode="bilinear", align_corners=True),
        "bicubic": up(size=(11, 13), mode="bicubic"),
        "nearest1d": lambda x: F.interpolate(rows(x), 90),
        "linear1d": lambda x: F.interpolate(rows(x), 90, mode="linear"),
        "dilated": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2),
        "divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=4),
        "fraction": up(scale_factor=1.7),
        "fraction_bilinear": up(scale_factor=1.7, mode="bilinear"),
        "unpooled": lambda x: _unpooled(x[..., :7]),
    }
    check({name: Function(body, 6, 8, 8) for name, body in cases.items()}, 2, 6, 8, 8)


def test_antialiased_resizes():
    up = lambda **kw: (lambda x: F.interpolate(x, antialias=True, **kw))  # noqa: E731
    cases = {
        "bicubic": up(size=(5, 13), mode="bicubic"),
        "corners": up(size=(12, 3), mode="bicubic", align_corners=True),
        "height": up(scale_factor=(0.4, 1), mode="bilinear"),
        "width": up(scale_factor=(1, 1.7), mode="bilinear"),
    }
    # Its weights are in single precision.
    check({name: Function(body, 6, 8, 8) for name, body in cases.items()}, 2, 6, 8, 8, tolerance=1e-6)


def _unpooled(x: Tensor) -> Tensor:
    y, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y, places, 2, output_size=x.shape[-2:])


def test_images_with_depth():
    images = lambda x: x  # noqa: E731
    up = lambda **kw: (lambda x: F.interpolate(x, **kw))  # noqa: E731
    functions = {
        "max": lambda x: F.max_pool3d(x, 2),
        "max_padded": lambda x: F.max_pool3d(x, 3, 2, 1),
        "max_dilated": lambda x: F.max_pool3d(x, 2, 1, dilation=(1, 2, 2)),
        "avg": lambda x: F.avg_pool3d(x, (1, 2, 3), 2),
        "avg_padded": lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False),
        "avg_ceil": lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True),
        "whole": lambda x: F.adaptive_avg_pool3d(x, 1),
        "uneven": lambda x: F.adaptive_avg_pool3d(x, (3, 4, 2)),
        "adaptive_max": lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)),
        "nearest": up(scale_factor=2),
        "trilinear": up(scale_factor=2, mode="trilinear"),
        "corners": up(size=(7, 3, 9), mode="trilinear", align_corners=True),
        "smaller": up(size=(2, 3, 3), mode="trilinear"),
    }
    layers = {
        "conv": nn.Conv3d(4, 3, 3, 2, 1),
        "factored": nn.Conv3d(4, 3, (3, 1, 1), padding=(1, 0, 0), bias=False),
        "grouped": nn.Conv3d(4, 6, 3, groups=2, padding=1),
        "dilated": nn.Conv3d(4, 2, 2, dilation=2),
        "same": nn.Conv3d(4, 2, (2, 3, 3), padding="same"),
        "transposed": nn.ConvTranspose3d(4, 3, 3, 2, 1, output_padding=1),
        "transposed_grouped": nn.ConvTranspose3d(4, 4, 2, 2, groups=2),
        "norm": nn.BatchNorm3d(4),
        "instance": nn.InstanceNorm3d(4, affine=True),
        "circular": nn.Conv3d(4, 2, 3, padding=1, padding_mode="circular"),
        "lrn": nn.LocalResponseNorm(3),
    }
    branches = {name: Function(body, 4, 5, 6, 6) for name, body in functions.items()}
    result = check(branches | {name: Take(images, layer) for name, layer in layers.items()}, 2, 4, 5, 6, 6)
    shapes = {t["name"]: t["shape"] for t in result.section["tensors"]}
    assert shapes["branches.grouped.layer.weight"] == [2, 3, 2, 3, 3, 3]


class Sequence(nn.Module):
    """A recurrent layer of which all results are read."""

    def __init__(self, layer: nn.RNNBase, first: bool = False):
        super().__init__()
        self.layer = layer
        states = layer.num_layers * (2 if layer.bidirectional else 1)
        self.first = nn.Parameter(torch.ones(states, 2, layer.hidden_size)) if first else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.layer.batch_first else x.transpose(0, 1)
        if self.first is None:
            y, last = self.layer(x)
        else:
            y, last = self.layer(x, (self.first, self.first * 0.5) if isinstance(self.layer, nn.LSTM) else self.first)
        return torch.cat([y.flatten(), *(t.flatten() * 2 for t in (last if isinstance(last, tuple) else (last,)))])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    result = check(
        {
            "plain": Sequence(kind(5, 4)),
            "deep": Sequence(kind(5, 4, num_layers=2, batch_first=True, bias=False)),
            "both_ways": Sequence(kind(5, 4, num_layers=2, bidirectional=True), first=True),
            **({"relu": Sequence(kind(5, 4, nonlinearity="relu"))} if kind is nn.RNN else {}),
        },
        2,
        6,
        5,
    )
    assert sum(t == "RecurrentForward" for t in result.types()) == 7 + (kind is nn.RNN)


def knows_the_shape_of_last_states() -> bool:
    """PyTorch 2.10 exports the last state of an LSTM with a dimension too many."""
    layer = nn.LSTM(2, 3, 2, bidirectional=True, batch_first=True)
    exported = torch.export.export(layer, (torch.ones(2, 4, 2),), strict=False)
    last = list(exported.graph.nodes)[-1].args[0][1]
    return tuple(last.meta["val"].shape) == (4, 2, 3)


@pytest.mark.skipif(not knows_the_shape_of_last_states(), reason="this PyTorch exports the last state of an LSTM in a wrong shape")
def test_a_recurrent_classifier_at_any_batch():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(11, 6)
            self.layer = nn.LSTM(6, 4, 2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, ids):
            _, (h, _) = self.layer(self.words(ids))
            return self.head(torch.cat([h[-2], h[-1]], 1))

    batch = [(integers(f"ids{n}", 11, n, 128), integers(f"labels{n}", 3, n)) for n in (2, 5)]
    loss = lambda out, batch: F.cross_entropy(out, batch[1])  # noqa: E731
    result = both(start(Classifier()), batch[0], loss, run_batch=batch[1])
    assert result.converted.fixed_batch == [] and len(result.types()) < 60
    assert_same(result)


GRAPH = torch.tensor([[0, 1, 1, 3, 2, 0], [1, 0, 2, 2, 2, 3]])
SCATTERS = {
    "scatter_add": lambda x: x.new_zeros(2, 3, 4, 6).scatter_add(2, torch.tensor([0, 0, 2, 1])[:, None].expand_as(x), x),
    "index_add": lambda x: x.index_add(3, torch.tensor([5, 0, 0]), x[..., :3], alpha=2),
    "graph": lambda x: torch.zeros_like(x).index_add(2, GRAPH[1], x[:, :, GRAPH[0]]),
    "scatter": lambda x: (x * 2).scatter(3, torch.tensor([4, 0]).expand(2, 3, 4, 2), x[..., 2:4]),
    "value": lambda x: x.scatter(3, torch.tensor([4, 0]).expand(2, 3, 4, 2), 0.5),
    "mean": lambda x: x.scatter_reduce(2, torch.tensor([0, 0, 2, 1])[:, None].expand_as(x), x * 3, "mean"),
    "mean_alone": lambda x: x.scatter_reduce(
        2, torch.tensor([0, 0, 2, 1])[:, None].expand_as(x), x * 3, "mean", include_self=False
    ),
    "sum": lambda x: x.scatter_reduce(2, torch.tensor([0, 0, 2, 1])[:, None].expand_as(x), x * 3, "sum"),
    "amax": lambda x: x.scatter_reduce(2, torch.tensor([0, 0, 2, 0])[:, None].expand_as(x), x * 3, "amax"),
    "amin_alone": lambda x: x.scatter_reduce(3, GRAPH[0].expand_as(x), x * 3, "amin", include_self=False),
    "amax_of_equals": lambda x: x.relu().scatter_reduce(3, GRAPH[1].expand_as(x), x.relu(), "amax"),
    "amax_of_none": lambda x: torch.full_like(x, -1e9).scatter_reduce(3, GRAPH[0].expand_as(x), x, "amax").clamp(min=-2),
    "put": lambda x: x.index_put((torch.tensor([1, 0]), torch.tensor([2, 0])), x[:, 0, 0, :1, None]),
    "put_more": lambda x: x.index_put((torch.tensor([1, 0, 1]),), x[:1].expand(3, -1, -1, -1) * 2, accumulate=True),
    "put_middle": lambda x: _put_middle(x),
    "put_apart": lambda x: _put_apart(x),
    "filled": lambda x: x.index_fill(3, torch.tensor([1, 2]), 0.25),
    "masked": lambda x: _masked(x),
    "fold": lambda x: F.fold(F.unfold(x, 2, stride=1), (4, 6), 2),
    "windows": lambda x: x.unfold(3, 3, 2).unfold(2, 2, 2),
    "sorted": lambda x: x.sort(-1).values * x.argsort(-1),
    "argmax": lambda x: x.gather(3, x.argmax(3, keepdim=True)) + x.max(2, keepdim=True).indices,
}


def _put_middle(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, torch.tensor([3, 1])] = x[:, :, :2] * 2
    return y


def _put_apart(x: Tensor) -> Tensor:
    y = x.clone()
    y[torch.tensor([1, 0]), :, torch.tensor([2, 0])] = x[:, :, 1] * 3
    return y


def _masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0.3] = 0.5
    return y


def test_writing_at_indices():
    check({name: Function(body, *SHAPE) for name, body in SCATTERS.items()})


STEPS = torch.tensor([0.3, 0.21, 0.55])  # so that no element lies between two of them

QUANTIZED = {
    "by_number": lambda x: torch.fake_quantize_per_tensor_affine(x.float(), 0.13, 3, -8, 12).to(x.dtype) * x.detach(),
    "by_tensor": lambda x: torch.fake_quantize_per_tensor_affine(x.float(), STEPS[1], torch.tensor(-2), -8, 7).to(x.dtype) * x.detach(),
    "by_channel": lambda x: torch.fake_quantize_per_channel_affine(x.float(), STEPS, torch.tensor([0, 1, -1], dtype=torch.int32), 1, -4, 3).to(x.dtype) * x.detach(),
}


def test_fake_quantization():
    check({name: Function(body, *SHAPE) for name, body in QUANTIZED.items()}, tolerance=1e-6)


PRODUCTS = {
    "prod": lambda x: x.prod(2),
    "prod_all": lambda x: (1 + 0.1 * x).prod(),
    "cumprod": lambda x: x.cumprod(3),
    "median": lambda x: x.median(3).values * x.median(),
    "kth": lambda x: x.kthvalue(2, dim=1).values,
    "quantile": lambda x: torch.quantile(x, 0.375, dim=3) + torch.quantile(x, 0.5),
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.0, 0.1875, 0.6875, 1.0], dtype=x.dtype), dim=1, keepdim=True),
    "quantile_between": lambda x: sum(x.quantile(0.4375, 2, interpolation=how) for how in ("lower", "higher", "nearest", "midpoint")),
    "cdist": lambda x: torch.cdist(x[0, 0], x[1, 1]),
    "norm3": lambda x: x.norm(3, dim=2),
    "hypot": lambda x: torch.hypot(x, x.roll(1, -1)),
    "atan2": lambda x: torch.atan2(x, x.roll(1, -1)),
    "fmod": lambda x: torch.fmod(x, 0.7),
    "addmv": lambda x: torch.addmv(x[0, 0, :, 0], x[0, 0], x[1, 1, 1]),
    "addbmm": lambda x: torch.addbmm(x[0, 0] @ x[0, 0].mT, x[:, 0], x[:, 1].mT, beta=0.5),
    "any": lambda x: x * (x > 1).any(-1, keepdim=True) + x * (x > -1).all(1, keepdim=True),
}


def places(x: Tensor, size: int) -> Tensor:
    """A grid over the image and a little beyond it, by the image's own values."""
    return 1.4 * torch.tanh(x.flatten(1)[:, : 4 * size].reshape(len(x), *[2] * (size - 1), -1, size))


def test_reading_an_image_between_its_elements():
    modes = [(mode, padding, corners) for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection") for corners in (False, True)]

    def sampled(mode: str, padding: str, corners: bool):
        return lambda x: F.grid_sample(x, places(x, 2), mode, padding, corners)

    check({f"{mode}_{padding}_{corners}": Function(sampled(mode, padding, corners), *SHAPE) for mode, padding, corners in modes})


def test_reading_a_volume_between_its_elements():
    modes = [(mode, padding, corners) for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection") for corners in (False, True)]

    def sampled(mode: str, padding: str, corners: bool):
        return lambda x: F.grid_sample(x.unflatten(1, (1, 3)), places(x, 3), mode, padding, corners)

    check({f"{mode}_{padding}_{corners}": Function(sampled(mode, padding, corners), *SHAPE) for mode, padding, corners in modes})


DISTRIBUTIONS = {
    "lgamma": lambda x: torch.lgamma(x.abs() * 3 + 0.01) + torch.lgamma(x - 0.013),
    "digamma": lambda x: torch.digamma(x.abs() * 3 + 0.3) + torch.digamma(x - 0.013),
    "erfinv": lambda x: torch.erfinv(x * 0.49),
    "student_t": lambda x: torch.distributions.StudentT(x[:, 0].abs() + 2.1, x[:, 1], x[:, 2].abs() + 0.1).log_prob(torch.ones(6)),
    "negative_binomial": lambda x: torch.distributions.NegativeBinomial(x[:, 0].abs() + 0.1, logits=x[:, 1]).log_prob(3 * torch.ones(6)),
    "beta": lambda x: torch.distributions.Beta(x[:, 0].abs() + 0.1, x[:, 1].abs() + 0.1).log_prob(0.3 * torch.ones(6)),
    "dirichlet": lambda x: torch.distributions.Dirichlet(x[:, :3].abs() + 0.5).entropy(),
}


def test_functions_of_distributions():
    check({name: Function(body, *SHAPE) for name, body in DISTRIBUTIONS.items()}, tolerance=1e-6)


def test_elements_by_their_places():
    branches = {
        "windows": lambda x: x.contiguous().as_strided((len(x), 20, 5), (72, 3, 1), 2),
        "of_a_transposed": lambda x: (x + 1).transpose(1, 3).as_strided((len(x), 6, 4), (72, 7, 2), 3),
        "of_a_part": lambda x: (x + 1).flatten()[6:].as_strided((len(x), 5), (60, 3)),
        "of_a_part_from_an_offset": lambda x: (x + 1).flatten()[6:].as_strided((len(x), 5), (60, 3), 8),
    }
    check({name: Function(body, *SHAPE) for name, body in branches.items()})


def test_elements_by_their_places_in_a_part_are_refused():
    with pytest.raises(Unsupported, match="a part of another"):
        check({"part": Function(lambda x: x[:, 1:, ::2].as_strided((len(x), 3), (72, 1)), *SHAPE)})


def test_covariances():
    check({"cov": Function(lambda x: torch.cov(x[:, 0, 0]), *SHAPE), "corrcoef": Function(lambda x: x[:, 0, 1].T.corrcoef(), *SHAPE)}, 5, *SHAPE)


def test_distances_of_other_orders():
    branches = {f"order_{p:.0f}": Function(lambda x, p=p: torch.cdist(x, 2 * x + 1, p=p), *SHAPE) for p in (1.0, 3.0, math.inf)}
    branches |= {f"pairs_{p:.0f}": Function(lambda x, p=p: torch.pdist(x.flatten(0, 2), p=p), *SHAPE) for p in (1.0, 2.0)}
    check(branches)


def test_what_comes_up_to_each_element():
    bounds = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    branches = {
        "logcumsumexp": lambda x: (30 * x).logcumsumexp(2),
        "cummax": lambda x: x.cummax(1)[0] + x.cummin(-1).values,
        "bucketize": lambda x: torch.bucketize(x, bounds.to(x.dtype)) * x,
        "searchsorted": lambda x: torch.searchsorted(x.sort(-1)[0], 0.9 * x.flip(-1), right=True) * x,
    }
    check({name: Function(body, *SHAPE) for name, body in branches.items()})


class Placed(nn.Module):
    """Rows of images where a text has places for them, or numbers where a mask says so."""

    def __init__(self, is_by_rows: bool):
        super().__init__()
        self.text, self.image, self.is_by_rows = nn.Linear(3, 4), nn.Linear(5, 4 if is_by_rows else 2), is_by_rows

    def forward(self, x: Tensor, images: Tensor, words: Tensor) -> Tensor:
        h = self.text(x)
        mask = (words == 7)[:, :, None].expand_as(h)
        return weighted(h.masked_scatter(mask if self.is_by_rows else mask & (torch.arange(4) % 2 == 0), self.image(images)).tanh())


@pytest.mark.parametrize("is_by_rows", [True, False])
def test_writing_at_a_mask(is_by_rows):
    words = torch.tensor([[1, 7, 7, 2], [7, 3, 4, 7], [7, 7, 1, 1]])
    batches = [(floats("x", n, 4, 3), floats("images", n, 2, 5), words[:n]) for n in (2, 3)]
    assert_same(both(start(Placed(is_by_rows)), batches[0], run_batch=batches[1]))


def test_products_and_orders():
    check({name: Function(body, *SHAPE) for name, body in PRODUCTS.items()})


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(6, 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, 0], x[:, 0].mT[..., :4, :4].mean(1, keepdim=True).expand(-1, 4, -1))


class Bags(nn.Module):
    """Bags of words, of one length and of several."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(11, 5, mode=mode) for mode in ("mean", "sum", "max"))
        self.padded = nn.ModuleList(nn.EmbeddingBag(11, 5, mode=mode, padding_idx=3, include_last_offset=True) for mode in ("mean", "sum"))
        self.rows = nn.EmbeddingBag(11, 5, mode="mean", padding_idx=3)

    def forward(self, ids, offsets):
        rows = sum(weighted(bag(ids)) for bag in [*self.bags, self.rows])
        return rows + sum(weighted(bag(ids.flatten(), offsets)) for bag in [*self.bags[:2], *self.padded])


def test_bags_and_bilinear_layers():
    check({"bilinear": Pair()})
    batch = (integers("ids", 11, 4, 3), torch.tensor([0, 5, 6, 12]))
    assert_same(both(start(Bags()), batch))


def test_norms():
    images = lambda x: x  # noqa: E731
    result = check(
        {
            "batch": Take(images, nn.BatchNorm2d(6)),
            "plain": Take(images, nn.BatchNorm2d(6, affine=False)),
            "batch1d": Take(lambda x: x.flatten(2), nn.BatchNorm1d(6)),
            "rows": Take(lambda x: x.mean((2, 3)), nn.BatchNorm1d(6)),
            "no_stats": Take(images, nn.BatchNorm2d(6, track_running_stats=False)),
            "instance": Take(images, nn.InstanceNorm2d(6, affine=True)),
            "layer": Take(images, nn.LayerNorm(8)),
            "layer2": Take(images, nn.LayerNorm((8, 8), bias=False)),
            "layer_plain": Take(images, nn.LayerNorm(8, elementwise_affine=False)),
            "group": Take(images, nn.GroupNorm(3, 6)),
            "group_plain": Take(images, nn.GroupNorm(2, 6, affine=False)),
            "rms": Take(images, nn.RMSNorm(8, eps=1e-6)),
            "twice": Take(images, Twice()),
        },
        2,
        6,
        8,
        8,
    )
    assert "branches.batch.layer.running_mean.next" in result.run.values
    names = [name for op in result.section["ops"] for name in op["outputs"] if name.endswith("running_var.next")]
    assert len(names) == len(set(names)) == 5


class Twice(nn.Module):
    """One batch norm on two tensors: its statistics advance twice."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.norm(x) ** 2 + x)


def test_running_statistics_advance_as_in_pytorch():
    model = start(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Flatten(), nn.Linear(144, 1)))
    x = floats("x", 2, 3, 8, 8)
    result = both(model, x, lambda out, _: out.sum())
    twin = start(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Flatten(), nn.Linear(144, 1))
    ).double()
    twin(x.double())
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(result.run.values[name + ".next"], twin.state_dict()[name])


def test_frozen_batch_norm_inside_a_training_network():
    model = start(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    model[1].eval()
    x = floats("x", 2, 3, 8, 8)
    from plimsoll.capture import capture
    from plimsoll.convert import convert

    captured = capture(model, lambda out, _: (out**2).sum(), x)
    section = convert(captured).document["training"]
    assert "BatchNormForward" not in [op["type"] for op in section["ops"]]
    assert not any(name.endswith(".next") for op in section["ops"] for name in op["outputs"])


class Heads(nn.Module):
    def __init__(self, attend, bias: bool = False):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.attend = attend
        self.table = nn.Parameter(torch.ones(1, 4, 5, 5)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.attend(q, k, v) if self.table is None else self.attend(q, k, v, self.table)


def test_attention():
    sdpa = F.scaled_dot_product_attention
    mask = torch.ones(5, 5, dtype=torch.bool).triu(-2).tril(1)
    holes = torch.ones(5, 5, dtype=torch.bool).tril() & (torch.arange(5) != 1)
    hidden = torch.zeros(5, 5).masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), float("-inf"))
    result = check(
        {
            "plain": Heads(lambda q, k, v: sdpa(q, k, v)),
            "causal": Heads(lambda q, k, v: sdpa(q, k, v, is_causal=True)),
            "scaled": Heads(lambda q, k, v: sdpa(q, k, v, scale=0.3)),
            "masked": Heads(lambda q, k, v: sdpa(q, k, v, attn_mask=mask)),
            "additive": Heads(lambda q, k, v: sdpa(q, k, v, attn_mask=hidden)),
            "window": Heads(lambda q, k, v: sdpa(q, k, v, attn_mask=(torch.arange(5)[:, None] - torch.arange(5)).abs() < 2)),
            "holes": Heads(lambda q, k, v: sdpa(q, k, v, attn_mask=holes)),
            "grouped": Heads(lambda q, k, v: sdpa(q, k[:, :2], v[:, :2], enable_gqa=True)),
            "one_head_of_keys": Heads(lambda q, k, v: sdpa(q, k[:, :1], v[:, :1])),
            "keys_of_all": Heads(lambda q, k, v: sdpa(q, k[:1], v[:, :1])),
            "learnt": Heads(lambda q, k, v, table: sdpa(q, k, v, attn_mask=table), bias=True),
            "by_hand": Heads(
                lambda q, k, v: (q @ k.transpose(-2, -1) * 0.5).masked_fill(~mask, float("-inf")).softmax(-1) @ v
            ),
        },
        2,
        5,
        16,
    )
    attention = [op for op in result.section["ops"] if op["type"] == "AttentionForward"]
    told = {op["layer"].split(".")[1]: op for op in attention}
    assert {name for name, op in told.items() if op["attributes"]["causal"]} == {"causal", "additive"}
    assert {name for name, op in told.items() if len(op["inputs"]) > 3} == {"holes", "learnt"}
    reach = {name: (op["attributes"].get("window_left"), op["attributes"].get("window_right")) for name, op in told.items()}
    assert {name: ends for name, ends in reach.items() if ends != (None, None)} == {"masked": (2, 1), "window": (1, 1), "by_hand": (2, 1)}
    assert "MatMul" not in result.types()


LENGTH = 12  # as no other size of these networks


class Masked(nn.Module):
    """Attention with a mask that the model makes of the batch; a buffer of what is not later, as in nanoGPT."""

    def __init__(self, mask_of):
        super().__init__()
        self.qkv, self.mask_of = nn.Linear(8, 24), mask_of
        self.register_buffer("past", torch.ones(16, 16, dtype=torch.bool).tril())

    def forward(self, x: Tensor, padded: Tensor, texts: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = self.mask_of(self.past[:LENGTH, :LENGTH], padded, texts)
        if mask.is_floating_point():  # PyTorch reads a mask of another precision wrongly
            mask = mask.to(x.dtype)
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask) * ~padded[:, None, :, None]).square().mean()


def _added(past: Tensor, padded: Tensor) -> Tensor:
    """As nn.MultiheadAttention does it: the heads are joined with the batch meanwhile."""
    rows = len(padded)
    keys = torch.zeros_like(padded, dtype=torch.float).masked_fill(padded, float("-inf"))
    keys = keys.view(rows, 1, 1, LENGTH).expand(-1, 2, -1, -1).reshape(rows * 2, 1, LENGTH)
    return (torch.zeros(LENGTH, LENGTH).masked_fill(~past, float("-inf")).unsqueeze(0) + keys).view(rows, 2, LENGTH, LENGTH)


_apart = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
SHORT_MASKS = {
    "padding": (lambda past, padded, texts: past & ~padded[:, None, None, :], (None, 0, 0)),
    "hidden": (lambda past, padded, texts: ~(~past | padded[:, None, None, :]), (None, 0, 0)),
    "window": (lambda past, padded, texts: (past & (~padded)[:, None, :] & (_apart < 3)).unsqueeze(1), (2, 0, 0)),
    "texts": (lambda past, padded, texts: past & (texts[:, None, :, None] == texts[:, None, None, :]), (None, 0, 1)),
    "both": (lambda past, padded, texts: ((texts[:, :, None] == texts[:, None, :]) & past & ~padded[:, None, :])[:, None], (None, 0, 1)),
    "added": (lambda past, padded, texts: _added(past, padded), (None, 0, 0)),
}


def _masked_batch(rows: int) -> tuple[Tensor, ...]:
    padded = torch.arange(LENGTH) >= LENGTH - torch.arange(rows)[:, None]
    return floats("x", rows, LENGTH, 8), padded, integers("texts", 3, rows, LENGTH).sort(1)[0] * 2**40


def _prelude_shapes(result: Both, batch: tuple[Tensor, ...]) -> set[tuple]:
    seen: set[tuple] = set()

    class Looking(torch.fx.Interpreter):
        def run_node(self, n):
            value = super().run_node(n)
            seen.update(tuple(v.shape) for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Tensor))
            return value

    module = result.captured.prelude._build(len(batch[0]))
    Looking(module).run(*result.captured.tensors_of(batch))
    assert seen
    return seen


@pytest.mark.parametrize("kind", SHORT_MASKS)
def test_a_mask_is_kept_in_its_parts(kind):
    mask_of, expected = SHORT_MASKS[kind]
    result = both(start(Masked(mask_of)), _masked_batch(3), run_batch=_masked_batch(4))
    assert_same(result)
    (attention,) = [op for op in result.section["ops"] if op["type"] == "AttentionForward"]
    told = attention["attributes"]
    right = 0 if told["causal"] else told.get("window_right")
    assert (told.get("window_left"), right, told.get("documents", 0)) == expected
    assert len(attention["inputs"]) == 3 + (kind != "texts") + expected[2]
    shapes = [t["shape"] for t in result.section["tensors"]] + [s for op in result.section["ops"] for s in op["shapes"]]
    assert not any(list(shape).count(LENGTH) > 1 for shape in shapes)
    assert not _prelude_shapes(result, _masked_batch(3)) & {(3, LENGTH, LENGTH), (3, 1, LENGTH, LENGTH), (LENGTH, LENGTH)}


def test_a_mask_with_another_part_counts_as_it_is():
    def mask_of(past, padded, texts):
        return past & (~padded[:, None, None, :] | (texts[:, None, :, None] > texts[:, None, None, :]))

    result = both(start(Masked(mask_of)), _masked_batch(3), run_batch=_masked_batch(4))
    assert_same(result)
    (attention,) = [op for op in result.section["ops"] if op["type"] == "AttentionForward"]
    assert "documents" not in attention["attributes"] and attention["attributes"]["causal"] == 0


class Losses(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 5)
        self.pixels = nn.Conv2d(3, 5, 1)

    def forward(self, x: Tensor, labels: Tensor, image: Tensor, soft: Tensor):
        logits, pixels = self.head(x), self.pixels(image)
        ignored = torch.where(labels == 2, -100, labels)
        each = F.cross_entropy(logits, labels, reduction="none")
        weights = torch.tensor([0.5, 2.0, 1.5, 1.0, 0.25], dtype=x.dtype)
        logs = torch.log(F.softmax(logits, 1) + 0.01)
        return (
            F.cross_entropy(logits, labels)
            + F.cross_entropy(logits, ignored, label_smoothing=0.1) * 2
            + F.cross_entropy(logits, labels, reduction="sum", ignore_index=1) * 0.3
            + F.cross_entropy(pixels, labels[:, None, None].expand(-1, 4, 4).contiguous())
            + F.nll_loss(F.log_softmax(logits, 1), labels)
            + F.cross_entropy(logits, soft, label_smoothing=0.2)
            + (each * x[:, 0]).sum()
            + F.cross_entropy(logits, labels, weights) * 0.7
            + F.cross_entropy(pixels, ignored[:, None, None].expand(-1, 4, 4), weights, label_smoothing=0.1) * 0.6
            + F.cross_entropy(logits, ignored, weights, reduction="sum", label_smoothing=0.3) * 0.2
            + (F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.3) * x[:, 1]).sum()
            + F.cross_entropy(logits, soft, weights, label_smoothing=0.2)
            + F.nll_loss(logs, labels, weights) * 0.4
        )


def test_cross_entropies():
    labels = torch.tensor([0, 2, 4])
    batch = (floats("x", 3, 4), labels, floats("i", 3, 3, 4, 4), floats("s", 3, 5).softmax(1))
    result = both(start(Losses()), batch)
    assert_same(result)
    assert sum(t == "SoftmaxCrossEntropyForward" for t in result.types()) == 5


def test_embeddings():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(11, 6, padding_idx=3)
            self.places = nn.Embedding(4, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids, labels):
            x = self.words(ids) * math.sqrt(6) + self.places(torch.arange(ids.shape[1]))
            return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    ids = integers("ids", 11, 2, 4)
    ids[0, 1] = 3
    result = both(
        start(Words()),
        (ids, integers("labels", 11, 2, 4)),
        run_batch=(integers("more", 11, 5, 4), integers("labels2", 11, 5, 4)),
    )
    assert_same(result)
    assert result.captured.tied == {"head.weight": "words.weight"}
    assert [t["name"] for t in result.section["tensors"] if t["role"] == "parameter"] == [
        "words.weight",
        "places.weight",
    ]
    assert result.section["labels"] == "labels"


@pytest.mark.parametrize("p", [0.3])
def test_random_ops_with_given_masks(p):
    class Fixed(nn.Module):
        def __init__(self, kept: Tensor, scale: float):
            super().__init__()
            self.kept, self.scale = kept, scale

        def forward(self, x):
            return x * self.kept.to(x.dtype) * self.scale

    class DropPath(nn.Module):
        def forward(self, x):
            return x * x.new_empty(x.shape[0], 1).bernoulli_(0.8).div_(0.8)

    x = floats("x", 4, 6)
    kept, paths = (floats("kept", 4, 6) > -0.4).float(), (floats("paths", 4, 1) > -0.6).float()

    def net(a, b):
        return nn.Sequential(nn.Linear(6, 6), a, nn.Linear(6, 6), b)

    model, eager = start(net(nn.Dropout(p), DropPath())), start(net(Fixed(kept, 1 / (1 - p)), Fixed(paths, 1 / 0.8)))
    result = both(model, x, lambda out, _: (out**3).sum(), eager=eager, masks={"1": kept, "3/bernoulli": paths})
    assert_same(result)
    assert [t["name"] for t in result.section["tensors"] if t["role"] == "hyperparameter"] == ["step_number", "seed"]


class Jitter(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y * torch.empty_like(y).uniform_(0.5, 2.0)).square().mean() + 0 * torch.empty(3).uniform_(-1, 1).sum()


def test_numbers_that_are_drawn_into_a_tensor():
    result = both(start(Jitter()), floats("x", 200, 6))
    noise = next(v for name, v in result.run.values.items() if "uniform" in name and v.shape == (200, 4) and float(v.min()) > 0.4)
    assert 0.5 <= float(noise.min()) < 0.51 and 1.99 < float(noise.max()) < 2.0 and abs(float(noise.mean()) - 1.25) < 0.05


def test_the_reference_draws_as_the_core_does():
    from plimsoll.reference import random_bits

    # Philox4x32-10 of zeros: the first known answer of Random123's test vectors.
    assert [hex(v) for v in random_bits(0, 0, 0, 4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


class Mixed(nn.Module):
    """As mixup does it, every sample with another one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return weighted(0.7 * y + 0.3 * y.flip(0))


def test_an_order_of_the_samples_is_of_one_batch_size():
    result = both(start(Mixed()), floats("x", 3, 6))
    assert_same(result)
    assert "as many as there are samples" in result.converted.fixed_batch[0]


class Capacity(nn.Module):
    """Rows go to the best of four experts, of which each takes three at most: whole numbers that depend on parameters."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.Parameter(torch.ones(4, 6, 5))

    def forward(self, x: Tensor) -> Tensor:
        share, expert = self.gate(x).softmax(-1).max(-1)
        chosen = F.one_hot(expert, 4)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        kept = chosen[:, :, None] * F.one_hot(place.clamp(max=2), 3)[:, None] * (place < 3)[:, None, None]
        sent = kept.to(x.dtype)
        y = torch.einsum("nec,nd,edf->ecf", sent, x, self.experts)
        return weighted(torch.einsum("nec,ecf,n->nf", sent, y, share))


def test_whole_numbers_that_depend_on_parameters():
    assert_same(both(start(Capacity()), floats("x", 9, 6)))


class Scheduled(nn.Module):
    """The next word is the batch's or the network's own, and none comes again: whole numbers that nothing is known of."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, words: Tensor, given: Tensor) -> Tensor:
        word, met, total = words[:, 0], torch.zeros(len(words), 9, dtype=torch.bool), 0.0
        for i in range(1, 4):
            scores = self.head(self.words(word))
            own = scores.masked_fill(met, -9.0).argmax(-1)
            met = met.clone()
            met[range(len(words)), own] = True
            word = torch.where(given[:, i] > 0, words[:, i], own)
            word = word.masked_fill(scores[:, 0] > 1, 3)
            total = total + F.cross_entropy(scores, words[:, i]) + weighted(scores * met)
        return total


def test_whole_numbers_that_are_picked_by_what_depends_on_parameters():
    assert_same(both(start(Scheduled()), (integers("words", 9, 5, 4), integers("given", 2, 5, 4)), any_batch=False))


class Replaced(nn.Module):
    """Words that one network draws stand among those of a text, and another tells which, as in ELECTRA. Of a place that is written twice, the last stays."""

    def __init__(self, dim: int):
        super().__init__()
        self.words, self.drawn, self.told, self.dim = nn.Embedding(9, 6), nn.Linear(6, 9), nn.Linear(6, 2), dim

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        own = self.drawn(self.words(words)).gather(self.dim, places[..., None].expand(-1, -1, 9)).argmax(-1)
        text = words.clone().scatter_(self.dim, places, own)
        return F.cross_entropy(self.told(self.words(text)).flatten(0, 1), (text != words).flatten().long())


@pytest.mark.parametrize("dim", [0, 1])
def test_whole_numbers_that_depend_on_parameters_are_written_among_others(dim):
    places = torch.tensor([[2, 0, 2, 1]] * 5) if dim == 1 else torch.tensor([[3, 1, 3, 0]] * 5).T.contiguous()
    words = integers("words", 9, 5, 4) if dim == 1 else integers("words", 9, 4, 5)
    assert_same(both(start(Replaced(dim)), (words, places), any_batch=False))


class Shifted(nn.Module):
    """Rows are read from the places on that a topk gives, as Autoformer delays them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        delay = y.mean(1).topk(3, dim=-1)[1]
        places = torch.arange(6).repeat(len(x), 4, 1) + delay[:, 1, None, None].repeat(1, 4, 6)
        return weighted(y.repeat(1, 1, 2).gather(-1, places))


def test_whole_numbers_that_are_repeated():
    assert_same(both(start(Shifted()), floats("x", 3, 4, 6), any_batch=False))


class Unequal(nn.Module):
    """Fewer heads of keys than of values."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = nn.Linear(6, 8), nn.Linear(6, 4), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = [layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.queries, self.keys, self.values)]
        return weighted(F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True))


def test_fewer_heads_of_keys_than_of_values():
    assert_same(both(start(Unequal()), floats("x", 2, 5, 6), run_batch=floats("z", 3, 5, 6)))


class HalfKnown(nn.Module):
    """A mask that is known for all queries alike, and another one of the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        q, n = self.layer(x)[:, None], x.shape[1]
        mask = ((torch.arange(n) < 4)[None, None, None] & kept[:, None, :, None]).expand(-1, 1, n, n).clone()
        return weighted(F.scaled_dot_product_attention(q, q, q, attn_mask=mask | torch.eye(n, dtype=torch.bool)))


def test_a_mask_of_which_a_part_is_known_for_all_queries():
    assert_same(both(start(HalfKnown()), (floats("x", 2, 5, 6), integers("k", 2, 2, 5).bool()), run_batch=(floats("z", 3, 5, 6), integers("m", 2, 3, 5).bool())))


class FewKeys(nn.Module):
    """Many queries of a few keys, as an image has of its own in small."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.queries(x)[:, None], self.keys(x[:, ::5])[:, None]
        return weighted(F.scaled_dot_product_attention(q, k, k.tanh()))


def test_more_queries_than_keys():
    assert_same(both(start(FewKeys()), floats("x", 2, 15, 6), run_batch=floats("z", 3, 15, 6)))


class Picked(nn.Module):
    """Places whose numbers are tensors: of the batch, or of what is best."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(6, 4), nn.Parameter(torch.ones(5, 4))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        y = self.layer(x)
        best = y.mean((0, 1)).topk(2).indices
        return weighted(y[:, place]) + weighted(y[..., best[0]] * y[:, 1, best[1], None].mean()) + weighted(self.table[place - 4, 1:3])


def test_numbers_of_places_may_be_tensors():
    assert_same(both(start(Picked()), (floats("x", 2, 5, 6), torch.tensor(3)), run_batch=(floats("z", 3, 5, 6), torch.tensor(1))))


class Bracketed(nn.Module):
    """Rows of a table between whose bounds something lies, as NeRF looks up where to look again."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(6, 5), nn.Parameter(torch.ones(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        sums = self.layer(x).sigmoid().cumsum(-1)
        place = torch.searchsorted(sums.detach(), torch.linspace(0.1, 2, 4).expand(len(x), 4).contiguous())
        below, above = (place - 1).clamp(min=0), torch.clamp(place, max=4)
        return weighted(self.table[below] * sums.gather(1, above)[..., None]) + weighted(self.table[place.clamp(1, 3)])


def test_whole_numbers_within_bounds():
    model, x = start(Bracketed()), floats("x", 3, 6)
    assert_same(both(model, x, run_batch=floats("z", 4, 6)), 1e-6)
    expected = model(x).item()
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), example=x, memory="1MiB", threads=1, costs="estimated", progress=False)
    assert step(x) == pytest.approx(expected, rel=1e-5)


class Sentinel(nn.Module):
    """Places that are chosen, or none; in the shape of something that depends on parameters, a number that does not."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        best = y.topk(2, -1).indices
        best = torch.where(best >= 2, torch.full_like(best, -1), torch.maximum(best, (best + 1) % 4))
        kinds = torch.where(torch.ones_like(y).long() == 1, 0, -1)
        return weighted(y) + weighted(best.float() * x[:, :2] + (best == -1)) + weighted((kinds[:, :2] == best).float())


def test_whole_numbers_are_chosen_among():
    assert_same(both(start(Sentinel()), floats("x", 9, 6), run_batch=floats("z", 5, 6)))


class Neighbours(nn.Module):
    """As DGCNN counts points of all samples in a row: the nearest of each, by what was learnt."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        samples, points, _ = x.shape
        y = self.layer(x)
        nearest = (y @ y.mT).topk(2, -1).indices
        at = (nearest + torch.arange(samples).view(-1, 1, 1) * points).view(-1)
        return weighted(y.flatten(0, 1)[at].view(samples, points, 2, 4) - y[:, :, None])


def test_numbers_of_neighbours_among_all_samples():
    assert_same(both(start(Neighbours()), floats("x", 3, 5, 3), run_batch=floats("z", 2, 5, 3)))


class Far(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y * (y.argmax(-1, keepdim=True) * 10_000_000)).sum()


def test_whole_numbers_that_may_not_be_exact_are_refused():
    with pytest.raises(Unsupported, match="arithmetic in torch.int64"):
        both(start(Far()), floats("x", 3, 6))

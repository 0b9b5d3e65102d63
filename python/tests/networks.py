"""Small networks of the kinds that people train, for the tests and for what they record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support import floats, integers


class Residual(nn.Module):
    """ResNet-18's basic block."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.layer1, self.layer2, self.layer3 = Residual(8, 8, 1), Residual(8, 12, 2), Residual(12, 16, 2)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    """A transformer's block, norms first."""

    def __init__(self, width: int, heads: int, causal: bool, gelu: str):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate=gelu), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, width: int = 24):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 17, width))
        self.blocks = nn.Sequential(*[Block(width, 3, False, "none") for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Gpt(nn.Module):
    """GPT-2 in small: tied embedding, GELU by tanh, causal attention."""

    def __init__(self, words: int = 32, width: int = 16, length: int = 12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.h = nn.Sequential(*[Block(width, 2, True, "tanh") for _ in range(2)])
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.ln_f(self.h(x)))


def double_conv(inner: int, outer: int) -> nn.Sequential:
    layers = [nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.SiLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = double_conv(3, 8), double_conv(8, 12), double_conv(12, 16)
        self.up2, self.back2 = nn.ConvTranspose2d(16, 12, 2, stride=2), double_conv(24, 12)
        self.up1, self.back1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), double_conv(20, 8)
        self.out = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        c = self.back2(torch.cat([self.up2(c), b], 1))
        return self.out(self.back1(torch.cat([self.up1(c), a], 1)))


class Inverted(nn.Module):
    """MobileNet-v3's block: expand, depthwise, squeeze and excite, project."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, 5, padding=2, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish()
        )
        self.squeeze, self.excite = nn.Conv2d(inner, 4, 1), nn.Conv2d(4, inner, 1)
        self.project = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.project(y * scale)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.blocks = nn.Sequential(Inverted(8, 16), Inverted(8, 24))
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.blocks(self.stem(x)).mean((2, 3))))


class Video(nn.Module):
    """A U-Net over images with depth."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(2, 6, 3, padding=1, bias=False), nn.BatchNorm3d(6), nn.ReLU())
        self.inner = nn.Sequential(
            nn.Conv3d(6, 8, (3, 1, 1), padding=(1, 0, 0)), nn.ReLU(), nn.Conv3d(8, 8, 3, padding=1, groups=2)
        )
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)
        self.out = nn.Conv3d(14, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.inner(F.max_pool3d(a, 2))
        wide = F.interpolate(b[:, :4], scale_factor=2, mode="trilinear")
        return self.out(torch.cat([a, self.up(b), wide], 1))


class Gated(nn.Module):
    """A sentence read from both ends, its last word and its state."""

    def __init__(self):
        super().__init__()
        self.words, self.gru = nn.Embedding(20, 8), nn.GRU(8, 6, 2, batch_first=True, bidirectional=True)
        self.rnn, self.head = nn.RNN(12, 5, bias=False), nn.Linear(17, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x, h = self.gru(self.words(ids))
        return self.head(torch.cat([self.rnn(x.transpose(0, 1))[0][-1], h[0], h[3]], 1))


class Message(nn.Module):
    """Sums of what neighbours in a graph send, weighed by a softmax over each one's neighbours."""

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.tensor([[0, 1, 1, 3, 2, 0, 4], [1, 0, 2, 2, 2, 3, 0]]))
        self.send, self.weigh, self.head = nn.Linear(4, 8), nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, (start, end) = self.send(x), self.edges
        scores = self.weigh(torch.cat([x[:, start], x[:, end]], 2)).exp()
        total = torch.zeros_like(x[..., :1]).index_add(1, end, scores)
        sent = x[:, start] * scores / (total[:, end] + 1e-6)
        received = torch.zeros_like(x).scatter_add(1, end[:, None].expand_as(sent), sent)
        return self.head(received.relu()).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 12, 2, batch_first=True), nn.Linear(12, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class Routed(nn.Module):
    """Every word goes through the two experts that score best; then sums along the sentence, and features by size."""

    def __init__(self):
        super().__init__()
        self.words, self.gate = nn.Embedding(20, 8), nn.Linear(8, 5, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 6) for _ in range(5))
        self.head = nn.Linear(6, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        best, which = self.gate(x).topk(2, -1)
        experts = torch.stack([torch.tanh(expert(x)) for expert in self.experts], 2)
        chosen = experts.gather(2, which.unsqueeze(-1).expand(-1, -1, -1, 6))
        y = (chosen * best.softmax(-1).unsqueeze(-1)).sum(2)
        y = (y - 0.5 * y.mean(1, keepdim=True).detach()).cumsum(1)
        return self.head(y.sort(-1, descending=True)[0])


class Quantized(nn.Module):
    """Codes that move towards what comes to them, behind a layer of spectral norm: buffers that the network changes."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(9, 6), nn.Linear(6, 10)
        self.register_buffer("codes", floats("codes", 7, 6))
        self.register_buffer("counts", torch.ones(7))
        self.register_buffer("u", floats("u", 6))

    def forward(self, x: Tensor) -> Tensor:
        w = self.inner.weight
        with torch.no_grad():
            v = F.normalize(w.t() @ self.u, dim=0)
            self.u.copy_(F.normalize(w @ v, dim=0))
        z = F.linear(x, w / torch.dot(self.u.clone(), w @ v), self.inner.bias)
        nearest = (z.detach()[:, None] - self.codes).square().sum(2).argmin(1)
        code = self.codes[nearest]
        with torch.no_grad():
            came = F.one_hot(nearest, 7).to(z.dtype)
            self.counts.mul_(0.75).add_(came.sum(0), alpha=0.25)
            self.codes.add_(came.t() @ (z - code) / self.counts[:, None], alpha=0.5)
        return self.head(z + (code - z).detach())


def classified(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1])


def smoothed(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1], label_smoothing=0.1)


def weighed(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1], torch.tensor([0.5, 2.0, 1.0], dtype=output.dtype), label_smoothing=0.1)


def next_word(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())


@dataclass
class Example:
    """A network, its loss, and a batch of any size. `kinds` says by which rule of numbers the inputs are made:
    "floats", or an integer that they lie below."""

    build: Callable[[], nn.Module]
    loss: Callable
    shapes: tuple
    kinds: tuple

    def batch(self, size: int) -> tuple[Tensor, ...]:
        result = []
        for name, shape, kind in zip(("data", "labels"), self.shapes, self.kinds):
            made = floats(name, size, *shape) if kind == "floats" else integers(name, kind, size, *shape)
            result.append(made)
        return tuple(result)


EXAMPLES = {
    "resnet": Example(ResNet, classified, ((3, 32, 32), ()), ("floats", 10)),
    "vit": Example(ViT, smoothed, ((3, 16, 16), ()), ("floats", 10)),
    "gpt": Example(Gpt, next_word, ((12,), (12,)), (32, 32)),
    "unet": Example(UNet, classified, ((3, 16, 16), (16, 16)), ("floats", 4)),
    "mobilenet": Example(MobileNet, classified, ((3, 16, 16), ()), ("floats", 10)),
    "lstm": Example(Recurrent, next_word, ((5,), (5,)), (20, 20)),
    "video": Example(Video, weighed, ((2, 4, 6, 6), (4, 6, 6)), ("floats", 3)),
    "gated": Example(Gated, classified, ((9,), ()), (20, 10)),
    "message": Example(Message, weighed, ((5, 4), (5,)), ("floats", 3)),
    "quantized": Example(Quantized, classified, ((9,), ()), ("floats", 10)),
    "routed": Example(Routed, next_word, ((7,), (7,)), (20, 20)),
}


class Kept(nn.Module):
    """Dropout with a mask that is given: ones for what stays."""

    def __init__(self, mask: Tensor, p: float):
        super().__init__()
        self.mask, self.p = mask, p

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask.to(x.dtype).reshape(x.shape) / (1 - self.p)


def with_given_dropout(model: nn.Module, draw: Callable[[str], Tensor]) -> nn.Module:
    """The model with every Dropout replaced by the mask that `draw` gives for its path."""
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Dropout):
            parent, _, own = path.rpartition(".")
            setattr(model.get_submodule(parent), own, Kept(draw(path), module.p))
    return model


def element_count(shape) -> int:
    return math.prod(shape)

"""A plain reading of network files in PyTorch, to test conversion by. Not for training.

    result = run(document["training"], tensors, batch=4)
    result.loss.backward()

Every op type is written anew from what the contract of the file says, in the precision of the tensors given (doubles in
the tests), and gradients are PyTorch's. Nothing here is shared with the converters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Op = Mapping[str, Any]
Kernel = Callable[[Op, list[Tensor], "Run"], Any]
KERNELS: dict[str, Kernel] = {}


@dataclass
class Run:
    """Values by tensor name, and what random ops draw by. ``masks`` holds draws by op name instead."""

    values: dict[str, Tensor]
    batch: int
    dtype: torch.dtype
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))


def run(
    section: Mapping[str, Any], tensors: Mapping[str, Tensor], *, batch: int, masks: Optional[Mapping] = None
) -> Run:
    """Runs all ops of a section and adds up its objectives. Checks every shape that the file states."""
    floating = [t.dtype for t in tensors.values() if t.is_floating_point()]
    state = Run({}, batch, floating[0] if floating else torch.float64, masks or {})
    for entry in section["tensors"]:
        value = tensors[entry["name"]]
        state.values[entry["name"]] = value.reshape(sizes(entry["shape"], batch))
    for op in section["ops"]:
        _run_op(state, op)
    losses = [state.values[objective["loss"]] for objective in section["objectives"]]
    state.loss = torch.stack([loss.reshape(()) for loss in losses]).sum()
    return state


def _run_op(state: Run, op: Op) -> None:
    if op["type"] not in KERNELS:
        raise KeyError(f"no reference for {op['type']}")
    resolved = dict(op) | {"attributes": {k: sizes(v, state.batch) for k, v in op.get("attributes", {}).items()}}
    results = KERNELS[op["type"]](resolved, [state.values[name] for name in op["inputs"]], state)
    results = results if isinstance(results, tuple) else (results,)
    for i, name in enumerate(op["outputs"]):
        if "shapes" in op and list(results[i].shape) != sizes(op["shapes"][i], state.batch):
            raise ValueError(f"op '{op['name']}': {name} is {list(results[i].shape)}, the file says {op['shapes'][i]}")
        state.values[name] = results[i]


def sizes(value: Any, batch: int) -> Any:
    """A list of sizes with the batch put in; anything else as it is."""
    if not isinstance(value, list):
        return value
    return [_size(v, batch) if isinstance(v, str) else v for v in value]


def _size(text: str, batch: int) -> int:
    match = re.fullmatch(r"(?:(\d+)\*)?batch", text)
    if match is None:
        raise ValueError(f"'{text}' is no size")
    return int(match[1] or 1) * batch


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    def enter(body: Kernel) -> Kernel:
        for name in names:
            KERNELS[name] = body
        return body

    return enter


def attribute(op: Op, name: str, otherwise: Any = None) -> Any:
    value = op["attributes"].get(name, otherwise)
    return float(value) if value in ("inf", "-inf") else value


# --- Pointwise expressions ---

FUNCTIONS: dict[str, Callable] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "neg": lambda x: -x,
    "square": lambda x: x * x,
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "elu": lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x)),
    "gelu": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": lambda x, low, high: F.hardtanh(x, float(low), float(high)),
    "clamp": lambda x, low, high: torch.clamp(x, float(low), float(high)),
    "max": torch.maximum,
    "min": torch.minimum,
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    "not": lambda x: (x == 0),
    "and": lambda x, y: (x != 0) & (y != 0),
    "or": lambda x, y: (x != 0) | (y != 0),
    **{
        name: getattr(torch, name)
        for name in ("""abs exp log log1p expm1 sqrt rsqrt reciprocal sin cos atan erf sigmoid tanh relu sign floor round
            eq ne lt le gt ge""".split())
    },
}


def evaluate(expression: str, inputs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """ "mul(add(x0,x1),2.5)": a call, xK, or a number."""
    tokens = re.findall(r"[A-Za-z_]\w*|[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|inf|nan)|[(),]", expression)
    place = 0

    def term() -> Tensor:
        nonlocal place
        token = tokens[place]
        place += 1
        if re.fullmatch(r"x\d+", token):
            return inputs[int(token[1:])].to(dtype)
        if token in FUNCTIONS:
            place += 1  # (
            operands = [term()]
            while tokens[place] == ",":
                place += 1
                operands.append(term())
            place += 1  # )
            return FUNCTIONS[token](*operands).to(dtype)
        return torch.tensor(float(token), dtype=dtype)

    result = term()
    if place != len(tokens):
        raise ValueError(f"'{expression}' goes on after its end")
    return result


@kernel("Pointwise")
def pointwise(op: Op, x: list[Tensor], state: Run):
    result = evaluate(attribute(op, "expression"), x, state.dtype)
    return result.expand(torch.broadcast_shapes(*(t.shape for t in x)))


@kernel("ReluForward")
def relu(op: Op, x: list[Tensor], state: Run):
    return x[0].clamp(min=0) if not x[0].requires_grad else F.relu(x[0])


@kernel("Add")
def add(op: Op, x: list[Tensor], state: Run):
    return sum(x[1:], x[0])


@kernel("Assign")
def assign(op: Op, x: list[Tensor], state: Run):
    return x[1].detach()


@kernel("StopGradient")
def stop_gradient(op: Op, x: list[Tensor], state: Run):
    return x[0].detach()


# --- shapes ---


@kernel("Reshape")
def reshape(op: Op, x: list[Tensor], state: Run):
    return x[0].reshape(attribute(op, "shape"))


@kernel("Permute")
def permute(op: Op, x: list[Tensor], state: Run):
    return x[0].permute(attribute(op, "dims"))


@kernel("Expand")
def expand(op: Op, x: list[Tensor], state: Run):
    return x[0].expand(attribute(op, "shape"))


@kernel("Slice")
def slice_(op: Op, x: list[Tensor], state: Run):
    begin, size, step = attribute(op, "begin"), attribute(op, "size"), attribute(op, "step", 1)
    index = torch.arange(size) * step + begin
    return x[0].index_select(attribute(op, "axis"), index)


@kernel("Concat")
def concat(op: Op, x: list[Tensor], state: Run):
    return torch.cat(x, attribute(op, "axis"))


@kernel("Pad")
def pad(op: Op, x: list[Tensor], state: Run):
    result = x[0]
    mode, value = attribute(op, "mode"), attribute(op, "value", 0.0)
    for d, (begin, end) in enumerate(zip(attribute(op, "begin"), attribute(op, "end"))):
        result = _pad_dimension(result, d, begin, end, mode, value)
    return result


def _pad_dimension(x: Tensor, d: int, begin: int, end: int, mode: str, value: float) -> Tensor:
    size = x.shape[d]
    places = torch.arange(-begin, size + end)
    if mode == "reflect":
        places = torch.where(places < 0, -places, places)
        places = torch.where(places >= size, 2 * (size - 1) - places, places)
    inside = (places >= 0) & (places < size)
    result = x.index_select(d, places.clamp(0, size - 1))
    if mode == "constant":
        shape = [-1 if i == d else 1 for i in range(x.dim())]
        result = torch.where(inside.reshape(shape), result, torch.as_tensor(value, dtype=x.dtype))
    return result


@kernel("Gather")
def gather(op: Op, x: list[Tensor], state: Run):
    return x[0].gather(attribute(op, "axis"), x[1].long())


@kernel("IndexSelect")
def index_select(op: Op, x: list[Tensor], state: Run):
    return x[0].index_select(attribute(op, "axis"), x[1].long())


@kernel("Index")
def index(op: Op, x: list[Tensor], state: Run):
    return x[0][tuple(i.long() for i in x[1:])]


@kernel("Embedding")
def embedding(op: Op, x: list[Tensor], state: Run):
    padding = attribute(op, "padding_index", -1)
    rows = x[0][x[1].long()]
    return torch.where((x[1] == padding)[..., None], rows.detach(), rows) if padding >= 0 else rows


@kernel("Cast")
def cast(op: Op, x: list[Tensor], state: Run):
    types = {"f32": state.dtype, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8}
    return x[0].to(types[attribute(op, "dtype")])


@kernel("Sort")
def sort(op: Op, x: list[Tensor], state: Run):
    descending = bool(attribute(op, "descending", 0))
    return tuple(torch.sort(x[0], dim=attribute(op, "axis"), descending=descending, stable=True))


@kernel("TopK")
def topk(op: Op, x: list[Tensor], state: Run):
    """Of equal elements the first ones."""
    axis, count = attribute(op, "axis"), attribute(op, "k")
    values, places = torch.sort(x[0], dim=axis, descending=bool(attribute(op, "largest", 1)), stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


@kernel("Constant")
def constant(op: Op, x: list[Tensor], state: Run):
    return torch.full(attribute(op, "shape"), attribute(op, "value"), dtype=state.dtype)


# --- reductions and products ---


@kernel("Reduce")
def reduce(op: Op, x: list[Tensor], state: Run):
    functions = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "mean_of_squares": lambda x, **named: torch.mean(x * x, **named)}
    return functions[attribute(op, "function")](
        x[0], attribute(op, "dims"), keepdim=bool(attribute(op, "keep_dims", 0))
    )


@kernel("CumulativeSum")
def cumulative_sum(op: Op, x: list[Tensor], state: Run):
    return x[0].cumsum(attribute(op, "axis"))


@kernel("SoftmaxForward")
def softmax(op: Op, x: list[Tensor], state: Run):
    function = torch.log_softmax if attribute(op, "log", 0) else torch.softmax
    return function(x[0], attribute(op, "axis"))


@kernel("MatMul")
def matmul(op: Op, x: list[Tensor], state: Run):
    a = x[0].mT if attribute(op, "transpose_a", 0) else x[0]
    b = x[1].mT if attribute(op, "transpose_b", 0) else x[1]
    return a @ b


@kernel("FullyConnectedForward")
def fully_connected(op: Op, x: list[Tensor], state: Run):
    if x[0].dim() != 2 or x[1].dim() != 2:
        raise ValueError(f"op '{op['name']}': rows and a matrix are expected")
    y = x[0] @ x[1].T
    return y + x[2] if len(x) > 2 else y


# --- images ---


def _ungrouped(weight: Tensor, groups: int, axes: int) -> Tensor:
    """Grouped weights carry the groups as a dimension of their own."""
    if weight.dim() != axes + (2 if groups == 1 else 3):
        raise ValueError(f"{groups} groups with weights {list(weight.shape)}")
    return weight if groups == 1 else weight.flatten(0, 1)


def _window(op: Op, x: Tensor) -> tuple[int, dict[str, list[int]]]:
    """How many dimensions an image has, and the attributes of a window over it."""
    axes = x.dim() - 2
    defaults = {"stride": [1] * axes, "dilation": [1] * axes, "padding": [0] * axes * 2, "output_padding": [0] * axes}
    return axes, {name: attribute(op, name, default) for name, default in defaults.items()}


@kernel("ConvForward")
def conv(op: Op, x: list[Tensor], state: Run):
    axes, window = _window(op, x[0])
    groups, bias = attribute(op, "groups", 1), x[2] if len(x) > 2 else None
    sides = [p for i in reversed(range(axes)) for p in (window["padding"][i], window["padding"][i + axes])]
    weight = _ungrouped(x[1], groups, axes)
    run_conv = F.conv2d if axes == 2 else F.conv3d
    return run_conv(F.pad(x[0], sides), weight, bias, window["stride"], 0, window["dilation"], groups)


@kernel("ConvTransposeForward")
def conv_transpose(op: Op, x: list[Tensor], state: Run):
    axes, window = _window(op, x[0])
    groups, bias = attribute(op, "groups", 1), x[2] if len(x) > 2 else None
    weight, padding, extra = _ungrouped(x[1], groups, axes), window["padding"][:axes], window["output_padding"]
    run_conv = F.conv_transpose2d if axes == 2 else F.conv_transpose3d
    return run_conv(x[0], weight, bias, window["stride"], padding, extra, groups, window["dilation"])


@kernel("MaxPoolForward")
def max_pool(op: Op, x: list[Tensor], state: Run):
    _, window = _window(op, x[0])
    top, left, *_ = window["padding"]
    ceil = bool(attribute(op, "ceil_mode", 0))
    return F.max_pool2d(x[0], attribute(op, "kernel"), window["stride"], (top, left), window["dilation"], ceil)


@kernel("AvgPoolForward")
def avg_pool(op: Op, x: list[Tensor], state: Run):
    top, left, *_ = attribute(op, "padding")
    flags = bool(attribute(op, "ceil_mode", 0)), bool(attribute(op, "count_include_pad", 1))
    return F.avg_pool2d(x[0], attribute(op, "kernel"), attribute(op, "stride"), (top, left), *flags)


@kernel("AdaptiveAvgPoolForward")
def adaptive_avg_pool(op: Op, x: list[Tensor], state: Run):
    return F.adaptive_avg_pool2d(x[0], attribute(op, "size"))


@kernel("AdaptiveMaxPoolForward")
def adaptive_max_pool(op: Op, x: list[Tensor], state: Run):
    return F.adaptive_max_pool2d(x[0], attribute(op, "size"))


@kernel("ResizeForward")
def resize(op: Op, x: list[Tensor], state: Run):
    mode, size, scale = attribute(op, "mode"), attribute(op, "size"), attribute(op, "scale")
    corners = None if mode == "nearest" else bool(attribute(op, "align_corners", 0))
    if scale is None:
        return F.interpolate(x[0], size, mode=mode, align_corners=corners)
    factors = [f or s / n for f, s, n in zip(scale, size, x[0].shape[2:])]
    return F.interpolate(x[0], scale_factor=factors, mode=mode, align_corners=corners)


# --- recurrent layers ---


@kernel("RecurrentForward")
def recurrent(op: Op, x: list[Tensor], state: Run):
    cell, given, weight, h = attribute(op, "cell"), *x[:3]
    c = x[3] if cell == "lstm" else None
    rest = x[4 if cell == "lstm" else 3 :]
    ys, cs, kept = {}, {}, {}
    order = range(len(given))
    for t in reversed(order) if attribute(op, "reverse", 0) else order:
        s = h @ weight.T + (rest[0] if rest else 0)
        if cell == "lstm":
            i, f, g, o = (given[t] + s).chunk(4, 1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            c = f * c + i * g
            h, cs[t], kept[t] = o * c.tanh(), c, torch.cat([i, f, g, o], 1)
        elif cell == "gru":
            (xr, xz, xn), (sr, sz, sn) = given[t].chunk(3, 1), s.chunk(3, 1)
            r, z = (xr + sr).sigmoid(), (xz + sz).sigmoid()
            n = (xn + r * sn).tanh()
            h, kept[t] = (1 - z) * n + z * h, torch.cat([r, z, n, sn], 1)
        else:
            h = (given[t] + s).tanh() if cell == "tanh" else (given[t] + s).relu()
        ys[t] = h
    return tuple(torch.stack([values[t] for t in order]) for values in (ys, cs, kept) if values)


# --- adding at indices ---


@kernel("GatherBackward")
def add_elements(op: Op, x: list[Tensor], state: Run):
    zeros = torch.zeros(attribute(op, "shape"), dtype=x[0].dtype)
    return zeros.scatter_add(attribute(op, "axis"), x[1].long(), x[0])


@kernel("IndexSelectBackward")
def add_rows(op: Op, x: list[Tensor], state: Run):
    axis, shape = attribute(op, "axis"), list(x[0].shape)
    shape[axis] = attribute(op, "length")
    return torch.zeros(shape, dtype=x[0].dtype).index_add(axis, x[1].long(), x[0])


@kernel("IndexBackward")
def add_at_indices(op: Op, x: list[Tensor], state: Run):
    zeros = torch.zeros(attribute(op, "shape"), dtype=x[0].dtype)
    return zeros.index_put(tuple(i.long() for i in x[1:]), x[0], accumulate=True)


# --- normalisation ---


@kernel("BatchNormForward")
def batch_norm(op: Op, x: list[Tensor], state: Run):
    data, gamma, beta, running_mean, running_var = x
    epsilon, momentum = attribute(op, "epsilon", 1e-5), attribute(op, "momentum", 0.1)
    channel = [1, -1] + [1] * (data.dim() - 2)
    dims = [d for d in range(data.dim()) if d != 1]
    if attribute(op, "training", 1):
        mean, variance = data.mean(dims), data.var(dims, correction=0)
    else:
        mean, variance = running_mean, running_var
    inv_std = (variance + epsilon).rsqrt()
    y = (data - mean.reshape(channel)) * (inv_std * gamma).reshape(channel) + beta.reshape(channel)
    if not attribute(op, "training", 1):
        return y
    count = data.numel() // data.shape[1]
    unbiased = variance.detach() * count / (count - 1)
    return (
        y,
        mean,
        inv_std,
        (1 - momentum) * running_mean + momentum * mean.detach(),
        (1 - momentum) * running_var + momentum * unbiased,
    )


def _affine(op: Op, y: Tensor, factors: Sequence[Tensor], shape: Callable[[Tensor], Tensor]) -> Tensor:
    expected = {"none": 0, "gamma": 1, "gamma_beta": 2}[attribute(op, "affine")]
    if len(factors) != expected:
        raise ValueError(f"op '{op['name']}': {expected} factors are expected, {len(factors)} given")
    y = y * shape(factors[0]) if expected >= 1 else y
    return y + shape(factors[1]) if expected == 2 else y


@kernel("LayerNormForward")
def layer_norm(op: Op, x: list[Tensor], state: Run):
    dims = list(range(x[0].dim() - attribute(op, "axes"), x[0].dim()))
    mean = x[0].mean(dims, keepdim=True)
    rstd = (x[0].var(dims, correction=0, keepdim=True) + attribute(op, "epsilon")).rsqrt()
    return _affine(op, (x[0] - mean) * rstd, x[1:], lambda f: f), mean, rstd


@kernel("RmsNormForward")
def rms_norm(op: Op, x: list[Tensor], state: Run):
    dims = list(range(x[0].dim() - attribute(op, "axes"), x[0].dim()))
    rstd = ((x[0] * x[0]).mean(dims, keepdim=True) + attribute(op, "epsilon")).rsqrt()
    return _affine(op, x[0] * rstd, x[1:], lambda f: f), rstd


@kernel("GroupNormForward")
def group_norm(op: Op, x: list[Tensor], state: Run):
    n, channels, *rest = x[0].shape
    rows = x[0].reshape(n, attribute(op, "groups"), -1)
    mean = rows.mean(2, keepdim=True)
    rstd = (rows.var(2, correction=0, keepdim=True) + attribute(op, "epsilon")).rsqrt()
    y = ((rows - mean) * rstd).reshape(x[0].shape)
    return _affine(op, y, x[1:], lambda f: f.reshape([-1] + [1] * len(rest))), mean, rstd


# --- attention and losses ---


class _Alike(torch.autograd.Function):
    """Zeros, with the gradient of what they were."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


@kernel("AttentionForward")
def attention(op: Op, x: list[Tensor], state: Run):
    q, k, v, *rest = x
    dropout = attribute(op, "dropout", 0.0)
    masks = rest[:-2] if dropout > 0 else rest
    documents = masks.pop() if attribute(op, "documents", 0) else None
    if attribute(op, "enable_gqa", 0):
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.mT * attribute(op, "scale")
    cap = attribute(op, "softcap", 0.0)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    unmasked = scores
    if attribute(op, "causal", 0):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    behind = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
    far = q.shape[-2] + k.shape[-2]
    outside = (behind < -attribute(op, "window_left", far)) | (behind > attribute(op, "window_right", far))
    scores = scores.masked_fill(outside, float("-inf"))
    if documents is not None:
        others = documents[:, :, None] != documents[:, None, :]
        scores = scores.masked_fill(others.reshape(len(others), *[1] * (q.dim() - 3), *others.shape[1:]), float("-inf"))
    for mask in masks:
        if mask.is_floating_point():
            scores = scores + mask
            unmasked = unmasked + mask
        else:
            scores = scores.masked_fill(mask == 0, float("-inf"))
    blind = torch.isneginf(scores).all(-1, keepdim=True)  # queries that may attend to no key give 0, or attend to all alike
    weights = torch.softmax(scores.masked_fill(blind, 0), -1).masked_fill(blind, 0)
    if attribute(op, "blind", 0):
        alike = _Alike.apply(unmasked) if attribute(op, "blind") == 2 else torch.zeros_like(unmasked)
        weights = torch.where(blind, torch.softmax(alike, -1), weights)
    if dropout > 0:
        weights = weights * _kept(op, weights.shape, dropout, rest[-2:], state) / (1 - dropout)
    return weights @ v


@kernel("SoftmaxCrossEntropyForward")
def cross_entropy(op: Op, x: list[Tensor], state: Run):
    logits, labels = x[0], x[1].long()
    logs = torch.log_softmax(logits, 1)
    smoothing = attribute(op, "label_smoothing", 0.0)
    counted = labels != attribute(op, "ignore_index") if attribute(op, "ignore_index") is not None else labels >= 0
    own = logs.gather(1, torch.where(counted, labels, 0)[:, None])[:, 0]
    each = -(1 - smoothing) * own - smoothing * logs.mean(1)
    total = torch.where(counted, each, 0).sum()
    reduction = attribute(op, "reduction")
    if reduction == "mean":
        total = total / counted.sum()
    elif reduction is None:
        total = total / len(labels)
    correct = ((logits.argmax(1) == labels) & counted).sum().to(logits.dtype)
    return total, logs.exp(), correct


# --- random numbers: Philox4x32-10 by counter, as the core draws them ---


def random_bits(seed: int, step: int, salt: int, count: int) -> np.ndarray:
    """Draws [0, count) of a stream: 32 bits each."""
    blocks = (count + 3) // 4
    low = np.uint64(0xFFFFFFFF)
    c = [np.arange(blocks, dtype=np.uint64) & low] + [
        np.full(blocks, v & 0xFFFFFFFF, dtype=np.uint64) for v in (salt, step, step >> 32)
    ]
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        k0, k1 = np.uint64(key[0]), np.uint64(key[1])
        c = [(b >> np.uint64(32)) ^ c[1] ^ k0, b & low, (a >> np.uint64(32)) ^ c[3] ^ k1, a & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1).reshape(-1)[:count].astype(np.uint32)


def _draw(op: Op, shape: Sequence[int], counters: Sequence[Tensor]) -> Tensor:
    step, seed = (int(t) for t in counters)
    count = int(np.prod(shape)) if len(shape) else 1
    return torch.from_numpy(random_bits(seed, step, attribute(op, "salt", 0), count).astype(np.int64)).reshape(
        tuple(shape)
    )


def _kept(op: Op, shape: Sequence[int], p: float, counters: Sequence[Tensor], state: Run) -> Tensor:
    """Ones for what stays."""
    if op["name"] in state.masks:
        return state.masks[op["name"]].to(state.dtype)
    return (_draw(op, shape, counters) >= int(p * 2**32)).to(state.dtype)


@kernel("DropoutForward")
def dropout(op: Op, x: list[Tensor], state: Run):
    p = attribute(op, "p")
    return x[0] * _kept(op, x[0].shape, p, x[1:], state) / (1 - p)


@kernel("Bernoulli")
def bernoulli(op: Op, x: list[Tensor], state: Run):
    """Ones with probability p: what dropout with 1 - p keeps."""
    return _kept(op, attribute(op, "shape"), 1 - attribute(op, "p"), x, state)


@kernel("RandomNormal")
def random_normal(op: Op, x: list[Tensor], state: Run):
    if op["name"] in state.masks:
        return state.masks[op["name"]].to(state.dtype)
    shape = attribute(op, "shape")
    count = (int(np.prod(shape)) + 3) // 4 * 4
    step, seed = (int(t) for t in x)
    u = (random_bits(seed, step, attribute(op, "salt", 0), count).astype(np.float64) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2 * np.log(u[0::2])), 2 * np.pi * u[1::2]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[: int(np.prod(shape))]
    return attribute(op, "mean", 0.0) + attribute(op, "stddev", 1.0) * torch.from_numpy(normal).reshape(shape).to(
        state.dtype
    )

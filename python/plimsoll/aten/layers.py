"""Layers with weights, pools and resizes. One-dimensional ones run as images of height 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from torch.fx import Node

from .registry import Arguments, Refusal, axis, broadcast, converts

if TYPE_CHECKING:
    from ..writer import Writer


# --- linear and matrix products ---


@converts("linear.default")
def linear(w: "Writer", node: Node, a: Arguments):
    """Any leading dimensions become rows."""
    x, weight = a["input"], a["weight"]
    if len(w.shape(weight)) != 2:
        raise Refusal("a linear layer with one output and no dimension for it")
    outer, inner = w.shape(weight)
    rows = w.reshape(x, [math.prod(w.shape(x)[:-1]), inner], "rows")
    inputs = [rows, w.weight(weight, [outer, inner])] + ([a["bias"]] if a["bias"] is not None else [])
    y = w.emit("FullyConnectedForward", inputs, [w.shape_of[rows][0], outer])
    return w.reshape(y, w.shape(node))


@converts("matmul.default", "mm.default", "bmm.default")
def matmul(w: "Writer", node: Node, a: Arguments):
    x, y = a["self"], a.get("other") if "other" in a else a["mat2"]
    return w.reshape(product(w, x, y), w.shape(node))


def product(w: "Writer", x: Node, y: Node) -> str:
    """MatMul of two nodes; a transposition right before it is left to the op. Vectors become matrices."""
    (a, transpose_a), (b, transpose_b) = _untransposed(w, x), _untransposed(w, y)
    a_shape, b_shape = w.shape(a), w.shape(b)
    if len(a_shape) == 1:
        a_shape = [1] + a_shape
    if len(b_shape) == 1:
        b_shape = b_shape + [1]
    inputs = [w.reshape(a, a_shape, "a"), w.reshape(b, b_shape, "b")]
    m = a_shape[-1] if transpose_a else a_shape[-2]
    n = b_shape[-2] if transpose_b else b_shape[-1]
    batch = broadcast([a_shape[:-2], b_shape[:-2]])
    attributes = {"transpose_a": int(transpose_a), "transpose_b": int(transpose_b)}
    return w.emit("MatMul", inputs, [*batch, m, n], attributes)


def _untransposed(w: "Writer", x: Node) -> tuple[Node, bool]:
    """The input of a permute that swaps the last two dimensions alone, and whether there was one."""
    if x.op == "call_function" and str(x.target) == "aten.permute.default":
        rank = len(w.shape(x))
        dims = [axis(d, rank) for d in x.args[1]]  # type: ignore[union-attr]
        if rank >= 2 and dims == [*range(rank - 2), rank - 1, rank - 2]:
            return x.args[0], True  # type: ignore[return-value]
    return x, False


@converts("addmm.default", "baddbmm.default")
def addmm(w: "Writer", node: Node, a: Arguments):
    x, y = (a["mat1"], a["mat2"]) if "mat1" in a else (a["batch1"], a["batch2"])
    result = product(w, x, y)
    if a["alpha"] == 1 and a["beta"] == 1:
        return w.pointwise("add({0},{1})", [result, a["self"]], "bias")
    return w.pointwise("add(mul({0},{2}),mul({1},{3}))", [result, a["self"], a["alpha"], a["beta"]], "bias")


# --- convolutions ---


def _pair(value: Union[int, Sequence[int]], rank: int, fill: int) -> list[int]:
    """Two numbers for height and width; a one-dimensional layer has `fill` for its height."""
    values = [value] * rank if isinstance(value, int) else list(value)
    values = values * rank if len(values) == 1 and rank > 1 else values
    return [fill] * (2 - rank) + values


def _image(w: "Writer", x: Node, rank: int) -> tuple[str, list[int], bool]:
    """x as N x C x H x W; its shape; whether it came without a batch."""
    shape = w.shape(x)
    unbatched = len(shape) == rank + 1
    full = ([1] if unbatched else []) + shape
    if rank == 1:
        full = full[:2] + [1] + full[2:]
    return w.reshape(x, full, "image"), full, unbatched


def _conv_weight(w: "Writer", weight: Node, groups: int, rank: int) -> tuple[str, list[int]]:
    """Grouped weights carry the groups as a dimension of their own. Also gives (height, width) of the kernel."""
    outer, inner, *kernel = w.shape(weight)
    kernel = _pair(kernel, rank, 1)
    shape = [outer, inner, *kernel] if groups == 1 else [groups, outer // groups, inner, *kernel]
    return w.weight(weight, shape), kernel


def _same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """What keeps the size at stride 1: the larger half at the end, as PyTorch has it."""
    total = [d * (k - 1) for k, d in zip(kernel, dilation)]
    begin = [t // 2 for t in total]
    return begin + [t - b for t, b in zip(total, begin)]


@converts("conv1d.default", "conv2d.default", "conv1d.padding", "conv2d.padding")
def conv(w: "Writer", node: Node, a: Arguments):
    rank = 1 if "conv1d" in str(node.target) else 2
    x, shape, _ = _image(w, a["input"], rank)
    weight, kernel = _conv_weight(w, a["weight"], a["groups"], rank)
    stride, dilation = _pair(a["stride"], rank, 1), _pair(a["dilation"], rank, 1)
    if isinstance(a["padding"], str):
        padding = _same_padding(kernel, dilation) if a["padding"] == "same" else [0, 0, 0, 0]
    else:
        padding = _pair(a["padding"], rank, 0) * 2
    attributes = {"stride": stride, "padding": padding}
    if dilation != [1, 1]:
        attributes["dilation"] = dilation
    if a["groups"] != 1:
        attributes["groups"] = a["groups"]
    size = [
        (shape[2 + i] + padding[i] + padding[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    inputs = [x, weight] + ([a["bias"]] if a["bias"] is not None else [])
    y = w.emit("ConvForward", inputs, [shape[0], w.shape(a["weight"])[0], *size], attributes)
    return w.reshape(y, w.shape(node))


@converts("conv_transpose1d.default", "conv_transpose2d.input")
def conv_transpose(w: "Writer", node: Node, a: Arguments):
    rank = 1 if "transpose1d" in str(node.target) else 2
    x, shape, _ = _image(w, a["input"], rank)
    weight, kernel = _conv_weight(w, a["weight"], a["groups"], rank)
    stride, dilation = _pair(a["stride"], rank, 1), _pair(a["dilation"], rank, 1)
    padding, extra = _pair(a["padding"], rank, 0), _pair(a["output_padding"], rank, 0)
    attributes = {"stride": stride, "padding": padding * 2}
    for name, value, default in (
        ("dilation", dilation, [1, 1]),
        ("groups", a["groups"], 1),
        ("output_padding", extra, [0, 0]),
    ):
        if value != default:
            attributes[name] = value
    size = [
        (shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1 + extra[i] for i in range(2)
    ]
    inputs = [x, weight] + ([a["bias"]] if a["bias"] is not None else [])
    y = w.emit("ConvTransposeForward", inputs, [shape[0], w.shape(a["weight"])[1] * a["groups"], *size], attributes)
    return w.reshape(y, w.shape(node))


# --- pools ---


@converts(
    "max_pool1d.default",
    "max_pool2d.default",
    "max_pool2d_with_indices.default",
    "avg_pool1d.default",
    "avg_pool2d.default",
)
def pool(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    rank = 1 if "pool1d" in name else 2
    x, shape, _ = _image(w, a["self"], rank)
    kernel = _pair(a["kernel_size"], rank, 1)
    stride = _pair(a["stride"], rank, 1) if a["stride"] else kernel
    padding = _pair(a["padding"], rank, 0)
    if any(d != 1 for d in _pair(a.get("dilation", 1), rank, 1)):
        raise Refusal("a pool with dilation")
    if a.get("divisor_override"):
        raise Refusal("divisor_override")
    attributes: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding * 2}
    if a["ceil_mode"]:
        attributes["ceil_mode"] = 1
    if name.startswith("avg"):
        attributes["count_include_pad"] = int(a["count_include_pad"])
    elif math.prod(kernel) > 256:
        raise Refusal(f"a max-pooling window of {math.prod(kernel)} elements; at most 256 are possible")
    value = node.meta["val"][0] if name.endswith("with_indices") else node.meta["val"]
    after = [int(n) for n in value.shape]
    y = w.emit(
        "AvgPoolForward" if name.startswith("avg") else "MaxPoolForward",
        [x],
        [*shape[:2], *_pair(after[-rank:], rank, 1)],
        attributes,
    )
    result = w.reshape(y, after)
    return (result, None) if name.endswith("with_indices") else result


@converts(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    "adaptive_max_pool1d.default",
    "adaptive_max_pool2d.default",
)
def adaptive_pool(w: "Writer", node: Node, a: Arguments):
    """Where the sizes divide, an ordinary pool; windows of the same size otherwise do not exist."""
    name = str(node.target).split(".")[1]
    rank, is_max = (1 if name.endswith("1d") else 2), "max" in name
    x, shape, _ = _image(w, a["self"], rank)
    value = node.meta["val"][0] if is_max else node.meta["val"]
    after = [int(n) for n in value.shape]
    size = _pair(after[-rank:], rank, 1)
    kernel = [n // s for n, s in zip(shape[2:], size)]
    full = [*shape[:2], *size]
    if all(n % s == 0 for n, s in zip(shape[2:], size)) and not (is_max and math.prod(kernel) > 256):
        attributes = {"kernel": kernel, "stride": kernel, "padding": [0, 0, 0, 0]}
        y = x if kernel == [1, 1] else w.emit("MaxPoolForward" if is_max else "AvgPoolForward", [x], full, attributes)
    else:
        y = w.emit("AdaptiveMaxPoolForward" if is_max else "AdaptiveAvgPoolForward", [x], full, {"size": size})
    result = w.reshape(y, after)
    return (result, None) if is_max else result


# --- resizes ---


@converts(
    "upsample_nearest1d.vec",
    "upsample_nearest1d.default",
    "upsample_nearest2d.vec",
    "upsample_nearest2d.default",
    "upsample_bilinear2d.vec",
    "upsample_bilinear2d.default",
    "upsample_bicubic2d.vec",
    "upsample_bicubic2d.default",
)
def resize(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    rank = 1 if name.endswith("1d") else 2
    x, shape, _ = _image(w, a.get("input") if "input" in a else a["self"], rank)
    size = _pair(w.shape(node)[-rank:], rank, 1)
    for given, n, s in zip(_factors(a, rank), shape[2:], size):
        if given is not None and abs(given - s / n) > 1e-9:
            raise Refusal(f"a scale factor of {given} for {n} elements, which gives {s}; a whole number is expected")
    mode = name.removeprefix("upsample_")[:-2]
    attributes = {"size": size, "mode": mode, "align_corners": int(bool(a.get("align_corners")))}
    return w.reshape(w.emit("ResizeForward", [x], [*shape[:2], *size], attributes), w.shape(node))


def _factors(a: Arguments, rank: int) -> list[Optional[float]]:
    """The scale factors that the caller gave, for height and width; without them the sizes say the scale."""
    given = a.get("scale_factors")
    given = given if given is not None else [a.get("scales_h"), a.get("scales_w")] if rank == 2 else [a.get("scales")]
    return [None] * (2 - rank) + list(given)

"""Layers with weights, pools and resizes. One-dimensional ones run as images of height 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import torch
import torch.nn.functional as functional
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


@converts("mv.default", "dot.default")
def vector_product(w: "Writer", node: Node, a: Arguments):
    return w.reshape(product(w, a["self"], a.get("vec") or a["tensor"]), w.shape(node))


@converts("_trilinear.default")
def bilinear(w: "Writer", node: Node, a: Arguments):
    """nn.Bilinear: y[n, o] = the sum over i and j of x[n, i] weight[o, i, j] z[n, j]."""
    if (a["expand1"], a["expand2"], a["expand3"], a["sumdim"]) != ([1, 3], [0], [1, 2], [2, 3]):
        raise Refusal("a product of three tensors other than nn.Bilinear's")
    rows, inner = w.shape(a["i1"])
    outer, _, other = w.shape(a["i2"])
    matrix = w.reshape(w.weight(a["i2"], [outer, inner, other]), [outer * inner, other], "matrix")
    half = w.emit("FullyConnectedForward", [a["i3"], matrix], [rows, outer * inner], part="half")
    inputs = [w.reshape(half, [rows, outer, inner]), w.reshape(a["i1"], [rows, inner, 1], "column")]
    return w.reshape(w.emit("MatMul", inputs, [rows, outer, 1], {"transpose_a": 0, "transpose_b": 0}), w.shape(node))


@converts("addmm.default", "baddbmm.default", "addbmm.default", "addmv.default")
def addmm(w: "Writer", node: Node, a: Arguments):
    if "vec" in a:
        x, y = a["mat"], a["vec"]
    else:
        x, y = (a["mat1"], a["mat2"]) if "mat1" in a else (a["batch1"], a["batch2"])
    result = w.reshape(product(w, x, y), broadcast([w.shape(x)[:-1] + (w.shape(y)[-1:] if len(w.shape(y)) > 1 else [])]))
    if "addbmm" in str(node.target):
        result = w.reduce(result, "sum", [0], False, "of_all")
    if a["alpha"] == 1 and a["beta"] == 1:
        return w.pointwise("add({0},{1})", [result, a["self"]], "bias")
    return w.pointwise("add(mul({0},{2}),mul({1},{3}))", [result, a["self"], a["alpha"], a["beta"]], "bias")


# --- convolutions ---

# Attributes of windows are numbers for height and width, or for depth, height and width.


def _sizes(value: Union[int, Sequence[int]], rank: int, fill: int) -> list[int]:
    """A number for each dimension; a one-dimensional layer has `fill` for its height."""
    values = [value] * rank if isinstance(value, int) else list(value)
    values = values * rank if len(values) == 1 and rank > 1 else values
    return [fill] * (2 - rank) + values


def _rank(node: Node) -> int:
    """Of "aten.conv3d.default": 3."""
    return int(next(c for c in str(node.target) if c.isdigit()))


def _image(w: "Writer", x: Node, rank: int) -> tuple[str, list[int]]:
    """x as N x C x H x W or N x C x D x H x W; its shape."""
    shape = w.shape(x)
    full = ([1] if len(shape) == rank + 1 else []) + shape
    if rank == 1:
        full = full[:2] + [1] + full[2:]
    return w.reshape(x, full, "image"), full


def _conv_weight(w: "Writer", weight: Node, groups: int, rank: int) -> tuple[str, list[int]]:
    """Grouped weights carry the groups as a dimension of their own. Also gives the size of the kernel."""
    outer, inner, *kernel = w.shape(weight)
    kernel = _sizes(kernel, rank, 1)
    shape = [outer, inner, *kernel] if groups == 1 else [groups, outer // groups, inner, *kernel]
    return w.weight(weight, shape), kernel


def _same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """What keeps the size at stride 1: the larger half at the end, as PyTorch has it."""
    total = [d * (k - 1) for k, d in zip(kernel, dilation)]
    begin = [t // 2 for t in total]
    return begin + [t - b for t, b in zip(total, begin)]


@converts("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv(w: "Writer", node: Node, a: Arguments):
    rank = _rank(node)
    x, shape = _image(w, a["input"], rank)
    weight, kernel = _conv_weight(w, a["weight"], a["groups"], rank)
    axes = len(kernel)
    stride, dilation = _sizes(a["stride"], rank, 1), _sizes(a["dilation"], rank, 1)
    if isinstance(a["padding"], str):
        padding = _same_padding(kernel, dilation) if a["padding"] == "same" else [0] * axes * 2
    else:
        padding = _sizes(a["padding"], rank, 0) * 2
    attributes = {"stride": stride, "padding": padding}
    if any(d != 1 for d in dilation):
        attributes["dilation"] = dilation
    if a["groups"] != 1:
        attributes["groups"] = a["groups"]
    size = [
        (shape[2 + i] + padding[i] + padding[i + axes] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(axes)
    ]
    inputs = [x, weight] + ([a["bias"]] if a["bias"] is not None else [])
    y = w.emit("ConvForward", inputs, [shape[0], w.shape(a["weight"])[0], *size], attributes)
    return w.reshape(y, w.shape(node))


@converts("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(w: "Writer", node: Node, a: Arguments):
    rank = _rank(node)
    x, shape = _image(w, a["input"], rank)
    weight, kernel = _conv_weight(w, a["weight"], a["groups"], rank)
    stride, dilation = _sizes(a["stride"], rank, 1), _sizes(a["dilation"], rank, 1)
    padding, extra = _sizes(a["padding"], rank, 0), _sizes(a["output_padding"], rank, 0)
    attributes: dict[str, Any] = {"stride": stride, "padding": padding * 2}
    if any(d != 1 for d in dilation):
        attributes["dilation"] = dilation
    if a["groups"] != 1:
        attributes["groups"] = a["groups"]
    if any(extra):
        attributes["output_padding"] = extra
    size = [
        (shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1 + extra[i]
        for i in range(len(kernel))
    ]
    inputs = [x, weight] + ([a["bias"]] if a["bias"] is not None else [])
    y = w.emit("ConvTransposeForward", inputs, [shape[0], w.shape(a["weight"])[1] * a["groups"], *size], attributes)
    return w.reshape(y, w.shape(node))


# --- over depth, height and width ---

# Pools and resizes of three dimensions are one over height and width and one over depth: the largest of the largest, the
# mean of means.

Axes = tuple[int, Optional[int]]  # the dimensions that the height and width of an image are; none: each row alone
OverPlane = Callable[[str, Axes, list[int]], str]


def _over_axes(w: "Writer", x: str, size: Sequence[int], run: OverPlane, depth_first: bool = False) -> str:
    """Runs ``run(image, axes, shape of the result)`` over height and width, and of images with depth over that as well."""
    n, c, *before = w.shape_of[x]
    if len(before) == 2:
        return run(x, (0, 1), [n, c, *size])

    def over_plane(x: str) -> str:
        depth, *plane = w.shape_of[x][2:]
        y = run(w.reshape(x, [n, c * depth, *plane], "planes"), (1, 2), [n, c * depth, *size[1:]])
        return w.reshape(y, [n, c, depth, *size[1:]], "depth")

    def over_depth(x: str) -> str:
        depth, *plane = w.shape_of[x][2:]
        pixels = math.prod(plane)
        y = run(w.reshape(x, [n, c, depth, pixels], "pixels"), (0, None), [n, c, size[0], pixels])
        return w.reshape(y, [n, c, size[0], *plane], "depth")

    return over_plane(over_depth(x)) if depth_first else over_depth(over_plane(x))


@converts(
    "max_pool1d.default",
    "max_pool2d.default",
    "max_pool2d_with_indices.default",
    "max_pool3d.default",
    "max_pool3d_with_indices.default",
    "avg_pool1d.default",
    "avg_pool2d.default",
    "avg_pool3d.default",
)
def pool(w: "Writer", node: Node, a: Arguments):
    name, rank = str(node.target).split(".")[1], _rank(node)
    x, _ = _image(w, a["self"], rank)
    kernel, padding = _sizes(a["kernel_size"], rank, 1), _sizes(a["padding"], rank, 0)
    stride = _sizes(a["stride"], rank, 1) if a["stride"] else kernel
    dilation = _sizes(a.get("dilation", 1), rank, 1)
    with_indices = name.endswith("with_indices")
    after = [int(n) for n in (node.meta["val"][0] if with_indices else node.meta["val"]).shape]

    def run(x: str, axes: Axes, shape: list[int]) -> str:
        of = lambda values, neutral: [neutral if d is None else values[d] for d in axes]  # noqa: E731
        attributes: dict[str, Any] = {"kernel": of(kernel, 1), "stride": of(stride, 1), "padding": of(padding, 0) * 2}
        if any(d != 1 for d in of(dilation, 1)):
            attributes["dilation"] = of(dilation, 1)
        if a["ceil_mode"]:
            attributes["ceil_mode"] = 1
        if attributes["kernel"] == attributes["stride"] == [1, 1] and w.shape_of[x] == shape:
            return x
        if name.startswith("avg"):
            return w.emit("AvgPoolForward", [x], shape, attributes | {"count_include_pad": int(a["count_include_pad"])})
        if math.prod(attributes["kernel"]) > 256:
            raise Refusal(f"a max-pooling window of {math.prod(attributes['kernel'])} elements; at most 256 are possible")
        return w.emit("MaxPoolForward", [x], shape, attributes)

    if with_indices and _is_read(node, 1):
        if rank != 2 or kernel != stride or any(padding) or any(d != 1 for d in dilation) or a["ceil_mode"]:
            raise Refusal("max pooling whose indices are read, unless its windows lie side by side in images")
        return _largest_and_where(w, x, kernel, after)
    y: Any = w.reshape(_over_axes(w, x, _sizes(after[-rank:], rank, 1), run), after)
    if a.get("divisor_override"):
        if a["ceil_mode"] or not a["count_include_pad"]:
            raise Refusal("divisor_override together with ceil_mode or without count_include_pad")
        y = w.pointwise("mul({0},{1})", [y, math.prod(kernel) / a["divisor_override"]], "divisor")
    return (y, None) if with_indices else y


def _is_read(node: Node, i: int) -> bool:
    return any(len(user.args) > 1 and user.args[1] == i for user in node.users)


def _largest_and_where(w: "Writer", x: str, kernel: list[int], after: list[int]) -> tuple[str, str]:
    """Of windows side by side: the largest element of each, and its place in the image."""
    n, c, height, width = w.shape_of[x]
    rows, columns = after[-2:]
    tall, wide = kernel
    x = w.slice(w.slice(x, 2, 0, rows * tall, part="fitting"), 3, 0, columns * wide, part="fitting")
    x = w.permute(w.reshape(x, [n * c, rows, tall, columns, wide], "windows"), [0, 1, 3, 2, 4], "windows")
    x = w.reshape(x, [n * c, rows, columns, tall * wide], "windows")
    shape = [n * c, rows, columns, 1]
    attributes = {"axis": 3, "k": 1, "largest": 1}
    y, tap = w.emit("TopK", [x], [shape, shape], attributes, "largest", outputs=("y", "indices"))
    w.dtype_of[tap] = "i64"
    corner = (torch.arange(rows)[:, None] * tall * width + torch.arange(columns) * wide).float()
    row = "floor(div(add({0},0.5),{2}))"
    form = f"add({{1}},add(mul({row},{{3}}),sub({{0}},mul({row},{{2}}))))"
    operands = [tap, w.add_constant(corner.reshape(1, rows, columns, 1)), float(wide), float(width)]
    places = w.value(w.pointwise(form, operands, "places"))
    places = w.emit("Cast", [places], shape, {"dtype": "i64"}, "places", dtype="i64")
    return w.reshape(y, after), w.reshape(places, after)


@converts("max_unpool2d.default")
def max_unpool(w: "Writer", node: Node, a: Arguments):
    """Puts every element at its place in the image; windows do not overlap, so no place is taken twice."""
    x, places, after = a["self"], a["indices"], w.shape(node)
    images, pixels = math.prod(after[:-2]), math.prod(after[-2:])
    flat = [images, math.prod(w.shape(x)[-2:])]
    inputs = [w.reshape(x, flat), w.reshape(places, flat)]
    attributes = {"axis": 1, "shape": [images, pixels]}
    return w.reshape(w.emit("GatherBackward", inputs, [images, pixels], attributes), after)


@converts(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool3d.default",
    "adaptive_max_pool1d.default",
    "adaptive_max_pool2d.default",
    "adaptive_max_pool3d.default",
)
def adaptive_pool(w: "Writer", node: Node, a: Arguments):
    """Where the sizes divide, an ordinary pool; windows of the same size otherwise do not exist."""
    rank, is_max = _rank(node), "max" in str(node.target)
    x, _ = _image(w, a["self"], rank)
    after = [int(n) for n in (node.meta["val"][0] if is_max else node.meta["val"]).shape]

    def run(x: str, axes: Axes, shape: list[int]) -> str:
        before, size = w.shape_of[x][2:], shape[2:]
        kernel = [n // s for n, s in zip(before, size)]
        if before == size:
            return x
        if all(n % s == 0 for n, s in zip(before, size)) and not (is_max and math.prod(kernel) > 256):
            attributes = {"kernel": kernel, "stride": kernel, "padding": [0, 0, 0, 0]}
            return w.emit("MaxPoolForward" if is_max else "AvgPoolForward", [x], shape, attributes)
        return w.emit("AdaptiveMaxPoolForward" if is_max else "AdaptiveAvgPoolForward", [x], shape, {"size": size})

    result = w.reshape(_over_axes(w, x, _sizes(after[-rank:], rank, 1), run), after)
    return (result, None) if is_max else result


# --- resizes ---


@converts(
    "upsample_nearest1d.vec",
    "upsample_nearest1d.default",
    "upsample_nearest2d.vec",
    "upsample_nearest2d.default",
    "upsample_nearest3d.vec",
    "upsample_nearest3d.default",
    "upsample_linear1d.vec",
    "upsample_linear1d.default",
    "upsample_bilinear2d.vec",
    "upsample_bilinear2d.default",
    "upsample_trilinear3d.vec",
    "upsample_trilinear3d.default",
    "upsample_bicubic2d.vec",
    "upsample_bicubic2d.default",
)
def resize(w: "Writer", node: Node, a: Arguments):
    name, rank = str(node.target).split(".")[1], _rank(node)
    x, shape = _image(w, a.get("input") if "input" in a else a["self"], rank)
    size, factors = _sizes(w.shape(node)[-rank:], rank, 1), _factors(a, rank)
    mode = name.removeprefix("upsample_")[:-2]
    mode = "bilinear" if mode.endswith("linear") else mode
    corners = bool(a.get("align_corners"))

    def run(x: str, axes: Axes, shape: list[int]) -> str:
        if w.shape_of[x] == shape and all(d is None or factors[d] in (None, 1.0) for d in axes):
            return x
        attributes: dict[str, Any] = {"size": shape[2:], "mode": mode, "align_corners": int(corners)}
        scale = [0.0 if d is None else factors[d] or 0.0 for d in axes]
        exact = [f == 0 or f * n == s for f, n, s in zip(scale, w.shape_of[x][2:], shape[2:])]
        if not all(exact) and not corners:
            attributes["scale"] = scale
        return w.emit("ResizeForward", [x], shape, attributes)

    depth_first = rank == 3 and size[0] > shape[2]  # the smaller result between the two
    return w.reshape(_over_axes(w, x, size, run, depth_first), w.shape(node))


@converts(
    "_upsample_bilinear2d_aa.vec", "_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.vec", "_upsample_bicubic2d_aa.default"
)
def resize_antialiased(w: "Writer", node: Node, a: Arguments):
    """Each dimension by a matrix, which PyTorch tells: its columns are what becomes of rows with a single one."""
    image = a.get("input") if "input" in a else a["self"]
    mode = "bilinear" if "bilinear" in str(node.target) else "bicubic"
    x, (n, c, height, width), size, factors = w.value(image), w.shape(image), w.shape(node)[-2:], _factors(a, 2)

    def columns(length: int, d: int) -> torch.Tensor:
        rows = torch.eye(length, device="cpu").reshape(length, 1, 1, length)
        told = {"size": (1, size[d])} if factors[d] is None else {"scale_factor": (1.0, factors[d]), "recompute_scale_factor": False}
        return functional.interpolate(rows, mode=mode, align_corners=bool(a["align_corners"]), antialias=True, **told)[:, 0, 0]

    if size[0] != height:
        x = w.emit("MatMul", [w.add_constant(columns(height, 0).T.contiguous()), x], [n, c, size[0], width], {}, "rows")
    if size[1] != width:
        x = w.emit("MatMul", [x, w.add_constant(columns(width, 1).contiguous())], [n, c, *size], {}, "columns")
    return x


def _factors(a: Arguments, rank: int) -> list[Optional[float]]:
    """The scale factors that the caller gave, in the order of the dimensions; without them the sizes say the scale."""
    given = a.get("scale_factors")
    if given is None:
        given = [a.get("scales")] if rank == 1 else [a.get(f"scales_{d}") for d in "dhw"[3 - rank :]]
    return [None] * (2 - rank) + list(given)

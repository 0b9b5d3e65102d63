"""Reading images between their elements."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

from torch.fx import Node

from .experts import EXACT, _row_numbers
from .registry import Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@converts("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def grid_sample(w: "Writer", node: Node, a: Arguments):
    """Every place of the grid takes the pixels around it, whole rows of channels at once, each by its weight."""
    mode, padding = MODES[a["interpolation_mode"]], PADDINGS[a["padding_mode"]]
    (n, c, *spatial), (_, *out, _) = w.shape(a["input"]), w.shape(a["grid"])
    sizes, places, last = spatial[::-1], math.prod(out), len(spatial) + 1  # a grid's coordinates begin with the column
    if math.prod(spatial) >= EXACT:
        raise Refusal(f"an image of {'x'.join(map(str, spatial))}, whose places are no longer exact")
    order = [0, *range(2, last + 1), 1]
    flat = w.reshape(w.permute(a["input"], order, "channels_last"), [n, math.prod(spatial), c], "pixels")
    grid = w.reshape(a["grid"], [n, places, len(sizes)], "grid")
    rows = w.reshape(_row_numbers(w, n), [n, 1], "image")
    corners = bool(a["align_corners"])

    def padded(value: str, size: int) -> str:
        if padding == "zeros":
            return value
        within = "{0}" if padding == "border" else _reflected(size, corners)
        return w.value(w.pointwise(f"clamp({within},0.0,{float(size - 1)!r})", [value], padding))

    def taken(taps: list[str], weight) -> str:
        """The pixel at whole numbers, or 0 outside, by its weight."""
        place, stride = "0.0", 1
        for i, size in enumerate(sizes):
            place = f"add({place},mul(clamp({{{i}}},0.0,{float(size - 1)!r}),{float(stride)!r}))"
            stride *= size
        index = w.reshape(w.pointwise(place, taps, "place"), [n, places])
        index = w.emit("Cast", [index], [n, places], {"dtype": "i64"}, "place", dtype="i64")
        pixels = w.emit("Index", [flat, rows, index], [n, places, c], part="taken")
        factor = f"{{{len(taps)}}}"
        for i, size in enumerate(sizes):
            factor = f"mul({factor},and(ge({{{i}}},0.0),le({{{i}}},{float(size - 1)!r})))"
        return w.value(w.pointwise("mul({0},{1})", [pixels, w.pointwise(factor, [*taps, weight], "weight")], "weighted"))

    def moved(value: str, by: int) -> str:
        return w.value(w.pointwise("add({0},{1})", [value, float(by)], "tap"))

    centres = [_coordinate(w, w.slice(grid, 2, i, 1), size, corners) for i, size in enumerate(sizes)]
    if mode != "bicubic":
        centres = [padded(value, size) for value, size in zip(centres, sizes)]
    if mode == "nearest":
        parts = [taken([w.value(w.pointwise("round({0})", [v], "nearest")) for v in centres], 1.0)]
    else:
        # By direction: whole numbers around a centre, and their shares.
        reach, share = (range(2), _linear_share) if mode == "bilinear" else (range(-1, 3), _cubic_share)
        around = []
        for centre, size in zip(centres, sizes):
            floor = w.value(w.pointwise("floor({0})", [centre], "floor"))
            taps = [moved(floor, by) for by in reach]
            shares = [w.value(w.pointwise(share(by), [centre, floor], "share")) for by in reach]
            around.append([(padded(tap, size) if mode == "bicubic" else tap, part) for tap, part in zip(taps, shares)])
        parts = []
        for several in itertools.product(*around[::-1]):
            several = several[::-1]
            weight = functools.reduce("mul({0},{{{1}}})".format, range(1, len(several)), "{0}")
            shared = w.value(w.pointwise(weight, [part for _, part in several], "share"))
            parts.append(taken([tap for tap, _ in several], shared))
    total = functools.reduce(lambda total, part: w.value(w.pointwise("add({0},{1})", [total, part], "sum")), parts)
    return w.permute(w.reshape(total, [n, *out, c]), [0, last, *range(1, last)], "channels_first")


def _linear_share(by: int) -> str:
    """The share of the element `by` behind the floor {1} of a place {0}."""
    return "sub({0},{1})" if by else "sub(1.0,sub({0},{1}))"


def _cubic_share(by: int) -> str:
    """The same, as PyTorch has it: of Keys's kernel with a = -0.75."""
    x, a = f"abs(sub(sub({{0}},{{1}}),{float(by)!r}))", -0.75
    if by in (0, 1):
        return f"add(mul(sub(mul({a + 2},{x}),{a + 3}),square({x})),1.0)"
    return f"sub(mul(add(mul(sub(mul({a},{x}),{5 * a}),{x}),{8 * a}),{x}),{4 * a})"


def _reflected(size: int, corners: bool) -> str:
    """{0} thrown back at the first and last element, or at their outer borders."""
    least, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if span == 0:
        return "mul({0},0.0)"
    away = f"abs(sub({{0}},{least!r}))"
    times = f"floor(div({away},{span!r}))"
    rest = f"sub({away},mul({times},{span!r}))"
    even = f"eq({times},mul(2.0,floor(mul({times},0.5))))"
    return f"add(where({even},{rest},sub({span!r},{rest})),{least!r})"


def _coordinate(w: "Writer", value: str, size: int, corners: bool) -> str:
    """From [-1, 1] to elements."""
    if corners:
        form, of = "mul(add({0},1.0),{1})", (size - 1) / 2
    else:
        form, of = "sub(mul(add({0},1.0),{1}),0.5)", size / 2
    return w.value(w.pointwise(form, [value, of], "coordinate"))

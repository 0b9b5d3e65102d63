"""Reading images between their elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch.fx import Node

from .experts import EXACT, _row_numbers
from .registry import Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@converts("grid_sampler_2d.default", "grid_sampler.default")
def grid_sample(w: "Writer", node: Node, a: Arguments):
    """Every place of the grid takes the pixels around it, whole rows of channels at once, each by its weight."""
    mode, padding = MODES[a["interpolation_mode"]], PADDINGS[a["padding_mode"]]
    if mode == "bicubic" or padding == "reflection":
        raise Refusal(f"mode '{mode}' with padding '{padding}'; bilinear and nearest with zeros and border are possible")
    if len(w.shape(a["input"])) != 4:
        raise Refusal("images with depth")
    (n, c, height, width), (_, *out, _) = w.shape(a["input"]), w.shape(a["grid"])
    places = math.prod(out)
    if height * width >= EXACT:
        raise Refusal(f"an image of {height}x{width}, whose places are no longer exact")
    flat = w.reshape(w.permute(a["input"], [0, 2, 3, 1], "channels_last"), [n, height * width, c], "pixels")
    grid = w.reshape(a["grid"], [n, places, 2], "grid")
    rows = w.reshape(_row_numbers(w, n), [n, 1], "image")
    x, y = (_coordinate(w, w.slice(grid, 2, i, 1), size, a, padding) for i, size in enumerate((width, height)))

    def taken(column, row, weight) -> str:
        form = "add(mul(clamp({1},0.0,{2}),{3}),clamp({0},0.0,{4}))"
        index = w.pointwise(form, [column, row, float(height - 1), float(width), float(width - 1)], "place")
        index = w.emit("Cast", [w.reshape(index, [n, places])], [n, places], {"dtype": "i64"}, "place", dtype="i64")
        pixels = w.emit("Index", [flat, rows, index], [n, places, c], part="taken")
        inside = "mul({2},and(and(ge({0},0.0),le({0},{3})),and(ge({1},0.0),le({1},{4}))))"
        factor = w.pointwise(inside, [column, row, weight, float(width - 1), float(height - 1)], "weight")
        return w.value(w.pointwise("mul({0},{1})", [pixels, factor], "weighted"))

    if mode == "nearest":
        column, row = (w.value(w.pointwise("round({0})", [v], "nearest")) for v in (x, y))
        total = taken(column, row, 1.0)
    else:
        left, top = (w.value(w.pointwise("floor({0})", [v], "floor")) for v in (x, y))
        parts = []
        for down in (0.0, 1.0):
            for right in (0.0, 1.0):
                column, row = (w.value(w.pointwise("add({0},{1})", [v, d], "tap")) for v, d in ((left, right), (top, down)))
                form = "mul(sub(1.0,abs(sub({0},{2}))),sub(1.0,abs(sub({1},{3}))))"
                parts.append(taken(column, row, w.value(w.pointwise(form, [x, y, column, row], "share"))))
        total = w.value(w.pointwise("add(add({0},{1}),add({2},{3}))", parts, "sum"))
    return w.permute(w.reshape(total, [n, *out, c]), [0, 3, 1, 2], "channels_first")


def _coordinate(w: "Writer", value: str, size: int, a: Arguments, padding: str) -> str:
    """From [-1, 1] to elements."""
    if a["align_corners"]:
        form, of = "mul(add({0},1.0),{1})", (size - 1) / 2
    else:
        form, of = "sub(mul(add({0},1.0),{1}),0.5)", size / 2
    if padding == "border":
        form = f"clamp({form},0.0,{float(size - 1)!r})"
    return w.value(w.pointwise(form, [value, of], "coordinate"))

"""What draws random numbers inside the network: by counter, so that a recomputation draws the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch.fx import Node

from .registry import Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer


def dropped(w: "Writer", x, p: float, part: str = ""):
    """Dropout; what stays is scaled by 1 / (1 - p)."""
    if p == 0:
        return w.value(x)
    if not 0 < p < 1:
        raise Refusal(f"dropout with p = {p}; p lies in [0, 1)")
    name = w.value(x)
    attributes = {"p": float(p), "salt": w.next_salt()}
    return w.emit("DropoutForward", [name, *w.random_inputs()], w.shape_of[name], attributes, part)


@converts("native_dropout.default")
def native_dropout(w: "Writer", node: Node, a: Arguments):
    return (dropped(w, a["input"], a["p"] if a["train"] is not False else 0), None)


@converts("dropout.default")
def dropout(w: "Writer", node: Node, a: Arguments):
    return dropped(w, a["input"], a["p"] if a["train"] else 0)


@converts("bernoulli.p", "bernoulli.default")
def bernoulli(w: "Writer", node: Node, a: Arguments):
    """Ones with probability p, else zeros."""
    p = a["p"] if a.get("p") is not None else w.number(a["self"])
    if p is None:
        return w.pointwise("lt({0},{1})", [even(w, w.shape(node)), a["self"]])
    attributes = {"shape": w.shape(node), "p": float(p), "salt": w.next_salt()}
    return w.emit("Bernoulli", w.random_inputs(), w.shape(node), attributes)


@converts("randn.default", "randn_like.default")
def randn(w: "Writer", node: Node, a: Arguments):
    attributes = {"shape": w.shape(node), "salt": w.next_salt()}
    return w.emit("RandomNormal", w.random_inputs(), w.shape(node), attributes)


def even(w: "Writer", shape) -> str:
    """Numbers even in [0, 1): where normal ones stand in their distribution."""
    attributes = {"shape": shape, "salt": w.next_salt()}
    normal = w.emit("RandomNormal", w.random_inputs(), shape, attributes, "normal")
    form = f"clamp(add(mul(erf(mul({{0}},{math.sqrt(0.5)!r})),0.5),0.5),0.0,{1 - 2.0**-24!r})"
    return w.value(w.pointwise(form, [normal], "even"))


@converts("uniform.default")
def uniform(w: "Writer", node: Node, a: Arguments):
    """What x.uniform_(low, high) puts into x."""
    low, high = float(a["from"]), float(a["to"])
    return w.pointwise("add(mul({0},{1}),{2})", [even(w, w.shape(node)), high - low, low])


@converts("rand_like.default", "rand.default")
def rand(w: "Writer", node: Node, a: Arguments):
    return even(w, w.shape(node))


@converts("randint_like.default", "randint_like.low_dtype")
def randint(w: "Writer", node: Node, a: Arguments):
    low = float(a.get("low") or 0)
    return w.pointwise("add(floor(mul({0},{1})),{2})", [even(w, w.shape(node)), a["high"] - low, low])


@converts("rrelu_with_noise_functional.default")
def rrelu(w: "Writer", node: Node, a: Arguments):
    """A leaky ReLU whose slope is drawn for every element. Gives (y, None)."""
    if not a["training"]:
        return w.pointwise("leaky_relu({0},{1})", [a["self"], (a["lower"] + a["upper"]) / 2]), None
    slope = w.pointwise("add({1},mul({0},{2}))", [even(w, w.shape(a["self"])), a["lower"], a["upper"] - a["lower"]], "slope")
    return w.pointwise("where(gt({0},0.0),{0},mul({0},{1}))", [a["self"], slope]), None

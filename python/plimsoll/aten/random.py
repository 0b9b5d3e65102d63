"""What draws random numbers inside the network: by counter, so that a recomputation draws the same."""

from __future__ import annotations

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
    p = a["p"] if "p" in a else w.number(a["self"])
    if p is None:
        raise Refusal("probabilities that differ from element to element")
    attributes = {"shape": w.shape(node), "p": float(p), "salt": w.next_salt()}
    return w.emit("Bernoulli", w.random_inputs(), w.shape(node), attributes)


@converts("randn.default", "randn_like.default")
def randn(w: "Writer", node: Node, a: Arguments):
    attributes = {"shape": w.shape(node), "salt": w.next_salt()}
    return w.emit("RandomNormal", w.random_inputs(), w.shape(node), attributes)

"""Normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.fx import Node

from .registry import Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer


def _affine(w: "Writer", weight: Optional[Node], bias: Optional[Node]) -> tuple[list, str]:
    if weight is None and bias is None:
        return [], "none"
    if bias is None:
        return [weight], "gamma"
    if weight is None:
        return [w.fill(w.shape(bias), 1.0, "gamma"), bias], "gamma_beta"
    return [weight, bias], "gamma_beta"


@converts("layer_norm.default")
def layer_norm(w: "Writer", node: Node, a: Arguments):
    factors, affine = _affine(w, a["weight"], a["bias"])
    attributes = {"axes": len(a["normalized_shape"]), "epsilon": float(a["eps"]), "affine": affine}
    return w.emit("LayerNormForward", [a["input"], *factors], w.shape(node), attributes)


@converts("rms_norm.default")
def rms_norm(w: "Writer", node: Node, a: Arguments):
    factors, affine = _affine(w, a["weight"], None)
    epsilon = torch.finfo(torch.float32).eps if a["eps"] is None else float(a["eps"])
    attributes = {"axes": len(a["normalized_shape"]), "epsilon": epsilon, "affine": affine}
    return w.emit("RmsNormForward", [a["input"], *factors], w.shape(node), attributes)


@converts("group_norm.default")
def group_norm(w: "Writer", node: Node, a: Arguments):
    factors, affine = _affine(w, a["weight"], a["bias"])
    attributes = {"groups": a["num_groups"], "epsilon": float(a["eps"]), "affine": affine}
    return w.emit("GroupNormForward", [a["input"], *factors], w.shape(node), attributes)


# --- batch norm ---


@converts("_native_batch_norm_legit_functional.default")
def batch_norm(w: "Writer", node: Node, a: Arguments):
    """In training mode: normalises by the batch and advances the running statistics.

    Gives (y, mean, 1/deviation, running mean, running variance) as the operator does.
    """
    if not a["training"]:
        return batch_norm_fixed(w, node, a)[0], None, None, w.value(a["running_mean"]), w.value(a["running_var"])
    channels = w.shape(a["input"])[1:2]
    x = w.value(a["input"])
    if not w.captured.training:
        raise Refusal("in an evaluation, which leaves everything as it is, this norm is in training mode and would change its running statistics; call eval() of the module that the loss reads")
    running = [a["running_mean"], a["running_var"]]
    if not all(w.is_buffer(one) or w.maker_is(w.value(one), "BatchNormForward") for one in running):
        return _batch_norm_beside(w, node, a)
    inputs = [x, *_gamma_beta(w, a, channels), a["running_mean"], a["running_var"]]
    attributes = {"epsilon": float(a["eps"]), "momentum": float(a["momentum"]), "training": 1}
    outputs = ["y", "mean", "inv_std", _next_name(w, node, 3, "running_mean"), _next_name(w, node, 4, "running_var")]
    y, mean, inv_std, *running = w.emit(
        "BatchNormForward", inputs, [w.shape_of[x], *[channels] * 4], attributes, outputs=outputs
    )
    return y, mean, inv_std, *running


def _batch_norm_beside(w: "Writer", node: Node, a: Arguments):
    """The same where the running statistics are computed, as instance norm repeats them for every sample."""
    shape = w.shape(a["input"])
    dims = [d for d in range(len(shape)) if d != 1]
    count = math.prod(shape[d] for d in dims)
    y = batch_norm_without_statistics(w, node, a)[0]
    mean = w.reduce(a["input"], "mean", dims, part="mean")
    wide = w.reshape(mean, [1, shape[1]] + [1] * (len(shape) - 2), "wide")
    squares = w.reduce(w.value(w.pointwise("square(sub({0},{1}))", [a["input"], wide], "squares")), "mean", dims, part="variance")
    momentum = float(a["momentum"])
    next_mean, next_var = (
        w.value(w.pointwise("add(mul({0},{1}),mul({2},{3}))", [a[name], 1 - momentum, found, by], "next"))
        for name, found, by in (("running_mean", mean, momentum), ("running_var", squares, momentum * count / (count - 1)))
    )
    return y, mean, None, next_mean, next_var


def _gamma_beta(w: "Writer", a: Arguments, channels: list[int]) -> list:
    gamma = a["weight"] if a["weight"] is not None else w.fill(channels, 1.0, "gamma")
    beta = a["bias"] if a["bias"] is not None else w.fill(channels, 0.0, "beta")
    return [gamma, beta]


def _next_name(w: "Writer", node: Node, place: int, otherwise: str) -> str:
    """ "bn1.running_mean.next" where this is the buffer's value after the step."""
    for user in node.users:
        if len(user.args) > 1 and user.args[1] == place and w.next_of(user) is not None:
            return f"{w.next_of(user)}.next"
    return otherwise


@converts("_native_batch_norm_legit_no_training.default")
def batch_norm_fixed(w: "Writer", node: Node, a: Arguments):
    """By running statistics: in evaluation the core's own op, in training arithmetic that has a gradient."""
    shape = w.shape(a["input"])
    if not w.captured.training:
        inputs = [a["input"], *_gamma_beta(w, a, shape[1:2]), a["running_mean"], a["running_var"]]
        attributes = {"epsilon": float(a["eps"]), "momentum": float(a["momentum"]), "training": 0}
        return w.emit("BatchNormForward", inputs, shape, attributes), None, None
    mean, variance = (_per_channel(w, a[name], len(shape)) for name in ("running_mean", "running_var"))
    y = w.pointwise("mul(sub({0},{1}),rsqrt(add({2},{3})))", [a["input"], mean, variance, float(a["eps"])])
    return _scaled(w, y, a, len(shape)), None, None


@converts("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(w: "Writer", node: Node, a: Arguments):
    """By the batch alone: a layer norm over what belongs to one channel."""
    n, channels, *rest = shape = w.shape(a["input"])
    x: Any = w.value(a["input"])
    if n != 1:
        x = w.permute(x, [1, 0, *range(2, len(shape))], "channels_first")
    rows = w.reshape(x, [channels, n * math.prod(rest)], "rows")
    attributes = {"axes": 1, "epsilon": float(a["eps"]), "affine": "none"}
    y = w.emit("LayerNormForward", [rows], w.shape_of[rows], attributes)
    if n != 1:
        y = w.permute(w.reshape(y, [channels, n, *rest]), [1, 0, *range(2, len(shape))], "batch_first")
    return _scaled(w, w.reshape(y, shape), a, len(shape)), None, None


def _per_channel(w: "Writer", values: Node, rank: int) -> str:
    return w.reshape(values, [w.shape(values)[0]] + [1] * (rank - 2), "per_channel")


def _scaled(w: "Writer", y: Any, a: Arguments, rank: int) -> Any:
    gamma, beta = (None if a[k] is None else _per_channel(w, a[k], rank) for k in ("weight", "bias"))
    if gamma is not None and beta is not None:
        return w.pointwise("add(mul({0},{1}),{2})", [y, gamma, beta], "affine")
    if gamma is not None:
        return w.pointwise("mul({0},{1})", [y, gamma], "affine")
    return y if beta is None else w.pointwise("add({0},{1})", [y, beta], "affine")

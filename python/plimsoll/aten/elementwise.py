"""Elementwise arithmetic and functions: one Pointwise op each (chains of them are fused by the core)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from .experts import EXACT, bound, whole
from .registry import CONVERTERS, OTHER_FLOATS, Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer

def _of_bound(bounded: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """How much of the gradient what lies on a bound gets: it differs from one release of PyTorch to the next."""
    with torch.enable_grad(), _disable_current_modes(), torch._C.DisableTorchFunction():
        x = torch.ones(1, requires_grad=True)
        return float(torch.autograd.grad(bounded(x).sum(), x)[0])


_ONE = torch.ones(1)
_ON_BOUND = {
    "clamp.default": _of_bound(lambda x: x.clamp(max=1.0)),
    "clamp.Tensor": _of_bound(lambda x: x.clamp(max=_ONE)),
    "clamp_min.default": _of_bound(lambda x: torch.clamp_min(x, 1.0)),
    "clamp_min.Tensor": _of_bound(lambda x: torch.clamp_min(x, _ONE)),
    "clamp_max.default": _of_bound(lambda x: torch.clamp_max(x, 1.0)),
    "clamp_max.Tensor": _of_bound(lambda x: torch.clamp_max(x, _ONE)),
}


def _above(op: str, x: str, low: str) -> str:
    return {1.0: f"where(lt({x},{low}),{low},{x})", 0.0: f"where(le({x},{low}),{low},{x})"}.get(_ON_BOUND[op], f"max({x},{low})")


def _below(op: str, x: str, high: str) -> str:
    return {1.0: f"where(gt({x},{high}),{high},{x})", 0.0: f"where(ge({x},{high}),{high},{x})"}.get(_ON_BOUND[op], f"min({x},{high})")


# What `where` does not choose has a gradient of 0 times its derivative, which is NaN where that is infinite. So each
# side of it is computed of an argument that is harmless where the other side is chosen. An argument from `max` or `min`
# would do as much, but its gradient is halved where both are equal.


def log_of_sum(x: str, y: str) -> str:
    """log(exp(x) + exp(y)); both may be -inf."""
    return f"add(max({x},{y}),log1p(exp(neg(abs(where(eq({x},{y}),0.0,sub({x},{y})))))))"


# ATen operator -> expression; {name} is an argument of its schema.
EXPRESSIONS = {
    "abs.default": "abs({self})",
    "neg.default": "neg({self})",
    "exp.default": "exp({self})",
    "exp2.default": f"exp(mul({{self}},{math.log(2)!r}))",
    "expm1.default": "expm1({self})",
    "log.default": "log({self})",
    "log1p.default": "log1p({self})",
    "log2.default": f"mul(log({{self}}),{1 / math.log(2)!r})",
    "log10.default": f"mul(log({{self}}),{1 / math.log(10)!r})",
    "sqrt.default": "sqrt({self})",
    "rsqrt.default": "rsqrt({self})",
    "reciprocal.default": "reciprocal({self})",
    "square.default": "square({self})",
    "sin.default": "sin({self})",
    "cos.default": "cos({self})",
    "tan.default": "div(sin({self}),cos({self}))",
    "sinh.default": "mul(sub(exp({self}),exp(neg({self}))),0.5)",
    "cosh.default": "mul(add(exp({self}),exp(neg({self}))),0.5)",
    "atan.default": "atan({self})",
    # Of quotients that are right at both ends, where a difference to a quarter turn would have lost its digits.
    "asin.default": "atan(div({self},sqrt(mul(sub(1.0,{self}),add(1.0,{self})))))",
    "acos.default": "mul(atan(sqrt(div(sub(1.0,{self}),add(1.0,{self})))),2.0)",
    "acosh.default": "log1p(add(sub({self},1.0),mul(sqrt(sub({self},1.0)),sqrt(add({self},1.0)))))",
    "atanh.default": "mul(sub(log1p({self}),log1p(neg({self}))),0.5)",
    "tanh.default": "tanh({self})",
    "erf.default": "erf({self})",
    "erfc.default": "sub(1.0,erf({self}))",
    "sigmoid.default": "sigmoid({self})",
    "silu.default": "silu({self})",
    "mish.default": "mish({self})",
    "hardswish.default": "hardswish({self})",
    "hardsigmoid.default": "hardsigmoid({self})",
    "hardtanh.default": "hardtanh({self},{min_val},{max_val})",
    "relu6.default": "hardtanh({self},0.0,6.0)",
    "leaky_relu.default": "leaky_relu({self},{negative_slope})",
    "log_sigmoid_forward.default": "neg(softplus(neg({self})))",
    "log_sigmoid.default": "neg(softplus(neg({self})))",
    "sign.default": "sign({self})",
    "sgn.default": "sign({self})",
    "floor.default": "floor({self})",
    "ceil.default": "neg(floor(neg({self})))",
    "trunc.default": "mul(sign({self}),floor(abs({self})))",
    "round.default": "round({self})",
    "isnan.default": "ne({self},{self})",
    "logical_not.default": "not({self})",
    "bitwise_not.default": "not({self})",
    "mul.Tensor": "mul({self},{other})",
    "mul.Scalar": "mul({self},{other})",
    "div.Tensor": "div({self},{other})",
    "div.Scalar": "div({self},{other})",
    "maximum.default": "max({self},{other})",
    "minimum.default": "min({self},{other})",
    # One that is NaN does not count; equal ones have halves of the gradient.
    "fmax.default": "where(eq({self},{other}),max({self},{other}),where(or(gt({self},{other}),ne({other},{other})),{self},{other}))",
    "fmin.default": "where(eq({self},{other}),min({self},{other}),where(or(lt({self},{other}),ne({other},{other})),{self},{other}))",
    "pow.Tensor_Tensor": "pow({self},{exponent})",
    "pow.Scalar": "pow({self},{exponent})",
    "remainder.Tensor": "sub({self},mul({other},floor(div({self},{other}))))",
    "remainder.Scalar": "sub({self},mul({other},floor(div({self},{other}))))",
    "fmod.Tensor": "sub({self},mul({other},mul(sign(div({self},{other})),floor(abs(div({self},{other}))))))",
    "fmod.Scalar": "sub({self},mul({other},mul(sign(div({self},{other})),floor(abs(div({self},{other}))))))",
    "hypot.default": "sqrt(add(square({self}),square({other})))",
    "copysign.Tensor": "where(lt({other},0.0),neg(abs({self})),abs({self}))",
    "logaddexp.default": log_of_sum("{self}", "{other}"),
    "clamp_min.default": _above("clamp_min.default", "{self}", "{min}"),
    "clamp_min.Tensor": _above("clamp_min.Tensor", "{self}", "{min}"),
    "clamp_max.default": _below("clamp_max.default", "{self}", "{max}"),
    "clamp_max.Tensor": _below("clamp_max.Tensor", "{self}", "{max}"),
    # At 0 its derivative is 0.
    "sinc.default": f"where(eq({{self}},0.0),1.0,div(sin(mul(where(eq({{self}},0.0),1.0,{{self}}),{math.pi!r})),mul(where(eq({{self}},0.0),1.0,{{self}}),{math.pi!r})))",
    "where.self": "where({condition},{self},{other})",
    "where.ScalarSelf": "where({condition},{self},{other})",
    "where.ScalarOther": "where({condition},{self},{other})",
    "where.Scalar": "where({condition},{self},{other})",
    "masked_fill.Scalar": "where({mask},{value},{self})",
    "masked_fill.Tensor": "where({mask},{value},{self})",
    "lerp.Scalar": "add({self},mul({weight},sub({end},{self})))",
    "lerp.Tensor": "add({self},mul({weight},sub({end},{self})))",
    "addcmul.default": "add({self},mul({value},mul({tensor1},{tensor2})))",
    "addcdiv.default": "add({self},mul({value},div({tensor1},{tensor2})))",
    "logical_and.default": "and({self},{other})",
    "logical_or.default": "or({self},{other})",
    "bitwise_and.Tensor": "and({self},{other})",
    "bitwise_or.Tensor": "or({self},{other})",
    "bitwise_and.Scalar": "and({self},{other})",
    "bitwise_or.Scalar": "or({self},{other})",
    **{
        f"{name}.{kind}": f"{name}({{self}},{{other}})"
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for kind in ("Tensor", "Scalar")
    },
}


def _fields(template: str) -> list[str]:
    return list(dict.fromkeys(part.split("}")[0] for part in template.split("{")[1:]))


def expression(w: "Writer", template: str, a: Arguments, part: str = ""):
    """A Pointwise op of a template whose fields are named as the arguments."""
    names = _fields(template)
    for i, name in enumerate(names):
        template = template.replace("{" + name + "}", "{" + str(i) + "}")
    return w.pointwise(template, [a[name] for name in names], part)


# Those that make whole numbers of whole numbers.
WHOLE = {
    template: template.format(**{name: "{%d}" % i for i, name in enumerate(_fields(template))})
    for template in map(EXPRESSIONS.get, ("mul.Tensor", "where.self", "masked_fill.Scalar", "maximum.default", "minimum.default", "remainder.Tensor", "clamp_min.default", "clamp_max.default"))
}


def _from_table(template: str):
    def convert(w: "Writer", node: Node, a: Arguments):
        if template in WHOLE and (y := whole(w, node, WHOLE[template], [a[name] for name in _fields(template)])) is not None:
            return y
        if (choices := _CHOICES.get(template)) and (chosen := _whole_chosen(w, node, *(a[name] for name in choices))) is not None:
            return chosen
        _expect_float_or_bool(w, node)
        return expression(w, template, a)

    return convert


_CHOICES = {EXPRESSIONS["where.self"]: ("condition", "self", "other"), EXPRESSIONS["masked_fill.Scalar"]: ("mask", "value", "self")}


def _whole_chosen(w: "Writer", node: Node, condition: Node, yes: Any, no: Any) -> Optional[str]:
    """One of two whole numbers of any size, as it is: picked of both, side by side."""
    shape = w.shape(node)
    if w.dtype(node) != torch.int64 or any(isinstance(x, int) and abs(x) >= EXACT for x in (yes, no)):
        return None

    def column(x: Any, part: str) -> str:
        name = w.fill(shape, float(x), part) if isinstance(x, (bool, int)) else w.value(x)
        if w.dtype_of[name] != "i64" or w.root(name) in w.tensors:  # labels that come from outside may be i32 in the end
            name = w.emit("Cast", [name], w.shape_of[name], {"dtype": "i64"}, part + "_whole", dtype="i64")
        if w.shape_of[name] != shape:
            name = w.emit("Expand", [name], shape, {"shape": shape}, part + "_wide", dtype="i64")
        return w.reshape(name, [*shape, 1])

    sides = w.concat([column(yes, "yes"), column(no, "no")], len(shape), "both")
    place = column(w.pointwise("sub(1.0,{0})", [condition], "second"), "place")
    return w.reshape(w.emit("Gather", [sides, place], [*shape, 1], {"axis": len(shape)}, "chosen", dtype="i64"), shape)


def _expect_float_or_bool(w: "Writer", node: Node) -> None:
    if w.dtype(node) not in (torch.float32, torch.bool):
        raise Refusal(f"arithmetic in {w.dtype(node)} that depends on parameters")


for _name, _template in EXPRESSIONS.items():
    CONVERTERS["aten." + _name] = _from_table(_template)


@converts("relu.default")
def relu(w: "Writer", node: Node, a: Arguments):
    return w.emit("ReluForward", [a["self"]], w.shape(node))


@converts("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def add(w: "Writer", node: Node, a: Arguments):
    name = str(node.target).split(".")[1]
    if name != "rsub" and a["alpha"] == 1 and (y := whole(w, node, name + "({0},{1})", [a["self"], a["other"]])) is not None:
        return y
    _expect_float_or_bool(w, node)
    x, y, alpha = a["self"], a["other"], a["alpha"]
    if name == "rsub":
        name, x, y, alpha_on_y = "sub", y, x, False
    else:
        alpha_on_y = True
    plain = all(isinstance(t, Node) and w.shape(t) == w.shape(node) and w.number(t) is None for t in (x, y))
    if name == "add" and alpha == 1 and plain and x is not y and all(w.dtype(t) == torch.float32 for t in (x, y)):
        return w.emit("Add", [x, y], w.shape(node))
    if alpha == 1:
        return w.pointwise(name + "({0},{1})", [x, y])
    return w.pointwise(name + ("({0},mul({1},{2}))" if alpha_on_y else "(mul({0},{2}),{1})"), [x, y, alpha])


@converts("pow.Tensor_Scalar")
def power(w: "Writer", node: Node, a: Arguments):
    forms = {2.0: "square({0})", 1.0: "mul({0},1.0)", 0.5: "sqrt({0})", -0.5: "rsqrt({0})", -1.0: "reciprocal({0})"}
    exponent = float(a["exponent"])
    return w.pointwise(forms.get(exponent, f"pow({{0}},{exponent!r})"), [a["self"]])


@converts("div.Tensor_mode", "div.Scalar_mode")
def divide_rounded(w: "Writer", node: Node, a: Arguments):
    if a["rounding_mode"] == "floor" and w.dtype(node) in (torch.int64, torch.int32):
        return _indices_divided(w, node, a)
    _expect_float_or_bool(w, node)
    forms = {
        None: "div({0},{1})",
        "floor": "floor(div({0},{1}))",
        "trunc": "mul(sign(div({0},{1})),floor(abs(div({0},{1}))))",
    }
    return w.pointwise(forms[a["rounding_mode"]], [a["self"], a["other"]])


def _indices_divided(w: "Writer", node: Node, a: Arguments):
    """Of indices, which are known to be exact in f32; half of one is added, since a quotient may be rounded down."""
    below, by = bound(w, a["self"]), w.number(a["other"])
    if below is None or below >= EXACT // 2 or by is None or by < 1:
        _expect_float_or_bool(w, node)
    y = w.pointwise("floor(div(add({0},0.5),{1}))", [a["self"], by], "whole")
    return w.emit("Cast", [y], w.shape(node), {"dtype": "i64"}, dtype="i64")


@converts("atan2.default")
def atan2(w: "Writer", node: Node, a: Arguments):
    """By the smaller over the larger of the two, so that no quotient is infinite and every gradient is finite."""
    y, x = a["self"], a["other"]
    flat = "ge(abs({1}),abs({0}))"
    below = f"where({flat},{{1}},{{0}})"
    above = f"where(eq({below},0.0),0.0,where({flat},{{0}},{{1}}))"  # where both are 0, so are their gradients
    angle = f"atan(div({above},where(eq({below},0.0),1.0,{below})))"
    left = f"where(lt({{1}},0.0),where(lt({{0}},0.0),{-math.pi!r},{math.pi!r}),0.0)"
    upright = f"where(lt({{0}},0.0),{-math.pi / 2!r},{math.pi / 2!r})"
    return w.pointwise(f"where({flat},add({angle},{left}),sub({upright},{angle}))", [y, x])


_SHIFT = 6  # what is added before series in 1 / x hold


def _of_large(form: str, x: str, constants: dict[str, float]) -> str:
    """A series of {z}, where x > 0: at x + 6, with what that adds taken off."""
    form = form.replace("{z}", f"add({{x}},{float(_SHIFT)!r})")
    for name, value in constants.items():
        form = form.replace(name, repr(value))
    return form.replace("{x}", x)


def _lgamma(x: str) -> str:
    """Stirling's series at x + 6, less the logarithms of x to x + 5."""
    series = "add(mul(sub({z},0.5),log({z})),sub(div(sub({c1},div(sub({c2},div({c3},square({z}))),square({z}))),{z}),sub({z},{c0})))"
    values = {"{c0}": 0.5 * math.log(2 * math.pi), "{c1}": 1 / 12, "{c2}": 1 / 360, "{c3}": 1 / 1260}
    product = "{x}"
    for i in range(1, _SHIFT):
        product = f"mul({product},add({{x}},{float(i)!r}))"
    return _of_large(f"sub({series},log({product}))", x, values)


def _digamma(x: str) -> str:
    series = "sub(sub(log({z}),div(0.5,{z})),div(sub({c1},div(sub({c2},div({c3},square({z}))),square({z}))),square({z})))"
    values = {"{c1}": 1 / 12, "{c2}": 1 / 120, "{c3}": 1 / 252}
    total = "div(1.0,{x})"
    for i in range(1, _SHIFT):
        total = f"add({total},div(1.0,add({{x}},{float(i)!r})))"
    return _of_large(f"sub({series},{total})", x, values)


_ABOVE = "where(lt({0},0.5),1.0,{0})"  # 1 and 1/4 are harmless
_BELOW = "where(lt({0},0.5),{0},0.25)"
_ANGLE = f"mul({math.pi!r},sub({_BELOW},floor({_BELOW})))"


@converts("lgamma.default")
def lgamma(w: "Writer", node: Node, a: Arguments):
    """Below 1/2 by Euler's reflection."""
    mirrored = f"sub(sub({math.log(math.pi)!r},log(sin({_ANGLE}))),{_lgamma(f'sub(1.0,{_BELOW})')})"
    return w.pointwise(f"where(lt({{0}},0.5),{mirrored},{_lgamma(_ABOVE)})", [a["self"]])


@converts("digamma.default")
def digamma(w: "Writer", node: Node, a: Arguments):
    mirrored = f"sub({_digamma(f'sub(1.0,{_BELOW})')},div(mul({math.pi!r},cos({_ANGLE})),sin({_ANGLE})))"
    return w.pointwise(f"where(lt({{0}},0.5),{mirrored},{_digamma(_ABOVE)})", [a["self"]])


@converts("asinh.default")
def asinh(w: "Writer", node: Node, a: Arguments):
    """Of the size of x, with which its derivative at 0 is 1: that of `abs` would be 0. The square of a large one is
    infinite."""
    size, large = "where(lt({0},0.0),neg({0}),{0})", "gt(abs({0}),1e8)"
    small = f"where({large},1.0,{size})"
    near = f"log1p(add({small},div(square({small}),add(sqrt(add(square({small}),1.0)),1.0))))"
    form = f"where({large},add(log(where({large},{size},1.0)),{math.log(2)!r}),{near})"
    return w.pointwise(f"where(lt({{0}},0.0),neg({form}),{form})", [a["self"]])


# By Giles, Approximating the erfinv function (2012), of w = -log(1 - x * x): around 2.5, and around 3 of the root.
_ERFINV = (
    [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941],
    [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682],
)


@converts("erfinv.default")
def erfinv(w: "Writer", node: Node, a: Arguments):
    """With a step of Newton's, so that its error is that of erf."""
    size = w.pointwise("neg(log(mul(sub(1.0,{0}),add(1.0,{0}))))", [a["self"]], "size")
    forms = []
    for of, polynomial in zip(("sub({0},2.5)", "sub(sqrt(max({0},5.0)),3.0)"), _ERFINV):
        form = repr(polynomial[0])
        for c in polynomial[1:]:
            form = f"add(mul({form},{of}),{c!r})"
        forms.append(form)
    y = w.pointwise(f"mul({{1}},where(lt({{0}},5.0),{forms[0].replace('{0}', 'min({0},5.0)')},{forms[1]}))", [size, a["self"]], "first")
    y = w.emit("StopGradient", [y], w.shape(node), part="fixed")
    return w.pointwise(f"sub({{0}},mul(mul(sub(erf({{0}}),{{1}}),{math.sqrt(math.pi) / 2!r}),exp(square({{0}}))))", [y, a["self"]])


@converts("clamp.default", "clamp.Tensor")
def clamp(w: "Writer", node: Node, a: Arguments):
    low, high, name = a["min"], a["max"], str(node.target).removeprefix("aten.")
    if w.dtype(node) in (torch.int64, torch.int32):
        form = "min({0},{1})" if low is None else "max({0},{1})" if high is None else "min(max({0},{1}),{2})"
        y = whole(w, node, form, [a["self"], *(bound for bound in (low, high) if bound is not None)])
        if y is not None:
            return y
    if low is None or high is None:
        form = _below if low is None else _above
        return w.pointwise(form(name, "{0}", "{1}"), [a["self"], high if low is None else low])
    if isinstance(low, Node) or isinstance(high, Node):
        return w.pointwise(_below(name, _above(name, "{0}", "{1}"), "{2}"), [a["self"], low, high])
    if not _ON_BOUND[name] and low < high:
        return w.pointwise("hardtanh({0},{1},{2})", [a["self"], low, high])
    return w.pointwise("clamp({0},{1},{2})", [a["self"], low, high])


@converts("gelu.default")
def gelu(w: "Writer", node: Node, a: Arguments):
    return w.pointwise("gelu_tanh({0})" if a["approximate"] == "tanh" else "gelu({0})", [a["self"]])


@converts("softplus.default")
def softplus(w: "Writer", node: Node, a: Arguments):
    form = "softplus({0})" if a["beta"] == 1 else "div(softplus(mul({0},{1})),{1})"
    if a["threshold"] < 20:  # above 20 softplus is x itself, in float32
        form = f"where(gt(mul({{0}},{{1}}),{{2}}),{{0}},{form})"
    return w.pointwise(form, [a["self"], a["beta"], a["threshold"]])


@converts(
    "xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other",
    "special_xlog1py.default", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar",
)  # fmt: skip
def x_times_log(w: "Writer", node: Node, a: Arguments):
    """Also where x is 0 its gradient by x is the logarithm, as long as that is finite."""
    log, pole = ("log1p", -1.0) if "log1p" in str(node.target) else ("log", 0.0)
    unused = f"and(eq({{0}},0.0),or(le({{1}},{pole!r}),eq({{1}},inf)))"
    return w.pointwise(f"mul({{0}},{log}(where({unused},{pole + 1!r},{{1}})))", [a["self"], a["other"]])


@converts("elu.default")
def elu(w: "Writer", node: Node, a: Arguments):
    if a["scale"] == 1 and a["input_scale"] == 1:
        return w.pointwise("elu({0},{1})", [a["self"], a["alpha"]])
    form = "mul({2},where(gt({0},0.0),{0},mul({1},expm1(mul(where(gt({0},0.0),0.0,{0}),{3})))))"
    return w.pointwise(form, [a["self"], a["alpha"], a["scale"], a["input_scale"]])


@converts("celu.default")
def celu(w: "Writer", node: Node, a: Arguments):
    form = "where(gt({0},0.0),{0},mul({1},expm1(div(where(gt({0},0.0),0.0,{0}),{1}))))"
    return w.pointwise(form, [a["self"], a["alpha"]])


@converts("_to_copy.default")
def to_copy(w: "Writer", node: Node, a: Arguments):
    before, after = w.dtype(a["self"]), w.dtype(node)
    if before == after or {before, after} <= {torch.float32, torch.bool} or (before in OTHER_FLOATS and after == torch.float32):
        if after == torch.bool and before != torch.bool:
            return w.pointwise("ne({0},0.0)", [a["self"]])
        if w.dtype_of[w.value(a["self"])] == "f32":
            return w.value(a["self"])
    names = {torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "u8"}
    if after not in names:
        raise Refusal(f"a cast to {after}; torch.float32 is expected")
    return w.emit("Cast", [a["self"]], w.shape(node), {"dtype": names[after]}, dtype=names[after])

"""torch.autograd.Function: a forward pass with a backward of its own, as straight-through estimators, surrogate gradients and reversed gradients have.

    y = forward(x),  dx = backward(dy)          y = fixed forward(x) + backward' (x - fixed x)

A backward that is linear in its gradient has a transpose, backward'. What is added is zero, and has the derivative that backward says. The transpose is the
derivative of <backward(g), v> by g, which gradients.py writes out as operators, and where it is seen whether g is left in it: then backward is not linear.
A gradient that backward gives whatever g is, as of an auxiliary loss, is that of a term of the loss: <backward(g), x - fixed x>.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from .chosen import depends, is_learnt, mark_learnt

_backwards = 0  # that are being called
_has_gradients = True  # as the forward pass has set it; within a Function's forward PyTorch has not


def in_backward() -> bool:
    """Whether the gradient is a tensor like others just now: no one may take a derivative of what is detached."""
    return _backwards > 0


def note_gradients(are_enabled: bool) -> None:
    global _has_gradients
    _has_gradients = are_enabled


@contextmanager
def _as_outside() -> Iterator[None]:
    """With gradients as where the Function is called, unseen by the export, which writes down where they are switched."""
    before = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(_has_gradients)
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(before)


class _Context:
    """What forward leaves for backward."""

    def __init__(self, args: Sequence[Any]):
        self.needs_input_grad = tuple(_may_be_trained(a) for a in args)
        self.saved_tensors: tuple = ()
        self.not_differentiable: tuple = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    saved_for_forward = save_for_forward = property(lambda self: lambda *tensors: None)  # of forward-mode derivatives

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.not_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise RuntimeError("its forward writes into what it is given; let it make a new tensor")

    def fix(self) -> None:
        """Backward reads values, of which no derivative is taken."""
        for name, value in vars(self).items():
            vars(self)[name] = pytree.tree_map_only(Tensor, lambda t: t.detach(), value)


def _is_trained(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and (is_learnt(value) or isinstance(value, torch.nn.Parameter))


def _may_be_trained(value: Any) -> bool:
    return _is_trained(value) or (isinstance(value, Tensor) and value.is_floating_point() and not depends(value))


@contextmanager
def _calling_backward() -> Iterator[None]:
    """Backward is traced as if somebody could take a derivative of it: no_grad, as once_differentiable has it, does nothing."""
    global _backwards
    own = torch.no_grad.__enter__, torch.no_grad.__exit__
    torch.no_grad.__enter__, torch.no_grad.__exit__ = lambda self: None, lambda self, *_: None  # type: ignore[method-assign]
    _backwards += 1
    try:
        yield
    finally:
        _backwards -= 1
        torch.no_grad.__enter__, torch.no_grad.__exit__ = own  # type: ignore[method-assign]


def followed(function: type, args: tuple) -> Any:
    """What ``function.apply(*args)`` gives, as operators. Called as its forward."""
    with _as_outside():
        return _followed(function, args)


def _followed(function: type, args: tuple) -> Any:
    context = _Context(args)
    moving = [a - a.detach() if _may_be_trained(a) else None for a in args]
    own = [_seen_within(a) if isinstance(a, Tensor) else a for a in args]
    forward = type.__getattribute__(function, "forward")
    if function.setup_context is not torch.autograd.Function.setup_context:
        result = forward(*own)
        function.setup_context(context, tuple(own), result)
    else:
        result = forward(context, *own)
    several = isinstance(result, (tuple, list))
    results = [r.detach() if isinstance(r, Tensor) else r for r in (result if several else [result])]
    if torch.is_grad_enabled() and any(v is not None for v in moving):
        results = _with_gradients(function, context, results, moving, result if several else [result])
    return tuple(results) if several else results[0]


def _seen_within(x: Tensor) -> Tensor:
    """What forward is given: it may ask whether that has a gradient."""
    own = x.detach()
    own._plimsoll_has_gradient = _may_be_trained(x)  # type: ignore[attr-defined]
    return own


def has_gradient(x: Tensor) -> Optional[bool]:
    """Whether a tensor that the forward of a Function was given has a gradient outside of it; None where it is another tensor."""
    return getattr(x, "_plimsoll_has_gradient", None)


def _with_gradients(function: type, context: _Context, results: list, moving: list, originals: Sequence[Any]) -> list:
    fixed = {id(t) for t in context.not_differentiable}
    of = [i for i, (r, own) in enumerate(zip(results, originals)) if isinstance(r, Tensor) and r.is_floating_point() and id(own) not in fixed]
    if not of:
        return results
    context.fix()
    given = {i: torch.zeros_like(results[i]) for i in of}
    unknown = lambda r: torch.zeros_like(r) if isinstance(r, Tensor) and context.materialize_grads else None  # noqa: E731
    passed = [given[i].clone() if i in given else unknown(r) for i, r in enumerate(results)]
    backward = function.backward if function.backward is not torch.autograd.Function.backward else function.vjp
    backward = getattr(backward, "__wrapped__", backward)
    with _calling_backward():
        found = backward(context, *passed)
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    pairs = [(g, v) for g, v in zip(found, moving) if isinstance(g, Tensor) and v is not None]
    for i, (g, v) in enumerate(pairs):
        if g.shape != v.shape and _sums_to(v.shape, g.shape):
            pairs[i] = g.sum_to_size(v.shape), v
        elif g.shape != v.shape:
            raise RuntimeError(f"its backward gives a gradient of shape {tuple(g.shape)} for a tensor of shape {tuple(v.shape)}")
    if not pairs:
        return results
    name = function.__qualname__.rpartition("<locals>.")[2]
    added = torch.ops.plimsoll.transposed([g for g, _ in pairs], [given[i] for i in of], [v for _, v in pairs], name)
    for i, change in zip(of, added):
        results[i] = results[i] + change
        mark_learnt(results[i])
    return results


def _sums_to(shape: Sequence[int], wide: Sequence[int]) -> bool:
    """Whether a tensor of the one shape expands to the other: PyTorch sums such a gradient."""
    return len(shape) <= len(wide) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(wide)))


def again(run: Callable, args: tuple) -> Any:
    """torch.utils.checkpoint with use_reentrant: no parameter of what it runs gets a gradient where nothing that it is given has one."""
    with nullcontext() if any(map(_is_trained, args)) else torch.no_grad():
        return run(*args)


# --- whether a backward is linear ------------------------------------------------------------------------------------

# By the positions of arguments of which one or several may depend on the gradient: "any one", as of a product; "all", as of a sum, where what does not is 0; or a number.
_ONE = frozenset("mul.Tensor mul.Scalar mm.default bmm.default matmul.default dot.default mv.default".split())
_SUMS = frozenset("add.Tensor sub.Tensor add.Scalar sub.Scalar cat.default stack.default where.self slice_scatter.default select_scatter.default scatter_add.default index_add.default".split())
_FIRST = frozenset(
    """div.Tensor div.Scalar neg.default view.default _unsafe_view.default reshape.default permute.default transpose.int t.default expand.default squeeze.default squeeze.dim
    squeeze.dims unsqueeze.default clone.default contiguous.default alias.default _to_copy.default sum.default sum.dim_IntList mean.default mean.dim slice.Tensor select.int
    split.Tensor split_with_sizes.default unbind.int index.Tensor index_select.default gather.default flip.default roll.default cumsum.default repeat.default tril.default
    triu.default diagonal.default flatten.using_ints unflatten.int view_as.default expand_as.default lift_fresh_copy.default constant_pad_nd.default pad.default avg_pool2d.default
    upsample_nearest2d.vec as_strided.default""".split()
)
_BY_SHAPE = frozenset("full_like.default zeros_like.default ones_like.default empty_like.default new_zeros.default new_ones.default new_full.default sym_size.int".split())


def not_linear(between: Sequence[Node], inputs: Sequence[Node]) -> str:
    """The operator that takes the gradient otherwise than linearly; empty: none."""
    moving = set(inputs)
    for node in between:
        name = str(node.target).removeprefix("aten.")
        if node.target is operator.getitem:
            moving.add(node)
            continue
        read = [n for n in node.all_input_nodes if n in moving]
        if not read or name in _BY_SHAPE:
            continue
        moving.add(node)
        others = [a for a in pytree.tree_leaves(node.args) if isinstance(a, Node) and a not in moving]
        if name == "copy.default" and (node.args[1] in moving or is_zero(node.args[1])):
            continue
        if name in _FIRST and node.args[0] in moving and len(read) == 1 and not _pads(node):
            continue
        if name in _ONE and sum(a in moving for a in node.args if isinstance(a, Node)) == 1:
            continue
        if name in _SUMS and _is_sum(node, name, others):
            continue
        if name.startswith(("conv", "linear")) and not any(a in moving for a in node.args[2:3]) and sum(a in moving for a in node.args[:2] if isinstance(a, Node)) == 1 and (len(node.args) < 3 or node.args[2] is None):
            continue
        if name.startswith("masked_fill") and node.args[0] in moving and len(read) == 1 and is_zero(node.args[2]):
            continue
        if name.startswith("index_put") and not any(i in moving for i in node.args[1] if isinstance(i, Node)) and all(a in moving or is_zero(a) for a in (node.args[0], node.args[2])):
            continue
        return str(node.target)
    return ""


def _pads(node: Node) -> bool:
    return "pad" in str(node.target) and any(a not in (0, 0.0, None, "constant") for a in node.args[2:])


def _is_sum(node: Node, name: str, others: Sequence[Node]) -> bool:
    if name == "where.self":
        return node.args[0] in others and all(is_zero(a) or a not in others for a in node.args[1:3])
    if name.startswith(("scatter_add", "index_add")):
        return node.args[2] in others and all(is_zero(a) or a not in others for a in (node.args[0], node.args[3]))
    if name.endswith(".Scalar"):
        return is_zero(node.args[1])
    return all(is_zero(a) for a in others) and not any(isinstance(a, (int, float)) and a != 0 for a in node.args[1:2])


def is_zero(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return value == 0
    if not isinstance(value, Node) or value.op != "call_function":
        return False
    name = str(value.target).removeprefix("aten.")
    if name.startswith(("zeros", "new_zeros")):
        return True
    if name.startswith(("full", "new_full")):
        return value.args[-1] == 0 or (len(value.args) > 1 and value.args[1] == 0)
    return name.startswith(("expand", "view", "clone", "lift_fresh_copy", "alias", "_to_copy", "scalar_tensor")) and is_zero(value.args[0])

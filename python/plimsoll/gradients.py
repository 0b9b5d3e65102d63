"""Gradients that a forward pass takes itself (torch.autograd.grad), as physics-informed networks, force fields and gradient penalties do.

    x -> ... -> u -> gradient(u, x) -> loss          x -> ... -> u, and beside it u's derivative by x as operators

While a model is exported, such a call is one operator. Then it is written out: what lies between inputs and outputs is traced together with its derivative,
and stands in the graph in its place, where further gradients may be taken of it.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .functions import is_zero, not_linear
from .values import arguments

_ATEN = torch.ops.aten
_FURTHER = ("native_layer_norm", "native_group_norm", "native_layer_norm_backward", "native_group_norm_backward", "_softmax_backward_data", "_log_softmax_backward_data",
            "gelu_backward", "silu_backward", "embedding_dense_backward", "select_backward", "slice_backward", "upsample_nearest2d_backward", "upsample_bilinear2d_backward")  # fmt: skip


@torch.library.custom_op("plimsoll::gradient", mutates_args=())
def gradient(outputs: Sequence[Tensor], inputs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """Stands for the gradients of the outputs by the inputs, ``given`` those of the outputs."""
    raise RuntimeError("a gradient in the forward pass, which is written out before it is run")


@gradient.register_fake
def _(outputs, inputs, given):
    return [torch.empty_like(x) for x in inputs]


@torch.library.custom_op("plimsoll::transposed", mutates_args=())
def transposed(outputs: Sequence[Tensor], inputs: Sequence[Tensor], given: Sequence[Tensor], name: str) -> list[Tensor]:
    """Stands for the same of a backward, which is to be linear (functions.py)."""
    raise RuntimeError("a backward of one's own, which is written out before it is run")


@transposed.register_fake
def _(outputs, inputs, given, name):
    return [torch.empty_like(x) for x in inputs]


def as_operator(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: Optional[bool] = None, create_graph: bool = False, only_inputs: bool = True,
    allow_unused: Optional[bool] = None, is_grads_batched: bool = False, materialize_grads: bool = False,
) -> tuple:
    """torch.autograd.grad while a model is exported."""
    if is_grads_batched:
        raise RuntimeError("torch.autograd.grad of a batch of gradients (is_grads_batched); take them one after the other")
    ys, xs = ([t] if isinstance(t, Tensor) else list(t) for t in (outputs, inputs))
    given = [None] * len(ys) if grad_outputs is None else [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    given = [torch.ones_like(y) if dy is None else dy for y, dy in zip(ys, given)]
    results = torch.ops.plimsoll.gradient(ys, xs, given)
    return tuple(r if create_graph else r.detach() for r in results)


class NotLinear(Exception):
    """A backward of a Function that does with its gradient what cannot be transposed."""

    def __init__(self, node: Node, function: str, operator: str):
        super().__init__(f"{function}: {operator}")
        self.node, self.function, self.operator = node, function, operator


def write_gradients(exported: ExportedProgram) -> None:
    """Puts operators in the place of every such gradient."""
    graph = exported.graph
    found = [n for n in graph.nodes if n.target in (torch.ops.plimsoll.gradient.default, torch.ops.plimsoll.transposed.default)]
    if not found:
        return
    further = torch._decomp.get_decompositions([getattr(_ATEN, name) for name in _FURTHER])
    decompositions = {
        **torch.export.default_decompositions(), **further, _ATEN.convolution_backward.default: _convolution_backward, _ATEN.avg_pool2d_backward.default: _average_pool_backward
    }  # fmt: skip
    for node in found:
        if node.target is torch.ops.plimsoll.transposed.default:
            _add_fixed_gradients(exported, node)
        _write(graph, node, decompositions)
    graph.eliminate_dead_code()


def _add_fixed_gradients(exported: ExportedProgram, node: Node) -> None:
    """What a backward gives whatever its gradient is, as L2Wrap and AddAuxiliaryLoss do: terms of the loss, which are zero and have that derivative."""
    graph = exported.graph
    outputs, inputs, moving = node.args[:3]
    between, _ = _between(graph, outputs, inputs)  # type: ignore[arg-type]
    fixed = [(g, v) for g, v in zip(outputs, moving) if g not in between and g not in inputs and not is_zero(g)]  # type: ignore[arg-type, operator, union-attr]
    if not fixed:
        return
    output = graph.output_node()
    place = next(i for i, spec in enumerate(exported.graph_signature.output_specs) if spec.kind == OutputKind.USER_OUTPUT)
    results = list(output.args[0])  # type: ignore[arg-type]
    if not _reaches(node, results[place]):  # PyTorch does not call that backward
        return
    mode = next(n.meta["val"].fake_mode for n in graph.nodes if isinstance(n.meta.get("val"), FakeTensor))

    def call(target: Any, *args: Any) -> Node:
        made = graph.call_function(target, args)
        with mode:
            value = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args))
        made.meta = {k: node.meta[k] for k in ("nn_module_stack", "stack_trace") if k in node.meta} | {"val": value}
        return made

    with graph.inserting_before(output):
        for g, v in fixed:
            term = call(_ATEN.sum.default, call(_ATEN.mul.Tensor, v, call(_ATEN.detach.default, g)))
            results[place] = call(_ATEN.add.Tensor, results[place], call(_ATEN.view.default, term, list(results[place].meta["val"].shape)))
    output.args = (tuple(results), *output.args[1:])


def _reaches(node: Node, end: Node) -> bool:
    """Whether a gradient comes back from the end to a node."""
    waiting, seen = [node], set()
    while waiting:
        n = waiting.pop()
        value = n.meta.get("val")
        if n in seen or n.target is _ATEN.detach.default or (isinstance(value, Tensor) and not value.is_floating_point()):
            continue
        seen.add(n)
        waiting.extend(n.users)
    return end in seen


def _write(graph: Graph, node: Node, decompositions: dict) -> None:
    outputs, inputs, given = (list(a) for a in node.args[:3])  # type: ignore[arg-type]
    between, outside = _between(graph, outputs, inputs)
    if len(node.args) > 3 and (found := not_linear(between, inputs)):
        raise NotLinear(node, f"{node.args[3]}.apply", found)
    function = _function(between, inputs, outside, outputs)
    known = [*inputs, *outside, *given]
    mode = next(n.meta["val"].fake_mode for n in graph.nodes if isinstance(n.meta.get("val"), FakeTensor))

    def fresh(value: Any) -> Any:
        """Without values, as all of the graph has them."""
        with mode:
            return pytree.tree_map_only(Tensor, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device), value)

    values = [fresh(n.meta["val"]) for n in known]

    def derivative(*tensors: Tensor) -> tuple:
        xs, rest, dys = tensors[: len(inputs)], tensors[len(inputs) : len(inputs) + len(outside)], tensors[len(inputs) + len(outside) :]
        _, back = torch.func.vjp(lambda *own: tuple(function(*own, *rest)), *xs)
        return back(tuple(dys))

    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        traced = make_fx(torch.func.functionalize(derivative), decomposition_table=decompositions, _allow_non_fake_inputs=True)(*values)
    traced.graph.eliminate_dead_code()
    places: dict[Node, Any] = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), known))
    with graph.inserting_before(node):
        for own in traced.graph.nodes:
            if own.op == "call_function":
                places[own] = graph.node_copy(own, lambda n: places[n])
                _name_convolution(places[own], own.meta["val"])
                places[own].meta = {k: node.meta[k] for k in ("nn_module_stack", "stack_trace") if k in node.meta} | {"val": fresh(own.meta["val"])}
            elif own.op == "get_attr":
                places[own] = _constant(graph, getattr(traced, own.target), fresh)  # type: ignore[arg-type]
    (results,) = next(n for n in traced.graph.nodes if n.op == "output").args
    for user in list(node.users):  # items of the list
        user.replace_all_uses_with(places[results[user.args[1]]])  # type: ignore[index]


def _between(graph: Graph, outputs: Sequence[Node], inputs: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """What is computed of the inputs for the outputs, in order; and what that reads besides."""
    depends = set(inputs)
    for n in graph.nodes:
        if n not in depends and any(m in depends for m in n.all_input_nodes):
            depends.add(n)
    needed: set[Node] = set()
    waiting = [y for y in outputs if y in depends and y not in inputs]
    while waiting:
        n = waiting.pop()
        if n not in needed:
            needed.add(n)
            waiting.extend(m for m in n.all_input_nodes if m in depends and m not in inputs)
    order = [n for n in graph.nodes if n in needed]
    read = {m for n in order for m in n.all_input_nodes} | set(outputs)
    return order, [n for n in graph.nodes if n in read and n not in needed and n not in inputs]


def _function(between: Sequence[Node], inputs: Sequence[Node], outside: Sequence[Node], outputs: Sequence[Node]) -> Callable:
    own = Graph()
    places: dict[Node, Node] = {n: own.placeholder(f"x{i}") for i, n in enumerate([*inputs, *outside])}
    for n in between:
        if n.target is _ATEN.copy.default:  # which has no derivative by itself
            places[n] = own.call_function(_ATEN.expand.default, (places[n.args[1]], list(n.meta["val"].shape)))  # type: ignore[index]
            continue
        if n.target in _BATCH_NORMS:
            given = arguments(n)
            weight, bias = (None if given[k] is None else places[given[k]] for k in ("weight", "bias"))
            places[n] = own.call_function(_batch_norm, (places[given["input"]], weight, bias, given["eps"]))
            continue
        places[n] = own.node_copy(n, lambda m: places[m])
        if n.target is _ATEN.view.default:  # attention's result lies otherwise here
            places[n].target = _ATEN.reshape.default
    own.output([places[y] for y in outputs])
    return GraphModule(torch.nn.Module(), own)


_BATCH_NORMS = (_ATEN._native_batch_norm_legit.no_stats, _ATEN._native_batch_norm_legit_functional.default)


def _batch_norm(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> tuple[Tensor]:
    """By the batch, as operators that have further derivatives. Only what is normalized has one."""
    dims, shape = [d for d in range(x.dim()) if d != 1], [1, -1, *[1] * (x.dim() - 2)]
    centred = x - x.mean(dims, keepdim=True)
    y = centred * torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    y = y if weight is None else y * weight.view(shape)
    return (y if bias is None else y + bias.view(shape),)


def _name_convolution(node: Node, value: Any) -> None:
    """The one operator that all convolutions are to autograd, by the name that it has otherwise."""
    if node.target is not _ATEN.convolution.default:
        return
    x, weight, bias, stride, padding, dilation, is_transposed, output_padding, groups = node.args
    rank = value.dim() - 2
    if is_transposed:
        node.target = _ATEN.conv_transpose1d.default if rank == 1 else getattr(_ATEN, f"conv_transpose{rank}d").input
        node.args = (x, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        node.target = getattr(_ATEN, f"conv{rank}d").default
        node.args = (x, weight, bias, stride, padding, dilation, groups)


def _convolution_backward(dy, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask):  # type: ignore[no-untyped-def]
    """Of the input alone: a convolution the other way."""
    if output_mask[1] or output_mask[2]:
        raise RuntimeError("a gradient in the forward pass by the weights of a convolution")
    if transposed:
        return _ATEN.convolution(dy, weight, None, stride, padding, dilation, False, [0] * len(stride), groups), None, None
    left = []  # rows that the strides have left out
    for d, size in enumerate(x.shape[2:]):
        reach = dilation[d] * (weight.shape[2 + d] - 1) + 1
        left.append(size - ((dy.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + reach))
    return _ATEN.convolution(dy, weight, None, stride, padding, dilation, True, left, groups), None, None


def _average_pool_backward(dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):  # type: ignore[no-untyped-def]
    """Every element gives its share to all that it was made of: a convolution the other way, of ones, channel by channel."""
    stride = list(stride or kernel)
    if ceil_mode or (any(padding) and not count_include_pad):
        raise RuntimeError("a gradient in the forward pass through an average pool with ceil_mode, or without count_include_pad")
    kernel, stride, padding = ([*a] * (3 - len(a)) for a in (kernel, stride, padding))
    channels = dy.shape[-3]
    share = torch.full((channels, 1, *kernel), 1.0 / (divisor or kernel[0] * kernel[1]), dtype=dy.dtype, device=dy.device)
    left = [x.shape[d - 2] - ((dy.shape[d - 2] - 1) * stride[d] - 2 * padding[d] + kernel[d]) for d in (0, 1)]
    return _ATEN.convolution(dy, share, None, stride, padding, [1, 1], True, left, channels)


def _constant(graph: Graph, value: Tensor, fresh: Callable) -> Node:
    """A single number that tracing has made a tensor of."""
    if value.numel() != 1 or isinstance(value, FakeTensor):
        raise RuntimeError("a gradient in the forward pass reads a table; make it a buffer")
    made = graph.call_function(_ATEN.full.default, (list(value.shape), value.item()), {"dtype": value.dtype, "device": value.device})
    made.meta = {"val": fresh(value)}
    return made

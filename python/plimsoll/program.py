"""One export: the graph of a step as ATen operators, for one batch size."""

from __future__ import annotations

import io
import itertools
import logging
import operator
import re
import traceback
import warnings
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Collection, Iterator, Mapping, Optional, Sequence

import torch
from torch import Tensor
from torch._export import utils as export_utils
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from .carried import Left, forgotten, restored
from .complex_numbers import as_pairs
from .errors import Unsupported, UnsupportedOp, WrongResult
from .gradients import NotLinear, write_gradients
from .interrupts import within_pytorch
from .joined import WRAPPED, Joined
from .masks import Known, split_masks
from .unseen import FOREIGN, each_once, watched
from .written_attention import join_attention

# Composite operators that stay whole, in every overload.
KEPT = frozenset("""linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d embedding matmul
    layer_norm group_norm rms_norm scaled_dot_product_attention softmax log_softmax
    gelu silu hardswish hardsigmoid relu6 leaky_relu softplus mish celu xlogy special_xlog1py
    avg_pool1d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d
    upsample_nearest1d upsample_linear1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
    upsample_nearest3d upsample_trilinear3d adaptive_avg_pool3d adaptive_max_pool3d
    pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d roll detach
    linalg_vector_norm norm std std_mean dist sinc binary_cross_entropy cross_entropy_loss nll_loss nll_loss_nd nll_loss2d
    lstm gru rnn_tanh rnn_relu max_unpool2d quantile""".split())


@dataclass
class Source:
    """What a placeholder stands for."""

    kind: str  # "parameter", "buffer", "constant", "input" or "token"
    name: str  # as in state_dict; of a tied parameter, the first of its names
    leaf: int = -1  # inputs: which tensor of the batch


@dataclass
class Program:
    """A decomposed graph of one batch size."""

    batch: int
    nodes: list[Node]
    sources: dict[int, Source]  # by index of the placeholder
    loss: int
    outputs: dict[str, int]
    updates: dict[str, int]  # buffer -> the node that gives its next value
    constants: dict[str, Tensor]
    index: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = {node: i for i, node in enumerate(self.nodes)}

    def buffer(self, name: str) -> Node:
        """What stands for a buffer as it is before the step."""
        return self.nodes[next(i for i, source in self.sources.items() if source.kind == "buffer" and source.name == name)]

    def take_for_buffers(self, parameters: Collection[str]) -> None:
        """Those that a forward pass writes into: this one, or another of the same step."""
        for source in self.sources.values():
            if source.kind == "parameter" and source.name in parameters:
                source.kind = "buffer"

    def name_inputs(self, names: Sequence[str]) -> None:
        for source in self.sources.values():
            if source.kind == "input":
                source.name = names[source.leaf]


def decompositions() -> dict:
    """PyTorch's default decompositions, less those of ``KEPT``."""
    table = torch.export.default_decompositions()
    for op in list(table):
        parts = str(op).split(".")
        if parts[0] == "aten" and parts[1] in KEPT and not parts[-1].endswith("out"):
            del table[op]
    table[torch.ops.aten.eye.default] = table[torch.ops.aten.eye.m] = _eye
    return table


def _eye(n: int, m: Optional[int] = None, *, dtype: Optional[torch.dtype] = None, device: Optional[torch.device] = None, **_: Any) -> Tensor:
    """As PyTorch's own, which counts rows in the narrowest dtype there is; uint16, of more than 256, has no arange."""
    rows, columns = torch.arange(n, device=device), torch.arange(n if m is None else m, device=device)
    return (rows.unsqueeze(-1) == columns).to(torch.get_default_dtype() if dtype is None else dtype)


@contextmanager
def _operators_asked_once() -> Iterator[None]:
    """To decompose a graph, PyTorch asks two times for each namespace of operators which composite ones there are. They are the same meanwhile, and each answer takes milliseconds."""
    ask = getattr(export_utils, "_materialize_cpp_cia_ops", None)
    if ask is None:  # a PyTorch that asks in another way
        yield
        return
    ask()
    export_utils._materialize_cpp_cia_ops = lambda: None
    try:
        yield
    finally:
        export_utils._materialize_cpp_cia_ops = ask


def _detach_without_gradient(module: GraphModule, as_buffers: Collection[str] = ()) -> None:
    """Puts a detach behind every region under ``torch.no_grad()``, since decomposing forgets the region itself; and a copy behind a detach that something is
    written into, since decomposing would detach what was written as well. ``as_buffers``: names of parameters that are written as buffers are."""
    graph = module.graph
    for node in graph.find_nodes(op="placeholder"):
        node.meta[_AS_BUFFER] = node.name in as_buffers
    for node in list(graph.nodes):
        if not _is_without_gradient(node):
            continue
        into = _written_in(module, node)
        written = {base: x for base, x in into.items() if _is_of_buffer(x)}
        anew = {base: _written_anew(graph, node, buffer) for base, buffer in written.items()}
        for result in list(node.users):
            base = _given_back(module, node, result)
            if base not in into and (x := _given_in(module, node, base)) is not None:  # in PyTorch it is that tensor, whose gradient goes on
                result.replace_all_uses_with(x)
                continue
            if base in anew:  # what is written there later is to stay in the buffer
                result.replace_all_uses_with(anew[base])
                continue
            if base in into and _is_of_parameters(into[base]):
                after = list(result.users)
                straight = _passed_straight(graph, node, into[base], result)
                result.replace_all_uses_with(straight, delete_user_cb=lambda user, after=after: user in after)
                continue
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta = dict(result.meta)
            result.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
        for x in into.values():  # in parts
            whole = _whole_of(x)
            if x in written.values() or not _is_of_parameters(whole):
                continue
            order = {n: i for i, n in enumerate(graph.nodes)}
            after = [user for user in whole.users if order.get(user, -1) > order[node]]
            views = list(_views_read_after(whole, order, order[node]))
            if after or views:
                straight = _passed_straight(graph, node, whole, None)
                for user in after:
                    user.replace_input_with(whole, straight)
                _take_again(graph, views, whole, straight)
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.detach.default:
            continue
        writers = sorted(_writers(node), key=order.__getitem__)
        if not writers or _is_of_buffer(node):
            continue
        x = _whole_of(node.args[0])
        after = [user for user in x.users if order.get(user, -1) > order[writers[0]]]
        views = list(_views_read_after(x, order, order[writers[0]]))
        if after or views:  # what was written there is read in the tensor itself
            if _is_of_parameters(x) and all(order.get(user, -1) > order[writers[-1]] for user in itertools.chain(after, *(readers for _, readers in views))):
                straight = _passed_straight(graph, node, x, None, writers[-1])
                for user in after:
                    user.replace_input_with(x, straight)
                _take_again(graph, views, x, straight)
            continue
        with graph.inserting_after(node):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = dict(node.meta)
        node.replace_all_uses_with(copy, delete_user_cb=lambda user, own=copy: user is not own)
    module.recompile()


def _views_read_after(x: Node, order: Mapping[Node, int], at: int) -> Iterator[tuple[list[Node], list[Node]]]:
    """Views of a tensor that were taken before a place, and that something reads behind it: each as the chain of views that leads there, with its readers."""
    chains = [[user] for user in x.users if _is_view_of(user, x) and order.get(user, at) < at]
    while chains:
        chain = chains.pop()
        readers = [user for user in chain[-1].users if order.get(user, -1) > at]
        if readers:
            yield chain, readers
        chains += [[*chain, user] for user in chain[-1].users if _is_view_of(user, chain[-1]) and order.get(user, at) < at]


def _whole_of(x: Any) -> Node:
    """What a view is of."""
    while x.op == "call_function" and x.args and _is_view_of(x, x.args[0]):
        x = x.args[0]
    return x


def _is_view_of(node: Node, x: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.arguments or not node.args or node.args[0] is not x:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write and node.target is not torch.ops.aten.detach.default


def _take_again(graph: Any, views: Sequence[tuple[list[Node], list[Node]]], x: Node, straight: Node) -> None:
    """Views are of another tensor from now on for those that read them."""
    for chain, readers in views:
        before, made = x, straight
        for view in chain:
            with graph.inserting_after(made):
                copy = graph.node_copy(view, lambda n, before=before, made=made: made if n is before else n)
            before, made = view, copy
        for reader in readers:
            reader.replace_input_with(chain[-1], made)


def _is_without_gradient(node: Node) -> bool:
    """Whether a node is a region under ``torch.no_grad()``."""
    return node.op == "call_function" and str(node.target) == "wrap_with_set_grad_enabled" and not node.args[0]


def _written_in(module: GraphModule, region: Node) -> dict[Node, Node]:
    """What is written in a region: the placeholders inside, and what they are outside."""
    graph = getattr(module, region.args[1].target).graph  # type: ignore[union-attr]
    given = {base: _given_in(module, region, base) for base in _written_by(graph)}
    return {base: x for base, x in given.items() if x is not None}


def _given_in(module: GraphModule, region: Node, inside: Any) -> Optional[Node]:
    """What a placeholder in a region is outside; None for another node."""
    graph = getattr(module, region.args[1].target).graph  # type: ignore[union-attr]
    x = dict(zip(graph.find_nodes(op="placeholder"), region.args[2:])).get(inside)
    return x if isinstance(x, Node) else None


def _written_by(graph: Any) -> Iterator[Any]:
    """What operators of a graph write into; of views, what these are of."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.arguments or not node.args:
            continue
        formal = schema.arguments[0]
        if formal.alias_info is not None and formal.alias_info.is_write:
            yield _base_of(node.args[0])


_AS_BUFFER = "plimsoll_as_buffer"  # in what is noted of a placeholder


def _written_anew(graph: Any, region: Node, buffer: Node) -> Node:
    """Writes what a buffer has behind a region into it, without the gradient that would go into the region."""
    last = region
    for make in (lambda: (torch.ops.aten.clone.default, (buffer,)), lambda: (torch.ops.aten.detach.default, (last,)), lambda: (torch.ops.aten.copy_.default, (buffer, last))):
        with graph.inserting_after(last):
            last = graph.call_function(*make())
        last.meta = dict(buffer.meta)
    return last


def _is_of_parameters(node: Any) -> bool:
    """Whether a gradient may go from a node to a parameter."""
    waiting, seen = [node], set()
    while waiting:
        n = waiting.pop()
        if n in seen or not isinstance(n, Node) or n.target is torch.ops.aten.detach.default or not _is_floating(n):
            continue
        seen.add(n)
        if n.op == "placeholder" and n.name.startswith("p_") and not n.meta.get(_AS_BUFFER):
            return True
        waiting.extend(n.all_input_nodes)
    return False


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex()


def _passed_straight(graph: Any, region: Node, x: Node, result: Optional[Node], last: Optional[Node] = None) -> Node:
    """What a region has written into a tensor has no gradient, and that of the tensor goes on as if nothing were written. ``result``: what the region gives back of it; None: it is read there. ``last``: what writes last."""
    aten = torch.ops.aten
    with graph.inserting_before(region):
        made = [graph.call_function(aten.clone.default, (x,))]
    last = last or result or region

    def call(target: Any, *args: Any) -> Node:
        nonlocal last
        with graph.inserting_after(last):
            last = graph.call_function(target, args)
        made.append(last)
        return last

    value = call(aten.detach.default, call(aten.clone.default, x if result is None else result))
    zero = call(aten.sub.Tensor, made[0], call(aten.detach.default, made[0]))
    straight = call(aten.add.Tensor, value, zero)
    for n in made:
        n.meta = dict(x.meta)
    return straight


def _given_back(module: GraphModule, region: Node, result: Node) -> Any:
    """The placeholder in a region that a result is, as the writes there leave it; else what makes it there."""
    given = getattr(module, region.args[1].target).graph.find_nodes(op="output")[0].args[0]  # type: ignore[union-attr]
    whole = result.target is operator.getitem and isinstance(given, (tuple, list))
    return _base_of(given[result.args[1]], views=False) if whole else None


def _base_of(node: Any, views: bool = True) -> Any:
    """What operators that end in ``node`` have written into; with ``views``, what that is a view of."""
    while isinstance(node, Node) and node.op == "call_function" and node.args:
        schema = getattr(node.target, "_schema", None)
        alias = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        if alias is not None and (views or alias.is_write):
            node = node.args[0]
            continue
        same = _same_as(node)
        if same is None:
            break
        node = same
    return node


def _same_as(node: Node) -> Optional[Node]:
    """What an operator gives back as it is given, as ``flatten(1)`` does a matrix, ``contiguous()`` what is contiguous, and ``broadcast_tensors`` what has the shape of all."""
    call, place = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, None)
    if not isinstance(call, Node) or not isinstance(call.target, torch._ops.OpOverload) or not call.target._can_decompose():
        return None
    made = node.meta.get("val")
    form = lambda x: (x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else None  # noqa: E731
    alike = [n for n in call.all_input_nodes if form(n.meta.get("val")) == form(made) is not None]
    if not alike:
        return None
    args, kwargs = pytree.tree_map_only(Node, lambda n: n.meta.get("val"), (call.args, call.kwargs))
    with torch.no_grad():
        result = call.target(*args, **kwargs)
    result = result if place is None else result[place]
    return next((n for n in alike if n.meta["val"] is result), None)


def _is_of_buffer(node: Node) -> bool:
    """Whether a tensor is a buffer, or lies in one: what is written there is to stay."""
    while node.op == "call_function" and node.all_input_nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.arguments or schema.arguments[0].alias_info is None:
            return False
        node = node.all_input_nodes[0]
    return node.op == "placeholder" and (node.name.startswith(("b_", "c_")) or node.meta.get(_AS_BUFFER, False))


def _writers(node: Node) -> list[Node]:
    """Those that write into a tensor or into a view of it."""
    found: list[Node] = []
    waiting, seen = [node], set()
    while waiting:
        x = waiting.pop()
        for user in x.users:
            schema = getattr(user.target, "_schema", None)
            formal = schema.arguments[0] if schema is not None and schema.arguments else None
            if formal is None or formal.alias_info is None or not user.args or user.args[0] is not x or user in seen:
                continue
            seen.add(user)
            waiting.append(user)
            if formal.alias_info.is_write:
                found.append(user)
    return found


def _fill_by_shape(exported: ExportedProgram) -> None:
    """What is filled in the shape of another tensor depends on no value of it."""
    graph = exported.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.full_like.default:
            value = node.meta["val"]
            with graph.inserting_before(node):
                full = graph.call_function(torch.ops.aten.full.default, (list(value.shape), node.args[1]), {"dtype": value.dtype, "device": value.device})
            full.meta = dict(node.meta)
            node.replace_all_uses_with(full)
    graph.eliminate_dead_code()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch and other people's modules tell while they are exported; failures come as exceptions."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _exported(step: Joined, tensors: Sequence[Tensor]) -> ExportedProgram:
    """The step's graph, decomposed. Whatever PyTorch objects to is told with the line that it came to."""
    try:
        with within_pytorch(), _quiet(), each_once(step), restored(step), forgotten(step.forget_tables):
            left = Left(step)
            step.ended = left.look
            with watched(step) as watch:
                step.ending = watch.puts_back
                exported = torch.export.export(step, tuple(tensors), strict=False)
            step.ended = step.ending = None
            if left:
                left.plant()
                watch.told += _carried(step, tensors, left)
            as_buffers = _written_as_buffers(step)
            _detach_without_gradient(exported.graph_module, {name for name, target in exported.graph_signature.inputs_to_parameters.items() if target in as_buffers})
            with _operators_asked_once():
                decomposed = exported.run_decompositions(decompositions())
    except WrongResult:
        raise
    except Exception as error:
        raise Unsupported(watch.told if watch.told else [_refused_by_export(error)], getattr(error, "plimsoll_hint", "")) from error
    buffers = exported.graph_signature.inputs_to_buffers
    unread = {target for node, target in buffers.items() if not _is_read(exported, node)}
    read = ({*exported.constants} | {*buffers.values()}) - unread
    told = watch.told + [entry for name, entry in watch.replaced.items() if name in read] + _read_before(decomposed, step.written)
    if told:
        raise Unsupported(told)
    return decomposed


# Operators whose derivative reads what they were given, as it is when PyTorch takes it.
_REREADING = frozenset("mul.Tensor div.Tensor pow.Tensor_Tensor mm.default bmm.default matmul.default linear.default addmm.default baddbmm.default".split())


def _read_before(exported: ExportedProgram, written: set[str]) -> list[UnsupportedOp]:
    """Buffers that are changed through .data after an operator that is to be derived has read them: PyTorch, which does not see the change, derives by other values."""
    told = []
    signature = exported.graph_signature
    for node, target in [*signature.inputs_to_buffers.items(), *signature.inputs_to_parameters.items()]:
        if target.removeprefix(WRAPPED) not in written:
            continue
        for reader in _readers(next(n for n in exported.graph.nodes if n.name == node)):
            name = str(reader.target).removeprefix("aten.")
            if (name in _REREADING or name.startswith("conv")) and _is_derived(exported, reader):
                reason = f"the buffer '{target.removeprefix(WRAPPED)}' is read here, and changed through .data later: PyTorch takes the derivative by the values after that. Change the buffer itself, under torch.no_grad()"
                told.append(UnsupportedOp(str(reader.target), module_path(reader), source_line(reader), reason))
    return told


def _readers(node: Node) -> Iterator[Node]:
    """Those that read a tensor's own memory."""
    for user in node.users:
        name = str(user.target).removeprefix("aten.")
        if name.split(".")[0] in ("view", "permute", "t", "transpose", "expand", "unsqueeze", "squeeze", "select", "slice", "alias", "detach"):
            yield from _readers(user)
        else:
            yield user


def _is_derived(exported: ExportedProgram, node: Node) -> bool:
    """Whether a gradient comes back to a node, and goes on from it to a parameter."""
    backward, seen = [node] if _reaches_loss(exported, node) else [], set()
    while backward:
        n = backward.pop()
        if n in seen or n.target is torch.ops.aten.detach.default:
            continue
        seen.add(n)
        if n.name in exported.graph_signature.inputs_to_parameters:
            return True
        backward.extend(n.all_input_nodes)
    return False


def _reaches_loss(exported: ExportedProgram, node: Node) -> bool:
    """Whether a gradient of the loss comes back to a node."""
    loss = next(spec.arg.name for spec in exported.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT)
    forward, seen = [node], set()
    while forward:
        n = forward.pop()
        if n in seen or n.target is torch.ops.aten.detach.default or not _is_floating(n):
            continue
        if n.name == loss:
            return True
        seen.add(n)
        forward.extend(n.users)
    return False


def _carried(step: Joined, tensors: Sequence[Tensor], left: Left) -> list[UnsupportedOp]:
    """What a second pass reads of what the first has left."""
    names = set(left.names.values())
    try:
        again = torch.export.export(step, tuple(tensors), strict=False)
    except Exception:  # it reads something; all may be meant
        pass
    else:
        names = {left.names.get(t.untyped_storage()._cdata) for t in again.constants.values() if isinstance(t, Tensor)} - {None}
    reason = "a forward pass leaves a tensor there which the next one reads; make it a buffer, and write it by copy_"
    return [UnsupportedOp(f"self.{name.rpartition('.')[2]} = ...", name.rpartition(".")[0].removeprefix(WRAPPED).removeprefix("model"), "", reason) for name in sorted(names)]


def _is_read(exported: ExportedProgram, name: str) -> bool:
    return any(node.op == "placeholder" and node.name == name and node.users for node in exported.graph.nodes)


def export_program(step: Joined, tensors: Sequence[Tensor], batch: int, names: Mapping[str, str]) -> Program:
    exported = _exported(step, tensors)
    try:
        write_gradients(exported)
    except NotLinear as error:
        reason = (
            f"its backward is not linear in the gradient ({error.operator} of it), and a network has no such derivative; what is done to gradients of parameters, as clipping,"
            " is the step's (clip_grad_norm=)"
        )
        raise Unsupported([UnsupportedOp(error.function, module_path(error.node), source_line(error.node), reason)]) from error
    except Exception as error:
        raise Unsupported([_refused_by_export(error)]) from error
    _fill_by_shape(exported)
    known = Known(exported)
    as_pairs(exported, known)
    join_attention(exported, known)
    split_masks(exported, known)
    nodes = list(exported.graph.nodes)
    by_name = {node.name: i for i, node in enumerate(nodes)}
    signature = exported.graph_signature
    sources: dict[int, Source] = {}
    leaves = 0
    for spec in signature.input_specs:
        place = by_name[spec.arg.name]
        if spec.kind == InputKind.USER_INPUT:
            sources[place] = Source("input", "", leaves)
            leaves += 1
        elif spec.kind == InputKind.PARAMETER:
            sources[place] = Source("parameter", names[spec.target])
        elif spec.kind == InputKind.TOKEN:  # orders checks that PyTorch makes of values; nothing reads it
            sources[place] = Source("token", spec.arg.name)
        elif isinstance(exported.constants.get(spec.target), torch.Generator):
            raise Unsupported([_drawn_by_its_own(node) for node in nodes[place].users])
        else:
            kind = "buffer" if spec.kind == InputKind.BUFFER else "constant"
            sources[place] = Source(kind, spec.target.removeprefix(WRAPPED))
    updates, results = {}, []
    inputs = {target: nodes[by_name[name]] for name, target in signature.inputs_to_parameters.items()}
    written = {target for target in _written_as_buffers(step) & inputs.keys() if target not in step.replaced or not _reaches_loss(exported, inputs[target])}
    places = {node: i for i, node in enumerate(nodes)}
    for spec, node in zip(signature.output_specs, nodes[-1].args[0]):  # type: ignore[arg-type]  # nodes may be others than those that the signature names
        if spec.kind == OutputKind.BUFFER_MUTATION:
            updates[spec.target.removeprefix(WRAPPED)] = places[node]  # type: ignore[index, union-attr]
        elif spec.kind == OutputKind.PARAMETER_MUTATION and spec.target in written:
            updates[names[spec.target]] = places[node]  # type: ignore[index]
        elif spec.kind == OutputKind.USER_OUTPUT:
            results.append(places[node])  # type: ignore[index]
        elif spec.kind != OutputKind.TOKEN:
            told = str(spec.target).removeprefix(WRAPPED)
            if spec.kind == OutputKind.PARAMETER_MUTATION:
                reason = f"the model changes its parameter '{told}', which is trained, in its forward pass; compute with what it would be, as with self.weight * self.mask, and leave it as it is; a moving average of weights can be made between steps"
            else:
                number = int(told.rpartition("_")[2]) + 1 if told.rpartition("_")[2].isdigit() else ""
                reason = f"the model, or the loss, writes into tensor {number} of the batch (x.mul_(...), x[...] = ..., inplace=True); write into a copy, x.clone()"
            raise Unsupported([UnsupportedOp("torch.export", "", "", reason)])
    loss, outputs = pytree.tree_unflatten(results, exported.call_spec.out_spec)  # as Joined.forward returns them
    return Program(batch, nodes, sources, loss, outputs, updates, dict(exported.constants))


def _written_as_buffers(step: Joined) -> set[str]:
    """Parameters that a forward pass may write into as into a buffer: frozen ones, as a moving average of others, and those in whose place it puts others, which
    the optimizer does not know."""
    return step.replaced | {name for name, parameter in step.named_parameters(remove_duplicate=False) if not parameter.requires_grad}


def _drawn_by_its_own(node: Node) -> UnsupportedOp:
    reason = "it draws by a torch.Generator of its own, which a step does not have; leave generator= out, or draw what is to stay the same once, into a buffer, or give it with the batch"
    return UnsupportedOp(str(node.target), module_path(node), source_line(node), reason)


def _refused_by_export(error: Exception) -> UnsupportedOp:
    """The user's own line in the trace of a failed export."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(FOREIGN)]
    source = f"{short_path(own[-1].filename)}:{own[-1].lineno}" if own else ""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    told = f"it cannot follow the model: {text[:300]}"
    plain = next((plain for found, plain in _PLAINLY if found in text), None)
    return UnsupportedOp("torch.export", "", source, f"{plain} ({told})" if plain else told)


# What a failed export says, and what that means to the user.
_PLAINLY = (
    ("tuple of ints,but got FakeTensor", "a size depends on values, as those of packed sequences do (pack_padded_sequence); run the layer on the padded batch, and leave padding out by a mask"),
    ("found a fake tensor in the exported program constant", "a gradient that is taken inside of the forward pass otherwise than by torch.autograd.grad, a tensor that is changed through .data, or one that a pass leaves for the next as an attribute of a function, is not followed"),
    *((found, "a gradient that torch.func takes (grad, vjp, jacrev, jacfwd, hessian) is not followed; take it by torch.autograd.grad(..., create_graph=True)")
      for found in ("object has no attribute 'constant'", "with functorch transforms", "storage of TensorWrapper")),
    ("SparseTensorImpl", "a sparse tensor is not followed; give its indices, and add at them by index_add, or a dense tensor"),
    ("Could not extract specialized integer from data-dependent", "Python asks for a number that depends on values (int(tensor), .item(), an index by a mask); keep it a tensor, or use torch.where"),
    ("expected compiled_fn to be GraphModule", "a buffer that the forward pass changes has its memory under a second name, which is read as well; read the buffer itself, or a copy (clone)"),
    ("unsupported format string passed to FakeTensor", "a text is made of a tensor's values, and a step runs no Python; leave it out, or name the tensor in outputs="),
    ("numpy() is not supported for tensor subclasses", "numpy is not followed; compute by torch, or, for a log, name the tensor in outputs="),
    ("Could not guard on data-dependent", "Python asks for a decision that depends on values; use torch.where, or give what decides as a number or a text of Python's in the batch"),
)


# --- where a node comes from -----------------------------------------------------------------------------------------


def module_path(node: Node) -> str:
    """The path of the innermost module that the node came from, as in ``named_modules``."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return "" if path == WRAPPED[:-1] else path.removeprefix(WRAPPED)


def source_line(node: Node) -> str:
    """The innermost line outside of PyTorch that the node came from: "model.py:41"."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [f for f in frames if not f[0].startswith((*FOREIGN, "<"))]  # "<eval_with_key>.3": code that PyTorch wrote
    return f"{short_path(own[-1][0])}:{own[-1][1]}" if own else ""


def short_path(path: str) -> str:
    """Relative to the installed packages or to the working directory, else the file's name."""
    for part in ("site-packages/", "dist-packages/"):
        if part in path:
            return path.rsplit(part, 1)[1]
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return Path(path).name

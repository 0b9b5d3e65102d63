"""Conversion: from a captured model to the dictionary of a network file.

A network file (JSON, `format` "plimsoll network") lists the tensors that come from outside and the ops in an order in
which they can run. This module walks the captured graph and lets the converters of ``plimsoll.aten`` write ops;
``Writer`` is what they write with. What cannot be converted is collected and raised together as ``Unsupported``.

The graph is converted at two batch sizes, and the two results are laid side by side: a size that differs must be a
multiple of the batch, and is written as "batch" or "k*batch".
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Union

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import Node
from torch.utils import _pytree as pytree

from .aten import CONVERTERS, Refusal, arguments
from .aten.scatter import is_empty
from .capture import Captured
from .values import as_reals, has_values
from .errors import Unsupported, UnsupportedOp
from .fallback import Region, in_regions, write_region
from .program import Program, module_path, source_line
from .writer import DTYPES, Document, Writer, sizes_of

FORMAT, VERSION = "plimsoll network", 1
FLOAT_EXPECTED = "torch.float32 is expected"

# --- one section -----------------------------------------------------------------------------------------------------


def write(captured: Captured, program: Program) -> Writer:
    """Converts every node that the loss needs; what cannot be is left to PyTorch where ``captured.fallback`` says so.
    Raises ``Unsupported`` with all that is left."""
    writer, refused = _attempt(Writer(captured, program), {})
    if refused and captured.fallback:
        writer, refused = _attempt(Writer(captured, program), refused)
    told = [
        UnsupportedOp(str(node.target), module_path(node), source_line(node), reason)
        for node, reason in ((program.nodes[i], reason) for i, reason in refused.items())
    ]
    if told:
        raise Unsupported(told, hint=_hint(captured, program, refused))
    return writer


def _hint(captured: Captured, program: Program, refused: dict[int, str]) -> str:
    """What would do for all that is refused."""
    if refused and all(FLOAT_EXPECTED in reason for reason in refused.values()):
        return "Plimsoll trains in float32 for now: call model.float(), give batches of it, and leave autocast out"
    if captured.fallback or not refused or _attempt(Writer(captured, program), refused)[1]:
        return ""
    return 'plimsoll.compile(..., fallback="torch") lets PyTorch compute this inside the step, in memory that no plan counts'


def _attempt(writer: Writer, fallbacks: dict[int, str]) -> tuple[Writer, dict[int, str]]:
    """Converts all nodes but those of ``fallbacks``, which PyTorch computes for the reasons given. Gives what is refused, and
    why (an exception itself would keep alive all that its traceback sees)."""
    refused: dict[int, str] = {}
    nodes = writer.program.nodes
    for run in in_regions(writer) if fallbacks else [[i] for i in writer.division.network]:
        left = next((i for i in run if i in fallbacks), None)
        if left is not None:
            try:
                write_region(writer, run, fallbacks)
            except Refusal as refusal:
                refused[left] = f"{fallbacks[left]}; and PyTorch cannot compute it in the step: {refusal}"
                writer.values.update((i, _stand_in(writer, nodes[i])) for i in run)
            continue
        for i in run:
            if nodes[i].op in ("placeholder", "get_attr"):  # the latter: what a branch would do
                continue
            try:
                writer.values[i] = _convert_node(writer, nodes[i])
            except Refusal as refusal:
                refused[i] = str(refusal)
                writer.values[i] = _stand_in(writer, nodes[i])
    for buffer, i in writer.division.assigned.items():
        try:
            _assign(writer, buffer, i)
        except Refusal as refusal:
            refused.setdefault(i, str(refusal))
    return writer, refused


def _convert_node(writer: Writer, node: Node) -> Any:
    if node.op == "call_function" and node.target is operator.getitem:
        return writer.values[writer.program.index[node.args[0]]][node.args[1]]
    writer.enter(node)
    converter = CONVERTERS.get(str(node.target))
    if isinstance(node.target, HigherOrderOperator):
        raise Refusal("what is done here depends on values of the batch; compute both ways, and choose by torch.where")
    if str(node.target) == "aten._local_scalar_dense.default":
        raise Refusal("Python takes a number out of a tensor here (item, tolist), which depends on values; leave it a tensor, or give it by the batch")
    if converter is None:
        raise Refusal("there is no such op yet")
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor):
            sizes_of(value)
        if isinstance(value, Tensor) and value.dtype not in DTYPES:
            raise Refusal(f"its dtype is {value.dtype}; {FLOAT_EXPECTED}")
        if isinstance(value, Tensor) and value.dtype == torch.float64:
            raise Refusal(f"its dtype is torch.float64; {FLOAT_EXPECTED}")
    if any(isinstance(n.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)) for n in node.all_input_nodes):
        raise Refusal("it reads a number that depends on values of the batch")
    value = node.meta.get("val")
    if isinstance(value, Tensor) and 0 in sizes_of(value):
        return None  # joins leave it out
    return converter(writer, node, arguments(node))


def _stand_in(writer: Writer, node: Node) -> Any:
    """Something for readers of a refused node, so that they are judged as well."""

    def name(value: Any, k: int) -> str:
        text = f"?{node.name}/{k}"
        writer.shape_of[text] = [n if isinstance(n, int) else 1 for n in value.shape]
        writer.dtype_of[text] = "f32"
        return text

    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return tuple(name(v, k) if isinstance(v, Tensor) else None for k, v in enumerate(value))
    return name(value, 0) if isinstance(value, Tensor) else None


def _assign(writer: Writer, buffer: str, i: int) -> None:
    """A buffer takes a value that the network computes, at the end of the step."""
    node = writer.program.nodes[i]
    writer.enter(node)
    if not writer.captured.training:
        raise Refusal(f"it changes the buffer '{buffer}' in evaluation, which leaves everything as it is; change it in training alone")
    value = writer.value(node)
    if writer.tensors.get(writer.root(value), {}).get("role") == "statistic":  # which may be assigned as well
        value = writer.value(writer.pointwise("mul({0},1.0)", [value], "copy"))
    before = writer.value(writer.program.buffer(buffer))
    if writer.dtype_of[value] != writer.dtype_of[before]:
        raise Refusal(f"it writes {writer.dtype_of[value]} into the buffer '{buffer}', which is {writer.dtype_of[before]}")
    shape, dtype = writer.shape_of[before], writer.dtype_of[before]
    writer.emit("Assign", [before, value], shape, part="assign", outputs=[f"{buffer}.next"], dtype=dtype)


def _without_unread(writer: Writer, kept: Sequence[str]) -> tuple[list[Document], set[str]]:
    """The ops whose results are read, and the names of all tensors that are."""
    read, ops = set(kept), []
    for op in reversed(writer.ops):
        if any(out in read or out.endswith(".next") for out in op["outputs"]):
            read.update(op["inputs"])
            ops.append(op)
    return ops[::-1], read


def _section(writer: Writer) -> Document:
    captured, program = writer.captured, writer.program
    loss_node = program.nodes[program.loss]
    writer.enter(loss_node)
    if math.prod(writer.shape(loss_node)) != 1:
        reason = f"the loss is a tensor {tuple(writer.shape(loss_node))}; a scalar is expected"
        raise Unsupported(
            [UnsupportedOp(str(loss_node.target), module_path(loss_node), source_line(loss_node), reason)]
        )
    loss = writer.reshape(_with_idle(writer, loss_node), [], "loss")
    outputs = writer.outputs = {name: writer.value(program.nodes[i]) for name, i in program.outputs.items()}
    ops, read = _without_unread(writer, [loss, *outputs.values()])
    tensors = [t for t in writer.tensors.values() if t["name"] in read]
    section: Document = {"tensors": _ordered(tensors, captured), "ops": ops, "objectives": [{"loss": loss}]}
    section["frozen"] = [name for name in captured.frozen if name in read]
    section |= _dataset_names(section, ops)
    if outputs:
        section["outputs"] = list(dict.fromkeys(outputs.values()))
    return section


def _with_idle(writer: Writer, loss: Node) -> Any:
    """The loss, which what is idle in it has a gradient of zeros of."""
    result, above = loss, _derived_from(loss) if writer.idle and writer.captured.training else frozenset()
    for node, readers in writer.idle.items():
        if node not in above and not above.isdisjoint(readers):
            flat = writer.reshape(node, [math.prod(writer.shape(node))], "flat")
            one = writer.reshape(writer.slice(flat, 0, 0, 1, part="one"), [], "idle")
            result = writer.pointwise("where(lt(abs({1}),-1.0),{1},{0})", [result, one], "with_idle")  # never, which nobody is to see
    return result


def _derived_from(node: Node) -> frozenset[Node]:
    """All that a node's gradient goes to, but for what only tensors without elements come from."""
    waiting, found = [node], {node}
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found and str(source.target) != "aten.detach.default" and not is_empty(source) and _may_have_gradient(source):
                found.add(source)
                waiting.append(source)
    return frozenset(found)


def _may_have_gradient(node: Node) -> bool:
    values = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return not values or any(value.is_floating_point() or value.is_complex() for value in values)


def _ordered(tensors: Sequence[Document], captured: Captured) -> list[Document]:
    """Inputs, then parameters and statistics in the order of state_dict, then computed constants and scalars."""
    roles = {"input": 0, "parameter": 1, "statistic": 1, "hyperparameter": 3}
    names = [*captured.inputs, *captured.parameters, *captured.buffers]
    rank = {name: i for i, name in enumerate(names)}
    return sorted(tensors, key=lambda t: (roles[t["role"]], rank.get(t["name"], len(rank))))


def _dataset_names(section: Document, ops: Sequence[Document]) -> Document:
    """What a data set of the command line feeds: images or the like, and a label a row."""
    inputs = [t["name"] for t in section["tensors"] if t["role"] == "input"]
    losses = [op for op in ops if op["type"] == "SoftmaxCrossEntropyForward"]
    if len(losses) != 1 or len(inputs) != 2:
        return {}
    views = {op["outputs"][0]: op["inputs"][0] for op in ops if op["type"] == "Reshape"}
    labels = losses[0]["inputs"][1]
    while labels in views:
        labels = views[labels]
    if labels not in inputs:
        return {}
    return {"data": next(n for n in inputs if n != labels), "labels": labels, "correct": losses[0]["outputs"][2]}


# --- two batch sizes as one document ---------------------------------------------------------------------------------


class _NotByBatch(Exception):
    pass


def _size(a: int, b: int, sizes: tuple[int, int], where: str) -> Union[int, str]:
    if a == b:
        return a
    if a % sizes[0] == 0 and b % sizes[1] == 0 and a // sizes[0] == b // sizes[1]:
        factor = a // sizes[0]
        return "batch" if factor == 1 else f"{factor}*batch"
    raise _NotByBatch(f"{where} is {a} for {sizes[0]} samples and {b} for {sizes[1]}")


def _merge(a: Any, b: Any, sizes: tuple[int, int], where: str = "the network") -> Any:
    """The document that gives `a` at the first batch size and `b` at the second."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        here = a.get("name", "")
        if a.get("role") == "statistic" and a["shape"] != b["shape"]:
            raise _NotByBatch(f"'{here}', a table of known values, has as many as there are samples")
        return {k: _merge(v, b[k], sizes, f"{k} of '{here}'" if here else where) for k, v in a.items()}
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        if all(type(x) is int for x in [*a, *b]):
            return [_size(x, y, sizes, where) for x, y in zip(a, b)]
        return [_merge(x, y, sizes, where) for x, y in zip(a, b)]
    if a == b:
        return a
    if isinstance(a, list):
        raise _NotByBatch(f"{where} has {len(a)} entries for {sizes[0]} samples and {len(b)} for {sizes[1]}")
    raise _NotByBatch(f"{where} is {a} for {sizes[0]} samples and {b} for {sizes[1]}")


# --- initial values --------------------------------------------------------------------------------------------------


SAMPLED = 1 << 16  # elements that a distribution is judged by


def initializer(value: Optional[Tensor], entry: Document) -> Optional[Document]:
    """How a tensor starts where no weights are given.

    A parameter: as its values are distributed now; of a model without values, as its rank suggests. A buffer: only if
    all its values are one; of others nothing is said, since they cannot be drawn and must come with the weights.
    """
    if value is None or not has_values(value):
        return _guessed_initializer(entry)
    flat = value.detach().flatten()
    if flat.numel() == 0:
        return _constant(0.0)
    least, most = torch.aminmax(flat)  # one pass, since there may be billions; they are no numbers where one value is none
    if not (math.isfinite(least) and math.isfinite(most)):  # of what has diverged, nothing can be said
        return _guessed_initializer(entry)
    if bool(least == most):
        return _constant(float(flat[0]))
    if entry["role"] != "parameter":
        return None
    some = flat[:: max(1, flat.numel() // SAMPLED)]
    some = (some if some.dtype == torch.float32 else some.double()).cpu().numpy().astype("float64")  # so few are no work for several threads
    mean, deviation = float(some.mean()), float(some.std())
    widest = float(abs(some - mean).max())
    if widest < 1.8 * deviation:  # uniform: sqrt(3) deviations wide
        return {"kind": "uniform", "mean": _short(mean), "scale": _short(deviation * math.sqrt(3))}
    return {"kind": "normal", "mean": _short(mean), "scale": _short(deviation)}


def _guessed_initializer(entry: Document) -> Optional[Document]:
    name, is_parameter = entry["name"], entry["role"] == "parameter"
    if is_parameter and len(entry["shape"]) > 1:
        return {"kind": "normal", "mean": 0.0, "scale": 0.02}
    if is_parameter:
        return _constant(1.0 if name.endswith("weight") else 0.0)
    if name.endswith(("running_mean", "running_var")):
        return _constant(1.0 if name.endswith("running_var") else 0.0)
    return None


def _constant(value: float) -> Document:
    return {"kind": "constant", "mean": value, "scale": 0.0}


def _short(x: float) -> float:
    return float(f"{x:.4g}")


# --- the whole -------------------------------------------------------------------------------------------------------


@dataclass
class Converted:
    """A network file's dictionary, and the values of the tensors that it names.

    ``values``: parameters and buffers by their names in ``state_dict``, and computed constants. ``fixed_batch`` says why
    the file holds for one batch size only; empty: sizes are multiples of "batch".
    """

    document: Document
    values: dict[str, Tensor]
    fixed_batch: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)  # the caller's names of them -> the file's
    fallbacks: list[Region] = field(default_factory=list)  # what PyTorch computes in the step


def convert(captured: Captured, *, label_dtype: str = "i64") -> Converted:
    """The network file of a captured model, as a dictionary of the section "training" (or "evaluation", as captured).

    ``label_dtype`` "i32" declares labels that only a cross entropy reads as 32-bit integers, which is what the command
    line's data sets give.
    """
    writer = write(captured, captured.first)
    section, fixed = _section(writer), list(captured.fixed_batch)
    if captured.second is not None:
        sizes = (captured.first.batch, captured.second.batch)
        try:
            section = _merge(section, _section(write(captured, captured.second)), sizes)
        except _NotByBatch as reason:
            fixed.append(str(reason))
    values = _values(captured, writer, section)
    for tensor in section["tensors"]:
        if tensor["role"] in ("parameter", "statistic"):
            init = initializer(values.get(tensor["name"]), tensor)
            if init is not None:
                tensor["init"] = init
        if tensor["name"] == section.get("labels") and label_dtype == "i32":
            tensor["dtype"] = "i32"
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": captured.name,
        "batch": captured.first.batch,
        ("training" if captured.training else "evaluation"): section,
    }
    return Converted(document, values, fixed, writer.outputs, writer.fallbacks)


def _values(captured: Captured, writer: Writer, section: Document) -> dict[str, Tensor]:
    named = {**captured.parameters, **captured.buffers, **captured.program_constants, **writer.constant_values}
    return {t["name"]: as_reals(named[t["name"]].detach()) for t in section["tensors"] if t["name"] in named}

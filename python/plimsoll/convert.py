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
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Union

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from .aten import CONVERTERS, Refusal, arguments
from .capture import Captured, Division, Place, Program, has_values, module_path, source_line
from .errors import Unsupported, UnsupportedOp

FORMAT, VERSION = "plimsoll network", 1

DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "u8",
}

# Operators whose names are not what people call them.
SHORT = {
    "_native_batch_norm_legit_functional": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "native_dropout": "dropout",
    "cross_entropy_loss": "cross_entropy",
    "scaled_dot_product_attention": "attention",
    "_to_copy": "cast",
    "view": "reshape",
    "split_with_sizes": "split",
}

# What to do instead, for operators that have another form.
HINTS = {
    "transformers.grouped_mm_fallback.default": "there is no such op yet; "
    "model.set_experts_implementation('batched_mm') does without it",
}

Document = dict[str, Any]


@dataclass
class Expanded:
    """A tensor broadcast to a shape: an Expand op is written for it only where a reader cannot broadcast by itself."""

    base: str
    shape: list[int]
    name: str = ""


@dataclass
class Site:
    """Where in the model the ops that are being written belong."""

    path: str
    source: str
    name: str


Readable = Union[Node, str, Expanded]
Operand = Union[Readable, int, float, bool]


class Writer:
    """Writes one section ("training") of a network file. Shapes are numbers: those of the program's batch size."""

    def __init__(self, captured: Captured, program: Program):
        self.captured, self.program = captured, program
        self.division: Division = captured.division
        self.tensors: dict[str, Document] = {}
        self.ops: list[Document] = []
        self.shape_of: dict[str, list[int]] = {}
        self.dtype_of: dict[str, str] = {}
        self.values: dict[int, Any] = {}
        self.constant_values: dict[str, Tensor] = {}  # computed constants, by tensor name
        self._op_names: set[str] = set()
        self._maker: dict[str, Document] = {}
        self._salts = 0
        self._reads = Counter(
            module_path(node)
            for node in (program.nodes[i] for i in self.division.network)
            if node.op == "call_function" and node.target is not operator.getitem
        )
        self._site = Site("", "", "")

    # --- what converters read ---

    def shape(self, node: Node) -> list[int]:
        return [int(n) for n in node.meta["val"].shape]

    def dtype(self, node: Node) -> torch.dtype:
        return node.meta["val"].dtype

    def value(self, operand: Readable) -> str:
        """The name of a node's tensor; what comes from outside is declared with its first use."""
        if isinstance(operand, Node):
            if self.parameter_of(operand) is not None:
                return self.weight(operand, self.shape(operand))
            i = self.program.index[operand]
            if i not in self.values:
                self.values[i] = self._from_outside(i)
            operand = self.values[i]
        if isinstance(operand, Expanded):
            if not operand.name:
                attributes = {"shape": operand.shape}
                operand.name = self.emit("Expand", [operand.base], operand.shape, attributes, part="expand")
            return operand.name
        if not isinstance(operand, str):
            raise Refusal("it reads a result that is not kept")
        return operand

    def number(self, operand: Any) -> Optional[float]:
        """The number that all elements of an operand have, where that is known; else None."""
        if isinstance(operand, (bool, int, float)):
            return float(operand)
        if not isinstance(operand, Node):
            return None
        value = self.constant(operand)
        if value is None or value.numel() == 0:
            return self._filled_with(operand)
        first = value.flatten()[0]
        is_uniform = value.numel() == 1 or bool((value == first).all())
        return float(first) if is_uniform else None

    def _filled_with(self, node: Node) -> Optional[float]:
        while node.op == "call_function" and str(node.target) in ("aten.expand.default", "aten.view.default"):
            node = node.args[0]  # type: ignore[assignment]
        if node.op == "call_function" and str(node.target) in ("aten.full.default", "aten.full_like.default"):
            return float(node.args[1])  # type: ignore[arg-type]
        return None

    def constant(self, node: Node) -> Optional[Tensor]:
        """The value of a node that depends on neither inputs nor parameters, where it is known; of one that is the same
        for every sample, its one row.

        Constants are the same at every batch size (capture.divide), so the first program's values serve both.
        """
        i = self.program.index[node]
        value = self.division.samples.get(i)
        value = self.captured.constant(i) if value is None else value
        return value if isinstance(value, Tensor) else None

    def is_trained(self, node: Any) -> bool:
        """Whether a gradient may be asked of the node."""
        return isinstance(node, Node) and self.division.places[self.program.index[node]] == Place.NETWORK

    def parameter_of(self, node: Node) -> Optional[str]:
        source = self.program.sources.get(self.program.index[node])
        return source.name if source is not None and source.kind == "parameter" else None

    def next_of(self, node: Node) -> Optional[str]:
        """The buffer whose next value a node gives."""
        i = self.program.index[node]
        return next((name for name, update in self.program.updates.items() if update == i), None)

    # --- what converters write ---

    def emit(
        self,
        kind: str,
        inputs: Sequence[Readable],
        shapes: Sequence,
        attributes: Optional[Document] = None,
        part: str = "",
        outputs: Sequence[str] = ("y",),
        dtype: str = "f32",
    ) -> Any:
        """Appends an op and gives the name of its output; a tuple of names where ``shapes`` is a list of shapes.

        ``part`` tells apart the ops that one operator becomes. An entry of ``outputs`` that holds a slash or a dot is
        a full name.
        """
        names = [self.value(x) for x in inputs]
        several = bool(shapes) and isinstance(shapes[0], (list, tuple))
        op_name = self._unique(self._site.name + ("/" + part if part else ""))
        outs = [out if "." in out or "/" in out else f"{op_name}/{out}" for out in outputs]
        op: Document = {
            "type": kind,
            "name": op_name,
            "layer": self._site.path or op_name,
            "inputs": names,
            "outputs": outs,
            "shapes": [list(s) for s in (shapes if several else [shapes])],
        }
        if attributes:
            op["attributes"] = attributes
        if self._site.source:
            op["source"] = self._site.source
        self.ops.append(op)
        for out, shape in zip(outs, op["shapes"]):
            self.shape_of[out], self.dtype_of[out], self._maker[out] = shape, dtype, op
        return tuple(outs) if several else outs[0]

    def reshape(self, x: Readable, shape: Sequence[int], part: str = "reshape") -> str:
        """Nothing where the shape is that already; of several reshapes in a row, the last."""
        name, shape = self.value(x), list(shape)
        while name in self._maker and self._maker[name]["type"] == "Reshape":
            name = self._maker[name]["inputs"][0]
        if self.shape_of[name] == shape:
            return name
        return self.emit("Reshape", [name], shape, {"shape": shape}, part, dtype=self.dtype_of[name])

    def permute(self, x: Readable, dims: Sequence[int], part: str = "permute") -> str:
        """Nothing where no dimension moves; a reshape where only dimensions of size 1 do."""
        name, dims = self.value(x), list(dims)
        before = self.shape_of[name]
        shape = [before[d] for d in dims]
        moving = [d for d in dims if before[d] != 1]
        if dims == sorted(dims):
            return name
        if moving == sorted(moving):
            return self.reshape(name, shape, part)
        return self.emit("Permute", [name], shape, {"dims": dims}, part, dtype=self.dtype_of[name])

    def slice(self, x: Readable, axis: int, begin: int, size: int, step: int = 1, part: str = "slice") -> str:
        name = self.value(x)
        if size == self.shape_of[name][axis]:
            return name
        shape = list(self.shape_of[name])
        shape[axis] = size
        attributes = {"axis": axis, "begin": begin, "size": size} | ({"step": step} if step != 1 else {})
        return self.emit("Slice", [name], shape, attributes, part, dtype=self.dtype_of[name])

    def concat(self, parts: Sequence[str], axis: int, part: str = "concat") -> str:
        if len(parts) == 1:
            return parts[0]
        shape = list(self.shape_of[parts[0]])
        shape[axis] = sum(self.shape_of[p][axis] for p in parts)
        return self.emit("Concat", parts, shape, {"axis": axis}, part, dtype=self.dtype_of[parts[0]])

    def reduce(self, x: Readable, function: str, dims: Sequence[int], keep: bool = False, part: str = "reduce") -> str:
        name = self.value(x)
        before = self.shape_of[name]
        dims = sorted(dims)
        shape = [1 if d in dims else n for d, n in enumerate(before) if keep or d not in dims]
        if all(before[d] == 1 for d in dims):
            return self.reshape(name, shape, part)
        attributes = {"function": function, "dims": dims, "keep_dims": int(keep)}
        return self.emit("Reduce", [name], shape, attributes, part)

    def fill(self, shape: Sequence[int], value: float, part: str = "constant") -> str:
        return self.emit("Constant", [], list(shape), {"shape": list(shape), "value": float(value)}, part)

    def pointwise(self, template: str, operands: Sequence[Operand], part: str = "") -> Readable:
        """An elementwise expression: ``pointwise("mul(add({0},{1}),2.5)", [x, y])``.

        Operands of one value become numbers in the expression. What broadcasts is not written out before it.
        """
        numbers = [self.number(x) for x in operands]
        bases = [self._base(x) if number is None else "" for x, number in zip(operands, numbers)]
        inputs = list(dict.fromkeys(filter(None, bases)))
        if not inputs:
            raise Refusal("all its operands are numbers")
        texts = [f"x{inputs.index(base)}" if base else repr(number) for base, number in zip(bases, numbers)]
        natural = _broadcast([self.shape_of[x] for x in inputs])
        full = _broadcast([natural, *(self._shape_read(x) for x in operands)])
        result = self.emit("Pointwise", inputs, natural, {"expression": template.format(*texts)}, part)
        return result if natural == full else Expanded(result, full)

    def _shape_read(self, operand: Operand) -> list[int]:
        if isinstance(operand, Node):
            return self.shape(operand)
        if isinstance(operand, Expanded):
            return operand.shape
        return self.shape_of[operand] if isinstance(operand, str) else []

    def _base(self, operand: Any) -> str:
        if isinstance(operand, Node):
            operand = self.values.get(self.program.index[operand], operand)
        if isinstance(operand, Expanded) and not operand.name:
            return operand.base
        return self.value(operand)

    def random_inputs(self) -> list[str]:
        """The two scalars that random ops draw by."""
        for name in ("step_number", "seed"):
            if name not in self.tensors:
                self._declare(name, [], "i64", "hyperparameter")
        return ["step_number", "seed"]

    def next_salt(self) -> int:
        self._salts += 1
        return self._salts - 1

    def weight(self, node: Node, shape: Sequence[int]) -> str:
        """A weight in the shape that its op wants: a parameter is declared in the shape of its first use, since its
        elements are the same; anything else, and further uses, are reshaped."""
        name = self.parameter_of(node)
        if name is None:
            return self.reshape(node, shape, "weight")
        if name not in self.tensors:
            if self.dtype(node) != torch.float32:
                raise Refusal(f"the parameter '{name}' is {self.dtype(node)}; torch.float32 is expected")
            self._declare(name, shape, "f32", "parameter")
        return self.reshape(name, shape, "weight")

    def add_constant(self, value: Tensor) -> str:
        """A tensor of known values as one from outside."""
        name = f"constant/{self._site.name}_{len(self.constant_values)}"
        self.constant_values[name] = value
        return self._declare(name, list(value.shape), DTYPES[value.dtype], "statistic")

    # --- tensors from outside ---

    def _declare(self, name: str, shape: Sequence[int], dtype: str, role: str) -> str:
        self.tensors[name] = {"name": name, "shape": list(shape), "dtype": dtype, "role": role}
        self.shape_of[name], self.dtype_of[name] = list(shape), dtype
        return name

    def _from_outside(self, i: int) -> Union[str, Expanded]:
        node, source = self.program.nodes[i], self.program.sources.get(i)
        dtype = DTYPES.get(self.dtype(node))
        if dtype is None:
            raise Refusal(f"its dtype is {self.dtype(node)}")
        if source is not None and source.kind == "input":
            return self._declare(source.name, self.shape(node), dtype, "input")
        if i in self.captured.prelude.names:
            return self._declare(self.captured.prelude.names[i], self.shape(node), dtype, "input")
        name = source.name if source is not None else f"constant/{self.captured.first.nodes[i].name}"
        if i in self.division.samples:
            sample = self.division.samples[i]
            if dtype == "f32" and bool((sample == sample.flatten()[0]).all()):
                return Expanded(self.fill(list(sample.shape), float(sample.flatten()[0])), self.shape(node))
            self.constant_values[name] = sample
            return Expanded(self._declare(name, list(sample.shape), dtype, "statistic"), self.shape(node))
        if self.division.places[i] == Place.CONSTANT:
            value = self.captured.constant(i)
            if isinstance(value, Tensor):
                self.constant_values[name] = value
        return self._declare(name, self.shape(node), dtype, "statistic")

    # --- the walk ---

    def enter(self, node: Node) -> None:
        """Says which node the ops that follow belong to."""
        path = module_path(node)
        short = SHORT.get(_operator(node), _operator(node))
        alone = path and self._reads[path] == 1
        self._site = Site(path, source_line(node), path if alone else "/".join(filter(None, [path, short])))

    def _unique(self, name: str) -> str:
        candidate, n = name, 1
        while candidate in self._op_names:
            candidate, n = f"{name}_{n}", n + 1
        self._op_names.add(candidate)
        return candidate


def _operator(node: Node) -> str:
    """ "add" of aten.add.Tensor."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    rank = max((len(s) for s in shapes), default=0)
    padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded)]


# --- one section -----------------------------------------------------------------------------------------------------


def write(captured: Captured, program: Program) -> Writer:
    """Converts every node that the loss needs. Raises ``Unsupported`` with all that cannot be."""
    writer = Writer(captured, program)
    refused: list[UnsupportedOp] = []
    for i in captured.division.network:
        node = program.nodes[i]
        if node.op == "placeholder":
            continue
        if node.op == "call_function" and node.target is operator.getitem:
            writer.values[i] = writer.values[program.index[node.args[0]]][node.args[1]]
            continue
        writer.enter(node)
        try:
            writer.values[i] = _convert_node(writer, node)
        except Refusal as refusal:
            refused.append(UnsupportedOp(str(node.target), module_path(node), source_line(node), str(refusal)))
            writer.values[i] = _stand_in(writer, node)
    refused += _refused_updates(writer)
    if refused:
        raise Unsupported(refused)
    return writer


def _convert_node(writer: Writer, node: Node) -> Any:
    converter = CONVERTERS.get(str(node.target))
    if converter is None:
        raise Refusal(HINTS.get(str(node.target), "there is no such op yet"))
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor) and value.dtype not in DTYPES:
            raise Refusal(f"its dtype is {value.dtype}; torch.float32 is expected")
        if isinstance(value, Tensor) and value.dtype == torch.float64:
            raise Refusal("its dtype is torch.float64; torch.float32 is expected")
    return converter(writer, node, arguments(node))


def _stand_in(writer: Writer, node: Node) -> Any:
    """Something for readers of a refused node, so that they are judged as well."""

    def name(value: Any, k: int) -> str:
        text = f"?{node.name}/{k}"
        writer.shape_of[text], writer.dtype_of[text] = [int(n) for n in value.shape], "f32"
        return text

    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return tuple(name(v, k) if isinstance(v, Tensor) else None for k, v in enumerate(value))
    return name(value, 0) if isinstance(value, Tensor) else None


def _refused_updates(writer: Writer) -> list[UnsupportedOp]:
    """Buffers that the network changes otherwise than by batch norm."""
    program, result = writer.program, []
    for buffer, i in program.updates.items():
        known = writer.values.get(i)
        if (
            writer.division.places[i] != Place.NETWORK
            or known == f"{buffer}.next"
            or program.nodes[i].op == "placeholder"
        ):
            continue
        node = program.nodes[i]
        producer = node.args[0] if node.target is operator.getitem else node
        if known is None and str(producer.target).startswith("aten._native_batch_norm"):
            continue  # of a layer that the loss does not need
        reason = f"it changes the buffer '{buffer}'; only running statistics of batch norm can change"
        result.append(UnsupportedOp(str(producer.target), module_path(node), source_line(node), reason))
    return result


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
    loss = writer.reshape(loss_node, [], "loss")
    outputs = {name: writer.value(program.nodes[i]) for name, i in program.outputs.items()}
    ops, read = _without_unread(writer, [loss, *outputs.values()])
    tensors = [t for t in writer.tensors.values() if t["name"] in read]
    section: Document = {"tensors": _ordered(tensors, captured), "ops": ops, "objectives": [{"loss": loss}]}
    section["frozen"] = [name for name in captured.frozen if name in read]
    section |= _dataset_names(section, ops)
    if outputs:
        section["outputs"] = list(dict.fromkeys(outputs.values()))
    return section


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
    if not has_values(value):
        return _guessed_initializer(entry)
    flat = value.detach().flatten()
    if flat.numel() == 0 or bool((flat == flat[0]).all()):
        return _constant(float(flat[0]) if flat.numel() else 0.0)
    if entry["role"] != "parameter":
        return None
    flat = flat[:: max(1, flat.numel() // SAMPLED)].double()
    mean, deviation = float(flat.mean()), float(flat.std(correction=0))
    widest = float((flat - mean).abs().max())
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
    return Converted(document, values, fixed)


def _values(captured: Captured, writer: Writer, section: Document) -> dict[str, Tensor]:
    named = {**captured.parameters, **captured.buffers, **captured.program_constants, **writer.constant_values}
    return {t["name"]: named[t["name"]].detach() for t in section["tensors"] if t["name"] in named}

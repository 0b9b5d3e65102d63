"""What converters write with: tensors and ops of one section of a network file."""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Hashable, Optional, Sequence, Union

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .aten import Refusal
from .aten.registry import OTHER_FLOATS, Expanded, broadcast
from .capture import Captured
from .divide import Division, Place
from .program import Program, module_path, source_line

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

Document = dict[str, Any]


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
        self.in_network = frozenset(self.division.network)
        self.tensors: dict[str, Document] = {}
        self.ops: list[Document] = []
        self.shape_of: dict[str, list[int]] = {}
        self.dtype_of: dict[str, str] = {}
        self.values: dict[int, Any] = {}
        self.outputs: dict[str, str] = {}
        self.constant_values: dict[str, Tensor] = {}  # computed constants, by tensor name
        self.fallbacks: list[tuple] = []  # what PyTorch computes in the step: fallback.Region
        self.idle: dict[Node, list[Node]] = {}  # what takes part in no element of others, and in which (scatter.py)
        self._op_names: set[str] = set()
        self._maker: dict[str, Document] = {}
        self._salts = 0
        self._shared: dict[Hashable, str] = {}
        self._reads = Counter(
            module_path(node)
            for node in (program.nodes[i] for i in self.division.network)
            if node.op == "call_function" and node.target is not operator.getitem
        )
        self._site = Site("", "", "")

    # --- what converters read ---

    def shape(self, node: Node) -> list[int]:
        return sizes_of(node.meta["val"])

    def dtype(self, node: Node) -> torch.dtype:
        return node.meta["val"].dtype

    def value(self, operand: Readable) -> str:
        """The name of a node's tensor; what comes from outside is declared with its first use."""
        if isinstance(operand, Node):
            if isinstance(operand.meta["val"], Tensor) and 0 in self.shape(operand):
                raise Refusal("it reads a tensor without elements")
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

    def is_buffer(self, node: Node) -> bool:
        source = self.program.sources.get(self.program.index[node])
        return source is not None and source.kind == "buffer"

    def maker_is(self, name: str, kind: str) -> bool:
        """Whether an op of this type wrote the tensor."""
        return name in self._maker and self._maker[name]["type"] == kind

    def root(self, name: str) -> str:
        """The tensor whose elements a tensor has in another shape."""
        while self.maker_is(name, "Reshape"):
            name = self._maker[name]["inputs"][0]
        return name

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
            op["attributes"] = {name: _in_json(value) for name, value in attributes.items()}
        if self._site.source:
            op["source"] = self._site.source
        self.ops.append(op)
        for out, shape in zip(outs, op["shapes"]):
            self.shape_of[out], self.dtype_of[out], self._maker[out] = shape, dtype, op
        return tuple(outs) if several else outs[0]

    def reshape(self, x: Readable, shape: Sequence[int], part: str = "reshape") -> str:
        """Nothing where the shape is that already; of several reshapes in a row, the last."""
        name, shape = self.root(self.value(x)), list(shape)
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
        bases = [self.base(x) if number is None else "" for x, number in zip(operands, numbers)]
        inputs = list(dict.fromkeys(filter(None, bases)))
        if not inputs:  # numbers alone: the first as a tensor
            bases[0] = self.fill([], numbers[0] or 0.0)
            inputs = bases[:1]
        texts = [f"x{inputs.index(base)}" if base else repr(number) for base, number in zip(bases, numbers)]
        natural = broadcast([self.shape_of[x] for x in inputs])
        full = broadcast([natural, *(self._shape_read(x) for x in operands)])
        result = self.emit("Pointwise", inputs, natural, {"expression": template.format(*texts)}, part)
        return result if natural == full else Expanded(result, full)

    def _shape_read(self, operand: Operand) -> list[int]:
        if isinstance(operand, Node):
            return self.shape(operand)
        if isinstance(operand, Expanded):
            return operand.shape
        return self.shape_of[operand] if isinstance(operand, str) else []

    def base(self, operand: Any) -> str:
        """A tensor's name, of an expanded one that from which it is."""
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
        if self.dtype(node) != torch.float32:
            raise Refusal(f"the parameter '{name}' is {self.dtype(node)}; torch.float32 is expected")
        return self.parameter(name, shape)

    def parameter(self, name: str, shape: Sequence[int]) -> str:
        if name not in self.tensors:
            self._declare(name, shape, "f32", "parameter")
        return self.reshape(name, shape, "weight")

    def add_constant(self, value: Tensor) -> str:
        """A tensor of known values as one from outside."""
        name = f"constant/{self._site.name}_{len(self.constant_values)}"
        self.constant_values[name] = value
        return self._declare(name, list(value.shape), DTYPES[value.dtype], "statistic")

    def shared_constant(self, key: Hashable, value: Callable[[], Tensor]) -> str:
        """The same for what several ops read: ``key`` says what it is."""
        if key not in self._shared:
            self._shared[key] = self.add_constant(value())
        return self._shared[key]

    # --- tensors from outside ---

    def _declare(self, name: str, shape: Sequence[int], dtype: str, role: str) -> str:
        self.tensors[name] = {"name": name, "shape": list(shape), "dtype": dtype, "role": role}
        self.shape_of[name], self.dtype_of[name] = list(shape), dtype
        return name

    def _from_outside(self, i: int) -> Union[str, Expanded]:
        node, source = self.program.nodes[i], self.program.sources.get(i)
        dtype = DTYPES.get(self.dtype(node))
        if source is not None and source.kind == "input" and self.dtype(node) in OTHER_FLOATS:
            readers = [user for user in node.users if _operator(user) != "_assert_tensor_metadata"]
            if all(_operator(user) == "_to_copy" and self.dtype(user) == torch.float32 for user in readers):
                dtype = "f32"  # as loaders give numbers of Python's, and files halves; it comes as what it is made at once
        if dtype is None:
            raise Refusal(f"its dtype is {self.dtype(node)}; make it torch.float32 first of all (x.float()), or in the loader")
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


def _in_json(value: Any) -> Any:
    """An attribute's value: JSON has no numbers that are not finite."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        raise Refusal("one of its constants is not a number (NaN)")
    return "inf" if value > 0 else "-inf"


def sizes_of(value: Tensor) -> list[int]:
    try:
        return [int(n) for n in value.shape]
    except GuardOnDataDependentSymNode:
        raise Refusal("its size depends on values of the batch") from None


def _operator(node: Node) -> str:
    """ "add" of aten.add.Tensor."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else parts[0]

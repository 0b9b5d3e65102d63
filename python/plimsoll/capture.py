"""Capture: from a module and its loss to a graph of ATen operators.

    model, loss, example ──torch.export──> ATen graph ──decompose──> fewer operators ──divide──> Captured

``torch.export`` runs the model once on tensors without values, so capturing costs seconds and no memory, whatever the
size of the model (a model on the meta device does as well). Composite operators that the core has whole (linear,
convolutions, norms, attention, cross entropy, ...) are kept; the rest is decomposed.

Then every node gets its place, by what it depends on:

    parameters                  -> network: trained by the core, inside the memory budget
    batch inputs, no parameter  -> prelude: PyTorch runs it for every batch before the step (masks, positions, label
                                   shifts); its results are inputs of the network. Plain floating arithmetic on floating
                                   inputs stays in the network.
    neither                     -> constant: computed once. What depends on the batch's size, but is the same for every
                                   sample (positions, a causal mask), is the constant of one sample

and only what the loss needs of it is kept.

A batch's size is written into an exported graph as a number. So the model is captured twice, with two sizes, and the
two graphs are compared: a number that differs is a multiple of the batch.
"""

from __future__ import annotations

import io
import logging
import re
import traceback
import warnings
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Callable, Collection, Iterator, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from .aten import CONVERTERS
from .errors import Unsupported, UnsupportedOp

# Composite operators that stay whole, in every overload.
KEPT = frozenset("""linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d embedding matmul
    layer_norm group_norm rms_norm scaled_dot_product_attention softmax log_softmax
    gelu silu hardswish hardsigmoid relu6 leaky_relu
    avg_pool1d max_pool1d max_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d
    upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
    pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d roll detach
    cross_entropy_loss nll_loss nll_loss_nd nll_loss2d""".split())

# Random operators that the network draws itself, by counter; every other random operator belongs to the prelude.
NETWORK_RANDOM = frozenset(
    "aten." + name
    for name in "native_dropout.default bernoulli.p bernoulli.default randn.default randn_like.default".split()
)

# Views and broadcasts cost the network nothing, so it makes them itself, of inputs and constants too.
VIEWS = frozenset(
    "aten." + name
    for name in """expand.default view.default unsqueeze.default squeeze.dims squeeze.dim squeeze.default alias.default
    clone.default detach.default""".split()
)

# Tensors of one value: made in the network where their shape depends on the batch.
FILLED = frozenset({"aten.full.default", "aten.full_like.default"})

# Operators that read no elements of their inputs, only the shape.
SOURCES = FILLED | (NETWORK_RANDOM - {"aten.native_dropout.default"})

WRAPPED = "model."  # where the wrapper below holds the model


# --- model and loss as one module -------------------------------------------------------------------------------------


class _Step(nn.Module):
    """Model and loss as one module that takes the tensors of a batch and returns (loss, outputs by name)."""

    def __init__(self, model: nn.Module, loss: Optional[Callable], call: Callable, outputs: Optional[Callable], batch):
        super().__init__()
        self.model = model
        self.loss = loss
        self.call = call
        self.outputs = outputs
        self.leaves, self.spec = pytree.tree_flatten(batch)

    def forward(self, *tensors: Tensor):
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        batch = pytree.tree_unflatten(leaves, self.spec)
        output = self.call(self.model, batch)
        loss = self.loss(output, batch) if self.loss is not None else _loss_of(output)
        return (loss, _named_outputs(self.outputs(output) if self.outputs else None))


def _loss_of(output: Any) -> Tensor:
    """The loss in what a model returned: a scalar, ``.loss``, ``["loss"]``, or the first of a tuple."""
    if isinstance(output, Mapping) and "loss" in output:
        output = output["loss"]
    elif not isinstance(output, Tensor) and hasattr(output, "loss"):
        output = output.loss
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if isinstance(output, Tensor):
        return output
    raise TypeError(
        f"the model returns {type(output).__name__}, which holds no loss; pass loss=lambda output, batch: ..."
    )


def _named_outputs(outputs: Any) -> dict[str, Tensor]:
    if outputs is None:
        return {}
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return {f"output{i}": tensor for i, tensor in enumerate(outputs)}


def default_call(model: nn.Module, batch: Any, has_loss: bool) -> Any:
    """How a batch is given to a model when the caller does not say.

    A mapping by keywords, those that ``forward`` does not take left to the loss; a tuple by position, its last entry
    left to the loss where there is one; anything else as the one argument.
    """
    if isinstance(batch, Mapping):
        accepted = _keywords(model) if has_loss else None
        return model(**{k: v for k, v in batch.items() if accepted is None or k in accepted})
    if isinstance(batch, (tuple, list)):
        return model(*(batch[:-1] if has_loss and len(batch) > 1 else batch))
    return model(batch)


def _keywords(model: nn.Module) -> Optional[set[str]]:
    code = getattr(type(model).forward, "__code__", None)
    if code is None or code.co_flags & 0x08:  # takes **kwargs
        return None
    return set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def input_names(model: nn.Module, batch: Any, has_loss: bool) -> list[str]:
    """Names of a batch's tensors: keys of mappings; "data" and "labels" for a pair with a loss; else as ``forward``
    calls its arguments."""
    paths = [path for path, leaf in pytree.tree_flatten_with_path(batch)[0] if isinstance(leaf, Tensor)]
    positions: Sequence[str] = []
    if isinstance(batch, (tuple, list)):
        code = getattr(type(model).forward, "__code__", None)
        positions = code.co_varnames[1 : code.co_argcount] if code else []
        if has_loss:
            positions = ("data", "labels") if len(batch) == 2 else (*positions[: len(batch) - 1], "labels")
        if len(positions) < len(batch):
            positions = [f"input{i}" for i in range(len(batch))]
    names = [_path_name(path, positions) for path in paths]
    return names if len(set(names)) == len(names) else [f"input{i}" for i in range(len(names))]


def _path_name(path: Sequence, positions: Sequence[str]) -> str:
    parts = []
    for depth, key in enumerate(path):
        if isinstance(key, pytree.SequenceKey):
            parts.append(positions[key.idx] if depth == 0 and positions else str(key.idx))
        else:
            parts.append(str(getattr(key, "key", getattr(key, "name", key))))
    return ".".join(parts) or "data"


# --- one export ------------------------------------------------------------------------------------------------------


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
    return table


def _detach_without_gradient(module: GraphModule) -> None:
    """Puts a detach behind every region under ``torch.no_grad()``, since decomposing forgets the region itself."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or str(node.target) != "wrap_with_set_grad_enabled" or node.args[0]:
            continue
        for result in list(node.users):
            with module.graph.inserting_after(result):
                detached = module.graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta = dict(result.meta)
            result.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    module.recompile()


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


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in training or evaluation mode; what the caller had set module by module comes back after it."""
    before = [(m, m.training) for m in model.modules()]
    try:
        if not (training and model.training):  # a model in training mode may hold frozen parts: leave them
            model.train(training)
        yield
    finally:
        for module, flag in before:
            module.training = flag


def _exported(step: _Step, tensors: Sequence[Tensor]) -> ExportedProgram:
    """The step's graph, decomposed. Whatever PyTorch objects to is told with the line that it came to."""
    try:
        with _quiet():
            exported = torch.export.export(step, tuple(tensors), strict=False)
            _detach_without_gradient(exported.graph_module)
            return exported.run_decompositions(decompositions())
    except Exception as error:
        raise Unsupported([_refused_by_export(error)]) from error


def _program(step: _Step, tensors: Sequence[Tensor], batch: int, names: Mapping[str, str]) -> Program:
    exported = _exported(step, tensors)
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
        else:
            kind = "buffer" if spec.kind == InputKind.BUFFER else "constant"
            sources[place] = Source(kind, spec.target.removeprefix(WRAPPED))
    updates, results = {}, []
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            updates[spec.target.removeprefix(WRAPPED)] = by_name[spec.arg.name]
        elif spec.kind == OutputKind.USER_OUTPUT:
            results.append(by_name[spec.arg.name])
        elif spec.kind != OutputKind.TOKEN:
            raise Unsupported([UnsupportedOp("torch.export", "", "", f"the model changes its input '{spec.target}'")])
    out_names = exported.call_spec.out_spec.child(1).context if len(results) > 1 else []
    outputs = dict(zip(out_names, results[1:]))
    return Program(batch, nodes, sources, results[0], outputs, updates, dict(exported.constants))


# --- what depends on what --------------------------------------------------------------------------------------------


class Place(Enum):
    NETWORK = "network"
    INPUT = "input"  # depends on the batch alone
    CONSTANT = "constant"


def is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_plain(node: Node) -> bool:
    """Floating arithmetic that the network can do itself."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point() and str(node.target) in CONVERTERS


@dataclass
class Division:
    """The place of every node, and what the network reads from outside. Indices are places in ``Program.nodes``."""

    places: list[Place]
    network: list[int]  # nodes to convert, in order
    prelude: list[int]  # nodes whose values PyTorch computes before the step
    constants: list[int]
    dynamic: dict[str, int]  # buffers that PyTorch advances, since no parameter is in their update
    samples: dict[int, Tensor]  # what is the same for every sample: the value for one, a row


def _varying(first: Program, second: Optional[Program]) -> list[bool]:
    """Nodes whose arguments or shapes depend on the batch's size."""
    if second is None:
        return [False] * len(first.nodes)
    result = []
    for a, b in zip(first.nodes, second.nodes):
        shapes = [getattr(n.meta.get("val"), "shape", None) for n in (a, b)]
        result.append(shapes[0] != shapes[1] or _numbers(a) != _numbers(b))
    return result


def _numbers(node: Node) -> list:
    leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
    return [leaf for leaf in leaves if not isinstance(leaf, Node)]


def _places(program: Program, varying: Sequence[bool], dynamic: frozenset[str]) -> list[Place]:
    """One pass in the graph's order: a node is where the most demanding of its inputs is."""
    places: list[Place] = []
    varies: list[bool] = []
    for i, node in enumerate(program.nodes):
        inputs = [program.index[n] for n in node.all_input_nodes]
        source = program.sources.get(i)
        above = {places[j] for j in inputs}
        if source is not None:
            is_network = source.kind == "parameter" or (source.name in program.updates and source.name not in dynamic)
            is_input = source.kind == "input" or source.name in dynamic
            place = Place.NETWORK if is_network else Place.INPUT if is_input else Place.CONSTANT
        elif Place.NETWORK in above or (is_random(node) and str(node.target) in NETWORK_RANDOM):
            place = Place.NETWORK
        elif Place.INPUT in above or is_random(node) or varying[i] or any(varies[j] for j in inputs):
            place = Place.INPUT
        else:
            place = Place.CONSTANT
        places.append(place)
        varies.append(place != Place.NETWORK and (varying[i] or any(varies[j] for j in inputs)))
    return places


def _plain_inputs(program: Program, places: Sequence[Place]) -> set[int]:
    """Nodes that depend on floating inputs alone, by plain arithmetic alone."""
    plain: set[int] = set()
    for i, node in enumerate(program.nodes):
        if places[i] != Place.INPUT:
            continue
        if i in program.sources:
            if program.sources[i].kind == "input" and node.meta["val"].is_floating_point():
                plain.add(i)
            continue
        inputs = [program.index[n] for n in node.all_input_nodes]
        from_input = any(j in plain for j in inputs)
        if (
            from_input
            and _is_plain(node)
            and all(j in plain or _is_floating_constant(program, places, j) for j in inputs)
        ):
            plain.add(i)
    return plain


def _is_floating_constant(program: Program, places: Sequence[Place], i: int) -> bool:
    value = program.nodes[i].meta.get("val")
    return places[i] == Place.CONSTANT and isinstance(value, Tensor) and value.is_floating_point()


def _is_inside(program: Program, places: Sequence[Place], plain: set[int], i: int) -> bool:
    """Whether the network holds a node that it needs; else it gets its value from outside."""
    node, source = program.nodes[i], program.sources.get(i)
    if source is not None:
        return places[i] == Place.NETWORK or source.kind == "input"
    target = str(node.target)
    is_filled = target in FILLED and places[i] == Place.INPUT and node.meta["val"].is_floating_point()
    return places[i] == Place.NETWORK or i in plain or target in VIEWS or is_filled


def divide(program: Program, second: Optional[Program], buffers: Mapping[str, Tensor]) -> Division:
    """Gives every node its place and keeps what the loss and the outputs need."""
    varying = _varying(program, second)
    dynamic, before = frozenset(program.updates), None
    while dynamic != before:  # a buffer whose update needs the network is the network's, and so is what needs that
        places = _places(program, varying, dynamic)
        before, dynamic = dynamic, frozenset(n for n in dynamic if places[program.updates[n]] != Place.NETWORK)
    plain = _plain_inputs(program, places)

    network: set[int] = set()
    outside: dict[Place, set[int]] = {Place.INPUT: set(), Place.CONSTANT: set()}
    waiting = [program.loss, *program.outputs.values()]
    while waiting:
        i = waiting.pop()
        if i in network or any(i in found for found in outside.values()):
            continue
        if not _is_inside(program, places, plain, i):
            outside[places[i]].add(i)
            continue
        network.add(i)
        if str(program.nodes[i].target) not in SOURCES:
            waiting.extend(program.index[n] for n in program.nodes[i].all_input_nodes)
    samples = _same_for_every_sample(program, second, outside[Place.INPUT], places, buffers)
    prelude = sorted(outside[Place.INPUT] - samples.keys())
    updates = {name: program.updates[name] for name in dynamic}
    return Division(places, sorted(network), prelude, sorted(outside[Place.CONSTANT]), updates, samples)


def _same_for_every_sample(
    program: Program, second: Optional[Program], asked: set[int], places: Sequence[Place], buffers: Mapping[str, Tensor]
) -> dict[int, Tensor]:
    """Of the nodes asked for, those that depend on the batch's size alone, and repeat one value along it."""
    if second is None:
        return {}
    found: dict[int, Tensor] = {}
    by_size = _by_size_alone(program, places)
    values = [ConstantValues(p, by_size, buffers) for p in (program, second)]
    for i in asked & by_size:
        sample = _sample([value(i) for value in values], (program.batch, second.batch))
        if sample is not None:
            found[i] = sample
    return found


def _sample(values: Sequence[Any], batches: tuple[int, int]) -> Optional[Tensor]:
    """What two tensors of two batch sizes repeat along the dimension of the batch; None where they do not."""
    if not all(isinstance(value, Tensor) and value.dim() == values[0].dim() for value in values):
        return None
    grown = [d for d in range(values[0].dim()) if values[0].shape[d] != values[1].shape[d]]
    if len(grown) != 1 or tuple(value.shape[grown[0]] for value in values) != batches:
        return None
    sample = values[0].narrow(grown[0], 0, 1)
    return sample.clone() if all(bool((value == sample).all()) for value in values) else None


def _by_size_alone(program: Program, places: Sequence[Place]) -> set[int]:
    """Nodes that depend on neither the batch's values nor parameters, but perhaps on its size."""
    result: set[int] = set()
    for i, node in enumerate(program.nodes):
        is_free = i not in program.sources and not is_random(node) and node.op == "call_function"
        above = [program.index[n] for n in node.all_input_nodes]
        if places[i] == Place.CONSTANT or (is_free and all(j in result for j in above)):
            result.add(i)
    return result


# --- values ----------------------------------------------------------------------------------------------------------


def run_node(node: Node, values: Mapping[Node, Any], device: torch.device | str = "cpu") -> Any:
    """One node on real tensors, on the device named instead of the one that it was exported for."""
    args, given = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
    kwargs = {key: device if key == "device" else value for key, value in given.items()}
    return node.target(*args, **kwargs)  # type: ignore[operator]


def has_values(tensor: Optional[Tensor]) -> bool:
    """False for tensors of the meta device and PyTorch's fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensor

    return tensor is not None and tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


class ConstantValues:
    """Values of the nodes that depend on neither inputs nor parameters, computed when they are asked for."""

    def __init__(self, program: Program, known: Collection[int], buffers: Mapping[str, Tensor]):
        self._program = program
        self._computable = known
        self._buffers = buffers
        self._known: dict[int, Any] = {}

    def __call__(self, i: int) -> Any:
        """The value, or None where it cannot be known: no constant, or of a model without values."""
        if i not in self._known:
            self._known[i] = self._compute(i)
        return self._known[i]

    def _compute(self, i: int) -> Any:
        if i not in self._computable:
            return None
        node, source = self._program.nodes[i], self._program.sources.get(i)
        if source is not None:
            value = self._buffers.get(source.name)
            value = self._program.constants.get(WRAPPED + source.name) if value is None else value
            value = self._program.constants.get(source.name) if value is None else value
            return value.detach().cpu() if has_values(value) else None
        values = {n: self(self._program.index[n]) for n in node.all_input_nodes}
        if any(value is None for value in values.values()):
            return None
        with torch.no_grad():
            return run_node(node, values)


# --- the result ------------------------------------------------------------------------------------------------------


class Prelude:
    """What PyTorch computes for every batch before the step: an FX graph a batch size.

    ``prelude(tensors)`` takes the tensors of a batch (in the order of ``Captured.inputs``) and gives a dictionary: the
    network's computed inputs by name. Buffers that no parameter drives (a counter of batches) are advanced in place.
    """

    def __init__(self, captured: "Captured"):
        self._captured = captured
        self._modules: dict[int, GraphModule] = {}
        division = captured.division
        self.names = {i: f"prelude/{captured.first.nodes[i].name}" for i in division.prelude}

    @property
    def is_empty(self) -> bool:
        return not self.names and not self._captured.division.dynamic

    def __call__(self, tensors: Sequence[Tensor], batch: int) -> dict[str, Tensor]:
        if self.is_empty:
            return {}
        if batch not in self._modules:
            self._modules[batch] = self._build(batch)
        with torch.no_grad():
            results = self._modules[batch](*tensors)
            for name, value in zip(self._captured.division.dynamic, results[len(self.names) :]):
                self._captured.buffers[name].copy_(value)
        return dict(zip(self.names.values(), results))

    def graph(self, batch: Optional[int] = None) -> Graph:
        """The graph itself, to look at."""
        return self._build(batch or self._captured.first.batch).graph

    def _build(self, batch: int) -> GraphModule:
        captured, program, division = self._captured, self._captured.first, self._captured.division
        roots, graph = nn.Module(), Graph()
        made: dict[int, Node] = {}
        leaves = {i: source.leaf for i, source in program.sources.items() if source.kind == "input"}
        for i in sorted(leaves, key=lambda i: leaves[i]):
            made[i] = graph.placeholder(captured.inputs[leaves[i]].replace(".", "_"))
        targets = [*division.prelude, *division.dynamic.values()]
        for i in self._closure(targets):
            if i in made:
                continue
            if division.places[i] == Place.CONSTANT or i in program.sources:
                value = captured.constant(i)
                value = (
                    captured.buffers.get(program.sources[i].name) if i in program.sources and value is None else value
                )
                if isinstance(value, Tensor):
                    name = f"constant_{i}"
                    roots.register_buffer(name, value)
                    made[i] = graph.get_attr(name)
                    continue
            made[i] = self._copy(graph, made, i, batch)
        graph.output(tuple(made[i] for i in targets))
        return GraphModule(roots, graph)

    def _closure(self, targets: Sequence[int]) -> list[int]:
        """The targets and all that they need; of constants with a value, nothing further."""
        program, needed, waiting = self._captured.first, set(), list(targets)
        while waiting:
            i = waiting.pop()
            if i in needed:
                continue
            needed.add(i)
            if self._captured.division.places[i] == Place.CONSTANT and isinstance(self._captured.constant(i), Tensor):
                continue
            waiting.extend(program.index[n] for n in program.nodes[i].all_input_nodes)
        return sorted(needed)

    def _copy(self, graph: Graph, made: Mapping[int, Node], i: int, batch: int) -> Node:
        first, second = self._captured.first, self._captured.second
        node = first.nodes[i]
        other = second.nodes[i] if second is not None else node
        sizes = (first.batch, second.batch if second is not None else first.batch)

        def at(a: Any, b: Any) -> Any:
            if isinstance(a, Node):
                return made[first.index[a]]
            if isinstance(a, (list, tuple)):
                return type(a)(at(x, y) for x, y in zip(a, b))
            if isinstance(a, int) and not isinstance(a, bool) and a != b:
                return a + (b - a) * (batch - sizes[0]) // (sizes[1] - sizes[0])
            return a

        args = at(list(node.args), list(other.args))
        kwargs = {k: at(v, other.kwargs[k]) for k, v in node.kwargs.items()}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        return graph.call_function(node.target, tuple(args), kwargs)  # type: ignore[arg-type]


@dataclass
class Captured:
    """A model and its loss as graphs, divided into network, prelude and constants.

    ``inputs`` are the names of the batch's tensors in order; ``parameters`` and ``buffers`` the model's own tensors by
    their names in ``state_dict``, of tied parameters the first name only (``tied`` has the others). ``fixed_batch`` says
    why the batch's size cannot change without capturing again; empty: it can.
    """

    name: str
    training: bool
    first: Program
    second: Optional[Program]
    division: Division
    inputs: list[str]
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    tied: dict[str, str]
    fixed_batch: list[str] = field(default_factory=list)
    batch_leaf: int = 0  # the tensor of the batch whose first size is the batch's

    def __post_init__(self) -> None:
        constants = {i for i, place in enumerate(self.division.places) if place == Place.CONSTANT}
        self.constant = ConstantValues(self.first, constants, self.buffers)
        self.prelude = Prelude(self)

    @property
    def frozen(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if not parameter.requires_grad]

    @property
    def program_constants(self) -> dict[str, Tensor]:
        """Tensors that the model holds as plain attributes."""
        constants = self.first.constants
        return {name.removeprefix(WRAPPED): t for name, t in constants.items() if isinstance(t, Tensor)}

    def tensors_of(self, batch: Any) -> list[Tensor]:
        """The tensors of a batch in the order of ``inputs``."""
        return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]

    def feed(self, batch: Any) -> dict[str, Tensor]:
        """All that the network reads of a batch: its tensors by name, and what the prelude makes of them."""
        tensors = self.tensors_of(batch)
        size = tensors[self.batch_leaf].shape[0]
        if self.second is None and size != self.first.batch:
            raise ValueError(
                f"captured for batches of {self.first.batch}, given {size}: " + "; ".join(self.fixed_batch)
            )
        return dict(zip(self.inputs, tensors)) | self.prelude(tensors, size)


def refuse(captured: Captured) -> None:
    """Raises ``Unsupported`` with all that cannot be converted."""
    from .convert import write

    write(captured, captured.first)


def _tie(step: nn.Module) -> tuple[dict[str, str], dict[str, str]]:
    """Names as the wrapper has them -> the first name of the same parameter, and further names -> first name."""
    first: dict[tuple, str] = {}
    names: dict[str, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in step.named_parameters(remove_duplicate=False):
        own = name.removeprefix(WRAPPED)
        key = (parameter.untyped_storage()._cdata, parameter.storage_offset(), parameter.shape, parameter.stride())
        names[name] = first.setdefault(key, own)
        if names[name] != own:
            tied[own] = names[name]
    return names, tied


def resized(tensor: Tensor, batch: int, size: int) -> Tensor:
    """The tensor with `size` rows where it has one a sample; else itself."""
    if tensor.dim() == 0 or tensor.shape[0] != batch:
        return tensor
    rows = torch.arange(size, device="cpu") % batch
    return tensor[: min(size, batch)] if size <= batch else tensor[rows.to(tensor.device)]


def capture(
    model: nn.Module,
    loss: Optional[Callable] = None,
    example: Any = None,
    *,
    call: Optional[Callable[[nn.Module, Any], Any]] = None,
    outputs: Optional[Callable[[Any], Any]] = None,
    training: bool = True,
    any_batch: bool = True,
    name: str = "",
) -> Captured:
    """Captures a training step of a model.

    ``loss(output, batch)`` gives the loss; left out, the model returns it (a scalar, ``.loss``, or the first of a
    tuple). ``example`` is a batch as the loader gives it; of its tensors only shapes and types matter. ``call(model,
    batch)`` says how the model takes a batch where ``default_call`` would not do. ``outputs(output)`` picks what is to be
    read after a step, for metrics; what is picked stays in memory until the step's end.

    With ``any_batch`` the model is captured at a second batch size as well, so that the network can be used at any.
    Raises ``Unsupported`` where ``torch.export`` cannot follow the model.
    """
    if example is None:
        raise ValueError("capture needs an example: a batch as the loader gives it")
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]
    sized = [i for i, tensor in enumerate(tensors) if tensor.dim() > 0]
    if not sized:
        raise ValueError("the example holds no tensor with a dimension for the batch")
    batch = tensors[sized[0]].shape[0]
    seen: set[int] = set()  # one tensor in two places of a batch is two inputs
    tensors = [t.clone() if id(t) in seen or seen.add(id(t)) else t for t in tensors]  # type: ignore[func-returns-value]
    has_loss = loss is not None
    call = call or (lambda model, batch: default_call(model, batch, has_loss))
    step = _Step(model, loss, call, outputs, example)
    names, tied = _tie(step)
    fixed: list[str] = []
    parameters = {names[n]: p for n, p in step.named_parameters()}
    buffers = {n.removeprefix(WRAPPED): b for n, b in step.named_buffers(remove_duplicate=False)}
    inputs = input_names(model, example, has_loss)
    title = name or type(model).__name__.lower()

    def divided(first: Program, second: Optional[Program]) -> Captured:
        division = divide(first, second, buffers)
        return Captured(title, training, first, second, division, inputs, parameters, buffers, tied, fixed, sized[0])

    with _mode(model, training):
        first = _program(step, tensors, batch, names)
        first.name_inputs(inputs)
        refuse(divided(first, None))  # before the second export, which takes as long again
        second = None
        if any_batch:
            second = _second(step, [resized(t, batch, batch + 1) for t in tensors], batch + 1, names, first, fixed)
        else:
            fixed.append("it was captured for one batch size")
        if second is not None:
            second.name_inputs(inputs)
    return divided(first, second)


def _second(step, tensors, batch, names, first: Program, fixed: list[str]) -> Optional[Program]:
    """The same at another batch size, or None with the reason when it is another graph."""
    try:
        second = _program(step, tensors, batch, names)
    except Unsupported as error:
        fixed.append(f"it cannot be captured with {batch} samples: {error.ops[0].reason}")
        return None
    if [str(n.target) for n in first.nodes if n.op == "call_function"] == [
        str(n.target) for n in second.nodes if n.op == "call_function"
    ]:
        return second
    fixed.append(f"its graph with {batch} samples is another than with {first.batch}")
    return None


def _refused_by_export(error: Exception) -> UnsupportedOp:
    """The user's own line in the trace of a failed export."""
    torch_home = str(Path(torch.__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if torch_home not in f.filename]
    own = [f for f in frames if f.filename != __file__]
    source = f"{short_path(own[-1].filename)}:{own[-1].lineno}" if own else ""
    text = re.sub(r"\s+", " ", str(error)).strip()
    return UnsupportedOp("torch.export", "", source, f"it cannot follow the model: {text[:300]}")


# --- where a node comes from -----------------------------------------------------------------------------------------


def module_path(node: Node) -> str:
    """The path of the innermost module that the node came from, as in ``named_modules``."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return "" if path == WRAPPED[:-1] else path.removeprefix(WRAPPED)


def source_line(node: Node) -> str:
    """The innermost line outside of PyTorch that the node came from: "model.py:41"."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    torch_home = str(Path(torch.__file__).parent)
    own = [f for f in frames if not f[0].startswith(torch_home) and f[0] != __file__]
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

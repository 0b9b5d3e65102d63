"""What depends on what: the place of every node of a program, and the values of those that depend on nothing."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Collection, Mapping, Optional, Sequence

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from .aten import CONVERTERS
from .program import Program
from .joined import WRAPPED
from .values import has_values, run_node

# Random operators that the network draws itself, by counter; every other random operator belongs to the prelude.
NETWORK_RANDOM = frozenset(
    "aten." + name
    for name in "native_dropout.default bernoulli.p bernoulli.default randn.default randn_like.default uniform.default".split()
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
    assigned: dict[str, int]  # buffers that take a value that the network computes: those of batch norm are not among them
    samples: dict[int, Tensor]  # what is the same for every sample: the value for one, a row


def _varying(first: Program, second: Optional[Program]) -> list[bool]:
    """Nodes whose arguments or shapes depend on the batch's size."""
    if second is None:
        return [False] * len(first.nodes)
    result = []
    for a, b in zip(first.nodes, second.nodes):
        shapes = [getattr(n.meta.get("val"), "shape", None) for n in (a, b)]
        result.append(shapes[0] != shapes[1] or numbers_of(a) != numbers_of(b))
    return result


def numbers_of(node: Node) -> list:
    leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
    return [leaf for leaf in leaves if not isinstance(leaf, Node)]


def _places(program: Program, varying: Sequence[bool], dynamic: frozenset[str], changing: Mapping[str, bool]) -> list[Place]:
    """One pass in the graph's order: a node is where the most demanding of its inputs is."""
    places: list[Place] = []
    varies: list[bool] = []
    for i, node in enumerate(program.nodes):
        inputs = [program.index[n] for n in node.all_input_nodes]
        source = program.sources.get(i)
        above = {places[j] for j in inputs}
        if source is not None:
            by_others = changing.get(source.name) if source.kind == "buffer" and source.name not in program.updates else None
            is_network = source.kind == "parameter" or (source.name in program.updates and source.name not in dynamic) or by_others is True
            is_input = source.kind == "input" or source.name in dynamic or by_others is False
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


def divide(program: Program, second: Optional[Program], buffers: Mapping[str, Tensor], changing: Mapping[str, bool] = {}) -> Division:
    """Gives every node its place and keeps what the loss and the outputs need. ``changing``: buffers that other networks of the step change, and so no constants; whether the core does."""
    varying = _varying(program, second)
    dynamic, before = frozenset(program.updates), None
    while dynamic != before:  # a buffer whose update needs the network is the network's, and so is what needs that
        places = _places(program, varying, dynamic, changing)
        before, dynamic = dynamic, frozenset(n for n in dynamic if places[program.updates[n]] != Place.NETWORK)
    plain = _plain_inputs(program, places)

    network: set[int] = set()
    outside: dict[Place, set[int]] = {Place.INPUT: set(), Place.CONSTANT: set()}
    assigned = {name: i for name, i in program.updates.items() if _is_assigned(program, places, name, i)}
    advanced = [i for i in program.updates.values() if places[i] == Place.NETWORK and i not in program.sources]  # whether the norm's result is read or not
    waiting = [program.loss, *program.outputs.values(), *advanced]
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
    return Division(places, sorted(network), prelude, sorted(outside[Place.CONSTANT]), updates, assigned, samples)


def _is_assigned(program: Program, places: Sequence[Place], buffer: str, i: int) -> bool:
    node, source = program.nodes[i], program.sources.get(i)
    if places[i] != Place.NETWORK or (source is not None and source.name == buffer):
        return False
    producer = node.args[0] if node.target is operator.getitem else node
    return not str(getattr(producer, "target", "")).startswith("aten._native_batch_norm")


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
            return value.detach().cpu() if value is not None and has_values(value) else None
        values = {n: self(self._program.index[n]) for n in node.all_input_nodes}
        if any(value is None for value in values.values()):
            return None
        with torch.no_grad():
            return run_node(node, values)

"""Capture: from a module and its loss to a graph of ATen operators.

    model, loss, example ──torch.export──> ATen graph ──decompose──> fewer operators ──divide──> Captured

``torch.export`` runs the model once on tensors without values, so capturing costs seconds and no memory, whatever the
size of the model (a model on the meta device does as well). Composite operators that the core has whole (linear,
convolutions, norms, attention, cross entropy, ...) are kept; the rest is decomposed (program.py).

Then every node gets its place, by what it depends on (divide.py):

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

import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .assigned import Logged, expect_no_counts
from .divide import ConstantValues, Division, Place, divide, numbers_of
from .errors import Unsupported, UnsupportedOp
from .fixed import asks_for_values, has_fixed
from .held import released
from .hf_attention import plain_functions, short_masks
from .hf_masks import masks_by_torch
from .loose import Loose
from .made import Sizes, consulted
from .moving import Number
from .packed import padded_sequences
from .prelude import Prelude
from .program import Program, export_program, module_path, source_line
from .settings import modules_beside
from .sync_batch_norm import synchronised_by_core
from .values import has_values
from .interrupts import interruptible
from .joined import WRAPPED, Joined, Met, Modes, default_call, input_names, mode, resized

_MOST_ROUNDS = 4  # of captures, each of which knows the modules that those before it have met


@dataclass
class Captured:
    """A model and its loss as graphs, divided into network, prelude and constants.

    ``inputs`` are the names of the batch's tensors in order; ``parameters`` and ``buffers`` the model's own tensors by
    their names in ``state_dict``, of tied parameters the first name only (``tied`` has the others; ``known`` has all by the parameters' ids).
    Those of the loss and of modules beside the model, which these read, are among them, as "loss.weight" and "beside.judge.weight".
    ``fixed_batch`` says why the batch's size cannot change without capturing again; empty: it can.
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
    known: dict[int, str]
    beside: dict[str, nn.Module]
    numbers: Sequence[Number] = ()  # that are given with every batch, after its tensors
    fixed_batch: list[str] = field(default_factory=list)
    batch_leaf: int = 0  # the tensor of the batch whose first size is the batch's
    fallback: bool = False  # whether PyTorch computes what has no converter
    any_batch: bool = True  # whether it was asked for batches of any size
    sizes: Optional[Sizes] = None  # numbers of a batch that it is captured for
    is_by_size: bool = False  # whether values were read that are made of the batch's size: ``second`` tells nothing of a third one then

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
        """The tensors of a batch, and numbers as they are now, in the order of ``inputs``."""
        return [*(leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)), *(number.now() for number in self.numbers)]

    @property
    def numbers_read(self) -> list[bool]:
        """Of each, whether anything reads it."""
        leaves = {source.leaf: self.first.nodes[i] for i, source in self.first.sources.items() if source.kind == "input"}
        return [bool(leaves[len(self.inputs) - len(self.numbers) + k].users) for k in range(len(self.numbers))]

    def feed(self, batch: Any) -> dict[str, Tensor]:
        """All that the network reads of a batch: its tensors by name, and what the prelude makes of them."""
        tensors = self.tensors_of(batch)
        if self.sizes and not self.sizes.hold(tensors):
            raise ValueError("captured for batches in which masks hold at another number of places")
        size = tensors[self.batch_leaf].shape[0]
        if self.second is None and size != self.first.batch:
            raise ValueError(
                f"captured for batches of {self.first.batch}, given {size}: " + "; ".join(self.fixed_batch)
            )
        return dict(zip(self.inputs, tensors)) | self.prelude(tensors, size)


def _no_batch_in(example: Any) -> str:
    kinds = sorted({type(leaf).__name__ for leaf in pytree.tree_leaves(example) if not isinstance(leaf, Tensor)})
    return "the example holds no tensor with a dimension for the batch" + (
        f", but {', '.join(kinds)}: give tensors, in tuples, lists or dictionaries, or make a class known by torch.export.register_dataclass"
        if kinds
        else ""
    )


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
    _refuse_elements(step)
    return names, tied


def _spans(tensors: Iterable[tuple[str, Any]]) -> dict[int, list[tuple[int, int, str]]]:
    """Of each memory, from where to where a tensor lies there, and its name."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors:
        if not isinstance(tensor, Tensor) or not has_values(tensor) or tensor.numel() == 0:
            continue
        begin = tensor.storage_offset()
        end = begin + sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride())) + 1
        spans.setdefault(tensor.untyped_storage()._cdata, []).append((begin, end, name.removeprefix(WRAPPED)))
    return spans


def _refuse_elements(step: nn.Module) -> None:
    """Two parameters may have the same elements, but not share some."""
    for found in _spans(step.named_parameters()).values():
        found.sort()
        for (begin, end, a), (after, last, b) in zip(found, found[1:]):
            if after < end and (begin, end) != (after, last):
                raise Unsupported([UnsupportedOp("a parameter", "", "", f"'{b}' shares some of its elements with '{a}', which are one memory to PyTorch and two here")])


def _refuse_shadows(step: nn.Module, program: Program) -> None:
    """What is a parameter's memory under another name would stay as it is now, while the parameter is trained."""
    trained = _spans((name, p) for name, p in step.named_parameters() if p.requires_grad)
    buffers = {name.removeprefix(WRAPPED): buffer for name, buffer in step.named_buffers()}
    read = {**program.constants, **buffers}
    for memory, found in _spans(read.items()).items():
        for (begin, end, a), (first, last, b) in itertools.product(found, trained.get(memory, ())):
            if begin < last and first < end:
                told = f"'{a}'" if a in buffers else "what is read beside the module's own tensors"
                reason = f"{told} lies in the memory of the parameter '{b}', and would stay as it is now while that is trained; read the parameter itself (.detach() where no gradient is wanted), or a copy (.clone())"
                raise Unsupported([UnsupportedOp("a tensor", "", "", reason)])


@interruptible()
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
    fallback: bool = False,
    modes: Optional[Modes] = None,
    numbers: Sequence[Number] = (),
    loose: Optional[Loose] = None,
    changing: Mapping[int, bool] = {},
) -> Captured:
    """Captures a training step of a model.

    ``loss(output, batch)`` gives the loss; left out, the model returns it (a scalar, ``.loss``, or the first of a
    tuple). ``example`` is a batch as the loader gives it; of its tensors only shapes and types matter. ``call(model,
    batch)`` says how the model takes a batch where ``default_call`` would not do. ``outputs(output)`` picks what is to be
    read after a step, for metrics; what is picked stays in memory until the step's end.

    ``numbers`` are inputs as well (moving.py), and ``loose`` are parameters that no module has. ``modes`` are those of the modules, where they are not to train as they are set. With ``any_batch`` the model is captured at a second batch size as well, so that the network can be used at any. With
    ``fallback``, PyTorch computes inside the step what has no converter (fallback.py).
    ``changing`` are buffers, by their ids, that other networks of the same step change: by the core, or as PyTorch does.
    Raises ``Unsupported`` where ``torch.export`` cannot follow the model.
    """
    beside = modules_beside(model, loss, call, outputs)
    variables = ""
    if loose is not None and loose._parameters:
        variables = _title("variables", beside)
        beside[variables] = loose
    logged = Logged(model, loss, call, outputs)
    for rounds in itertools.count(1):
        met = Met()
        captured, error = None, None
        with torch.inference_mode(False), released(model, *beside.values()), synchronised_by_core(), short_masks(), plain_functions(), masks_by_torch(), padded_sequences():
            try:
                captured = _capture(model, loss, example, call, outputs, training, any_batch, name, fallback, modes, beside, numbers, met, variables, changing, logged)
            except Unsupported as refused:
                error = refused
            finally:
                logged.put_back()
        if not met.modules:
            if captured is None:
                raise error
            return captured
        if rounds == _MOST_ROUNDS:
            raise error if captured is None else Unsupported([_made_anew(module) for module in met.modules])
        for module in met.modules:  # which no name led to
            beside[_title(type(module).__name__, beside)] = module


def _made_anew(module: nn.Module) -> UnsupportedOp:
    first = next(name for name, _ in [*module.named_parameters(), *module.named_buffers()])
    reason = (
        f"it is called (it has a tensor '{first}', among others), and is no part of the model; in each of {_MOST_ROUNDS} captures it was another one, so it is made in the pass."
        " Make it once, in __init__; or run the model once before, if its first pass replaces modules of its own"
    )
    return UnsupportedOp(type(module).__name__, "", "", reason)


def _title(name: str, beside: dict[str, nn.Module]) -> str:
    while name in beside or hasattr(nn.ModuleDict, name):
        name += "_"
    return name


def _capture(model, loss, example, call, outputs, training, any_batch, name, fallback, modes, beside, numbers, met, loose, changing, logged) -> Captured:
    if example is None:
        raise ValueError("capture needs an example: a batch as the loader gives it")
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]
    sized = [i for i, tensor in enumerate(tensors) if tensor.dim() > 0]
    if not sized:
        raise ValueError(_no_batch_in(example))
    batch = tensors[sized[0]].shape[0]
    if batch == 0:
        raise ValueError(f"the batch is empty: its first tensor is of shape {tuple(tensors[sized[0]].shape)}")
    seen: set[int] = set()  # one tensor in two places of a batch is two inputs
    tensors = [t.clone() if id(t) in seen or seen.add(id(t)) or t.is_inference() else t for t in tensors]  # type: ignore[func-returns-value]
    tensors += [number.now() for number in numbers]
    has_loss = loss is not None
    call = call or (lambda model, batch: default_call(model, batch, has_loss))
    step = Joined(model, loss, call, outputs, example, beside, numbers, loose)
    step.met, step.forget_tables = met, logged.forget_tables
    names, tied = _tie(step)
    fixed: list[str] = []
    asked = any_batch
    parameters = {names[n]: p for n, p in step.named_parameters()}
    known = {id(p): names[n] for n, p in step.named_parameters(remove_duplicate=False)}
    buffers = {n.removeprefix(WRAPPED): b for n, b in step.named_buffers(remove_duplicate=False)}
    taken = {*parameters, *buffers}
    inputs = [f"batch.{name}" if name in taken else name for name in input_names(model, example, has_loss)]
    inputs += [f"number.{number.name}" for number in numbers]
    title = name or type(model).__name__.lower()

    sizes: Optional[Sizes] = None
    is_by_size = False
    first: Optional[Program] = None

    def divided(first: Program, second: Optional[Program]) -> Captured:
        as_buffers = {n: p for n, p in parameters.items() if n in first.updates or id(p) in changing}
        for program in (first, *([second] if second else [])):
            program.take_for_buffers(as_buffers)
        kept, read = {n: p for n, p in parameters.items() if n not in as_buffers}, {**buffers, **as_buffers}
        division = divide(first, second, read, {n: changing[id(b)] for n, b in read.items() if id(b) in changing})
        return Captured(title, training, first, second, division, inputs, kept, read, tied, known, beside, numbers, fixed, sized[0], fallback, asked, sizes, is_by_size)

    def exported() -> Program:
        consulted()
        program = export_program(step, tensors, batch, names)
        program.name_inputs(inputs)
        refuse(divided(program, None))  # before the second export, which takes as long again
        return program

    with mode(model, training, modes):
        try:
            first = exported()
        except Unsupported as error:
            if not asks_for_values(error) or not all(map(has_values, tensors)):
                raise
            sizes = step.sizes = Sizes(tensors)
            with suppress(Unsupported):
                first = exported()
            if first is None:
                raise
            step.sizes = Sizes(tensors)
        read = consulted()
        _refuse_shadows(step, first)
        expect_no_counts(step.assigned, lambda: export_program(step, tensors, batch, names), lambda again: _is_another(first, again))
        second = None
        if has_fixed(example) or sizes:
            any_batch = False
            fixed.append(_BY_VALUES)
        elif not any_batch:
            fixed.append("it was captured for one batch size")
        if any_batch:
            consulted()
            second = _second(step, [resized(t, batch, batch + 1) for t in tensors], batch + 1, names, first, fixed)
            is_by_size = consulted() != read
        if second is not None:
            second.name_inputs(inputs)
        if any_batch and (second is None or _differ_beyond_the_batch(first, second)):
            _expect_the_same_again(step, tensors, batch, names, first)
        if second is not None and (name := _other_constant(first, second)) is not None:
            fixed.append(f"Python makes a tensor of {batch} samples ('{name}'), which is another for {batch + 1}")
            second = None
    if sizes is not None:
        sizes.forget_example()
    return divided(first, second)


_BY_VALUES = "values of the batch decide sizes of it"


def _differ_beyond_the_batch(first: Program, second: Program) -> bool:
    for a, b in zip(first.nodes, second.nodes):
        for x, y in zip(numbers_of(a), numbers_of(b)):
            by_batch = type(x) is int and type(y) is int and x * second.batch == y * first.batch
            if repr(x) != repr(y) and not by_batch:
                return True
    return _other_constant(first, second) is not None


def _other_constant(a: Program, b: Program) -> Optional[str]:
    for name, value in a.constants.items():
        other = b.constants.get(name)
        if not isinstance(value, Tensor) or not isinstance(other, Tensor) or not (has_values(value) and has_values(other)):
            continue
        if value.shape != other.shape or not torch.equal(value, other):
            return name
    return None


def _is_another(first: Program, again: Program) -> bool:
    if len(first.nodes) != len(again.nodes) or _other_constant(first, again) is not None:
        return True
    for a, b in zip(first.nodes, again.nodes):
        if [first.index[n] for n in a.all_input_nodes] != [again.index[n] for n in b.all_input_nodes] or (a.op == "call_function" and (str(a.target) != str(b.target) or repr(numbers_of(a)) != repr(numbers_of(b)))):
            return True
    return False


def _expect_the_same_again(step: Joined, tensors: list[Tensor], batch: int, names: dict[str, str], first: Program) -> None:
    """What Python computes anew at every call, a step would keep as it was in the first."""
    reason = (
        "Python gives it {} in one call and {} in the next (a count, or a random number that torch does not draw); a step would keep"
        " the first. Make it an input of the batch or a buffer, draw it by torch, or leave it out"
    )
    again = export_program(step, tensors, batch, names)
    for a, b in zip(first.nodes, again.nodes):
        for x, y in zip([str(a.target), *numbers_of(a)], [str(b.target), *numbers_of(b)]):
            if repr(x) != repr(y) and a.op == "call_function":
                raise Unsupported([UnsupportedOp(str(a.target), module_path(a), source_line(a), reason.format(x, y))])
    other = _other_constant(first, again)
    if other is not None:
        raise Unsupported([UnsupportedOp("a tensor of values", "", "", f"'{other}': " + reason.format("some values", "others"))])


def _second(step, tensors, batch, names, first: Program, fixed: list[str]) -> Optional[Program]:
    """The same at another batch size, or None with the reason when it is another graph."""
    try:
        second = export_program(step, tensors, batch, names)
    except Unsupported as error:
        fixed.append(f"it cannot be captured with {batch} samples: {error.ops[0].reason}")
        return None
    if [str(n.target) for n in first.nodes if n.op == "call_function"] == [
        str(n.target) for n in second.nodes if n.op == "call_function"
    ]:
        return second
    fixed.append(f"its graph with {batch} samples is another than with {first.batch}")
    return None

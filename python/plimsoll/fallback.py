"""What PyTorch computes inside the step: ``fallback="torch"``.

An operator without a converter, with what joins it to others by values that the arena cannot hold (complex numbers, f64),
is a region: one op of the network, whose inputs and results lie in the arena and reach PyTorch by DLPack without a copy.
Backward it runs again with autograd. What PyTorch takes between them is no part of the plan; it is measured when the
region first runs.
"""

from __future__ import annotations

import hashlib
import operator
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from .aten import Refusal
from .divide import Place, is_random
from .errors import UnsupportedOp
from .program import module_path, source_line
from .writer import DTYPES

if TYPE_CHECKING:
    from .writer import Writer

# What a tensor of the network can be.
HELD = {dtype: name for dtype, name in DTYPES.items() if name != "f64"}


@dataclass(frozen=True)
class Ref:
    """Argument `number` of a region, or with ``of_line`` the result of an earlier line of it."""

    number: int
    of_line: bool = False

    def __repr__(self) -> str:
        return f"{'%' if self.of_line else 'x'}{self.number}"


@dataclass
class Function:
    """A region as a function of tensors. ``lines`` are (operator, positional and named arguments, with ``Ref`` for tensors),
    ``results`` the lines that others read, ``types`` what PyTorch has the inputs as."""

    lines: list[tuple[Any, tuple, dict]]
    results: list[int]
    types: list[torch.dtype]
    constants: list[Tensor]
    text: str = ""

    def __post_init__(self) -> None:
        lines = [f"{target}{(*args, *kwargs.items())}" for target, args, kwargs in self.lines]
        digest = hashlib.sha256()
        for constant in self.constants:
            digest.update(f"{constant.dtype} {tuple(constant.shape)}".encode())
            digest.update(constant.resolve_conj().resolve_neg().flatten().view(torch.uint8).numpy().tobytes())
        known = f" of {digest.hexdigest()[:16]}" if self.constants else ""
        self.text = f"{'; '.join(lines)} -> {self.results} from {[str(t) for t in self.types]}{known}"

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        values: list[Any] = []
        known = [*inputs, *self.constants]

        def value(leaf: Any) -> Any:
            return (values if leaf.of_line else known)[leaf.number] if isinstance(leaf, Ref) else leaf

        for target, args, kwargs in self.lines:
            args, kwargs = pytree.tree_map_only(Ref, value, (args, kwargs))
            values.append(target(*args, **kwargs))
        return [values[i] for i in self.results]

    def forward(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for to, value in zip(outputs, self(*inputs)):
                to.copy_(value)

    def backward(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], given: Sequence[int], wanted: Sequence[int]) -> None:
        """`inputs` begin with the gradients of the results `given`; `outputs` are those of the inputs `wanted`."""
        gradients, inputs = inputs[: len(given)], list(inputs[len(given) :])
        with torch.enable_grad():
            for i in wanted:
                inputs[i] = inputs[i].detach().requires_grad_()
            results = self(*inputs)
            reached = [(results[k], dy) for k, dy in zip(given, gradients) if results[k].requires_grad]
            found = [None] * len(wanted)
            if reached:
                ys, dys = zip(*reached)
                found = torch.autograd.grad(ys, [inputs[i] for i in wanted], dys, allow_unused=True)
        with torch.no_grad():
            for to, value in zip(outputs, found):
                to.zero_() if value is None else to.copy_(value)

    def differentiable(self, inputs: Sequence[Tensor], trained: Sequence[bool]) -> list[int]:
        """Which results have gradients, tried without computing anything: `inputs` have no values."""
        free = [x.detach().requires_grad_() if of and x.is_floating_point() else x for x, of in zip(inputs, trained)]
        with torch.enable_grad():
            results = self(*free)
            able = [k for k, y in enumerate(results) if y.requires_grad and y.dtype == torch.float32]
            if able:
                chosen = [results[k] for k in able]
                wanted = [x for x in free if x.requires_grad]
                torch.autograd.grad(chosen, wanted, [torch.ones_like(y) for y in chosen], allow_unused=True)
        return able


# --- regions ---------------------------------------------------------------------------------------------------------


def in_regions(writer: "Writer") -> list[list[int]]:
    """The network's nodes in an order in which they can run: lists of those that are one region if any of them is refused.

    Together are nodes joined by values that the arena cannot hold, an operator and the items of its result, and what lies on a
    way from one of a region to another: it could run neither before the region nor after.
    """
    program, network = writer.program, writer.division.network
    group = {i: i for i in network}

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    for i in network:
        node = program.nodes[i]
        for source in node.all_input_nodes:
            j = program.index[source]
            if j in group and source.op != "placeholder" and (not _is_held(source) or node.target is operator.getitem):
                group[root(i)] = root(j)
    members: dict[int, list[int]] = {}
    for i in network:
        members.setdefault(root(i), []).append(i)
    reads = {r: {root(program.index[n]) for i in some for n in program.nodes[i].all_input_nodes if program.index[n] in group}
             for r, some in members.items()}  # fmt: skip
    return [sorted(i for r in cycle for i in members[r]) for cycle in _cycles(reads)]


def _is_held(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or value.dtype in HELD


def _cycles(reads: dict[int, set[int]]) -> list[list[int]]:
    """Tarjan's strongly connected components, each after those that it reads."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: list[int] = []
    is_open: set[int] = set()
    found: list[list[int]] = []
    for first in reads:
        if first in number:
            continue
        walk = [(first, iter(sorted(reads[first])))]
        number[first] = low[first] = len(number)
        open_.append(first)
        is_open.add(first)
        while walk:
            v, rest = walk[-1]
            for w in rest:
                if w not in number:
                    number[w] = low[w] = len(number)
                    open_.append(w)
                    is_open.add(w)
                    walk.append((w, iter(sorted(reads[w]))))
                    break
                if w in is_open:
                    low[v] = min(low[v], number[w])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[v])
                if low[v] == number[v]:
                    cycle = open_[open_.index(v) :]
                    del open_[len(open_) - len(cycle) :]
                    is_open -= set(cycle)
                    found.append(cycle)
    return found


# --- writing them ----------------------------------------------------------------------------------------------------


def write_region(writer: "Writer", members: Sequence[int], reasons: dict[int, str]) -> None:
    """Appends the op of one region, and names its results as the values of its nodes. Raises ``Refusal``."""
    program = writer.program
    nodes = [program.nodes[i] for i in members]
    line_of = {node: k for k, node in enumerate(nodes)}
    inputs: list[Node] = []
    constants: list[tuple[Node, Tensor]] = []
    for node in nodes:
        if is_random(node):
            raise Refusal("it is random, and would draw anew when it is computed again")
        for source in node.all_input_nodes:
            if source in line_of or source in inputs or any(source is n for n, _ in constants):
                continue
            if _is_held(source) and isinstance(source.meta.get("val"), Tensor):
                inputs.append(source)
            else:
                constants.append((source, _constant(writer, source)))
    numbers = {node: k for k, node in enumerate([*inputs, *(n for n, _ in constants)])}

    def ref(leaf: Any) -> Any:
        if not isinstance(leaf, Node):
            return leaf
        return Ref(line_of[leaf], True) if leaf in line_of else Ref(numbers[leaf])

    read = [k for k, node in enumerate(nodes) if _is_read_outside(writer, node, line_of)]
    for k in read:
        value = nodes[k].meta.get("val")
        if not isinstance(value, Tensor) or value.dtype not in HELD:
            raise Refusal(f"its result is of {getattr(value, 'dtype', type(value).__name__)}, which the network cannot hold")
    places = [UnsupportedOp(str(n.target), module_path(n), source_line(n), reasons[i]) for i, n in zip(members, nodes) if i in reasons]
    lines = [(n.target, *pytree.tree_map_only(Node, ref, (tuple(n.args), dict(n.kwargs)))) for n in nodes]
    function = Function(lines, read, [writer.dtype(n) for n in inputs], [v for _, v in constants])
    able = _differentiable(function, inputs, [writer.is_trained(n) for n in inputs])
    function = FUNCTIONS.setdefault(function.text, function)
    writer.enter(next((n for i, n in zip(members, nodes) if i in reasons), nodes[-1]))
    shapes = [writer.shape(nodes[k]) for k in read]
    attributes = {
        "function": function.text,
        "shapes": [n for shape in shapes for n in (len(shape), *shape)],
        "dtypes": ",".join(HELD[nodes[k].meta["val"].dtype] for k in read),
        "differentiable": able,
    }
    if not read:
        return
    writer.fallbacks.append((function.text, places))
    names = writer.emit("FallbackForward", inputs, shapes, attributes, outputs=[f"y{k}" for k in range(len(read))])
    for name, k in zip(names, read):
        writer.values[members[k]] = name
        writer.dtype_of[name] = HELD[nodes[k].meta["val"].dtype]


def _constant(writer: "Writer", node: Node) -> Tensor:
    i = writer.program.index[node]
    if node.op == "get_attr":
        raise Refusal("it holds graphs of its own")
    value = None
    if writer.division.places[i] == Place.CONSTANT and i not in writer.division.samples:
        value = writer.captured.constant(i)
    if not isinstance(value, Tensor):
        raise Refusal(f"it reads values of {getattr(node.meta.get('val'), 'dtype', 'another kind')} that are computed of each batch")
    return value.detach()


def _is_read_outside(writer: "Writer", node: Node, line_of: dict[Node, int]) -> bool:
    program = writer.program
    wanted = {program.loss, *program.outputs.values(), *program.updates.values()}
    if not isinstance(node.meta.get("val"), Tensor):
        return False
    return program.index[node] in wanted or any(u not in line_of and program.index.get(u) in writer.in_network for u in node.users)


def _differentiable(function: Function, inputs: Sequence[Node], trained: Sequence[bool]) -> list[int]:
    fake = [node.meta["val"] for node in inputs]
    mode = next((x.fake_mode for x in fake if hasattr(x, "fake_mode")), None)
    if mode is None:
        return []
    constants = function.constants
    try:
        with mode:
            function.constants = [torch.empty_like(c, device=c.device) for c in constants]
            empty = [torch.empty(tuple(x.shape), dtype=x.dtype) for x in fake]
            return function.differentiable(empty, trained)
    except RuntimeError as error:  # NotImplementedError is one too
        raise Refusal(f"PyTorch has no gradient of it: {str(error).splitlines()[0]}") from None
    finally:
        function.constants = constants


# --- running them ----------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Function] = {}
Region = tuple[str, list[UnsupportedOp]]  # its function's text, and what is left to PyTorch in it
_one_at_a_time = threading.Lock()
_rehearsals = 0


class rehearsal:
    """While kernels are timed, on buffers without meaning: inputs are zeros then, since not every operator checks what it takes
    for an index, and what PyTorch objects to is no error."""

    def __enter__(self) -> None:
        global _rehearsals
        _rehearsals += 1

    def __exit__(self, *_: Any) -> None:
        global _rehearsals
        _rehearsals -= 1


class Measured:
    """What PyTorch takes beside the arena in the fallbacks of one step, while it is entered: bytes at most, by function."""

    current: Optional["Measured"] = None

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._seen: set[tuple] = set()

    def __enter__(self) -> None:
        Measured.current = self

    def __exit__(self, *_: Any) -> None:
        Measured.current = None

    def run(self, text: str, key: tuple, compute: Callable[[], None]) -> None:
        """Measures what has not run with these shapes yet."""
        if (text, key) in self._seen or torch.autograd._profiler_enabled():
            return compute()
        taken = bytes_taken(compute)
        if taken is not None:
            self._seen.add((text, key))
            self.bytes[text] = max(taken, self.bytes.get(text, 0))

    def told(self, regions: Sequence[Region]) -> list[dict[str, Any]]:
        """Of each region, what PyTorch computes there and why, and the bytes; None before it has run."""
        return [{"ops": [asdict(place) for place in places], "unplanned_bytes": self.bytes.get(text)} for text, places in regions]


def run(text: str, backward: bool, inputs: list, outputs: list, given: list[int], wanted: list[int]) -> None:
    """What the core calls; arrays are over its own memory."""
    function = FUNCTIONS[text]
    into = [torch.from_dlpack(x) for x in outputs]
    tensors = [torch.from_dlpack(x) for x in inputs]
    if _rehearsals:
        tensors = [torch.zeros_like(x) for x in tensors]
    first = len(given)
    tensors[first:] = [t.view(torch.bool) if dtype == torch.bool else t for t, dtype in zip(tensors[first:], function.types)]

    def compute() -> None:
        if backward:
            function.backward(tensors, into, given, wanted)
        else:
            function.forward(tensors, into)

    with _one_at_a_time:
        if _rehearsals:
            with suppress(RuntimeError, IndexError, ValueError):
                compute()
        elif Measured.current is not None:
            Measured.current.run(text, (backward, *(tuple(t.shape) for t in tensors)), compute)
        else:
            compute()


def bytes_taken(compute: Callable[[], None]) -> Optional[int]:
    """The most that PyTorch's allocator has given out beyond what it had before; None where this PyTorch cannot tell."""
    try:
        autograd = torch.autograd
        settings = autograd.ProfilerConfig(
            autograd.ProfilerState.CPU, False, True, False, False, False, torch._C._profiler._ExperimentalConfig()
        )
        autograd._enable_profiler_legacy(settings)
    except (AttributeError, TypeError):
        compute()
        return None
    try:
        compute()
    finally:
        records = autograd._disable_profiler_legacy()
    taken = most = 0
    for record in (record for thread in records for record in thread):
        if record.kind() == "memory_alloc":  # less than zero where it is given back
            taken += record.cpu_memory_usage()
            most = max(most, taken)
    return most

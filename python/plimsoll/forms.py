"""A network for batches of one shape: what the core gets of it, and how a batch is fed to it."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any, Collection, Mapping, Optional, Union

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .capture import Captured
from .convert import Converted
from .feeding import Feeder
from .writer import Document

DTYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}
_INTEGERS = (torch.int32, torch.int64)
_STATES = ("parameter", "statistic")

Key = tuple


def key_of(batch: Any) -> Key:
    """Of a batch's tensors shapes and types; what is no tensor, which a network has as it was; and how it is put together."""
    if batch is None:
        raise ValueError("the batch is None; give one as the loader gives it")
    leaves, structure = pytree.tree_flatten(batch)
    return tuple((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else ("value", repr(x)) for x in leaves) + (repr(structure),)


def tensors_of_key(key: Key) -> list[tuple]:
    return [part for part in key if isinstance(part, tuple) and part[0] != "value"]


def skeleton_of(batch: Any) -> Any:
    """How a batch is put together, without its values."""
    return pytree.tree_map(lambda _: None, batch)


def arranged(batch: Any, like: Any) -> Any:
    """The batch with its dictionaries' keys in the order of another's; further mappings, as tokenizers give them, become dictionaries."""
    if isinstance(batch, Mapping) and type(batch) not in pytree.SUPPORTED_NODES:
        batch = dict(batch)
    if isinstance(batch, dict) and isinstance(like, dict) and batch.keys() == like.keys():
        values = {key: arranged(batch[key], like[key]) for key in like}
        return values if type(batch) is dict else type(batch)(values)
    if isinstance(batch, (list, tuple)) and type(batch) in (list, tuple) and isinstance(like, (list, tuple)) and len(batch) == len(like):
        return type(batch)(arranged(a, b) for a, b in zip(batch, like))
    return batch


def plain(batch: Any) -> Any:
    """The batch with dictionaries for mappings that PyTorch's pytrees do not know."""
    return arranged(batch, None) if isinstance(batch, Mapping) else batch


def states_of(section: Document) -> dict[str, list]:
    """The shapes of what a network keeps from step to step, by name."""
    return {t["name"]: t["shape"] for t in section["tensors"] if t["role"] in _STATES}


class Form:
    """A captured network, in training or in evaluation.

    ``first``: the form that the core took its memory for. Another has the states of that one. What it reads beside them (a
    table for this length, a buffer that training does not read) it is fed like a batch.
    """

    def __init__(self, captured: Captured, converted: Converted, first: Optional["Form"] = None):
        self.captured, self.converted = captured, converted
        own = {**captured.buffers, **captured.parameters}  # may be in other memory soon: nobody is to keep what they have now
        live = {t.untyped_storage()._cdata for t in captured.first.constants.values() if isinstance(t, Tensor)}  # which others may change
        values = {name: value for name, value in converted.values.items() if name not in own}
        converted.values = {name: value.clone() if value.untyped_storage()._cdata in live else value for name, value in values.items()}
        kind = "training" if captured.training else "evaluation"
        self.section = converted.document[kind]
        self._fed: dict[str, Tensor] = {}
        if first is not None:
            self.section, self._fed = _fed_beside(self.section, self._values(), first, own.keys())
            read = states_of(self.section)
            self.section["frozen"] = [name for name in first.section["frozen"] if name in read]
        self.text = json.dumps({**converted.document, kind: self.section})
        self._ranges = _ranges(self.section)
        self._inputs = [tensor for tensor in self.section["tensors"] if tensor["role"] == "input"]

    def _values(self) -> dict[str, Tensor]:
        return {**self.converted.values, **self.captured.buffers, **self.captured.parameters}

    @property
    def is_fed(self) -> bool:
        """Whether it reads something of the module's beside what the core keeps."""
        return bool(self._fed)

    @property
    def fed(self) -> set[str]:
        """What that is, by the captured network's names."""
        return {name.removeprefix("fed/") for name in self._fed}

    @property
    def live(self) -> set[int]:
        """The ids of the module's tensors that the network is given as they are at every step."""
        kept = self.fed | states_of(self.section).keys()
        own = {**self.captured.buffers, **self.captured.parameters}
        prelude = {} if self.captured.prelude.is_empty else dict(self.captured.prelude.module().named_buffers())
        return {id(own[name]) for name in kept & own.keys()} | {id(tensor) for tensor in prelude.values()}

    @cached_property
    def trained(self) -> frozenset[str]:
        """Parameters that the loss's gradient reaches; in doubt it does."""
        made = {out: op for op in self.section["ops"] for out in op["outputs"]}
        waiting = [objective["loss"] for objective in self.section["objectives"]]
        found = set(waiting)
        while waiting:
            output = waiting.pop()
            for name in _reached_from(output, made[output]) if output in made else ():
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        parameters = {tensor["name"] for tensor in self.section["tensors"] if tensor["role"] == "parameter"}
        return frozenset(parameters & found - set(self.section["frozen"]))

    @property
    def outputs(self) -> dict[str, str]:
        """The caller's names of what he reads after a step, and the network's."""
        return self.converted.outputs

    @property
    def numbers(self) -> list:
        """What it is given beside the batch, as it is now."""
        return [number.token() for number in self.captured.numbers]

    def feed(self, batch: Any, feeder: Feeder) -> None:
        given, samples = {**self.captured.feed(batch), **self._fed}, self.captured.tensors_of(batch)[self.captured.batch_leaf].shape[0]
        try:
            for tensor in self._inputs:
                value, dtype = given[tensor["name"]].detach(), DTYPES[tensor["dtype"]]
                for size, ignored, what in self._ranges.get(tensor["name"], ()):
                    many = size if isinstance(size, int) else samples * int(size.rpartition("*")[0] or 1)  # "batch", or a multiple of it
                    _expect_below(value if value.dtype in _INTEGERS else value.to(dtype), many, ignored, what)
                feeder(tensor["name"], value, dtype)
        finally:
            feeder.finish()


_FLAT = frozenset("eq ne lt le gt ge logical_and logical_or logical_not sign floor round".split())


def _reached_from(output: str, op: Document) -> list[str]:
    """The inputs of an op that a gradient of its output reaches; in doubt it does."""
    kind, attributes = op["type"], op.get("attributes", {})
    if kind == "StopGradient" or (kind == "Cast" and attributes["dtype"] not in ("f32", "f64")) or (kind in ("TopK", "Sort") and output != op["outputs"][0]):
        return []
    return op["inputs"] if kind != "Pointwise" else [op["inputs"][i] for i in _sloped(attributes["expression"])]


def _sloped(expression: str) -> set[int]:
    """The numbers of those inputs of "mul(x0,where(gt(x1,0.0),x0,x2))" by which its slope is not 0 everywhere."""
    found: set[int] = set()
    within: list[list] = []  # calls, each with the number of its argument
    last = ""
    for token in re.findall(r"[^(),\s]+|[(),]", expression):
        if token == "(":
            within.append([last, 0])
        elif token == ",":
            within[-1][1] += 1
        elif token == ")":
            within.pop()
        elif re.fullmatch(r"x\d+", token) and not any(name in _FLAT or (name == "where" and place == 0) for name, place in within):
            found.add(int(token[1:]))
        last = token
    return found


_PLACE = "place"  # an index of x[i]


def _ranges(section: Document) -> dict[str, list[tuple[Union[int, str], Optional[int], str]]]:
    """Of inputs that are read as labels or as rows of a table: how many there are, which label does not count, and what it is."""
    views = {op["outputs"][0]: op["inputs"][0] for op in section["ops"] if op["type"] == "Reshape"}
    shapes = {t["name"]: t["shape"] for t in section["tensors"]} | {out: s for op in section["ops"] for out, s in zip(op["outputs"], op["shapes"])}
    inputs = {t["name"] for t in section["tensors"] if t["role"] == "input"}
    result: dict[str, list] = {}
    for op in section["ops"]:
        attributes, (table, *indices) = op.get("attributes", {}), op["inputs"] or [""]
        if op["type"] == "SoftmaxCrossEntropyForward":
            reads = [(indices[0], shapes[table][-1], attributes.get("ignore_index"), "label")]
        elif op["type"] == "Embedding":
            reads = [(indices[0], shapes[table][0], None, "index")]
        elif op["type"] in ("IndexSelect", "Gather"):
            reads = [(indices[0], shapes[table][attributes["axis"]], None, _PLACE)]
        elif op["type"] == "Index":
            reads = [(read, size, None, _PLACE) for read, size in zip(indices, shapes[table])]
        else:
            continue
        for read, size, ignored, what in reads:
            while read in views:
                read = views[read]
            if read in inputs:
                result.setdefault(read, []).append((size, ignored, what))
    return result


def _expect_below(value: Tensor, size: int, ignored: Optional[int], what: str) -> None:
    if value.numel() == 0 or value.is_floating_point():
        return
    first = -size if what == _PLACE else 0  # which may count from the end
    least, most = torch.stack(torch.aminmax(value)).tolist()
    if first <= least and most < size:
        return
    wrong = (value < first) | (value >= size)
    if ignored is not None:
        wrong &= value != ignored
    if bool(wrong.any()):
        place = tuple(int(i) for i in wrong.nonzero()[0])
        raise IndexError(f"the {'index' if what == _PLACE else what} {int(value[place])} at {list(place)} of the batch is out of range: there are {size}; nothing was trained")


def _fed_beside(section: Document, values: Mapping[str, Tensor], first: Form, own: Collection[str]) -> tuple[Document, dict[str, Tensor]]:
    """The section with all that ``first`` does not keep as inputs, and the values of these. ``own``: what are tensors of modules, and no constants."""
    kept, known = states_of(first.section), first._values()
    fed: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    tensors = []
    for tensor in section["tensors"]:
        name = tensor["name"]
        if tensor["role"] in _STATES and not _is_kept(tensor, kept, values[name], known, name in own):
            names[name] = f"fed/{name}"
            fed[names[name]] = values[name]
            tensor = {key: value for key, value in tensor.items() if key != "init"} | {"name": names[name], "role": "input"}
        tensors.append(tensor)
    ops = [{**op, "inputs": [names.get(i, i) for i in op["inputs"]]} for op in section["ops"]]
    return {**section, "tensors": tensors, "ops": ops}, fed


def _is_kept(tensor: Document, kept: Mapping[str, list], value: Tensor, known: Mapping[str, Tensor], is_own: bool) -> bool:
    name = tensor["name"]
    if kept.get(name) != tensor["shape"]:
        return False
    return known[name] is value or (not is_own and torch.equal(known[name].cpu(), value.cpu()))

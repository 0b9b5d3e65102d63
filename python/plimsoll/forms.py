"""A network for batches of one shape: what the core gets of it, and how a batch is fed to it."""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping, Optional

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .capture import Captured
from .convert import Converted
from .joined import resized
from .writer import Document

DTYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}
_STATES = ("parameter", "statistic")

Key = tuple


def key_of(batch: Any) -> Key:
    """Shapes and types of a batch's tensors."""
    return tuple((tuple(t.shape), t.dtype) for t in pytree.tree_leaves(batch) if isinstance(t, Tensor))


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
        kind = "training" if captured.training else "evaluation"
        self.section = converted.document[kind]
        self._fed: dict[str, Tensor] = {}
        if first is not None:
            self.section, self._fed = _fed_beside(self.section, self._values(), first)
            read = states_of(self.section)
            self.section["frozen"] = [name for name in first.section["frozen"] if name in read]
        self.text = json.dumps({**converted.document, kind: self.section})

    def _values(self) -> dict[str, Tensor]:
        return {**self.converted.values, **self.captured.buffers, **self.captured.parameters}

    @property
    def is_fed(self) -> bool:
        """Whether it reads something of the module's beside what the core keeps."""
        return bool(self._fed)

    @property
    def outputs(self) -> dict[str, str]:
        """The caller's names of what he reads after a step, and the network's."""
        return self.converted.outputs

    def size_of(self, batch: Any, example: Key) -> Optional[int]:
        """The number of samples of a batch that differs from the example by it alone; None: it differs otherwise."""
        tensors = self.captured.tensors_of(batch)
        sized = self.captured.batch_leaf
        if self.captured.second is None or self.converted.fixed_batch or len(tensors) != len(example):
            return None
        if tensors[sized].dim() == 0 or tensors[sized].shape[0] == 0:
            return None
        before, after = self.captured.first.batch, int(tensors[sized].shape[0])
        scaled = [resized(torch.empty(shape, dtype=dtype, device="meta"), before, after) for shape, dtype in example]
        return after if key_of(scaled) == key_of(tensors) else None

    def feed(self, batch: Any, feed: Callable[[str, Any], None]) -> None:
        given = {**self.captured.feed(batch), **self._fed}
        for tensor in self.section["tensors"]:
            if tensor["role"] == "input":
                value = given[tensor["name"]].detach().to(device="cpu", dtype=DTYPES[tensor["dtype"]]).contiguous()
                feed(tensor["name"], value.numpy())


def _fed_beside(section: Document, values: Mapping[str, Tensor], first: Form) -> tuple[Document, dict[str, Tensor]]:
    """The section with all that ``first`` does not keep as inputs, and the values of these."""
    kept, known = states_of(first.section), first._values()
    fed: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    tensors = []
    for tensor in section["tensors"]:
        name = tensor["name"]
        if tensor["role"] in _STATES and not _is_kept(tensor, kept, values[name], known):
            names[name] = f"fed/{name}"
            fed[names[name]] = values[name]
            tensor = {key: value for key, value in tensor.items() if key != "init"} | {"name": names[name], "role": "input"}
        tensors.append(tensor)
    ops = [{**op, "inputs": [names.get(i, i) for i in op["inputs"]]} for op in section["ops"]]
    return {**section, "tensors": tensors, "ops": ops}, fed


def _is_kept(tensor: Document, kept: Mapping[str, list], value: Tensor, known: Mapping[str, Tensor]) -> bool:
    name = tensor["name"]
    if kept.get(name) != tensor["shape"]:
        return False
    return known[name] is value or torch.equal(known[name].cpu(), value.cpu())

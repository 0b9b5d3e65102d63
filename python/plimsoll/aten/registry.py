"""The table from PyTorch's operators to those of a network file.

A converter is a function (writer, node, arguments) -> name of the tensor that it wrote, or a tuple of names for an
operator with several results. It is entered under its ATen name by ``@converts("add.Tensor", ...)``. Where it cannot
do what it is asked, it raises ``Refusal`` with the reason; conversion goes on, so that all refusals are told at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Sequence, Union

import torch
from torch.fx import Node

from ..values import Arguments, arguments  # noqa: F401

if TYPE_CHECKING:
    from ..writer import Writer

Result = Union[str, tuple, Any]
Converter = Callable[["Writer", Node, Arguments], Result]

CONVERTERS: dict[str, Converter] = {}
OTHER_FLOATS = frozenset({torch.float64, torch.float16, torch.bfloat16})  # that a batch may have, to be made torch.float32 at once


@dataclass
class Expanded:
    """A tensor broadcast to a shape: an Expand op is written for it only where a reader cannot broadcast by itself."""

    base: str
    shape: list[int]
    name: str = ""


class Refusal(Exception):
    """Why one node cannot be converted."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Enters a converter for ATen operators: ``@converts("relu.default")``. Our own are written out: "plimsoll.attention.default"."""

    def enter(converter: Converter) -> Converter:
        for name in names:
            CONVERTERS[name if name.startswith("plimsoll.") else "aten." + name] = converter
        return converter

    return enter


def axis(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


def is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The shape that tensors broadcast to."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded)]

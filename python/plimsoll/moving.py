"""Numbers that change from step to step, given to the network with every batch: the weight of a term that grows, a temperature that falls.

Python reads such a number of a variable, an attribute or an entry. While the module is exported, a tensor without dimensions stands there in its place; before a
step, the network is given what the number is then. Where Python's code wants a number and takes no tensor (a size, a branch, a probability of dropout) the
export fails, and the number stays what it is: a constant of the network.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor


class Number:
    """What a name stands for. ``get`` and ``put`` read and write it."""

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], None]):
        self.name, self._get, self.put = name, get, put

    def now(self) -> Tensor:
        value = self._get()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self.name} was a number when the step was compiled, and is {value!r} now; compile anew")
        return torch.tensor(float(value), dtype=torch.float32)


@contextmanager
def in_place(numbers: Sequence[Number], tensors: Sequence[Tensor]) -> Iterator[None]:
    """The tensors are what the names stand for, meanwhile."""
    before = [number._get() for number in numbers]
    try:
        for number, tensor in zip(numbers, tensors):
            number.put(tensor)
        yield
    finally:
        for number, value in zip(numbers, before):
            number.put(value)


def of_dictionary(name: str, values: Mapping[str, Any], key: str) -> Number:
    return Number(name, lambda: values.get(key), lambda value: values.__setitem__(key, value))  # type: ignore[attr-defined]


def of_cell(name: str, cell: Any) -> Number:
    return Number(name, lambda: cell.cell_contents, lambda value: setattr(cell, "cell_contents", value))

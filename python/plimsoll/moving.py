"""Numbers and tensors that change from step to step, given to the network with every batch: the weight of a term that grows, a temperature that falls, a queue of
what was seen before.

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
    """What a name stands for: a number, or a tensor of one shape. ``get`` and ``put`` read and write it."""

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], None]):
        self.name, self._get, self.put = name, get, put
        value = get()
        self._form = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else None

    @property
    def is_tensor(self) -> bool:
        return self._form is not None

    def now(self) -> Tensor:
        value = self._get()
        if self._form is not None:
            form = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else type(value).__name__
            if form != self._form:
                raise ValueError(f"{self.name} was a tensor {self._form} when the step was compiled, and is {form} now; compile anew")
            return value.detach()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self.name} was a number when the step was compiled, and is {value!r} now; compile anew")
        return torch.tensor(float(value), dtype=torch.float32)

    def token(self) -> Any:
        """What tells two of its values apart."""
        value = self._get()
        return (id(value), -1 if value.is_inference() else value._version) if isinstance(value, Tensor) else value


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


def of_entry(name: str, entries: Any, place: Any) -> Number:
    """Of a list, or of a dictionary of any keys."""

    def get() -> Any:
        try:
            return entries[place]
        except LookupError:
            return None

    return Number(name, get, lambda value: entries.__setitem__(place, value))


def of_cell(name: str, cell: Any) -> Number:
    return Number(name, lambda: cell.cell_contents, lambda value: setattr(cell, "cell_contents", value))

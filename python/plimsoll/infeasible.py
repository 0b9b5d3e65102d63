"""The answer that no plan fits."""

from __future__ import annotations

import json
import math
from typing import Any

from ._core import Error


def told_apart(given_bytes: int, needed_bytes: int) -> tuple[str, str]:
    """What is given and the more that is needed, in MiB with as few digits as tell them apart. What is needed is rounded
    up, since less would not do."""
    given, needed = given_bytes / 2**20, needed_bytes / 2**20
    for digits in (1, 2, 3):
        if f"{given:.{digits}f}" != f"{needed:.{digits}f}":
            return f"{given:.{digits}f}MiB", f"{math.ceil(needed * 10**digits) / 10**digits:.{digits}f}MiB"
    return f"{given_bytes} bytes", f"{needed_bytes} bytes"


class Infeasible(Error, MemoryError):
    """No plan fits the memory that was stated.

    ``minimum_bytes`` would do; ``lower_bound_bytes`` is what no plan can do with less than; ``proven`` says whether it is known
    that nothing between would do either; ``needs`` lists what holds the peak, as dictionaries with ``tensor``, ``role`` and
    ``bytes``.
    """

    def __init__(self, text: str, told: dict[str, Any]):
        super().__init__(text)
        self.budget_bytes: int = told["budget_bytes"]
        self.minimum_bytes: int = told["minimum_bytes"]
        self.lower_bound_bytes: int = told["lower_bound_bytes"]
        self.proven: bool = told["proven"]
        self.needs: list[dict[str, Any]] = told["peak_tensors"]

    @classmethod
    def from_core(cls, text: str, told: str) -> "Infeasible":
        return cls(text, json.loads(told))

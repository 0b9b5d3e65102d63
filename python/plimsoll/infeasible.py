"""The answer that no plan fits."""

from __future__ import annotations

import json
from typing import Any


class Infeasible(MemoryError):
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

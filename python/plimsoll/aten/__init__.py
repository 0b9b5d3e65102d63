"""ATen operators, a file a family: what each becomes in a network file. See registry.py."""

from . import (
    attention,
    elementwise,
    experts,
    layers,
    losses,
    matrices,
    norms,
    random,
    recurrent,
    sample,
    scatter,
    reductions,
    shapes,
)  # noqa: F401  (they fill the table)
from .registry import CONVERTERS, Refusal, arguments, axis, converts

__all__ = ["CONVERTERS", "Refusal", "arguments", "axis", "converts"]

"""What can go wrong, as exceptions that say where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from ._core import Error


@dataclass(frozen=True)
class UnsupportedOp:
    """One place of a network that cannot be trained yet.

    ``op`` is PyTorch's name of the operation ("aten.histc.default"), ``module`` the path of the module that it
    belongs to ("layers.0.mlp"), ``source`` the line that wrote it ("model.py:41"), ``reason`` what is missing.
    """

    op: str
    module: str
    source: str
    reason: str

    def __str__(self) -> str:
        place = f"in {self.module or 'the model itself'}"
        return f"{self.op} {place}" + (f" ({self.source})" if self.source else "") + f": {self.reason}"


class Unsupported(Error):
    """The network holds what cannot be trained. ``ops`` lists every such place, so that one run tells them all."""

    def __init__(self, ops: Sequence[UnsupportedOp], hint: str = ""):
        self.ops, self.hint = list(ops), hint
        count = len(self.ops)
        head = "1 operation cannot" if count == 1 else f"{count} operations cannot"
        super().__init__("\n  ".join([f"{head} be trained:", *map(str, self.ops)]) + (f"\n{hint}" if hint else ""))


class WrongResult(TypeError):
    """The model, loss= or outputs= gives what is no tensor."""

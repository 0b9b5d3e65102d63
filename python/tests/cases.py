"""Many small branches in one module, so that a whole family of operators costs one export.

Each branch has parameters of its own, so a gradient that is wrong names the branch.
"""

from __future__ import annotations

from typing import Callable, Mapping

import torch
from torch import Tensor, nn


class Function(nn.Module):
    """`body(x * p)` with a parameter of the input's shape without the batch."""

    def __init__(self, body: Callable[[Tensor], Tensor], *shape: int):
        super().__init__()
        self.body = body
        self.p = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.p)


def weighted(out: Tensor) -> Tensor:
    """A scalar in which neighbouring elements count differently; the factors are exact in every precision."""
    flat = out.reshape(-1)
    return (flat * ((torch.arange(flat.shape[0]) % 37 - 15) / 16.0)).sum()


class Branches(nn.Module):
    """Every branch on the same input; the loss is the sum of what they weigh."""

    def __init__(self, branches: Mapping[str, nn.Module]):
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([weighted(branch(x)) for branch in self.branches.values()]).sum()

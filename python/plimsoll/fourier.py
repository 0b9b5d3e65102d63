"""Fourier transforms as matrix products: along one dimension after the other, of complex numbers as pairs.

    n <= 128, or prime     [rows, 2n] x [2n, 2n], of cosines and sines
    else n = a * b         of the a elements that stand b apart; a turn of every result; of the b of each of these

So a long transform costs about n * (a + b) products and not n * n. Matrices and turns are constants, which are computed in doubles.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Optional, Sequence

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .masks import call, shape_of

_ATEN = torch.ops.aten
WHOLE = 128  # sizes up to this are one product


def _angles(rows: int, columns: int, size: int, forward: bool) -> Tensor:
    """2 pi j k / size of row j and column k, by whole numbers as long as possible."""
    places = torch.outer(torch.arange(rows), torch.arange(columns)) % size
    return places.double() * ((-2 if forward else 2) * math.pi / size)


@torch.library.custom_op("plimsoll::fourier_matrix", mutates_args=())
def fourier_matrix(size: int, rows: int, columns: int, forward: bool, of_pairs: bool, to_pairs: bool) -> Tensor:
    """From the first `rows` elements to the first `columns` frequencies. From half of the elements to real numbers: each that
    has a conjugate counts twice."""
    angles = _angles(rows, columns, size, forward)
    real, imaginary = angles.cos(), angles.sin()
    m = torch.stack([torch.stack([real, imaginary], -1), torch.stack([-imaginary, real], -1)], 1)  # [row, 2, column, 2]
    if rows < size and not to_pairs:
        m[1 : (size + 1) // 2] *= 2
    m = m[:, : 1 + of_pairs, :, : 1 + to_pairs]
    return m.reshape(rows * (1 + of_pairs), columns * (1 + to_pairs)).float()


@fourier_matrix.register_fake
def _(size, rows, columns, forward, of_pairs, to_pairs):
    return torch.empty(rows * (1 + of_pairs), columns * (1 + to_pairs))


@torch.library.custom_op("plimsoll::fourier_turns", mutates_args=())
def fourier_turns(rows: int, columns: int, forward: bool) -> Tensor:
    """[2, rows, columns, 2]: what a number is multiplied by, and what its real and imaginary part are, exchanged."""
    angles = _angles(rows, columns, rows * columns, forward)
    real, imaginary = angles.cos(), angles.sin()
    return torch.stack([torch.stack([real, real], -1), torch.stack([-imaginary, imaginary], -1)]).float()


@fourier_turns.register_fake
def _(rows, columns, forward):
    return torch.empty(2, rows, columns, 2)


@lru_cache(None)
def factors(size: int) -> Optional[tuple[int, int]]:
    """The two that are nearest to each other; None of what is one product."""
    smaller = next(a for a in range(math.isqrt(size), 0, -1) if size % a == 0)
    return None if size <= WHOLE or smaller == 1 else (smaller, size // smaller)


class Fourier:
    """Writes transforms into a graph, at its insertion point. ``like`` is the node that they are for. Pairs are [..., 2]."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._constants: dict[tuple, Node] = {}
        self.like: Node

    def of_pairs(self, x: Node, dims: Sequence[int], norm: int, forward: bool) -> Node:
        """``_fft_c2c``."""
        for dim in dims:
            x = self._along(x, dim, forward)
        return self._scaled(x, math.prod(shape_of(x)[d] for d in dims), norm)

    def of_real(self, x: Node, dims: Sequence[int], norm: int, onesided: bool) -> Node:
        """``_fft_r2c``: along the last of the dimensions of real numbers, then along the others of pairs."""
        *others, last = dims
        size, count = shape_of(x)[last], math.prod(shape_of(x)[d] for d in dims)
        held = size // 2 + 1 if onesided else size
        if factors(size) is None:
            y = self._product(x, last, size, True, held, of_pairs=False)
        else:
            y = self._call(_ATEN.slice.Tensor, self._along(x, last, True, of_pairs=False), last, 0, held)
        return self._scaled(self.of_pairs(y, others, 0, True), count, norm)

    def to_real(self, x: Node, dims: Sequence[int], norm: int, size: int) -> Node:
        """``_fft_c2r``: of the first half; the rest is its conjugate. Imaginary parts of the first element and of the middle one count for nothing."""
        *others, last = dims
        held = size // 2 + 1
        x = self.of_pairs(self._call(_ATEN.slice.Tensor, x, last, 0, held), others, 0, False)
        count = math.prod(shape_of(x)[d] for d in others) * size
        if factors(size) is None:
            return self._scaled(self._product(x, last, size, False, size, to_pairs=False), count, norm)
        rest = self._call(_ATEN.flip.default, self._call(_ATEN.slice.Tensor, x, last, 1, size - held + 1), [last])
        parts = [self._call(_ATEN.slice.Tensor, rest, -1, i, i + 1) for i in (0, 1)]
        rest = self._call(_ATEN.cat.default, [parts[0], self._call(_ATEN.neg.default, parts[1])], -1)
        whole = self._call(_ATEN.cat.default, [x, rest], last)
        return self._scaled(self._along(whole, last, False, to_pairs=False), count, norm)

    def _along(self, x: Node, dim: int, forward: bool, of_pairs: bool = True, to_pairs: bool = True) -> Node:
        shape, size = shape_of(x), shape_of(x)[dim]
        both = factors(size)
        if both is None:
            return self._product(x, dim, size, forward, size, of_pairs, to_pairs)
        a, b = both  # element i * b + j, frequency k + a * l
        x = self._view(x, [*shape[:dim], a, b, *shape[dim + 1 :]])
        x = self._turned(self._along(x, dim, forward, of_pairs), dim, a, b, forward)  # [k, j]
        x = self._along(x, dim + 1, forward, True, to_pairs)  # [k, l]
        order = list(range(len(shape_of(x))))
        order[dim], order[dim + 1] = dim + 1, dim
        x = self._call(_ATEN.permute.default, x, order)
        return self._view(x, [*shape_of(x)[:dim], size, *shape_of(x)[dim + 2 :]])

    def _product(self, x: Node, dim: int, size: int, forward: bool, columns: int, of_pairs: bool = True, to_pairs: bool = True) -> Node:
        shape = shape_of(x)
        rank = len(shape) - of_pairs
        others = [d for d in range(rank) if d != dim]
        x = self._call(_ATEN.permute.default, x, [*others, dim] + [rank] * of_pairs)
        rows = [shape[d] for d in others]
        matrix = self._constant(torch.ops.plimsoll.fourier_matrix.default, size, shape[dim], columns, forward, of_pairs, to_pairs)
        y = self._call(_ATEN.mm.default, self._view(x, [math.prod(rows), shape[dim] * (1 + of_pairs)]), matrix)
        back = list(range(rank - 1))
        back.insert(dim, rank - 1)
        return self._call(_ATEN.permute.default, self._view(y, [*rows, columns] + [2] * to_pairs), back + [rank] * to_pairs)

    def _turned(self, x: Node, dim: int, a: int, b: int, forward: bool) -> Node:
        turns = self._constant(torch.ops.plimsoll.fourier_turns.default, a, b, forward)
        after = len(shape_of(x)) - dim - 3
        along, across = (self._view(self._call(_ATEN.select.int, turns, 0, i), [a, b] + [1] * after + [2]) for i in (0, 1))
        exchanged = self._call(_ATEN.roll.default, x, [1], [-1])
        return self._call(_ATEN.add.Tensor, self._call(_ATEN.mul.Tensor, x, along), self._call(_ATEN.mul.Tensor, exchanged, across))

    def _scaled(self, x: Node, count: int, norm: int) -> Node:
        """0: as it is, 1: by the root of the count, 2: by the count."""
        return self._call(_ATEN.mul.Tensor, x, 1 / (count if norm == 2 else math.sqrt(count))) if norm else x

    def _view(self, x: Node, shape: Sequence[int]) -> Node:
        return self._call(_ATEN.reshape.default, x, list(shape))

    def _constant(self, *key: Any) -> Node:
        """One node for all transforms that read it."""
        if key not in self._constants:
            first = next(n for n in self._graph.nodes if n.op != "placeholder")
            with self._graph.inserting_before(first):
                self._constants[key] = self._call(*key)
        return self._constants[key]

    def _call(self, target: Any, *args: Any) -> Node:
        return call(self._graph, self.like, target, *args)

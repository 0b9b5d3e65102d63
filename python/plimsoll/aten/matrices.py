"""Inverses, systems, determinants and Cholesky's factors of small matrices: by elimination, a column after the other, of all matrices at once.

Elimination has no gradient. What it gives is fixed, and a first-order term is added that is 0 and has the derivative that is known:

    inverse X         X (2 - A X)                        d X = -X dA X
    log |det A|       + sum of X' * (A - fixed A)        d log |det A| = trace(X dA)
    Cholesky's L      + L half(X (A - fixed A) X')       with X the inverse of L, and half: the lower triangle, with half of the diagonal
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from .registry import Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer

MOST = 64  # rows of a matrix: each takes some ten ops


class _Matrices:
    """A batch of square matrices [batch, n, n]."""

    def __init__(self, w: "Writer", a: Any):
        self.w = w
        *self.before, n, m = w.shape(a) if isinstance(a, Node) else w.shape_of[a]
        if n != m:
            raise Refusal("a matrix that is not square")
        if n > MOST:
            raise Refusal(f"elimination of {n} x {n} matrices; up to {MOST} x {MOST} are possible")
        self.n, self.batch = n, math.prod(self.before)
        self.a = w.reshape(a, [self.batch, n, n])
        self.fixed = self.still(self.a)

    def still(self, x: str) -> str:
        return self.w.emit("StopGradient", [x], self.w.shape_of[x], part="fixed")

    def point(self, form: str, *operands: Any) -> str:
        return self.w.value(self.w.pointwise(form, list(operands), "step"))

    def product(self, x: str, y: str, turned: tuple[int, int] = (0, 0)) -> str:
        (b, n, k), (c, m, p) = self.w.shape_of[x], self.w.shape_of[y]
        shape = [max(b, c), k if turned[0] else n, m if turned[1] else p]
        return self.w.emit("MatMul", [x, y], shape, {"transpose_a": turned[0], "transpose_b": turned[1]}, "product")

    def known(self, name: str, make: Any) -> str:
        return self.w.shared_constant((name, self.n), make)

    def eye(self) -> str:
        return self.known("eye", lambda: torch.eye(self.n).reshape(1, self.n, self.n))

    def row(self, k: int) -> str:
        """1 at place k: a slice of the unit matrix [1, 1, n]."""
        return self.w.slice(self.eye(), 1, k, 1, part="row")

    def eliminated(self) -> tuple[str, str, str]:
        """The inverse, log |det| and the sign of det, each without a gradient. The largest element of a column is the pivot."""
        w, n, b = self.w, self.n, self.batch
        unit = w.emit("Expand", [self.eye()], [b, n, n], {"shape": [b, n, n]}, "unit")
        both = w.concat([self.fixed, unit], 2)
        free, chosen, pivots = w.fill([b, n, 1], 1.0), [], []
        for k in range(n):
            column = w.slice(both, 2, k, 1, part="column")
            size = self.point("mul(add(abs({0}),1e-37),{1})", column, free)
            _, place = w.emit("TopK", [size], [[b, 1, 1], [b, 1, 1]], {"axis": 1, "k": 1, "largest": 1}, "pivot", outputs=("y", "indices"))
            w.dtype_of[place] = "i64"
            is_pivot = self.point("eq({0},{1})", w.reshape(self.known("places", lambda: torch.arange(n, dtype=torch.float32)), [1, n, 1]), place)
            pivot_row = self.product(is_pivot, both, (1, 0))
            pivot = w.slice(pivot_row, 2, k, 1, part="value")
            pivot_row = self.point("div({0},{1})", pivot_row, pivot)
            both = self.point("add(mul({0},sub(1.0,{1})),mul(sub({1},mul(sub(1.0,{1}),{2})),{3}))", both, is_pivot, column, pivot_row)
            free = self.point("sub({0},{1})", free, is_pivot)
            chosen.append(is_pivot)
            pivots.append(pivot)
        order = w.concat(chosen, 2)  # [b, row, column]
        inverse = self.product(order, w.slice(both, 2, n, n, part="inverse"), (1, 0))
        values = w.concat(pivots, 2)
        logarithm = w.reduce(self.point("log(abs({0}))", values), "sum", [1, 2], part="logarithm")
        # The rows' order is odd or even by how many pairs of it are out of order.
        numbers = self.product(w.reshape(self.known("places", lambda: torch.arange(n, dtype=torch.float32)), [1, 1, n]), order)
        later = self.known("later", lambda: torch.triu(torch.ones(n, n), 1).reshape(1, n, n))
        swapped = self.point("and(gt({0},{1}),{2})", w.reshape(numbers, [b, n, 1]), numbers, later)
        odd = w.reduce(self.point("add({0},0.0)", swapped), "sum", [1, 2], part="swapped")
        negative = w.reduce(self.point("lt({0},0.0)", values), "sum", [1, 2], part="negative")
        sign = self.point("sub(1.0,mul(2.0,sub(add({0},{1}),mul(2.0,floor(mul(add({0},{1}),0.5))))))", odd, negative)
        return inverse, logarithm, sign

    def inverse(self) -> str:
        x, _, _ = self.eliminated()
        rest = self.point("sub(mul(2.0,{0}),{1})", self.eye(), self.product(self.a, x))
        return self.product(x, rest)

    def logarithm(self) -> tuple[str, str]:
        """log |det| [batch], and the sign."""
        x, logarithm, sign = self.eliminated()
        change = self.point("sub({0},{1})", self.a, self.fixed)
        turned = self.w.permute(x, [0, 2, 1])
        return self.point("add({0},{1})", logarithm, self.w.reduce(self.point("mul({0},{1})", turned, change), "sum", [1, 2])), sign

    def factor(self) -> str:
        """Cholesky's, of symmetric matrices, of which the lower triangle counts."""
        w, n, b = self.w, self.n, self.batch
        rest, columns = self.fixed, []
        below = self.known("below", lambda: torch.tril(torch.ones(n, n)).reshape(1, n, n))
        for k in range(n):
            column = self.point("mul({0},{1})", w.slice(rest, 2, k, 1, part="column"), w.slice(below, 2, k, 1, part="below"))
            column = self.point("div({0},sqrt({1}))", column, w.slice(column, 1, k, 1, part="pivot"))
            columns.append(column)
            rest = self.point("sub({0},{1})", rest, self.product(column, column, (0, 1)))
        factor = w.concat(columns, 2)
        inverse, _, _ = _Matrices(w, factor).eliminated()
        change = self.point("sub({0},{1})", self.a, self.fixed)
        change = self.point("mul(add({0},{1}),0.5)", change, w.permute(change, [0, 2, 1]))
        inner = self.product(self.product(inverse, change), inverse, (0, 1))
        halved = self.known("half", lambda: (torch.tril(torch.ones(n, n)) - 0.5 * torch.eye(n)).reshape(1, n, n))
        return self.point("add({0},{1})", factor, self.product(factor, self.point("mul({0},{1})", inner, halved)))


@converts("linalg_inv_ex.default")
def inverse(w: "Writer", node: Node, a: Arguments):
    """Gives (inverse, None)."""
    return w.reshape(_Matrices(w, a["A"]).inverse(), w.shape(a["A"])), None


@converts("_linalg_slogdet.default")
def logarithm_of_determinant(w: "Writer", node: Node, a: Arguments):
    m = _Matrices(w, a["A"])
    logarithm, sign = m.logarithm()
    return w.reshape(sign, m.before), w.reshape(logarithm, m.before), None, None


@converts("_linalg_det.default")
def determinant(w: "Writer", node: Node, a: Arguments):
    m = _Matrices(w, a["A"])
    logarithm, sign = m.logarithm()
    return w.reshape(m.point("mul({1},exp({0}))", logarithm, sign), m.before), None, None


@converts("_linalg_solve_ex.default")
def solution(w: "Writer", node: Node, a: Arguments):
    """By the inverse, and once more for what is left over."""
    if not a["left"]:
        raise Refusal("linalg.solve with left=False; transpose both")
    is_vector = len(w.shape(a["B"])) == len(w.shape(a["A"])) - 1
    return (w.reshape(_solved(w, a["A"], a["B"], is_vector), [int(n) for n in node.meta["val"][0].shape]), None, None, None)


def _solved(w: "Writer", a: Any, b: Node, is_vector: bool) -> str:
    m = _Matrices(w, a)
    shape = [*w.shape(b), 1] if is_vector else w.shape(b)
    if shape[:-2] != m.before:
        raise Refusal("a system whose two sides have other dimensions before the last two; expand them")
    given = w.reshape(b, [m.batch, *shape[-2:]])
    x = m.inverse()
    y = m.product(x, given)
    left = m.point("sub({0},{1})", given, m.product(m.a, y))
    return m.point("add({0},{1})", y, m.product(x, left))


@converts("linalg_solve_triangular.default")
def triangular_solution(w: "Writer", node: Node, a: Arguments):
    if not a["left"]:
        raise Refusal("linalg.solve_triangular with left=False; transpose both")
    n = w.shape(a["self"])[-1]
    has_ones = int(a["unitriangular"])  # on its diagonal, whatever stands there
    triangle = torch.triu(torch.ones(n, n), has_ones) if a["upper"] else torch.tril(torch.ones(n, n), -has_ones)
    form = "add(mul({0},{1}),{2})" if has_ones else "mul({0},{1})"
    own = w.value(w.pointwise(form, [a["self"], *map(w.add_constant, (triangle, torch.eye(n))[: 1 + has_ones])], "triangle"))
    before = torch.broadcast_shapes(tuple(w.shape(a["self"])[:-2]), tuple(w.shape(a["B"])[:-2]))
    if list(before) != w.shape(a["self"])[:-2]:
        own = w.emit("Expand", [own], [*before, n, n], {"shape": [*before, n, n]}, "expand")
    if list(before) != w.shape(a["B"])[:-2]:
        raise Refusal("a system whose two sides have other dimensions before the last two; expand them")
    return w.reshape(_solved(w, own, a["B"], False), w.shape(node))


@converts("linalg_cholesky_ex.default")
def cholesky(w: "Writer", node: Node, a: Arguments):
    """Gives (factor, None)."""
    m = _Matrices(w, a["self"])
    y = w.reshape(m.factor(), w.shape(a["self"]))
    if a["upper"]:
        rank = len(w.shape(a["self"]))
        y = w.permute(y, [*range(rank - 2), rank - 1, rank - 2])
    return y, None


@converts("cholesky_solve.default", "cholesky_inverse.default")
def solution_by_factor(w: "Writer", node: Node, a: Arguments):
    """Of A = L L', of which L is given: with X its inverse, X' X, and that times b."""
    factor, b = (a["input2"], a["self"]) if "input2" in a else (a["self"], None)
    if b is not None and w.shape(b)[:-2] != w.shape(factor)[:-2]:
        raise Refusal("a system whose two sides have other dimensions before the last two; expand them")
    m = _Matrices(w, factor)
    x = m.inverse()
    turned = (0, 1) if a["upper"] else (1, 0)
    if b is None:
        return w.reshape(m.product(x, x, turned), w.shape(node))
    given = w.reshape(b, [m.batch, *w.shape(b)[-2:]])
    inner, outer = ((1, 0), (0, 0)) if a["upper"] else ((0, 0), (1, 0))
    return w.reshape(m.product(x, m.product(x, given, inner), outer), w.shape(node))


@converts("linalg_matrix_exp.default")
def exponential(w: "Writer", node: Node, a: Arguments):
    """Taylor's series of a sixteenth of the matrix, squared four times: to rounding up to a norm of some sixty."""
    *before, n, _ = w.shape(a["self"])
    batch = math.prod(before)
    unit = w.shared_constant(("eye", n), lambda: torch.eye(n).reshape(1, n, n))
    x = w.value(w.pointwise("mul({0},0.0625)", [w.reshape(a["self"], [batch, n, n])], "part"))

    def product(y: str, z: str) -> str:
        return w.emit("MatMul", [y, z], [batch, n, n], {"transpose_a": 0, "transpose_b": 0}, "product")

    y = w.value(w.pointwise("add({1},mul({0},0.0625))", [x, unit], "last"))
    for k in range(15, 0, -1):
        y = w.value(w.pointwise(f"add({{1}},mul({{0}},{1 / k!r}))", [product(x, y), unit], "term"))
    for _ in range(4):
        y = product(y, y)
    return w.reshape(y, w.shape(node))

"""Complex numbers as pairs: the rotation of queries and keys as Llama's own code writes it, and whatever else multiplies and adds them.

    view_as_complex(x [..., 2]) * frequencies        x * cos + rolled(x) * (-sin, sin)

A complex tensor that depends on parameters becomes the real one of its pairs, ``view_as_real`` of it. One that does not is left to PyTorch, which
computes it outside of the network; its pairs are what the network reads. Operators that are not in the list stay, and are refused by name.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from .fourier import Fourier
from .masks import Known, call, shape_of

_ATEN = torch.ops.aten
_SAME = (_ATEN.clone.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN.neg.default)
_VIEWS = (_ATEN.view.default, _ATEN.reshape.default, _ATEN._unsafe_view.default)
_ALONG = (_ATEN.slice.Tensor, _ATEN.select.int, _ATEN.squeeze.dim, _ATEN.index_select.default)
_ALONG_SOME = (_ATEN.sum.dim_IntList, _ATEN.mean.dim, _ATEN.squeeze.dims, _ATEN.flip.default)
_PARTS = (_ATEN.split_with_sizes.default, _ATEN.split.Tensor, _ATEN.unbind.int)
_CONJUGATES = tuple(getattr(_ATEN, name).default for name in ("_conj", "_conj_physical", "conj_physical") if hasattr(_ATEN, name))


def as_pairs(exported: ExportedProgram, known: Known) -> None:
    graph = exported.graph
    complex_nodes = [n for n in graph.nodes if _is_complex(n) and known.is_trained(n)]
    if not complex_nodes:
        return
    pairs = _Pairs(graph)
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for node in complex_nodes:
        with graph.inserting_before(first if node.op == "placeholder" else node.next):
            pairs.write(node)
    pairs.give_back()
    graph.eliminate_dead_code()


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, Tensor) and value.is_complex()


class _Pairs:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._fourier = Fourier(graph)
        self._of: dict[Node, Node] = {}
        self._outside: dict[Node, Node] = {}

    def write(self, node: Node) -> None:
        """The pairs of a node, where its operator and its operands have such."""
        self._like = node
        pairs = self._written(node)
        if pairs is not None:
            self._of[node] = pairs

    def give_back(self) -> None:
        """What reads a complex tensor as real numbers reads the pairs."""
        for node, pairs in self._of.items():
            for user in list(node.users):
                if user is pairs:
                    continue
                self._like = user
                with self._graph.inserting_before(user):
                    real = self._real(user, pairs)
                if real is not None:
                    user.replace_all_uses_with(real)

    def _real(self, user: Node, pairs: Node) -> Optional[Node]:
        """What an operator makes of complex numbers, if that is real."""
        if user.target is _ATEN.view_as_real.default:
            return pairs
        if user.target is _ATEN.abs.default:
            return self._size(pairs)
        if user.target is _ATEN.angle.default:
            return self._call(_ATEN.atan2.default, *(self._call(_ATEN.select.int, pairs, -1, i) for i in (1, 0)))
        if user.target is _ATEN._fft_c2r.default:
            _, dims, norm, size = user.args
            self._fourier.like = user
            return self._fourier.to_real(pairs, [d % len(shape_of(user)) for d in dims], norm, size)  # type: ignore[union-attr, operator, arg-type]
        return None

    def _size(self, pairs: Node) -> Node:
        """Its gradient is 0 where it is 0."""
        square = self._call(_ATEN.sum.dim_IntList, self._call(_ATEN.mul.Tensor, pairs, pairs), [-1])
        is_none = self._call(_ATEN.eq.Scalar, square, 0.0)
        root = self._call(_ATEN.sqrt.default, self._call(_ATEN.masked_fill.Scalar, square, is_none, 1.0))
        return self._call(_ATEN.masked_fill.Scalar, root, is_none, 0.0)

    def _written(self, node: Node) -> Optional[Node]:
        target, args = node.target, node.args
        if node.op == "placeholder":  # a parameter
            return self._call(_ATEN.view_as_real.default, node)
        if target is operator.getitem:
            return self._part(*args)  # type: ignore[arg-type]
        if target is _ATEN.view_as_complex.default:
            return args[0]  # type: ignore[return-value]
        if target is _ATEN.complex.default:
            return self._call(_ATEN.stack.default, list(args), -1)
        if target is _ATEN.polar.default:
            return self._scaled_by(args[0], self._call(_ATEN.cos.default, args[1]), self._call(_ATEN.sin.default, args[1]))
        if target is _ATEN._to_copy.default and not _is_complex(args[0]):
            return self._of_real(args[0])
        if target is _ATEN._fft_r2c.default:
            x, dims, norm, onesided = args
            self._fourier.like = node
            return self._fourier.of_real(x, [d % len(shape_of(node)) for d in dims], norm, onesided)  # type: ignore[union-attr, operator, arg-type]
        if target in (_ATEN.mul.Tensor, _ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.div.Tensor) and not node.kwargs:
            return self._of_two(target, *args)
        if target in (_ATEN.mm.default, _ATEN.bmm.default, _ATEN.matmul.default):
            return self._product(target, *args)  # type: ignore[arg-type]
        if target in (_ATEN.cat.default, _ATEN.stack.default):
            dim = args[1] if len(args) > 1 else 0
            return self._call(target, [self._pairs(x, True) for x in args[0]], dim % len(shape_of(node)))  # type: ignore[union-attr, operator]
        first = self._pairs(args[0]) if args else None
        if target in (_ATEN.slice_scatter.default, _ATEN.select_scatter.default):
            dim = args[2] if len(args) > 2 else 0
            return self._call(target, self._pairs(args[0], True), self._pairs(args[1], True), dim % len(shape_of(node)), *args[3:])  # type: ignore[operator]
        if target is _ATEN.copy.default:
            return self._call(_ATEN.expand.default, self._pairs(args[1], True), [*shape_of(node), 2])
        if target is _ATEN.where.self:
            return self._call(target, self._unsqueezed(args[0]), *(self._pairs(x, True) for x in args[1:]))
        if first is None:
            return None
        rank = len(shape_of(node))
        before = len(shape_of(args[0]))  # type: ignore[arg-type]
        if target in _SAME:
            return self._call(target, first)
        if target is _ATEN._to_copy.default and node.meta["val"].dtype == args[0].meta["val"].dtype:  # type: ignore[union-attr]
            return first
        if target is _ATEN._fft_c2c.default:
            self._fourier.like = node
            return self._fourier.of_pairs(first, [d % rank for d in args[1]], *args[2:])  # type: ignore[union-attr, operator, arg-type]
        if target in _CONJUGATES:
            return self._call(_ATEN.mul.Tensor, first, self._signs(1.0, -1.0))
        if target is _ATEN.exp.default:
            real, imaginary = (self._call(_ATEN.select.int, first, -1, i) for i in (0, 1))
            return self._scaled_by(self._call(target, real), self._call(_ATEN.cos.default, imaginary), self._call(_ATEN.sin.default, imaginary))
        if target is _ATEN.pow.Tensor_Scalar and args[1] == 2:
            return self._of_two(_ATEN.mul.Tensor, args[0], args[0])
        if target in _VIEWS:
            return self._call(_ATEN.reshape.default, first, [*shape_of(node), 2])
        if target is _ATEN.expand.default:
            return self._call(target, first, [*shape_of(node), 2])
        if target is _ATEN.unsqueeze.default:
            return self._call(target, first, args[1] % rank)  # type: ignore[operator]
        if target is _ATEN.permute.default:
            return self._call(target, first, [*(d % rank for d in args[1]), rank])  # type: ignore[union-attr, operator]
        if target in _ALONG:
            return self._call(target, first, args[1] % before, *args[2:])  # type: ignore[operator]
        if target in _ALONG_SOME:
            dims = [d % before for d in (args[1] or range(before))]  # type: ignore[union-attr, operator]
            return self._call(target, first, dims, *args[2:])
        if target in (_ATEN.sum.default, _ATEN.mean.default):
            return self._call(_ATEN.sum.dim_IntList if target is _ATEN.sum.default else _ATEN.mean.dim, first, list(range(before)))
        if target is _ATEN.roll.default and len(args) > 2 and args[2]:
            return self._call(target, first, args[1], [d % before for d in args[2]])  # type: ignore[union-attr, operator]
        if target is _ATEN.constant_pad_nd.default and (len(args) < 3 or args[2] == 0):
            return self._call(target, first, [0, 0, *args[1]])  # type: ignore[misc]
        if target is _ATEN.index.Tensor:
            return self._call(target, first, args[1])
        return None

    def _part(self, several: Node, i: int) -> Optional[Node]:
        """The i-th of what a tensor is divided into."""
        x = self._pairs(several.args[0])
        if x is None or several.target not in _PARTS:
            return None
        rank = len(shape_of(several.args[0]))  # type: ignore[arg-type]
        if several.target is _ATEN.unbind.int:
            return self._call(_ATEN.select.int, x, (several.args[1] if len(several.args) > 1 else 0) % rank, i)  # type: ignore[operator]
        dim = (several.args[2] if len(several.args) > 2 else 0) % rank  # type: ignore[operator]
        parts = [value.shape[dim] for value in several.meta["val"]]
        return self._call(_ATEN.slice.Tensor, x, dim, sum(parts[:i]), sum(parts[: i + 1]))

    def _scaled_by(self, size: Any, cos: Node, sin: Node) -> Node:
        return self._call(_ATEN.stack.default, [self._call(_ATEN.mul.Tensor, part, size) for part in (cos, sin)], -1)

    def _unsqueezed(self, x: Any) -> Any:
        return self._call(_ATEN.unsqueeze.default, x, len(shape_of(x))) if isinstance(x, Node) else x

    def _of_real(self, x: Node) -> Node:
        nothing = self._call(_ATEN.mul.Tensor, x, 0.0)
        return self._call(_ATEN.stack.default, [x, nothing], -1)

    def _product(self, target: Callable, a: Node, b: Node) -> Optional[Node]:
        """[real, imaginary] of the rows times [real, imaginary] above [-imaginary, real]: one product."""
        if min(len(shape_of(a)), len(shape_of(b))) < 2:
            return None
        (*rows, inner), (*_, _, columns) = shape_of(a), shape_of(b)
        x, y = self._pairs(a, True), self._pairs(b, True)
        left = self._call(_ATEN.reshape.default, x, [*rows, 2 * inner])
        turned = self._call(_ATEN.mul.Tensor, self._call(_ATEN.roll.default, y, [1], [-1]), self._signs(-1.0, 1.0))
        both = self._call(_ATEN.stack.default, [y, turned], len(shape_of(b)) - 1)  # [..., inner, 2, columns, 2]
        right = self._call(_ATEN.reshape.default, both, [*shape_of(b)[:-2], 2 * inner, 2 * columns])
        y = self._call(target, left, right)
        return self._call(_ATEN.reshape.default, y, [*shape_of(y)[:-1], columns, 2])

    def _of_two(self, target: Callable, a: Any, b: Any) -> Optional[Node]:
        """Products and sums of complex and real ones."""
        first, second = self._pairs(a), self._pairs(b)
        if target is _ATEN.mul.Tensor and first is not None and second is not None:
            return self._times(first, second)
        if first is not None and second is not None and target is not _ATEN.div.Tensor:
            return self._call(target, first, second)
        if target is _ATEN.div.Tensor and second is not None:
            conjugate = self._call(_ATEN.mul.Tensor, second, self._signs(1.0, -1.0))
            square = self._call(_ATEN.sum.dim_IntList, self._call(_ATEN.mul.Tensor, second, second), [-1], True)
            return self._times(self._pairs(a, True), self._call(_ATEN.div.Tensor, conjugate, square))
        if target in (_ATEN.mul.Tensor, _ATEN.div.Tensor) and first is not None:
            if isinstance(b, complex):
                return self._times(first, self._signs(*(lambda z: (z.real, z.imag))(b if target is _ATEN.mul.Tensor else 1 / b)))
            return self._call(target, first, self._unsqueezed(b))
        if target is _ATEN.mul.Tensor:
            return self._of_two(target, b, a) if second is not None else self._call(target, self._unsqueezed(a), self._signs(b.real, b.imag))
        if first is None and second is None and not any(isinstance(t, complex) for t in (a, b)):
            return None
        if isinstance(b, complex) and target is _ATEN.div.Tensor:
            return self._of_two(_ATEN.mul.Tensor, a, 1 / b)
        x, y = (self._pairs(t, True) if isinstance(t, Node) else self._signs(complex(t).real, complex(t).imag) for t in (a, b))
        return self._call(target, x, y)

    def _times(self, first: Node, second: Node) -> Node:
        real, imaginary = (self._call(_ATEN.slice.Tensor, second, -1, i, i + 1) for i in (0, 1))
        turned = self._call(_ATEN.mul.Tensor, imaginary, self._signs(-1.0, 1.0))
        straight = self._call(_ATEN.mul.Tensor, first, real)
        return self._call(_ATEN.add.Tensor, straight, self._call(_ATEN.mul.Tensor, self._call(_ATEN.roll.default, first, [1], [-1]), turned))

    def _signs(self, *signs: float) -> Node:
        """Two numbers, such as (1, -1) as 1 - 2 * (0, 1): a constant."""
        dtype = torch.float64 if self._like.meta["val"].dtype == torch.complex128 else torch.float32
        step = self._call(_ATEN.arange.start_step, 0, 2, 1, dtype=dtype, device=self._like.meta["val"].device)
        return self._call(_ATEN.add.Tensor, self._call(_ATEN.mul.Tensor, step, signs[1] - signs[0]), signs[0])

    def _pairs(self, node: Any, of_real: bool = False) -> Optional[Node]:
        """None of what is real, or, if asked, its pairs with nothing."""
        if not _is_complex(node):
            return self._of_real(node) if of_real and isinstance(node, Node) else None
        if node in self._of:
            return self._of[node]
        if node not in self._outside:
            self._outside[node] = self._from_outside(node)
        return self._outside[node]

    def _from_outside(self, node: Node) -> Node:
        if node.target is _ATEN.full.default and isinstance(node.args[1], (int, float)):
            return self._call(_ATEN.full.default, [*shape_of(node), 2], 0.0, dtype=torch.float32) if node.args[1] == 0 else self._call(_ATEN.view_as_real.default, node)
        return self._call(_ATEN.view_as_real.default, node)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return call(self._graph, self._like, target, *args, **kwargs)

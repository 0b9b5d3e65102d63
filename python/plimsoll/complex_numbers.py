"""Complex numbers as pairs: the rotation of queries and keys as Llama's own code writes it, and whatever else multiplies and adds them.

    view_as_complex(x [..., 2]) * frequencies        x * cos + rolled(x) * (-sin, sin)

A complex tensor that depends on parameters becomes the real one of its pairs, ``view_as_real`` of it. One that does not is left to PyTorch, which
computes it outside of the network; its pairs are what the network reads. Operators that are not in the list stay, and are refused by name.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from .masks import Known, call, shape_of

_ATEN = torch.ops.aten
_SAME = (_ATEN.clone.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN.neg.default)
_SIZED = (_ATEN.view.default, _ATEN.reshape.default, _ATEN._unsafe_view.default, _ATEN.expand.default)
_CONJUGATES = tuple(getattr(_ATEN, name).default for name in ("_conj", "_conj_physical", "conj_physical") if hasattr(_ATEN, name))


def as_pairs(exported: ExportedProgram, known: Known) -> None:
    graph = exported.graph
    complex_nodes = [n for n in graph.nodes if _is_complex(n) and n.op == "call_function" and known.is_trained(n)]
    if not complex_nodes:
        return
    pairs = _Pairs(graph)
    for node in complex_nodes:
        with graph.inserting_before(node.next):
            pairs.write(node)
    pairs.give_back()
    graph.eliminate_dead_code()


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, Tensor) and value.is_complex()


class _Pairs:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._of: dict[Node, Node] = {}

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
                self._like = user
                with self._graph.inserting_before(user):
                    real = self._real(user, pairs)
                if real is not None:
                    user.replace_all_uses_with(real)

    def _real(self, user: Node, pairs: Node) -> Optional[Node]:
        if user.target is _ATEN.view_as_real.default:
            return pairs
        if user.target is _ATEN.abs.default:
            return self._call(_ATEN.sqrt.default, self._call(_ATEN.sum.dim_IntList, self._call(_ATEN.mul.Tensor, pairs, pairs), [-1]))
        return None

    def _written(self, node: Node) -> Optional[Node]:
        target, args = node.target, node.args
        if target is _ATEN.view_as_complex.default:
            return args[0]  # type: ignore[return-value]
        if target is _ATEN.complex.default:
            return self._call(_ATEN.stack.default, list(args), -1)
        if target in (_ATEN.mul.Tensor, _ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.div.Tensor) and not node.kwargs:
            return self._of_two(target, *args)
        first = self._pairs(args[0]) if args else None
        if first is None:
            return None
        rank = len(shape_of(node))
        before = len(shape_of(args[0]))  # type: ignore[arg-type]
        if target in _SAME:
            return self._call(target, first)
        if target in _CONJUGATES:
            return self._call(_ATEN.mul.Tensor, first, self._signs(1.0, -1.0))
        if target in _SIZED:
            return self._call(target, first, [*shape_of(node), 2])
        if target is _ATEN.unsqueeze.default:
            return self._call(target, first, args[1] % rank)  # type: ignore[operator]
        if target is _ATEN.permute.default:
            return self._call(target, first, [*(d % rank for d in args[1]), rank])  # type: ignore[union-attr, operator]
        if target in (_ATEN.slice.Tensor, _ATEN.select.int):
            return self._call(target, first, args[1] % before, *args[2:])  # type: ignore[operator]
        return None

    def _of_two(self, target: Callable, a: Any, b: Any) -> Optional[Node]:
        """Products and sums of complex and real ones."""
        first, second = self._pairs(a), self._pairs(b)
        if target is _ATEN.mul.Tensor and first is not None and second is not None:
            real, imaginary = (self._call(_ATEN.slice.Tensor, second, -1, i, i + 1) for i in (0, 1))
            turned = self._call(_ATEN.mul.Tensor, imaginary, self._signs(-1.0, 1.0))
            straight = self._call(_ATEN.mul.Tensor, first, real)
            return self._call(_ATEN.add.Tensor, straight, self._call(_ATEN.mul.Tensor, self._call(_ATEN.roll.default, first, [1], [-1]), turned))
        if first is not None and second is not None and target is not _ATEN.div.Tensor:
            return self._call(target, first, second)
        if target in (_ATEN.mul.Tensor, _ATEN.div.Tensor) and first is not None:
            return self._call(target, first, self._call(_ATEN.unsqueeze.default, b, len(shape_of(b))) if isinstance(b, Node) else b)
        if target is _ATEN.mul.Tensor and second is not None:
            return self._of_two(target, b, a)
        return None

    def _signs(self, *signs: float) -> Node:
        """(1, -1) as 1 - 2 * (0, 1): a constant."""
        dtype = torch.float64 if self._like.meta["val"].dtype == torch.complex128 else torch.float32
        step = self._call(_ATEN.arange.start_step, 0, 2, 1, dtype=dtype, device=self._like.meta["val"].device)
        return self._call(_ATEN.add.Tensor, self._call(_ATEN.mul.Tensor, step, signs[1] - signs[0]), signs[0])

    def _pairs(self, node: Any) -> Optional[Node]:
        """None of what is real."""
        if not _is_complex(node):
            return None
        return self._of[node] if node in self._of else self._call(_ATEN.view_as_real.default, node)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return call(self._graph, self._like, target, *args, **kwargs)

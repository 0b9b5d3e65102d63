"""Attention that a model writes out, made one operator: softmax(q k' * scale + mask) v in as many operators as its author likes.

Scores, and the weights that a softmax makes of them, are of size queries x keys, for every layer and head; one operator has neither. Before the
softmax may stand, in any order,

    times or divided by a number                       scale
    times a tensor that is the same for all keys       the queries
    tanh, times a number                               softcap
    plus a tensor                                      mask
    where, masked_fill: a number that hides            mask, boolean
    views that leave queries and keys alone            (heads are joined with the batch and parted again)

and behind it dropout and such views. Where somebody else reads the weights, or anything else stands between, all stays as it is.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from .masks import ABSORBING, HIDING, Blind, Known, call, is_floating, shape_of
from .values import arguments

_ATEN = torch.ops.aten
_SOFTMAX = (_ATEN.softmax.int, _ATEN._softmax.default)
_PRODUCT = (_ATEN.matmul.default, _ATEN.bmm.default)
_COPIES = (_ATEN.clone.default, _ATEN.alias.default)
_SHAPES = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dims, _ATEN.squeeze.dim,
          _ATEN.expand.default)  # fmt: skip
_CHOICES = (_ATEN.where.self, _ATEN.where.ScalarOther, _ATEN.where.ScalarSelf, _ATEN.masked_fill.Scalar, _ATEN.masked_fill.Tensor)
_MAXIMA = (_ATEN.amax.default, _ATEN.max.dim)


@dataclass(frozen=True)
class _View:
    """How sizes before the last two become others, from the product's side to the softmax's."""

    inner: list[int]
    outer: list[int]


@dataclass(frozen=True)
class _Added:
    tensor: Node
    factor: float
    views: tuple[_View, ...]


@dataclass(frozen=True)
class _Hidden:
    """A score is ``number`` where ``condition`` is not ``seen``."""

    condition: Node
    seen: bool
    number: float
    views: tuple[_View, ...]


@dataclass(frozen=True)
class _Scores:
    """What was met on the way from a softmax to the product of queries and keys."""

    scale: float = 1.0
    softcap: Optional[float] = None
    rows: tuple[tuple[Any, Node], ...] = ()  # operator and tensor for the queries
    masks: tuple[Any, ...] = ()  # _Added and _Hidden, from the softmax on
    views: tuple[_View, ...] = ()
    query: Optional[Node] = None
    key: Optional[Node] = None


@dataclass(frozen=True)
class _Use:
    """What is done with the weights: ``product`` multiplies them with values."""

    product: Node
    dropout: float
    views: tuple[_View, ...]  # one at most


def join_attention(exported: ExportedProgram, known: Known) -> None:
    graph = exported.graph
    joiner = _Joiner(graph, known)
    joined = [joiner.join(node) for node in list(graph.nodes) if node.target in _SOFTMAX]
    if any(joined):
        graph.eliminate_dead_code()


def _dead(graph: Graph) -> set[Node]:
    """What no result depends on, checks of shapes among it."""
    live: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or any(user in live for user in node.users):
            live.add(node)
    return {node for node in graph.nodes if node not in live}


class _Joiner:
    def __init__(self, graph: Graph, known: Known):
        self._graph, self._known, self._dead = graph, known, _dead(graph)

    def join(self, softmax: Node) -> bool:
        if softmax in self._dead or not self._is_of_rows(softmax):
            return False
        use = self._use(softmax)
        scores = None if use is None else self._trace(softmax.args[0], _Scores())  # type: ignore[arg-type]
        if use is None or scores is None:
            return False
        before = set(self._graph.nodes)
        self._like = use.product
        with self._graph.inserting_before(use.product):
            result = self._written(softmax, scores, use)
        if result is None:
            for made in reversed([n for n in self._graph.nodes if n not in before]):
                self._graph.erase_node(made)
            return False
        use.product.replace_all_uses_with(result)
        return True

    def _is_of_rows(self, softmax: Node) -> bool:
        given, shape = softmax.args[0], shape_of(softmax)
        dim = softmax.args[1]
        is_same = isinstance(given, Node) and given.meta["val"].dtype == softmax.meta["val"].dtype
        return is_same and is_floating(softmax) and len(shape) > 1 and dim in (-1, len(shape) - 1)

    # --- behind the softmax ---

    def _use(self, softmax: Node) -> Optional[_Use]:
        node, dropout, steps = softmax, 0.0, []  # type: Node, float, list[_Step]
        while True:
            users = [user for user in node.users if user not in self._dead]
            if len(users) != 1:
                return None
            user = users[0]
            if user.target in _PRODUCT:
                is_first = user.args[0] is node and user.args[1] is not node
                views = _leading(shape_of(softmax), steps, shape_of(node))
                return _Use(user, dropout, views) if is_first and views is not None and 0 <= dropout < 1 else None
            step = _step(user)
            if step is not None:
                steps.append(step)
            elif str(user.target) in ("aten.dropout.default", "aten.native_dropout.default"):
                given = arguments(user)
                if dropout != 0:
                    return None
                dropout = float(given["p"]) if given["train"] is not False else 0.0
            elif not (user.target is operator.getitem and user.args[1] == 0) and not _is_copy(user):
                return None
            node = user

    # --- before the softmax ---

    def _trace(self, node: Node, found: _Scores) -> Optional[_Scores]:
        if not isinstance(node, Node) or not is_floating(node):
            return None
        target = node.target
        if target in _PRODUCT:
            return self._product(node.args[0], node.args[1], found)
        if _is_copy(node):
            return self._trace(node.args[0], found)  # type: ignore[arg-type]
        if _step(node) is not None:
            return self._viewed(node, found)
        if target in (_ATEN.mul.Tensor, _ATEN.div.Tensor, _ATEN.mul.Scalar, _ATEN.div.Scalar):
            return self._multiplied(node, found)
        if target is _ATEN.tanh.default:
            if found.softcap is not None or found.rows or found.scale == 0:
                return None
            return self._trace(node.args[0], replace(found, softcap=abs(found.scale), scale=math.copysign(1.0, found.scale)))  # type: ignore[arg-type]
        if found.softcap is not None or found.rows:
            return None
        if target in (_ATEN.add.Tensor, _ATEN.sub.Tensor):
            return self._added(node, found)
        if target is _ATEN.baddbmm.default:
            given = arguments(node)
            alone = self._with(given["self"], float(given["beta"]) * found.scale, found)
            return self._product(given["batch1"], given["batch2"], replace(alone, scale=found.scale * float(given["alpha"])))
        if target in _CHOICES:
            return self._chosen(node, found)
        return None

    def _viewed(self, node: Node, found: _Scores) -> Optional[_Scores]:
        """By views that together leave queries and keys alone."""
        base, steps = node, []  # type: Node, list[_Step]
        while _step(base) is not None or _is_copy(base):
            steps = [step for step in (_step(base),) if step is not None] + steps
            base = base.args[0]  # type: ignore[assignment]
            views = _leading(shape_of(base), steps, shape_of(node))
            if views is not None:
                return self._trace(base, replace(found, views=(*found.views, *(_View(v.outer, v.inner) for v in views))))
        return None

    def _multiplied(self, node: Node, found: _Scores) -> Optional[_Scores]:
        divides = node.target in (_ATEN.div.Tensor, _ATEN.div.Scalar)
        for scores, other in (node.args[:2], node.args[1::-1])[: 1 if divides else 2]:
            number = self._number(other)
            if not isinstance(scores, Node) or shape_of(scores) != shape_of(node):
                continue
            if number is not None and math.isfinite(number) and number != 0:
                result = self._trace(scores, replace(found, scale=found.scale / number if divides else found.scale * number))
            elif isinstance(other, Node) and is_floating(other) and shape_of(other)[-1:] == [1] and not found.views:
                result = self._trace(scores, replace(found, rows=(*found.rows, (node.target, other))))
            else:
                continue
            if result is not None:
                return result
        return None

    def _added(self, node: Node, found: _Scores) -> Optional[_Scores]:
        factor = float(node.kwargs.get("alpha", 1))  # type: ignore[arg-type]
        subtracts = node.target is _ATEN.sub.Tensor
        for i, (scores, other) in enumerate((node.args[:2], node.args[1::-1])[: 1 if subtracts or factor != 1 else 2]):
            if not isinstance(scores, Node) or shape_of(scores) != shape_of(node):
                continue
            if self._number(other) is not None and not isinstance(other, Node) or self._is_maximum(other, scores):
                result = self._trace(scores, found)  # a softmax does not change by what all keys of a query get
            elif isinstance(other, Node) and is_floating(other):
                result = self._trace(scores, self._with(other, found.scale * (-factor if subtracts else factor), found))
            else:
                continue
            if result is not None:
                return result
        return None

    def _chosen(self, node: Node, found: _Scores) -> Optional[_Scores]:
        given = arguments(node)
        if node.target in (_ATEN.masked_fill.Scalar, _ATEN.masked_fill.Tensor):
            condition, choices = given["mask"], [(given["self"], given["value"], False)]
        else:
            condition, choices = given["condition"], [(given["self"], given["other"], True), (given["other"], given["self"], False)]
        if self._known.is_trained(condition):  # most such are of the scores, which are there then
            return None
        for scores, other, seen in choices:
            number = self._number(other)
            if number is None or not isinstance(scores, Node) or shape_of(scores) != shape_of(node) or number * found.scale > HIDING:
                continue
            hidden = _Hidden(condition, seen, number * found.scale, found.views)
            return self._trace(scores, replace(found, masks=(*found.masks, hidden)))
        return None

    def _with(self, added: Node, factor: float, found: _Scores) -> _Scores:
        return replace(found, masks=(*found.masks, _Added(added, factor, found.views)))

    def _product(self, query: Any, key: Any, found: _Scores) -> Optional[_Scores]:
        if not (isinstance(query, Node) and isinstance(key, Node)) or min(len(shape_of(query)), len(shape_of(key))) < 2:
            return None
        query, by_query = self._without_numbers(query)
        key, by_key = self._without_numbers(key)
        scale = found.scale * by_query * by_key * (found.softcap or 1.0)
        return replace(found, query=query, key=key, scale=scale)

    def _without_numbers(self, node: Node) -> tuple[Node, float]:
        factor = 1.0
        while node.target in (_ATEN.mul.Tensor, _ATEN.div.Tensor) and isinstance(node.args[0], Node) and shape_of(node.args[0]) == shape_of(node):
            number = self._number(node.args[1])
            if number is None or number == 0 or not math.isfinite(number):
                break
            factor = factor / number if node.target is _ATEN.div.Tensor else factor * number
            node = node.args[0]
        return node, factor

    # --- what single nodes are ---

    def _number(self, value: Any) -> Optional[float]:
        """The one number that a value is known to be."""
        if isinstance(value, Node):
            value = self._known.value(value) if "val" in value.meta else None
            if isinstance(value, Tensor):
                value = value.flatten()[0].item() if value.numel() > 0 and value.dim() < 2 and bool((value == value.flatten()[0]).all()) else None
        return float(value) if isinstance(value, (int, float)) else None

    def _is_maximum(self, node: Any, scores: Node) -> bool:
        while isinstance(node, Node) and node.target in (_ATEN.detach.default, operator.getitem):
            node = node.args[0]
        return isinstance(node, Node) and node.target in _MAXIMA and node.args[0] is scores and node.args[1] in (-1, [-1])

    # --- writing ---

    def _written(self, softmax: Node, scores: _Scores, use: _Use) -> Optional[Node]:
        shape = shape_of(softmax)
        queries, keys, lead = shape[-2], shape[-1], shape[:-2]
        value = use.product.args[1]
        if keys == 1 or not isinstance(value, Node) or len(shape_of(value)) < 2 or softmax.args[0] is None:
            return None
        query, value = self._shortened(scores.query), self._shortened(value)  # type: ignore[arg-type]
        key = self._swapped(self._shortened(scores.key))  # type: ignore[arg-type]
        inner = scores.views[-1].inner if scores.views else lead
        behind = use.views[-1].inner if use.views else lead
        grouped = self._grouped(query, key, value, lead) if not scores.views and not use.views else None
        if grouped is not None:
            key, value = grouped
        elif shape_of(key)[:-2] != inner or shape_of(value)[:-2] != behind:
            return None
        else:
            key, value = self._outward(key, scores.views), self._outward(value, use.views)
        query = self._expanded(query, [*inner, queries, shape_of(query)[-1]])
        query = self._outward(query, scores.views)
        for applies, factor in scores.rows:
            query = self._call(applies, query, factor)
        mask = self._mask(scores, lead)
        if mask is None:
            return None
        attn_mask, blind = mask
        return self._attention([query, key, value], attn_mask, blind, scores, use, shape)

    def _attention(self, tensors: list[Node], mask: Optional[Node], blind: Blind, scores: _Scores, use: _Use, shape: list[int]) -> Node:
        lead, width = shape[:-2], shape_of(tensors[2])[-1]
        four = [*lead, *[1] * (2 - len(lead))] if len(lead) < 2 else lead
        query, key, value = tensors
        if four != lead:
            query, key, value = (self._reshaped(x, [*four, *shape_of(x)[-2:]]) for x in tensors)
            if mask is not None:
                given = shape_of(mask)
                before = [*[1] * (len(lead) - len(given[:-2])), *given[:-2], *[1] * (len(four) - len(lead))]
                mask = self._reshaped(mask, [*before, *given[-2:]])
        if scores.softcap is None and blind == Blind.ZERO:
            is_grouped = shape_of(query)[:-2] != shape_of(key)[:-2]
            result = self._call(_ATEN.scaled_dot_product_attention.default, query, key, value, mask, use.dropout, False, scale=scores.scale, enable_gqa=is_grouped)
        else:
            settings = (use.dropout, scores.scale, scores.softcap, int(blind))
            result = self._call(torch.ops.plimsoll.attention.default, query, key, value, mask, None, None, None, *settings)
        result = self._reshaped(result, [*lead, shape[-2], width])
        return self._reshaped(result, shape_of(use.product))

    def _mask(self, scores: _Scores, lead: list[int]) -> Optional[tuple[Optional[Node], Blind]]:
        """The mask and what it leaves to a query that sees no key; None where that cannot be said."""
        hidden = [m for m in scores.masks if isinstance(m, _Hidden)]
        visible = None
        for part in hidden:
            if part.condition.meta["val"].dtype != torch.bool:
                return None
            sees = part.condition if part.seen else self._call(_ATEN.bitwise_not.default, part.condition)
            visible = self._both(_ATEN.bitwise_and.Tensor, visible, self._outward(sees, part.views))
        blind, added = Blind.ZERO, [m for m in scores.masks if isinstance(m, _Added)]
        terms = [self._term(part) for part in added]
        hides_besides = [m for m in added if self._known.may_hide(m.tensor)]
        if any(part.number != -math.inf for part in hidden) and not self._all_see(visible, hides_besides):
            last = max((scores.masks.index(m) for m in hides_besides), default=-1)
            if not hides_besides and scores.masks[: len(hidden)] == tuple(hidden) and len({part.number for part in hidden}) == 1:
                blind = Blind.ALIKE
            elif all(part.number <= ABSORBING and scores.masks.index(part) > last and self._hides_no_more(part, hides_besides) for part in hidden):
                visible, terms = None, [*terms, *map(self._hiding, hidden)]  # what hides is added instead
            else:
                return None
        total = None
        for term in terms:
            total = self._both(_ATEN.add.Tensor, total, term)
        if visible is None or total is None:
            return (total if visible is None else visible), blind
        return self._both(_ATEN.add.Tensor, total, self._chosen_number(visible, -math.inf)), blind

    def _hides_no_more(self, part: _Hidden, besides: list[_Added]) -> bool:
        """Whether the others hide all that a part hides: a score of it that counts for a query that sees no key would have no gradient."""
        sees = self._known.value(part.condition)
        if not isinstance(sees, Tensor):
            return False
        most = [self._known.seen_at_most(m.tensor) for m in besides]
        return any(x is not None and not bool((x & ~(sees == part.seen)).any()) for x in most)

    def _all_see(self, visible: Optional[Node], besides: list[_Added]) -> bool:
        seen = None if visible is None else self._known.value(visible)
        for part in besides:
            added = self._known.value(part.tensor)
            seen = seen & (added > HIDING) if isinstance(seen, Tensor) and isinstance(added, Tensor) and not part.views else None
        return isinstance(seen, Tensor) and bool(seen.any(-1).all())

    def _term(self, part: _Added) -> Node:
        tensor = self._outward(part.tensor, part.views)
        return tensor if part.factor == 1 else self._call(_ATEN.mul.Tensor, tensor, part.factor)

    def _hiding(self, part: _Hidden) -> Node:
        sees = part.condition if part.seen else self._call(_ATEN.bitwise_not.default, part.condition)
        return self._chosen_number(self._outward(sees, part.views), part.number)

    def _chosen_number(self, visible: Node, number: float) -> Node:
        like = self._like.meta["val"]
        nothing, hides = (self._call(_ATEN.full.default, [], x, dtype=like.dtype, device=like.device) for x in (0.0, number))
        return self._call(_ATEN.where.self, visible, nothing, hides)

    def _both(self, joins: Any, first: Optional[Node], second: Node) -> Node:
        return second if first is None else self._call(joins, first, second)

    def _grouped(self, query: Node, key: Node, value: Node, lead: list[int]) -> Optional[tuple[Node, Node]]:
        """Keys and values before they are repeated for the heads of queries that share them."""
        if len(lead) != 2 or shape_of(query)[:-2] != lead:
            return None
        if all(shape_of(x)[:-2] == [lead[0], 1] for x in (key, value)) and lead[1] > 1:
            return key, value
        bases = self._before_repetition(key), self._before_repetition(value)
        if bases[0] is None or bases[1] is None or shape_of(bases[0])[1] != shape_of(bases[1])[1]:
            return None
        return bases  # type: ignore[return-value]

    @staticmethod
    def _before_repetition(node: Node) -> Optional[Node]:
        """x of reshape(expand(x[:, :, None], [batch, heads, n, keys, width]), [batch, heads * n, keys, width])."""
        whole, node = shape_of(node), _uncopied(node)
        if node.target in _SHAPES and len(shape_of(node)) == 4:
            node = _uncopied(node.args[0])
        if node.target is not _ATEN.expand.default or len(shape_of(node)) != 5:
            return None
        batch, heads, n, keys, width = shape_of(node)
        base = _uncopied(node.args[0])
        if whole != [batch, heads * n, keys, width] or shape_of(base) != [batch, heads, 1, keys, width] or base.target is not _ATEN.unsqueeze.default:
            return None
        base = _uncopied(base.args[0])
        return base if shape_of(base) == [batch, heads, keys, width] else None

    def _swapped(self, node: Node) -> Node:
        """With the last two dimensions in each other's place: what they were before, where they were so."""
        rank = len(shape_of(node))
        swap = [*range(rank - 2), rank - 1, rank - 2]
        if node.target is _ATEN.permute.default:
            order = [int(d) % rank for d in node.args[1]]  # type: ignore[union-attr]
            order = [order[d] for d in swap]
            return node.args[0] if order == list(range(rank)) else self._call(_ATEN.permute.default, node.args[0], order)  # type: ignore[return-value]
        if _is_copy(node):
            return self._swapped(node.args[0])  # type: ignore[arg-type]
        if node.target in _SHAPES and _leading(shape_of(node.args[0]), [("shape", shape_of(node))], shape_of(node)) is not None:  # type: ignore[arg-type]
            inner = self._swapped(node.args[0])  # type: ignore[arg-type]
            return self._reshaped(inner, [*shape_of(node)[:-2], *shape_of(inner)[-2:]])
        return self._call(_ATEN.permute.default, node, swap)

    def _outward(self, tensor: Node, views: tuple[_View, ...]) -> Node:
        """A tensor of the product's side as the softmax has it."""
        if len(shape_of(tensor)) < 2:
            tensor = self._reshaped(tensor, [*[1] * (2 - len(shape_of(tensor))), *shape_of(tensor)])
        for view in reversed(views):
            shape = shape_of(tensor)
            tail = shape[-2:]
            lead = [*[1] * (len(view.inner) - len(shape[:-2])), *shape[:-2]]
            if all(n == 1 for n in lead):
                tensor = self._reshaped(tensor, [*[1] * len(view.outer), *tail])
            else:
                tensor = self._expanded(self._reshaped(tensor, [*lead, *tail]), [*view.inner, *tail])
                tensor = self._reshaped(tensor, [*view.outer, *tail])
        return tensor

    def _shortened(self, node: Node) -> Node:
        """The same by as few views as do, as an einsum uses many."""
        base, steps, count = node, [], 0  # type: Node, list[_Step], int
        while _step(base) is not None or _is_copy(base):
            steps = [step for step in (_step(base),) if step is not None] + steps
            base, count = base.args[0], count + 1  # type: ignore[assignment]
        short = _composed(shape_of(base), steps)
        if len(short) + 1 >= count:
            return node
        result = base
        for kind, value in short:
            if kind == "shape":
                result = self._reshaped(result, value)
            else:
                result = self._call(_ATEN.permute.default, self._reshaped(result, [n for n in shape_of(result) if n != 1]), value)
        return self._reshaped(result, shape_of(node))

    def _reshaped(self, tensor: Node, shape: list[int]) -> Node:
        return tensor if shape_of(tensor) == shape else self._call(_ATEN.reshape.default, tensor, shape)

    def _expanded(self, tensor: Node, shape: list[int]) -> Node:
        return tensor if shape_of(tensor) == shape else self._call(_ATEN.expand.default, tensor, shape)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return call(self._graph, self._like, target, *args, **kwargs)


def _uncopied(node: Any) -> Node:
    """Without copies, and without slices that leave all."""
    while node.target in _COPIES or (node.target is _ATEN.slice.Tensor and shape_of(node.args[0]) == shape_of(node)):
        node = node.args[0]
    return node


# --- views -----------------------------------------------------------------------------------------------------------

_Step = tuple[str, list[int]]  # "shape" with another shape, or "order" with one of the dimensions


def _is_copy(node: Node) -> bool:
    if node.target in _COPIES:
        return True
    given = node.args[0] if node.args else None
    return node.target is _ATEN._to_copy.default and isinstance(given, Node) and given.meta["val"].dtype == node.meta["val"].dtype


def _step(node: Node) -> Optional[_Step]:
    """What a view does; None of what is none."""
    given = node.args[0] if node.args else None
    if not isinstance(given, Node) or node.target not in (*_SHAPES, _ATEN.permute.default):
        return None
    if node.target is _ATEN.permute.default:
        return "order", [int(d) % len(shape_of(given)) for d in node.args[1]]  # type: ignore[union-attr]
    return ("shape", shape_of(node)) if math.prod(shape_of(given)) == math.prod(shape_of(node)) else None


def _composed(shape: list[int], steps: list[_Step]) -> list[_Step]:
    """As few as give the same, of shapes without dimensions of one. A permutation that moves none but these is no step at all."""
    plain = [[n for n in shape if n != 1]]  # before each step, and behind all
    result: list[_Step] = []
    for kind, value in steps:
        if kind == "order":
            places = [d for d, n in enumerate(shape) if n != 1]
            order = [places.index(d) for d in value if shape[d] != 1]
            shape = [shape[d] for d in value]
            if result and result[-1][0] == "order":
                before = result.pop()[1]
                order = [before[d] for d in order]
                plain.pop()
            if order == sorted(order):
                continue
            result.append(("order", order))
            plain.append([plain[-1][d] for d in order])
        else:
            shape, to = value, [n for n in value if n != 1]
            if result and result[-1][0] == "shape":
                result.pop()
                plain.pop()
            if to == plain[-1]:
                continue
            result.append(("shape", to))
            plain.append(to)
    return result


def _leading(shape: list[int], steps: list[_Step], end: list[int]) -> Optional[tuple[_View, ...]]:
    """Steps from one shape to another that change sizes before the last two alone: as a view, or none where nothing changes."""
    is_leading = len(shape) > 1 and shape[-2:] == end[-2:] and math.prod(shape) == math.prod(end)
    if not is_leading or any(kind == "order" for kind, _ in _composed(shape, steps)):
        return None
    return () if shape == end else (_View(end[:-2], shape[:-2]),)

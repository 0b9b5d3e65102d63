"""Masks of attention, kept short: which keys a query sees, by a window and more, instead of a tensor of queries x keys.

A model may make its mask of several parts, as "causal, and no padding, and of the same text". The tensor of all is as large as the scores.
So where every part is one that the core knows, ``split_masks`` gives attention the parts (``plimsoll::attention``), and nobody reads the
tensor:

    a constant that hides what lies outside of a window      left, right
    a tensor that is the same for all queries                keys [..., 1, keys]
    texts[:, :, None] == texts[:, None, :]                   texts [batch, keys]

Parts are joined by "and" where they are boolean, and by + where they are added to the scores. Any other mask stays as it is.

What hides a key may be minus infinity or a number that is only large. It is the same for a query that sees some key. One that sees none gives zeros
(or no number at all) in the first case, and attends to all keys alike in the second: ``blind``.
"""

from __future__ import annotations

import math
import operator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from .values import arguments, has_values, run_node

HIDING = -1e4  # what is added to a score, or stands in its place, and is no more than this leaves nothing of a key beside others
ABSORBING = -1e30  # a score that is added to this is lost in it

Window = tuple[Optional[int], Optional[int]]  # how many keys before and behind its own place a query sees; None: all


# --- windows ---------------------------------------------------------------------------------------------------------


def within_reach(n: Optional[int], size: int) -> Optional[int]:
    """How many keys before or behind its own place a query sees, of so many; None: all."""
    return None if n is None or n >= size - 1 else n


def visible_keys(queries: int, keys: int, left: Optional[int], right: Optional[int]) -> Tensor:
    """[queries, keys]: True where a query sees a key."""
    behind = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if left is not None:
        visible &= behind >= -left
    if right is not None:
        visible &= behind <= right
    return visible


def window_of(mask: Tensor, queries: int, keys: int) -> Optional[Window]:
    """The window of a mask [..., queries, keys] that hides what lies outside of one, and nothing else; causal ones are such."""
    if mask.shape[-2:] != (queries, keys) or mask.numel() == 0:
        return None
    if mask.dtype != torch.bool:
        hidden = mask <= HIDING
        if not bool(((mask == 0) | hidden).all()):
            return None
        mask = ~hidden
    seen = mask.reshape(-1, queries, keys)[0].nonzero()
    if len(seen) == 0:
        return None
    least, most = (int(n) for n in torch.aminmax(seen[:, 1] - seen[:, 0]))
    if least > 0 or most < 0:
        return None
    window = within_reach(-least, queries), within_reach(most, keys)
    return window if bool((mask == visible_keys(queries, keys, *window)).all()) else None


# --- the operator ----------------------------------------------------------------------------------------------------


class Blind(IntEnum):
    """What a query gets that sees no key: zeros, or the mean of all values. The mean may come from a number in the place of each score, or from
    one that was added to it, so that scores have a gradient."""

    ZERO = 0
    ALIKE = 1
    ALIKE_WITH_GRADIENT = 2


@torch.library.custom_op("plimsoll::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, keys: Optional[Tensor], texts: Optional[Tensor], left: Optional[int], right: Optional[int],
    dropout_p: float, scale: Optional[float], softcap: Optional[float] = None, blind: int = 0,
) -> Tensor:  # fmt: skip
    """Scaled dot-product attention with a mask in its short form; a head of keys may serve a group of heads of queries. With ``softcap`` c,
    scores are c * tanh(score / c) before they are masked."""
    grouped = query.shape[-3] // key.shape[-3]
    key, value = (x.repeat_interleave(grouped, -3) for x in (key, value)) if grouped > 1 else (key, value)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    visible = visible_keys(query.shape[-2], key.shape[-2], left, right)
    if texts is not None:
        visible = visible & (texts[:, None, :, None] == texts[:, None, None, :])
    if keys is not None and keys.dtype == torch.bool:
        visible = visible & keys
    elif keys is not None:
        scores = scores + keys
    scores = torch.where(visible, scores, -math.inf)
    sees_none = torch.isneginf(scores).all(-1, keepdim=True)
    weights = torch.where(sees_none, 1 / key.shape[-2] if blind else 0.0, torch.softmax(scores, -1))
    return F.dropout(weights, dropout_p) @ value


@attention.register_fake
def _(query, key, value, keys, texts, left, right, dropout_p, scale, softcap=None, blind=0):
    return query.new_empty([*query.shape[:-1], value.shape[-1]])


# --- masks that a model makes itself ---------------------------------------------------------------------------------

_ATEN = torch.ops.aten
_AND = (_ATEN.bitwise_and.Tensor, _ATEN.logical_and.default)
_OR = (_ATEN.bitwise_or.Tensor, _ATEN.logical_or.default)
_NOT = (_ATEN.bitwise_not.default, _ATEN.logical_not.default)
_COPIES = (_ATEN.clone.default, _ATEN.alias.default, _ATEN.detach.default)
_VIEWS = (_ATEN.view.default, _ATEN.reshape.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dims)
_COMPARISONS = {getattr(_ATEN, name).Scalar: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_SDPA = _ATEN.scaled_dot_product_attention.default
_OWN = torch.ops.plimsoll.attention.default


@dataclass
class _Parts:
    """What a mask is made of. ``texts``: numbers [batch, keys], and the sizes before [queries, keys] that their comparison has. ``bias``: what is added
    and as large as the scores."""

    windows: list[Window] = field(default_factory=list)
    keys: list[Node] = field(default_factory=list)
    texts: list[tuple[Node, list[int]]] = field(default_factory=list)
    bias: list[Node] = field(default_factory=list)
    hiding: list[float] = field(default_factory=list)  # of what is added: the numbers that hide

    def __add__(self, other: _Parts) -> _Parts:
        return _Parts(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values())))


def split_masks(exported: ExportedProgram, known: Known) -> None:
    """Gives every attention its mask in parts, where the graph makes it of such."""
    for node in list(exported.graph.nodes):
        if node.target in (_SDPA, _OWN):
            _Splitter(exported.graph, node, known).split()


class Known:
    """Values of nodes that depend on neither inputs nor parameters, and what depends on parameters."""

    def __init__(self, exported: ExportedProgram):
        signature = exported.graph_signature
        changed = set(signature.buffers_to_mutate.values())
        names = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        tensors = {**exported.state_dict, **exported.constants}
        self._given = {place: tensors.get(name) for place, name in names.items() if name not in changed}
        self._values: dict[Node, Any] = {}
        self._trained: dict[Node, bool] = {}
        self._hides: dict[Node, bool] = {}
        self._parameters = signature.inputs_to_parameters

    def value(self, node: Node) -> Any:
        """None where it is not known."""
        if node not in self._values:
            self._values[node] = self._compute(node)
        return self._values[node]

    def _compute(self, node: Node) -> Any:
        if node.op == "placeholder":
            given = self._given.get(node.name)
            return given.detach().cpu() if isinstance(given, Tensor) and has_values(given) else None
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return None
        inputs = {n: self.value(n) for n in node.all_input_nodes}
        with torch.no_grad():
            return None if any(value is None for value in inputs.values()) else run_node(node, inputs)

    def is_trained(self, node: Node) -> bool:
        if node not in self._trained:
            is_parameter = node.op == "placeholder" and node.name in self._parameters
            self._trained[node] = is_parameter or any(self.is_trained(n) for n in node.all_input_nodes)
        return self._trained[node]

    def may_hide(self, node: Node) -> bool:
        """Whether a number that hides keys may stand in a tensor: in the batch, or in what it is made of."""
        if node not in self._hides:
            self._hides[node] = self._look_for_hiding(node)
        return self._hides[node]

    def _look_for_hiding(self, node: Node) -> bool:
        value = self.value(node)
        if isinstance(value, Tensor):
            return value.is_floating_point() and not bool((value > HIDING).all())
        if node.op == "placeholder":
            return node.name not in self._parameters and is_floating(node)
        numbers = [x for x in (*node.args, *node.kwargs.values()) if isinstance(x, float)]
        return any(not abs(x) < -HIDING for x in numbers) or any(self.may_hide(n) for n in node.all_input_nodes)


    def seen_at_most(self, mask: Node) -> Optional[Tensor]:
        """[..., queries, keys]: False where a mask is known to hide a key; None where nothing of it is known."""
        value = self.value(mask)
        if isinstance(value, Tensor):
            return value if value.dtype == torch.bool else value > HIDING
        if mask.target in _AND:
            found = [x for x in map(self.seen_at_most, mask.args) if x is not None]  # type: ignore[arg-type]
            return None if not found else found[0] & found[-1]
        is_alike = mask.args and isinstance(mask.args[0], Node) and shape_of(mask)[-2:] == shape_of(mask.args[0])[-2:]
        if mask.target in (*_COPIES, *_VIEWS, _ATEN.expand.default) and is_alike:
            found = self.seen_at_most(mask.args[0])  # type: ignore[arg-type, assignment]
            if found is None:
                return None
            size = shape_of(mask)[-2:]  # what is known may be the same for all queries
            return found.expand(*found.shape[:-2], *size).reshape(-1, *size).any(0)  # type: ignore[union-attr]
        if mask.target is _ATEN.where.self:
            condition, _, other = mask.args
            hides = self.value(other)  # type: ignore[arg-type]
            return self.seen_at_most(condition) if isinstance(hides, Tensor) and bool((hides <= HIDING).all()) else None  # type: ignore[arg-type]
        return None


def is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def shape_of(node: Node) -> list[int]:
    return list(node.meta["val"].shape)


def call(graph: Graph, like: Node, target: Callable, *args: Any, **kwargs: Any) -> Node:
    """A new node, as of the module that ``like`` is of, with its value's shape and type."""
    node = graph.call_function(target, args, kwargs)
    given, named = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    node.meta = {name: like.meta[name] for name in ("nn_module_stack", "stack_trace") if name in like.meta}
    with getattr(like.meta["val"], "fake_mode", nullcontext()):
        node.meta["val"] = target(*given, **named)
    return node


class _Splitter:
    """Of one attention."""

    def __init__(self, graph: Graph, node: Node, known: Known):
        self._graph, self._node, self._known = graph, node, known
        self._given = arguments(node)
        self._is_own = node.target is _OWN
        shapes = [shape_of(self._given[name]) for name in ("query", "key", "value")]
        self._heads = [shape[:-2] for shape in shapes]
        self._queries, self._keys = shapes[0][-2], shapes[1][-2]

    def split(self) -> None:
        given, mask = self._given, self._given["keys" if self._is_own else "attn_mask"]
        is_grouped = self._is_own or given["enable_gqa"]
        one_batch = self._heads[1] == self._heads[2] and (is_grouped or self._heads[0] == self._heads[1])
        is_short = any(given.get(name) is not None for name in ("texts", "left", "right")) or given.get("is_causal")
        if not isinstance(mask, Node) or is_short or len(self._heads[0]) != 2 or not one_batch:
            return
        known = self._known.value(mask)
        if self._queries == 1 or mask.meta["val"].shape[-2] == 1 or (known is not None and self._window(known) is not None):
            return  # short already, or of one part
        before = set(self._graph.nodes)
        with self._graph.inserting_before(self._node):
            parts = self._added(mask) if is_floating(mask) else self._parts(mask, False)
            is_shorter = parts is not None and not (parts.bias and not parts.windows and not parts.texts)
            if not is_shorter or not self._give(parts):  # type: ignore[arg-type]
                for made in reversed([n for n in self._graph.nodes if n not in before]):
                    self._graph.erase_node(made)

    def _give(self, parts: _Parts) -> bool:
        batch = self._heads[0][0]
        if len(parts.texts) > 1 or any(shape != [batch, 1] for _, shape in parts.texts):
            return False
        blind = self._blind(parts)
        if blind is None:
            return False
        left, right = (min((n for n in side if n is not None), default=None) for side in zip((None, None), *parts.windows))
        texts = self._numbered(parts.texts[0][0]) if parts.texts else None
        given = (*(self._given[name] for name in ("query", "key", "value")), self._joined_numbers(parts), texts, left, right)
        settings = (float(self._given["dropout_p"]), self._given["scale"], self._given.get("softcap"), int(blind))
        short = self._graph.call_function(_OWN, (*given, *settings))
        short.meta = dict(self._node.meta)
        self._node.replace_all_uses_with(short)
        self._graph.erase_node(self._node)
        return True

    def _blind(self, parts: _Parts) -> Optional[Blind]:
        """None where a query that sees no key would get something else yet."""
        finite = [number for number in parts.hiding if number != -math.inf]
        if not finite:
            return Blind(self._given.get("blind", Blind.ZERO))
        added = [part for part in (*parts.keys, *parts.bias) if is_floating(part)]
        is_sole = len(parts.hiding) == 1 and not any(self._known.may_hide(part) for part in added)
        if not is_sole or self._given.get("blind"):
            return None
        every_query_sees = self._queries <= self._keys or all(left is None for left, _ in parts.windows)
        if not parts.texts and all(map(is_floating, parts.keys)) and every_query_sees:
            return Blind.ZERO
        return Blind.ALIKE_WITH_GRADIENT if finite[0] <= ABSORBING else None

    def _joined_numbers(self, parts: _Parts) -> Optional[Node]:
        """What hides keys and what is added, as one tensor."""
        hides, added = None, None
        for part in (*parts.keys, *parts.bias):
            if is_floating(part):
                added = part if added is None else self._call(_ATEN.add.Tensor, added, part)
            else:
                hides = part if hides is None else self._call(_ATEN.bitwise_and.Tensor, hides, part)
        if hides is None or added is None:
            return added if hides is None else hides
        number = added.meta["val"]
        least, nothing = (self._call(_ATEN.full.default, [], x, dtype=number.dtype, device=number.device) for x in (-math.inf, 0.0))
        return self._call(_ATEN.add.Tensor, added, self._call(_ATEN.where.self, hides, nothing, least))

    def _numbered(self, texts: Node) -> Node:
        """Any numbers as small ones, equal where they are."""
        unique = self._call(_ATEN._unique2.default, texts, True, True)
        return self._call(_ATEN._to_copy.default, self._call(operator.getitem, unique, 1), dtype=torch.int32)

    def _call(self, target: Callable, *args: Any, **kwargs: Any) -> Node:
        return call(self._graph, self._node, target, *args, **kwargs)

    # --- what is added ---

    def _added(self, mask: Node) -> Optional[_Parts]:
        """What a mask of numbers is made of. What is none of the parts that are known is a bias as it is."""
        if mask.target is _ATEN.add.Tensor and not mask.kwargs and all(isinstance(x, Node) and is_floating(x) for x in mask.args):
            shape, result = shape_of(mask), _Parts()
            for part in mask.args:
                found = self._added(part)  # type: ignore[arg-type]
                if found is None or any(lead != shape[:-2] for _, lead in found.texts):
                    return None
                result = result + found
            return result
        found = None if self._known.is_trained(mask) else self._parts(mask, False)
        if found is None and mask.target is _ATEN.where.self:
            found = self._biased(*mask.args)  # type: ignore[arg-type]
        if found is not None:
            return found
        shape = shape_of(mask)
        return _Parts(bias=[mask]) if len(shape) <= len(self._heads[0]) + 2 and len(shape) > 0 else None

    def _biased(self, condition: Node, yes: Node, no: Node) -> Optional[_Parts]:
        """Something that is added where a query sees a key, else what hides."""
        for added, other, inverted in ((yes, no, False), (no, yes, True)):
            hidden = self._known.value(other)
            if not isinstance(hidden, Tensor) or hidden.numel() == 0 or not bool((hidden == hidden.flatten()[0]).all()):
                continue
            number, bias = float(hidden.flatten()[0]), self._added(added)
            parts = self._parts(condition, inverted) if number <= HIDING and bias is not None and not bias.hiding else None
            # Where a query sees no key, a bias has no gradient: it stays a mask then.
            if parts is not None and bias is not None and (number == -math.inf or not self._known.is_trained(added) or not (parts.keys or parts.texts)):
                return replace(parts, hiding=[number]) + bias
        return None

    def _chosen(self, condition: Node, yes: Any, no: Any) -> Optional[_Parts]:
        """0 where a query sees a key, else what hides."""
        values = [self._known.value(x) if isinstance(x, Node) else None for x in (yes, no)]
        if not all(isinstance(x, Tensor) and x.numel() > 0 for x in values) or condition.meta["val"].dtype != torch.bool:
            return None
        for inverted, (seen, hidden) in enumerate((values, values[::-1])):
            if bool((seen == 0).all()) and bool((hidden == hidden.flatten()[0]).all()) and float(hidden.flatten()[0]) <= HIDING:
                found = self._parts(condition, bool(inverted))
                return None if found is None else replace(found, hiding=[float(hidden.flatten()[0])])
        return None

    def _window(self, value: Tensor) -> Optional[_Parts]:
        window = window_of(value, self._queries, self._keys)
        if window is None:
            return None
        hiding = [float(value.min())] if value.is_floating_point() and float(value.min()) < 0 else []
        return _Parts(windows=[window], hiding=hiding)

    # --- what is boolean, and either ---

    def _parts(self, mask: Node, inverted: bool) -> Optional[_Parts]:
        """What a mask, or what is not of one, is made of; None where some of it is something else."""
        value = mask.meta.get("val")
        shape = list(value.shape) if isinstance(value, Tensor) else []
        known = self._known.value(mask)
        if isinstance(known, Tensor) and bool((known == (known.dtype == torch.bool and not inverted)).all()):
            return _Parts()  # hides nothing
        if len(shape) < 2 or shape[-1] != self._keys or shape[-2] not in (1, self._queries) or self._known.is_trained(mask):
            return None
        if shape[-2] == 1:
            return _Parts(keys=[self._call(_ATEN.bitwise_not.default, mask) if inverted else mask])
        if known is not None:
            return self._window(~known if inverted else known)
        target, first = mask.target, mask.args[0] if mask.args else None
        if target in _COPIES:
            return self._parts(first, inverted)  # type: ignore[arg-type]
        if target is _ATEN.expand.default:
            return self._expanded(first, shape, inverted)  # type: ignore[arg-type]
        if target in _VIEWS:
            return self._viewed(first, shape, inverted)  # type: ignore[arg-type]
        if target in _NOT:
            return self._parts(first, not inverted)  # type: ignore[arg-type]
        if target in _COMPARISONS and self._is_of_two_numbers(first):
            return self._parted(first, lambda x: _COMPARISONS[target](x, mask.args[1]), inverted)  # type: ignore[arg-type]
        if target is _ATEN._to_copy.default and value.dtype == torch.bool:
            return self._truth(first, inverted)  # type: ignore[arg-type]
        if target in (_ATEN.eq.Scalar, _ATEN.ne.Scalar) and mask.args[1] == 0:
            return self._truth(first, inverted != (target is _ATEN.eq.Scalar))  # type: ignore[arg-type]
        if target in (_OR if inverted else _AND) or (target is _ATEN.add.Tensor and value.is_floating_point() and not mask.kwargs):
            return self._joined(mask, shape, inverted)
        if target is _ATEN.where.self and not inverted:
            return self._chosen(*mask.args)  # type: ignore[arg-type]
        if target is (_ATEN.ne.Tensor if inverted else _ATEN.eq.Tensor):
            return self._compared(mask, shape)
        return None

    def _truth(self, number: Node, inverted: bool) -> Optional[_Parts]:
        """Of ``number != 0``, where that is more than a boolean: as products of zeros and ones are."""
        value = number.meta.get("val")
        if not isinstance(value, Tensor):
            return None
        if value.dtype == torch.bool:
            return self._parts(number, inverted)
        shape, known = list(value.shape), self._known.value(number)
        if known is not None:
            is_whole = shape[-2:] == [self._queries, self._keys]
            return self._window((known == 0) if inverted else (known != 0)) if is_whole else None
        if len(shape) > 1 and shape[-2:] == [1, self._keys]:
            return _Parts(keys=[self._call(_ATEN.eq.Scalar if inverted else _ATEN.ne.Scalar, number, 0)])
        if self._is_of_two_numbers(number):
            return self._parted(number, lambda x: x != 0, inverted)
        if number.target is _ATEN._to_copy.default or number.target in _COPIES:
            return self._truth(number.args[0], inverted)  # type: ignore[arg-type]
        if number.target is _ATEN.mul.Tensor and not inverted and all(isinstance(x, Node) for x in number.args):
            found = [self._truth(x, False) for x in number.args]  # type: ignore[arg-type]
            return None if None in found else found[0] + found[1]  # type: ignore[operator]
        return None

    def _is_of_two_numbers(self, node: Any) -> bool:
        if not isinstance(node, Node) or node.target is not _ATEN.where.self:
            return False
        return all(isinstance(x, Tensor) and x.numel() > 0 and bool((x == x.flatten()[0]).all()) for x in map(self._known.value, node.args[1:]))

    def _parted(self, node: Node, is_true: Callable, inverted: bool) -> Optional[_Parts]:
        """Of a question about what is one number where a condition holds, else another."""
        yes, no = (bool(is_true(self._known.value(x).flatten()[0])) for x in node.args[1:])  # type: ignore[arg-type]
        return self._parts(node.args[0], inverted == yes) if yes != no else None  # type: ignore[arg-type]

    def _joined(self, mask: Node, shape: list[int], inverted: bool) -> Optional[_Parts]:
        result = _Parts()
        for part in mask.args:
            is_alike = isinstance(part, Node) and part.meta["val"].dtype == mask.meta["val"].dtype
            found = self._parts(part, inverted) if is_alike else None  # type: ignore[arg-type]
            if found is None or any(lead != shape[:-2] for _, lead in found.texts):
                return None
            result = result + found
        return result

    def _expanded(self, mask: Node, shape: list[int], inverted: bool) -> Optional[_Parts]:
        found = self._parts(mask, inverted)
        is_same_rank = len(mask.meta["val"].shape) == len(shape)
        return found if found is None or is_same_rank or not found.texts else None

    def _viewed(self, mask: Node, shape: list[int], inverted: bool) -> Optional[_Parts]:
        """The sizes before the last two are others."""
        inner = list(mask.meta["val"].shape)
        found = self._parts(mask, inverted) if inner[-2:] == shape[-2:] else None
        if found is None or any(lead != [n for n in inner[:-2]] or shape[:-2] not in (lead, [lead[0], 1]) for _, lead in found.texts):
            return None
        keys = [self._call(_ATEN.reshape.default, self._call(_ATEN.expand.default, k, [*inner[:-2], 1, inner[-1]]), [*shape[:-2], 1, shape[-1]]) for k in found.keys]
        return replace(found, keys=keys, texts=[(texts, shape[:-2]) for texts, _ in found.texts])

    def _compared(self, mask: Node, shape: list[int]) -> Optional[_Parts]:
        """texts[:, :, None] == texts[:, None, :], perhaps with a dimension of heads."""
        ends = [list(x.meta["val"].shape[-2:]) if isinstance(x, Node) else [] for x in mask.args]
        bases = [self._base(x) for x in mask.args]
        crossed = ends in ([[self._keys, 1], [1, self._keys]], [[1, self._keys], [self._keys, 1]])
        if not crossed or bases[0] is None or bases[0] is not bases[1] or self._queries != self._keys:
            return None
        rows = self._heads[0][0]
        return _Parts(texts=[(bases[0], shape[:-2])]) if list(bases[0].meta["val"].shape) == [rows, self._keys] and shape[:-2] in ([rows], [rows, 1]) else None

    @staticmethod
    def _base(node: Any) -> Optional[Node]:
        """What a tensor has the elements of."""
        while isinstance(node, Node) and node.target in (*_VIEWS, *_COPIES):
            node = node.args[0]
        return node if isinstance(node, Node) and isinstance(node.meta.get("val"), Tensor) else None

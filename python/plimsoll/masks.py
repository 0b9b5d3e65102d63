"""Masks of attention, kept short: which keys a query sees, by a window and more, instead of a tensor of queries x keys.

A model may make its mask of several parts, as "causal, and no padding, and of the same text". The tensor of all is as large as the scores.
So where every part is one that the core knows, ``split_masks`` gives attention the parts (``plimsoll::attention``), and nobody reads the
tensor:

    a constant that hides what lies outside of a window      left, right
    a tensor that is the same for all queries                keys [..., 1, keys]
    texts[:, :, None] == texts[:, None, :]                   texts [batch, keys]

Parts are joined by "and" where they are boolean, and by + where they are added to the scores. Any other mask stays as it is.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from .values import has_values, run_node

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
        hidden = torch.isneginf(mask) | (mask <= torch.finfo(mask.dtype).min)
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


@torch.library.custom_op("plimsoll::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, keys: Optional[Tensor], texts: Optional[Tensor], left: Optional[int], right: Optional[int],
    dropout_p: float, scale: Optional[float],
) -> Tensor:  # fmt: skip
    """Scaled dot-product attention with a mask in its short form; a head of keys may serve a group of heads of queries."""
    visible = visible_keys(query.shape[-2], key.shape[-2], left, right)
    if texts is not None:
        visible = visible & (texts[:, None, :, None] == texts[:, None, None, :])
    if keys is not None:
        visible = visible & keys if keys.dtype == torch.bool else torch.where(visible, keys, -math.inf)
    return F.scaled_dot_product_attention(query, key, value, visible, dropout_p, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3])


@attention.register_fake
def _(query, key, value, keys, texts, left, right, dropout_p, scale):
    return query.new_empty([*query.shape[:-1], value.shape[-1]])


# --- masks that a model makes itself ---------------------------------------------------------------------------------

_ATEN = torch.ops.aten
_AND = (_ATEN.bitwise_and.Tensor, _ATEN.logical_and.default)
_OR = (_ATEN.bitwise_or.Tensor, _ATEN.logical_or.default)
_NOT = (_ATEN.bitwise_not.default, _ATEN.logical_not.default)
_COPIES = (_ATEN.clone.default, _ATEN.alias.default, _ATEN.detach.default)
_VIEWS = (_ATEN.view.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dims)
_ARGUMENTS = {"query": None, "key": None, "value": None, "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


@dataclass
class _Parts:
    """What a mask is made of. ``texts``: numbers [batch, keys], and the sizes before [queries, keys] that their comparison has."""

    windows: list[Window] = field(default_factory=list)
    keys: list[Node] = field(default_factory=list)
    texts: list[tuple[Node, list[int]]] = field(default_factory=list)

    def __add__(self, other: _Parts) -> _Parts:
        return _Parts(self.windows + other.windows, self.keys + other.keys, self.texts + other.texts)


def split_masks(exported: ExportedProgram) -> None:
    """Gives every attention its mask in parts, where the graph makes it of such."""
    known = _Known(exported)
    for node in list(exported.graph.nodes):
        if node.target is _ATEN.scaled_dot_product_attention.default:
            _Splitter(exported.graph, node, known).split()


class _Known:
    """Values of nodes that depend on neither inputs nor parameters, and what depends on parameters."""

    def __init__(self, exported: ExportedProgram):
        signature = exported.graph_signature
        changed = set(signature.buffers_to_mutate.values())
        names = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        tensors = {**exported.state_dict, **exported.constants}
        self._given = {place: tensors.get(name) for place, name in names.items() if name not in changed}
        self._values: dict[Node, Any] = {}
        self._trained: dict[Node, bool] = {}
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


class _Splitter:
    """Of one attention."""

    def __init__(self, graph: Graph, node: Node, known: _Known):
        self._graph, self._node, self._known = graph, node, known
        self._given = _ARGUMENTS | dict(zip(_ARGUMENTS, node.args)) | node.kwargs
        shapes = [list(self._given[name].meta["val"].shape) for name in ("query", "key", "value")]
        self._heads = [shape[:-2] for shape in shapes]
        self._queries, self._keys = shapes[0][-2], shapes[1][-2]

    def split(self) -> None:
        given, mask = self._given, self._given["attn_mask"]
        one_batch = self._heads[1] == self._heads[2] and (given["enable_gqa"] or self._heads[0] == self._heads[1])
        if not isinstance(mask, Node) or given["is_causal"] or len(self._heads[0]) != 2 or not one_batch:
            return
        if self._queries == 1 or mask.meta["val"].shape[-2] == 1 or self._known.value(mask) is not None:
            return  # short already, or of one part
        before = list(self._graph.nodes)
        with self._graph.inserting_before(self._node):
            parts = self._parts(mask, False)
            if parts is None or not self._give(parts):
                for made in reversed([n for n in self._graph.nodes if n not in set(before)]):
                    self._graph.erase_node(made)

    def _give(self, parts: _Parts) -> bool:
        batch = self._heads[0][0]
        if len(parts.texts) > 1 or any(shape != [batch, 1] for _, shape in parts.texts) or len({k.meta["val"].dtype for k in parts.keys}) > 1:
            return False
        keys = None
        for part in parts.keys:
            joins = _ATEN.bitwise_and.Tensor if part.meta["val"].dtype == torch.bool else _ATEN.add.Tensor
            keys = part if keys is None else self._call(joins, keys, part)
        left, right = (min((n for n in side if n is not None), default=None) for side in zip((None, None), *parts.windows))
        texts = self._numbered(parts.texts[0][0]) if parts.texts else None
        given = (*(self._given[name] for name in ("query", "key", "value")), keys, texts, left, right)
        short = self._graph.call_function(torch.ops.plimsoll.attention.default, (*given, float(self._given["dropout_p"]), self._given["scale"]))
        short.meta = dict(self._node.meta)
        self._node.replace_all_uses_with(short)
        self._graph.erase_node(self._node)
        return True

    def _numbered(self, texts: Node) -> Node:
        """Any numbers as small ones, equal where they are."""
        unique = self._call(_ATEN._unique2.default, texts, True, True)
        return self._call(_ATEN._to_copy.default, self._call(operator.getitem, unique, 1), dtype=torch.int32)

    def _call(self, target: Callable, *args: Any, **kwargs: Any) -> Node:
        """A node with its value's shape and type."""
        node = self._graph.call_function(target, args, kwargs)
        given, named = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta = {name: self._node.meta[name] for name in ("nn_module_stack", "stack_trace") if name in self._node.meta}
        node.meta["val"] = target(*given, **named)
        return node

    def _parts(self, mask: Node, inverted: bool) -> Optional[_Parts]:
        """What a mask, or what is not of one, is made of; None where some of it is something else."""
        value = mask.meta.get("val")
        shape = list(value.shape) if isinstance(value, Tensor) else []
        if len(shape) < 2 or shape[-1] != self._keys or shape[-2] not in (1, self._queries) or self._known.is_trained(mask):
            return None
        if shape[-2] == 1:
            return _Parts(keys=[self._call(_ATEN.bitwise_not.default, mask) if inverted else mask])
        known = self._known.value(mask)
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
        if target in (_OR if inverted else _AND) or (target is _ATEN.add.Tensor and value.is_floating_point() and not mask.kwargs):
            return self._joined(mask, shape, inverted)
        if target is _ATEN.where.self and not inverted:
            return self._chosen(*mask.args)  # type: ignore[arg-type]
        if target is (_ATEN.ne.Tensor if inverted else _ATEN.eq.Tensor):
            return self._compared(mask, shape)
        return None

    def _window(self, value: Tensor) -> Optional[_Parts]:
        """Numbers that are only large would say something of queries that see no key else."""
        window = window_of(value, self._queries, self._keys)
        is_added = value.is_floating_point() and bool((torch.isfinite(value) & (value != 0)).any())
        return None if window is None or is_added else _Parts(windows=[window])

    def _joined(self, mask: Node, shape: list[int], inverted: bool) -> Optional[_Parts]:
        result = _Parts()
        for part in mask.args:
            is_alike = isinstance(part, Node) and part.meta["val"].dtype == mask.meta["val"].dtype
            found = self._parts(part, inverted) if is_alike else None  # type: ignore[arg-type]
            if found is None or any(lead != shape[:-2] for _, lead in found.texts):
                return None
            result = result + found
        return result

    def _chosen(self, condition: Node, yes: Any, no: Any) -> Optional[_Parts]:
        """0 where a query sees a key, else minus infinity."""
        values = [self._known.value(x) if isinstance(x, Node) else None for x in (yes, no)]
        if not all(isinstance(x, Tensor) and x.numel() > 0 for x in values) or condition.meta["val"].dtype != torch.bool:
            return None
        for inverted, (seen, hidden) in enumerate((values, values[::-1])):
            if bool((seen == 0).all()) and bool(torch.isneginf(hidden).all()):
                return self._parts(condition, bool(inverted))
        return None

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

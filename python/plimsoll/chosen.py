"""What a mask chooses, x[mask], while a model is captured: all rows, and which of them count.

    logits[mask] -> F.cross_entropy(..., labels[mask]), ((y - t)[mask] ** 2).mean()

How many rows a mask chooses depends on values, and a plan wants sizes. So all of them go on, the others as zeros; sums, means and losses are of those that count.
What treats each row for itself may stand in between. Anything else, above all what asks how many there are, is refused by name.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, Iterator, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

_FIELD = "_plimsoll_chosen"
_KEY = "_plimsoll_key"
_PLACES = "_plimsoll_places"
_ANY = "_plimsoll_any"
_ALIKE = "_plimsoll_alike"
_LEARNT = "_plimsoll_learnt"
_COUNT = "_plimsoll_count"
_COUNTED = "_plimsoll_counted"  # of numbers of places: the mask
_SUMS = "_plimsoll_sums"  # of how many each of several masks chooses: the masks [masks, ...], one under the other
_MOST = "_plimsoll_most"  # of the most that any of several masks chooses
_HITS = "_plimsoll_hits"  # of which of several masks choose any: these masks
_NATURAL = "_plimsoll_natural"  # of numbers of which none is below 0
_WIDE = "_plimsoll_wide"  # of numbers of places that were expanded to the right: the mask
OF_NONE = {("eq", 0): False, ("le", 0): False, ("lt", 1): False, ("gt", 0): True, ("ne", 0): True, ("ge", 1): True}  # of how many a mask chooses, where it chooses some
_LEADS = "_plimsoll_leads"  # of what has a dimension of 1 before its rows
_MOST_WRITES = 16


class Chosen:
    """Of a tensor whose rows do not all count: the mask of those that do, and what it was made of."""

    def __init__(self, mask: Tensor, key: Any):
        self.mask, self.key = mask, key
        self._version = _version_of(mask)
        self.is_learnt = False
        self.width = 1  # so many elements in a row count alike
        self.may_be_none = False  # Python has asked whether there are any, and went on where a step may find none
        self.is_divided = False  # by how many there are, before anybody has asked
        self.family = {mask.shape[0]: self}  # the same elements in other rows

    def expect_unwritten(self) -> None:
        if _version_of(self.mask) != self._version:
            raise RuntimeError("a mask is written into (mask[...] = ..., mask &= ...) when something was chosen by it, x[mask], that is still to be used; write into a copy, mask.clone()")

    def in_rows(self, count: int) -> Chosen:
        """Of the same elements in so many rows: each row as several, or several that count alike as one."""
        if count not in self.family:
            before = self.mask.shape[0]
            mask = self.mask[:, None].expand(-1, count // before).reshape(-1) if count > before else self.mask.reshape(count, -1)[:, 0]
            other = self.family[count] = Chosen(mask, self.key)
            other.width, other.is_learnt, other.family = self.width * count // before, self.is_learnt, self.family
        self.family[count].may_be_none |= self.may_be_none
        return self.family[count]


_COMPARED = frozenset("add __add__ mul __mul__ logical_or logical_and logical_xor __or__ __and__ __xor__ bitwise_or bitwise_and eq ne lt le gt ge logical_not bitwise_not bool __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __invert__ isfinite".split())
_VIEWS = frozenset("flatten view reshape squeeze unsqueeze transpose permute contiguous expand expand_as __getitem__".split())
_BY_ROWS = frozenset(
    """add sub mul div true_divide neg abs exp log log1p log2 log10 sqrt rsqrt pow square reciprocal sigmoid tanh relu gelu silu elu leaky_relu softplus
    logsigmoid acos arccos asin arcsin arctan sinh cosh asinh arcsinh atanh arctanh absolute negative sgn frac erfc celu logaddexp clamp clamp_min clamp_max clip float double long int bool to type type_as detach clone contiguous sign sin cos tan atan erf exp2 expm1 floor ceil round trunc where
    maximum minimum eq ne lt le gt ge logical_and logical_or logical_not lerp nan_to_num relu6 hardtanh hardswish mish selu softsign zeros_like ones_like full_like
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ __neg__ __abs__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __invert__
    rsub multiply subtract divide remainder fmod __mod__ __floordiv__ floor_divide dropout layer_norm""".split()
)
_DIVISIONS = frozenset("div true_divide divide __truediv__".split())
_SINGULAR = _DIVISIONS | frozenset("__rtruediv__ reciprocal sqrt rsqrt log log2 log10 pow __pow__ norm linalg_norm linalg_vector_norm normalize cosine_similarity std prod".split())  # or its derivative, at 0
_OF_FIRST = frozenset("linear matmul __matmul__ embedding".split())  # of rows, and of weights beside them
_OF_FORM = frozenset("dim ndimension is_floating_point is_complex element_size get_device".split())
_LOSSES = frozenset("mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss poisson_nll_loss".split())
_ALONG = frozenset(
    """softmax log_softmax logsumexp norm linalg_norm linalg_vector_norm argmax argmin gather squeeze unsqueeze cumsum cumprod amax amin normalize cosine_similarity max min prod
    var std median sort argsort topk chunk split unbind select narrow index_select any all""".split()
)
_DIM_AT = {name: 2 for name in "normalize cosine_similarity norm linalg_norm linalg_vector_norm chunk split topk".split()}
_DIM_UNSAID = {"normalize": 1, "cosine_similarity": 1, "chunk": 0, "split": 0, "unbind": 0, "sort": -1, "argsort": -1, "topk": -1}
_JOINING = {"cat": 0, "concat": 0, "concatenate": 0, "stack": 1}  # so many dimensions more
_NEUTRAL = {"sum": 0.0, "nansum": 0.0, "norm": 0.0, "linalg_norm": 0.0, "linalg_vector_norm": 0.0, "amax": -math.inf, "max": -math.inf, "amin": math.inf, "min": math.inf}  # changes no such result


def is_most(tensor: Any) -> bool:
    """Whether this is the most places at which any of several masks holds: so many columns the places of each have, one below the other."""
    return getattr(tensor, _MOST, False)


def is_any(tensor: Any) -> bool:
    return _noted(tensor, _ANY) is not None


def depends(tensor: Any) -> bool:
    """Whether a tensor that came up under the mode depends on values of the batch or the model, or on chance."""
    return isinstance(tensor, Tensor) and getattr(tensor, "_plimsoll_depends", False)


def is_learnt(value: Any) -> bool:
    """Whether a tensor depends on parameters: whole numbers are not written where a mask of such holds."""
    return getattr(value, _LEARNT, False)


def mark_learnt(tensor: Tensor) -> None:
    setattr(tensor, _LEARNT, True)


def chosen(value: Any) -> Optional[Chosen]:
    own = getattr(value, _FIELD, None)
    if own is not None:
        own.expect_unwritten()
    return own


def _version_of(tensor: Tensor) -> int:
    return 0 if is_dynamo_compiling() else tensor._version


def _note(tensor: Tensor, field: str, value: Any) -> None:
    """Until somebody writes into the tensor, or into the one that the note tells of."""
    of = value[0] if isinstance(value, tuple) and isinstance(value[0], Tensor) else value
    setattr(tensor, field, (value, _version_of(tensor), _version_of(of) if isinstance(of, Tensor) else 0))


def _noted(tensor: Any, field: str) -> Any:
    value, version, other = getattr(tensor, field, (None, None, None))
    if value is None or version != _version_of(tensor):
        return None
    of = value[0] if isinstance(value, tuple) and isinstance(value[0], Tensor) else value
    return value if not isinstance(of, Tensor) or other == _version_of(of) else None


def _key(mask: Tensor) -> Any:
    return _noted(mask, _KEY) or _Same(mask)


def marked(result: Any, of: Chosen) -> Any:
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor):
            if leaf.dim() == 0 or leaf.shape[0] != of.mask.shape[0]:
                raise RuntimeError("of what a mask chose, x[mask], something is made that has not its rows")
            setattr(leaf, _FIELD, of)
    return result


def note_comparison(func: Callable, args: tuple, kwargs: dict, result: Any) -> None:
    """Two masks that are made alike of the same tensors choose the same."""
    if kwargs:
        return
    name = getattr(func, "__name__", "")
    if isinstance(result, Tensor):
        _note_alike(name, args, result)
    is_view = name in _VIEWS and sum(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(args)) == 1 + (name == "expand_as")
    if isinstance(result, Tensor) and (is_view or (result.dtype == torch.bool and name in _COMPARED)):
        of = _noted(args[0], _KEY)
        if name == "squeeze" and args[1:] == (0,) and isinstance(of, tuple) and of[0] == "unsqueeze" and of[2:] == ((int, 0),):
            _note(result, _KEY, of[1])
            return
        _note(result, _KEY, (name.strip("_"), *(_key(a) if isinstance(a, Tensor) else (type(a), a) for a in args)))


def _note_alike(name: str, args: tuple, result: Tensor) -> None:
    """That elements of a tensor's last dimension are all the same: one that was expanded, and what is made of such."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    expanded = name in ("expand", "expand_as") and args[0].dim() == result.dim() > 0 and args[0].shape[-1] == 1 < result.shape[-1]
    if expanded or (name in _COMPARED and tensors and all(_noted(t, _ALIKE) for t in tensors)):
        _note(result, _ALIKE, True)


def _of_rows(key: Any) -> Any:
    """Of what a mask is made before it is expanded."""
    while isinstance(key, tuple) and key[0] in ("unsqueeze", "expand", "expand_as"):
        key = key[1]
    return (key[0], *(_of_rows(k) if isinstance(k, tuple) and k and isinstance(k[0], str) else k for k in key[1:])) if isinstance(key, tuple) else key


def _key_under(masks: Tensor, i: int) -> Any:
    """The key of where(masks[i])."""
    row = ("getitem", _key(masks), (int, i))
    return _of_rows(row if masks.dtype == torch.bool else _not_zero(row))


def _not_zero(key: Any) -> Any:
    return ("ne", key, (int, 0))


def note_hits(func: Callable, args: tuple, kwargs: dict, result: Any) -> None:
    """Which of several masks choose any, as one asks for experts that have rows: masks.sum((1, 2)) > 0."""
    name, of = getattr(func, "__name__", "").strip("_"), args[0] if args else None
    if not isinstance(of, Tensor) or not isinstance(result, Tensor):
        return
    if _noted(result, _NATURAL) and result is of:  # it was written into
        _note(result, _NATURAL, False)
    tensors = [a for a in args if isinstance(a, Tensor)]
    is_kept = name in _VIEWS or name in ("mul", "long", "int", "to")
    if name == "one_hot" or (is_kept and result is not of and not result.dtype.is_floating_point and all(t.dtype == torch.bool or _noted(t, _NATURAL) for t in tensors)):
        _note(result, _NATURAL, True)
    if name in ("sum", "any") and result.dim() == 1 and of.dim() > 1 and (of.dtype == torch.bool or (_noted(of, _NATURAL) and name == "sum")):
        dims = kwargs.get("dim", args[1] if len(args) > 1 else ())
        if {d % of.dim() for d in (dims if isinstance(dims, (tuple, list)) else (dims,))} == set(range(1, of.dim())):
            _note(result, _HITS if name == "any" else _SUMS, of)
    masks = _noted(of, _SUMS)
    if masks is not None and name in ("max", "amax") and len(args) == 1 and not kwargs:
        setattr(result, _MOST, True)
    if masks is not None and name in ("greater", "gt", "ne") and len(args) == 2 and type(args[1]) is int and args[1] == 0:
        _note(result, _HITS, masks)


def hits_of(x: Any) -> Optional[Tensor]:
    """Of the numbers of those masks that choose any: all of them."""
    places = _noted(x, _PLACES)
    return _noted(places, _HITS) if isinstance(places, Tensor) else None


def note_places(func: Callable, args: tuple, kwargs: dict, result: Any) -> None:
    """Numbers of the places where a mask holds choose what the mask does."""
    name, of = getattr(func, "__name__", ""), args[0] if args else None
    mask = _noted(of, _PLACES)
    if name in ("nonzero", "where", "argwhere") and len(kwargs) <= 1 and isinstance(of, Tensor) and len(args) == 1 and not of.dtype.is_floating_point:
        mask = of if of.dtype == torch.bool else of != 0
        if mask is not of:
            _note(mask, _KEY, _not_zero(_key(of)))
            mask._plimsoll_depends = depends(of)  # type: ignore[attr-defined]
        of = mask
    if mask is not None and isinstance(mask, Tensor) and depends(of):
        parts = result if isinstance(result, tuple) and mask is of else (result,) if mask is of or (mask.dim() == 1 and _is_one_column(name, args[1:])) else ()
        for part in parts:
            _note(part, _COUNTED, mask)
    if mask is None and name == "__getitem__" and (counted := _noted(of, _COUNTED)) is not None:  # a column of [places, dimensions]
        i = args[1][1] if isinstance(args[1], tuple) and len(args[1]) == 2 and args[1][0] == slice(None) else None
        if type(i) is int and of.dim() == 2 and counted.dim() > 1:
            _note(result, _PLACES, (counted, i % counted.dim()))
            _note(result, _COUNTED, counted)
    if mask is None or not isinstance(mask, Tensor):
        return
    if name == "expand" and of.dim() == result.dim() == 2 and of.shape[1] == 1 and args[1:2] == (-1,):
        _note(result, _WIDE, mask)
    elif isinstance(result, tuple) and len(result) == mask.dim():  # one for each dimension
        for i, part in enumerate(result):
            _note(part, _PLACES, mask if mask.dim() == 1 else (mask, i))
    elif isinstance(result, Tensor) and mask.dim() == 1 and (mask is of or _is_one_column(name, args[1:])):
        _note(result, _PLACES, mask)


def _is_one_column(name: str, args: tuple) -> bool:
    """Whether this makes of [places, 1] all places in a row."""
    if name in ("squeeze", "flatten"):
        return args in ((), (1,), (-1,)) if name == "squeeze" else not args
    if name == "__getitem__":
        return args == ((slice(None), 0),)
    return name in ("view", "reshape") and args in ((-1,), ((-1,),), ([-1],))


def _mask_of(index: tuple) -> tuple:
    """The mask that numbers of places stand for, where these are all of its."""
    places = [_noted(i, _PLACES) for i in index]
    if places and isinstance(places[0], Tensor) and index[0].dim() == 1:
        return (places[0], *index[1:])
    if places and isinstance(places[0], tuple):
        mask = places[0][0]
        if [p if isinstance(p, tuple) else None for p in places[: mask.dim()]] == [(mask, i) for i in range(mask.dim())]:
            return (mask, *index[mask.dim() :])
    return index


class _Same:
    """A tensor that is equal to itself alone, as long as nobody writes into it."""

    def __init__(self, tensor: Tensor):
        self.tensor, self.version = tensor, tensor._version

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Same) and self.tensor is other.tensor and self.version == other.version

    def __hash__(self) -> int:
        return id(self.tensor)


# --- choosing --------------------------------------------------------------------------------------------------------


def begun(func: Callable, args: tuple, kwargs: dict) -> Optional[Tensor]:
    """What a mask chooses, where this is such a call."""
    rest: tuple = ()
    if func is Tensor.__getitem__ and (rows := _by_coordinates(args)) is not None:
        return rows
    if func is Tensor.__getitem__:
        index = _mask_of(args[1] if isinstance(args[1], tuple) else (args[1],))
        if not (isinstance(index[0], Tensor) and index[0].dtype == torch.bool and index[0].dim() > 0 and not any(isinstance(i, (Tensor, list, bool)) for i in index[1:])):
            return None
        x, mask, rest = args[0], index[0], tuple(index[1:])
    elif getattr(func, "__name__", "") == "index_select" and isinstance(_noted(args[-1], _PLACES), Tensor) and args[1] == 0:
        x, mask = args[0], _noted(args[-1], _PLACES)
    elif getattr(func, "__name__", "") == "gather" and len(args) == 3 and args[1] == 0 and not kwargs and (found := _gathered(args[0], args[2])) is not None:
        x, mask = found
    elif getattr(func, "__name__", "") == "masked_select":
        x, mask = torch.broadcast_tensors(*args)
        _note(mask, _KEY, _key(args[1]))
    else:
        return None
    if x.dim() < mask.dim() or x.shape[: mask.dim()] != mask.shape:
        return None
    flat, own = mask.flatten(), Chosen(mask.flatten(), key_of(mask))
    own.width = mask.shape[-1] if _noted(mask, _ALIKE) else 1
    own.is_learnt = is_learnt(mask)
    rows = x.reshape(flat.shape[0], *x.shape[mask.dim() :])
    if rows.is_floating_point() or not own.is_learnt:
        rows = torch.where(_beside(flat, rows), rows, torch.zeros((), dtype=rows.dtype))
    return marked(rows[(slice(None), *rest)] if rest else rows, own)


def _gathered(x: Tensor, index: Tensor) -> Optional[tuple[Tensor, Tensor]]:
    """Of x.gather(0, places): the columns that are read, and the mask of its rows."""
    mask = _noted(index, _WIDE) if x.dim() == 2 else _noted(index, _PLACES)
    if not isinstance(mask, Tensor) or mask.dim() != 1 or index.dim() != x.dim() or x.dim() > 2:
        return None
    return x[:, : index.shape[1]] if x.dim() == 2 else x, mask


def counted(x: Any) -> Optional[Chosen]:
    """Of what a mask chose, and of its places, whose rows are as many as the mask chooses."""
    own, mask = chosen(x), _noted(x, _COUNTED)
    if own is None:
        return None if mask is None else Chosen(mask.flatten(), key_of(mask))
    return None if getattr(x, _LEADS, False) or x.dim() == 0 or x.shape[0] != own.mask.shape[0] else own


def places_of(x: Any) -> bool:
    """Whether these are places of a mask, one below the other, which are as many as it chooses."""
    return chosen(x) is None and _noted(x, _COUNTED) is not None


def counted_by(x: Any) -> Optional[Chosen]:
    """Of mask.sum(): what the mask chooses."""
    mask = _noted(x, _COUNT)
    return None if mask is None else Chosen(mask.flatten(), key_of(mask))


def _by_coordinates(args: tuple) -> Optional[Tensor]:
    """x[i] or x[None, i] or x[j, i, ...], of the numbers (i, j) = torch.where(mask): a row for each place of the mask."""
    x, index = _places_first(args[0], list(args[1]) if isinstance(args[1], tuple) else [args[1]])
    leads = len(index) > 1 and index[0] is None
    index = index[1:] if leads else index
    places = [_noted(i, _PLACES) if isinstance(i, Tensor) else None for i in index]
    count = next((n for n, p in enumerate(places) if not isinstance(p, tuple)), len(places))
    rest = tuple(index[count:])
    if count == 0 or any(isinstance(i, (Tensor, list, bool)) for i in rest):
        return None
    mask, dims = places[0][0], [p[1] for p in places[:count]]
    if any(p[0] is not mask for p in places[:count]) or len(set(dims)) < count or tuple(x.shape[:count]) != tuple(mask.shape[d] for d in dims):
        return None
    order = sorted(range(count), key=lambda n: dims[n])
    rows = x.permute(*order, *range(count, x.dim()))
    rows = rows.reshape(*[mask.shape[d] if d in dims else 1 for d in range(mask.dim())], *x.shape[count:])
    rows = rows.expand(*mask.shape, *x.shape[count:]).reshape(-1, *x.shape[count:])
    own = Chosen(mask.flatten(), key_of(mask))
    own.may_be_none = True  # such places are of one expert of many
    rows = torch.where(_beside(own.mask, rows), rows, torch.zeros((), dtype=rows.dtype))
    rows = marked(rows[(slice(None), *rest)] if rest else rows, own)
    if leads:
        rows = rows.unsqueeze(0)
        setattr(rows, _FIELD, own)
        setattr(rows, _LEADS, True)
    return rows


def _places_first(x: Tensor, index: list) -> tuple[Tensor, list]:
    """Of x[i, :, j] of places i and j: what is read by x[i, j], in which they are the first dimensions, as they are of the result."""
    at = [n for n, i in enumerate(index) if isinstance(i, Tensor)]
    is_split = len(at) > 1 and at != list(range(at[0], at[0] + len(at)))
    if not is_split or len(index) > x.dim() or not all(isinstance(i, Tensor) or (isinstance(i, slice) and i == slice(None)) for i in index):
        return x, index
    if not all(isinstance(_noted(index[n], _PLACES), tuple) for n in at):
        return x, index
    return x.permute(*at, *(d for d in range(x.dim()) if d not in at)), [index[n] for n in at]


def key_of(mask: Tensor) -> Any:
    """What a mask is made of, whether it lies in a row or not."""
    key = _key(mask)
    while isinstance(key, tuple) and key[0] in ("view", "reshape", "flatten") and key[2:] in ((), ((int, -1),)):
        key = key[1]
    return _of_rows(key)


# --- whether there are any -------------------------------------------------------------------------------------------


class Asked:
    """Masks of which Python has asked, in ``if mask.any():``, whether they hold anywhere. It is told that they do: what such a mask chooses is nothing where it does
    not, and so are sums and means of it. A mask that chooses nothing in the end is no such mask."""

    def __init__(self) -> None:
        self.awaited: Any = None  # a length by which the next call divides (counted.py)
        self._keys: list[Any] = []
        self._used: list[bool] = []
        self._chosen: list[Chosen] = []

    def sees(self, func: Callable, args: tuple, kwargs: dict, result: Any) -> None:
        name, of = getattr(func, "__name__", "").strip("_"), args[0] if args else None
        if kwargs or not isinstance(of, Tensor) or not isinstance(result, Tensor):
            return
        is_mask = of.dtype == torch.bool and of.dim() > 0
        if is_mask and len(args) == 1 and name == "any":
            _note(result, _ANY, (of, True))
        elif is_mask and len(args) == 1 and name in ("sum", "count_nonzero"):
            _note(result, _COUNT, of)
        elif (mask := _noted(of, _COUNT)) is not None and len(args) == 2 and (name, args[1]) in OF_NONE:
            _note(result, _ANY, (mask, OF_NONE[name, args[1]]))

    def answer(self, tensor: Tensor) -> Optional[bool]:
        if (of := _noted(tensor, _COUNT)) is not None:
            mask, answer = of, True
        elif (known := _noted(tensor, _ANY)) is not None:
            mask, answer = known
        else:
            return None
        return self.of_count(key_of(mask), answer)

    def of_count(self, key: Any, answer: bool) -> bool:
        self._keys.append(key)
        self._used.append(False)
        for own in [part for own in self._chosen for part in own.family.values()]:
            if own.key == key and own.is_divided and not own.may_be_none:
                raise RuntimeError("a mean (or var, max, ...) of what a mask chose is taken before Python asks whether it chose any; ask before")
            own.may_be_none |= own.key == key
        return answer

    def divides(self, own: Chosen) -> None:
        own.is_divided = True
        self._chosen.append(own)

    def has(self, key: Any) -> bool:
        return key in self._keys

    def chooses(self, rows: Tensor) -> Tensor:
        own = chosen(rows)
        if own is not None:
            own.may_be_none |= own.key in self._keys
            self.uses(own)
            self._chosen.append(own)
        return rows

    def goes_on(self, args: Any, result: Any) -> None:
        """With what was chosen before, when Python has asked for it."""
        for leaf in pytree.tree_leaves(args) if self._keys and isinstance(result, Tensor) else ():
            if isinstance(leaf, Tensor) and (own := chosen(leaf)) is not None:
                self.uses(own)

    def one_by_one(self, masks: Tensor, given: Callable[[int], Any], calls: Callable[[], int]) -> Iterator[Any]:
        """Goes over all of several masks, where Python wants those that choose any. What is not done for one, needs no use of it."""
        for i in range(masks.shape[0]):
            n = len(self._keys)
            self.of_count(_key_under(masks, i), True)
            before = calls()
            yield given(i)
            self._used[n] |= calls() == before

    def uses(self, own: Chosen) -> None:
        self._used = [used or key == own.key for key, used in zip(self._keys, self._used)]

    def expect_used(self) -> None:
        if self.awaited is not None:
            raise RuntimeError("len() of what a mask chooses, which depends on values; a tensor may be divided by it")
        if not all(self._used):
            raise RuntimeError("Python asks whether a mask holds anywhere (mask.any()), which depends on values, and does not choose by it; compute both ways, and choose by torch.where")


def _beside(mask: Tensor, rows: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (rows.dim() - 1))


def _put_back(args: tuple, own: Chosen) -> None:
    """y[mask] = of what the same mask chose, or of what another one did, one row after the other."""
    y, index, rows = args
    parts = _mask_of(index if isinstance(index, tuple) else (index,))
    if (column := _column_of_each(y, parts, own)) is not None:
        _put_into_columns(y, parts[0], column, rows, own)
        return
    if (part := _columns_of(y, parts)) is not None:
        _put_back((part, parts[0], rows), own)
        y._plimsoll_depends = True  # type: ignore[attr-defined]
        if y.is_floating_point():
            mark_learnt(y)
        return
    mask = parts[0] if len(parts) == 1 else index
    if isinstance(_noted(mask, _PLACES), tuple):
        y.copy_(_put_along(y, *_noted(mask, _PLACES), rows, own))
        return
    found = _places_written(y, index)
    if found is None:
        is_sized = not any(isinstance(n, torch.SymInt) for n in y.shape)
        raise RuntimeError("writing what one mask chose where another one holds" if is_sized else "what a mask chose is written into a tensor whose size depends on values")
    mask, order = found
    turned = y.permute(order)
    rest = tuple(turned.shape[mask.dim() :])
    if key_of(mask) == own.key and own.mask.shape[0] == mask.numel():
        new = torch.where(_over(mask, turned), rows.reshape(turned.shape).to(y.dtype), turned)
    elif tuple(rows.shape) != (own.mask.shape[0], *rest) or getattr(rows, _LEADS, False) or not y.is_floating_point() or own.is_learnt or is_learnt(mask) or mask.numel() == 0:
        raise RuntimeError("writing what one mask chose where another one holds")
    else:
        new = _put_in_order(turned, mask, rows.to(y.dtype), own)
    y.copy_(new.permute([order.index(d) for d in range(y.dim())]))
    y._plimsoll_depends = True  # type: ignore[attr-defined]
    if y.is_floating_point():
        mark_learnt(y)


def _column_of_each(x: Tensor, index: tuple, own: Chosen) -> Optional[Tensor]:
    """Of x[mask, labels[mask]]: the labels, one for each row that the mask chooses."""
    while len(index) > 2 and isinstance(index[-1], slice) and index[-1] == slice(None):
        index = index[:-1]
    if len(index) != 2 or not all(isinstance(i, Tensor) for i in index):
        return None
    mask, labels = index
    is_whole = labels.dtype in (torch.int64, torch.int32) and labels.dim() == 1 and chosen(labels) is not None and not getattr(labels, _LEADS, False)
    if not is_whole or mask.dtype != torch.bool or mask.dim() == 0 or chosen(mask) is not None or any(isinstance(n, torch.SymInt) for t in (x, mask) for n in t.shape):
        return None
    is_alike = key_of(mask) == own.key and own.mask.shape[0] == mask.numel()
    return labels if is_alike and x.dim() > mask.dim() and x.shape[: mask.dim()] == mask.shape else None


def _columns_of(y: Tensor, index: tuple) -> Optional[Tensor]:
    """Of y[mask, 2] or y[mask, :2]: those columns of all rows, a view of y."""
    mask, rest = index[0], index[1:]
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() == 0 or not rest or chosen(mask) is not None:
        return None
    if not all(type(i) is int or isinstance(i, slice) for i in rest) or all(i == slice(None) for i in rest) or y.shape[: mask.dim()] != mask.shape:
        return None
    return y[(*[slice(None)] * mask.dim(), *rest)]


def _put_into_columns(y: Tensor, mask: Tensor, labels: Tensor, value: Any, own: Chosen) -> None:
    """y[mask, labels[mask]] = value"""
    count, rest = y.shape[mask.dim()], y.shape[mask.dim() + 1 :]
    is_there = own.mask[:, None] & F.one_hot(_places_of(labels, count, own), count).bool()
    rows = y.reshape(mask.numel(), count, *rest)
    if chosen(value) is not None:
        value = value.reshape(value.shape[0], *[1] * (rows.dim() - 1 - value.dim()), *value.shape[1:])[:, None].to(y.dtype)
    else:
        value = value.to(y.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=y.dtype)
    new = torch.where(is_there.reshape(*is_there.shape, *[1] * len(rest)), value, rows)
    y.copy_(new.reshape(y.shape))
    y._plimsoll_depends = True  # type: ignore[attr-defined]
    if y.is_floating_point() and (is_learnt(value) or own.is_learnt or is_learnt(labels)):
        mark_learnt(y)


def _places_of(labels: Tensor, count: int, own: Chosen) -> Tensor:
    """Those of rows that do not count are 0."""
    labels = labels.long()
    place = torch.where(labels < 0, labels + count, labels)
    return torch.where(own.mask, place, torch.zeros((), dtype=place.dtype))


def _of_columns(x: Tensor, mask: Tensor, labels: Tensor, own: Chosen) -> Tensor:
    """x[mask, labels[mask]]"""
    rows = x.reshape(mask.numel(), *x.shape[mask.dim() :])
    place = _places_of(labels, rows.shape[1], own).reshape(-1, 1, *[1] * (rows.dim() - 2)).expand(-1, 1, *rows.shape[2:])
    found = rows.gather(1, place).squeeze(1)
    return torch.where(_beside(own.mask, found), found, torch.zeros((), dtype=found.dtype))


def _over(mask: Tensor, y: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *[1] * (y.dim() - mask.dim()))


def _put_in_order(y: Tensor, mask: Tensor, rows: Tensor, own: Chosen) -> Tensor:
    """The first row that was chosen to the first place where the mask holds, and so on; a single one to all. Where there are not as many, which PyTorch has an error for, all is NaN."""
    given, wanted, flat = own.mask.sum(), mask.sum(), mask.flatten()
    one_by_one = torch.argsort((~own.mask).int(), stable=True)
    number = (flat.long().cumsum(0) - 1).clamp(min=0, max=own.mask.shape[0] - 1)
    place = one_by_one.index_select(0, torch.where(given == 1, torch.zeros_like(number), number))
    new = torch.where(_over(mask, y), rows.index_select(0, place).reshape(y.shape), y)
    return new + torch.zeros((), dtype=y.dtype) / ((given == wanted) | (given == 1))


def _places_written(y: Tensor, index: Any) -> Optional[tuple[Tensor, list[int]]]:
    """Of y[mask] or y[i, j] of the numbers (i, j) = torch.where(mask), in any order: the mask, and the dimensions of y with its own before."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(n, torch.SymInt) for t in (y, *parts) if isinstance(t, Tensor) and _noted(t, _PLACES) is None for n in t.shape):
        return None
    while len(parts) > 1 and isinstance(parts[-1], slice) and parts[-1] == slice(None):
        parts = parts[:-1]
    if len(parts) == 1 and isinstance(parts[0], Tensor) and parts[0].dtype == torch.bool and 0 < parts[0].dim() <= y.dim():
        mask, dims = parts[0], list(range(parts[0].dim()))
    else:
        places = [_noted(i, _PLACES) if isinstance(i, Tensor) else None for i in parts]
        if len(places) == 1 and isinstance(places[0], Tensor) and parts[0].dim() == 1:
            mask, dims = places[0], [0]
        elif places and all(isinstance(p, tuple) and p[0] is places[0][0] for p in places) and sorted(p[1] for p in places) == list(range(places[0][0].dim())):  # type: ignore[index]
            mask, dims = places[0][0], [p[1] for p in places]  # type: ignore[index]
        else:
            return None
    if any(isinstance(n, torch.SymInt) for n in mask.shape) or len(dims) > y.dim() or any(y.shape[n] != mask.shape[d] for n, d in enumerate(dims)):
        return None
    return mask, [*(dims.index(d) for d in range(mask.dim())), *range(mask.dim(), y.dim())]


def put_at_places(args: tuple) -> bool:
    """y[i, j] = what is the same at all of the numbers (i, j) = torch.where(mask); False where this is something else."""
    y, index, value = args
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(i, Tensor) and _noted(i, _PLACES) is not None for i in parts) or (found := _places_written(y, index)) is None:
        return False
    mask, order = found
    if not depends(mask) or (isinstance(value, Tensor) and value.numel() != 1 and value.dim() > y.dim() - mask.dim()):
        return False
    turned = y.permute(order)
    value = value.to(y.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=y.dtype)
    new = torch.where(_over(mask, turned), value.reshape(()) if value.numel() == 1 else value, turned)
    y.copy_(new.permute([order.index(d) for d in range(y.dim())]))
    y._plimsoll_depends = True  # type: ignore[attr-defined]
    return True


def _put_along(y: Tensor, mask: Tensor, dim: int, rows: Tensor, own: Chosen) -> Tensor:
    """y[i] = rows, of the numbers i along one dimension of the places of a mask. Of several for one i, the last stays, and all have its gradient, as PyTorch has it."""
    if key_of(mask) != own.key or y.shape[0] != mask.shape[dim] or rows.dim() != y.dim():
        raise RuntimeError("writing what one mask chose where another one holds")
    holds = mask.movedim(dim, 0).flatten(1)
    each = rows.reshape(*mask.shape, *rows.shape[1:]).movedim(dim, 0).flatten(1, mask.dim() - 1)
    if holds.shape[1] > _MOST_WRITES:
        raise RuntimeError(f"writing what a mask of {tuple(mask.shape)} chose at numbers that may come again and again; take index_add_")
    each = torch.where(holds.reshape(*holds.shape, *[1] * (each.dim() - 2)), each, torch.zeros((), dtype=each.dtype)).to(y.dtype)
    total, last = each.sum(1), each[:, 0].detach()
    for n in range(1, holds.shape[1]):
        last = torch.where(_beside(holds[:, n], last), each[:, n].detach(), last)
    written = last + (total - total.detach()) if holds.shape[1] > 1 else total
    return torch.where(_beside(holds.any(1), y), written, y)


def _scattered_back(x: Tensor, mask: Tensor, rows: Tensor, own: Chosen) -> Tensor:
    key = _noted(mask, _KEY)
    while isinstance(key, tuple) and key[0] in ("unsqueeze", "expand", "expand_as"):
        key = key[1]
    if key != own.key:
        raise RuntimeError("writing what one mask chose where another one holds")
    return torch.where(mask, rows.reshape(x.shape).to(x.dtype), x)


def _added_back(name: str, x: Tensor, dim: int, index: Tensor, rows: Tensor, own: Chosen) -> Tensor:
    """To each row what was made of it, as often as it was chosen."""
    place = _noted(index, _PLACES)
    mask, i = place if isinstance(place, tuple) else (place, 0)
    if dim != 0 or mask is None or key_of(mask) != own.key or x.shape[0] != mask.shape[i]:
        raise RuntimeError("adding what a mask chose elsewhere than where it chose")
    each = _counting(rows, own).reshape(*mask.shape, *rows.shape[1:])
    others = [d for d in range(mask.dim()) if d != i]
    total = x + (each.sum(others) if others else each).to(x.dtype)
    return x.copy_(total) if name.endswith("_") else total


def _is_led_away(args: tuple, kwargs: dict, name: str) -> bool:
    """[1, rows, n] as [rows, n]."""
    if name in ("squeeze", "select", "__getitem__"):
        is_said = all(type(i) is int and i == 0 for i in args[1:]) and len(args) == (3 if name == "select" else 2)
        return not kwargs and (is_said or (name == "squeeze" and len(args) == 1 and 1 not in args[0].shape[1:]))
    return name in ("view", "reshape") and _sizes_of(args, kwargs) == (-1, *args[0].shape[2:])


# --- going on --------------------------------------------------------------------------------------------------------


def treated(func: Callable, args: tuple, kwargs: dict) -> Optional[tuple]:
    """The result of a function of what was chosen, as (result,); None where nothing was."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    several = [found for found in map(chosen, tensors) if found is not None]
    if not several:
        return None
    own, name = several[0], getattr(func, "__name__", "")
    kwargs = {_BY_NUMPY.get(k, k): v for k, v in kwargs.items()}
    if not args:  # all by name
        first = "input" if "input" in kwargs else next(iter(kwargs))
        args, kwargs = (kwargs[first],), {k: v for k, v in kwargs.items() if k != first}
    if name in ("__getitem__", "__setitem__") and (done := _among_chosen(name, args, own)) is not None:
        return done
    if any(other.key != own.key or other.mask.shape != own.mask.shape for other in several):
        raise RuntimeError("what two masks choose meets here; a plan cannot know that they choose alike. Choose by one mask, or compare all and multiply by the mask")
    if name in _OF_FORM or (name == "__get__" and getattr(func, "__self__", None) in _FIELDS):
        return (func(*args, **kwargs),)
    if name == "size" and len(args) + len(kwargs) > 1 and _dim_of(args, kwargs, args[0]) != 0:
        return (func(*args, **kwargs),)
    if name == "__setitem__":
        return (_put_back(args, own),)
    if name == "masked_scatter" and len(several) == 1 and chosen(args[2]) is not None:
        return (_scattered_back(*args, own),)
    if name in ("index_add_", "index_add") and len(several) == 1 and chosen(args[3]) is not None:
        return (_added_back(name, *args[:4], own),)
    if getattr(args[0], _LEADS, False) and _is_led_away(args, kwargs, name):
        return (marked(args[0].reshape(args[0].shape[1:]), own),)
    if name in ("to", "type_as") and chosen(args[0]) is None:
        return (func(*args, **kwargs),)
    is_written = name.endswith("_") and not name.endswith("__") and chosen(args[0]) is not None
    if is_written:
        name = name[:-1]  # into a tensor of its own, which what was chosen is
    result = None if any(getattr(t, _LEADS, False) for t in tensors) else _of_each_row(func, name, args, kwargs, own, tensors, is_written)
    if result is None:
        raise RuntimeError(
            f"{name.strip('_') or func} of what a mask chose, x[mask], whose number of rows depends on values; followed are what treats each row for itself (arithmetic, layers, and along"
            " a dimension but the first: softmax, max, sort, cat, ...), and of all that was chosen sum, mean, norm, var, std, amax, amin and losses. Else keep all rows, and leave out by"
            " torch.where or multiply by the mask what is not to count"
        )
    return (result,)


def _among_chosen(name: str, args: tuple, own: Chosen) -> Optional[tuple]:
    """y[inner], and y[inner] = of it, of what a mask chose and a mask of its rows: those that both choose."""
    y, inner = args[0], args[1][0] if isinstance(args[1], tuple) and len(args[1]) == 1 else args[1]
    if not isinstance(inner, Tensor) or inner.dtype != torch.bool or inner.dim() != 1 or any(getattr(x, _LEADS, False) for x in (y, inner)):
        return None
    if any(x is None or x.key != own.key or x.mask.shape != own.mask.shape for x in map(chosen, (y, inner))):
        return None
    both, value = Chosen(own.mask & inner, ("within", own.key, _key(inner))), args[2] if name == "__setitem__" else None
    both.is_learnt = own.is_learnt or is_learnt(inner)
    if name == "__getitem__":
        rows = y if not y.is_floating_point() and both.is_learnt else torch.where(_beside(both.mask, y), y, torch.zeros((), dtype=y.dtype))
        return (marked(rows.clone() if rows is y else rows, both),)
    if (of := chosen(value)) is not None and (of.key != both.key or of.mask.shape != both.mask.shape):
        raise RuntimeError("writing what one mask chose where another one holds")
    value = value.to(y.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=y.dtype)
    y.copy_(torch.where(_beside(both.mask, y), value, y))
    if y.is_floating_point() and (is_learnt(value) or both.is_learnt):
        mark_learnt(y)
    return (None,)


def _of_each_row(func: Callable, name: str, args: tuple, kwargs: dict, own: Chosen, tensors: list[Tensor], is_written: bool) -> Any:
    """The result of what treats each row for itself, or reduces those that count; None of anything else."""
    x = args[0]
    if name == "__getitem__" and _is_of_columns(args):
        return marked(func(*args, **kwargs), own)
    if name == "__getitem__" and isinstance(args[1], tuple) and chosen(x) is None and (labels := _column_of_each(x, _mask_of(args[1]), own)) is not None:
        return marked(_of_columns(x, _mask_of(args[1])[0], labels, own), own)
    if name in _OF_FIRST and chosen(x) is not None and sum(chosen(t) is not None for t in tensors) == 1 and (x.dim() > 1 or name == "embedding") and args[1].dim() <= 2:
        return marked(func(*args, **kwargs), own)
    if name in _JOINING:
        return marked(func(*args, **kwargs), own) if _joins_columns(name, args, kwargs) else None
    if name in ("max", "min") and (other := kwargs.get("other", args[1] if len(args) > 1 else None)) is not None and isinstance(other, Tensor):
        name = name + "imum"
    given = _away_from_0(args, kwargs, own) if name in _SINGULAR and not _is_regular(name, args) else (args, kwargs)
    if name in _BY_ROWS and _stands_beside(tensors) and not (name == "where" and len(args) == 1):
        if is_written and given[0] is not args:
            return marked(x.copy_(getattr(Tensor, name)(*given[0], **given[1])), own)
        return marked(func(*given[0], **given[1]), own)
    if name == "squeeze" and len(args) == 1 and not kwargs and x.dim() > 1:
        return marked(x.squeeze(tuple(d for d in range(1, x.dim()) if x.shape[d] == 1)), own)
    if name in _ALONG and _is_along(name, args, kwargs, tensors):
        return marked(func(*given[0], **given[1]), own)
    if name in ("sum", "mean", "nansum", "var", "std", *_NEUTRAL):
        return _reduced(func, name, args, kwargs, own)
    if name in ("cross_entropy", "nll_loss"):
        return _cross_entropy(func, args, kwargs, own)
    if name in _LOSSES and _stands_beside(tensors):
        return _loss(func, args, kwargs, own)
    if name in ("view", "reshape", "flatten", "ravel") and (rows := _rows_of_view(name, args, kwargs, own)) is not None:
        return marked(func(*args, **kwargs), rows)
    return None


_BY_NUMPY = {"axis": "dim", "keepdims": "keepdim"}  # names that PyTorch takes as well
_FIELDS = (Tensor.dtype, Tensor.device, Tensor.requires_grad, Tensor.ndim, Tensor.layout, Tensor.is_sparse)  # type: ignore[attr-defined]


def _dim_of(args: tuple, kwargs: dict, x: Tensor, name: str = "") -> Optional[int]:
    """The dimension along which something is done, 0 if that is among several; None where it is of all."""
    place = _DIM_AT.get(name, 1)
    dim = args[place] if len(args) > place else kwargs.get("dim", _DIM_UNSAID.get(name))
    if dim is None or isinstance(dim, bool):  # var(True) is of all, with unbiased=True
        return None
    if isinstance(dim, (tuple, list)):
        dims = [operator.index(d) % max(x.dim(), 1) for d in dim]
        return 0 if 0 in dims else (dims[0] if dims else None)
    return operator.index(dim) % max(x.dim() + (name == "unsqueeze"), 1)


def _is_along(name: str, args: tuple, kwargs: dict, tensors: list[Tensor]) -> bool:
    """Whether something is done along a dimension of each row."""
    if name == "gather" and any(chosen(t) is None for t in tensors):
        return False
    if name == "cosine_similarity" and not _stands_beside(tensors):
        return False
    return chosen(args[0]) is not None and _dim_of(args, kwargs, args[0], name) not in (None, 0)


def _joins_columns(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether tensors of the same rows are joined row by row."""
    parts, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    ranks = {t.dim() if chosen(t) is not None else 0 for t in parts}
    return 0 not in ranks and len(ranks) == 1 and operator.index(dim) % (ranks.pop() + _JOINING[name]) != 0


def _away_from_0(args: tuple, kwargs: dict, own: Chosen) -> tuple[tuple, dict]:
    """With 1 in rows that do not count: what such have of an infinite derivative is 0 * inf, and would come to the weights of a layer before."""
    return pytree.tree_map_only(Tensor, lambda t: _with_others_as(t, own, 1) if chosen(t) is not None and t.is_floating_point() else t, (args, kwargs))


def _is_regular(name: str, args: tuple) -> bool:
    """Whether a function that is singular at 0 is not, of these."""
    if name in _DIVISIONS:
        return len(args) > 1 and chosen(args[1]) is None
    return name in ("pow", "__pow__") and len(args) > 1 and isinstance(args[1], (int, float)) and args[1] >= 1


def _stands_beside(tensors: list[Tensor]) -> bool:
    """Whether what does not come from the mask is the same for every row."""
    rank = max(t.dim() for t in tensors if chosen(t) is not None)
    aligned = all(t.dim() == rank for t in tensors if chosen(t) is not None)
    return aligned and all(t.dim() < rank or t.shape[0] == 1 for t in tensors if chosen(t) is None)


def _is_of_columns(args: tuple) -> bool:
    """x[:, ...] of all rows."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    plain = chosen(args[0]) is not None and not any(isinstance(i, (Tensor, bool)) for i in index) and sum(isinstance(i, list) for i in index) <= 1
    return plain and (index[0] == slice(None) or (index[0] is Ellipsis and sum(i is not None for i in index[1:]) < args[0].dim()))


def _sizes_of(args: tuple, kwargs: dict) -> tuple:
    """Those that are given to view or reshape."""
    sizes = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    return tuple(sizes) or tuple(kwargs.get("shape", kwargs.get("size", ())))


def _rows_of_view(name: str, args: tuple, kwargs: dict, own: Chosen) -> Optional[Chosen]:
    """What counts of the rows of a view: [-1, ...] keeps rows, or makes several of each, or one of several that count alike."""
    x = args[0]
    if name in ("flatten", "ravel"):
        start = args[1] if len(args) > 1 else kwargs.get("start_dim", 0)
        end = args[2] if len(args) > 2 else kwargs.get("end_dim", -1)
        if start % x.dim() > 0:
            return own
        rest = tuple(x.shape[end % x.dim() + 1 :])
    else:
        first, *rest = _sizes_of(args, kwargs) or (0,)  # type: ignore[assignment]
        if first != -1 or any(type(n) is not int or n < 1 for n in rest):
            return None
    before, after = math.prod(x.shape[1:]), math.prod(rest)
    if before % after == 0:
        return own.in_rows(own.mask.shape[0] * (before // after))
    together = after // before if after % before == 0 else 0
    return own.in_rows(own.mask.shape[0] // together) if together and own.width % together == 0 else None


def _counting(x: Tensor, own: Chosen) -> Tensor:
    return _with_others_as(x, own, 0)


def _with_others_as(x: Tensor, own: Chosen, value: float) -> Tensor:
    """The rows that count; those of others are a value, and take no gradient, be it infinite."""
    return torch.where(_beside(own.mask, x), x, torch.full((), value, dtype=x.dtype))


def _number(x: Tensor, own: Chosen) -> Tensor:
    return _rows(own).to(x.dtype if x.is_floating_point() else torch.float32) * (x.numel() // max(x.shape[0], 1))


def _rows(own: Chosen) -> Tensor:
    count = own.mask.sum()
    own.is_divided |= not own.may_be_none
    return count.clamp(min=1) if own.may_be_none else count


def _unless_none(result: Tensor, own: Chosen) -> Tensor:
    """The largest of nothing is not a number, as the mean of nothing is, and 0 where Python has asked whether there is any."""
    if own.may_be_none:
        return torch.where(own.mask.any(), result, torch.zeros((), dtype=result.dtype))
    own.is_divided = True
    return result + torch.zeros((), dtype=result.dtype) / own.mask.any()


def _reduced(func: Callable, name: str, args: tuple, kwargs: dict, own: Chosen) -> Optional[Tensor]:
    """Along a row, or over all rows that count."""
    x = args[0]
    if name in ("var", "std"):
        return _spread(name, *args, own=own, **kwargs)
    if (dim := _dim_of(args, kwargs, x, name)) not in (None, 0):
        return marked(func(*args, **kwargs), own)
    if name == "mean":
        total = torch.sum(_counting(x, own), *args[1:], **kwargs) if len(args) > 1 or kwargs else _counting(x, own).sum()
        return total / (_rows(own).to(total.dtype if total.is_floating_point() else torch.float32) * (x.numel() // x.shape[0] // max(total.numel(), 1)))
    if name in ("sum", "nansum"):
        return func(_counting(x, own), *args[1:], **kwargs)
    if not x.is_floating_point() or (name in ("max", "min") and dim is not None):
        return None  # whose places are none among all rows
    if name in ("amax", "amin", "max", "min"):  # of nothing, which PyTorch has an error for
        return _unless_none(func(_with_others_as(x, own, _NEUTRAL[name]), *args[1:], **kwargs), own)
    order = args[1] if len(args) > 1 else kwargs.get("p", kwargs.get("ord", 2))
    is_plain = order in (1, 2) or (order in (None, "fro") and name != "linalg_vector_norm")
    return func(_counting(x, own), *args[1:], **kwargs) if is_plain else None


def _spread(name: str, x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, own: Chosen, correction: Optional[float] = 1) -> Tensor:
    """The variance, or its root, of all that count. At 0 the root has the gradient 0, as PyTorch's has."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = tuple(range(x.dim())) if dim is None else dim
    total = _counting(x, own).sum(dims, keepdim=True)
    number = own.mask.sum().to(x.dtype) * (x.numel() // x.shape[0] // total.numel())
    less = 1 if correction is None else correction
    freedom = (number - (less if unbiased else 0)).clamp(min=0)
    if own.may_be_none:
        freedom = torch.where(own.mask.any(), freedom, torch.ones((), dtype=x.dtype))
        number = number.clamp(min=1)
    own.is_divided |= not own.may_be_none
    result = _counting(x - total / number, own).square().sum(dims, keepdim=keepdim) / freedom
    if name == "var":
        return result
    zero = result == 0
    root = torch.where(zero, torch.ones((), dtype=x.dtype), result).sqrt()
    return torch.where(zero, torch.zeros((), dtype=x.dtype), root)


def _cross_entropy(func: Callable, args: tuple, kwargs: dict, own: Chosen) -> Tensor:
    x, target = (kwargs[k] if k in kwargs else args[i] for i, k in enumerate(("input", "target")))
    rest = {k: v for k, v in kwargs.items() if k not in ("input", "target")}
    rest = _with_reduction(rest | dict(zip(("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"), args[2:])))
    if chosen(x) is None or chosen(target) is None:
        raise RuntimeError("a loss between what a mask chose and all rows")
    if target.is_floating_point():
        return _over_rows(func(x, target, **{**rest, "reduction": "none"}), rest.get("reduction", "mean"), own)
    ignored = rest.get("ignore_index", -100)
    if own.is_learnt:
        return _cross_entropy_of_each(func, x, target, rest, ignored, own)
    kept = torch.where(_beside(own.mask, target), target, torch.full((), ignored, dtype=target.dtype))
    if own.may_be_none and rest.get("reduction", "mean") == "mean":
        if rest.get("weight") is not None:
            raise RuntimeError("a weighted mean of a loss that may be of nothing (if mask.any()); take reduction='sum'")
        return func(x, kept, **{**rest, "reduction": "sum"}) / (kept != ignored).sum().clamp(min=1)
    result = func(x, kept, **rest)
    own.is_divided |= rest.get("reduction", "mean") == "mean"
    return marked(result, own) if rest.get("reduction", "mean") == "none" else result


def _cross_entropy_of_each(func: Callable, x: Tensor, target: Tensor, rest: dict, ignored: int, own: Chosen) -> Tensor:
    reduction = rest.get("reduction", "mean")
    if reduction == "mean" and rest.get("weight") is not None:
        raise RuntimeError("a weighted mean of a loss of what a mask chose that depends on parameters; take reduction='sum'")
    each = marked(func(x, target, **{**rest, "reduction": "none"}), own)
    if reduction == "none":
        return each
    total, count = _counting(each, own).sum(), (own.mask & (target != ignored)).sum()
    own.is_divided |= not own.may_be_none
    return total / (count.clamp(min=1) if own.may_be_none else count) if reduction == "mean" else total


def _loss(func: Callable, args: tuple, kwargs: dict, own: Chosen) -> Tensor:
    if len(args) > 2 and not isinstance(args[2], Tensor):
        raise RuntimeError(f"{func.__name__} of what a mask chose; give what follows input and target by name")
    kwargs = _with_reduction(kwargs)
    return _over_rows(func(*args, **{**kwargs, "reduction": "none"}), kwargs.get("reduction", "mean"), own)


def _with_reduction(given: dict) -> dict:
    """What size_average and reduce stand for, which PyTorch takes instead as well."""
    before = given.get("size_average"), given.get("reduce")
    rest = {k: v for k, v in given.items() if k not in ("size_average", "reduce")}
    return rest if before == (None, None) else rest | {"reduction": F._Reduction.legacy_get_string(*before, emit_warning=False)}


def _over_rows(each: Tensor, reduction: str, own: Chosen) -> Tensor:
    if each.dim() == 0 or each.shape[0] != own.mask.shape[0]:
        raise RuntimeError("a loss of what a mask chose that is not one of each row")
    if reduction == "none":
        return marked(each, own)
    total = _counting(each, own).sum()
    return total / _number(each, own) if reduction == "mean" else total

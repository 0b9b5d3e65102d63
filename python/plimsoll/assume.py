"""What is taken to hold of values while a model is exported, where Python asks for them.

An exported graph has no branches, and values are not known while it is made. Some branches are checks whose answer is
known all the same: nothing is infinite or not a number; a layer that is dropped with probability 0 is not dropped; what a
model asserts holds; and the parameters of PyTorch's distributions are valid.

On the way it is noted which tensors depend on values at all, and not on shapes alone: ``depends``.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import math
import sys
from functools import lru_cache
from types import FrameType
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from . import gradients
from .chosen import Asked, begun, counted_by, depends, hits_of, is_any, is_learnt, mark_learnt, note_comparison, note_hits, note_places, put_at_places, treated
from .counted import Count, expect_as_many, has_count, number_of, with_count
from .ctc import ctc_loss
from .fixed import by_places, computed, is_known, known, untraced
from .functions import has_gradient, in_backward, note_gradients
from .interrupts import end_where_interrupted
from .made import OF_SHAPES, Made, Sizes, expression, forget_all, is_itself, note, note_written, values_of, with_known_sizes

_NEVER = frozenset({torch.isinf, torch.isnan, Tensor.isinf, Tensor.isnan})
_ALWAYS = frozenset({torch.isfinite, Tensor.isfinite})
_KEEPING = frozenset({torch.any, Tensor.any, torch.all, Tensor.all, torch.logical_or, Tensor.logical_or})
_BELOW = frozenset({torch.lt, Tensor.lt, torch.le, Tensor.le})
_OF_VALUES = frozenset("nonzero argwhere where item tolist __bool__ __int__ __float__ __index__".split())
_UNIQUE = frozenset("unique unique_consecutive _return_inverse_and_counts _return_counts _return_output _return_inverse".split()) | frozenset(
    "_consecutive_return_inverse_and_counts _consecutive_return_counts _consecutive_return_output _consecutive_return_inverse".split()
)  # as PyTorch divides them by what they return
_DRAWS = tuple("rand bernoulli normal multinomial poisson exponential uniform dropout cauchy geometric log_normal gumbel rrelu alpha_dropout feature_".split())
_IN_PLACE = frozenset("__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__".split())


class Assumptions(TorchFunctionMode):
    """A mode in which ``bool(tensor)`` is answered where the answer is known so. ``given``: tensors of a batch and a model."""

    def __init__(self, given: Iterable[Tensor] = (), has_fixed: bool = False, buffers: Mapping[str, Tensor] = {}, sizes: Optional[Sizes] = None):
        super().__init__()
        self._sizes = sizes
        self._buffers = {id(buffer): name for name, buffer in buffers.items()}
        self.written: set[str] = set()  # buffers that are changed through .data
        self._has_fixed = has_fixed  # some tensors are known by their values (fixed.py)
        self.asked = Asked()
        self._calls = 0
        self._given = {id(tensor): tensor for tensor in given}
        self._learnt = {number for number, tensor in self._given.items() if tensor.requires_grad}
        self._frozen: dict[int, Tensor] = {}  # parameters that are to have no gradient for now, and what is read instead

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        if (wanted := _wanted_gradient(func, args, kwargs or {})) is not None and self._is_parameter(args[0]):
            return self._freeze(args[0], not wanted)
        if getattr(func, "__self__", None) is Tensor.requires_grad and func.__name__ == "__get__" and (answer := has_gradient(args[0])) is not None:  # type: ignore[comparison-overlap]
            return answer
        if self._frozen:
            args, kwargs = pytree.tree_map_only(Tensor, lambda t: self._frozen.get(id(t), t), (args, kwargs or {}))
        if self._has_fixed:
            result = computed(func, args, kwargs or {})
            if result is not None:
                return result[0]
            args = by_places(func, args)
            if func is Tensor.__getitem__ and (picked := self._by_known_number(*args)) is not None:
                return picked
        if func is torch._C._set_grad_enabled:
            note_gradients(args[0])
        if func is torch.autograd.grad:
            return gradients.as_operator(*args, **(kwargs or {}))
        if func in _PLAIN:  # which compare weights with themselves
            return _PLAIN[func](*args, **(kwargs or {}))
        if func is F.ctc_loss:  # which asks for its lengths
            return ctc_loss(*args, **(kwargs or {}))
        if func is torch.tensor and args and isinstance(args[0], Tensor):  # as of what numpy would have given
            return args[0].detach().clone().to((kwargs or {}).get("dtype", args[0].dtype))
        is_data = getattr(func, "__self__", None) is Tensor.data and func.__name__ == "__get__"  # type: ignore[comparison-overlap]
        if in_backward() and (is_data or func in (Tensor.detach, torch.detach)):
            return args[0].view_as(args[0])
        if is_data:
            of = self._buffers.get(id(args[0]), True)
            data = args[0].detach() if of is True else args[0].view_as(args[0])
            data._plimsoll_data = of
            return data
        if getattr(func, "__self__", None) is Tensor.data and func.__name__ == "__set__":  # type: ignore[comparison-overlap]
            _expect_buffer(self._buffers.get(id(args[0]), True))
            self.written.add(self._buffers[id(args[0])])
            if args[0].shape != args[1].shape or args[0].dtype != args[1].dtype:
                raise RuntimeError(".data of a buffer becomes a tensor of another shape or dtype; write it by copy_ of one like it")
            args[0].copy_(args[1].detach())
            return None
        end_where_interrupted()
        if self._writes_data(func, args):
            args = (args[0], *pytree.tree_map_only(Tensor, lambda t: t.detach(), args[1:]))
        self._calls += 1
        args, kwargs = with_known_sizes(func, args, kwargs or {}, self._sizes)
        if getattr(func, "__name__", "") in ("unbind", "tolist") and (masks := hits_of(args[0])) is not None:
            return self._hits(func.__name__, args[0], masks)
        if has_count((*args, *(kwargs or {}).values())):
            result, args = with_count(func, args, kwargs or {})
            if result is not None:
                return result
        number = number_of(func, args, kwargs or {}, self.asked)
        if number is not None:
            return number[0]
        if func is Tensor.__getitem__:
            args = _by_places(*args)
        counted = treated(func, args, kwargs or {})
        if counted is not None:
            self.asked.goes_on((args, kwargs), counted[0])
            if isinstance(counted[0], Tensor) and counted[0].dtype == torch.bool:  # which may choose among what was chosen
                note_comparison(func, args, kwargs or {}, counted[0])
            return counted[0]
        if getattr(func, "__name__", "") == "masked_select" and len(args) == 2 and values_of(args[1]) is not None:
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            func, args = Tensor.__getitem__, tuple(self.__torch_function__(Tensor.expand, (), (x, shape)) for x in args)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            done, args = self._by_made_masks(func, args)
            if done is not None:
                return done[0]
            if func is Tensor.__setitem__ and (put_at_places(args) or _put_at_number(*args)):
                return None
        rows = begun(func, args, kwargs or {})
        if rows is not None:
            return self.asked.chooses(rows)
        if (answered := self._asked_of_made(func, args, kwargs or {})) is not None:
            return answered[0]
        if func is Tensor.__bool__ or (func is Tensor.item and args[0].dtype == torch.bool):
            if self._sizes is not None and is_any(args[0]) and (number := self._sizes.of(args[0])) is not None:
                return bool(number)
            answer = self._answer(args[0])
            if answer is not None:
                return answer
        if func is Tensor.item and (of := counted_by(args[0])) is not None:
            return Count(of, 1, self.asked)
        if func is F.gaussian_nll_loss:  # whose check of the variance cannot be seen from here
            return _gaussian_nll_loss(*args, **(kwargs or {}))
        if func is Tensor.__format__ and args[0].dim() == 0 and args[1:] != ("",):  # a text for a log: values are not known
            return format(math.nan, *args[1:])
        if func in (Tensor.__int__, Tensor.__index__) and isinstance(buffer := self._buffers.get(id(args[0])), str):
            raise RuntimeError(
                f"Python asks for the number in the buffer '{buffer}', as a place or a size, and a step runs no Python; keep it a tensor, as"
                " self.queue[:, (self.pointer + torch.arange(n)) % size] = keys.T and self.pointer.copy_((self.pointer + n) % size)"
            )
        expect_as_many(func, args)
        made = expression(func, args, kwargs or {})
        result = _float_of(args[0]) if func is Tensor.__float__ else func(*args, **(kwargs or {}))
        self.asked.sees(func, args, kwargs or {}, result)
        note_comparison(func, args, kwargs or {}, result)
        note_places(func, args, kwargs or {}, result)
        note_hits(func, args, kwargs or {}, result)
        self._note(func, args, kwargs or {}, result, made)
        if isinstance(result, Tensor) and args and getattr(args[0], "_plimsoll_data", False) and getattr(func, "__name__", "") in _INTO_SAME:
            result._plimsoll_data = args[0]._plimsoll_data  # type: ignore[attr-defined]
        if isinstance(result, Tensor):
            known = _known_of(func, args)
            if known is not None:
                result._plimsoll_known = known  # type: ignore[attr-defined]
        return result

    def _is_parameter(self, tensor: Tensor) -> bool:
        return id(tensor) in self._learnt or (id(tensor) in self._given and isinstance(tensor, torch.nn.Parameter))

    def _freeze(self, tensor: Tensor, is_frozen: bool) -> Tensor:
        """tensor.requires_grad_(not is_frozen), in the midst of a forward pass."""
        if id(tensor) not in self._learnt:
            if not is_frozen:
                raise RuntimeError("the forward pass asks for the gradient of a parameter that is frozen; let it have one before compile")
            return tensor
        if not is_frozen:
            self._frozen.pop(id(tensor), None)
        elif id(tensor) not in self._frozen:
            self._frozen[id(tensor)] = self.__torch_function__(Tensor.detach, (), (tensor,))
        return tensor

    def expect_as_before(self) -> None:
        """At the end of a pass, which the next one begins with."""
        if self._frozen:
            raise RuntimeError("the forward pass freezes parameters (requires_grad_(False)) and leaves them so; freeze them before compile, or let them have a gradient again at its end")

    def _hits(self, name: str, places: Tensor, masks: Tensor) -> Any:
        """The numbers of the masks that choose any: all, as if Python had asked each for it."""
        self._has_fixed = True
        if name == "tolist":
            return list(self.asked.one_by_one(masks, lambda i: i if places.dim() == 1 else [i], itertools.count().__next__))
        if sys._getframe(2).f_code.co_name != "__iter__":
            raise RuntimeError("unbind of the numbers of masks that choose any, which depends on values; go over them by for")

        def given(i: int) -> Tensor:
            with untraced():
                return known(torch.tensor(i if places.dim() == 1 else [i]))

        return self.asked.one_by_one(masks, given, lambda: self._calls)

    def _by_known_number(self, x: Tensor, index: Any) -> Optional[Tensor]:
        """x[i] of a number, or of a row of one number, that is known."""
        if not isinstance(index, Tensor) or not is_known(index) or is_known(x) or index.dtype != torch.int64 or index.numel() != 1 or index.dim() > 1:
            return None
        with untraced():
            i = int(index)
        picked = self.__torch_function__(Tensor.__getitem__, (), (x, i))
        return self.__torch_function__(Tensor.unsqueeze, (), (picked, 0)) if index.dim() else picked

    def _writes_data(self, func: Callable, args: tuple) -> bool:
        """Into what .data gives, which is changed behind autograd's back: of a buffer it is as if it were changed itself (program.py)."""
        name = getattr(func, "__name__", "")
        of = getattr(args[0], "_plimsoll_data", None) if args else None
        if of is None or not (name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))):
            return False
        _expect_buffer(of)
        self.written.add(of)
        return True

    def _by_made_masks(self, func: Callable, args: tuple) -> tuple:
        """Reading and writing at a mask that depends on shapes alone is done at the places where it holds, as (result,), or as the arguments that do so."""
        x, index = args[0], args[1]
        parts = index if isinstance(index, tuple) else (index,)
        made = [values_of(i) if isinstance(i, Tensor) and i.dtype == torch.bool and i.dim() > 0 else None for i in parts]
        if all(m is None for m in made) or (func is Tensor.__setitem__ and _is_of_all_places(x, parts, args[2])):
            return None, args
        with untraced():
            places = [(i,) if m is None else is_itself(m.nonzero(as_tuple=True)) for i, m in zip(parts, made)]
            mask = made[0] if len(parts) == 1 and bool(made[0].all()) else None  # type: ignore[union-attr]
        if mask is not None and x.shape[: mask.dim()] == mask.shape:
            rows = (mask.numel(), *x.shape[mask.dim() :])
            if func is Tensor.__getitem__:
                return (self.__torch_function__(Tensor.clone, (), (self.__torch_function__(Tensor.reshape, (), (x, rows)),)),), args
            given = self.__torch_function__(Tensor.expand, (), (args[2], rows))
            given = self.__torch_function__(Tensor.reshape, (), (given, x.shape))
            if is_learnt(x):  # what is overwritten has a gradient of zeros
                everywhere = self.__torch_function__(torch.ones, (), ((),), {"dtype": torch.bool})
                given = self.__torch_function__(torch.where, (), (everywhere, given, x))
            self.__torch_function__(Tensor.copy_, (), (x, given))
            return (None,), args
        return None, (x, tuple(i for part in places for i in part), *args[2:])

    def _asked_of_made(self, func: Callable, args: tuple, kwargs: dict) -> Optional[tuple]:
        """Where Python asks for values of a tensor that depends on shapes alone: these, as (answer,)."""
        name = getattr(func, "__name__", "")
        is_of_one = name in _OF_VALUES and len(args) == 1 and set(kwargs) <= {"as_tuple"}
        if not (is_of_one or name in _UNIQUE) or not args or not isinstance(args[0], Tensor) or (made := values_of(args[0])) is None:
            return None
        with untraced():
            return (is_itself(func(made, *args[1:], **kwargs)),)

    def _note(self, func: Callable, args: tuple, kwargs: dict, result: Any, made: Optional[Made]) -> None:
        name = getattr(func, "__name__", "")
        is_writing = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
        if is_writing and not (args and isinstance(args[0], Tensor)):
            forget_all()
        values = pytree.tree_leaves((args[1:] if name in OF_SHAPES else args, kwargs))
        if name.startswith(_DRAWS) or any(id(leaf) in self._given or depends(leaf) for leaf in values):
            written = [args[0]] if args and is_writing else []
            learnt = any(id(leaf) in self._learnt or is_learnt(leaf) for leaf in values)
            for leaf in pytree.tree_leaves((result, written)):
                if isinstance(leaf, Tensor) and id(leaf) not in self._given:
                    leaf._plimsoll_depends = True  # type: ignore[attr-defined]
                    if learnt:
                        mark_learnt(leaf)
        if name.startswith(_DRAWS):
            return
        if made is not None and is_writing:
            if args and isinstance(args[0], Tensor):
                note_written(args[0], made)
        elif made is not None:
            note(result, made)

    def _answer(self, tensor: Tensor) -> Optional[bool]:
        known = getattr(tensor, "_plimsoll_known", None)
        if known == "drawn":
            raise RuntimeError("a random draw decides which layers run; set the probability of dropping a layer to 0")
        if known is not None:
            return known == "true"
        caller = sys._getframe(2)
        if "/torch/distributions/" in caller.f_code.co_filename:
            return True
        if caller.f_code.co_name == "_detect_is_causal_mask":  # of nn.Transformer: a hint; the mask is read in any case
            return False
        expected = _expected(caller.f_code.co_filename, caller.f_lineno)
        return self.asked.answer(tensor) if expected is None else expected


def _is_of_all_places(x: Tensor, parts: tuple, value: Any) -> bool:
    """Whether what is written at a mask is the same at all of its places: a torch.where then, of any mask."""
    return len(parts) == 1 and (not isinstance(value, Tensor) or value.numel() == 1 or value.dim() <= x.dim() - parts[0].dim())


def _wanted_gradient(func: Callable, args: tuple, kwargs: dict) -> Optional[bool]:
    """Whether a tensor is to have a gradient, where that is what is said of it."""
    if func is Tensor.requires_grad_:
        return bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
    is_set = getattr(func, "__self__", None) is Tensor.requires_grad and func.__name__ == "__set__"  # type: ignore[comparison-overlap]
    return bool(args[1]) if is_set else None


def _float_of(tensor: Tensor) -> float:
    try:
        return Tensor.__float__(tensor)
    except GuardOnDataDependentSymNode as error:
        raise RuntimeError("float(tensor) asks for a value, and a step runs no Python: for a log take tensor.item(), or name it in outputs=; for the network keep it a tensor") from error


def _expect_buffer(of: Any) -> None:
    if of is True:
        raise RuntimeError("something is changed through .data; compute with what it would be, as with self.weight * self.mask, and leave it as it is; a moving average of weights can be made between steps")


_INTO_SAME = frozenset("__getitem__ view reshape select narrow transpose permute t squeeze unsqueeze flatten expand".split())


def _by_places(x: Tensor, index: Any) -> tuple:
    """x[:, i] of a number i that is a tensor: the place is picked by its number, where Python would ask for that."""
    found = _numbered(x, index)
    if found is None:
        return x, index
    before, number, after, dim = found
    picked = x.index_select(dim, _from_the_end(number, x.shape[dim]))
    return picked, (*before, 0, *after)


def _put_at_number(x: Tensor, index: Any, value: Any) -> bool:
    """x[:, i] = value of such a number i."""
    found = _numbered(x, index)
    if found is None:
        return False
    before, number, after, dim = found
    rows = x[(*before, slice(None), *after)]
    at = rows.dim() - 1 - sum(not isinstance(i, int) for i in after) if any(i is Ellipsis for i in before) else sum(not isinstance(i, int) for i in before)
    value = value.to(x.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    shape = [n for d, n in enumerate(rows.shape) if d != at]
    while value.dim() > len(shape) and value.shape[0] == 1:
        value = value[0]
    rows.index_copy_(at, _from_the_end(number, x.shape[dim]), value.expand(shape).unsqueeze(at))
    return True


def _from_the_end(number: Tensor, count: int) -> Tensor:
    place = number.reshape(1).long()
    return torch.where(place < 0, place + count, place)


def _numbered(x: Tensor, index: Any) -> Optional[tuple[list, Tensor, list, int]]:
    """An index in which one number is a tensor, and no other part: what stands before it, the number, what stands behind it, and the dimension that it is of."""
    parts = list(index) if isinstance(index, tuple) else [index]
    found = [n for n, i in enumerate(parts) if isinstance(i, Tensor) and i.dim() == 0 and i.dtype in (torch.int64, torch.int32) and not is_known(i)]
    if len(found) != 1 or any(isinstance(i, (Tensor, list)) for n, i in enumerate(parts) if n != found[0]):
        return None
    before, after = parts[: found[0]], parts[found[0] + 1 :]
    if any(i is Ellipsis for i in before):
        dim = x.dim() - 1 - sum(i is not None for i in after)
    else:
        dim = sum(i is not None for i in before)
    return before, parts[found[0]], after, dim


def expected_of(frame: FrameType) -> Optional[bool]:
    return _expected(frame.f_code.co_filename, frame.f_lineno)


def _expected(file: str, line: int) -> Optional[bool]:
    """What a check expects of its values: an assertion, or an ``if`` that does nothing but raise an error. Nothing of one whose error the function itself catches, or that keeps an answer."""
    if line in _lines_of_branches(file):
        return None
    for test in _refusals(file):
        if test.lineno <= line <= (test.end_lineno or 0):
            answers = set(_answers(test, line, False))
            return answers.pop() if len(answers) == 1 else None
    return _asserted(linecache.getline(file, line).strip())


@lru_cache(64)
def _refusals(file: str) -> list[ast.expr]:
    """The conditions of a file under which an error is raised."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    return [node.test for node in ast.walk(tree) if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)]


@lru_cache(64)
def _lines_of_branches(file: str) -> frozenset[int]:
    """Those of checks that are branches: ``try: assert x ... except``, ``assert (ok := x)``."""
    lines: set[int] = set()
    try:
        waiting: list[tuple[ast.AST, bool]] = [(ast.parse("".join(linecache.getlines(file))), False)]
    except (SyntaxError, ValueError):
        return frozenset()
    while waiting:
        node, is_caught = waiting.pop()
        if isinstance(node, (ast.Assert, ast.If)) and (is_caught or any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test))):
            lines.update(range(node.lineno, (node.test.end_lineno or node.lineno) + 1))
        is_caught &= not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        catches = is_caught or _catches(node)
        inside = node.body if catches and isinstance(node, (ast.Try, ast.With)) else []
        waiting += [(part, catches if part in inside else is_caught) for part in ast.iter_child_nodes(node)]
    return frozenset(lines)


def _catches(node: ast.AST) -> bool:
    """Whether Python goes on after an error inside of it."""
    if isinstance(node, ast.With):
        called = [item.context_expr.func for item in node.items if isinstance(item.context_expr, ast.Call)]
        return any("suppress" in (getattr(func, "id", ""), getattr(func, "attr", "")) for func in called)
    return isinstance(node, ast.Try) and any(not isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)


def _answers(test: ast.expr, line: int, wanted: bool) -> Iterator[bool]:
    """What the parts of a condition that stand in a line have to be for it to be as wanted."""
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _answers(part, line, wanted)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _answers(test.operand, line, not wanted)
    elif test.lineno <= line <= (test.end_lineno or 0):
        yield wanted


def _asserted(statement: str) -> Optional[bool]:
    """What a line of an assertion expects of its values, if that can be seen: all of them to be true, or a single one not to be."""
    if not statement.startswith("assert "):
        return None
    is_negated = statement.startswith("assert not ")
    words = statement.removeprefix("assert not ").removeprefix("assert ").split()
    return None if "not" in words or (is_negated and ("and" in words or "or" in words)) else not is_negated


def _known_of(func: Callable, args: tuple) -> Optional[str]:
    if func in _NEVER:
        return "false"
    if func in _ALWAYS:
        return "true"
    before = [getattr(a, "_plimsoll_known", None) for a in args if isinstance(a, Tensor)]
    if func in _KEEPING and before and before[0] in ("true", "false") and len(set(before)) == 1:
        return before[0]
    if func is torch.rand and args and args[0] in ([], ()):
        return "draw"
    if func in _BELOW and before == ["draw"]:
        return "false" if args[1] <= 0 else "drawn"
    return None


def _covariance(input: Tensor, *, correction: int = 1, fweights: Optional[Tensor] = None, aweights: Optional[Tensor] = None) -> Tensor:
    if fweights is not None or aweights is not None:
        raise RuntimeError("torch.cov with weights; weigh the samples before, and take it without")
    x = input.reshape(1, -1) if input.dim() < 2 else input
    x = x - x.mean(1, keepdim=True)
    result = x @ x.mT / (x.shape[1] - correction)
    return result.reshape(()) if input.dim() < 2 else result


def _correlation(input: Tensor) -> Tensor:
    covariance = _covariance(input)
    deviation = covariance.diagonal().sqrt() if covariance.dim() else covariance.sqrt()
    result = covariance / deviation[..., None] / deviation if covariance.dim() else covariance / covariance
    return result.clamp(-1, 1)


def _fake_quantized(input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    """The nearest of so many steps; a gradient passes straight through where there is one as near."""
    step = torch.round(input * (1.0 / scale)) + zero_point
    passes = torch.where((step >= quant_min) & (step <= quant_max), input, torch.zeros((), dtype=input.dtype))
    return passes + ((step.clamp(quant_min, quant_max) - zero_point) * scale - passes).detach()


def _fake_quantized_by_channel(input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> Tensor:
    shape = [1] * input.dim()
    shape[axis] = -1
    return _fake_quantized(input, scale.view(shape), zero_point.view(shape).to(input.dtype), quant_min, quant_max)


def _householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of a product of reflections 1 - tau v v', of which v is 1 in a place and a column of A below it."""
    rows, count = A.shape[-2], tau.shape[-1]
    result = torch.eye(rows, A.shape[-1], dtype=A.dtype).expand(A.shape)
    for i in reversed(range(count)):
        below = A[..., i + 1 :, i : i + 1]
        v = torch.cat([torch.zeros_like(A[..., :i, i : i + 1]), torch.ones_like(A[..., i : i + 1, i : i + 1]), below], -2)
        result = result - tau[..., i, None, None] * v * (v * result).sum(-2, keepdim=True)
    return result


_PLAIN: dict[Any, Callable] = {
    torch.cov: _covariance, Tensor.cov: _covariance, torch.corrcoef: _correlation, Tensor.corrcoef: _correlation,
    torch.fake_quantize_per_tensor_affine: _fake_quantized, torch.fake_quantize_per_channel_affine: _fake_quantized_by_channel,
    torch.linalg.householder_product: _householder_product, torch.orgqr: _householder_product,
}  # fmt: skip


def _gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    if not isinstance(var, Tensor):
        var = torch.full_like(input, float(var))
    if var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    # As PyTorch has it, what keeps the variance above eps gets no gradient of its own.
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss

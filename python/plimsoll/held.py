"""Tensors of a module that a step holds in a layout of its own: they are brought up to date when somebody reads them.

Where a state lies in the arena as PyTorch would have it, the module's tensor is that memory. Others, blocked weights of convolutions
for example, would be as they were before training; so they are of the classes below, whose every use goes through Python first.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Optional

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_FIELD = "_plimsoll_held"  # of such a tensor: (weak reference to the step, the state's name)

# What says nothing of a tensor's values.
_OF_FORM = frozenset({Tensor.numel, Tensor.size, Tensor.dim, Tensor.stride, Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size}) | frozenset(
    getattr(Tensor, name).__get__ for name in "shape ndim dtype device layout grad requires_grad is_leaf is_meta grad_fn is_sparse is_cuda".split()
)

untouched = torch._C.DisableTorchFunctionSubclass  # in this context such tensors are as all others


def _read(tensor: Tensor) -> None:
    """Somebody is about to read a tensor, or to write it."""
    reference, name = tensor.__dict__.get(_FIELD, (None, ""))
    step = reference() if reference is not None else None
    if step is not None:
        step.reads(name)


class _Held:
    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)) if func not in _OF_FORM else ():
            if isinstance(leaf, _Held):
                _read(leaf)  # type: ignore[arg-type]
        with untouched():
            return func(*args, **(kwargs or {}))

    def _copied(self) -> Tensor:
        """A tensor of PyTorch's own class with the same elements, in the same memory."""
        _read(self)  # type: ignore[arg-type]
        with untouched():
            data = self.data  # type: ignore[attr-defined]
            return nn.Parameter(data, self.requires_grad) if isinstance(self, nn.Parameter) else data  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = self._copied().__deepcopy__({})  # not memo, which would know a tensor that is gone by its id
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._copied().__reduce_ex__(protocol)


class HeldParameter(_Held, nn.Parameter):
    pass


class HeldTensor(_Held, Tensor):
    pass


def hold(tensor: Tensor, step: Any, name: str) -> None:
    """From now on, `tensor` is what ``step`` has under `name`."""
    if isinstance(tensor, nn.Parameter) or type(tensor) is Tensor or isinstance(tensor, _Held):
        tensor.__dict__[_FIELD] = (weakref.ref(step), name)
        tensor.__class__ = HeldParameter if isinstance(tensor, nn.Parameter) else HeldTensor


def is_held(tensor: Tensor) -> bool:
    return _FIELD in tensor.__dict__


def let_go(tensor: Tensor, step: Any) -> None:
    """The opposite, if it is this step's."""
    reference, _ = tensor.__dict__.get(_FIELD, (None, ""))
    if reference is not None and reference() in (step, None):
        del tensor.__dict__[_FIELD]
        tensor.__class__ = nn.Parameter if isinstance(tensor, nn.Parameter) else Tensor


def leave_to_others(views: Iterable[Tensor]) -> None:
    """Before these are written, which were a module's tensors until somebody put other memory in their place by ``parameter.data = ...``: tensors that share their
    memory, as a backup that is put back later, get a copy of what is there."""
    wanted = {view.untyped_storage()._cdata: view for view in views if _is_shared(view)}
    own = {id(view) for view in wanted.values()}
    copies: dict[int, Tensor] = {}
    for tensor in gc.get_objects() if wanted else ():
        if not issubclass(type(tensor), Tensor) or id(tensor) in own:
            continue
        try:
            view = wanted.get(tensor.untyped_storage()._cdata)
            if view is not None:
                copy = copies.setdefault(id(view), view.clone())
                tensor.data = torch.as_strided(copy.flatten().view(tensor.dtype), tensor.shape, tensor.stride(), tensor.storage_offset())
        except (RuntimeError, NotImplementedError):  # one without a memory of its own
            continue


def _is_shared(view: Tensor) -> bool:
    """Whether there are other tensors in its memory, or may be."""
    storage = view.untyped_storage()
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is None or count(storage._cdata) > 2  # the view, and the object above


@contextmanager
def released(*modules: nn.Module) -> Iterator[None]:
    """Their tensors are PyTorch's own meanwhile: for an export, which knows no others."""
    tensors = {id(t): t for module in modules for t in [*module.parameters(), *module.buffers()] if isinstance(t, _Held)}.values()
    for tensor in tensors:
        _read(tensor)
    classes = [type(tensor) for tensor in tensors]
    for tensor in tensors:
        tensor.__class__ = nn.Parameter if isinstance(tensor, nn.Parameter) else Tensor
    try:
        yield
    finally:
        for tensor, own in zip(tensors, classes):
            tensor.__class__ = own

"""Tensors of a batch whose values decide sizes, as the heights and widths of a vision language model's images: a network is captured for their values.

Such a tensor comes into the capture with its values. What is made of it and of numbers alone is computed there and then, so that Python may ask for it: loops over it,
sizes, places where a mask holds. All of that is written into the network, so batches of other values get a plan of their own, as those of other shapes do.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .errors import Unsupported

_MOST = 256  # elements
_SIZES, _KINDS = ("grid", "thw", "sizes", "shape"), ("type_ids", "attention_mask")
_FIELD = "_plimsoll_values"
_MADE = frozenset({torch.arange, torch.tensor, torch.linspace})


class Fixed:
    """A tensor in a batch, by its values: no tensor to who goes through the batch's."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach().cpu().clone()

    def __repr__(self) -> str:
        return f"{tuple(self.tensor.shape)} {self.tensor.dtype} {self.tensor.flatten().tolist()}"

    def given(self) -> Tensor:
        """For a forward pass, which may write into it."""
        with untraced():
            return known(self.tensor.clone())


# --- which of a batch's tensors --------------------------------------------------------------------------------------


def with_fixed(batch: Any, places: Sequence[int]) -> Any:
    """The batch with those of its leaves by their values."""
    if not places:
        return batch
    leaves, structure = pytree.tree_flatten(batch)
    leaves = [Fixed(leaf) if i in places and isinstance(leaf, Tensor) else leaf for i, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(leaves, structure)


def has_fixed(batch: Any) -> bool:
    return any(isinstance(leaf, Fixed) for leaf in pytree.tree_leaves(batch))


def found_fixed(batch: Any, capture: Callable[[Any], Any]) -> tuple[Any, list[int]]:
    """What ``capture`` gives of a batch, and the places of the tensors that it wants the values of: none, if it can do without."""
    try:
        return capture(batch), []
    except Unsupported as error:
        if not asks_for_values(error):
            raise
        for places in _candidates(batch):
            try:
                result = capture(with_fixed(batch, places))
            except Unsupported:
                continue
            names = ", ".join(pytree.keystr(path) for i, (path, _) in enumerate(pytree.tree_flatten_with_path(batch)[0]) if i in places)
            warnings.warn(f"sizes depend on the values of the batch's {names}: batches of other values there get plans of their own", stacklevel=2)
            return result, places
        raise


def asks_for_values(error: Unsupported) -> bool:
    return any("depends on values" in op.reason or "depend on values" in op.reason or "data-dependent" in op.reason for op in error.ops)


def _candidates(batch: Any) -> Iterator[list[int]]:
    """Places of whole numbers: the few whose name says that they are sizes; these, and what tells kinds and padding of tokens apart."""
    leaves = pytree.tree_flatten_with_path(batch)[0]
    whole = [(i, pytree.keystr(path).lower(), leaf) for i, (path, leaf) in enumerate(leaves) if isinstance(leaf, Tensor) and not leaf.is_floating_point() and not leaf.is_meta]
    sizes = [i for i, name, leaf in whole if leaf.numel() <= _MOST and any(hint in name for hint in _SIZES)]
    kinds = [i for i, name, _ in whole if any(hint in name for hint in _KINDS)]
    if sizes:
        yield sizes
    if sizes and kinds:
        yield sorted({*sizes, *kinds})


# --- while a model is exported ---------------------------------------------------------------------------------------


@contextmanager
def untraced() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def known(value: Any) -> Any:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            setattr(leaf, _FIELD, True)
    return value


def is_known(value: Any) -> bool:
    return getattr(value, _FIELD, False)


def computed(func: Callable, args: tuple, kwargs: dict) -> Optional[tuple]:
    """The result of a function of known tensors alone, as (result,); None where it is to be traced."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not all(map(is_known, tensors)) or not (tensors or func in _MADE):
        return None
    with untraced():
        return (known(func(*args, **kwargs)),)


def by_places(func: Callable, args: tuple) -> tuple:
    """Reading and writing at a known mask is done at the places where it holds."""
    if func not in (Tensor.__getitem__, Tensor.__setitem__):
        return args
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not any(is_known(i) and i.dtype == torch.bool for i in index):
        return args
    with untraced():
        parts = [known(i.nonzero(as_tuple=True)) if is_known(i) and i.dtype == torch.bool else (i,) for i in index]
    return (args[0], tuple(i for part in parts for i in part), *args[2:])

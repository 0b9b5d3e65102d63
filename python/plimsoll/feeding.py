"""How the inputs of a network come into the memory of a step.

    the host addresses it      the core copies them
    it is a GPU's, and
      the tensor lies there    PyTorch copies it to its place, in the stream that it is computing in, and is waited for
      or in pinned memory as
        the input does         the device copies it
      or elsewhere             PyTorch brings it into pinned memory as the input lies, and the device copies that

A tensor is given back when all of its batch have been fed, and may be written again then.
"""

from __future__ import annotations

import math
import re
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

_ARRAYS = {torch.float32: "<f4", torch.float64: "<f8", torch.int32: "<i4", torch.int64: "<i8", torch.uint8: "|u1"}


def gpu_of(device: str) -> Optional[torch.device]:
    """As PyTorch names the core's device; None where it is no GPU."""
    number = re.match(r"cuda:(\d+)", device)
    return torch.device("cuda", int(number[1])) if number else None


class _Array:
    """What lies on a GPU, as CUDA's array interface tells it."""

    def __init__(self, address: int, shape: Sequence[int], dtype: torch.dtype):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": tuple(shape), "typestr": _ARRAYS[dtype], "version": 3}


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype, gpu: torch.device) -> Tensor:
    """The row-major tensor at an address of the GPU's memory, which somebody else owns."""
    return torch.as_tensor(_Array(address, shape, dtype), device=gpu)


def settle(gpu: torch.device) -> None:
    """Waits until PyTorch has done what it was asked for."""
    torch.cuda.current_stream(gpu).synchronize()


class Feeder:
    """Brings a batch's tensors, one after the other and then ``finish``, to the inputs of a training or of the evaluation of this
    number."""

    def __init__(self, core: Any, gpu: Optional[torch.device], evaluation: Optional[int] = None):
        self._core, self._gpu, self._evaluation = core, gpu, evaluation
        self._under_way = False  # a copy of PyTorch's

    def __call__(self, name: str, value: Tensor, dtype: torch.dtype) -> None:
        layout = self._core.layout_of(name, self._evaluation) if self._gpu is not None else None
        if layout is None or list(value.shape) != layout[0]:
            self._give(name, value.to(device="cpu", dtype=dtype).contiguous())
            return
        shape, order = layout
        if value.device == self._gpu:
            place = self._core.place_of(name, self._evaluation)
            if place:
                self._under_way = True
                as_it_lies(tensor_at(place, [shape[d] for d in order], dtype, self._gpu), order).copy_(value, non_blocking=True)
                return
        value = value.to("cpu")
        lying = value.permute(order)
        if value.dtype != dtype or not lying.is_contiguous() or not value.is_pinned():
            lying = self._staged(value, order, dtype)
        self._core.feed_as_it_lies(name, lying.numpy(), self._evaluation)

    def finish(self) -> None:
        if self._under_way:
            self._under_way = False
            settle(self._gpu)

    def _give(self, name: str, value: Tensor) -> None:
        if self._evaluation is None:
            self._core.feed(name, value.numpy())
        else:
            self._core.feed_evaluation(self._evaluation, name, value.numpy())

    def _staged(self, value: Tensor, order: Sequence[int], dtype: torch.dtype) -> Tensor:
        """In the core's pinned memory, until the next one."""
        shape = [value.shape[d] for d in order]
        room = torch.from_numpy(self._core.staging(math.prod(shape) * dtype.itemsize)).view(dtype).view(shape)
        as_it_lies(room, order).copy_(value)
        return room


def as_it_lies(stored: Tensor, order: Sequence[int]) -> Tensor:
    """The tensor whose dimensions lie in that order, from the outermost to the innermost."""
    back = [0] * len(order)
    for place, dimension in enumerate(order):
        back[dimension] = place
    return stored.permute(back)

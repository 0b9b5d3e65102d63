"""Tensors of the module and the optimizer in files, where the user lets the step's tensors lie on disk (``spill=``).

What the step has elsewhere than in the arena, the module would have a second time in memory that nobody planned. In a file that is mapped it
is the page cache's: the system writes it out and takes its memory back where it needs it. The files are removed as soon as they are mapped,
so that nothing is left of them whatever ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from typing import Iterable, Optional

import torch
from torch import Tensor

from .held import untouched

LEAST_BYTES = 1 << 20  # smaller tensors stay where they are
_MADV_DONTNEED = 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def folder_of(spill: Optional[str]) -> Optional[str]:
    """The folder that ``spill="DIR:SIZE"`` names; None where there is none, which the core tells."""
    if spill is None:
        return None
    folder = spill if os.path.isdir(spill) else spill.rpartition(":")[0]
    return folder if os.path.isdir(folder) else None


class Files:
    def __init__(self, folder: str):
        self._folder = folder

    def empty_like(self, tensor: Tensor) -> Tensor:
        """A tensor of the same shape in a file. Raises OSError where the disk has no room for it."""
        number = tensor.numel() * tensor.element_size()
        handle, path = tempfile.mkstemp(prefix="plimsoll-", dir=self._folder)
        try:
            try:
                os.posix_fallocate(handle, 0, number)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise OSError(errno.ENOSPC, f"spill=: no room for {number >> 20} MiB of the module's tensors", self._folder) from None
                os.ftruncate(handle, number)  # a file system that does not know it
            flat = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        finally:
            os.close(handle)
            os.unlink(path)
        return flat.view(tensor.shape)

    def copy_of(self, tensor: Tensor) -> Tensor:
        copy = self.empty_like(tensor)
        copy.copy_(tensor)
        self.rest(copy)
        return copy

    @staticmethod
    def takes(tensor: Tensor) -> bool:
        return tensor.numel() * tensor.element_size() >= LEAST_BYTES

    def rest(self, tensor: Tensor) -> None:
        """Nobody reads it for now: the process lets go of its pages, which the page cache keeps as it likes."""
        storage = tensor.untyped_storage()
        if storage.filename is not None:  # of other memory this call would take the values
            _libc.madvise(storage.data_ptr(), storage.nbytes(), _MADV_DONTNEED)


def give_memory_back() -> None:
    """To the system: what was freed, and the allocator keeps for others."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def of_those(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The large ones among them, with values or, on the meta device, without."""
    return [t for t in tensors if t.device.type in ("cpu", "meta") and t.layout == torch.strided and t.is_contiguous() and Files.takes(t)]


def take_in(files: Files, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Puts the large ones into files, one after another. Returns those; `bring_back` undoes it."""
    taken = []
    with torch.no_grad(), untouched():
        try:
            for tensor in of_those(tensors):
                tensor.data = files.copy_of(tensor.data)
                taken.append(tensor)
        except BaseException:
            bring_back(taken)
            raise
    give_memory_back()
    return taken


def bring_back(tensors: Iterable[Tensor]) -> None:
    with torch.no_grad(), untouched():
        for tensor in tensors:
            tensor.data = tensor.data.clone()

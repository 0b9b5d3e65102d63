"""Ctrl-C while a module is captured."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from contextlib import contextmanager
from types import FrameType
from typing import Iterator

import torch

_within_pytorch = False
_waits = False  # a Ctrl-C, for a place at which it may be raised


def _takes_no_exception(frame: FrameType | None) -> bool:
    """Whether PyTorch's C++ has called Python on the way to `frame`, which it does where none may be thrown, too, or an object is being deleted."""
    while frame is not None:
        if frame.f_code.co_name in ("__torch_dispatch__", "__del__") or frame.f_code.co_filename == torch._ops.__file__:
            return True
        frame = frame.f_back
    return False


@contextmanager
def interruptible() -> Iterator[None]:
    """A Ctrl-C is raised as soon as an exception can be taken: in the middle of PyTorch's C++ it would end the process, and Python forgets one
    that comes while an object is deleted. Within an export it waits, see `within_pytorch`; a second one does not."""
    global _waits
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    over = False
    again: threading.Timer | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _waits
        nonlocal again
        first = not _waits
        _waits = True
        if over or (first and _within_pytorch):
            return
        if not _takes_no_exception(frame):
            usual(number, frame)
        again = threading.Timer(0.005, _thread.interrupt_main)
        again.daemon = True
        again.start()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        over = True
        if again is not None:
            again.cancel()
            again.join()  # what it asked for reaches `interrupt` still
        signal.signal(signal.SIGINT, usual)
        seen, _waits = _waits, False
        if seen:
            raise KeyboardInterrupt


@contextmanager
def within_pytorch() -> Iterator[None]:
    """An export: raised anywhere within, KeyboardInterrupt would leave PyTorch's modes and tables as they are for the moment. It is raised where
    the module calls PyTorch (`end_where_interrupted`), as a module's own exceptions are, or behind the export."""
    global _within_pytorch
    _within_pytorch = True
    try:
        yield
    finally:
        _within_pytorch = False
    if _waits:
        raise KeyboardInterrupt


def end_where_interrupted() -> None:
    if _waits and not _takes_no_exception(sys._getframe(1)):
        raise KeyboardInterrupt

"""What is taken to hold of values while a model is exported, where Python asks for them.

An exported graph has no branches, and values are not known while it is made. Some branches are checks, whose answer is
known all the same:

    isinf, isnan              nothing is infinite or not a number
    PyTorch's own arguments   are as they should be (a variance is not negative, a distribution's parameters are valid)
    a draw below 0            never happens: layers are dropped with probability 0
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_REFUTED = frozenset({torch.isinf, torch.isnan, Tensor.isinf, Tensor.isnan})
_DRAWS = frozenset({torch.rand})
_BELOW = frozenset({torch.lt, torch.less, Tensor.lt, Tensor.__lt__})
_KEPT = frozenset({torch.any, Tensor.any, torch.logical_or, Tensor.logical_or, Tensor.__or__})
# Files of PyTorch that ask for values only to raise an error, and what they want to hear.
_CHECKS = {"torch/nn/functional.py": False, "torch/distributions/": True}


class Assumptions(TorchFunctionMode):
    """A mode in which ``bool(tensor)`` is answered where the answer is known so."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func is Tensor.__bool__:
            known = self._answer(args[0])
            if known is not None:
                return known
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._note(func, args, result)
        return result

    def _note(self, func: Callable, args: tuple, result: Tensor) -> None:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if func in _REFUTED or (func in _KEPT and tensors and all(_known(t) == "false" for t in tensors)):
            result._plimsoll_known = "false"  # type: ignore[attr-defined]
        elif func in _DRAWS:
            result._plimsoll_known = "draw"  # type: ignore[attr-defined]
        elif func in _BELOW and len(args) > 1 and _known(args[0]) == "draw" and args[1] == 0:
            result._plimsoll_known = "false"  # type: ignore[attr-defined]

    def _answer(self, tensor: Tensor) -> Any:
        if _known(tensor) == "false":
            return False
        caller = sys._getframe(2)  # who asked
        while "/torch/overrides.py" in caller.f_code.co_filename and caller.f_back is not None:
            caller = caller.f_back
        name = caller.f_code.co_filename
        return next((answer for part, answer in _CHECKS.items() if part in name), None)


def _known(value: Any) -> str:
    return getattr(value, "_plimsoll_known", "")

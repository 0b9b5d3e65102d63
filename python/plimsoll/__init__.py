"""Plimsoll trains PyTorch networks inside a stated amount of memory.

    step = plimsoll.compile(model, opt, loss=loss, example=batch, memory="4GiB")
    for batch in loader:
        value = step(batch)

``fits`` says beforehand, without any weights, whether that is possible and what it costs; ``export`` writes a network as
a file, for the command line.
"""

from ._core import Error
from .errors import Unsupported, UnsupportedOp
from .export import export
from .infeasible import Infeasible
from .step import Step, compile, fits

__all__ = ["Error", "Infeasible", "Step", "Unsupported", "UnsupportedOp", "compile", "export", "fits"]

Error.__module__ = "plimsoll"  # as users name it

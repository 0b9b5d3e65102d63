"""Plimsoll trains PyTorch networks inside a stated amount of memory.

    step = plimsoll.compile(model, opt, loss=loss, example=batch, memory="4GiB")
    for batch in loader:
        value = step(batch)

``fits`` says beforehand, without any weights, whether that is possible and what it costs; ``export`` writes a network as
a file, for the command line.
"""

from ._core import Error, RankFailed
from .errors import Unsupported, UnsupportedOp
from .export import export
from .infeasible import Infeasible
from .ranks import rank, world_size
from .step import Step, compile, fits

__all__ = ["Error", "Infeasible", "RankFailed", "Step", "Unsupported", "UnsupportedOp", "compile", "export", "fits", "rank", "world_size"]

Error.__module__ = RankFailed.__module__ = "plimsoll"  # as users name it

"""Plimsoll trains a ``torch.nn.Module`` inside a stated number of bytes.

    plimsoll.export(model, loss=loss, example=batch, path="network.json", weights="network.safetensors")

writes what ``./plimsoll train --graph network.json --weights network.safetensors`` trains.
"""

from .errors import Unsupported, UnsupportedOp
from .export import export

__all__ = ["Unsupported", "UnsupportedOp", "export"]

"""Safetensors files: eight bytes with the header's length, a JSON header, the values one after the other.

https://github.com/huggingface/safetensors describes the format. Values are little-endian and row-major.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Mapping, Union

import torch
from torch import Tensor

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save(tensors: Mapping[str, Tensor], path: Union[str, Path]) -> None:
    """Writes tensors by name. The file appears whole or not at all."""
    header, begin = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"'{name}' is {tensor.dtype}, which a safetensors file cannot hold")
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = Path(f"{path}.partial")
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors.values():
            plain = tensor.detach().cpu().contiguous()
            file.write(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    os.replace(partial, path)


def load(path: Union[str, Path]) -> dict[str, Tensor]:
    """Reads a file that ``save`` wrote."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    types = {name: dtype for dtype, name in NAMES.items()}
    result = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = torch.empty(entry["shape"], dtype=types[entry["dtype"]])
        if begin < end:
            values.view(-1).view(torch.uint8)[:] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8)
        result[name] = values
    return result

"""A model as files that need no Python: a network file and, next to it, its weights."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor, nn

from .capture import Captured, capture
from .convert import Converted, convert
from .errors import Unsupported, UnsupportedOp
from .values import has_values
from .safetensors import save
from .writer import Document

MARK = "prelude/"


def export(
    model: nn.Module,
    *,
    loss: Optional[Callable] = None,
    example: Any,
    path: Union[str, Path],
    weights: Optional[Union[str, Path]] = None,
    evaluation: bool = True,
    call: Optional[Callable] = None,
    outputs: Optional[Callable] = None,
    name: str = "",
) -> Document:
    """Writes a model and its loss as a network file, which ``./plimsoll train --graph FILE`` trains.

    ``loss(output, batch)`` as in ``plimsoll.capture.capture``; left out, the model returns it. ``example`` is a batch as
    the loader gives it. With ``weights``, parameters, buffers and constants go into a safetensors file by their names in
    ``state_dict``. With ``evaluation`` the file holds the model in evaluation mode as well. Gives the dictionary that was
    written. Raises ``plimsoll.Unsupported`` with all that cannot be trained.

    What PyTorch would compute of a batch before every step (the prelude: attention masks, shifted labels) is not in the
    file; its results are inputs named "prelude/...", and a warning names them.
    """

    def part(**how: Any) -> Converted:
        captured = capture(model, loss, example, call=call, outputs=outputs, name=name, **how)
        _expect_any_values(captured)
        if captured.is_by_size and captured.second is not None:
            captured = capture(model, loss, example, call=call, outputs=outputs, name=name, any_batch=False, **how)
            captured.fixed_batch.insert(0, "a mask, or another tensor that Python reads, is made of the batch's size, and may be another at any")
        return convert(captured, label_dtype="i32")

    parts = [part()]
    if evaluation:
        parts.append(part(training=False))
        _join_states(*parts)
    document = {key: value for made in reversed(parts) for key, value in made.document.items()}
    for written in parts:
        _tell(written)
    write_json(document, path)
    if weights is not None:
        values = {key: tensor for made in reversed(parts) for key, tensor in made.values.items()}
        without = [key for key, tensor in values.items() if not has_values(tensor)]
        if without:
            raise ValueError(
                f"{len(without)} tensors have no values, '{without[0]}' among them: the model is on the meta device"
            )
        save(values, weights)
    return document


def _expect_any_values(captured: Captured) -> None:
    if captured.sizes:
        raise Unsupported([UnsupportedOp("a mask", "", "", "whether it holds anywhere, or at how many places, decides what the network is, and a file would have that of the example; train it by plimsoll.compile")])


def _join_states(training: Converted, evaluation: Converted) -> None:
    """What evaluation alone keeps is kept while training too. Of two tables with one name the second gets another."""
    section, other = training.document["training"], evaluation.document["evaluation"]
    known = {t["name"]: t for t in section["tensors"]}
    names: dict[str, str] = {}
    for tensor in other["tensors"]:
        if tensor["role"] not in ("parameter", "statistic"):
            continue
        name, same = tensor["name"], known.get(tensor["name"])
        value = evaluation.values[name]
        if same is not None and (same["shape"] != tensor["shape"] or not _is_same(training.values[name], value)):
            tensor["name"] = names[name] = f"evaluation/{name}"
            evaluation.values[names[name]] = evaluation.values.pop(name)
            same = None
        if same is None:
            section["tensors"].append({**tensor, "role": "statistic"})
    for op in other["ops"]:
        op["inputs"] = [names.get(i, i) for i in op["inputs"]]


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a is b or a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def write_json(document: Document, path: Union[str, Path]) -> None:
    """One op and one tensor a line. The file appears whole or not at all."""
    partial = Path(f"{path}.partial")
    partial.write_text(_text(document, 0) + "\n")
    os.replace(partial, path)


def _text(value: Any, depth: int) -> str:
    """JSON that breaks lines down to the entries of a section's lists."""
    if depth >= 3 or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value)
    indent = " " * (depth + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {_text(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(indent + i for i in items) + "\n" + indent[1:] + "}"
    return "[\n" + ",\n".join(indent + _text(v, depth + 1) for v in value) + "\n" + indent[1:] + "]"


def _tell(part: Converted) -> None:
    for key in ("training", "evaluation"):
        section = part.document.get(key, {"tensors": []})
        computed = [t["name"] for t in section["tensors"] if t["name"].startswith(MARK)]
        if computed:
            warnings.warn(
                f"{key}: PyTorch computes {', '.join(computed)} of each batch; feed them as inputs", stacklevel=3
            )
    if part.fixed_batch:
        batch = part.document["batch"]
        warnings.warn(f"the file holds for batches of {batch} only: {'; '.join(part.fixed_batch)}", stacklevel=3)

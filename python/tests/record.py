#!/usr/bin/env python3
"""Records network files of small networks, with their loss and gradients from PyTorch, for tests that have no torch.

    python python/tests/record.py [NAME ...]          writes tests/recorded/networks/NAME.json and NAME.expected.json

NAME.json is what ``plimsoll.export`` writes, training only. NAME.expected.json is what eager PyTorch gives for one step
of it, in double precision:

    batch       the number of samples; the file itself holds for any
    seed, step_number   what dropout draws by (Philox, as src/base/random.h)
    inputs      for every input of the file, how it is made: {"kind": "floats"} is numbers(name, count), even in [-1, 1);
                {"kind": "integers", "high": h} is floor((u + 1) / 2 * h) of the same numbers; {"values": [...]} as listed
    parameters  made by start_value(name, shape) of tests/recorded/recorded.h, which is `start_value` of support.py;
                running statistics too. Shapes are PyTorch's: grouped weights [g, k/g, c, r, s] count as [k, c, r, s]
    constants   values of other tensors from outside, row-major
    loss        the loss
    gradients   for every parameter, the sum of the absolute values of its gradient, and the gradient's sum weighed by
                numbers("gradient/" + name, count)
    statistics  for every running statistic, and every other buffer that the network changes, the sum of its absolute values
                after the step
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

import support
from networks import EXAMPLES, Example, with_given_dropout
from plimsoll.capture import Captured, capture
from plimsoll.convert import Converted, convert
from plimsoll.export import write_json
from plimsoll.reference import random_bits

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "recorded" / "networks"
BATCH, SEED, STEP = 3, 17, 3


def draws(converted: Converted, batch: int):
    """The mask of a dropout layer as the core draws it, by the layer's path."""
    ops = {op["layer"]: op for op in converted.document["training"]["ops"] if op["type"] == "DropoutForward"}

    def draw(path: str) -> Tensor:
        op = ops[path]
        shape = [batch if n == "batch" else n for n in op["shapes"][0]]
        count = int(torch.tensor(shape).prod())
        bits = torch.from_numpy(random_bits(SEED, STEP, op["attributes"]["salt"], count).astype("int64"))
        return (bits >= int(op["attributes"]["p"] * 2**32)).double().reshape(shape)

    return draw


def converted_example(example: Example) -> tuple[Captured, Converted]:
    captured = capture(support.start(example.build()), example.loss, example.batch(2))
    return captured, convert(captured, label_dtype="i32")


def expected(example: Example, captured: Captured, converted: Converted) -> dict:
    """One step in eager PyTorch, doubles, dropout by the core's draws."""
    model = with_given_dropout(support.start(example.build()), draws(converted, BATCH)).double().train()
    batch = example.batch(BATCH)
    loss = example.loss(model(batch[0].double() if batch[0].is_floating_point() else batch[0]), batch)
    loss.backward()
    section = converted.document["training"]
    changing = {op["inputs"][0] for op in section["ops"] if op["type"] == "Assign"}
    return {
        "batch": BATCH,
        "seed": SEED,
        "step_number": STEP,
        "inputs": inputs(example, captured, section, batch),
        "constants": constants(converted, section),
        "loss": float(loss.detach()),
        "gradients": {name: sums(name, p.grad) for name, p in model.named_parameters() if p.grad is not None},
        "statistics": {
            n: float(b.abs().sum())
            for n, b in model.named_buffers()
            if n in changing or n.endswith(("running_mean", "running_var"))
        },
    }


def sums(name: str, gradient: Tensor) -> list[float]:
    weights = torch.from_numpy(support.numbers("gradient/" + name, gradient.numel()))
    return [float(gradient.abs().sum()), float((gradient.flatten() * weights).sum())]


def inputs(example: Example, captured: Captured, section: dict, batch) -> dict:
    made = captured.feed(batch)
    kinds = dict(zip(("data", "labels"), example.kinds))
    result = {}
    for tensor in section["tensors"]:
        name = tensor["name"]
        if tensor["role"] != "input":
            continue
        if name in kinds:
            kind = kinds[name]
            result[name] = {"kind": "floats"} if kind == "floats" else {"kind": "integers", "high": kind}
        else:
            result[name] = {"values": made[name].flatten().tolist()}
    return result


def constants(converted: Converted, section: dict) -> dict:
    result = {}
    for tensor in section["tensors"]:
        name = tensor["name"]
        if tensor["role"] == "statistic" and not name.endswith(("running_mean", "running_var")):
            result[name] = converted.values[name].flatten().tolist()
    return result


def main(names: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    examples = dict(EXAMPLES)
    if "experts" in names:  # wants transformers
        from test_experts import EXAMPLE

        examples["experts"] = EXAMPLE
    for name in names or EXAMPLES:
        captured, converted = converted_example(examples[name])
        write_json(converted.document, FOLDER / f"{name}.json")
        record = expected(examples[name], captured, converted)
        (FOLDER / f"{name}.expected.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {len(converted.document['training']['ops'])} ops, loss {record['loss']:.6f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])

"""What the tests share: numbers made from names, and the comparison of a converted network with eager PyTorch."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

sys.path.append(str(Path(__file__).resolve().parents[1]))  # behind an installed package, which has the core

from plimsoll import reference  # noqa: E402
from plimsoll.capture import Captured, capture  # noqa: E402
from plimsoll.convert import Converted, convert  # noqa: E402
from plimsoll.joined import default_call, loss_of  # noqa: E402


def numbers(name: str, count: int) -> np.ndarray:
    """Even in [-1, 1): FNV-1a of the name, then splitmix64 of it plus the index; 24 bits, so exact in f32.

    The rule of scripts/record_torch.py and tests/recorded/recorded.h.
    """
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0


def start_value(name: str, shape: tuple[int, ...]) -> Tensor:
    """The value of a parameter or statistic by its name and its shape in PyTorch, exact in f32."""
    u = numbers(name, math.prod(shape))
    if name.endswith("running_mean"):
        v = 0.125 * u
    elif name.endswith("running_var"):
        v = 1 + 0.5 * u
    elif name.endswith("bias"):
        v = 0.25 * u
    elif name.endswith("weight") and len(shape) == 1:
        v = 1 + 0.25 * u
    elif name.endswith("weight") and len(shape) > 1:
        v = u * 1.5 / math.sqrt(math.prod(shape[1:]))
    else:
        v = u
    return torch.from_numpy(v.astype(np.float32)).reshape(shape)


def start(model: nn.Module) -> nn.Module:
    """The model with values made from names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(start_value(name, tuple(parameter.shape)))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(start_value(name, tuple(buffer.shape)))
    return model


def floats(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(numbers(name, math.prod(shape)).astype(np.float32)).reshape(shape)


def integers(name: str, high: int, *shape: int) -> Tensor:
    """Of [0, high): the floor of (u + 1) / 2 * high."""
    u = numbers(name, math.prod(shape))
    return torch.from_numpy(np.floor((u + 1) / 2 * high).astype(np.int64)).reshape(shape)


@dataclass
class Both:
    """A converted network, and its loss and gradients from PyTorch and from the reference reading of the file."""

    captured: Captured
    converted: Converted
    eager_loss: float
    file_loss: float
    eager: dict[str, Tensor]
    file: dict[str, Tensor]
    run: reference.Run

    @property
    def section(self) -> dict:
        document = self.converted.document
        return document["training"] if "training" in document else document["evaluation"]

    def types(self) -> list[str]:
        return [op["type"] for op in self.section["ops"]]


def doubled(values: Any) -> Any:
    return pytree.tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, values)


def both(
    model: nn.Module,
    batch: Any,
    loss: Optional[Callable] = None,
    *,
    run_batch: Any = None,
    call: Optional[Callable] = None,
    masks: Optional[dict[str, Tensor]] = None,
    eager: Optional[nn.Module] = None,
    captured: Optional[Captured] = None,
    converted: Optional[Converted] = None,
    training: bool = True,
    any_batch: bool = True,
) -> Both:
    """Captures and converts with `batch`, then computes loss and gradients of `run_batch` both ways, in doubles.

    `eager` stands for the model on PyTorch's side where that must be another (with given dropout masks).
    """
    captured = captured or capture(model, loss, batch, call=call, training=training, any_batch=any_batch)
    converted = converted or convert(captured)
    run_batch = batch if run_batch is None else run_batch
    feed = doubled(captured.feed(run_batch))

    twin = copy.deepcopy(eager or model).double()
    twin.train(training)
    output = (call or (lambda m, b: default_call(m, b, loss is not None)))(twin, doubled(run_batch))
    eager_loss = loss(output, doubled(run_batch)) if loss else loss_of(output)
    eager_loss.backward()

    values = {name: tensor.clone() for name, tensor in doubled(converted.values).items()}
    trained = [name for name in captured.parameters if name in values]
    for name in trained:
        values[name].requires_grad_(captured.parameters[name].requires_grad)
    scalars = {"step_number": torch.tensor(3), "seed": torch.tensor(17)}
    document = converted.document
    section = document["training" if training else "evaluation"]
    size = captured.tensors_of(run_batch)[captured.batch_leaf].shape[0]
    run = reference.run(section, values | feed | scalars, batch=size, masks=masks)
    run.loss.backward()
    return Both(
        captured,
        converted,
        float(eager_loss.detach()),
        float(run.loss.detach()),
        {name: p.grad for name, p in twin.named_parameters() if p.grad is not None},
        {name: values[name].grad for name in trained if values[name].grad is not None},
        run,
    )


def assert_same(result: Both, tolerance: float = 1e-9) -> None:
    """Loss and every gradient: relative error of the norm, with a floor far below any gradient that matters."""
    scale = max(abs(result.eager_loss), 1e-3)
    assert abs(result.eager_loss - result.file_loss) <= tolerance * scale, (result.eager_loss, result.file_loss)
    largest = max((float(g.norm()) for g in result.eager.values()), default=1.0)
    for name, expected in result.eager.items():
        found = result.file.get(name)
        if found is None:
            assert float(expected.norm()) <= 1e-9 * largest, f"no gradient of {name}"
            continue
        error = float((found.reshape(expected.shape) - expected).norm())
        assert (
            error <= tolerance * float(expected.norm()) + 1e-12 * largest
        ), f"gradient of {name}: {error / float(expected.norm())}"
    assert set(result.file) <= set(result.eager)


def assert_bounded(x: Tensor, y: Tensor) -> None:
    """As a model might: here, since pytest writes the assertions of test files anew."""
    assert (x > -9).all(), "of the batch"
    assert torch.all(y.abs() < 99).item() and torch.all(y > -99)
    assert not torch.any(y > 99)

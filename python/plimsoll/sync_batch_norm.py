"""BatchNorm by the statistics of all ranks' batches: ``torch.nn.SyncBatchNorm``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def _as_of_one_process(module: nn.SyncBatchNorm, input: Tensor) -> Tensor:
    return _BatchNorm.forward(module, input)


@contextmanager
def synchronised_by_core() -> Iterator[None]:
    """Within it a SyncBatchNorm computes as a BatchNorm does; how its statistics are put together is the core's."""
    forward = nn.SyncBatchNorm.forward
    nn.SyncBatchNorm.forward = _as_of_one_process  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.SyncBatchNorm.forward = forward  # type: ignore[method-assign]


def has_sync_batch_norm(model: nn.Module, document: dict[str, Any], has_ranks: bool) -> bool:
    """Whether the statistics of batches are put together: all of them, or none."""
    synchronised = {name for name, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm)}
    if not synchronised or not has_ranks:
        return False
    norms = [op for op in document["training"]["ops"] if op["type"] == "BatchNormForward" and op.get("attributes", {}).get("training", 1)]
    others = sorted({op.get("layer", "") for op in norms} - synchronised)
    if others:
        raise ValueError(
            f"'{others[0]}' takes the statistics of its own rank's batch, and '{min(synchronised)}' those of all: make it one of them,"
            " as torch.nn.SyncBatchNorm.convert_sync_batchnorm does"
        )
    return bool(norms)

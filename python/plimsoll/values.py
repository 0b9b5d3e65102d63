"""Values of a graph's nodes."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import _AttrProxy


def run_node(node: Node, values: Mapping[Node, Any], device: torch.device | str = "cpu") -> Any:
    """One node on real tensors, on the device named instead of the one that it was exported for."""
    args, given = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
    kwargs = {key: device if key == "device" else value for key, value in given.items()}
    return node.target(*args, **kwargs)  # type: ignore[operator]


def has_values(tensor: Optional[Tensor]) -> bool:
    """False for tensors of the meta device and PyTorch's fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensor

    return tensor is not None and tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


def itself(module: nn.Module) -> nn.Module:
    """Where a module has two names, an export calls another object in the place of each module, a new one each time."""
    return module.get_base() if isinstance(module, _AttrProxy) else module  # type: ignore[attr-defined]


def as_reals(tensor: Tensor) -> Tensor:
    """A complex tensor as that of its pairs; any other as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def shaped_like(values: Tensor, like: Tensor) -> Tensor:
    """Values, of complex numbers their pairs, in the shape of `like`; the same memory."""
    return torch.view_as_complex(values.reshape(*like.shape, 2)) if like.is_complex() else values.reshape(like.shape)


Arguments = dict[str, Any]


def arguments(node: Node) -> Arguments:
    """All arguments of a node by the names of the operator's schema, defaults filled in."""
    values: Arguments = {}
    for i, formal in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if i < len(node.args):
            values[formal.name] = node.args[i]
        elif formal.name in node.kwargs:
            values[formal.name] = node.kwargs[formal.name]
        else:
            values[formal.name] = formal.default_value if formal.has_default_value() else None
    return values

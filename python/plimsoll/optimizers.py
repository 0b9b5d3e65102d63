"""What of a ``torch.optim`` optimizer the step takes over, and how it is given back.

The core updates the parameters itself, inside the memory budget. The optimizer object stays the user's handle: its
parameter groups are read at every step, and its ``state_dict`` has the states as soon as somebody asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import torch
from torch import nn

#: PyTorch's name of a state -> the core's suffix, by optimizer.
STATES = {"sgd": {"momentum_buffer": "momentum"}, "adam": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}}

#: Settings that are refused unless they have these values.
_PLAIN = {
    "sgd": {"dampening": 0, "maximize": False, "differentiable": False},
    "adam": {"amsgrad": False, "maximize": False, "differentiable": False, "capturable": False},
}


@dataclass
class Group:
    """A parameter group: its parameters by name, and the settings that a step is compiled with."""

    names: list[str]
    settings: dict[str, Any]


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """ "sgd", "adam" or "adamw"; raises TypeError for every other optimizer."""
    exact = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
    kind = exact.get(type(optimizer))
    if kind is None:
        raise TypeError(
            f"plimsoll trains by torch.optim.SGD, Adam and AdamW, not by {type(optimizer).__module__}."
            f"{type(optimizer).__qualname__}"
        )
    return kind


def _settings(kind: str, group: Mapping[str, Any], number: int) -> dict[str, Any]:
    for name, value in _PLAIN["sgd" if kind == "sgd" else "adam"].items():
        if group.get(name, value) not in (value, None):
            raise ValueError(f"parameter group {number}: {name}={group[name]} is not supported; leave it at {value}")
    common = {"weight_decay": float(group["weight_decay"])}
    if kind == "sgd":
        return common | {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
    beta1, beta2 = group["betas"]
    return common | {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(group["eps"])}


def adam_decouples(kind: str, optimizer: torch.optim.Optimizer) -> bool:
    """Whether weight decay is AdamW's: newer PyTorch has it as a setting of the group as well."""
    flags = {bool(group.get("decoupled_weight_decay", kind == "adamw")) for group in optimizer.param_groups}
    if len(flags) > 1:
        raise ValueError("all parameter groups must have the same decoupled_weight_decay")
    return flags.pop()


def groups_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[Group]:
    """The optimizer's groups with the names of their parameters. `names`: by the parameter's id.

    Parameters that need no gradient are left out, as PyTorch leaves them alone.
    """
    kind = kind_of(optimizer)
    result = []
    for number, group in enumerate(optimizer.param_groups):
        members = []
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            if id(parameter) not in names:
                raise ValueError(f"parameter group {number} has a parameter of shape {tuple(parameter.shape)} that the model has not: if"
                    " it is the loss's, put model and loss into one nn.Module and leave loss= out; if a list holds it, make that an"
                    " nn.ModuleList or nn.ParameterList")
            members.append(names[id(parameter)])
        result.append(Group(members, _settings(kind, group, number)))
    if not any(group.names for group in result):
        raise ValueError("no parameter of the optimizer requires a gradient, so that nothing would be trained")
    return result


def learning_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def changed_settings(optimizer: torch.optim.Optimizer, kind: str, groups: Sequence[Group]) -> dict[int, dict[str, Any]]:
    """By number, the settings of those groups whose settings are others than ``groups`` says, which is brought up to date.

    Schedulers change them from step to step. Raises ValueError where the step must be compiled anew for a change.
    """
    if len(optimizer.param_groups) != len(groups):
        raise ValueError("the optimizer has other parameter groups than the step was compiled with; compile anew")
    changed = {}
    for number, (group, known) in enumerate(zip(optimizer.param_groups, groups)):
        now = _settings(kind, group, number)
        if now == known.settings:
            continue
        momentum, before = now.get("momentum", 1), known.settings.get("momentum", 1)
        if now.get("nesterov") != known.settings.get("nesterov") or (momentum == 0) != (before == 0):
            raise ValueError(
                f"parameter group {number}: its form of momentum is another than when the step was compiled, which decides"
                " what states there are; compile anew"
            )
        known.settings = changed[number] = now
    return changed


def parameter_names(model: nn.Module, tied: Mapping[str, str]) -> dict[int, str]:
    """By the parameter's id, the name under which the network knows it."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), tied.get(name, name))
    return names

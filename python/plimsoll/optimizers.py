"""What of a ``torch.optim`` optimizer the step takes over, and how it is given back.

The core updates the parameters itself, inside the memory budget. The optimizer object stays the user's handle: its
parameter groups are read at every step, and its ``state_dict`` has the states as soon as somebody asks for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

import torch
from torch import nn

from .optimizer_state import states_of

#: PyTorch's name of a state -> the core's suffix, by optimizer.
STATES = {"sgd": {"momentum_buffer": "momentum"}, "adam": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}}

#: Settings that are refused unless they have these values.
_PLAIN = {
    "sgd": {"dampening": 0, "maximize": False, "differentiable": False},
    "adam": {"amsgrad": False, "maximize": False, "differentiable": False, "capturable": False},
}


@dataclass
class Group:
    """A parameter group: its parameters by name, and the settings that a step is compiled with.

    Adam counts the updates of every parameter, the core those of the step. So those of a group that began later, as a layer does that was
    frozen, are a group of their own, ``behind`` by so many updates.
    """

    names: list[str]
    settings: dict[str, Any]
    number: int = 0  # among the optimizer's
    behind: int = 0
    sent: dict[str, Any] = field(default_factory=dict)  # what the core has


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
    most = updates_made(optimizer)
    for number, group in enumerate(optimizer.param_groups):
        members: dict[int, list[str]] = {}  # by how many updates they are behind
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            if id(parameter) not in names:
                raise ValueError(f"parameter group {number} has a parameter of shape {tuple(parameter.shape)} that neither the model has, nor a module or a"
                    " variable that the loss names: if it is the loss's, put model and loss into one nn.Module and leave loss= out; if a tuple holds it, make that an"
                    " nn.ModuleList or nn.ParameterList")
            behind = 0 if kind == "sgd" else most - _updates_of(optimizer, parameter)
            members.setdefault(behind, []).append(names[id(parameter)])
        settings = _settings(kind, group, number)
        for behind, named in sorted(members.items()) or [(0, [])]:
            result.append(Group(named, settings, number, behind, settings))
    if not any(group.names for group in result):
        raise ValueError("no parameter of the optimizer requires a gradient, so that nothing would be trained")
    return result


def _updates_of(optimizer: torch.optim.Optimizer, parameter: Any) -> int:
    return int(states_of(optimizer, parameter).get("step", 0))


def updates_made(optimizer: torch.optim.Optimizer) -> int:
    """By the parameter that has had most; 0 for SGD, which does not count them."""
    return max((_updates_of(optimizer, p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad), default=0)


def learning_rates(optimizer: torch.optim.Optimizer, groups: Sequence[Group], made: int) -> list[float]:
    """Of each group, for the update behind so many."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return [rates[group.number] * (1 if group.behind == 0 else _corrections(group, made)[0]) for group in groups]


def _corrections(group: Group, made: int) -> tuple[float, float]:
    """By how much the update of parameters that are behind differs for Adam's corrections of the bias: the factor of the learning rate, and of
    epsilon, by which the core's becomes PyTorch's."""
    beta1, beta2 = group.settings["beta1"], group.settings["beta2"]
    core, own = made + 1, made + 1 - group.behind
    root = math.sqrt((1 - beta2**own) / (1 - beta2**core)) if beta2 > 0 else 1.0
    return (1 - beta1**core) / (1 - beta1**own) * root, root


def _for_the_core(group: Group, made: int, decoupled: bool) -> dict[str, Any]:
    if group.behind == 0:
        return group.settings
    rate, epsilon = _corrections(group, made)
    decay = group.settings["weight_decay"] / (rate if decoupled else 1)  # which is multiplied by the learning rate
    return group.settings | {"epsilon": group.settings["epsilon"] * epsilon, "weight_decay": decay}


def set_behind(optimizer: torch.optim.Optimizer, groups: Sequence[Group], parameters: Mapping[str, Any]) -> None:
    """What they are behind by the optimizer's states as they are now."""
    most = updates_made(optimizer)
    for group in groups:
        behind = {most - _updates_of(optimizer, parameters[name]) for name in group.names if name in parameters}
        if len(behind) > 1:
            raise ValueError("parameters of one group have had different numbers of updates by the optimizer's states, and had one when the step was compiled; compile anew")
        group.behind = behind.pop() if behind else 0


def changed_settings(optimizer: torch.optim.Optimizer, kind: str, groups: Sequence[Group], made: int) -> dict[int, dict[str, Any]]:
    """By number, the settings of those groups whose settings are others than ``groups`` says, which is brought up to date.

    Schedulers change them from step to step. Raises ValueError where the step must be compiled anew for a change.
    """
    if len(optimizer.param_groups) != len({group.number for group in groups}):
        raise ValueError("the optimizer has other parameter groups than the step was compiled with; compile anew")
    changed = {}
    decoupled = kind != "sgd" and adam_decouples(kind, optimizer)
    for i, known in enumerate(groups):
        number = known.number
        now = _settings(kind, optimizer.param_groups[number], number)
        momentum, before = now.get("momentum", 1), known.settings.get("momentum", 1)
        if now.get("nesterov") != known.settings.get("nesterov") or (momentum == 0) != (before == 0):
            raise ValueError(
                f"parameter group {number}: its form of momentum is another than when the step was compiled, which decides"
                " what states there are; compile anew"
            )
        known.settings = now
        if (asked := _for_the_core(known, made, decoupled)) != known.sent:
            known.sent = changed[i] = asked
    return changed

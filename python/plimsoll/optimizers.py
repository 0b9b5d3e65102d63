"""What of a ``torch.optim`` optimizer the step takes over, and how it is given back.

The core updates the parameters itself, inside the memory budget. The optimizer object stays the user's handle: its
parameter groups are read at every step, and its ``state_dict`` has the states as soon as somebody asks for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

import numpy as np
import torch

from .optimizer_state import states_of

_KINDS = {
    torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw", torch.optim.RMSprop: "rmsprop",
    torch.optim.Adagrad: "adagrad", torch.optim.Adadelta: "adadelta", torch.optim.Adamax: "adamax", torch.optim.NAdam: "nadam",
    torch.optim.RAdam: "radam", torch.optim.Adafactor: "adafactor",
}
#: By module and name, which need not be there.
_KINDS_BY_NAME = {
    ("transformers.optimization", "Adafactor"): "fairseq_adafactor", ("lion_pytorch.lion_pytorch", "Lion"): "lion", ("timm.optim.lion", "Lion"): "lion",
}

_ALIKE = {
    "adam": "exp_avg exp_avg_sq max_exp_avg_sq", "rmsprop": "square_avg grad_avg momentum_buffer", "adagrad": "sum",
    "adadelta": "square_avg acc_delta", "adamax": "exp_avg exp_inf", "nadam": "exp_avg exp_avg_sq", "radam": "exp_avg exp_avg_sq",
    "lion": "exp_avg", "adafactor": "row_var col_var variance", "fairseq_adafactor": "exp_avg_sq_row exp_avg_sq_col exp_avg_sq exp_avg",
}
#: PyTorch's name of a state -> the core's suffix, by optimizer. What a step has not of them its settings do without.
STATES = {"sgd": {"momentum_buffer": "momentum"}, **{kind: {name: name for name in names.split()} for kind, names in _ALIKE.items()}}
STATES["adamw"] = STATES["adam"]

#: Those of a matrix's rows or columns: the parameter's dimension, from the last, over which they are a mean, and whether it is kept.
_MEANS = {"row_var": (1, True), "col_var": (2, True), "exp_avg_sq_row": (1, False), "exp_avg_sq_col": (2, False)}

#: States that are a number: how many updates there were, and NAdam's product of mu.
NUMBERS = ("step", "mu_product")

#: Settings that the core has by PyTorch's name; of yes and no the step is compiled with what they are.
_NUMBERS_OF_CORE = ("dampening", "alpha", "beta2_decay", "clip_threshold", "momentum", "lr_decay", "initial_accumulator_value", "rho", "momentum_decay")
_FORMS = ("maximize", "amsgrad", "centered", "decoupled_weight_decay", "scale_parameter", "relative_step", "warmup_init")
#: What the core's own update of SGD and Adam does not know.
#: Other names of settings.
_CORE_NAMES = {"d": "clip_threshold", "decay_rate": "beta2_decay"}
#: Optimizers that do not count their updates.
UNCOUNTED = ("sgd", "lion")
_MORE = {"sgd": ("dampening", "maximize"), "adam": ("amsgrad", "maximize"), "adamw": ("amsgrad", "maximize")}
_REFUSED = ("differentiable", "capturable")


@dataclass
class Group:
    """A parameter group: its parameters by name, and the settings that a step is compiled with.

    PyTorch counts the updates of every parameter, the core those of the step. So those of a group that began later, as a layer does that was
    frozen, are a group of their own, ``behind`` by so many updates.
    """

    names: list[str]
    settings: dict[str, Any]
    number: int = 0  # among the optimizer's
    behind: int = 0
    mu_product: Optional[float] = None  # NAdam's, behind update number `made`
    made: int = 0
    sent: dict[str, Any] = field(default_factory=dict)  # what the core has


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """ "sgd", "adam" and so on; raises TypeError for an optimizer that the core does not have."""
    kind = _KINDS.get(type(optimizer)) or _KINDS_BY_NAME.get((type(optimizer).__module__, type(optimizer).__qualname__))
    if kind is None:
        raise TypeError(
            f"plimsoll trains by torch.optim.{', '.join(known.__name__ for known in _KINDS)}, transformers' Adafactor and the Lion of timm and lion_pytorch,"
            f" not by {type(optimizer).__module__}."
            f"{type(optimizer).__qualname__}. What another does beside such updates, as Lookahead's average of weights, can be done to the parameters between steps;"
            " what takes a gradient elsewhere first, as SAM, within the loss: g = torch.autograd.grad(first_loss, parameters), then"
            " torch.func.functional_call(model, {name: p + (rho * g / norm).detach() ...}, inputs), and the optimizer that SAM would be given"
        )
    return kind


def state_shape(name: str, parameter: torch.Tensor) -> torch.Size:
    """PyTorch's shape of a parameter's state."""
    if name not in _MEANS:
        return parameter.shape
    dimension, kept = _MEANS[name]
    shape = list(parameter.shape)
    shape[-dimension : len(shape) - dimension + 1] = [1] * kept
    return torch.Size(shape)


def number_as_theirs(optimizer: torch.optim.Optimizer, number: float) -> Any:
    """A state that is a number, as the optimizer keeps it."""
    return int(number) if kind_of(optimizer) == "fairseq_adafactor" else torch.tensor(float(number))


def by_formulas(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the core updates by the formulas of src/autodiff/update_rules.cpp: it does but for the plain forms of SGD and Adam."""
    more = _MORE.get(kind_of(optimizer))
    return more is None or any(group.get(name) for group in optimizer.param_groups for name in more)


def _settings(kind: str, group: Mapping[str, Any], number: int, formulas: bool) -> dict[str, Any]:
    for name in _REFUSED:
        if group.get(name):
            raise ValueError(f"parameter group {number}: {name}={group[name]} is not supported; leave it at False")
    if kind.endswith("adafactor") and any(parameter.is_complex() for parameter in group["params"]):
        raise ValueError(f"parameter group {number}: Adafactor has no updates of complex parameters; choose another optimizer")
    if kind == "lion" and (group.get("caution") or group.get("corrected_weight_decay") or group.get("cautious_factor", 1) != 1):
        raise ValueError(f"parameter group {number}: a cautious Lion (caution, cautious_factor below 1) and corrected_weight_decay are not supported; leave them out")
    result: dict[str, Any] = {"weight_decay": float(group["weight_decay"])}
    betas = {f"beta{i}": float(beta) for i, beta in enumerate(group.get("betas", ()), 1)}
    if kind == "sgd":
        result |= {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
    elif kind in ("adam", "adamw"):
        result |= {**betas, "epsilon": float(group["eps"])}
    if kind in _MORE:
        more = {name: float(group.get(name) or 0) for name in _MORE[kind]}
        if not formulas and any(more.values()):
            raise ValueError(f"parameter group {number}: the step was compiled while {' and '.join(more)} were 0 or False; compile anew")
        return result | ({"settings": more} if formulas else {})
    own = {_CORE_NAMES.get(name, name): float(group[name] or 0) for name in (*_NUMBERS_OF_CORE, *_CORE_NAMES, *_FORMS) if name in group}
    if kind in ("adafactor", "fairseq_adafactor"):
        first, second = group["eps"]
        own |= {"eps1": float(torch.finfo(torch.float32).eps if first is None else first), "eps2": float(second)}
    elif "eps" in group:
        own["eps"] = float(group["eps"])
    if kind == "fairseq_adafactor":
        own["momentum"] = float(group["beta1"] or 0)
    return result | {"settings": betas | own}


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
    kind, formulas = kind_of(optimizer), by_formulas(optimizer)
    if getattr(optimizer, "decoupled_wd", False):
        raise ValueError("Lion(decoupled_weight_decay=True) is not supported; leave it out, and give weight_decay divided by the first learning rate")
    result = []
    seen: set[str] = set()
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
            if names[id(parameter)] in seen:
                raise ValueError(f"the optimizer has the memory of '{names[id(parameter)]}' twice, and would update it twice a step; give it one nn.Parameter, which two modules may have (self.b = self.a)")
            seen.add(names[id(parameter)])
            behind = most - _updates_of(optimizer, parameter, most)
            members.setdefault(behind, []).append(names[id(parameter)])
        settings = _settings(kind, group, number, formulas)
        for behind, named in sorted(members.items()) or [(0, [])]:
            result.append(Group(named, settings, number, behind, sent=settings))
    if not any(group.names for group in result):
        raise ValueError("no parameter of the optimizer requires a gradient, so that nothing would be trained")
    return result


def _updates_of(optimizer: torch.optim.Optimizer, parameter: Any, made: int = 0) -> int:
    """Where ``made`` are those of the step. SGD does not count them: its first one is that which makes the momentum."""
    state = states_of(optimizer, parameter)
    if kind_of(optimizer) == "lion":
        return made
    if kind_of(optimizer) != "sgd":
        return int(state.get("step", 0))
    if not by_formulas(optimizer):
        return made
    return 0 if state.get("momentum_buffer") is None else max(made, 1)


def updates_made(optimizer: torch.optim.Optimizer) -> int:
    """By the parameter that has had most; 0 for SGD and Lion, which do not count them."""
    if kind_of(optimizer) in UNCOUNTED:
        return 0
    return max((_updates_of(optimizer, p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad), default=0)


def learning_rates(optimizer: torch.optim.Optimizer, groups: Sequence[Group], made: int) -> list[float]:
    """Of each group, for the update behind so many."""
    rates = [float(group["lr"] or 0) for group in optimizer.param_groups]
    return [rates[group.number] * (1 if group.behind == 0 or "settings" in group.settings else _corrections(group, made)[0]) for group in groups]


def _corrections(group: Group, made: int) -> tuple[float, float]:
    """By how much the update of parameters that are behind differs for Adam's corrections of the bias: the factor of the learning rate, and of
    epsilon, by which the core's becomes PyTorch's."""
    beta1, beta2 = group.settings["beta1"], group.settings["beta2"]
    core, own = made + 1, made + 1 - group.behind
    root = math.sqrt((1 - beta2**own) / (1 - beta2**core)) if beta2 > 0 else 1.0
    return (1 - beta1**core) / (1 - beta1**own) * root, root


def mu_product(group: Group, made: int) -> Optional[float]:
    """NAdam's behind so many updates of the step, for whose last one the group's settings still are what they were; None for the others."""
    if group.mu_product is not None and made > group.made:
        settings = group.settings["settings"]
        mu = settings["beta1"] * (1 - 0.5 * 0.96 ** ((made - group.behind) * settings["momentum_decay"]))
        group.mu_product = float(np.float32(group.mu_product) * np.float32(mu))  # as PyTorch keeps it
        group.made = made
    return group.mu_product


def _for_the_core(group: Group, made: int, decoupled: bool) -> dict[str, Any]:
    if "settings" in group.settings:
        product = {} if group.mu_product is None else {"mu_product": group.mu_product}
        return group.settings | {"behind": group.behind} | product
    if group.behind == 0:
        return group.settings
    rate, epsilon = _corrections(group, made)
    decay = group.settings["weight_decay"] / (rate if decoupled else 1)  # which is multiplied by the learning rate
    return group.settings | {"epsilon": group.settings["epsilon"] * epsilon, "weight_decay": decay}


def counts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps how many updates there were of a parameter, or goes by that."""
    return kind_of(optimizer) not in UNCOUNTED or by_formulas(optimizer)


def are_as_counted(optimizer: torch.optim.Optimizer, groups: Sequence[Group], parameters: Mapping[str, Any], made: int) -> bool:
    """Whether the optimizer's states are of as many updates as ``groups`` say."""
    return all(_updates_of(optimizer, parameters[name], made) == made - group.behind for group in groups for name in group.names if name in parameters)


def set_behind(optimizer: torch.optim.Optimizer, groups: Sequence[Group], parameters: Mapping[str, Any], made: int) -> None:
    """What they are behind the ``made`` updates of the step by the optimizer's states as they are now, and NAdam's products. ``parameters``: those that tell it."""
    for group in groups:
        members = [parameters[name] for name in group.names if name in parameters]
        if group.names and not members:
            continue
        behind = {made - _updates_of(optimizer, parameter, made) for parameter in members}
        products = {float(states_of(optimizer, parameter).get("mu_product", 1)) for parameter in members}
        if len(behind) > 1 or len(products) > 1:
            raise ValueError("parameters of one group have had different numbers of updates by the optimizer's states, and had one when the step was compiled; compile anew")
        group.behind = behind.pop() if behind else 0
        if kind_of(optimizer) == "nadam":
            group.mu_product, group.made = (products.pop() if products else 1.0), made


def changed_settings(optimizer: torch.optim.Optimizer, kind: str, groups: Sequence[Group], made: int) -> dict[int, dict[str, Any]]:
    """By number, the settings of those groups whose settings are others than ``groups`` says, which is brought up to date.

    Schedulers change them from step to step. Raises ValueError where the step must be compiled anew for a change.
    """
    if len(optimizer.param_groups) != len({group.number for group in groups}):
        raise ValueError("the optimizer has other parameter groups than the step was compiled with; compile anew")
    changed = {}
    decoupled = kind in ("adam", "adamw") and adam_decouples(kind, optimizer)
    for i, known in enumerate(groups):
        number = known.number
        mu_product(known, made)
        now = _settings(kind, optimizer.param_groups[number], number, "settings" in known.settings)
        flat, before = ({**settings, **settings.get("settings", {})} for settings in (now, known.settings))
        for name in _FORMS:
            if flat.get(name) != before.get(name):
                raise ValueError(f"parameter group {number}: {name} is another than when the step was compiled; compile anew")
        if flat.get("nesterov") != before.get("nesterov") or (flat.get("momentum", 1) == 0) != (before.get("momentum", 1) == 0):
            raise ValueError(
                f"parameter group {number}: its form of momentum is another than when the step was compiled, which decides"
                " what states there are; compile anew"
            )
        known.settings = now
        if (asked := _for_the_core(known, made, decoupled)) != known.sent:
            known.sent = changed[i] = asked
    return changed

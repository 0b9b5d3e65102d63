"""Batches that train different parts of a model, as those of several tasks do: where the states of all lie, and whose updates are counted apart.

PyTorch's optimizers leave a parameter alone that no gradient reaches, and count the updates of each. The core's memory is laid out for one network, and it
counts the updates of each group. So the network that the memory is laid out for keeps what any batch trains (``with_states_of``), and parameters
that only some batches train are groups of their own (``apart``), which are behind by the updates that left them out (``leave_out``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Collection, Iterable, Optional, Sequence

from .capture import Captured
from .divide import Place
from .forms import Form, states_of
from .optimizers import Group


def beyond(form: Form, base: Form, in_optimizer: Collection[int]) -> list[str]:
    """The parameters that a batch would train, and the buffers that it would change, of which ``base``, what the memory is laid out for, has no states, or which it
    only reads. ``in_optimizer``: the optimizer's parameters, by id."""
    captured, fed = form.captured, form.fed
    more = [name for name, parameter in captured.parameters.items() if name in fed and parameter.requires_grad and id(parameter) in in_optimizer]
    more += sorted(form.trained - base.trained)
    changed = captured.first.updates
    return more + [name for name in captured.buffers if name in fed and (more or name in changed)]


def changed_buffers(*captured: Captured) -> dict[int, bool]:
    """Those that steps of these networks change, by their ids; whether the core does."""
    return {id(c.buffers[name]): name not in c.division.dynamic for c in captured for name in c.first.updates if name in c.buffers}


def is_outdated(captured: Captured, changing: Collection[int]) -> bool:
    """Whether a network has a buffer as a constant that others change now."""
    program, places = captured.first, captured.division.places
    return any(
        source.kind == "buffer" and places[i] == Place.CONSTANT and program.nodes[i].users and id(captured.buffers.get(source.name)) in changing
        for i, source in program.sources.items()
    )


def with_states_of(base: Form, other: Form, names: Sequence[str]) -> Optional[Form]:
    """What ``base`` is, with those states of the other too: they have gradients, all zeros, of something that is never chosen. It is never run. None where
    they are of types that this cannot be said of."""
    section, wanted = base.section, set(names)
    tensors = [dict(tensor) for tensor in other.converted.document["training"]["tensors"] if tensor["name"] in wanted]
    if len(tensors) < len(wanted) or any(tensor["dtype"] != "f32" or not all(isinstance(n, int) for n in tensor["shape"]) for tensor in tensors):
        return None
    ops, loss = list(section["ops"]), section["objectives"][0]["loss"]

    def add(kind: str, name: str, inputs: list[str], result: list[int], **attributes: object) -> str:
        ops.append({"type": kind, "name": name, "layer": name, "inputs": inputs, "outputs": [f"{name}/y"], "shapes": [result], "attributes": attributes})
        return f"{name}/y"

    for tensor in tensors:
        if tensor["role"] != "parameter":
            continue
        name, count = tensor["name"], math.prod(tensor["shape"])
        one = add("Reshape", f"{name}/kept.flat", [name], [count], shape=[count])
        if count > 1:
            one = add("Slice", f"{name}/kept.one", [one], [1], axis=0, begin=0, size=1)
        one = add("Reshape", f"{name}/kept.scalar", [one], [], shape=[])
        loss = add("Pointwise", f"{name}/kept", [loss, one], [], expression="where(lt(abs(x1),-1.0),x1,x0)")
    inputs = [tensor for tensor in section["tensors"] if tensor["role"] == "input"]
    has = states_of(section)
    others = [tensor for tensor in section["tensors"] if tensor["role"] != "input"]
    section = {**section, "tensors": [*inputs, *(tensor for tensor in tensors if tensor["name"] not in has), *others], "ops": ops, "objectives": [{"loss": loss}]}
    values = {**base.converted.values, **{name: other.converted.values[name] for name in names if name in other.converted.values}}
    return Form(base.captured, replace(base.converted, document={**base.converted.document, "training": section}, values=values))


def are_mixed(groups: Iterable[Group], trained: Sequence[Collection[str]]) -> bool:
    """Whether some batches train only a part of what is trained of a group."""
    by_any = set().union(*trained)
    return any(0 < len(members.intersection(some)) < len(members) for group in groups for members in [by_any.intersection(group.names)] for some in trained)


def apart(groups: Iterable[Group], base: Form, trained: Sequence[Collection[str]]) -> list[Group]:
    """The groups, each in as many as have parameters that batches train otherwise. ``trained``: what those of each kind train."""
    kept, frozen = states_of(base.section), set(base.section["frozen"])
    result = []
    for group in groups:
        members: dict[tuple, list[str]] = {}
        for name in group.names:
            if name in kept and name not in frozen:
                members.setdefault(tuple(name in some for some in trained), []).append(name)
        for names in list(members.values()) or [[]]:
            result.append(replace(group, names=names, sent=group.settings))
    return result


def told(groups: Iterable[Group]) -> list[dict[str, object]]:
    """As the core is told of them."""
    return [{"parameters": group.names, **group.settings} for group in groups]


def leave_out(groups: Iterable[Group], trained: Collection[str], made: int) -> None:
    """Behind an update, the one after ``made``: those of whose parameters it trained none are one more behind."""
    for group in groups:
        if group.names and not any(name in trained for name in group.names):
            group.behind += 1
            group.made = made + 1  # NAdam's product stays as it is

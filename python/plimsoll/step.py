"""A training step in a stated number of bytes: what ``plimsoll.compile`` makes.

    step = plimsoll.compile(model, opt, loss=loss, example=batch, memory="4GiB")
    for batch in loader:
        value = step(batch)
        scheduler.step()

The step holds parameters, optimizer states and everything that it computes with in one arena of that size. The module
and the optimizer stay what they were to the user: their tensors are brought up to date when somebody asks for them.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from typing import Any, Callable, Mapping, Optional, Union

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from . import _core, optimizers
from .capture import Captured, capture
from .convert import Converted, convert
from .infeasible import Infeasible

Size = Union[str, int]
_DTYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}


def _core_options(optimizer: torch.optim.Optimizer, groups: list[optimizers.Group], accumulate: int,
                  clip_grad_norm: float, **flags: Any) -> str:
    kind = optimizers.kind_of(optimizer)
    if kind != "sgd":
        kind = "adamw" if optimizers.adam_decouples(kind, optimizer) else "adam"
    told = {name: value for name, value in flags.items() if value is not None}
    told["optimizer"] = {
        "name": kind,
        "accumulate": accumulate,
        "clip_grad_norm": clip_grad_norm,
        "groups": [{"parameters": group.names, **group.settings} for group in groups],
    }
    return json.dumps(told)


def _feed(captured: Captured, section: Mapping[str, Any], batch: Any, feed: Callable[[str, Any], None]) -> None:
    given = captured.feed(batch)
    for tensor in section["tensors"]:
        if tensor["role"] == "input":
            value = given[tensor["name"]].detach().to(device="cpu", dtype=_DTYPES[tensor["dtype"]]).contiguous()
            feed(tensor["name"], value.numpy())


# The steps of a module: what they hold is brought into its tensors before anybody reads them.
_steps: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Step]]" = weakref.WeakKeyDictionary()


def _bring_up_to_date(model: nn.Module) -> None:
    """Before an export, which must not meet a hook that writes values."""
    for module in model.modules():
        for step in list(_steps.get(module, ())):
            step.sync()


def _weak_hook(step: "Step") -> Callable[..., None]:
    """Brings module and optimizer up to date, and does not keep the step's memory alive."""
    held = weakref.ref(step)

    def sync(*_: Any) -> None:
        step = held()
        if step is not None:
            step.sync()

    return sync


class _Progress:
    """A line on standard error while kernels are measured, where that is a terminal."""

    def __init__(self, wanted: bool):
        self.wanted, self.shown = wanted and sys.stderr.isatty(), False

    def __call__(self, what: str, done: int, total: int) -> None:
        if self.wanted:
            sys.stderr.write(f"\r\033[Kplimsoll: measuring kernels {done}/{total} {what[:60]}")
            sys.stderr.flush()
            self.shown = True

    def end(self) -> None:
        if self.shown:
            sys.stderr.write("\r\033[K")


class Step:
    """A compiled training step. Call it with a batch: it trains, and returns the loss.

    ``step.outputs`` are what ``outputs=`` picked, of the last batch; ``step.plan`` the plan as a dictionary (peak,
    predicted time, traffic); ``step.report("x.html")`` draws it; ``step.explain(name)`` tells about a tensor or layer.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, captured: Captured,
                 converted: Converted, options: str, groups: list[optimizers.Group],
                 capture_evaluation: Callable[[], Captured], progress: bool):
        self._model, self._optimizer, self._captured = model, optimizer, captured
        self._kind, self._groups = optimizers.kind_of(optimizer), groups
        document = converted.document
        self._values = converted.values
        section = document["training"]
        self._name, self._batch = document["name"], document["batch"]
        self._section = section
        self._tensors = {tensor["name"]: tensor for tensor in section["tensors"]}
        self._capture_evaluation, self._evaluation = capture_evaluation, None
        self._output_names = list(section.get("outputs", []))
        shown = _Progress(progress)
        try:
            self._core = _core.Step(json.dumps(document), options, shown)
        except _core.InfeasibleAnswer as answer:
            raise Infeasible.from_core(*answer.args) from None
        finally:
            shown.end()
        self._states = set(self._core.states)
        self._seed = int(torch.initial_seed() & 0x7FFFFFFFFFFFFFFF)
        self._stale = False
        self._push()
        hook = _weak_hook(self)
        self._hooks = [
            model.register_state_dict_pre_hook(hook),
            model.register_forward_pre_hook(hook),
            optimizer.register_state_dict_pre_hook(hook),
        ]
        _steps.setdefault(model, weakref.WeakSet()).add(self)

    def __del__(self) -> None:
        """What was trained outlives the step."""
        if hasattr(self, "_hooks") and not sys.is_finalizing():
            self.sync()
            for hook in self._hooks:
                hook.remove()

    # --- training ---

    def __call__(self, batch: Any) -> float:
        """Trains on one batch; returns its loss. Where gradients are accumulated, every call is one batch of a step."""
        optimizers.check_unchanged(self._optimizer, self._kind, self._groups)
        _feed(self._captured, self._section, batch, self._core.feed)
        loss = self._core.run(optimizers.learning_rates(self._optimizer))
        self._optimizer._opt_called = True  # for schedulers, which warn where nobody has made a step
        self._stale = True
        return loss

    def evaluate(self, batch: Any) -> float:
        """The loss of a batch in evaluation mode (no dropout, running statistics), in the same memory. Nothing is trained;
        ``step.evaluation_outputs`` are what ``outputs=`` picked."""
        if self._evaluation is None:
            self.sync()
            captured = self._capture_evaluation()
            converted = convert(captured, label_dtype="i32")
            self._evaluation = captured, converted.document["evaluation"]
            self._core.prepare_evaluation(json.dumps(converted.document), 0)
        captured, section = self._evaluation
        _feed(captured, section, batch, self._core.feed_evaluation)
        return self._core.evaluate()

    @property
    def evaluation_outputs(self) -> dict[str, Tensor]:
        names = self._evaluation[1].get("outputs", []) if self._evaluation else []
        return {name: torch.from_numpy(self._core.evaluation_output(name)) for name in names}

    @property
    def outputs(self) -> dict[str, Tensor]:
        """Of the last batch, what ``outputs=`` picked."""
        return {name: torch.from_numpy(self._core.output(name)) for name in self._output_names}

    @property
    def gradient_norm(self) -> Optional[float]:
        """Of the last step, before it was clipped; None where it is not."""
        return self._core.gradient_norm

    # --- what the user sees of module and optimizer ---

    def _states_of(self, parameter: str) -> dict[str, str]:
        known = optimizers.STATES["sgd" if self._kind == "sgd" else "adam"]
        return {theirs: f"{parameter}.{ours}" for theirs, ours in known.items() if f"{parameter}.{ours}" in self._states}

    def _set(self, name: str, value: Tensor) -> None:
        dtype = _DTYPES[self._tensors[name]["dtype"]] if name in self._tensors else torch.float32
        self._core.set_state(name, value.detach().to(device="cpu", dtype=dtype).contiguous().numpy())

    def _push(self) -> None:
        """Module and optimizer -> arena."""
        tensors = {**self._values, **self._captured.buffers, **self._captured.parameters}
        for name, tensor in tensors.items():
            if name in self._states:
                self._set(name, tensor)
        number = 0
        for name, parameter in self._captured.parameters.items():
            state = self._optimizer.state.get(parameter, {})
            number = max(number, int(state.get("step", 0)))
            for theirs, ours in self._states_of(name).items():
                value = state.get(theirs)
                self._set(ours, torch.zeros_like(parameter) if value is None else value)
        self._core.start_at(number, self._seed)

    def sync(self) -> None:
        """Brings the module's parameters and buffers, and the optimizer's states, up to date. Reading a ``state_dict``
        of either, or running the module, does it by itself."""
        if not self._stale:
            return
        self._stale = False
        with torch.no_grad():
            for name, tensor in {**self._captured.parameters, **self._captured.buffers}.items():
                if name in self._states:
                    tensor.copy_(self._get(name).reshape(tensor.shape))
        for name, parameter in self._captured.parameters.items():
            ours = self._states_of(name)
            if not ours:
                continue
            state = self._optimizer.state[parameter]
            for theirs, core_name in ours.items():
                state[theirs] = self._get(core_name).reshape(parameter.shape)
            if self._kind != "sgd":
                state["step"] = torch.tensor(float(self._core.number))

    def _get(self, name: str) -> Tensor:
        return torch.from_numpy(self._core.state(name))

    def refresh(self) -> None:
        """The other way: takes over what the user has written into module or optimizer, as ``load_state_dict`` does."""
        self._push()
        self._stale = False

    # --- files ---

    def save(self, path: Union[str, os.PathLike]) -> None:
        """Everything that training needs to go on: parameters, buffers, optimizer, and the state of randomness."""
        self.sync()
        content = {
            "format": "plimsoll step",
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "number": self._core.number,
            "seed": self._seed,
            "torch_rng": torch.get_rng_state(),
        }
        partial = f"{os.fspath(path)}.partial"
        with open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    def load(self, path: Union[str, os.PathLike]) -> None:
        """Goes on where ``save`` stopped."""
        content = torch.load(path, weights_only=True)
        if content.get("format") != "plimsoll step":
            raise ValueError(f"{path} was not written by step.save")
        self._model.load_state_dict(content["model"])
        self._optimizer.load_state_dict(content["optimizer"])
        self._seed = content["seed"]
        torch.set_rng_state(content["torch_rng"])
        self._push()
        self._core.start_at(content["number"], self._seed)
        self._stale = False

    # --- about the plan ---

    @property
    def plan(self) -> dict[str, Any]:
        return json.loads(self._core.plan())

    def report(self, path: Union[str, os.PathLike]) -> None:
        """Writes the plan as one HTML file with charts."""
        self._core.report(os.fspath(path), self._name, self._batch)

    def explain(self, name: str) -> str:
        """Tells where a tensor or a layer lies when, and why."""
        return self._core.explain(name)


def compile(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss: Optional[Callable[[Any, Any], Tensor]] = None,
    example: Any,
    memory: Optional[Size] = None,
    host_memory: Optional[Size] = None,
    spill: Optional[str] = None,
    memory_is: str = "arena",
    policy: str = "auto",
    placement: str = "offline",
    exact: bool = False,
    threads: int = 0,
    device: str = "cpu",
    costs: str = "measured",
    accumulate: int = 1,
    clip_grad_norm: float = 0.0,
    outputs: Optional[Callable[[Any], Any]] = None,
    call: Optional[Callable[[nn.Module, Any], Any]] = None,
    progress: bool = True,
) -> Step:
    """Plans a training step of `model` inside `memory` and takes that memory.

    ``loss(output, batch)`` gives the loss; left out, the model returns it. ``example`` is a batch as the loader gives it.
    Sizes are bytes or texts as "4GiB". Raises ``Infeasible`` where no plan fits, with the least that would do, and
    ``Unsupported`` where the network holds what cannot be trained, before anything is allocated.
    """
    captured, converted, groups = _captured(model, optimizer, loss, example, outputs, call)
    options = _core_options(
        optimizer, groups, accumulate, clip_grad_norm, memory=memory, host_memory=host_memory, spill=spill,
        memory_is=memory_is, policy=policy, placement=placement, exact=exact, threads=threads, device=device, costs=costs,
    )
    evaluation = lambda: capture(model, loss, example, outputs=outputs, call=call, training=False)  # noqa: E731
    return Step(model, optimizer, captured, converted, options, groups, evaluation, progress)


def _captured(model, optimizer, loss, example, outputs, call):
    optimizers.kind_of(optimizer)
    _bring_up_to_date(model)
    example = _on_device_of(model, example)
    captured = capture(model, loss, example, outputs=outputs, call=call)
    converted = convert(captured, label_dtype="i32")
    document = converted.document
    groups = optimizers.groups_of(optimizer, optimizers.parameter_names(model, captured.tied))
    trained = {t["name"] for t in document["training"]["tensors"] if t["role"] == "parameter"}
    for group in groups:
        group.names = [name for name in group.names if name in trained]
    in_groups = {name for group in groups for name in group.names}
    frozen = document["training"].setdefault("frozen", [])
    frozen.extend(sorted(trained - in_groups - set(frozen)))
    return captured, converted, groups


def _on_device_of(model: nn.Module, example: Any) -> Any:
    """The example for a model without values has none either."""
    if not any(parameter.is_meta for parameter in model.parameters()):
        return example
    return pytree.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, example)


def fits(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss: Optional[Callable[[Any, Any], Tensor]] = None,
    example: Any,
    memory: Size,
    host_memory: Optional[Size] = None,
    spill: Optional[str] = None,
    policy: str = "auto",
    exact: bool = False,
    threads: int = 0,
    device: str = "cpu",
    call: Optional[Callable[[nn.Module, Any], Any]] = None,
) -> dict[str, Any]:
    """Whether a training step fits, and what it would cost, before any weight exists: the model may be on the meta
    device. Gives ``feasible``, ``minimum_bytes``, ``proven`` and, where it fits, ``step_time_ms``."""
    _, converted, groups = _captured(model, optimizer, loss, example, None, call)
    options = _core_options(
        optimizer, groups, 1, 0.0, memory=memory, host_memory=host_memory, spill=spill, policy=policy, exact=exact,
        threads=threads, device=device, costs="estimated",
    )
    return json.loads(_core.fits(json.dumps(converted.document), options))

"""What an exported graph does not show, though PyTorch would do it at every step: refused by name, so that no step does less.

Hooks on gradients and optimizers; the backward of a ``torch.autograd.Function``; buffers and tensors that the forward pass
puts other tensors in the place of; and what Python computes anew at every call, a count or a random number.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.nn.modules import module as modules
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.utils.checkpoint import CheckpointFunction

from .chosen import depends
from .errors import Unsupported, UnsupportedOp
from .functions import again, followed
from .values import itself

FOREIGN = (str(Path(torch.__file__).parent / "_")[:-1], str(Path(__file__).parent / "_")[:-1])  # lines of these are not the user's

# --- hooks -----------------------------------------------------------------------------------------------------------

_OF_MODULES = {"_backward_hooks": "register_full_backward_hook", "_backward_pre_hooks": "register_full_backward_pre_hook"}
_OF_TENSORS = {"_backward_hooks": "register_hook", "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook"}
_OF_OPTIMIZERS = {"_optimizer_step_pre_hooks": "register_step_pre_hook", "_optimizer_step_post_hooks": "register_step_post_hook"}
_OF_ALL_MODULES = {"_global_backward_hooks": "register_module_full_backward_hook", "_global_backward_pre_hooks": "register_module_full_backward_pre_hook"}
_OF_ALL_OPTIMIZERS = {"_global_optimizer_pre_hooks": "register_optimizer_step_pre_hook", "_global_optimizer_post_hooks": "register_optimizer_step_post_hook"}


def refuse_unseen(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises ``Unsupported`` with all hooks that PyTorch would call in the backward pass or beside an update, with modules that
    cannot be followed, and with those whose gradients PyTorch's optimizer would not take."""
    told = _hooks_of(modules, "every module", _OF_ALL_MODULES) + _hooks_of(optimizers, "every optimizer", _OF_ALL_OPTIMIZERS)
    for name, module in model.named_modules():
        told += _hooks_of(module, name, _OF_MODULES)
    told += _not_followed(model) + _not_updated(model, optimizer)
    for name, parameter in model.named_parameters():
        told += _hooks_of(parameter, name, _OF_TENSORS)
    told += _hooks_of(optimizer, "the optimizer", _OF_OPTIMIZERS)
    if told:
        raise Unsupported(told)


def is_hooked(modules_: Sequence[nn.Module], parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> bool:
    """Whether ``refuse_unseen`` may find a hook: it is asked before every step."""
    for module in modules_:
        if module._backward_hooks or module._backward_pre_hooks:
            return True
    for parameter in parameters:
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return True
    own = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]  # type: ignore[attr-defined]
    return not all(getattr(hook, "is_of_a_step", False) for hook in own) or any(
        getattr(owner, field, None) for owner, kinds in ((modules, _OF_ALL_MODULES), (optimizers, _OF_ALL_OPTIMIZERS)) for field in kinds
    )


_DETECTORS = ("GeneralizedRCNN", "RetinaNet", "FCOS", "SSD")


def _not_followed(module: nn.Module, name: str = "") -> list[UnsupportedOp]:
    if isinstance(module, torch.jit.ScriptModule):
        reason = "a scripted module has no Python that could be followed; give the nn.Module that it was made from"
    elif isinstance(module, NormBase) and module.training and module.track_running_stats and module.momentum is None:
        reason = "with momentum=None Python divides by the number of batches, which a step would keep as it was; give a momentum, as 0.1"
    elif any(c.__module__.startswith("torchvision.models.detection.") and c.__name__ in _DETECTORS for c in type(module).__mro__):
        reason = (
            "a detector of torchvision draws the size of its images, and which boxes count for its losses depends on their values (assignment to targets, nms): a network has no such"
            " sizes. What it is made of trains: give model.backbone and model.head images of one size, and a loss of targets that are assigned to anchors before, in the loader"
        )
    else:
        return [told for key, child in module.named_children() for told in _not_followed(child, f"{name}.{key}" if name else key)]
    return [UnsupportedOp(type(module).__name__, name, "", reason)]


def _not_updated(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[UnsupportedOp]:
    """Embeddings of sparse gradients, where PyTorch has an error at the first update. SGD and Adagrad train them as others."""
    takes = isinstance(optimizer, (torch.optim.SGD, torch.optim.Adagrad))
    if not takes and type(optimizer).__module__.split(".")[0] != "torch":
        return []
    trained = {id(p) for group in optimizer.param_groups if not takes or group["weight_decay"] != 0 for p in group["params"]}
    reason = (
        f"{type(optimizer).__name__}{' with weight decay' if takes else ''} does not take sparse"
        " gradients; leave sparse=True out: a step keeps the gradient of an embedding sparse by itself, and trains as with a dense one"
    )
    return [
        UnsupportedOp(f"{type(module).__name__}(sparse=True)", name, "", reason)
        for name, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and module.weight.requires_grad and id(module.weight) in trained
    ]


def _hooks_of(owner: Any, name: str, kinds: dict[str, str]) -> list[UnsupportedOp]:
    reason = "the step would not call this hook; remove it, or do what it does in the loss or between steps"
    found = ((kind, hook) for field, kind in kinds.items() for hook in (getattr(owner, field, None) or {}).values() if not getattr(hook, "is_of_a_step", False))
    return [UnsupportedOp(kind, name, _line_of(hook), reason) for kind, hook in found]


def _line_of(function: Callable) -> str:
    code = getattr(function, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else ""


# --- while a model is exported ----------------------------------------------------------------------------------------


class Watch:
    """What the forward pass did that the graph does not show. ``told`` is to be refused; ``replaced`` are tensors of modules with another
    in their place, by name, which are to be refused where the graph reads what was there before."""

    def __init__(self, step: nn.Module):
        self.told: list[UnsupportedOp] = []
        self.replaced: dict[str, UnsupportedOp] = {}
        self._step = step
        self._names = {id(module): name for name, module in step.named_modules()}
        self._assigned: dict[tuple[int, str], tuple[nn.Module, Tensor]] = {}  # buffers and parameters with another tensor in their place, and what was there

    def sees_function(self, function: type, args: tuple) -> Any:
        """What the forward of a Function gives; one with a backward of its own is followed where that can be transposed (functions.py)."""
        try:
            return followed(function, args)
        except Exception as error:
            reason = (
                f"its backward is Python of its own, which cannot be followed ({str(error)[:200] or type(error).__name__}); write it by operators whose derivative it is, as"
                " x + (f(x) - x).detach() for a gradient that passes straight through"
            )
        self._tell(self.told, f"{function.__qualname__}.apply", "", reason)
        has_context = function.setup_context is torch.autograd.Function.setup_context  # type: ignore[attr-defined]
        context = [torch.autograd.function.FunctionCtx()] if has_context else []
        return type.__getattribute__(function, "forward")(*context, *args)

    def sees_hook(self, name: str, tensor: Tensor, hook: Callable) -> None:
        if depends(tensor) or tensor.requires_grad:
            reason = "the step would not call this hook; leave it out, or write what it does to the gradient as a torch.autograd.Function"
            self._tell(self.told, f"Tensor.{name}", "", reason)

    def sees_seed(self) -> None:
        reason = "what a step draws is another in every step, and no seed of the forward pass's changes that; draw what is to stay the same once, into a buffer, or give it with the batch"
        self._tell(self.told, "torch.manual_seed", "", reason)

    def sees_assignment(self, module: nn.Module, name: str, value: Any) -> None:
        if not isinstance(value, Tensor):
            return
        module = itself(module)
        path = self._names.get(id(module), "")
        full = f"{path}.{name}" if path else name
        before = module._buffers.get(name)
        if before is not None and value.untyped_storage()._cdata == before.untyped_storage()._cdata:
            return  # self.count += 1
        if isinstance(module._parameters.get(name), nn.Parameter) and isinstance(value, nn.Parameter):
            self._sees_parameter(module, name, path, value)
        elif name in module._buffers:
            reason = f"the forward pass puts a tensor of another shape or dtype in the buffer's place; write self.{name}.copy_(...) of one like it"
            if not depends(value):  # a table for a shape
                self.replaced[full] = UnsupportedOp(f"self.{name} = ...", path.removeprefix("model."), _own_line(), reason)
            elif before is not None and before.shape == value.shape and before.dtype == value.dtype:
                self._assigned.setdefault((id(module), name), (module, before))
            else:
                self._tell(self.told, f"self.{name} = ...", path, reason)
        elif isinstance(module.__dict__.get(name), Tensor):
            reason = f"the forward pass puts another tensor in its place and reads it in the next; make it a buffer, and write self.{name}.copy_(...)"
            self.replaced[full] = UnsupportedOp(f"self.{name} = ...", path, _own_line(), reason)

    def _sees_parameter(self, module: nn.Module, name: str, path: str, value: Tensor) -> None:
        before = module._parameters[name]
        if before is None or value is before:
            return
        if (before.shape, before.dtype) == (value.shape, value.dtype):
            self._assigned.setdefault((id(module), name), (module, before))
        else:
            self._tell(self.told, f"self.{name} = ...", path, "the forward pass puts a parameter of another shape or dtype in the place of one; make it once, in __init__")

    def puts_back(self) -> None:
        """At the end of a pass: a buffer or parameter that has another tensor in its place takes the values of that."""
        with torch.no_grad():
            for (_, name), (module, before) in self._assigned.items():
                tensors: dict = module._buffers if name in module._buffers else module._parameters
                if tensors is module._parameters:
                    self._step.replaced.add(f"{self._names.get(id(module), '')}.{name}".strip("."))
                now = tensors[name]
                if now is not None and now is not before:
                    before.copy_(now)
                    tensors[name] = before
        self._assigned.clear()

    def _tell(self, to: list[UnsupportedOp], op: str, path: str, reason: str) -> None:
        entry = UnsupportedOp(op, path.removeprefix("model."), _own_line(), reason)
        if entry not in to:
            to.append(entry)


def _own_line() -> str:
    """The user's line that is running."""
    frame: Optional[Any] = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*FOREIGN, "<")):
            return f"{Path(code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _enter_no_grad(self: torch.inference_mode) -> None:
    """An export forgets an inference mode, and keeps where no gradients are."""
    self._plimsoll_no_grad = torch.no_grad() if self.mode else nullcontext()  # type: ignore[attr-defined]
    self._plimsoll_no_grad.__enter__()  # type: ignore[attr-defined]


def _exit_no_grad(self: torch.inference_mode, *told: Any) -> None:
    self._plimsoll_no_grad.__exit__(*told)  # type: ignore[attr-defined]


@contextmanager
def watched(step: nn.Module) -> Iterator[Watch]:
    """Python's part of a forward pass, watched."""
    watch = Watch(step)
    kind, apply = type(torch.autograd.Function), torch.autograd.Function.__dict__.get("apply")

    def watched_attribute(function: type, name: str) -> Any:
        """The forward that apply calls, wherever somebody has apply from (act = Own.apply)."""
        value = type.__getattribute__(function, name)
        if name != "forward" or type.__getattribute__(function, "__module__").startswith("torch."):
            return value
        has_context = function.setup_context is torch.autograd.Function.setup_context  # type: ignore[attr-defined]
        return lambda *args: watch.sees_function(function, args[1:] if has_context else args)

    def watched_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction:
            return again(args[0], args[2:])
        return super(torch.autograd.Function, cls).apply(*args, **kwargs) if apply is None else apply.__get__(None, cls)(*args, **kwargs)

    assign, to = nn.Module.__setattr__, nn.Module.to

    def watched_assignment(self: nn.Module, name: str, value: Any) -> None:
        watch.sees_assignment(self, name, value)
        assign(self, name, value)

    def to_what_it_is(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        """An export cannot move a module's tensors; most are asked to be what they are."""
        device, dtype, _, form = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*self.parameters(), *self.buffers()]
        is_so = all((device is None or t.device == device) and (dtype is None or not t.is_floating_point() or t.dtype == dtype) for t in tensors)
        return self if is_so and form is None else to(self, *args, **kwargs)

    hooks = {name: Tensor.__dict__.get(name) for name in _OF_TENSORS.values()}

    def watched_hook(name: str) -> Callable:
        return lambda self, hook: watch.sees_hook(name, self, hook)

    for name in hooks:
        setattr(Tensor, name, watched_hook(name))
    seed = torch.manual_seed

    def watched_seed(number: int) -> torch.Generator:
        watch.sees_seed()
        return seed(number)

    torch.manual_seed = torch.random.manual_seed = watched_seed
    inference = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    torch.inference_mode.__enter__, torch.inference_mode.__exit__ = _enter_no_grad, _exit_no_grad  # type: ignore[method-assign]
    nn.Module.to = to_what_it_is  # type: ignore[method-assign,assignment]
    kind.__getattribute__ = watched_attribute  # type: ignore[assignment,method-assign]
    torch.autograd.Function.apply = classmethod(watched_apply)  # type: ignore[method-assign,assignment]
    nn.Module.__setattr__ = watched_assignment  # type: ignore[method-assign,assignment]
    try:
        yield watch
    finally:
        for name, hook in hooks.items():
            delattr(Tensor, name) if hook is None else setattr(Tensor, name, hook)
        torch.manual_seed = torch.random.manual_seed = seed
        torch.inference_mode.__enter__, torch.inference_mode.__exit__ = inference  # type: ignore[method-assign]
        del kind.__getattribute__
        if apply is None:
            del torch.autograd.Function.apply
        else:
            torch.autograd.Function.apply = apply  # type: ignore[method-assign]
        nn.Module.__setattr__ = assign  # type: ignore[method-assign]
        nn.Module.to = to  # type: ignore[method-assign]


# --- modules with several names --------------------------------------------------------------------------------------


class _Again(nn.Module):
    """A module under a further name, without tensors of its own."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.__dict__["_again"] = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_again"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_again"], name)


def _under_another_name(module: nn.Module) -> _Again:
    """What Python asks of a class and no attribute answers, as ``tables[key]``, is answered by the module as well."""
    asked = [name for name in ("__getitem__", "__len__", "__iter__", "__contains__") if hasattr(type(module), name)]
    answers = {name: (lambda self, *args, name=name: getattr(self.__dict__["_again"], name)(*args)) for name in asked}
    return type("_Again", (_Again,), answers)(module)


@contextmanager
def each_once(step: nn.Module) -> Iterator[None]:
    """Modules with buffers have one name each meanwhile, since PyTorch cannot decompose a graph that changes one buffer under two."""
    seen: set[int] = set()
    changed: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in list(step.modules()):
        for name, child in list(parent._modules.items()):
            if child is None or next(child.buffers(), None) is None:
                continue
            if id(child) in seen:
                changed.append((parent, name, child))
                parent._modules[name] = _under_another_name(child)
            seen.add(id(child))
    try:
        yield
    finally:
        for parent, name, child in changed:
            parent._modules[name] = child

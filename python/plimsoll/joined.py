"""Model and loss as one module, and how a batch is given to it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from .assigned import Assigned
from .assume import Assumptions
from .errors import WrongResult
from .fixed import Fixed, has_fixed
from .functions import note_gradients
from .made import Sizes, is_of_batch
from .moving import Number, in_place
from .settings import noting_names
from .values import itself

WRAPPED = "model."  # where the wrapper below holds the model


class Met:
    """Modules with parameters or buffers that a pass has called, and that are no part of what it was given. (An export puts lists of a module back as they were.)"""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []


class Joined(nn.Module):
    """Model and loss as one module that takes the tensors of a batch, and after them the numbers that move, and returns (loss, outputs by name)."""

    def __init__(self, model: nn.Module, loss: Optional[Callable], call: Callable, outputs: Optional[Callable], batch, beside: Mapping[str, nn.Module] = {}, numbers: Sequence[Number] = (), loose: str = ""):
        super().__init__()
        self.numbers = numbers
        self.met = Met()
        self.model = model
        self.loss = loss
        self.call = call
        self.outputs = outputs
        self.beside = nn.ModuleDict(beside)  # which these read
        self.loose = loose  # which of those has the parameters that are variables
        self.leaves, self.spec = pytree.tree_flatten(batch)
        self.ended: Optional[Callable[[], None]] = None  # called when a forward pass is over
        self.ending: Optional[Callable[[], None]] = None  # called before, as the last that is done in it
        self.assigned = Assigned(model, *beside.values(), functions=[f for f in (loss, call, outputs) if f is not None])
        self.forget_tables: Callable[[], None] = lambda: None  # that a pass has left in variables
        self.sizes: Optional[Sizes] = None  # where what the example has may decide sizes
        self.written: set[str] = set()  # buffers that a pass has changed through .data
        self.replaced: set[str] = set()  # parameters in whose place a pass has put others

    def forward(self, *tensors: Tensor):
        with noting_names():
            return self._joined(tensors)

    def _joined(self, tensors: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf.given() if isinstance(leaf, Fixed) else leaf for leaf in self.leaves]
        batch = pytree.tree_unflatten(leaves, self.spec)
        moved = list(given)
        for tensor in tensors:
            tensor._plimsoll_depends = True  # type: ignore[attr-defined]
        is_of_batch(tensors)
        note_gradients(torch.is_grad_enabled())
        frozen = ((name, parameter) for name, parameter in self.named_parameters() if not parameter.requires_grad)  # which may be written as buffers are
        buffers = {name.removeprefix(WRAPPED): buffer for name, buffer in itertools.chain(self.named_buffers(), frozen)}
        variables = self.beside[self.loose].in_place() if self.loose else nullcontext()
        with self._noting_calls(), in_place(self.numbers, moved), variables, Assumptions([*tensors, *self.parameters(), *self.buffers()], has_fixed(self.leaves), buffers, self.sizes) as assumed:
            self.assigned.begin()
            output = self.call(self.model, batch)
            loss = self._loss_of(output, batch) if self.loss is not None else loss_of(output)
            if not isinstance(loss, Tensor):
                raise WrongResult(f"loss(output, batch) gives {type(loss).__name__}; a scalar tensor is expected")
            assumed.asked.expect_used()
            assumed.expect_as_before()
            self.assigned.end()
        self.written.update(assumed.written)
        if self.ending is not None:
            self.ending()
        if self.ended is not None:
            self.ended()
        return (loss, _named_outputs(self.outputs(output) if self.outputs else None))

    def _loss_of(self, output: Any, batch: Any) -> Any:
        try:
            return self.loss(output, batch)
        except (TypeError, AttributeError) as error:  # it may have been written for other arguments
            error.plimsoll_hint = f"loss= is called with the model's output and the whole batch ({type(batch).__name__}): for example loss=lambda output, batch: F.cross_entropy(output, batch[1])"  # type: ignore[attr-defined]
            raise

    @contextmanager
    def _noting_calls(self) -> Iterator[None]:
        seen = {id(part) for whole in (itself(self), *self.met.modules) for part in whole.modules()}
        made: dict[int, nn.Module] = {}  # in this pass
        init = nn.Module.__init__

        def note_made(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            made[id(module)] = module
            init(module, *args, **kwargs)

        def note(called: nn.Module, _: Any) -> None:
            module = itself(called)
            if id(module) in made and next(module.parameters(), None) is None:
                return  # CrossEntropyLoss(weight=...): its tensors are the pass's own, or somebody's who is asked for them
            if id(module) not in seen:
                seen.update(id(part) for part in module.modules())
                if next(itertools.chain(module.parameters(), module.buffers()), None) is not None:
                    self.met.modules.append(module)

        handle = register_module_forward_pre_hook(note)
        nn.Module.__init__ = note_made  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__init__ = init  # type: ignore[method-assign]
            handle.remove()


def loss_of(output: Any) -> Tensor:
    """The loss in what a model returned: a scalar, ``.loss``, ``["loss"]``, or the first of a tuple."""
    if isinstance(output, Mapping) and "loss" in output:
        output = output["loss"]
    elif not isinstance(output, Tensor) and hasattr(output, "loss"):
        output = output.loss
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if isinstance(output, Tensor):
        return output
    raise WrongResult(
        f"the model returns {type(output).__name__}, which holds no loss; pass loss=lambda output, batch: ..."
    )


def _named_outputs(outputs: Any) -> dict[str, Tensor]:
    if outputs is None:
        return {}
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    if isinstance(outputs, Mapping):
        named = {str(name): tensor for name, tensor in outputs.items()}
    else:
        named = {f"output{i}": tensor for i, tensor in enumerate(outputs)}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise WrongResult(f"outputs(output) gives {type(tensor).__name__} as '{name}'; tensors, or one dictionary of tensors, are expected")
    return named


def default_call(model: nn.Module, batch: Any, has_loss: bool) -> Any:
    """How a batch is given to a model when the caller does not say.

    A mapping by keywords, those that ``forward`` does not take left to the loss; a tuple by position, its last entry
    left to the loss where there is one; anything else as the one argument.
    """
    if isinstance(batch, Mapping):
        accepted = _keywords(model) if has_loss else None
        return model(**{k: v for k, v in batch.items() if accepted is None or k in accepted})
    if isinstance(batch, (tuple, list)):
        return model(*(batch[:-1] if has_loss and len(batch) > 1 else batch))
    return model(batch)


def _keywords(model: nn.Module) -> Optional[set[str]]:
    code = getattr(type(model).forward, "__code__", None)
    if code is None or code.co_flags & 0x08:  # takes **kwargs
        return None
    return set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def input_names(model: nn.Module, batch: Any, has_loss: bool) -> list[str]:
    """Names of a batch's tensors: keys of mappings; "data" and "labels" for a pair with a loss; else as ``forward``
    calls its arguments."""
    paths = [path for path, leaf in pytree.tree_flatten_with_path(batch)[0] if isinstance(leaf, Tensor)]
    positions: Sequence[str] = []
    if isinstance(batch, (tuple, list)):
        code = getattr(type(model).forward, "__code__", None)
        positions = code.co_varnames[1 : code.co_argcount] if code else []
        if has_loss:
            positions = ("data", "labels") if len(batch) == 2 else (*positions[: len(batch) - 1], "labels")
        if len(positions) < len(batch):
            positions = [f"input{i}" for i in range(len(batch))]
    names = [_path_name(path, positions) for path in paths]
    return names if len(set(names)) == len(names) else [f"input{i}" for i in range(len(names))]


def _path_name(path: Sequence, positions: Sequence[str]) -> str:
    parts = []
    for depth, key in enumerate(path):
        if isinstance(key, pytree.SequenceKey):
            parts.append(positions[key.idx] if depth == 0 and positions else str(key.idx))
        else:
            parts.append(str(getattr(key, "key", getattr(key, "name", key))))
    return ".".join(parts) or "data"


def resized(tensor: Tensor, batch: int, size: int) -> Tensor:
    """The tensor with `size` rows where it has one a sample; else itself."""
    if tensor.dim() == 0 or tensor.shape[0] != batch:
        return tensor
    rows = torch.arange(size, device="cpu") % batch
    return tensor[: min(size, batch)] if size <= batch else tensor[rows.to(tensor.device)]


Modes = list[bool]  # of each module, whether it is in training mode


def training_modes(model: nn.Module) -> Modes:
    """How the modules train: as the caller has set them, who may have frozen some by eval(); where none trains, as train() sets them."""
    modes = [m.training for m in model.modules()]
    if not any(modes):
        with mode(model, True):
            return [m.training for m in model.modules()]
    return modes


@contextmanager
def mode(model: nn.Module, training: bool, modes: Optional[Modes] = None) -> Iterator[None]:
    """The model in training or evaluation mode; what the caller had set module by module comes back after it. Where he has some in training
    mode, the others are frozen on purpose, and stay. ``modes``: those to take instead, where he may have changed them since."""
    before = [(m, m.training) for m in model.modules()]
    try:
        if modes is not None:
            for (m, _), flag in zip(before, modes):
                m.training = flag
        elif not training or not any(flag for _, flag in before):
            model.train(training)
        yield
    finally:
        for module, flag in before:
            module.training = flag

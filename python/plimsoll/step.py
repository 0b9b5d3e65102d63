"""A training step in a stated number of bytes: what ``plimsoll.compile`` makes.

    step = plimsoll.compile(model, opt, loss=loss, example=batch, memory="4GiB")
    for batch in loader:
        value = step(batch)
        scheduler.step()

The step holds parameters, optimizer states and everything that it computes with in one arena of that size. The module
and the optimizer stay what they were to the user: a tensor that lies in the arena as PyTorch would have it is the module's
own, and the others are brought up to date when somebody asks for them.
"""

from __future__ import annotations

import collections
import gc
import hashlib
import io
import itertools
import json
import math
import operator
import os
import random
import re
import sys
import threading
import warnings
import weakref
import zipfile
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from . import _core, fallback as fallbacks, optimizers, reached
from .capture import Captured, capture
from .convert import convert
from .feeding import Feeder, gpu_of
from .values import as_reals, has_values, shaped_like
from .errors import Error, Unsupported, UnsupportedOp
from .fixed import found_fixed, with_fixed
from .forms import DTYPES, Form, Key, arranged, key_of, plain, skeleton_of, states_of as states_in, tensors_of_key
from .held import hold, is_held, leave_to_others, let_go, untouched
from .infeasible import Infeasible, told_apart
from .interrupts import interruptible
from .joined import training_modes
from .loose import Loose
from .moving import Number
from .optimizer_state import keep_states_of, states_of, watch
from .on_disk import Files, bring_back, folder_of, give_memory_back, of_those, take_in
from .ranks import Group, Ranks, begin_alike, find
from .settings import OFTEN, Settings, modules_beside, names_read, same_network
from .sync_batch_norm import has_sync_batch_norm
from .unseen import is_hooked, refuse_unseen

Size = Union[str, int]
MOST_SHAPES = 16  # of batches, at a time; each has a plan and kernels of its own
MOST_TEXTS = 8  # of a batch, that make no difference to the network: then they are taken for names


def _core_options(optimizer: torch.optim.Optimizer, groups: list[optimizers.Group], accumulate: int,
                  clip_grad_norm: float, sync_batch_norm: bool = False, **flags: Any) -> str:
    kind = optimizers.kind_of(optimizer)
    if kind in ("adam", "adamw"):
        kind = "adamw" if optimizers.adam_decouples(kind, optimizer) else "adam"
    told = {name: value for name, value in flags.items() if value is not None}
    for name in ("memory", "host_memory"):
        size = told.get(name, "")
        if isinstance(size, bool) or not isinstance(size, (int, str)) or (isinstance(size, int) and not 0 < size < 1 << 62):
            raise ValueError(f"{name}={size!r} is no size; give bytes as an integer above 0, or a text as '4GiB'")
    if told.get("costs", "measured") not in ("measured", "estimated"):
        raise ValueError(f"costs is {told['costs']!r}; it is 'measured' or 'estimated'")
    if accumulate < 1 or clip_grad_norm < 0:
        raise ValueError(f"accumulate={accumulate} is to be at least 1, clip_grad_norm={clip_grad_norm} at least 0")
    if told.get("memory_is", "arena") not in ("arena", "process"):
        raise ValueError(f"memory_is is {told['memory_is']!r}; it is 'arena' or 'process'")
    if told.get("zero", 0) not in (0, 1, 2, 3):
        raise ValueError(f"zero={told['zero']!r} is no stage: 0 divides nothing, 1 optimizer states, 2 sums of gradients as well, 3 parameters as well")
    told["optimizer"] = {
        "name": kind,
        "accumulate": accumulate,
        "clip_grad_norm": min(clip_grad_norm, 3e38),  # inf: nothing is clipped, and the norm is there to be read
        "sync_batch_norm": sync_batch_norm,
        "groups": reached.told(groups),
    }
    return json.dumps(told)


# The steps of a module: what they hold is brought into its tensors before anybody reads them.
_numbers = itertools.count()
_made: "weakref.WeakKeyDictionary[torch.optim.Optimizer, int]" = weakref.WeakKeyDictionary()  # updates by steps of ours
_steps: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Step]]" = weakref.WeakKeyDictionary()


def _bring_up_to_date(*modules: nn.Module, loose: Iterable[Tensor] = ()) -> None:
    """Before an export, which must not meet a hook that writes values."""
    tensors = {id(tensor) for module in modules for tensor in [*module.parameters(), *module.buffers()]} | {id(tensor) for tensor in loose}
    steps = [step for steps in list(_steps.values()) for step in steps]
    for step in sorted(steps, key=lambda step: step._number):  # as all ranks do
        if any(id(tensor) in tensors for tensor in step._own().values()):
            step.sync()


class _Hook:
    """Calls a method of a step whose memory it does not keep alive. A copy of it, or what is read from a file, does nothing."""

    is_of_a_step = True

    def __init__(self, step: Optional["Step"] = None, method: str = "sync"):
        self._step, self._method = (lambda: None) if step is None else weakref.ref(step), method

    def __call__(self, *_: Any) -> None:
        step = self._step()
        if step is not None:
            getattr(step, self._method)()

    def __reduce__(self) -> Any:
        return _Hook, ()


@contextmanager
def _out_of_range() -> Iterator[None]:
    """An index that the core finds out of range is PyTorch's error."""
    try:
        yield
    except Error as error:
        if re.match(r"row \d+ of the indices is -?\d+", str(error)):
            raise IndexError(f"{error}; nothing was trained") from None
        raise


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


def _is_text(part: Any) -> bool:
    return isinstance(part, tuple) and part[0] == "value" and part[1][:1] in ("'", '"')


def _trained(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def _members(optimizer: torch.optim.Optimizer) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]


def _told(key: Key, types: bool = False) -> str:
    def told(part: tuple) -> str:
        if part[0] == "value":
            return part[1]
        if part[0] == _SIZES:
            return f"a mask at {' and '.join(map(str, part[1] or ('other',)))} places"
        shape = "x".join(map(str, part[0])) or "1"
        return f"{shape} {str(part[1])[6:]}" if types else shape

    return ", ".join(told(part) for part in key if isinstance(part, tuple))


_OTHERS_ACCUMULATED = "'{}' is trained by one of the batches whose gradients are accumulated, and not by another; give such batches in steps of their own, or accumulate=1"
_lasting = torch.inference_mode(False)  # what is made for the user's tensors is trained on, also where he evaluates

_SIZES = "sizes"  # of a part of a key: numbers that a batch has


def _expect_alone(captured: Captured, ranks: Optional[Ranks]) -> None:
    if captured.sizes and ranks is not None:
        raise Unsupported([UnsupportedOp("a mask", "", "", "whether it holds anywhere, or at how many places, decides what the network is, which is to be the same on all ranks; train by one process")])


class Step:
    """A compiled training step. Call it with a batch: it trains, and returns the loss.

    ``step.outputs`` are what ``outputs=`` picked, of the last batch; ``step.plan`` the plan as a dictionary (peak,
    predicted time, traffic) for the largest of the shapes that it was compiled for; ``step.report("x.html")`` draws it; ``step.explain(name)`` tells about a tensor or layer.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, forms: list[tuple[Key, Form]], options: str,
                 groups: list[optimizers.Group], capture_as: Callable[..., Captured], skeleton: Any, progress: bool,
                 ranks: Optional[Ranks] = None, told: Optional[dict[str, Any]] = None, files: Optional[Files] = None,
                 fixed: Sequence[int] = (), settings: Optional[Settings] = None, modes: Sequence[bool] = (), base: Optional[Form] = None):
        self._settings = settings or Settings(nn.Module())
        self._number, self._ranks, self._files = next(_numbers), ranks, files
        if ranks is not None:
            ranks.expect_same(told or {})
        self._model, self._optimizer, self._capture_as = model, optimizer, capture_as
        self._kind, self._groups = optimizers.kind_of(optimizer), groups
        self._example, example = forms[0]
        self._first = base or example  # whose states the core has
        self._based_on = self._first  # whose plan says where they lie
        self._skeleton, self._fixed = skeleton, fixed
        self._form, self._evaluated = example, None  # of the last batch
        self._options = options
        document = self._first.converted.document
        self._captured, self._values = self._first.captured, self._first.converted.values
        self._name, self._batch = document["name"], document["batch"]
        self._sized: dict[tuple[bool, Key], list[Captured]] = {}  # of networks for training or not and batches of such shapes: those that are for some of these batches
        # Form and number in the core, by the shapes of a batch.
        self._shapes: dict[Key, tuple[Form, int]] = {}
        self._evaluations: dict[Key, tuple[Form, int]] = {}
        self._used: dict[int, int] = {}  # when each of these was wanted last, by its form
        self._wanted, self._in_use, self._tells_of_shapes = 0, 0, True
        self._texts: dict[int, Optional[set]] = {}  # by place in a batch, those that made no difference; None: they do
        self._unread: set[int] = set()  # places of texts that no network reads
        self._progress, self._unplanned = progress, fallbacks.Measured()
        shown = _Progress(progress)
        try:
            with fallbacks.rehearsal():
                self._core = _core.Step(self._first.text, options, shown, ranks.core if ranks else None)
                for key, form in forms:
                    self._shapes[self._keyed(key, form)] = form, 0 if form is self._first else self._core.add_shape(form.text, shown)
        except _core.InfeasibleAnswer as answer:
            raise Infeasible.from_core(*answer.args) from None
        finally:
            shown.end()
        self._gpu = gpu_of(self._core.device)
        self._note_states()
        self._summed: frozenset[str] = frozenset()  # what the last batch trained, of those that are accumulated
        self._divided = set(self._core.divided)  # those of which each rank has a piece
        self._seed = int(torch.initial_seed() & 0x7FFFFFFFFFFFFFFF)
        self._stale: set[str] = set()  # of "module" and "optimizer", whose tensors are behind the step's
        self._loaded = self._loaded_before = False
        self._read: set[str] = set()  # states whose tensors somebody had in his hands since the last step
        self._views: dict[str, Tensor] = {}
        self._places: dict[str, int] = {}  # where these lie
        self._lock = threading.Lock()
        self._fed: Any = None  # the batch that is there for the next step
        self._fed_numbers: list = []  # and what came with it
        self._runs, self._others = 0, weakref.WeakKeyDictionary()
        self._parameters, self._modules = dict(model.named_parameters()), dict(model.named_modules())
        self._beside = self._read_beside()
        self._beside_modes = [part.training for part in self._beside] if not self._settings.knows(self._beside) else None
        self._parts = self._parts_now()
        self._needs = [parameter.requires_grad for parameter in self._parameters.values()]
        self._modes = list(modes)
        self._in_groups = _members(optimizer)
        self._buffers = self._held_buffers()
        self._push()
        give_memory_back()
        hook, of_module = _Hook(self), _Hook(self, "_sync_module")
        self._hooks = [
            model.register_state_dict_pre_hook(of_module),
            model.register_forward_pre_hook(of_module),
            optimizer.register_state_dict_pre_hook(_Hook(self, "_before_state_dict")),
            optimizer.register_state_dict_post_hook(_Hook(self, "_after_state_dict")),
            model.register_load_state_dict_pre_hook(of_module),
            model.register_load_state_dict_post_hook(_Hook(self, "_reload")),
            optimizer.register_load_state_dict_pre_hook(hook),
            optimizer.register_load_state_dict_post_hook(_Hook(self, "_reload")),
            optimizer.register_step_pre_hook(hook),  # a step of PyTorch's own between two of ours
            optimizer.register_step_post_hook(_Hook(self, "_reload")),
        ]
        watch(optimizer, self)
        _steps.setdefault(model, weakref.WeakSet()).add(self)
        self._meet_others()

    def __del__(self) -> None:
        """What was trained outlives the step."""
        if hasattr(self, "_hooks") and not sys.is_finalizing():
            with torch._C.DisableTorchFunction(), _disable_current_modes():  # the collector may run in the midst of an export
                if self._stale and self._divided:
                    warnings.warn("a step ends, and not all that its ranks have divided among them was brought together: call step.sync() on all ranks before", RuntimeWarning)
                self._sync({"module", "optimizer"}, without_others=True)
                self._let_go()
            for hook in self._hooks:
                hook.remove()

    # --- training ---

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a step cannot be copied: compile another, or write it to a file by step.save")

    def __call__(self, batch: Any, *, batches: Optional[int] = None) -> float:
        """Trains on one batch; returns its loss. Where gradients are accumulated, every call is one batch of a step, and the last of
        ``batches`` updates: as many as ``accumulate=`` said, or fewer at the end of an epoch."""
        with self._lock:
            self._fed = None
            return self._train(self._arranged(batch), batches or 0)

    def over(self, batches: Iterable[Any]) -> Iterator[float]:
        """Trains on one batch after another, each as a call of the step does, and gives their losses. Where the plan has a second buffer
        for the batch (``feed_ahead=True``), a batch comes to the GPU while the step before it runs: so one more is taken from
        ``batches`` before a step."""
        upcoming, end = iter(batches), object()
        batch = next(upcoming, end)
        while batch is not end:
            if not self._core.has_second_buffer:
                yield self(batch)
                batch = next(upcoming, end)
                continue
            with self._lock:
                batch = batch if batch is self._fed else self._arranged(batch)
                if self._key(batch) not in self._shapes:  # before a capture reads the module
                    self._take_over()
                self._bring(batch)
            following, failure = end, None
            try:
                following = next(upcoming, end)
            except Exception as error:  # told when that batch is wanted
                failure = error
            with self._lock:
                if following is not end:
                    following = self._arranged(following)
                loss = self._train(batch, 0, None if following is end else following)
            yield loss
            if failure is not None:
                raise failure
            batch = following

    def _arranged(self, batch: Any) -> Any:
        return with_fixed(arranged(batch, self._skeleton), self._fixed)

    def _bring(self, batch: Any) -> Key:
        """To where the next step finds it, or to the second buffer; it is there already where it was fed ahead."""
        key = self._key(batch)
        if batch is not self._fed or self._form.numbers != self._fed_numbers:
            self._fed = None
            if key not in self._shapes:
                self._agree("a step", key)
            self._form, number = self._shapes.get(key) or self._add_shape(batch)
            self._want(self._form)
            self._core.use(number)
            self._in_use = number
            numbers = self._form.numbers
            self._form.feed(batch, Feeder(self._core, self._gpu))  # may raise, on one rank alone: nothing was agreed on then
            self._fed, self._fed_numbers = batch, numbers
        return key

    def _want(self, form: Form) -> None:
        self._wanted += 1
        self._used[id(form)] = self._wanted

    def _train(self, batch: Any, batches: int, following: Any = None) -> float:
        self._expect_the_same_model()
        if watch(self._optimizer, self):  # optimizer.state = ...: what the step has is not wanted any more
            self._stale.discard("optimizer")
            self._loaded = True
        loaded = self._take_over()
        key, self._fed = self._bring(batch), None  # a batch of another kind may have the optimizer's groups apart
        made = self._core.number
        for group, settings in optimizers.changed_settings(self._optimizer, self._kind, self._groups, made).items():
            self._core.set_group(group, json.dumps(settings))
        rates = optimizers.learning_rates(self._optimizer, self._groups, made)
        self._read.clear()  # what was read since, for a new shape, nobody has written
        if self._ranks is not None:
            told = {"the learning rates": rates, "the optimizer's settings": [group.settings for group in self._groups]}
            self._agree("a step", key, **told, **{"whether load_state_dict was called": loaded, "number": self._core.number, "batches": batches})
        trained = self._expect_updates_alike()
        self._stale = {"module", "optimizer"}  # before the step: a Ctrl-C is raised as soon as the core, which ends it, returns
        self._runs += 1
        ended = False
        try:
            with self._unplanned, _out_of_range():
                ahead = following is not None and self._core.has_second_buffer and self._key(following) == key
                loss = self._run_and_feed(rates, batches, following) if ahead else self._core.run(rates, batches)
            ended = True
            return loss
        finally:
            if self._core.number > made:
                if optimizers.counts(self._optimizer):
                    reached.leave_out(self._groups, trained, made)
            _made[self._optimizer] = self._core.number
            self._optimizer._opt_called = True  # for schedulers, which warn where nobody has made a step
            if self._others and (ended or self._ranks is None):  # else other ranks may not come to it
                self.sync()

    def _expect_updates_alike(self) -> frozenset[str]:
        """PyTorch updates what any of the accumulated batches reaches; the core does so for what those of one network do."""
        trained = self._form.trained
        if self._core.accumulated and trained != self._summed:
            raise ValueError(_OTHERS_ACCUMULATED.format(min(trained ^ self._summed)))
        self._summed = trained
        return trained

    def _run_and_feed(self, rates: list[float], batches: int, following: Any) -> float:
        """What is wrong with the following batch is told when it is wanted: then it is fed again."""
        self._core.start(rates, batches)
        try:
            numbers = self._form.numbers
            self._form.feed(following, Feeder(self._core, self._gpu))
            self._fed, self._fed_numbers = following, numbers
        except Exception:
            pass
        finally:
            loss = self._core.finish()
        return loss

    # --- the other ranks ---

    def _agree(self, call: str, key: Key = (), **told: Any) -> None:
        """Before the ranks do something together: they do the same. Else ValueError on all of them, and nothing is done."""
        if self._ranks is not None:
            self._ranks.expect_same({"the call": call, "the step": self._number, "the batch": _told(key), "its form": repr(key), **told})

    def _expect_the_same_model(self) -> None:
        """What decides the network, and a user may change meanwhile."""
        with untouched():
            needs = [parameter.requires_grad for parameter in self._parameters.values()]
        parts = self._parts_now()
        if len(parts) != len(self._parts) or not all(map(operator.is_, parts, self._parts)):
            raise ValueError("a module, a parameter, a forward function or a forward hook of the model, or of a module that the loss reads, is another one now than when the step was compiled; compile anew")
        for fields, key, buffer, path in self._buffers:
            if fields.get(key) is not buffer:
                raise ValueError(f"another tensor is the buffer '{path}.{key}' now than when the step was compiled; write into it by copy_, or compile anew")
        with untouched():
            hooked = is_hooked(self._modules.values(), self._parameters.values(), self._optimizer)
        if hooked:
            refuse_unseen(self._model, self._optimizer)
        if _members(self._optimizer) != self._in_groups:
            raise ValueError("the optimizer's groups have other parameters now than when the step was compiled; compile anew")
        if needs != self._needs:
            name, needed = next((name, now) for name, now, then in zip(self._parameters, needs, self._needs) if now != then)
            now, then = ("a", "none") if needed else ("no", "one")
            raise ValueError(f"'{name}' needs {now} gradient now, and {then} when the step was compiled; compile anew")
        if self._beside_modes is not None and self._beside_modes != [part.training for part in self._beside]:
            raise ValueError("a module that the loss calls, and that no name of its leads to, is in another mode now than when the step was compiled; compile anew")
        modes = [module.training for module in self._modules.values()] if self._model.training else self._modes
        if modes != self._modes:
            name, training = next((name, now) for name, now, then in zip(self._modules, modes, self._modes) if now != then)
            now = "training" if training else "evaluation"
            raise ValueError(f"module '{name}' is in {now} mode now, and was not when the step was compiled; compile anew")

    def _read_beside(self) -> list[nn.Module]:
        """The modules beside the model that the network reads."""
        own = {id(tensor) for tensor in self._own().values()}
        read = [whole for whole in self._captured.beside.values() if any(id(t) in own for t in itertools.chain(whole.parameters(), whole.buffers()))]
        return [part for whole in read for part in whole.modules()]

    def _parts_now(self) -> list:
        """What the model consists of, and what it reads beside; hooks of steps, which do not change what it computes, left out."""
        modules = [*self._modules.values(), *self._beside]
        fields = [f for m in modules for f in (m._modules, m._parameters, m._forward_hooks, m._forward_pre_hooks) if f]
        forwards = [m.__dict__["forward"] for m in modules if "forward" in m.__dict__]
        return [part for parts in fields for part in parts.values() if not isinstance(part, _Hook)] + forwards

    # --- who else has the module's tensors ---

    def _meet_others(self) -> None:
        """Finds the steps that train some of the same tensors."""
        own = {id(tensor) for tensor in self._own().values()}
        for other in [step for steps in list(_steps.values()) for step in steps if step is not self]:
            if any(id(tensor) in own for tensor in other._own().values()):
                self._others[other], other._others[self] = other._runs, self._runs

    def _take_over(self) -> bool:
        """What somebody else has written since this step's last run: another step, the user, a file. Returns whether all was."""
        for other, seen in list(self._others.items()):
            if other._runs != seen:
                self._others[other], self._loaded = other._runs, True
        if self._loaded:
            self.refresh()
        elif self._read:
            tensors = self._own()
            with untouched():
                for name in self._read:
                    self._set(name, tensors[name])
                    self._rest(tensors[name])
        if not self._loaded:
            self._take_replaced()
        loaded, self._loaded = self._loaded, False
        self._read.clear()
        return loaded

    @_lasting
    def _take_replaced(self) -> None:
        """What lies elsewhere since somebody wrote parameter.data = ...: its values are taken over, and it is in the arena again."""
        with untouched():
            tensors = {name: self._captured.parameters.get(name, self._captured.buffers.get(name)) for name in self._places}
            replaced = {name: t for name, t in tensors.items() if t is not None and t.data_ptr() != self._places[name] and not is_held(t)}
            if not replaced:
                return
            views = {name: self._view(name) for name in replaced}
            ours = set(self._places.values())
            values = {name: t.detach().clone() if t.data_ptr() in ours else t for name, t in replaced.items()}  # p.data, q.data = q.data, p.data
            leave_to_others(views.values())
            for name, tensor in replaced.items():
                self._set(name, values[name])
                view = views[name]
                if tensor.device.type == "cpu" and as_reals(tensor).dtype == view.dtype:
                    tensor.data = shaped_like(view, tensor)
                else:
                    hold(tensor, self, name)

    def _reload(self) -> None:
        self._loaded = True

    def _lend_optimizer(self) -> None:
        """Called when somebody is about to read or write the optimizer's states. Where ranks divide them, all would have to."""
        if not self._divided:
            self._sync({"optimizer"})
            self._loaded = True

    def _before_state_dict(self) -> None:
        self.sync()
        self._loaded_before = self._loaded

    def _after_state_dict(self) -> None:
        """It reads the states and leaves them as they are."""
        self._loaded = self._loaded_before

    def reads(self, name: str) -> None:
        """Called when somebody is about to read, or to write, a tensor that this step holds in a layout of its own."""
        self._sync_module()
        self._read.add(name)

    def evaluate(self, batch: Any) -> float:
        """The loss of a batch in evaluation mode (no dropout, running statistics), in the same memory. Nothing is trained;
        ``step.evaluation_outputs`` are what ``outputs=`` picked."""
        with self._lock:
            return self._evaluate(self._arranged(batch))

    def _evaluate(self, batch: Any) -> float:
        self._fed = None  # it runs in the same memory
        if self._divided:
            self._agree("step.evaluate, by all ranks since states are divided among them", self._key(batch))
        self._take_over()
        self._evaluated = self._evaluations.get(self._key(batch, False)) or self._add_evaluation(batch)
        form, number = self._evaluated
        self._want(form)
        if form.is_fed:
            self._sync_module()
        form.feed(batch, Feeder(self._core, self._gpu, number))
        with self._unplanned, _out_of_range():
            return self._core.evaluate(number)

    def _add_shape(self, batch: Any) -> tuple[Form, int]:
        """A plan for batches of another shape, in the same memory."""
        with names_read() as names:
            form = self._captured_form(batch, True, self._as_before(self._shapes, batch))  # of so many samples Python may make something else
        known = self._same_as_known(batch, form, names) or self._same_but_for_texts(self._shapes, batch, form)
        if known is not None:
            return known
        add = lambda shown: self._core.add_shape(form.text, shown)  # noqa: E731
        return self._added(self._shapes, batch, form, add)

    def _key(self, batch: Any, training: bool = True) -> Key:
        key = self._without_unread(key_of(batch) + self._settings.key())
        known = self._sized.get((training, key))
        if not known:
            return key
        found = next((captured for captured in known if captured.sizes.hold(captured.tensors_of(batch))), None)
        return (*key, (_SIZES, found and found.sizes.values))

    def _keyed(self, key: Key, form: Form) -> Key:
        """The key of a form, whose captured network may be for batches of such shapes in which masks hold at so many places."""
        if not form.captured.sizes:
            return key
        sizes = form.captured.sizes.values
        in_use = {id(other.captured) for other, _ in [*self._shapes.values(), *self._evaluations.values()]}
        for place, known in list(self._sized.items()):
            self._sized[place] = [other for other in known if id(other) in in_use and (place != (form.captured.training, key) or other.sizes.values != sizes)]
        self._sized.setdefault((form.captured.training, key), []).append(form.captured)
        return (*key, (_SIZES, sizes))

    def _without_unread(self, key: Key) -> Key:
        return tuple(("value", "") if i in self._unread else part for i, part in enumerate(key)) if self._unread else key

    def _same_but_for_texts(self, to: dict[Key, tuple[Form, int]], batch: Any, form: Form) -> Optional[tuple[Form, int]]:
        """Where a batch has other texts than one before, as names of files, and the network is the same: there is no new plan. After
        MOST_TEXTS of them that make no difference, and none that does, they are not looked at again."""
        if form.captured.sizes:
            return None
        key, found, decided = self._key(batch, to is self._shapes), None, set()
        for known, (other, number) in list(to.items()):
            differ = {i for i, (a, b) in enumerate(zip(known, key)) if a != b}
            if len(known) != len(key) or not differ or not all(_is_text(known[i]) and _is_text(key[i]) for i in differ):
                continue
            if not same_network(form, other):
                self._texts.update((i, None) for i in differ)  # they are read
                continue
            found = other, number
            for i in differ:
                texts = self._texts.setdefault(i, set())
                if texts is not None:
                    texts.update((known[i], key[i]))
                    decided |= {i} if len(texts) > MOST_TEXTS else set()
        if found is not None:
            to[key] = found
        if decided:
            self._unread |= decided
            for shapes in (self._shapes, self._evaluations):
                items = [(self._without_unread(known), value) for known, value in shapes.items()]
                shapes.clear()
                for known, value in items:
                    shapes.setdefault(known, value)
        return found

    def _same_as_known(self, batch: Any, form: Form, names: set[str]) -> Optional[tuple[Form, int]]:
        """Where a number of the model has changed, and the network has not: a number that Python's code does not name (``names``) is not looked at again."""
        found = next(((key, known) for key, known in self._alike(self._shapes, batch) if not form.captured.sizes and same_network(form, known[0])), None)
        if found is not None:
            self._settings.forget_unread(found[0], names, found[1][0].live)
            self._shapes[self._key(batch)] = found[1]
            return found[1]
        self._settings.forget_unnamed(names)
        self._settings.tell()
        return None

    def _alike(self, to: dict[Key, tuple[Form, int]], batch: Any) -> list[tuple[Key, tuple[Form, int]]]:
        """What there is for batches of this shape, by the keys of what the network read beside them."""
        key = self._without_unread(key_of(batch))
        alike: dict[int, tuple[Key, tuple[Form, int]]] = {}  # the first of each form
        for known, found in to.items():
            if known[: len(key)] == key:
                alike.setdefault(id(found[0]), (known[len(key) :], found))
        return list(alike.values())

    @staticmethod
    def _as_before(known: dict[Key, tuple[Form, int]], batch: Any) -> bool:
        """Whether batches of this shape, but for what is beside its tensors, were captured for any size: one more is compared with these. Else one size is enough, and takes
        half the time."""
        shape = tensors_of_key(key_of(batch))
        return any(form.captured.any_batch for key, (form, _) in known.items() if tensors_of_key(key) == shape)

    def _add_evaluation(self, batch: Any) -> tuple[Form, int]:
        form = self._captured_form(batch, False, not self._evaluations or self._as_before(self._evaluations, batch))
        for _, known in self._alike(self._evaluations, batch):
            if not form.captured.sizes and same_network(form, known[0]):
                self._evaluations[self._key(batch, False)] = known
                return known
        if (same := self._same_but_for_texts(self._evaluations, batch, form)) is not None:
            return same
        return self._added(self._evaluations, batch, form, lambda _: self._core.add_evaluation(form.text))

    def _captured_form(self, batch: Any, training: bool, any_batch: bool) -> Form:
        self._sync_module()
        tried = training and self._ranks is None
        while tried and (moving := self._settings.moving()):  # places are others after each
            self._move(batch, *moving[0])

        def make() -> Form:
            try:
                captured = self._capture_as(batch, training, any_batch, self._settings.moved)
            except Unsupported as error:
                raise Unsupported(error.ops, error.hint or f"The batch is ({_told(self._key(batch), True)}); the step was compiled for one of ({_told(self._example, True)})") from error
            form = Form(captured, convert(captured, label_dtype="i32"), self._first)
            if training:
                form = self._reach(form)
            _expect_alone(captured, self._ranks)
            self._keyed(self._key(batch, training)[: len(key_of(batch) + self._settings.key())], form)
            return form

        return self._ranks.together(make) if self._ranks and (training or self._divided) else make()

    def _move(self, batch: Any, number: Number, places: list[int]) -> None:
        """A number, or a tensor, that changes again and again becomes an input of the network, if Python's code takes a tensor for it."""
        try:
            captured = self._capture_as(batch, True, False, [*self._settings.moved, number])
            convert(captured, label_dtype="i32")
        except Exception:
            return self._settings.stays(places)
        if not captured.numbers_read[-1]:  # a number may have been asked whether it is one
            return self._settings.forget(places) if number.is_tensor else self._settings.stays(places)
        self._settings.move(number, places)
        for number in {number for _, number in self._shapes.values()} - {0, self._in_use}:  # which have it as it was
            self._core.forget_shape(number)
        for number in {number for _, number in self._evaluations.values()} - {self._evaluated and self._evaluated[1]}:
            self._core.forget_evaluation(number)
        self._shapes.clear()
        self._evaluations.clear()

    def _reach(self, form: Form) -> Form:
        """Has the states of all that this batch trains, and counts the updates of what not all batches train apart. The form, by the states as they are then."""
        members = set(itertools.chain.from_iterable(self._in_groups))
        self._settings.leave(reached.changed_buffers(form.captured))
        base = self._based_on
        more = reached.beyond(form, base, members)
        if more:
            base = reached.with_states_of(base, form, more) if self._ranks is None else None
            if base is None:
                raise ValueError(
                    f"'{more[0]}' would be trained now, and was not when the step was compiled: its states have no place. Compile with an example, and in"
                    " a state of the model, that reach all that is to be trained; shapes= takes further examples"
                )
            form = Form(form.captured, convert(form.captured, label_dtype="i32"), base)
        trained = [frozenset(other.trained) for other, _ in self._shapes.values()] + [form.trained]
        groups = self._groups
        self._forget_outdated(more)
        if more or optimizers.counts(self._optimizer) and reached.are_mixed(groups, trained):
            self.sync()  # the optimizer's states tell of the updates
            groups = self._groups_apart(base, trained)
        if groups is self._groups:
            return form
        if self._ranks is not None:
            raise ValueError(
                f"a batch trains not all that others do, and {type(self._optimizer).__name__} counts the updates of each parameter; give an example of each kind of batch by shapes= when"
                " the step is compiled"
            )
        if self._core.accumulated:
            raise ValueError(_OTHERS_ACCUMULATED.format(min(form.trained ^ self._summed, default=more[0] if more else "")))
        before, options = (self._first, self._based_on, self._groups), json.loads(self._options)
        told = self._options
        options["optimizer"]["groups"] = reached.told(groups)
        try:
            self._first, self._based_on, self._groups = base if more else self._first, base, groups
            self._open_again(json.dumps(options))
        except BaseException as error:  # Ctrl-C, or too little memory
            self._first, self._based_on, self._groups = before
            self._open_again(told)
            if isinstance(error, _core.InfeasibleAnswer):
                raise Infeasible.from_core(*error.args) from None
            raise
        self._buffers = self._held_buffers()
        return form

    def _forget_outdated(self, more: Sequence[str]) -> None:
        """Networks that have as a constant, or are given, what steps change from now on: they are captured anew when a batch of theirs comes."""
        changing = self._settings.changing
        for known, stay, forget in ((self._shapes, {0, self._in_use}, self._core.forget_shape), (self._evaluations, {self._evaluated and self._evaluated[1]}, self._core.forget_evaluation)):
            gone = {key: number for key, (form, number) in known.items() if form.fed.intersection(more) or reached.is_outdated(form.captured, changing)}
            for key in gone:
                del known[key]
            for number in set(gone.values()) - stay:
                forget(number)

    def _groups_apart(self, base: Form, trained: Sequence[frozenset[str]]) -> list[optimizers.Group]:
        return reached.apart(optimizers.groups_of(self._optimizer, self._captured.known), base, trained if optimizers.counts(self._optimizer) else [])

    def _added(self, to: dict[Key, tuple[Form, int]], batch: Any, form: Form, add: Callable[[Any], int]) -> tuple[Form, int]:
        if len({number for _, number in to.values()}) >= MOST_SHAPES:
            self._make_room(to, batch)
        shown = _Progress(self._progress)
        try:
            with fallbacks.rehearsal():
                to[self._key(batch, to is self._shapes)] = form, add(shown)
        except _core.InfeasibleAnswer as answer:
            needed = json.loads(answer.args[1])
            if self._moves_states(to, batch, form, needed):
                return to[self._key(batch, to is self._shapes)]
            if not self._grow(needed["minimum_bytes"], self._ranks if to is self._shapes or self._divided else None):
                memory, least = told_apart(self._core.budget_bytes, needed["minimum_bytes"])
                told = (
                    f"a batch of {_told(key_of(batch))} does not fit memory={memory}; {least} would do."
                    " State more, give smaller batches, or compile with the largest batch as example"
                )
                raise Infeasible(told, needed) from None
            return self._added(to, batch, form, add)
        finally:
            shown.end()
        return to[self._key(batch, to is self._shapes)]

    def _make_room(self, to: dict[Key, tuple[Form, int]], batch: Any) -> None:
        """Forgets the shape that was wanted longest ago. ValueError where it is not the shape that is new: what changes with every batch has no end."""
        key, count = self._key(batch, to is self._shapes), len(key_of(batch))
        if self._sizes(key, count) in {self._sizes(known, count) for known in to}:
            raise ValueError(
                f"what the network reads beside the batch's tensors has had {MOST_SHAPES} values, each with a plan of its own, and has another now:"
                f" {_told(key)}. {OFTEN[0].upper()}{OFTEN[1:]}"
            )
        if self._tells_of_shapes:
            self._tells_of_shapes = False
            warnings.warn(
                f"batches have had more than {MOST_SHAPES} shapes, the last one {_told(key_of(batch))}. Each takes a plan of its own, which is made anew when"
                " the shape comes again after others. Pad batches to a few lengths, as by pad_to_multiple_of of Hugging Face's collators", stacklevel=2,
            )
        stay = {0, self._in_use} if to is self._shapes else {self._evaluated and self._evaluated[1]}
        form, number = min((known for known in to.values() if known[1] not in stay), key=lambda known: self._used.get(id(known[0]), 0))
        for known in [key for key, (other, _) in to.items() if other is form]:
            del to[known]
        self._used.pop(id(form), None)
        (self._core.forget_shape if to is self._shapes else self._core.forget_evaluation)(number)

    def _sizes(self, key: Key, count: int) -> tuple:
        """What of a key tells sizes: shapes, and the values of tensors that decide some."""
        return (*(part for i, part in enumerate(key[: count - 1]) if i in self._fixed or not isinstance(part, tuple) or part[0] != "value"), *(part for part in key[count:] if part[:1] == (_SIZES,)))

    def _grow(self, needed: int, ranks: Optional[Ranks]) -> bool:
        """Takes more memory, as far as was allowed, for another shape or an evaluation that needs more than training did so far. All
        values move. `ranks`: those that do so together."""
        less = self._core.arena_bytes < needed
        any_less, may = less, needed <= self._core.budget_bytes and not self._core.accumulated
        if ranks is not None:  # one of them may have more than others: it has evaluated alone
            told = ranks.core.all_gather(f"{less:d}{may:d}")
            any_less, may = any(text[0] == "1" for text in told), all(text[1] == "1" for text in told)
        if not any_less or not may:
            return False
        if self._divided or less:
            self.sync()
        if not less:
            return True
        before = self._options
        try:
            self._open_again(json.dumps(json.loads(before) | {"arena_bytes": needed}))
        except BaseException:  # Ctrl-C, or a system that has not so much
            self._open_again(before)
            raise
        return True

    def _moves_states(self, to: dict[Key, tuple[Form, int]], batch: Any, form: Form, needed: dict[str, Any]) -> bool:
        """Opens the step anew as if it had been compiled for this batch, where that is larger than the one that it was compiled for: states then lie as this one
        needs them, which may take less memory than beside a plan for a small one. Where even so it does not fit, ``needed`` says what would do."""
        key, before = self._key(batch), self._based_on
        if to is not self._shapes or self._ranks is not None or self._core.accumulated or form.is_fed:
            return False
        if states_in(form.section) != states_in(before.section) or form.section["frozen"] != before.section["frozen"]:
            return False
        if self._core.arena_bytes < needed["minimum_bytes"] <= self._core.budget_bytes:
            return False  # more memory is enough
        largest = max((_elements_of(known) for known, (other, _) in self._shapes.items() if other is before), default=0)
        if _elements_of(key) <= largest:
            return False
        own = json.loads(_core.fits(form.text, json.dumps(json.loads(self._options) | {"costs": "estimated"})))
        if not own["feasible"]:
            needed["minimum_bytes"] = min(needed["minimum_bytes"], own["minimum_bytes"])
            return False
        self.sync()
        self._based_on, self._shapes[key] = form, (form, 0)
        try:
            self._open_again(self._options)
        except BaseException as error:
            self._based_on = before
            del self._shapes[key]
            self._open_again(self._options)
            if isinstance(error, _core.InfeasibleAnswer):
                return False
            raise
        return True

    def _open_again(self, options: str) -> None:
        """Takes other memory, for all shapes that still fit there; module and optimizer are up to date. Of several ranks, this one alone: by the plans they have agreed on."""
        ranks, agreed = (self._ranks.core, self._core.agreement) if self._ranks else (None, "")
        made = _made.get(self._optimizer, 0) if self._core is None else self._core.number
        self._let_go()  # also of memory that was just taken, where a Ctrl-C came then
        self._views.clear()
        self._places.clear()
        self._core = None  # its memory goes before more is taken
        for group, told in zip(self._groups, json.loads(options)["optimizer"]["groups"]):
            group.sent = {key: told[key] for key in group.settings}  # the settings have to be told again
        self._options = options
        self._evaluations.clear()
        self._evaluated, self._in_use = None, 0
        shown = _Progress(self._progress)
        try:
            with fallbacks.rehearsal():
                self._core = _core.Step(self._based_on.text, options, shown, ranks, agreed)
                self._note_states()
                for key, (form, number) in list(self._shapes.items()):
                    if form is self._based_on:
                        self._shapes[key] = form, 0
                        continue
                    try:
                        self._shapes[key] = form, self._core.add_shape(form.text, shown, number if ranks else None)
                    except _core.InfeasibleAnswer:  # it is tried again when a batch of it comes
                        del self._shapes[key]
        finally:
            shown.end()
        self._push(at_least=made)

    def _note_states(self) -> None:
        self._states = set(self._core.states)
        self._tensors = {tensor["name"]: tensor for tensor in self._first.section["tensors"]}

    def _held_buffers(self) -> list[tuple[dict[str, Any], str, Tensor, str]]:
        """Buffers that the core has: where each is found, and that it is this one."""
        held = {id(tensor) for name, tensor in self._captured.buffers.items() if name in self._states}
        modules = [*self._modules.items(), *((f"{title}.{path}".strip("."), m) for title, whole in self._captured.beside.items() for path, m in whole.named_modules())]
        return [(m._buffers, key, t, path) for path, m in modules for key, t in m._buffers.items() if id(t) in held]

    @property
    def evaluation_outputs(self) -> dict[str, Tensor]:
        if self._evaluated is None:
            return {}
        form, number = self._evaluated
        return {theirs: torch.from_numpy(self._core.evaluation_output(number, ours)) for theirs, ours in form.outputs.items()}

    @property
    def outputs(self) -> dict[str, Tensor]:
        """Of the last batch, what ``outputs=`` picked, by the names that it gave: "output" where it gave a tensor, "output0" and so
        on where it gave several."""
        return {theirs: torch.from_numpy(self._core.output(ours)) for theirs, ours in self._form.outputs.items()}

    @property
    def gradient_norm(self) -> Optional[float]:
        """Of the last step, before it was clipped; None where it is not."""
        return self._core.gradient_norm

    # --- what the user sees of module and optimizer ---

    def _states_of(self, parameter: str) -> dict[str, str]:
        known = optimizers.STATES[self._kind]
        return {theirs: f"{parameter}.{ours}" for theirs, ours in known.items() if f"{parameter}.{ours}" in self._states}

    def _set(self, name: str, value: Tensor) -> None:
        self._core.set_state(name, as_reals(value.detach()).to(device="cpu", dtype=self._dtype(name)).contiguous().numpy())

    def _dtype(self, name: str) -> torch.dtype:
        return DTYPES[self._tensors[name]["dtype"]] if name in self._tensors else torch.float32

    def _view(self, name: str) -> Optional[Tensor]:
        """The state where the step has it, if it lies there as an array does."""
        if name not in self._views or self._views[name].data_ptr() != self._places[name]:  # sent to another process, its memory moves
            array = self._core.state_view(name)
            if array is None:
                return None
            self._views[name] = torch.from_numpy(array)
            self._places[name] = self._views[name].data_ptr()
        return self._views[name]

    def _own(self) -> dict[str, Tensor]:
        """The module's tensors that the step holds."""
        tensors = {**self._captured.buffers, **self._captured.parameters}
        return {name: tensor for name, tensor in tensors.items() if name in self._states}

    def _own_beside(self) -> dict[str, Tensor]:
        """Those that are of the loss, or of modules that it reads."""
        of_model = {id(tensor) for tensor in itertools.chain(self._model.parameters(), self._model.buffers())}
        counts = {name: self._captured.buffers[name] for name in self._captured.division.dynamic}  # which PyTorch advances
        return {name: tensor for name, tensor in {**self._own(), **counts}.items() if id(tensor) not in of_model}

    @_lasting
    def _push(self, with_optimizer: bool = True, at_least: int = 0) -> None:
        """Module and optimizer -> arena. The module's tensors then are those in the arena, where that is possible. ``at_least``: updates that were made, of which each
        parameter may have had fewer."""
        for name, tensor in self._values.items():
            if name in self._states and name not in self._captured.buffers and name not in self._captured.parameters:
                self._set(name, tensor)
        with untouched():
            for name, tensor in self._own().items():
                view = self._view(name)
                if view is not None and tensor.data_ptr() == view.data_ptr():
                    continue
                self._set(name, tensor)
                if view is not None and tensor.device.type == "cpu" and as_reals(tensor).dtype == view.dtype:
                    let_go(tensor, None)
                    tensor.data = shaped_like(view, tensor)
                else:
                    hold(tensor, self, name)
                    self._rest(tensor)
        if not with_optimizer:
            return
        if self._kind in optimizers.UNCOUNTED:
            number = _made.get(self._optimizer, 0)  # its states do not say
        else:
            number = max(optimizers.updates_made(self._optimizer), at_least)
        optimizers.set_behind(self._optimizer, self._groups, self._captured.parameters, number)
        for name, parameter in self._captured.parameters.items():
            state = states_of(self._optimizer, parameter)
            for theirs, ours in self._states_of(name).items():
                value, view = state.get(theirs), self._view(ours)
                if value is None or view is None or value.data_ptr() != view.data_ptr():
                    self._set(ours, torch.zeros(optimizers.state_shape(theirs, parameter), dtype=parameter.dtype) if value is None else value)
        if not (self._core.accumulated and self._core.number == number):  # else gradients that are summed already would be lost
            self._core.start_at(number, self._seed)

    def sync(self) -> None:
        """Brings the module's parameters and buffers, and the optimizer's states, up to date: those that are not the
        step's own already. Reading a ``state_dict`` of either, or running the module, does it by itself. Where states are divided
        among ranks, all of them call it together, and each gets the whole."""
        self._sync({"module", "optimizer"})

    def _sync_module(self) -> None:
        """For who reads the module: without the optimizer's states, where these need all ranks."""
        self._sync({"module"} if self._divided else {"module", "optimizer"})

    @_lasting
    def _sync(self, what: set[str], without_others: bool = False) -> None:
        what = what & self._stale
        if not what:
            return
        left = self._divided if without_others else set()  # as they are
        of_module = self._divided & self._own().keys()
        if not without_others and ("module" in what and of_module or "optimizer" in what and self._divided - of_module):
            self._agree("reading states that are divided among the ranks (step.sync, state_dict), which all ranks do together")
        self._stale -= what
        try:
            if "module" in what:
                self._take_replaced()
                self._read_module(left)
            if "optimizer" in what:
                self._read_optimizer(left)
        except BaseException:  # a Ctrl-C, too: half of it is old
            self._stale |= what
            raise

    def _read_module(self, left: set[str]) -> None:
        with torch.no_grad(), untouched():
            for name, tensor in self._own().items():
                view = self._view(name)
                if name not in left and (view is None or tensor.data_ptr() != view.data_ptr()):
                    self._read_into(tensor, name)
                    self._rest(tensor)

    def _read_optimizer(self, left: set[str]) -> None:
        made = self._core.number
        group_of = {name: group for group in self._groups for name in group.names}
        for name, parameter in self._captured.parameters.items():
            ours = self._states_of(name)
            if not ours or left & set(ours.values()):
                continue
            group = group_of.get(name)
            number = made - (group.behind if group else 0)
            if number == 0:
                continue  # no batch has trained it, and PyTorch has no states of it
            state = keep_states_of(self._optimizer, parameter)
            for theirs, core_name in ours.items():
                view = self._view(core_name)
                like = parameter.new_empty(optimizers.state_shape(theirs, parameter), device="meta")
                state[theirs] = self._new(like, core_name) if view is None else shaped_like(view, like)
            if self._kind not in optimizers.UNCOUNTED:
                state["step"] = optimizers.number_as_theirs(self._optimizer, number)
            if self._kind == "fairseq_adafactor":  # of the parameter as it is now, which the next update makes anew
                values = self._core.state(name)
                state["RMS"] = torch.tensor(float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))), dtype=torch.float32)
            if group and (product := optimizers.mu_product(group, made)) is not None:
                state["mu_product"] = torch.tensor(product)

    @_lasting
    def _let_go(self) -> None:
        """Module and optimizer get tensors of their own for those in the step's memory."""
        ours = set(self._places.values())
        with untouched():
            for tensor in self._own().values():
                let_go(tensor, self)
                if tensor.data_ptr() in ours:
                    tensor.data = self._copied(tensor.data)
        for parameter in self._captured.parameters.values():
            state = states_of(self._optimizer, parameter)
            for key, value in state.items():
                if isinstance(value, Tensor) and value.data_ptr() in ours:
                    state[key] = self._copied(value)

    def _new(self, parameter: Tensor, name: str) -> Tensor:
        """A state's values in a tensor of its own."""
        dtype = parameter.dtype if parameter.is_complex() else self._dtype(name)
        tensor = self._empty_like(torch.empty(parameter.shape, dtype=dtype, device="meta"))
        self._read_into(tensor, name)
        self._rest(tensor)
        return tensor

    def _copied(self, tensor: Tensor) -> Tensor:
        copy = self._empty_like(tensor)
        copy.copy_(tensor)
        self._rest(copy)
        return copy

    def _empty_like(self, tensor: Tensor) -> Tensor:
        """Where large ones of the module's may lie: in a file, or, where none is wanted, or the folder is gone or full, in memory."""
        if self._files is not None and self._files.takes(tensor):
            try:
                return self._files.empty_like(tensor)
            except OSError:
                pass
        return torch.empty_like(tensor, device="cpu")

    def _rest(self, tensor: Tensor) -> None:
        if self._files is not None:
            self._files.rest(tensor)

    def _read_into(self, tensor: Tensor, name: str) -> None:
        """A state's values, some at a time where the tensor takes them as they are."""
        alone = name not in self._divided  # else all ranks read it together, in the same way whatever their tensors are
        if alone and tensor.device.type == "cpu" and tensor.dtype == self._dtype(name) and tensor.is_contiguous():
            self._core.read_state(name, tensor.detach().numpy())
        else:
            tensor.copy_(shaped_like(torch.from_numpy(self._core.state(name)), tensor))

    def refresh(self) -> None:
        """The other way: takes over what the user has written into module or optimizer, as ``load_state_dict`` does."""
        self._sync_module()  # what nobody has read since it was trained
        made = self._core.number
        counted_alike = optimizers.are_as_counted(self._optimizer, self._groups, self._captured.parameters, made)
        self._push("optimizer" not in self._stale, made if counted_alike else 0)
        self._stale = self._stale & {"optimizer"}

    # --- files ---

    def save(self, path: Union[str, os.PathLike]) -> None:
        """Everything that training needs to go on: parameters, buffers, optimizer, and the state of randomness; between two steps:
        gradients that are summed for the next one are left out, as PyTorch leaves out ``grad``. Of several ranks the
        first one writes the file; all call it together where states are divided among them, and may in any case."""
        self.sync()
        if self._ranks is not None and self._ranks.rank > 0:
            return
        content = {
            "format": "plimsoll step",
            "model": self._model.state_dict(),
            "beside": {name: tensor.detach() for name, tensor in self._own_beside().items()},
            "optimizer": self._optimizer.state_dict(),
            "number": self._core.number,
            "seed": self._seed,
            "torch_rng": torch.get_rng_state(),
        }
        partial = f"{os.fspath(path)}.partial"
        try:
            with open(partial, "wb") as file:
                _write_whole(content, file)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise

    @_lasting
    def load(self, path: Union[str, os.PathLike]) -> None:
        """Goes on where ``save`` stopped."""
        with open(path, "rb") as file:
            try:
                _refuse_damaged(file)
                content = torch.load(file, weights_only=True)
            except Exception as error:  # of many kinds, as its bytes are
                raise ValueError(f"{path} was not written by step.save, or is damaged: {error}") from None
        if not isinstance(content, dict) or content.get("format") != "plimsoll step":
            raise ValueError(f"{path} was not written by step.save")
        beside, kept = self._own_beside(), content.get("beside")
        if kept is None:  # as it was written before there were such
            beside = kept = {}
        if beside.keys() != kept.keys():
            raise ValueError(f"{path} has other tensors than this step beside the model's: {', '.join(sorted(beside.keys() ^ kept.keys()))}")
        self._model.load_state_dict(content["model"])
        with torch.no_grad():
            for name, tensor in beside.items():
                tensor.copy_(kept[name])
        self._optimizer.load_state_dict(content["optimizer"])
        self._seed = content["seed"]
        torch.set_rng_state(content["torch_rng"])
        _made[self._optimizer] = content["number"]
        self._push(at_least=content["number"])
        self._core.start_at(content["number"], self._seed)
        self._stale = set()

    # --- about the plan ---

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as a dictionary. ``unplanned_bytes`` is what PyTorch takes beside the arena for what it computes in the step, at
        most: 0 where nothing is left to it, None before it has run."""
        taken = [entry["unplanned_bytes"] for entry in self.fallbacks]
        return json.loads(self._core.plan()) | {"unplanned_bytes": None if None in taken else max(taken, default=0)}

    @property
    def fallbacks(self) -> list[dict[str, Any]]:
        """What PyTorch computes in the step: of each region its ``ops`` (operator, module, source line, reason) and its
        ``unplanned_bytes``, measured when it first ran."""
        forms = [form for form, _ in [*self._shapes.values(), *self._evaluations.values()]]
        converted = {id(form): form.converted for form in forms}.values()  # sizes of a last batch share a form
        return self._unplanned.told([region for one in converted for region in one.fallbacks])

    def report(self, path: Union[str, os.PathLike]) -> None:
        """Writes the plan as one HTML file with charts."""
        self._core.report(os.fspath(path), self._name, self._batch)

    def explain(self, name: str) -> str:
        """Tells where a tensor or a layer lies when, and why."""
        return self._core.explain(name)


_core.register_fallback(fallbacks.run)


def compile(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss: Optional[Callable[[Any, Any], Tensor]] = None,
    example: Any,
    shapes: Sequence[Any] = (),
    memory: Optional[Size] = None,
    host_memory: Optional[Size] = None,
    spill: Optional[str] = None,
    memory_is: str = "arena",
    policy: str = "auto",
    placement: str = "offline",
    exact: bool = False,
    threads: int = 0,
    device: str = "cpu",
    feed_ahead: bool = False,
    costs: str = "measured",
    accumulate: int = 1,
    clip_grad_norm: float = 0.0,
    outputs: Optional[Callable[[Any], Any]] = None,
    call: Optional[Callable[[nn.Module, Any], Any]] = None,
    fallback: Optional[str] = None,
    zero: Optional[int] = None,
    process_group: Group = None,
    timeout: float = 300,
    progress: bool = True,
) -> Step:
    """Plans a training step of `model` inside `memory` and takes that memory.

    ``loss(output, batch)`` gives the loss; left out, the model returns it. ``example`` is a batch as the loader gives it.
    Batches of other shapes than the example's get a plan of their own when the first comes, in the same memory; ``shapes`` are
    examples of those that need more of it than ``example`` does. ``memory`` is the arena's, in which all tensors and workspaces
    lie; with ``memory_is="process"`` it is the whole process's: what it holds now (PyTorch, the model), what the step takes beside the
    arena, and the arena in what is left. What the process takes later for other things is not known here. With ``spill="DIR:SIZE"`` tensors of the
    step may lie in that folder, and so do, in files of their own, those of the module that the arena has not. Sizes are bytes or texts as "4GiB". Raises ``Infeasible`` where no plan fits, with the least that would do, and
    ``Unsupported`` where the network holds what cannot be trained, before anything is allocated.

    With ``feed_ahead=True`` the plan for a GPU may have a second buffer for the batch, in ``memory``, where it is predicted to make the time from
    step to step shorter: ``step.over(loader)`` fills it while a step runs. A step of several ranks has none.

    With ``fallback="torch"`` PyTorch computes inside the step what Plimsoll has no op for. Inputs and results of such an operator lie
    in the arena; what PyTorch takes meanwhile is not in the plan. ``step.fallbacks`` lists them, ``step.plan["unplanned_bytes"]``
    says how much that was.

    Where ``mpirun``, ``srun`` or ``torchrun`` has started several of this script, or ``torch.distributed`` is initialised, they train
    together, as with DistributedDataParallel: each gives its own batches, all begin with rank 0's parameters, and gradients are
    averaged before every update; a loss is that of the rank's own batch. ``process_group`` names those of torch.distributed that do,
    and ``False`` trains alone. ``memory`` is what each may take. ``zero`` is the stage of ZeRO, by which states are divided among the
    ranks: 0 to 3, or None for what costs least of those that fit. A rank that fails, or leaves the others waiting for ``timeout``
    seconds, ends all with ``RankFailed``.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("the model is wrapped in DistributedDataParallel; give model.module: the step itself averages gradients among the ranks")
    ranks = find(process_group, timeout)
    _bring_up_to_date(model, *modules_beside(model, loss, call, outputs).values(), loose=_trained(optimizer))  # by all ranks together, where it is divided among them
    if ranks is not None:
        begin_alike(ranks, model, optimizer)

    def prepared() -> Callable[[], Step]:
        largest, *others = sorted([plain(example), *(arranged(batch, example) for batch in shapes)], key=_elements, reverse=True)
        refuse_unseen(model, optimizer)
        _expect_values(model)
        loose = Loose(_trained(optimizer), model, loss, call, outputs)
        settings = Settings(model, loss, call, without=loose.parameters())
        generators, own = _generators(), settings.generators()
        with names_read() if settings.reads_packages else nullcontext(set()) as names:
            (captured, converted, groups), fixed = found_fixed(largest, lambda batch: _captured(model, optimizer, loss, batch, outputs, call, fallback, loose))
        drawn = generators != _generators() or own != settings.generators()
        settings.forget_unnamed(names)
        _expect_alone(captured, ranks)
        if captured.sizes:
            warnings.warn("whether masks hold anywhere, or at how many places, decides what the network is: batches in which it is otherwise get plans of their own", stacklevel=2)
        if drawn:
            warnings.warn(
                "the model or the loss draws random numbers of Python or numpy: what they were at compile they are in every step. Draw them"
                " by torch, or give them with the batch", stacklevel=2,
            )
        skeleton = skeleton_of(largest)
        largest, *others = (with_fixed(batch, fixed) for batch in (largest, *others))
        synchronised = has_sync_batch_norm(model, converted.document, ranks is not None)

        modes = training_modes(model)

        def capture_as(batch: Any, training: bool, any_batch: bool = True, numbers: Sequence[Number] = ()) -> Captured:
            return capture(
                model, loss, _on_device_of(model, batch), outputs=outputs, call=call, training=training, any_batch=any_batch,
                fallback=fallback is not None, modes=modes if training else None, numbers=list(numbers), loose=loose, changing=settings.changing,
            )

        base = Form(captured, converted)  # where states lie is as the largest needs it
        forms = [(key_of(largest), base)]
        members = set(itertools.chain.from_iterable(_members(optimizer)))
        settings.changing.update(reached.changed_buffers(captured))
        for batch in others:
            if key_of(batch) not in dict(forms):
                other = capture_as(batch, True)
                form = Form(other, convert(other, label_dtype="i32"), base)
                if more := reached.beyond(form, base, members):
                    if (wider := reached.with_states_of(base, form, more)) is None:
                        raise ValueError(f"'{more[0]}' is trained by one of shapes= and not by example=, and is no parameter of float32: give a batch that trains it as example=")
                    base, form = wider, Form(other, convert(other, label_dtype="i32"), wider)
                settings.changing.update(reached.changed_buffers(other))
                forms.append((key_of(batch), form))
        for i, (key, form) in enumerate(forms):
            if reached.is_outdated(form.captured, settings.changing):
                other = capture_as(([largest, *others])[[key_of(batch) for batch in (largest, *others)].index(key)], True)
                forms[i] = key, Form(other, convert(other, label_dtype="i32"), base)
        groups = reached.apart(optimizers.groups_of(optimizer, captured.known), base, [form.trained for _, form in forms] if optimizers.counts(optimizer) else [])
        folder = folder_of(spill)
        files = None if folder is None else Files(folder)
        if files is not None:
            taken.extend(take_in(files, _alone(model)))
        options = _core_options(
            optimizer, groups, accumulate, clip_grad_norm, synchronised, memory=memory, host_memory=host_memory, spill=spill,
            memory_is=memory_is, held_bytes=_held(model, memory_is), policy=policy, placement=placement, exact=exact,
            threads=threads, device=device, costs=costs, zero=zero,
            feed_ahead=feed_ahead and ranks is None,
        )
        return lambda: Step(
            model, optimizer, forms, options, groups, capture_as, skeleton, progress, ranks, _told_of(forms, options), files, fixed, settings.keep(reached.changed_buffers(*(form.captured for _, form in forms))), modes, base
        )

    taken: list[Tensor] = []
    try:
        with interruptible(), torch.inference_mode(False):
            return (prepared() if ranks is None else ranks.together(prepared))()
    except BaseException:
        bring_back(taken)
        raise


def _generators() -> tuple:
    """The states of Python's and numpy's generators of random numbers."""
    kind, keys, place, *rest = np.random.get_state()
    return random.getstate(), keys.tobytes(), place, rest


def _alone(model: nn.Module) -> list[Tensor]:
    """Its tensors that are nobody else's: no other step's, and not in the memory of another of them."""
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    with untouched():
        others = {id(tensor) for steps in list(_steps.values()) for step in steps for tensor in step._own().values()}
        places = collections.Counter(tensor.untyped_storage().data_ptr() for tensor in tensors.values())
        return [t for number, t in tensors.items() if number not in others and places[t.untyped_storage().data_ptr()] == 1]


def _write_whole(content: Any, file: BinaryIO) -> None:
    """By torch.save, to the disk. PyTorch tells of a write that failed only that a position is not as expected."""
    failed: list[OSError] = []

    class Watched(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            try:
                return file.write(data)
            except OSError as error:
                failed.append(error)
                raise

    checked = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)  # load compares them
    try:
        torch.save(content, Watched())
        file.flush()
        os.fsync(file.fileno())
    except RuntimeError:
        if failed:
            raise failed[0] from None
        raise
    finally:
        torch.serialization.set_crc32_options(checked)


def _refuse_damaged(file: BinaryIO) -> None:
    """torch.load does not compare the checksums that torch.save wrote."""
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of '{damaged}' in it is another")
    file.seek(0)


_OF_EACH = ("memory", "host_memory", "spill", "held_bytes")  # options that need not be the same on all ranks


def _told_of(forms: list[tuple[Key, Form]], options: str) -> dict[str, Any]:
    """What all ranks must have alike."""
    network = hashlib.sha256("".join(form.text for _, form in forms).encode()).hexdigest()
    batches = "; ".join(_told(key) for key, _ in forms)
    given = {name: value for name, value in json.loads(options).items() if name not in _OF_EACH}
    return {"the example batch": batches, **given, "the network": network[:16]}


def _expect_values(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not has_values(tensor):
            raise ValueError(
                f"'{name}' has no values (its device is {tensor.device}); plimsoll.fits answers for such a model. To train it, call"
                ' model.to_empty(device="cpu") and load or initialize its weights'
            )


def _elements_of(key: Key) -> int:
    return sum(math.prod(part[0]) for part in key if isinstance(part, tuple) and isinstance(part[-1], torch.dtype))


def _elements(batch: Any) -> int:
    return sum(leaf.numel() for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))


def _captured(model, optimizer, loss, example, outputs, call, fallback, loose=None):
    if fallback not in (None, "torch"):
        raise ValueError(f"fallback={fallback!r} is unknown; 'torch' lets PyTorch compute what Plimsoll has no op for")
    optimizers.kind_of(optimizer)
    _bring_up_to_date(model, *modules_beside(model, loss, outputs, call).values(), loose=_trained(optimizer))
    example = _on_device_of(model, example)
    loose = Loose(_trained(optimizer), model, loss, call, outputs) if loose is None else loose
    captured = capture(model, loss, example, outputs=outputs, call=call, fallback=fallback is not None, loose=loose)
    converted = convert(captured, label_dtype="i32")
    document = converted.document
    groups = optimizers.groups_of(optimizer, captured.known)
    trained = {t["name"] for t in document["training"]["tensors"] if t["role"] == "parameter"}
    for group in groups:
        group.names = [name for name in group.names if name in trained]
    in_groups = {name for group in groups for name in group.names}
    frozen = document["training"].setdefault("frozen", [])
    frozen.extend(sorted(trained - in_groups - set(frozen)))
    return captured, converted, groups


def _held(model: nn.Module, memory_is: str, on_disk: Sequence[Tensor] = ()) -> Optional[int]:
    """What the process holds already, and what it will for a model that has no values yet; without those tensors."""
    if memory_is != "process":
        return None
    gc.collect()
    give_memory_back()
    away = {id(tensor) for tensor in on_disk}
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    tensors = [*model.parameters(), *model.buffers()]
    with untouched():
        coming = sum(t.numel() * t.element_size() for t in tensors if t.is_meta and id(t) not in away)
        going = sum(t.numel() * t.element_size() for t in on_disk if not t.is_meta and t.untyped_storage().filename is None)
    return resident + coming - going


def _on_device_of(model: nn.Module, example: Any) -> Any:
    """An example for a capture lies where the model does; for one without values it has none either."""
    devices = {parameter.device for parameter in model.parameters()}
    device = torch.device("meta") if torch.device("meta") in devices else devices.pop() if len(devices) == 1 else None
    if device is None:
        return example
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) and not leaf.is_meta else leaf, example)


def fits(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss: Optional[Callable[[Any, Any], Tensor]] = None,
    example: Any,
    memory: Size,
    host_memory: Optional[Size] = None,
    spill: Optional[str] = None,
    memory_is: str = "arena",
    policy: str = "auto",
    exact: bool = False,
    threads: int = 0,
    device: str = "cpu",
    accumulate: int = 1,
    clip_grad_norm: float = 0.0,
    call: Optional[Callable[[nn.Module, Any], Any]] = None,
    fallback: Optional[str] = None,
    ranks: int = 1,
    zero: Optional[int] = None,
) -> dict[str, Any]:
    """Whether a training step fits, and what it would cost, before any weight exists: the model may be on the meta
    device. Gives ``feasible``, ``minimum_bytes`` and, where it fits, ``step_time_ms``, else ``proven`` (``Infeasible``). With
    ``memory_is="process"`` memory and ``minimum_bytes`` are the whole process's, as in ``compile``. ``fallback`` as there; what PyTorch
    takes for it is not counted. With ``ranks`` the answer is for each of so many processes that train together, with ``example`` as the
    batch of each; ``zero`` as in ``compile``. Their link is assumed to carry 10 Gbit/s."""
    if ranks < 1:
        raise ValueError(f"ranks={ranks} is to be at least 1")
    refuse_unseen(model, optimizer)
    (_, converted, groups), _ = found_fixed(plain(example), lambda batch: _captured(model, optimizer, loss, batch, None, call, fallback))
    options = _core_options(
        optimizer, groups, accumulate, clip_grad_norm, has_sync_batch_norm(model, converted.document, ranks > 1), memory=memory, host_memory=host_memory, spill=spill, memory_is=memory_is,
        held_bytes=_held(model, memory_is, of_those(_alone(model)) if folder_of(spill) else ()), policy=policy, exact=exact, threads=threads, device=device, costs="estimated",
        ranks=ranks, zero=zero,
    )
    return json.loads(_core.fits(json.dumps(converted.document), options))

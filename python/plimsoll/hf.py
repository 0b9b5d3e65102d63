"""Hugging Face's Trainer with the step in a stated memory.

    from plimsoll.hf import Trainer, TrainingArguments        # instead of: from transformers import ...

    trainer = Trainer(model, TrainingArguments("runs/gpt", memory="2GiB", num_train_epochs=3), train_dataset=texts)
    trainer.train()

Loop, data, schedules, callbacks, logs and files are transformers' own. What is exchanged is a batch's work: forward pass, backward pass,
clipping and update are one step of ``plimsoll.compile``, and an evaluation of a batch runs in the same memory. The loss is what
``compute_loss`` gives, of transformers or of a subclass.
"""

from __future__ import annotations

import json
import random
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers.trainer_pt_utils import LabelSmoother
from transformers.trainer_utils import has_length
from transformers.utils import logging

from .assigned import OF_CAPTURES
from .held import untouched
from .optimizers import kind_of
from .step import Step, compile

logger = logging.get_logger("transformers.plimsoll")

if not hasattr(transformers.Trainer, "_prepare_for_training"):
    raise ImportError(f"plimsoll.hf needs a newer transformers than {transformers.__version__}; it is tested with 5.24")

__all__ = ["Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"]


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    """Those of transformers, and what ``plimsoll.compile`` wants to know."""

    memory: Optional[str] = field(default=None, metadata={"help": "Memory of the training step, as 4GiB: parameters, optimizer, activations, gradients. Default: what the machine has."})
    host_memory: Optional[str] = field(default=None, metadata={"help": "Memory beside it, to which tensors of the step may move meanwhile."})
    spill: Optional[str] = field(default=None, metadata={"help": "A folder to which tensors of the step may move, as /fast/disk:20GiB."})
    memory_is: str = field(default="arena", metadata={"help": "Of what memory= is: of the step's 'arena', or of the whole 'process'."})
    exact: bool = field(default=False, metadata={"help": "The same bits under every memory."})
    threads: int = field(default=0, metadata={"help": "Threads of the step; 0: as many as are good."})

    def __post_init__(self) -> None:
        self.use_cpu = True  # where the step runs
        super().__post_init__()


_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "rmsprop", "adagrad")
_FEW = 4  # lengths that need not be made fewer
_LOOKED_AT = 64  # texts

_OURS = [f.name for f in fields(TrainingArguments) if f.name not in {g.name for g in fields(transformers.TrainingArguments)}]

# Arguments that ask for what the step does not do, and what to do instead.
_REFUSED = {
    "fp16": "the step trains in float32; leave it out",
    "bf16": "the step trains in float32; leave it out",
    "fp16_full_eval": "the step evaluates in float32; leave it out",
    "bf16_full_eval": "the step evaluates in float32; leave it out",
    "deepspeed": "the step places its tensors itself; give memory=, host_memory= and spill= instead",
    "fsdp": "the step places its tensors itself; give memory=, host_memory= and spill= instead",
    "parallelism_config": "the step runs on one device; leave it out",
    "torch_compile": "the step is compiled already; leave it out",
    "use_liger_kernel": "the step has kernels of its own; leave it out",
    "auto_find_batch_size": "plimsoll.Infeasible names the least memory before the first step; choose a batch size that fits",
    "neftune_noise_alpha": "a hook adds its noise, which a captured step would not draw anew; leave it out",
}


def _refuse(trainer: type, args: transformers.TrainingArguments) -> None:
    """Raises ValueError with all that would not be done as transformers does it."""
    told = [f"{name}={getattr(args, name)!r}: {reason}" for name, reason in _REFUSED.items() if getattr(args, name, None)]
    if not _is_around_ours(trainer):
        told.append(f"{trainer.__name__}.training_step: it does more than what stands around super().training_step, and the step is compiled once; override compute_loss")
    if args.world_size > 1:
        told.append(f"{args.world_size} processes: plimsoll.hf.Trainer trains in one; plimsoll.compile does in several")
    if args.device.type != "cpu":
        told.append(f"device {args.device}: the step runs on the CPU; give use_cpu=True, or plimsoll.hf.TrainingArguments")
    if told:
        raise ValueError("plimsoll.hf.Trainer refuses\n  " + "\n  ".join(told))


_OF_GRADIENTS = {"autocast", "backward", "compute_loss", "grad", "zero_grad"}


def _is_around_ours(trainer: type) -> bool:
    """Whether those who have written a ``training_step`` of their own call ours within it, and do nothing with gradients, of which there are none."""
    for kind in trainer.__mro__[: trainer.__mro__.index(Trainer)]:
        if "training_step" in vars(kind):
            names = set(getattr(getattr(vars(kind)["training_step"], "__code__", None), "co_names", ()))
            if "training_step" not in names or names & _OF_GRADIENTS:
                return False
    return True


def _last_whole_checkpoint(folder: str) -> Union[str, bool]:
    """The newest that was written to its end, which ``trainer_state.json`` is; True, for transformers to say so, where there is none at all."""
    steps = {int(path.name.rpartition("-")[2]): path for path in Path(folder).glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit() and path.is_dir()}
    for step in sorted(steps, reverse=True):
        try:
            json.loads((steps[step] / "trainer_state.json").read_text())
        except (OSError, ValueError):
            logger.warning(f"{steps[step]} was not written to its end, so training goes on from the checkpoint before it")
        else:
            return str(steps[step])
    if steps:
        raise ValueError(f"none of the checkpoints in {folder} was written to its end; train without resume_from_checkpoint")
    return True


class Trainer(transformers.Trainer):
    """As transformers'. ``args`` is ``plimsoll.hf.TrainingArguments``, or transformers' own, which say nothing of memory."""

    def __init__(self, model: Any = None, args: Optional[transformers.TrainingArguments] = None, *further: Any, **named: Any):
        args = TrainingArguments("tmp_trainer") if args is None else args
        _refuse(type(self), args)
        if args.gradient_checkpointing:
            logger.info("gradient_checkpointing is left to the plan, which recomputes what does not fit")
            args.gradient_checkpointing = False
        self._step: Optional[Step] = None
        self._needs: list[bool] = []  # of the parameters, whether they had gradients when it was compiled
        self._together: Optional[int] = None  # batches of the update that is being accumulated
        self._captures = False
        self._before_captures: Optional[dict[str, Any]] = None  # attributes, where there was one since the last batch
        self._not_logged: set[str] = set()  # what compute_loss gave to log, or to an attribute
        self._told_of_logs = False
        super().__init__(model, args, *further, **named)
        self._refuse_other_optimizers(str(getattr(args.optim, "value", args.optim)))

    def _refuse_other_optimizers(self, chosen: str) -> None:
        own = self.optimizer is not None or getattr(self, "optimizer_cls_and_kwargs", None) is not None or type(self).create_optimizer is not transformers.Trainer.create_optimizer
        if not own and chosen not in _OPTIMIZERS:
            told = f"optim={chosen!r}: the step trains by optimizers of torch.optim; give one of {', '.join(_OPTIMIZERS)}, or an optimizer by optimizers="
            raise ValueError(f"plimsoll.hf.Trainer refuses\n  {told}")

    @property
    def step(self) -> Optional[Step]:
        """The compiled step, from the first batch on: its ``plan``, ``report`` and ``explain``."""
        return self._step

    # --- training ---

    def get_train_dataloader(self) -> Any:
        self._pad_to_few_lengths(self.train_dataset)
        return super().get_train_dataloader()

    def _pad_to_few_lengths(self, data: Any) -> None:
        """Each length of a batch has a plan of its own. Where the collator pads each batch to its longest text, it pads to a multiple."""
        collator = self.data_collator
        tokenizer = getattr(collator, "tokenizer", None)
        if getattr(collator, "pad_to_multiple_of", 0) is not None or str(getattr(collator, "padding", True)) not in ("True", "longest"):
            return
        if "attention_mask" not in getattr(tokenizer, "model_input_names", ()):
            return  # padding would be read as text
        lengths, of_both = _lengths(data)
        if len(set(lengths)) <= _FEW:
            return
        multiple = 8
        while max(map(max, lengths)) > (1 if of_both else 2) * _FEW * multiple:
            multiple *= 2
        config = getattr(self.model, "config", None)
        most = min(getattr(config, "max_position_embeddings", None) or 1 << 30, tokenizer.model_max_length)
        if most % multiple and max(map(max, lengths)) > most // multiple * multiple // 2:
            return  # a text that just fits might be padded to more positions than there are
        collator.pad_to_multiple_of = multiple
        logger.warning(
            f"Texts have many lengths, each of which takes a plan of its own: batches are padded to multiples of {multiple}. Set"
            " data_collator.pad_to_multiple_of to choose another, or to 1 for none."
        )

    def train(self, resume_from_checkpoint: Union[str, bool, None] = None, *args: Any, **named: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = _last_whole_checkpoint(self.args.output_dir)
        return super().train(resume_from_checkpoint, *args, **named)

    def _prepare_for_training(self, *args: Any, **named: Any) -> Any:
        self._step = None  # another train() may have another optimizer, or other weights
        result = super()._prepare_for_training(*args, **named)
        kind_of(self._torch_optimizer())
        for callback in self.callback_handler.callbacks:
            if type(callback).__name__ == "JITCheckpointCallback":  # it would write what is behind the update as what is before; it is asked again at the step's end
                callback.on_pre_optimizer_step = lambda *_, **__: None
            elif type(callback).on_pre_optimizer_step is not transformers.TrainerCallback.on_pre_optimizer_step:
                told = "the update belongs to the compiled step: what it does to gradients is lost, and a learning rate that it sets is that of the next update"
                warnings.warn(f"{type(callback).__name__}.on_pre_optimizer_step comes behind the update; {told}", stacklevel=2)
        if result[0] is not self.model:
            raise ValueError(f"the model is wrapped in {type(result[0]).__name__} to train on several devices, which plimsoll.hf.Trainer does not do")
        return result

    def get_batch_samples(self, *args: Any, **named: Any) -> Any:
        self._together = None
        return super().get_batch_samples(*args, **named)

    def _batches_of_update(self) -> int:
        """How many batches the next update is of. Those at the end of an epoch that are too few for one are kept for the next epoch's
        first, as transformers does it where the number of batches is not known."""
        if self._together is None:
            group, whole = self.current_gradient_accumulation_steps, self.args.gradient_accumulation_steps
            are_kept = group < whole and not has_length(self.callback_handler.train_dataloader)
            self._together = (self._step._core.accumulated if self._step is not None else 0) + group + (whole if are_kept else 0)
        return self._together

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Union[Tensor, int, None] = None) -> Tensor:
        model.train()
        together = self._batches_of_update()
        batch = self._batch(inputs, num_items_in_batch, ignored=None)
        if self.args.gradient_accumulation_steps > 1:  # the step takes the mean of all, where the losses, or the means of groups, are to be added
            own = 1 if self._sums(num_items_in_batch) else self.current_gradient_accumulation_steps
            batch["together"] = torch.tensor(together / own)
        with untouched():
            needs = [parameter.requires_grad for parameter in model.parameters()]
        if self._step is not None and needs != self._needs:  # a callback has frozen some
            self._step.sync()
            self._step = None
        if self._step is None:
            self._step, self._needs = self._compiled(model, batch), needs
        updates = self.accelerator.gradient_state.sync_gradients
        loss = self._step(batch, batches=self._step._core.accumulated + (1 if updates else 2)) / together
        self._let_go_of_symbols()
        return torch.tensor(loss)

    def _compiled(self, model: nn.Module, batch: dict[str, Any]) -> Step:
        ours = {name: getattr(self.args, name) for name in _OURS if hasattr(self.args, name)}
        _write_as_saving_does(model)
        return compile(
            model,
            self._torch_optimizer(),
            example=batch,
            call=self._captured_call(),
            loss=lambda output, batch: output["loss"],
            outputs=lambda output: output["wanted"],
            accumulate=self.args.gradient_accumulation_steps,
            clip_grad_norm=self.args.max_grad_norm or 0.0,
            process_group=False,
            progress=not self.args.disable_tqdm,
            **ours,
        )

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        """Accelerate wraps it."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _batch(self, inputs: Mapping[str, Any], items: Union[Tensor, int, None], ignored: Optional[Sequence[str]]) -> dict[str, Any]:
        """What the step gets: the batch, by how many items its loss is divided, and which outputs are read: all but ``ignored``, or
        none."""
        batch: dict[str, Any] = {"inputs": dict(self._prepare_inputs(inputs)), "ignored": None if ignored is None else tuple(ignored)}  # type: ignore[arg-type]
        if items is not None:
            batch["items"] = torch.as_tensor(items, dtype=torch.float32)
        return batch

    def _sums(self, items: Union[Tensor, int, None]) -> bool:
        """Whether the loss of a batch is its part of the sum over all that are accumulated; else it is a mean of its own."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        return (self.model_accepts_loss_kwargs and items is not None) or self.compute_loss_func is not None

    def _captured_call(self) -> Callable[[nn.Module, Any], Any]:
        """``_call``. The trainer of a bound method is looked at before every step, since a loss of the user's may read
        its ``state``. That of transformers reads nothing which changes."""
        is_theirs = getattr(self.compute_loss, "__func__", None) is transformers.Trainer.compute_loss
        smooths_as_theirs = self.label_smoother is None or type(self.label_smoother) is LabelSmoother
        return _Unread(self._call) if is_theirs and smooths_as_theirs and self.compute_loss_func is None else self._call

    def _call(self, model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
        """What is captured."""
        further: dict[str, Any] = {} if batch["ignored"] is None else {"return_outputs": True}
        with _nothing_to_unwrap(self.accelerator), self._capturing():
            result = self.compute_loss(model, dict(batch["inputs"]), num_items_in_batch=batch.get("items"), **further)
        loss, outputs = result if further else (result, None)
        if "together" in batch:
            loss = loss * batch["together"]
        return {"loss": loss, "wanted": {} if batch["ignored"] is None else _named(outputs, batch["ignored"])}

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        if self._before_captures is None:
            self._before_captures = dict(vars(self))
        self._captures = True
        try:
            yield
        finally:
            self._captures = False

    def _let_go_of_symbols(self) -> None:
        """What ``compute_loss`` assigned to attributes of the trainer while it was captured stands for numbers, and is none: an attribute is as it was, and a new
        number is NaN."""
        before, self._before_captures = self._before_captures, None
        for name, value in list(vars(self).items()) if before is not None else ():
            if value is before.get(name, self) or not any(isinstance(leaf, OF_CAPTURES) for leaf in tree_leaves(value)):
                continue
            self._not_logged.add(name)
            if name in before:
                setattr(self, name, before[name])
            elif isinstance(value, torch.SymFloat) or (isinstance(value, Tensor) and value.dim() == 0):
                setattr(self, name, torch.tensor(float("nan")) if isinstance(value, Tensor) else float("nan"))
            else:
                delattr(self, name)
        if self._not_logged and not self._told_of_logs:
            self._told_of_logs = True
            told = "it runs while the step is captured, where there are no numbers yet, and not for every batch. Compute them in a callback, or in compute_metrics"
            warnings.warn(f"compute_loss computes {', '.join(sorted(self._not_logged))} for a log, which has no values of these: {told}", stacklevel=3)

    def log(self, logs: dict[str, Any], *args: Any, **named: Any) -> None:
        """What ``compute_loss`` logs has no value: it runs while the step is captured, and never again."""
        lost = [name for name, value in logs.items() if self._captures or isinstance(value, OF_CAPTURES)]
        self._not_logged.update(lost)
        if self._captures:
            return
        for name in lost:
            del logs[name]
        super().log(logs, *args, **named)

    def _clip_grad_norm(self, model: nn.Module) -> Optional[float]:
        return self._step.gradient_norm if self._step is not None else None

    def _get_grad_norm(self, model: nn.Module, grad_norm: Optional[float] = None) -> Optional[float]:
        return grad_norm  # of gradients that are not clipped none is known, since they never exist all at once

    # --- evaluation ---

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Optional[list[str]] = None) -> Any:
        """In the step's memory, once there is a step; before, and where there are no labels, as transformers does it."""
        labels = [inputs.get(name) for name in self.label_names]
        if self._step is None or model is not self._step._model or not labels or any(label is None for label in labels):
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        if ignore_keys is None:
            ignore_keys = getattr(getattr(self.model, "config", None), "keys_to_ignore_at_inference", [])
        items = self._get_num_items_in_batch([inputs], self.args.device)
        batch = self._batch(inputs, items, None if prediction_loss_only else [*ignore_keys, "loss"])
        loss = torch.tensor(self._step.evaluate(batch))
        self._let_go_of_symbols()
        if prediction_loss_only:
            return loss, None, None
        return loss, _alone(_as_they_were(self._step.evaluation_outputs)), _alone(tuple(labels))


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments, transformers.Seq2SeqTrainingArguments):
    """Those of transformers, and what ``plimsoll.compile`` wants to know."""


class Seq2SeqTrainer(Trainer, transformers.Seq2SeqTrainer):
    """As transformers'. With ``predict_with_generate`` it evaluates outside of the step's memory, as transformers does it."""

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Optional[list[str]] = None, **generation: Any) -> Any:
        by = transformers.Seq2SeqTrainer if self.args.predict_with_generate and not prediction_loss_only else Trainer
        further = generation if by is transformers.Seq2SeqTrainer else {}
        return by.prediction_step(self, model, inputs, prediction_loss_only, ignore_keys, **further)


class _Unread:
    """A function whose object is not looked at before every step."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[nn.Module, Any], Any]):
        self._function = function

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        return self._function(model, batch)


def _write_as_saving_does(model: nn.Module) -> None:
    """What ``save_pretrained`` writes into the configuration of a model that was not read from a file. A step looks at configurations, and would be captured anew behind the first
    checkpoint."""
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            if getattr(part.config, "dtype", "") is None:
                part.config.dtype = part.dtype
            if getattr(part.config, "architectures", ()) is None:
                part.config.architectures = [type(part).__name__]


@contextmanager
def _nothing_to_unwrap(accelerator: Any) -> Iterator[None]:
    """The model is as it is. Accelerate compares versions to unwrap one, and the ``epoch`` of a version would be taken
    for that of the trainer's state, with which the network would change at every step."""
    before = vars(accelerator).get("unwrap_model")
    accelerator.unwrap_model = lambda model, *_, **__: model
    try:
        yield
    finally:
        del accelerator.unwrap_model
        if before is not None:
            accelerator.unwrap_model = before


def _lengths(data: Any) -> tuple[list[tuple[int, ...]], bool]:
    """Of some of a data set's texts, and, with True, of texts that belong to them and are of other lengths; none where it cannot be asked without being read through."""
    try:
        count = len(data)
        with _random_numbers_as_they_were():
            looked_at = [data[i] for i in range(0, count, max(1, count // _LOOKED_AT))]
        texts = [(len(row["input_ids"]),) for row in looked_at]
        labels = [row.get("labels") for row in looked_at]
        targets = [(len(label) if isinstance(label, Sequence) else 0,) for label in labels]
        of_both = any(targets) and texts != targets and all(map(any, targets))
        return ([(*a, *b) for a, b in zip(texts, targets)], True) if of_both else (texts, False)
    except (TypeError, KeyError, IndexError, AttributeError, NotImplementedError):
        return [], False


@contextmanager
def _random_numbers_as_they_were() -> Iterator[None]:
    """Those that a data set draws, which may change its texts, are drawn again in training."""
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(pythons), np.random.set_state(numpys)


def _named(outputs: Any, ignored: Sequence[str]) -> dict[str, Tensor]:
    """A model's outputs by name, those in tuples by the tuple's name and their number."""
    if not isinstance(outputs, Mapping):
        outputs = {str(i): output for i, output in enumerate(outputs[1:])}
    named: dict[str, Tensor] = {}
    for name, output in outputs.items():
        if name in ignored:
            continue
        parts = {name: output} if isinstance(output, Tensor) else {f"{name}/{i}": part for i, part in enumerate(output or ())}
        named |= {part: value for part, value in parts.items() if isinstance(value, Tensor)}
    return named


def _as_they_were(named: Mapping[str, Tensor]) -> tuple:
    found: dict[str, Any] = {}
    for name, value in named.items():
        whole, _, number = name.partition("/")
        found[whole] = (*found.get(whole, ()), value) if number else value
    return tuple(found.values())


def _alone(values: tuple) -> Any:
    return values[0] if len(values) == 1 else values

"""The processes that train together, each with its part of every batch, as DistributedDataParallel's do.

``find`` gives those that this process is one of: of ``torch.distributed``, where that is initialised or ``torchrun`` has started this
script; else those that ``mpirun`` or ``srun`` has started. What they send goes by MPI, or by a process group of torch.distributed
(gloo) on views of the step's own memory. One object serves all steps of a process, until it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from datetime import timedelta
from typing import Any, Callable, Optional, TypeVar, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import _core, optimizers
from .held import untouched
from .optimizer_state import keep_states_of, states_of

Group = Union[None, bool, "dist.ProcessGroup"]
Result = TypeVar("Result")
_FOREVER = timedelta(days=3650)  # the core has a timeout of its own, and names the rank that does not answer
_CHANNELS = range(3)


class _Carrier:
    """Carries messages by a process group: a thread for each channel, rank and direction, which waits for one after the other."""

    def __init__(self, group: Any, rank: int, size: int):
        self._group, self._rank, self._size = group, rank, size
        self.relay = _core.Relay(rank, size, f"torch.distributed {torch.__version__}, gloo")
        lanes = [(c, peer, sends) for c in _CHANNELS for peer in range(size) if peer != rank for sends in (False, True)]
        self._threads = [threading.Thread(target=self._carry, args=lane, daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    def _carry(self, channel: int, peer: int, sends: bool) -> None:
        begin = self._group.send if sends else self._group.recv
        while (message := self.relay.take(channel, peer, sends)) is not None:
            ticket, memory = message
            try:
                begin([torch.from_numpy(memory)], peer, channel).wait(_FOREVER)
            except RuntimeError:  # gloo: the connection is closed
                return self.relay.lose(peer)
            self.relay.done(ticket)

    def close(self) -> None:
        """Ends the threads, which must not meet the end of the interpreter. A wait of gloo's that is over its time closes every
        connection of its group, and so ends all others."""
        self.relay.close()
        for peer in range(self._size):
            if peer != self._rank and any(thread.is_alive() for thread in self._threads):
                try:
                    self._group.recv([torch.zeros(1, dtype=torch.uint8)], peer, len(_CHANNELS)).wait(timedelta(milliseconds=1))
                except RuntimeError:
                    pass
        for thread in self._threads:
            thread.join(1)


class Ranks:
    """This process and the others. All make the same calls in the same order."""

    def __init__(self, core: Any, carrier: Optional[_Carrier] = None):
        self.core, self._carrier, self._process = core, carrier, os.getpid()
        self.rank: int = core.rank
        self.size: int = core.size
        self.transport: str = core.transport
        atexit.register(self._leave)

    def _leave(self) -> None:
        if os.getpid() != self._process:  # a copy of this process, as loaders make them
            return
        try:
            error = getattr(sys, "last_value", None)  # what ends this process, if it was not caught
            if error is None:
                self.core.set_timeout(_FOREVER.total_seconds())  # the others may still evaluate, or write files
                self.core.finish()
            else:
                self.core.fail(f"{type(error).__name__}: {error}")
        except _core.RankFailed as failed:
            print(f"plimsoll: {failed}", file=sys.stderr)
        if self._carrier is not None:
            self._carrier.close()

    def name(self, rank: int) -> str:
        """ "rank 2 (node7)"."""
        return self.core.name(rank)

    def together(self, run: Callable[[], Result]) -> Result:
        """Runs it on every rank. Where it raises on some, it raises on all: elsewhere a RuntimeError that names the first of them."""
        told, result = "", None
        try:
            result = run()
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            self.core.all_gather(told)
            raise
        for rank, text in enumerate(self.core.all_gather(told)):
            if text:
                raise RuntimeError(f"{self.name(rank)} cannot go on: {text}")
        return result  # type: ignore[return-value]

    def expect_same(self, told: dict[str, Any]) -> None:
        """Raises ValueError on all ranks where one of them says something else, with what differs."""
        text = json.dumps(told)
        if self.core.is_same(text):
            return
        others = [json.loads(other) for other in self.core.all_gather(text)]
        for rank, other in enumerate(others):
            for name in [*others[0], *other]:
                mine, its = others[0].get(name), other.get(name)
                if mine != its:
                    raise ValueError(f"the ranks must be alike, but {name} is {mine} on {self.name(0)}, and {its} on {self.name(rank)}")

    def of_first(self, text: str) -> str:
        return self.core.all_gather(text if self.rank == 0 else "")[0]

    def broadcast(self, tensor: Tensor) -> None:
        """The first rank's elements for all."""
        if tensor.numel() == 0:
            return
        whole = tensor.detach().to("cpu").contiguous()
        self.core.broadcast(whole.view(-1).view(torch.uint8).numpy())
        if whole.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(whole)


def begin_alike(ranks: Ranks, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All begin with the model's parameters and buffers, and the optimizer's parameters and states, that the first rank has."""
    with torch.no_grad(), untouched():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        ranks.expect_same({"the number of the optimizer's parameters": len(parameters)})
        tensors = dict([*model.named_parameters(), *model.named_buffers()])
        own = {id(tensor) for tensor in tensors.values()}
        tensors |= {f"parameter {i} of the optimizer": parameter for i, parameter in enumerate(parameters) if id(parameter) not in own}
        ranks.expect_same({f"'{name}'": f"{str(t.dtype)[6:]} {tuple(t.shape)}{' on meta' if t.is_meta else ''}" for name, t in tensors.items()})
        for tensor in tensors.values():
            if not tensor.is_meta:
                ranks.broadcast(tensor)
        known = sorted({key for keys in optimizers.STATES.values() for key in keys})
        states = [states_of(optimizer, parameter) for parameter in parameters]
        mine = [[[key for key in known if isinstance(state.get(key), Tensor)], {key: float(state[key]) for key in optimizers.NUMBERS if key in state}] for state in states]
        for parameter, (keys, numbers) in zip(parameters, json.loads(ranks.of_first(json.dumps(mine)))):
            state = keep_states_of(optimizer, parameter) if keys or states_of(optimizer, parameter) else {}
            for key in {*known, *optimizers.NUMBERS} - set(keys):
                state.pop(key, None)
            for key in keys:
                state[key] = state.get(key, parameter.new_zeros(optimizers.state_shape(key, parameter)))
                ranks.broadcast(state[key])
            state |= {key: optimizers.number_as_theirs(optimizer, number) for key, number in numbers.items()}


def _by_torch() -> bool:
    return dist.is_available() and dist.is_initialized()


def _by_launcher() -> bool:
    """Of mpirun or srun; torchrun may itself be started by these, once a machine."""
    return "TORCHELASTIC_RUN_ID" not in os.environ and _core.launched_ranks() > 1


def rank() -> int:
    """The number of this process among those that were started together, as ``DistributedSampler`` wants it; 0 where it is alone."""
    if _by_torch():
        return dist.get_rank()
    return _core.launched_rank() if _by_launcher() else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes were started together."""
    if _by_torch():
        return dist.get_world_size()
    return _core.launched_ranks() if _by_launcher() else int(os.environ.get("WORLD_SIZE", "1"))


_lock = threading.Lock()
_found: dict[Any, Optional[Ranks]] = {}  # by process group; None: the one that was found without one


def find(group: Group, timeout: float) -> Optional[Ranks]:
    """The ranks that a step is trained by; None where this process trains alone. The first call joins them, and is made by all."""
    if group is False:
        return None
    by_torch = _by_torch()
    if group is not None and not (by_torch and isinstance(group, dist.ProcessGroup)):
        raise ValueError(f"process_group={group!r}: give a process group of torch.distributed, None for all ranks, or False to train alone")
    key = group if group is not None or not by_torch else dist.group.WORLD
    with _lock:
        if key not in _found:
            _found[key] = _join(key, timeout) if by_torch else _join_launched(timeout)
        ranks = _found[key]
    if ranks is not None:
        if ranks.core.is_over:
            raise _core.RankFailed("the ranks have ended: one of them has failed before")
        ranks.core.set_timeout(timeout)
    return ranks


def _join(group: Any, timeout: float) -> Optional[Ranks]:
    if dist.get_rank(group) < 0:
        raise ValueError("process_group=: this process is not in it")
    if dist.get_world_size(group) < 2:
        return None
    members = dist.get_process_group_ranks(group)
    own = dist.new_group(members, timeout=timedelta(seconds=timeout), backend="gloo", use_local_synchronization=True)
    return _by_carrier(own, dist.get_rank(group), len(members), timeout)


def _join_launched(timeout: float) -> Optional[Ranks]:
    if _by_launcher():
        core = _core.Ranks.by_mpi(timeout)
        return Ranks(core) if core.size > 1 else None
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not all(name in os.environ for name in ("RANK", "MASTER_ADDR", "MASTER_PORT")):
        return None
    from torch.distributed.rendezvous import rendezvous

    wait = timedelta(seconds=timeout)
    store, rank, size = next(rendezvous("env://", timeout=wait))
    return _by_carrier(dist.ProcessGroupGloo(dist.PrefixStore("plimsoll", store), rank, size, wait), rank, size, timeout)


def _by_carrier(group: Any, rank: int, size: int, timeout: float) -> Ranks:
    carrier = _Carrier(group, rank, size)
    return Ranks(_core.Ranks.by_relay(carrier.relay, timeout), carrier)

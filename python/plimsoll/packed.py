"""Packed sequences while a model is captured: the padded batch as it was, and how long each sequence is.

    pack_padded_sequence(x, lengths) -> nn.LSTM, nn.GRU, nn.RNN -> pad_packed_sequence

How many rows a packed batch has depends on values, and a plan wants sizes. So a layer runs over the padding as well, where its results are read by nobody:
each direction begins at a sequence's own first step, since what runs backwards is turned around within its length, and the last states are those of its last
step. ``.data`` of a packed sequence has no such form, and is refused by name.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

_VF = torch._VF  # type: ignore[attr-defined]
_FIELD = "_plimsoll_padded"  # of .data: the padded batch, steps first
_LENGTHS = "_plimsoll_lengths"  # of .batch_sizes

# --- operators -------------------------------------------------------------------------------------------------------


@torch.library.custom_op("plimsoll::packed", mutates_args=())
def packed(padded: Tensor) -> Tensor:
    """Stands for a packed sequence's ``.data``."""
    return padded.clone()


@packed.register_fake
def _(padded):
    return torch.empty_like(padded)


@torch.library.custom_op("plimsoll::checked_lengths", mutates_args=())
def checked_lengths(lengths: Tensor, steps: int, fills: bool) -> Tensor:
    """The lengths, if they are of a batch of so many steps; with ``fills``, one is as long as the batch."""
    longest = int(lengths.max())
    if int(lengths.min()) < 1 or longest > steps:
        raise ValueError(f"sequences of a batch of {steps} steps have lengths from 1 to {steps}; these are from {int(lengths.min())} to {longest}")
    if fills and longest < steps:
        raise ValueError(
            f"the longest sequence has {longest} steps, and the batch {steps}: pad_packed_sequence would give {longest}, where the step was planned for {steps};"
            " give it total_length, or pad batches to their longest sequence"
        )
    return lengths.clone()


@checked_lengths.register_fake
def _(lengths, steps, fills):
    return torch.empty_like(lengths)


@torch.library.custom_op("plimsoll::recurrence", mutates_args=())
def recurrence(x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], cell: str) -> tuple[Tensor, Tensor]:
    """One direction of one layer; x is [steps, rows, features]. Gives h of all steps, and c of an LSTM's, else h once more."""
    step = {"lstm": _VF.lstm_cell, "gru": _VF.gru_cell, "rnn_tanh": _VF.rnn_tanh_cell, "rnn_relu": _VF.rnn_relu_cell}[cell]
    h, c, all_of_h, all_of_c = state[0], state[-1], [], []
    for row in x:
        if cell == "lstm":
            h, c = step(row, (h, c), *weights)
        else:
            h = c = step(row, h, *weights)
        all_of_h.append(h)
        all_of_c.append(c)
    return torch.stack(all_of_h), torch.stack(all_of_c)


@recurrence.register_fake
def _(x, state, weights, cell):
    return tuple(x.new_empty(x.shape[0], x.shape[1], state[0].shape[-1]) for _ in range(2))


# --- layers ----------------------------------------------------------------------------------------------------------


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    x = x.transpose(0, 1) if batch_first else x
    lengths = torch.ops.plimsoll.checked_lengths(lengths, x.shape[0], False)
    sizes = (torch.arange(x.shape[0])[:, None] < lengths[None]).sum(1)
    setattr(sizes, _LENGTHS, lengths)
    return _with_field(x), sizes


def _with_field(padded: Tensor) -> Tensor:
    data = torch.ops.plimsoll.packed(padded)
    setattr(data, _FIELD, padded)
    return data


def _pad(data: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int) -> tuple[Tensor, Tensor]:
    x, lengths = getattr(data, _FIELD, None), getattr(sizes, _LENGTHS, None)
    if x is None or lengths is None:
        raise RuntimeError("a packed sequence is put together by hand; pack what is padded by pack_padded_sequence")
    fills = sys._getframe(1).f_locals.get("total_length") is None
    lengths = torch.ops.plimsoll.checked_lengths(lengths, x.shape[0], fills)
    inside = torch.arange(x.shape[0])[:, None] < lengths[None]
    x = torch.where(inside.reshape(*inside.shape, *[1] * (x.dim() - 2)), x, value)
    if total > x.shape[0]:
        x = F.pad(x, [0, 0] * (x.dim() - 1) + [0, total - x.shape[0]], value=value)
    return x.transpose(0, 1) if batch_first else x, lengths


def _layers(module: nn.RNNBase, given: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
    x, lengths = getattr(given.data, _FIELD, None), getattr(given.batch_sizes, _LENGTHS, None)
    if x is None or lengths is None:
        raise RuntimeError("a packed sequence is put together by hand; pack what is padded by pack_padded_sequence")
    if getattr(module, "proj_size", 0):
        raise RuntimeError("an LSTM with proj_size of packed sequences; take a linear layer behind it")
    steps, rows = x.shape[:2]
    cell, ways = module.mode.lower(), 2 if module.bidirectional else 1
    if hx is None:
        zeros = x.new_zeros(module.num_layers * ways, rows, module.hidden_size)
        hx = (zeros, zeros) if cell == "lstm" else zeros
    else:
        hx = module.permute_hidden(hx, given.sorted_indices)
    first = list(hx) if cell == "lstm" else [hx]
    place, row = torch.arange(steps)[:, None], torch.arange(rows)[None]
    turned = torch.where(place < lengths, lengths - 1 - place, place) * rows + row  # where each element stands in the sequence turned around
    ends = ((lengths - 1) * rows + row[0])[None]
    parameters = [getattr(module, name) for name in module._flat_weights_names]
    each, last = 4 if module.bias else 2, [[] for _ in first]  # type: ignore[var-annotated]
    for layer in range(module.num_layers):
        results = []
        for way in range(ways):
            i = layer * ways + way
            weights = parameters[i * each : (i + 1) * each]
            own = _taken(x, turned) if way else x
            several = torch.ops.plimsoll.recurrence(own, [s[i] for s in first], weights, cell)
            for k, sequence in enumerate(several[: len(first)]):
                last[k].append(_taken(sequence, ends))
            results.append(_taken(several[0], turned) if way else several[0])
        x = torch.cat(results, -1) if ways > 1 else results[0]
        if layer + 1 < module.num_layers and module.dropout:
            x = F.dropout(x, module.dropout, module.training)
    output = PackedSequence(_with_field(x), given.batch_sizes, given.sorted_indices, given.unsorted_indices)
    states = [torch.cat(parts, 0) for parts in last]
    return output, module.permute_hidden(tuple(states) if cell == "lstm" else states[0], given.unsorted_indices)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    """Rows of all steps, by their numbers."""
    return x.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, tuple(places.shape))


@contextmanager
def padded_sequences() -> Iterator[None]:
    """PyTorch's functions and layers are ours meanwhile, for packed sequences alone."""
    before = {layer: layer.forward for layer in (nn.LSTM, nn.GRU, nn.RNN)}

    def ours(theirs: Any) -> Any:
        def forward(self: Any, input: Any, hx: Optional[Any] = None) -> Any:
            return _layers(self, input, hx) if isinstance(input, PackedSequence) else theirs(self, input, hx)

        return forward

    for layer, theirs in before.items():
        layer.forward = ours(theirs)  # type: ignore[method-assign]
    _VF._pack_padded_sequence, _VF._pad_packed_sequence = _pack, _pad
    try:
        yield
    finally:
        del _VF._pack_padded_sequence, _VF._pad_packed_sequence
        for layer, theirs in before.items():
            layer.forward = theirs  # type: ignore[method-assign]

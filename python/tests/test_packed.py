"""Packed sequences: recurrent layers over padded batches that give what those over packed ones give."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import plimsoll
from cases import weighted
from plimsoll.errors import Unsupported
from support import assert_same, both, integers, start


class Reader(nn.Module):
    def __init__(self, kind: str, is_sorted: bool = False, batch_first: bool = True, total: int | None = None, **options):
        super().__init__()
        self.words, self.layer = nn.Embedding(11, 6), getattr(nn, kind)(6, 5, batch_first=batch_first, **options)
        self.is_sorted, self.batch_first, self.total = is_sorted, batch_first, total

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        x = self.words(words) if self.batch_first else self.words(words).transpose(0, 1)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=self.batch_first, enforce_sorted=self.is_sorted)
        packed, states = self.layer(packed)
        y, again = pad_packed_sequence(packed, batch_first=self.batch_first, padding_value=0.5, total_length=self.total)
        means = y.sum(1 if self.batch_first else 0) / again[:, None]
        return weighted(y) + weighted(means) + sum(weighted(s) for s in (states if isinstance(states, tuple) else (states,)))


BATCH = integers("words", 11, 3, 7), torch.tensor([4, 7, 1])
LARGER = integers("more", 11, 4, 7), torch.tensor([7, 2, 5, 1])


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": False}], ids=["plain", "both_ways", "steps_first"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_give_what_packed_layers_give(kind, options):
    assert_same(both(start(Reader(kind, **options)), BATCH, run_batch=LARGER))


def test_sorted_ones_and_a_total_length():
    words, lengths = integers("words", 11, 3, 7), torch.tensor([5, 4, 1])
    assert_same(both(start(Reader("GRU", is_sorted=True, total=7)), (words, lengths)))
    assert_same(both(start(Reader("LSTM", is_sorted=True, total=9)), (words, lengths)))


class WithStates(nn.Module):
    """A decoder that begins with an encoder's last states."""

    def __init__(self):
        super().__init__()
        self.words, self.encoder, self.decoder = nn.Embedding(11, 6), nn.LSTM(6, 5, batch_first=True), nn.LSTM(6, 5, batch_first=True)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        x = self.words(words)
        packed = [pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False) for n in (lengths, lengths.flip(0))]
        _, states = self.encoder(packed[0])
        return weighted(pad_packed_sequence(self.decoder(packed[1], states)[0], batch_first=True)[0])


def test_states_come_and_go_in_the_order_of_the_batch():
    assert_same(both(start(WithStates()), BATCH, run_batch=LARGER))


def test_lengths_that_do_not_fit_are_refused_before_the_step():
    torch.manual_seed(1)
    model = Reader("LSTM", num_layers=2, dropout=0.0)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = plimsoll.compile(model, optimizer, example=BATCH, memory="2MiB", threads=1, costs="estimated", progress=False)
    assert step(BATCH) == pytest.approx(twin(*BATCH).item(), rel=1e-4)
    for lengths, told in (([6, 5, 1], "total_length"), ([8, 5, 1], "from 1 to 7"), ([7, 5, 0], "from 1 to 7")):
        with pytest.raises(ValueError, match=told):
            step((BATCH[0], torch.tensor(lengths)))


class OfData(nn.Module):
    def __init__(self, by_hand: bool):
        super().__init__()
        self.layer, self.by_hand = nn.GRU(6, 5, batch_first=True), by_hand

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        if self.by_hand:
            packed = PackedSequence(packed.data * 2, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return self.layer(packed)[0].data.square().mean()


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_data_of_a_packed_sequence_is_refused(by_hand):
    with pytest.raises(Unsupported, match="pack_padded_sequence"):
        both(start(OfData(by_hand)), (torch.ones(2, 3, 6), torch.tensor([3, 2])))

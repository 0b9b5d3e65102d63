"""Attention that a model writes out is one operator, with the same loss and gradients: also of queries that see no key."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support import Both, assert_same, both, floats, start

LENGTH, HEADS, WIDTH = 12, 2, 4  # as no other size of these networks
LEAST = torch.finfo(torch.float32).min


class Written(nn.Module):
    """``attend(module, q, k, v, seen)`` of heads [batch, heads, LENGTH, WIDTH]; ``seen`` [batch, LENGTH] says which keys are no padding."""

    def __init__(self, attend):
        super().__init__()
        self.qkv, self.attend = nn.Linear(8, 24), attend
        self.table = nn.Parameter(torch.ones(1, HEADS, LENGTH, LENGTH))
        self.heat = nn.Parameter(torch.ones(HEADS, 1, 1))
        self.register_buffer("past", torch.ones(1, 1, 16, 16).tril())
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]).view(1, HEADS, 1, 1))

    def causal(self) -> Tensor:
        return self.past[:, :, :LENGTH, :LENGTH]

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.attend(self, q, k, v, seen).square().mean() + (self.table + self.heat).sum() * 1e-3


def batch(rows: int, left: bool = False, empty: bool = False) -> tuple[Tensor, Tensor]:
    """Of row i so many are padding as 2 * i, at the end or at the beginning; or all of the last row."""
    padding = 2 * torch.arange(rows)[:, None]
    seen = torch.arange(LENGTH) >= padding if left else torch.arange(LENGTH) < LENGTH - padding
    if empty:
        seen[-1] = False
    return floats("x", rows, LENGTH, 8), seen


def weighted(scores: Tensor, v: Tensor) -> Tensor:
    return F.softmax(scores, dim=-1) @ v


def joined(m, q, k, v, seen):
    q, k, v = (x.reshape(-1, LENGTH, WIDTH) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(-1, HEADS, LENGTH, LENGTH) / 2
    scores = scores.masked_fill(~seen[:, None, None, :], -math.inf)
    weights = F.dropout(scores.view(-1, LENGTH, LENGTH).softmax(-1), 0.0)
    return torch.bmm(weights, v).view(-1, HEADS, LENGTH, WIDTH)


def by_einsum(m, q, k, v, seen):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("blhd,bshd->bhls", q, k) * 0.5
    scores = scores.masked_fill(m.causal() == 0, -math.inf)
    return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v)


def grouped(m, q, k, v, seen):
    k, v = (x[:, :1, None].expand(-1, -1, HEADS, -1, -1).reshape(-1, HEADS, LENGTH, WIDTH) for x in (k, v))
    return weighted(q @ k.mT, v)


def with_alibi(m, q, k, v, seen):
    places = (seen.long().cumsum(-1) - 1) * seen
    alibi = (m.slopes * places[:, None, None, :]).reshape(-1, 1, LENGTH)
    q, k = (x.reshape(-1, LENGTH, WIDTH) for x in (q, k))
    scores = alibi.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=0.5).view(-1, HEADS, LENGTH, LENGTH)
    return weighted(scores + added(m, seen), v)


def added(m, seen: Tensor) -> Tensor:
    """As transformers adds it."""
    return torch.where((m.causal() != 0) & seen[:, None, None, :], 0.0, LEAST)


def one_head(m, q, k, v, seen):
    q, k, v = (x.transpose(1, 2).flatten(2) for x in (q, k, v))
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(HEADS * WIDTH)
    return weighted(scores.masked_fill(~seen.unsqueeze(1), -1e9), v)


def capped(m, q, k, v, seen):
    scores = torch.tanh(q @ k.mT * 0.7 / 1.5) * 1.5
    return weighted(scores + added(m, seen), v)


def steady(m, q, k, v, seen):
    scores = q @ k.mT * 0.5
    return weighted(scores - scores.amax(-1, keepdim=True).detach(), v)


def by_cosine(m, q, k, v, seen):
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * m.heat.exp()
    return weighted(scores, v)


# What attends, and what of it is told: keys before and behind, what a query gets that sees none, further inputs.
SHORT = {
    "plain": (lambda m, q, k, v, seen: weighted(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), v), (None, None, 0, 0)),
    "scaled_before": (lambda m, q, k, v, seen: weighted((q * 0.5) @ k.mT, v), (None, None, 0, 0)),
    "keys_turned": (lambda m, q, k, v, seen: weighted(torch.matmul(q, k.transpose(1, 2).permute(0, 2, 3, 1)), v), (None, None, 0, 0)),
    "by_a_tensor": (lambda m, q, k, v, seen: weighted(q @ k.mT / torch.sqrt(torch.tensor(4.0)), v), (None, None, 0, 0)),
    "einsum": (by_einsum, (None, 0, 0, 0)),
    "joined": (joined, (None, None, 0, 1)),
    "grouped": (grouped, (None, None, 0, 0)),
    "causal": (lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(m.causal() == 0, -math.inf), v), (None, 0, 0, 0)),
    "causal_by_a_number": (lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(m.causal() == 0, -1e9), v), (None, 0, 0, 0)),
    "causal_added": (lambda m, q, k, v, seen: weighted(q @ k.mT + (1 - m.causal()) * -10000.0, v), (None, 0, 0, 0)),
    "local": (lambda m, q, k, v, seen: weighted(torch.where(m.causal().tril().triu(-3) != 0, q @ k.mT, torch.tensor(LEAST)), v), (3, 0, 0, 0)),
    "padded": (lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(~seen[:, None, None, :], -1e9), v), (None, None, 1, 1)),
    "padded_and_causal": (
        lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(((m.causal() != 0) & seen[:, None, None, :]) == 0, -1e9), v),
        (None, 0, 1, 1),
    ),
    "hidden_twice": (
        lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(m.causal() == 0, -1e9).masked_fill(~seen[:, None, None, :], -1e9), v),
        (None, 0, 1, 1),
    ),
    "padding_added": (lambda m, q, k, v, seen: weighted(q @ k.mT + (1 - seen[:, None, None, :].float()) * LEAST, v), (None, None, 0, 1)),
    "added": (lambda m, q, k, v, seen: weighted(q @ k.mT + added(m, seen), v), (None, 0, 2, 1)),
    "one_head": (one_head, (None, None, 1, 1)),
    "capped": (capped, (None, 0, 2, 1)),
    "alibi": (with_alibi, (None, 0, 2, 1)),
    "steady": (steady, (None, None, 0, 0)),
    "cosine": (by_cosine, (None, None, 0, 0)),
}


def attentions(result: Both) -> list[dict]:
    return [op for op in result.section["ops"] if op["type"] == "AttentionForward"]


def square(result: Both) -> list[str]:
    """Tensors of queries x keys, without the parameter that is one."""
    shapes = {t["name"]: t["shape"] for t in result.section["tensors"]} | {op["name"]: shape for op in result.section["ops"] for shape in op["shapes"]}
    return [name for name, shape in shapes.items() if list(shape)[-2:] == [LENGTH, LENGTH] and "table" not in name and list(shape)[:2] != [1, HEADS]]


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("padding", ["right", "left", "empty"])
def test_is_one_operator(kind, padding):
    attend, told = SHORT[kind]
    may_be_blind = told[2] != 0 or kind == "padding_added" or told[3] == 0
    sizes = dict(left=padding == "left", empty=padding == "empty" and may_be_blind)
    result = both(start(Written(attend)), batch(3, **sizes), run_batch=batch(4, **sizes))
    assert_same(result)
    (op,) = attentions(result)
    given = op["attributes"]
    right = 0 if given["causal"] else given.get("window_right")
    assert (given.get("window_left"), right, given.get("blind", 0), len(op["inputs"]) - 3) == told
    assert not square(result)
    assert "SoftmaxForward" not in result.types()


def test_shares_keys_among_heads():
    (op,) = attentions(both(start(Written(grouped)), batch(3)))
    assert op["attributes"]["enable_gqa"] == 1


def test_caps_scores():
    (op,) = attentions(both(start(Written(capped)), batch(3)))
    assert (op["attributes"]["softcap"], op["attributes"]["scale"]) == (1.5, pytest.approx(0.7))


WITH_TENSORS = {
    "learnt": lambda m, q, k, v, seen: weighted(q @ k.mT * 0.5 + m.table, v),
    "learnt_and_causal": lambda m, q, k, v, seen: weighted((q @ k.mT + m.table).masked_fill(m.causal() == 0, -math.inf), v),
    "learnt_and_padded": lambda m, q, k, v, seen: weighted(q @ k.mT + (m.table + added(m, seen)), v),
    "both_padded": lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(~(seen[:, None, :, None] & seen[:, None, None, :]), -1e9), v),
    "causal_and_added": lambda m, q, k, v, seen: weighted(torch.where(m.causal() != 0, q @ k.mT, torch.tensor(LEAST)) / 2 + added(m, seen), v),
}


@pytest.mark.parametrize("kind", WITH_TENSORS)
@pytest.mark.parametrize("left", [False, True])
def test_keeps_a_mask_that_has_no_short_form(kind, left):
    result = both(start(Written(WITH_TENSORS[kind])), batch(3, left), run_batch=batch(4, left))
    assert_same(result)
    (op,) = attentions(result)
    assert len(op["inputs"]) == 4 and "SoftmaxForward" not in result.types()


def largest(m, q, k, v, seen):
    scores = q @ k.mT
    return weighted(scores.masked_fill(scores < scores.topk(3).values[..., -1:], -math.inf), v)


COMPUTED = {
    "largest": largest,
    "above_a_number": lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(q @ k.mT < 0.1, -1e9), v),
    "below_for_some_queries": lambda m, q, k, v, seen: weighted((q @ k.mT).masked_fill(q[..., :1] @ k[..., :1].mT < 0, -math.inf), v),
    "by_pytorchs_own": lambda m, q, k, v, seen: F.scaled_dot_product_attention(q, k, v, attn_mask=(q @ k.mT > -0.1) | (m.table > 0)),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_hides_what_a_mask_of_computed_numbers_does(kind):
    result = both(start(Written(COMPUTED[kind])), batch(3), run_batch=batch(4))
    assert_same(result)
    assert len(attentions(result)) == (kind == "by_pytorchs_own")


def test_drops_weights():
    dropout = nn.Dropout(0.25)
    result = both(start(Written(lambda m, q, k, v, seen: dropout((q @ k.mT).softmax(-1)) @ v)), batch(3), training=True)
    (op,) = attentions(result)
    assert op["attributes"]["dropout"] == 0.25 and len(op["inputs"]) == 5 and "DropoutForward" not in result.types()


def test_stays_as_it_is_where_the_weights_are_read():
    def attend(m, q, k, v, seen):
        weights = (q @ k.mT).softmax(-1)
        return weights @ v + weights.amax(-1, keepdim=True)

    result = both(start(Written(attend)), batch(3))
    assert_same(result)
    assert not attentions(result)


NOT_ATTENTION = {
    # Of a query that sees no key, a score outside of the window is as large as the others and has no gradient.
    "two_that_are_added": lambda m, q, k, v, seen: weighted(
        torch.where(m.causal().triu(-3) != 0, q @ k.mT, torch.tensor(LEAST)) + added(m, seen), v
    ),
    "over_queries": lambda m, q, k, v, seen: (q @ k.mT).softmax(-2) @ v,
    "keys_of_all": lambda m, q, k, v, seen: (q @ k[:1, :1].mT).softmax(-1) @ v,
    "of_a_power": lambda m, q, k, v, seen: (q @ k.mT).square().softmax(-1) @ v,
    "weakly_hidden": lambda m, q, k, v, seen: (q @ k.mT).masked_fill(~seen[:, None, None, :], -3.0).softmax(-1) @ v,
    "capped_mask": lambda m, q, k, v, seen: torch.tanh(q @ k.mT + m.table).softmax(-1) @ v,
}


@pytest.mark.parametrize("kind", NOT_ATTENTION)
def test_leaves_what_is_something_else(kind):
    result = both(start(Written(NOT_ATTENTION[kind])), batch(3), run_batch=batch(4))
    assert_same(result)
    assert not attentions(result)


class OfTorch(nn.Module):
    """nn.MultiheadAttention as most call it, which asks for the weights."""

    def __init__(self, is_causal: bool):
        super().__init__()
        self.attend, self.is_causal = nn.MultiheadAttention(8, HEADS, batch_first=True), is_causal

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=x.dtype) if self.is_causal else None
        padding = torch.zeros_like(x[:, :, 0]).masked_fill(~seen, -math.inf)
        return self.attend(x, x, x, key_padding_mask=padding, attn_mask=mask)[0].square().mean()


@pytest.mark.parametrize("is_causal", [False, True])
def test_that_of_pytorchs_module_is_one(is_causal):
    result = both(start(OfTorch(is_causal)), batch(3), run_batch=batch(4))
    assert_same(result)
    (op,) = attentions(result)
    assert op["attributes"]["causal"] == int(is_causal) and not square(result)

"""x[mask]: sums, means and losses of what a mask chooses are those of all rows that count."""

from __future__ import annotations

import contextlib
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plimsoll
from cases import weighted
from plimsoll.errors import Unsupported
from support import assert_same, both, floats, integers, start


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.layer, self.other, self.norm, self.body = nn.Linear(6, 5), nn.Linear(5, 5), nn.LayerNorm(5), body

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.body(self, self.layer(x), labels)


def classes(labels: Tensor) -> Tensor:
    return labels.clamp(min=0)


def put_back(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """Rows of a kind go through a layer of their own."""
    out, mask = torch.zeros_like(y), labels > 1
    out[mask] = m.other(F.gelu(y[mask]))
    out[~mask] += y[~mask] @ m.other.weight
    return weighted(out)


def column_of_each(y: Tensor, mask: Tensor, labels: Tensor, value) -> Tensor:
    """As RetinaNet makes what its scores should be."""
    out = torch.zeros_like(y)
    out[mask, labels[mask]] = value
    return out


def into_columns(y: Tensor, mask: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    out[mask, 2] = y[mask, 1] * 2
    out[mask, 3:] += y[mask, :2]
    return out


def distances_by_classes(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As the detectors of Ultralytics learn where a box ends: between two classes, for each of its sides."""
    mask = labels >= 0
    sides, place = torch.cat([y, y * 2, y - 1, y + 1], -1)[mask].view(-1, 5), torch.stack([labels, 4 - labels, labels * 0], -1).float().repeat_interleave(2, -1)[..., :4][mask] * 0.9
    left = place.long()
    share = left + 1 - place
    of = lambda goal: F.cross_entropy(sides, goal.view(-1), reduction="none").view(goal.shape)  # noqa: E731
    return (of(left) * share + of(left + 1) * (1 - share)).mean(-1, keepdim=True).sum() / 5


def some_of_what_was_chosen(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    rows, kinds = y[labels >= 0], labels[labels >= 0]
    total, large = rows.sum(-1), rows.sum(-1) > 0
    out = torch.zeros_like(total)
    out[large] = rows.exp().sum(-1)[large]
    copied = rows * 2
    copied[rows[:, 0] > rows[:, 1]] = 0.5
    return out.mean() + copied.square().mean() + F.cross_entropy(rows[kinds > 1], kinds[kinds > 1])


def overlaps(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As torchvision's losses of boxes do it: an area where two meet, zero else."""
    a, b = y[labels >= 0], y.detach().roll(1, 1)[labels >= 0]
    left, right = torch.max(a[:, 0], b[:, 0]), torch.min(a[:, 0] + 1, b[:, 0] + 1)
    shared, mask = torch.zeros_like(left), right > left
    shared[mask] = right[mask] - left[mask]
    return (1 - shared / (2 - shared)).mean()


def by_experts(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As makeMoE does it: two of three experts for each row; the third one is chosen by none."""
    share, best = m.norm(y)[..., :3].topk(2, -1)
    gates = torch.full_like(y[..., :3], -1e9).scatter(-1, best % 2 + (best == 2), share).softmax(-1)
    out, flat, flat_gates = torch.zeros_like(y), y.view(-1, 5), gates.view(-1, 3)
    for i, expert in enumerate((m.other, m.norm, m.other)):
        mask = (best == i).any(dim=-1) & (i < 2)
        rows = mask.view(-1)
        if rows.any():
            out[mask] += (expert(flat[rows]) * flat_gates[rows, i].unsqueeze(1)).squeeze(1)
    return weighted(out)


def by_places(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As Mixtral's own code does it."""
    rows = y.flatten(0, 1)
    share, best = m.norm(rows)[:, :3].softmax(-1).topk(2, -1)
    out, mask = torch.zeros_like(rows), F.one_hot(best, 3).permute(2, 1, 0)
    for i, expert in enumerate((m.other, m.norm, F.gelu)):
        which, row = torch.where(mask[i])
        chosen = rows[None, row].reshape(-1, 5)
        out.index_add_(0, row, expert(chosen) * share[row, which, None])
    return weighted(out)


def scattered_back(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    mask = labels > 1
    return weighted(y.masked_scatter(mask.unsqueeze(-1), m.norm(y[mask])))


def hard_negatives(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As SSD does it: masks of rows, expanded to their elements."""
    kinds = labels.clamp(min=0)
    positive = kinds > 0
    wide = positive.unsqueeze(positive.dim()).expand_as(y)
    order = y.detach().logsumexp(-1).sort(1, descending=True)[1].sort(1)[1]
    negative = order < (positive.long().sum(1, keepdim=True) * 2).clamp(max=3).expand_as(order)
    both_ = (wide + negative.unsqueeze(2).expand_as(y)).gt(0)
    places = F.smooth_l1_loss(y[wide].view(-1, 5), y.detach().roll(1, 1)[wide].view(-1, 5), reduction="sum")
    return places + F.cross_entropy(y[both_].view(-1, 5), kinds[(positive + negative).gt(0)], reduction="sum") / positive.sum()


def without_itself(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As SimCLR does it: a mask that is known, of which so many are chosen in each row."""
    rows = y.flatten(0, 1)
    alike, mask = rows @ rows.T, torch.eye(len(rows), dtype=torch.bool)
    return alike[~mask].view(len(rows), -1).logsumexp(1).mean() + weighted(alike[mask].view(-1))


def if_none_goes_on(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    loss = 0.0
    for kind in (1, 7, 2):
        mask = labels == kind
        if mask.sum() == 0:
            continue
        loss = loss + y[mask].mean(0).square().sum()
    return loss


def if_any(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    loss = y.square().mean()
    for kind in (1, 7):  # of the latter there is none
        if (labels == kind).any():
            loss = loss + F.cross_entropy(y[labels == kind], labels[labels == kind].clamp(max=4)) + y[labels == kind].tanh().mean()
    return loss


def as_deberta(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As DeBERTa takes the loss of the texts that have a label."""
    rows, labels = y.flatten(0, 1), labels.flatten()
    index = (labels >= 0).nonzero()
    if index.size(0) > 0:
        logits = torch.gather(rows, 0, index.expand(index.size(0), rows.size(1)))
        return nn.CrossEntropyLoss()(logits.view(-1, 5), torch.gather(labels, 0, index.view(-1)))
    return torch.tensor(0).to(rows)


def if_so_many(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """Of kind 7 there is none."""
    loss, rows, kinds = 0.0, y.flatten(0, 1), labels.flatten()
    for kind in (1, 7, 2):
        index, = torch.where(kinds == kind)
        if index.numel() == 0 or index.shape[0] < 1 or len(index) == 0 or not len(index):
            continue
        chosen = rows[index]
        if chosen.size(0) > 0 and chosen.shape[0] != 0 and chosen.numel() >= 1 and (kinds == kind).sum().item() > 0 and torch.nonzero(kinds == kind).numel():
            loss = loss + chosen.square().sum() / len_of(chosen) + chosen.view(chosen.shape[0], 5, 1).flatten(1).sum() / chosen.numel()
    return loss


def len_of(x: Tensor):
    return x.size(0)


def len_of_some(mean: Tensor, rows: Tensor) -> Tensor:
    return mean + rows.sum() if len(rows) > 0 else mean.detach()


def by_columns(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    places = (labels >= 0).nonzero()
    return y[places[:, 0], places[:, 1]].tanh().sum() / places.shape[0] + y.sum() / (labels == 2).sum().item()


def by_number(total: Tensor, number: int) -> Tensor:
    return total / max(1, number)


def put_back_elements(y: Tensor, labels: Tensor) -> Tensor:
    out = y.clone()
    out[labels >= 0] = y[labels >= 0].reshape(-1)
    return out.sum()


def in_order(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """What is chosen of a row moves to its begin."""
    mask = labels >= 0
    kept = torch.arange(4) < mask.sum(1)[:, None]
    i, j = kept.nonzero(as_tuple=True)
    out, turned = torch.zeros_like(y), y.new_zeros(4, len(y), 5)
    out[kept] = m.other(y[mask])
    turned[j, i] = y[torch.where(mask)] * 2
    other = turned.clone()
    other[kept.T] = m.norm(y.transpose(0, 1)[mask.T])  # other rows, which are as many
    return weighted(out) + weighted(turned) + weighted(other)


def one_to_all(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    rows, out = y.flatten(0, 1), y.clone()
    out[labels > 0] = m.norm(rows[torch.arange(len(rows)) == labels.sum() % 3])
    return weighted(out)


def at_places(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """What is the same for all places, by numbers of these; and reading with dimensions between."""
    i, j = torch.where(labels >= 0)
    wide, out = y[:, None] * torch.arange(1.0, 4)[:, None, None], y * 1
    out[i, j, :] = 0.5
    out.transpose(0, 1)[j, i] = y.detach()[0, 0]
    out[(labels > 2).nonzero(as_tuple=True)] = -1
    return m.other(wide[i, :, j]).view(len(i), -1).square().sum() + wide[i, :, j].reshape(len(j), 15).tanh().sum() + weighted(out)


LOSSES = {
    "in_order": in_order,
    "one_to_all": one_to_all,
    "at_places": at_places,
    "as_deberta": as_deberta,
    "if_so_many": if_so_many,
    "by_columns": by_columns,
    "a_shape": lambda m, y, t: y[t >= 0].sum() / y[t >= 0].shape[0] + y[t > 0].sum() / y[t > 0].numel(),
    "how_many_places": lambda m, y, t: y.sum() / torch.where(t > 0)[0].shape[0],
    "cross_entropy": lambda m, y, t: F.cross_entropy(y[t != -100], t[t != -100]),
    "with_labels_that_do_not_count": lambda m, y, t: nn.CrossEntropyLoss(ignore_index=2)(y[t >= 0], t[t >= 0]),
    "with_weights": lambda m, y, t: F.cross_entropy(y[t >= 0], t[t >= 0], torch.arange(1.0, 6, dtype=y.dtype), label_smoothing=0.1),
    "sums": lambda m, y, t: F.cross_entropy(y[t >= 0], t[t >= 0], reduction="sum") / (t >= 0).sum(),
    "each": lambda m, y, t: (F.cross_entropy(y[t >= 0], t[t >= 0], reduction="none") * 2).mean(),
    "of_logarithms": lambda m, y, t: F.nll_loss(F.log_softmax(y[t >= 0], -1), t[t >= 0]),
    "a_mean": lambda m, y, t: ((y.tanh() - 1) ** 2)[t >= 0].mean(),
    "a_mean_of_numbers": lambda m, y, t: y.square().sum(-1)[t >= 0].mean(),
    "of_columns": lambda m, y, t: weighted(y[t > 0].mean(0)) + weighted(y[t > 0].sum(dim=0)),
    "of_rows": lambda m, y, t: y[t > 0].softmax(dim=-1).square().sum(-1).sqrt().mean(),
    "squares": lambda m, y, t: F.mse_loss(y[t >= 0], y[t >= 0].detach() * 0.5 + 1),
    "absolute": lambda m, y, t: nn.L1Loss()(y[t >= 0][..., :], torch.ones(5).expand_as(y)[t >= 0]),
    "smooth": lambda m, y, t: F.smooth_l1_loss(y[t >= 0], y.detach().roll(1, 1)[t >= 0], reduction="sum"),
    "of_logits": lambda m, y, t: F.binary_cross_entropy_with_logits(y[t >= 0], F.one_hot(classes(t), 5).to(y.dtype)[t >= 0]),
    "of_numbers": lambda m, y, t: F.binary_cross_entropy(y[..., 0].sigmoid()[t >= 0], (t[t >= 0] % 2 == 0).to(y.dtype)),
    "masked_select": lambda m, y, t: torch.masked_select(y, (t >= 0)[..., None]).square().mean() + y.masked_select(y > 0).sum(),
    "infinite_where_it_does_not_count": lambda m, y, t: torch.log(torch.where((t >= 0)[..., None], y.exp(), 0.0))[t >= 0].mean(),
    "by_places": lambda m, y, t: y[(t >= 0).nonzero(as_tuple=True)].square().mean() + y[torch.where(t > 1)].sum(),
    "by_places_of_rows": lambda m, y, t: F.cross_entropy(y.flatten(0, 1)[(t.flatten() >= 0).nonzero().squeeze(-1)], t.flatten()[torch.where(t.flatten() >= 0)[0]]),
    "selected_rows": lambda m, y, t: y.flatten(0, 1).index_select(0, torch.nonzero(t.view(-1) > 0).flatten()).square().mean(),
    "without_columns": lambda m, y, t: F.mse_loss(y[..., :1][t >= 0].squeeze(), y[..., 1][t >= 0], size_average=False),
    "by_name": lambda m, y, t: F.mse_loss(input=y[t >= 0], target=y[t >= 0].detach() + 1) + F.cross_entropy(input=y[t >= 0], target=t[t >= 0]),
    "the_old_way": lambda m, y, t: F.cross_entropy(y[t >= 0], t[t >= 0], size_average=False) + nn.CrossEntropyLoss(reduce=False)(y[t > 0], t[t > 0]).mean(),
    "texts": lambda m, y, t: F.cross_entropy(y[t[:, 0] >= 0].view(-1, 5), t[t[:, 0] >= 0].reshape(-1)),
    "layers_between": lambda m, y, t: m.norm(m.other(y[t >= 0]).relu()).square().mean() + m.other(y[t > 1].mean(0)).sum(),
    "a_column_of_each": lambda m, y, t: -y.log_softmax(-1)[t >= 0, t[t >= 0]].mean() + y[(*torch.where(t > 1), t[t > 1] - 5)].square().sum(),
    "into_a_column_of_each": lambda m, y, t: F.binary_cross_entropy_with_logits(y, column_of_each(y, t >= 0, t, 1.0)) + weighted(column_of_each(y, t > 0, -1 - t, y.exp().sum(-1)[t > 0])),
    "into_columns": lambda m, y, t: weighted(into_columns(y, t > 0)),
    "angles": lambda m, y, t: (y[t >= 0].tanh().acos() + 0.5).cos().sum() + y[t > 1].tanh().mul(0.9).arcsin().sinh().mean(),
    "some_of_what_was_chosen": some_of_what_was_chosen,
    "overlaps": overlaps,
    "put_back": put_back,
    "by_experts": by_experts,
    "by_experts_and_places": by_places,
    "scattered_back": scattered_back,
    "if_any": if_any,
    "if_none_goes_on": if_none_goes_on,
    "hard_negatives": hard_negatives,
    "distances_by_classes": distances_by_classes,
}


def batch(rows: int) -> tuple[Tensor, Tensor]:
    labels = integers(f"labels{rows}", 5, rows, 4)
    return floats(f"x{rows}", rows, 4, 6), torch.where(integers(f"kept{rows}", 3, rows, 4) == 0, -100, labels)


@pytest.mark.parametrize("kind", LOSSES)
def test_what_a_mask_chooses(kind):
    assert_same(both(start(Model(LOSSES[kind])), batch(3), run_batch=batch(5)))


def whole_numbers(y: Tensor, labels: Tensor) -> Tensor:
    out = labels.clone()
    out[labels > 1] = labels[labels.flip(0) > 1]
    return (y[..., 0] * out).sum()


def written_behind(use):
    """A mask is written into when something was made of it, and of what it was before that is still used."""

    def body(m: Model, y: Tensor, labels: Tensor) -> Tensor:
        mask = labels > 0
        made = {"rows": lambda: m.other(y)[mask], "labels": lambda: labels[mask], "places": lambda: torch.where(mask), "number": lambda: mask.sum(), "any": lambda: mask.any()}[use]()
        mask[:, 0] = False
        if use == "places":
            out = m.other(y)
            out[made] = 0.5
            return weighted(out)
        if use in ("number", "any"):
            return m.other(y)[mask].square().sum() + y.sum() if made > 0 else weighted(y)
        return made.float().sum() * weighted(y)

    return body


def moved_places(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    i, j = torch.where(labels > 0)
    j.add_(1).remainder_(4)
    return m.other(y)[i, j].sum()


def one_of_two(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    found = (labels > 2).any()
    found |= (labels > 1).any()
    return m.other(y)[labels > 2].sum() + y.sum() if found else weighted(y)


def into_another(rows: Tensor) -> Tensor:
    out = torch.zeros_like(rows)
    out[rows[:, 0] > 0] = rows[rows[:, 1] > 0]
    return out.sum()


REFUSED = {
    "rows_of_a_written_mask": (written_behind("rows"), "written into"),
    "labels_of_a_written_mask": (written_behind("labels"), "written into"),
    "places_of_a_written_mask": (written_behind("places"), "depends? on values"),
    "number_of_a_written_mask": (written_behind("number"), "depends? on values"),
    "any_of_a_written_mask": (written_behind("any"), "depends? on values"),
    "moved_places": (moved_places, "depends? on values"),
    "one_of_two": (one_of_two, "depends? on values"),
    "some_of_what_was_chosen_elsewhere": (lambda m, y, t: into_another(y[t >= 0]), "another one"),
    "whole_numbers_in_order": (lambda m, y, t: whole_numbers(y, t), "another one"),
    "one_by_a_length": (lambda m, y, t: y[t >= 0].sum() * (1.0 / len(y[t >= 0])), "how many rows a mask chooses"),
    "a_length_by_name": (lambda m, y, t: by_number(y[t >= 0].sum(), len(y[t >= 0])), "shape.0. for len"),
    "at_least_two": (lambda m, y, t: y[t >= 0].sum() / max(2, y[t >= 0].shape[0]), "how many rows a mask chooses"),
    "at_most_one": (lambda m, y, t: y[t >= 0].sum() / min(y[t >= 0].shape[0], 1), "how many rows a mask chooses"),
    "a_maximum_before_it_asks": (lambda m, y, t: len_of_some(y[t >= 0].max(), y[t >= 0]), "before Python asks"),
    "elements_before_it_asks": (lambda m, y, t: len_of_some(y[t >= 0].reshape(-1).std(), y[t >= 0]), "before Python asks"),
    "the_place_of_a_maximum": (lambda m, y, t: y[t >= 0].max(0)[0].sum(), "max of what a mask chose.*amax"),
    "joined_with_all_rows": (lambda m, y, t: torch.cat([y[t >= 0], y.flatten(0, 1)], 1).sum(), "cat of what a mask chose"),
    "one_below_the_other": (lambda m, y, t: torch.stack([y[t >= 0], y[t >= 0]]).square().sum(), "stack of what a mask chose"),
    "places_in_all_rows": (lambda m, y, t: y.flatten(0, 1).gather(1, y[t >= 0].argmax(1, keepdim=True)).sum(), "gather of what a mask chose"),
    "columns_of_all_rows": (lambda m, y, t: y.flatten(0, 1).index_select(1, y[t >= 0].argmax(1)).sum(), "index_select of what a mask chose"),
    "chosen_of_what_was_chosen": (lambda m, y, t: torch.where(y[t >= 0][:, 0] > 0)[0].sum() * y.sum(), "where of what a mask chose"),
    "another_norm": (lambda m, y, t: y[t >= 0].norm(-math.inf), "norm of what a mask chose"),
    "other_rows_of_the_same": (lambda m, y, t: (y[t >= 0][:, :4].reshape(-1, 2) * y[t >= 0][:, :2]).sum(), "two masks"),
    "elements_put_back": (lambda m, y, t: put_back_elements(y, t), "another one"),
    "a_number": (lambda m, y, t: y[t >= 0].sum() * (1.0 / y[t >= 0].shape[0]), "how many rows a mask chooses"),
    "so_many_times": (lambda m, y, t: sum(y[i].sum() for i in range(y[t >= 0].shape[0])), "how many rows a mask chooses"),
    "above_two": (lambda m, y, t: y[t >= 0].sum() if (t >= 0).nonzero().size(0) > 2 else y.sum(), "how many rows a mask chooses"),
    "a_length_above_two": (lambda m, y, t: y[t >= 0].sum() if len(y[t >= 0]) > 2 else y.sum(), "how many rows a mask chooses"),
    "divided_before_it_asks": (lambda m, y, t: len_of_some(y[t >= 0].mean(), y[t >= 0]), "before Python asks"),
    "divided_by_their_number_before": (lambda m, y, t: len_of_some(y.sum() / y[t >= 0].shape[0], y[t >= 0]), "before Python asks"),
    "a_length_kept": (lambda m, y, t: y[t >= 0].sum() if max(len(y[t >= 0]), 0) > 0 else y.sum(), "how many rows a mask chooses"),
    "so_large_by_name": (lambda m, y, t: y[t >= 0].sum() + torch.ones(size=[y[t >= 0].shape[0], 2]).sum(), "how many rows a mask chooses"),
    "a_list_of_numbers": (lambda m, y, t: sum(part.sum() * i for i, part in enumerate(y.flatten(0, 1).split(t.clamp(min=0).sum(0).tolist()))), "depends? on values"),
    "so_large": (lambda m, y, t: y[t >= 0].sum() + torch.ones((t >= 0).sum().item()).sum(), "how many rows a mask chooses"),
    "as_large_as_another": (lambda m, y, t: y[t >= 0].view(y[t > 0].shape[0], -1).sum(), "how many rows a mask chooses"),
    "a_count_and_not_used": (lambda m, y, t: y.sum() if (t > 0).nonzero().size(0) > 0 else y.mean(), "does not choose by it"),
    "among_rows": (lambda m, y, t: y[t >= 0].softmax(0).square().sum(), "softmax of what a mask chose"),
    "a_sort": (lambda m, y, t: y[t >= 0].sort(0)[0].sum(), "sort of what a mask chose"),
    "some_places": (lambda m, y, t: y.flatten(0, 1)[(t.flatten() >= 0).nonzero()[1:, 0]].sum(), "depends? on values"),
    "scattered_elsewhere": (lambda m, y, t: y.masked_scatter((t > 0).unsqueeze(-1), y[t > 1]).sum(), "another one"),
    "two_masks": (lambda m, y, t: (y[t >= 0] * y.flip(0)[t.flip(0) >= 0]).sum(), "two masks"),
    "statistics": (lambda m, y, t: F.batch_norm(y[t >= 0], None, None, training=True).square().sum(), "batch_norm of what a mask chose"),
    "others_beside_it": (lambda m, y, t: (y[t >= 0] * y.flatten(0, 1)).sum(), "mul of what a mask chose"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_asks_how_many_they_are_is_refused(kind):
    body, told = REFUSED[kind]
    with pytest.raises(Unsupported, match=told):
        both(start(Model(body)), batch(3))


def of(y: Tensor, labels: Tensor) -> Tensor:
    return y[labels >= 0]


def goal(y: Tensor, labels: Tensor) -> Tensor:
    return of(y.detach().roll(1, 1) * 0.7 + 0.1, labels)


ROW_BY_ROW = {
    "of_two": lambda m, y, t: (torch.min(of(y, t)[:, 2:4], goal(y, t)[:, 2:4]) - torch.max(of(y, t)[:, :2], other=goal(y, t)[:, :2])).clamp(-2).prod(1).sum(),
    "of_a_number": lambda m, y, t: torch.max(of(y, t), torch.tensor(0.25, dtype=y.dtype)).sum(),
    "largest": lambda m, y, t: (of(y, t).max(1)[0] * of(y, t).min(dim=1, keepdim=True).values[:, 0]).sum() + (of(y, t).max(1).indices * of(y, t)[:, 0]).sum(),
    "spread": lambda m, y, t: of(y, t).var(1).sum() + of(y, t).var(-1, unbiased=False).sum() + of(y, t).std(1, correction=0).sum(),
    "sorted": lambda m, y, t: of(y, t).sort(1)[0][:, 0].sum() + torch.sort(of(y, t), descending=True).values[:, 1].square().sum() + of(y, t).median(1)[0].sum(),
    "order": lambda m, y, t: of(y, t).gather(1, of(y, t).argsort(1))[:, 1].square().sum() + of(y, t).topk(2)[0].square().sum(),
    "columns": lambda m, y, t: (lambda a, b, c, d, e: (a * b - c * d / (e.square() + 1)).sum())(*of(y, t).unbind(1)),
    "swapped": lambda m, y, t: torch.cat(of(y, t).chunk(2, 1)[::-1], 1).sub(goal(y, t)).abs().sum() + sum((p * i).sum() for i, p in enumerate(of(y, t).split([2, 3], dim=-1))),
    "stacked": lambda m, y, t: (torch.stack([of(y, t)[:, 0], of(y, t)[:, 3]], -1) * torch.stack((of(y, t)[:, 1], of(y, t)[:, 2]), dim=1)).sum(),
    "elements": lambda m, y, t: (of(y, t) - goal(y, t)).reshape(-1).square().sum() + of(y, t).flatten().abs().view(-1, 5).sum(1).sqrt().sum(),
    "other_rows": lambda m, y, t: of(y, t)[:, :4].reshape(-1, 2).softmax(1).square().sum(1).sqrt().sum() + of(y, t)[:, :4].reshape(-1, 2, 2).sum(1).square().sum(),
    "by_numpys_names": lambda m, y, t: of(y, t).sum(axis=1).square().sum() + of(y, t).mean(axis=1, keepdims=True).square().sum(),
    "norms": lambda m, y, t: (of(y, t) - goal(y, t)).norm() + torch.linalg.norm(of(y, t)) + of(y, t).norm(1) + of(y, t).norm(dim=0).sum(),
    "infinite_behind_a_layer": lambda m, y, t: m.free(of(y, t)).square().sum(1).sqrt().sum() + m.free(of(y, t)).std(1).sum() + (m.scale / of(y, t)).tanh().sum(),
    "divided_by_itself": lambda m, y, t: (lambda h: (h / h.sum(1, keepdim=True)).tanh().sum() + h.clone().div_(h.norm(dim=1, keepdim=True)).sum())(m.free(of(y, t))),
    "guarded_length": lambda m, y, t: of(y, t).sum() / max(1, len(of(y, t))) + of(y, t).square().sum(1).sum() / max(len(t[t >= 0]), 1) + y.sum() / max(1, len(torch.where(t >= 0)[0])),
    "guarded_number": lambda m, y, t: of(y, t).sum() / max(1, of(y, t).shape[0]) + of(y, t).square().sum() / max(of(y, t).reshape(-1).numel(), 1),
    "guarded_sum": lambda m, y, t: of(y, t).sum() / max(1, (t >= 0).sum()) + of(y, t).square().sum() / max((t >= 0).sum().item(), 1),
}
OF_ALL = {
    "mean_of_elements": lambda m, y, t: of(y, t).reshape(-1).square().mean() + F.mse_loss(of(y, t).view(-1), goal(y, t).ravel()),
    "deviation": lambda m, y, t: of(y, t).std() + of(y, t).std(unbiased=False) + of(y, t).std(0, False).sum(),
    "variance": lambda m, y, t: of(y, t).var() + torch.var(of(y, t), dim=0, correction=0).sum() + of(y, t).var(False) + of(y, t).reshape(-1).var(True),
    "means": lambda m, y, t: of(y, t).mean((0, 1)) + of(y, t).mean(0, keepdim=True).square().sum(),
    "lengths": lambda m, y, t: of(y, t).sum() / len(of(y, t)),
}  # not a number where nothing is chosen
LARGEST = {
    "largest_of_all": lambda m, y, t: of(y, t).max() - of(y, t).min() * 2 + of(y, t).amax(0).square().sum() + torch.amin(of(y, t), (0, 1), keepdim=True).sum(),
}  # an error there


class WithFree(Model):
    def __init__(self, body):
        super().__init__(body)
        self.free, self.scale = nn.Linear(5, 3, bias=False), nn.Parameter(torch.ones(()))


def batches() -> dict[str, tuple[Tensor, Tensor]]:
    x, labels = batch(5)
    none = torch.full_like(labels, -100)
    one = none.clone()
    one[2, 0] = 3
    return {"some": (x, labels), "none": (x, none), "all": (x, labels.clamp(min=1)), "one": (x, one)}


ONE_BY_ONE = ROW_BY_ROW | OF_ALL | LARGEST


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_so_many_rows_as_there_are(kind):
    body = ONE_BY_ONE[kind]
    model, captured = start(WithFree(body)), {}
    for name, given in batches().items():
        if (kind in LARGEST and name == "none") or (kind in ("deviation", "variance") and name == "one"):  # which PyTorch has an error or no number for
            continue
        result = both(model, batch(3), run_batch=given, **captured)
        captured = {"captured": result.captured, "converted": result.converted}
        if math.isnan(result.eager_loss):
            assert math.isnan(result.file_loss) and name != "some"
            result.eager_loss = result.file_loss = 0.0
        assert_same(result)


def test_the_largest_of_nothing_is_not_a_number():
    """PyTorch has an error for it."""
    model = start(WithFree(LARGEST["largest_of_all"]))
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), 0.1), example=batches()["some"], progress=False)
    before = copy.deepcopy(model.state_dict())
    assert math.isnan(step(batches()["none"]))
    step.sync()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def row_by_row(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    return sum(body(m, y, labels) for body in ROW_BY_ROW.values())


def of_all(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    return sum(body(m, y, labels) for body in (OF_ALL | LARGEST).values()) if (labels >= 0).any() else y.sum() * 0


@pytest.mark.parametrize("body", [row_by_row, of_all])
def test_steps_with_masks_of_varying_counts(body):
    ours, theirs = start(WithFree(body)), start(WithFree(body))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-3)
    given = batches()
    step = plimsoll.compile(ours, torch.optim.SGD(ours.parameters(), lr=1e-3), example=given["some"], progress=False)
    for kind in ("some", "none", "all", "some"):
        optimizer.zero_grad()
        loss = theirs(*given[kind])
        loss.backward()
        optimizer.step()
        assert step(given[kind]) == pytest.approx(float(loss), rel=1e-4, abs=1e-6), kind
        step.sync()
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters()):
            assert torch.allclose(mine, other, rtol=1e-4, atol=1e-6), (kind, name)


def test_a_known_mask():
    result = both(start(Model(without_itself)), batch(3))
    assert_same(result)
    assert "another for 4" in result.captured.fixed_batch[0]


def pairs(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """Of a graph whose nodes all know each other, as equivariant networks have it."""
    i, j = torch.where(~torch.eye(y.shape[1], dtype=torch.bool))
    return weighted(torch.cat([y[:, i], y[:, j] * 2], -1))


def other_samples(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    """As contrastive losses have it: a mask of numbers that another mask has left."""
    y = y[:, 0]
    number, itself = torch.arange(len(y)) // 2, torch.eye(len(y), dtype=torch.bool)
    alike = (number[None] == number[:, None]).float()[~itself].view(len(y), -1)
    likeness = (y @ y.mT)[~itself].view(len(y), -1)
    return weighted(likeness[~alike.bool()]) + torch.masked_select(y @ y.mT, torch.ones(len(y), len(y)).tril().bool()).view(-1).logsumexp(0)


def by_their_numbers(m: Model, y: Tensor, labels: Tensor) -> Tensor:
    total = sum(y[:, i].square().sum() for i in torch.arange(y.shape[1]) if i % 2 == 0)
    for i, j in torch.triu(torch.ones(3, 3), 1).nonzero():
        total = total + (y[:, int(i)] * y[:, j.item()]).sum()
    return total + sum(y[..., n].sum() * n for n in torch.linspace(0, 4, 3).long().tolist())


@pytest.mark.parametrize("body", [pairs, other_samples, by_their_numbers])
def test_numbers_of_the_places_of_a_known_mask(body):
    assert_same(both(start(Model(body)), batch(4)))


def test_a_known_mask_that_is_written_into():
    def body(m, y, labels):
        mask = torch.ones(4, dtype=torch.bool)
        before = y[:, mask].sum()
        mask = mask.clone()
        mask[1] = False
        return before + 2 * y.transpose(0, 1)[mask].square().mean()

    assert_same(both(start(Model(body)), batch(3)))


def test_not_as_many_rows_as_places_are_not_a_number():
    """PyTorch has an error for it."""

    def body(m, y, labels):
        out = y.clone()
        out[labels > 1] = y[labels.flip(0) >= 3]
        return out.square().mean()

    model = start(Model(body))
    x = batch(2)[0]
    example = x, torch.tensor([[2, 0, 0, 0], [0, 0, 0, 3]])
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), 0.1), example=example, progress=False)
    labels = torch.tensor([[3, 0, 2, 3], [0, 0, 4, 1]])
    assert step(example) == pytest.approx(start(Model(body))(*example).item(), rel=1e-5)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        model(x, labels[:, [0, 2, 2, 2]])
    assert math.isnan(step((x, torch.tensor([[3, 3, 2, 2], [0, 0, 2, 0]]))))


def test_as_many_places_as_the_model_checks():
    def body(m, y, labels):
        places = (labels == 1).nonzero()
        if places.shape[0] != 2 * len(y):
            raise ValueError("two ones in every row, please")
        begins, ends = places.view(len(y), 2, 2)[..., 1].unbind(1)
        row, column = torch.arange(len(y)), torch.arange(4)
        inside = (column >= begins[:, None]) & (column < ends[:, None])
        return y[row, ends].square().sum() + m.other(y)[inside].sum()

    def ones(*rows):
        return floats(str(rows), len(rows), 4, 6), torch.tensor(rows)

    example, other = ones([1, 1, 0, 2], [0, 1, 3, 1]), ones([1, 0, 0, 1], [1, 1, 2, 2], [0, 0, 1, 1])
    assert_same(both(start(Model(body)), example, run_batch=other))
    model = start(Model(body))
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), 0.1), example=example, progress=False)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        step(ones([1, 1, 1, 2], [0, 1, 3, 1]))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert step(example) == pytest.approx(start(Model(body))(*example).item(), rel=1e-5)


def caught(m, y, labels):
    places = (labels == 1).nonzero()
    try:
        assert places.shape[0] == 3
        return y.square().sum()
    except AssertionError:
        return m.other(y).sum()


def caught_from_an_if(m, y, labels):
    places = (labels == 1).nonzero()
    try:
        if places.shape[0] != 3:
            raise ValueError("not three")
    except ValueError:
        y = y * 2
    return m.other(y).sum()


def suppressed(m, y, labels):
    places = (labels == 1).nonzero()
    with contextlib.suppress(AssertionError):
        assert places.shape[0] == 3
        y = y * 2
    return m.other(y).sum()


def kept(m, y, labels):
    places = (labels == 1).nonzero()
    assert (are_three := places.shape[0] == 3) or places.shape[0] == 5
    return m.other(y * 2 if are_three else y).sum()


@pytest.mark.parametrize("body", [caught, caught_from_an_if, suppressed, kept])
def test_a_check_that_decides_what_is_done_is_a_branch(body):
    """What a check wants of values is taken to hold; not so where something else is done when it does not."""
    example = floats("three", 2, 4, 6), torch.tensor([[1, 1, 0, 2], [0, 1, 3, 2]])
    model = start(Model(body))
    with pytest.raises(Unsupported, match="how many rows a mask chooses is asked for by Python"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), 0.1), example=example, progress=False)


def test_one_of_two_numbers_of_places_that_the_model_checks():
    def body(m, y, labels):
        places = (labels == 1).nonzero()
        n = places.shape[0]
        assert n == 3 or n == 5
        if n != 3 and n != 5:
            raise ValueError("three or five")
        return m.other(y)[labels == 1].square().mean() + y[places[:, 0], places[:, 1]].sum()

    example = floats("three", 2, 4, 6), torch.tensor([[1, 1, 0, 2], [0, 1, 3, 2]])
    other = floats("five", 2, 4, 6), torch.tensor([[1, 1, 1, 1], [0, 1, 3, 2]])
    assert_same(both(start(Model(body)), example, run_batch=other))


def test_a_mask_that_was_written_into_when_it_was_made_is_another():
    """A mask that is made alike is not the same then: what it chose goes to where the other one holds."""

    def body(m, y, labels):
        rows, mask, out = m.other(y)[labels > 1], labels > 1, y.clone()
        mask.copy_(labels.flip(0) > 1)
        out[mask] = rows
        return weighted(out)

    assert_same(both(start(Model(body)), batch(3)))


def test_a_mask_that_was_written_into_is_another():
    def body(m, y, labels):
        labels = labels.clone()
        chosen = y[labels >= 0]
        labels[:, 0] = 1
        return (chosen * y[labels >= 0]).sum()

    with pytest.raises(Unsupported, match="two masks"):
        both(start(Model(body)), batch(3))

"""What an exported graph does not show is refused by name; nothing trains differently in silence."""

from __future__ import annotations

import collections
import copy
import pickle
import random

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll
from plimsoll.capture import capture

LIMITS = dict(memory="4MiB", threads=1, costs="estimated", progress=False)
ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def compiled(model: nn.Module, example=ROWS, optimizer=None, **settings):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return plimsoll.compile(model, optimizer, example=example, **(LIMITS | settings))


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return (self.inner(x) ** 2).mean()


# --- hooks -----------------------------------------------------------------------------------------------------------


def on_parameter(model, optimizer):
    return model.inner.weight.register_hook(lambda gradient: gradient * 2)


def after_gradient(model, optimizer):
    return model.inner.bias.register_post_accumulate_grad_hook(lambda parameter: None)


def on_module(model, optimizer):
    return model.inner.register_full_backward_hook(lambda module, grad_in, grad_out: None)


def on_optimizer(model, optimizer):
    return optimizer.register_step_post_hook(lambda *_: None)


def on_all_modules(model, optimizer):
    return nn.modules.module.register_module_full_backward_hook(lambda module, grad_in, grad_out: None)


@pytest.mark.parametrize(
    "register, told",
    [
        (on_parameter, "register_hook in inner.weight"),
        (after_gradient, "register_post_accumulate_grad_hook in inner.bias"),
        (on_module, "register_full_backward_hook in inner"),
        (on_optimizer, "register_step_post_hook in the optimizer"),
        (on_all_modules, "register_module_full_backward_hook in every module"),
    ],
)
def test_hooks_that_a_step_would_not_call_are_refused(register, told):
    model = Squares()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = register(model, optimizer)
    try:
        with pytest.raises(plimsoll.Unsupported) as refused:
            compiled(model, optimizer=optimizer)
        assert told in str(refused.value) and "test_unseen.py" in str(refused.value)
        with pytest.raises(plimsoll.Unsupported):
            plimsoll.fits(model, optimizer, example=ROWS, memory="4MiB")
    finally:
        hook.remove()
    compiled(model, optimizer=optimizer)(ROWS)


# --- functions with a backward of their own ---------------------------------------------------------------------------


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


def test_a_function_whose_backward_is_not_linear_is_refused_at_its_line():
    class Own(Squares):
        def forward(self, x):
            return (Norm.apply(self.inner(x)) ** 2).mean()

    kind = type(torch.autograd.Function)
    before = vars(torch.autograd.Function).get("apply")
    with pytest.raises(plimsoll.Unsupported, match=r"Norm\.apply.*not linear") as refused:
        compiled(Own())
    assert "test_unseen.py" in str(refused.value)
    assert "__getattribute__" not in vars(kind) and vars(torch.autograd.Function).get("apply") is before, "nothing is watched afterwards"


def test_a_hook_on_what_a_forward_pass_makes_is_refused():
    class Hooked(Squares):
        def forward(self, x):
            y = self.inner(x)
            y.register_hook(lambda gradient: 2 * gradient)
            return (y**2).mean()

    hook = torch.Tensor.register_hook
    with pytest.raises(plimsoll.Unsupported, match=r"Tensor\.register_hook.*test_unseen.py"):
        compiled(Hooked())
    assert torch.Tensor.register_hook is hook


def test_what_is_computed_in_inference_mode_has_no_gradient():
    class Fixed(Squares):
        def forward(self, x):
            with torch.inference_mode():
                y = self.inner(x)
            return (self.inner(x) * y.clone()).mean()

    assert losses_of(Fixed) == pytest.approx(pytorchs(Fixed), rel=1e-5)


def test_what_its_message_proposes_trains_as_in_pytorch():
    class Straight(Squares):
        def forward(self, x):
            y = 4 * self.inner(x)
            return ((y + (y.round() - y).detach()) ** 2).mean()

    assert losses_of(Straight) == pytest.approx(pytorchs(Straight), rel=1e-5)


def test_checkpointed_modules_train():
    class Checkpointed(Squares):
        def forward(self, x):
            return (torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False) ** 2).mean()

    assert losses_of(Checkpointed) == pytest.approx(pytorchs(Checkpointed), rel=1e-5)


def test_what_is_checkpointed_with_use_reentrant_has_gradients_where_its_input_has():
    class Beside(Squares):
        def __init__(self):
            super().__init__()
            self.back = nn.Linear(3, 6)

        def forward(self, x):
            run = lambda module, x: torch.utils.checkpoint.checkpoint(module, x, use_reentrant=True)  # noqa: E731
            return (run(self.inner, x) * self.inner(run(self.back, self.inner(x)))).mean()

    assert losses_of(Beside) == pytest.approx(pytorchs(Beside), rel=1e-5)


def test_a_detector_of_torchvision_is_refused_by_name():
    detection = pytest.importorskip("torchvision").models.detection
    model = detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = [torch.rand(3, 64, 64)], [{"boxes": torch.tensor([[1.0, 1, 30, 30]]), "labels": torch.tensor([1])}]
    with pytest.raises(plimsoll.Unsupported, match="RetinaNet.*nms.*in the loader"):
        compiled(model, optimizer=optimizer, example=batch)


# --- what a forward pass leaves behind -------------------------------------------------------------------------------


def batches():
    return [torch.randn(4, 6, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def losses_of(make, **settings):
    model = make()
    step = compiled(model, **settings)
    return [step(batch) for batch in batches()]


def pytorchs(make):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Queue(Squares):
    """Reads two buffers, and writes them for the next batch, as a queue of keys is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("number", torch.tensor(1.0))
        self.register_buffer("queue", torch.ones(3))

    def forward(self, x):
        y = self.inner(x) * self.number.clone() + self.queue.clone().detach() * x[:, :3]
        self.number.add_(1)
        self.queue.copy_(x[0, :3])
        return (y**2).mean()


def test_a_buffer_is_read_as_it_was_before_the_batch_changes_it():
    assert losses_of(Queue) == pytest.approx(pytorchs(Queue), rel=1e-5)


def test_a_buffer_that_a_tensor_of_another_shape_replaces_is_refused():
    class Replacing(Queue):
        def forward(self, x):
            self.number = torch.stack([self.number, x.mean()])
            return (self.inner(x) * self.number.mean()).mean()

    class Counting(Queue):
        def forward(self, x):
            self.number += 1  # Python assigns here as well, but the same tensor
            return (self.inner(x) * self.number).mean()

    with pytest.raises(plimsoll.Unsupported, match=r"self\.number = \.\.\..*test_unseen.py.*copy_"):
        compiled(Replacing())
    assert losses_of(Counting) == pytest.approx(pytorchs(Counting), rel=1e-5)


def test_a_tensor_that_is_no_buffer_may_be_left_behind_but_not_read():
    class Kept(Squares):
        def __init__(self):
            super().__init__()
            self.seen = torch.zeros(3)
            self.reads = False

        def forward(self, x):
            y = self.inner(x)
            if self.reads:
                y = y + self.seen
            self.seen = y.detach().mean(0)
            return (y**2).mean()

    assert losses_of(Kept) == pytest.approx(pytorchs(Kept), rel=1e-5)
    model = Kept()
    model.reads = True
    with pytest.raises(plimsoll.Unsupported, match=r"self\.seen = \.\.\."):
        compiled(model)


class Recurrent(Squares):
    """Carries what it computed to the next batch."""

    hidden = None

    def forward(self, x):
        y = torch.tanh(self.inner(x) + (torch.zeros_like(x[:, :3]) if self.hidden is None else self.hidden))
        self.hidden = y.detach()
        return (y**2).mean()


class InDictionary(Squares):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        y = torch.tanh(self.inner(x) + self.cache.get("hidden", 0))
        self.cache["hidden"] = y.detach()
        return (y**2).mean()


class InDeque(Squares):
    def __init__(self):
        super().__init__()
        self.recent = collections.deque(maxlen=3)

    def forward(self, x):
        y = self.inner(x) + sum(self.recent)
        self.recent.append(y.detach())
        return (y**2).mean()


class InList(Squares):
    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        self.losses.append(self.inner(x).square().mean())
        return sum(self.losses)


@pytest.mark.parametrize("model, name", [(Recurrent, "hidden"), (InDictionary, "cache"), (InDeque, "recent"), (InList, "losses")])
def test_what_a_pass_leaves_for_the_next_is_refused(model, name):
    used = model()
    with pytest.raises(plimsoll.Unsupported, match=rf"self\.{name} = \.\.\..*leaves a tensor there which the next one reads"):
        compiled(used)
    assert not getattr(used, name)  # nothing of the export is left


class Table(Squares):
    """Makes a table for the shape of its batches when it first needs it."""

    def __init__(self, table=None, **told):
        super().__init__()
        if told:
            self.register_buffer("table", table, **told)
        else:
            self.table = table

    def forward(self, x):
        if self.table is None or self.table.shape[0] != x.shape[1]:
            self.table = torch.arange(x.shape[1]).float().sin()
        return (self.inner(x + self.table) ** 2).mean()


class TableInDictionary(Squares):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(x.shape[1]).float().sin()
        return (self.inner(x + self.tables[x.shape[1]]) ** 2).mean()


class Cleared(InList):
    def forward(self, x):
        self.losses.clear()
        return super().forward(x)


@pytest.mark.parametrize(
    "make",
    [
        Table,
        lambda: Table(persistent=True),
        lambda: Table(persistent=False),
        lambda: Table(torch.zeros(1), persistent=False),
        TableInDictionary,
        Cleared,
    ],
)
def test_what_every_pass_would_make_alike_is_no_state(make):
    assert losses_of(make) == pytest.approx(pytorchs(make), rel=1e-5)


def test_what_was_there_before_a_table_is_not_read():
    class Early(Table):
        def forward(self, x):
            before = self.table
            return super().forward(x) + before.sum()

    with pytest.raises(plimsoll.Unsupported, match=r"self\.table = \.\.\..*copy_"):
        compiled(Early(torch.ones(1), persistent=False))


class Warmed(Squares):
    calls = 0

    def forward(self, x):
        Warmed.calls += 1
        return (self.inner(x) ** 2).mean() * Warmed.calls


class Jittered(Squares):
    def forward(self, x):
        return (self.inner(x) ** 2).mean() * random.random()


class Noisy(Squares):
    def forward(self, x):
        return ((self.inner(x) + torch.from_numpy(numpy.random.rand(3).astype("float32"))) ** 2).mean()


class Masked(Squares):
    """As wav2vec 2.0 leaves out what it listens to: a mask of the batch's size, by numpy."""

    def forward(self, x):
        return (self.inner(x) * torch.from_numpy(numpy.random.rand(len(x), 3) > 0.5)).square().mean()


@pytest.mark.parametrize("model", [Warmed, Jittered, Noisy, Masked])
def test_numbers_that_python_gives_anew_at_every_call_are_refused(model):
    with pytest.raises(plimsoll.Unsupported, match="a step would keep the first"):
        compiled(model())


class Counted(Squares):
    """Tensors that Python makes of the number of samples."""

    def forward(self, x):
        return (self.inner(x) ** 2).sum() / torch.tensor(float(len(x))) + (self.inner(x).sum(1) * torch.tensor([0.5] * len(x))).mean()


def test_tensors_that_python_makes_of_the_number_of_samples():
    ours, theirs = Counted(), Counted()
    step, optimizer = compiled(ours), torch.optim.SGD(theirs.parameters(), lr=0.1)
    for number, rows in zip(batches(), (len(ROWS), 2, 1, len(ROWS))):
        optimizer.zero_grad()
        loss = theirs(number[:rows])
        loss.backward()
        optimizer.step()
        assert step(number[:rows]) == pytest.approx(loss.item(), rel=1e-5)


def test_parameters_that_share_some_elements_are_refused():
    class Sharing(nn.Module):
        def __init__(self):
            super().__init__()
            both = torch.randn(9)
            self.a, self.b = nn.Parameter(both[:6]), nn.Parameter(both[3:])

        def forward(self, x):
            return (x * self.a + self.b).mean()

    with pytest.raises(plimsoll.Unsupported, match="'b' shares some of its elements with 'a'"):
        compiled(Sharing())


def test_one_memory_under_two_names_is_refused_where_it_is_trained():
    class Buffer(Squares):
        def __init__(self):
            super().__init__()
            self.register_buffer("shadow", self.inner.weight.data)

        def forward(self, x):
            return (self.inner(x) * (x @ self.shadow.T)).mean()

    class Attribute(Squares):
        def __init__(self):
            super().__init__()
            self.kept = [self.inner.bias.detach()]

        def forward(self, x):
            return (self.inner(x) * self.kept[0]).mean()

    class Twice(Squares):
        def __init__(self):
            super().__init__()
            self.again = nn.Parameter(self.inner.bias.detach())

        def forward(self, x):
            return (self.inner(x) * self.again).mean()

    with pytest.raises(plimsoll.Unsupported, match="'shadow' lies in the memory of the parameter 'inner.weight'"):
        compiled(Buffer())
    with pytest.raises(plimsoll.Unsupported, match="beside the module's own tensors lies in the memory of the parameter 'inner.bias'"):
        compiled(Attribute())
    with pytest.raises(ValueError, match="the memory of '.*' twice"):
        compiled(Twice())


def test_a_buffer_that_changes_and_has_a_second_name_is_refused():
    class Named(Squares):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("last", self.mean)

        def forward(self, x):
            self.mean.mul_(0.9).add_(x[0, :3])
            return (self.inner(x) + self.last).square().mean()

    with pytest.raises(plimsoll.Unsupported, match="under a second name"):
        compiled(Named())


def test_numbers_that_a_seed_or_a_generator_of_the_forward_pass_draws_are_refused():
    class Seeded(Squares):
        def forward(self, x):
            torch.manual_seed(3)
            return (self.inner(x) + torch.randn(3)).square().mean()

    class Own(Squares):
        def forward(self, x):
            return (self.inner(x) + torch.rand(3, generator=torch.Generator().manual_seed(3))).square().mean()

    with pytest.raises(plimsoll.Unsupported, match="torch.manual_seed .*into a buffer"):
        compiled(Seeded())
    with pytest.raises(plimsoll.Unsupported, match="aten.rand.generator .*into a buffer"):
        compiled(Own())


def test_what_writes_into_the_batch_is_told_to_copy_it():
    class Writes(Squares):
        def forward(self, x):
            return super().forward(x.mul_(2.0))

    with pytest.raises(plimsoll.Unsupported, match="tensor 1 of the batch.*clone"):
        compiled(Writes())


def test_one_norm_under_two_names_is_one():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            norm = nn.BatchNorm1d(6)
            self.layers = nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU(), nn.Linear(6, 6), norm)

        def forward(self, x):
            return (self.layers(x) ** 2).mean() + self.layers[1].running_mean.sum()

    mine, theirs = [], []
    assert losses_of(lambda: mine.append(Again()) or mine[0]) == pytest.approx(pytorchs(lambda: theirs.append(Again()) or theirs[0]), rel=1e-5)
    for (name, value), expected in zip(mine[0].state_dict().items(), theirs[0].state_dict().values()):
        assert torch.allclose(value, expected, atol=1e-6), name
    assert type(mine[0].layers[4]) is nn.BatchNorm1d


def test_instance_norm_tracks_its_statistics():
    class Tracked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.conv, self.norm = nn.Conv1d(1, 3, 3), nn.InstanceNorm1d(3, affine=True, track_running_stats=True)

        def forward(self, x):
            return (self.norm(self.conv(x[:, None])) ** 2 * x[:, None, :4]).mean()

    mine, theirs = [], []
    assert losses_of(lambda: mine.append(Tracked()) or mine[0]) == pytest.approx(pytorchs(lambda: theirs.append(Tracked()) or theirs[0]), rel=1e-5)
    for (name, value), expected in zip(mine[0].state_dict().items(), theirs[0].state_dict().values()):
        assert torch.allclose(value, expected, atol=1e-6), name


@pytest.mark.parametrize("size", [6, 5])
def test_pytorchs_transformer_takes_a_causal_mask(size):
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2)

        def forward(self, x):
            rows = x[..., None] * torch.linspace(-1, 1, 8)
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return (self.layers(rows, rows.flip(1), tgt_mask=mask, tgt_is_causal=False) * rows).mean()

    model, beside = Decoder(), Decoder()
    step = compiled(model, example=ROWS[:, :size])
    optimizer = torch.optim.SGD(beside.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        loss = beside(batch[:, :size])
        loss.backward()
        optimizer.step()
        assert step(batch[:, :size]) == pytest.approx(loss.item(), rel=1e-5)


def test_what_is_no_loss_is_told():
    with pytest.raises(TypeError, match=r"loss\(output, batch\) gives float"):
        compiled(Squares(), loss=lambda output, batch: 1.0)
    with pytest.raises(TypeError, match="outputs.*gives str as 'a'"):
        compiled(Squares(), outputs=lambda output: {"a": "b"})
    with pytest.raises(ValueError, match="the example holds no tensor"):
        compiled(Squares(), example=3)


# --- modules and batches that cannot be trained ----------------------------------------------------------------------


class Branching(Squares):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: (self.inner(x) ** 2).mean(), lambda x: self.inner(x).mean(), (x,))


class Cumulative(Squares):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None))


@pytest.mark.parametrize(
    "make, told",
    [
        (Branching, r"cond in the model itself \(.*test_unseen.py:\d+\): .* torch.where"),
        (lambda: torch.jit.script(Squares()), "ScriptModule in the model itself: a scripted module"),
        (Cumulative, "BatchNorm1d in inner.1: with momentum=None"),
        (lambda: Squares().double(), r"call model.float\(\)"),
    ],
)
def test_modules_that_cannot_be_followed_are_named(make, told):
    model = make()
    with pytest.raises(plimsoll.Unsupported, match=told):
        compiled(model, example=ROWS.to(next(model.parameters()).dtype))


class Registers(Squares):
    """Of tokens that a model may have, and this one has none of."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.registers = inner, nn.Parameter(torch.zeros(1, 0, 6))

    def forward(self, x):
        rows = torch.cat([self.registers.expand(len(x), -1, -1), x[:, None]], 1)
        return (self.inner(rows)[:, self.registers.shape[1] :] ** 2).mean()


def test_a_parameter_without_elements_is_no_matter():
    inner = nn.Linear(6, 3)
    expected = losses_of(lambda: Registers(copy.deepcopy(inner)))
    assert expected == pytest.approx(pytorchs(lambda: Registers(copy.deepcopy(inner))), rel=1e-5)


class MaskedWeight(Squares):
    def forward(self, x):
        self.inner.weight.data *= 0.5
        return (self.inner(x) ** 2).mean()


def test_a_parameter_that_is_changed_in_the_forward_pass_is_refused():
    with pytest.raises(plimsoll.Unsupported, match=r"through .data; .* self.weight \* self.mask"):
        compiled(MaskedWeight())


class Adversaries(nn.Module):
    """Both losses at once: the judge is frozen while it judges for the generator."""

    def __init__(self, frozen, free=lambda judge: judge.requires_grad_(True)):
        super().__init__()
        torch.manual_seed(1)
        self.maker, self.judge = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        self.frozen, self.free = frozen, free

    def forward(self, x):
        made = self.maker(x)
        told = F.softplus(-self.judge(x)).mean() + F.softplus(self.judge(made.detach())).mean()
        self.frozen(self.judge)
        deceived = F.softplus(-self.judge(made)).mean()
        self.free(self.judge)
        return told + deceived


def by_attribute(judge):
    for parameter in judge.parameters():
        parameter.requires_grad = False


@pytest.mark.parametrize("frozen", [lambda judge: judge.requires_grad_(False), by_attribute])
def test_parameters_that_are_frozen_for_a_part_of_the_pass_train_as_in_pytorch(frozen):
    assert losses_of(lambda: Adversaries(frozen)) == pytest.approx(pytorchs(lambda: Adversaries(frozen)), rel=1e-5)


def test_parameters_that_a_pass_leaves_frozen_are_refused():
    with pytest.raises(plimsoll.Unsupported, match="leaves them so"):
        compiled(Adversaries(lambda judge: judge.requires_grad_(False), lambda judge: None))
    model = Adversaries(lambda judge: None)
    model.judge.requires_grad_(False)
    with pytest.raises(plimsoll.Unsupported, match="gradient of a parameter that is frozen"):
        compiled(model)
    assert not any(parameter.requires_grad for parameter in model.judge.parameters())


def test_what_is_changed_through_data_is_refused():
    class Clamped(Squares):
        def forward(self, x):
            y = self.inner(x)
            y.data[:, 0].clamp_(0, 1)
            return (y**2).mean()

    with pytest.raises(plimsoll.Unsupported, match="through .data"):
        compiled(Clamped())


def test_data_is_what_it_is_without_a_gradient():
    class Scaled(Squares):
        def forward(self, x):
            y = self.inner(x)
            return (y**2).mean() / y.data.abs().max() + self.inner.weight.data.norm()

    assert losses_of(Scaled) == pytest.approx(pytorchs(Scaled), rel=1e-5)


def test_a_module_that_is_asked_to_be_what_it_is():
    class Cast(Squares):
        def forward(self, x):
            self.inner = self.inner.to(x.dtype)
            return (self.inner.to(x.device, torch.float32)(x) ** 2).mean()

    assert losses_of(Cast) == pytest.approx(pytorchs(Cast), rel=1e-5)


def test_weights_without_values_are_for_fits_alone():
    with torch.device("meta"):
        model = Squares()
    with pytest.raises(ValueError, match=r"'inner.weight' has no values \(its device is meta\); plimsoll.fits"):
        compiled(model)
    assert plimsoll.fits(model, torch.optim.SGD(model.parameters(), lr=0.1), example=ROWS, memory="4MiB")["feasible"]


def test_nothing_to_train_is_told():
    model = Squares().requires_grad_(False)
    with pytest.raises(ValueError, match="nothing would be trained"):
        compiled(model)


def test_an_empty_batch_is_told_and_training_goes_on():
    model = Squares()
    with pytest.raises(ValueError, match="the batch is empty"):
        compiled(model, example=ROWS[:0])
    step = compiled(model)
    with pytest.raises(ValueError, match=r"the batch is empty: its first tensor is of shape \(0, 6\)"):
        step(ROWS[:0])
    step(ROWS)


def test_a_step_is_not_copied():
    step = compiled(Squares())
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="step.save"):
            copying(step)


def test_files_that_no_step_wrote_are_refused(tmp_path):
    step = compiled(Squares())
    torch.save([1], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("abc")
    (tmp_path / "empty.pt").write_text("")
    step.save(tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:-100])
    before = copy.deepcopy(step._model.state_dict())
    for name in ("list.pt", "text.pt", "empty.pt", "cut.pt"):
        with pytest.raises(ValueError, match="was not written by step.save"):
            step.load(tmp_path / name)
    assert all(torch.equal(before[k], v) for k, v in step._model.state_dict().items())
    step.load(tmp_path / "whole.pt")


def test_messages_name_arguments():
    with pytest.raises(plimsoll.Error, match="^spill=: there is no folder"):
        compiled(Squares(), spill="/nowhere/at/all")
    with pytest.raises(plimsoll.Infeasible, match="raise memory= to .* or lower the batch size"):
        compiled(Squares(), memory="64B")


class SparseTable(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(10, 4, sparse=True)

    def forward(self, x):
        return (self.table((x[:, 0].abs() * 4).long().clamp(max=9)) ** 2).mean()


class SparseBag(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.EmbeddingBag(10, 4, sparse=True)

    def forward(self, x):
        return (self.table((x.abs() * 4).long().clamp(max=9)) ** 2).mean()


@pytest.mark.parametrize("kind", [SparseTable, SparseBag])
def test_a_sparse_embedding_trains_as_a_dense_one(kind):
    assert losses_of(kind) == pytest.approx(pytorchs(kind), rel=1e-5)


@pytest.mark.parametrize(
    "make, name",
    [(lambda p: torch.optim.AdamW(p), "AdamW"), (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), "SGD with weight decay")],
)
def test_sparse_gradients_are_refused_where_pytorch_refuses_them(make, name):
    model = SparseTable()
    optimizer = make(model.parameters())
    model(next(iter(batches()))).backward()
    with pytest.raises(RuntimeError):
        optimizer.step()
    with pytest.raises(plimsoll.Unsupported, match=rf"table.*{name} does not take sparse gradients; leave sparse=True out"):
        compiled(model, optimizer=optimizer)


# --- what an export says, in plain words ---


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, lengths):
        return self.layer(x[:, : int(lengths[0])]).square().mean()


@pytest.mark.parametrize(
    "kind, told", [(Chosen, "depends on values")]
)
def test_what_an_export_objects_to_is_told_in_plain_words(kind, told):
    with pytest.raises(plimsoll.Unsupported, match=told):
        capture(kind(), None, (torch.ones(2, 5, 4), torch.tensor([5, 3])))

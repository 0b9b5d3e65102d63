"""What belongs to the network, what PyTorch runs before it, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll
from plimsoll import Unsupported
from plimsoll.capture import capture
from plimsoll.convert import convert
from plimsoll.divide import Place
from plimsoll.joined import input_names
from support import assert_bounded, assert_same, both, floats, integers, start


def names(section: dict, role: str) -> list[str]:
    return [t["name"] for t in section["tensors"] if t["role"] == role]


class Masked(nn.Module):
    """A mask by lengths, positions, shifted labels: integer work on the batch."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.mix = nn.Embedding(9, 8), nn.Embedding(6, 8), nn.Linear(8, 8)

    def forward(self, ids, lengths):
        visible = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = F.scaled_dot_product_attention(
            x[:, None], x[:, None], self.mix(x)[:, None], attn_mask=visible[:, None, None, :]
        )
        labels = F.pad(ids, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy((x[:, 0] @ self.words.weight.T).flatten(0, 1), labels.flatten())


def test_integer_work_on_the_batch_is_the_preludes():
    batch = (integers("ids", 9, 2, 6), torch.tensor([4, 6]))
    longer = (integers("more", 9, 5, 6), torch.tensor([4, 6, 1, 2, 3]))
    result = both(start(Masked()), batch, run_batch=longer)
    assert_same(result)
    inputs = names(result.section, "input")
    assert inputs[0] == "ids" and "lengths" not in inputs and len(inputs) == 3
    assert all(name.startswith("prelude/") for name in inputs[1:])
    assert result.captured.first.batch == 2 and result.converted.fixed_batch == []
    assert "AttentionForward" in result.types()


def test_a_unit_matrix_may_have_more_than_256_rows():
    """PyTorch decomposes it with numbers of uint16 then, which it cannot make."""

    class Contrast(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 3)

        def forward(self, x):
            y = self.f(x)
            itself = torch.eye(len(x), dtype=torch.bool)
            return F.cross_entropy((y @ y.T).masked_fill(itself, -1e9), torch.arange(len(x)).roll(1)) + (torch.eye(300, 3, dtype=x.dtype) @ y.T).square().mean()

    assert_same(both(start(Contrast()), (floats("x", 260, 4),), run_batch=(floats("more", 258, 4),)))


def test_floating_work_on_inputs_stays_in_the_network():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.5, 0.25, 0.125])[:, None, None])
            self.conv = nn.Conv2d(3, 2, 3)

        def forward(self, image):
            return self.conv((image - self.mean) / 0.25).square().mean()

    result = both(start(Normalised()), floats("x", 2, 3, 6, 6))
    assert_same(result)
    assert names(result.section, "input") == ["data"]
    assert names(result.section, "statistic") == ["mean"]
    assert result.captured.prelude.is_empty


def test_what_depends_on_the_size_of_the_batch_alone_is_a_constant_of_one_sample():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.places = nn.Embedding(6, 4)

        def forward(self, x):
            places = torch.arange(6).expand(x.shape[0], 6) + torch.zeros(x.shape[0], 1, dtype=torch.long)
            return (self.places(places) * x).sum()

    result = both(start(Positions()), floats("x", 2, 6, 4), run_batch=floats("y", 7, 6, 4))
    assert_same(result)
    constant = next(t for t in result.section["tensors"] if t["role"] == "statistic")
    assert constant["shape"] == [1, 6] and constant["dtype"] == "i64"


def test_rows_that_differ_by_sample_are_the_preludes():
    class Contrast(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 4)

        def forward(self, x):
            return F.cross_entropy(self.f(x) @ x.T, torch.arange(x.shape[0]))

    result = both(start(Contrast()), floats("x", 3, 4), run_batch=floats("y", 5, 4))
    assert_same(result)
    assert [n for n in names(result.section, "input") if n.startswith("prelude/")] != []
    loss = next(op for op in result.section["ops"] if op["type"] == "SoftmaxCrossEntropyForward")
    assert loss["shapes"][1] == ["batch", "batch"] and result.converted.fixed_batch == []


class WrittenInto(nn.Module):
    """What is learnt is written into what has no gradient: into positions made under no_grad, and into what was detached."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            places = self.a(x) * 2
        places += self.b(x)
        h = self.a(x)
        start = h.tanh().detach()
        start[:, 1:3] += self.c(x)[:, 1:3]
        start.mul_(x)
        return (places * start).square().mean() + h.mean()


def test_what_is_written_into_a_detached_tensor_keeps_its_gradient():
    assert_same(both(start(WrittenInto()), floats("x", 3, 4)))


def test_gradients_stop_at_detach_and_under_no_grad():
    class Stopped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                target = self.b(x).tanh()
            h = self.a(x)
            return ((h - target) ** 2).mean() + (h.detach() * self.b(h)).sum()

    result = both(start(Stopped()), floats("x", 3, 4))
    assert_same(result)
    assert result.types().count("StopGradient") == 2


def test_tied_parameters_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).relu()).square().sum()

    result = both(start(Tied()), floats("x", 3, 4))
    assert_same(result)
    assert names(result.section, "parameter") == ["first.weight", "first.bias", "second.bias"]
    assert result.captured.tied == {"second.weight": "first.weight"}


def test_frozen_parameters_are_named():
    model = start(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    model[0].requires_grad_(False)
    result = both(model, floats("x", 3, 4), lambda out, _: out.square().sum())
    assert_same(result)
    assert result.section["frozen"] == ["0.weight", "0.bias"]


def test_counters_are_advanced_by_the_prelude():
    model = start(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    x = floats("x", 2, 3, 8, 8)
    captured = capture(model, lambda out, _: out.square().sum(), x)
    captured.feed(x)
    captured.feed(x)
    assert int(model[1].num_batches_tracked) == 2
    assert "1.num_batches_tracked" not in [t["name"] for t in convert(captured).document["training"]["tensors"]]


def test_evaluation_normalises_by_running_statistics_and_drops_nothing():
    model = start(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)))
    result = both(model, floats("x", 2, 3, 8, 8), lambda out, _: out.square().sum(), training=False)
    assert_same(result)
    assert model.training
    norm = next(op for op in result.section["ops"] if op["type"] == "BatchNormForward")
    assert norm["attributes"]["training"] == 0 and "DropoutForward" not in result.types()


def test_a_model_on_the_meta_device_gives_the_same_network():
    def build():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))

    def loss(out, batch):
        return F.cross_entropy(out, batch[1])

    batch = (floats("x", 2, 3, 8, 8), torch.tensor([1, 3]))
    with torch.device("meta"):
        meta = build()
    there = convert(capture(meta, loss, tuple(t.to("meta") for t in batch))).document
    here = convert(capture(build(), loss, batch)).document
    for document in (there, here):
        for tensor in document["training"]["tensors"]:
            tensor.pop("init", None)
    assert there == here


def test_everything_that_cannot_be_converted_is_told_at_once():
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            a = torch.linalg.qr(self.inner(x))[1]
            b = F.fractional_max_pool2d(self.inner(x)[None, None], 2, 2)
            return torch.special.bessel_j0(a).sum() + b.sum()

    with pytest.raises(Unsupported) as caught:
        capture(Strange(), None, floats("x", 4, 4))
    found = {op.op.split(".")[1]: op for op in caught.value.ops}
    assert {"linalg_qr", "special_bessel_j0", "fractional_max_pool2d"} <= set(found)
    assert found["fractional_max_pool2d"].reason == "there is no such op yet"
    assert all(op.source.startswith("test_capture.py:") or "test_capture.py:" in op.source for op in caught.value.ops)
    assert "operations cannot be trained" in str(caught.value)


class Checked(nn.Module):
    """What transformers writes: a clamp where something is infinite, layers that are dropped at random."""

    def __init__(self, p: float):
        super().__init__()
        self.f, self.p = nn.Linear(4, 4), p

    def forward(self, x):
        y = self.f(x)
        assert_bounded(x, y)
        if x is not None and x.max() >= 99:
            raise ValueError("too large")
        if not (x > -99).all():
            raise ValueError("too small")
        if (
            x.abs().min() > 99  # of all
            or x.abs().max() > 99
        ):
            # they are not
            raise ValueError("large")
        if torch.isinf(y).any() or not torch.isfinite(y).all():
            y = y.clamp(-1e4, 1e4)
        if self.training and torch.rand([]) < self.p:
            return F.gaussian_nll_loss(x, x, x.exp())
        return F.gaussian_nll_loss(y, x, y.exp(), full=True)


def test_checks_of_values_are_taken_to_pass():
    result = both(start(Checked(0.0)), floats("x", 3, 4))
    assert_same(result)
    with pytest.raises(Unsupported, match="set the probability of dropping a layer to 0") as caught:
        capture(Checked(0.1), None, floats("x", 3, 4))
    assert "test_capture.py:" in caught.value.ops[0].source


@pytest.mark.parametrize("is_negated", [False, True])
def test_branches_on_values_are_no_checks(is_negated):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 4)

        def forward(self, x):
            if not is_negated and x.max() > 0:
                x = x * 2
            if not x.max() > 0 and x.min() < 0:
                raise ValueError
            return self.f(x).mean()

    with pytest.raises(Unsupported, match="depends on values"):
        capture(Branching(), None, floats("x", 3, 4))


def test_a_size_that_depends_on_values_is_refused_by_name():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 4)

        def forward(self, x):
            y = self.f(x)
            return (y[(x > 0).nonzero()[1:, 0]] ** 2).mean()

    with pytest.raises(Unsupported) as caught:
        capture(Masked(), None, floats("x", 3, 4))
    assert any("depends on values" in op.reason for op in caught.value.ops)


def test_what_export_cannot_follow_is_refused_with_its_line():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 1)

        def forward(self, x):
            y = self.f(x).sum()
            return y if y > 0 else -y

    with pytest.raises(Unsupported) as caught:
        capture(Branching(), None, floats("x", 4, 4))
    assert caught.value.ops[0].op == "torch.export" and "test_capture.py:" in caught.value.ops[0].source


def test_a_parameter_in_half_precision_is_refused_by_name():
    model = nn.Linear(4, 1).to(torch.bfloat16)
    with pytest.raises(Unsupported, match="bfloat16"):
        capture(model, lambda out, _: out.float().sum(), floats("x", 2, 4).bfloat16())


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(Unsupported, match="a scalar is expected"):
        convert(capture(nn.Linear(4, 1), lambda out, _: out, floats("x", 2, 4)))


def test_a_network_that_changes_with_the_batch_otherwise_holds_for_one_size():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 4)

        def forward(self, x):
            a, b = self.f(x).chunk(2, 0)
            return (a * b).sum()

    captured = capture(start(Halves()), None, floats("x", 4, 4))
    converted = convert(captured)
    assert len(converted.fixed_batch) == 1
    assert converted.document["training"]["tensors"][0]["shape"] == [4, 4]
    result = both(start(Halves()), floats("x", 4, 4))
    assert_same(result)


def test_ops_are_called_as_their_modules_and_know_their_lines():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return self.conv1(x) + x * 2

    model = nn.Sequential(Block(), Block())
    section = convert(capture(model, lambda out, _: out.mean(), floats("x", 2, 3, 6, 6))).document["training"]
    ops = {op["name"]: op for op in section["ops"]}
    assert {"0.conv1", "0/mul", "0/add", "1.conv1", "mean"} <= set(ops)
    assert "test_capture.py:" in ops["0.conv1"]["source"] and ops["0.conv1"]["layer"] == "0.conv1"


def test_inputs_are_called_as_the_batch_calls_them():
    model = nn.Linear(2, 2)
    x, y = torch.zeros(2, 2), torch.zeros(2)
    assert input_names(model, (x, y), True) == ["data", "labels"]
    assert input_names(model, {"pixels": x, "labels": y}, True) == ["pixels", "labels"]
    assert input_names(model, x, False) == ["data"]
    assert input_names(model, (x,), False) == ["input"]
    assert input_names(model, [{"a": x}, y, x], True) == ["input0.a", "input1", "input2"]


def test_mappings_are_given_by_keywords_and_the_rest_is_the_losss():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 2)

        def forward(self, x, scale):
            return self.f(x) * scale

    batch = {"x": floats("x", 3, 4), "scale": floats("s", 3, 1), "target": floats("t", 3, 2)}
    result = both(start(Model()), batch, lambda out, b: F.mse_loss(out, b["target"]))
    assert_same(result)
    assert names(result.section, "input") == ["x", "scale", "target"]


def test_outputs_can_be_asked_for():
    model = start(nn.Linear(4, 3))
    batch = (floats("x", 3, 4), torch.tensor([0, 1, 2]))
    captured = capture(model, lambda out, b: F.cross_entropy(out, b[1]), batch, outputs=lambda out: {"logits": out})
    section = convert(captured).document["training"]
    made = {name for op in section["ops"] for name in op["outputs"]}
    assert len(section["outputs"]) == 1 and section["outputs"][0] in made


def test_capturing_leaves_the_model_as_it_was():
    model = start(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    before = copy.deepcopy(model.state_dict())
    model[1].eval()
    captured = capture(model, lambda out, _: out.sum(), floats("x", 2, 3, 8, 8), any_batch=False)
    assert model.training and not model[1].training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert Place.NETWORK in captured.division.places


def test_a_loss_for_other_arguments_and_a_batch_of_another_form_are_told():
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(), lambda output: output.sum()):
        with pytest.raises(plimsoll.Unsupported, match=r"loss= is called with the model's output and the whole batch \(tuple\)"):
            plimsoll.compile(model, optimizer, loss=loss, example=batch, progress=False)
    step = plimsoll.compile(model, optimizer, loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=batch, costs="estimated", progress=False)
    for other in ((torch.randn(4, 7), batch[1]), (batch[0], batch[1].float()), batch[0]):
        with pytest.raises(plimsoll.Unsupported, match=r"The batch is .*; the step was compiled for one of \(4x6 float32, 4 int64\)"):
            step(other)
    assert step(batch) > 0


class _Telling(nn.Module):
    def __init__(self, tell):
        super().__init__()
        self.linear, self.tell, self.told = nn.Linear(6, 3), tell, []

    def forward(self, x):
        y = self.linear(x)
        self.tell(self, y)
        return y


@pytest.mark.parametrize("tell", [lambda self, y: self.told.append(f"{y.mean():.3f}"), lambda self, y: self.told.append("{:8.2e}".format(y.max()))])
def test_texts_for_a_log_are_no_matter_of_the_network(tell):
    model = _Telling(tell)
    batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
    expected = F.cross_entropy(model(batch[0]), batch[1]).item()
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=batch,
                            costs="estimated", progress=False)  # fmt: skip
    assert step(batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tell, advice", [(lambda self, y: float(y.mean()), "take tensor.item"), (lambda self, y: y.detach().numpy().mean(), "numpy is not followed")])
def test_what_asks_for_values_is_told_what_to_do(tell, advice):
    model = _Telling(tell)
    batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
    with pytest.raises(plimsoll.Unsupported, match=advice):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=batch, progress=False)


class _Twice(nn.Module):
    """A module with two names, and one that puts another tensor in its buffer's place in each of two calls."""

    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
            return x - self.mean

    def __init__(self, layer=None):
        super().__init__()
        self.layer = nn.Linear(6, 6) if layer is None else layer
        self.again, self.averaged, self.last = self.layer, self.Averaged(), nn.Linear(6, 3)

    def forward(self, x):
        x = self.averaged(self.layer(x))
        return self.last(self.averaged(self.again(x.relu())))


@pytest.mark.parametrize("layer", [lambda: nn.Linear(6, 6), lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))])
def test_a_module_with_two_names_trains_as_in_pytorch(layer):
    torch.manual_seed(1)
    model = _Twice(layer())
    other = copy.deepcopy(model)
    batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=batch,
                            costs="estimated", progress=False)  # fmt: skip
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(other(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        assert step(batch) == pytest.approx(loss.item(), rel=1e-5)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_a_module_that_each_pass_makes_is_refused_by_name():
    class Making(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)

        def forward(self, x):
            made = nn.Linear(6, 3)
            return made(self.first(x))

    model = Making()
    batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
    with pytest.raises(Unsupported, match="made in the pass"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=batch, progress=False)


def test_a_module_without_parameters_may_be_made_in_the_pass():
    weight = torch.tensor([1.0, 2.0, 3.0])
    model = nn.Linear(6, 3)
    other = copy.deepcopy(model)
    loss = lambda output, batch: nn.CrossEntropyLoss(weight=weight)(output, batch[1]) + nn.CrossEntropyLoss(weight=torch.tensor([3.0, 1.0, 1.0]))(output, batch[1])  # noqa: E731
    batches = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(3)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    step = plimsoll.compile(model, optimizers[0], loss=loss, example=batches[0], progress=False)
    for batch in batches:
        optimizers[1].zero_grad()
        expected = loss(other(batch[0]), batch)
        expected.backward()
        optimizers[1].step()
        assert step(batch) == pytest.approx(expected.item(), rel=1e-5)
        weight.mul_(2)  # is seen


def test_a_capture_asks_for_pytorchs_operators_a_few_times(monkeypatch):
    """And not for each namespace of them, which took a sixth of its time."""
    asked, ask = [], torch._C._dispatch_get_registrations_for_dispatch_key
    monkeypatch.setattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", lambda *key: (asked.append(key), ask(*key))[1])
    capture(start(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), lambda output, _: output.square().sum(), floats("x", 3, 4))
    assert 0 < len(asked) <= 4

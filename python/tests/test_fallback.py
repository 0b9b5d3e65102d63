"""What PyTorch computes inside the step: fallback="torch"."""

from __future__ import annotations

import copy
import gc
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll
from plimsoll.fallback import Function, Ref, _cycles

LIMITS = dict(threads=1, costs="estimated", progress=False)


class Middle(nn.Module):
    """Two linear layers with a function of ours between them."""

    def __init__(self, function, width=12):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.function, self.last = nn.Linear(6, width), function, nn.Linear(width, 4)

    def forward(self, x):
        return self.last(self.function(torch.tanh(self.first(x))))


def batch(number, size=8):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 4, (size,), generator=generator)


def cross_entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def eager(model, count, size=8):
    optimizer, losses = adam(model), []
    for i in range(count):
        optimizer.zero_grad()
        x, y = batch(i, size)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compiled(model, **more):
    options = {**LIMITS, "example": batch(0), "memory": "64MiB", "loss": cross_entropy, "fallback": "torch", **more}
    return plimsoll.compile(model, adam(model), **options)


def low_pass(x):
    """Complex numbers in the middle: what joins them is computed by PyTorch too."""
    spectrum = torch.fft.rfft(x)
    weights = torch.linspace(1, 0, spectrum.shape[-1])
    return torch.fft.irfft(torch.sinh(spectrum * weights / 9), n=x.shape[-1]) + x


def crossed(x):
    """A way out of the region and back into it, by an op that the network has."""
    a = torch.sinh(torch.fft.rfft(x) / 9)
    size = torch.relu(a.abs())
    return torch.fft.irfft(a * (1 + size), n=x.shape[-1])


def spectral_norm_of(x):
    """Two results, one of them read."""
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return x / (1 + s[0])


FUNCTIONS = {
    "bessel": lambda x: torch.special.i0(x.abs() + 0.5),
    "low_pass": low_pass,
    "crossed": crossed,
    "svd": spectral_norm_of,
    "double": lambda x: (x.double() * math.pi).cos().float(),
    "whole_numbers": lambda x: x * torch.bucketize(x.detach(), torch.tensor([-0.5, 0.0, 0.5])) * torch.gcd(x.detach().long(), torch.tensor(6)),
    "inside_a_branch": lambda x: torch.where(torch.signbit(x), torch.special.i0(x.abs() + 1), torch.relu(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_losses_are_pytorchs(name):
    model = Middle(FUNCTIONS[name])
    expected = eager(copy.deepcopy(model), 4)
    step = compiled(model)
    assert [step(batch(i)) for i in range(4)] == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("name", ["bessel", "low_pass", "svd"])
def test_the_least_memory_gives_the_same_bits(name):
    model = Middle(FUNCTIONS[name], width=256)
    start = copy.deepcopy(model.state_dict())
    plenty = compiled(model, exact=True)
    losses = [plenty(batch(i)) for i in range(3)]
    del plenty
    model.load_state_dict(start)
    with pytest.raises(plimsoll.Infeasible) as told:
        compiled(model, exact=True, memory="4KiB")
    tight = compiled(model, exact=True, memory=told.value.minimum_bytes)
    assert [tight(batch(i)) for i in range(3)] == losses


def test_without_it_the_op_is_refused_and_the_way_out_is_named():
    with pytest.raises(plimsoll.Unsupported) as told:
        compiled(Middle(FUNCTIONS["bessel"]), fallback=None)
    assert [op.op for op in told.value.ops] == ["aten.i0.default"]
    assert 'fallback="torch"' in str(told.value)


def test_what_pytorch_computes_is_told_with_its_memory():
    step = compiled(Middle(FUNCTIONS["bessel"], width=4096), memory="128MiB")
    (entry,) = step.fallbacks
    assert entry["unplanned_bytes"] is None and step.plan["unplanned_bytes"] is None
    assert [op["op"] for op in entry["ops"]] == ["aten.i0.default"] and "test_fallback.py" in entry["ops"][0]["source"]
    step(batch(0))
    result = 8 * 4096 * 4  # of the forward pass, before it is copied into the arena
    assert result <= step.plan["unplanned_bytes"] <= 6 * result
    plain = compiled(Middle(torch.relu))
    assert plain.fallbacks == [] and plain.plan["unplanned_bytes"] == 0


def test_other_batches_take_it_too():
    model = Middle(FUNCTIONS["bessel"])
    expected = eager(copy.deepcopy(model), 1, size=8)
    step = compiled(model)
    assert step(batch(0)) == pytest.approx(expected[0], rel=1e-5)
    step.sync()
    other = copy.deepcopy(model)
    x, y = batch(1, 5)
    assert step(batch(1, 5)) == pytest.approx(F.cross_entropy(other(x), y).item(), rel=1e-4)
    x, y = batch(2)
    assert step.evaluate(batch(2)) == pytest.approx(F.cross_entropy(copy.deepcopy(model)(x), y).item(), rel=1e-4)


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: x * torch.multinomial(x.softmax(1), 1), "random"),
        (lambda x: x + x.nonzero().sum(), "depends on values"),
        (lambda x: torch.special.zeta(x + 2, torch.ones(12)), "no gradient of it"),
    ],
)
def test_what_pytorch_cannot_compute_there_is_refused(function, reason):
    with pytest.raises(plimsoll.Unsupported, match=reason):
        compiled(Middle(function))


@torch.library.custom_op("plimsoll_tests::square_root", mutates_args=())
def square_root(x: torch.Tensor) -> torch.Tensor:
    if bool((x < 0).any()):
        raise ValueError("there is no root of a negative number")
    return x.sqrt()


square_root.register_fake(lambda x: torch.empty_like(x))
square_root.register_autograd(
    lambda ctx, gradient: gradient / (2 * ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def test_an_op_of_the_users_own():
    model = Middle(lambda x: square_root(x * x + 1))
    expected = eager(copy.deepcopy(model), 3)
    step = compiled(model)
    assert [step(batch(i)) for i in range(3)] == pytest.approx(expected, rel=2e-5)
    assert step.fallbacks[0]["ops"][0]["op"] == "plimsoll_tests.square_root.default"


def test_an_error_there_ends_the_step_with_its_text():
    step = compiled(Middle(lambda x: square_root(x + 0.5)))  # of tanh
    with pytest.raises(RuntimeError, match="no root of a negative number"):
        step((torch.full((8, 6), -100.0), batch(0)[1]))


def test_a_step_that_is_collected_while_a_model_is_exported_leaves_its_values():
    class Greedy(nn.Module):
        def forward(self, x):
            gc.collect()
            return x + 1

    model = Middle(torch.relu)
    step = compiled(model)
    step(batch(0))
    step.itself = step  # so that only the collector finds it
    del step
    torch.export.export(Greedy(), (torch.ones(2),))
    assert all(type(p.data) is torch.Tensor and p.isfinite().all() for p in model.parameters())
    model(batch(0)[0])


def test_each_place_is_told_as_its_own():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.early, self.late = Middle(FUNCTIONS["bessel"]), Middle(FUNCTIONS["bessel"])

        def forward(self, x):
            return self.early(x) + self.late(x)

    step = compiled(Two())
    assert [entry["ops"][0]["module"] for entry in step.fallbacks] == ["early", "late"]


def test_nothing_is_rehearsed_with_numbers_without_meaning(monkeypatch, tmp_path):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    seen = []
    forward = Function.forward
    monkeypatch.setattr(Function, "forward", lambda self, i, o: (seen.append(bool(i[0].any())), forward(self, i, o))[1])
    step = compiled(Middle(FUNCTIONS["bessel"]), costs="measured")
    assert seen and not any(seen)
    step(batch(0))
    assert seen[-1]


def test_a_result_that_leads_to_nothing_wanted():
    two = Function([(torch.ops.aten.sin.default, (Ref(0),), {}), (torch.ops.aten.cos.default, (Ref(1),), {})], [0, 1],
                   [torch.float32] * 2, [])  # fmt: skip
    x, dy, dx = torch.rand(3), torch.ones(3), torch.empty(3)
    two.backward([dy, dy, x, x], [dx], [0, 1], [0])
    assert torch.allclose(dx, x.cos())
    two.backward([dy, x, x], [dx], [1], [0])
    assert not dx.any()


def test_another_fallback_is_refused():
    with pytest.raises(ValueError, match="'torch'"):
        compiled(Middle(torch.relu), fallback="numpy")


def test_cycles_come_after_what_they_read():
    found = _cycles({1: set(), 2: {1, 4}, 3: {2}, 4: {3}, 5: {4, 1}})
    assert [sorted(cycle) for cycle in found] == [[1], [2, 3, 4], [5]]

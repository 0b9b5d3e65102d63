"""Buffers that a forward pass changes, in the ways that people write it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll

LIMITS = dict(memory="64MiB", threads=1, costs="estimated", progress=False)


def rows(number: int):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5, 4, generator=generator), torch.randint(0, 3, (5,), generator=generator)


class Kept(nn.Module):
    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(2)
        self.inner, self.body = nn.Linear(4, 3), forward
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("queue", torch.randn(8, 4))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        return self.body(self, x)


def replaced(m, x):
    m.mean = 0.9 * m.mean + 0.1 * x.mean(0)
    return m.inner(x - m.mean)


def replaced_after(m, x):
    before = m.mean
    m.mean = m.mean * 0.5 + 0.1 * m.inner(x).mean().detach()
    return m.inner(x * before) + m.inner(x * m.mean)


def queued(m, x):
    scores = m.inner(x) + m.inner(m.queue).mean(0)
    m.queue = torch.cat([m.queue[x.shape[0] :], x.detach()])
    return scores


def counted(m, x):
    m.mean = torch.where(m.count == 0, x.mean(0), 0.9 * m.mean + 0.1 * x.mean(0))
    m.count = m.count + 1
    return m.inner(x - m.mean)


def by_data(m, x):
    m.mean.data.mul_(0.9).add_(x.mean(0), alpha=0.1)
    m.queue.data[: x.shape[0]] = x
    return m.inner(x - m.mean) + m.inner(m.queue.mean(0))


def by_data_after(m, x):
    y = m.inner(x - m.mean)
    m.mean.data.copy_(0.9 * m.mean + 0.1 * y.mean())
    return y


def data_replaced(m, x):
    y = m.inner(x - m.mean)
    m.mean.data = m.mean.data * 0.9
    return y


def by_detach(m, x):
    y = m.inner(x - m.mean)
    m.mean.detach()[1:].mul_(0.9)
    return y


@pytest.mark.parametrize("forward", [replaced, replaced_after, queued, counted, by_data, by_data_after, data_replaced, by_detach], ids=lambda f: f.__name__)
def test_buffers_are_what_pytorch_makes_of_them(forward):
    model = Kept(forward)
    twin = copy.deepcopy(model)
    loss = lambda output, batch: F.cross_entropy(output, batch[1])  # noqa: E731
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    step = plimsoll.compile(model, optimizer, loss=loss, example=rows(0), **LIMITS)
    for i in range(4):
        other.zero_grad()
        expected = loss(twin(rows(i)[0]), rows(i))
        expected.backward()
        other.step()
        assert step(rows(i)) == pytest.approx(expected.item(), rel=1e-5)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_change_through_data_that_a_derivative_would_see_is_refused():
    def late(m, x):
        y = m.inner(x) * m.mean[:3]
        m.mean.data.mul_(0.9)
        return y

    model = Kept(late)
    with pytest.raises(plimsoll.Unsupported, match=r"test_buffers\.py.*'mean' is read here, and changed through \.data"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=rows(0), **LIMITS)


def test_a_parameter_that_is_changed_through_data_is_refused():
    def own(m, x):
        m.inner.weight.data.mul_(0.9)
        return m.inner(x)

    model = Kept(own)
    with pytest.raises(plimsoll.Unsupported, match="changed through .data"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=rows(0), **LIMITS)


def _answered(net, x):
    return net(x).mean() ** 2


def _after(net, x):
    loss = _answered(net, x)
    net(2 * x + 1)
    return loss


def _after_without_gradients(net, x):
    loss = _answered(net, x)
    with torch.no_grad():
        net(2 * x + 1)
    return loss


def _before_without_gradients(net, x):
    with torch.no_grad():
        net(2 * x + 1)
    return _answered(net, x)


def _penalty_last(net, x):
    loss = _answered(net, x)
    mixed = (x / 2 + 1).requires_grad_(True)
    slope = torch.autograd.grad(net(mixed).sum(), mixed, create_graph=True)[0]
    return loss + ((slope.norm(2, 1) - 1) ** 2).mean()


@pytest.mark.parametrize("call", [_after, _after_without_gradients, _before_without_gradients, _penalty_last], ids=lambda f: f.__name__)
def test_a_norm_counts_passes_of_which_nothing_is_read(call):
    torch.manual_seed(1)
    ours = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (ours, theirs)]
    x = rows(1)[0]
    step = plimsoll.compile(ours, optimizers[0], call=lambda net, batch: call(net, batch[0]), example=(x,), **LIMITS)
    for _ in range(2):
        optimizers[1].zero_grad()
        loss = call(theirs, x)
        loss.backward()
        optimizers[1].step()
        assert step((x,)) == pytest.approx(loss.item(), rel=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


def _copied(net, y):
    with torch.no_grad():
        net.mean.copy_(y.mean(0))
    return y * net.mean.clone()


def _moved(net, y):
    with torch.no_grad():
        net.mean.lerp_(y.mean(0), 0.5)
    return y * net.mean


def _moved_and_written_outside(net, y):
    with torch.no_grad():
        net.mean.mul_(0.5).add_(y.mean(0), alpha=0.5)
    net.mean.add_(1)
    return y * net.mean


def _moved_by_two_regions(net, y):
    with torch.no_grad():
        net.mean.copy_(y.mean(0))
    first = y * net.mean.clone()
    with torch.no_grad():
        net.mean.add_(y[0])
    net.mean.mul_(0.25)
    return first + y * net.mean


def _one_row(net, y):
    with torch.no_grad():
        net.mean[:2].copy_(y.mean(0)[1:3])
    return y * net.mean


@pytest.mark.parametrize("use", [_copied, _moved, _moved_and_written_outside, _moved_by_two_regions, _one_row], ids=lambda f: f.__name__)
def test_no_gradient_goes_into_what_was_written_without_gradients(use):
    class Centred(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(8, 6)
            self.register_buffer("mean", torch.ones(6))

        def forward(self, x):
            return use(self, self.layer(x)).sum(1)

    mine, other = Centred(), Centred()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (mine, other)]
    batches = [(torch.randn(5, 8, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
    step = plimsoll.compile(mine, optimizers[0], loss=lambda output, batch: output.square().mean(), example=batches[0], costs="estimated")
    for batch in batches:
        step(batch)
        other.mean.detach_()  # where it was written with a gradient
        optimizers[1].zero_grad()
        other(*batch).square().mean().backward()
        optimizers[1].step()
    for key, value in other.state_dict().items():
        assert torch.allclose(mine.state_dict()[key], value, atol=1e-5), key


def _whole(y):
    with torch.no_grad():
        y.mul_(2).add_(1)
    return y


def _in_parts(y):
    with torch.no_grad():
        y[:, 0] = 5.0
        y[1:3] *= 2
    return y


def _and_read_there(y):
    z = y * 2
    with torch.no_grad():
        z.add_(y.clamp_(-0.5, 0.5))
        read = z * 2
    return y * z + read * y


def _angles(y):
    """As ArcFace adds its margin."""
    cosines, own = torch.nn.functional.normalize(y).clamp(-0.99, 0.99), torch.arange(5) % 6
    with torch.no_grad():
        cosines.arccos_()
        cosines[torch.arange(5), own] += 0.5
        cosines.cos_()
    return cosines * 8


def _detached(y):
    y.detach().mul_(2).clamp_(-0.5, 0.5)
    y.detach()[:, 0] = 1.0
    return y + y.detach() * y


@pytest.mark.parametrize("use", [_whole, _in_parts, _and_read_there, _angles, _detached], ids=lambda f: f.__name__)
def test_what_is_written_without_gradients_lets_those_of_before_pass(use):
    mine, other = (torch.nn.Linear(8, 6) for _ in range(2))
    other.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (mine, other)]
    batches = [torch.randn(5, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    loss = lambda output, batch: (use(output * 1) * torch.arange(6.0)).square().mean()  # noqa: E731
    step = plimsoll.compile(mine, optimizers[0], loss=loss, example=batches[0], costs="estimated")
    for batch in batches:
        optimizers[1].zero_grad()
        expected = loss(other(batch), batch)
        expected.backward()
        optimizers[1].step()
        assert step(batch) == pytest.approx(expected.item(), rel=1e-4)
    for key, value in other.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-4, atol=1e-5, msg=key)

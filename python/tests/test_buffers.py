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


def _behind_a_view(y):
    view = y[:, :2]
    with torch.no_grad():
        y[:, 0] = 0.5
    return torch.cat([y[:, 2:] * 2, view * view], 1) * y


def _behind_views_of_views(y):
    turned = y.t()
    rows = turned[1:3]
    with torch.no_grad():
        y.clamp_(-0.3, 0.3)
    return y + (rows * rows).mean() + turned.sin().mean()


def _through_a_view(y):
    part, other = y[:, 1:], y[:, :3]
    with torch.no_grad():
        part[:, 0] = 2.0
        part.mul_(0.5)
    return y * y + (other**3).mean() + (part * part).mean()


def _through_views_one_after_the_other(y):
    part = y[:, 1:]
    with torch.no_grad():
        y[:, 2] = 0.3
    with torch.no_grad():
        part[:, 2] = 0.4
    return y * y + (part**3).mean()


def _detached_behind_a_view(y):
    view, detached = y[:, 1:], y.detach()
    detached[:, 1] = 0.7
    return y * y + (view**3).mean()


@pytest.mark.parametrize(
    "use",
    [_whole, _in_parts, _and_read_there, _angles, _detached, _behind_a_view, _behind_views_of_views, _through_a_view, _through_views_one_after_the_other, _detached_behind_a_view],
    ids=lambda f: f.__name__,
)
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


def _flattened(net, y):
    return y.flatten(1)


def _contiguous_and_of_its_type(net, y):
    return y.contiguous().to(y.dtype)


def _dropped_in_evaluation(net, y):
    return nn.functional.dropout(y, 0.5, training=False)


def _of_the_shape_of_all(net, y):
    return torch.distributions.Normal(y, y.square() + 1).loc


def _a_view(net, y):
    return y.view(-1, 6)


def _a_parameter_behind_a_view(net, y):
    return y.clone() @ net.weight[:, :6].flatten(1)


@pytest.mark.parametrize("read", [_flattened, _contiguous_and_of_its_type, _dropped_in_evaluation, _of_the_shape_of_all, _a_view, _a_parameter_behind_a_view], ids=lambda f: f.__name__)
def test_what_is_given_back_as_it_is_without_gradients_keeps_its_own(read):
    """``y.flatten(1)`` of a matrix is y, also under no_grad, where a view of y would have no gradient."""
    mine, other = (torch.nn.Linear(8, 6) for _ in range(2))
    other.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (mine, other)]
    batches = [torch.randn(5, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]

    def call(net, x):
        y = net(x).tanh()
        with torch.no_grad():
            target = read(net, y)
            far = target + 1
        return ((y * torch.arange(6.0) - far) * target).square().mean()

    step = plimsoll.compile(mine, optimizers[0], call=call, example=batches[0], costs="estimated")
    for batch in batches:
        optimizers[1].zero_grad()
        expected = call(other, batch)
        expected.backward()
        optimizers[1].step()
        assert step(batch) == pytest.approx(expected.item(), rel=1e-4)
    for key, value in other.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-4, atol=1e-5, msg=key)


class Averaging(nn.Module):
    """A module that keeps a moving average of another's weights itself, as MoCo's key encoder is one."""

    def __init__(self, update):
        super().__init__()
        torch.manual_seed(1)
        self.query, self.key, self.update = nn.Linear(6, 4), nn.Linear(6, 4), update
        for parameter in self.key.parameters():
            parameter.requires_grad = False

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.update(self)
        with torch.no_grad():
            key = self.key(x)
        return (F.normalize(self.query(x)) * F.normalize(key)).sum(1)


def _by_data(m):
    for q, k in zip(m.query.parameters(), m.key.parameters()):
        k.data = k.data * 0.9 + q.data * 0.1


def _by_data_in_place(m):
    for q, k in zip(m.query.parameters(), m.key.parameters()):
        k.data.mul_(0.9).add_(q.data, alpha=0.1)


def _in_place(m):
    for q, k in zip(m.query.parameters(), m.key.parameters()):
        k.mul_(0.9).add_(q, alpha=0.1)


def _a_row(m):
    m.key.weight[0] = m.query.weight[1]
    m.key.bias.copy_(m.query.bias)


def _anew(m):
    m.key.weight = nn.Parameter(0.9 * m.key.weight + 0.1 * m.query.weight, requires_grad=False)


@pytest.mark.parametrize("update", [_by_data, _by_data_in_place, _in_place, _a_row, _anew], ids=lambda f: f.__name__)
@pytest.mark.parametrize("decays", [False, True])
def test_frozen_parameters_that_a_forward_pass_writes_are_kept(update, decays):
    ours, theirs = Averaging(update), Averaging(update)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1 * decays) for net in (ours, theirs)]
    batches = [(torch.randn(5, 6, generator=torch.Generator().manual_seed(i)),) for i in range(5)]
    step = plimsoll.compile(ours, optimizers[0], loss=lambda output, batch: -output.mean(), example=batches[0], **LIMITS)
    for i, batch in enumerate(batches):
        optimizers[1].zero_grad()
        expected = -theirs(*batch).mean()
        expected.backward()
        optimizers[1].step()
        assert step(batch) == pytest.approx(expected.item(), rel=1e-4)
        if i == 2:
            theirs.eval()
            with torch.no_grad():
                assert step.evaluate(batch) == pytest.approx(-theirs(*batch).mean().item(), rel=1e-4)
                theirs.train()
                for net in (ours, theirs):
                    net.key.weight.mul_(-1.5)  # by the user, between two steps
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_codebook_of_parameters_that_each_pass_makes_anew_is_kept():
    """As VQ-VAE by moving averages is often written: no gradient reaches what forward assigns."""

    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.inner, self.codes, self.sums = nn.Linear(6, 4), nn.Embedding(5, 4), nn.Parameter(torch.randn(5, 4))

        def forward(self, x):
            y = self.inner(x)
            chosen = F.one_hot(torch.cdist(y, self.codes.weight).argmin(1), 5).float()
            found = chosen @ self.codes.weight
            if self.training:
                self.sums = nn.Parameter(self.sums * 0.9 + 0.1 * chosen.t() @ y)
                self.codes.weight = nn.Parameter(self.sums / 2)
            return y + (found - y).detach(), F.mse_loss(found.detach(), y)

    ours, theirs = Codes(), Codes()
    loss = lambda output, batch: output[0].square().mean() + output[1]  # noqa: E731
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (ours, theirs)]
    batches = [torch.randn(7, 6, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    step = plimsoll.compile(ours, optimizers[0], loss=loss, example=batches[0], **LIMITS)
    for batch in batches:
        optimizers[1].zero_grad()
        expected = loss(theirs(batch), batch)
        expected.backward()
        optimizers[1].step()
        assert step(batch) == pytest.approx(expected.item(), rel=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


def _trained(m, x):
    with torch.no_grad():
        m.inner.weight.clamp_(-0.1, 0.1)
    return m.inner(x)


def _trained_anew(m, x):
    y = m.inner(x)
    m.inner.weight = nn.Parameter(m.inner.weight * 0.9)
    return y


@pytest.mark.parametrize("body", [_trained, _trained_anew], ids=lambda f: f.__name__)
def test_a_trained_parameter_that_a_forward_pass_writes_is_refused(body):
    model = Kept(body)
    with pytest.raises(plimsoll.Unsupported, match="changes its parameter 'inner.weight', which is trained, in its forward pass"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=rows(0), **LIMITS)
    assert isinstance(model.inner.weight, nn.Parameter) and type(model.inner.weight.detach()) is torch.Tensor


class Queue(nn.Module):
    """As MoCo's: a ring of keys, and where the next ones go."""

    def __init__(self, put):
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.put = nn.Linear(6, 4), put
        self.register_buffer("queue", torch.randn(4, 8))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        keys = F.normalize(self.inner(x))
        logits = keys @ self.queue.clone().detach()
        with torch.no_grad():
            self.put(self, keys)
        return logits


def _by_places(m, keys):
    places = (m.pointer + torch.arange(len(keys))) % m.queue.shape[1]
    m.queue[:, places] = keys.T
    m.pointer[0] = (m.pointer[0] + len(keys)) % m.queue.shape[1]


def _by_number(m, keys):
    begin = int(m.pointer)
    m.queue[:, begin : begin + len(keys)] = keys.T
    m.pointer[0] = (begin + len(keys)) % m.queue.shape[1]


def expect_alike(ours, theirs, loss, batches, lr):
    """Losses, parameters and buffers, by steps over the batches, whose parts are forward's arguments."""
    optimizers = [torch.optim.SGD(net.parameters(), lr=lr) for net in (ours, theirs)]
    step = plimsoll.compile(ours, optimizers[0], loss=loss, example=batches[0], call=lambda net, batch: net(*batch), **LIMITS)
    for batch in batches:
        optimizers[1].zero_grad()
        expected = loss(theirs(*batch), batch)
        expected.backward()
        optimizers[1].step()
        assert step(batch) == pytest.approx(expected.item(), rel=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_ring_of_keys_whose_pointer_is_a_tensor():
    ours, theirs = Queue(_by_places), Queue(_by_number)
    loss = lambda output, batch: torch.logsumexp(output * 4, 1).mean()  # noqa: E731
    batches = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(i)),) for i in range(5)]
    expect_alike(ours, theirs, loss, batches, lr=0.5)


class Noting(nn.Module):
    """Writes at places whose numbers are tensors without dimensions: of a buffer, and of the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(6, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("means", torch.zeros(3))
        self.register_buffer("table", torch.randn(3, 4, 2))
        self.register_buffer("counts", torch.zeros(4, dtype=torch.long))

    def forward(self, x, place):
        y = self.inner(x)
        self.steps += 1
        self.means[self.steps % 3] = y.detach().mean()
        self.counts[place] += 1
        with torch.no_grad():
            self.table[:, place - 4] = y[:3, :2]
            self.table[1, place] = 2
            self.table[..., place, 1] = y[:3, 0]
        z = y.clone()
        z[:, place] = y[:, 0] * 2
        z[place, 1:3] += y[place, 1:3]
        return z * self.counts + self.means.mean() + self.table.clone().mean((0, 2))


def test_what_is_written_at_a_number_that_is_a_tensor():
    ours, theirs = Noting(), Noting()
    loss = lambda output, batch: (output.tanh() - 0.5).square().mean()  # noqa: E731
    batches = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(i)), torch.tensor(i % 4)) for i in range(6)]
    expect_alike(ours, theirs, loss, batches, lr=0.05)


def test_a_pointer_that_python_asks_for_is_told_by_name():
    model = Queue(_by_number)
    with pytest.raises(plimsoll.Unsupported, match=r"test_buffers\.py:\d+\).*the number in the buffer 'pointer'.*keep it a tensor"):
        plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, batch: output.mean(), example=(torch.ones(4, 6),), **LIMITS)

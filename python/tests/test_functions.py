"""torch.autograd.Function: gradients as their backward gives them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import plimsoll
from cases import Branches, Function
from support import assert_same, both, floats, start


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Within(torch.autograd.Function):
    """As PyTorch's tutorial writes ReLU, with the gradient of another function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        result = gradient.clone()
        result[x < -0.5] = 0
        return result


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.factor, None


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return (x > 0).float()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient.detach() / (1 + 10 * ctx.x.abs()) ** 2


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(x, scale):
        return x.softmax(-1) * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return y * (gradient - (gradient * y).sum(-1, keepdim=True)), None


class Moved(torch.autograd.Function):
    """What comes after a place passes its gradient to it."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        result = torch.zeros_like(gradient)
        result[:, 1:] = gradient[:, :-1]
        result += gradient
        return result.flip(1)


class Two(torch.autograd.Function):
    """Two results that have gradients, and one that has none."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        places = x.argmax(-1)
        ctx.mark_non_differentiable(places)
        return x * y, x + y, places

    @staticmethod
    def backward(ctx, a, b, c):
        x, y = ctx.saved_tensors
        return a * y + 3 * b, a * x


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, 2 * (gradient.flatten(0, -2).t() @ x.flatten(0, -2)), gradient.flatten(0, -2).sum(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.weight, self.bias = nn.Parameter(torch.ones(5, 6)), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return Linear.apply(self.before(x), self.weight, self.bias)


def two(x: Tensor) -> Tensor:
    product, total, places = Two.apply(x, x.tanh())
    return product + total * places[..., None]


def test_gradients_are_those_that_backward_gives():
    bodies = {
        "straight": Straight.apply,
        "within": Within.apply,
        "reversed": lambda x: Reversed.apply(x, 0.3),
        "surrogate": lambda x: Surrogate.apply(x) * x,
        "softmax": lambda x: Softmax.apply(x, 1.5),
        "moved": Moved.apply,
        "two": two,
    }
    branches = {name: Function(body, 4, 6) for name, body in bodies.items()}
    result = both(start(Branches({**branches, "layer": Layer()})), floats("x", 2, 4, 6) * 2, any_batch=False)
    assert_same(result)


def test_a_function_of_a_function_and_one_without_gradients():
    class Chosen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.argmax(-1)

        @staticmethod
        def backward(ctx, gradient):
            raise AssertionError("of whole numbers")

    class Straightly(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.nn.functional.one_hot(Chosen.apply(x), x.shape[-1]).to(x.dtype)

        @staticmethod
        def backward(ctx, gradient):
            assert ctx.needs_input_grad[0]
            return 0.5 * gradient

    assert_same(both(start(Function(lambda x: (Straightly.apply(x) * x).sum(), 6)), floats("x", 3, 6)))


@pytest.mark.parametrize("change", ["clamp", "sign", "affine"])
def test_a_backward_that_is_not_linear_is_refused(change):
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            return {"clamp": lambda g: g.clamp(-1, 1), "sign": torch.sign, "affine": lambda g: g + 0.1 * ctx.x}[change](gradient)

    with pytest.raises(plimsoll.Unsupported, match=r"Clipped\.apply.*not linear in the gradient"):
        both(start(Function(lambda x: Clipped.apply(x).sum(), 6)), floats("x", 3, 6))


class Penalized(torch.autograd.Function):
    """As RWKV keeps its largest scores small: a gradient of its own beside the one that it passes on."""

    @staticmethod
    def forward(ctx, loss, y):
        ctx.save_for_backward(y)
        return loss

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        largest, at = y.max(-1, keepdim=True)
        return gradient, torch.zeros_like(y).scatter_(-1, at, 0.1 * largest)


class Auxiliary(torch.autograd.Function):
    """As DeepSeek's mixtures of experts add a loss from within."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.adds = loss.requires_grad
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.ones(1, dtype=gradient.dtype) if ctx.adds else None


def penalized(x: Tensor) -> Tensor:
    return Penalized.apply(x.tanh().sum(), x)


def auxiliary(x: Tensor) -> Tensor:
    x = Auxiliary.apply(x, x.exp().mean())
    return (Auxiliary.apply(x, x.detach().exp().mean()) ** 2).sum()


@pytest.mark.parametrize("body", [penalized, auxiliary], ids=lambda f: f.__name__)
def test_a_gradient_whatever_comes_back_is_a_term_of_the_loss(body):
    assert_same(both(start(Function(body, 4, 6)), floats("x", 3, 4, 6)))


def test_such_a_gradient_of_what_nothing_is_made_of_is_none():
    def unused(x: Tensor) -> Tensor:
        seen = penalized(x)
        return x.square().sum() + seen.detach() + penalized(x * 2).argmax() * x.sum()

    assert_same(both(start(Function(unused, 6)), floats("x", 3, 6)))

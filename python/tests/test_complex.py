"""Complex numbers inside a network are pairs of real ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from plimsoll.errors import Unsupported
from support import assert_same, both, floats, start


class Rotated(nn.Module):
    """``turn(module, z, places)``: of complex numbers [batch, 6, 2, 4]."""

    def __init__(self, turn):
        super().__init__()
        self.layer, self.turn = nn.Linear(8, 16), turn
        angles = torch.outer(torch.arange(16).float(), 0.5 ** torch.arange(4))
        self.register_buffer("frequencies", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        z = torch.view_as_complex(self.layer(x).reshape(len(x), 6, 2, 4, 2))
        return (torch.view_as_real(self.turn(self, z, places)).flatten(3) * torch.arange(8)).square().mean()


TURNS = {
    "as_llama": lambda m, z, places: z * m.frequencies[None, :6, None, :],
    "by_places": lambda m, z, places: m.frequencies[places][:, :, None, :] * z,
    "by_angles": lambda m, z, places: z * torch.polar(torch.ones(len(places), 6, 1, 1), 0.1 * places[:, :, None, None].float()),
    "by_itself": lambda m, z, places: z * z.conj() + z * 0.5 - z / 4,
    "by_heads": lambda m, z, places: z.transpose(1, 2).unsqueeze(-1)[..., 0] * m.frequencies[:6],
    "by_a_real_tensor": lambda m, z, places: (z * m.layer.bias[:4])[:, 1:5] + z[:, :1] * m.layer.bias[4:8],
    "made": lambda m, z, places: torch.complex(torch.view_as_real(z)[..., 1], torch.view_as_real(z)[..., 0] * 2) * m.frequencies[2],
}


def batch(rows: int) -> tuple[Tensor, Tensor]:
    return floats("x", rows, 6, 8), torch.arange(6)[None, :] + torch.arange(rows)[:, None]


@pytest.mark.parametrize("kind", TURNS)
def test_are_pairs(kind):
    model = start(Rotated(TURNS[kind]))
    assert_same(both(model, batch(2), run_batch=batch(3)), 1e-6 if kind == "by_angles" else 1e-9)


def test_what_has_no_pairs_is_refused_by_name():
    with pytest.raises(Unsupported, match="tan"):
        both(start(Rotated(lambda m, z, places: torch.tan(z))), batch(2))

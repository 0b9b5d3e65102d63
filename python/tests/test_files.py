"""Files: what is written is what is read."""

from __future__ import annotations

import json
import struct
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll
from plimsoll import safetensors
from support import floats, start


def test_safetensors_round_trip(tmp_path):
    tensors = {
        "a.weight": floats("a", 2, 3),
        "ids": torch.arange(5),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "half": floats("h", 3).bfloat16(),
    }
    path = tmp_path / "w.safetensors"
    safetensors.save(tensors, path)
    found = safetensors.load(path)
    assert list(found) == list(tensors)
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert length % 8 == 0 and not (tmp_path / "w.safetensors.partial").exists()


def test_a_network_file_holds_training_and_evaluation(tmp_path):
    model = start(
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 5)
        )
    )
    batch = (floats("x", 2, 3, 8, 8), torch.tensor([1, 3]))
    path, weights = tmp_path / "net.json", tmp_path / "net.safetensors"
    written = plimsoll.export(
        model, loss=lambda out, b: F.cross_entropy(out, b[1]), example=batch, path=path, weights=weights
    )
    document = json.loads(path.read_text())
    assert document == json.loads(json.dumps(written))
    assert document["format"] == "plimsoll network" and document["version"] == 1 and document["batch"] == 2
    for section in ("training", "evaluation"):
        assert document[section]["data"] == "data" and document[section]["labels"] == "labels"
        assert next(t for t in document[section]["tensors"] if t["name"] == "labels")["dtype"] == "i32"
    assert "DropoutForward" not in [op["type"] for op in document["evaluation"]["ops"]]
    state = model.state_dict()
    for name, value in safetensors.load(weights).items():
        assert torch.equal(value, state[name]), name


def test_what_pytorch_computes_before_the_step_is_told(tmp_path):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(9, 9)

        def forward(self, ids):
            return F.cross_entropy(self.words(ids).flatten(0, 1), F.pad(ids, (0, 1), value=-100)[:, 1:].flatten())

    with pytest.warns(UserWarning, match="PyTorch computes prelude/"):
        plimsoll.export(Shifted(), example=torch.arange(8).reshape(2, 4), path=tmp_path / "n.json", evaluation=False)


def test_a_meta_model_has_no_weights_to_write(tmp_path):
    with torch.device("meta"):
        model = nn.Linear(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="meta device"):
            plimsoll.export(
                model,
                loss=lambda out, b: out.sum(),
                example=torch.zeros(2, 3, device="meta"),
                path=tmp_path / "n.json",
                weights=tmp_path / "n.safetensors",
            )

"""How batches come to a GPU: from the host's memory by way of pinned memory, from the GPU's own without the host. A module stands
for CUDA, whose memory is the host's: so a tensor of the host's stands for one of the GPU's where the script says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from plimsoll import feeding
from plimsoll.prelude import Prelude
from plimsoll.step import _on_device_of

FAKE = Path(__file__).parents[2] / "build/test/libplimsoll_cuda_fake.so"

SCRIPT = """
import ctypes, json, math, sys, numpy, torch, torch.nn.functional as F, plimsoll
from plimsoll import feeding
from torch import nn

torch.set_num_threads(1)
way, steps = sys.argv[1], int(sys.argv[2])
settled, places = [], []

def tensor_at(address, shape, dtype, gpu):
    places.append(list(shape))
    bytes = (ctypes.c_byte * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(bytes, dtype=dtype).view(list(shape))

if way == "there":
    feeding.gpu_of = plimsoll.step.gpu_of = lambda device: torch.device("cpu")
    feeding.tensor_at, feeding.settle = tensor_at, settled.append
if way == "as before":
    feeding.gpu_of = plimsoll.step.gpu_of = lambda device: None

def batch(number, size=8):
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(size, 3, 32, 16, generator=generator)
    if number % 3 == 1:
        images = images.to(memory_format=torch.channels_last)
    if number % 3 == 2:
        images = images.transpose(2, 3).contiguous().transpose(2, 3)
    return images, torch.randint(0, 5, (size,), generator=generator)

def compiled(**more):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = plimsoll.compile(model, optimizer, loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=batch(0),
                            memory="64MiB", device="cuda:0", exact=True, progress=False, costs="estimated", **more)
    return step, model

def weights(model):
    return [value.flatten().tolist() for value in model.state_dict().values()]

told = {}
batches = [batch(n) for n in range(steps)]
step, model = compiled()
told["losses"] = [step(b) for b in batches] + [step.evaluate(batches[0])]
told["weights"] = weights(model)
told["settled"], told["places"] = len(settled), places[:]
if steps > 4:
    ahead, model = compiled(feed_ahead=True)
    told["ahead"] = list(ahead.over(iter(batches))), weights(model), ahead.plan["input_buffers"]
    try:
        step((batches[0][0], torch.full((8,), 5)))
    except IndexError as error:
        told["refused"] = str(error)
print(json.dumps(told))
"""


def run(folder: Path, way: str, steps: int) -> dict:
    if not FAKE.exists():
        pytest.skip("the module that stands for CUDA is not built; ./test does it")
    calls = folder / f"{way}-{steps}"
    environment = {**os.environ, "PLIMSOLL_CUDA_MODULE": str(FAKE), "PLIMSOLL_CACHE": str(folder), "PLIMSOLL_FAKE_CALLS": str(calls)}
    done = subprocess.run([sys.executable, "-c", SCRIPT, way, str(steps)], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    counts = dict(line.split() for line in calls.read_text().splitlines())
    return told | {"unpinned": int(counts["bytes_unpinned"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("feeding")


@pytest.fixture(scope="module")
def before(folder):
    return run(folder, "as before", 6)


def test_a_batch_of_the_hosts_comes_by_pinned_memory(folder, before):
    told = run(folder, "host", 6)
    assert told["losses"] == before["losses"] and told["weights"] == before["weights"]
    assert told["ahead"] == before["ahead"] and told["ahead"][2] == 2
    assert told["refused"] == before["refused"] and "the label 5" in told["refused"]
    image, one_step = 8 * 3 * 32 * 16 * 4, 4096  # bytes: of a step, learning rates and the loss
    few, more = (run(folder, "host", steps)["unpinned"] for steps in (1, 4))
    assert more - few < 3 * one_step < 3 * image
    few, more = (run(folder, "as before", steps)["unpinned"] for steps in (1, 4))
    assert more - few > 3 * image


def test_a_batch_of_the_gpus_is_copied_by_pytorch_to_its_place(folder, before):
    told = run(folder, "there", 6)
    assert told["losses"] == before["losses"] and told["weights"] == before["weights"] and told["ahead"] == before["ahead"]
    assert told["refused"] == before["refused"]
    assert told["settled"] == 7  # once for each batch, of training and of evaluation
    assert len(told["places"]) == 14


class _Core:
    """Whose input lies channels last in the memory of a GPU, for which the host's stands."""

    def __init__(self):
        self.memory = np.zeros(2 * 4 * 5 * 3, dtype=np.float32)
        self.room = np.zeros(self.memory.nbytes, dtype=np.uint8)
        self.calls: list[str] = []

    def layout_of(self, name, evaluation):
        return [2, 3, 4, 5], [0, 2, 3, 1]

    def place_of(self, name, evaluation):
        self.calls.append("place_of")
        return self.memory.ctypes.data

    def staging(self, size):
        return self.room[:size]

    def feed_as_it_lies(self, name, array, evaluation):
        assert array.flags.c_contiguous and np.shares_memory(array, self.room)
        self.calls.append("feed_as_it_lies")
        self.memory[:] = array.ravel()


@pytest.mark.parametrize("there", [False, True])
def test_an_input_that_lies_channels_last_gets_every_element(there, monkeypatch):
    core, settled = _Core(), []
    monkeypatch.setattr(feeding, "tensor_at", lambda address, shape, dtype, gpu: torch.from_numpy(core.memory).view(list(shape)))
    monkeypatch.setattr(feeding, "settle", settled.append)
    images = torch.randn(2, 3, 4, 5)
    for given in (images, images.to(memory_format=torch.channels_last), images.double(), images.transpose(1, 3).contiguous().transpose(1, 3)):
        core.memory[:] = 0
        feeder = feeding.Feeder(core, torch.device("cpu") if there else torch.device("cuda", 0))
        feeder("images", given, torch.float32)
        feeder.finish()
        assert torch.equal(torch.from_numpy(core.memory).view(2, 4, 5, 3), images.permute(0, 2, 3, 1))
    assert core.calls == ["place_of" if there else "feed_as_it_lies"] * 4
    assert len(settled) == 4 * there


def test_dimensions_lie_in_their_order():
    stored = torch.arange(24).view(2, 3, 4)
    assert torch.equal(feeding.as_it_lies(stored, [0, 2, 1]), stored.permute(0, 2, 1))
    images = torch.arange(48).view(2, 4, 2, 3)
    assert feeding.as_it_lies(images, [0, 2, 3, 1]).is_contiguous(memory_format=torch.channels_last)
    for order in ([2, 0, 1], [1, 2, 0]):
        assert torch.equal(feeding.as_it_lies(stored, order).permute(order), stored)
    assert feeding.as_it_lies(torch.tensor(5.0), []).item() == 5


def test_the_device_is_pytorchs():
    assert feeding.gpu_of("cuda:1+tf32") == torch.device("cuda", 1) and feeding.gpu_of("cuda:0") == torch.device("cuda", 0)
    assert feeding.gpu_of("cpu") is None


def test_what_lies_on_a_gpu_is_told_as_an_array():
    array = feeding._Array(4096, [2, 3], torch.int64).__cuda_array_interface__
    assert array == {"data": (4096, False), "shape": (2, 3), "typestr": "<i8", "version": 3}


def test_an_example_for_a_capture_lies_where_the_model_does():
    with torch._subclasses.FakeTensorMode():
        model = nn.Linear(3, 2)
        moved = _on_device_of(model, {"x": torch.empty(4, 3, device="cuda"), "size": 3})
    assert moved["x"].device == torch.device("cpu") and moved["size"] == 3
    there = torch.empty(4, 3, device="meta")
    assert _on_device_of(nn.Linear(3, 2), there) is there


class _Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(3))

    def forward(self, ids, images):
        return self.table + ids


def test_what_a_prelude_reads_comes_to_its_constants():
    module = torch.fx.symbolic_trace(_Reads())
    with torch._subclasses.FakeTensorMode():
        ids, images = torch.empty(3, device="cuda"), torch.empty(3, device="cuda")
        read, left = Prelude._beside_constants(module, [ids, images])
    assert read.device == torch.device("cpu") and left is images


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("feed_ahead", [False, True])
def test_on_a_gpu_every_way_gives_the_same_losses(feed_ahead):
    import plimsoll

    gpu = torch.device("cuda", 0)

    def batches():
        generator = torch.Generator().manual_seed(5)
        return [(torch.randn(16, 3, 64, 64, generator=generator), torch.randint(0, 5, (16,), generator=generator)) for _ in range(6)]

    def late(batch):
        """What is still to be computed when the step is called."""
        there = tuple(t.to(gpu) for t in batch)
        torch.cuda._sleep(20_000_000)
        return tuple(t.clone() for t in there)

    ways = {
        "host": lambda batch: batch,
        "pinned": lambda batch: tuple(t.pin_memory() for t in batch),
        "pinned, channels last": lambda batch: (batch[0].to(memory_format=torch.channels_last).pin_memory(), batch[1].pin_memory()),
        "gpu": lambda batch: tuple(t.to(gpu) for t in batch),
        "gpu, channels last": lambda batch: (batch[0].to(gpu, memory_format=torch.channels_last), batch[1].to(gpu)),
        "gpu, short labels": lambda batch: (batch[0].to(gpu), batch[1].to(gpu, torch.int32)),
        "gpu, late": late,
    }
    losses = {}
    for name, way in ways.items():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = plimsoll.compile(model, optimizer, loss=lambda output, batch: nn.functional.cross_entropy(output, batch[1].long()), example=way(batches()[0]),
                                memory="256MiB", device="cuda:0", exact=True, progress=False,
                                costs="estimated", feed_ahead=feed_ahead)
        given = map(way, batches())
        losses[name] = list(step.over(given)) if feed_ahead else [step(batch) for batch in given]
        losses[name].append(step.evaluate(way(batches()[0])))
    assert all(found == losses["host"] for found in losses.values()), losses

"""Batches that come to a GPU while the step before them runs. A module stands for CUDA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[2] / "build/test/libplimsoll_cuda_fake.so"

SCRIPT = """
import json, torch, torch.nn.functional as F, plimsoll
from torch import nn

torch.set_num_threads(1)

def batch(number, size=8):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, 12, generator=generator), torch.randint(0, 5, (size,), generator=generator)

def compiled(**more):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Dropout(0.2), nn.Linear(24, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = plimsoll.compile(model, optimizer, loss=lambda output, batch: F.cross_entropy(output, batch[1]), example=batch(0),
                            memory="64MiB", device="cuda:0", exact=True, progress=False, **more)
    return step, model

def weights(model):
    return [value.flatten().tolist() for value in model.state_dict().values()]

def reusing(numbers):  # a loader that writes every batch into the same tensors
    x, y = batch(0)
    for number in numbers:
        now = batch(number)
        x.copy_(now[0]), y.copy_(now[1])
        yield x, y

told = {}
order = [0, 1, 2, (3, 4), 4, 5, 5]
batches = [batch(*n) if isinstance(n, tuple) else batch(n) for n in order]
plain, model = compiled()
told["plain"] = [plain(b) for b in batches], weights(model), plain.plan.get("input_buffers")
for name, more in {"ahead": {"feed_ahead": True}, "over": {}}.items():
    step, model = compiled(**more)
    told[name] = list(step.over(iter(batches))), weights(model), step.plan.get("input_buffers")

first, model = compiled()
losses = [first(b) for b in batches[:3]]
value = first.evaluate(batch(9))
told["evaluated"] = [*losses, value, first(batch(4)), first(batch(5))], weights(model)
second, model = compiled(feed_ahead=True)
losses, seen = [], second.over([*batches[:3], batch(4), batch(5)])
for i, loss in enumerate(seen):
    losses.append(loss)
    if i == 2:
        losses.append(second.evaluate(batch(9)))
told["evaluated_ahead"] = losses, weights(model)

same, model = compiled(feed_ahead=True)
told["reused"] = list(same.over(reusing([0, 1, 2, 4]))), weights(model)
other, model = compiled()
told["reused_plain"] = [other(batch(n)) for n in [0, 1, 2, 4]], weights(model)

def broken():
    yield batch(0)
    yield batch(1)
    raise OSError("the disk is gone")

step, _ = compiled(feed_ahead=True)
losses = []
try:
    for loss in step.over(broken()):
        losses.append(loss)
except OSError as error:
    told["broken"] = losses, str(error)
step, _ = compiled(feed_ahead=True)
losses = []
try:
    for loss in step.over([batch(0), (batch(1)[0], torch.full((8,), 5))]):
        losses.append(loss)
except IndexError as error:
    told["out_of_range"] = losses, str(error), step(batch(1))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    if not FAKE.exists():
        pytest.skip("the module that stands for CUDA is not built; ./test does it")
    folder = tmp_path_factory.mktemp("ahead")
    environment = {**os.environ, "PLIMSOLL_CUDA_MODULE": str(FAKE), "PLIMSOLL_CACHE": str(folder)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_batch_fed_ahead_trains_as_one_that_comes_before_its_step(told):
    assert told["ahead"][2] == 2 and told["over"][2] != 2 and told["plain"][2] != 2
    assert told["ahead"][:2] == told["plain"][:2] == told["over"][:2]


def test_an_evaluation_between_two_steps_changes_nothing(told):
    assert told["evaluated_ahead"] == told["evaluated"]


def test_a_loader_may_write_every_batch_into_the_same_tensors(told):
    assert told["reused"] == told["reused_plain"]


def test_what_is_wrong_with_a_batch_is_told_when_that_is_wanted(told):
    losses, text = told["broken"]
    assert losses == told["plain"][0][:2] and text == "the disk is gone"
    losses, text, goes_on = told["out_of_range"]
    assert [*losses, goes_on] == told["plain"][0][:2] and "the label 5" in text


OTHER_SHAPES = """
import copy, json, torch, torch.nn.functional as F, plimsoll
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(12, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 5))
expected = copy.deepcopy(model)
loss = lambda output, batch: F.cross_entropy(output, batch[1])
batches = [(torch.randn(size, 12), torch.randint(0, 5, (size,))) for size in (8, 8, 4, 8, 6, 4, 8)]
step = plimsoll.compile(model, torch.optim.Adam(model.parameters(), lr=0.01), loss=loss, example=batches[0], memory="64MiB", device="cuda:0", progress=False)
optimizer = torch.optim.Adam(expected.parameters(), lr=0.01)
losses = []
for i, batch in enumerate(batches):
    if i == 3:
        step.evaluate(batches[4])
    optimizer.zero_grad()
    value = loss(expected(batch[0]), batch)
    value.backward()
    optimizer.step()
    losses.append([step(batch), value.item()])
states = [(a - b).abs().max().item() for a, b in zip(model.state_dict().values(), expected.state_dict().values())]
print(json.dumps([losses, states]))
"""


def test_a_batch_of_another_size_leaves_a_gpus_states_as_they_were(tmp_path):
    """Its plan is rehearsed on the device, in the memory of the training."""
    if not FAKE.exists():
        pytest.skip("the module that stands for CUDA is not built; ./test does it")
    environment = {**os.environ, "PLIMSOLL_CUDA_MODULE": str(FAKE), "PLIMSOLL_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", OTHER_SHAPES], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    losses, states = json.loads(done.stdout.splitlines()[-1])
    for found, expected in losses:
        assert found == pytest.approx(expected, rel=1e-4)
    assert max(states) < 1e-4

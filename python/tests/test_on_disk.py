"""With ``spill=`` the module's tensors that the arena has not lie in files: they take no memory beside it, and stay what they were to the user."""

from __future__ import annotations

import copy
import errno
import gc
import os
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll

LIMITS = dict(threads=1, costs="estimated", progress=False)
WIDTH, LAYERS = 1024, 48
BYTES = LAYERS * WIDTH * WIDTH * 4  # 192 MiB
BESIDE = (32 << 20) + (64 << 20)  # the arena, and what comes with a step


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def batch(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + i)
    return torch.randn(4, WIDTH), torch.randint(0, WIDTH, (4,))


def loss(output, given):
    return F.cross_entropy(output, given[1])


def compiled(model, optimizer, folder, **settings):
    return plimsoll.compile(model, optimizer, loss=loss, example=batch(0), spill=f"{folder}:2GiB", **({"memory": "32MiB"} | LIMITS | settings))


def status(field: str) -> int:
    gc.collect()
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(f"{field}:")) * 1024


def anonymous() -> int:
    return status("RssAnon")


def resident() -> int:
    return status("VmRSS")


def in_files(model: nn.Module) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return sum(p.numel() * p.element_size() for p in model.parameters() if p.untyped_storage().filename is not None)


def train(model, optimizer, steps):
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        value = loss(model(batch(i)[0]), batch(i))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def test_weights_on_disk_take_no_memory_of_the_process(tmp_path):
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = anonymous()
    step = compiled(model, optimizer, tmp_path)
    assert [p for p in tmp_path.iterdir() if p.name.startswith("plimsoll-")] == [], "no name is left of them"
    for i in range(2):
        step(batch(i))
    assert anonymous() - before < BESIDE - BYTES * 9 // 10
    assert in_files(model) > BYTES // 2
    model[0].weight.sum()
    assert anonymous() - before < BESIDE - BYTES * 9 // 10, "read, and in no memory of the process either"


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_module_and_optimizer_are_what_pytorch_would_have(tmp_path, kind):
    make = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3)}[kind]
    model = deep()
    reference = copy.deepcopy(model)
    optimizer, theirs = make(model.parameters()), make(reference.parameters())
    step = compiled(model, optimizer, tmp_path)
    assert [step(batch(i)) for i in range(3)] == pytest.approx(train(reference, theirs, 3), rel=2e-4)
    for mine, expected in zip(model.state_dict().values(), reference.state_dict().values()):
        assert torch.allclose(mine, expected, atol=2e-4)
    with torch.no_grad():  # what is written is trained on
        model[2].weight.mul_(0.5)
        reference[2].weight.mul_(0.5)
    again = [batch(i) for i in range(3)]
    assert [step(b) for b in again] == pytest.approx(train(reference, theirs, 3), rel=2e-3)
    mine, expected = optimizer.state_dict()["state"], theirs.state_dict()["state"]
    assert mine.keys() == expected.keys()
    for number, state in expected.items():
        for name, value in state.items():
            assert torch.allclose(torch.as_tensor(mine[number][name]), torch.as_tensor(value), atol=2e-4), (number, name)
    del step
    gc.collect()
    for mine, expected in zip(model.parameters(), reference.parameters()):
        assert torch.allclose(mine, expected, atol=2e-4)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)  # PyTorch goes on with it


def test_where_no_plan_fits_the_module_is_as_it_was(tmp_path):
    model = deep()
    values = copy.deepcopy(model.state_dict())
    with pytest.raises(plimsoll.Infeasible):
        compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, memory="1MiB")
    assert in_files(model) == 0
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


def test_a_full_disk_is_told_and_changes_nothing(tmp_path, monkeypatch):
    model = deep()
    values = copy.deepcopy(model.state_dict())
    room = iter(range(5))

    def reserve(*_):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *given: (reserve(), real(*given)))
    with pytest.raises(OSError, match="spill=: no room for 4 MiB of the module's tensors"):
        compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path)
    assert in_files(model) == 0 and list(tmp_path.iterdir()) == []
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


def test_a_folder_that_is_gone_at_the_end_takes_nothing_with_it(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    model, reference = deep(), deep()
    step = compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), folder, memory="1GiB")
    step(batch(0))
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.1), 1)
    shutil.rmtree(folder)
    del step
    gc.collect()
    for mine, expected in zip(model.parameters(), reference.parameters()):
        assert torch.allclose(mine, expected, atol=2e-4)


def test_a_stated_process_may_be_smaller_than_the_model(tmp_path):
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = plimsoll.fits(model, optimizer, loss=loss, example=batch(0), memory="8GiB", memory_is="process", spill=f"{tmp_path}:2GiB", threads=1)
    assert told["minimum_bytes"] < resident(), "less than the process has now"
    step = compiled(model, optimizer, tmp_path, memory=told["minimum_bytes"] + (32 << 20), memory_is="process")
    assert step(batch(0)) > 0


def test_tensors_of_another_step_stay_where_they_are(tmp_path):
    model = deep()
    first = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, example=batch(0), memory="1GiB", **LIMITS)
    first(batch(0))
    second = compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path)
    reference = deep()
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    train(reference, theirs, 1)
    again = [second(batch(1)), first(batch(2)), second(batch(3))]
    for i, value in zip((1, 2, 3), again):
        theirs.zero_grad()
        wanted = loss(reference(batch(i)[0]), batch(i))
        wanted.backward()
        theirs.step()
        assert value == pytest.approx(wanted.item(), rel=2e-4)


def test_a_large_state_is_read_some_at_a_time(tmp_path):
    width = 4096
    one = width * width * 4
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(1)
    example = torch.randn(4, width), torch.randint(0, 10, (4,))
    step = plimsoll.compile(model, optimizer, loss=loss, example=example, spill=f"{tmp_path}:2GiB", memory="210MiB", **LIMITS)
    step(example)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = resident()
    step.sync()
    moments = optimizer.state[model[0].weight]
    assert status("VmHWM") - before < 1.6 * one  # the file's pages, and a piece beside them
    assert moments["exp_avg"].untyped_storage().filename is not None and moments["exp_avg_sq"].abs().sum() > 0

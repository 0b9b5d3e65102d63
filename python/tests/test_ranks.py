"""Several processes that train together, started by mpirun, by torchrun, or one by one: ranks_script.py says what they do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import plimsoll
from ranks_script import PART, Unknown, adamw, cross_entropy, network, whole_batch

SCRIPT = str(Path(__file__).with_name("ranks_script.py"))
ROOT = Path(plimsoll.__file__).parents[1]
SCENARIOS = ["plain", "stages", "formulas", "short_batches", "differences", "refusals", "fallback", "files", "divided_reads", "evaluation", "norms", "variables"]
LIMIT = 240  # seconds: far more than any of them takes


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "OMPI_MCA_hwloc_base_binding_policy": "none"}  # fmt: skip
    return kept | mpi | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def refuse_without(launcher: str) -> None:
    if launcher == "mpirun":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not there (Debian: openmpi-bin)")
        if not (Path(plimsoll.__file__).parent / "libplimsoll_mpi.so").exists():
            pytest.skip("this build of the package has no MPI (Debian: libopenmpi-dev)")
        if subprocess.run(["mpirun", "-n", "2", "true"], env=environment(), capture_output=True).returncode != 0:
            pytest.skip("mpirun cannot start processes here")


def command(launcher: str, size: int) -> list[str]:
    if launcher == "mpirun":
        return ["mpirun", "-n", str(size), sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "--master-port", str(free_port())]


def started(launcher: str, size: int, folder: Path, *scenarios: str) -> list[dict]:
    """What each rank has written, after all have ended well."""
    refuse_without(launcher)
    done = subprocess.run([*command(launcher, size), SCRIPT, str(folder), *scenarios], env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module", params=["mpirun", "torchrun"])
def two(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return started(request.param, 2, folder, *SCENARIOS), folder


def by_pytorch(model: nn.Module, sizes: list[int], size: int):
    """One process with the whole batch: its state and losses."""
    torch.manual_seed(1)
    optimizer, losses = adamw(model), []
    for i, part in enumerate(sizes):
        batch = whole_batch(i, size, part)
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[0]), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.state_dict(), losses


def drawn(make):
    torch.manual_seed(1)
    return make()


def assert_as_one_process(results, name: str, file: Path, model: nn.Module, sizes: list[int]) -> None:
    expected, losses = by_pytorch(model, sizes, len(results))
    found = torch.load(file)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.allclose(found[key].float(), value.float(), atol=2e-4), key
    parts = [result[name]["losses"] for result in results]
    assert [sum(of_step) / len(of_step) for of_step in zip(*parts)] == pytest.approx(losses, rel=1e-4)
    assert len({result[name]["weights"] for result in results}) == 1


def test_ranks_train_as_one_process_with_the_whole_batch(two):
    results, folder = two
    assert_as_one_process(results, "plain", folder / "plain.pt", drawn(network), [PART] * 4)
    assert results[0]["plain"]["losses"] != results[1]["plain"]["losses"]  # each of its own part


def test_short_batches_of_equal_sizes_are_trained(two):
    results, folder = two
    assert_as_one_process(results, "short_batches", folder / "short.pt", drawn(network), [4, 3, 4, 1])


def test_what_the_optimizer_has_beside_the_model_begins_alike(two):
    results, _ = two
    found = [result["variables"] for result in results]
    assert found[0]["weights"] == found[1]["weights"] and found[0]["losses"] != found[1]["losses"]
    assert all(one["plans"] <= 16 for one in found)


def test_sync_batch_norm_takes_the_statistics_of_the_whole_batch(two):
    results, folder = two
    assert_as_one_process(results, "norms", folder / "norms.pt", drawn(lambda: network(norm=True)), [PART] * 3)
    assert results[0]["norms"]["buffers"] == results[1]["norms"]["buffers"]
    for result in results:
        kind, text = result["norms"]["mixed"]
        assert kind == "ValueError" and "convert_sync_batchnorm" in text and "'2'" in text


def test_what_pytorch_computes_is_computed_on_every_rank(two):
    results, folder = two
    assert_as_one_process(results, "fallback", folder / "fallback.pt", drawn(Unknown), [PART] * 3)


def test_every_stage_of_zero_gives_the_same_bits(two):
    results, _ = two
    found = [result["stages"] for result in results]
    for one in found:
        for zero in ("1", "2", "3", "None"):
            assert [one[zero][key] for key in ("weights", "states", "losses")] == [one["0"][key] for key in ("weights", "states", "losses")]
        assert one["0"]["divided"] == one["None"]["divided"] == []  # all fits
        assert "4.weight.exp_avg" in one["1"]["divided"] and "4.weight" not in one["1"]["divided"]
        assert "4.weight" in one["3"]["divided"]
    assert found[0]["3"]["weights"] == found[1]["3"]["weights"]
    assert found[0]["3"]["states"] == found[1]["3"]["states"]


@pytest.mark.parametrize("name", ["adadelta", "nadam", "sgd"])
def test_optimizers_by_formulas_give_what_one_process_gives_however_they_are_divided(two, name):
    results, folder = two
    found = [result["formulas"][name] for result in results]
    for of_rank in found:
        assert len({(tuple(one["losses"]), one["weights"], one["states"]) for one in of_rank}) == 1
    assert found[0][0]["weights"] == found[1][0]["weights"] and found[0][0]["states"] == found[1][0]["states"]
    kinds = {
        "adadelta": lambda p: torch.optim.Adadelta(p, eps=1e-4, weight_decay=0.01),
        "nadam": lambda p: torch.optim.NAdam(p, lr=0.003, weight_decay=0.01),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, dampening=0.3),
    }
    model = drawn(network)
    optimizer = kinds[name](model.parameters())

    def backward(number: int, share: float) -> None:
        batch = whole_batch(number, 2)
        (cross_entropy(model(batch[0]), batch) * share).backward()

    if name != "adadelta":
        backward(9, 1)
        optimizer.step()
    for first in (0, 2, 4):
        optimizer.zero_grad()
        backward(first, 0.5), backward(first + 1, 0.5)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ours, of_optimizer = torch.load(folder / f"{name}.pt")
    for key, value in model.state_dict().items():
        assert torch.allclose(ours[key], value, atol=2e-4), key
    for i, state in optimizer.state_dict()["state"].items():
        assert state.keys() == of_optimizer["state"][i].keys()
        for key, value in state.items():
            assert torch.allclose(of_optimizer["state"][i][key], value, atol=2e-4), key


DIFFERENCES = {
    "module": ["1.weight", "(8, 192)", "(9, 192)"],
    "example": ["the example batch", "4x3x8x8", "5x3x8x8"],
    "option": ["zero is 0", "1 on rank 1"],
    "shape": ["the batch", "4x3x8x8", "3x3x8x8"],
    "rate": ["learning rates", "0.001", "0.002"],
    "loaded": ["load_state_dict", "False on rank 0", "True on rank 1"],
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_that_differ_are_named_on_all_of_them(two, what):
    for result in two[0]:
        kind, text = result["differences"][what]
        assert kind == "ValueError" and "rank 1 (" in text
        for part in DIFFERENCES[what]:
            assert part in text


def test_ranks_go_on_after_what_was_refused(two):
    first, second = (result["differences"] for result in two[0])
    assert second["label"][0] == "IndexError" and "nothing was trained" in second["label"][1]
    assert first["weights"] == second["weights"]


def test_all_ranks_refuse_together(two):
    for rank, result in enumerate(two[0]):
        found = result["refusals"]
        assert found["unsupported"][0] == "Unsupported" and "linalg_svd" in found["unsupported"][1]
        assert found["infeasible"][1] > 64 << 10
        assert found["option"][0] == "Error" and "unknown policy 'none'" in found["option"][1]
        assert found["stage"][0] == "ValueError" and "zero=4" in found["stage"][1]
        assert "memory= is 64.0 KiB" in found["memory of one"][1]
        assert ("rank 1 (" in found["memory of one"][1]) == (rank == 0)
        assert len(found["alone"]) == 1 + rank
    assert two[0][0]["refusals"]["infeasible"] == two[0][1]["refusals"]["infeasible"]


def test_a_step_goes_on_from_a_file_bit_for_bit_however_it_is_divided(two):
    for result in two[0]:
        assert result["files"]["found"] == [result["files"]["expected"]] * 2


def test_one_rank_that_reads_what_is_divided_is_told(two):
    for result in two[0]:
        kind, text = result["divided_reads"]["told"]
        assert kind == "ValueError" and "step.sync" in text and "a step on rank 1" in text
        assert result["divided_reads"]["states"] == 6


def test_one_rank_may_evaluate_alone(two):
    first, second = (result["evaluation"] for result in two[0])
    assert len(first["losses"]) == 1 and not second["losses"]
    assert first["grown"] > second["grown"]
    assert first["weights"] == second["weights"]


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_ranks_have_a_gpu_each(tmp_path, launcher, monkeypatch):
    fake = Path(__file__).parents[2] / "build/test/libplimsoll_cuda_fake.so"  # stands for CUDA and NCCL
    if not fake.exists():
        pytest.skip("the module that stands for CUDA is not built; ./test does it")
    (tmp_path / "meet").mkdir()
    for name, value in {"CUDA_MODULE": fake, "FAKE_DEVICES": 2, "FAKE_NCCL": tmp_path / "meet", "TEST_DEVICE": "cuda"}.items():
        monkeypatch.setenv(f"PLIMSOLL_{name}", str(value))
    results = started(launcher, 2, tmp_path, "plain", "stages")
    assert_as_one_process(results, "plain", tmp_path / "plain.pt", drawn(network), [PART] * 4)
    assert {result["plain"]["device"] for result in results} == {"cuda:0"}, "the first's plan; two ranks on one GPU are refused"
    told = [stage for result in results for stage in result["stages"].values()]
    assert len({stage["weights"] for stage in told}) == 1 and len({stage["states"] for stage in told}) == 1
    assert results[0]["stages"]["3"]["divided"]


def test_both_launchers_give_the_same_bits(tmp_path):
    weights = set()
    for launcher in ("mpirun", "torchrun"):
        folder = tmp_path / launcher
        folder.mkdir()
        results = started(launcher, 4, folder, "plain", "stages")
        weights |= {result["plain"]["weights"] for result in results}
        assert len({result["stages"][zero]["weights"] for result in results for zero in result["stages"]}) == 1
        expected = "Open MPI" if launcher == "mpirun" else "torch.distributed"
        assert all(expected in result["plain"]["transport"] for result in results)
    assert len(weights) == 1


def test_trains_as_distributed_data_parallel_does(tmp_path):
    results = started("torchrun", 2, tmp_path, "beside_ddp")
    for result in results:
        found = result["beside_ddp"]
        assert found["worst"] < 2e-4
        for mine, theirs in found["losses"]:
            assert mine == pytest.approx(theirs, rel=1e-4)
        kind, text = found["wrapped"]
        assert kind == "ValueError" and "model.module" in text
    for what in ("weights", "buffers"):
        assert results[0]["beside_ddp"][what] == results[1]["beside_ddp"][what]


def one_by_one(size: int, folder: Path, scenario: str) -> list[subprocess.Popen]:
    """Processes that nobody ends when one of them has died, as torchrun and mpirun would."""
    port = str(free_port())
    return [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(folder), scenario],
            env=environment(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip


FAILURES = {
    "killed": ["rank 1 (", "has died"],
    "raises": ["rank 1 (", "ValueError: the loader has no more"],
    "fewer": ["rank 1 (", "has ended", "as many steps"],
    "hangs": ["rank 1 (", "has not answered for 2 s (timeout=)"],
}


@pytest.mark.parametrize("failure", FAILURES)
def test_one_that_fails_ends_the_others_and_is_named(tmp_path, failure):
    processes = one_by_one(3, tmp_path, failure)
    try:
        for rank in (0, 2):
            output, _ = processes[rank].communicate(timeout=90)
            assert processes[rank].returncode == 3, output
            assert "terminate called" not in output and "Fatal" not in output
            failed = json.loads((tmp_path / f"{rank}.json").read_text())[failure]["failed"]
            for part in FAILURES[failure]:
                assert part in failed
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_killed_rank_ends_all(tmp_path, launcher):
    refuse_without(launcher)
    begin = time.monotonic()
    done = subprocess.run([*command(launcher, 2), SCRIPT, str(tmp_path), "killed"], env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0
    assert time.monotonic() - begin < 60


def test_a_process_alone_has_no_ranks():
    assert plimsoll.rank() == 0 and plimsoll.world_size() == 1
    with pytest.raises(ValueError, match="process_group='gloo'"):
        plimsoll.compile(network(), torch.optim.SGD(network().parameters()), loss=lambda o, b: F.cross_entropy(o, b[1]), example=whole_batch(0, 1), process_group="gloo")


def test_fits_answers_for_each_of_several_ranks():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    batch = torch.randn(4, 1024), torch.randint(0, 10, (4,))
    least = {}
    for ranks, zero in ((1, None), (4, 0), (4, 1), (4, 3), (4, None)):
        least[ranks, zero] = plimsoll.fits(model, adamw(model), loss=cross_entropy, example=batch, memory="64MiB", ranks=ranks, zero=zero)["minimum_bytes"]
    assert least[4, 3] < least[4, 1] < least[4, 0]
    assert least[4, None] <= least[4, 3]
    with pytest.raises(ValueError, match="ranks=0"):
        plimsoll.fits(model, adamw(model), loss=cross_entropy, example=batch, memory="64MiB", ranks=0)

"""What test_ranks.py has several processes do: ``python ranks_script.py FOLDER SCENARIO...``; each writes FOLDER/RANK.json."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import plimsoll
import plimsoll.ranks

torch.set_num_threads(1)
LIMITS = dict(threads=1, costs="estimated", progress=False, exact=True, timeout=60, device=os.environ.get("PLIMSOLL_TEST_DEVICE", "cpu"))
RANK, SIZE = plimsoll.rank(), plimsoll.world_size()
PART = 4  # samples of each rank


def network(norm: bool = False) -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=not norm), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    if norm:
        layers.insert(1, nn.BatchNorm2d(8))
    return nn.Sequential(*layers, nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def whole_batch(number: int, size: int, part: int = PART):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size * part, 3, 8, 8, generator=generator), torch.randint(0, 10, (size * part,), generator=generator)


def batch(number: int, part: int = PART):
    """This rank's part."""
    return tuple(tensor[RANK * part : (RANK + 1) * part] for tensor in whole_batch(number, SIZE, part))


def cross_entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.05)


def compiled(model, optimizer=None, **options):
    return plimsoll.compile(model, optimizer or adamw(model), loss=cross_entropy, example=options.pop("example", batch(0)), **{"memory": "4MiB", **LIMITS, **options})


def hash_of(tensors) -> str:
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def weights(model) -> str:
    return hash_of(model.parameters())


def error_of(run) -> list[str]:
    try:
        run()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing was raised", ""]


def plain(folder: Path):
    torch.manual_seed(1 + RANK)  # what rank 0 draws counts
    model = network()
    step = compiled(model)
    losses = [step(batch(i)) for i in range(4)]
    if RANK == 0:
        torch.save(model.state_dict(), folder / "plain.pt")
    return {"losses": losses, "weights": weights(model), "transport": step._ranks.transport, "device": step.plan["device"]}


def stages(folder: Path):
    """Every stage of ZeRO, to the bit; the whole states on every rank."""
    result = {}
    for zero in (0, 1, 2, 3, None):
        torch.manual_seed(1)
        model = network()
        optimizer = adamw(model)
        step = compiled(model, optimizer, zero=zero, accumulate=2, clip_grad_norm=1.0)
        losses = [step(batch(i)) for i in range(4)]
        step.sync()
        states = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
        result[str(zero)] = {"weights": weights(model), "states": hash_of(states), "losses": losses, "divided": sorted(step._divided)}
    return result


def formulas(folder: Path):
    """Optimizers that are updated by formulas, divided and not; NAdam's and SGD's begin with what PyTorch had made on rank 0."""
    kinds = {
        "adadelta": lambda p: torch.optim.Adadelta(p, eps=1e-4, weight_decay=0.01),
        "nadam": lambda p: torch.optim.NAdam(p, lr=0.003, weight_decay=0.01),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, dampening=0.3),
    }
    found = {}
    for name, kind in kinds.items():
        for zero in (0, 1, 2, 3) if name == "adadelta" else (0, 3):
            torch.manual_seed(1)
            model = network()
            optimizer = kind(model.parameters())
            if RANK == 0 and name != "adadelta":
                cross_entropy(model(whole_batch(9, 2)[0]), whole_batch(9, 2)).backward()
                optimizer.step()
            step = compiled(model, optimizer, zero=zero, accumulate=2, clip_grad_norm=1.0)
            losses = [step(batch(i)) for i in range(6)]
            step.sync()
            states = [value for state in optimizer.state_dict()["state"].values() for _, value in sorted(state.items())]
            found.setdefault(name, []).append({"losses": losses, "weights": weights(model), "states": hash_of(states)})
            if RANK == 0 and zero == 0:
                torch.save([model.state_dict(), optimizer.state_dict()], folder / f"{name}.pt")
            del step
    return found


def short_batches(folder: Path):
    torch.manual_seed(1)
    model = network()
    step = compiled(model)
    losses = [step(batch(i, size)) for i, size in enumerate((4, 3, 4, 1))]
    if RANK == 0:
        torch.save(model.state_dict(), folder / "short.pt")
    return {"losses": losses, "weights": weights(model)}


def variables(folder: Path):
    """What the optimizer has beside the model's parameters is rank 0's as well. Batches have more sizes than there are plans at a time."""
    torch.manual_seed(1 + RANK)
    model, criterion, scale = network(), nn.Linear(10, 10), nn.Parameter(torch.rand(()))
    optimizer = torch.optim.AdamW([*model.parameters(), scale, *criterion.parameters()], lr=0.003)
    step = plimsoll.compile(
        model, optimizer, loss=lambda output, batch: F.cross_entropy(criterion(output) * scale, batch[1]), example=batch(0, 18), **{"memory": "4MiB", **LIMITS}
    )  # fmt: skip
    losses = [step(batch(i, size)) for i, size in enumerate([*range(1, 19), 2, 18])]
    return {"losses": losses, "weights": hash_of([*model.parameters(), scale, *criterion.parameters()]), "plans": len(step._shapes)}


def differences(folder: Path):
    """What the ranks must have alike is told, on all of them, and they go on."""
    torch.manual_seed(1)
    model = network()
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(192, 8 + RANK), nn.Linear(8 + RANK, 10))
    result = {
        "module": error_of(lambda: compiled(narrow)),
        "example": error_of(lambda: compiled(model, example=batch(0, 4 + RANK))),
        "option": error_of(lambda: compiled(model, zero=RANK)),
    }
    optimizer = adamw(model)
    step = compiled(model, optimizer)
    step(batch(0))
    result["shape"] = error_of(lambda: step(batch(1, 4 - RANK)))
    optimizer.param_groups[0]["lr"] = 0.001 * (1 + RANK)
    result["rate"] = error_of(lambda: step(batch(1)))
    optimizer.param_groups[0]["lr"] = 0.001
    if RANK == 1:
        model.load_state_dict(model.state_dict())
    result["loaded"] = error_of(lambda: step(batch(1)))
    x, y = batch(1)
    result["label"] = error_of(lambda: step((x, y + 10))) if RANK == 1 else ["IndexError", ""]  # rank 0 waits
    step(batch(1))
    result["weights"] = weights(model)
    return result


class Unknown(nn.Module):
    """With an operator that the core has not."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(192, 64), nn.Linear(8, 10)

    def forward(self, x):
        return self.outer(torch.linalg.svdvals(self.inner(x.flatten(1)).reshape(-1, 8, 8)))


def refusals(folder: Path):
    result = {"unsupported": error_of(lambda: compiled(Unknown()))}
    torch.manual_seed(1)
    try:
        compiled(network(), memory="64KiB")
    except plimsoll.Infeasible as error:
        result["infeasible"] = [str(error), error.minimum_bytes]
    result["memory of one"] = error_of(lambda: compiled(network(), memory="4MiB" if RANK == 0 else "64KiB"))
    result["option"] = error_of(lambda: compiled(network(), policy="none"))
    result["stage"] = error_of(lambda: compiled(network(), zero=4))
    model = network()
    alone = compiled(model, process_group=False)
    result["alone"] = [alone(batch(0)) for _ in range(1 + RANK)]  # without waiting for anybody
    return result


def fallback(folder: Path):
    torch.manual_seed(1)
    model = Unknown()
    step = compiled(model, fallback="torch")
    losses = [step(batch(i)) for i in range(3)]
    if RANK == 0:
        torch.save(model.state_dict(), folder / "fallback.pt")
    return {"losses": losses, "weights": weights(model)}


def files(folder: Path):
    """A step that goes on from a file; one whose states are divided, and one that has them whole."""
    torch.manual_seed(1)
    model = network()
    step = compiled(model, zero=2, accumulate=2)
    for i in range(2):
        step(batch(i))
    path = folder / f"step{SIZE}.pt"
    step.save(path)
    for i in range(2, 4):
        step(batch(i))
    expected = weights(model)
    step.sync()
    del step
    found = []
    for zero in (0, 3):
        other = network()
        again = compiled(other, zero=zero, accumulate=2)
        again.load(path)
        for i in range(2, 4):
            again(batch(i))
        again.sync()
        found.append(weights(other))
    return {"expected": expected, "found": found}


def divided_reads(folder: Path):
    """One rank alone cannot read what is divided: it is told, not waited for."""
    torch.manual_seed(1)
    model = network()
    optimizer = adamw(model)
    step = compiled(model, optimizer, zero=1)
    step(batch(0))
    model.state_dict()  # whole everywhere, so that every rank may read it alone
    if RANK == 0:
        model.state_dict()
    told = error_of((lambda: optimizer.state_dict()) if RANK == 0 else (lambda: step(batch(1))))
    step(batch(1))
    return {"told": told, "states": len(optimizer.state_dict()["state"]), "evaluated": step.evaluate(batch(5))}


def evaluation(folder: Path):
    """With whole states one rank may evaluate alone, also in more memory."""
    torch.manual_seed(1)
    model = network()
    step = compiled(model, memory="32MiB")
    step(batch(0))
    losses = [step.evaluate(whole_batch(7, 40 * SIZE))] if RANK == 0 else []
    step(batch(1))
    step(batch(2, 8))
    return {"losses": losses, "weights": weights(model), "grown": step._core.arena_bytes}


def norms(folder: Path):
    """BatchNorm by the statistics of all ranks."""
    torch.manual_seed(1)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(network(norm=True))
    step = compiled(model)
    losses = [step(batch(i)) for i in range(3)]
    if RANK == 0:
        torch.save(model.state_dict(), folder / "norms.pt")
    mixed = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SyncBatchNorm(8), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return {"losses": losses, "weights": weights(model), "buffers": hash_of(model.buffers()), "mixed": error_of(lambda: compiled(mixed))}


def beside_ddp(folder: Path):
    """The same training by DistributedDataParallel, with BatchNorm of each rank's part, in a group that the script has made."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(1 + RANK)
    ours, theirs = network(norm=True), network(norm=True)
    with torch.no_grad():
        for a, b in zip(theirs.state_dict().values(), ours.state_dict().values()):
            a.copy_(b)
    step = compiled(ours)
    parallel = nn.parallel.DistributedDataParallel(theirs)
    optimizer = adamw(parallel)
    losses = []
    for i in range(4):
        mine = step(batch(i))
        optimizer.zero_grad()
        x, y = batch(i)
        loss = F.cross_entropy(parallel(x), y)
        loss.backward()
        optimizer.step()
        losses.append([mine, loss.item()])
    # DistributedDataParallel gives rank 0's buffers to all before the next forward pass, and a step of ours at its end.
    expected = theirs.state_dict() if RANK == 0 else {**theirs.state_dict(), **dict(ours.named_buffers())}
    worst = max(float((value - expected[name]).abs().max()) for name, value in ours.state_dict().items())
    buffers = hash_of(ours.buffers())
    wrapped = error_of(lambda: compiled(parallel))
    dist.destroy_process_group()  # ours is another
    step(batch(4))
    return {"losses": losses, "worst": worst, "weights": weights(ours), "buffers": buffers, "wrapped": wrapped}


def killed(folder: Path):
    torch.manual_seed(1)
    step = compiled(network())
    for i in range(1000):
        if i == 3 and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step(batch(i))


def raises(folder: Path):
    torch.manual_seed(1)
    step = compiled(network())
    for i in range(1000):
        if i == 3 and RANK == 1:
            raise ValueError("the loader has no more")
        step(batch(i))


def fewer(folder: Path):
    torch.manual_seed(1)
    step = compiled(network())
    for i in range(3 if RANK == 1 else 1000):
        step(batch(i))


def hangs(folder: Path):
    torch.manual_seed(1)
    step = compiled(network(), timeout=2)
    for i in range(1000):
        if i == 3 and RANK == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        step(batch(i))


def main() -> None:
    folder = Path(sys.argv[1])
    results = {}
    for name in sys.argv[2:]:
        try:
            results[name] = globals()[name](folder)
        except plimsoll.RankFailed as error:
            results[name] = {"failed": str(error)}
        (folder / f"{RANK}.json").write_text(json.dumps(results))
        if name in ("killed", "raises", "fewer", "hangs") and "failed" in (results[name] or {}):
            sys.exit(3)


if __name__ == "__main__":
    main()

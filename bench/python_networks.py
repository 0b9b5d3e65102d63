#!/usr/bin/env python3
"""Trains every network of a Python file through the package, and writes what came of each: a row a network, as JSON.

  bench/python_networks.py                                    the networks of bench/pytorch_zoo.py, into runs/python_networks.json
  bench/python_networks.py my_networks.py --only resnet,gpt   some of a file of one's own
  bench/python_networks.py --dropout                          with dropout: nothing to compare, since PyTorch draws other masks

The file defines NETS = {name: (family, build)}, and build() gives a module that returns its loss, its arguments and its keywords.
Of each network, in a process of its own: a few steps in eager PyTorch; the same steps in plenty of memory; in 60 % of what these
took, with host memory beside it; and in the least memory that an Infeasible answer names, without. Compared are the loss and all gradients
of the first step, with PyTorch's in double precision: "gradient_error" is the norm of the difference over the gradient's norm, all
parameters together, beside what PyTorch's own fp32 is off by; "worst_parameter" is the one whose gradient is off by most against PyTorch's own error of it.
(Later losses drift apart in networks that magnify rounding, as batch norm over two samples does: "drift" tells by how much at most, over the first 20
steps, "late_drift" of the mean of the last 20, where there are 40 or more. With --steps 20 or more stands beside them, as "eager_drift" and
"eager_late_drift", how far PyTorch's own single precision is from its double precision.) A row's "state" is

  trains      all ran, the first loss is PyTorch's, the gradients no worse than twice PyTorch's own, and less memory gave the same bits
  differs     all ran, and something is not the same: "loss_error", "gradient_error", "same_bits", "same_bits_at_60_percent"
  refused     plimsoll.Unsupported or plimsoll.Infeasible, which "said" what and where
  fails       anything else: "said", after "stage"

Run it with the Python that has PyTorch and the package; the zoo wants torchvision, timm and transformers as well.
"""
import argparse
import copy
import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOSS_TOLERANCE = 1e-5  # of the first step's loss, relative
GRADIENT_FACTOR, GRADIENT_FLOOR = 2.0, 1e-5  # what PyTorch's own error is multiplied by, and below which nothing is judged
LAST_STEPS = 20  # of a long training, whose mean losses are compared
WHOLE_FLOOR = 1e-7  # the same for one parameter, of all gradients together: biases before a batch norm have nothing but rounding


def read_networks(path):
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NETS


def without_dropout(model):
    """Sets every rate of dropout to zero: of the layers themselves, and where a model keeps them for its functions."""
    for module in model.modules():
        is_layer = "Drop" in type(module).__name__ or "Stochastic" in type(module).__name__
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or (is_layer and name == "p")):
                setattr(module, name, 0.0)
    return model


def run_one(options, name, row):
    """Fills the row of one network as far as it comes; row["stage"] says where it is."""
    import torch

    torch.set_num_threads(options.threads)
    family, build = read_networks(options.file)[name]
    row["stage"] = "build"
    torch.manual_seed(options.seed)
    model, args, keywords = build()
    model = model.train() if options.dropout else without_dropout(model.train())
    row |= {"family": family, "parameters": sum(p.numel() for p in model.parameters())}
    start = copy.deepcopy(model.state_dict())

    def optimizer():
        return torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)

    row["stage"] = "eager"
    if not options.dropout:
        single = gradients_of(copy.deepcopy(model), args, keywords)
        try:
            exact = gradients_of(copy.deepcopy(model).double(), *doubled((args, keywords)))
        except RuntimeError as error:  # an operator that PyTorch has in single precision alone
            row["judged_by_fp32"] = str(error)
            exact = {name: g.double() for name, g in single.items()}
        row["eager_gradient_error"] = difference(single, exact)
        row["eager_loss"], row["eager_step_ms"] = eager(model, optimizer(), args, keywords, options.steps)
        if options.steps >= LAST_STEPS and "judged_by_fp32" not in row:
            model.load_state_dict(start)
            double = copy.deepcopy(model).double()
            sgd = torch.optim.SGD(double.parameters(), lr=options.lr, momentum=0.9)
            add_drifts(row, "eager_", row["eager_loss"], eager(double, sgd, *doubled((args, keywords)), options.steps)[0])

    import plimsoll

    def compiled(memory, **more):
        model.load_state_dict(start)
        return plimsoll.compile(
            model, used, example=(args, keywords), call=lambda m, batch: m(*batch[0], **batch[1]), memory=memory, exact=True,
            threads=options.threads, costs=options.costs, progress=False, fallback=options.fallback, **more,
        )  # fmt: skip

    row["stage"] = "compile"
    began, used = time.process_time(), optimizer()
    step = compiled(options.memory)
    row["compile_cpu_s"] = round(time.process_time() - began, 2)
    row["stage"] = "run"
    first = step((args, keywords))
    if not options.dropout:
        step.sync()  # after one step without weight decay, momentum is the gradient
        ours = {n: used.state[p]["momentum_buffer"] for n, p in model.named_parameters() if p in used.state}
        row["gradient_error"] = difference(ours, exact)
        row["worst_parameter"], row["worst_parameter_factor"] = worst_parameter(ours, single, exact)
        row["loss_error"] = abs(first - row["eager_loss"][0]) / max(abs(first), 1e-3)
        del exact, single
    rest, row["step_ms"] = steps_of(step, (args, keywords), options.steps - 1)
    row["loss"] = [first, *rest]
    told = step.plan
    row |= {"peak_bytes": told["peak_bytes"], "measured_peak_bytes": told["measured_peak_bytes"]}
    if "eager_loss" in row:
        add_drifts(row, "", row["loss"], row["eager_loss"])
    del step

    row["stage"] = "60 % with host memory"
    used = optimizer()
    step = compiled(int(0.6 * row["peak_bytes"]), host_memory="16GiB")
    less, row["step_ms_at_60_percent"] = steps_of(step, (args, keywords), options.steps)
    row["same_bits_at_60_percent"] = less == row["loss"]
    del step

    row["stage"] = "least memory"
    used = optimizer()
    try:
        compiled("4KiB")
    except plimsoll.Infeasible as answer:
        row |= {"minimum_bytes": answer.minimum_bytes, "proven": answer.proven}
    step = compiled(row["minimum_bytes"])
    row["stage"] = "run in the least memory"
    tight, row["step_ms_at_minimum"] = steps_of(step, (args, keywords), options.steps)
    row["measured_peak_at_minimum"] = step.plan["measured_peak_bytes"]
    row["same_bits"] = tight == row["loss"]
    row["state"] = "trains" if row["same_bits"] and row["same_bits_at_60_percent"] and is_pytorchs(row) else "differs"
    del row["stage"]


def add_drifts(row, prefix, found, expected):
    """How far losses are from others: at most, over the first steps, and in the mean of the last."""
    row[f"{prefix}drift"] = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(found[:LAST_STEPS], expected))
    if len(found) >= 2 * LAST_STEPS:
        a, b = (sum(losses[-LAST_STEPS:]) / LAST_STEPS for losses in (found, expected))
        row[f"{prefix}late_drift"] = abs(a - b) / max(abs(b), 1e-3)


def is_pytorchs(row):
    if "eager_loss" not in row:
        return True
    allowed = max(GRADIENT_FLOOR, GRADIENT_FACTOR * row["eager_gradient_error"])
    return row["loss_error"] <= LOSS_TOLERANCE and row["gradient_error"] <= allowed


def doubled(values):
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda x: x.double() if hasattr(x, "is_floating_point") and x.is_floating_point() else x, values)


def gradients_of(model, args, keywords):
    model(*args, **keywords).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def difference(found, exact):
    """The norm of the difference over the norm, of all gradients together; what is not found counts whole."""
    off = sum(float((found[name].double().reshape(g.shape) - g).square().sum() if name in found else g.square().sum()) for name, g in exact.items())
    return (off / sum(float(g.square().sum()) for g in exact.values())) ** 0.5


def worst_parameter(found, single, exact):
    """The parameter whose gradient is off by the largest multiple of PyTorch's own error, of errors above the floor; and that multiple."""
    def off(values, name):
        return float((values[name].double().reshape(exact[name].shape) - exact[name]).norm())

    whole = sum(float(g.square().sum()) for g in exact.values()) ** 0.5
    floor = {name: GRADIENT_FLOOR * float(g.norm()) + WHOLE_FLOOR * whole for name, g in exact.items()}
    factors = {name: off(found, name) / max(off(single, name), floor[name], 1e-30) for name in exact if name in found}
    name = max(factors, key=factors.get)
    return name, round(factors[name], 2)


def eager(model, optimizer, args, keywords, count):
    losses, times = [], []
    for _ in range(count):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(*args, **keywords)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append((time.perf_counter() - began) * 1e3)
    return losses, round(min(times), 2)


def steps_of(step, batch, count):
    losses, times = [], []
    for _ in range(count):
        began = time.perf_counter()
        losses.append(step(batch))
        times.append((time.perf_counter() - began) * 1e3)
    return losses, round(min(times), 2)


def one(options):
    """The process of one network: prints its row."""
    row, began = {"network": options.one}, time.process_time()
    try:
        run_one(options, options.one, row)
    except Exception as error:
        import plimsoll

        row["state"] = "refused" if isinstance(error, (plimsoll.Unsupported, plimsoll.Infeasible)) else "fails"
        row["said"] = f"{type(error).__name__}: {error}"
    row["cpu_s"] = round(time.process_time() - began, 1)
    row["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(row), flush=True)


def row_of(options, name, passed_on):
    """Runs the process of one network, in the time and the address space that it is given."""
    command = [sys.executable, "-W", "ignore", __file__, *passed_on, "--one", name]
    limit = options.address_space_gib << 30
    try:
        done = subprocess.run(command, timeout=options.seconds, text=True, capture_output=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"network": name, "state": "fails", "said": f"no end after {options.seconds} s"}
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines or not lines[-1].startswith("{"):
        tail = (done.stderr.strip().splitlines() or [""])[-1]
        return {"network": name, "state": "fails", "said": f"its process ended with {done.returncode}: {tail[:500]}"}
    return json.loads(lines[-1])


def judged(options, name):
    """The row of a network. One whose gradients are off is tried with two more seeds, and the row in the middle counts: where a unit's input
    to a ReLU is zero but for rounding, it is on in one arithmetic and off in the other, and that is nobody's error."""
    rows = [row_of(options, name, [*sys.argv[1:], "--seed", str(options.seed)])]
    if rows[0]["state"] == "differs" and not is_pytorchs(rows[0]):
        rows += [row_of(options, name, [*sys.argv[1:], "--seed", str(options.seed + i)]) for i in (1, 2)]
    if any(row["state"] not in ("trains", "differs") for row in rows):
        return rows[0]
    middle = sorted(rows, key=lambda row: row.get("gradient_error", 0) / max(row.get("eager_gradient_error", 0), GRADIENT_FLOOR))[len(rows) // 2]
    return middle | {"seeds": len(rows)}


def line_of(row):
    if row["state"] not in ("trains", "differs"):
        where = f" in stage '{row['stage']}'" if "stage" in row else ""
        return f"{row['network']:20} {row['state']}{where}: {row['said']}"
    error = "with dropout"
    if "loss_error" in row:
        error = f"gradients off by {row['gradient_error']:.0e} (PyTorch's by {row['eager_gradient_error']:.0e}), loss by {row['loss_error']:.0e}"
    sizes = f"{row['peak_bytes'] / 2**20:.1f} MiB, at least {row['minimum_bytes'] / 2**20:.1f}"
    same = row["same_bits"] and row["same_bits_at_60_percent"]
    return f"{row['network']:20} {row['state']}: {error}; {sizes}; {'' if same else 'NOT '}the same bits"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=ROOT / "bench" / "pytorch_zoo.py")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "python_networks.json")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--dropout", action="store_true", help="leave dropout as it is, and compare no losses with PyTorch's")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", default="14GiB", help="what is plenty")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--costs", default="estimated", choices=("estimated", "measured"))
    parser.add_argument("--fallback", choices=("torch",), help="let PyTorch compute what has no op")
    parser.add_argument("--seconds", type=float, default=900, help="for one network")
    parser.add_argument("--address-space-gib", type=int, default=40, help="of the process of one network")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.file = options.file.resolve()
    if options.one:
        return one(options)
    names = options.only.split(",") if options.only else list(read_networks(options.file))
    rows = []
    for name in names:
        rows.append(judged(options, name))
        print(line_of(rows[-1]), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"file": options.file.name, "steps": options.steps, "rows": rows}, indent=1) + "\n")
    trained = sum(row["state"] == "trains" for row in rows)
    print(f"{trained} of {len(rows)} train; rows in {options.out}")
    return 0 if trained == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

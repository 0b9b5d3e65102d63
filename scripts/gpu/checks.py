"""The checks, in order of worth: each a function of the bench and an item, which tells rows. CHECKS, at the end, is the table of them."""
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import tempfile
import typing

from gpu.bench import moved_bytes, overlap, reason, theirs
from gpu.machine import ROOT

GIB = 1 << 30
# By these rates rounding stays rounding for the few steps that are compared: Adam's first updates go by the signs of gradients.
SGD, ADAM = ("--optimizer", "sgd", "--lr", "0.01"), ("--optimizer", "adam", "--lr", "0.001")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large the networks are that are run."""
    batches: dict  # by network, the one of most worth first
    largest: dict  # SuperNeurons' largest batches in 12 GB (Table 5)
    heaps: dict    # (batch, the paper's speed-up) of Table 2
    steps: tuple   # (network, batch, flags)
    one: str       # the network of checks that run a single one
    exact: tuple   # (batch, a share of its memory, a smaller share)
    deep: tuple    # (network, its N, batch): more layers than SuperNeurons' deepest has
    own: dict      # batch of each network whose ops our own kernels are timed on
    modules: tuple = ("gpt2 8 tf32", "gpt2 8", "vit-b16 32 tf32", "bert 32 tf32")  # name, batch, precision
    memory: str = "12GiB"
    host: str = "96GiB"
    searched: int = 4  # times the paper's batch, or the N of `deep`, at most


# Batches twice those that TensorFlow held in 12 GB (SuperNeurons, Table 5), so that 12 GiB bind.
FULL = Scale(
    batches={"resnet50": 256, "vgg16": 160, "inception4": 128, "alexnet": 2816, "resnet101": 160, "resnet152": 96},
    largest={"resnet50": 384, "vgg16": 224, "inception4": 240, "alexnet": 1792, "resnet101": 256, "resnet152": 176},
    heaps={"alexnet": (128, 1.12), "vgg16": (16, 1.19), "inception4": (16, 1.48), "resnet50": (16, 1.53), "resnet101": (16, 1.68),
           "resnet152": (16, 1.77)},
    steps=(("lenet", 32, SGD), ("alexnet", 8, SGD), ("resnet20", 16, SGD), ("resnet20", 16, ADAM), ("dcgan", 16, SGD)),
    one="resnet50", exact=(16, 0.6, 0.4), deep=("resnet:6-32-N-6", 788, 16), own={"resnet50": 256, "gpt2": 8})
TINY = Scale(batches={"lenet": 8}, largest={"lenet": 4}, heaps={"lenet": (4, 1)}, steps=(("lenet", 8, SGD),), one="lenet", exact=(16, 0.6, 0.5),
             deep=("mlp:hidden=N", 16, 4), own={"lenet": 8}, memory="1MiB", host="64MiB", searched=2)


# Right.

def link(bench, _):
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        done = bench.run(bench.folder / "plimsoll", "plan", "lenet", "--batch", 1, "--policy", "vdnn:layers=all", "--device", bench.device,
                         "--host-memory", "1GiB", "--save", plan)  # a plan tells of what it uses
        host = next((t for t in json.loads(plan.read_text())["plan"]["tiers"] if t["name"] == "host"), None) if done.code == 0 else None
    if host is None:
        return bench.row("to the host and back", reason(done) if done.code else "the plan names no host memory", False)
    out, back = host["out_gb_per_s"], host["in_gb_per_s"]
    bench.row("to the host and back", f"{out:.1f} GB/s, {back:.1f} GB/s", min(out, back) > 0, out_gb_per_s=out, in_gb_per_s=back)


def tests(bench, program, pattern, processes=1):
    """A test program's tests, dealt out among processes. None passed is no pass."""
    def shard(index):
        environment = {**bench.environment, "GTEST_TOTAL_SHARDS": str(processes), "GTEST_SHARD_INDEX": str(index)}
        return bench.run(bench.folder / program, f"--gtest_filter={pattern}", "--gtest_brief=1", most=300, environment=environment)

    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        runs = list(pool.map(shard, range(processes)))
    passed = sum(int(n) for run in runs for n in re.findall(r"\[  PASSED  \] (\d+) test", run.out))
    failed = sorted({name for run in runs for name in re.findall(r"\[  FAILED  \] ([^\s,]+\.[^\s,]+)", run.out)})
    broken = [run.errors[-1] if run.errors else f"exit code {run.code}" for run in runs if run.code not in (0, 1)]
    text = f"{passed} passed" + (f", {len(failed)} failed: {' '.join(failed[:4])}" if failed else "") + "".join(f", {b}" for b in broken[:1])
    bench.row(program, text, passed > 0 and all(run.code == 0 for run in runs), passed=passed, failed=failed)


def conformance(bench, program):
    device = bench.device.replace(":", "_")
    pattern = f"*/{device}_Add:*/{device}_tf32_FullyConnected" if bench.options.tiny else f"*/{device}*"
    tests(bench, program, pattern, processes=max(1, min(8, os.cpu_count() // 2)))


def gradients(bench, program):
    tests(bench, program, "BiasGradient.*" if bench.options.tiny else "*Gradient*:*FiniteDifferences*")


def steps(bench, item):
    model, batch, flags = next(s for s in bench.scale.steps if named(*s) == item)
    words = ("--exact", "--costs", "estimated", *flags)
    runs = [bench.train(model, *words, device=device, steps=4, batch=batch) for device in ("cpu", bench.device)]
    if error := next((run["error"] for run in runs if "error" in run), None):
        return bench.row(item, error, False)
    cpu, gpu = ([step["loss"] for step in run["steps"]] for run in runs)
    if not cpu or len(cpu) != len(gpu) or None in cpu + gpu:  # null in JSON: not a number
        return bench.row(item, f"losses {cpu} and {gpu}", False)
    worst = max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(cpu, gpu))
    bench.row(item, f"losses differ by {worst:.1e} at most", worst < 1e-3, difference=worst)


def named(model, _, flags):
    return f"{model} {flags[1]}"


def exact(bench, model):
    """Whatever the policy, the memory and where tensors wait: the same weights. What does not fit is no fault, but `auto` beside host memory
    has to fit, and four of them at least."""
    (batch, less, least), words = bench.scale.exact, ("--exact", "--costs", "estimated")
    free = bench.train(model, *words, batch=batch, steps=3)
    if "error" in free:
        return bench.row(model, free["error"], False)

    def judge(what, run):
        same = run["done"]["weights_sha256"] == free["done"]["weights_sha256"]
        measured, predicted = run["done"]["peak_bytes"], run["plan"]["peak_bytes"]
        peak = measured <= predicted  # less where a plan holds bytes longer than they are used
        text = ("same weights" if same else "OTHER WEIGHTS") + (", peak as predicted" if peak else ", OTHER PEAK")
        bench.row(what, text, same and peak, peak_bytes=run["done"]["peak_bytes"])

    judge(f"{model} with all memory", free)
    host, disk = ("--host-memory", bench.scale.host), ("--spill", tempfile.gettempdir())
    runs = [("liveness", 1, ()), ("auto", less, host), ("auto", least, host), ("superneurons", less, host), ("vdnn", 0.8, host), ("auto", least, ()),
            ("auto", less, disk)]
    if "cuda:1" in bench.devices() and bench.device != "cuda:1":
        runs.append(("auto", least, ("--peer", "cuda:1")))
    ran = 0
    for policy, share, tier in runs:
        what = f"{policy} at {share:.0%} {' '.join(tier[:1])}".strip()
        run = bench.train(model, *words, "--policy", policy, "--memory", int(free["plan"]["arena_bytes"] * share), *tier, batch=batch, steps=3)
        if "error" not in run:
            judge(what, run)
            ran += 1
        else:
            must_fit = policy == "auto" and tier == host
            bench.row(what, run["error"], None if run["code"] == 3 and not must_fit else False)
    bench.row("of these", f"{ran} fit", ran >= 4)
    rounded = bench.train(model, *words, batch=batch, steps=3, device=bench.device + "+tf32")
    bench.row("a device with TF32", rounded["error"], False) if "error" in rounded else judge("a device with TF32", rounded)


def ranks(bench, model):
    """Two GPUs as ranks, through NCCL: the weights are the same in every division, and what the second brings."""
    there = [name for name, device in bench.devices().items() if name.startswith("cuda:") and device["available"]]
    lacks = (f"there {'is 1 GPU' if len(there) == 1 else 'are no GPUs'}" if len(there) < 2 else "there is no mpirun" if shutil.which("mpirun") is None
             else "this build has no MPI" if not (bench.folder / "libplimsoll_mpi.so").exists() else None)
    if lacks:
        return bench.row("2 GPUs", f"left out: {lacks}")
    environment = {**bench.environment, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                   "OMPI_MCA_hwloc_base_binding_policy": "none"}

    def both(*words, batch, steps):
        lines, done = bench.train_lines("mpirun", "-n", 2, model=model, words=words, batch=batch, steps=steps, device="cuda", environment=environment)
        if done.code != 0 or "done" not in lines:
            bench.row(f"{model} {batch} {' '.join(map(str, words))}"[:60], reason(done)[:120], False)
            return None
        return lines

    batch, words = bench.scale.exact[0], ("--exact", "--costs", "estimated")
    free = both(*words, "--zero", 0, batch=batch, steps=3)
    for stage in (1, 2, 3) if free else ():
        divided = both(*words, "--zero", stage, batch=batch, steps=3)
        if divided:
            same = divided["done"]["weights_sha256"] == free["done"]["weights_sha256"]
            bench.row(f"--zero {stage}", "same weights" if same else "OTHER WEIGHTS", same)
    one = bench.rate(model, batch=bench.scale.batches.get(model, batch))
    two = both(batch=2 * bench.scale.batches.get(model, batch), steps=12)
    if one and two:
        rate = 2 * bench.scale.batches.get(model, batch) / two["done"]["step_time_ms"] * 1000
        bench.row("2 GPUs, each its whole batch", f"{rate:.1f} images/s, {rate / one['images_per_second']:.2f}x of one",
                  images_per_second=rate, speed_up=rate / one["images_per_second"])


def failure(bench, _):
    words = ("--costs", "estimated", "--policy", "baseline")
    for what, memory, batch, code in (("a budget that is too small", "1MiB", 16, 3), ("an arena that no GPU holds", "64TiB", 20000, 4)):
        run = bench.train(FULL.one, "--memory", memory, *words, batch=batch, steps=1)
        bench.row(what, f"exit code {run['code']}: {run['error']}"[:120] if "error" in run else "it ran", run.get("code") == code)


# Fast, and in little memory.

def speed(bench, model):
    batch = bench.scale.batches[model]
    ours = bench.rate(model, batch=batch)
    if ours is None:
        return
    bench.row(f"{model} {batch}", f"{ours['images_per_second']:.1f} images/s ({ours['layout']}"
              + ("" if ours["captured"] else ", not captured") + f"), {ours['wall_images_per_second']:.1f} with their data", **ours)
    beside(bench, model, ours, bench.torch(model, batch))


def beside(bench, what, ours, torch):
    """PyTorch's row, behind ours, which is kept where there is no time left for PyTorch."""
    if "torch_error" in torch:
        bench.row(f"{what}, PyTorch", torch["torch_error"], **torch)
    elif torch:
        ratio = ours["images_per_second"] / torch["torch_images_per_second"]
        bench.row(f"{what}, PyTorch", f"{torch['torch_images_per_second']:.1f} images/s ({torch['torch_layout']}): Plimsoll {ratio:.2f}x",
                  ratio >= 1 if not bench.options.tiny else None, **torch)


def known_rate(bench, model):
    """With all memory: from `speed`, or measured now."""
    known = bench.report.values("speed", model).get("images_per_second")
    if known is None:
        ours = bench.rate(model, batch=bench.scale.batches[model], what=f"{model} with all memory")
        known = ours and ours["images_per_second"]
    return known


def known_layouts(bench, model):
    """PyTorch's faster one, where that is known."""
    layout = bench.report.values("speed", model).get("torch_layout")
    return {"layouts": (layout,)} if layout else {}


def within(bench):
    return "--memory", bench.scale.memory, "--host-memory", bench.scale.host


def tight(bench, model):
    batch, full = bench.scale.batches[model], known_rate(bench, model)
    ours = full and bench.rate(model, *within(bench), batch=batch)
    if not ours:
        return
    torch = bench.torch(model, batch, "--memory", 12 * GIB, **known_layouts(bench, model))
    share = ours["images_per_second"] / full
    bench.row(f"{model} {batch} in {bench.scale.memory}", f"{ours['images_per_second']:.1f} images/s, {share:.1%} of the speed{theirs(torch)}",
              **ours, share=share, **torch)


def measured(bench, model, batch, device):
    """The costs of its kernels, measured unless they are known, as `profile` exports them; None, and a row, where that failed."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "costs.json"
        done = bench.run(bench.folder / "plimsoll", "profile", model, "--batch", batch, "--device", device, "--export", file)
        if done.code == 0:
            return json.loads(file.read_text())
    bench.row(f"{model} {batch}", reason(done)[:120], False)
    return None


def bandwidth(bench, model):
    """Our own kernels, each on the largest op of its kind and layout that the network has: bytes of inputs and outputs by time, beside what the device
    copies. What reads a tensor twice reaches less by that."""
    batch, least = bench.scale.own[model], 0 if bench.options.tiny else 32 << 20
    costs = measured(bench, model, batch, bench.device)
    if costs is None:
        return
    most, largest = costs["rates"]["memory_gb_per_s"], {}
    for cost in costs["entries"]:
        if cost["kernel"] != "own" or cost["source"] != "measured" or cost["time_ms"] <= 0:
            continue
        signature, size = cost["signature"], moved_bytes(cost["signature"])
        kind = re.match(r"\w+", signature)[0] + (" channels last" if " acdb" in signature else "")
        if size >= max(least, largest.get(kind, (1,))[0]):
            largest[kind] = size, size / cost["time_ms"] / 1e6
    for kind, (size, rate) in sorted(largest.items(), key=lambda item: item[1][1]):
        bench.row(kind, f"{rate:.0f} GB/s, {rate / most:.0%} of the device's {most:.0f} ({size / (1 << 20):.0f} MiB)", **{f"{kind} GB/s": rate})
    if not largest:
        bench.row(f"{model} {batch}", "no kernel of ours was measured", False)


def engines(bench, item):
    """cuDNN's two ways to each convolution: its fixed functions, and the engines of its graph API."""
    model, _, precision = item.partition(" ")
    batch, device = bench.scale.batches[model], bench.device + ("+tf32" if precision else "")
    costs = measured(bench, model, batch, device)
    if costs is None:
        return
    best = {}  # by convolution, in a layout: [ms by a fixed function, ms by an engine]
    for cost in costs["entries"]:
        kernel = cost["kernel"].removeprefix("cudnn:")
        if kernel == cost["kernel"] or cost["source"] != "measured" or "@" in kernel or cost["time_ms"] > 1e5:  # refused
            continue
        times, way = best.setdefault(cost["signature"], [None, None]), bool(re.match(r"([a-z]+_)*eng\d", kernel))
        times[way] = min(times[way] or cost["time_ms"], cost["time_ms"])
    both = [times for times in best.values() if None not in times]
    if not both:
        return bench.row(f"{item} {batch}", "no convolution was measured by both ways", False)
    fixed, with_engines = sum(times[0] for times in both), sum(min(times) for times in both)
    faster = sum(times[1] < times[0] for times in both)
    bench.row(f"{item} {batch}", f"engines are faster for {faster} of {len(both)} convolutions; all of them {fixed / with_engines:.2f}x by the better one",
              fixed_ms=fixed, best_ms=with_engines, faster=faster, convolutions=len(both))


def slowdown(bench, model):
    batch = bench.scale.batches[model]
    full = bench.train(model, batch=batch)
    if "error" in full:
        return bench.row(model, full["error"], False)
    with tempfile.TemporaryDirectory() as folder:
        for share in (0.8, 0.6, 0.4, 0.2):
            trace, what = pathlib.Path(folder) / "trace.json", f"{model} {batch} at {share:.0%}"
            run = bench.train(model, "--memory", int(full["plan"]["arena_bytes"] * share), "--host-memory", bench.scale.host, "--trace", trace, batch=batch)
            if "error" in run:
                bench.row(what, run["error"][:120])
                continue
            kept, hidden = full["done"]["step_time_ms"] / run["done"]["step_time_ms"], overlap(trace)
            bench.row(what, f"{kept:.1%} of the speed" + ("" if hidden is None else f", {hidden:.0%} of copying hidden"),
                      kept >= 0.9 if share == 0.6 and not bench.options.tiny else None, **{f"speed at {share}": kept, f"hidden at {share}": hidden})


def fill(bench, model):
    """The largest batch that the default budget holds with nothing offloaded, less a hundredth: it has to run."""
    budget = bench.train(model, "--costs", "estimated", batch=1, steps=1)["done"]["budget_bytes"]
    words = ("--policy", "liveness", "--device", bench.device)
    found, done = bench.plimsoll("max", model, *words, "--memory", budget, *(("--most", 64) if bench.options.tiny else ()))
    if done.code != 0:
        return bench.row(model, reason(done)[:120], False)
    batch = max(1, found[-1]["batch"] * 99 // 100)
    run = bench.train(model, *words[:2], "--costs", "estimated", batch=batch, steps=3)
    if "error" in run:
        return bench.row(f"{model} {batch}", run["error"][:120], False)
    share = run["plan"]["arena_bytes"] / budget
    bench.row(f"{model} {batch}", f"runs in {share:.1%} of {budget / GIB:.1f} GiB", run["done"]["peak_bytes"] == run["plan"]["peak_bytes"]
              and (share > 0.9 or bench.options.tiny), share=share)


def workspace(bench, model):
    """Limits are kept, and what they cost: mu-cuDNN's question."""
    batch, base = 4 if bench.options.tiny else 256, None
    for flags, kept in (((), None), (("--workspace", "8MiB"), "largest_workspace_bytes"),
                        (("--workspace", "8MiB", "--batch-sizes", "powerOfTwo"), "largest_workspace_bytes"), (("--workspace-total", "64MiB"), "workspaces_bytes")):
        run, what = bench.train(model, *flags, batch=batch), f"{model} {batch} {' '.join(flags)}".strip()
        if "error" in run:
            bench.row(what, run["error"][:120], False)
            continue
        ms, plan = run["done"]["step_time_ms"], run["plan"]
        base = base or ms
        limit = int(flags[1][:-3]) << 20 if flags else None
        bench.row(what, f"{ms:.2f} ms a step, {base / ms:.1%} of the speed; largest {plan['largest_workspace_bytes'] / (1 << 20):.1f} MiB, all "
                  f"{plan['workspaces_bytes'] / (1 << 20):.1f} MiB", plan[kept] <= limit if kept else None,
                  **{f"ms {' '.join(flags)}".strip(): ms})


def heaps(bench, model):
    batch, paper = bench.scale.heaps[model]
    lines, done = bench.plimsoll("heaps", model, "--batch", batch, "--device", bench.device, "--steps", 10)
    runs, what = {run["heap"]: run for run in lines}, f"{model} {batch} (SuperNeurons {paper:.2f}x)"
    if done.code != 0 or "plan" not in runs:
        return bench.row(what, reason(done)[:120], False)
    bench.row(what, ", ".join(f"{name} {run['speed_up']:.2f}x" for name, run in list(runs.items())[1:]),
              all(run["same_result"] for run in runs.values()), paper=paper, **{name: run["speed_up"] for name, run in runs.items()})


def twelve(bench, model):
    deep, n, deep_batch = bench.scale.deep
    name, batch = (deep.replace("N", str(n)), deep_batch) if model == deep else (model, 2 * bench.scale.largest[model])
    ours = bench.rate(name, *within(bench), "--costs", "estimated", batch=batch, steps=4)
    if ours:
        than = "deeper than SuperNeurons' deepest" if model == deep else "twice SuperNeurons'"
        bench.row(f"{name} {batch}", f"{ours['images_per_second']:.2f} images/s, {than}", True, **ours)


def tf32(bench, model):
    batch = bench.scale.batches[model]
    ours = bench.rate(model, batch=batch, device=bench.device + "+tf32")
    if ours:
        bench.row(f"{model} {batch}", f"{ours['images_per_second']:.1f} images/s ({ours['layout']})", **ours)
        beside(bench, model, ours, bench.torch(model, batch, "--tf32"))


def transformers(bench, item):
    """A module of Hugging Face's, as people bring it: plimsoll.compile beside PyTorch."""
    model, batch, *precision = item.split()
    words = ("--device", "cuda", *(["--tf32"] if precision else []))

    def step(way, environment):
        done = bench.run(bench.options.torch, ROOT / "bench" / "peers" / "transformers_bench.py", model, batch, way, *words, environment=environment)
        told = json.loads(done.out.splitlines()[-1]) if done.out.strip() else {"error": reason(done)}
        return told if "error" in told else {**told, "ms": sorted(told["step_ms"])[len(told["step_ms"]) // 2]}

    ours = step("plimsoll", {**bench.environment, "PYTHONPATH": str(bench.options.package), "PLIMSOLL_CUDA_MODULE": str(bench.folder / "libplimsoll_cuda.so")})
    if "error" in ours:
        return bench.row(item, ours["error"][:200], False)
    bench.row(item, f"{ours['ms']:.1f} ms a step (predicted {ours['predicted_ms']:.1f}), {ours['arena_bytes'] / GIB:.2f} GiB", step_ms=ours["ms"],
              predicted_ms=ours["predicted_ms"], arena_bytes=ours["arena_bytes"], first_step_s=ours["first_step_s"])
    for way in ("eager", "compiled"):
        theirs = step(way, dict(os.environ))
        if "error" in theirs:
            bench.row(f"{item}, PyTorch {way}", theirs["error"][:120])
            continue
        apart = abs(theirs["losses"][0] / ours["losses"][0] - 1)  # the same weights, other dropout
        bench.row(f"{item}, PyTorch {way}", f"{theirs['ms']:.1f} ms a step, {theirs['gpu_peak_bytes'] / GIB:.2f} GiB: Plimsoll {theirs['ms'] / ours['ms']:.2f}x"
                  f"; first losses {apart:.1%} apart", apart < 0.02 and (ours["ms"] <= theirs["ms"] or bench.options.tiny),
                  **{f"torch_{way}_ms": theirs["ms"], f"torch_{way}_peak_bytes": theirs["gpu_peak_bytes"], f"torch_{way}_first_step_s": theirs["first_step_s"]})


def compiled(bench, model):
    full = known_rate(bench, model)
    if full:
        torch = bench.torch(model, bench.scale.batches[model], "--compile", **known_layouts(bench, model))
        bench.row(f"{model} {bench.scale.batches[model]}", f"{full:.1f} images/s{theirs(torch, 'PyTorch compiled')}", **torch)


def search(bench, model):
    """(the largest batch, or the largest N of a deep network, that has a plan; whether there may be larger ones; how it ended). Planning
    alone, with estimated costs."""
    deep, n, deep_batch = bench.scale.deep
    if model == deep:
        what, key, most, flags = "depth", "n", n, ("--batch", deep_batch)
    else:
        what, key, most, flags = "batch", "batch", bench.scale.largest[model], ()
    lines, done = bench.plimsoll("max", model, "--what", what, "--most", bench.scale.searched * most, *flags, *within(bench), "--device", bench.device, most=90)
    if done.code == 0:
        return lines[-1][key], lines[-1]["limited_by"].startswith("the search"), done
    tried = [int(size) for line in done.errors for size in re.findall(rf"^  {what} (\d+): fits", line)]
    return max(tried, default=0), True, done  # one that was stopped has found some


def largest(bench, model):
    """What 12 GiB hold at most, found by plans alone; what is found is run. All searches begin with the first: each takes one core a while."""
    if not bench.searches:
        pool = concurrent.futures.ThreadPoolExecutor(max(1, os.cpu_count() // 2))
        wanted = [m for m in and_deep(bench.scale) if m == model or not bench.report.is_done("largest", m)]
        bench.searches = {m: pool.submit(search, bench, m) for m in wanted}
    size, more, done = bench.searches[model].result()
    if size == 0:
        return bench.row(model, reason(done), False)
    deep, _, deep_batch = bench.scale.deep
    name, batch, paper = (model.replace("N", str(size)), deep_batch, None) if model == deep else (model, size, bench.scale.largest[model])
    ours = bench.rate(name, *within(bench), "--costs", "estimated", batch=batch, steps=4)
    if ours:
        bench.row(f"{name} {batch}", f"{ours['images_per_second']:.2f} images/s" + (f"; SuperNeurons' largest is {paper}" if paper else "")
                  + ("; the search ended before it found more" if more else ""), size >= 2 * paper if paper else None, found=size, more=more, **ours)


# The table.

@dataclasses.dataclass(frozen=True)
class Check:
    run: typing.Callable
    seconds: int  # on an H100, about: what its share of the time is reckoned from
    about: str
    items: typing.Callable = lambda scale: ("",)
    needs_torch: bool = False
    needs_package: bool = False

    @property
    def name(self):
        return self.run.__name__


def networks(scale):
    return tuple(scale.batches)


def and_deep(scale):
    return (scale.deep[0], *scale.largest)


CHECKS = (
    Check(link, 5, "GB/s to the host and back"),
    Check(conformance, 100, "every kernel against the reference, on this GPU: those of backward ops and those with TF32 among them",
          lambda scale: ("test_tests_conformance",)),
    Check(gradients, 10, "the references of backward ops against finite differences", lambda scale: ("test_ops",)),
    Check(steps, 40, "the same steps on the CPU and on the GPU: losses within tolerance", lambda scale: tuple(named(*s) for s in scale.steps)),
    Check(exact, 60, "with --exact, weights bit-identical under policies, budgets and tiers, and beside TF32; measured peak = predicted",
          lambda scale: (scale.one,)),
    Check(failure, 10, "what does not fit is exit code 3 or 4 with a reason, not a crash"),
    Check(speed, 240, "images per second with all memory; with --torch beside PyTorch: eager, its faster layout, single precision", networks),
    Check(tf32, 120, "images per second with TF32, beside PyTorch's with TF32", lambda scale: networks(scale)[:2]),
    Check(transformers, 120, "with --torch and --package: milliseconds a step of Hugging Face's modules, beside PyTorch eager and compiled",
          lambda scale: scale.modules, needs_torch=True, needs_package=True),
    Check(bandwidth, 60, "our own kernels: GB/s beside the device's", lambda scale: tuple(scale.own)),
    Check(engines, 30, "convolutions by engines of cuDNN's graph API beside those by its fixed functions, without and with TF32",
          lambda scale: tuple(model + precision for model in networks(scale)[:2] for precision in ("", " tf32"))),
    Check(tight, 150, "the same batches inside 12 GiB, beside PyTorch in 12 GiB", networks),
    Check(slowdown, 50, "step time at 80, 60, 40 and 20 % of what keeping everything takes; how much of the copying hides behind compute",
          lambda scale: (scale.one,)),
    Check(ranks, 60, "two GPUs through NCCL: the same weights in every division, and how much faster they are", lambda scale: (scale.one,)),
    Check(fill, 30, "a plan that fills the default budget runs", lambda scale: (scale.one,)),
    Check(twelve, 100, "inside 12 GiB twice SuperNeurons' largest batches (Table 5), and more layers (Table 4)", and_deep),
    Check(heaps, 60, "SuperNeurons' Table 2 for real: cudaMalloc, cudaMallocAsync, the papers' heap, the plan", lambda scale: tuple(scale.heaps)),
    Check(workspace, 40, "--workspace and --workspace-total are kept, and what they cost",
          lambda scale: ("alexnet",) if "alexnet" in scale.batches else (scale.one,)),
    Check(largest, 200, "the largest batches and the deepest network that 12 GiB hold, by plans, and run", and_deep),
    Check(compiled, 300, "with --torch: images per second beside PyTorch compiled", networks, needs_torch=True),
)

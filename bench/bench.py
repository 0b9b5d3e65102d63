#!/usr/bin/env python3
"""Measures what the README and docs/results.md tell, and writes it as JSON under bench/results/.

  bench/bench.py placement          arena bytes against live bytes, by placement, for every network
  bench/bench.py planning           time to plan deep networks, without measured costs
  bench/bench.py prediction         predicted against measured step time and peak
  bench/bench.py memory             the process's peak against its budget, also under a hard limit (root, cgroup v1 or v2)
  bench/bench.py exactness          weights after 20 steps: policies, runs, kill and resume
  bench/bench.py peers --torch PYTHON [PYTHON...]   images per second against PyTorch, interleaved
  bench/bench.py families           where the time of a step goes, GFLOP/s against the machine's peak
  bench/bench.py slowdown           step time at 80, 60, 40 and 20 % of the memory, by policy: predicted, and measured (auto in every round, the others once)
  bench/bench.py tight --torch PYTHON [--folder DIR]   training for real in little memory, beside PyTorch with checkpoints or a disk
  bench/bench.py overlap            how much of the copying hides behind compute, by policy (simulated)
  bench/bench.py wd-solver          time to divide one workspace total among all ops, random instances and ResNet-50's measured one
  bench/bench.py convolutions       bench/convolutions.csv at 8, 64 and 512 MiB, undivided against divided; time to measure by policy
  bench/bench.py concurrency        every uniform setting of ops at once and threads each against --inter-op auto by strategies
  bench/bench.py operations         ops by thread count, hill climbing against them; two ops side by side; the same steps on simulated cores
                                    (scripts/record_concurrency runs these two on any machine)
  bench/bench.py overhead           what starting a step of a plan costs, as a share of a training step
  bench/bench.py workspace          mu-cuDNN's figures: workspace limits, parts of the batch (--only alexnet --rounds 1: some minutes)
  bench/bench.py papers             the papers' tables, theirs beside ours; the largest batches and depths (simulated)

Nothing else should run on the machine meanwhile. bench/tables.py turns the results into the tables of the docs.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PROGRAM = os.environ.get("PLIMSOLL", str(ROOT / "build" / "release" / "plimsoll"))
os.environ.setdefault("PLIMSOLL_DATA", str(ROOT / "data"))

ZOO = {  # two batch sizes each
    "mlp": (32, 256), "lenet": (32, 256), "alexnet": (64, 200), "vgg16": (8, 32), "resnet18": (16, 64), "resnet34": (16, 64),
    "resnet50": (16, 32), "resnet101": (8, 32), "resnet152": (8, 32), "resnet32": (100, 256), "inception3": (8, 32),
    "inception4": (8, 32), "densenet:depth=40,growth=40": (64, 256), "densenet121": (8, 32), "dcgan": (32, 64),
}
PEERS = [("alexnet", 64), ("vgg16", 8), ("resnet50", 16), ("resnet101", 8), ("resnet32", 100)]


def machine():
    model, cores = "", os.cpu_count()
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
    memory = int([l for l in open("/proc/meminfo") if l.startswith("MemTotal")][0].split()[1]) // 1024
    device = [json.loads(l) for l in run([PROGRAM, "devices", "--json", "-"]).stdout.splitlines()]
    commit = run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]).stdout.strip()
    return {"cpu": model, "cores": cores, "memory_mib": memory, "device": device[0]["description"], "commit": commit}


def run(command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, **kwargs)


def lines(text):
    return [json.loads(l) for l in text.splitlines() if l.startswith("{")]


def plimsoll(*arguments):
    done = run([PROGRAM, *map(str, arguments), "--json", "-"])
    found = lines(done.stdout)
    if not found:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return found


def train(model, batch, *more):
    data = [] if "--data" in more else ["--data", "synthetic"]
    return plimsoll("train", model, "--batch", batch, *data, "--evaluate-every", 0, *more)


def busy_share():
    """Part of the machine's processor time that others use, over half a second."""
    def sample():
        fields = list(map(int, open("/proc/stat").readline().split()[1:]))
        return sum(fields), fields[3] + fields[4]
    total0, idle0 = sample()
    time.sleep(0.5)
    total1, idle1 = sample()
    return 1 - (idle1 - idle0) / max(1, total1 - total0)


def save(name, rows, **more):
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = "bench/bench.py " + " ".join(a for a in sys.argv[1:] if "/" not in a)
    here = machine()
    for row in rows:  # one that was kept from an earlier run has its own
        row.setdefault("commit", here["commit"])
    path.write_text(json.dumps({"bench": name, "date": datetime.date.today().isoformat(), "command": command, "machine": here,
                                **more, "rows": rows}, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


def kept_rows(name):
    """The rows of an earlier run, each with its commit."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return []
    earlier = json.loads(path.read_text())
    for row in earlier["rows"]:
        row.setdefault("commit", earlier["machine"]["commit"])
    return earlier["rows"]


def bench_placement(_):
    rows = []
    for model, batches in ZOO.items():
        for batch in batches:
            row = {"model": model, "batch": batch}
            for placement in ("offline", "first_fit", "best_fit"):
                p = plimsoll("plan", model, "--batch", batch, "--policy", "liveness", "--placement", placement)[0]
                row[placement] = p["arena_bytes"]
                row["live"] = p["peak_bytes"]
                row["baseline"] = p["baseline_bytes"]
            rows.append(row)
            print(model, batch, *(f"{k} {100 * (row[k] / row['live'] - 1):.2f} %" for k in ("offline", "first_fit", "best_fit")), flush=True)
    save("placement", rows)


def bench_placement_hard(_):
    published = {"A": 4.91, "B": 3.66, "C": 0.64, "E": 3.72}  # seconds, as MiniMalloc's authors publish them
    rows = []
    for name, theirs in published.items():
        runs = [plimsoll("place", ROOT / "data" / "placement" / f"{name}.1048576.csv", "--capacity", 1048576)[0] for _ in range(5)]
        seconds = [r["seconds"] for r in runs]
        rows.append({"problem": name, "buffers": runs[0]["buffers"], "capacity": 1048576, "lower_bound": runs[0]["lower_bound"],
                     "height": runs[0]["height"], "status": runs[0]["status"], "seconds": statistics.median(seconds),
                     "spread_seconds": max(seconds) - min(seconds), "published_seconds": theirs, "busy_before": busy_share()})
        print(rows[-1], flush=True)
    save("placement-hard", rows)


def bench_planning(_):
    rows = []
    empty = tempfile.mkdtemp()
    environment = {**os.environ, "PLIMSOLL_CACHE": empty}
    cases = [(model, batch, "", "") for model, batch in (("resnet50", 32), ("resnet152", 32), ("inception4", 32), ("densenet121", 32), ("resnet:6-32-788-6", 1))]
    cases += [("resnet50", 32, "1100MiB", "8GiB"), ("resnet152", 32, "3GiB", "16GiB"), ("inception4", 8, "700MiB", ""), ("densenet121", 8, "300MiB", "")]
    for model, batch, memory, host in cases:
        times, wall, steps = [], [], 0
        limits = [x for flag, value in (("--memory", memory), ("--host-memory", host)) if value for x in (flag, value)]
        for _ in range(3 if memory else 5):
            begun = time.monotonic()
            p = lines(run([PROGRAM, "plan", model, "--batch", str(batch), *limits, "--json", "-"], env=environment).stdout)[0]
            wall.append(time.monotonic() - begun)
            times.append(p["plan_time_ms"])
            steps = p["steps"]
        rows.append({"model": model, "batch": batch, "memory": memory, "host_memory": host, "steps": steps, "plan_time_ms": statistics.median(times), "spread_ms": max(times) - min(times),
                     "command_seconds": statistics.median(wall)})
        print(rows[-1], flush=True)
    save("planning", rows)


def steps_for(seconds_per_step, seconds=12, least=8, most=400):
    return int(min(most, max(least, seconds / max(1e-3, seconds_per_step))))


def bench_prediction(args):
    rows = [r for r in kept_rows("prediction") if r["model"] not in args.only] if args.only else []
    nets = [("mlp", 256), ("lenet", 256), ("alexnet", 64), ("vgg16", 8), ("resnet18", 16), ("resnet50", 16), ("resnet101", 8), ("resnet32", 100),
            ("inception3", 8), ("inception4", 4), ("densenet121", 8), ("densenet:depth=40,growth=40", 16), ("dcgan", 64)]
    for model, batch in nets:
        if args.only and model not in args.only:
            continue
        first = train(model, batch, "--steps", 3)[-1]
        events = train(model, batch, "--steps", steps_for(first["step_time_ms"] / 1000))
        plan, done = events[0], events[-1]
        rows.append({"model": model, "batch": batch, "predicted_ms": done["predicted_step_time_ms"], "measured_ms": done["step_time_ms"],
                     "error": done["predicted_step_time_ms"] / done["step_time_ms"] - 1, "predicted_peak": plan["peak_bytes"], "measured_peak": done["peak_bytes"]})
        print(rows[-1], flush=True)
    errors = [abs(r["error"]) for r in rows]
    save("prediction", rows, median_error=statistics.median(errors), largest_error=max(errors))


class HardLimit:
    """A control group with a memory limit; its account of the peak."""

    def __init__(self, limit):
        self.v1 = pathlib.Path("/sys/fs/cgroup/memory")
        base = self.v1 if self.v1.is_dir() else pathlib.Path("/sys/fs/cgroup")
        self.group = base / f"plimsoll_bench_{os.getpid()}"
        self.group.mkdir()
        self.is_v1 = self.v1.is_dir()
        (self.group / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(limit))

    def join(self):
        (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        return int((self.group / ("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")).read_text())

    def close(self):
        for _ in range(50):
            try:
                self.group.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def bench_memory(_):
    rows = []
    slack = 200 << 20
    for model, batch in (("alexnet", 64), ("resnet50", 16), ("vgg16", 8)):
        plan = plimsoll("plan", model, "--batch", batch)[0]
        budget = plan["arena_bytes"]
        free = train(model, batch, "--steps", 4, "--memory", budget)[-1]
        row = {"model": model, "batch": batch, "budget": budget, "process_peak": free["process_peak_bytes"],
               "beyond_budget": free["process_peak_bytes"] - budget}
        try:
            limit = HardLimit(budget + slack)
            done = run([PROGRAM, "train", model, "--batch", str(batch), "--data", "synthetic", "--evaluate-every", "0", "--steps", "4",
                        "--memory", str(budget), "--json", "-"], preexec_fn=limit.join)
            row["hard_limit"] = budget + slack
            row["survived"] = done.returncode == 0
            row["group_peak"] = limit.peak()
            limit.close()
        except OSError as error:
            row["hard_limit_error"] = str(error)
        rows.append(row)
        print(row, flush=True)
    save("memory", rows)


def bench_exactness(_):
    rows = []
    for model, batch, data in (("resnet20", 32, "digits"), ("lenet", 64, "digits"), ("resnet18", 8, "synthetic"), ("densenet:depth=40,growth=12", 8, "synthetic")):
        flags = ["train", model, "--batch", batch, "--data", data, "--steps", 20, "--evaluate-every", 0]
        sha = lambda *more: plimsoll(*flags, *more)[-1]["weights_sha256"]
        row = {"model": model, "batch": batch, "liveness": sha("--policy", "liveness"), "again": sha("--policy", "liveness"),
               "baseline": sha("--policy", "baseline")}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = f"{folder}/c.safetensors"
            more = ["--policy", "liveness", "--checkpoint", checkpoint, "--checkpoint-every", 3]
            process = subprocess.Popen([PROGRAM, *map(str, flags + more)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not os.path.exists(checkpoint) and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.wait()
            row["killed_and_resumed"] = sha(*more, "--resume", checkpoint)
        row["equal"] = len({row[k] for k in ("liveness", "again", "baseline", "killed_and_resumed")}) == 1
        rows.append(row)
        print(model, "equal" if row["equal"] else row, flush=True)
    save("exactness", rows)


class TorchPeer:
    """bench/peers/torch_bench.py in a process of its own, asked for a few steps at a time."""

    def __init__(self, python, model, batch, layout, *more):
        self.process = subprocess.Popen([python, str(ROOT / "bench/peers/torch_bench.py"), model, str(batch), layout, *more], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.hello = json.loads(self.process.stdout.readline())

    def run(self, steps):
        self.process.stdin.write(f"run {steps}\n")
        self.process.stdin.flush()
        self.last = json.loads(self.process.stdout.readline())
        return self.last["step_ms"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def bench_peers(args):
    rows = []
    kept = kept_rows("peers") if args.only else []  # other rows stay
    for model, batch in PEERS:
        if args.only and model not in args.only:
            continue
        own_ms = train(model, batch, "--steps", 4)[-1]["step_time_ms"]  # also measures the kernels
        steps = steps_for(own_ms / 1000, seconds=4, least=3, most=60)
        peers = {}
        for python in args.torch:
            for layout in ("nchw", "channels_last"):
                peer = TorchPeer(python, model, batch, layout)
                peers[f"torch {peer.hello['torch']} {layout}"] = peer
                peer.run(2)
        times = {"plimsoll": [], **{name: [] for name in peers}}
        for _ in range(args.rounds):
            times["plimsoll"].append(train(model, batch, "--steps", steps + 1)[-1]["step_time_ms"])
            for name, peer in peers.items():
                times[name].append(statistics.median(peer.run(steps)))
        for peer in peers.values():
            peer.close()
        rate = {name: batch * 1000 / statistics.median(t) for name, t in times.items()}
        fastest = max((name for name in rate if name != "plimsoll"), key=rate.get, default=None)
        rows.append({"model": model, "batch": batch, "images_per_second": rate, "step_ms": times,
                     "spread": {name: (max(t) - min(t)) / statistics.median(t) for name, t in times.items()},
                     "fastest_peer": fastest, "ratio": rate["plimsoll"] / rate[fastest] if fastest else None, "busy_before": busy_share()})
        print(model, {k: round(v, 2) for k, v in rate.items()}, f"ratio {rows[-1]['ratio']:.2f}", flush=True)
        others = [r for r in kept if r["model"] not in {row["model"] for row in rows}]
        save("peers", sorted(rows + others, key=lambda r: [m for m, _ in PEERS].index(r["model"])))


def bench_families(_):
    rows = []
    for model, batch in PEERS:
        with tempfile.TemporaryDirectory() as folder:
            trace = f"{folder}/trace.json"
            train(model, batch, "--steps", 6, "--trace", trace)
            sums = {}
            for event in json.load(open(trace))["traceEvents"]:
                if event["ph"] == "X" and event["pid"] == 2:
                    entry = sums.setdefault(event["args"]["op"], [0.0, 0.0, 0])
                    entry[0] += event["dur"] / 1000
                    entry[1] += event["args"].get("gflop", 0.0)
                    entry[2] += 1
        total = sum(v[0] for v in sums.values())
        for op, (ms, gflop, count) in sorted(sums.items(), key=lambda kv: -kv[1][0]):
            rows.append({"model": model, "batch": batch, "op": op, "count": count, "ms": ms, "share": ms / total, "gflops": gflop / ms * 1000 if ms else 0})
        print(model, f"{total:.1f} ms", [(r["op"], f"{100 * r['share']:.0f} %", round(r["gflops"])) for r in rows if r["model"] == model][:8], flush=True)
    save("families", rows)


SLOWDOWN = [("alexnet", 64), ("vgg16", 8), ("resnet50", 16), ("inception4", 4), ("densenet121", 8)]
POLICIES = ["auto", "superneurons", "vdnn", "dymem", "mxnet", "tensorflow"]


def bench_slowdown(args):
    rows, kept = [], kept_rows("slowdown") if args.only else []
    for model, batch in SLOWDOWN:
        if args.only and model not in args.only:
            continue
        train(model, batch, "--steps", 3)  # measures the kernels
        whole = plimsoll("plan", model, "--batch", batch, "--policy", "liveness")[0]
        tiers = ["--host-memory", "8GiB"]
        steps = steps_for(whole["step_time_ms"] / 1000, seconds=5, least=4)
        cases, all_ms = [], []
        for share in (80, 60, 40, 20):
            budget = whole["arena_bytes"] * share // 100
            row = {"model": model, "batch": batch, "share": share, "budget": budget, "predicted_ms": {}, "measured_ms": {}}
            for policy, plan in zip(POLICIES, compare(model, batch, budget, tiers)):
                row["predicted_ms"][policy] = plan["step_time_ms"]
                if policy == "auto" and not plan["feasible"]:
                    row["least_bytes"] = plan["minimum_bytes"]
            rows.append(row)
            cases += [(row, policy, ["--memory", budget, *tiers, "--policy", policy], []) for policy, ms in row["predicted_ms"].items() if ms is not None]
        for turn in range(args.rounds):
            all_ms.append(train(model, batch, "--steps", steps)[-1])
            for row, policy, more, done in cases:
                if policy == "auto" or turn == 0:  # the others once
                    done.append(train(model, batch, "--steps", steps, *more)[-1])
        for row in rows[-4:]:
            row["unlimited_ms"] = [d["step_time_ms"] for d in all_ms]
            row["unlimited_predicted_ms"] = whole["step_time_ms"]
        whole_ms = statistics.median(row["unlimited_ms"])
        for row, policy, _, done in cases:
            row["measured_ms"][policy] = [d["step_time_ms"] for d in done]
            if policy == "auto":
                row["peaks"] = sorted({d["peak_bytes"] for d in done})
        for row in rows[-4:]:
            print(model, row["share"], {k: v and round(v / whole["step_time_ms"] - 1, 3) for k, v in row["predicted_ms"].items()},
                  "measured", {k: round(statistics.median(v) / whole_ms - 1, 3) for k, v in row["measured_ms"].items()}, flush=True)
        save("slowdown", kept_beside(kept, rows))


def tight_cases():
    whole = plimsoll("plan", "resnet50", "--batch", 32, "--policy", "baseline")[0]["arena_bytes"]
    yield "alexnet", 200, [], 700 << 20, ["--host-memory", "8GiB"]
    for share in (50, 25, 12):
        yield "resnet50", 32, [], whole * share // 100, ["--host-memory", "8GiB"]
    deep = ["--image-size", 227]
    yield "resnet:6-32-788-6", 1, deep, 12 << 30, []
    yield "resnet:6-32-788-6", 1, deep, 2 << 30, ["--host-memory", "4GiB", "--spill", "SPILL:30GiB"]


def bench_tight(args):
    """Training for real where memory is short, in turns with PyTorch as it is, with checkpoints, and with saved tensors on disk."""
    rows, kept = [], kept_rows("tight") if args.only else []
    networks = {}  # what PyTorch takes does not hang on the budget
    for model, batch, size, budget, tiers in tight_cases():
        if not args.only or model in args.only:
            networks.setdefault((model, batch, *size), []).append((budget, tiers))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for (model, batch, *size), cases in networks.items():
            deep = model.startswith("resnet:")
            print(model, batch, [budget for budget, _ in cases], flush=True)
            flags = [[*size, "--memory", budget, *(t.replace("SPILL", folder) for t in tiers)] for budget, tiers in cases]
            for more in flags:
                train(model, batch, "--steps", 2, *more)  # measures the kernels and the tiers
            done, peers, peaks = [[] for _ in cases], {}, {}
            for _ in range(1 if deep else args.rounds):
                for runs, more in zip(done, flags):
                    runs.append(train(model, batch, "--steps", 2 if deep else 5, *more))
                for python in args.torch:
                    for saving in ("eager", "checkpoint", "disk"):  # each a process of its own: together they need too much
                        peer = TorchPeer(python, model, batch, "channels_last", "--saving", saving, "--folder", folder)
                        peer.run(1)
                        name = f"{peer.hello['torch']} {saving}"
                        peers.setdefault(name, []).append(statistics.median(peer.run(1 if deep else 3)))
                        peaks[name] = max(peaks.get(name, 0), peer.last["peak_bytes"])
                        peer.close()
            for (budget, tiers), runs in zip(cases, done):
                plan = next(e for e in runs[-1] if e["event"] == "plan")
                ends = [d[-1] for d in runs]
                row = {"model": model, "batch": batch, "budget": budget, "tiers": " ".join(tiers).replace("SPILL:", "disk "),
                       "predicted_peak": plan["peak_bytes"], "measured_peak": sorted({e["peak_bytes"] for e in ends}), "policy": plan["planned_by"],
                       "predicted_ms": [e["predicted_step_time_ms"] for e in ends], "measured_ms": [e["step_time_ms"] for e in ends],
                       "process_peak": max(e["process_peak_bytes"] for e in ends), "offload_bytes": plan["offload_bytes"],
                       "recompute_steps": plan["recompute_steps"],
                       "torch": {name: {"step_ms": statistics.median(times), "peak_bytes": peaks[name]} for name, times in peers.items()}}
                rows.append(row)
                print({k: row[k] for k in ("budget", "predicted_peak", "measured_peak", "predicted_ms", "measured_ms", "torch")}, flush=True)
            save("tight", kept_beside(kept, rows))


def kept_beside(kept, rows):
    return [r for r in kept if r["model"] not in {row["model"] for row in rows}] + rows


def compare(model, batch, budget, more, policies=POLICIES):
    return plimsoll("compare", model, "--batch", batch, "--memory", budget, *more, "--policies", *policies)


def bench_overlap(_):
    rows = []
    for model, batch in (("alexnet", 200), ("vgg16", 32), ("resnet50", 32), ("inception4", 32), ("densenet121", 32)):
        device = ["--device", "k40c", "--lowering", "paper"]
        whole = plimsoll("plan", model, "--batch", batch, "--policy", "liveness", *device)[0]
        for share in (60, 40):
            budget = whole["arena_bytes"] * share // 100
            row = {"model": model, "batch": batch, "share": share, "unlimited_ms": whole["step_time_ms"], "policies": {}}
            names = ["vdnn:layers=all", "dymem", "superneurons", "auto"]
            for name, plan in zip(names, compare(model, batch, budget, ["--host-memory", "64GiB", *device], names)):
                if name == "auto" and not plan["feasible"]:
                    row["least_bytes"] = plan["minimum_bytes"]
                if plan["feasible"]:
                    hidden = 1 - plan["stall_ms"] / plan["copy_ms"] if plan["copy_ms"] else None
                    row["policies"][name] = {"step_ms": plan["step_time_ms"], "copy_ms": plan["copy_ms"], "stall_ms": plan["stall_ms"], "hidden": hidden}
            rows.append(row)
            print(model, share, {k: v["hidden"] and round(v["hidden"], 2) for k, v in row["policies"].items()}, flush=True)
    save("overlap", rows, simulated=True)


def bench_papers(args):
    """--only TABLE...: these tables anew, the largest batches and depths as they were."""
    if args.only:
        kept = json.loads((RESULTS / "papers.json").read_text())
        rows = [row for table in args.only for row in plimsoll("reproduce", table)]
        tables = {row["table"] for row in rows}
        rows = [row for row in kept["rows"] if row["table"] not in tables] + rows
        return save("papers", rows, largest=kept["largest"], largest_of=kept.get("largest_of", kept["machine"]), simulated=True)
    rows = plimsoll("reproduce", "all")
    device = ["--device", "k40c", "--memory", "11.2GiB", "--host-memory", "107GiB", "--lowering", "paper"]
    wanted = {"alexnet": 2142, "vgg16": 264, "inception4": 584, "resnet50": 841, "resnet101": 825, "resnet152": 811}
    largest = []
    for model, least in wanted.items():
        size = ["--image-size", 224] if model == "vgg16" else []
        found = plimsoll("max", model, "--what", "batch", *size, *device)[0]
        largest.append({"model": model, "what": "batch", "ours": found["batch"], "superneurons_model": least, "limited_by": found["limited_by"],
                        "host_bytes": found["host_bytes"]})
        print(largest[-1], flush=True)
    found = plimsoll("max", "resnet:6-32-N-6", "--what", "depth", "--batch", 16, *device)[0]
    largest.append({"model": "resnet:6-32-N-6", "what": "depth", "ours": found["depth"], "superneurons_model": 2666, "limited_by": found["limited_by"],
                    "host_bytes": found["host_bytes"]})
    print(largest[-1], flush=True)
    save("papers", rows, largest=largest, simulated=True)


def bench_wd_solver(args):
    build = pathlib.Path(PROGRAM).parent
    made = run(["ninja", "-C", str(build), "wd_solver_bench"])
    if made.returncode != 0:
        raise SystemExit(made.stdout[-2000:])
    network = (args.only or ["resnet50", "32"])[:2]
    rows = lines(run([str(build / "bench/micro/wd_solver_bench"), *network]).stdout)
    for r in rows:
        print(r["instance"], r["variables"], r["share"], f"{r['solve_ms']:.3f} ms", "exact" if r["exact"] else "not proven", flush=True)
    save("wd-solver", rows, paper={"variables": 562, "solve_ms": 5.46, "solver": "GLPK"})


def bench_convolutions(args):
    table = ROOT / "bench" / "convolutions.csv"
    rows, profiling = [], []
    with tempfile.TemporaryDirectory() as folder:
        short = pathlib.Path(folder) / "short.csv"  # every micro-batch takes long
        head, *rest = table.read_text().splitlines()
        short.write_text("\n".join([head, rest[10]]) + "\n")
        for policy in ("undivided", "powerOfTwo", "all"):
            cache = {**os.environ, "PLIMSOLL_CACHE": f"{folder}/{policy}"}
            begun = time.monotonic()
            run([PROGRAM, "convolutions", str(short), "--batch-sizes", policy, "--json", "-"], env=cache)
            profiling.append({"batch_sizes": policy, "convolution": rest[10], "seconds": time.monotonic() - begun})
            print(profiling[-1], flush=True)
    for workspace in ("8MiB", "64MiB", "512MiB"):
        found = plimsoll("convolutions", table, "--workspace", workspace, "--batch-sizes", (args.only or ["powerOfTwo"])[0])
        for r in found:
            rows.append({"workspace": workspace, **r})
        whole = [r for r in found if r["undivided_ms"] and r["divided_ms"]]
        gain = sum(r["undivided_ms"] for r in whole) / sum(r["divided_ms"] for r in whole)
        print(workspace, f"{gain:.2f}x", flush=True)
    save("convolutions", rows, profiling=profiling)


# What is trained for real, and how its images are told to `train` and to concurrency_bench (channels, size, classes).
CONCURRENCY = [("resnet50", 64, (3, 32, 10)), ("dcgan", 64, (1, 28, 10)), ("inception3", 16, ()), ("alexnet", 64, ())]
QUICK_CONCURRENCY = [("resnet20", 16, (3, 32, 10))]
STEPS_UNTRIED = 11  # as chosen, before it is tried against one op after another
STEPS_TO_SETTLE = 45  # until a choice was corrected and tried against one op after another; the step time is that of the steps after
CHOICES = {"strategies 1,2": "1,2", "strategies 1,2,3": "1,2,3", "auto": "1,2,3,4"}  # of --inter-op auto


def uniform_settings(cores, quick):
    """Pairs of ops at once and threads each: every power of two, the number of cores, its parts down to an eighth, and twice it."""
    if quick:
        return sorted({(1, cores), (2, max(1, cores // 2)), (1, 1)})
    counts = sorted({1 << k for k in range(12) if 1 << k <= cores} | {cores // k for k in range(1, 9) if cores >= k} | {2 * cores})
    return [(inter, intra) for inter in counts for intra in counts if inter * intra <= 4 * cores]


def built(target):
    """A program of the build folder beside the one under test, made now."""
    build = pathlib.Path(PROGRAM).parent
    made = run(["ninja", "-C", str(build), target])
    if made.returncode != 0:
        raise SystemExit(f"{target} cannot be built in {build} (is it configured with -DPLIMSOLL_BENCH=ON?)\n{made.stdout[-2000:]}{made.stderr[-2000:]}")
    return build


def bench_overhead(args):
    """What it costs to start a step of a plan, with kernels that do nothing, as a share of a training step."""
    build = built("side_by_side_bench")
    program = build / "bench/micro/side_by_side_bench"
    rows = []
    for model, batch, images in CONCURRENCY:
        size = size_flags(images)
        done = run([str(program), model])
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip())
        idle = lines(done.stdout)[0]
        step_ms = train(model, batch, *size, "--steps", 6)[-1]["step_time_ms"]
        row = {"model": model, "batch": batch, "ops": idle["steps"], "step_ms": step_ms, "us_an_op": {}, "share": {}}
        for name in ("serial", "one_core", "two_cores"):
            row["us_an_op"][name] = idle[f"{name}_processor_us"]
            row["share"][name] = idle[f"{name}_processor_us"] * idle["steps"] / 1000 / step_ms
        rows.append(row)
        print(model, row["us_an_op"], {k: f"{100 * v:.3f} %" for k, v in row["share"].items()}, flush=True)
    save("overhead", rows)


def wanted_models(args):
    models = QUICK_CONCURRENCY if args.quick else CONCURRENCY
    wanted = [c for c in models if not args.only or c[0] in args.only]
    if not wanted:
        raise SystemExit(f"--only: there are {', '.join(c[0] for c in models)}")
    return [(model, batch, size_flags(images), images) for model, batch, images in wanted]


def size_flags(images):
    """How `train` is told of channels, size, classes. Gray ones of 28 x 28 are MNIST's: random, in its format."""
    if not images:
        return []
    if images[0] != 1:
        return ["--image-size", images[1], "--num-classes", images[2]]
    folder = pathlib.Path(tempfile.gettempdir()) / "plimsoll-bench-mnist"
    folder.mkdir(exist_ok=True)
    for part, count in (("train", 12800), ("t10k", 640)):
        head = lambda *numbers: b"".join(n.to_bytes(4, "big") for n in numbers)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head(0x803, count, images[1], images[1]) + random.Random(1).randbytes(count * images[1] ** 2))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head(0x801, count) + bytes(k % images[2] for k in range(count)))
    return ["--data", f"mnist:{folder}"]


def bench_concurrency(args):
    """Table I and Figure 3 of the concurrency paper, on this machine, whatever it has."""
    cores = len(os.sched_getaffinity(0))
    rounds = 1 if args.quick else args.rounds
    name = "concurrency" + (f"-{args.name}" if args.name else "")
    kept = kept_rows(name)
    rows = []
    for model, batch, size, _ in wanted_models(args):
        step_ms = train(model, batch, *size, "--steps", 3)[-1]["step_time_ms"]  # measures the kernels
        steps = 5 if args.quick else steps_for(step_ms / 1000, seconds=3, least=4)
        settings = {f"{a} x {b}": ["--inter-op", a, "--intra-op", b] for a, b in uniform_settings(cores, args.quick)}
        settings |= {name: ["--inter-op", "auto", "--strategies", numbers] for name, numbers in CHOICES.items()}
        times = {name: [] for name in settings}
        said = {}
        for setting, how in settings.items():  # whatever each measures, before the clock runs
            train(model, batch, *size, "--steps", 4 * min(cores, 16) + 6 if setting in CHOICES else 2, *how)
        slow = set()
        for _ in range(rounds):
            for setting, how in settings.items():
                if setting in slow:
                    continue
                more = STEPS_TO_SETTLE if setting == "auto" else 0
                done = train(model, batch, *size, "--steps", min(steps, STEPS_UNTRIED) if setting in CHOICES and not more else steps + more, *how)[-1]
                times[setting].append(done["step_time_ms"])
                if setting not in CHOICES and done["step_time_ms"] > 2 * step_ms:
                    slow.add(setting)  # once is enough
                if setting in CHOICES:
                    said[setting] = done.get("predicted_step_time_ms")
        recommended = f"1 x {cores}"
        middle = {setting: statistics.median(t) for setting, t in times.items()}
        best = min((n for n in middle if n not in CHOICES), key=middle.get)
        rows.append({"model": model, "batch": batch, "step_ms": middle, "spread_ms": {n: max(t) - min(t) for n, t in times.items()},
                     "recommended": recommended, "best_uniform": best, "predicted_ms": said})
        print(model, f"recommended {middle[recommended]:.1f} ms, best uniform {best} {middle[best]:.1f} ms, auto {middle['auto']:.1f} ms", flush=True)
        if not args.quick or args.name:
            save(name, kept_beside(kept, rows))
    if args.quick and not args.name:
        print("not recorded: with --quick the settings are too few; --name NAME records them")


def bench_operations(args):
    """Tables II, III and V of the concurrency paper, on this machine, whatever it has: single ops by their thread counts."""
    build = built("concurrency_bench")
    words = []
    for model, batch, size, images in wanted_models(args):
        train(model, batch, *size, "--steps", 2)  # measures the kernels
        words += (["--"] if words else []) + [model, str(batch), *map(str, images)]
    found = run([str(build / "bench/concurrency_bench"), *words])
    print(found.stdout, found.stderr, sep="", flush=True)
    if found.returncode != 0:
        raise SystemExit(f"concurrency_bench: exit {found.returncode}")
    name = "operations" + (f"-{args.name}" if args.name else "")
    kept = [r for r in kept_rows(name) if r.get("model") not in {None, *(model for model, *_ in wanted_models(args))}] if args.only else []
    if not args.quick or args.name:
        save(name, kept + lines(found.stdout))


WORKSPACE = {"alexnet": 256, "resnet18": 128, "resnet50": 64, "densenet:depth=40,growth=40": 256}
LIMITS_MIB = (8, 64, 512)
SIZES = ("undivided", "powerOfTwo", "all")


def traced(model, batch, steps, *more):
    """A short training: milliseconds of a step and of its convolutions, and the largest workspace."""
    with tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/trace.json"
        events = train(model, batch, "--steps", steps, "--trace", trace, *more)
        spans = [e for e in json.load(open(trace))["traceEvents"] if e["ph"] == "X" and e["pid"] == 2]
        return {"step_ms": events[-1]["step_time_ms"], "convolution_ms": sum(e["dur"] for e in spans if e["args"]["op"].startswith("Conv")) / 1000,
                "peak": events[-1]["peak_bytes"], "largest_workspace": events[0]["largest_workspace_bytes"], "workspaces": events[0]["workspaces_bytes"]}


def bench_workspace(args):
    kept = kept_rows("workspace") if args.only else []
    rows = [r for r in kept if r["model"] not in args.only]
    for model, batch in WORKSPACE.items():
        if args.only and model not in args.only:
            continue
        batch = args.batch or batch
        every = max(1, batch // 8)
        profiled = {}
        with tempfile.TemporaryDirectory() as cache:  # of its own: how long measuring takes is a result too
            os.environ["PLIMSOLL_CACHE"] = cache
            began = time.monotonic()
            for sizes in SIZES[:2] if args.quick else SIZES:
                plimsoll("profile", model, "--batch", batch, "--batch-sizes", sizes, "--every", every)
                profiled[sizes] = time.monotonic() - began  # each has what those before it measured
                print(model, sizes, f"profiled in {profiled[sizes]:.0f} s", flush=True)
            cases = []
            for limit in LIMITS_MIB:
                for sizes in profiled:
                    flags = ["--workspace", f"{limit}MiB", "--batch-sizes", sizes]
                    plan = plimsoll("plan", model, "--batch", batch, *flags)[0]
                    cases.append({"model": model, "batch": batch, "how": "WR", "limit": limit << 20, "sizes": sizes, "flags": flags, "plan": plan})
                    if sizes == "undivided":
                        continue
                    flags = ["--workspace-total", (limit << 20) * plan["weighty_ops"], "--batch-sizes", sizes]
                    plan = plimsoll("plan", model, "--batch", batch, *flags)[0]
                    cases.append({"model": model, "batch": batch, "how": "WD", "limit": (limit << 20) * plan["weighty_ops"], "sizes": sizes, "flags": flags,
                                  "plan": plan})
            runs = {}  # plans that are alike run once a round
            for case in cases:
                plan = case.pop("plan")
                case["predicted"] = {"step_ms": plan["step_time_ms"], "convolution_ms": plan["convolution_ms"], "peak": plan["peak_bytes"],
                                     "largest_workspace": plan["largest_workspace_bytes"], "workspaces": plan["workspaces_bytes"], "divided": plan["divided_steps"]}
                case["run"] = str(sorted(case["predicted"].items()))
                runs.setdefault(case["run"], {"flags": case["flags"], "measured": []})
            steps = steps_for(cases[0]["predicted"]["step_ms"] / 1000, seconds=6, least=3)
            for _ in range(args.rounds):
                for one in runs.values():
                    one["measured"].append(traced(model, batch, steps, "--costs", "estimated", *one["flags"]))
            del os.environ["PLIMSOLL_CACHE"]
        for case in cases:
            measured = runs[case.pop("run")]["measured"]
            case.pop("flags")
            case["measured"] = {key: statistics.median(m[key] for m in measured) for key in measured[0]}
            case["spread"] = {key: (max(m[key] for m in measured) - min(m[key] for m in measured)) / max(1e-9, case["measured"][key])
                              for key in ("step_ms", "convolution_ms")}
            case["profile_seconds"] = profiled[case["sizes"]]
            case["sizes_of_all"] = "powers of two and multiples of an eighth of the batch" if every > 1 else "every size"
            rows.append(case)
            print(model, case["how"], case["limit"] >> 20, case["sizes"], {k: round(v, 1) for k, v in case["measured"].items() if "ms" in k},
                  "predicted", round(case["predicted"]["convolution_ms"], 1), flush=True)
        save("workspace", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["placement", "placement-hard", "planning", "prediction", "memory", "exactness", "peers", "families", "slowdown", "tight",
                                         "overlap", "wd-solver", "convolutions", "concurrency", "operations", "overhead", "workspace", "papers"])
    parser.add_argument("--torch", nargs="*", default=[], help="Python programs that have torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where `tight` may write")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--batch", type=int, help="workspace: another batch than the paper's, where that would take hours")
    parser.add_argument("--quick", action="store_true", help="workspace: without --batch-sizes all; concurrency: one small network, few settings, not recorded")
    parser.add_argument("--name", help="concurrency: record as concurrency-NAME.json, for another machine's results beside this one's")
    args = parser.parse_args()
    busy = busy_share()
    if busy > 0.2:
        print(f"the machine is {100 * busy:.0f} % busy with something else: figures will be off", file=sys.stderr)
    globals()[f"bench_{args.what.replace('-', '_')}"](args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures what the README and docs/results.md tell, and writes both anew.

  bench/bench.py all --torch PYTHON             every table, at the commit that is checked out; hours
  bench/bench.py peers prediction --rounds 5    these parts; the others stay as they were, and the tables say of which commit
  bench/bench.py all --list                     the parts, and about how long each takes
  bench/bench.py all --quick [--torch PYTHON]   a trial of the benches: tiny networks, into runs/quick/ and not into the docs

A part is measured case by case, a case being for example a network with its batch. Each is written to bench/results/PART.json when it
is done, with the commit, so that --go-on takes up an interrupted run: it keeps the cases that are of this commit already.
The commit is the last one that changed anything but docs, tests, tables.py and results. `all` refuses a work tree with changes that
are not committed; the other parts go on and record it, and the tables tell.

The program is built first, in build/bench (PLIMSOLL_BUILD: another folder; PLIMSOLL: a program as it is, and the tables tell that it
was not built here). Kernels are measured anew for each run, in a cache of its own. Nothing else should run on the machine meanwhile.
"""
import argparse
import contextlib
import ctypes.util
import datetime
import functools
import json
import os
import pathlib
import random
import select
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import planning_problems
import records
import tables
from records import RESULTS, ROOT, spread

BUILD = pathlib.Path(os.environ.get("PLIMSOLL_BUILD", ROOT / "build" / "bench"))
PROGRAM = os.environ.get("PLIMSOLL", str(BUILD / "plimsoll"))
BUSY = 0.2  # with more of the processor time taken by others, times are off

ZOO = {  # two batch sizes each
    "mlp": (32, 256), "lenet": (32, 256), "alexnet": (64, 200), "vgg16": (8, 32), "resnet18": (16, 64), "resnet34": (16, 64),
    "resnet50": (16, 32), "resnet101": (8, 32), "resnet152": (8, 32), "resnet32": (100, 256), "inception3": (8, 32),
    "inception4": (8, 32), "densenet:depth=40,growth=40": (64, 256), "densenet121": (8, 32), "dcgan": (32, 64),
}
PEERS = [("alexnet", 64), ("vgg16", 8), ("resnet50", 16), ("resnet101", 8), ("resnet32", 100)]
PARTS = {}  # in the order in which they run


class Part:
    """One bench: its cases, and the function that measures one of them and gives its rows."""

    def __init__(self, name, minutes, cases, quick, repeated, measure):
        self.name, self.minutes, self.cases, self.quick, self.repeated, self.measure = name, minutes, cases, quick, repeated, measure
        self.about = measure.__doc__.partition("\n")[0].rstrip(".")

    def cases_for(self, options):
        if self.name == "planner" and options.problems:
            return [(f"{path}", share) for path in sorted(pathlib.Path(options.problems).glob("*.json")) for share in FOREIGN_SHARES]
        return list(self.quick if options.quick else self.cases() if callable(self.cases) else self.cases)

    def file(self, options):
        return f"{self.name}-{options.name}" if options.name else self.name

    def command(self, options):
        """What would measure this part again."""
        flags = [f"--{flag} {getattr(options, flag):g}" for flag, usual in DEFAULTS.items() if self.repeated and getattr(options, flag) != usual]
        flags += [f"--name {options.name}"] * bool(options.name) + ["--torch PYTHON"] * bool(options.torch and self.name in ("peers", "python", "transformers", "sequences", "curve", "billion-python", "networks", "tight", "ranks"))
        return " ".join(["bench/bench.py", self.name, *flags])

    def seconds(self, options):
        """About how long a case takes."""
        if options.quick:
            return 20
        scale = options.rounds / DEFAULTS["rounds"] * (options.seconds + 2) / (DEFAULTS["seconds"] + 2) if self.repeated else 1
        return self.minutes * 60 / len(self.cases_for(options)) * (0.4 + 0.6 * scale)


def part(name, minutes, cases, quick, repeated=False):
    """Makes a part of a function (options, *case) -> rows. `minutes`: all cases, with the defaults, on 2 cores. `repeated`: --rounds and
    --seconds hold for it."""
    def add(measure):
        PARTS[name] = Part(name, minutes, cases, quick, repeated, measure)
        return measure
    return add


def case_name(case):
    return " ".join(str(word) for word in case if word != "")


# The program under test.

def run(command, **kwargs):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **kwargs)


def git(*words):
    done = run(["git", "-C", ROOT, *words])
    return done.stdout.strip() if done.returncode == 0 else ""


def source():
    """The last commit that changed what is measured, and whether there are changes that are not committed."""
    measured = ["--", ".", *(f":!{path}" for path in ("docs", "*.md", "tests", "*_test.*", ".ci", "bench/results", "bench/tables.py"))]
    return {"commit": git("log", "-1", "--format=%h", *measured) or "unknown", "dirty": bool(git("status", "--porcelain", *measured))}


@functools.cache
def configured():
    """What CMake was told of the folder of the program, where it is a build folder."""
    path = pathlib.Path(PROGRAM).parent / "CMakeCache.txt"
    entries = [line.partition("=") for line in path.read_text().splitlines() if "=" in line] if path.exists() else []
    return {name.partition(":")[0]: value for name, _, value in entries}


def built_here():
    """Whether the folder of the program builds this work tree."""
    return "PLIMSOLL" not in os.environ or configured().get("CMAKE_HOME_DIRECTORY") == str(ROOT)


def build(target):
    """Makes a target in the folder of the program and gives that folder. One that is of another work tree is taken as it is."""
    folder = pathlib.Path(PROGRAM).parent
    if not built_here():
        return folder
    if "PLIMSOLL" in os.environ:
        command = f"ninja -C {shlex.quote(str(folder))} {target} >&2"
    else:
        command = (f"plimsoll_root={shlex.quote(str(ROOT))}; . \"$plimsoll_root/scripts/common.sh\"; "
                   f"plimsoll_build {shlex.quote(str(folder))} {target} "
                   "-DCMAKE_BUILD_TYPE=Release -DPLIMSOLL_TESTS=OFF -DPLIMSOLL_BENCH=ON -DPLIMSOLL_EXAMPLES=OFF -DPLIMSOLL_NATIVE=ON")
    if subprocess.run(["sh", "-eu", "-c", command]).returncode != 0:
        raise RuntimeError(f"{target} cannot be built in {folder}")
    return folder


def compiler():
    """With its version, and what it was to make."""
    there = configured()
    return f"{run([there['CMAKE_CXX_COMPILER'], '--version']).stdout.partition(chr(10))[0]}, {there['CMAKE_BUILD_TYPE']}" if there else ""


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next(int(line.split()[1]) // 1024 for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return {"cpu": model, "cores": cores(), "memory_mib": memory, "device": plimsoll("devices")[0]["description"], "compiler": compiler()}


def cores():
    return len(os.sched_getaffinity(0))


def lines(text):
    return [json.loads(l) for l in text.splitlines() if l.startswith("{")]


def plimsoll(*arguments):
    done = run([PROGRAM, *arguments, "--json", "-"])
    found = lines(done.stdout)
    if not found or done.returncode not in (0, 3):  # 3: no plan fits, which is an answer
        raise RuntimeError(f"{' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return found


def train(model, batch, *more):
    """The events of a training, from "plan" to "done"."""
    data = [] if "--data" in more else ["--data", "synthetic"]
    events = plimsoll("train", model, "--batch", batch, *data, "--evaluate-every", 0, *more)
    if events[-1]["event"] != "done":
        raise RuntimeError(f"train {model} --batch {batch} {' '.join(map(str, more))} ended with {json.dumps(events[-1])[:300]}")
    return events


def trained(model, batch, *more):
    """The end of a training: median step time, peak, checksum, ..."""
    return train(model, batch, *more)[-1]


@contextlib.contextmanager
def fresh_cache():
    """In here nothing is known of what kernels take."""
    before = os.environ.get("PLIMSOLL_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PLIMSOLL_CACHE"] = folder
        try:
            yield folder
        finally:
            os.environ.pop("PLIMSOLL_CACHE")
            if before is not None:
                os.environ["PLIMSOLL_CACHE"] = before


def busy_share():
    """Part of the machine's processor time that others use, over half a second."""
    def sample():
        fields = list(map(int, open("/proc/stat").readline().split()[1:]))
        return sum(fields), fields[3] + fields[4]
    total0, idle0 = sample()
    time.sleep(0.5)
    total1, idle1 = sample()
    return 1 - (idle1 - idle0) / max(1, total1 - total0)


def steps_for(step_ms, seconds, least=3, most=400):
    """So many steps that a run takes about so many seconds."""
    return int(min(most, max(least, seconds * 1000 / max(1, step_ms))))


# The parts. Those that judge predictions come first: kernels are measured for them in any case.

PREDICTED = [("mlp", 256), ("lenet", 256), ("alexnet", 64), ("vgg16", 8), ("resnet18", 16), ("resnet50", 16), ("resnet101", 8), ("resnet32", 100),
             ("inception3", 8), ("inception4", 4), ("densenet121", 8), ("densenet:depth=40,growth=40", 16), ("dcgan", 64)]


@part("prediction", 12, PREDICTED, [("lenet", 32)], repeated=True)
def prediction(o, model, batch):
    """Predicted against measured step time and peak, in the first training of a network on a machine and in later ones."""
    with tempfile.TemporaryDirectory() as folder:
        with fresh_cache():
            told = plimsoll("profile", model, "--batch", batch)[-1]
            steps = steps_for(told["step_time_ms"], o.seconds, least=6)  # with fewer a training corrects nothing for the next
            row = {"model": model, "batch": batch, "predicted_ms": [], "measured_ms": [], "predicted_peak": [], "measured_peak": []}
            for _ in range(max(2, o.rounds)):
                plan, *_, done = train(model, batch, "--steps", steps)
                row["predicted_ms"].append(plan["step_time_ms"])
                row["measured_ms"].append(done["step_time_ms"])
                row["predicted_peak"].append(plan["peak_bytes"])
                row["measured_peak"].append(done["peak_bytes"])
            plimsoll("profile", "--export", f"{folder}/costs.json")
        plimsoll("profile", "--import", f"{folder}/costs.json")  # so that the parts after this one need not measure these kernels again
    return [row]


class PeerFailed(Exception):
    pass


class TorchPeer:
    """bench/peers/torch_bench.py in a process of its own, asked for a few steps at a time."""

    def __init__(self, python, model, batch, layout, *more, patience=1800):
        self.patience = patience  # seconds for an answer: compiling is slow
        self.errors = tempfile.TemporaryFile("w+")
        command = [python, ROOT / "bench/peers/torch_bench.py", model, batch, layout, *more]
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        preexec_fn=self.first_to_go, start_new_session=True)
        hello = self.answer()
        self.version, self.threads = hello["torch"], hello["threads"]

    @staticmethod
    def first_to_go():
        """Where memory runs out, the system ends this process rather than another one."""
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/self/oom_score_adj").write_text("1000")

    def answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], self.patience)
        line = self.process.stdout.readline() if ready else ""
        told = json.loads(line) if line else {"error": self.end_of_it() if ready else f"no answer in {self.patience / 60:.0f} minutes"}
        if "error" in told:
            self.close()
            raise PeerFailed(told["error"])
        return told

    def end_of_it(self):
        if self.process.wait() == -signal.SIGKILL:
            return "killed, most likely for want of memory"
        self.errors.seek(0)
        return ([line.strip() for line in self.errors if line.strip()] or [f"exit code {self.process.returncode}"])[-1]

    def run(self, steps):
        """Milliseconds of each step."""
        with contextlib.suppress(BrokenPipeError):  # what ended it is told by answer()
            self.process.stdin.write(f"run {steps}\n")
            self.process.stdin.flush()
        self.last = self.answer()
        return self.last["step_ms"]

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the ranks that it has started, too
        self.process.wait()


class Contest:
    """PyTorch as it can be run, each in a process of its own, in turns with Plimsoll. What fails is out, with its reason."""
    WAYS = {"eager nchw": ["nchw"], "eager channels_last": ["channels_last"], "compiled nchw": ["nchw", "--compile"],
            "compiled channels_last": ["channels_last", "--compile"]}

    def __init__(self, o, model, batch):
        self.o, self.peers, self.failed = o, {}, {}
        self.first_step_s, self.usual_ms, self.compiler, self.versions, self.threads = {}, {}, {}, set(), None
        for way, words in self.WAYS.items() if o.torch else ():
            self.attempt(way, lambda: self.enter(way, TorchPeer(o.torch, model, batch, *words)))

    def attempt(self, way, what):
        try:
            return what()
        except PeerFailed as error:
            self.failed[way] = str(error)
            self.peers.pop(way, None)
            print(f"  PyTorch, {way}: {error}", file=sys.stderr, flush=True)

    def enter(self, way, peer):
        self.first_step_s[way] = peer.run(1)[0] / 1000  # compiles, where it is to
        self.usual_ms[way] = peer.run(1)[0]
        self.peers[way] = peer
        self.versions.add(peer.version)
        self.threads = peer.threads
        if "compiler" in peer.last:
            self.compiler[way] = peer.last["compiler"]

    def turn(self, times):
        for way, peer in list(self.peers.items()):
            ms = self.attempt(way, lambda: statistics.median(peer.run(steps_for(self.usual_ms[way], self.o.seconds, least=2))))
            if ms is not None:
                times.setdefault(way, []).append(ms)

    def row(self, model, batch, times):
        times = {name: ms for name, ms in times.items() if name not in self.failed}
        rate = {name: batch * 1000 / statistics.median(ms) for name, ms in times.items()}
        fastest = max((name for name in rate if name != "plimsoll"), key=rate.get, default=None)
        ratio = rate["plimsoll"] / rate[fastest] if fastest and "plimsoll" in rate else None
        print(f"  {', '.join(f'{name} {r:.1f}' for name, r in rate.items())} images/s" + (f"; {ratio:.2f}x" if ratio else ""), flush=True)
        return {"model": model, "batch": batch, "threads": self.threads, "torch": ", ".join(self.versions), "images_per_second": rate, "step_ms": times,
                "spread": {name: spread(ms) for name, ms in times.items()}, "failed": self.failed, "first_step_s": self.first_step_s,
                "compiler": self.compiler, "fastest_peer": fastest, "ratio": ratio}

    def close(self):
        for peer in self.peers.values():
            peer.close()


@part("peers", 20, PEERS, [("resnet32", 8)], repeated=True)
def peers(o, model, batch):
    """Images per second against PyTorch, eager and compiled, in both layouts, interleaved."""
    usual_ms = trained(model, batch, "--steps", 4)["step_time_ms"]  # also measures the kernels
    contest = Contest(o, model, batch)
    try:
        times = {"plimsoll": []}
        for _ in range(o.rounds):
            times["plimsoll"].append(trained(model, batch, "--steps", 1 + steps_for(usual_ms, o.seconds))["step_time_ms"])
            contest.turn(times)
    finally:
        contest.close()
    return [contest.row(model, batch, times)]


# Several ranks.

def mpirun(ranks, model, batch, *more, link=None):
    """The end of a training by so many ranks of one thread, with what its plan had said. `link`: the rate that a link between two hosts is
    held to."""
    hosts = [ROOT / "tests/support/two_hosts", "--rate", link] if link else []
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as folder:
        told = pathlib.Path(folder) / "json"
        command = [*hosts, "mpirun", "--bind-to", "none", "--oversubscribe", "-n", ranks, PROGRAM, "train", model, "--batch", batch, "--threads", 1,
                   "--data", "synthetic", "--evaluate-every", 0, "--json", told, *more]
        done = run([str(word) for word in command], env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
        events = lines(told.read_text())
    return next(e for e in events if e["event"] == "plan"), events[-1]


@part("ranks", 15, [("resnet18", 32), ("resnet50", 16), ("vgg16", 8)], [("lenet", 32)], repeated=True)
def ranks(o, model, batch):
    """Two processes of one thread against one of two threads, and against PyTorch's DistributedDataParallel, interleaved."""
    usual_ms = trained(model, batch, "--steps", 4)["step_time_ms"]  # also measures the kernels
    mpirun(2, model, batch, "--steps", 3)
    row = {"model": model, "batch": batch, "one_ms": [], "two_ms": [], "predicted_ms": [], "ddp_ms": [], "ddp": "", "failed": ""}
    peer = None
    try:
        if o.torch:
            known = model if model in ("vgg16", "resnet50") else f"torchvision:{model}"
            peer = TorchPeer(o.torch, known, batch, "channels_last", "--ranks", 2)
            peer.run(2)
            row["ddp"] = peer.version
    except PeerFailed as error:
        row["failed"], peer = str(error), None
    try:
        for _ in range(o.rounds):
            row["one_ms"].append(trained(model, batch, "--steps", 1 + steps_for(usual_ms, o.seconds))["step_time_ms"])
            plan, done = mpirun(2, model, batch, "--steps", 1 + steps_for(usual_ms, o.seconds))
            row["two_ms"].append(done["step_time_ms"])
            row["predicted_ms"].append(plan["step_time_ms"])
            if peer:
                row["ddp_ms"].append(statistics.median(peer.run(steps_for(2 * usual_ms, o.seconds, least=2))))
    finally:
        if peer:
            peer.close()
    return [row]


@part("ranks-link", 6, [("resnet18", 32, "1gbit"), ("resnet18", 32, "10gbit"), ("vgg16", 8, "10gbit")], [("lenet", 32, "1gbit")], repeated=True)
def ranks_link(o, model, batch, rate):
    """Two hosts, which are network namespaces, with their link held to a rate: predicted against measured, and what is hidden."""
    mpirun(2, model, batch, "--steps", 3, link=rate)
    row = {"model": model, "batch": batch, "rate": rate, "predicted_ms": [], "measured_ms": [], "communication_ms": [], "stall_ms": []}
    for _ in range(o.rounds):
        plan, done = mpirun(2, model, batch, "--steps", 8, link=rate)
        row["predicted_ms"].append(plan["step_time_ms"])
        row["measured_ms"].append(done["step_time_ms"])
        row["communication_ms"].append(plan["communication_ms"])
        row["stall_ms"].append(plan["communication_stall_ms"])
    return [row]


SCALING = [("resnet50", 32, "titan-xp", 100), ("vgg19", 32, "titan-xp", 100), ("resnet101", 64, "titan-xp", 25), ("inception3", 64, "titan-xp", 25),
           ("vgg16", 64, "titan-xp", 25)]


@part("ranks-scaling", 4, SCALING, [("lenet", 32, "titan-xp", 25)])
def ranks_scaling(o, model, batch, device, gbit):
    """Strong and weak scaling to 1,024 ranks on paper: simulated GPUs, each with a link of its own into a network that is nowhere narrower."""
    rows = []
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        row = {"model": model, "batch": batch, "device": device, "gbit": gbit, "ranks": count}
        for kind, whole in (("weak", batch * count), ("strong", 1024)):
            said = plimsoll("plan", model, "--batch", whole, "--ranks", count, "--device", device, "--link-bandwidth", gbit, "--link-latency", 10)[-1]
            row[kind] = {key: said[key] for key in ("step_time_ms", "communication_ms", "communication_stall_ms", "message_bytes")} if said["feasible"] else None
        rows.append(row)
    return rows


@functools.cache
def package(python):
    """The folder with the Python package, installed from this tree."""
    folder = ROOT / "build/bench-package"
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--upgrade", "--target", folder,
               "-C", "cmake.define.PLIMSOLL_CUDA=OFF", ROOT]  # all of these run on the CPU
    subprocess.run(list(map(str, command)), check=True)
    return folder


PYTHON_NETWORKS = [("torchvision:resnet50", 16), ("torchvision:mobilenet_v3_large", 16), ("torchvision:convnext_tiny", 8), ("unet", 8),
                   ("torchvision:swin_t", 8)]


@part("python", 25, PYTHON_NETWORKS, [("unet", 2)], repeated=True)
def python(o, model, batch):
    """Networks of torchvision and a U-Net through the Python package against PyTorch, eager and compiled, in both layouts, interleaved."""
    if not o.torch:
        raise RuntimeError("the part `python` needs --torch PYTHON: a Python program that has torch, torchvision, nanobind and scikit-build-core")
    os.environ["PYTHONPATH"] = str(package(o.torch))
    contest = Contest(o, model, batch)
    try:
        contest.attempt("plimsoll", lambda: contest.enter("plimsoll", TorchPeer(o.torch, model, batch, "plimsoll")))
        times, own = {}, []
        for _ in range(o.rounds):
            contest.turn(times)
            if "plimsoll" in contest.peers:
                last = contest.peers["plimsoll"].last
                own.append(statistics.median(1 - inside / whole for inside, whole in zip(last["inside_ms"], last["step_ms"])))
    finally:
        contest.close()
    return [{**contest.row(model, batch, times), "python_share": statistics.median(own) if own else None}]


TRANSFORMERS = [("gpt2", 4, "3000MiB"), ("bert", 16, "2200MiB"), ("vit-b16", 16, "2000MiB"), ("llama-125m", 4, "2400MiB")]


@part("transformers", 90, TRANSFORMERS, [("bert", 1, "2200MiB")], repeated=True)
def transformers(o, model, batch, budget):
    """Hugging Face's networks at their real sizes, AdamW: without a limit, in a budget, and with disk below 1,000 MiB, against PyTorch, interleaved.

    PyTorch allocates by tcmalloc where Debian's libtcmalloc-minimal4 is installed."""
    if not o.torch:
        raise RuntimeError("the part `transformers` needs --torch PYTHON: a Python program that has torch, transformers, nanobind and scikit-build-core")
    environment = {**os.environ, "PYTHONPATH": str(package(o.torch)), "TRANSFORMERS_VERBOSITY": "error"}
    allocator = ctypes.util.find_library("tcmalloc_minimal")  # PyTorch is up to 1.3 times as fast with it; we allocate nothing in a step
    preloaded = {**environment, "LD_PRELOAD": allocator} if allocator else environment
    row = {"model": model, "batch": batch, "budget": budget, "runs": {}, "failed": {}}
    with tempfile.TemporaryDirectory() as folder:
        ways = {"plimsoll": ["plimsoll"], "budget": ["plimsoll", "--memory", budget], "eager": ["eager"], "compiled": ["compiled"],
                "spill": ["plimsoll", "--memory", "1000MiB", "--spill", f"{folder}:20GiB"]}  # fmt: skip
        for _ in range(o.rounds):  # each way in a process of its own, since together they would not fit
            for way, words in ways.items():
                if way not in row["failed"]:
                    done = run([o.torch, "-W", "ignore", ROOT / "bench/peers/transformers_bench.py", model, batch, *words, "--steps", max(3, int(o.seconds))],
                               env=preloaded if way in ("eager", "compiled") else environment)
                    told = (lines(done.stdout) or [{"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}])[-1]
                    if "error" in told:
                        row["failed"][way] = told["error"]
                    else:
                        row["runs"].setdefault(way, []).append(told)
                    said = told.get("error") or f"{statistics.median(told['step_ms']):.0f} ms, {told['peak_bytes'] >> 20} MiB"
                    print(f"  {way}: {said}", file=sys.stderr, flush=True)
    return [row]


SEQUENCES = (512, 1024, 2048, 4096, 8192)


@part("sequences", 15, [("gpt2", n) for n in SEQUENCES], [("gpt2", 256)])
def sequences(o, model, tokens):
    """One text of more and more tokens through Hugging Face's GPT-2 small, AdamW: memory and time of a step, against PyTorch as it is (eager)."""
    if not o.torch:
        raise RuntimeError("the part `sequences` needs --torch PYTHON: a Python program that has torch, transformers, nanobind and scikit-build-core")
    environment = {**os.environ, "PYTHONPATH": str(package(o.torch)), "TRANSFORMERS_VERBOSITY": "error"}
    row = {"model": model, "tokens": tokens}
    for way in ("plimsoll", "eager"):
        done = run([o.torch, "-W", "ignore", ROOT / "bench/peers/transformers_bench.py", model, 1, way, "--tokens", tokens, "--steps", 1], env=environment)
        row[way] = (lines(done.stdout) or [{"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}])[-1]
    return [row]


@part("curve", 40, [("gpt_curve", 20)], [("gpt_curve", 0.2)])
def curve(o, script, minutes):
    """A small GPT from scratch, as many steps as PyTorch makes in these minutes: its losses and ours, with the same data and dropout masks."""
    if not o.torch:
        raise RuntimeError("the part `curve` needs --torch PYTHON: a Python program that has torch, nanobind and scikit-build-core")
    environment = {**os.environ, "PYTHONPATH": str(package(o.torch))}

    def train_by(way, *until):
        done = run([o.torch, "-W", "ignore", ROOT / f"bench/peers/{script}.py", way, *until], env=environment, check=True)
        return lines(done.stdout)[-1]

    eager = train_by("eager", "--minutes", minutes)
    return [{"minutes": minutes, "parameters": eager["parameters"], "eager": eager,
             "plimsoll": train_by("plimsoll", "--minutes", 1000, "--steps", len(eager["losses"]))}]


# So many parameters that PyTorch's AdamW takes four times the budget.
BILLION = "llama:layers=24,width=2048,heads=32,kv_heads=4,ffn=5632,vocab=32000,context="


@part("billion", 5, [("512", "5GiB"), ("512", "2GiB")], [("64", "2GiB")])
def billion(o, tokens, budget):
    """A Llama of 1.2 billion parameters, all of which learn by AdamW, with its states on disk: tokens per second."""
    random_ids = random.Random(1)
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        ids = pathlib.Path(folder, "ids.u16")
        ids.write_bytes(b"".join(random_ids.randrange(32000).to_bytes(2, "little") for _ in range(100_000)))
        events = train(BILLION + tokens, 1, "--data", f"tokens:{ids}", "--memory", budget, "--spill", f"{folder}:20GiB", "--opt", "adamw", "--lr", 0.0001,
                       "--steps", 3)
    plan, done = events[0], events[-1]
    return [{"tokens": int(tokens), "budget": plan["budget_bytes"], "step_ms": done["step_time_ms"], "predicted_ms": plan["step_time_ms"],
             "lower_bound_ms": plan["lower_bound_ms"], "bound_ms": plan["bound_ms"], "measured_peak": done["peak_bytes"], "process_peak": done["process_peak_bytes"],
             "disk_bytes": plan["offload_bytes"] + plan["prefetch_bytes"], "tiers": plan["tiers"], "recompute_steps": plan["recompute_steps"]}]


MEMORY_CGROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))  # versions 1 and 2


@contextlib.contextmanager
def memory_limit(most):
    """A command that runs what follows it within so many bytes, by the kernel: it kills what needs more. Its page cache counts, and is given back first."""
    for root, file in MEMORY_CGROUPS:
        group = pathlib.Path(root, f"plimsoll-bench-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
        if (group / file).exists():
            break
    else:
        raise RuntimeError("the kernel limits no group of processes here (a memory cgroup that one may make, as root)")
    try:
        (group / file).write_text(str(most))
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


@part("billion-python", 15, [(model, way) for model in ("llama-1b-lora", "llama-1b") for way in ("plimsoll", "eager")], [("llama-125m", "plimsoll")])
def billion_python(o, model, way):
    """Hugging Face's Llama with 1.2 billion parameters where the kernel gives the process 6 GiB: LoRA, and all parameters; against PyTorch (eager)."""
    if not o.torch:
        raise RuntimeError("the part `billion-python` needs --torch PYTHON: a Python program that has torch, transformers, peft, nanobind and scikit-build-core")
    environment = {**os.environ, "PYTHONPATH": str(package(o.torch)), "TRANSFORMERS_VERBOSITY": "error"}
    limit = 6 << 30
    with tempfile.TemporaryDirectory(dir=o.folder) as folder, memory_limit(limit) as limited:
        flags = ["--memory", "5600MiB", "--memory-is", "process", "--spill", f"{folder}:24GiB"] * (way == "plimsoll")
        done = run([*limited, o.torch, "-W", "ignore", ROOT / "bench/peers/transformers_bench.py", model, 1, way, "--steps", 2, *flags], env=environment)
    killed = {"error": "killed by the kernel: it needs more"} if done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL) else None
    told = killed or (lines(done.stdout) or [{"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}])[-1]
    return [{"model": model, "way": way, "limit_bytes": limit, "tokens": 512, **told}]


LONG = ("nanogpt", "llama", "t5", "bert_cls", "lstm", "timm_convnextv2", "unet_bn", "unet_gn", "shufflenet")
KEPT_OF_A_NETWORK = ("network", "family", "state", "said", "stage", "parameters", "seeds", "gradient_error", "eager_gradient_error", "worst_parameter",
                     "worst_parameter_factor", "loss_error", "drift", "late_drift", "eager_drift", "eager_late_drift", "judged_by_fp32", "peak_bytes",
                     "measured_peak_bytes", "minimum_bytes", "proven", "measured_peak_at_minimum", "same_bits", "same_bits_at_60_percent")


@part("networks", 60, [("pytorch_zoo", 3), ("pytorch_zoo", 200, *LONG)], [("pytorch_zoo", 3, "nanogpt")])
def networks(o, zoo, steps, *only):
    """People's networks through the Python package: loss and gradients against PyTorch's, and the same bits in less memory (python_networks.py)."""
    if not o.torch:
        raise RuntimeError("the part `networks` needs --torch PYTHON: a Python program that has torch, torchvision, timm, transformers, nanobind and "
                           "scikit-build-core")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "rows.json"
        command = [o.torch, "-W", "ignore", ROOT / "bench/python_networks.py", ROOT / f"bench/{zoo}.py", "--steps", steps, "--out", out]
        done = subprocess.run(list(map(str, command + ["--only", ",".join(only)] * bool(only))), stdout=sys.stderr,
                              env={**os.environ, "PYTHONPATH": str(package(o.torch))})
        if not out.exists():
            raise RuntimeError(f"python_networks.py ended with {done.returncode} and told nothing")
        return [{"steps": steps, **{key: row.get(key) for key in KEPT_OF_A_NETWORK}} for row in json.loads(out.read_text())["rows"]]


POLICIES = ["auto", "superneurons", "vdnn", "dymem", "mxnet", "tensorflow"]
SHARES = (80, 60, 40, 20)


def compare(model, batch, budget, more, policies):
    return plimsoll("compare", model, "--batch", batch, "--memory", budget, *more, "--policies", *policies)


@part("slowdown", 16, [("alexnet", 64), ("vgg16", 8), ("resnet50", 16), ("inception4", 4), ("densenet121", 8)], [("lenet", 32)], repeated=True)
def slowdown(o, model, batch):
    """Step time at 80, 60, 40 and 20 % of the memory, by policy, predicted and measured.

    `auto` and the step with all memory in every round, the other policies once."""
    trained(model, batch, "--steps", 6)  # measures the kernels
    whole = plimsoll("plan", model, "--batch", batch, "--policy", "liveness")[0]
    tiers = ["--host-memory", "8GiB"]
    steps = steps_for(whole["step_time_ms"], o.seconds)
    rows, cases, whole_ms = [], [], []
    for share in SHARES:
        budget = whole["arena_bytes"] * share // 100
        row = {"model": model, "batch": batch, "share": share, "budget": budget,
               "unlimited_predicted_ms": whole["step_time_ms"], "unlimited_ms": whole_ms, "predicted_ms": {}, "measured_ms": {}, "predicted_peak": [], "measured_peak": []}
        for policy, plan in zip(POLICIES, compare(model, batch, budget, tiers, POLICIES)):
            row["predicted_ms"][policy] = plan["step_time_ms"]
            if policy == "auto" and not plan["feasible"]:
                row["least_bytes"] = plan["minimum_bytes"]
            if plan["step_time_ms"] is not None:
                cases.append((row, policy, ["--memory", budget, *tiers, "--policy", policy]))
        rows.append(row)
    for turn in range(o.rounds):
        whole_ms.append(trained(model, batch, "--steps", steps)["step_time_ms"])
        for row, policy, more in cases:
            if policy == "auto" or turn == 0:
                plan, *_, done = train(model, batch, "--steps", steps, *more)
                row["measured_ms"].setdefault(policy, []).append(done["step_time_ms"])
                if policy == "auto":
                    row["predicted_peak"].append(plan["peak_bytes"])
                    row["measured_peak"].append(done["peak_bytes"])
    return rows


class HardLimit:
    """A control group with a memory limit; its account of the peak."""

    def __init__(self, limit):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        self.is_v1 = v1.is_dir()
        self.group = (v1 if self.is_v1 else v1.parent) / f"plimsoll_bench_{os.getpid()}"
        self.group.mkdir()
        (self.group / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(limit))

    def join(self):
        (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        return int((self.group / ("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")).read_text())

    def close(self):
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.group.rmdir()
                return
            time.sleep(0.1)


@part("memory", 6, [("alexnet", 64, 100, ""), ("resnet50", 16, 100, ""), ("vgg16", 8, 100, ""), ("resnet34", 24, 35, "disk"), ("inception3", 6, 35, "disk")],
      [("lenet", 32, 60, "disk")])
def memory(o, model, batch, share, tier):
    """The process's peak against its budget and against what the plan says of the process, also under a hard limit (root, cgroup v1 or v2).

    `share`: percent of what the policy liveness takes."""
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        budget = plimsoll("plan", model, "--batch", batch, "--policy", "liveness")[0]["arena_bytes"] * share // 100
        more = ["--steps", 4, "--memory", budget, *(["--spill", f"{folder}:16GiB"] if tier else [])]
        plan, *_, done = train(model, batch, *more)
        peak, said = done["process_peak_bytes"], plan["process_bytes"]
        row = {"model": model, "batch": batch, "share": share, "tier": tier, "budget": budget, "process_peak": peak, "beyond_budget": peak - budget,
               "said": said, "beside_arena": plan["beside_arena"]}
        try:
            limit = HardLimit(said)
            try:
                done = run([PROGRAM, "train", model, "--batch", batch, "--data", "synthetic", "--evaluate-every", 0, *more, "--json", "-"],
                           preexec_fn=limit.join)
                row |= {"hard_limit": said, "survived": done.returncode == 0, "group_peak": limit.peak()}
            finally:
                limit.close()
        except (OSError, subprocess.SubprocessError) as error:
            row["hard_limit_error"] = str(error)
    return [row]


@part("placement", 4, lambda: [(model, batch) for model, batches in ZOO.items() for batch in batches], [("lenet", 32)])
def placement(o, model, batch):
    """Arena bytes against live bytes, by placement, for every network."""
    row = {"model": model, "batch": batch}
    for name in ("offline", "first_fit", "best_fit"):
        plan = plimsoll("plan", model, "--batch", batch, "--policy", "liveness", "--placement", name)[0]
        if row.setdefault("live", plan["peak_bytes"]) != plan["peak_bytes"]:
            raise RuntimeError(f"placement {name} changes the live bytes of {model}: {row['live']} and {plan['peak_bytes']}")
        row |= {name: plan["arena_bytes"], "baseline": plan["baseline_bytes"]}
    return [row]


PUBLISHED_SECONDS = {"A": 4.91, "B": 3.66, "C": 0.64, "E": 3.72}  # by MiniMalloc's authors


@part("placement-hard", 1, [(name,) for name in PUBLISHED_SECONDS], [("A",)])
def placement_hard(o, problem):
    """MiniMalloc's hard placement problems."""
    runs = [plimsoll("place", ROOT / "data" / "placement" / f"{problem}.1048576.csv", "--capacity", 1048576)[0] for _ in range(5)]
    seconds = [r["seconds"] for r in runs]
    return [{"problem": problem, "capacity": 1048576, **{key: runs[0][key] for key in ("buffers", "lower_bound", "height", "status")},
             "seconds": statistics.median(seconds), "spread_seconds": max(seconds) - min(seconds),
             "published_seconds": PUBLISHED_SECONDS[problem]}]


@part("planning", 3, [(model, batch, "", "") for model, batch in (("resnet50", 32), ("resnet152", 32), ("inception4", 32), ("densenet121", 32),
                                                                  ("resnet:6-32-788-6", 1))]
      + [("resnet50", 32, "1100MiB", "8GiB"), ("resnet152", 32, "3GiB", "16GiB"), ("inception4", 8, "700MiB", ""), ("densenet121", 8, "300MiB", "")],
      [("resnet20", 32, "", "")])
def planning(o, model, batch, memory, host):
    """Time to plan deep networks, without measured costs."""
    limits = [x for flag, value in (("--memory", memory), ("--host-memory", host)) if value for x in (flag, value)]
    times, wall = [], []
    with fresh_cache():
        for _ in range(3 if memory else 5):
            begun = time.monotonic()
            plan = plimsoll("plan", model, "--batch", batch, *limits)[0]
            wall.append(time.monotonic() - begun)
            times.append(plan["plan_time_ms"])
    return [{"model": model, "batch": batch, "memory": memory, "host_memory": host, "steps": plan["steps"], "plan_time_ms": statistics.median(times),
             "spread_ms": max(times) - min(times), "command_seconds": statistics.median(wall)}]


@part("planning-tight", 4, [("plan", model, 16, "") for model in ("alexnet", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "resnet152",
                                                                  "densenet121", "densenet201", "inception3", "inception4")]
      + [("max", "resnet50", None, ""), ("max", "resnet152", None, ""), ("max", "densenet201", None, ""), ("max", "inception4", None, "400GiB")],
      [("plan", "resnet20", 16, "")])
def planning_tight(o, command, model, batch, host):
    """Time of whole commands on a simulated k40c: `plan` in shares of what liveness takes, and `max`."""
    def timed(*arguments):
        begun = time.monotonic()
        result = plimsoll(*arguments)
        return time.monotonic() - begun, result[0] if result else None
    if command == "max":
        seconds, found = timed("max", model, "--device", "k40c", *(("--host-memory", host) if host else ()))
        return [{"command": "max", "model": model, "host_memory": host, "seconds": seconds, "batch": found["batch"]}]
    liveness = plimsoll("plan", model, "--batch", batch, "--device", "k40c", "--policy", "liveness")[0]["peak_bytes"]
    rows = []
    for percent in (15, 30, 50):
        seconds, plan = timed("plan", model, "--batch", batch, "--device", "k40c", "--memory", liveness * percent // 100)
        rows.append({"command": "plan", "model": model, "batch": batch, "percent": percent, "seconds": seconds, "feasible": plan["feasible"],
                     "minimum_bytes": plan["minimum_bytes"], "step_time_ms": plan.get("step_time_ms"), "everything_ms": plan.get("keeping_everything_ms")})
    return rows


# As Meta's Llama 3 has them, and Llama 2 with 13 billion parameters.
LLAMA_70B = "llama:layers=80,width=8192,heads=64,kv_heads=8,ffn=28672,vocab=128256,context=4096"
LLAMA_13B = "llama:layers=40,width=5120,heads=40,ffn=13824,vocab=32000,context=4096"


GPT2_XL = "gpt2:layers=48,width=1600,heads=25,context=1024"


@part("planning-large", 4, [(GPT2_XL, 1, 1, "1536MiB"), *((GPT2_XL, 1, 1, f"{size} and {tier}") for tier in ("a disk", "host memory") for size in ("1600MiB", "4GiB", "8GiB", "12GiB")),
                            (LLAMA_13B, 8, 8, "40GiB"), (LLAMA_70B, 64, 64, "40GiB"), (LLAMA_70B, 64, 64, "70GiB"), (LLAMA_70B, 128, 64, "70GiB")],
      [("gpt2:layers=2,width=128,heads=4,context=64", 2, 2, "64MiB")])
def planning_large(o, model, batch, ranks, memory):
    """Time of whole commands that plan large language models, for simulated H100s and for this processor."""
    size, _, tier = memory.partition(" and ")
    with tempfile.TemporaryDirectory() as folder:
        where = {"": ["--device", "h100"], "a disk": ["--costs", "estimated", "--spill", folder], "host memory": ["--costs", "estimated", "--host-memory", "64GiB"]}[tier]
        words = ["plan", model, "--batch", batch, "--ranks", ranks, "--memory", size, *where]
        if tier:
            plimsoll(*words)  # the processor and the disk are probed once
        seconds = []
        for _ in range(3):
            begun = time.monotonic()
            plan = plimsoll(*words)[0]
            seconds.append(time.monotonic() - begun)
    return [{"model": model, "batch": batch, "ranks": ranks, "memory": memory, "seconds": statistics.median(seconds), "spread_seconds": max(seconds) - min(seconds),
             "steps": plan["steps"], "minimum_bytes": plan["minimum_bytes"], "step_time_ms": plan["step_time_ms"], "everything_ms": plan["keeping_everything_ms"]}]


FOREIGN_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)  # of files with --problems
PLANNER_SEED = 0


@part("planner", 15, [(name, share) for name, (_, shares) in planning_problems.PROBLEMS.items() for share in shares], [("vgg16", 0.9)])
def planner(o, problem, share):
    """Planning problems of the kinds that the field measures by: extra time, beside what no plan can do."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(problem)
        if not o.problems:
            path = pathlib.Path(folder) / f"{problem}.json"
            path.write_text(json.dumps(planning_problems.PROBLEMS[problem][0](PLANNER_SEED)))
        begun = time.monotonic()
        asked = ("plan", "--graph", path, "--memory", f"{100 * share:g}%")
        plan = plimsoll(*asked)[0]
        seconds = time.monotonic() - begun
        stored = json.loads(path.read_text())
        # DTR decides as ops run, so traces are its field: the better one of its two rules, and the least memory in which either finds a plan.
        rules = [plimsoll(*asked, "--policy", rule)[0] for rule in ("dtr", "dtr-eq")] if "trace" in problem else []
    ops = len(stored.get("nodes", stored.get("ops", [])))
    return [{"problem": path.stem, "foreign": bool(o.problems), "ops": ops, "share": share, "seconds": seconds, "budget_bytes": plan["budget_bytes"],
             "dtr_percent": min((rule["extra_time_percent"] for rule in rules if rule["feasible"]), default=None),
             "dtr_minimum_bytes": min((rule["minimum_bytes"] for rule in rules), default=None),
             **{key: plan.get(key) for key in ("feasible", "extra_time_percent", "bound_percent", "gap_percent", "minimum_bytes", "lower_bound_bytes",
                                               "recompute_steps", "planned_by", "plan_time_ms", "proven")}}]


ZOO_GAPS = (("alexnet", 64), ("vgg16", 16), ("resnet50", 16), ("resnet101", 16), ("densenet121", 16))


@part("zoo-gaps", 6, [(model, batch, device) for device in ("k40c", "cpu") for model, batch in ZOO_GAPS], [("resnet20", 32, "k40c")])
def zoo_gaps(o, model, batch, device):
    """Networks in shares of what keeping everything takes, with 8 GiB on the host: extra time, beside what no plan can do."""
    asked = ("plan", model, "--batch", batch, "--device", device)
    keeping = plimsoll(*asked, "--policy", "liveness")[0]["peak_bytes"]
    rows = []
    for percent in (80, 60, 40, 20):
        plan = plimsoll(*asked, "--memory", keeping * percent // 100, "--host-memory", "8GiB")[0]
        rows.append({"model": model, "batch": batch, "device": device, "percent": percent, "keeping_bytes": keeping,
                     **{key: plan.get(key) for key in ("feasible", "extra_time_percent", "bound_percent", "gap_percent", "step_time_ms",
                                                       "lower_bound_bytes", "minimum_bytes", "plan_time_ms", "proven")}})
    return rows


@part("exactness", 2, [("resnet20", 32, "digits"), ("lenet", 64, "digits"), ("resnet18", 8, "synthetic"),
                       ("densenet:depth=40,growth=12", 8, "synthetic")], [("lenet", 32, "digits")])
def exactness(o, model, batch, data):
    """Weights after 20 steps: policies, budgets, again, and killed and resumed."""
    flags = ["--data", data, "--steps", 20, "--exact"]
    sha = lambda *more: trained(model, batch, *flags, *more)["weights_sha256"]
    runs = {"liveness": sha("--policy", "liveness"), "again": sha("--policy", "liveness"), "baseline": sha("--policy", "baseline")}
    arena = plimsoll("plan", model, "--batch", batch, "--data", data, "--policy", "liveness", "--exact")[0]["arena_bytes"]
    tight = ["--memory", arena * 6 // 10, "--host-memory", "8GiB"]
    plan = plimsoll("plan", model, "--batch", batch, "--data", data, "--exact", *tight)[0]
    if not plan["feasible"]:
        tight[1] = plan["minimum_bytes"]
    runs["auto in less memory"] = sha(*tight)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = f"{folder}/c.safetensors"
        more = ["--policy", "liveness", "--checkpoint", checkpoint, "--checkpoint-every", 3]
        words = [PROGRAM, "train", model, "--batch", batch, "--evaluate-every", 0, *flags, *more]
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not os.path.exists(checkpoint) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = trained(model, batch, *flags, *more, "--resume", checkpoint)
        runs["killed and resumed"] = done["weights_sha256"]
    return [{"model": model, "batch": batch, "flags": "--exact", "budget": tight[1], "arena": arena, "resumed_at": done["step"] - done["steps"],
             "sha256": runs}]


def spans(path):
    """What ran in the traced step: op, milliseconds, and the rest of what the trace tells."""
    events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
    return [{**e["args"], "ms": e["dur"] / 1000} for e in events if e["ph"] == "X" and e["pid"] == 2]


@part("families", 2, PEERS, [("lenet", 32)])
def families(o, model, batch):
    """Where the time of a step goes, GFLOP/s against the machine's peak."""
    with tempfile.TemporaryDirectory() as folder:
        trained(model, batch, "--steps", 6, "--trace", f"{folder}/trace.json")
        sums = {}
        for span in spans(f"{folder}/trace.json"):
            entry = sums.setdefault(span["op"], {"count": 0, "ms": 0.0, "gflop": 0.0})
            entry["count"] += 1
            entry["ms"] += span["ms"]
            entry["gflop"] += span.get("gflop", 0.0)
    total = sum(entry["ms"] for entry in sums.values())
    return [{"model": model, "batch": batch, "op": op, "count": e["count"], "ms": e["ms"], "share": e["ms"] / total,
             "gflops": e["gflop"] / e["ms"] * 1000 if e["ms"] else 0} for op, e in sorted(sums.items(), key=lambda item: -item[1]["ms"])]


ATTENTION = [("gpt2:layers=2,width=768,heads=12,context=512", 4), ("gpt2:layers=2,width=768,heads=12,context=2048", 1),
             ("llama:layers=2,width=768,heads=12,kv_heads=4,ffn=2048,context=1024", 2), ("bert:layers=2", 16), ("vit-b16", 4)]


@part("attention", 4, ATTENTION, [("gpt2:layers=1,width=64,heads=2,context=64", 2)])
def attention(o, model, batch):
    """GFLOP/s of attention, forward and backward, beside the matrix products of the same step."""
    with tempfile.TemporaryDirectory() as folder:
        trained(model, batch, "--steps", 6, "--trace", f"{folder}/trace.json")
        sums = {}
        for span in spans(f"{folder}/trace.json"):
            kind = ("forward" if span["op"] == "AttentionForward" else "backward" if span["op"] == "AttentionBackward" else
                    "products" if span["op"].startswith(("FullyConnected", "MatMul")) else "")
            ms, gflop = sums.get(kind, (0.0, 0.0))
            sums[kind] = ms + span["ms"], gflop + span.get("gflop", 0.0)
    return [{"model": model, "batch": batch, **{kind: {"ms": ms, "gflop": gflop} for kind, (ms, gflop) in sums.items() if kind}}]


WINOGRAD = {(3, 1): 144 / 36, (5, 1): 100 / 36, (3, 2): 144 / 81, (4, 2): 256 / 100, (5, 2): 400 / 121}  # by taps and stride: multiplications that are counted, of those that it does


@part("roofline", 3, PEERS, [("lenet", 32)])
def roofline(o, model, batch):
    """A step against what this machine could do at most: each op at the peak of its arithmetic or of its memory, whichever is longer.
    Beside it, with convolutions and products no faster than oneDNN's fastest product of matrices (`product_ms`)."""
    peak = printed_by(("machine_bench", "bench/micro/machine_bench"))[0]
    with tempfile.TemporaryDirectory() as folder:
        step_ms = trained(model, batch, "--steps", 8, "--trace", f"{folder}/trace.json")["step_time_ms"]
        kinds = {}
        for span in spans(f"{folder}/trace.json"):
            winograd = "wino" in span["kernel"]
            kind = "convolutions by Winograd" if winograd else "other convolutions" if span["op"].startswith("Conv") else "the rest"
            is_product = span["op"].startswith(("Conv", "FullyConnected", "MatMul"))
            entry = kinds.setdefault(kind, {"ms": 0.0, "arithmetic_ms": 0.0, "memory_ms": 0.0, "least_ms": 0.0, "product_ms": 0.0})
            arithmetic_ms = span["gflop"] / (WINOGRAD[span["taps"][0], span["stride"][0]] if winograd else 1) / peak["gflops"] * 1000
            memory_ms = span["least_bytes"] / peak["read_gb_per_s"] / 1e6
            least_ms = max(arithmetic_ms, memory_ms)
            product_ms = max(least_ms, arithmetic_ms * peak["gflops"] / peak["product_gflops"]) if is_product else least_ms
            for key, ms in (("ms", span["ms"]), ("arithmetic_ms", arithmetic_ms), ("memory_ms", memory_ms), ("least_ms", least_ms), ("product_ms", product_ms)):
                entry[key] += ms
    return [{"model": model, "batch": batch, "step_ms": step_ms, "peak": peak, "kinds": kinds}]


TIGHT = {  # size, and budgets with what stands behind them; a share is one of what `baseline` takes
    ("alexnet", 200): ([], [(700 << 20, ["--host-memory", "8GiB"])]),
    ("resnet50", 32): ([], [(share, ["--host-memory", "8GiB"]) for share in (0.5, 0.25, 0.12)]),
    ("resnet:6-32-788-6", 1): (["--image-size", 227], [(12 << 30, []), (2 << 30, ["--host-memory", "4GiB", "--spill", "SPILL:30GiB"])]),
    ("resnet32", 8): ([], [(0.5, ["--host-memory", "8GiB"])]),  # for --quick
}


@part("tight", 26, list(TIGHT)[:3], [("resnet32", 8)], repeated=True)
def tight(o, model, batch):
    """Training for real in little memory, beside PyTorch as it is, with checkpoints, and with saved tensors on disk."""
    size, budgets = TIGHT[model, batch]
    deep = model.startswith("resnet:")
    baseline = plimsoll("plan", model, "--batch", batch, *size, "--policy", "baseline")[0]["arena_bytes"]
    cases = [(int(budget * baseline) if budget < 1 else budget, tiers) for budget, tiers in budgets]
    done, torch = [[] for _ in cases], {}
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        flags = [[*size, "--memory", budget, *(t.replace("SPILL", folder) for t in tiers)] for budget, tiers in cases]
        for more in flags:
            train(model, batch, "--steps", 2, *more)  # measures the kernels and the tiers
        for _ in range(1 if deep else o.rounds):
            for runs, more in zip(done, flags):
                runs.append(train(model, batch, "--steps", 2 if deep else 5, *more))
            for saving in ("eager", "checkpoint", "disk") if o.torch else ():  # one process at a time: together they need too much
                told = torch.setdefault(saving, {"step_ms": [], "peak_bytes": 0})
                try:
                    peer = TorchPeer(o.torch, model, batch, "channels_last", "--saving", saving, "--folder", folder)
                    peer.run(1)
                    told["step_ms"].append(statistics.median(peer.run(1 if deep else 3)))
                    told |= {"peak_bytes": max(told["peak_bytes"], peer.last["peak_bytes"]), "version": peer.version}
                    peer.close()
                except PeerFailed as error:
                    told["error"] = str(error)
    rows = []
    for (budget, tiers), runs in zip(cases, done):
        plans, ends = [events[0] for events in runs], [events[-1] for events in runs]
        rows.append({"model": model, "batch": batch, "budget": budget, "tiers": " ".join(tiers).replace("SPILL:", "disk "),
                     "policy": plans[-1]["planned_by"], "predicted_peak": [p["peak_bytes"] for p in plans], "measured_peak": [e["peak_bytes"] for e in ends],
                     "predicted_ms": [p["step_time_ms"] for p in plans], "measured_ms": [e["step_time_ms"] for e in ends],
                     "process_peak": max(e["process_peak_bytes"] for e in ends), "offload_bytes": plans[-1]["offload_bytes"],
                     "recompute_steps": plans[-1]["recompute_steps"], "torch": torch})
    return rows


@part("overlap", 6, [("alexnet", 200), ("vgg16", 32), ("resnet50", 32), ("inception4", 32), ("densenet121", 32)], [("alexnet", 16)])
def overlap(o, model, batch):
    """How much of the copying hides behind compute, by policy (simulated)."""
    device, names, rows = ["--device", "k40c", "--layer-model", "paper"], ["vdnn:layers=all", "dymem", "superneurons", "auto"], []
    whole = plimsoll("plan", model, "--batch", batch, "--policy", "liveness", *device)[0]
    for share in (60, 40):
        row = {"model": model, "batch": batch, "share": share, "unlimited_ms": whole["step_time_ms"], "policies": {}}
        for name, plan in zip(names, compare(model, batch, whole["arena_bytes"] * share // 100, ["--host-memory", "64GiB", *device], names)):
            if name == "auto" and not plan["feasible"]:
                row["least_bytes"] = plan["minimum_bytes"]
            if plan["feasible"]:
                row["policies"][name] = {"step_ms": plan["step_time_ms"], "copy_ms": plan["copy_ms"], "stall_ms": plan["stall_ms"],
                                         "hidden": 1 - plan["stall_ms"] / plan["copy_ms"] if plan["copy_ms"] else None}
        rows.append(row)
    return rows


def printed_by(program, *words):
    """The JSON that a program of the build folder prints."""
    done = run([build(program[0]) / program[1], *words])
    if done.returncode != 0:
        raise RuntimeError(f"{program[0]}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return lines(done.stdout)


@part("wd-solver", 4, [("resnet50", 32)], [("resnet20", 4)])
def wd_solver(o, model, batch):
    """Time to divide one workspace total among all ops, random instances and a network's measured one."""
    return printed_by(("wd_solver_bench", "bench/micro/wd_solver_bench"), model, batch)


CONVOLUTIONS = ROOT / "bench" / "convolutions.csv"


@part("convolutions", 10, [("measuring", "all three"), *(("powerOfTwo", f"{mib}MiB") for mib in (8, 64, 512))], [("measuring", "all three")])
def convolutions(o, sizes, workspace):
    """bench/convolutions.csv at 8, 64 and 512 MiB, undivided against divided; time to measure by batch sizes."""
    if sizes != "measuring":
        return [{"workspace": workspace, **row} for row in plimsoll("convolutions", CONVOLUTIONS, "--workspace", workspace, "--batch-sizes", sizes)]
    head, *rest = CONVOLUTIONS.read_text().splitlines()
    rows = []
    for sizes in ("undivided", "powerOfTwo", "all"):
        with fresh_cache() as folder:
            short = pathlib.Path(folder) / "short.csv"  # one layer: every micro-batch takes long
            short.write_text(f"{head}\n{rest[10]}\n")
            begun = time.monotonic()
            plimsoll("convolutions", short, "--batch-sizes", sizes)
            rows.append({"batch_sizes": sizes, "convolution": rest[10], "profile_seconds": time.monotonic() - begun})
    return rows


WORKSPACE = {"alexnet": 256, "resnet18": 128, "resnet50": 64, "densenet:depth=40,growth=40": 256, "lenet": 32}
LIMITS_MIB = (8, 64, 512)


def traced(model, batch, steps, *more):
    """A short training: milliseconds of a step and of its convolutions, and the largest workspace."""
    with tempfile.TemporaryDirectory() as folder:
        plan, *_, done = train(model, batch, "--steps", steps, "--trace", f"{folder}/trace.json", *more)
        convolution_ms = sum(span["ms"] for span in spans(f"{folder}/trace.json") if span["op"].startswith("Conv"))
    return {"step_ms": done["step_time_ms"], "convolution_ms": convolution_ms, "peak": done["peak_bytes"],
            "largest_workspace": plan["largest_workspace_bytes"], "workspaces": plan["workspaces_bytes"]}


@part("workspace", 100, list(WORKSPACE.items())[:4], [("lenet", 32)], repeated=True)
def workspace(o, model, batch):
    """mu-cuDNN's figures: workspace limits, parts of the batch."""
    every = max(1, batch // 8)
    profiled, cases = {}, []
    with fresh_cache():  # how long measuring takes is a result too
        began = time.monotonic()
        for sizes in ("undivided", "powerOfTwo") if o.quick else ("undivided", "powerOfTwo", "all"):
            plimsoll("profile", model, "--batch", batch, "--batch-sizes", sizes, "--every", every)
            profiled[sizes] = time.monotonic() - began  # each has what those before it measured
        for limit in LIMITS_MIB:
            for sizes in profiled:
                flags = ["--workspace", f"{limit}MiB", "--batch-sizes", sizes]
                plan = plimsoll("plan", model, "--batch", batch, *flags)[0]
                cases.append({"how": "WR", "limit": limit << 20, "ops": plan["weighty_ops"], "sizes": sizes, "flags": flags, "plan": plan})
                if sizes != "undivided":
                    total = (limit << 20) * plan["weighty_ops"]
                    flags = ["--workspace-total", total, "--batch-sizes", sizes]
                    cases.append({"how": "WD", "limit": total, "ops": plan["weighty_ops"], "sizes": sizes, "flags": flags,
                                  "plan": plimsoll("plan", model, "--batch", batch, *flags)[0]})
        runs = {}  # plans that are alike run once a round
        for case in cases:
            plan = case.pop("plan")
            case["predicted"] = {"step_ms": plan["step_time_ms"], "convolution_ms": plan["convolution_ms"], "peak": plan["peak_bytes"],
                                 "largest_workspace": plan["largest_workspace_bytes"], "workspaces": plan["workspaces_bytes"],
                                 "divided": plan["divided_steps"]}
            case["run"] = str(sorted(case["predicted"].items()))
            runs.setdefault(case["run"], {"flags": case["flags"], "measured": []})
        steps = steps_for(cases[0]["predicted"]["step_ms"], 1.5 * o.seconds)
        for _ in range(o.rounds):
            for one in runs.values():
                one["measured"].append(traced(model, batch, steps, "--costs", "estimated", *one["flags"]))
    rows = []
    for case in cases:
        measured = runs[case.pop("run")]["measured"]
        case.pop("flags")
        rows.append({"model": model, "batch": batch, **case, "measured": {key: statistics.median(m[key] for m in measured) for key in measured[0]},
                     "spread": {key: spread([m[key] for m in measured]) for key in ("step_ms", "convolution_ms")},
                     "profile_seconds": profiled[case["sizes"]],
                     "sizes_of_all": "powers of two and multiples of an eighth of the batch" if every > 1 else "every size"})
    return rows


# What is trained for real, and how its images are told to `train` and to concurrency_bench (channels, size, classes).
IMAGES = {("resnet50", 64): (3, 32, 10), ("dcgan", 64): (1, 28, 10), ("inception3", 16): (), ("alexnet", 64): (), ("resnet20", 16): (3, 32, 10)}
CONCURRENCY, QUICK_CONCURRENCY = list(IMAGES)[:4], list(IMAGES)[4:]
STEPS_UNTRIED = 11  # as chosen, before it is tried against one op after another
STEPS_TO_SETTLE = 45  # until a choice was corrected and tried against one op after another; the step time is that of the steps after
CHOICES = {"strategies 1,2": "1,2", "strategies 1,2,3": "1,2,3", "auto": "1,2,3,4"}  # of --inter-op auto


def uniform_settings(quick):
    """Pairs of ops at once and threads each: every power of two, the number of cores, its parts down to an eighth, and twice it."""
    n = cores()
    if quick:
        return sorted({(1, n), (2, max(1, n // 2)), (1, 1)})
    counts = sorted({1 << k for k in range(12) if 1 << k <= n} | {n // k for k in range(1, 9) if n >= k} | {2 * n})
    return [(inter, intra) for inter in counts for intra in counts if inter * intra <= 4 * n]


def size_flags(images):
    """How `train` is told of channels, size, classes. Gray ones of 28 x 28 are MNIST's: random, in its format."""
    if not images:
        return []
    if images[0] != 1:
        return ["--image-size", images[1], "--num-classes", images[2]]
    folder = pathlib.Path(tempfile.gettempdir()) / "plimsoll-bench-mnist"
    folder.mkdir(exist_ok=True)
    for name, count in (("train", 12800), ("t10k", 640)):
        head = lambda *numbers: b"".join(n.to_bytes(4, "big") for n in numbers)
        pixels = random.Random(1).randbytes(count * images[1] ** 2)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head(0x803, count, images[1], images[1]) + pixels)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(head(0x801, count) + bytes(k % images[2] for k in range(count)))
    return ["--data", f"mnist:{folder}"]


@part("concurrency", 24, CONCURRENCY, QUICK_CONCURRENCY, repeated=True)
def concurrency(o, model, batch):
    """Every uniform setting of ops at once and threads each against --inter-op auto by strategies.

    Table I and Figure 3 of the concurrency paper, on this machine, whatever it has."""
    size = size_flags(IMAGES[model, batch])
    step_ms = trained(model, batch, *size, "--steps", 3)["step_time_ms"]  # measures the kernels
    steps = steps_for(step_ms, o.seconds, least=4)
    settings = {f"{a} x {b}": ["--inter-op", a, "--intra-op", b] for a, b in uniform_settings(o.quick)}
    settings |= {name: ["--inter-op", "auto", "--strategies", numbers] for name, numbers in CHOICES.items()}
    times, said, slow = {name: [] for name in settings}, {}, set()
    for setting, how in settings.items():  # whatever each measures, before the clock runs
        train(model, batch, *size, "--steps", 4 * min(cores(), 16) + 6 if setting in CHOICES else 2, *how)
    for _ in range(o.rounds):
        for setting, how in settings.items():
            if setting in slow:
                continue
            count = steps + STEPS_TO_SETTLE if setting == "auto" else min(steps, STEPS_UNTRIED) if setting in CHOICES else steps
            plan, *_, done = train(model, batch, *size, "--steps", count, *how)
            times[setting].append(done["step_time_ms"])
            if setting in CHOICES:
                said[setting] = plan["step_time_ms"]
            elif done["step_time_ms"] > 2 * step_ms:
                slow.add(setting)  # once is enough
    middle = {setting: statistics.median(ms) for setting, ms in times.items()}
    best = min((name for name in middle if name not in CHOICES), key=middle.get)
    return [{"model": model, "batch": batch, "step_ms": middle, "spread_ms": {name: max(ms) - min(ms) for name, ms in times.items()},
             "recommended": f"1 x {cores()}", "best_uniform": best, "predicted_ms": said}]


@part("operations", 10, [tuple(model for model, _ in CONCURRENCY)], [("resnet20",)])
def operations(o, *models):
    """Ops by thread count, hill climbing against them; two ops side by side; the same steps on simulated cores.

    Tables II, III and V of the concurrency paper, on this machine, whatever it has."""
    words = []
    for (model, batch), images in IMAGES.items():
        if model in models:
            train(model, batch, *size_flags(images), "--steps", 2)  # measures the kernels
            words += (["--"] if words else []) + [model, batch, *images]
    return printed_by(("concurrency_bench", "bench/concurrency_bench"), *words)


@part("overhead", 3, CONCURRENCY, QUICK_CONCURRENCY)
def overhead(o, model, batch):
    """What starting a step of a plan costs, with kernels that do nothing, as a share of a training step."""
    idle = printed_by(("side_by_side_bench", "bench/micro/side_by_side_bench"), model)[0]
    step_ms = trained(model, batch, *size_flags(IMAGES[model, batch]), "--steps", 6)["step_time_ms"]
    us = {name: idle[f"{name}_processor_us"] for name in ("serial", "one_core", "two_cores")}
    return [{"model": model, "batch": batch, "ops": idle["steps"], "step_ms": step_ms, "us_an_op": us,
             "share": {name: each * idle["steps"] / 1000 / step_ms for name, each in us.items()}}]


def paper_tables():
    """Those that the program makes; those that were recorded where there is no program yet, for --list."""
    there = os.path.exists(PROGRAM)
    return [(name,) for name in ([t["name"] for t in plimsoll("reproduce")] if there else records.Results.read("papers").cases)]


@part("papers", 15, paper_tables, [("figure10",), ("layers",)])
def papers(o, table):
    """The papers' tables, theirs beside ours (simulated)."""
    return plimsoll("reproduce", table)


@part("largest", 12, [*((model, "batch") for model in ("alexnet", "vgg16", "inception4", "resnet50", "resnet101", "resnet152")),
                      ("resnet:6-32-N-6", "depth")], [("alexnet", "batch")])
def largest(o, model, what):
    """The largest batches and depths that `auto` fits on the papers' GPU (simulated)."""
    more = ["--image-size", 224] if model == "vgg16" else ["--batch", 16] if what == "depth" else []
    more += ["--device", "k40c", "--memory", "11.2GiB", "--host-memory", "107GiB", "--layer-model", "paper"]
    found = plimsoll("max", model, "--what", what, *more)[0]
    return [{"model": model, "what": what, "ours": found[what], "limited_by": found["limited_by"], "host_bytes": found["host_bytes"]}]


# Running them.

DEFAULTS = {"rounds": 3, "seconds": 4.0}


class Run:
    """Measures parts case by case, writes what is there after each, and tells how far it is."""

    def __init__(self, options, parts):
        self.o, self.parts, self.source, self.machine, self.failed = options, parts, source(), None, []
        self.folder = ROOT / "runs" / "quick" if options.quick else RESULTS

    def origin(self, part):
        return {**self.source, "built_here": built_here(), "date": datetime.datetime.now().isoformat(" ", "minutes"), "command": part.command(self.o),
                **({"rounds": self.o.rounds} if part.repeated else {}), "machine": self.machine}

    def wanted(self, part, results):
        for case in part.cases_for(self.o):
            kept = results.cases.get(case_name(case))
            done = kept and not self.source["dirty"] and self.source.items() <= kept.run.items() and self.machine in (None, kept.run["machine"])
            if not (self.o.go_on and done) and (not self.o.only or set(self.o.only) & {str(word) for word in case}):
                yield case

    def work(self):
        """(part, case, about how many seconds): as long as it took before, where it was measured alike; else an equal share of the part's."""
        for part in self.parts:
            results = records.Results.read(part.file(self.o), self.folder)
            for case in self.wanted(part, results):
                kept = results.cases.get(case_name(case))
                alike = kept and kept.seconds and kept.run["command"] == part.command(self.o)
                yield part, case, kept.seconds if alike else part.seconds(self.o)

    def measure(self):
        build("plimsoll_cli")
        self.machine = machine()
        work = list(self.work())
        if not work:
            words = {str(word) for part in self.parts for case in part.cases_for(self.o) for word in case}
            unknown = "" if not self.o.only or words & set(self.o.only) else f": --only knows these words: {', '.join(sorted(words))}"
            print(f"there is nothing to measure{unknown}", file=sys.stderr)
        begun, done_s, whole_s = time.monotonic(), 0, sum(seconds for *_, seconds in work)
        for i, (part, case, seconds) in enumerate(work):
            gone = time.monotonic() - begun
            to_go = (whole_s - done_s) * (gone / done_s if done_s else 1)
            until = (datetime.datetime.now() + datetime.timedelta(seconds=to_go)).strftime("%H:%M")
            print(f"[{i + 1}/{len(work)}] {part.name}: {case_name(case)}; {gone / 60:.0f} min gone, about {to_go / 60:.0f} to go, until {until}",
                  file=sys.stderr, flush=True)
            self.measure_case(part, case)
            done_s += seconds
        for failure in self.failed:
            print(f"failed: {failure}", file=sys.stderr)

    def measure_case(self, part, case):
        busy, begun = busy_share(), time.monotonic()
        if busy > BUSY:
            print(f"  the machine is {100 * busy:.0f} % busy with something else: figures will be off", file=sys.stderr, flush=True)
        try:
            rows = part.measure(self.o, *case)
        except Exception as error:  # the other cases go on; what an earlier run has measured stays, marked as older
            traceback.print_exc()
            self.failed.append(f"{part.name}: {case_name(case)}: {error}")
            return
        if source() != self.source:
            raise SystemExit(f"the work tree is not what it was at the beginning ({self.source['commit']}): nothing more is recorded")
        results = records.Results.read(part.file(self.o), self.folder)
        results.cases[case_name(case)] = records.Case(self.origin(part), rows, round(time.monotonic() - begun, 1), round(busy, 3))
        names = [case_name(c) for c in part.cases_for(self.o)]
        results.cases = {name: results.cases[name] for name in names if name in results.cases}
        results.write()

    def list_work(self):
        work, total = list(self.work()), 0
        for part in self.parts:
            seconds = [s for p, _, s in work if p is part]
            total += sum(seconds)
            print(f"{part.name:<15} {len(seconds):>3} cases {sum(seconds) / 60:>6.0f} min   {part.about}")
        print(f"{'':<25} {total / 60:>6.0f} min in all")


def options_from(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["all", *PARTS], metavar="PART", help=f"all, or of {', '.join(PARTS)}")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python program that has torch, for peers, python, transformers, networks and tight")
    parser.add_argument("--rounds", type=int, default=DEFAULTS["rounds"], help="so often each is measured, in turns (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=DEFAULTS["seconds"], help="about so long each time (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only cases with this word, such as a network; the others stay")
    parser.add_argument("--go-on", action="store_true", help="keep what is of this commit already")
    parser.add_argument("--quick", action="store_true", help="a trial: a tiny case of each part, one round, into runs/quick/")
    parser.add_argument("--list", action="store_true", help="only say what would be measured, and about how long it takes")
    parser.add_argument("--dirty", action="store_true", help="`all` even with uncommitted changes or a program that was not built here; recorded")
    parser.add_argument("--folder", help="where `tight` and `billion` may write")
    parser.add_argument("--problems", metavar="FOLDER", help="planner: these graphs of costs, in shares of their peaks, in place of those that are made")
    parser.add_argument("--name", help=f"{', '.join(records.NAMED)}: for another machine's results beside this one's")
    options = parser.parse_args(arguments)
    everything = "all" in options.parts
    if options.name and not set(options.parts) <= set(records.NAMED):
        parser.error(f"--name is for {', '.join(records.NAMED)}")
    if everything and not (options.torch or options.quick or options.list):
        parser.error("all needs --torch PYTHON; or name the parts")
    if options.quick:
        options.rounds, options.seconds = 1, 0.2
    return options, [part for name, part in PARTS.items() if everything or name in options.parts]


def main():
    options, parts = options_from(sys.argv[1:])
    os.environ.setdefault("PLIMSOLL_DATA", str(ROOT / "data"))
    this = Run(options, parts)
    if options.list:
        return this.list_work()
    doubts = [text for text, there in (("the work tree has changes that are not committed", this.source["dirty"]),
                                       (f"{PROGRAM} was not built from this work tree", not built_here())) if there]
    for doubt in doubts:
        print(f"bench.py: {doubt}; the results will say so", file=sys.stderr)
    if doubts and "all" in options.parts and not (options.dirty or options.quick):
        raise SystemExit("bench.py: not measured; --dirty measures all the same")
    with fresh_cache():
        this.measure()
    tables.write(this.folder, tables.QUICK if options.quick else tables.DOCS)
    return 1 if this.failed else 0


if __name__ == "__main__":
    sys.exit(main())

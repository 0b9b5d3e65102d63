"""What a check works with: Plimsoll and PyTorch as processes, the time that is left, and where results go."""
import collections
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import time

from gpu.machine import ROOT

LEAST_SECONDS = 5  # less is not enough to begin anything


KILL_SECONDS = 5  # that a process may take to be gone


class OutOfTime(Exception):
    pass


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Clock:
    """All the time that there is. A check begins items as long as its share of what was left lasts; what is begun may run to the end of
    all time. What a check leaves, those after it share."""

    def __init__(self, seconds):
        self.end = self.share_end = time.monotonic() + seconds

    def share(self, weight, of_all):
        self.share_end = time.monotonic() + self.left() * weight / of_all

    def may_begin(self):
        return time.monotonic() < self.share_end and self.left() >= LEAST_SECONDS

    def left(self):
        return max(0.0, self.end - time.monotonic())


Done = collections.namedtuple("Done", ("code", "out", "errors"))  # exit code, standard output, lines of standard error


def reason(done):
    return done.errors[-1].removeprefix("plimsoll: ") if done.errors else f"exit code {done.code}"


class Bench:
    def __init__(self, options, scale, clock, report, folder, environment):
        self.options, self.scale, self.clock, self.report, self.folder, self.environment = options, scale, clock, report, folder, environment
        self.device = options.device
        self.searches = {}  # by network: those that run beside what is checked
        self.running = set()

    def row(self, what, result, good=None, **values):
        self.report.row(what, result, good, **values)

    def run(self, *words, most=150, environment=None, input=None):
        """Runs it for `most` seconds; OutOfTime is raised where all time ends before that. What it has started ends with it, and what does
        not end, in a driver that hangs, is left behind."""
        left = self.clock.left()
        if left < LEAST_SECONDS:
            raise OutOfTime("no time was left")
        process = subprocess.Popen([str(w) for w in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   errors="replace", env=self.environment if environment is None else environment, start_new_session=True)
        self.running.add(process)
        stopped, out, errors = [], "", ""
        try:
            out, errors = process.communicate(input, timeout=min(most, left))
            code = process.returncode
        except subprocess.TimeoutExpired:
            kill(process)
            try:
                out, errors = process.communicate(timeout=KILL_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            if left < most:
                raise OutOfTime(f"cut off after {left:.0f} s")
            code, out, stopped = 124, "", [f"stopped after {most} s"]
        except BaseException:  # this script is stopped
            kill(process)
            raise
        finally:
            self.running.discard(process)
        return Done(code, out, [line for line in errors.splitlines() if line.strip()] + stopped)

    def stop(self):
        """Ends what runs, in other threads too, and lets nothing begin."""
        self.clock = Clock(0)
        for process in list(self.running):
            kill(process)

    # Plimsoll.

    def plimsoll(self, *words, most=150):
        """(what it wrote as JSON, how it ended)"""
        done = self.run(self.folder / "plimsoll", *words, "--json", "-", most=most)
        return [json.loads(line) for line in done.out.splitlines()], done

    def devices(self):
        return {d["name"]: d for d in self.plimsoll("devices")[0]}

    def train_lines(self, *launcher, model, words, batch, steps, device, environment=None):
        """({"plan": ..., "steps": [...], "done": ...}, how it ended)"""
        done = self.run(*launcher, self.folder / "plimsoll", "train", model, "--batch", batch, "--data", f"synthetic:{max(10000, batch)}",
                        "--evaluate-every", 0, "--steps", steps, "--workers", min(16, os.cpu_count()), "--device", device, *words, "--json", "-",
                        environment=environment)
        lines = [json.loads(line) for line in done.out.splitlines()]
        return {"steps": [e for e in lines if e["event"] == "step"], **{e["event"]: e for e in lines if e["event"] != "step"}}, done

    def train(self, model, *words, batch, device=None, steps=12):
        """What a training tells: {"plan": ..., "steps": [...], "done": ...}, or {"error": text, "code": number}."""
        run, done = self.train_lines(model=model, words=words, batch=batch, steps=steps, device=device or self.device)
        if done.code != 0 or "done" not in run:
            run.update(error=reason(done), code=done.code)
        return run

    def rate(self, model, *words, batch, what=None, device=None, steps=12):
        """Images per second of the steps alone, as of PyTorch, whose batch lies on the GPU; None, and a row, where that failed."""
        run = self.train(model, *words, batch=batch, steps=steps, device=device)
        if "error" in run:
            self.row(what or f"{model} {batch}", run["error"][:120], False)
            return None
        done, plan = run["done"], run["plan"]
        return {"model": model, "batch": batch, "images_per_second": batch / done["step_time_ms"] * 1000, "step_ms": done["step_time_ms"],
                "wall_images_per_second": done["images_per_second"], "data_wait_percent": done["data_wait_percent"],
                "predicted_ms": done["predicted_step_time_ms"], "peak_bytes": done["peak_bytes"], "captured": done["captured"],
                "layout": plan["layout"], "policy": plan["policy"], "input_buffers": plan["input_buffers"],
                "predicted_wall_ms": done["predicted_wall_time_ms"]}

    # PyTorch: in its own environment, without libraries of ours.

    def torch(self, model, batch, *words, layouts=None, steps=10):
        """The faster of these layouts: {"torch_images_per_second": ..., "torch_layout": ...}, or {"torch_error": text}; {} without --torch."""
        best = {}
        for layout in (layouts or self.options.torch_layouts.split(",")) if self.options.torch else ():
            done = self.run(self.options.torch, ROOT / "bench" / "peers" / "torch_bench.py", model, batch, layout, "--device", "cuda", *words,
                            environment=dict(os.environ), input=f"run 5\nrun {steps}\nquit\n")
            lines = done.out.splitlines()
            if done.code != 0 or len(lines) < 3:
                best = best or {"torch_error": reason(done)[:120]}
                continue
            last = json.loads(lines[-1])
            rate = batch / sorted(last["step_ms"])[len(last["step_ms"]) // 2] * 1000
            if rate > best.get("torch_images_per_second", 0):
                best = {"torch_images_per_second": rate, "torch_layout": layout, "torch_peak_bytes": last["peak_bytes"]}
        return best


def theirs(torch, name="PyTorch"):
    """The end of a row's text."""
    if "torch_error" in torch:
        return f", {name}: {torch['torch_error']}"
    return f", {name} {torch['torch_images_per_second']:.1f} ({torch['torch_layout']})" if torch else ""


def moved_bytes(signature):
    """Of an op's inputs and outputs, each once: "Add(4x6 f32, 4x6 f32)->(4x6 f32)"."""
    bits = {"f32": 32, "f64": 64, "i32": 32, "i64": 64, "u8": 8, "bit": 1}
    total = 0
    for tensors in re.search(r"\(([^()]*)\)->\(([^()]*)\)$", signature).groups():
        for shape, dtype in (tensor.split(" ")[:2] for tensor in tensors.split(", ") if tensor):
            total += (math.prod(map(int, shape.split("x"))) if shape != "scalar" else 1) * bits[dtype]
    return total // 8


def overlap(path):
    """The part of the copies' time during which compute ran too, in the measured step of a trace."""
    events = [e for e in json.loads(pathlib.Path(path).read_text())["traceEvents"] if e["ph"] == "X"]
    if not events:
        return None
    measured = max(e["pid"] for e in events)
    spans = {True: [], False: []}
    for e in events:
        if e["pid"] == measured:
            spans[e["tid"] == 0].append((e["ts"], e["ts"] + e["dur"]))
    total = sum(b - a for a, b in spans[False])
    both = sum(max(0, min(b, d) - max(a, c)) for a, b in spans[False] for c, d in spans[True])
    return both / total if total > 0 else None

#!/usr/bin/env python3
"""Turns bench/results/*.json into docs/results.md, docs/slowdown.svg and the tables of the README, between its markers.

  bench/tables.py           writes them
  bench/tables.py --check   fails where they are not what the results give

A row tells of which commit it is: those older than the newest of their table, or of another machine, are marked with a star and named
below it.
"""
import argparse
import dataclasses
import difflib
import json
import pathlib
import re
import statistics
import sys

import records
from records import RESULTS, ROOT, spread

MIB, GIB = 1 << 20, 1 << 30


@dataclasses.dataclass
class Pages:
    """Where the tables go."""
    results: pathlib.Path
    slowdown: pathlib.Path
    readme: pathlib.Path | None


DOCS = Pages(ROOT / "docs" / "results.md", ROOT / "docs" / "slowdown.svg", ROOT / "README.md")
QUICK = Pages(ROOT / "runs" / "quick" / "results.md", ROOT / "runs" / "quick" / "slowdown.svg", None)


def table(head, rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def percent(part, digits=1):
    return f"{100 * part:.{digits}f} %"


def more(value, whole):
    """By how much a value lies above another."""
    return f"{100 * (value / whole - 1):+.1f} %"


def middle(values, digits=1):
    """Median and spread, where there is more than one."""
    values = [v for v in values if v is not None]
    if not values:
        return ""
    text = f"{statistics.median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {percent(spread(values) / 2, 0)}"


def peaks(x, key):
    return ", ".join(f"{b:,}" for b in dict.fromkeys(x[key])) or "not measured"


def equal_peaks(rows):
    """Of how many rows every run had the peak that its plan predicted, to the byte; empty where none was measured."""
    measured = [x for x in rows if x["measured_peak"]]
    return f"{sum(x['predicted_peak'] == x['measured_peak'] for x in measured)} of {len(measured)}" if measured else ""


# Of which commit a row is.

class Ages:
    """Marks what is older than the newest run of some results."""

    def __init__(self, *results):
        runs = [run for r in results for run in r.runs()]
        self.newest = max(runs, key=lambda run: run["date"]) if runs else None

    def mark(self, run):
        """A star for another commit, or another machine."""
        alike = run["commit"] == self.newest["commit"] and run["machine"]["device"] == self.newest["machine"]["device"]
        return "" if alike else " \\*"

    def named(self, results):
        """The runs of these results that are marked, each with its cases."""
        return [(run, [name for name, case in results.cases.items() if case.run == run]) for run in results.runs() if self.mark(run)]


def commit(run):
    doubts = ["with changes that were not committed"] * bool(run.get("dirty")) + ["the program was not built here"] * (run.get("built_here") is False)
    return f"commit {run['commit']}" + (f" ({'; '.join(doubts)})" if doubts else "")


def on(machine):
    there = [f"{machine['cores']} cores", machine["device"], f"{machine['memory_mib'] / 1024:.0f} GiB", machine.get("compiler")]
    return ", ".join(filter(None, there))


def origin(results):
    """Below a table: when, of which commit, where, and how to measure it again."""
    ages = Ages(results)
    new = ages.newest
    rounds = f"; {new['rounds']} round{'s' if new['rounds'] > 1 else ''}" if "rounds" in new else ""
    busy = max((case.busy or 0 for case in results.cases.values()), default=0)
    text = f"{new['date']}, {commit(new)}; {on(new['machine'])}{rounds}. Again: `{new['command']}`.\n"
    if busy > 0.05:
        text += f"\nOther programs took up to {percent(busy, 0)} of the processor time just before a case.\n"
    for run, cases in ages.named(results):
        where = "" if run["machine"]["device"] == new["machine"]["device"] else f"; {on(run['machine'])}"
        text += f"\n\\* {commit(run)}, {run['date']}{where}: {', '.join(cases)}.\n"
    return text


class Section:
    """A heading, what stands below it, and whose results it shows."""

    def __init__(self, bench, title, body):
        self.bench, self.title, self.body = bench, title, body

    def text(self, title, results):
        return f"## {title}\n\n{self.body(results).strip()}\n\n{origin(results)}"


SECTIONS = []


def section(bench, title):
    def add(body):
        SECTIONS.append(Section(bench, title, body))
        return body
    return add


def named(rows, ages):
    """Each row with what its first cells say: network, with a mark where it is older, and batch."""
    return [(row, (f"{row['model']}{ages.mark(row['run'])}", row["batch"])) for row in rows]


WAYS = ("eager nchw", "eager channels_last", "compiled nchw", "compiled channels_last")


def peers_table(results, ages):
    rows = []
    for x, first in named(results.rows(), ages):
        rate, failed = x["images_per_second"], x["failed"]
        cell = lambda way: f"{rate[way]:.1f}" if way in rate else f"failed: {failed[way]}" if way in failed else "not measured"
        fastest = lambda way: f"**{cell(way)}**" if way == x["fastest_peer"] else cell(way)
        rows.append((*first, cell("plimsoll"), *map(fastest, WAYS), f"{x['ratio']:.2f}x" if x["ratio"] else ""))
    return table(("network", "batch", "Plimsoll", *WAYS, "against the fastest"), rows)


@section("peers", "Images per second against PyTorch")
def peers(r):
    versions = ", ".join(dict.fromkeys(x["torch"] for x in r.rows() if x["torch"])) or "none"
    threads = ", ".join(dict.fromkeys(str(x["threads"]) for x in r.rows() if x["threads"])) or "no"
    worst = max((value, f"{x['model']}, {name}") for x in r.rows() for name, value in x["spread"].items())
    text = (f"fp32, forward + backward + SGD with momentum, synthetic data, in turns in one run; median of the rounds. PyTorch {versions}, with "
            f"{threads} threads, by its own choice: as it is and with `torch.compile` (default mode), each with both layouts; its fastest is bold. The largest spread of any "
            f"cell is {percent(worst[0], 0)} ({worst[1]}).\n\n{peers_table(r, Ages(r))}")
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        told = [x["compiler"].get(way, {}) for way in WAYS]
        if any(told):
            step = lambda way: f"{x['first_step_s'][way]:.0f}" + (" (from its cache)" if x["compiler"][way]["from_cache"] else "")
            rows.append((*first, *(step(way) if way in x["compiler"] else "" for way in WAYS[2:]), sum(t.get("graph_breaks", 0) for t in told)))
    if rows:
        text += "\nCompiling is not in these rates. It takes PyTorch, with the first step, in seconds:\n\n"
        text += table(("network", "batch", *WAYS[2:], "graph breaks"), rows)
    return text


@section("python", "Networks through Python against PyTorch")
def python(r):
    versions = ", ".join(dict.fromkeys(x["torch"] for x in r.rows() if x["torch"])) or "none"
    shares = [x["python_share"] for x in r.rows() if x["python_share"] is not None]
    worst = max((value, f"{x['model']}, {name}") for x in r.rows() for name, value in x["spread"].items())
    own = f" Python's own share of a step, all that is not in the core, is at most {percent(max(shares))}." if shares else ""
    return (f"`plimsoll.compile` on torchvision's modules and a U-Net (batch norm, 32 to 512 channels, 128 x 128), fp32, SGD with momentum, in turns in one run with "
            f"PyTorch {versions}, as it is and with `torch.compile`, each with both layouts; its fastest is bold.{own} The largest spread of any cell is "
            f"{percent(worst[0], 0)} ({worst[1]}).\n\n{peers_table(r, Ages(r))}")


@section("transformers", "Transformers at their real sizes, against PyTorch")
def transformers(r):
    names = {"plimsoll": "Plimsoll, no limit", "budget": "in its budget", "spill": "in 1,000 MiB and disk", "eager": "eager", "compiled": "compiled"}
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        times = {way: statistics.median(ms for one in told for ms in one["step_ms"]) for way, told in x["runs"].items()}
        best = min((ms for way, ms in times.items() if way in ("eager", "compiled")), default=None)

        def cell(way, x=x, times=times, best=best):
            if way not in times:
                return f"failed: {x['failed'][way]}" if way in x["failed"] else "not measured"
            told = x["runs"][way]
            arena = f"{max(one['arena_bytes'] for one in told) / MIB:.0f} / " if "arena_bytes" in told[0] else ""
            ratio = f", {times[way] / best:.2f}x" if best and "arena_bytes" in told[0] else ""
            return f"{times[way]:.0f} ms{ratio}; {arena}{max(one['peak_bytes'] for one in told) / MIB:.0f} MiB"

        rows.append((*first, x["budget"], *map(cell, names)))
    versions = ", ".join(dict.fromkeys(f"{one['torch']}, transformers {one['transformers']}" for x in r.rows() for told in x["runs"].values() for one in told)) or "none"
    allocators = {one.get("preloaded", "") for x in r.rows() for way in ("eager", "compiled") for one in x["runs"].get(way, [])} - {""}
    if allocators:
        versions += f" (with {', '.join(sorted(allocators))}, which makes it faster)"
    return (f"`plimsoll.compile` on Hugging Face's modules from their default configurations with random weights (GPT-2 small and a Llama of 125 M with 512 tokens, BERT base "
            f"with 128 and a mask of padding, ViT-B/16), fp32, AdamW, dropout as configured, each way in a process of its own, in turns with PyTorch {versions}: time of a step, as a "
            "multiple of PyTorch's faster one; the arena's peak; what the process took beyond Python and its libraries.\n\n"
            + table(("network", "batch", "budget", *names.values()), rows))


@section("sequences", "Longer texts, against PyTorch")
def sequences(r):
    rows, ages = [], Ages(r)
    for x in r.rows():
        def cells(way, arena, x=x):
            told = x[way]
            if "error" in told:
                return (f"failed: {told['error']}", *[""] * (1 + arena))
            return (*([f"{told['arena_bytes'] / MIB:.0f}"] if arena else []), f"{told['peak_bytes'] / MIB:.0f}", f"{statistics.median(told['step_ms']):.0f}")

        rows.append((f"{x['model']}{ages.mark(x['run'])}", x["tokens"], *cells("plimsoll", True), *cells("eager", False)))
    return ("One text a step through Hugging Face's GPT-2 small, fp32, AdamW, dropout as configured, without a limit; each in a process of its own, one step "
            "after two that are not counted. Process: what it took beyond Python and its libraries.\n\n"
            + table(("network", "tokens", "arena MiB", "process MiB", "step ms", "eager PyTorch, process MiB", "step ms"), rows))


@section("curve", "A small GPT from scratch, against PyTorch")
def curve(r):
    parts = []
    for x in r.rows():
        ours, theirs = (x[way]["losses"] for way in ("plimsoll", "eager"))
        apart = [100 * abs(a - b) / b for a, b in zip(ours, theirs)]
        length = max(1, len(ours) // 10)
        rows = []
        for first in range(0, len(ours) - length + 1, length):
            a, b = (statistics.fmean(way[first:first + length]) for way in (ours, theirs))
            rows.append((f"{first + 1} to {first + length}", f"{a:.4f}", f"{b:.4f}", f"{100 * abs(a - b) / b:.3f} %", f"{max(apart[first:first + length]):.3f} %"))
        a, b = (x[way]["held_out"] for way in ("plimsoll", "eager"))
        rows.append(("held-out text", f"{a:.4f}", f"{b:.4f}", f"{100 * abs(a - b) / b:.3f} %", ""))
        parts.append(f"{len(ours)} steps ({x['minutes']} minutes of eager PyTorch) of a GPT of {x['parameters'] / 1e6:.1f} million parameters (6 blocks, width 384, 6 heads, 128 bytes of "
                     "context, dropout 0.1 in attention too) on `data/paradise_lost.txt`, batch 16, AdamW, fp32. Both begin with the same weights and get the same batches; "
                     "PyTorch is given the dropout masks that Plimsoll draws. Losses are means over the steps; the last column is the largest difference of a single step.\n\n"
                     + table(("steps", "Plimsoll", "PyTorch", "apart", "at most"), rows))
    return "\n".join(parts)


def bound_seconds(x):
    """What no plan within the budget is below, copies to and from disk with it; nothing of results from before it was kept."""
    return f"{x['bound_ms'] / 1000:.1f}" if x.get("bound_ms") else ""


@section("billion", "1.2 billion parameters")
def billion(r):
    ages = Ages(r)
    rows = [(f"{x['tokens']}{ages.mark(x['run'])}", f"{x['budget'] / MIB:.0f}", f"{x['measured_peak'] / MIB:.0f}", f"{x['process_peak'] / MIB:.0f}", f"{x['predicted_ms'] / 1000:.1f}",
             f"{x['step_ms'] / 1000:.1f}", f"{x['lower_bound_ms'] / 1000:.1f}", bound_seconds(x), f"{x['disk_bytes'] / GIB:.1f}", f"{1000 * x['tokens'] / x['step_ms']:.1f}") for x in r.rows()]
    return ("A Llama of 24 blocks (width 2048, 32 heads, 4 of keys, 5632 inside, 32,000 tokens), all parameters trained by AdamW in fp32 on a text of random tokens, "
            "batch 1; what does not fit lies in a file on disk. The parameters alone are 4.2 GiB, with gradients and Adam's moments 17 GiB. \"All ops\" is what the ops "
            "take once; no plan within the budget takes less than the bound, by their times and the speed of the disk. Disk: read and written in a step.\n\n"
            + table(("tokens", "budget MiB", "arena's peak", "process MiB", "predicted s", "step s", "all ops s", "bound s", "disk GiB", "tokens/s"), rows))


@section("billion-python", "1.2 billion parameters in 6 GiB, against PyTorch")
def billion_python(r):
    ages, rows = Ages(r), []
    what = {"llama-1b-lora": "LoRA", "llama-1b": "all parameters"}
    for x in r.rows():
        name = (f"{what.get(x['model'], x['model'])}{ages.mark(x['run'])}", {"plimsoll": "Plimsoll", "eager": "PyTorch"}[x["way"]])
        if "error" in x:
            rows.append((*name, x["error"], *[""] * 6))
            continue
        ms = statistics.median(x["step_ms"])
        ours = x["way"] == "plimsoll"
        rows.append((*name, f"{ms / 1000:.1f}", f"{x['predicted_ms'] / 1000:.1f}" if ours else "", f"{x['lower_bound_ms'] / 1000:.1f}" if ours else "", bound_seconds(x), f"{x['arena_bytes'] / MIB:.0f}" if ours else "",
                     f"{x['process_bytes'] / MIB:.0f}", f"{1000 * x['tokens'] / ms:.1f}"))
    return ("Hugging Face's Llama with the sizes of the table above, 512 tokens, fp32, AdamW: LoRA of rank 16 on the four projections of attention, and all parameters. The kernel "
            "gives the process 6 GiB (a memory cgroup) and kills what needs more. Plimsoll is told `memory=\"5600MiB\", memory_is=\"process\"` and a folder on disk. "
            "\"All ops\" is what the ops take once; no plan within the budget takes less than the bound, by their times and the speed of the disk. Process: the most that was resident, pages of files included, which the system takes back where it needs them.\n\n"
            + table(("trained", "by", "step s", "predicted s", "all ops s", "bound s", "arena MiB", "process MiB", "tokens/s"), rows))


@section("networks", "People's networks, against PyTorch")
def networks(r):
    ages, short, long = Ages(r), [], []
    error = lambda x, key: "" if x[key] is None else f"{x[key]:.0e}"
    for x in r.rows():
        name = f"{x['network']}{ages.mark(x['run'])}"
        if x["state"] not in ("trains", "differs"):
            (short if x["steps"] < 20 else long).append((name, f"{x['state']}: {x['said']}", *[""] * 6))
        elif x["steps"] < 20:
            short.append((name, x["state"], error(x, "loss_error"), error(x, "gradient_error"), error(x, "eager_gradient_error"),
                          f"{x['worst_parameter_factor']:.1f}", f"{x['measured_peak_bytes'] / MIB:.1f}",
                          f"{x['measured_peak_at_minimum'] / MIB:.1f}"))
        else:
            long.append((name, x["state"], *(error(x, key) for key in ("drift", "eager_drift", "late_drift", "eager_late_drift"))))
    trained = sum(row[1] == "trains" for row in short)
    text = (f"Of `bench/pytorch_zoo.py`: {trained} of {len(short)} train. Three steps each, batch 2 for images, one thread, `exact=True`, dropout off: with plenty "
            "of memory, in 60 % of what that took with host memory beside it, and in the least memory that an `Infeasible` answer names; all three to the same "
            "bits, else the state is \"differs\". Errors are relative: the first loss against eager PyTorch's, all gradients of the first step against double "
            "precision, beside PyTorch's own in single precision. \"Worst\" is the parameter whose gradient is off by most, in multiples of PyTorch's own error of "
            "it, of errors above 1e-5 of the gradient. Where a network normalises by batches of two, one ReLU that rounding switches makes these errors, in either arithmetic.\n\n"
            + table(("network", "state", "loss off", "gradients off", "PyTorch's off", "worst", "plenty MiB", "least MiB"), short))
    if long:
        text += (f"\nTrained for {max(x['steps'] for x in r.rows())} steps on one batch, SGD with momentum. How far the losses are from eager PyTorch's, at most over the first "
                 "20 steps, and in the mean of the last 20; beside them how far PyTorch's own single precision is from its double precision.\n\n"
                 + table(("network", "state", "first 20", "PyTorch's own", "last 20", "PyTorch's own"), long))
    return text


@section("memory", "The whole process against its budget")
def memory(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        limit = x.get("hard_limit_error") or f"{'finished' if x['survived'] else 'killed'} under {x['hard_limit'] / MIB:.0f} MiB"
        said = f"{x['said'] / MIB:.1f}" if "said" in x else ""
        rows.append((*first, x.get("tier", ""), f"{x['budget'] / MIB:.1f}", f"{x['process_peak'] / MIB:.1f}", f"{x['beyond_budget'] / MIB:.1f}", said, limit))
    return ("Peak resident size by the kernel's account (VmHWM), everything included: libraries, kernels' code, batches being prepared. Said: "
            "what the plan says that the process takes at most. Hard limit: a control group of that size (older: budget + 200 MiB). One run "
            "each.\n\n"
            + table(("network", "batch", "tier", "budget MiB", "process peak MiB", "beyond MiB", "said MiB", "hard limit"), rows))


def prediction_errors(rows, first):
    """Predicted over measured step times less 1: of the first training of each network, or of the median of the later ones."""
    pairs = [(x["predicted_ms"][:1], x["measured_ms"][:1]) if first else (x["predicted_ms"][1:], x["measured_ms"][1:]) for x in rows]
    return [statistics.median(p) / statistics.median(m) - 1 for p, m in pairs if None not in p + m]


def errors_text(errors):
    return f"median error {percent(statistics.median(map(abs, errors)))}, largest {percent(max(map(abs, errors)))}" if errors else "not measured"


@section("prediction", "Predicted against measured")
def prediction(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        error = lambda first: "".join(f"{100 * e:+.1f} %" for e in prediction_errors([x], first))
        cells = lambda part: (middle(x["predicted_ms"][part]), middle(x["measured_ms"][part]))
        rows.append((*first, *cells(slice(0, 1)), error(True), *cells(slice(1, None)), error(False),
                     peaks(x, "predicted_peak"), peaks(x, "measured_peak")))
    equal = f"; equal in {equal_peaks(r.rows())}" if equal_peaks(r.rows()) else ""
    return (f"Step time as predicted before the first step of a training, and the median measured in it. First: with kernels just measured, on a "
            f"machine that has never trained this network ({errors_text(prediction_errors(r.rows(), True))}). Later: the trainings after it, which "
            f"know what it found ({errors_text(prediction_errors(r.rows(), False))}); median ± half the spread. Peak: bytes of the arena in use, as "
            f"planned and as found while the steps ran{equal}.\n\n"
            + table(("network", "batch", "first: predicted ms", "measured ms", "error", "later: predicted ms", "measured ms", "error",
                     "predicted peak bytes", "measured peak bytes"), rows))


@section("placement", "Arena against live bytes")
def placement(r):
    over = lambda x, key: f"{100 * (x[key] / x['live'] - 1):.2f} %"
    rows = [(*first, f"{x['baseline'] / MIB:.1f}", f"{x['live'] / MIB:.1f}", *(over(x, key) for key in ("offline", "first_fit", "best_fit")))
            for x, first in named(r.rows(), Ages(r))]
    exact = sum(x["offline"] == x["live"] for x in r.rows())
    return ("Policy `liveness`. Live: the largest sum of bytes alive in one step, which no placement can go below; the columns behind it say how "
            f"much more the arena of a placement has. Offline placement needs nothing more in {exact} of {len(rows)} cases.\n\n"
            + table(("network", "batch", "baseline MiB", "live MiB", "offline", "first fit (1 KB blocks)", "best fit"), rows))


@section("placement-hard", "MiniMalloc's hard problems")
def placement_hard(r):
    ages = Ages(r)
    rows = [(x["problem"] + ages.mark(x["run"]), x["buffers"], x["height"], x["lower_bound"], x["status"], f"{x['seconds']:.3f}",
             f"{x['spread_seconds']:.3f}", f"{x['published_seconds']:.2f}") for x in r.rows()]
    return ("`plimsoll place` with a capacity of 1048576; median and spread of five. The published seconds are those of MiniMalloc's authors, on "
            "their machine.\n\n"
            + table(("problem", "buffers", "height", "largest sum alive", "status", "seconds", "spread s", "published s"), rows))


@section("planning", "Planning time")
def planning(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        limits = " + ".join(filter(None, (x["memory"], x["host_memory"] and f"{x['host_memory']} host"))) or "all"
        rows.append((*first, limits, x["steps"], f"{x['plan_time_ms'] / 1000:.2f}", f"{x['spread_ms'] / 1000:.2f}", f"{x['command_seconds']:.2f}"))
    return ("From the network to the verified plan, without measured costs; median and spread of five, of three in little memory. The command "
            "also finds the least memory that would do, which plans again.\n\n"
            + table(("network", "batch", "memory", "steps", "plan s", "spread s", "whole command s"), rows))


@section("planning-tight", "Planning time in little memory")
def planning_tight(r):
    plans, largest = [], []
    ages = Ages(r)
    for x in r.rows():
        if x["command"] == "max":
            first = (f"{x['model']}{ages.mark(x['run'])}",)
            largest.append((first[0], x["host_memory"] or "all there is", x["batch"], f"{x['seconds']:.1f}"))
            continue
        slower = f"{x['step_time_ms'] / x['everything_ms']:.2f}x" if x["feasible"] and x["everything_ms"] else "does not fit"
        plans.append((*named([x], ages)[0][1], f"{x['percent']} %", f"{x['minimum_bytes'] / MIB:.1f}", slower, f"{x['seconds']:.1f}"))
    return ("The whole command for a simulated k40c, in shares of what liveness takes, with the least memory that would do and the predicted step "
            "beside that which keeps everything; one run each.\n\n"
            + table(("network", "batch", "memory", "least MiB", "step", "seconds"), plans)
            + "\n\n`plimsoll max`, from batch 1 on:\n\n" + table(("network", "host memory", "batch", "seconds"), largest))


@section("planning-large", "Planning time of large language models")
def planning_large(r):
    rows = [(*first, x["ranks"], x["memory"], x["steps"], f"{x['minimum_bytes'] / GIB:.1f}", f"{x['step_time_ms'] / x['everything_ms']:.2f}x",
             f"{x['seconds']:.1f}", f"{x['spread_seconds']:.1f}") for x, first in named(r.rows(), Ages(r))]
    return ("The whole command, which also finds the least memory that would do: for a simulated h100, where states are divided among ranks that are linked by 10 Gbit/s, or, with a "
            "disk or host memory beside the arena, for this processor. The step is beside that which keeps everything, on every rank; median and spread of three.\n\n"
            + table(("network", "batch", "ranks", "memory", "steps", "least GiB", "step", "seconds", "spread s"), rows))


# What others found, or proved, on problems that are theirs: the least extra time in percent, and by whom.
BEST_KNOWN = {
    ("vgg16_training", 0.95): "0.774 (optimum)", ("vgg16_training", 0.9): "1.968 (optimum)", ("vgg16_training", 0.85): "1.968 (optimum)",
    ("unet_training", 0.9): "1.129 (optimum)", ("unet_training", 0.8): "1.984 (optimum)", ("unet_training", 0.7): "2.967 (optimum)",
    ("unet_training", 0.6): "4.451 (optimum)", ("unet_training", 0.5): "at most 7.19",
    ("unet_trace", 0.9): "3.3 (DTR)", ("unet_trace", 0.8): "5.8 (DTR)", ("unet_trace", 0.7): "8.5 (DTR)", ("unet_trace", 0.6): "13.1 (DTR)",
    ("unet_trace", 0.5): "15.9 (DTR)",
}


@section("planner", "The planner against the optimum")
def planner(r):
    def number(value, digits=2):
        return "" if value is None else f"{value:.{digits}f}"

    def dtr(x):
        if x.get("dtr_minimum_bytes") is None:
            return ""
        least = percent(x["dtr_minimum_bytes"] * x["share"] / x["budget_bytes"], 1)
        return f"no plan below {least}" if x["dtr_percent"] is None else number(x["dtr_percent"], 1)

    rows, ages = [], Ages(r)
    for x in r.rows():
        extra = number(x["extra_time_percent"], 3) if x["feasible"] else "does not fit" if x["proven"] else "no plan found"
        rows.append((f"{x['problem']}{ages.mark(x['run'])}", x["ops"], percent(x["share"], 0), extra, number(x["bound_percent"]), number(x["gap_percent"]),
                     BEST_KNOWN.get((x["problem"], x["share"]), ""), dtr(x), number(x["seconds"], 1)))
    return ("Graphs of costs, in shares of what keeping everything takes where ops run as they are listed: the extra time of the plan over all ops once, the "
            "bound that no plan with its order of steps comes below, and the gap between them in points. `auto` may take another order than the listed one "
            "([decision 0032](decisions/0032-order-of-steps.md)). `bench/planning_problems.py` makes the problems by seed; seconds are of the "
            "whole command, which also finds the least memory that would do; one run each. What others found is told where the problem is theirs. Beside "
            "the traces stands what the better one of DTR's two rules (`--policy dtr`, `dtr-eq`) takes by our count, or the share below which neither finds a plan.\n\n"
            + table(("problem", "ops", "memory", "extra %", "bound %", "gap", "best known elsewhere %", "DTR's rules %", "seconds"), rows))


@section("zoo-gaps", "What is proven of networks with host memory")
def zoo_gaps(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        cells = [f"{x[key]:.2f}" for key in ("extra_time_percent", "bound_percent", "gap_percent")] if x["feasible"] else \
                ["does not fit" if x["proven"] else "no plan found", "", ""]
        seconds = f"{x['plan_time_ms'] / 1000:.1f}" if x["feasible"] else ""
        rows.append((*first, x["device"], f"{x['percent']} %", *cells, seconds))
    return ("In shares of what keeping everything takes, with 8 GiB on the host: the extra time of the plan over all ops once, the bound that no plan by "
            "the same kernels comes below, and the gap between them in points. One run each; seconds are of planning. Kernels are chosen anew for every "
            "budget, so that rows of one network may differ in what all ops take.\n\n"
            + table(("network", "batch", "device", "memory", "extra %", "bound %", "gap", "seconds"), rows))


@section("exactness", "The same bits")
def exactness(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        alike = len(set(x["sha256"].values())) == 1
        budget = f"{x['budget'] / MIB:.1f} of {x['arena'] / MIB:.1f}" if x["budget"] else ""
        rows.append((*first, x.get("flags", ""), next(iter(x["sha256"].values()))[:12], ", ".join(x["sha256"]), budget, x["resumed_at"] or "",
                     "all equal" if alike else "differ"))
    return ("SHA-256 of the weights after 20 steps: by policy, again, by `auto` in less memory (with 8 GiB on the host behind it), and killed by "
            "`kill -9` and resumed at the step that the checkpoint had.\n\n"
            + table(("network", "batch", "flags", "sha256", "runs", "less memory MiB", "resumed at step", ""), rows))


@section("families", "Where the time of a step goes")
def families(r):
    rows = [(first[0], x["op"], x["count"], f"{x['ms']:.1f}", percent(x["share"]), f"{x['gflops']:.0f}" if x["gflops"] >= 1 else "")
            for x, first in named(r.rows(), Ages(r)) if x["share"] >= 0.02]
    return ("By op, from the trace of one step. GFLOP/s counts a multiply-add as two; Winograd kernels do fewer multiplications than they "
            "are counted for, so they can exceed the machine's peak.\n\n" + table(("network", "op", "steps", "ms", "share", "GFLOP/s"), rows))


@section("attention", "Attention against matrix products")
def attention(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        gflops = {kind: 1000 * x[kind]["gflop"] / x[kind]["ms"] for kind in ("forward", "backward", "products")}
        rows.append((*first, f"{gflops['forward']:.0f}", f"{gflops['backward']:.0f}", f"{gflops['products']:.0f}",
                     f"{gflops['forward'] / gflops['products']:.2f}", f"{gflops['backward'] / gflops['products']:.2f}",
                     percent((x["forward"]["ms"] + x["backward"]["ms"]) / (x["forward"]["ms"] + x["backward"]["ms"] + x["products"]["ms"]))))
    return ("GFLOP/s in the last step of a training, fp32: attention by tiles, forward and backward, and the fully connected layers' products of the same "
            "step. They are counted as FlashAttention's authors do: two products of queries, keys or values forward, five backward, of causal ones the half that is wanted; and 20 for each score's softmax, 8 % of forward at 64 wide.\n\n"
            + table(("network", "batch", "forward", "backward", "products", "forward of products", "backward of products", "share of both"), rows))


@section("roofline", "A step against the machine's peaks")
def roofline(r):
    peers, rows, ages = r.beside("peers"), [], Ages(r)
    torch_ms = {(x["model"], x["batch"]): 1000 * x["batch"] / x["images_per_second"][x["fastest_peer"]] for x in peers.rows() if x.get("fastest_peer")}
    for x, first in named(r.rows(), ages):
        at_least = lambda kind, key: min(kind[key], kind["ms"])
        kinds = {name: (at_least(kind, "least_ms"), kind["ms"]) for name, kind in x["kinds"].items()}
        share = lambda name: "{:.0f} of {:.0f}".format(*kinds.get(name, (0, 0)))
        theirs = torch_ms.get((x["model"], x["batch"]))
        bounds = [sum(least for least, _ in kinds.values())]
        if "product_gflops" in x["peak"]:
            bounds.append(sum(at_least(kind, "product_ms") for kind in x["kinds"].values()))
        bound_ms = [f"{ms:.0f}" for ms in bounds] + [""] * (2 - len(bounds))
        against = [f"{theirs / ms:.2f}x" if theirs else "" for ms in bounds] + [""] * (2 - len(bounds))
        rows.append((*first, f"{x['step_ms']:.0f}", *bound_ms, percent(bounds[0] / x["step_ms"], 0), *map(share, ("convolutions by Winograd", "other convolutions", "the rest")),
                     f"{theirs:.0f}" if theirs else "", f"{theirs / x['step_ms']:.2f}x" if theirs else "", *against))
    most = lambda key: max(x["peak"].get(key, 0) for x in r.rows())
    product = f"oneDNN's fastest product of matrices here ({most('product_gflops'):.0f} GFLOP/s)" if most("product_gflops") else "oneDNN's fastest product of matrices (not measured yet)"
    return (f"What a step would take with each op at this machine's peak: its multiply-adds in registers ({most('gflops'):.0f} GFLOP/s on all cores, fewer "
            f"of them where the kernel is Winograd's, of 3 x 3 taps a quarter), or what it must read and write at the rate of reading ({most('read_gb_per_s'):.1f} GB/s), whichever is "
            "longer; but no more than it took, where its operands still lay in a cache. It is a bound that no library reaches: transforms, packing and the ends of loops are "
            f"not in it. Beside it, what a step would take if no convolution and no product were faster than {product}. The last columns say by how much the step that was measured, and those two, beat PyTorch's "
            "fastest of the table of images per second.\n\n"
            + table(("network", "batch", "a step, ms", "at the peak, ms", "at products' best, ms", "peak of step", "Winograd, peak of measured", "other convolutions", "the rest",
                     "PyTorch's fastest, ms", "step against it", "at the peak", "at products' best"), rows))


@section("ranks", "Two processes of one thread")
def ranks(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        one, two = statistics.median(x["one_ms"]), statistics.median(x["two_ms"])
        ddp = statistics.median(x["ddp_ms"]) if x["ddp_ms"] else None
        rows.append((*first, *(f"{1000 * x['batch'] / ms:.2f}" for ms in (one, two)), f"{one / two:.2f}",
                     f"{statistics.median(x['predicted_ms']) / two - 1:+.0%}", f"{1000 * x['batch'] / ddp:.2f}" if ddp else x["failed"] or "not asked",
                     f"{ddp / two:.2f}x" if ddp else ""))
    return ("Images per second of two processes of one thread each (`mpirun -n 2`) against one of two threads, and against two processes of PyTorch with "
            "DistributedDataParallel and gloo, channels_last. In turns in one run; medians.\n\n"
            + table(("network", "batch", "1 x 2 threads", "2 x 1 thread", "ratio", "predicted step", "DDP 2 x 1", "against DDP"), rows))


@section("ranks-link", "A link that is held to a rate")
def ranks_link(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        measured, all_ms, waits = (statistics.median(x[key]) for key in ("measured_ms", "communication_ms", "stall_ms"))
        rows.append((*first, x["rate"], f"{measured:.0f}", f"{statistics.median(x['predicted_ms']) / measured - 1:+.0%}", f"{all_ms:.0f}",
                     percent(1 - waits / all_ms, 0) if all_ms else ""))
    return ("Two hosts, which are network namespaces of one machine with a link between them that the kernel holds to a rate (`tests/support/two_hosts`). "
            "The hidden share is the plan's.\n\n" + table(("network", "batch", "link", "step, ms", "predicted", "messages, ms", "of which hidden"), rows))


@section("ranks-scaling", "Scaling to 1,024 ranks, on paper")
def ranks_scaling(r):
    published = {("resnet101", 512): "90 %", ("inception3", 512): "90 %", ("vgg16", 512): "68 %"}
    kinds = {}
    for x, _ in named(r.rows(), Ages(r)):
        kinds.setdefault((x["model"], x["batch"], x["device"], x["gbit"]), {})[x["ranks"]] = x

    def efficiency(one, x, kind):
        if not one["weak"] or not x[kind]:
            return "does not fit"
        rows = 1024 / x["ranks"] if kind == "strong" else x["batch"]
        return percent(one["weak"]["step_time_ms"] * rows / x["batch"] / x[kind]["step_time_ms"], 0)

    rows = []
    for (model, batch, device, gbit), by in kinds.items():
        for kind in ("weak", "strong"):
            rows.append((model, kind, batch if kind == "weak" else "1024 in all", device, f"{gbit} Gbit/s",
                         *(efficiency(by[1], by[n], kind) for n in (8, 64, 256, 512, 1024)), published.get((model, 512), "") if kind == "weak" else ""))
    return ("Simulated: GPUs by formulas, each with a link of its own into a network that is nowhere narrower (a fat tree), 10 us for a message and 1 us for each "
            "to a further rank. Efficiency against one GPU with the batch of weak scaling; strong scaling is limited by small parts of the batch, and with few GPUs by their memory, too. Published: Horovod on 512 Pascal GPUs, four a "
            "server, servers with 25 Gbit/s RoCE (its docs/benchmarks.md).\n\n"
            + table(("network", "scaling", "batch", "GPU", "link", "8", "64", "256", "512", "1024", "Horovod, 512"), rows))


def tiers(text):
    return text.replace("--host-memory", "host").replace("--spill", "").strip()


@section("tight", "Training in little memory")
def tight(r):
    rows, torch = [], {}
    for x, first in named(r.rows(), Ages(r)):
        rows.append((*first, f"{x['budget'] / MIB:.0f}", tiers(x["tiers"]), peaks(x, "predicted_peak"), peaks(x, "measured_peak"),
                     middle(x["predicted_ms"], 0), middle(x["measured_ms"], 0), f"{x['offload_bytes'] / MIB:.0f}", x["recompute_steps"]))
        for saving, y in x["torch"].items():  # the same for all budgets
            ms = f"failed: {y['error']}" if "error" in y else middle(y["step_ms"], 0)
            torch[first, saving] = (*first, saving, ms, f"{y['peak_bytes'] / MIB:.0f}" if y["peak_bytes"] else "", y.get("version", ""))
    text = ("Real steps of `auto`, predicted before the first one; median ± half the spread where there were several rounds. Peak: of the arena, "
            "predicted against measured. Out: copied out of the arena in a step. ResNet 6-32-788-6 is 2498 layers deep, with images of 227 x 227.\n\n"
            + table(("network", "batch", "budget MiB", "behind it", "predicted peak bytes", "measured peak bytes", "predicted ms", "measured ms", "out MiB",
                     "run again"), rows))
    if torch:
        text += ("\nPyTorch on the same machine, which takes no budget: as it is (eager), with `torch.utils.checkpoint`, and with saved tensors "
                 "written to disk. Memory: the largest resident size beyond that of its libraries.\n\n"
                 + table(("network", "batch", "PyTorch", "step ms", "memory MiB", "version"), torch.values()))
    return text


@section("slowdown", "Slowdown in less memory")
def slowdown(r):
    names = list(r.rows()[0]["predicted_ms"])
    measured, predicted, spreads = [], [], []
    for x, first in named(r.rows(), Ages(r)):
        first = (*first, f"{x['share']} %", f"{x['budget'] / MIB:.0f}")
        refused = lambda name: f"needs {x['least_bytes'] / MIB:.0f} MiB" if name == "auto" and "least_bytes" in x else "does not fit"
        said, ms, whole = x["predicted_ms"], x["measured_ms"], statistics.median(x["unlimited_ms"])
        predicted.append((*first, *(refused(n) if said[n] is None else more(said[n], x["unlimited_predicted_ms"]) for n in names)))
        measured.append((*first, *(more(statistics.median(ms[n]), whole) if ms.get(n) else refused(n) if said[n] is None else "" for n in names)))
        spreads += [spread(values) for values in (x["unlimited_ms"], *ms.values()) if len(values) > 1]
    noise = "Each ran once"
    if spreads:
        noise = f"The spread of a step time over the rounds is {percent(statistics.median(spreads), 0)} in the median, {percent(max(spreads), 0)} at most"
    head = ("network", "batch", "memory", "MiB", *names)
    return ("Of what `liveness` needs, with 8 GiB of host memory behind it; against the step with all of it, in turns in one run (medians; policies "
            "but `auto` ran once). Copies and recomputations take the processor from compute here: with a computing thread on every core there is "
            f"no other engine, and the computing threads make the copies between two steps. {noise}.\n\n"
            f"![slowdown](slowdown.svg)\n\nMeasured:\n\n{table(head, measured)}\nPredicted:\n\n{table(head, predicted)}")


def draw_slowdown(r):
    """A picture: a panel a network, a line a policy, measured slowdown over the share of memory."""
    networks = {}
    for x in r.rows():
        lines = networks.setdefault(f"{x['model']}, batch {x['batch']}", {})
        for policy, ms in x["measured_ms"].items():
            if ms:
                slower = statistics.median(ms) / statistics.median(x["unlimited_ms"]) - 1
                lines.setdefault(policy, [(100, 0.0)]).append((x["share"], 100 * slower))
    colours = dict(zip(r.rows()[0]["predicted_ms"], ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")))
    width, height, left, across = 270, 230, 46, 3
    parts = []
    for i, (network, lines) in enumerate(networks.items()):
        x0, y0 = i % across * width, i // across * height
        values = [y for line in lines.values() for _, y in line] or [0.0]
        high, low = max(20.0, max(values) * 1.05), min(0.0, min(values))
        px = lambda share: x0 + left + (100 - share) / 80 * (width - left - 14)
        py = lambda y: y0 + 28 + (high - y) / (high - low) * (height - 66)
        parts.append(f'<text x="{x0 + left}" y="{y0 + 18}" font-weight="bold">{network}</text>')
        for share in (100, 80, 60, 40, 20):
            parts.append(f'<line x1="{px(share):.0f}" y1="{y0 + 28}" x2="{px(share):.0f}" y2="{y0 + height - 38}" stroke="#ddd"/>'
                         f'<text x="{px(share):.0f}" y="{y0 + height - 22}" text-anchor="middle">{share} %</text>')
        step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if high / s <= 6)
        for y in range(-(-int(low) // step) * step, int(high) + 1, step):
            parts.append(f'<line x1="{x0 + left}" y1="{py(y):.0f}" x2="{px(20):.0f}" y2="{py(y):.0f}" stroke="{"#999" if y == 0 else "#eee"}"/>'
                         f'<text x="{x0 + left - 5}" y="{py(y) + 4:.0f}" text-anchor="end">{y:+d} %</text>')
        for policy, line in sorted(lines.items(), key=lambda entry: entry[0] == "auto"):  # auto on top
            points = " ".join(f"{px(s):.1f},{py(y):.1f}" for s, y in line)
            stroke = 3 if policy == "auto" else 1.5
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[policy]}" stroke-width="{stroke}"/>')
            parts += [f'<circle cx="{px(s):.1f}" cy="{py(y):.1f}" r="2.5" fill="{colours[policy]}"/>' for s, y in line]
    panels = len(networks)
    x0, y0 = panels % across * width + left, panels // across * height + 40  # the legend takes the place after the last panel
    for i, (policy, colour) in enumerate(colours.items()):
        stroke = 3 if policy == "auto" else 1.5
        parts.append(f'<line x1="{x0}" y1="{y0 + 20 * i}" x2="{x0 + 24}" y2="{y0 + 20 * i}" stroke="{colour}" stroke-width="{stroke}"/>'
                     f'<text x="{x0 + 32}" y="{y0 + 4 + 20 * i}">{policy}</text>')
    told = ("step time above that with all memory,", "over memory as a share of what", "liveness needs")
    parts += [f'<text x="{x0}" y="{y0 + 20 * len(colours) + 14 + 16 * i}">{line}</text>' for i, line in enumerate(told)]
    size = f"{across * width} {(panels // across + 1) * height}"
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">'
            '<rect width="100%" height="100%" fill="white"/>')
    return "\n".join([head, *parts]) + "</svg>\n"


@section("overlap", "How much of the copying hides behind compute")
def overlap(r):
    names = ["vdnn:layers=all", "dymem", "superneurons", "auto"]

    def cell(x, name):
        plan = x["policies"].get(name)
        if not plan:
            return f"needs {x['least_bytes'] / MIB:.0f} MiB" if name == "auto" and "least_bytes" in x else "does not fit"
        slower = more(plan["step_ms"], x["unlimited_ms"])
        return slower if plan["hidden"] is None else f"{slower}, {percent(plan['hidden'], 0)} hidden"

    rows = [(*first, f"{x['share']} %", *(cell(x, n) for n in names)) for x, first in named(r.rows(), Ages(r))]
    return ("Simulated: a K40c with 8 GB/s to the host, the papers' layers, a share of the memory that `liveness` needs. How much slower the step "
            "is than with all of it, and which part of the time of the copies compute does not wait for (none given: nothing is copied).\n\n"
            + table(("network", "batch", "memory", *names), rows))


@section("wd-solver", "Dividing one workspace total among all ops")
def wd_solver(r):
    kinds = {}
    for x in r.rows():
        kinds.setdefault(x["instance"], []).append(x)
    rows = [(name, f"{min(x['solve_ms'] for x in xs):.3f}", f"{max(x['solve_ms'] for x in xs):.3f}", f"{max(x['spread_ms'] for x in xs):.3f}",
             f"{sum(x['exact'] for x in xs)} of {len(xs)}", f"{max(x['time_ms'] / x['lower_bound_ms'] - 1 for x in xs):.1e}")
            for name, xs in kinds.items()]
    return ("mu-cuDNN's WD, by our own solver: at 5, 20, 50 and 80 % of the bytes between what must be and what would be had, random instances with "
            "three seeds. The paper's GLPK took 5.46 ms for 562 variables. In the last kind time and workspace are tied to each other, so that no "
            "price tells configurations apart: the search stops early there and says so; the gap is to its proven bound.\n\n"
            + table(("instance", "fastest ms", "slowest ms", "largest spread ms", "proven", "largest gap"), rows))


@section("convolutions", "Convolutions by micro-batch")
def convolutions(r):
    timed = [x for x in r.rows() if x.get("undivided_ms") and x.get("divided_ms")]
    rows = []
    for workspace in dict.fromkeys(x["workspace"] for x in timed):
        for what in ("forward", "backward_data", "backward_weights", "all"):
            xs = [x for x in timed if x["workspace"] == workspace and what in (x["pass"], "all")]
            undivided, divided = sum(x["undivided_ms"] for x in xs), sum(x["divided_ms"] for x in xs)
            rows.append((workspace, what, len(xs), sum(x["configuration"] != x["undivided_configuration"] for x in xs), f"{undivided:.0f}",
                         f"{divided:.0f}", f"{undivided / divided:.2f}x", f"{max(x['undivided_ms'] / x['divided_ms'] for x in xs):.2f}x"))
    text = ("`bench/convolutions.csv`, layers of AlexNet, VGG and ResNet: the fastest kernel on the whole batch against the fastest division, both "
            "run as a whole, in turn.")
    if timed:
        noise = statistics.median(x[f"{side}_spread_ms"] / x[f"{side}_ms"] for x in timed for side in ("undivided", "divided"))
        text += f" The spread of a time is {percent(noise, 0)} in the median."
    times = "; ".join(f"`{x['batch_sizes']}` {x['profile_seconds']:.0f} s" for x in r.rows() if "profile_seconds" in x)
    if times:
        text += f" Measuring all kernels of one layer (28x28, 128 channels, batch 32) takes: {times}."
    head = ("limit", "pass", "ops", "divided", "undivided ms", "divided ms", "gain", "largest")
    return f"{text}\n\n{table(head, rows)}" if rows else text


@section("workspace", "Workspace and parts of the batch")
def workspace(r):
    ages = Ages(r)
    rows, short = [], []
    for x, first in {row["model"]: (row, first) for row, first in named(r.rows(), ages)}.values():
        wr = [y for y in r.rows() if y["model"] == x["model"] and y["how"] == "WR"]
        at = {(y["limit"] >> 20, y["sizes"]): y["measured"] for y in wr}
        free = at[512, "undivided"]
        as_fast = min((m for m in at.values() if m["convolution_ms"] <= 1.03 * free["convolution_ms"]), key=lambda m: m["largest_workspace"])
        ratio = at[64, "undivided"]["convolution_ms"] / at[64, "powerOfTwo"]["convolution_ms"]
        less = free["largest_workspace"] / as_fast["largest_workspace"] if as_fast["largest_workspace"] else None
        short.append((*first, f"{ratio:.2f}x", f"{free['largest_workspace'] / MIB:.1f}", f"{as_fast['largest_workspace'] / MIB:.1f}",
                      f"{less:.1f}x" if less else ""))
    for x, first in named(r.rows(), ages):
        each = x["limit"] if x["how"] == "WR" else x["limit"] // x["ops"]
        base = next(y["measured"] for y in r.rows() if (y["model"], y["how"], y["sizes"], y["limit"]) == (x["model"], "WR", "undivided", each))
        m = x["measured"]
        rows.append((*first, f"{x['limit'] >> 20} MiB " + ("an op" if x["how"] == "WR" else "in all"), x["sizes"],
                     f"{m['convolution_ms']:.0f}", f"{base['convolution_ms'] / m['convolution_ms']:.2f}x", f"{x['predicted']['convolution_ms']:.0f}",
                     f"{m['step_ms']:.0f}", f"{base['step_ms'] / m['step_ms']:.2f}x", f"{m['largest_workspace'] / MIB:.1f}",
                     f"{m['workspaces'] / MIB:.0f}", f"{x['profile_seconds']:.0f}"))
    noise = max(x["spread"]["convolution_ms"] for x in r.rows())
    return ("A limit on the workspace of each op (mu-cuDNN's WR), or of all convolutions and fully connected layers together (WD, the total being as "
            "many times the limit as there are such ops), and which parts of the batch were measured; `all`: powers of two and multiples of an eighth "
            "of the batch. Speed is against undivided at the same limit. Measured in turns"
            + (f"; the largest spread of the convolutions' time is {percent(noise, 0)}" if noise else ", once each")
            + "; profiling includes what stands before it in the list.\n\n"
            "In short: convolutions within 64 MiB, in parts that are powers of two, against undivided; and the largest workspace of an op that is as "
            "fast (within 3 %) as undivided ones within 512 MiB. The aims are 1.3x and 2.7x. What is chosen is never predicted to be slower than "
            "undivided; where it was measured to be, within the noise or not, the column says so.\n\n"
            + table(("network", "batch", "faster at 64 MiB", "largest MiB, undivided", "as fast with MiB", "less"), short) + "\n"
            + table(("network", "batch", "workspace", "parts", "conv. ms", "faster", "predicted ms", "step ms", "faster", "largest MiB", "sum MiB",
                     "profiled s"), rows))


@section("concurrency", "Thread counts and ops side by side")
def concurrency(r):
    rows = []
    for x, first in named(r.rows(), Ages(r)):
        ms, best, half = x["step_ms"], x["best_uniform"], x["spread_ms"]
        part = lambda key: f"{ms[key]:.1f} ± {half[key] / 2:.1f}" if key in ms else ""
        rows.append((*first, part(x["recommended"]), f"{best}: {part(best)}", part("strategies 1,2"), part("strategies 1,2,3"), part("auto"),
                     f"{ms[x['recommended']] / ms['auto']:.2f}x", f"{ms[best] / ms['auto']:.2f}x"))
    settings = list(dict.fromkeys(s for x in r.rows() for s in x["step_ms"] if " x " in s))
    cell = lambda x, s: f"{x['step_ms'][s]:.1f} ({x['step_ms'][x['recommended']] / x['step_ms'][s]:.2f}x)" if s in x["step_ms"] else ""
    return ("Median step time, and half of what lies between the shortest and the longest of the rounds. Uniform settings are ops at once x threads "
            "each; recommended: one at a time, all cores. `--inter-op auto` chooses by measured times with the strategies of the concurrency paper, then "
            "tries its choice against one op after another and keeps the faster; the columns of strategies are what it tries.\n\n"
            + table(("network", "batch", "recommended ms", "best uniform ms", "Strategies 1-2 ms", "+ 3 ms", "auto (+ 4) ms", "over recommended",
                     "over best uniform"), rows)
            + "\nEvery uniform setting (Table I): milliseconds, and the speed over the recommended one.\n\n"
            + table(("setting", *(x["model"] for x in r.rows())), [(s, *(cell(x, s) for x in r.rows())) for s in settings]))


@section("operations", "Ops by thread count")
def operations(r):
    text = ""
    told = lambda what: [x for x in r.rows() if x["what"] == what]
    rows = [(x["pass"], x["input"], x["convolution"].split(", ")[1], x["best_threads"], f"{x['best_ms']:.2f}",
             percent(x["all_ms"] / x["best_ms"] - 1), f"{x['one_ms']:.2f}") for x in told("sizes")]
    if rows:
        text += ("\nThe best thread count by the size of the input (Table II), each pass by its fastest kernel; inputs are batch, height, width, "
                 "channels.\n\n" + table(("pass", "input", "filters", "best threads", "ms", "lost with all", "ms with one"), rows))
    pair = told("pair")
    if pair:
        text += (f"\nTwo ops that do not depend on each other (Table III): the gradients of {pair[0]['convolution']}"
                 + ("" if any(x["how"].startswith("second") for x in pair) else "; cores without second hardware threads") + ".\n\n"
                 + table(("how", "threads each", "ms", "speed"),
                         [(x["how"], x["threads"], f"{x['ms']:.2f}", f"{pair[0]['ms'] / x['ms']:.2f}x") for x in pair]))
    accuracy = told("accuracy")
    rows = [(x["model"], x["cores"], x["ops"], x["interval"], "none was untried" if x["interval"] == 1 else percent(x["accuracy"]),
             percent(x["lost"]), x["tries"]) for x in accuracy if not x["simulated"]]
    if rows:
        text += ("\nHill climbing over the thread counts of this machine (Table V): accuracy at the counts that were not tried, and time lost by its "
                 "optimum.\n\n" + table(("network", "cores", "ops", "interval", "accuracy", "lost", "tries"), rows))
    rows = [(x["model"], x["cores"], x["ops"], x["interval"], percent(x["accuracy"]), percent(x["accuracy_of_all"]), percent(x["lost"]), x["tries"])
            for x in accuracy if x["simulated"] and x["interval"] > 1]
    if rows:
        text += ("\nSimulated: the same, with times extended to 16 cores by Amdahl's law and the memory's rate; accuracy at the counts up to where each "
                 "climb ended, and at all.\n\n" + table(("network", "cores", "ops", "interval", "accuracy", "of all", "lost", "tries"), rows))
    speed = lambda x, key: f"{x['recommended_ms'] / x[key]:.2f}x"
    rows = [(x["model"], f"{x['one_thread_ms']:.1f}", f"{x['two_threads_ms']:.1f}", x["cores"], f"{x['recommended_ms']:.1f}",
             speed(x, "strategies12_ms"), speed(x, "strategy3_ms"), speed(x, "chosen_ms"),
             f"{x['uniform_inter']} x {x['uniform_intra']}: {speed(x, 'uniform_ms')}") for x in told("cores")]
    if rows:
        text += ("\nSimulated: the same steps on 16 cores, from the times of their ops measured with one and two threads, extended likewise. Chosen: what "
                 "`auto` would choose there, of the strategies with bounds on the threads of an op, balanced counts, and uniform ones.\n\n"
                 + table(("network", "one thread ms", "two threads ms", "cores", "recommended ms", "Strategies 1-2", "+ 3", "chosen",
                          "best uniform"), rows))
    study = told("regression")
    if study and study[0]["available"]:
        rows = [(x["threads"], x["ops"], percent(x["accuracy"]), f"{x['r2']:.3f}") for x in study]
        text += ("\nLeast squares on hardware counters, cross-validated: time with so many threads, from counters and time with one.\n\n"
                 + table(("threads", "ops", "accuracy", "R2"), rows))
    elif study:
        text += f"\nThe regression models on hardware counters were not tried: this kernel gives no counters ({study[0]['why']}).\n"
    return text


@section("overhead", "What starting an op costs")
def overhead(r):
    cell = lambda x, name: f"{x['us_an_op'][name]:.2f} ({percent(x['share'][name], 3)})"
    rows = [(*first, x["ops"], f"{x['step_ms']:.1f}", *(cell(x, name) for name in ("serial", "one_core", "two_cores")))
            for x, first in named(r.rows(), Ages(r))]
    return ("Processor time of the executor itself, measured with kernels that do nothing, in microseconds an op and as a share of a real training "
            "step: one op after another, and with two ops at once on one core and on two. One run each.\n\n"
            + table(("network", "batch", "ops", "step ms", "serial", "two at once, one core", "two at once, two cores"), rows))


IN_PAPER = {"alexnet": "AlexNet", "vgg16": "VGG16", "inception4": "InceptionV4", "resnet50": "ResNet50", "resnet101": "ResNet101",
            "resnet152": "ResNet152"}


@section("largest", "The largest batches and depths")
def largest(r):
    ages = Ages(r)
    tables = {(x["table"], x["row"], x["quantity"]): x for x in r.beside("papers").rows()}
    rows = []
    for x in r.rows():
        by_rules = tables.get(("table4", "SuperNeurons", "depth") if x["what"] == "depth" else ("table5", IN_PAPER[x["model"]], "SuperNeurons"), {})
        known = lambda key: f"{by_rules[key]:.0f}" if by_rules.get(key) is not None else ""
        rows.append((x["model"] + ages.mark(x["run"]), x["what"], x["ours"], x["limited_by"], f"{x['host_bytes'] / GIB:.0f}",
                     known("ours"), known("paper")))
    return ("Simulated: what `plimsoll max` fits by `auto` with the papers' layer model on a K40c with 11.2 GiB and 107 GiB of host memory, by formulas; "
            "the depth is that of ResNet 6-32-N-6 at batch 16. Beside it what SuperNeurons' policy fits in tables 4 and 5 below, where table 4 gives "
            "it any amount of host memory, and what its paper reports.\n\n"
            + table(("network", "what", "auto", "bounded by", "host GiB", "SuperNeurons' policy", "its paper"), rows))


@section("papers", "The papers' tables")
def papers(r):
    ages = Ages(r)
    number = lambda v: "" if v is None else f"{v:.10g}"
    rows = [(x["table"] + ages.mark(x["run"]), x["row"], x["quantity"], number(x["paper"]), number(x["ours"]), x["unit"], x["note"])
            for x in r.rows()]
    return ("Simulated, by formulas (docs say where). Table5 takes `superneurons:cache=off,release=drop,prefetch=demand,recompute=cost-aware`, with which "
            "a checkpoint leaves as soon as it was used; `max --policy superneurons` takes that policy's defaults.\n\n"
            + table(("table", "row", "quantity", "paper", "ours", "unit", "note"), rows))


def gpu(folder):
    """What scripts/gpu_check has recorded, a section a GPU."""
    paths = sorted(folder.glob("gpu-*.json"))
    if not paths:
        return ("## On a GPU\n\nNone was recorded yet. On a machine with an NVIDIA GPU `scripts/gpu_check --torch PYTHON` writes "
                "`bench/results/gpu-<name>.json`, from which this section is made.\n")
    return "\n".join(gpu_of(json.loads(path.read_text())) for path in paths)


def gpu_of(r):
    numbers = {check: {item: values_of(record) for item, record in items.items()} for check, items in r["checks"].items()}
    text = f"## On a GPU: {r['gpu']}\n\n{r['device']}.\n"
    rate = lambda x: f"{x['torch_images_per_second']:.1f}" if "torch_images_per_second" in x else x.get("torch_error", "")
    speed = {item: x for item, x in numbers.get("speed", {}).items() if "images_per_second" in x}
    rows = []
    for item, x in speed.items():
        less, compiled = numbers.get("tight", {}).get(item, {}), numbers.get("compiled", {}).get(item, {})
        rows.append((item, x["batch"], f"{x['images_per_second']:.1f}", rate(x), rate(compiled),
                     f"{x['images_per_second'] / x['torch_images_per_second']:.2f}x" if "torch_images_per_second" in x else "",
                     f"{less['images_per_second']:.1f}" if less else "", f"{less['share']:.0%}" if less else "", rate(less)))
    if rows:
        text += ("\nImages per second, single precision, forward + backward + SGD with momentum; PyTorch has the faster of the layouts that it was tried with. Then the same "
                 "batch inside 12 GiB: the share of the speed that is kept, and PyTorch with no more memory than that.\n\n"
                 + table(("network", "batch", "Plimsoll", "PyTorch", "compiled", "against eager", "in 12 GiB", "kept", "PyTorch in 12 GiB"), rows))
    verdict = {True: "right", False: "WRONG", None: ""}
    told = lambda check, item, row: check in ("speed", "tight", "compiled") and item in speed and "values" in row
    is_slower = lambda row: row["good"] is False and re.search(r": Plimsoll 0\.\d\dx", row["result"])
    rows = [(check, row["what"], row["result"], "slower" if is_slower(row) else verdict[row["good"]]) for check, items in r["checks"].items()
            for item, record in items.items() for row in record["rows"] if not told(check, item, row)]
    text += "\nWhat else was checked:\n\n" + table(("check", "what", "result", ""), rows)
    if r["not_done"]:
        text += f"\nNot done, for lack of time: {', '.join(r['not_done'])}.\n"
    made = sorted({(record["date"], record["commit"]) for items in r["checks"].values() for record in items.values() if record["rows"]})
    return text + "\n" + "; ".join(f"{date}, commit {c}" for date, c in made) + ". Again: `scripts/gpu_check`.\n"


def values_of(record):
    return {name: value for row in record["rows"] for name, value in row.get("values", {}).items()}


# The pages.

def readme_text(read):
    """The README's tables; `read` gives the results of a bench. What is older than the newest of them is marked."""
    peers, python, transformers, memory, prediction, placement, tight = shown = [
        read(name) for name in ("peers", "python", "transformers", "memory", "prediction", "placement", "tight")]
    shown = [r for r in shown if r.cases]
    ages = Ages(*shown)
    marked = lambda text, r: text + (" \\*" if ages.named(r) else "")
    text, rows = "", []
    if peers.cases:
        machine = peers.runs()[0]["machine"]
        versions = ", ".join(dict.fromkeys(x["torch"] for x in peers.rows() if x["torch"]))
        text += (f"Images per second, fp32, {machine['cores']} cores ({machine['device']}), the same work in turns with PyTorch {versions}:\n\n"
                 f"{peers_table(peers, ages)}\n")
    ratios = [(x["model"].rsplit(":")[-1], x["ratio"]) for x in python.rows() if x["ratio"]]
    if ratios:
        told = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios)
        rows.append((marked("`plimsoll.compile` against PyTorch's fastest (eager or compiled, either layout)", python), told))
    for x in transformers.rows():
        times = {way: statistics.median(ms for one in told for ms in one["step_ms"]) for way, told in x["runs"].items()}
        fastest = min((way for way in ("eager", "compiled") if way in times), key=times.get, default=None)
        if fastest and "budget" in times:
            arena = max(one["arena_bytes"] for one in x["runs"]["budget"]) / MIB
            theirs = max(one["peak_bytes"] for one in x["runs"][fastest]) / MIB
            rows.append((f"{x['model']}, batch {x['batch']}, AdamW, by `plimsoll.compile(memory=\"{x['budget']}\")`{ages.mark(x['run'])}",
                         f"{times['budget'] / 1000:.1f} s a step, arena {arena:.0f} MiB; PyTorch takes {times[fastest] / 1000:.1f} s and {theirs:.0f} MiB"))
    if memory.cases:
        worst = max(x["beyond_budget"] for x in memory.rows()) / MIB
        rows.append((marked("whole process, libraries included (AlexNet 64, ResNet-50 16, VGG16 8)", memory), f"within its budget + {worst:.0f} MiB"))
    if prediction.cases:
        if equal_peaks(prediction.rows()):
            rows.append((marked("predicted peak = measured peak, to the byte", prediction), f"{equal_peaks(prediction.rows())} networks"))
        for name, first in (("the first training of a network", True), ("later trainings of it", False)):
            errors = prediction_errors(prediction.rows(), first)
            if errors:
                rows.append((marked(f"predicted against measured step time, {name}", prediction), errors_text(errors)))
    if placement.cases:
        exact = sum(x["offline"] == x["live"] for x in placement.rows())
        worst = max(x["first_fit"] / x["live"] - 1 for x in placement.rows())
        rows.append((marked("arena = largest sum of live bytes", placement),
                     f"{exact} of {len(placement.cases)} plans (first fit wastes up to {percent(worst, 0)})"))
    for x in tight.rows():
        eager = x["torch"].get("eager", {})
        if eager.get("step_ms") and (x["model"], x["budget"] >> 20) in (("alexnet", 700), ("resnet:6-32-788-6", 2048)):
            rows.append((f"{x['model']}, batch {x['batch']}, in {x['budget'] >> 20} MiB (+ {tiers(x['tiers'])}){ages.mark(x['run'])}",
                         f"{statistics.median(x['measured_ms']) / 1000:.1f} s a step; PyTorch takes {statistics.median(eager['step_ms']) / 1000:.1f} s "
                         f"and {eager['peak_bytes'] / GIB:.1f} GiB"))
    text += table(("what", "measured"), rows) if rows else ""
    if ages.newest:
        older = any(ages.named(r) for r in shown)
        text += f"\nMeasured at {commit(ages.newest)}" + ("; \\* older or on another machine, as docs/results.md says" if older else "") + ".\n"
    return text


def commits_text(shown):
    """Of which commit each table is: `shown` has titles with their results."""
    ages = Ages(*(r for _, r in shown if r.bench in [s.bench for s in SECTIONS]))
    rows = []
    for title, r in shown:
        new, old = Ages(r).newest, Ages(r).named(r)
        older = "; ".join(f"{len(cases)} of {len(r.cases)} cases: {run['commit']}, {run['date']}" for run, cases in old)
        rows.append((title + ages.mark(new), new["commit"], new["date"], older))
    return (f"The newest results are of {commit(ages.newest)}. What is older, or of another machine, is marked with a star: here, and in "
            f"each table beside the newest of it.\n\n" + table(("table", "commit", "date", "older in it"), rows))


def pages_from(folder, to):
    """Every page, with its text."""
    read = lambda bench: records.Results.read(bench, folder)
    shown, texts = [], []
    for s in SECTIONS:
        if s.bench == "largest":
            texts.append(gpu(folder))
        for bench in [s.bench, *sorted(p.stem for p in folder.glob(f"{s.bench}-*.json") if s.bench in records.NAMED)]:
            results = read(bench)
            if results.cases:
                place = bench[len(s.bench) + 1:]
                title = f"{s.title}, {place}" if place else s.title
                shown.append((title, results))
                texts.append(s.text(title, results))
    if not shown:
        raise SystemExit(f"there are no results in {folder}")
    pages = {to.results: "# Results\n\nGenerated by `bench/tables.py` from `bench/results/`; do not edit. `bench/bench.py all` measures all of it."
                         f"\n\n{commits_text(shown)}\n" + "\n".join(texts)}
    if read("slowdown").cases:
        pages[to.slowdown] = draw_slowdown(read("slowdown"))
    if to.readme:
        between = lambda m: m.group(1) + readme_text(read) + m.group(2)
        pages[to.readme] = re.sub(r"(<!-- results -->\n).*?(<!-- /results -->)", between, to.readme.read_text(), flags=re.S)
    return pages


def write(folder=RESULTS, to=DOCS):
    for path, text in pages_from(folder, to).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def check(folder=RESULTS, to=DOCS):
    """The number of pages that are not what the results give; says where."""
    wrong = 0
    for path, text in pages_from(folder, to).items():
        there = path.read_text() if path.exists() else ""
        if there != text:
            wrong += 1
            name = path.name
            changes = list(difflib.unified_diff(there.splitlines(), text.splitlines(), name, f"{name}, by the results", lineterm="", n=0))
            print("\n".join(line[:200] for line in changes[:12]), file=sys.stderr)
            print(f"{name} is not what bench/results/ gives: run bench/tables.py", file=sys.stderr)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is not what the results give")
    if parser.parse_args().check:
        return 1 if check() else 0
    return write()


if __name__ == "__main__":
    sys.exit(main())

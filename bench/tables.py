#!/usr/bin/env python3
"""Turns bench/results/*.json into docs/results.md and into the table of the README, between its markers."""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
MIB = 1 << 20


def load(name):
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]) + "\n"


def origin(result):
    m = result["machine"]
    by_commit = {}
    for row in result["rows"]:
        by_commit.setdefault(row.get("commit", m["commit"]), []).append(row.get("model"))
    older = {c: dict.fromkeys(m for m in models if m) for c, models in by_commit.items() if c != m["commit"]}
    older = "".join(f" {', '.join(models)}: of commit {c}." for c, models in older.items() if models)
    return (f"{result['date']}, commit {m['commit']}; {m['cores']} cores, {m['device']}, {m['memory_mib'] / 1024:.0f} GiB. "
            f"Again: `{result['command']}`.{older}\n")


def placement():
    r = load("placement")
    if not r:
        return ""
    over = lambda row, key: f"{100 * (row[key] / row['live'] - 1):.2f} %"
    rows = [(x["model"], x["batch"], f"{x['baseline'] / MIB:.1f}", f"{x['live'] / MIB:.1f}", over(x, "offline"), over(x, "first_fit"), over(x, "best_fit"))
            for x in r["rows"]]
    exact = sum(x["offline"] == x["live"] for x in r["rows"])
    return ("## Arena against live bytes\n\nPolicy `liveness`. Live: the largest sum of bytes alive in one step, which no placement can go below; the "
            f"columns behind it say how much more the arena of a placement has. Offline placement needs nothing more in {exact} of {len(rows)} cases.\n\n"
            + table(("network", "batch", "baseline MiB", "live MiB", "offline", "first fit (1 KB blocks)", "best fit"), rows) + "\n" + origin(r))


def placement_hard():
    r = load("placement-hard")
    if not r:
        return ""
    rows = [(x["problem"], x["buffers"], x["height"], x["lower_bound"], x["status"], f"{x['seconds']:.3f}", f"{x['spread_seconds']:.3f}",
             f"{x['published_seconds']:.2f}") for x in r["rows"]]
    return ("## MiniMalloc's hard problems\n\n`plimsoll place` with a capacity of 1048576; median and spread of five. The published seconds are those of "
            "MiniMalloc's authors, on their machine.\n\n"
            + table(("problem", "buffers", "height", "largest sum alive", "status", "seconds", "spread s", "published s"), rows) + "\n" + origin(r))


def planning():
    r = load("planning")
    if not r:
        return ""
    rows = [(x["model"], x["batch"], " + ".join(m for m in (x.get("memory"), x.get("host_memory") and f"{x['host_memory']} host") if m) or "all", x["steps"], f"{x['plan_time_ms'] / 1000:.2f}", f"{x['spread_ms'] / 1000:.2f}", f"{x['command_seconds']:.2f}") for x in r["rows"]]
    return ("## Planning time\n\nFrom the network to the verified plan, without measured costs; median and spread of five, of three in little memory. The command also finds the "
            "least memory that would do, which plans again.\n\n" + table(("network", "batch", "memory", "steps", "plan s", "spread s", "whole command s"), rows) + "\n" + origin(r))


def prediction():
    r = load("prediction")
    if not r:
        return ""
    rows = [(x["model"], x["batch"], f"{x['predicted_ms']:.1f}", f"{x['measured_ms']:.1f}", f"{100 * x['error']:+.1f} %",
             "equal" if x["predicted_peak"] == x["measured_peak"] else f"{x['predicted_peak']} / {x['measured_peak']}") for x in r["rows"]]
    return (f"## Predicted against measured\n\nStep time as predicted before the first step, and the median measured; peak bytes likewise. Median error "
            f"{100 * r['median_error']:.1f} %, largest {100 * r['largest_error']:.1f} %.\n\n"
            + table(("network", "batch", "predicted ms", "measured ms", "error", "peak"), rows) + "\n" + origin(r))


def memory():
    r = load("memory")
    if not r:
        return ""
    rows = []
    for x in r["rows"]:
        limit = x.get("hard_limit_error") or f"{'finished' if x['survived'] else 'killed'} under {x['hard_limit'] / MIB:.0f} MiB"
        rows.append((x["model"], x["batch"], f"{x['budget'] / MIB:.1f}", f"{x['process_peak'] / MIB:.1f}", f"{x['beyond_budget'] / MIB:.1f}", limit))
    return ("## The whole process against its budget\n\nPeak resident size by the kernel's account (VmHWM), everything included: libraries, kernels' code, "
            "batches being prepared. Hard limit: a control group with budget + 200 MiB.\n\n"
            + table(("network", "batch", "budget MiB", "process peak MiB", "beyond MiB", "hard limit"), rows) + "\n" + origin(r))


def exactness():
    r = load("exactness")
    if not r:
        return ""
    rows = [(x["model"], x["batch"], x["liveness"][:12], "all equal" if x["equal"] else "differ") for x in r["rows"]]
    return ("## The same bits\n\nSHA-256 of the weights after 20 steps: `liveness`, again, `baseline`, and killed by `kill -9` and resumed.\n\n"
            + table(("network", "batch", "sha256", "four runs"), rows) + "\n" + origin(r))


def peers_rows(r):
    rows = []
    for x in r["rows"]:
        rate = x["images_per_second"]
        peers = sorted(k for k in rate if k != "plimsoll")
        rows.append((f"{x['model']}", x["batch"], f"{rate['plimsoll']:.1f}", *(f"{rate[p]:.1f}" for p in peers), f"{x['ratio']:.2f}x"))
    head = ("network", "batch", "Plimsoll", *sorted(k for k in r["rows"][0]["images_per_second"] if k != "plimsoll"), "against the fastest")
    return head, rows


def peers():
    r = load("peers")
    if not r:
        return ""
    head, rows = peers_rows(r)
    spread = max(max(x["spread"].values()) for x in r["rows"])
    return ("## Images per second against PyTorch\n\nfp32, 2 threads, forward + backward + SGD with momentum, synthetic data, in turns in one run; median "
            f"of the rounds; the largest spread of any cell is {100 * spread:.0f} %.\n\n" + table(head, rows) + "\n" + origin(r))


def families():
    r = load("families")
    if not r:
        return ""
    text = ("## Where the time of a step goes\n\nBy op, from the trace of one step. GFLOP/s counts a multiply-add as two; Winograd kernels do a quarter "
            "of the multiplications they are counted for, so they can exceed the machine's peak.\n\n")
    rows = [(x["model"], x["op"], x["count"], f"{x['ms']:.1f}", f"{100 * x['share']:.1f} %", f"{x['gflops']:.0f}" if x["gflops"] >= 1 else "") for x in r["rows"]
            if x["share"] >= 0.02]
    return text + table(("network", "op", "steps", "ms", "share", "GFLOP/s"), rows) + "\n" + origin(r)


def overlap():
    r = load("overlap")
    if not r:
        return ""
    names = ["vdnn:layers=all", "dymem", "superneurons", "auto"]

    def cell(x, name):
        plan = x["policies"].get(name)
        if not plan:
            return f"needs {x['least_bytes'] / MIB:.0f} MiB" if name == "auto" and "least_bytes" in x else "does not fit"
        slower = f"{100 * (plan['step_ms'] / x['unlimited_ms'] - 1):+.1f} %"
        return slower if plan["hidden"] is None else f"{slower}, {100 * plan['hidden']:.0f} % hidden"

    rows = [(x["model"], x["batch"], f"{x['share']} %", *(cell(x, n) for n in names)) for x in r["rows"]]
    return ("## How much of the copying hides behind compute\n\nSimulated: a K40c with 8 GB/s to the host, the papers' layers, a share of the memory that `liveness` needs. "
            "How much slower the step is than with all of it, and which part of the time of the copies compute does not wait for (none given: nothing is copied).\n\n"
            + table(("network", "batch", "memory", *names), rows) + "\n" + origin(r))


def tight():
    r = load("tight")
    if not r:
        return ""
    middle = lambda values: sorted(values)[len(values) // 2]
    rows, peers = [], {}
    for x in r["rows"]:
        size = f"{x['budget'] / MIB:.0f}"
        peak = "equal" if x["measured_peak"] == [x["predicted_peak"]] else f"{x['predicted_peak']} / {x['measured_peak']}"
        rows.append((x["model"], x["batch"], size, x["tiers"].replace("--host-memory", "host").replace("--spill", ""), f"{x['predicted_peak'] / MIB:.0f}", peak,
                     f"{middle(x['predicted_ms']):.0f}", f"{middle(x['measured_ms']):.0f}", f"{x['offload_bytes'] / MIB:.0f}", x["recompute_steps"]))
        for name, y in x["torch"].items():
            torch = f"{y['step_ms']:.0f}" if y["step_ms"] else y.get("error", "failed")
            peers[(x["model"], x["batch"], name)] = (torch, f"{y['peak_bytes'] / MIB:.0f}" if y["peak_bytes"] else "")
    text = ("## Training in little memory\n\nReal steps of `auto`, predicted before the first one. Peak: of the arena, predicted against measured. Out: copied out "
            "of the arena in a step. ResNet 6-32-788-6 is 2498 layers deep, with images of 227 x 227.\n\n"
            + table(("network", "batch", "budget MiB", "behind it", "peak MiB", "measured peak", "predicted ms", "measured ms", "out MiB", "run again"), rows))
    if peers:
        text += ("\nPyTorch on the same machine, which takes no budget: as it is, with `torch.utils.checkpoint`, and with saved tensors written to disk. Memory: "
                 "the largest resident size beyond that of its libraries.\n\n"
                 + table(("network", "batch", "PyTorch", "step ms", "memory MiB"), [(*k, *v) for k, v in peers.items()]))
    return text + "\n" + origin(r)


def median_of(values):
    return sorted(values)[len(values) // 2]


def slowdown():
    r = load("slowdown")
    if not r:
        return ""
    names = list(r["rows"][0]["predicted_ms"])
    measured, predicted = [], []
    for x in r["rows"]:
        first = (x["model"], x["batch"], f"{x['share']} %", f"{x['budget'] / MIB:.0f}")
        slower = lambda ms, whole: f"{100 * (ms / whole - 1):+.1f} %"
        fits = lambda n: "does not fit" if n != "auto" or "least_bytes" not in x else f"needs {x['least_bytes'] / MIB:.0f} MiB"
        predicted.append((*first, *(fits(n) if x["predicted_ms"][n] is None else slower(x["predicted_ms"][n], x["unlimited_predicted_ms"]) for n in names)))
        measured.append((*first, *(slower(median_of(x["measured_ms"][n]), median_of(x["unlimited_ms"])) if x["measured_ms"].get(n)
                                   else fits(n) if x["predicted_ms"][n] is None else "" for n in names)))
    draw_slowdown(r)
    head = ("network", "batch", "memory", "MiB", *names)
    return ("## Slowdown in less memory\n\nOf what `liveness` needs, with 8 GiB of host memory behind it; against the step with all of it, in turns in one run (medians; "
            "policies but `auto` ran once). Copies and recomputations take the processor from compute here: with a computing thread on every core there is no other "
            "engine, and the computing threads make the copies between two steps. The machine is shared: a measured value can be some 10 % off.\n\n"
            "![slowdown](slowdown.svg)\n\nMeasured:\n\n" + table(head, measured) + "\nPredicted:\n\n" + table(head, predicted) + "\n" + origin(r))


def draw_slowdown(r):
    """docs/slowdown.svg: a panel a network, a line a policy, measured slowdown over the share of memory."""
    networks = {}
    for x in r["rows"]:
        lines = networks.setdefault(f"{x['model']}, batch {x['batch']}", {})
        for policy, ms in x["measured_ms"].items():
            if ms:
                lines.setdefault(policy, [(100, 0.0)]).append((x["share"], 100 * (median_of(ms) / median_of(x["unlimited_ms"]) - 1)))
    colours = dict(zip(r["rows"][0]["predicted_ms"], ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")))
    width, height, left, across = 270, 230, 46, 3
    parts = []
    for i, (network, lines) in enumerate(networks.items()):
        x0, y0 = i % across * width, i // across * height
        values = [y for line in lines.values() for _, y in line]
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
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[policy]}" stroke-width="{3 if policy == "auto" else 1.5}"/>')
            parts += [f'<circle cx="{px(s):.1f}" cy="{py(y):.1f}" r="2.5" fill="{colours[policy]}"/>' for s, y in line]
    panels = len(networks)
    x0, y0 = panels % across * width + left, panels // across * height + 40  # the legend takes the place after the last panel
    for i, (policy, colour) in enumerate(colours.items()):
        parts.append(f'<line x1="{x0}" y1="{y0 + 20 * i}" x2="{x0 + 24}" y2="{y0 + 20 * i}" stroke="{colour}" stroke-width="{3 if policy == "auto" else 1.5}"/>'
                     f'<text x="{x0 + 32}" y="{y0 + 4 + 20 * i}">{policy}</text>')
    parts.append(f'<text x="{x0}" y="{y0 + 20 * len(colours) + 14}">step time above that with all memory,</text>'
                 f'<text x="{x0}" y="{y0 + 20 * len(colours) + 30}">over memory as a share of what</text>'
                 f'<text x="{x0}" y="{y0 + 20 * len(colours) + 46}">liveness needs</text>')
    size = f"{across * width} {(panels // across + 1) * height}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    (ROOT / "docs" / "slowdown.svg").write_text("\n".join([head, *parts]) + "</svg>\n")


def papers():
    r = load("papers")
    if not r:
        return ""
    rows = [(x["model"], x["what"], x["ours"], x["superneurons_model"], x["limited_by"], f"{x['host_bytes'] / (1 << 30):.0f}") for x in r["largest"]]
    text = ("## The papers' tables\n\nSimulated: the papers' layer model on a K40c with 11.2 GiB, by formulas (docs say where). First the largest batch, and the depth of ResNet 6-32-N-6 at batch 16, "
            "that `auto` fits with 107 GiB of host memory, beside what SuperNeurons' rules give when they are taken from its text literally (a checkpoint stays until its "
            "copy is complete at the end of its layer). Table5 below takes `superneurons:cache=off,release=drop,prefetch=demand,recompute=cost-aware`, with which a "
            "checkpoint leaves as soon as it was used; `max --policy superneurons` takes that policy's defaults.\n\n"
            + table(("network", "what", "auto", "SuperNeurons' rules, taken literally", "bounded by", "host GiB"), rows) + "\n")
    if r.get("largest_of"):
        text += f"These largest sizes are of commit {r['largest_of']['commit']}; what follows is newer.\n\n"
    number = lambda v: "" if v is None else f"{v:.10g}"
    cells = [(x["table"], x["row"], x["quantity"], number(x["paper"]), number(x["ours"]), x["unit"], x["note"]) for x in r["rows"]]
    return text + table(("table", "row", "quantity", "paper", "ours", "unit", "note"), cells) + "\n" + origin(r)


def concurrency():
    """This machine's, and those that were recorded on others under a name."""
    names = ["concurrency"] + sorted(p.stem for p in RESULTS.glob("concurrency-*.json"))
    return "\n".join(text for text in map(concurrency_on, names) if text)


def concurrency_on(name):
    r = load(name)
    if not r:
        return ""
    place = name.partition("-")[2]
    text = (f"## Thread counts and ops side by side{', ' + place if place else ''}\n\nMedian step time, and half of what lies between the shortest and the longest of the rounds. Uniform settings are ops at once x threads each; recommended: one at a time, all cores. "
            "`--inter-op auto` chooses by measured times with the strategies of the concurrency paper, then tries its choice against one op after another and keeps the faster; the columns of strategies are what it tries.\n\n")
    rows = []
    for x in r["rows"]:
        ms, best, spread = x["step_ms"], x["best_uniform"], x["spread_ms"]
        part = lambda key: f"{ms[key]:.1f} ± {spread[key] / 2:.1f}" if key in ms else ""
        rows.append((x["model"], x["batch"], part(x["recommended"]), f"{best}: {part(best)}", part("strategies 1,2"), part("strategies 1,2,3"), part("auto"),
                     f"{ms[x['recommended']] / ms['auto']:.2f}x", f"{ms[best] / ms['auto']:.2f}x"))
    text += table(("network", "batch", "recommended ms", "best uniform ms", "Strategies 1-2 ms", "+ 3 ms", "auto (+ 4) ms", "over recommended", "over best uniform"), rows)
    settings = list(dict.fromkeys(s for x in r["rows"] for s in x["step_ms"] if " x " in s))
    rows = [(s, *(f"{x['step_ms'][s]:.1f} ({x['step_ms'][x['recommended']] / x['step_ms'][s]:.2f}x)" if s in x["step_ms"] else "" for x in r["rows"])) for s in settings]
    text += ("\nEvery uniform setting (Table I): milliseconds, and the speed over the recommended one.\n\n" + table(("setting", *(x["model"] for x in r["rows"])), rows))
    return text + "\n" + origin(r) + operations_on(f"operations-{place}" if place else "operations")


def operations_on(name):
    r = load(name)
    if not r:
        return ""
    text = ""
    told = lambda what: [x for x in r["rows"] if x["what"] == what]
    rows = [(x["pass"], x["input"], x["convolution"].split(", ")[1], x["best_threads"], f"{x['best_ms']:.2f}", f"{100 * (x['all_ms'] / x['best_ms'] - 1):.1f} %", f"{x['one_ms']:.2f}") for x in told("sizes")]
    if rows:
        text += ("\nThe best thread count by the size of the input (Table II), each pass by its fastest kernel; inputs are batch, height, width, channels.\n\n"
                 + table(("pass", "input", "filters", "best threads", "ms", "lost with all", "ms with one"), rows))
    pair = told("pair")
    if pair:
        text += (f"\nTwo ops that do not depend on each other (Table III): the gradients of {pair[0]['convolution']}"
                 + ("" if any(x["how"].startswith("second") for x in pair) else "; cores without second hardware threads") + ".\n\n"
                 + table(("how", "threads each", "ms", "speed"), [(x["how"], x["threads"], f"{x['ms']:.2f}", f"{pair[0]['ms'] / x['ms']:.2f}x") for x in pair]))
    rows = [(x["model"], x["cores"], x["ops"], x["interval"], "none was untried" if x["interval"] == 1 else f"{100 * x['accuracy']:.1f} %", f"{100 * x['lost']:.1f} %", x["tries"]) for x in told("accuracy") if not x["simulated"]]
    if rows:
        text += ("\nHill climbing over the thread counts of this machine (Table V): accuracy at the counts that were not tried, and time lost by its optimum.\n\n"
                 + table(("network", "cores", "ops", "interval", "accuracy", "lost", "tries"), rows))
    rows = [(x["model"], x["cores"], x["ops"], x["interval"], f"{100 * x['accuracy']:.1f} %", f"{100 * x['accuracy_of_all']:.1f} %", f"{100 * x['lost']:.1f} %", x["tries"])
            for x in told("accuracy") if x["simulated"] and x["interval"] > 1]
    if rows:
        text += ("\nSimulated: the same, with times extended to 16 cores by Amdahl's law and the memory's rate; accuracy at the counts up to where each climb ended, and at all.\n\n"
                 + table(("network", "cores", "ops", "interval", "accuracy", "of all", "lost", "tries"), rows))
    rows = [(x["model"], f"{x['one_thread_ms']:.1f}", f"{x['two_threads_ms']:.1f}", x["cores"], f"{x['recommended_ms']:.1f}", f"{x['recommended_ms'] / x['strategies12_ms']:.2f}x",
             f"{x['recommended_ms'] / x['strategy3_ms']:.2f}x", f"{x['recommended_ms'] / x['chosen_ms']:.2f}x",
             f"{x['uniform_inter']} x {x['uniform_intra']}: {x['recommended_ms'] / x['uniform_ms']:.2f}x") for x in told("cores")]
    if rows:
        text += ("\nSimulated: the same steps on 16 cores, from the times of their ops measured with one and two threads, extended likewise. Chosen: what `auto` would choose there, of the strategies with bounds on the threads of an op, balanced counts, and uniform ones.\n\n"
                 + table(("network", "one thread ms", "two threads ms", "cores", "recommended ms", "Strategies 1-2", "+ 3", "chosen", "best uniform"), rows))
    study = told("regression")
    if study and study[0]["available"]:
        rows = [(x["threads"], x["ops"], f"{100 * x['accuracy']:.1f} %", f"{x['r2']:.3f}") for x in study]
        text += "\nLeast squares on hardware counters, cross-validated: time with so many threads, from counters and time with one.\n\n" + table(("threads", "ops", "accuracy", "R2"), rows)
    elif study:
        text += f"\nThe regression models on hardware counters were not tried: this kernel gives no counters ({study[0]['why']}).\n"
    return text + "\n" + origin(r)


def overhead():
    r = load("overhead")
    if not r:
        return ""
    cell = lambda x, name: f"{x['us_an_op'][name]:.2f} ({100 * x['share'][name]:.3f} %)"
    rows = [(x["model"], x["batch"], x["ops"], f"{x['step_ms']:.1f}", cell(x, "serial"), cell(x, "one_core"), cell(x, "two_cores")) for x in r["rows"]]
    return ("## What starting an op costs\n\nProcessor time of the executor itself, measured with kernels that do nothing, in microseconds an op and as a share of a real training step: one op after "
            "another, and with two ops at once on one core and on two.\n\n"
            + table(("network", "batch", "ops", "step ms", "serial", "two at once, one core", "two at once, two cores"), rows) + "\n" + origin(r))


def workspace():
    r = load("workspace")
    if not r:
        return ""
    rows, short = [], []
    for model in dict.fromkeys(x["model"] for x in r["rows"]):
        wr = [x for x in r["rows"] if x["model"] == model and x["how"] == "WR"]
        at = {(x["limit"] >> 20, x["sizes"]): x["measured"] for x in wr}
        free = at[512, "undivided"]
        as_fast = min((x["measured"] for x in wr if x["measured"]["convolution_ms"] <= 1.03 * free["convolution_ms"]), key=lambda m: m["largest_workspace"])
        ratio = at[64, "undivided"]["convolution_ms"] / at[64, "powerOfTwo"]["convolution_ms"]
        short.append((model, wr[0]["batch"], f"{ratio:.2f}x", f"{free['largest_workspace'] / MIB:.1f}", f"{as_fast['largest_workspace'] / MIB:.1f}",
                      f"{free['largest_workspace'] / as_fast['largest_workspace']:.1f}x"))
    for x in r["rows"]:
        each = x["limit"] if x["how"] == "WR" else x["limit"] // x_ops(x, r)
        base = next(y for y in r["rows"] if (y["model"], y["how"], y["sizes"], y["limit"]) == (x["model"], "WR", "undivided", each))
        m, b = x["measured"], base["measured"]
        rows.append((x["model"], x["batch"], f"{x['limit'] >> 20} MiB " + ("an op" if x["how"] == "WR" else "in all"), x["sizes"],
                     f"{m['convolution_ms']:.0f}", f"{b['convolution_ms'] / m['convolution_ms']:.2f}x", f"{x['predicted']['convolution_ms']:.0f}",
                     f"{m['step_ms']:.0f}", f"{b['step_ms'] / m['step_ms']:.2f}x", f"{m['largest_workspace'] / MIB:.1f}", f"{m['workspaces'] / MIB:.0f}",
                     f"{x['profile_seconds']:.0f}"))
    return ("## Workspace and parts of the batch\n\nA limit on the workspace of each op (mu-cuDNN's WR), or of all convolutions and fully connected layers together "
            "(WD, the total being as many times the limit as there are such ops), and which parts of the batch were measured; `all`: "
            "powers of two and multiples of an eighth of the batch. Speed is against undivided at the same limit. Measured in turns; profiling includes what stands "
            "before it in the list.\n\nIn short: convolutions within 64 MiB, in parts that are powers of two, against undivided; and the largest workspace of an op that is as fast "
            "(within 3 %) as undivided ones within 512 MiB. The aims are 1.3x and 2.7x. What is chosen is never predicted to be slower than undivided; where it was measured "
            "to be, within the noise or not, the column says so.\n\n"
            + table(("network", "batch", "faster at 64 MiB", "largest MiB, undivided", "as fast with MiB", "less"), short) + "\n"
            + table(("network", "batch", "workspace", "parts", "conv. ms", "faster", "predicted ms", "step ms", "faster", "largest MiB", "sum MiB", "profiled s"), rows)
            + "\n" + origin(r))


def x_ops(x, r):
    """How many ops share the total of a WD row: all totals of a network are one of the limits times them."""
    limits = sorted({y["limit"] for y in r["rows"] if y["model"] == x["model"] and y["how"] == "WR"})
    totals = sorted({y["limit"] for y in r["rows"] if y["model"] == x["model"] and y["how"] == "WD"})
    return totals[0] // limits[0]


def readme_table():
    r, m, p, q = load("peers"), load("memory"), load("prediction"), load("placement")
    text = ""
    if r:
        head, rows = peers_rows(r)
        machine = r["machine"]
        text += f"Images per second, fp32, {machine['cores']} threads ({machine['device']}), the same work in turns:\n\n" + table(head, rows) + "\n"
    rows = []
    if m:
        worst = max(x["beyond_budget"] for x in m["rows"]) / MIB
        rows.append(("whole process, libraries included (AlexNet 64, ResNet-50 16, VGG16 8)", f"within its budget + {worst:.0f} MiB"))
    if p:
        equal = sum(x["predicted_peak"] == x["measured_peak"] for x in p["rows"])
        rows.append(("predicted peak = measured peak, to the byte", f"{equal} of {len(p['rows'])} networks"))
        rows.append(("predicted against measured step time", f"median error {100 * p['median_error']:.0f} %, largest {100 * p['largest_error']:.0f} %"))
    if q:
        exact = sum(x["offline"] == x["live"] for x in q["rows"])
        worst = max(x["first_fit"] / x["live"] - 1 for x in q["rows"])
        rows.append(("arena = largest sum of live bytes", f"{exact} of {len(q['rows'])} plans (first fit wastes up to {100 * worst:.0f} %)"))
    t = load("tight")
    for x in (t["rows"] if t else []):
        torch = next((y for name, y in x["torch"].items() if name.endswith("eager") and y["step_ms"]), None)
        if not torch or not (x["model"], x["budget"] >> 20) in (("alexnet", 700), ("resnet:6-32-788-6", 2048)):
            continue
        middle = sorted(x["measured_ms"])[len(x["measured_ms"]) // 2]
        rows.append((f"{x['model']}, batch {x['batch']}, in {x['budget'] >> 20} MiB (+ {x['tiers'].replace('--host-memory', 'host').replace('--spill', '').strip()})",
                     f"{middle / 1000:.1f} s a step; PyTorch takes {torch['step_ms'] / 1000:.1f} s and {torch['peak_bytes'] / (1 << 30):.1f} GiB"))
    return text + (table(("what", "measured"), rows) if rows else "")


def wd_solver():
    r = load("wd-solver")
    if not r:
        return ""
    kinds = {}
    for x in r["rows"]:
        kinds.setdefault(x["instance"], []).append(x)
    rows = []
    for name, xs in kinds.items():
        rows.append((name, f"{min(x['solve_ms'] for x in xs):.3f}", f"{max(x['solve_ms'] for x in xs):.3f}", f"{sum(x['exact'] for x in xs)} of {len(xs)}",
                     f"{max(x['time_ms'] / x['lower_bound_ms'] - 1 for x in xs):.1e}"))
    return ("## Dividing one workspace total among all ops\n\nmu-cuDNN's WD, by our own solver: at 5, 20, 50 and 80 % of the bytes between what must be and what "
            "would be had, random instances with three seeds. The paper's GLPK took 5.46 ms for 562 variables. In the last kind time and workspace are tied to each other, so that "
            "no price tells configurations apart: the search stops early there and says so; the gap is to its proven bound.\n\n"
            + table(("instance", "fastest ms", "slowest ms", "proven", "largest gap"), rows) + "\n" + origin(r))


def convolutions():
    r = load("convolutions")
    if not r:
        return ""
    rows = []
    for workspace in dict.fromkeys(x["workspace"] for x in r["rows"]):
        for what in ("forward", "backward_data", "backward_weights", "all"):
            xs = [x for x in r["rows"] if x["workspace"] == workspace and what in (x["pass"], "all") and x["undivided_ms"] and x["divided_ms"]]
            undivided, divided = sum(x["undivided_ms"] for x in xs), sum(x["divided_ms"] for x in xs)
            rows.append((workspace, what, len(xs), sum(x["configuration"] != x["undivided_configuration"] for x in xs), f"{undivided:.0f}", f"{divided:.0f}", f"{undivided / divided:.2f}x",
                         f"{max(x['undivided_ms'] / x['divided_ms'] for x in xs):.2f}x"))
    times = "; ".join(f"`{p['batch_sizes']}` {p['seconds']:.0f} s" for p in r["profiling"])
    return ("## Convolutions by micro-batch\n\n`bench/convolutions.csv`, layers of AlexNet, VGG and ResNet: the fastest kernel on the whole batch against the fastest division, both "
            f"run as a whole, in turn. Measuring all kernels of one layer (28x28, 128 channels, batch 32) takes: {times}.\n\n"
            + table(("limit", "pass", "ops", "divided", "undivided ms", "divided ms", "gain", "largest"), rows) + "\n" + origin(r))


def gpu():
    """What scripts/gpu_check has recorded, a section a GPU."""
    names = sorted(p.stem for p in RESULTS.glob("gpu-*.json"))
    if not names:
        return ("## On a GPU\n\nNone was recorded yet. On a machine with an NVIDIA GPU `scripts/gpu_check --torch PYTHON` writes `bench/results/gpu-<name>.json`, "
                "from which this section is made.\n")
    return "\n".join(map(gpu_of, names))


def gpu_of(name):
    r = load(name)
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
        text += ("\nImages per second, single precision, forward + backward + SGD with momentum; PyTorch's layout is the faster of its two. Then the same batch inside 12 GiB: "
                 "the share of the speed that is kept, and PyTorch with no more memory than that.\n\n"
                 + table(("network", "batch", "Plimsoll", "PyTorch", "compiled", "against eager", "in 12 GiB", "kept", "PyTorch in 12 GiB"), rows))
    verdict = {True: "right", False: "WRONG", None: ""}
    told = lambda check, row: check in ("speed", "tight", "compiled") and "values" in row
    rows = [(check, row["what"], row["result"], verdict[row["good"]]) for check, items in r["checks"].items() for record in items.values()
            for row in record["rows"] if not told(check, row)]
    text += "\nWhat else was checked:\n\n" + table(("check", "what", "result", ""), rows)
    if r["not_done"]:
        text += f"\nNot done, for lack of time: {', '.join(r['not_done'])}.\n"
    made = sorted({(record["date"], record["commit"]) for items in r["checks"].values() for record in items.values() if record["rows"]})
    return text + "\n" + "; ".join(f"{date}, commit {commit}" for date, commit in made) + ". Again: `scripts/gpu_check`.\n"


def values_of(record):
    return {name: value for row in record["rows"] for name, value in row.get("values", {}).items()}


def main():
    sections = [s for s in (peers(), memory(), prediction(), placement(), placement_hard(), planning(), exactness(), families(), tight(), slowdown(), overlap(),
                            wd_solver(), convolutions(), workspace(), concurrency(), overhead(), gpu(), papers()) if s]
    (ROOT / "docs" / "results.md").write_text("# Results\n\nGenerated by `bench/tables.py` from `bench/results/`; do not edit.\n\n" + "\n".join(sections))
    readme = ROOT / "README.md"
    text = readme.read_text()
    text = re.sub(r"(<!-- results -->\n).*?(<!-- /results -->)", lambda m: m.group(1) + readme_table() + m.group(2), text, flags=re.S)
    readme.write_text(text)


if __name__ == "__main__":
    main()

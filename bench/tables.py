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
    return (f"{result['date']}, commit {m['commit']}; {m['cores']} cores, {m['device']}, {m['memory_mib'] / 1024:.0f} GiB. "
            f"Again: `{result['command']}`.\n")


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
    rows = [(x["model"], x["batch"], x["steps"], f"{x['plan_time_ms'] / 1000:.2f}", f"{x['spread_ms'] / 1000:.2f}", f"{x['command_seconds']:.2f}") for x in r["rows"]]
    return ("## Planning time\n\nFrom the network to the verified plan, without measured costs; median and spread of five. The command also finds the "
            "least memory that would do, which plans again.\n\n" + table(("network", "batch", "steps", "plan s", "spread s", "whole command s"), rows) + "\n" + origin(r))


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
            return "does not fit"
        slower = f"{100 * (plan['step_ms'] / x['unlimited_ms'] - 1):+.1f} %"
        return slower if plan["hidden"] is None else f"{slower}, {100 * plan['hidden']:.0f} % hidden"

    rows = [(x["model"], x["batch"], f"{x['share']} %", *(cell(x, n) for n in names)) for x in r["rows"]]
    return ("## How much of the copying hides behind compute\n\nSimulated: a K40c with 8 GB/s to the host, the papers' layers, a share of the memory that `liveness` needs. "
            "How much slower the step is than with all of it, and which part of the time of the copies compute does not wait for (none given: nothing is copied).\n\n"
            + table(("network", "batch", "memory", *names), rows) + "\n" + origin(r))


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


def main():
    sections = [s for s in (peers(), memory(), prediction(), placement(), placement_hard(), planning(), exactness(), families(), overlap(), wd_solver(), convolutions()) if s]
    (ROOT / "docs" / "results.md").write_text("# Results\n\nGenerated by `bench/tables.py` from `bench/results/`; do not edit.\n\n" + "\n".join(sections))
    readme = ROOT / "README.md"
    text = readme.read_text()
    text = re.sub(r"(<!-- results -->\n).*?(<!-- /results -->)", lambda m: m.group(1) + readme_table() + m.group(2), text, flags=re.S)
    readme.write_text(text)


if __name__ == "__main__":
    main()

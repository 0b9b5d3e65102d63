"""Results on disk: what bench.py measures and tables.py shows. bench/results/NAME.json is

    {"bench": "peers",
     "runs": [{"commit": "9f282b4", "date": "2026-11-22 10:15", "command": "bench/bench.py peers", "machine": {...}}, ...],
     "cases": [{"case": "alexnet 64", "run": 0, "seconds": 51.2, "busy": 0.01, "rows": [{...}, ...]}, ...]}

A case is what is measured in one go, such as a network with its batch. Each names the run that measured it, so that a file may hold
results of several commits and every row still tells its own.
"""
import dataclasses
import json
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NAMED = ("peers", "transformers", "concurrency", "operations", "roofline")  # of which another machine's results may stand beside: bench.py --name


def spread(values):
    """What lies between the smallest and the largest, as a part of the median."""
    return (max(values) - min(values)) / statistics.median(values)


@dataclasses.dataclass
class Case:
    run: dict      # of the run that measured it: commit, date, command, machine
    rows: list
    seconds: float | None = None  # it took to measure
    busy: float | None = None     # part of the machine's processor time that others used just before


class Results:
    """Those of one bench, in a folder with those of others."""

    def __init__(self, bench, folder):
        self.bench, self.folder, self.cases = bench, folder, {}

    @classmethod
    def read(cls, bench, folder=RESULTS):
        """Empty where nothing was measured yet."""
        results, path = cls(bench, folder), folder / f"{bench}.json"
        if path.exists():
            stored = json.loads(path.read_text())
            for case in stored["cases"]:
                results.cases[case["case"]] = Case(stored["runs"][case["run"]], case["rows"], case["seconds"], case["busy"])
        return results

    def write(self):
        runs = self.runs()
        cases = [{"case": name, "run": runs.index(c.run), "seconds": c.seconds, "busy": c.busy, "rows": c.rows} for name, c in self.cases.items()]
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.bench}.json"
        beside = path.with_suffix(".new")  # an end in the middle leaves what was there
        beside.write_text(json.dumps({"bench": self.bench, "runs": runs, "cases": cases}, indent=1) + "\n")
        beside.replace(path)

    def beside(self, bench):
        """Of the same machine, where this one's stand beside another's (NAMED)."""
        of_machine = self.bench.partition("-")[2] if self.bench.split("-")[0] in NAMED and bench in NAMED else ""
        return Results.read(f"{bench}-{of_machine}" if of_machine else bench, self.folder)

    def runs(self):
        """Each run once, the newest first."""
        runs = []
        for case in self.cases.values():
            if case.run not in runs:
                runs.append(case.run)
        return sorted(runs, key=lambda run: run["date"], reverse=True)

    def rows(self):
        """All rows, each with its run as "run"."""
        return [{**row, "run": case.run} for case in self.cases.values() for row in case.rows]

"""Tests of the benches themselves, without the program under test: python3 -B -m unittest discover -s bench -p '*_test.py'"""
import contextlib
import io
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

import bench
import records
import tables

sys.path.append(str(pathlib.Path(__file__).parent.parent / "scripts"))
from gpu.bench import moved_bytes  # noqa: E402
from gpu.report import Report  # noqa: E402

MACHINE = {"cpu": "some", "cores": 2, "memory_mib": 8192, "device": "some, 2 threads", "compiler": "g++"}


def run_of(commit, date, **more):
    return {"commit": commit, "dirty": False, "date": date, "command": "bench/bench.py prediction", "machine": MACHINE, **more}


OLD, NEW = run_of("aaaaaaa", "2026-01-01 10:00"), run_of("bbbbbbb", "2026-01-02 10:00")


def predicted(model, predicted_ms=(10, 10), measured_ms=(10, 12), predicted_peak=(64, 64), measured_peak=(64, 64)):
    return {"model": model, "batch": 8, "predicted_ms": list(predicted_ms), "measured_ms": list(measured_ms), "predicted_peak": list(predicted_peak),
            "measured_peak": list(measured_peak)}


class OwnKernels(unittest.TestCase):
    def test_move_each_input_and_output_once(self):
        self.assertEqual(moved_bytes("ReluForward(4x6x2 f32 acdb)->(4x6x2 f32 acdb)"), 2 * 4 * 48)
        self.assertEqual(moved_bytes("MaxPoolBackward{kernel=[2,2]}(2x8 f32, 2x8 u8, 16 bit)->(scalar f32)"), 64 + 16 + 2 + 4)
        self.assertEqual(moved_bytes("Constant{shape=[] value=1}()->(3 i64)"), 24)


class GpuReport(unittest.TestCase):
    def test_what_was_never_done_comes_before_what_was_wrong(self):
        record = lambda good, **more: {"date": "2026-01-01", "commit": "aaaaaaa", "rows": [{"what": "", "result": "", "good": good}], **more}
        left = {"date": "2026-01-01", "commit": "aaaaaaa", "rows": [], "not_done": "no time was left"}
        report = Report(None, {"commit": "bbbbbbb"}, {"checks": {"speed": {"slower": record(False), "good": record(True), "cut": record(True, not_done="cut off"), "left": left}}})
        self.assertEqual(report.todo("speed", ("slower", "good", "cut", "left", "new")), ["left", "new", "slower", "cut"])
        self.assertEqual(report.todo("tight", ("b", "a")), ["b", "a"])

    def test_a_network_in_little_memory_without_a_speed_of_its_own_has_a_row(self):
        row = {"what": "vgg16 160 in 12GiB", "result": "860.5 images/s", "good": None, "values": {"batch": 160, "images_per_second": 860.5, "share": 0.9}}
        speed = {"what": "resnet50 256", "result": "1448.5 images/s", "good": None, "values": {"batch": 256, "images_per_second": 1448.5}}
        record = lambda row: {"date": "2026-01-01", "commit": "aaaaaaa", "rows": [row]}
        text = tables.gpu_of({"gpu": "G", "device": "G", "not_done": [],
                              "checks": {"speed": {"resnet50": record(speed)}, "tight": {"vgg16": record(row), "resnet50": record({**row, "result": "told above"})}}})
        self.assertIn("| tight | vgg16 160 in 12GiB | 860.5 images/s |", text)
        self.assertNotIn("told above", text)
        self.assertIn("| resnet50 | 256 | 1448.5 |", text)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.pages = tables.Pages(self.folder / "results.md", self.folder / "slowdown.svg", self.folder / "README.md")
        self.pages.readme.write_text("before\n<!-- results -->\nanything\n<!-- /results -->\nafter\n")

    def store(self, name, **cases):
        results = records.Results(name, self.folder)
        results.cases = {case: records.Case(run, rows) for case, (run, rows) in cases.items()}
        results.write()

    def written(self):
        tables.write(self.folder, self.pages)
        return self.pages.results.read_text(), self.pages.readme.read_text()


class Tables(InFolder):
    def test_each_case_keeps_the_run_that_measured_it(self):
        self.store("prediction", one=(OLD, [predicted("one")]), two=(NEW, [predicted("two")]))
        read = records.Results.read("prediction", self.folder)
        self.assertEqual([NEW, OLD], read.runs())
        self.assertEqual({"one": "aaaaaaa", "two": "bbbbbbb"}, {row["model"]: row["run"]["commit"] for row in read.rows()})

    def test_what_is_older_is_marked_and_named(self):
        self.store("prediction", one=(OLD, [predicted("one")]), two=(NEW, [predicted("two")]))
        results, readme = self.written()
        self.assertIn("| one \\* | 8 |", results)
        self.assertIn("| two | 8 |", results)
        self.assertIn("\\* commit aaaaaaa, 2026-01-01 10:00: one.", results)
        self.assertIn("| Predicted against measured | bbbbbbb | 2026-01-02 10:00 | 1 of 2 cases: aaaaaaa, 2026-01-01 10:00 |", results)
        self.assertIn("predicted peak = measured peak, to the byte \\* | 2 of 2 networks", readme)

    def test_the_same_commit_on_another_machine_is_marked(self):
        elsewhere = {**NEW, "date": "2026-01-01 09:00", "machine": {**MACHINE, "device": "other, 64 threads"}}
        self.store("prediction", one=(elsewhere, [predicted("one")]), two=(NEW, [predicted("two")]))
        results, _ = self.written()
        self.assertIn("| one \\* | 8 |", results)
        self.assertIn("other, 64 threads", results)

    def test_a_peak_that_is_not_the_predicted_one_is_shown(self):
        self.store("prediction", one=(NEW, [predicted("one", measured_peak=(64, 128))]), two=(NEW, [predicted("two")]))
        results, readme = self.written()
        self.assertIn("equal in 1 of 2", results)
        self.assertIn("| 64 | 64, 128 |", results)
        self.assertIn("1 of 2 networks", readme)

    def test_a_peak_that_was_not_measured_is_not_claimed(self):
        self.store("prediction", one=(NEW, [predicted("one", measured_peak=())]))
        results, readme = self.written()
        self.assertIn("| 64 | not measured |", results)
        self.assertNotIn("measured peak,", readme)

    def test_errors_of_first_and_later_trainings_are_told_apart(self):
        self.store("prediction", one=(NEW, [predicted("one", (10, 10, 10), (20, 8, 12))]))
        _, readme = self.written()
        self.assertIn("the first training of a network | median error 50.0 %, largest 50.0 %", readme)
        self.assertIn("later trainings of it | median error 0.0 %, largest 0.0 %", readme)

    def test_doubts_about_a_run_stand_below_its_table(self):
        self.store("prediction", one=({**NEW, "dirty": True, "built_here": False}, [predicted("one")]))
        results, readme = self.written()
        for text in results, readme:
            self.assertIn("commit bbbbbbb (with changes that were not committed; the program was not built here)", text)

    def test_the_check_finds_a_page_that_was_edited(self):
        self.store("prediction", one=(NEW, [predicted("one")]))
        self.written()
        self.assertEqual(0, tables.check(self.folder, self.pages))
        self.pages.readme.write_text(self.pages.readme.read_text().replace("1 of 1", "2 of 2"))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(1, tables.check(self.folder, self.pages))
        self.assertIn("README.md is not what bench/results/ gives", said.getvalue())

    def test_what_surrounds_the_tables_of_the_readme_stays(self):
        self.store("prediction", one=(NEW, [predicted("one")]))
        _, readme = self.written()
        self.assertTrue(readme.startswith("before\n<!-- results -->\n") and readme.endswith("<!-- /results -->\nafter\n"))
        self.assertNotIn("anything", readme)


class Runs(InFolder):
    def measured(self, *words, measure=lambda o, model: [predicted(model)]):
        """Measures a part "prediction" that has two cases, at commit NEW; gives the run."""
        options, _ = bench.options_from(["prediction", *words])
        measure.__doc__ = "What it is about."
        part = bench.Part("prediction", 1, [("one",), ("two",)], [], True, measure)
        with contextlib.ExitStack() as stack:
            for name, value in {"source": {"commit": "bbbbbbb", "dirty": False}, "build": None, "built_here": True, "machine": MACHINE,
                                "busy_share": 0}.items():
                stack.enter_context(mock.patch.object(bench, name, lambda *_, value=value: value))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            run = bench.Run(options, [part])
            run.folder = self.folder
            run.measure()
        return run

    def commits(self):
        return {name: case.run["commit"] for name, case in records.Results.read("prediction", self.folder).cases.items()}

    def test_all_cases_are_measured_and_what_is_no_case_goes(self):
        self.store("prediction", one=(OLD, []), three=(OLD, []))
        self.measured()
        self.assertEqual({"one": "bbbbbbb", "two": "bbbbbbb"}, self.commits())

    def test_only_leaves_the_others_as_they_were(self):
        self.store("prediction", one=(OLD, []), two=(OLD, []))
        self.measured("--only", "two")
        self.assertEqual({"one": "aaaaaaa", "two": "bbbbbbb"}, self.commits())

    def test_going_on_keeps_what_is_of_this_commit(self):
        self.store("prediction", one=(run_of("bbbbbbb", "2026-01-01 10:00"), []), two=(OLD, []))
        seen = []
        self.measured("--go-on", measure=lambda o, model: seen.append(model) or [predicted(model)])
        self.assertEqual(["two"], seen)

    def test_going_on_measures_again_what_had_changes_that_were_not_committed(self):
        self.store("prediction", one=({**NEW, "dirty": True}, []), two=({**NEW, "machine": {**MACHINE, "cores": 64}}, []))
        seen = []
        self.measured("--go-on", measure=lambda o, model: seen.append(model) or [predicted(model)])
        self.assertEqual(["one", "two"], seen)

    def test_a_case_that_fails_leaves_what_was_there_and_the_others_go_on(self):
        self.store("prediction", one=(OLD, []), two=(OLD, []))

        def measure(o, model):
            if model == "one":
                raise RuntimeError("no such kernel")
            return [predicted(model)]

        run = self.measured(measure=measure)
        self.assertEqual(["prediction: one: no such kernel"], run.failed)
        self.assertEqual({"one": "aaaaaaa", "two": "bbbbbbb"}, self.commits())

    def test_all_wants_pytorch(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            bench.options_from(["all"])
        self.assertIn("all needs --torch PYTHON", said.getvalue())


class Peers(InFolder):
    def torch(self, script):
        """A program in place of Python, that speaks as torch_bench.py does."""
        path = self.folder / "python"
        path.write_text("#!/bin/sh\necho '{\"torch\": \"9.9\", \"threads\": 2}'\nwhile read -r word count; do\n" + script + "\ndone\n")
        path.chmod(0o755)
        return str(path)

    def peers(self, script):
        options = types.SimpleNamespace(torch=self.torch(script), rounds=2, seconds=0.1)
        silent = io.StringIO()
        with mock.patch.object(bench, "trained", lambda *_: {"step_time_ms": 10.0}), contextlib.redirect_stderr(silent), contextlib.redirect_stdout(silent):
            row, = bench.peers(options, "resnet32", 8)
        self.store("peers", one=(NEW, [row]))
        return row, self.written()[0]

    def test_the_fastest_of_all_four_is_what_counts(self):
        row, results = self.peers("""case "$*" in
            *--compile*) echo '{"step_ms": [20], "compiler": {"graph_breaks": 0, "from_cache": false}}' ;;
            *) echo '{"step_ms": [40]}' ;;
            esac""")
        self.assertEqual({"plimsoll", *tables.WAYS}, set(row["images_per_second"]))
        self.assertIn("| resnet32 | 8 | 800.0 | 200.0 | 200.0 | **400.0** | 400.0 | 2.00x |", results)

    def test_what_pytorch_cannot_compile_stands_in_the_table(self):
        _, results = self.peers("""case "$*" in
            *--compile*) echo '{"error": "no such backend"}'; exit 1 ;;
            *) echo '{"step_ms": [40]}' ;;
            esac""")
        self.assertIn("| **200.0** | 200.0 | failed: no such backend | failed: no such backend | 4.00x |", results)

    def test_a_process_that_is_killed_is_out_with_its_reason(self):
        row, _ = self.peers("""case "$*" in
            *nchw*) kill -9 $$ ;;
            *) echo '{"step_ms": [40]}' ;;
            esac""")
        self.assertEqual({way: "killed, most likely for want of memory" for way in ("eager nchw", "compiled nchw")}, row["failed"])
        self.assertEqual("eager channels_last", row["fastest_peer"])

    def test_one_that_dies_in_a_later_round_has_no_rate(self):
        row, _ = self.peers("""asked=$((asked + 1))
            case "$asked $*" in
            "4 "*channels_last*) exit 1 ;;
            *) echo '{"step_ms": [40]}' ;;
            esac""")
        self.assertEqual({"plimsoll", "eager nchw", "compiled nchw"}, set(row["images_per_second"]))
        self.assertEqual({way: "exit code 1" for way in ("eager channels_last", "compiled channels_last")}, row["failed"])

    def test_one_that_ends_tells_its_last_words(self):
        row, _ = self.peers("echo 'no module named torch' >&2; exit 1")
        self.assertEqual({"no module named torch"}, set(row["failed"].values()))
        self.assertIsNone(row["ratio"])


if __name__ == "__main__":
    unittest.main()

"""The files that the page reads, complete, missing and broken: python3 -m unittest results_test"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from xml.sax import saxutils

import googletest
import junit
import results

PROGRAM = pathlib.Path(results.__file__).with_name("write_page.py")
RECORD = {"law": "sharding", "sides": ["simulated, parallel", "Gloo threads"], "cases": 60, "differences": 0, "seed": 7,
          "date": "2026-11-25T16:21:06Z", "commit": "abc", "command": "./dev test equivalence_laws",
          "cells": [{"ranks": 2, "dimension": "source", "value": "plain", "cases": 60}]}  # fmt: skip
BENCHMARKS = {"machine": {"cpu": "EPYC", "cores": 2}, "commit": "abc", "command": "step_bench", "date": "2026-11-25",
              "rows": [{"name": "mlp", "unit": "s", "median": 0.002, "samples": [0.002]},
                       {"name": "cnn", "unit": "s", "median": 0.005, "samples": [], "beside": "mlp", "ratio": 2.5}]}  # fmt: skip
MUTANT = {"area": "shards", "name": "one", "what": "A fault.", "survives": "", "result": "assertion", "test": "data_test",
          "message": "", "seconds": 1.5, "commit": "abc", "date": "2026-11-25"}  # fmt: skip
RUN = """command: './dev test ''a|b'' --long'
commit: abc
date: 2026-11-25T16:21:06Z
budget: long
property_seed: 7
oracle_seed: fresh
processors: 2
"""
OUTPUT = """[ RUN      ] Kinds/FaultFilesTest.Ends/rank_hang_on_4
[       OK ] Kinds/FaultFilesTest.Ends/rank_hang_on_4 (12 ms)
[       OK ] Kinds/FaultFilesTest.Ends/rank_hang_late_on_4 (12 ms)
[  FAILED  ] Kinds/FaultFilesTest.Ends/rank_hang_on_8_sharded, where GetParam() = ("rank_hang", 8) (3 ms)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Kinds/FaultFilesTest.Ends/rank_hang_on_8_sharded, where GetParam() = ("rank_hang", 8)
"""


def google_tests():
    outputs = {"fault_files_test": OUTPUT, "fault_effects_test": "[       OK ] PlansTest.Seeds (0 ms)\n",
               "data_test": "[       OK ] ShardPlanTest.ShortTail (0 ms)\n[       OK ] Types/TypedTest/0.Works (0 ms)\n"}  # fmt: skip
    return [test for entry, output in outputs.items()
            for test in googletest.tests_of(junit.TestCase(entry, junit.PASSED, output))]  # fmt: skip


class GoogleTestTest(unittest.TestCase):
    def test_every_test_of_an_output_is_read_once(self):
        self.assertEqual(google_tests(), [googletest.GoogleTest(*each) for each in (
            ("fault_files_test", "FaultFilesTest.Ends", "rank_hang_on_4", True),
            ("fault_files_test", "FaultFilesTest.Ends", "rank_hang_late_on_4", True),
            ("fault_files_test", "FaultFilesTest.Ends", "rank_hang_on_8_sharded", False),
            ("fault_effects_test", "PlansTest.Seeds", "", True),
            ("data_test", "ShardPlanTest.ShortTail", "", True),
            ("data_test", "TypedTest.Works", "", True))])  # fmt: skip

    def test_faults_are_counted_by_the_longest_kind(self):
        self.assertEqual(googletest.fault_runs(google_tests(), ["rank_hang", "rank_hang_late"]), [
            googletest.FaultRuns("rank_hang", "FaultFilesTest.Ends", passed=1, failed=1),
            googletest.FaultRuns("rank_hang_late", "FaultFilesTest.Ends", passed=1),
            googletest.FaultRuns("generated or several", "PlansTest.Seeds", passed=1)])  # fmt: skip

    def test_differences_have_their_area_and_the_results_of_their_tests(self):
        table = """# Title
| Subject | Accelerate 1.15 | accel | Thread | Test |
|---|---|---|---|---|
| `gather` of lists | Flattens | Keeps | A#1 | `ShardPlanTest.ShortTail`, `FaultFilesTest.Ends`, `No.Run` |
| A loop (`A_*`) | Stays | Ends | - | `TypedTest.Works` |
"""
        guide = """# Guide

## Metrics

* **`gather` of
  lists.** Keeps.[^1]

## Loading

* **A loop (`A_*`).** Ends.[^2]
"""
        self.assertEqual(googletest.differences(table, guide, google_tests()), [
            googletest.Difference("Metrics", "gather of lists", "Flattens", "Keeps", "A#1", tests=3, passed=1, failed=1),
            googletest.Difference("Loading", "A loop (A_*)", "Stays", "Ends", "none known", tests=1, passed=1)])  # fmt: skip


class FilesTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.write("source/configs/sim/faults/jitter.yaml", "faults: []\n")
        self.write("source/reports/differences.md", "| A loop | Stays | Ends | - | `LoaderTest.Loop` |\n")
        self.write("source/reference/guide/differences.md", "\n## Loading\n\n* **A loop.** Ends.\n")
        (self.folder / "artifacts").mkdir()

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def write_tests(self, entry="fault_files_test", output="[       OK ] LoaderTest.Loop (12 ms)\n", status="run"):
        self.write("artifacts/junit-release.xml",
                   f'<testsuite><testcase name="{entry}" classname="{entry}" status="{status}">'
                   f"<system-out>{saxutils.escape(output)}</system-out></testcase></testsuite>")  # fmt: skip

    def run_program(self, *options):
        words = ["--source", self.folder / "source", "--artifacts", self.folder / "artifacts",
                 "--out", self.folder / "page.html", *options]  # fmt: skip
        return subprocess.run([sys.executable, "-B", PROGRAM, *words], capture_output=True, text=True, check=False)

    def page(self, *options):
        run = self.run_program(*options)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return (self.folder / "page.html").read_text(encoding="utf-8")

    def errors(self, *options):
        run = self.run_program(*options)
        self.assertEqual(run.returncode, 2)
        self.assertFalse((self.folder / "page.html").exists())
        self.assertNotIn("Traceback", run.stderr)
        return run.stderr

    def test_the_page_shows_what_the_folders_contain(self):
        self.write("artifacts/run.yaml", RUN)
        self.write_tests(output="[       OK ] Kinds/FaultFilesTest.Ends/jitter_on_4 (12 ms)\n[       OK ] LoaderTest.Loop (12 ms)\n")
        self.write("artifacts/distributions/loaders.json",
                   {"generator": "loaders", "cases": 4, "counts": {"pads": {"true": 3, "false": 1}}})  # fmt: skip
        self.write("source/reports/results/equivalence/sharding.json", RECORD)
        self.write("source/reports/results/step_bench.json", BENCHMARKS)
        self.write("source/reports/results/mutants.json", {"patches": [MUTANT], "generated": []})
        self.write("history/0123456-step_bench.json", {"one_rank": {"ratio": 1.5}})
        self.write("history/abc-step_bench.json", BENCHMARKS)  # the current file
        self.write("history/def-step_bench.json", BENCHMARKS | {"date": "2026-11-20"})
        page = self.page("--history", self.folder / "history", "--commit", "def")
        for text in ("60 cases, ✓ 0 differences, seed 7, 2026-11-25", "pads: true<td>3<td>75 %", "Assertions killed 100 %",
                     "2.5 times mlp", "2 earlier measurements stored. 1 earlier file in a format without rows",
                     "jitter<td>FaultFilesTest.Ends<td>1<td>0", "Loading: 1 difference",
                     "passed 1, failed 0 and left out 0", "Command: ./dev test &#39;a|b&#39; --long; commit abc; 2026-11-25",
                     "<dt>commit of the page</dt><dd><span>def</span>", "<dt>property_seed</dt><dd><span>7</span>"):  # fmt: skip
            self.assertIn(text, page)

    def test_without_results_the_page_names_the_commands(self):
        page = self.page()
        self.assertIn("No mutant was run. ./dev mutants", page)
        self.assertIn("No measurements. ./dev bench", page)
        self.assertIn("<dt>tests</dt><dd><span>not</span> <span>run</span>", page)

    def test_a_program_that_ended_without_a_failed_test_can_have_failed(self):
        self.write("artifacts/run.yaml", RUN)
        self.write_tests("equivalence_laws", status="fail")
        self.assertIn("✕ failed tests: equivalence_laws", self.page())

    def test_every_broken_file_is_listed_in_one_error_and_no_page_is_written(self):
        self.write("artifacts/equivalence/sharding.json", '{"law": "sharding"')
        self.write("artifacts/distributions/loaders.json", {"generator": "loaders", "cases": 4})
        self.write("artifacts/junit-release.xml", "<testsuite>")
        self.write("source/reports/results/mutants.json", [])
        self.write("source/reports/results/step_bench.json", "")
        self.write("history/abc-step_bench.json", '"rows"')
        for name in ("source/reports/differences.md", "source/configs/sim/faults/jitter.yaml"):
            (self.folder / name).unlink()
        self.write("source/reference/guide/differences.md", "").write_bytes(b"\xff")
        errors = self.errors("--history", self.folder / "history")
        for text in ("artifacts/equivalence/sharding.json: Expecting ',' delimiter",
                     "./dev test --label equivalence wrote, run it again or remove the file",
                     "artifacts/distributions/loaders.json: the file lacks counts",
                     "artifacts/junit-release.xml: no element found: line 1, column 11",
                     "mutants.json: the file is [], expected an object", "step_bench.json: Expecting value",
                     'abc-step_bench.json: the file is "rows", expected an object',
                     "reports/differences.md: No such file or directory", "configs/sim/faults: contains no .yaml",
                     "reference/guide/differences.md: 'utf-8' codec can't decode byte 0xff"):  # fmt: skip
            self.assertIn(text, errors)

    def test_a_wrong_value_is_named_with_its_place(self):
        cases = {
            "cases is -1, expected an integer of 0 or more": {"cases": -1},
            "seed is 1.5, expected an integer of 0 or more": {"seed": 1.5},
            "differences is true, expected an integer of 0 or more": {"differences": True},
            'law is ["a"], expected a text': {"law": ["a"]},
            "sides has 1 entries, expected 2": {"sides": ["a"]},
            "cells[0].ranks is 0, expected an integer of 1 or more": {"cells": [RECORD["cells"][0] | {"ranks": 0}]},
            "cells[0] lacks ranks": {"cells": [{}]},
            "cells is null, expected a list": {"cells": None},
        }
        for expected, change in cases.items():
            self.write("artifacts/equivalence/sharding.json", RECORD | change)
            self.assertIn(f"equivalence/sharding.json: {expected}; expected a file that", self.errors())

    def test_numbers_that_cannot_be_drawn_are_errors(self):
        text = json.dumps(BENCHMARKS)
        for wrong, expected in (("NaN", "the number NaN is not finite"), ("1e400", "rows[0].median is Infinity, expected a"),
                                ("-1", "rows[0].median is -1, expected a finite number of 0 or more")):  # fmt: skip
            self.write("source/reports/results/step_bench.json", text.replace("0.002,", f"{wrong},", 1))
            self.assertIn(f"step_bench.json: {expected}", self.errors())

    def test_many_problems_are_counted(self):
        for index in range(30):
            self.write(f"artifacts/equivalence/{index:02}.json", "[" * 100_000 if index == 0 else "")
        self.assertRegex(self.errors(), r"(?s)00\.json: maximum recursion depth.*19\.json: .*\nand 10 more\n$")

    def test_results_without_the_file_that_describes_their_run_are_an_error(self):
        """Without it nobody could repeat the numbers."""
        self.write_tests()
        self.assertRegex(self.errors(), r"artifacts/run\.yaml: No such file or directory\n$")
        self.write("artifacts/run.yaml", "command: ./dev test\n[")
        self.assertIn("artifacts/run.yaml: lacks commit, date, budget, property_seed, processors; "
                      "expected the file that ./dev test writes", self.errors())  # fmt: skip

    def test_wrong_folders_are_usage_errors(self):
        self.assertIn("argument --artifacts: /nowhere is not a folder", self.errors("--artifacts", "/nowhere"))
        self.assertIn("missing is not a folder; create it first", self.errors("--out", self.folder / "missing/page.html"))


class RepositoryTest(unittest.TestCase):
    """The list and the guide of this repository, which people edit by hand."""

    def test_every_difference_has_an_area_and_a_test(self):
        with tempfile.TemporaryDirectory() as artifacts:
            found = results.read(pathlib.Path(os.path.abspath(__file__)).parents[2], pathlib.Path(artifacts)).differences
        self.assertGreater(len(found), 100)
        self.assertEqual([one.subject for one in found if one.area == "Other" or one.tests == 0], [])


if __name__ == "__main__":
    unittest.main()

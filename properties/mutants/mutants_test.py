"""Tests of the runner's pure parts, and that every patch still applies: python3 -m unittest mutants_test"""
import collections
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import areas
import mutant
import plan_mutants
import report
import run_mutants

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATCH = """# what: A sum lacks its last term.
# tests: data_test
# tests: accel test --equivalence
# survives: Nobody adds.
--- a/reference/sum.cpp
+++ b/reference/sum.cpp
@@ -1 +1 @@
-a + b
+a
"""
FAILED = """[==========] Running 2 tests from 1 test suite.
[ RUN      ] SumTest.AddsBoth
/work/sum_test.cpp:12: Failure
Expected equality of these values:
  sum(1, 2)
    Which is: 1
[  FAILED  ] SumTest.AddsBoth (0 ms)
[  FAILED  ] SumTest.AddsBoth
"""
DIFFERS = """sharding: 60 cases on 1 to 16 ranks, seed 1: no difference between gloo and simulated ranks
training: case 3 of 60 differs
rank 2, observation 4:
  gloo: loss 1
  simulated, parallel: loss 2
repeat it with: accel test --equivalence --case '{}' --num_processes 16
"""
CTEST = """# CMake generated Testfile for
add_test([=[data_laws]=] "/b/bin/laws" "--gtest_filter=DataLaws.*:*/DataLaws.*")
set_tests_properties([=[data_laws]=] PROPERTIES  ENVIRONMENT "A=1;B=x=y" TIMEOUT "1200" _BACKTRACE_TRIPLES "/c;9;add_test")
add_test([=[core_test]=] "/b/bin/core_test")
"""
SOURCE = """#include <a.hpp>
// a < b is the rule
int f(int a) {
  check_argument(a > 0, "a: expected a > 0, got {}", a);
  if (!done(a) && a <= 7) list.push_back(a);
  list.clear();
  return std::min(a, 2);
}
"""


class PatchTest(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "sums" / "lost-term.patch"
            path.parent.mkdir()
            path.write_text(text)
            return mutant.read_patch(path)

    def test_the_header_is_read(self):
        one = self.read(PATCH)
        self.assertEqual((one.title, one.what), ("sums/lost-term", "A sum lacks its last term."))
        self.assertEqual(one.tests, ["data_test", "accel test --equivalence"])
        self.assertEqual((one.files, one.survives), (["reference/sum.cpp"], "Nobody adds."))

    def test_what_a_patch_lacks_is_an_error(self):
        for wrong in (PATCH.replace("# what", "# why"), PATCH[PATCH.index("# tests") :], PATCH[: PATCH.index("---")]):
            with self.assertRaisesRegex(ValueError, "lost-term.patch"):
                self.read(wrong)


class ClassifyTest(unittest.TestCase):
    def classify(self, *arguments, **options):
        verdict = mutant.classify("data_test", *arguments, **options)
        return verdict.result, verdict.test

    def test_a_failed_assertion_names_its_test(self):
        self.assertEqual(self.classify(1, FAILED), (mutant.ASSERTION, "SumTest.AddsBoth"))
        self.assertIn("Which is: 1", mutant.classify("data_test", 1, FAILED).message)

    def test_a_difference_of_backends_names_its_law(self):
        verdict = mutant.classify("accel test --equivalence", 1, DIFFERS)
        self.assertEqual((verdict.result, verdict.test), (mutant.ASSERTION, "equivalence: training"))
        self.assertIn("rank 2, observation 4: gloo: loss 1", verdict.message)
        found = DIFFERS[: DIFFERS.index("rank 2")]  # the time-out came while the case was reduced
        self.assertEqual(self.classify(-9, found, timed_out=True), (mutant.ASSERTION, "equivalence: training"))

    def test_signals_time_outs_and_other_exits_are_no_assertions(self):
        started = "[ RUN      ] SumTest.AddsBoth\n"
        self.assertEqual(self.classify(-11, started), (mutant.CRASH, "SumTest.AddsBoth"))
        self.assertEqual(self.classify(134, started + FAILED), (mutant.CRASH, "SumTest.AddsBoth"))
        self.assertEqual(self.classify(-9, started, timed_out=True), (mutant.TIMEOUT, "SumTest.AddsBoth"))
        self.assertEqual(self.classify(1, "rank 3: Connection closed by peer"), (mutant.CRASH, "data_test"))

    def test_a_success_survives_unless_nothing_ran(self):
        self.assertEqual(self.classify(0, "[==========] Running 2 tests from 1 test suite.\n"), (mutant.SURVIVED, ""))
        with self.assertRaisesRegex(ValueError, "data_test matches no test"):
            self.classify(0, "[==========] Running 0 tests from 0 test suites.\n")

    def test_only_assertions_count_for_the_score(self):
        results = [mutant.ASSERTION] * 3 + [mutant.CRASH, mutant.UNCOMPILED]
        self.assertEqual(mutant.score(results), 60)
        self.assertEqual(mutant.score(results, counts_uncompiled=False), 75)

    def test_entries_of_ctest_are_read(self):
        tests = mutant.tests_in(CTEST)
        self.assertEqual(tests["data_laws"]["command"], ["/b/bin/laws", "--gtest_filter=DataLaws.*:*/DataLaws.*"])
        self.assertEqual((tests["data_laws"]["environment"], tests["data_laws"]["timeout"]), ({"A": "1", "B": "x=y"}, 1200))
        self.assertEqual((tests["core_test"]["environment"], tests["core_test"]["timeout"]), ({}, 1200))


class GeneratorTest(unittest.TestCase):
    def test_only_code_is_changed(self):
        changed = [(SOURCE[begin:end].strip(), text.strip()) for begin, end, text, _ in plan_mutants.changes_of(SOURCE)]
        expected = [(">", ">="), ("0", "1"), ("!", ""), ("&&", "||"), ("<=", "<"), ("7", "8"), ("list.clear();", ""), ("std::min", "std::max"), ("2", "3")]
        self.assertEqual(changed, expected)

    def test_a_seed_gives_the_same_mutants_and_the_limit_is_kept(self):
        first, again, other = (plan_mutants.generate(ROOT, areas.PLANS, 30, seed) for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual(len(first), 30)
        for one in first:
            self.assertNotEqual(one.content, (ROOT / one.files[0]).read_text())


class ReportTest(unittest.TestCase):
    def test_every_mutant_has_a_row_and_survivors_their_reason(self):
        killed = run_mutants.as_entry(mutant.Mutant("sums", "a", "A | b.", [], []), mutant.Verdict(mutant.ASSERTION, "SumTest.Adds"), 3.2)
        survivor = run_mutants.as_entry(mutant.Mutant("sums", "b", "B.", [], [], survives="Nobody adds."), mutant.Verdict(mutant.SURVIVED))
        absent = run_mutants.as_entry(mutant.Mutant("sums", "c", "C.", [], []))
        page = report.render([killed, survivor, absent], [])
        self.assertIn("| sums | 3 | 1 | 0 | 0 | 0 | 1 | 50.0 % |", page)
        self.assertIn("| a | A \\| b. | killed by assertion | `SumTest.Adds` | 3 |", page)
        self.assertIn("| sums/b | survived | Nobody adds. |", page)
        self.assertIn("| c | C. | not run |  |  |", page)
        json.dumps([killed, survivor, absent])


class WrittenMutantsTest(unittest.TestCase):
    def setUp(self):
        self.mutants = run_mutants.written_mutants()

    def test_every_patch_applies(self):
        is_checkout = subprocess.run(["git", "-C", str(ROOT), "rev-parse"], capture_output=True).returncode == 0
        if not is_checkout and shutil.which("patch") is None:
            self.skipTest(f"{ROOT} is not a git checkout, and there is no program 'patch'")
        check = ["git", "apply", "--check"] if is_checkout else ["patch", "--dry-run", "--force", "-p1", "-i"]

        def applies(*mutants):
            return subprocess.run([*check, *(one.patch for one in mutants)], cwd=ROOT, capture_output=True).returncode == 0

        # git checks patches of different files in one call, which is faster than one call per patch.
        rounds = {}
        for one in self.mutants:
            earlier = next(number for number in itertools.count() if not set(one.files) & {f for o in rounds.get(number, []) for f in o.files})
            rounds.setdefault(earlier, []).append(one)
        suspects = [one for mutants in rounds.values() if not (is_checkout and applies(*mutants)) for one in mutants]
        stale = [one.title for one in suspects if not applies(one)]
        self.assertEqual(stale, [], "these patches do not apply any more; write the same faults for the sources of today")

    def test_every_patch_is_a_small_change_of_a_source(self):
        for one in self.mutants:
            self.assertRegex(one.what, r"[^.]\.$", one.title)
            self.assertLess(len(one.what), 121, one.title)
            for file in one.files:
                self.assertRegex(file, r"^(reference|backends|sim)/.*\.cpp$", one.title)
            lines = [line for line in pathlib.Path(one.patch).read_text().splitlines() if re.match(r"[+-](?!\+\+ |-- )", line)]
            self.assertTrue(0 < len(lines) <= 12, f"{one.title} changes {len(lines)} lines")

    def test_there_are_mutants_of_every_area(self):
        counts = collections.Counter(one.area for one in self.mutants)
        self.assertEqual(sorted(counts), sorted(areas.AREAS))
        self.assertGreaterEqual(sum(counts.values()) - counts["equivalence"], 100)
        sides = collections.Counter(one.name.split("-")[0] for one in self.mutants if one.area == "equivalence")
        self.assertGreaterEqual(min(sides["gloo"], sides["sim"]), 10)

    def test_every_test_is_an_entry_of_ctest(self):
        listed = "\n".join(path.read_text() for folder in ("tests", "properties") for path in (ROOT / folder).rglob("CMakeLists.txt"))
        known = {pathlib.Path(word).name for word in re.findall(r"[\w/]+", listed)}
        tests = {test for one in self.mutants for test in one.tests} | {test for table in (areas.AREAS, areas.PLANS) for row in table.values() for test in row}
        self.assertEqual({test for test in tests if " " not in test} - known, set())

    def test_every_plan_exists(self):
        self.assertEqual([file for file in areas.PLANS if not (ROOT / file).exists()], [])


if __name__ == "__main__":
    unittest.main()

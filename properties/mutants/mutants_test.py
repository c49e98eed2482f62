"""Tests of the runner's pure parts, and that every mutant fits the sources: python3 -m unittest mutants_test"""
import collections
import json
import os
import pathlib
import re
import shlex
import tempfile
import unittest
import unittest.mock

import areas
import edit
import generator
import mutant
import report
import run_mutants
import source_programs
import survivors
from cpp_tokens import is_same_code

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUTANT = """what: A sum lacks its last term.
tests: data_test
tests: accel test --equivalence
survives: Nobody adds.

file: reference/sum.cpp
in: sum
find: a + b
replace: a
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
  check_argument(a > 0, "a: expected a > 0, got {}", a + 1);
  if (!done(a) && a <= 7) list.push_back(a);
  list.clear();
  return std::min(a, 2);
}
"""
STATES = """template <typename T, int kSize = 1>
  requires A<T> || B<T>
class Stream : public Base<3> {
  Stream(int a);
  virtual int next() = 0;
  struct Options {
    bool drop_last = false;
  };
  int advance(Open&& open) {
    if (const auto first = next(); first == 1) return 0;
    if (ended_) return std::exchange(turn_, (turn_ + 1) % size());
    if (seen_)
      list.insert(list.end(),
                  turn_);
    num_read_ += 5;
    ++turn_;
    ended_ = !open * 2;
    return open ? std::get<0>(all_) : size();
  }
  bool ended_ = false;
};
"""


class ReadMutantTest(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "sums" / "lost-term.mutant"
            path.parent.mkdir()
            path.write_text(text)
            return mutant.read_mutant(path)

    def test_header_and_edits_are_read(self):
        one = self.read(MUTANT)
        self.assertEqual((one.title, one.what), ("sums/lost-term", "A sum lacks its last term."))
        self.assertEqual(one.tests, ["data_test", "accel test --equivalence"])
        self.assertEqual(one.edits, [edit.Edit("sum", "a + b", "a", file="reference/sum.cpp")])
        self.assertEqual(one.survives, "Nobody adds.")

    def test_what_a_mutant_lacks_is_an_error(self):
        wrong = [MUTANT.replace("what", "why"), MUTANT[MUTANT.index("tests") :], MUTANT[: MUTANT.index("\n\n")], MUTANT + "where: here\n",
                 *(re.sub(rf"\n{key}: .*", "", MUTANT) for key in ("in", "find", "replace"))]  # fmt: skip
        for text in wrong:
            with self.assertRaisesRegex(ValueError, "lost-term.mutant"):
                self.read(text)


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

    def test_a_test_that_crashed_is_left_out_of_the_next_run(self):
        self.assertEqual(mutant.without_test(["laws"], "SumTest.Adds"), ["laws", "--gtest_filter=*-SumTest.Adds"])
        chosen = mutant.without_test(["laws", "--gtest_filter=Sum*"], "SumTest.Adds")
        self.assertEqual(chosen, ["laws", "--gtest_filter=Sum*-SumTest.Adds"])
        self.assertEqual(mutant.without_test(chosen, "SumTest.Ends"), ["laws", "--gtest_filter=Sum*-SumTest.Adds:SumTest.Ends"])
        self.assertEqual(mutant.without_test(["laws", "--gtest_filter=-Slow*"], "A.B"), ["laws", "--gtest_filter=*-Slow*:A.B"])

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
    def changes(self, source):
        return [(" ".join(source[begin:end].split()), text.strip()) for begin, end, text, _ in generator.changes_of(source)]

    def test_only_code_is_changed(self):
        condition = "!done(a) && a <= 7"
        expected = [(">", ">="), ("0", "1"), (condition, "false"), (condition, "true"), ("&&", "||"), ("<=", "<"), ("7", "8"),
                    ("list.clear();", ";"), ("std::min", "std::max"), ("2", "3")]  # fmt: skip
        self.assertEqual(self.changes(SOURCE), expected)

    def test_declarations_are_unchanged_and_statements_of_several_lines_are_removed(self):
        exchange = "std::exchange(turn_, (turn_ + 1) % size())"
        expected = [("==", "!="), ("1", "2"), ("0", "1"), ("ended_", "false"), ("ended_", "true"), (exchange, "turn_"), ("+", "-"), ("1", "2"),
                    ("%", "/"), ("seen_", "false"), ("seen_", "true"), ("list.insert(list.end(), turn_);", ";"), ("num_read_ += 5;", ";"),
                    ("+=", "-="), ("5", "6"), ("++turn_;", ";"), ("ended_ = !open * 2;", ";"), ("!", "!!"), ("*", "+"), ("2", "3"), ("open", "!open"), ("false", "true")]  # fmt: skip
        self.assertEqual(self.changes(STATES), expected)

    def test_every_mutant_has_a_name_and_the_changed_lines(self):
        mutants = {one.name: one for one in generator.mutants_of("a.cpp", SOURCE, ["data_test"], {})}
        self.assertEqual(len(mutants), len(generator.changes_of(SOURCE)))
        self.assertEqual(mutants["5-7"].what, "condition `!done(a) && a <= 7` becomes `false`")
        self.assertEqual(mutants["5-7b"].lines, ("if (!done(a) && a <= 7) list.push_back(a);", "if (true) list.push_back(a);"))
        self.assertEqual(mutants["6-3"].what, "statement `list.clear();` removed")
        self.assertEqual(mutants["6-3"].contents, {"a.cpp": SOURCE.replace("list.clear();", ";")})

    def test_a_survivor_gets_its_reason(self):
        lines = ("return std::min(a, 2);", "return std::max(a, 2);")
        mutants = generator.mutants_of("a.cpp", SOURCE, ["data_test"], {("a.cpp", *lines): "a is 2."})
        self.assertEqual({one.lines: one.survives for one in mutants if one.survives}, {lines: "a is 2."})

    def test_a_seed_gives_the_same_mutants_and_the_limit_is_kept(self):
        for tests_of in areas.GROUPS.values():
            first, again, other = (generator.generate(ROOT, tests_of, 30, seed, {}) for seed in (1, 1, 2))
            self.assertEqual(first, again)
            self.assertNotEqual(first, other)
            self.assertEqual(len(first), 30)
            for one in first:
                self.assertNotEqual(one.contents[one.files[0]], (ROOT / one.files[0]).read_text())


class CompileCommandsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name) / "build"
        self.unit = self.build / "a.dir/Unity/unit.cxx"
        self.unit.parent.mkdir(parents=True)
        self.unit.write_text(f'#include "{self.build}/one.cpp"\n')
        self.write("-O2")
        self.commands = source_programs.CompileCommands(pathlib.Path(folder.name), self.build)

    def write(self, option):
        entries = [{"file": str(file), "command": f"c++ {option} -o {file.stem}.o -c {file}"} for file in (self.unit, self.build / "two.cpp")]
        file = self.build / "compile_commands.json"
        before = file.stat().st_mtime_ns if file.exists() else 0
        file.write_text(json.dumps(entries))
        os.utime(file, ns=(before + 1, before + 1))

    def test_a_source_has_the_command_of_the_unit_that_contains_it(self):
        self.assertEqual(self.commands.of("build/one.cpp"), (["c++", "-O2"], "unit.o"))
        self.assertEqual(self.commands.of("build/two.cpp"), (["c++", "-O2"], "two.o"))

    def test_only_used_commands_are_split_and_a_new_file_is_read(self):
        with unittest.mock.patch.object(source_programs.shlex, "split", wraps=shlex.split) as split:
            self.commands.of("build/two.cpp")
        self.assertEqual(split.call_count, 1)
        self.write("-O1")
        self.assertEqual(self.commands.of("build/two.cpp")[0], ["c++", "-O1"])


class SourceProgramsTest(unittest.TestCase):
    def test_includes_are_followed_within_the_module(self):
        users = source_programs.users_of(ROOT, "reference/data/batch_stream.hpp")
        self.assertIn("reference/data/batch_stream.cpp", users)
        self.assertIn("reference/data/dispatched_batches.cpp", users)
        self.assertNotIn("reference/data/collate.cpp", users)
        self.assertEqual({pathlib.Path(source).parts[1] for source in users}, {"data"})

    def test_sources_are_told_from_other_tests(self):
        self.assertEqual(source_programs.sources_of("properties/data_laws.cpp tests/a_test.cpp"), ["properties/data_laws.cpp", "tests/a_test.cpp"])
        self.assertEqual(source_programs.sources_of("data_test --gtest_filter=-A*"), [])


class ReportTest(unittest.TestCase):
    def test_every_mutant_has_a_row_and_survivors_their_reason(self):
        killed = run_mutants.as_entry(mutant.Mutant("sums", "a", "A | b.", []), mutant.Verdict(mutant.ASSERTION, "SumTest.Adds"), 3.2)
        survivor = run_mutants.as_entry(mutant.Mutant("sums", "b", "B.", [], survives="Nobody adds."), mutant.Verdict(mutant.SURVIVED))
        absent = run_mutants.as_entry(mutant.Mutant("sums", "c", "C.", []))
        page = report.render([killed, survivor, absent], [], {})
        self.assertIn("| sums | 3 | 1 | 0 | 0 | 0 | 1 | 50.0 % |", page)
        self.assertIn("| a | A \\| b. | killed by assertion | `SumTest.Adds` | 3 |", page)
        self.assertIn("| sums/b | survived | Nobody adds. |", page)
        self.assertIn("| c | C. | not run |  |  |", page)
        json.dumps([killed, survivor, absent])

    def test_generated_mutants_have_a_section_per_group_with_its_command(self):
        for group, tests_of in areas.GROUPS.items():
            one = mutant.Mutant(next(iter(tests_of)), "3-7", "constant `0` becomes `1`", [], survives="0 is never reached.")
            page = report.render([], [run_mutants.as_entry(one, mutant.Verdict(mutant.SURVIVED))], {group: "./dev mutants --seed 7"})
            self.assertIn(f"## Generated changes of {group}\n\nCommand: `./dev mutants --seed 7`.", page)
            self.assertIn(f"| {one.area}:3-7 | constant `0` becomes `1` | survived | 0 is never reached. |", page)


class WrittenMutantsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mutants = run_mutants.written_mutants()
        cls.stale = run_mutants.apply_edits(cls.mutants)

    def test_every_mutant_fits_the_sources(self):
        self.assertEqual(self.stale, {}, "these mutants do not fit the sources any more; write the same faults for the sources of today")

    def test_every_mutant_is_a_small_change_of_sources(self):
        for one in self.mutants:
            self.assertRegex(one.what, r"[^.]\.$", one.title)
            self.assertLess(len(one.what), 121, one.title)
            for file in one.files:
                self.assertRegex(file, r"^(reference|backends|sim)/.*\.[ch]pp$", one.title)
            for each in one.edits:
                self.assertFalse(is_same_code(each.find, each.replace), f"{one.title} changes nothing")
            num_lines = sum(len((each.find + "\n" + each.replace).split("\n")) for each in one.edits)
            self.assertTrue(0 < num_lines <= 12, f"{one.title} has {num_lines} lines")

    def test_there_are_mutants_of_every_area(self):
        counts = collections.Counter(one.area for one in self.mutants)
        self.assertEqual(sorted(counts), sorted(areas.AREAS))
        self.assertGreaterEqual(sum(counts.values()) - counts["equivalence"], 100)
        sides = collections.Counter(one.name.split("-")[0] for one in self.mutants if one.area == "equivalence")
        self.assertGreaterEqual(min(sides["gloo"], sides["sim"]), 10)

    def test_every_test_is_an_entry_of_ctest_or_a_source(self):
        listed = "\n".join(path.read_text() for folder in ("tests", "properties") for path in (ROOT / folder).rglob("CMakeLists.txt"))
        known = {pathlib.Path(word).name for word in re.findall(r"[\w/]+", listed)}
        tables = (areas.AREAS, *areas.GROUPS.values())
        tests = {test for one in self.mutants for test in one.tests} | {test for table in tables for row in table.values() for test in row}
        self.assertEqual({test for test in tests if " " not in test and not source_programs.sources_of(test)} - known, set())
        sources = {source for test in tests for source in source_programs.sources_of(test)}
        self.assertEqual([source for source in sources if not (ROOT / source).exists()], [])


class GroupsTest(unittest.TestCase):
    def test_every_file_exists_and_is_in_one_group(self):
        files = [file for tests_of in areas.GROUPS.values() for file in tests_of]
        self.assertEqual([file for file in files if not (ROOT / file).exists()], [])
        self.assertEqual(len(files), len(set(files)))

    def test_only_headers_have_programs_of_their_own(self):
        for tests_of in areas.GROUPS.values():
            for file, tests in tests_of.items():
                self.assertEqual({bool(source_programs.sources_of(test)) for test in tests}, {file.endswith(".hpp")}, file)

    def test_every_survivor_is_a_mutant_of_a_source(self):
        mutants = {(file, *one.lines) for tests_of in areas.GROUPS.values() for file in tests_of
                   for one in generator.mutants_of(file, (ROOT / file).read_text(), [], {})}  # fmt: skip
        stale = [key for key in survivors.SURVIVORS if key not in mutants]
        self.assertEqual(stale, [], "these survivors are no mutants of the sources any more; remove them from survivors.py")


if __name__ == "__main__":
    unittest.main()

"""The command line, with programs that are shell scripts: python3 -m unittest bench_against_test"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import fake_programs

SCRIPT = pathlib.Path(__file__).with_name("bench_against.py")


class BenchAgainstTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, sample):
        return fake_programs.write(self.folder / name, self.folder / "log", ("a", "b"), sample)

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-B", SCRIPT, *arguments], capture_output=True, text=True, check=False)

    def compare(self, before, after, *arguments):
        return self.run_script("--before", self.write("before", before), "--after", self.write("after", after), *arguments)

    def test_a_slower_build_exits_with_1_and_is_written(self):
        out = self.folder / "comparison.json"
        run = self.compare("echo 0.001", "echo 0.0021", "--before-commit", "v1", "--after-commit", "v2", "--out", str(out))
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertEqual(run.stdout, "row                before        after   ratio         p  verdict\n"
                                     "step_bench:a         1 ms       2.1 ms   2.100   4.2e-06  slower\n"
                                     "step_bench:b         1 ms       2.1 ms   2.100   4.2e-06  slower\n"
                                     "before: v1; after: v2; slower or faster: p < 0.01 and a ratio beyond 1.03, 8 blocks\n"
                         )  # fmt: skip
        self.assertEqual(run.stderr, "".join(f"step_bench: 2 rows, block {block} of 8\n" for block in range(1, 9)))
        record = json.loads(out.read_text())
        self.assertEqual(list(record), ["machine", "commit", "compiler", "command", "date", "before", "rows"])
        self.assertEqual((record["machine"]["cpu"], record["commit"], record["before"]), ("fake", "v2", "v1"))
        row = record["rows"][0]
        self.assertEqual(list(row), ["name", "unit", "before", "after", "ratio", "p", "verdict", "blocks"])
        self.assertEqual(row["blocks"], [{"before": [0.001, 0.001], "after": [0.0021, 0.0021]}] * 8)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.is_file()], ["log", "comparison.json"])

    def test_no_slower_row_exits_with_0(self):
        run = self.compare("echo 2", "echo 1", "--rows", "a$", "--blocks", "8")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("faster", run.stdout)
        self.assertNotIn("step_bench:b", run.stdout)

    def test_a_failure_exits_with_1(self):
        run = self.compare("echo 1", "echo 'error: no disk'", "--out", "/dev/stdout")
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn(f"bench_against: {self.folder}/after/step_bench, row a: no disk\n", run.stderr)

    def test_mistakes_exit_with_2(self):
        mistakes = {("--rows", "("): "--rows: '(' is not a regular expression", ("--blocks", "0"): "--blocks: '0'",
                    ("--row", "a"): "unrecognized arguments", ("stray",): "unrecognized arguments",
                    ("--out", "/nowhere/x"): "--out: /nowhere is not a folder; create it first",
                    ("--out", "/"): "--out: / cannot be written"}  # fmt: skip
        for arguments, message in mistakes.items():
            run = self.run_script(*arguments)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertIn(message, run.stderr)

    def test_rows_that_do_not_exist_exit_with_2(self):
        run = self.compare("echo 1", "echo 1", "--rows", "no_such_row")
        self.assertEqual(run.returncode, 2)
        self.assertIn("bench_against: no row of both builds matches 'no_such_row'; expected", run.stderr)


if __name__ == "__main__":
    unittest.main()

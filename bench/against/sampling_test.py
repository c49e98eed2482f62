"""The order of the samples, with programs that are shell scripts: python3 -m unittest sampling_test"""
import pathlib
import re
import tempfile
import unittest

import fake_programs
from comparison import RowSamples
from sampling import SamplingError, Server, add_block, common_rows


class SamplingTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.log = self.folder / "log"

    def write(self, name, rows=("a", "b"), **options):
        return fake_programs.write(self.folder / name, self.log, rows, **options)

    def test_rows_of_both_builds_that_match_are_common(self):
        before, after = self.write("before", ("a", "b", "old")), self.write("after", ("new", "b", "a"))
        rows = common_rows(before, after, "step_bench", re.compile(""))
        self.assertEqual([row.name for row in rows], ["b", "a"])
        self.assertEqual([row.name for row in common_rows(before, after, "step_bench", re.compile("bench:a$"))], ["a"])

    def test_samples_are_taken_in_the_order_abba_and_backwards(self):
        before, after = self.write("before", sample="echo 1"), self.write("after", sample="echo 2")
        rows = [RowSamples("a")]
        for number, order in ((0, "baabbaab"), (1, "abbaabba")):
            self.log.unlink(missing_ok=True)
            add_block(before, after, "step_bench", number, rows)
            sides = [re.search(r"/(before|after)/step_bench a$", line)[1] for line in self.log.read_text().splitlines()]
            self.assertEqual(sides, [{"b": "before", "a": "after"}[letter] for letter in order])
        self.assertEqual(rows[0].blocks, [([1, 1], [2, 2])] * 2)

    def test_each_sample_is_the_mean_of_two_of_the_same_process(self):
        counting = "number=$((number + 10)); echo $number"  # 10, then 20
        before, after = self.write("before", sample=counting), self.write("after", sample="echo 2")
        rows = [RowSamples("a")]
        add_block(before, after, "step_bench", 0, rows)
        self.assertEqual(rows[0].blocks, [([15, 15], [2, 2])])

    def test_failures_name_the_program_and_the_row(self):
        programs = {"error: no disk": "echo 'error: no disk'", "ended without an answer to 'a'": "exit 1",
                    "answered 'a' with 'x'": "echo x"}  # fmt: skip
        for number, (message, sample) in enumerate(programs.items()):
            folder = self.write(str(number), sample=sample)
            with Server(f"{folder}/step_bench") as server, self.assertRaises(SamplingError) as raised:
                server.sample("a")
            self.assertIn(f"{folder}/step_bench", str(raised.exception))
            self.assertIn(message.removeprefix("error: "), str(raised.exception))

    def test_a_program_that_has_ended_is_reported(self):
        with Server("/bin/true") as server:
            server._process.wait()
            with self.assertRaisesRegex(SamplingError, "/bin/true (has ended|ended without an answer)"):
                server.sample("a")

    def test_a_program_that_cannot_be_run_is_reported(self):
        with self.assertRaisesRegex(SamplingError, "cannot run '/nowhere/x': No such file or directory; expected the path"):
            Server("/nowhere/x")
        with self.assertRaisesRegex(SamplingError, "Permission denied; expected a file that may be executed"):
            Server("/dev/null")


if __name__ == "__main__":
    unittest.main()

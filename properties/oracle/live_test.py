"""Tests that planted errors of accel are found: python properties/oracle/live_test.py

The programs of accel are replaced by a script that trains as many steps as `plan.json` beside it says, and then fails.
"""
import argparse
import json
import os
import random
import stat
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from unittest import mock

import experiments
import live

TEXT = "Expected more than 1 value per channel when training, got input size "
PROGRAM = """#!{python}
import json, os, sys
words = sys.argv[1:]
value = lambda option: words[words.index(option) + 1] if option in words else None
here = os.path.dirname(os.path.abspath(__file__))
plan = json.load(open(os.path.join(here, "plan.json")))
ranks = range(int(value("--ranks")))


def fail(message):
    frame = "frame #0: c10::Error"
    of_gloo = [f"[rank 0] sim-run: {{message}}", f"[rank 0] {{frame}}", f"sim-run: rank 0 ended with exit code 1: {{frame}}"]
    of_sim = [f"sim-run: ranks {{plan['ranks']}}: {{message}}", "Exception raised from batch_norm", frame]
    print(*(of_sim if value("--backend") == "sim" else of_gloo), sep=chr(10), file=sys.stderr)
    sys.exit(1)


if "--" in words:
    requests, folder = words[-2:]
    lines = [json.loads(line) for line in open(requests)]
    if "bad" in lines:
        fail("bad request")
    for rank in ranks:
        with open(os.path.join(folder, f"rank{{rank}}.jsonl"), "w") as file:
            file.writelines(json.dumps([line, rank]) + chr(10) for line in lines)
    sys.exit()
steps = min(int(value("--max-steps") or 4), 4)
if plan["fails_at"] is not None and steps > plan["fails_at"]:
    fail(plan["message"])
with open(value("--trace"), "w") as file:
    for rank in ranks:
        file.writelines(json.dumps({{"rank": rank, "epoch": 0, "step": step, "loss": "0x1p+0"}}) + chr(10) for step in range(steps))
        file.write(json.dumps({{"rank": rank, "epoch": 0, "eval_correct": 1, "eval_samples": 2}}) + chr(10))
"""


def accelerate(fails_at, message=TEXT + "torch.Size([1, 8])"):
    steps = range(4 if fails_at is None else fails_at)
    trace = [[{"rank": rank, "epoch": 0, "step": step, "loss": "0x1p+0"} for step in steps] for rank in (0, 1)]
    if fails_at is None:
        return [lines + [{"rank": rank, "epoch": 0, "eval_correct": 1, "eval_samples": 2}] for rank, lines in enumerate(trace)]
    return [{"error": "ValueError", "message": message, "trace": lines} for lines in trace]


class PlantedErrorTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        path = os.path.join(self.folder.name, "sim-run")
        with open(path, "w") as file:
            file.write(PROGRAM.format(python=sys.executable))
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        self.arguments = argparse.Namespace(bin=self.folder.name, seed=1)
        self.plant(None)

    def plant(self, fails_at, message=TEXT + "[1, 8]", ranks="0-1"):
        with open(os.path.join(self.folder.name, "plan.json"), "w") as file:
            json.dump({"fails_at": fails_at, "message": message, "ranks": ranks}, file)

    def differences(self, answer):
        return [live.difference_of_trace(self.arguments, answer, "some.yaml", 2, backend, {"bound": 0}) for backend in ("sim", "gloo")]

    def test_equal_traces_and_the_same_error_in_the_same_step_do_not_differ(self):
        self.assertEqual(self.differences(accelerate(None)), [None, None])
        for step in (0, 1, 3):
            self.plant(step)
            self.assertEqual(self.differences(accelerate(step)), [None, None])

    def test_an_error_with_another_text_on_one_side_alone_or_in_another_step_is_a_difference(self):
        self.plant(2, message="size mismatch")
        for found in self.differences(accelerate(2)):
            self.assertIn("that of accel 'size mismatch'", found)
        self.plant(2)
        for found in self.differences(accelerate(None)):
            self.assertIn("only accel ends in an error: rank 0: Expected more than 1 value", found)
        for found in self.differences(accelerate(3)):
            self.assertIn("Accelerate completes 3 steps before its error", found)
        for found in self.differences(accelerate(1)):
            self.assertIn("only Accelerate ends in an error by step 1", found)
        self.plant(2, ranks="1")
        self.assertIn("ranks [1] of accel", self.differences(accelerate(2))[0])

    def test_a_request_that_fails_does_not_fail_the_others(self):
        answers = live.answers_of_ranks(self.arguments, "some-kind", ["a", "b", "bad", "c", "bad"], 2, "sim")
        for request, answer in zip(["a", "b", "bad", "c", "bad"], answers, strict=True):
            if request == "bad":
                self.assertIn("ranks 0-1: bad request", answer["failure"])
            else:
                self.assertEqual(answer, [[request, 0], [request, 1]])

    def test_an_exception_of_a_script_fails_one_job(self):
        report = live.Report(self.arguments)
        with mock.patch("builtins.print"):
            live.do(report, self.arguments, lambda: 1 / 0)
            live.do(report, self.arguments, lambda: report.add("something", None, []))
        self.assertEqual((report.passed, report.failed), (1, 1))

    def test_every_comparison_is_in_the_junit_xml(self):
        report = live.Report(self.arguments)
        with mock.patch("builtins.print"):
            report.add("plan <sim>", None, [])
            report.add("schedule", "2 instead of 1\0\ud800", [])
        path = os.path.join(self.folder.name, "junit.xml")
        report.write_junit(path)
        suite = ElementTree.parse(path).getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "1"))
        self.assertEqual([case.get("name") for case in suite], ["plan <sim>", "schedule"])
        self.assertEqual([failure.get("message") for failure in suite.iter("failure")], ["Accelerate and accel: 2 instead of 1\ufffd\ufffd"])


class SeedTest(unittest.TestCase):
    def parse(self, *words, **variables):
        with mock.patch.object(sys, "argv", ["live.py", "--bin", "x", *words]), mock.patch.dict(os.environ, variables):
            return live.parse().seed

    def test_the_seed_is_fresh_unless_it_is_given(self):
        os.environ.pop("ACCEL_ORACLE_SEED", None)
        self.assertGreater(len({self.parse() for _ in range(4)}), 1)
        self.assertEqual(self.parse("--seed", "5"), 5)
        self.assertEqual(self.parse(ACCEL_ORACLE_SEED="0"), 0)

    def test_the_command_repeats_the_comparisons(self):
        self.assertEqual(live.repeating(["--bin", "build/release/bin"], 7), "ACCEL_ORACLE_SEED=7 ./dev test --oracle")
        self.assertTrue(live.repeating(["--bin", "x", "--files", "3"], 7).endswith("live.py --bin x --files 3 --seed 7"))


class RefusedExperimentTest(unittest.TestCase):
    def test_a_batch_of_every_rank_has_one_sample(self):
        for seed in range(5):
            first, last = (experiments.random_refused_experiment(random.Random(seed), when) for when in experiments.REFUSED)
            self.assertEqual(first["batch_size"], 1)
            for ranks in experiments.RANKS:
                self.assertEqual(last["limit"] % (last["batch_size"] * ranks), 1)


if __name__ == "__main__":
    unittest.main()

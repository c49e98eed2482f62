"""Tests that a group that hangs or dies costs only one item: python properties/oracle/rank_group_test.py"""
import os
import tempfile
import time
import unittest

import rank_group

SCRIPT = """
import json, os, sys, time
items = [json.loads(line) for line in open(sys.argv[1])]
if items[0] == "does not start":
    sys.exit("no torch here")
if os.environ.get("RANK", "0") == "0":
    print("ready", flush=True)
    for item in items[int(sys.argv[2]):]:
        if item == "hangs":
            time.sleep(600)
        if item == "dies":
            sys.exit("out of memory")
        print(json.dumps([item, os.environ.get("WORLD_SIZE")]), flush=True)
time.sleep(600)
"""


class WalkTest(unittest.TestCase):
    def walk(self, items, ranks=2):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w") as file:
                file.write(SCRIPT)
            started = time.monotonic()
            answers = list(rank_group.walk(script, ranks, items, timeout=1))
            self.assertLess(time.monotonic() - started, 60)
            return answers

    def test_every_item_has_its_answer(self):
        self.assertEqual(self.walk([1, 2]), [[1, "2"], [2, "2"]])
        self.assertEqual(self.walk([1], ranks=1), [[1, None]])

    def test_what_hangs_or_dies_fails_alone(self):
        first, second, third, fourth, fifth = self.walk([1, "hangs", 3, "dies", 5])
        self.assertEqual([first, third, fifth], [[1, "2"], [3, "2"], [5, "2"]])
        self.assertIn("no answer within 1 s", second["failure"])
        self.assertIn("out of memory", fourth["failure"])

    def test_a_group_that_does_not_start_fails_for_all(self):
        for answer in self.walk(["does not start", 2, 3]):
            self.assertIn("no torch here", answer["failure"])


if __name__ == "__main__":
    unittest.main()

"""Tests that the comparison finds every change: python properties/oracle/compare_test.py"""
import copy
import unittest

import compare
import plan

STEP = {"rank": 1, "epoch": 0, "step": 3, "loss": "0x1.8p+0", "samples": 8, "sync_gradients": True, "lr": 0.1}
TRACE = [STEP, {"rank": 1, "epoch": 0, "eval_correct": 3, "eval_samples": 9}, {"rank": 1, "parameters_sha256": "ab"}]
REQUEST = plan.DEFAULTS | {"length": 3, "batch_size": 2, "ranks": 2}
EPOCH = {"ranks": [[[0, 1]], [[2, 0]]], "end_of_dataloader": [True], "gathered_for_metrics": [[0, 1, 2]]}
OURS = {"epochs": [EPOCH | {"duplicated": [0], "dropped": []}]}


class TraceTest(unittest.TestCase):
    def test_equal_traces_in_any_order_and_spelling_do_not_differ(self):
        other = [dict(line) for line in reversed(TRACE)]
        other[-1]["loss"] = "0x3p-1"
        self.assertIsNone(compare.difference_of_traces(TRACE, other))

    def test_every_changed_field_is_named(self):
        changes = {"loss": "0x1.8000000000001p+0", "samples": 7, "sync_gradients": False, "lr": 0.1000000001, "eval_correct": 4,
                   "eval_samples": 8, "parameters_sha256": "ac"}  # fmt: skip
        for field, value in changes.items():
            other = [line | ({field: value} if field in line else {}) for line in TRACE]
            self.assertIn(f"{field} is", compare.difference_of_traces(TRACE, other))

    def test_a_line_too_few_or_too_many_is_named(self):
        for line in range(len(TRACE)):
            fewer = TRACE[:line] + TRACE[line + 1 :]
            self.assertIn("only Accelerate", compare.difference_of_traces(TRACE, fewer))
            self.assertIn("only accel has", compare.difference_of_traces(fewer, TRACE))

    def test_losses_within_a_bound_are_near_and_all_else_is_compared(self):
        first = [STEP | {"step": 1, "sync_gradients": False}, STEP | {"step": 2}]
        trace = first + TRACE
        near = first + [line | ({"loss": "0x1.8004p+0"} if "loss" in line else {"eval_correct": 4} if "eval_correct" in line else {}) for line in TRACE]
        near[-1] = near[-1] | {"parameters_sha256": "ac"}
        self.assertIsNone(compare.difference_of_sharded_traces(trace, near, 1e-3))
        self.assertIn("loss is", compare.difference_of_sharded_traces(trace, near, 1e-5))
        self.assertIn("loss is", compare.difference_of_sharded_traces(trace, near, 0))
        for step, line in enumerate(first):
            other = [line | {"loss": "0x1.8004p+0"} if line is first[step] else line for line in trace]
            self.assertIn(f"step {step + 1}: loss is", compare.difference_of_sharded_traces(trace, other, 1e-3))
            self.assertIsNone(compare.difference_of_sharded_traces(trace, other, 1e-3, bound_of_first=1e-3))
            self.assertIn(f"step {step + 1}: loss is", compare.difference_of_sharded_traces(trace, other, 1e-3, bound_of_first=1e-5))
        for field, value in {"samples": 7, "sync_gradients": False, "lr": 0.2, "eval_samples": 8}.items():
            other = [line | ({field: value} if field in line else {}) for line in TRACE]
            self.assertIn(f"{field} is", compare.difference_of_sharded_traces(TRACE, other, 1e-3))
        self.assertIn("only Accelerate", compare.difference_of_sharded_traces(TRACE, TRACE[1:], 1e-3))

    def test_a_line_that_comes_twice_is_an_error(self):
        with self.assertRaises(ValueError):
            compare.difference_of_traces(TRACE, TRACE + TRACE[:1])

    def test_the_hash_is_left_out_only_where_a_loss_is_no_number(self):
        lost = [line | ({"loss": "nan"} if "loss" in line else {}) for line in TRACE]
        other = [line | ({"parameters_sha256": "ac"} if "parameters_sha256" in line else {}) for line in lost]
        self.assertIsNone(compare.difference_of_traces(lost, other))
        self.assertIn("loss is nan", compare.difference_of_traces(lost, TRACE))

    def test_the_first_step_that_differs_is_told(self):
        later = [STEP | {"step": step} for step in range(5)]
        other = [line | ({"loss": "0x1p+0"} if line["step"] >= 2 else {}) for line in later]
        self.assertIn("rank 1, epoch 0, step 2", compare.difference_of_traces(later, other))


class PlanTest(unittest.TestCase):
    def difference(self, ours, theirs=None):
        return compare.difference_of_plans(REQUEST, theirs or {"epochs": [EPOCH]}, ours)

    def test_equal_plans_do_not_differ(self):
        self.assertIsNone(self.difference(OURS))

    def test_every_changed_field_is_named(self):
        changes = {"ranks": [[[0, 1]], [[2, 1]]], "end_of_dataloader": [False], "gathered_for_metrics": None, "duplicated": [],
                   "dropped": [1]}  # fmt: skip
        for field, value in changes.items():
            ours = copy.deepcopy(OURS)
            ours["epochs"][0][field] = value
            self.assertIn(f"{field} is", self.difference(ours))

    def test_errors_and_epochs_are_compared(self):
        self.assertIn("error is None and ValueError", self.difference({"error": "ValueError"}))
        self.assertIn("error is ValueError and None", self.difference(OURS, {"error": "ValueError"}))
        self.assertIn("1 and 0 epochs", self.difference({"epochs": []}))
        self.assertIn("no answer of accel", self.difference({"failure": "gone"}))

    def test_only_what_is_marked_is_not_compared(self):
        theirs = {"epochs": [EPOCH | {"ranks": plan.NOT_COMPARED}]}
        ours = copy.deepcopy(OURS)
        ours["epochs"][0]["ranks"] = []
        self.assertIsNone(self.difference(ours, theirs))
        ours["epochs"][0]["end_of_dataloader"] = []
        self.assertIsNotNone(self.difference(ours, theirs))


class NumbersTest(unittest.TestCase):
    THEIRS = [{"rand": ["0x1p-1", "0x1p-2"]}, {"rand": ["0x1p-3", "0x1p-4"]}]

    def test_equal_numbers_do_not_differ(self):
        self.assertIsNone(compare.difference_of_numbers(self.THEIRS, [{"rand": ["0x8p-4", "0x1p-2"]}, self.THEIRS[1]]))

    def test_the_rank_the_kind_and_the_place_are_named(self):
        ours = [self.THEIRS[0], {"rand": ["0x1p-3", "0x1.0000000000001p-4"]}]
        self.assertIn("rank 1, rand: number 1 is", compare.difference_of_numbers(self.THEIRS, ours))
        self.assertIn("2 and 1 numbers", compare.difference_of_numbers(self.THEIRS, [{"rand": ["0x1p-1"]}, self.THEIRS[1]]))
        self.assertIn("only one side", compare.difference_of_numbers(self.THEIRS, [self.THEIRS[0], {}]))


class TrainingsTest(unittest.TestCase):
    THEIRS = [{"steps": [["0x1p-1", "ab"], ["0x1p-2", "cd"]]}, {"steps": [["0x1p-1", "ab"], ["0x1p-3", "cd"]]}]

    def test_equal_trainings_do_not_differ(self):
        other = copy.deepcopy(self.THEIRS)
        other[0]["steps"][0][0] = "0x8p-4"
        self.assertIsNone(compare.difference_of_trainings(self.THEIRS, other))

    def test_the_rank_the_step_and_what_differs_are_named(self):
        for place, (what, value) in enumerate((("loss", "0x1.0000000000001p-3"), ("state", "ce"))):
            other = copy.deepcopy(self.THEIRS)
            other[1]["steps"][1][place] = value
            self.assertIn(f"rank 1, step 1: {what} is", compare.difference_of_trainings(self.THEIRS, other))

    def test_an_error_of_accelerate_is_a_difference(self):
        self.assertIn("no answer", compare.difference_of_trainings([{"error": "ValueError"}, self.THEIRS[1]], self.THEIRS))


if __name__ == "__main__":
    unittest.main()

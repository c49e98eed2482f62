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


REFUSAL = "Expected more than 1 value per channel when training, got input size "
THEIR_REFUSAL = REFUSAL + "torch.Size([1, 8, 1, 1])"
OUR_REFUSAL = REFUSAL + "[1, 8, 1, 1]\nException raised from batch_norm\nframe #0: c10::Error"


class ErrorTest(unittest.TestCase):
    THEIRS = {0: THEIR_REFUSAL, 1: THEIR_REFUSAL}
    OURS = {0: OUR_REFUSAL, 1: OUR_REFUSAL}

    def test_the_same_error_on_the_same_ranks_does_not_differ(self):
        self.assertIsNone(compare.difference_of_errors(self.THEIRS, self.OURS))
        self.assertIsNone(compare.difference_of_errors({}, {}))

    def test_errors_that_say_something_else_are_a_difference(self):
        for other in (REFUSAL + "[2, 8, 1, 1]", "Expected", "", "size mismatch"):
            found = compare.difference_of_errors(self.THEIRS, self.OURS | {1: other})
            self.assertIn("rank 1: the error of Accelerate is", found)
            self.assertIn(repr(other), found)

    def test_errors_without_a_text_never_agree(self):
        self.assertIn("rank 0", compare.difference_of_errors({0: ""}, {0: "\n"}))

    def test_an_error_on_one_side_alone_is_a_difference_that_says_so(self):
        self.assertIn("only Accelerate ends in an error: rank 0: Expected more", compare.difference_of_errors(self.THEIRS, {}))
        self.assertIn("only accel ends in an error: rank 0: Expected more", compare.difference_of_errors({}, self.OURS))

    def test_an_error_on_other_ranks_is_a_difference(self):
        found = compare.difference_of_errors(self.THEIRS, {0: OUR_REFUSAL})
        self.assertIn("ranks [0, 1] of Accelerate and ranks [0] of accel", found)
        self.assertIn("ranks [0] of Accelerate and ranks [0, 1] of accel", compare.difference_of_errors({0: THEIR_REFUSAL}, self.OURS))

    def test_ranks_that_the_launcher_stopped_need_no_error(self):
        for ours in (self.OURS, {0: OUR_REFUSAL}, {1: OUR_REFUSAL}):
            self.assertIsNone(compare.difference_of_errors(self.THEIRS, ours, stops_others=True))
        self.assertIn("ranks [0] of", compare.difference_of_errors({0: THEIR_REFUSAL}, {1: OUR_REFUSAL}, stops_others=True))
        self.assertIn("only Accelerate", compare.difference_of_errors(self.THEIRS, {}, stops_others=True))
        self.assertIn("rank 1: the error", compare.difference_of_errors(self.THEIRS, {1: "other"}, stops_others=True))


class OutputTest(unittest.TestCase):
    """The errors in what sim-run writes to its standard error."""

    def test_simulated_ranks(self):
        text = f"accel: warning: something\nsim-run: ranks 0-2, 5: {OUR_REFUSAL}\nrank 3: other\n"
        errors = compare.errors_of_output(text + "rank 4: released from waiting by this failure\n", 6)
        refused = compare.text_of_error(OUR_REFUSAL)
        self.assertEqual(errors, {0: refused, 1: refused, 2: refused, 5: refused, 3: "other"})

    def test_gloo_processes(self):
        prefixed = "".join(f"[rank 1] {line}\n" for line in f"accel: warning: something\nsim-run: {OUR_REFUSAL}".splitlines())
        errors = compare.errors_of_output(prefixed + "sim-run: rank 1 ended with exit code 1: frame #0: c10::Error\n", 3)
        self.assertEqual(errors, {1: compare.text_of_error(OUR_REFUSAL)})

    def test_an_error_before_ranks_start_and_a_crash_belong_to_all_ranks(self):
        for text in ("epochs: expected 1 or more", "rank 1 was ended by signal 11 (SIGSEGV)"):
            self.assertEqual(compare.errors_of_output(f"sim-run: {text}\n", 2), {0: text, 1: text})
        self.assertEqual(compare.errors_of_output("Killed\n", 1), {0: "Killed"})
        self.assertEqual(compare.errors_of_output("", 1), {0: "no message"})


class RunTest(unittest.TestCase):
    """A planted accel, which trains `STEPS` steps in two epochs on two ranks, or fails before."""

    STEPS = 5

    def lines(self, rank, steps):
        """The trace of a rank that has trained this many steps."""
        lines = []
        for step in range(steps):
            epoch = step // 3
            lines.append(STEP | {"rank": rank, "epoch": epoch, "step": step, "loss": float(step + 1).hex()})
            if step in (2, self.STEPS - 1):
                lines.append({"rank": rank, "epoch": epoch, "eval_correct": step, "eval_samples": 9})
        return lines

    def accelerate(self, fails_at=None, message=THEIR_REFUSAL, ranks=(0, 1)):
        def answer(rank):
            if fails_at is not None and rank in ranks:
                return {"error": "ValueError", "message": message, "trace": self.lines(rank, fails_at)}
            return self.lines(rank, self.STEPS) + [{"rank": rank, "parameters_sha256": "ab"}]

        return [answer(0), answer(1)]

    def accel(self, fails_at=None, message=OUR_REFUSAL, ranks=(0, 1), change=lambda line: line):
        def run(max_steps):
            steps = self.STEPS if max_steps is None else min(max_steps, self.STEPS)
            if fails_at is not None and steps > fails_at:
                return {"trace": None, "errors": {rank: compare.text_of_error(message) for rank in ranks}}
            trace = []
            for rank in (0, 1):
                trace += self.lines(rank, steps)
                if steps not in (3, self.STEPS):  # a run that ends early evaluates, too
                    trace.append({"rank": rank, "epoch": max(0, steps - 1) // 3, "eval_correct": 7, "eval_samples": 9})
                trace.append({"rank": rank, "parameters_sha256": "ab"})
            return {"trace": list(map(change, trace)), "errors": {}}

        return run

    def difference(self, theirs, run, **options):
        return compare.difference_of_runs(theirs, run, bound=0, **options)

    def test_equal_runs_do_not_differ_and_a_changed_line_does(self):
        self.assertIsNone(self.difference(self.accelerate(), self.accel()))
        changed = self.accel(change=lambda line: line | ({"lr": 0.2} if line.get("step") == 4 else {}))
        self.assertIn("epoch 1, step 4: lr is", self.difference(self.accelerate(), changed))

    def test_the_same_error_in_the_same_step_does_not_differ(self):
        for step in range(self.STEPS):
            self.assertIsNone(self.difference(self.accelerate(step), self.accel(step)))

    def test_an_error_that_says_something_else_is_a_difference(self):
        self.assertIn("the error of Accelerate is", self.difference(self.accelerate(2), self.accel(2, message="size mismatch")))

    def test_an_error_on_one_side_alone_is_a_difference(self):
        for step in range(self.STEPS):
            self.assertIn("only Accelerate ends in an error", self.difference(self.accelerate(step), self.accel()))
            self.assertIn("only accel ends in an error", self.difference(self.accelerate(), self.accel(step)))

    def test_an_error_in_another_step_is_a_difference(self):
        for theirs in range(self.STEPS):
            for ours in range(self.STEPS):
                if theirs != ours:
                    self.assertIsNotNone(self.difference(self.accelerate(theirs), self.accel(ours)), (theirs, ours))
        self.assertIn("Accelerate completes 3 steps before its error", self.difference(self.accelerate(3), self.accel(1)))
        self.assertIn("only Accelerate ends in an error by step 1", self.difference(self.accelerate(1), self.accel(3)))

    def test_an_error_on_other_ranks_is_a_difference(self):
        self.assertIn("ranks [0, 1] of Accelerate", self.difference(self.accelerate(2), self.accel(2, ranks=(1,))))
        self.assertIn("ranks [0, 1] of accel", self.difference(self.accelerate(2, ranks=(1,)), self.accel(2)))
        self.assertIsNone(self.difference(self.accelerate(2), self.accel(2, ranks=(1,)), stops_others=True))

    def test_a_difference_before_the_error_is_found(self):
        changed = self.accel(4, change=lambda line: line | ({"loss": "0x1.8p+9"} if line.get("step") == 1 else {}))
        self.assertIn("step 1: loss is", self.difference(self.accelerate(4), changed))
        changed = self.accel(4, change=lambda line: line | ({"eval_samples": 8} if line["rank"] == 1 and "eval_samples" in line else {}))
        self.assertIn("rank 1, epoch 0, evaluation: eval_samples is 9 and 8", self.difference(self.accelerate(4), changed))
        near = self.accel(4, change=lambda line: line | ({"loss": "0x1.0004p+0"} if line.get("step") == 0 else {}))
        self.assertIsNone(compare.difference_of_runs(self.accelerate(4), near, bound=1e-3, bound_of_first=1e-3))
        self.assertIn("loss is", compare.difference_of_runs(self.accelerate(4), near, bound=1e-5, bound_of_first=1e-5))

    def test_ranks_of_accelerate_that_end_after_different_steps_are_a_difference(self):
        theirs = [self.accelerate(2)[0], self.accelerate(3)[1]]
        self.assertIn("after [2, 3] steps", self.difference(theirs, self.accel(2)))

    def test_no_answer_is_a_difference_even_if_accel_fails(self):
        self.assertIn("no trace of Accelerate: no answer within 60 s", self.difference({"failure": "no answer within 60 s"}, self.accel(0)))


class UnexpectedErrorTest(unittest.TestCase):
    """Where the generator draws only what both sides accept, even two errors that say the same are a difference."""

    def test_answers_have_no_error(self):
        self.assertIsNone(compare.unexpected_error({"loss": 1}, {"loss": 1}))
        self.assertIsNone(compare.unexpected_error([{"loss": 1}, {"loss": 2}], [{"loss": 1}, {"loss": 2}]))

    def test_each_side_with_an_error_is_named(self):
        error = {"error": "ValueError", "message": "no"}
        self.assertEqual(compare.unexpected_error(error, {"loss": 1}), "only Accelerate has no answer: ValueError: no")
        found = compare.unexpected_error([{"loss": 1}, error], [{"loss": 1}, {"loss": 2}])
        self.assertEqual(found, "only Accelerate has no answer: rank 1: ValueError: no")
        self.assertEqual(compare.unexpected_error({"failure": "hung"}, {"loss": 1}), "only Accelerate has no answer: hung")
        self.assertEqual(compare.unexpected_error({"loss": 1}, {"failure": "no"}), "only accel has no answer: no")
        found = compare.unexpected_error(error, {"failure": "no"})
        self.assertEqual(found, "no answer of Accelerate: ValueError: no; no answer of accel: no")


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

    def test_a_step_too_few_is_a_difference(self):
        shorter = [{"steps": self.THEIRS[0]["steps"][:1]}, self.THEIRS[1]]
        self.assertIn("rank 0: 2 and 1 steps", compare.difference_of_trainings(self.THEIRS, shorter))


class SchedulesTest(unittest.TestCase):
    def difference(self, their, straight, **resumed):
        return compare.difference_of_schedules(their, {"straight": straight} | resumed)

    def test_errors_agree_in_the_same_step_only(self):
        their = {"error": "ValueError", "at": 21, "lr": 1}
        ours = {"error": "ArgumentError", "at": 21, "lr": 1}
        self.assertIsNone(self.difference(their, ours))
        self.assertIsNone(self.difference(their | {"error": "TypeError"}, ours))
        self.assertIsNotNone(self.difference(their, ours | {"at": 20}))
        self.assertIsNotNone(self.difference(their, ours | {"at": None}))
        self.assertIsNotNone(self.difference(their, {"lr": 1}))
        self.assertIsNotNone(self.difference({"lr": 1}, ours))
        self.assertIsNotNone(self.difference(their, {"failure": "gone"}))

    def test_an_error_of_the_script_is_a_difference(self):
        their = {"error": "KeyError", "at": None}
        self.assertIn("KeyError", self.difference(their, {"error": "ArgumentError", "at": None}))

    def test_a_resumed_schedule_is_compared_too(self):
        their = {"lr": 1, "state": {"last_epoch": 3}}
        self.assertIsNone(self.difference(their, their, resumed=their))
        self.assertIsNotNone(self.difference(their, their, resumed=their | {"lr": 2}))
        self.assertIsNotNone(self.difference(their, their))


if __name__ == "__main__":
    unittest.main()

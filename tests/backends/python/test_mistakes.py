"""Planted mistakes: each ends at once, with rank, operation and line of the program."""

import time

import pytest
from conftest import HAS_RACE, PROGRAMS, simulate, skip_unless_torch_can, warnings_of

LINES = (PROGRAMS / "mistakes.py").read_text().splitlines()


def line_of(text, after):
    """mistakes.py:N of the first line with this text behind the function `after`."""
    start = LINES.index(f"def {after}():")
    return next(f"mistakes.py:{number}" for number, line in enumerate(LINES, 1) if number > start and text in line)


LAST = line_of("accelerator.wait_for_everyone()", "updates_another_model")

IMMEDIATE = {
    "gather_on_main_only": (3, ["rank 0: all_gather(float32 [8])", "accelerator.gather"]),
    "groups_in_another_order": (3, ["rank 1 waits in all_reduce #0 of group 2", "dist.all_reduce(tensor, group=groups[1])"]),
    "another_shape": (3, ["rank 2: all_reduce(sum, float32 [9])", "dist.all_reduce"]),
    "another_dtype": (3, ["rank 1: all_reduce(sum, float64 [8])", "dist.all_reduce"]),
    "another_root": (3, ["rank 3: broadcast(float32 [8], root 1)", "dist.broadcast"]),
    "another_order": (3, ["rank 2: broadcast(float32 [8], root 0)", "dist.broadcast"]),
    "raises": (1, ["rank 1: ValueError: bad sample 17", 'raise ValueError("bad sample 17")']),
    "exits": (1, ["rank 1: the program called sys.exit(3)", "sys.exit(3)"]),
    "exits_at_once": (1, ["rank 1: the process ended with exit code 4; its last call: all_reduce #0"]),
    "dies": (1, ["rank 1: the process was killed by signal 9 (Killed); its last call: all_reduce #0"]),
    "barrier_in_one_branch": (3, ["ranks 1, 3: barrier()", "dist.barrier()"]),
    "receives_from_nobody": (3, ["rank 0 waits in recv #0 from rank 1", "dist.recv"]),
    "changes_before_wait": (3, ["rank 2 has not waited for it, and its tensor is changed by aten::mul_", "dist.all_reduce"]),
    "changes_by_numpy": (3, ["rank 2 has not waited for it, and its tensor is changed before wait()", "dist.all_reduce"]),
    "reads_before_wait": (3, ["has not waited for it, and its tensor is read by aten::div before wait()", "dist.all_reduce"]),
    "sparse_and_dense": (3, ["rank 1: all_reduce(sum, float32 [8])", "dist.all_reduce"]),
    "changes_sparse_before_wait": (3, ["rank 2 has not waited for it, and its tensor is changed by aten::mul_", "dist.all_reduce"]),
    "updates_another_model": (3, ["rank 2 differs from the rest, first in parameter weight"]),
}


@pytest.mark.parametrize("name", IMMEDIATE)
def test_named_at_once(name, no_leftovers):
    code, texts = IMMEDIATE[name]
    run = simulate(4, PROGRAMS / "mistakes.py", name)
    ended = time.time()
    assert run.code == code, run.error
    assert texts[0] in run.error
    for text in texts[1:]:
        number = line_of(text, name).split(":")[1]
        assert line_of(text, name) in run.error or f'mistakes.py", line {number}' in run.error, run.error
    began = max(float(line.split("began ")[1]) for line in run.output.splitlines() if "began " in line)
    print(f"{name}: {(ended - began) * 1e3:.0f} ms from the mistake to the end of sim-run")


def test_death_inside_a_collective(no_leftovers):
    run = simulate(4, PROGRAMS / "mistakes.py", "dies_inside_a_collective")
    assert run.code == 1
    assert "rank 1: the process was killed by signal 9 (Killed); its last call: barrier #1" in run.error
    assert line_of("dist.barrier()", "dies_inside_a_collective") in run.error


def test_endless_loop_ends_at_the_timeout(no_leftovers):
    run = simulate(4, PROGRAMS / "mistakes.py", "loops_forever", ACCEL_TIMEOUT_SECONDS="2")
    assert run.code == 3
    assert "barrier #1" in run.error and LAST in run.error
    assert "rank 1" in run.error and "has not returned from its own code" in run.error


def test_forgotten_set_epoch_is_a_finding():
    run = simulate(2, PROGRAMS / "mistakes.py", "forgets_set_epoch")
    assert run.code == 0, run.error
    assert "a DistributedSampler starts again in epoch 0" in run.error


def test_models_of_other_seeds_are_a_finding():
    skip_unless_torch_can("draws_another_model")
    run = simulate(4, PROGRAMS / "mistakes.py", "draws_another_model")
    assert run.code == 0, run.error
    place = line_of("fully_shard(model)", "draws_another_model")
    assert "train parts of different models, first in weight at " in run.error and place in run.error


def test_an_exit_while_the_rank_waits(no_leftovers):
    run = simulate(4, PROGRAMS / "mistakes.py", "exits_while_waiting")
    assert run.code == 1
    assert "rank 1: the process ended with exit code 4; its last call: barrier #1" in run.error, run.error


def test_a_race_of_torch_itself_is_a_finding():
    """The set-up of a pipeline receives two messages into one tensor, which it does not read."""
    skip_unless_torch_can("pipeline")
    run = simulate(4, PROGRAMS / "trainings.py", "pipeline")
    assert run.code == 0, run.error
    place = "torch/distributed/pipelining/schedules.py"
    text = f"{place} starts an asynchronous call, and its tensor is passed to RECV in {place} before wait()"
    assert (text in run.error) == HAS_RACE, run.error


def test_a_call_of_torch_whose_tensor_the_program_changes(no_leftovers):
    run = simulate(2, PROGRAMS / "mistakes.py", "changes_what_torch_receives")
    assert run.code == 3, run.error
    assert "has not waited for it, and its tensor is changed by aten::mul_ before wait()" in run.error


@pytest.mark.parametrize("ranks, program, name", [
    (4, "mistakes.py", "loads_one_model"), (4, "mistakes.py", "reads_a_loss_that_is_reduced"),
    (2, "trainings.py", "accelerate"), (2, "trainings.py", "fsdp2"),
])
def test_right_programs_have_no_findings(ranks, program, name):
    skip_unless_torch_can(name)
    run = simulate(ranks, PROGRAMS / program, name)
    assert run.code == 0 and not warnings_of(run), run.error

"""Accelerate's own test scripts, unmodified."""

import pytest
from conftest import simulate

SCRIPTS = "accelerate.test_utils.scripts."


@pytest.mark.parametrize("ranks", (2, 4, 8))
@pytest.mark.parametrize("name", ("test_ops", "test_sync"))
def test_scripts_pass(name, ranks):
    run = simulate(ranks, "-m", SCRIPTS + name)
    assert run.code == 0, run.error
    assert f"[rank {ranks - 1}]" in run.output


def test_test_script_passes_on_two_ranks():
    run = simulate(2, "-m", SCRIPTS + "test_script")
    assert run.code == 0, run.error
    assert "Num processes: 2" in run.output and "**Breakpoint trigger test**" in run.output


@pytest.mark.parametrize("ranks", (4, 8))
def test_test_script_fails_as_over_gloo(ranks):
    """split_between_processes of a tensor without enough rows gives the last ranks an empty tensor: also over Gloo."""
    run = simulate(ranks, "-m", SCRIPTS + "test_script")
    assert run.code == 1
    assert "test_split_between_processes_tensor" in run.error


@pytest.mark.parametrize("ranks", (4, 8))
def test_distributed_data_loop_wants_two_ranks(ranks):
    run = simulate(ranks, "-m", SCRIPTS + "test_distributed_data_loop")
    assert run.code == 1
    assert "AssertionError: this script expects that two GPUs are available" in run.error


def test_distributed_data_loop_hangs_as_over_gloo():
    """Its join over uneven inputs does nothing on CPUs. Gloo waits for half an hour; the simulator says why."""
    run = simulate(2, "-m", SCRIPTS + "test_distributed_data_loop")
    assert run.code == 3
    assert "the ranks' calls differ" in run.error and "test_distributed_data_loop.py" in run.error


@pytest.mark.parametrize("ranks", (2, 4, 8))
def test_merge_weights_fails_as_over_gloo(ranks):
    """Outside of `accelerate launch --use_fsdp` its plugin has no type of state dict: KeyError: None, also over Gloo."""
    run = simulate(ranks, "-m", SCRIPTS + "test_merge_weights")
    assert run.code == 1
    assert "KeyError: None" in run.error

"""Every kind of fault strikes ranks that are Python processes."""

import pytest
from conftest import PROGRAMS, ROOT, results_of, simulate

RUN_ON = ("rank_pause", "slow_rank", "jitter", "rank_restart", "message_delay", "slow_link", "store_slow")
END = {
    "rank_crash_before_collective": "Connection closed by peer",
    "rank_crash_during_collective": "Connection closed by peer",
    "rank_crash_before_optimizer_step": "Connection closed by peer",
    "rank_leave": "Connection closed by peer",
    "rank_hang": "Timed out waiting",
    "hook_exception": "injected exception in a backward hook",
    "message_loss": "Timed out waiting",
    "connection_reset": "Connection reset by peer",
    "partition": "Timed out waiting",
    "bit_flip": "the replicas' parameters differ; rank 2 differs from the rest",
    "wrong_call": "the ranks' calls differ",
    "torn_write": "the process died while writing",
    "disk_full": "rank 2: RuntimeError: [enforce fail at inline_container",  # torch.save hides ENOSPC
}


def run_with(fault, folder):
    (folder / "faults.yaml").write_text(f"faults:\n  - {fault}\n")
    (folder / "states").mkdir()
    return simulate(4, PROGRAMS / "saves.py", folder / "states", options=["--faults", str(folder / "faults.yaml")])


def place(kind):
    links = ("message_delay", "message_loss", "connection_reset", "slow_link")
    if kind in links:
        return "link: [2, 1]"
    return "ranks: [2]" if kind == "partition" else "rank: 2"


def test_all_kinds_are_here():
    kinds = {file.stem for file in (ROOT / "configs/sim/faults").glob("*.yaml")}
    assert kinds == {*RUN_ON, *END, "nan_gradient", "rank_join"}
    assert len(kinds) == 22


@pytest.mark.parametrize("kind", RUN_ON)
def test_these_change_nothing(kind, tmp_path, no_leftovers):
    """A restarted training computes what an undisturbed one does, because it resumes from its own state."""
    (tmp_path / "undisturbed").mkdir()
    expected = simulate(4, PROGRAMS / "saves.py", tmp_path / "undisturbed")
    run = run_with(f"{{kind: {kind}}}" if kind == "store_slow" else f"{{kind: {kind}, {place(kind)}}}", tmp_path)
    assert run.code == 0, run.error
    assert "has not struck" not in run.error
    assert len(results_of(expected.output)) == 4
    assert results_of(run.output) == results_of(expected.output)


@pytest.mark.parametrize("kind", END)
def test_these_end_the_run(kind, tmp_path, no_leftovers):
    run = run_with(f"{{kind: {kind}, {place(kind)}}}", tmp_path)
    assert run.code == 3, run.error
    assert f"injected fault: {kind}" in run.error
    assert END[kind] in run.error, run.error


def test_a_gradient_that_is_not_finite(tmp_path):
    run = run_with("{kind: nan_gradient, rank: 2, when: {step: 5}}", tmp_path)
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 4
    assert all(line.endswith("nan") for line in results_of(run.output))


def test_nobody_joins_a_training_that_is_not_elastic(tmp_path):
    run = run_with("{kind: rank_join, rank: 2}", tmp_path)
    assert run.code == 0, run.error
    assert "the fault has not struck: the run never reached the event that triggers it: rank_join" in run.error


def test_a_torn_write_keeps_its_bytes(tmp_path):
    """The first model of rank 0 is cut after 100 bytes, by whatever library writes it; the state of other ranks is
    complete."""
    run = run_with("{kind: torn_write, rank: 0, file: optimizer, bytes: 100}", tmp_path)
    assert run.code == 3, run.error
    assert "optimizer.bin; 100 bytes of it reached the disk" in run.error
    assert (tmp_path / "states/3/optimizer.bin").stat().st_size == 100
    assert (tmp_path / "states/3/model.safetensors").stat().st_size > 3000

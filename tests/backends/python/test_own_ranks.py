"""Programs that start their ranks themselves. Most fork them: a process that is spawned imports torch again."""

import os
import re
import signal
import subprocess
import sys

import simranks
import pytest
from conftest import PROGRAMS, results_of, run, run_real

PROGRAM = PROGRAMS / "starts_ranks.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")


def simulate(*words, options=(), **more):
    return run([simranks.sim_run(), *options, "--", sys.executable, *words], OMP_NUM_THREADS="1", **more)


def simulate_program(name, folder, **more):
    """Also checks that the simulator has seen the collectives."""
    log = folder / "events.jsonl"
    done = simulate(PROGRAM, name, options=["--ranks", "0", "--event-log", log], **more)
    assert '"all_reduce"' in log.read_text() or "barrier" in log.read_text(), done.error
    return done


def real(*words):
    return run_real([sys.executable, *words])


@pytest.mark.parametrize("name", ("spawn", "start_processes", "fork", "two_worlds", "debug_launcher"))
def test_results_equal_those_of_real_processes(name, tmp_path, no_leftovers):
    simulated = simulate_program(name, tmp_path)
    assert simulated.code == 0, simulated.error
    expected = real(PROGRAM, name)
    assert expected.code == 0, expected.error
    assert len(results_of(expected.output)) >= 3
    assert sorted(results_of(simulated.output)) == sorted(results_of(expected.output))


def test_ranks_of_torchrun(tmp_path, no_leftovers):
    simulated = simulate(*TORCHRUN, PROGRAM, "torchrun", options=["--event-log", tmp_path / "events.jsonl"])
    assert simulated.code == 0, simulated.error
    assert '"all_reduce"' in (tmp_path / "events.jsonl").read_text()
    assert results_of(simulated.output) == results_of(real(*TORCHRUN, PROGRAM, "torchrun").output)


def test_every_world_has_its_files(tmp_path):
    assert simulate_program("two_worlds", tmp_path).code == 0
    assert sorted(os.listdir(tmp_path)) == ["events-2.jsonl", "events-3.jsonl", "events-4.jsonl", "events.jsonl"]


SUITE = '''
import os, sys, time, unittest
import torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests

class Tests(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def begin(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    def test_sum(self):
        self.begin()
        total = torch.ones(2) * self.rank
        dist.all_reduce(total)
        self.assertEqual(total, torch.ones(2))

    def test_wrong(self):
        self.begin()
        dist.barrier()
        self.assertEqual(self.rank, 0)

    def test_hangs(self):
        self.begin()
        if self.rank == 0:
            dist.all_reduce(torch.ones(2))

    def test_skips(self):
        self.begin()
        raise unittest.SkipTest("no reason")

    def test_leaves(self):
        self.begin()
        dist.barrier()
        os._exit(0)

if __name__ == "__main__":
    run_tests()
'''


def test_multi_process_tests(tmp_path, no_leftovers):
    pytest.importorskip("expecttest")  # which torch.testing imports
    (tmp_path / "test_it.py").write_text(SUITE)
    log = tmp_path / "events.jsonl"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_it.py"]
    done = simulate(*words, options=["--event-log", log])
    assert done.code == 1, done.error
    assert "2 failed, 2 passed, 1 skipped" in done.output, done.output
    assert "Scalars are not equal" in done.output
    assert "rank 1 has ended its program" in done.output + done.error
    assert len([name for name in os.listdir(tmp_path) if name.startswith("events")]) == 5


def test_an_exception_is_that_of_spawn(tmp_path, no_leftovers):
    done = simulate_program("fails", tmp_path)
    assert done.code == 1
    assert "torch.multiprocessing.spawn.ProcessRaisedException" in done.error
    assert "ValueError: rank one" in done.error


def test_an_exit_code_is_that_of_the_process(tmp_path, no_leftovers):
    done = simulate_program("exits", tmp_path)
    assert done.code == 0, done.error
    assert results_of(done.output) == ["result 2 7"]
    assert done.seconds < 40


def test_a_hang_is_diagnosed(tmp_path, no_leftovers):
    diagnosis = tmp_path / "diagnosis.json"
    done = simulate(PROGRAM, "hangs", options=["--ranks", "0", "--diagnosis", diagnosis])
    assert done.code == 1
    assert "rank 1 has ended its program" in done.error, done.error
    assert "starts_ranks.py:" in done.error
    assert '"kind":"hang"' in diagnosis.read_text()


def test_the_death_of_a_rank_is_an_error_of_the_others(tmp_path, no_leftovers):
    done = simulate_program("killed", tmp_path)
    assert done.code == 0, done.error
    assert results_of(done.output) == ["result 0 [5, -9, 5]"]
    for rank in (0, 2):
        assert re.search(rf"caught {rank} rank 1 failed: .*process was killed by signal 9 \(Killed\)", done.output), done.output


@pytest.mark.parametrize("victim", ("program", "sim-run", "ranks"))
def test_nothing_outlives_a_kill(victim, tmp_path, no_leftovers):
    words = [simranks.sim_run(), "--ranks", "0", "--", sys.executable, PROGRAM, "waits"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for _ in range(3):
        assert process.stdout.readline() == "sleeping\n"
    children = children_of(process.pid)
    programs = [pid for pid in children if "waits" in command_of(pid)]
    pids = {"program": programs, "sim-run": [process.pid], "ranks": [pid for parent in programs for pid in children_of(parent)]}
    assert pids[victim]
    for pid in pids[victim]:
        os.kill(pid, signal.SIGKILL)
    process.wait(timeout=30)
    if victim == "sim-run":  # its program dies with it, and the program's ranks would have outlived it in reality, too
        for parent in programs:
            for pid in children_of(parent):
                os.kill(pid, signal.SIGKILL)


def children_of(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as file:
            found += [int(word) for word in file.read().split()]
    return found


def command_of(pid):
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        return file.read().split("\0")


def test_a_rank_may_start_ranks(tmp_path):
    """Its children are no ranks of its own world."""
    (tmp_path / "program.py").write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(PROGRAMS)!r})\n"
        "import torch, torch.distributed as dist, starts_ranks\n"
        "rank = int(os.environ['RANK'])\n"
        f"os.mkdir({str(tmp_path)!r} + f'/{{rank}}')\n"
        f"starts_ranks.fork({str(tmp_path)!r} + f'/{{rank}}')\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "print('outer', rank, total.item())\n"
    )
    done = run([simranks.sim_run(), "--ranks", "2", "--", sys.executable, tmp_path / "program.py"])
    assert done.code == 0, done.error
    assert "outer 0 2.0" in done.output and "outer 1 2.0" in done.output
    assert len(results_of(done.output)) == 6
    assert {line.split()[2] for line in results_of(done.output)} == {"3"}


def test_a_program_without_ranks_keeps_its_exit_code(tmp_path):
    done = simulate("-c", "import sys; sys.exit(5)", options=["--ranks", "0"])
    assert done.code == 5
    assert "so nothing was simulated" in done.error


def test_another_sitecustomize_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.marked = __file__\n")
    done = simulate("-c", "import sys; print(sys.marked)", options=["--ranks", "0"], PYTHONPATH=str(tmp_path))
    assert done.output == f"{tmp_path}/sitecustomize.py\n", done.error

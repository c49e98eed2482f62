"""What the simulator offers to Python programs."""

import json
import os
import sys

import accel_sim
from conftest import PROGRAMS, ROOT, results_of, simulate
from conftest import run as run_words

TRAINING = (PROGRAMS / "trainings.py", "accelerate")


def test_every_schedule_computes_the_same():
    expected = results_of(simulate(3, *TRAINING).output)
    for options in (["--schedule", "random", "--seed-schedule", "3"], ["--schedule", "pct", "--seed-schedule", "4"]):
        run = simulate(3, *TRAINING, options=options)
        assert run.code == 0, run.error
        assert results_of(run.output) == expected


def test_a_seed_replays_the_order_of_events(tmp_path):
    logs = []
    for name, seed in (("first", 7), ("second", 7), ("other", 8)):
        options = ["--schedule", "random", "--seed-schedule", seed, "--event-log", tmp_path / name]
        assert simulate(3, *TRAINING, options=map(str, options)).code == 0
        logs.append((tmp_path / name).read_text())
    assert logs[0] == logs[1] != logs[2]


def test_diagnosis(tmp_path):
    file = tmp_path / "diagnosis.json"
    run = simulate(4, PROGRAMS / "mistakes.py", "another_shape", options=["--diagnosis", str(file)])
    assert run.code == 3
    diagnosis = json.loads(file.read_text())
    assert diagnosis["op"] == "all_reduce" and "mistakes.py:" in diagnosis["where"]


def test_faults(tmp_path):
    (tmp_path / "faults.yaml").write_text("faults:\n  - {kind: rank_hang, rank: 1, when: {step: 3}}\n")
    run = simulate(3, *TRAINING, options=["--faults", str(tmp_path / "faults.yaml")])
    assert run.code == 3
    assert "rank_hang on rank 1 at step 3" in run.error


def test_virtual_time_timeline_and_report(tmp_path):
    network = ROOT / "configs/sim/networks/laptop.yaml"
    options = ["--network", network, "--timeline", tmp_path / "timeline.json", "--report", tmp_path / "report"]
    run = simulate(4, *TRAINING, options=map(str, options))
    assert run.code == 0, run.error
    assert results_of(run.output) == results_of(simulate(4, *TRAINING).output)
    names = {event.get("name") for event in json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]}
    assert "all_reduce" in names
    assert "all_reduce" in (tmp_path / "report" / "index.html").read_text()


def test_arguments_modules_and_output(tmp_path):
    (tmp_path / "shows.py").write_text("import os, sys\nprint(sys.argv, __name__, os.environ['RANK'])\n")
    run = simulate(2, tmp_path / "shows.py", "--epochs", "3")
    assert sorted(run.output.splitlines()) == [
        f"[rank {rank}] ['{tmp_path}/shows.py', '--epochs', '3'] __main__ {rank}" for rank in (0, 1)
    ]
    run = simulate(1, "-c", "import sys; print(sys.argv, __name__)", "x")
    assert run.output == "['-c', 'x'] __main__\n"


def test_a_script_alone_is_run_by_python():
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    run = run_words([accel_sim.sim_run(), "--ranks", "2", "--", PROGRAMS / "trainings.py", "accelerate"], PATH=path)
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_works_that_nobody_waits_for(tmp_path):
    """A rank may send and forget; the memory of such calls is used again."""
    (tmp_path / "forgets.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank, size = dist.get_rank(), dist.get_world_size()\n"
        "for step in range(2000):\n"
        "    dist.isend(torch.full((1 << 20,), float(step)), (rank + 1) % size)\n"
        "    received = torch.empty(1 << 20)\n"
        "    dist.recv(received, (rank - 1) % size)\n"
        "    assert received[-1] == step\n"
        "print('result', rank)\n"
    )
    run = simulate(2, tmp_path / "forgets.py")
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_asynchronous_calls_overlap(tmp_path):
    (tmp_path / "overlaps.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(200)]\n"
        "while not works[-1].is_completed(): pass\n"
        "for work in reversed(works): work.wait()\n"
        "work = dist.all_reduce(torch.full((3,), 2.0), async_op=True)\n"
        "assert work.get_future().wait()[0].tolist() == [2.0 * dist.get_world_size()] * 3\n"
        "print('result', dist.get_rank())\n"
    )
    run = simulate(3, tmp_path / "overlaps.py")
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 3

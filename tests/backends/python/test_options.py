"""What the simulator offers to Python programs."""

import json
import os
import sys

import pytest
import simranks
from conftest import PROGRAMS, ROOT, results_of, simulate, simulate_text
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
    assert {"all_reduce", "forward", "backward", "optimizer"} <= names
    assert "all_reduce" in (tmp_path / "report" / "index.html").read_text()


def test_arguments_modules_and_output(tmp_path):
    (tmp_path / "shows.py").write_text("import os, sys\nprint(sys.argv, __name__, os.environ['RANK'])\n")
    run = simulate(2, tmp_path / "shows.py", "--epochs", "3")
    assert sorted(run.output.splitlines()) == [
        f"[rank {rank}] ['{tmp_path}/shows.py', '--epochs', '3'] __main__ {rank}" for rank in (0, 1)
    ]
    run = simulate(1, "-c", "import sys; print(sys.argv, __name__)", "x")
    assert run.output == "['-c', 'x'] __main__\n"


def run_with_python(*words, **environment):
    """With `python` in the path, as in an environment that is active."""
    return run_words(words, PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"], **environment)


def test_a_script_alone_is_run_by_python():
    run = run_with_python(simranks.sim_run(), "--ranks", "2", "--", *TRAINING)
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


ACCEL = ROOT / "build/release/bin/accel"


@pytest.mark.skipif(not ACCEL.exists(), reason="accel is missing: the package lacks it, and ./dev build makes it")
def test_accel_launch_runs_a_script_on_simulated_ranks(tmp_path):
    expected = results_of(simulate(2, *TRAINING).output)
    run = run_with_python(ACCEL, "launch", "--sim", "--num_processes", "2", *TRAINING)
    assert run.code == 0, run.error
    assert results_of(run.output) == expected
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n")
    run = run_with_python(ACCEL, "launch", "--sim", *TRAINING, HF_HOME=tmp_path)
    assert run.code == 0, run.error
    assert results_of(run.output) == expected


def test_works_that_nobody_waits_for(tmp_path):
    """A rank may send and forget; the memory of such calls is used again: all together exceed the 16 GiB that it has."""
    run = simulate_text(
        tmp_path, 2,
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank, size = dist.get_rank(), dist.get_world_size()\n"
        "received, sent = torch.empty(1 << 22), torch.empty(1 << 22)\n"
        "for step in range(1100):\n"
        "    dist.isend(sent.fill_(step), (rank + 1) % size)\n"
        "    dist.recv(received, (rank - 1) % size)\n"
        "    assert received[-1] == step\n"
        "print('result', rank)\n",
    )
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 2


def test_asynchronous_calls_overlap(tmp_path):
    run = simulate_text(
        tmp_path, 3,
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(200)]\n"
        "while not works[-1].is_completed(): pass\n"
        "for work in reversed(works): work.wait()\n"
        "work = dist.all_reduce(torch.full((3,), 2.0), async_op=True)\n"
        "assert work.get_future().wait()[0].tolist() == [2.0 * dist.get_world_size()] * 3\n"
        "print('result', dist.get_rank())\n",
    )
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == 3


def test_several_models_are_compared_in_one_order(tmp_path):
    run = simulate_text(
        tmp_path, 4,
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "kept = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(n, 3)) for n in range(2, 8)]\n"
        "optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in kept]\n"
        "for step in range(3):\n"
        "    for n, (model, optimizer) in enumerate(zip(kept, optimizers), 2):\n"
        "        model(torch.randn(5, n)).sum().backward()\n"
        "        optimizer.step()\n"
        "print('result', dist.get_rank())\n",
    )
    assert run.code == 0, run.error


def test_generators_differ_by_rank_and_not_by_run():
    """Fresh processes begin with streams of their own; those of forked ones would be equal."""
    text = "import random, numpy, torch; print('result', RANK, random.random(), numpy.random.rand(), torch.rand(1).item())"
    text = text.replace("RANK", "__import__('os').environ['RANK']")
    runs = [results_of(simulate(3, "-c", text).output) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({number for line in runs[0] for number in line.split()[2:]}) == 9


RACE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if rank > 0:
    dist.send(torch.full((1,), float(rank)), 0)
else:
    total, received = 0.0, torch.zeros(1)
    for _ in range(size - 1):
        dist.recv(received)
        total = total * 0.5 + received.item()
    print("total", total)
"""


def explore(*words):
    return run_words([simranks.sim_run(), "explore", *words])


def test_explore_finds_a_race_and_prints_its_replay(tmp_path, no_leftovers):
    (tmp_path / "race.py").write_text(RACE)
    run = explore("--ranks", "4", "--schedules", "20", "--", sys.executable, tmp_path / "race.py")
    assert run.code == 1, run.error
    found = json.loads(run.output)["found"]
    assert found["signature"] == "differs" and found["ranks"] == 3
    words = found["replay"].split()
    assert words[0] == "sim-run"
    replays = {run_words([simranks.sim_run(), *words[1:]]).output for _ in range(2)}
    turns = simulate(3, tmp_path / "race.py", options=["--schedule", "round-robin"]).output
    assert len(replays) == 1 and turns not in replays


def test_explore_finds_nothing_in_a_right_program(no_leftovers):
    run = explore("--ranks", "3", "--schedules", "12", "--", sys.executable, *TRAINING)
    assert run.code == 0, run.error
    assert json.loads(run.output) == {"schedules": 12, "found": None}


PRINTS_TIMES = """
import time
import torch.distributed as dist
dist.init_process_group()
dist.barrier()
print(f"step 1: {time.perf_counter():.9f} s, Epoch time {time.time()}")
print(f"{1 / time.perf_counter():.9f} samples/s")
print("loss", dist.get_rank())
"""


def test_explore_ignores_lines_with_times(tmp_path):
    (tmp_path / "times.py").write_text(PRINTS_TIMES)
    words = ["--ranks", "2", "--schedules", "2", "--", sys.executable, tmp_path / "times.py"]
    run = explore(*words)
    assert run.code == 0 and json.loads(run.output)["found"] is None, run.output + run.error
    run = explore("--ignore-lines", "", *words)
    assert run.code == 1 and json.loads(run.output)["found"]["signature"] == "differs", run.output + run.error
    run = explore("--ignore-lines", "(", *words)
    assert run.code == 2 and "--ignore-lines: '(' is not a regular expression" in run.error


def test_explore_ends_with_its_interpreter(tmp_path, no_leftovers):
    """The program kills the process that forks the ranks of all trials."""
    (tmp_path / "kills.py").write_text(
        "import os, signal\n"
        "status = open(f'/proc/{os.getppid()}/status').read()\n"
        "os.kill(int(status.split('PPid:')[1].split()[0]), signal.SIGKILL)\n"
        "import time; time.sleep(60)\n"
    )
    run = explore("--ranks", "2", "--schedules", "3", "--", sys.executable, tmp_path / "kills.py")
    assert run.code == 1
    assert "has ended during a run" in run.error, run.error


def compare(*words):
    return run_words([simranks.sim_run(), "compare", *words])


def test_compare_with_real_gloo():
    run = compare("--ranks", "3", "--tensors", "--", sys.executable, *TRAINING)
    assert run.code == 0, run.error + run.output
    assert run.output.startswith("equal: 3 ranks, ")


def test_compare_names_the_first_difference(tmp_path):
    (tmp_path / "differs.py").write_text(
        "import os, torch\n"
        "from accelerate import Accelerator\n"
        "from accelerate.utils import set_seed\n"
        "accelerator = Accelerator(cpu=True)\n"
        "set_seed(1)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))\n"
        "model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "for step in range(3):\n"
        "    x = torch.randn(2, 4)\n"
        "    is_real = type(torch.distributed.group.WORLD._get_backend(torch.device('cpu'))).__module__.partition('.')[0] != 'simranks'\n"
        "    loss = model(x + (step == 1 and is_real)).sum()\n"
        "    accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()\n"
    )
    run = compare("--ranks", "2", "--tensors", "--", sys.executable, tmp_path / "differs.py")
    assert run.code == 1, run.error
    assert "rank 0, step 1: the input of the model" in run.output, run.output
    run = compare("--ranks", "2", "--", sys.executable, tmp_path / "differs.py")
    assert "rank 0, step 1: the loss is" in run.output, run.output


def test_a_real_backend_by_the_same_command():
    for _ in range(3):  # Gloo aborts now and then at the end of a process
        run = run_words([simranks.sim_run(), "--backend", "gloo", "--ranks", "2", "--", sys.executable, *TRAINING])
        if run.code == 0:
            break
    assert run.code == 0, run.error
    assert results_of(run.output) == results_of(simulate(2, *TRAINING).output)

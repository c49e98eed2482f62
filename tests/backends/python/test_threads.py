"""Ranks of which several threads make collectives, each in a group of its own."""

import json

import pytest
from conftest import PROGRAMS, ROOT, TORCH, launch, results_of, simulate, simulate_text, skip_unless_gloo_is_right

START = """
import threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
other = dist.new_group(backend="gloo")

def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread

def timed(call):
    started = time.monotonic()
    try:
        call()
    finally:
        print("result", rank, time.monotonic() - started)
"""


def every_rank_prints_a_result(folder, ranks, text):
    run = simulate_text(folder, ranks, text)
    assert run.code == 0, run.error
    assert len(results_of(run.output)) == ranks


def test_two_threads_have_the_results_of_real_ranks():
    program = PROGRAMS / "threads.py", 2, 200
    real, simulated = launch(2, *program), simulate(2, *program)
    assert simulated.code == 0, simulated.error
    assert results_of(simulated.output) == results_of(real.output)
    assert len(results_of(real.output)) == 2, real.error


def test_many_threads():
    runs = [simulate(8, PROGRAMS / "threads.py", 3, 60) for _ in range(3)]
    assert [run.code for run in runs] == [0, 0, 0], [run.error for run in runs]
    assert len(results_of(runs[0].output)) == 8
    assert results_of(runs[0].output) == results_of(runs[1].output) == results_of(runs[2].output)


@pytest.mark.parametrize("schedule", ("random", "round-robin"))
def test_threads_in_a_serial_schedule(schedule):
    parallel = simulate(3, PROGRAMS / "threads.py", 2, 20)
    serial = simulate(3, PROGRAMS / "threads.py", 2, 20, options=("--schedule", schedule))
    assert serial.code == 0, serial.error
    assert results_of(serial.output) == results_of(parallel.output)


@pytest.mark.parametrize("kind", ("ddp", "fsdp"))
def test_an_asynchronous_save(tmp_path, kind):
    if TORCH < (2, 8):
        pytest.skip("async_save of torch 2.6 and before writes what the training has changed since, on real ranks too")
    skip_unless_gloo_is_right(kind)
    run = simulate(4, PROGRAMS / "async_save.py", tmp_path / "simulated", kind)
    assert run.code == 0, run.error
    real = launch(4, PROGRAMS / "async_save.py", tmp_path / "real", kind)
    assert results_of(run.output) == results_of(real.output)
    assert len(results_of(run.output)) == 4


def test_a_hang_of_all_threads_names_their_calls(tmp_path):
    """All threads wait in calls, so the hang is found at once."""
    run = simulate_text(
        tmp_path, 2,
        START + "dist.barrier(); dist.barrier(other)\n"
        "if rank == 0:\n"
        "    thread = in_thread(lambda: dist.all_reduce(torch.ones(3), group=other))\n"
        "    timed(lambda: dist.all_reduce(torch.ones(2)))\n",
        "--diagnosis", tmp_path / "diagnosis.json",
    )
    assert run.code == 3, run.error
    assert "hang: every rank is blocked" in run.error
    assert "program.py:21: 1 of 2 ranks arrived (rank 0)" in run.error, run.error
    assert "program.py:22: 1 of 2 ranks arrived (rank 0)" in run.error, run.error
    assert float(results_of(run.output)[0].split()[2]) < 4
    waiting = json.loads((tmp_path / "diagnosis.json").read_text())["waiting"]
    assert sorted(one["where"].rpartition("/")[2] for one in waiting) == ["program.py:21", "program.py:22"]


def test_a_hang_with_a_thread_outside_of_a_call(tmp_path):
    """The main thread joins a thread that waits for a call which its own rank never makes, and a third one is idle."""
    run = simulate_text(
        tmp_path, 2,
        START + "in_thread(threading.Event().wait)\n"
        "if rank == 0:\n"
        "    in_thread(timed, lambda: dist.all_reduce(torch.ones(3), group=other)).join()\n"
        "dist.all_reduce(torch.ones(2))\n",
    )
    assert run.code == 3, run.error
    assert "hang: every rank is blocked" in run.error
    assert "program.py:21" in run.error and "program.py:22" in run.error, run.error
    assert 4 < float(results_of(run.output)[0].split()[2]) < 12


@pytest.mark.parametrize("pause", ("sleep", "compute"))
@pytest.mark.parametrize("calls_before", (True, False))
def test_a_thread_that_computes_is_no_hang(tmp_path, pause, calls_before):
    """All main threads wait for what a thread of rank 0 sends after a pause."""
    every_rank_prints_a_result(
        tmp_path, 3,
        START + "def pause(seconds):\n"
        f"    if {pause == 'sleep'}:\n"
        "        return time.sleep(seconds)\n"
        "    end = time.monotonic() + seconds\n"
        "    while time.monotonic() < end:\n"
        "        torch.ones(100).sum()\n"
        "def send():\n"
        "    for step in range(2):\n"
        f"        if step or {not calls_before}:\n"
        "            pause(3)\n"
        "        dist.broadcast(torch.full((2,), float(step)), 0, group=other)\n"
        "    dist.send(torch.ones(1), 1, group=other)\n"
        "if rank == 0:\n"
        "    in_thread(send)\n"
        "    dist.barrier()\n"
        "else:\n"
        "    received = torch.zeros(2)\n"
        "    for step in range(2):\n"
        "        dist.broadcast(received, 0, group=other)\n"
        "        assert received.tolist() == [step, step]\n"
        "    if rank == 1:\n"
        "        dist.recv(torch.zeros(1), 0, group=other)\n"
        "    dist.barrier()\n"
        "print('result', rank)\n",
    )


def test_a_known_thread_that_sleeps_long_is_no_hang(tmp_path):
    every_rank_prints_a_result(
        tmp_path, 2,
        START + "if rank == 0:\n"
        "    def late():\n"
        "        dist.barrier(other)\n"
        "        time.sleep(12)\n"
        "        dist.barrier(other)\n"
        "    in_thread(late)\n"
        "else:\n"
        "    dist.barrier(other)\n"
        "    dist.barrier(other)\n"
        "dist.barrier()\n"
        "print('result', rank)\n",
    )


def test_a_program_that_ends_while_a_thread_waits(tmp_path):
    """As a process does: a daemon thread ends with it."""
    every_rank_prints_a_result(
        tmp_path, 2,
        START + "if rank == 0:\n"
        "    threading.Thread(target=dist.barrier, args=(other,), daemon=True).start()\n"
        "    time.sleep(0.5)\n"
        "dist.all_reduce(torch.ones(2))\n"
        "print('result', rank)\n",
    )


def test_a_rank_that_fails_while_its_thread_waits(tmp_path):
    run = simulate_text(
        tmp_path, 2,
        START + "if rank == 0:\n"
        "    in_thread(dist.barrier, other)\n"
        "    time.sleep(0.5)\n"
        "    raise ValueError('no more data')\n"
        "dist.all_reduce(torch.ones(2))\n",
    )
    assert run.code == 1, run.error
    assert "ValueError: no more data" in run.error


def test_tensors_of_another_thread(tmp_path):
    """What one thread has passed to a call, another must not change before the wait."""
    run = simulate_text(
        tmp_path, 2,
        START + "tensor = torch.ones(4)\n"
        "def start():\n"
        "    global work\n"
        "    work = dist.all_reduce(tensor, group=other, async_op=True)\n"
        "in_thread(start).join()\n"
        "mine = dist.all_reduce(torch.ones(2), async_op=True)\n"
        "tensor.add_(1)\n"
        "work.wait(); mine.wait()\n",
    )
    assert run.code == 3, run.error
    assert "its tensor is changed by" in run.error, run.error


def test_virtual_time_of_two_threads():
    network = ROOT / "configs/sim/networks/laptop.yaml"
    timed = simulate(3, PROGRAMS / "threads.py", 2, 40, options=("--network", network))
    assert timed.code == 0, timed.error
    assert results_of(timed.output) == results_of(simulate(3, PROGRAMS / "threads.py", 2, 40).output)

"""Bad input, and deaths at any time."""

import os
import random
import signal
import subprocess
import sys
import time

import simranks
import pytest
import torch
from conftest import PROGRAMS, run, simulate

KILLS = int(os.environ.get("ACCEL_KILLS", "12"))  # 200 in a long run


def test_random_kills_leave_nothing(no_leftovers):
    """One rank, the process that forks the ranks, or sim-run itself dies at a random moment."""
    draw = random.Random(5)
    for number in range(KILLS):
        victim, seconds = draw.choice(("rank", "rank", "rank", "launcher", "sim-run")), draw.uniform(0, 0.3)
        rank = draw.randrange(3) if victim == "rank" else 99
        words = [simranks.sim_run(), "--ranks", "3", "--", sys.executable, PROGRAMS / "killed.py", str(rank), str(seconds)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if victim != "rank":
            time.sleep(2 + 8 * seconds)
            of_launcher = f"/proc/{process.pid}/task/{process.pid}/children"
            pids = [process.pid]
            if victim == "launcher":
                pids = [int(pid) for task in os.listdir(f"/proc/{process.pid}/task")
                        for pid in open(f"/proc/{process.pid}/task/{task}/children").read().split()]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        _, error = process.communicate(timeout=60)
        assert process.returncode != 0, f"kill {number} of {victim}"
        if victim == "rank":
            assert f"rank {rank}: the process was killed by signal 9 (Killed)" in error, error


def test_missing_script():
    done = simulate(2, "no_such_script.py")
    assert done.code == 2
    assert done.error.strip() == "sim-run: no_such_script.py: no such file"


def test_missing_module():
    done = simulate(2, "-m", "no_such_module")
    assert done.code == 2
    assert done.error.strip() == "sim-run: -m no_such_module: no such module"


def test_no_program():
    done = simulate(2)
    assert done.code == 2
    assert "no program follows" in done.error


@pytest.mark.parametrize("ranks", (-1, 5000))
def test_number_of_ranks(ranks):
    done = simulate(ranks, PROGRAMS / "trainings.py", "accelerate")
    assert done.code == 2
    assert len(done.error.strip().splitlines()) == 1
    assert str(ranks) in done.error


def test_another_torch(tmp_path):
    folder = os.path.dirname(simranks.__file__)
    (tmp_path / "simranks").mkdir()
    for name in os.listdir(folder):
        (tmp_path / "simranks" / name).symlink_to(os.path.join(folder, name))
    (tmp_path / "simranks" / "_build.py").unlink()
    (tmp_path / "simranks" / "_build.py").write_text('VERSION = "1.0"\nTORCH_MIN, TORCH_MAX = (2, 98), (2, 99)\n')
    done = simulate(2, PROGRAMS / "trainings.py", "accelerate", PYTHONPATH=str(tmp_path))
    assert done.code == 2
    assert f"simranks 1.0 supports torch 2.98 to 2.99, but torch {torch.__version__} is installed" in done.error
    assert len(done.error.strip().splitlines()) == 1


def test_threads_before_the_fork(tmp_path):
    (tmp_path / "starts_threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='poller', daemon=True).start()\n"
    )
    done = simulate(2, "-c", "pass", options=["--preload", "starts_threads"], PYTHONPATH=str(tmp_path))
    assert done.code == 2
    assert "1 thread(s) run before the ranks are forked (poller)" in done.error


def test_a_library_that_starts_threads(tmp_path):
    """Its module is one of those that the ranks share if the script imports them."""
    (tmp_path / "datasets.py").write_text(
        "import ctypes, threading, time\n"
        "def work():\n"
        "    ctypes.CDLL(None).prctl(15, NAME)  # PR_SET_NAME\n"
        "    is_named.set()\n"
        "    time.sleep(60)\n"
        "NAME, is_named = open(__file__ + '.name', 'rb').read(), threading.Event()\n"
        "threading.Thread(target=work, name='worker', daemon=True).start()\n"
        "is_named.wait()\n"
    )
    (tmp_path / "program.py").write_text("import os, datasets\nprint('result', os.environ['RANK'])\nos._exit(0)\n")
    name = tmp_path / "datasets.py.name"

    def start(*options):
        return simulate(2, tmp_path / "program.py", options=options, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    name.write_text("other")
    done = start()
    assert done.code == 2
    assert "1 thread(s) run before the ranks are forked (worker)" in done.error and "use `--preload none`" in done.error
    done = start("--preload", "none")
    assert done.code == 0 and "result 1" in done.output, done.error
    name.write_text("jemalloc_bg_thd")  # it prepares itself for a fork
    done = start()
    assert done.code == 0 and "result 1" in done.output, done.error


def test_too_little_memory(tmp_path):
    """The launcher reads what is available from the kernel; 1,024 ranks do not fit into the little that this one says."""
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, io\n"
        "real = builtins.open\n"
        "def fake(file, *args, **kwargs):\n"
        "    if file == '/proc/meminfo': return io.StringIO('MemAvailable: 1048576 kB\\n')\n"
        "    return real(file, *args, **kwargs)\n"
        "builtins.open = fake\n"
    )
    done = simulate(256, "-c", "pass", PYTHONPATH=str(tmp_path))
    assert done.code == 2
    assert "256 ranks need about 8192 MiB before their models, and 1024 MiB are available; use at most 32" in done.error


def test_engine_only_by_sim_run():
    done = run([sys.executable, "-m", "simranks", "--", "train.py"])
    assert done.code == 2
    assert "use `sim-run --ranks N -- python SCRIPT`" in done.error


@pytest.mark.parametrize("words", (["plan"], ["train.yaml"]))
def test_what_needs_the_sim_run_of_a_build(words):
    done = run([simranks.sim_run(), *words])
    assert done.code == 2
    assert "needs the sim-run that `./dev build` makes in accel's source tree" in done.error


@pytest.mark.parametrize("words", (["./missing"], ["--processes", "--", "./missing"]))
def test_a_program_that_cannot_be_started(words):
    words = words if "--" in words else ["--", *words]
    done = run([simranks.sim_run(), "--ranks", "2", *words], seconds=20)
    assert done.code == 2
    assert "./missing" in done.error


def test_a_script_that_explore_cannot_start():
    done = run([simranks.sim_run(), "explore", "--ranks", "2", "--", sys.executable, "no_such_script.py"])
    assert done.code == 2
    assert "sim-run: no_such_script.py: no such file" in done.error

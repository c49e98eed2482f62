"""Python programs on simulated ranks, and on real ones over Gloo. Run by `./dev test --python`."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import simranks
import pytest
from simranks.tensors import TORCH_VERSION as TORCH

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[3]
MARK = f"ACCEL_TESTS_OF={os.getpid()}"  # in the environment of every process that these tests start
os.environ.update([MARK.split("=")])


@dataclass
class Run:
    code: int
    output: str
    error: str
    seconds: float


def processes_of_tests():
    """Those that these tests have started, whoever their parent is."""
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            is_ours = MARK.encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if is_ours:
            found.add(int(folder.name))
    return found


def run(words, seconds=120, **environment):
    """Runs a command as a user does. The processes of one that takes longer are killed."""
    started, before = time.monotonic(), processes_of_tests()
    words, variables = [str(word) for word in words], {**os.environ, **environment}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            output, error = process.communicate(timeout=seconds)
        except BaseException:
            process.kill()
            for late in processes_of_tests() - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(late, signal.SIGKILL)
            raise
    return Run(process.returncode, output, error, time.monotonic() - started)


def run_real(words, seconds=120, **environment):
    """Real ranks over Gloo. Gloo aborts now and then when ranks end at different times, so that a second and a third try
    are fair. Up to torch 2.6 the end of a group (~ProcessGroupGloo) often waits for ever: twice in three runs of two
    worlds on a busy machine."""
    real = None
    tries, limit = (10, min(seconds, 60)) if TORCH <= (2, 6) else (3, seconds)
    for _ in range(tries):
        try:
            real = run(words, limit, ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1", **environment)
        except subprocess.TimeoutExpired:
            if TORCH > (2, 6):
                raise
            continue
        if real.code == 0:
            break
    assert real is not None, f"{words} did not end in {tries} tries"
    return real


def simulate(ranks, *program, options=(), **more):
    return run([simranks.sim_run(), "--ranks", ranks, *options, "--", sys.executable, *program], **more)


def launch(ranks, *program):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", ranks, *program]
    return run_real(words, seconds=200, PYTHONUNBUFFERED="1")


HAS_RACE = (2, 8) < TORCH < (2, 13)  # of torch itself, in the set-up of pipelines: 2.11 has it, 2.8 and 2.13 do not


def skip_unless_torch_can(name):
    """A test of a program that this version of torch, or of the installed packages, cannot run on real ranks either."""
    if name in ("fsdp2", "fsdp", "hybrid", "draws_another_model", "loads_one_model") and TORCH < (2, 8):
        pytest.skip("torch 2.6 and before cannot run FSDP2 on CPUs")
    if name == "pipeline" and TORCH < (2, 8):
        pytest.skip("the pipelines of torch 2.6 and before drop messages before Gloo sends them, and hang")
    if name == "trainer":
        pytest.importorskip("transformers")


def skip_unless_gloo_is_right(name):
    """A test that compares the bits of a program with real ranks, whose Gloo must not have a known fault."""
    skip_unless_torch_can(name)
    if name in ("fsdp2", "fsdp", "hybrid") and TORCH <= (2, 8):
        pytest.skip("Gloo of torch 2.8 adds FSDP2's gradients; see test_gradients_of_fsdp2_are_averages")


def warnings_of(run):
    """Of the program: without the known fault of this version's Gloo."""
    expected = "[backend_faults]" if TORCH <= (2, 8) else None
    return [line for line in run.error.splitlines() if "warning" in line and not (expected and expected in line)]


def simulate_text(folder, ranks, text, *options):
    """Runs this text as a script of its own."""
    (folder / "program.py").write_text(text)
    return simulate(ranks, folder / "program.py", options=options)


def results_of(text):
    """What the programs here print: lines `result RANK ...`, in the order of ranks."""
    lines = [line[line.index("result ") :] for line in text.splitlines() if "result " in line]
    return sorted(lines, key=lambda line: int(line.split()[1]))


@pytest.fixture
def no_leftovers():
    """Whatever a run does, it leaves no process and no file in memory."""
    before = processes_of_tests(), set(os.listdir("/dev/shm"))
    yield
    limit = time.monotonic() + 5
    while processes_of_tests() - before[0] and time.monotonic() < limit:
        time.sleep(0.05)
    assert processes_of_tests() - before[0] == set()
    assert set(os.listdir("/dev/shm")) - before[1] == set()

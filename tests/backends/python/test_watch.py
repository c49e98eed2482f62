"""`simranks.watch()` on real ranks over Gloo: what the simulator says of a mistake, and nothing of a right program."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import PROGRAMS, TORCH, launch, results_of, run, simulate, skip_unless_torch_can
from simranks.ranks import free_port

PROGRAM = PROGRAMS / "watched.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

DIFFERENT_CALLS = """dtype reduction shape strides operation root gathered_shape gathered_into_tensor scattered asynchronous
objects extra_barrier splits widths sent_dtype sent_size""".split()
HANGS = "groups_in_another_order loop_lengths barrier_on_main receives_from_nobody messages_in_a_circle".split()
DIAGNOSIS = "expected one call, equal on every rank$|none can continue$|expected equal splits on both sides:$|equal sizes and dtypes$"


def watch(name, **environment):
    """Gloo aborts now and then when ranks end at different times, as in conftest.launch."""
    for _ in range(3):
        real = run([*TORCHRUN, "--standalone", "--nproc_per_node", 4, PROGRAM, name], **VARIABLES, **environment)
        if "terminate called" not in real.error:
            break
    return real


def exit_codes(real):
    """Of the ranks that torchrun names, the first that has failed last."""
    return re.findall(r"exitcode *: (-?\d+)", real.error)


def says_nothing(real):
    return not re.search("^error: |^accel: |^hang|Traceback", real.error, re.MULTILINE)


def diagnosis_of(text):
    """Its lines, of which the first is known by its end."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if re.search(DIAGNOSIS, line))
    found = [lines[begin].split(": ", 1)[1]]
    for line in lines[begin + 1 :]:
        if not line.startswith("  "):
            break
        found.append(line)
    return found


@pytest.mark.parametrize("name", [*DIFFERENT_CALLS, *HANGS])
def test_the_diagnosis_is_the_simulators(name, no_leftovers):
    real = watch(name)
    assert diagnosis_of(real.error) == diagnosis_of(simulate(4, PROGRAM, name).error)
    assert exit_codes(real)[-1] == "3"
    assert real.error.count(diagnosis_of(real.error)[0]) == 1, "several ranks print it"


@pytest.mark.parametrize("name, text, code", [
    ("raises", "ValueError: bad sample 17", "1"), ("exits_at_once", "", "4"), ("is_killed", "", "-9"),
])
def test_a_rank_that_ends_ends_the_job(name, text, code, no_leftovers):
    real = watch(name)
    assert text in real.error and exit_codes(real)[-1] == code, real.error
    assert "Connection closed" not in real.error


@pytest.mark.parametrize("name", ["stops", "loops"])
def test_a_rank_that_does_not_come_is_suspected(name, no_leftovers):
    real = watch(name, ACCEL_HANG_SECONDS="2", ACCEL_ON_HANG="stop")
    assert "error: ranks 0, 2-3 have waited for 2 s" in real.error, real.error
    assert "missing: rank 1" in real.error and exit_codes(real)[-1] == "3"


def test_a_slow_rank_lives(no_leftovers):
    real = watch("sleeps", ACCEL_HANG_SECONDS="1")
    assert real.code == 0 and len(results_of(real.output)) == 4, real.error
    assert "warning: ranks 0, 2-3 have waited for 1 s" in real.error and "missing: rank 1" in real.error


@pytest.mark.parametrize("name", ["trains", "all_collectives", "fsdp2"])
def test_a_right_program_computes_the_same(name, no_leftovers):
    skip_unless_torch_can(name)
    real = watch(name)
    assert real.code == 0 and says_nothing(real), real.error
    assert results_of(real.output) == results_of(launch(4, PROGRAM, name, "unwatched").output)
    if name == "fsdp2" and TORCH < (2, 9):
        return  # its Gloo does not divide averages; the simulator does
    assert results_of(real.output) == results_of(simulate(4, PROGRAM, name).output)


@pytest.mark.parametrize("name", ["makes_its_groups_again", "waits_again", "exchanges_other_shapes"])
def test_a_right_program_is_not_accused(name, no_leftovers):
    real = watch(name)
    assert real.code == 0 and says_nothing(real), real.error
    assert results_of(real.output) == results_of(launch(4, PROGRAM, name, "unwatched").output)


@pytest.mark.parametrize("program", [
    "trainings.py accelerate", "trainings.py unused", "trainings.py hybrid", "trainings.py tensor_parallel", "trainings.py pipeline",
    "trainings.py operations", "dtypes.py", "threads.py 2 40",
])
def test_programs_that_know_nothing_of_it(program, no_leftovers):
    name, *arguments = program.split()
    for argument in arguments[:1]:
        skip_unless_torch_can(argument)
    real, watched = launch(4, PROGRAMS / name, *arguments), launch(4, PROGRAMS / "watch.py", PROGRAMS / name, *arguments)
    assert watched.code == 0 and says_nothing(watched), watched.error
    assert results_of(watched.output) == results_of(real.output)


SPAWNS = """
import sys
import torch
import simranks

def main(rank, port):
    simranks.watch()
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
    try:
        torch.distributed.all_reduce(torch.ones(4 if rank < 2 else 5))
    except simranks.Diagnosed as error:
        print(error, flush=True)

if __name__ == "__main__":
    torch.multiprocessing.spawn(main, args=(int(sys.argv[1]),), nprocs=3)
"""


def test_ranks_without_a_launcher(tmp_path, no_leftovers):
    """Nor is there a variable that says which ranks share a host."""
    (tmp_path / "spawns.py").write_text(SPAWNS)
    real = run([sys.executable, tmp_path / "spawns.py", free_port()])
    assert real.code == 0 and real.output.count("rank 2: all_reduce(sum, float32 [5])") == 3, real.error


# --- several hosts: network namespaces --------------------------------------------------------------------------------


@pytest.fixture
def hosts():
    """The names of two hosts with a cable between them."""
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    names = [f"watch{os.getpid()}{side}" for side in "ab"]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add cable netns {names[0]} type veth peer name cable netns {names[1]}")
    for number, name in enumerate(names, 1):
        commands += [f"-n {name} addr add 10.99.0.{number}/24 dev cable", f"-n {name} link set cable up", f"-n {name} link set lo up"]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
    yield names
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=True)


def watch_on(hosts, name):
    """Two ranks on each host. Returns their runs."""
    job = [*TORCHRUN, "--nnodes", "2", "--nproc_per_node", "2", "--master_addr", "10.99.0.1", "--master_port", "29511"]
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(run, ["ip", "netns", "exec", host, *job, "--node_rank", number, PROGRAM, name],
                            GLOO_SOCKET_IFNAME="cable", **VARIABLES) for number, host in enumerate(hosts)]
        return [done.result() for done in runs]


@pytest.mark.parametrize("name", ["dtype", "reduction", "operation", "groups_in_another_order", "loop_lengths", "messages_in_a_circle"])
def test_hosts_see_each_other(name, hosts, no_leftovers):
    expected = diagnosis_of(simulate(4, PROGRAM, name).error)
    for real in watch_on(hosts, name):
        assert diagnosis_of(real.error) == expected
        assert real.code != 0 and set(exit_codes(real)) <= {"3", "-15"}, real.error


def test_a_right_program_on_two_hosts(hosts, no_leftovers):
    output = ""
    for real in watch_on(hosts, "all_collectives"):
        assert real.code == 0 and says_nothing(real), real.error
        output += real.output
    assert results_of(output) == results_of(simulate(4, PROGRAM, "all_collectives").output)

"""A group of Python processes, one per rank, that answers item after item under real Accelerate.

Importing torch takes seconds, so one group answers all items of a list, and its ranks are forks of one process that has
imported it. A script of this folder plays both parts: run as a rank, it calls `serve(answer)`; `walk(script, ranks, items)`
starts that many ranks of it and yields one answer per item. An item that hangs or kills its group costs `timeout` seconds; the
next item goes to a new group.
"""
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

START_SECONDS = 180  # importing torch on a busy machine
ITEM_SECONDS = 180  # likewise


# --- a rank ----------------------------------------------------------------------------------------------------------


def on_cpu():
    return os.environ.get("ACCEL_ORACLE_DEVICE", "cpu") == "cpu"


def serve(answer):
    """Answers the items of the file argv[1] from number argv[2] on. Rank 0 prints one JSON line per item: the list of
    all ranks' answers; an exception is an answer too."""
    import torch
    from accelerate import PartialState
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import gather_object

    torch.set_num_threads(1)
    state = PartialState(cpu=on_cpu())
    with open(sys.argv[1]) as file:
        items = [json.loads(line) for line in file]
    if state.is_main_process:
        print("ready", flush=True)
    for item in items[int(sys.argv[2]):]:
        AcceleratorState._reset_state(False)
        GradientState._reset_state()
        try:
            mine = answer(item)
        except Exception as error:
            mine = {"error": type(error).__name__, "message": str(error)}
        everyone = gather_object([mine])
        if state.is_main_process:
            print(json.dumps(everyone, separators=(",", ":")), flush=True)
    os._exit(0)  # the destructor of a process group may wait for peers that have already ended


# --- the group -------------------------------------------------------------------------------------------------------


def walk(script, ranks, items, timeout=ITEM_SECONDS, is_launched=False):
    """Yields one answer per item: the list of what the ranks answered, or {"failure": why} for an item that hung or that
    the group did not survive. One rank alone is a plain process, unless it is launched as a group of one."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "items.jsonl")
        with open(path, "w") as file:
            file.writelines(json.dumps(item) + "\n" for item in items)
        done = 0
        while done < len(items):
            group = _Group([script, path, str(done)], ranks, os.path.join(folder, "errors.txt"), is_launched)
            has_started = False
            try:
                group.line(START_SECONDS)
                has_started = True
                while done < len(items):
                    line = group.line(timeout)
                    done += 1
                    yield json.loads(line)
            except _Lost as lost:
                lost_items = 1 if has_started else len(items) - done  # a group that does not start now will not start later
                for _ in range(lost_items):
                    done += 1
                    yield {"failure": f"{lost}; standard error ends: {group.last_error()}"}
            finally:
                group.end()


class _Lost(Exception):
    pass


class _Group:
    def __init__(self, command, ranks, errors, is_launched):
        launched = {"ORACLE_IS_LAUNCHED": "1"} if is_launched else {}
        self._errors = errors
        with open(errors, "wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(ranks), *command],
                env=dict(os.environ, OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", **launched),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self._output = self._process.stdout
        self._text = b""

    def line(self, timeout):
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._text:
                if not selector.select(max(0, deadline - time.monotonic())):
                    raise _Lost(f"no answer within {timeout} s")
                some = os.read(self._output.fileno(), 1 << 16)
                if not some:
                    raise _Lost("the group ended without an answer")
                self._text += some
        line, self._text = self._text.split(b"\n", 1)
        return line

    def last_error(self):
        with open(self._errors, errors="replace") as file:
            return " | ".join(line.strip() for line in file.read().strip().splitlines()[-3:])

    def end(self):
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._output.close()


# --- the process that ranks are forked of ----------------------------------------------------------------------------


def fork_ranks(ranks, command):
    """Runs a script as that many ranks; only rank 0 writes to the standard output."""
    import accelerate  # noqa: F401: once for all of them

    sys.argv = command
    port = free_port()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for rank in range(ranks):
        if os.fork() == 0:
            if rank > 0:
                os.dup2(nowhere, sys.stdout.fileno())
            os.environ.update(variables_of(rank, ranks, port))
            return runpy.run_path(command[0], run_name="__main__")
    os.dup2(nowhere, sys.stdout.fileno())
    for _ in range(ranks):
        os.wait()


def variables_of(rank, ranks, port):
    """The variables that a launcher would set."""
    if ranks == 1 and "ORACLE_IS_LAUNCHED" not in os.environ:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    fork_ranks(int(sys.argv[1]), sys.argv[2:])

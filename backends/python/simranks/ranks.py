"""The processes of the ranks: what they share, how each begins and ends. Nothing heavy may be imported before the
number of threads is set, see simranks.launch."""

import atexit
import ctypes
import functools
import gc
import logging
import multiprocessing.process
import multiprocessing.util
import os
import random
import runpy
import select
import signal
import site
import sys
import sysconfig
import threading
import traceback
import weakref

from simranks import map_devices

# A rank's own memory until its first step, measured with a small model: 22 MiB, and the proxy's stack and channel.
RANK_BYTES = 32 << 20

PR_SET_PDEATHSIG = 1


class Problem(Exception):
    """Ends the launch with one line."""


@functools.cache
def warm_up():
    """One small optimizer step, so that what LibTorch creates at first use is shared. The random streams stay as they
    are in a fresh process."""
    import torch

    state = torch.get_rng_state()
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    torch.set_rng_state(state)


# Threads that prepare themselves for a fork, by the name that the kernel shows: memory that jemalloc (of pyarrow) frees in
# the background is freed by the threads that use it in a forked process.
_FORK_SAFE_THREADS = {"jemalloc_bg_thd"}


def _names_of_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
                names.append(file.read().strip())
    return [name for name in names if name not in _FORK_SAFE_THREADS]


def _end_threads_that_expect_a_fork():
    """Those of numpy's OpenBLAS end before any fork, and start again at the next multiplication."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def check_threads():
    if _names_of_threads():
        _end_threads_that_expect_a_fork()
    names = _names_of_threads()
    if not names:
        return
    python = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    raise Problem(
        f"{len(names)} thread(s) run before the ranks are forked ({', '.join(python or names)}), and would be missing in "
        f"them; import the module that starts them in a function of the program, or use `--preload none`, with which each "
        f"rank imports its modules itself"
    )


def check_memory(num_ranks):
    with open("/proc/meminfo", encoding="utf-8") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    needed = num_ranks * RANK_BYTES
    if needed > available:
        raise Problem(
            f"{num_ranks} ranks need about {needed >> 20} MiB before their models, and {available >> 20} MiB are "
            f"available; use at most {available // RANK_BYTES} ranks"
        )


@functools.cache
def report_not_observed(parts):
    """Once per process."""
    import torch

    if parts:
        print(f"sim-run: not observed with torch {torch.__version__}: {'; '.join(parts)}", file=sys.stderr, flush=True)


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def owners_of(program):
    """Whose code is whose: see channel.line."""
    import torch

    from simranks import channel

    paths = sysconfig.get_paths()
    libraries = {paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()}
    machineries = [paths["stdlib"]] + [os.path.dirname(file) + os.sep for file in (__file__, torch.__file__)]
    return channel.Owners(program.source() or "", sorted(libraries), machineries)


def forget_parent():
    """What the parent registered for its end is not the rank's: it would delete the parent's temporary folders and end
    its processes."""
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    multiprocessing.util._finalizer_registry.clear()
    multiprocessing.process._children.clear()
    atexit.register(multiprocessing.util._exit_function)
    atexit.register(logging.shutdown)


def seed_generators(rank, seed=0):
    """In fresh processes they begin with different seeds, and in forked ones they would be equal: a program that forgets
    to seed them must not look right. Yet the same in every run, which can be replayed."""
    import numpy
    import torch

    random.seed(f"rank {rank}" + (f", seed {seed}" if seed else ""))
    numpy.random.seed(rank + 1 + seed)
    torch.default_generator.manual_seed(rank + 1 + seed)


def end_process(code):
    """Ends the program as the interpreter does, but without destroying its objects."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 255)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def program_frames(error):
    """The traceback without the frames of this package and of runpy."""
    frames = traceback.extract_tb(error.__traceback__)
    own = (os.path.dirname(__file__), runpy.__file__)
    return [frame for frame in frames if not frame.filename.startswith(own) and not frame.filename.startswith("<frozen")]


def at(error):
    frames = program_frames(error)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def describe(error):
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = program_frames(error)
    return text if not frames else text + "\n" + "".join(traceback.format_list(frames)).rstrip()


class Ranks:
    """The ranks of a program, forked from this process while it has one thread.

    with Ranks(program, area, outputs) as ranks:
        ranks.supervise()
    """

    def __init__(self, program, area, outputs=None, request=None):
        """Raises Problem if the ranks cannot be forked. `program` has `run()` and `source()`; `outputs`: two descriptors
        per rank; None: those of this process. `request`: what to record."""
        from simranks import backend, observation, recording  # imported here, installed in the ranks

        check_memory(area.num_ranks)
        warm_up()
        check_threads()
        report_not_observed(tuple(observation.not_observed()))
        self._program, self._area, self._outputs = program, area, outputs
        self._modules, self._request = (backend, observation, recording), request or {}
        self._owners, self._port = owners_of(program), free_port()
        self._store = os.memfd_create("accel-store", 0)
        self._running = {}  # ranks by process number

    def __enter__(self):
        parent = os.getpid()
        gc.collect()
        gc.freeze()
        try:
            for rank in range(self._area.num_ranks):
                sys.stdout.flush()
                sys.stderr.flush()
                pid = os.fork()
                if pid == 0:
                    self._run(rank, parent)
                self._running[pid] = rank
                self._area.set_pid(rank, pid)
        except BaseException:
            self._end()
            raise
        finally:
            gc.unfreeze()
        return self

    def __exit__(self, *_):
        self._end()

    def _end(self):
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        for pid, rank in self._running.items():
            self._area.record_end(rank, os.waitpid(pid, 0)[1])
        self._running.clear()
        os.close(self._store)

    def supervise(self, engine=None):
        """Records how each rank ends. `engine` is the simulator if this process has started it: without it they cannot
        go on."""
        poll = select.poll()
        pids = {os.pidfd_open(pid): pid for pid in [*self._running, *([engine.pid] if engine else [])]}
        for descriptor in pids:
            poll.register(descriptor, select.POLLIN)
        try:
            while self._running:
                for descriptor, _ in poll.poll():
                    pid = pids[descriptor]
                    poll.unregister(descriptor)
                    if pid in self._running:
                        self._area.record_end(self._running.pop(pid), os.waitpid(pid, 0)[1])
                    else:
                        return
        finally:
            for descriptor in pids:
                os.close(descriptor)

    def _run(self, rank, parent):
        """The life of a rank, in its process. Does not return, not even by an exception."""
        try:
            die_with_parent()
            if os.getppid() == parent:  # else it died before
                self._begin(rank)
                end_process(self._run_program())  # the frames and globals of the parent are not ours
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _begin(self, rank):
        from simranks import channel

        if self._outputs:
            os.dup2(self._outputs[2 * rank], 1)
            os.dup2(self._outputs[2 * rank + 1], 2)
            for descriptor in set(self._outputs):
                os.close(descriptor)
        forget_parent()
        channel.become(self._area, rank, self._owners)
        backend, observation, recording = self._modules
        map_devices(self._request)
        backend.install(f"/proc/self/fd/{self._store}")
        observation.install()
        recording.install(self._request, rank)
        seed_generators(rank, self._request.get("record_seed", 0))
        size = str(self._area.num_ranks)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0",
            GROUP_WORLD_SIZE="1", ROLE_RANK=str(rank), ROLE_WORLD_SIZE=size, MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self._port), TORCHELASTIC_RESTART_COUNT=os.environ.pop("ACCEL_RESTART_COUNT", "0"),
        )
        if not self._request.get("map_cuda"):
            os.environ["ACCELERATE_USE_CPU"] = "true"

    def _run_program(self):
        """Returns the exit code."""
        from simranks import channel

        try:
            try:
                self._program.run()
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise
            self._modules[1].finish_update()
        except SystemExit as end:
            if channel.is_rank():
                channel.fail(f"the program called sys.exit({end.code!r}){at(end)}; expected code 0")
            return end.code if isinstance(end.code, int) else 1
        except BaseException as error:  # KeyboardInterrupt too: it ends the rank
            if channel.is_rank():
                channel.fail(describe(error))
            else:  # a process that the rank has forked
                traceback.print_exc()
            return 1
        return 0

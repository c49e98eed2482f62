"""Ranks that a program starts itself: torch.multiprocessing.spawn, torchrun, MultiProcessTestCase, debug_launcher. Each of
their process groups is a world, a run of the simulator of its own.

Every Python process below sim-run is prepared by site/sitecustomize.py. If such a process, which is no rank yet, makes its
default group with the backend gloo, the rendezvous and the store are those of the program. Through the store rank 0
publishes the memory of the simulator that it has started, and the process becomes a rank until it destroys the group or
ends. The simulator watches the processes, see sim/programs/processes/process_run.cpp.

Imports nothing heavy: torch.distributed is still being imported when `serve` is called.
"""

import functools
import json
import os
import subprocess

_FILES = ("event_log", "diagnosis", "timeline", "report")  # of a request: written once per world
_INTERNAL = ("ACCEL_SIM", "ACCEL_STARTER", "ACCEL_WORLDS", "ACCEL_WORLD_REQUEST")

_is_joined = False  # this process, or the one that has forked it, to a world


def can_join():
    """Whether this process may start a world, or join one."""
    return "ACCEL_WORLDS" in os.environ


def map_devices():
    """Called when this process has imported torch."""
    import simranks

    simranks.map_devices(json.loads(os.environ["ACCEL_WORLD_REQUEST"]))


def serve(c10d):
    """Prepares the module torch.distributed.distributed_c10d. The rest is imported with the first process group."""
    init = c10d.init_process_group

    @functools.wraps(init)
    def init_process_group(backend=None, *args, **kwargs):
        from simranks import backend as backends, observation

        if not backends.is_installed():
            backends.install()
            observation.install()
        return init(backends.rehearsed(backend), *args, **backends.without_gpus(kwargs))

    c10d.init_process_group = init_process_group


def join(store, rank, size, timeout):
    """Makes this process a rank of a world, when all ranks have joined. Raises RuntimeError, or the store's error if some do
    not join in time."""
    global _is_joined
    import torch.distributed as dist

    from simranks import channel
    from simranks.ranks import owners_of

    store = dist.PrefixStore("simranks", store)
    # One store may serve several groups, one after the other.
    store = dist.PrefixStore(str(store.add(str(rank), 1)), store)
    if rank == 0:
        area = _publish(store, size)
    else:
        _wait(store, ["area"], timeout)
        answer = json.loads(store.get("area"))
        if "problem" in answer:
            raise RuntimeError(answer["problem"])
        area = channel.SharedArea.attach(os.open(answer["area"], os.O_RDWR))
        area.set_pid(rank, os.getpid())
    channel.become(area, rank, owners_of(Main))
    _is_joined = True
    try:
        store.set(f"joined{rank}", b"1")
        _wait(store, [f"joined{other}" for other in range(size)], timeout)
    except BaseException:
        leave()
        raise


def _wait(store, keys, timeout):
    store.wait(keys, timeout) if timeout is not None else store.wait(keys)


def leave():
    """The process is no rank any more, if it has joined a world."""
    global _is_joined
    from simranks import channel

    if _is_joined and channel.is_rank():
        channel.leave()
    _is_joined = False


class Main:
    """What simranks.ranks asks of a program."""

    @staticmethod
    def source():
        import __main__

        return getattr(__main__, "__file__", None)


def _publish(store, size):
    try:
        area = _start_simulator(size)
    except (OSError, RuntimeError) as error:
        store.set("area", json.dumps({"problem": str(error)}))
        raise
    # The other ranks open the file while this one waits for them.
    store.set("area", json.dumps({"area": f"/proc/{os.getpid()}/fd/{area.descriptor}"}))
    return area


def _start_simulator(size):
    """Returns the memory of a simulator that watches this process, which is rank 0."""
    import simranks
    from simranks import channel

    simranks.check_torch()
    area = channel.SharedArea.create(size)
    area.set_pid(0, os.getpid())
    request = _of_world({**json.loads(os.environ["ACCEL_WORLD_REQUEST"]), "ranks": size}, _count())
    environment = {name: value for name, value in os.environ.items() if name not in _INTERNAL}
    environment["ACCEL_SIM"] = json.dumps(request)
    words = [simranks.sim_run(), "attach", str(area.descriptor)]
    start = {"pass_fds": [area.descriptor], "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": environment}
    code = subprocess.run(words, check=False, **start).returncode
    if code != 0:
        raise RuntimeError(f"the simulator of {size} ranks did not start: sim-run ended with code {code}; see its message")
    return area


def _count():
    """Counts a world, and returns its number, from 1."""
    try:
        file = os.open(os.environ["ACCEL_WORLDS"], os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        raise RuntimeError("the sim-run that this program was started by has ended") from error
    try:
        os.write(file, b"w")
        return os.lseek(file, 0, os.SEEK_CUR)
    finally:
        os.close(file)


def _of_world(request, number):
    """The first world writes the files that the user has named, and the others write theirs beside."""
    request.pop("acknowledge", None)
    for key in _FILES:
        if number > 1 and key in request:
            stem, suffix = os.path.splitext(request[key])
            request[key] = f"{stem}-{number}{suffix}"
    return request

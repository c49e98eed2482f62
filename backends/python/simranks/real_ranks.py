"""Real ranks that are watched: what `simranks.watch()` installs under torchrun, mpirun or srun.

Every group of the backend Gloo is a WatchedGroup, which records a rank's calls in memory that the ranks of a host share,
compares them before bytes move, and has real Gloo perform them. A thread of the library finds ranks that wait for ever. See
watch_library.hpp.
"""

import atexit
import collections
import datetime
import functools
import os
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from simranks import channel, collectives, recorder, worlds
from simranks.gloo_group import GlooGroup, install_kernels
from simranks.ranks import owners_of
from simranks.recorder import Diagnosed
from simranks.tensors import describe
from simranks.work import Work, is_asked_by_reducer

_LOOK = datetime.timedelta(milliseconds=100)  # how often a rank that waits looks whether the job has to end
_SHORTEST = datetime.timedelta(milliseconds=1)
_EXIT_CODE = 3  # of a rank that has been diagnosed: kExitCodeOfDiagnosis
_CPU = torch.device("cpu")


class _Call(threading.local):
    real = None  # the call of real Gloo that the method of this thread stands for


_call = _Call()


class WatchedWork(Work):
    """Waits for a work of real Gloo, and marks the rank as waiting meanwhile."""

    def begin_real(self, real, call, results):
        """`call`: None if it is not on record."""
        self._real, self._call, self._timeout = real, call, None
        self.begin(1, "", None, (), results)

    def _has_ended(self):
        return self._real.is_completed()

    def _await_end(self):
        if self._call is None:
            return self._wait_for_real()
        with recorder.waiting(self._call):
            if recorder.is_message(self._call):
                self._wait_for_real()
            else:
                self._wait_and_look()

    def _wait_for_real(self):
        self._real.wait(self._timeout) if self._timeout else self._real.wait()

    def _wait_and_look(self):
        """A wait that passes its time-out raises and changes nothing, so it can be repeated, except that of a message. A work
        whose error comes early has failed."""
        end = time.monotonic() + self._timeout.total_seconds() if self._timeout else None
        while True:
            began = time.monotonic()
            is_last = end is not None and end - began <= _LOOK.total_seconds()
            try:
                self._real.wait(max(datetime.timedelta(seconds=end - began), _SHORTEST) if is_last else _LOOK)
                return
            except Exception:
                if is_last or time.monotonic() - began < _LOOK.total_seconds():
                    raise
            recorder.look(self._call)

    def wait(self, timeout=None):
        """May be repeated after its time-out, as with real Gloo."""
        self._timeout = timeout if timeout else None
        try:
            return super().wait()
        finally:
            if self._error is not None and not self._real.is_completed():
                self._is_over, self._error = False, None

    def is_success(self):
        return self._error is None and self._real.is_success()

    def exception(self):
        return self._error or self._real.exception()

    def source_rank(self):
        return self._real._source_rank()

    _source_rank = source_rank

    def result(self):
        return self._real.result()

    def get_future(self):
        """If the gradient reducer asks, a wait at the end of the backward pass comes before its own, so that it is recorded."""
        if not self._is_over and is_asked_by_reducer(sys._getframe(1)):
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        return self._real.get_future()

    def __del__(self):
        pass  # real Gloo keeps a work until its end


class WatchedGroup(GlooGroup):
    def __init__(self, real, store, rank, size, timeout):
        super().__init__(store, rank, size, timeout)
        self._real = _group_of(real, store, rank, size)
        self._number = None  # None: not announced; -1: its calls are not on record
        self._announcing = threading.Lock()
        self._mark = _making.mark

    def _announce(self):
        """Before the first call. torch sets the name and the ranks after the construction."""
        with self._announcing:
            if self._number is None:
                name, ranks = self._members(dist.get_world_size())
                self._number = recorder.group(name + self._mark, ranks)
                if self._number < 0:
                    warnings.warn(f"group {name}: its calls are not compared; there are too many groups")
        return self._number

    def _begin(self, words, at):
        """Returns the call; None if it is not on record."""
        number = self._announce() if self._number is None else self._number
        return recorder.begin(number, words, at) if number >= 0 else None

    def _start(self, op, inputs, outputs=(), results=(), kind=0, root=-1, tag=0, is_async=True, splits=((), ()), sizes=()):
        at, real = channel.line(2), _call.real
        _call.real = None  # it holds the group and the tensors
        words = [op.number, self._size, kind, root, tag, bool(sizes) << 1, len(inputs), len(outputs), len(sizes), len(splits[0]),
                 len(splits[1])]
        for tensor in inputs:
            describe(words, tensor)
        for tensor in outputs:
            describe(words, tensor)
        words += [*sizes, *splits[0], *splits[1]]
        call = self._begin(words, at)
        self._sequence += 1
        try:
            work = real()
        except Exception as error:
            if call is None:
                raise
            recorder.explain(call, error)
        watched = WatchedWork()
        watched.begin_real(work, call, results)
        return watched

    def _reduce_sparse(self, tensor, kind, is_async):
        return self._start(collectives.ALL_REDUCE_SPARSE, [tensor._indices(), tensor._values()], results=[[tensor]], kind=kind,
                           sizes=tuple(tensor.shape))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Blocks until all ranks have come: the wait is in the call."""
        call = self._begin([collectives.MONITORED_BARRIER.number, self._size, 0, -1] + [0] * 7, channel.line(1))
        real = functools.partial(self._backend().monitored_barrier, timeout or self._options._timeout, wait_all_ranks)
        if call is None:
            return real()
        with recorder.waiting(call):
            real()

    # --- what real Gloo answers ---------------------------------------------------------------------------------------

    def _backend(self):
        return self._real._get_backend(_CPU)

    def _set_default_timeout(self, timeout):
        super()._set_default_timeout(timeout)
        self._backend()._set_default_timeout(timeout)

    set_timeout = _set_default_timeout

    def _set_sequence_number_for_group(self):
        self._backend()._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self):
        return self._backend()._get_sequence_number_for_group()

    def _start_coalescing(self, device=None):
        self._real._start_coalescing(device or _CPU)

    def _end_coalescing(self, device=None):
        return self._real._end_coalescing(device or _CPU)


def _group_of(backend, store, rank, size):
    """A group of torch itself, whose methods accept what those of every group do."""
    try:
        group = dist.ProcessGroup(store, rank, size)
    except TypeError:  # torch 2.5 and before
        group = dist.ProcessGroup(store, rank, size, dist.ProcessGroup.Options("gloo"))
    kind = dist.ProcessGroup.BackendType.GLOO
    for device in (_CPU, torch.device("cuda")) if torch.cuda.is_available() else (_CPU,):
        group._register_backend(device, kind, backend)
    if hasattr(group, "_set_default_backend"):
        group._set_default_backend(kind)
    return group


def _forwarding(name):
    """A method of GlooGroup that says which call of real Gloo it stands for. The innermost one counts."""
    checked = getattr(GlooGroup, name)

    @functools.wraps(checked)
    def method(self, *args, **kwargs):
        _call.real = functools.partial(getattr(self._real, name), *args, **kwargs)
        return checked(self, *args, **kwargs)

    return method


for _name in """allreduce allreduce_coalesced broadcast reduce allgather _allgather_base allgather_into_tensor_coalesced
allgather_coalesced gather gather_single gather_into_tensor scatter reduce_scatter reduce_scatter_tensor_coalesced
_reduce_scatter_base alltoall_base alltoall barrier send recv recv_anysource all_gather_single reduce_scatter_single
all_to_all_single all_gather_single_coalesced reduce_scatter_single_coalesced""".split():
    setattr(WatchedGroup, _name, _forwarding(_name))


# --- the job ----------------------------------------------------------------------------------------------------------

_is_installed = False
_is_watching = False  # from the first default group on
_num_worlds = 0  # default groups that have been made
_num_named = collections.Counter()  # groups of the present world, by name


class _Making(threading.local):
    """The group that this thread makes."""

    is_watched = False
    mark = ""


_making = _Making()


def _mark_of(name):
    """Tells a group from an earlier one of the same name, alike on all its ranks: torch uses a name again when the default
    group is made again, or when a group has been destroyed."""
    _num_named[name] += 1
    marks = [_num_worlds] * (_num_worlds > 1) + [_num_named[name]] * (_num_named[name] > 1)
    return "".join(f"/{mark}" for mark in marks)


def install():
    """Watches the groups of Gloo that are made from here on. Raises RuntimeError if there is one already."""
    global _is_installed
    if dist.is_initialized():
        raise RuntimeError("simranks.watch() was called after init_process_group; expected it before the first process group")
    if _is_installed:
        return
    _is_installed = True
    channel.set_owners(owners_of(worlds.Main))
    _record_end(os.getpid())
    install_kernels()
    helper = c10d._new_process_group_helper

    @functools.wraps(helper)
    def new_process_group_helper(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs):
        if not global_ranks_in_group:
            _begin_world(store, group_rank, group_size)
        _making.is_watched = _is_watching and _is_of_gloo(backend)
        _making.mark = _mark_of(str(group_name))
        try:
            return helper(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs)
        finally:
            _making.is_watched = False

    c10d._new_process_group_helper = new_process_group_helper
    ensure = getattr(dist.Backend, "_ensure_backend_registered", None)
    if ensure is not None:
        ensure("gloo")
    if "GLOO" in dist.Backend._plugins:  # from torch 2.14 or 2.15 on
        _replace_plugin()
    else:
        _replace_class()


def _replace_plugin():
    plugin = dist.Backend._plugins["GLOO"]

    def make(options, *rest):
        real = plugin.creator_fn(options, *rest)
        group = _watched(real, options.store, options.group_rank, options.group_size, options.timeout)
        if isinstance(group, WatchedGroup):
            group.options.global_ranks_in_group = list(options.global_ranks_in_group)
            group.options.group_name = options.group_id
        return group

    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(make, plugin.extended_api)


def _replace_class():
    gloo = c10d.ProcessGroupGloo

    class Kind(type(gloo)):
        def __instancecheck__(cls, group):
            return isinstance(group, (gloo, WatchedGroup))

    class ProcessGroupGloo(gloo, metaclass=Kind):
        def __new__(cls, store, rank, size, timeout=c10d.default_pg_timeout, **more):
            return _watched(gloo(store, rank, size, timeout=timeout, **more), store, rank, size, timeout)

    c10d.ProcessGroupGloo = dist.ProcessGroupGloo = ProcessGroupGloo


def _is_of_gloo(backend):
    """Whether all devices of a group communicate over Gloo. Only such a group is watched."""
    devices = dist.BackendConfig(dist.Backend(str(backend))).get_device_backend_map()
    names = {name for device, name in devices.items() if device == "cpu" or torch.cuda.is_available()}
    if names - {"gloo"}:
        warnings.warn(f"simranks.watch: the calls of a group of backend {str(backend)!r} are not compared; only those of gloo are")
    return names == {"gloo"}


def _watched(real, store, rank, size, timeout):
    return WatchedGroup(real, store, rank, size, timeout) if _making.is_watched else real


def _begin_world(store, rank, size):
    """Before the default group is made. The first time, joins the watch of the job; collective."""
    global _is_watching, _num_worlds
    _num_worlds += 1
    _num_named.clear()
    if _num_worlds > 1:
        return
    store = dist.PrefixStore("simranks_watch", store)
    local_rank, local_size = _place(store, rank, size)
    is_served_by_rank_0 = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    _is_watching = recorder.start(rank, size, local_rank, local_size, is_served_by_rank_0, store)


def _place(store, rank, size):
    """The rank among those of its host, and their number."""
    if os.environ.get("WORLD_SIZE") == str(size) and {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= os.environ.keys():
        return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    store.set(f"host/{rank}", recorder.host())
    hosts = [store.get(f"host/{other}") for other in range(size)]
    mine = [other for other in range(size) if hosts[other] == hosts[rank]]
    return mine.index(rank), len(mine)


def _record_end(process):
    """Records how this process ends: by an error that nobody catches, or well. Called in the first lines of the program, so
    that the exit handlers of the program run before."""
    show = sys.excepthook
    code = 0
    has_error = False

    def show_line(error):
        """Not in the way of torch, which shows tracebacks only."""
        print(f"error: {error}", file=sys.__stderr__, flush=True)

    def end(how, message):
        """Returns whether the error is on record already."""
        nonlocal code
        try:
            return recorder.end(how, message)
        except Diagnosed as error:
            code = _EXIT_CODE
            show_line(error)
            return True

    def end_by(error):
        nonlocal code, has_error
        has_error = True
        is_diagnosed = isinstance(error, Diagnosed)
        is_on_record = end(recorder.CONDEMNED if is_diagnosed else recorder.RAISED, str(error) or type(error).__name__)
        if is_diagnosed:
            code = _EXIT_CODE
        return is_on_record

    def show_error(kind, error, traceback):
        if os.getpid() != process:
            return show(kind, error, traceback)
        if end_by(error):
            return None
        return show_line(error) if recorder.names_its_line(error) else show(kind, error, traceback)

    def at_exit():
        if os.getpid() != process:
            return
        error = getattr(sys, "last_value", None)
        if error is not None and not has_error:  # another library shows errors
            end_by(error)
        end(recorder.LEFT, "")
        if code != 0:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    sys.excepthook = show_error
    atexit.register(at_exit)

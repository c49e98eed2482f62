"""The asynchronous calls of this process that nobody has waited for. Reports what touches their tensors too early: further
calls, and operators.

Operators are seen by a TorchDispatchMode that is active while such calls are pending, in the threads that have made them.
A mode slows down every operator, and modes end in the order in which they began. So it is not used inside a backward pass,
whose collectives belong to a gradient reducer that waits for them before the pass ends, nor while the program uses a mode of
its own.

The variable ACCEL_WATCH_OPERATORS=0 turns this off. Thread rule: any thread.
"""

import contextlib
import os
import threading
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch

from accel_sim import channel
from accel_sim.tensors import has_memory, memory_range


class _Used:
    """Memory that a collective uses until the program waits for it."""

    def __init__(self, tensor, is_written):
        self.begin, self.end = memory_range(tensor)
        self.is_written = is_written
        self._storage = StorageWeakRef(tensor.untyped_storage())

    def conflicts_with(self, begin, end, writes):
        return (writes or self.is_written) and begin < self.end and self.begin < end and not self._storage.expired()

    def is_freed(self):
        return self._storage.expired()


class _UsedTensor:
    """A sparse tensor, which gets new indices and values: operators inside its operators use the present ones."""

    def __init__(self, tensor, is_written):
        self.begin, self.end, self.is_written = *_range_of_itself(tensor), is_written
        self._tensor = weakref.ref(tensor)

    def conflicts_with(self, begin, end, writes):
        return (writes or self.is_written) and self.begin == begin and self._tensor() is not None

    def is_freed(self):
        return self._tensor() is None


def _range_of_itself(tensor):
    return id(tensor), id(tensor) + 1


# A work whose handle the program has dropped stays here as long as its tensors, or until the library has freed it: it was
# never waited for.
_works = {}  # memory by number of the work
_NUM_KEPT = 16  # works, before those that were dropped are looked for
_of_thread = threading.local()  # .watch: the mode of this thread; .hidden: how many `unwatched` blocks it is in


def used_memory(tensors, are_written):
    """What a collective uses. Of a sparse tensor, its present indices and values are only read."""
    used = []
    for tensor in tensors:
        if tensor.is_sparse:
            used.append(_UsedTensor(tensor, are_written))
            used += used_memory([tensor._indices(), tensor._values()], False)
        elif has_memory(tensor):
            used.append(_Used(tensor, are_written))
    return used


def add(number, memory):
    """A work is pending from here on."""
    if len(_works) >= _NUM_KEPT:
        for work, used in list(_works.items()):
            if all(place.is_freed() for place in used) or not channel.is_pending(work):
                _works.pop(work, None)
    _works[number] = memory
    _start_watch()


def forget(number):
    """The program has waited for the work."""
    _works.pop(number, None)
    if not _works:
        _stop_watch()


def check(memory, kind):
    """A call of this kind is about to use this memory."""
    for used in memory:
        _report_conflicts(used.begin, used.end, used.is_written, "passed to " + kind)


def any_pending():
    return bool(_works)


def _report_conflicts(begin, end, writes, how):
    for number, memory in list(_works.items()):
        if any(used.conflicts_with(begin, end, writes) for used in memory):
            channel.touch(number, how)


# --- operators --------------------------------------------------------------------------------------------------------


_watches = os.environ.get("ACCEL_WATCH_OPERATORS", "1") != "0"


def can_watch_operators():
    """Whether this version of torch has what the watch needs."""
    return hasattr(_python_dispatch, "_get_current_dispatch_mode") and hasattr(torch._C, "_current_graph_task_id")


def _is_in_backward():
    return torch._C._current_graph_task_id() != -1


def _current_mode():
    return _python_dispatch._get_current_dispatch_mode()


def _start_watch():
    if not _watches or not can_watch_operators():
        return
    if getattr(_of_thread, "watch", None) is None and not _is_in_backward() and _current_mode() is None:
        _of_thread.watch = _Watch()
        _of_thread.watch.__enter__()


def _stop_watch():
    """A mode of the program that has begun since then must end first: the watch stays until a later call."""
    watch = getattr(_of_thread, "watch", None)
    if watch is not None and not _is_in_backward() and _current_mode() is watch:
        _of_thread.watch = None
        watch.__exit__(None, None, None)


@contextlib.contextmanager
def unwatched():
    """What is observed in this block is not done by the program."""
    _of_thread.hidden = getattr(_of_thread, "hidden", 0) + 1
    try:
        yield
    finally:
        _of_thread.hidden -= 1


def _reads_no_data(name, index):
    """Whether an operator reads only this argument's shape and dtype."""
    return (
        name.endswith("_like") or name.startswith("new_") or name in ("is_same_size", "sparse_dim", "dense_dim")
        or (index == 1 and name.endswith("_as"))
    )


class _Watch(_python_dispatch.TorchDispatchMode):
    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if _works and not getattr(_of_thread, "hidden", 0) and operator.namespace not in ("c10d", "_c10d_functional"):
            self._inspect(operator, args)
        return operator(*args, **(kwargs or {}))

    def _inspect(self, operator, args):
        """Arguments are matched to the schema by position: it states for each whether it is a view (an alias that is not
        written), written (an alias with a write) or only read."""
        name = operator._schema.name
        for index, (argument, value) in enumerate(zip(operator._schema.arguments, args)):
            alias = argument.alias_info
            if alias is not None and not alias.is_write:
                continue
            if _reads_no_data(name.rpartition("::")[2], index):
                continue
            how = ("changed by " if alias is not None else "read by ") + name
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    self._touch(tensor, alias is not None, how)

    def _touch(self, tensor, writes, how):
        if tensor.is_sparse:
            _report_conflicts(*_range_of_itself(tensor), writes, how)
        elif has_memory(tensor):
            _report_conflicts(*memory_range(tensor), writes, how)

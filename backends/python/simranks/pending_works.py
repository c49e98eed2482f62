"""The asynchronous calls of this process that nobody has waited for. Reports what touches their tensors too early: further
calls, and operators.

Operators are seen by a TorchDispatchMode that is active while such calls are pending, in the threads that have made them.
A mode slows down every operator, and modes end in the order in which they began. So it is not used inside a backward pass,
whose collectives belong to a gradient reducer that waits for them before the pass ends, nor while the program uses a mode of
its own.

The variable ACCEL_WATCH_OPERATORS=0 turns this off. A touch is an error of the program, except where torch.distributed has
made the call and touches the tensor too: the program cannot change that, so it is a finding. Thread rule: any thread.
"""

import contextlib
import os
import sys
import threading
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simranks import channel
from simranks.tensors import has_memory, memory_range

# A work whose handle the program has dropped stays here as long as its tensors, or until the library has freed it: it was
# never waited for.
_works = {}  # by number of the work: its memory, and the file of torch.distributed that has made the call (None: the program)
_NUM_KEPT = 16  # works, before those that were dropped are looked for


class _Thread(threading.local):
    watch = None  # the mode of this thread
    is_watching = False
    hidden = 0  # how many `unwatched` blocks it is in


_of_thread = _Thread()


def used_memory(tensors, are_written):
    """What a collective uses until the program waits for it: (begin, end, whether it is written, reference to the owner). A
    sparse tensor gets new indices and values: of it, the tensor itself counts, and its present parts are only read."""
    used = []
    for tensor in tensors:
        if tensor.is_sparse:
            used.append((*_range_of_itself(tensor), are_written, weakref.ref(tensor)))
            used += used_memory([tensor._indices(), tensor._values()], False)
        elif has_memory(tensor):
            used.append((*memory_range(tensor), are_written, weakref.ref(tensor)))
    return used


def _range_of_itself(tensor):
    return id(tensor), id(tensor) + 1


def add(number, memory):
    """A work is pending from here on."""
    if len(_works) >= _NUM_KEPT:
        for work, (used, _) in list(_works.items()):
            if all(owner() is None for _, _, _, owner in used) or not channel.is_pending(work):
                _works.pop(work, None)
    _works[number] = memory, _file_of_torch()
    _start_watch()


def forget(number):
    """The program has waited for the work."""
    _works.pop(number, None)
    if not _works:
        _stop_watch()


def check(memory, kind):
    """A call of this kind is about to use this memory. Returns whether pending ones of torch may change it."""
    found = False
    if _works:
        for begin, end, is_written, _ in memory:
            found |= _report_conflicts(begin, end, is_written, "passed to " + kind)
    return found


def any_pending():
    return bool(_works)


def _report_conflicts(begin, end, writes, how):
    """The program, or another collective, must wait before it reads or writes what a pending one writes, and before it
    writes what one reads. Memory whose owner is gone may belong to another tensor. Returns whether a finding was reported."""
    found = False
    for number, (memory, starter) in list(_works.items()):
        for used_begin, used_end, is_written, owner in memory:
            if begin < used_end and used_begin < end and (writes or is_written) and owner() is not None:
                found |= _report(number, starter, how)
                break
    return found


def _report(number, starter, how):
    """Returns whether it is a finding."""
    toucher = starter and _file_of_torch()
    if not toucher:
        channel.touch(number, how)
        return False
    channel.allow_changes(number)
    if (starter, toucher, how) not in _reported:
        _reported.add((starter, toucher, how))
        channel.report(
            "torch_races",
            f"{starter} starts an asynchronous call, and its tensor is {how} in {toucher} before wait(); this is a race of "
            f"torch's own code on real backends; it is harmless if torch does not use the tensor's values"
        )
    return True


_reported = set()  # findings

_OWN = os.path.dirname(__file__) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_DISTRIBUTED = os.path.join(_TORCH, "distributed", "")
# What a program calls itself.
_INTERFACE = tuple(_DISTRIBUTED + name for name in ("distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py"))


def _file_of_torch():
    """The file of torch.distributed whose own code runs; None: other code."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN, *_INTERFACE)):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    return os.path.join("torch", name.removeprefix(_TORCH)) if name.startswith(_DISTRIBUTED) else None


# --- operators --------------------------------------------------------------------------------------------------------

_NEEDED = ("_push_on_torch_dispatch_stack", "_pop_torch_dispatch_stack", "_len_torch_dispatch_stack",
           "_current_graph_task_id")


def can_watch_operators():
    """Whether this version of torch has what the watch needs."""
    return all(hasattr(torch._C, name) for name in _NEEDED)


_watches = can_watch_operators() and os.environ.get("ACCEL_WATCH_OPERATORS", "1") != "0"


# Modes are pushed and popped here without the bookkeeping of TorchDispatchMode, which takes longer than the rest of a call
# and is for torch.compile.
def _start_watch():
    if not _watches or _of_thread.is_watching or torch._C._current_graph_task_id() != -1:
        return
    if torch._C._len_torch_dispatch_stack() == 0:
        if _of_thread.watch is None:
            _of_thread.watch = _Watch()
        torch._C._push_on_torch_dispatch_stack(_of_thread.watch)
        _of_thread.is_watching = True


def _stop_watch():
    """A mode of the program that has begun since then must end first: the watch stays until a later call."""
    if not _of_thread.is_watching or torch._C._current_graph_task_id() != -1:
        return
    if torch._C._len_torch_dispatch_stack() == 1:  # the watch began on an empty stack, so this is it
        torch._C._pop_torch_dispatch_stack(None)
        _of_thread.is_watching = False


@contextlib.contextmanager
def unwatched():
    """What is observed in this block is not done by the program."""
    _of_thread.hidden += 1
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


class _Watch(TorchDispatchMode):
    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if _works and not _of_thread.hidden and operator.namespace not in ("c10d", "_c10d_functional"):
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

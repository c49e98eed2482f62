"""A pending collective of simranks.process_group."""

import _thread
import collections
import sys

import torch
from torch._C import _distributed_c10d

from simranks import channel, pending_works
from simranks.tensors import TORCH_VERSION, add_words

# From 2.8 on, C++ code that holds a work also holds its Python half.
HAS_HOLDER = TORCH_VERSION >= (2, 8)
_MAX_UNFINISHED = 16  # before 2.8: works in flight, before those that have ended are finished
_MAX_FINISHED = 4096  # before 2.8: works that C++ code may wait for once more

_engine_files = {torch.autograd.__file__, torch.autograd.graph.__file__}


class Work(_distributed_c10d.Work):
    """Waits for a call of the library, which it has posted. Like c10d::Work, it may be waited for several times.

    Thread rule: any thread.
    """

    _is_over = False
    _error = None
    _future = None
    _source = -1
    _divided = None

    # Without an __init__ of its own: a work is made in every collective.
    def begin(self, number, kind, at, tensors, results):
        """`at`: the program's line if it waits at once; None: it waits later. `results`: lists of tensors."""
        self._number, self._kind, self._at = number, kind, at
        self._tensors, self._results = tensors, results
        self._lock = _thread.allocate_lock()
        if not HAS_HOLDER:
            _keep(self)

    def divide_result(self, tensors, divisor):
        """Complex numbers are divided by torch, not by the simulator, whose processor or version may round otherwise."""
        self._divided = tensors, divisor

    def _divide(self):
        with torch.no_grad(), pending_works.unwatched():
            for tensor in self._divided[0]:
                tensor.detach().div_(self._divided[1])
        self._divided = None

    def end(self, source, results):
        """Instead of `begin`, for a call that has already ended."""
        if self._divided is not None:
            self._divide()
        self._is_over, self._source, self._results = True, source, results
        if not HAS_HOLDER:
            _remember(self)

    def _has_ended(self):
        return channel.poll(self._number)

    def _await_end(self):
        at = self._at or channel.line(3)
        addresses = None if self._at else [tensor.data_ptr() for tensor in self._tensors]
        answer = channel.wait(self._number, addresses, at)
        if self._kind == "_ALLREDUCE_SPARSE":
            self._take_sparse_sum(answer)
        else:
            self._source = answer
        if self._divided is not None:
            self._divide()

    def _finish(self):
        with self._lock:
            if self._is_over:
                return
            try:
                self._await_end()
            except Exception as error:
                self._error = error
            self._is_over = True
        if not self._at:
            pending_works.forget(self._number)
        self._tensors = None
        _let_go(self)
        if self._future is not None and not self._future.done():
            self._complete(self._future)

    def keep_until_finished(self):
        """For a caller that holds the C++ half only."""
        _unfinished[id(self)] = self

    def _take_sparse_sum(self, num_entries):
        """The sum has the entries of all ranks, so its memory is taken only now. Its operators are not the program's."""
        total = self._results[0][0]
        with torch.no_grad(), pending_works.unwatched():
            indices = torch.empty((total.sparse_dim(), num_entries), dtype=torch.int64)
            values = torch.empty((num_entries, *total.shape[total.sparse_dim() :]), dtype=total.dtype)
            words = []
            add_words(words, indices)
            add_words(words, values)
            channel.take_sum(self._number, words)
            total.copy_(torch.sparse_coo_tensor(indices, values, total.shape, is_coalesced=True))

    def _complete(self, future):
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._value())

    def _value(self):
        return self._results if len(self._results) > 1 else self.result()

    def wait(self, timeout=None):
        """Blocks the rank; raises RuntimeError with the simulator's text. Ignores `timeout`: the simulator's applies."""
        if not self._is_over:
            self._finish()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if not self._is_over:
            if not self._has_ended():
                return False
            self._finish()
        return True

    def is_success(self):
        return self._is_over and self._error is None

    def exception(self):
        return self._error

    def source_rank(self):
        return self._source

    _source_rank = source_rank

    def result(self):
        if len(self._results) > 1:
            raise RuntimeError(
                f"Work.result: this collective has {len(self._results)} lists of results; expected at most one; read its "
                f"output lists instead"
            )
        return self._results[0] if self._results else []

    def get_future(self):
        """Nobody can see a rank that blocks in the wait of a future. If the gradient reducer asks for it inside a backward
        pass, a callback at the end of the pass waits, so that all buckets are in flight until then. Elsewhere, and if Python
        code asks, which may wait for it at once, the future is complete when it is returned."""
        if self._future is not None:
            return self._future
        self._future = torch.futures.Future()
        if self._is_over:
            self._complete(self._future)
        elif is_asked_by_reducer(sys._getframe(1)):
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_in_backward)
        else:
            self._finish()
        return self._future

    def _finish_in_backward(self):
        """An error leaves the backward pass here. As the future's exception it would be lost: Python stores it as the value,
        which the reducer takes for tensors."""
        future, self._future = self._future, None
        self._finish()
        if self._error is not None:
            raise self._error
        self._future = future
        future.set_result(self._value())

    def __del__(self):
        if HAS_HOLDER and not self._is_over and hasattr(self, "_number"):
            channel.abandon(self._number)


def is_asked_by_reducer(caller):
    """C++ code asks if the caller's frame is the one that has started the engine. A node must be under evaluation: without
    one this is a callback at the end of the pass, as in the first step of a static graph, and a further callback would come
    only after the reducer's wait."""
    return (
        caller is not None and caller.f_code.co_filename in _engine_files
        and torch._C._current_graph_task_id() != -1 and torch._C._current_autograd_node() is not None
    )


class Several(Work):
    """One work for those of a coalescing manager."""

    def begin_all(self, works):
        self._works = works
        self.begin(-1, "COALESCED", None, [], [])

    def _finish(self):
        try:
            for work in self._works:
                work.wait()
        except Exception as error:
            self._error = error
        self._is_over = True
        _let_go(self)
        if self._future is not None and not self._future.done():
            self._complete(self._future)

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def __del__(self):
        pass  # its works have ends of their own


# --- before torch 2.8 -------------------------------------------------------------------------------------------------
# C++ code does not keep the Python half of a work, whose methods it needs. So every work is kept until it is finished, and
# a while longer: one work may be waited for once per tensor. Nobody can know that such a work was dropped; when many are
# unfinished, those that have ended are finished.

_unfinished = {}
_finished = collections.deque(maxlen=_MAX_FINISHED)


def _keep(work):
    _unfinished[id(work)] = work
    if len(_unfinished) > _MAX_UNFINISHED:
        for other in list(_unfinished.values())[:_MAX_UNFINISHED]:
            if other is not work and other._number > 0 and other._has_ended():
                other._finish()


def _let_go(work):
    if not _unfinished or _unfinished.pop(id(work), None) is None:
        return
    _remember(work)


def _remember(work):
    # The results of a work that only C++ code may still have are not needed: a finished one is only waited for.
    while _finished and sys.getrefcount(_finished[-1]) <= 2 and _finished[-1]._results:
        _finished[-1]._results = []
    _finished.append(work)

"""The watch of a job of real ranks: the C library of watch_library.hpp through ctypes.

    recorder.start(rank, size, local_rank, local_size, is_served_by_rank_0, store)
    call = recorder.begin(recorder.group("world", range(4)), words, channel.line())

Thread rule: any thread.
"""

import contextlib
import ctypes
import threading

from simranks.channel import FAILED, function, packed, text_of_error

LEFT, RAISED, CONDEMNED = range(3)  # how a program ends
_DIAGNOSED = FAILED + 1
_int, _int64, _uint32, _size = ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_size_t
_bytes, _pointer = ctypes.c_char_p, ctypes.c_void_p
_Words = _int64 * 4  # of a call: ACCEL_CALL_WORDS

_Set = ctypes.CFUNCTYPE(_int64, _bytes, _pointer, _size)
_Get = ctypes.CFUNCTYPE(_int64, _bytes)
_Has = ctypes.CFUNCTYPE(_int64, _pointer, _int)


class _Store(ctypes.Structure):
    _fields_ = [("set", _Set), ("get", _Get), ("has", _Has), ("erase", _Get)]


_answer = function("watch_answer", _bytes, _size, result=None)
_host = function("watch_host", result=_bytes)
_start = function("watch_start", _int, _int, _int, _int, _int, ctypes.POINTER(_Store))
_group = function("watch_group", _bytes, _bytes, _int)
_begin = function("watch_begin", _int64, _bytes, _bytes, _uint32, _Words)
_wait = function("watch_wait", _Words, _int, result=_pointer)
_end_wait = function("watch_end_wait", _pointer, _Words, _int, result=None)
_look = function("watch_look", _Words)
_explain = function("watch_explain", _Words, _bytes)
_end = function("watch_end", _int, _bytes)

_store = None  # keeps the functions that the library calls


class Diagnosed(RuntimeError):
    """Calls of ranks differ, or ranks wait for ever. The text names every rank."""


class _Released(RuntimeError):
    """Another rank has failed."""


def _checked(answer, failure=RuntimeError):
    if answer == _DIAGNOSED:
        raise Diagnosed(text_of_error())
    if answer == FAILED:
        raise failure(text_of_error())
    return answer


def host():
    """The host's name: equal for processes that can open each other's files in /proc."""
    return _host()


def start(rank, size, local_rank, local_size, is_served_by_rank_0, store):
    """Watches this process until `end`. Returns whether there is anything to watch. `store`: of torch.distributed."""
    global _store
    _store = _functions_of(store.clone() if hasattr(store, "clone") else store)
    return _checked(_start(rank, size, local_rank, local_size, is_served_by_rank_0, ctypes.byref(_store))) != 0


def _functions_of(store):
    def guarded(work):
        try:
            return work()
        except Exception:
            return FAILED

    def set_value(key, value, count):
        store.set(key.decode(), ctypes.string_at(value, count))
        return 0

    def get(key):
        value = store.get(key.decode())
        _answer(value, len(value))
        return 0

    def has(keys, count):
        names = []
        for _ in range(count):
            name = ctypes.string_at(keys)
            keys += len(name) + 1
            names.append(name.decode())
        return store.check(names)

    def erase(key):
        store.delete_key(key.decode())
        return 0

    return _Store(
        _Set(lambda key, value, count: guarded(lambda: set_value(key, value, count))),
        _Get(lambda key: guarded(lambda: get(key))),
        _Has(lambda keys, count: guarded(lambda: has(keys, count))),
        _Get(lambda key: guarded(lambda: erase(key))),
    )


def group(name, ranks):
    """Announces a group, and returns its number; -1: there is no room for its calls."""
    return _checked(_group(name.encode(), packed(ranks), len(ranks)))


def begin(group_number, words, at):
    """Records a call, see watch_library.hpp, and returns it. Raises Diagnosed if the ranks' calls differ."""
    call = _Words()
    answer = _begin(group_number, packed(words), at[0], at[1], call)
    return call if answer == 0 else _checked(answer, _Released)


def is_message(call):
    return call[3] != 0


@contextlib.contextmanager
def waiting(call):
    """The rank waits for the end of a call. Raises the cause of an error. A thread that has made no call yet may end the
    wait."""
    mark, has_ended = _wait(call, len(threading._active)), False
    try:
        yield
        has_ended = True
    except Exception as error:
        explain(call, error)
    finally:
        _end_wait(mark, call, has_ended)


def look(call):
    """Raises an error if a waiting rank need not wait any longer."""
    _checked(_look(call), _Released)


def explain(call, error):
    """Raises the cause of an error by which real Gloo has failed."""
    if isinstance(error, (Diagnosed, _Released)):
        raise error
    answer = _explain(call, str(error).encode(errors="replace"))
    if answer == _DIAGNOSED:
        raise Diagnosed(text_of_error()) from None
    cause = type(error)(text_of_error())
    cause.is_of_call = True
    raise cause from None


def names_its_line(error):
    """Whether the text of an error says which call of the program has failed, so that a traceback adds nothing."""
    return isinstance(error, (Diagnosed, _Released)) or getattr(error, "is_of_call", False)


def end(how, message):
    """The program has ended. Returns whether its error is on record already and need not be printed."""
    return _checked(_end(how, message.encode(errors="replace"))) != 0

"""The rank's end of the channel to the simulator: the C library of rank_library.hpp through ctypes, and the program's line
that makes a call. Imports nothing heavy: see simranks.ranks.

    area = channel.SharedArea.attach(descriptor)
    channel.become(area, rank, owners)
    work = channel.call(words, channel.line())

A call of the library releases the interpreter's lock. Thread rule: any thread; several may wait at a time.
"""

import ctypes
import os
import struct
import sys
import threading

FAILED = -(1 << 63)
_int, _int64, _uint32, _uint64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
_bytes, _pointer = ctypes.c_char_p, ctypes.c_void_p
_LINE = (_bytes, _uint32)  # a file and a line of the program

_library = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libaccel_rank.so"))


def function(name, *arguments, result=_int64):
    function = getattr(_library, "accel_" + name)
    function.argtypes, function.restype = arguments, result
    return function


_error = function("error", result=_bytes)
_area_create = function("area_create", _int, result=_pointer)
_area_attach = function("area_attach", _int, result=_pointer)
_area_close = function("area_close", _pointer, result=None)
_area_descriptor = function("area_descriptor", _pointer, result=_int)
_area_num_ranks = function("area_num_ranks", _pointer, result=_int)
_area_set_ready = function("area_set_ready", _pointer, result=None)
_area_set_pid = function("area_set_pid", _pointer, _int, _int, result=None)
_area_record_end = function("area_record_end", _pointer, _int, _int, result=None)
_area_record_lost_ends = function("area_record_lost_ends", _pointer, _int, result=None)
_become = function("become", _pointer, _int)
_leave = function("leave", result=None)
_is_rank = function("is_rank", result=_int)
_set_num_threads = function("set_num_threads", _int, result=None)
_group = function("group", _bytes, _bytes, _int, *_LINE)
_call = function("call", _bytes, *_LINE)
_wait = function("wait", _int64, _bytes, *_LINE)
_run = function("run", _bytes, *_LINE)
_sum = function("sum", _int64, _bytes)
_poll = function("poll", _int64, *_LINE)
_abandon = function("abandon", _int64, result=None)
_is_pending = function("is_pending", _int64, result=_int)
_touch = function("touch", _int64, _bytes)
_allow_changes = function("allow_changes", _int64, result=None)
_phase = function("phase", _bytes, *_LINE)
_backward = function("backward", ctypes.c_double, *_LINE)
_update = function("update", *_LINE)
_updated = function("updated", _bytes, _bytes, _bytes, ctypes.c_size_t, *_LINE)
_end_join = function("end_join", *_LINE)
_divide = function("divide", _bytes, _uint64, *_LINE)
_report = function("report", _bytes, _bytes, *_LINE)
_fail = function("fail", _bytes, *_LINE)
_fingerprint = function("fingerprint", _pointer, ctypes.c_size_t, result=_uint64)
_sample_fingerprint = function("sample_fingerprint", _pointer, ctypes.c_size_t, result=_int64)


def text_of_error():
    """Of the last failure in this thread."""
    return _error().decode(errors="replace")


def _checked(answer):
    if answer == FAILED:
        raise RuntimeError(text_of_error())
    return answer


class SharedArea:
    """The memory that a simulator and its ranks share."""

    def __init__(self, area):
        if not area:
            raise RuntimeError(text_of_error())
        self._area = area
        self.descriptor = _area_descriptor(area)
        self.num_ranks = _area_num_ranks(area)

    @classmethod
    def create(cls, num_ranks):
        return cls(_area_create(num_ranks))

    @classmethod
    def attach(cls, descriptor):
        return cls(_area_attach(descriptor))

    def __del__(self):
        if getattr(self, "_area", None):
            _area_close(self._area)

    def set_ready(self):
        """The ranks are about to start."""
        _area_set_ready(self._area)

    def set_pid(self, rank, pid):
        _area_set_pid(self._area, rank, pid)

    def record_end(self, rank, status):
        """Records how the process of a rank has ended, by the status of wait()."""
        _area_record_end(self._area, rank, status)

    def record_lost_ends(self, status):
        """The same for every rank that has no end yet."""
        _area_record_lost_ends(self._area, status)


# --- the line of the program ------------------------------------------------------------------------------------------

# Whose code a frame runs. The line of a call is the innermost one of the program, else of a library.
_PROGRAM, _LIBRARY, _MACHINERY = range(3)


class Owners:
    """`program`: a file that is the program's wherever it lies; the others are prefixes of paths, of which the longest that
    fits decides."""

    def __init__(self, program, libraries, machineries):
        self._program = program
        self._prefixes = [(prefix, _LIBRARY) for prefix in libraries] + [(prefix, _MACHINERY) for prefix in machineries]

    def of(self, file):
        if file == self._program:
            return _PROGRAM
        if file.startswith("<"):
            return _MACHINERY
        fitting = [(len(prefix), owner) for prefix, owner in self._prefixes if file.startswith(prefix)]
        return max(fitting, key=lambda found: found[0])[1] if fitting else _PROGRAM


_owners = Owners("", [], [])  # of the program of this process
_num_ranks = 0
_num_threads = 1  # of the program, as reported
_files = {}  # by file name: its owner and its name as bytes


def _add_file(name):
    entry = _files[name] = _owners.of(name), name.encode(errors="surrogateescape")
    return entry


def line(depth=1):
    """The program's current line: a file (bytes) and a number; 0: unknown. `depth`: the frame to begin with, counted
    outwards."""
    frame, best, found = sys._getframe(depth), _MACHINERY, (b"", 0)
    while frame is not None:
        name = frame.f_code.co_filename
        owner, file = _files.get(name) or _add_file(name)
        if owner < best:
            best, found = owner, (file, frame.f_lineno or 0)
            if best == _PROGRAM:
                break
        frame = frame.f_back
    return found


# --- the rank ---------------------------------------------------------------------------------------------------------

_structs = {}  # by number of words


def packed(words):
    count = len(words)
    packer = _structs.get(count)
    if packer is None:
        packer = _structs[count] = struct.Struct(f"{count}q")
    return packer.pack(*words)


def set_owners(owners):
    """Whose code is whose in the program of this process."""
    global _owners
    _owners = owners
    _files.clear()


def become(area, rank, owners):
    """This process is a rank from here on; it is none now."""
    global _num_ranks, _num_threads
    _num_ranks, _num_threads = area.num_ranks, 1
    set_owners(owners)
    _checked(_become(area._area, rank))


def leave():
    """This process is no rank any more, and its simulator takes it for one that has ended its program."""
    _leave()


def num_ranks():
    """Of the world that this process belongs to."""
    return _num_ranks


def is_rank():
    """Whether this process is a rank, and not one that a rank has forked."""
    return _is_rank() != 0


def _report_threads():
    """A thread that has not called the library yet may do so, and end another's wait."""
    global _num_threads
    _num_threads = len(threading._active)
    _set_num_threads(_num_threads)


def group(name, ranks):
    """Reports a group to the simulator and returns its number."""
    return _checked(_group(name.encode(), packed(ranks), len(ranks), *line(2)))


def call(words, at):
    """Posts a call of a collective, see rank_library.hpp, and returns the number of its work."""
    answer = _call(packed(words), at[0], at[1])
    return answer if answer != FAILED else _checked(answer)


def wait(work, addresses, at):
    """Waits for a work. Returns the source rank of a message, or the number of entries of a sparse sum. `addresses`: of the
    tensors now; None: unchanged."""
    if len(threading._active) != _num_threads:
        _report_threads()
    answer = _wait(work, packed(addresses) if addresses else None, at[0], at[1])
    return answer if answer != FAILED else _checked(answer)


def run(words, at):
    """Posts a call and waits for it, as `call` and `wait`."""
    if len(threading._active) != _num_threads:
        _report_threads()
    answer = _run(packed(words), at[0], at[1])
    return answer if answer != FAILED else _checked(answer)


def take_sum(work, words):
    """Copies the sparse sum of a work to two tensors."""
    _checked(_sum(work, packed(words)))


def poll(work):
    """Whether a work has ended."""
    return _checked(_poll(work, *line(2))) != 0


abandon = _abandon  # works that nobody waits for


def is_pending(work):
    """Whether a work is neither over nor abandoned and freed."""
    return _is_pending(work) != 0


def touch(work, how):
    """Reports that the program touches a tensor of a pending work too early."""
    _checked(_touch(work, how.encode()))


allow_changes = _allow_changes  # of the tensors of a pending work: its wait reports none


def phase(name):
    _checked(_phase(name.encode(), *line(2)))


def backward(loss):
    _checked(_backward(loss, *line(2)))


def update():
    _checked(_update(*line(2)))


def updated(names, words, generator, at):
    """After an optimizer's step. `words` describes the parameters, see rank_library.hpp; `generator` is the state of the
    default generator; `at` is the line of the step."""
    text = b"".join(name.encode() + b"\0" for name in names)
    _checked(_updated(packed(words), text, generator, len(generator), *at))


def end_join():
    """A join of uneven inputs has ended. Ranks have made different numbers of updates in it."""
    _checked(_end_join(*line(2)))


def divide(name, value, file, number):
    """Reports a weight of which each rank has kept a part, and where it was divided. `value`: its hash; 0: unknown."""
    _checked(_divide(name.encode(), value, file, number))


def report(check, text):
    """Reports what a check has found; its name is one of sim/engine/checks.cpp."""
    _checked(_report(check.encode(), text.encode(), *line(2)))


def fail(text):
    """The program has ended by this error."""
    _checked(_fail(text.encode(errors="replace"), *line(2)))


def fingerprint(address, num_bytes):
    """Hashes memory; comparable on one machine only."""
    return _fingerprint(address, num_bytes)


def sample_fingerprint(address, num_bytes):
    """Hashes a sample of memory, as a signed number."""
    return _sample_fingerprint(address, num_bytes)

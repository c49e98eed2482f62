"""What torch.cuda and torch.accelerator answer a program that `sim-run --map-cuda` runs on the CPU: see cuda_map.py."""

import abc
import collections
import contextlib
import functools
import importlib
import json
import os
import sys
import time
import types

import torch

TORCH = os.path.dirname(torch.__file__) + os.sep
_NUM_GPUS = 4  # where no rank has started yet: as many as sim-run has ranks by default
_CAPABILITY = (8, 0)  # of the first GPUs with bfloat16, which the CPU has, too
_NAME = "CPU (sim-run --map-cuda)"

_index = None  # the program's current device; None: it has chosen none


def replace(owner, name, make):
    """Replaces a function, by one that `make` returns for it, if this version of torch has it."""
    function = getattr(owner, name, None) if owner is not None else None
    if function is not None:
        setattr(owner, name, functools.wraps(function)(make(function)))


def module_of(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return types.SimpleNamespace()


def refuse(what, instead="leave it out on simulated ranks"):
    raise RuntimeError(f"--map-cuda cannot run {what}, which needs a GPU; {instead}, or run the program on GPUs")


# Note [Who asks]
# A program shall see a GPU per rank: programs assert torch.cuda.is_available(), or choose the device, backend and dtype
# by it. Torch itself would then pin memory, start threads for it and use drivers. So is_available() and device_count()
# look at the file that calls them: torch's own code gets the answers of a machine without GPUs. Triton asks before it
# compiles a kernel.


def is_torch(frame):
    file = frame.f_code.co_filename
    # torchrun --nproc-per-node gpu asks for the program.
    return file.startswith(TORCH) and not file.endswith(os.path.join("torch", "distributed", "run.py"))


def for_program(value):
    """A function of which torch's own code calls the original."""

    def make(function):
        def call(*args, **kwargs):
            return function(*args, **kwargs) if is_torch(sys._getframe(1)) else value(*args, **kwargs)

        return call

    return make


def _is_available(*_):
    if sys._getframe(2).f_globals.get("__name__", "").startswith("triton."):
        refuse("a kernel of triton")
    return True


def _device_count():
    size = os.environ.get("LOCAL_WORLD_SIZE")
    if size is not None:
        return int(size)
    if torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    ranks = json.loads(os.environ.get("ACCEL_WORLD_REQUEST", "{}")).get("ranks", 1)
    return ranks if ranks > 1 else _NUM_GPUS


def _current_device(*_):
    if _index is not None:
        return _index
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _index_of(device):
    """None: the current one."""
    if isinstance(device, int):
        return device
    return torch.device(device).index if device is not None else None


def _set_device(device, *_):
    global _index
    number = _index_of(device)
    if number is not None and number >= 0:
        _index = number


class _Device:
    """torch.cuda.device, also as a decorator."""

    def __init__(self, device=None, *_):
        self.idx, self.prev_idx = _index_of(device), None

    def __enter__(self):
        self.prev_idx = _index
        _set_device(self.idx)

    def __exit__(self, *_):
        global _index
        _index = self.prev_idx
        return False

    def __call__(self, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return call


class _DeviceOf(_Device):
    def __init__(self, tensor):
        super().__init__()


class Stream:
    """All work of a CPU is done when a call returns, so streams and events have nothing to wait for."""

    def __init__(self, device=None, priority=0, **_):
        self.device, self.priority = torch.device("cuda", _current_device()), priority
        self.cuda_stream = self.stream_id = 0

    def synchronize(self):
        pass

    wait_event = wait_stream = lambda self, other: None

    def query(self):
        return True

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Event:
    def __init__(self, *_, **__):
        self._time = None

    def record(self, stream=None):
        self._time = time.perf_counter()

    def wait(self, stream=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, end):
        """In milliseconds."""
        return (end._time - self._time) * 1e3


# The compiler of torch 2.5 and before asserts that the classes have these bases.
_bases = module_of("torch._streambase")
for _base, _class in (("_EventBase", Event), ("_StreamBase", Stream)):
    if isinstance(getattr(_bases, _base, None), abc.ABCMeta):
        getattr(_bases, _base).register(_class)


def _memory_info(*_):
    """Bytes: available, and in all."""
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def _properties(*_):
    return types.SimpleNamespace(
        name=_NAME, major=_CAPABILITY[0], minor=_CAPABILITY[1], total_memory=_memory_info()[1],
        multi_processor_count=os.cpu_count(), warp_size=32, is_integrated=True, is_multi_gpu_board=False)


def _seed(value):
    torch.default_generator.manual_seed(int(value))


def _set_states(states):
    torch.set_rng_state(list(states)[min(_current_device(), len(states) - 1)])


def _nothing(*_, **__):
    return None


def _zero(*_, **__):
    return 0


_NO_EFFECT = """empty_cache init ipc_collect reset_accumulated_memory_stats reset_max_memory_allocated
reset_max_memory_cached reset_peak_memory_stats set_per_process_memory_fraction set_stream set_sync_debug_mode
synchronize""".split()
_ZERO = """get_sync_debug_mode max_memory_allocated max_memory_cached max_memory_reserved memory_allocated memory_cached
memory_reserved""".split()
_ANSWERS = {
    "can_device_access_peer": lambda *_: True,
    "current_device": _current_device,
    "current_stream": lambda *_: Stream(),
    "default_stream": lambda *_: Stream(),
    "get_device_capability": lambda *_: _CAPABILITY,
    "get_device_name": lambda *_: _NAME,
    "get_device_properties": _properties,
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(_device_count())],
    "initial_seed": torch.initial_seed,
    "is_bf16_supported": lambda *_, **__: True,
    "manual_seed": _seed,
    "manual_seed_all": _seed,
    "mem_get_info": _memory_info,
    "memory_snapshot": lambda *_: [],
    "memory_stats": lambda *_: collections.defaultdict(int),
    "memory_summary": lambda *_, **__: "",
    "seed": lambda: torch.default_generator.seed(),
    "seed_all": lambda: torch.default_generator.seed(),
    "set_device": _set_device,
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    "set_rng_state_all": _set_states,
    "stream": lambda stream: contextlib.nullcontext(stream),
    **dict.fromkeys(_NO_EFFECT, _nothing),
    **dict.fromkeys(_ZERO, _zero),
}
_ANSWERS_OF_ACCELERATORS = {
    "current_device_idx": _current_device, "current_device_index": _current_device, "set_device_idx": _set_device,
    "set_device_index": _set_device, "get_memory_info": _memory_info,
}


def install():
    """Replaces the functions of torch.cuda and torch.accelerator."""
    for name, answer in _ANSWERS.items():
        replace(torch.cuda, name, lambda _, answer=answer: lambda *args, **kwargs: answer(*args, **kwargs))
    torch.cuda.Stream, torch.cuda.Event, torch.cuda.device, torch.cuda.device_of = Stream, Event, _Device, _DeviceOf
    replace(torch.cuda, "is_available", for_program(_is_available))
    replace(torch.cuda, "device_count", for_program(_device_count))
    for name in ("mark", "range_end", "range_pop", "range_push", "range_start"):
        replace(torch.cuda.nvtx, name, lambda _: _zero)
    for name in ("_dump_snapshot", "_record_memory_history"):
        replace(torch.cuda.memory, name, lambda _: _nothing)
    accelerator = module_of("torch.accelerator")
    same = ("current_stream", "memory_stats", *_NO_EFFECT, *_ZERO)
    for name, answer in {**{name: _ANSWERS[name] for name in same}, **_ANSWERS_OF_ACCELERATORS}.items():
        replace(accelerator, name, for_program(answer))
    replace(accelerator, "is_available", for_program(_is_available))
    replace(accelerator, "device_count", for_program(_device_count))
    replace(accelerator, "current_accelerator", for_program(lambda check_available=False: torch.device("cuda")))

"""`sim-run --map-cuda`: a program that is written for GPUs runs on the CPU. Devices of CUDA mean the CPU, torch.cuda
answers for a GPU per rank, and simranks.backend makes groups of the backend nccl as gloo.

Functions are replaced in torch's public modules, not intercepted by a TorchFunctionMode: a mode acts in one thread,
so a thread that moves batches would not be mapped, and nn.MultiheadAttention takes another path under a mode.

Torch's own code must not take its paths for GPUs (pinned memory, captured graphs), so torch.cuda answers it as on a
machine without GPUs: see Note [Who asks] of cuda_answers.py. What needs a real GPU is refused by one sentence that
names it.
"""

import importlib.util
import os
import sys
import types

import torch

from simranks import cuda_answers
from simranks.cuda_answers import TORCH, for_program, module_of, refuse, replace

_CPU = torch.device("cpu")

_is_installed = False


def is_installed():
    return _is_installed


def install():
    """Maps the devices of this process from here on."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _map_factories()
    _map_tensors()
    _map_contexts()
    _map_modules()
    cuda_answers.install()
    _refuse_the_rest()


def mapped(device):
    """The CPU for a device of CUDA, given as its name, its number or a torch.device; anything else unchanged."""
    if isinstance(device, str):
        is_cuda = device.partition(":")[0] == "cuda"
    elif isinstance(device, torch.device):
        is_cuda = device.type == "cuda"
    else:
        is_cuda = isinstance(device, int) and not isinstance(device, bool)
    return _CPU if is_cuda else device


def mapped_backend(backend):
    """The backend that simulated ranks rehearse for one of GPUs: "cpu:gloo,cuda:nccl" is "gloo"."""
    if backend is None:
        return None
    names = [part.rpartition(":")[2] for part in str(backend).lower().split(",")]
    return "gloo" if "nccl" in names else backend


# --- device arguments -------------------------------------------------------------------------------------------------

_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")


def _with_mapped_keywords(function):
    def call(*args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = mapped(kwargs["device"])
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        return function(*args, **kwargs)

    return call


def _map_factories():
    # Asked now: torch keeps these functions in a set, which must hold its own ones for `with torch.device("meta")`.
    constructors = getattr(module_of("torch.utils._device"), "_device_constructors", set)()
    for owner in (torch, torch.fft, torch.nested):
        for name, value in list(vars(owner).items()):
            if name in _LIKE or (getattr(value, "__hash__", None) and callable(value) and value in constructors):
                replace(owner, name, _with_mapped_keywords)
    _map_generator()


def _map_generator():
    base = torch.Generator

    class Type(type(base)):
        def __call__(cls, device="cpu"):
            return base(device=mapped(device))

        def __instancecheck__(cls, value):
            return isinstance(value, base)

    torch.Generator = Type("Generator", (base,), {"__doc__": base.__doc__, "__module__": "torch"})


def _without_cuda(type_name):
    """torch.FloatTensor for torch.cuda.FloatTensor, by name."""
    return type_name.replace("torch.cuda.", "torch.") if isinstance(type_name, str) else type_name


def _moved_to_mapped(function):
    def to(self, *args, **kwargs):
        if args:
            args = mapped(args[0]), *args[1:]
        if "device" in kwargs:
            kwargs["device"] = mapped(kwargs["device"])
        return function(self, *args, **kwargs)

    return to


def _map_tensors():
    move = torch.Tensor.to

    def cuda(self, device=None, non_blocking=False, **options):
        return move(self, _CPU, **options)

    replace(torch.Tensor, "to", _moved_to_mapped)
    replace(torch.Tensor, "cuda", lambda _: cuda)
    replace(torch.Tensor, "pin_memory", lambda _: lambda self, device=None: self)
    replace(torch.Tensor, "record_stream", lambda _: lambda self, stream: None)
    replace(torch.Tensor, "type", lambda function: lambda self, dtype=None, *args, **kwargs: function(
        self, _without_cuda(dtype), *args, **kwargs))
    for name in ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"):
        replace(torch.Tensor, name, _with_mapped_keywords)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        for name in ("cuda", "pin_memory"):
            replace(storage, name, lambda _: lambda self, *args, **kwargs: self)
    for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"):
        setattr(torch.cuda, kind + "Tensor", getattr(torch, kind + "Tensor"))
    replace(torch, "set_default_tensor_type", lambda function: lambda kind: function(_without_cuda(kind)))
    # Of torch.load, before the entries of torch, with and without map_location.
    torch.serialization.register_package(
        0, lambda storage: None, lambda storage, place: storage if place.partition(":")[0] == "cuda" else None)


def _map_contexts():
    """Default devices and automatic mixed precision."""

    def with_device(function):
        return lambda self, device, *args, **kwargs: function(self, mapped(device), *args, **kwargs)

    replace(getattr(module_of("torch.utils._device"), "DeviceContext", None), "__init__", with_device)

    dtype_of = torch.get_autocast_dtype

    def autocast(function):
        def call(self, device_type, dtype=None, *args, **kwargs):
            if device_type == "cuda":
                device_type, dtype = "cpu", dtype or dtype_of("cuda")
            return function(self, device_type, dtype, *args, **kwargs)

        return call

    def of_device(function):
        mapped_function = lambda device_type="cuda": function("cpu" if device_type == "cuda" else device_type)
        return for_program(mapped_function)(function)

    replace(torch.amp.autocast, "__init__", autocast)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        replace(torch, name, of_device)
    replace(torch.amp.GradScaler, "__init__", lambda function: lambda self, device="cuda", *args, **kwargs: function(
        self, "cpu" if mapped(device) is _CPU else device, *args, **kwargs))


def _map_modules():
    def data_parallel(function):
        def call(self, module, device_ids=None, output_device=None, *args, **kwargs):
            return function(self, module, None, None, *args, **kwargs)

        return call

    def barrier(function):
        return lambda group=None, async_op=False, device_ids=None: function(group=group, async_op=async_op)

    def mesh(function):
        return lambda self, device_type, *args, **kwargs: function(
            self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def sync_batch_norm(function):
        def call(self, input):
            group = self.process_group
            if self.training and torch.distributed.is_initialized() and torch.distributed.get_world_size(group) > 1:
                refuse("torch.nn.SyncBatchNorm")
            return function(self, input)

        return call

    replace(torch.nn.Module, "to", _moved_to_mapped)  # torch 2.6 asks for a GPU to read a device's number
    replace(torch.nn.parallel.DistributedDataParallel, "__init__", data_parallel)
    replace(torch.nn.SyncBatchNorm, "forward", sync_batch_norm)
    replace(getattr(module_of("torch.distributed.device_mesh"), "DeviceMesh", None), "__init__", mesh)
    replace(torch.distributed, "barrier", barrier)
    torch.distributed.is_nccl_available = lambda: True
    if not hasattr(torch.distributed, "ProcessGroupNCCL"):  # its options change the speed only, and are left out
        torch.distributed.ProcessGroupNCCL = type("ProcessGroupNCCL", (), {"Options": _NcclOptions})


class _NcclOptions:
    def __init__(self, **options):
        self.__dict__.update(options, config=types.SimpleNamespace())


# --- what needs a GPU -------------------------------------------------------------------------------------------------


def _refusal(what, *instead):
    def call(*_, **__):
        refuse(what, *instead)

    return call


def _refuse_unmapped(*_, **__):
    """Instead of torch.cuda._lazy_init, which everything for GPUs calls first. Names what the program has called."""
    frame, what = sys._getframe(1), "an operator on a tensor of CUDA"
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        what = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        frame = frame.f_back
    refuse(what)


_REFUSED = {
    "torch.cuda": ("CUDAGraph", "CUDAPluggableAllocator", "MemPool", "graph", "make_graphed_callables"),
    "torch.cuda.nccl": ("all_gather", "all_reduce", "broadcast", "init_rank", "reduce", "reduce_scatter", "unique_id"),
}


def _refuse_the_rest():
    torch.cuda._lazy_init = _refuse_unmapped
    for module, names in _REFUSED.items():
        for name in names:
            value, what = getattr(module_of(module), name, None), f"{module}.{name}"
            if isinstance(value, type):  # it stays a class, which annotations and isinstance() use
                value.__new__ = _refusal(what)
            else:
                replace(module_of(module), name, lambda _, what=what: _refusal(what))
    for name in [name for name in _LateModules.patches if name in sys.modules]:
        _LateModules.patches.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _LateModules)


def _refuse_sharding(module):
    what = "torch.distributed.fsdp.FullyShardedDataParallel"
    module.FullyShardedDataParallel.__init__ = _refusal(what, "use fully_shard")


def _refuse_kernels(module):
    replace(module, "_join_cuda_home", lambda _: _refusal("a CUDA kernel that torch.utils.cpp_extension builds"))


class _LateModules:
    """A finder of modules that are not imported with torch, and are patched when they have run."""

    patches = {
        "torch.distributed.fsdp.fully_sharded_data_parallel": _refuse_sharding,
        "torch.utils.cpp_extension": _refuse_kernels,
    }

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        patch = cls.patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            run = spec.loader.exec_module

            def run_and_patch(module):
                run(module)
                patch(module)

            spec.loader.exec_module = run_and_patch
        return spec

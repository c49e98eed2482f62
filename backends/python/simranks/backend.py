"""Lets torch.distributed use the simulator where a program asks for Gloo."""

import functools
import os

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from simranks import channel, cuda_map, worlds
from simranks.gloo_group import install_kernels
from simranks.process_group import SimProcessGroup

_store_path = None  # of the ranks that sim-run starts
_is_installed = False


class ProcessGroup(SimProcessGroup):
    """In a process that is no rank, the first group is that of a world."""

    def __init__(self, store, rank, size, timeout=None, **_):
        if not channel.is_rank() and worlds.can_join():
            worlds.join(store, rank, size, timeout)
        super().__init__(store, rank, size, timeout)


def _make(options, _=None):
    group = ProcessGroup(options.store, options.group_rank, options.group_size, options.timeout)
    group.options.global_ranks_in_group = list(options.global_ranks_in_group)
    group.options.group_name = options.group_id
    return group


def is_installed():
    return _is_installed


def install(store_path=None):
    """The Python name of the backend stays "gloo", which DDP, monitored_barrier and Accelerate look at. `store_path`: of the
    ranks that sim-run starts, which need no rendezvous."""
    global _is_installed, _store_path
    _store_path = store_path
    if not _is_installed:
        _is_installed = True
        _patch()


def _patch():
    # A result that is a ProcessGroup becomes the group itself, in all versions.
    c10d.ProcessGroupGloo = dist.ProcessGroupGloo = ProcessGroup
    # From 2.14 or 2.15 on, the backends of torch are plugins.
    ensure = getattr(dist.Backend, "_ensure_backend_registered", None)
    if ensure is not None:
        ensure("gloo")
    if "GLOO" in dist.Backend._plugins:
        dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(_make, True)

    # Groups need no rendezvous of their own: the simulator matches them by name. A wait at the store would also be
    # invisible to it, and a rank that has the turn of a serial schedule must not wait for one that has not.
    barrier = c10d._store_based_barrier
    c10d._store_based_barrier = lambda *args, **kwargs: None if channel.is_rank() else barrier(*args, **kwargs)

    handlers = dist.rendezvous.__globals__["_rendezvous_handlers"]
    rendezvous = handlers["env"]

    def env_rendezvous(url, **kwargs):
        if not channel.is_rank():  # nor was it started by sim-run
            yield from rendezvous(url, **kwargs)
            return
        size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        yield dist.FileStore(_store_path, size), rank, size

    handlers["env"] = env_rendezvous

    init, new_group, destroy = c10d.init_process_group, c10d.new_group, c10d.destroy_process_group

    def init_process_group(backend=None, *args, **kwargs):
        return init(rehearsed(backend), *args, **without_gpus(kwargs))

    def new_simulated_group(ranks=None, timeout=None, backend=None, *args, **kwargs):
        return new_group(ranks, timeout, rehearsed(backend), *args, **without_gpus(kwargs))

    def destroy_process_group(*args, **kwargs):
        destroy(*args, **kwargs)
        if not dist.is_initialized():
            worlds.leave()

    c10d.init_process_group = dist.init_process_group = functools.wraps(init)(init_process_group)
    c10d.new_group = dist.new_group = functools.wraps(new_group)(new_simulated_group)
    c10d.destroy_process_group = dist.destroy_process_group = functools.wraps(destroy)(destroy_process_group)
    if not cuda_map.is_installed():
        _refuse_gpus()
    install_kernels()


def rehearsed(backend):
    """The backend that torch shall make. Raises RuntimeError if it is one that simulated ranks do not rehearse."""
    if not channel.is_rank() and not worlds.can_join():
        return backend
    if cuda_map.is_installed():
        backend = cuda_map.mapped_backend(backend)
    names = [] if backend is None else [part.rpartition(":")[2] for part in str(backend).lower().split(",")]
    for name in names:
        if name in ("mpi", "nccl"):
            mapping = ", or `sim-run --map-cuda`" if name == "nccl" else ""
            raise RuntimeError(
                f"simulated ranks rehearse Gloo on CPUs, got backend {str(backend)!r}; use backend='gloo'{mapping}"
            )
    return "gloo" if "sim" in names else backend


def without_gpus(options):
    """Of a process group: those that choose a GPU, or how fast NCCL is."""
    if not cuda_map.is_installed():
        return options
    return {name: value for name, value in options.items() if name not in ("device_id", "pg_options")}


def _refuse_gpus():
    """Torch's own texts name its build and its drivers, which are not the reason here."""
    text = (
        "simulated ranks have no GPUs, but the program uses a device cuda; use device='cpu', as on a machine without "
        "GPUs, or `sim-run --map-cuda`"
    )

    def refusal():  # one function per name: torch.compile has a table of rules by function
        def refuse(*_, **__):
            raise RuntimeError(text)

        return refuse

    torch.cuda._lazy_init, torch.cuda.set_device = refusal(), refusal()

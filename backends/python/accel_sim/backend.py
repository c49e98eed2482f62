"""Lets torch.distributed use the simulator where a program asks for Gloo."""

import os

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from accel_sim import _native


def _make(options, _):
    backend = _native.ProcessBackend(options.store, options.group_rank, options.group_size)
    backend.options.global_ranks_in_group = list(options.global_ranks_in_group)
    backend.options.group_name = options.group_id
    return backend


def install(store_path):
    """The Python name of the backend stays "gloo", which DDP, monitored_barrier and Accelerate look at. Its type in C++
    is CUSTOM: DDP's logger takes a group of type GLOO for a ProcessGroupGloo."""
    dist.Backend.register_backend("sim", _make, extended_api=True, devices=["cpu"])
    c10d.ProcessGroupGloo = dist.ProcessGroupGloo = _native.ProcessBackend

    kinds, group = dist.ProcessGroup.BackendType, dist.ProcessGroup
    register, set_default = group._register_backend, group._set_default_backend

    def register_as_custom(self, device, kind, backend):
        is_ours = isinstance(backend, _native.ProcessBackend)
        return register(self, device, kinds.CUSTOM if is_ours else kind, backend)

    def set_default_as_custom(self, kind):
        return set_default(self, kinds.CUSTOM if kind == kinds.GLOO else kind)

    group._register_backend = register_as_custom
    group._set_default_backend = set_default_as_custom

    # Groups need no rendezvous of their own: the simulator matches them by name. A wait at the store would also be
    # invisible to it, and a rank that has the turn of a serial schedule must not wait for one that has not.
    c10d._store_based_barrier = lambda *args, **kwargs: None

    def env_rendezvous(url, **_):
        size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        yield dist.FileStore(store_path, size), rank, size

    dist.rendezvous.__globals__["_rendezvous_handlers"]["env"] = env_rendezvous

    init = c10d.init_process_group

    def init_process_group(backend=None, *args, **kwargs):
        return init("gloo" if backend in ("mpi", "sim", "cpu:sim") else backend, *args, **kwargs)

    c10d.init_process_group = dist.init_process_group = init_process_group

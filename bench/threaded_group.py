"""Measures all-reduces of PyTorch's MultiThreadedPG, whose ranks are threads of one Python process. It is the closest
counterpart of the simulator in PyTorch.

    python bench/threaded_group.py RANKS BYTES CALLS    prints the seconds of one call
"""
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

ranks, size, calls = (int(argument) for argument in sys.argv[1:])
torch.set_num_threads(1)
_install_threaded_pg()
torch._C._distributed_c10d._set_thread_isolation_mode(True)
store = dist.HashStore()
seconds = []


def run(rank):
    dist.init_process_group(backend="threaded", rank=rank, world_size=ranks, store=store)
    tensor = torch.ones(max(size // 4, 1))
    dist.all_reduce(tensor)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    dist.barrier()
    if rank == 0:
        seconds.append((time.perf_counter() - start) / calls)


threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(seconds[0])

"""Threads of a rank that use process groups of their own, in an order that differs from rank to rank.

python threads.py THREADS ROUNDS
"""

import random
import sys
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
num_threads, num_rounds = int(sys.argv[1]), int(sys.argv[2])
groups = [dist.group.WORLD, *(dist.new_group(backend="gloo") for _ in range(1, num_threads))]
results = [None] * num_threads


def use(number):
    """Results depend on every call: each goes on from the one before."""
    group, draw = groups[number], random.Random(100 * rank + number)
    total = torch.arange(4.0) + rank + number
    for step in range(num_rounds):
        if draw.random() < 0.3:
            time.sleep(draw.random() * 0.002)
        kind = (step + number) % 4
        if kind == 0:
            dist.all_reduce(total, group=group)
            total = total / size + rank
        elif kind == 1:
            parts = [torch.empty(4) for _ in range(size)]
            work = dist.all_gather(parts, total, group=group, async_op=True)
            work.wait()
            total = torch.stack(parts).cumsum(0)[rank] / size
        elif kind == 2:
            root = step % size
            parts = [torch.empty(4) for _ in range(size)] if rank == root else None
            dist.gather(total, parts, dst=root, group=group)
            if parts:
                total = total + torch.stack(parts).mean(0)
        else:
            request = dist.isend(total, (rank + 1) % size, group=group, tag=number)
            received = torch.empty(4)
            dist.recv(received, (rank - 1) % size, group=group, tag=number)
            request.wait()
            total = received
        total = total.remainder(64)
    results[number] = total.tolist()


threads = [threading.Thread(target=use, args=(number,)) for number in range(1, num_threads)]
for thread in threads if rank % 2 == 0 else reversed(threads):
    thread.start()
use(0)
for thread in threads:
    thread.join()
print(f"result {rank} {results}\n", end="")  # in one write
dist.barrier()

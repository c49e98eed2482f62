"""The programs that bench/python_ranks/python_ranks.py measures; ordinary ones, on simulated and on real ranks."""

import os
import sys
import time

import torch
import torch.distributed as dist


def first_step():
    """An Accelerate script until the end of its first step."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    loss = model(torch.randn(32, 784)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(f"first_step {time.time()}", flush=True)
    memory = torch.tensor([proportional_memory()])
    dist.all_reduce(memory)
    if accelerator.is_main_process:
        print(f"memory {memory.item()}", flush=True)


def proportional_memory():
    """Bytes of this process; what it shares with others is counted in parts."""
    with open("/proc/self/smaps_rollup", encoding="utf-8") as file:
        return 1024.0 * next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def all_reduce():
    """The median time of a 4 KiB all_reduce."""
    dist.init_process_group("gloo")
    tensor, taken = torch.ones(1024), []
    for _ in range(1200):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        taken.append(time.perf_counter() - began)
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, taken[200:])
    if dist.get_rank() == 0:
        print(f"all_reduce {torch.tensor(of_ranks).median().item()}", flush=True)


globals()[sys.argv[1]]()
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()

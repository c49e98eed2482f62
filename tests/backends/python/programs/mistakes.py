"""Programs with one mistake each: `mistakes.py NAME`. Before it all ranks have made one all_reduce. Each prints the time
of rank 0's last call, or of the mistake itself."""

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
set_seed(0)
tensor = torch.ones(8)
dist.all_reduce(tensor)


def gather_on_main_only():
    if accelerator.is_main_process:
        accelerator.gather(tensor)


def groups_in_another_order():
    pairs = [[0, 1], [0, 2]] if rank == 0 else [[0, 2], [0, 1]]
    groups = [dist.new_group(pair) for pair in pairs]
    if rank == 0:
        dist.all_reduce(tensor, group=groups[0])
    elif rank == 1:
        dist.all_reduce(tensor, group=groups[1])


def another_shape():
    dist.all_reduce(torch.ones(8 if rank != 2 else 9))


def another_dtype():
    dist.all_reduce(torch.ones(8, dtype=torch.float64 if rank == 1 else torch.float32))


def another_root():
    dist.broadcast(tensor, src=1 if rank == 3 else 0)


def another_order():
    if rank == 2:
        dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)
    if rank != 2:
        dist.broadcast(tensor, 0)


def raises():
    if rank == 1:
        raise ValueError("bad sample 17")


def exits():
    if rank == 1:
        sys.exit(3)


def exits_at_once():
    if rank == 1:
        os._exit(4)


def dies():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def dies_inside_a_collective():
    if rank == 1:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        dist.barrier()
    time.sleep(0.5)


def barrier_in_one_branch():
    if rank % 2:
        dist.barrier()


def receives_from_nobody():
    if rank == 0:
        dist.recv(tensor, src=1)


def loops_forever():
    while rank == 1:
        pass


def forgets_set_epoch():
    data = torch.utils.data.TensorDataset(torch.arange(16.0))
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    for _ in range(2):
        for _ in torch.utils.data.DataLoader(data, sampler=sampler):
            pass


def updates_another_model():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tensor).sum().backward()
    if rank == 2:
        model.module.weight.grad += 1
    optimizer.step()


def changes_before_wait():
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 2:
        tensor.mul_(2)
    work.wait()


def reads_before_wait():
    work = dist.all_reduce(tensor, async_op=True)
    mean = tensor / 4
    work.wait()
    return mean


def changes_by_numpy():
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 2:
        tensor.numpy()[3] = 7
    work.wait()


def sparse_and_dense():
    entries = tensor.to_sparse()
    dist.all_reduce(entries if rank != 1 else tensor)


def changes_what_torch_receives():
    from torch.distributed.pipelining import schedules

    if rank == 0:
        works = schedules._batch_p2p([dist.P2POp(dist.irecv, tensor, 1)])
        tensor.mul_(2)
    dist.barrier()
    if rank == 1:
        dist.send(tensor, 0)
    if rank == 0:
        schedules._wait_batch_p2p(works)


def changes_sparse_before_wait():
    entries = tensor.to_sparse()
    work = dist.all_reduce(entries, async_op=True)
    if rank == 2:
        entries.mul_(2)
    work.wait()


def draws_another_model():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(rank // 2)
    model = torch.nn.Linear(8, 4)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tensor).sum().backward()
    optimizer.step()


def loads_one_model():
    """No mistake: what the ranks have drawn is replaced."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 2)
    fully_shard(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tensor).sum().backward()
    optimizer.step()


def reads_a_loss_that_is_reduced():
    """No mistake: only the simulator looks at the loss before its wait."""
    weight = torch.ones(3, requires_grad=True)
    loss = weight.sum()
    shown = loss.detach()
    work = dist.all_reduce(shown, async_op=True)
    loss.backward()
    work.wait()


def exits_while_waiting():
    if rank == 1:
        threading.Timer(0.3, os._exit, [4]).start()
    if rank != 0:
        dist.barrier()
    time.sleep(1)


print(f"began {time.time()}", flush=True)
globals()[sys.argv[1]]()
accelerator.wait_for_everyone()

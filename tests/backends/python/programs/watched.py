"""Mistakes of real ranks that `simranks.watch()` explains, one function each, and right programs: `watched.py NAME [unwatched]`."""

import datetime
import os
import signal
import sys
import threading
import time

import simranks

if sys.argv[2:] != ["unwatched"]:
    simranks.watch()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
last = size - 1
tensor = torch.ones(8)


def show(result):
    """In one piece: the ranks share their output."""
    os.write(1, f"result {rank} {result}\n".encode())


# --- calls that differ ------------------------------------------------------------------------------------------------


def dtype():
    dist.all_reduce(tensor.int() if rank == last else tensor)


def reduction():
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX if rank == last else dist.ReduceOp.SUM)


def shape():
    dist.all_reduce(torch.ones(9 if rank == 1 else 8))


def strides():
    dist.all_reduce(torch.ones(2, 4).t() if rank == last else torch.ones(4, 2))


def operation():
    if rank == last:
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)


def root():
    dist.broadcast(tensor, 1 if rank == last else 0)


def gathered_shape():
    part = torch.ones(3 if rank == last else 2)
    dist.all_gather([torch.empty_like(part) for _ in range(size)], part)


def gathered_into_tensor():
    part = torch.ones(2, dtype=torch.float64 if rank == last else torch.float32)
    dist.all_gather_into_tensor(torch.empty(2 * size, dtype=part.dtype), part)


def scattered():
    whole = torch.ones(size * (3 if rank == last else 2))
    dist.reduce_scatter_tensor(torch.empty(len(whole) // size), whole)


def asynchronous():
    works = [dist.all_reduce(torch.ones(4 + (rank == last and step == 2)), async_op=True) for step in range(4)]
    for work in works:
        work.wait()


def objects():
    found = [None] * size
    if rank == last:
        dist.all_gather_object(found, rank)
    else:
        dist.all_reduce(tensor)


def extra_barrier():
    if rank == 1:
        dist.barrier()
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)


def splits():
    """Rank 1 sends three rows to rank 2, which expects two."""
    sent = [2] * size
    if rank == 1:
        sent[2], sent[3] = 3, 1
    dist.all_to_all_single(torch.empty(2 * size, 5), torch.ones(2 * size, 5), [2] * size, sent)


def widths():
    width = 3 if rank == last else 2
    dist.all_to_all_single(torch.empty(size, width), torch.ones(size, width))


def sent_dtype():
    if rank == 0:
        dist.send(torch.ones(4), 1)
    if rank == 1:
        dist.recv(torch.ones(4, dtype=torch.int32), 0)
    dist.barrier()


def sent_size():
    if rank == 0:
        dist.send(torch.ones(4), 1)
    if rank == 1:
        dist.recv(torch.ones(6), 0)
    dist.barrier()


# --- ranks that wait for ever -----------------------------------------------------------------------------------------


def groups_in_another_order():
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    for group in groups[::-1] if rank == 1 else groups:
        dist.all_reduce(tensor, group=group)


def loop_lengths():
    for _ in range(3 if rank == last else 4):
        dist.all_reduce(tensor)


def barrier_on_main():
    if rank == 0:
        dist.barrier()


def receives_from_nobody():
    if rank == 0:
        dist.recv(tensor, src=1)


def messages_in_a_circle():
    dist.recv(tensor, src=(rank + 1) % size)


# --- ranks that end ---------------------------------------------------------------------------------------------------


def raises():
    if rank == 1:
        raise ValueError("bad sample 17")
    dist.all_reduce(tensor)


def exits_at_once():
    if rank == 1:
        os._exit(4)
    dist.all_reduce(tensor)


def is_killed():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor)


# --- ranks that may only be slow --------------------------------------------------------------------------------------


def stops():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(tensor)


def loops():
    if rank == 1:
        while True:
            pass
    dist.all_reduce(tensor)


def sleeps():
    if rank == 1:
        time.sleep(4)
    dist.all_reduce(tensor)
    show(f"{tensor[0].item()}")


# --- right programs ---------------------------------------------------------------------------------------------------


def train(model, optimizer, width, steps):
    """Returns the last loss."""
    torch.manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, width)).square().mean()
        loss.backward()
        optimizer.step()
    return loss


def trains():
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    loss = train(model, torch.optim.Adam(model.parameters(), lr=0.01), width=4, steps=5)
    show(f"{loss.item().hex()} {sum(p.double().sum().item() for p in model.parameters()).hex()}")


def all_collectives():
    """Every collective of Gloo, in two groups, and what torch makes of them."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    pair = pairs[rank // 2]
    numbers = torch.arange(8.0) + rank
    total = numbers.clone()
    dist.all_reduce(total)
    work = dist.all_reduce(total, op=dist.ReduceOp.MAX, group=pair, async_op=True)
    parts = [torch.empty(8) for _ in range(size)]
    dist.all_gather(parts, numbers)
    work.wait()
    whole = torch.empty(8 * size)
    dist.all_gather_into_tensor(whole, numbers)
    piece = torch.empty(8)
    dist.reduce_scatter_tensor(piece, whole.clone())
    dist.broadcast(piece, src=1)
    reduced = numbers.clone()
    dist.reduce(reduced, dst=0)
    dist.scatter(piece, list(whole.chunk(size)) if rank == 2 else None, src=2)
    dist.gather(piece, parts if rank == 0 else None, dst=0)
    swapped = torch.empty(8)
    dist.all_to_all_single(swapped, numbers)
    counts = [1 + (other + rank) % 2 for other in range(size)]
    uneven = torch.empty(sum(counts))
    dist.all_to_all_single(uneven, torch.ones(sum(counts)) * rank, counts, counts)
    peer = rank ^ 1
    works = [dist.isend(numbers, peer, tag=5), dist.irecv(piece, peer, tag=5)]
    for work in works:
        work.wait()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, numbers, peer), dist.P2POp(dist.irecv, piece, peer)])
    for work in works:
        work.wait()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    sparse = torch.sparse_coo_tensor([[rank % 3, 2]], torch.ones(2), (4,), check_invariants=False)
    dist.all_reduce(sparse)
    doubled = dist.all_reduce(numbers, async_op=True).get_future().then(lambda done: done.value()[0] * 2).wait()
    dist.monitored_barrier()
    dist.barrier()
    seen = [total, *parts, whole, swapped, uneven, piece, sparse.to_dense(), doubled, numbers]
    if rank == 0:
        seen.append(reduced)
    show(f"{' '.join(t.double().sum().item().hex() for t in seen)} {objects}")


def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    loss = train(model, torch.optim.SGD(model.parameters(), lr=0.1), width=8, steps=4)
    show(f"{loss.item().hex()}")


def makes_its_groups_again():
    """The next groups have the names of the first ones, and other calls."""
    store = dist.distributed_c10d._get_default_store()  # torch 2.4 closes it with the last group otherwise
    for world in range(3):
        if world > 0:
            dist.destroy_process_group()
            dist.init_process_group("gloo", store=dist.PrefixStore(f"again{world}", store), rank=rank, world_size=size)
        group = dist.new_group([0, 1] if world == 1 else list(range(size)))
        if rank in (0, 1) or world != 1:
            dist.broadcast(tensor, 0, group=group) if world % 2 else dist.all_reduce(tensor, group=group)
        if rank == 1:
            time.sleep(2)
        dist.all_reduce(tensor) if world % 2 else dist.barrier()
    show(f"{tensor.sum().item()}")


def waits_again():
    """After the time-out of one wait; and a thread makes its first call while another waits for it."""
    if rank == 0:
        time.sleep(2)
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait(datetime.timedelta(seconds=0.5))
        late = False
    except RuntimeError:
        late = True
    work.wait()
    pair, other = dist.new_group([0, 1]), torch.ones(3)

    def send():
        time.sleep(3)
        dist.send(other, 1, group=pair)

    if rank == 0:
        thread = threading.Thread(target=send)
        thread.start()
        dist.recv(other, 1)
        thread.join()
    if rank == 1:
        dist.recv(other, 0, group=pair)
        dist.send(other, 0)
    show(f"{tensor[0].item()} {late if rank else ''}")


def exchanges_other_shapes():
    """Gloo compares the elements."""
    output = torch.empty(size, 4)
    dist.all_to_all_single(output, torch.arange(4.0 * size))
    show(f"{output.sum().item()}")


for _ in range(2):
    dist.all_reduce(torch.ones(4))
globals()[sys.argv[1]]()
dist.destroy_process_group()

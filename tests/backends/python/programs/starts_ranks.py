"""Programs that start their ranks themselves, as named by the first argument, and print one line per rank. They run under
sim-run and over real Gloo."""

import hashlib
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3


def say(*words):
    """In one piece: the processes share their output."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def train(rank, name=""):
    """A few steps of DDP, and collectives of a group of two ranks."""
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    pair = dist.new_group([0, 2])
    total = torch.full((2,), rank + 0.1)
    if rank != 1:
        dist.all_reduce(total, group=pair)
    say("result", rank, dist.get_world_size(), name, hashlib.sha256(bits).hexdigest()[:16], total.tolist())


def with_file(rank, file, name="", backend="gloo"):
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=RANKS)
    train(rank, name)
    dist.destroy_process_group()


def with_variables(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("cpu:gloo", rank=rank, world_size=RANKS)
    train(rank)


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(function, *args, join=True):
    """As mp.spawn, but forks the processes, which saves their imports."""
    return mp.start_processes(function, args, nprocs=RANKS, join=join, start_method="fork")


def spawn(folder):
    mp.spawn(with_file, args=(f"{folder}/store",), nprocs=RANKS)


def start_processes(folder):
    mp.start_processes(with_variables, args=(free_port(),), nprocs=RANKS, start_method="forkserver")


def fork(folder):
    children = []
    for rank in range(RANKS):
        children.append(os.fork())
        if children[-1] == 0:
            with_file(rank, f"{folder}/store")
            os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * RANKS


def two_worlds(folder):
    """One after the other, in the same processes; and two at the same time."""
    start(both, folder)
    contexts = [start(with_file, f"{folder}/{name}", name, join=False) for name in ("left", "right")]
    for context in contexts:
        context.join()


def both(rank, folder):
    with_file(rank, f"{folder}/first", "first")
    with_file(rank, f"{folder}/second", "second")


def torchrun(folder):
    """A rank of torchrun."""
    dist.init_process_group()
    train(dist.get_rank())
    dist.destroy_process_group()


def debug_launcher(folder):
    from accelerate import debug_launcher

    debug_launcher(accelerate_training, num_processes=RANKS)


def accelerate_training():
    from accelerate import Accelerator

    accelerator = Accelerator()
    total = accelerator.reduce(torch.ones(2) * accelerator.process_index, "sum")
    say("result", accelerator.process_index, accelerator.num_processes, total.tolist())


# --- failures ---------------------------------------------------------------------------------------------------------


def fails(folder):
    start(fail, f"{folder}/store")


def fail(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    if rank == 1:
        raise ValueError("rank one")
    dist.barrier()


def exits(folder):
    try:
        start(leave, f"{folder}/store")
    except mp.ProcessExitedException as error:
        say("result", error.error_index, error.exit_code)


def leave(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    dist.barrier()
    if rank == 2:
        os._exit(7)
    time.sleep(60)


def hangs(folder):
    start(hang, f"{folder}/store")


def hang(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    if rank != 1:
        dist.all_reduce(torch.ones(4))


def killed(folder):
    """A rank dies by a signal, and the others get an error from their call."""
    context = start(die, f"{folder}/store", join=False)
    for process in context.processes:
        process.join()
    say("result", 0, [process.exitcode for process in context.processes])


def die(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.barrier()
    except RuntimeError as error:
        say("caught", rank, error)
        os._exit(5)


def waits(folder):
    """For the death of this process."""
    context = start(sleep, f"{folder}/store", join=False)
    context.join()


def sleep(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    dist.barrier()
    say("sleeping")
    time.sleep(60)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        globals()[sys.argv[1]](path)

"""Steps per second of an experiment under Hugging Face Accelerate on the CPU: what step_bench --python asks.

usage: accelerate_training.py RANKS STEPS FILE.yaml

Starts the ranks, each with one intra-op thread, trains STEPS micro-batches, and prints {"steps_per_second": x} of rank 0, from
the fetch of the first batch to the end of the last step, after a few steps that are not counted. The loop is that of
properties/oracle/train.py, without its trace.
"""
import json
import os
import socket
import subprocess
import sys
import time

WARM_UP_STEPS = 10


def batches_without_end(loader):
    while True:
        yield from loader


def train(steps, file):
    import torch

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../properties/oracle"))
    import tasks
    import train

    torch.set_num_threads(1)
    config = train.read(file)
    accelerator, model, optimizer, scheduler, loader, _ = train.prepare(config)
    model.train()
    for step, (inputs, targets) in enumerate(batches_without_end(loader)):
        if step == WARM_UP_STEPS:
            accelerator.wait_for_everyone()
            started = time.perf_counter()
        with accelerator.accumulate(model):
            loss = tasks.loss_of(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients and config.get("clip_grad_norm"):
                accelerator.clip_grad_norm_(model.parameters(), config["clip_grad_norm"])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
        if step + 1 == WARM_UP_STEPS + steps:
            break
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(json.dumps({"steps_per_second": steps / (time.perf_counter() - started)}), flush=True)
    os._exit(0)  # a process group's destructor may wait for peers that have gone


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    ranks, steps, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if ranks == 1 or "RANK" in os.environ:
        train(steps, file)
    place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    jobs = []
    for rank in range(ranks):
        of_rank = os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        jobs.append(subprocess.Popen([sys.executable, *sys.argv], env=of_rank))
    return max(job.wait() for job in jobs)


if __name__ == "__main__":
    sys.exit(main())

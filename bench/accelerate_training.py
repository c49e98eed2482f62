"""Measures steps per second of an experiment under Hugging Face Accelerate. Run by step_bench --python and gpu/run_all.

usage: accelerate_training.py RANKS STEPS FILE.yaml [--gpu] [key.path=value ...]

Starts the ranks, each with one intra-op thread, and trains STEPS micro-batches after a warm-up of a few steps. Prints
{"steps_per_second": x, "loss": y, "peak_bytes": z} of rank 0, measured from the first batch after the warm-up to the end of the
last step; the last two only with --gpu. The loop is that of properties/oracle/train.py, without its trace.
"""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../properties/oracle"))
import rank_group

WARM_UP_STEPS = 10


def batches_without_end(loader):
    while True:
        yield from loader


def measure(steps, file, overrides, on_gpu):
    import torch

    import train

    torch.set_num_threads(1)
    config = train.read(file, overrides)
    accelerator, model, optimizer, scheduler, loader, _ = train.prepare(config)
    model.train()
    for step, (inputs, targets) in enumerate(batches_without_end(loader)):
        if step == WARM_UP_STEPS:
            if on_gpu:
                torch.cuda.synchronize()
            accelerator.wait_for_everyone()
            started = time.perf_counter()
        loss = train.train_batch(config, accelerator, model, optimizer, scheduler, inputs, targets)
        if step + 1 == WARM_UP_STEPS + steps:
            break
    if on_gpu:
        torch.cuda.synchronize()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        result = {"steps_per_second": steps / (time.perf_counter() - started)}
        if on_gpu:
            result |= {"loss": loss.item(), "peak_bytes": torch.cuda.max_memory_allocated()}
        print(json.dumps(result), flush=True)
    os._exit(0)  # the destructor of a process group may wait for peers that have exited


def main():
    ranks, steps, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    on_gpu = "--gpu" in sys.argv
    if on_gpu:
        os.environ["ACCEL_ORACLE_DEVICE"] = "cuda"
    if ranks == 1 or "RANK" in os.environ:
        measure(steps, file, [argument for argument in sys.argv[4:] if argument != "--gpu"], on_gpu)
    port = rank_group.free_port()
    jobs = []
    for rank in range(ranks):
        of_rank = os.environ | rank_group.variables_of(rank, ranks, port) | {"OMP_NUM_THREADS": "1"}
        jobs.append(subprocess.Popen([sys.executable, *sys.argv], env=of_rank))
    return max(job.wait() for job in jobs)


if __name__ == "__main__":
    sys.exit(main())

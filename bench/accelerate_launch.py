"""Measures the seconds from `accelerate launch` to the end of the first optimizer step. Run by launch_bench --python.

usage: accelerate_launch.py RANKS

Under Accelerate `--cpu` starts a single process. Its launcher for several processes (torch.distributed.run) is used with
--multi_gpu, which also works for ranks on CPUs if they set ACCELERATE_USE_CPU. Prints {"seconds": x}.
"""
import json
import os
import subprocess
import sys
import tempfile
import time


def first_step():
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator(cpu=True)
    set_seed(1)
    net = torch.nn.Linear(784, 10)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    accelerator.backward(model(torch.ones(32, 784)).square().mean())
    optimizer.step()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        with open(os.environ["FIRST_STEP_FILE"], "w") as file:
            file.write(str(time.monotonic_ns()))
    accelerator.end_training()


def main():
    if "FIRST_STEP_FILE" in os.environ:
        first_step()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "ended")
        variables = os.environ | {"FIRST_STEP_FILE": file, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HOME": folder}
        launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
                    "--main_process_port", "0", "--num_processes", sys.argv[1], os.path.abspath(__file__)]
        started = time.monotonic_ns()
        code = subprocess.run(launcher, env=variables, stdout=subprocess.DEVNULL).returncode
        if code == 0:
            print(json.dumps({"seconds": (int(open(file).read()) - started) / 1e9}), flush=True)
        return code


if __name__ == "__main__":
    sys.exit(main())

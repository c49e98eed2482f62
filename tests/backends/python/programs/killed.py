"""A training that is killed: `killed.py RANK SECONDS`. It has loader workers, memory in flight, and no end of its own."""

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == int(sys.argv[1]):
    threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1 if rank == 0 else 0)
while True:
    for (x,) in loader:
        works = [dist.all_reduce(torch.randn(1 << size), async_op=True) for size in (4, 10, 16)]
        for work in works:
            work.wait()

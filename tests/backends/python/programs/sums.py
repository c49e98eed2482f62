"""A program that needs torch only: an all-reduce, and one step of DDP. `./dev wheel --check` runs it with the wheel."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
optimizer.step()
print(f"sum over {dist.get_world_size()} ranks: {total.item()}", flush=True)
dist.destroy_process_group()

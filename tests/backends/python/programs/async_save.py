"""Saves checkpoints in a thread with a process group of its own while the training goes on.

python async_save.py FOLDER ddp|fsdp
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

folder, kind = sys.argv[1:]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


def make_model(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def copy_of(model):
    state = get_model_state_dict(model)
    return {name: getattr(value, "full_tensor", value.clone)().clone() for name, value in state.items()}


model, saving_group = make_model(0), dist.new_group(backend="gloo")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
numbers, saved, future = torch.Generator().manual_seed(rank), [], None
for step in range(9):
    model(torch.randn(4, 8, generator=numbers)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 0:
        if future is not None:
            future.result()
        saved.append(copy_of(model))
        state = {"model": get_model_state_dict(model)}
        future = dcp.async_save(state, checkpoint_id=f"{folder}/{step}", process_group=saving_group)
future.result()
trained = copy_of(model)

other = make_model(1)
for step, expected in zip((0, 3, 6), saved):
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=f"{folder}/{step}")
    set_model_state_dict(other, state["model"])
    assert all(torch.equal(value, expected[name]) for name, value in copy_of(other).items()), step
print(f"result {rank} {[value.double().sum().item() for value in trained.values()]}\n", end="")  # in one write
dist.barrier()

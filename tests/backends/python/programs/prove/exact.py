"""A divided layer whose sums are exact in any order: its data and parameters are multiples of powers of two."""

import os

import simranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
tp_size = int(os.environ["PARALLELISM_CONFIG_TP_SIZE"])
dp_size = dist.get_world_size() // tp_size
mesh = init_device_mesh("cpu", (dp_size, tp_size), mesh_dim_names=("dp", "tp"))
tp, tp_rank, dp_rank = mesh["tp"].get_group(), mesh["tp"].get_local_rank(), mesh["dp"].get_local_rank()


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        total = partial.clone()
        dist.all_reduce(total, group=tp)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        up, down = (simranks.dyadic(torch.randn(8, 8, dtype=torch.float64)) for _ in range(2))
        self.up = nn.Parameter(up.chunk(tp_size)[tp_rank].clone())
        self.down = nn.Parameter(down.chunk(tp_size, 1)[tp_rank].clone())

    def forward(self, x):
        return Reduce.apply((x @ self.up.T).relu() @ self.down.T)


torch.manual_seed(4)
model = Layer()
optimizer = torch.optim.SGD(model.parameters(), lr=2**-10)
for step in range(1):  # later ones would need more digits than float64 has
    inputs, targets = (simranks.dyadic(torch.randn(8, 8, dtype=torch.float64)).chunk(dp_size)[dp_rank] for _ in range(2))
    (model(inputs) - targets).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
        parameter.grad /= dp_size
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

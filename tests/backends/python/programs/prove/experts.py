"""A mixture of experts that are divided over ranks: rows travel to the rank of their expert and back by all-to-all."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, INNER, EXPERTS, CLASSES = 6, 8, 4, 5

dist.init_process_group("gloo")
world, ep_size = dist.get_world_size(), int(os.environ["PARALLELISM_CONFIG_EP_SIZE"])
mesh = init_device_mesh("cpu", (world // ep_size, ep_size), mesh_dim_names=("expert_dp", "ep"))
ep, expert_dp = mesh["ep"].get_group(), mesh["expert_dp"].get_group()
ep_rank = mesh["ep"].get_local_rank()


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.counts = sent, received
        output = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(output, rows.contiguous(), received, sent, group=ep)
        return output

    @staticmethod
    def backward(ctx, gradient):
        sent, received = ctx.counts
        output = gradient.new_empty(sum(sent), *gradient.shape[1:])
        dist.all_to_all_single(output, gradient.contiguous(), sent, received, group=ep)
        return output, None, None


class Experts(nn.Module):
    """Those of this rank."""

    def __init__(self):
        super().__init__()
        first, second = torch.randn(EXPERTS, WIDTH, INNER) / 2, torch.randn(EXPERTS, INNER, WIDTH) / 2
        self.first, self.second = (nn.Parameter(weight.chunk(ep_size)[ep_rank].clone()) for weight in (first, second))

    def forward(self, rows, chosen):
        output = torch.zeros_like(rows)
        for expert in range(len(self.first)):
            own = chosen == expert + ep_rank * len(self.first)
            output = output.index_put((own,), F.silu(rows[own] @ self.first[expert]) @ self.second[expert])
        return output


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS), Experts()

    def forward(self, rows):
        weights, chosen = self.router(rows).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen // (EXPERTS // ep_size), minlength=ep_size)
        sizes = torch.empty_like(counts)
        dist.all_to_all_single(sizes, counts, group=ep)
        sent, received = counts.tolist(), sizes.tolist()
        travelled = AllToAll.apply(rows[order], sent, received)
        numbers = AllToAll.apply(chosen[order], sent, received)
        returned = AllToAll.apply(self.experts(travelled, numbers), received, sent)
        return rows + weights.unsqueeze(1) * torch.zeros_like(rows).index_put((order,), returned)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.mixture, self.outer = nn.Linear(WIDTH, WIDTH), Mixture(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.outer(self.mixture(self.inner(x)))


torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
model = Model()
data = TensorDataset(torch.randn(64, WIDTH), torch.randint(CLASSES, (64,)))
loader = DataLoader(data, 16, sampler=DistributedSampler(data, world, dist.get_rank(), shuffle=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
experts = list(model.mixture.experts.parameters())

for inputs, targets in loader:
    F.cross_entropy(model(inputs), targets).backward()
    for parameter in model.parameters():
        is_expert = any(parameter is known for known in experts)
        dist.all_reduce(parameter.grad, group=expert_dp if is_expert else None)
        parameter.grad /= world
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

"""A language model whose layers are divided by hand, as in Megatron-LM: tensor and sequence parallelism beside data parallelism."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCAB, WIDTH, HEADS, LENGTH = 16, 8, 4, 8

dist.init_process_group("gloo")
tp_size = int(os.environ["PARALLELISM_CONFIG_TP_SIZE"])
dp_size = dist.get_world_size() // tp_size
mesh = init_device_mesh("cpu", (dp_size, tp_size), mesh_dim_names=("dp", "tp"))
dp, tp = mesh["dp"].get_group(), mesh["tp"].get_group()
dp_rank, tp_rank = mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()


def own(tensor, dim):
    return tensor.chunk(tp_size, dim)[tp_rank]


def all_gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(tp_size)]
    dist.all_gather(parts, tensor.contiguous(), group=tp)
    return torch.cat(parts, 1)


def reduce_scatter(tensor):
    total = tensor.clone()
    dist.all_reduce(total, group=tp)
    return own(total, 1)


def own_positions(tensor):
    return own(tensor, 1)


def exchange(of_values, of_gradients):
    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return of_values(values)

        @staticmethod
        def backward(ctx, gradient):
            return of_gradients(gradient)

    return Exchange


GatherForLayer = exchange(all_gather, reduce_scatter)  # complete positions, of which every rank computes other features
GatherForAll = exchange(all_gather, own_positions)  # complete positions, with which every rank computes the same
ReduceScatter = exchange(reduce_scatter, all_gather)
Scatter = exchange(own_positions, all_gather)


def divided(layer, dim, sections=1):
    """A linear layer with the rank's part of the weight."""
    weight = torch.cat([own(section, dim) for section in layer.weight.detach().chunk(sections, dim)], dim)
    layer.weight = nn.Parameter(weight)
    layer.weight.is_divided = True
    if dim == 0:
        layer.bias = nn.Parameter(torch.cat([own(section, 0) for section in layer.bias.detach().chunk(sections)]))
        layer.bias.is_divided = True
    return layer


class Row(nn.Module):
    """A layer whose inputs are divided."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.product = divided(nn.Linear(inputs, outputs, bias=False), 1)
        self.bias = nn.Parameter(torch.randn(outputs) / 4)

    def forward(self, part):
        return ReduceScatter.apply(self.product(part)) + self.bias


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = divided(nn.Linear(WIDTH, 3 * WIDTH), 0, sections=3)
        self.output = Row(WIDTH, WIDTH)

    def forward(self, part):
        queries, keys, values = (
            x.unflatten(-1, (HEADS // tp_size, -1)).transpose(1, 2) for x in self.qkv(GatherForLayer.apply(part)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = divided(nn.Linear(WIDTH, 4 * WIDTH), 0)
        self.down = Row(4 * WIDTH, WIDTH)

    def forward(self, part):
        return self.down(F.gelu(self.up(GatherForLayer.apply(part))))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, part):
        part = part + self.attention(self.norm1(part))
        return part + self.feed_forward(self.norm2(part))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        part = Scatter.apply(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            part = block(part)
        return self.head(GatherForAll.apply(self.norm(part)))


torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
model = Model()
text = torch.randint(VOCAB, (32, LENGTH + 1))
sampler = DistributedSampler(TensorDataset(text), dp_size, dp_rank, shuffle=False)
loader = DataLoader(sampler.dataset, 8, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
norms = {f"{name}.{leaf}" for name, module in model.named_modules() if isinstance(module, nn.LayerNorm) for leaf in ("weight", "bias")}
in_sequence = norms | {name for name, _ in model.named_parameters() if name.endswith(("output.bias", "down.bias"))}

for (batch,) in loader:
    tokens, targets = batch[:, :-1], batch[:, 1:].masked_fill(batch[:, 1:] == 1, -100)
    count = (targets != -100).sum()
    dist.all_reduce(count, group=dp)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum") * dp_size / count
    loss.backward()
    for name, parameter in model.named_parameters():
        if name in in_sequence:
            dist.all_reduce(parameter.grad, group=tp)
        dist.all_reduce(parameter.grad, group=dp)
        parameter.grad /= dp_size
    square = sum(p.grad.square().sum() for p in model.parameters() if hasattr(p, "is_divided"))
    dist.all_reduce(square, group=tp)
    square += sum(p.grad.square().sum() for p in model.parameters() if not hasattr(p, "is_divided"))
    for parameter in model.parameters():
        parameter.grad *= min(1.0, 0.25 / square.sqrt().item())
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

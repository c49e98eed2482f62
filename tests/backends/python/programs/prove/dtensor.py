"""A language model divided by torch itself: FSDP2 beside tensor parallelism with a sequence-parallel region."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCAB, WIDTH, HEADS, LENGTH = 16, 8, 4, 8

dist.init_process_group("gloo")
shards, tp_size = (int(os.environ[f"PARALLELISM_CONFIG_{axis}_SIZE"]) for axis in ("DP_SHARD", "TP"))
mesh = init_device_mesh("cpu", (shards, tp_size), mesh_dim_names=("dp_shard", "tp"))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        query, key, value = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        return self.output(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
model = Model()
if tp_size > 1:
    parallelize_module(model, mesh["tp"], {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {
            "norm1": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.query": ColwiseParallel(), "attention.key": ColwiseParallel(), "attention.value": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "norm2": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.up": ColwiseParallel(),
            "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
        })
for block in model.blocks:
    fully_shard(block, mesh=mesh["dp_shard"])
fully_shard(model, mesh=mesh["dp_shard"])
text = torch.randint(VOCAB, (32, LENGTH + 1))
sampler = DistributedSampler(TensorDataset(text), shards, mesh["dp_shard"].get_local_rank(), shuffle=False)
loader = DataLoader(sampler.dataset, 8, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for (batch,) in loader:
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

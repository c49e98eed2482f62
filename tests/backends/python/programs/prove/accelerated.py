"""A classifier that Accelerate divides: the sizes are those of its ParallelismConfig, which reads them from the environment."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import set_seed
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(2)), nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


config = ParallelismConfig()
shards = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Layer"])
accelerator = Accelerator(parallelism_config=config, fsdp_plugin=shards if config.dp_shard_size > 1 else None)
set_seed(5)
model = Model()
if config.tp_size > 1:
    for layer in model.layers:
        parallelize_module(layer, accelerator.torch_device_mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model.tp_size = config.tp_size
data = TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 16, shuffle=True))
for inputs, targets in loader:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()

"""Data parallel programs in styles that a comparison by the places of rows may take for wrong: `styles.py STYLE`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 4


def loader(*tensors, size=16):
    data = TensorDataset(*tensors)
    return DataLoader(data, size, sampler=DistributedSampler(data, shuffle=False))


def samples(count=64):
    return torch.randn(count, 8), torch.randint(CLASSES, (count,))


def network(outputs=CLASSES):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))


def train(model, batches, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in batches:
        loss_of(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_models_and_a_loss_module():
    encoder, head, loss = (DistributedDataParallel(module) for module in (network(8), network(), ScaledLoss()))
    train(nn.ModuleList([encoder, head, loss]), loader(*samples()), lambda x, y: loss(head(encoder(x)), y))


class ScaledLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x, targets):
        return F.cross_entropy(self.scale * x, targets)


def checkpointed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = nn.ModuleList(network(8) for _ in range(2)), nn.Linear(8, CLASSES)

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    model = DistributedDataParallel(Model())
    train(model, loader(*samples()), lambda x, y: F.cross_entropy(model(x), y))


def keywords():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, mask, inputs):
            return self.network(inputs * mask)

    model = DistributedDataParallel(Model())
    train(model, loader(torch.ones(64, 8), *samples()), lambda mask, x, y: F.cross_entropy(model(mask=mask, inputs=x), y))


def heads_in_the_batch():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.qkv = nn.Embedding(CLASSES, 8), nn.Linear(8, 24)
            self.softmax, self.head = nn.Softmax(-1), nn.Linear(8, CLASSES)

        def forward(self, tokens):
            count, length = tokens.shape
            query, key, value = (x.view(count, length, 2, 4).transpose(1, 2).reshape(2 * count, length, 4)
                                 for x in self.qkv(self.tokens(tokens)).chunk(3, -1))
            mixed = self.softmax(query @ key.transpose(1, 2)) @ value
            return self.head(mixed.view(count, 2, length, 4).transpose(1, 2).reshape(count, length, 8))

    model = DistributedDataParallel(Model())
    train(model, loader(torch.randint(CLASSES, (64, 7))),
          lambda text: F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()))


def selected_rows():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, CLASSES) for _ in range(3))

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).max(-1)
            output = x.new_zeros(len(x), CLASSES)
            for number, expert in enumerate(self.experts):
                rows = (chosen == number).nonzero().flatten()
                output = output.index_add(0, rows, expert(x[rows]) * weights[rows, None])
            return output

    model = DistributedDataParallel(Model())
    train(model, loader(*samples(), size=32), lambda x, y: F.cross_entropy(model(x), y))


def sequence_first():
    train_on_sequences(lambda text: text.t())


def sequence_first_in_reverse():
    train_on_sequences(lambda text: text.t().flip(1))


def train_on_sequences(arrange):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

        def forward(self, tokens):
            return self.head(self.layer(self.tokens(tokens)))

    model = DistributedDataParallel(Model())
    train(model, loader(torch.randint(CLASSES, (64, 7))),
          lambda text: F.cross_entropy(model(arrange(text)[:-1]).flatten(0, 1), arrange(text)[1:].flatten()))


def two_batches_in_a_step():
    model = DistributedDataParallel(network())
    labelled, unlabelled = loader(*samples(), size=8), loader(torch.randn(128, 8))
    train(model, ((x, y, other) for (x, y), (other,) in zip(labelled, unlabelled)),
          lambda x, y, other: F.cross_entropy(model(x), y) + 0.5 * model(other).square().mean())


def equal_samples():
    model = DistributedDataParallel(network())
    train(model, loader(torch.randn(1, 8).repeat(64, 1), samples()[1]), lambda x, y: F.cross_entropy(model(x), y))


def mixed_precision():
    model = DistributedDataParallel(network().float())

    def loss_of(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x.float()), y)

    train(model, loader(*samples()), loss_of)


def infinite_logits():
    model = DistributedDataParallel(Masked())
    train(model, loader(*samples()), lambda x, y: F.cross_entropy(model(x), y % (CLASSES - 1)))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return torch.where(torch.arange(CLASSES) == CLASSES - 1, -torch.inf, self.network(x))


dist.init_process_group("gloo")
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
globals()[sys.argv[1]]()
dist.destroy_process_group()

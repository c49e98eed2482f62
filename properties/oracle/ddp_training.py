"""A few steps of a small model with options of DistributedDataParallel, or with local SGD, under Hugging Face Accelerate.

A rank of a group (rank_group.py): items have the fields of DdpTrainingRequest (properties/gen/ddp_training.hpp, which is the
same in C++), answers are {"steps": [[loss as hexadecimal, SHA-256 of parameters and buffers], ...]}.
"""
import contextlib
import hashlib

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import set_seed
from torch import nn
from torch.distributed.algorithms.join import Join

import rank_group
from comm_hooks import batched_power_sgd_repaired, ddp_kwargs


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.first = nn.Linear(20, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, hidden)
        self.third = nn.Linear(hidden, hidden)
        self.extra = nn.Linear(20, 3)
        self.last = nn.Linear(hidden, 3)

    def forward(self, x, uses_extra):
        y = torch.tanh(self.second(self.norm(torch.tanh(self.first(x)))))
        y = self.last(torch.tanh(self.third(y)))
        return y, self.extra(x) if uses_extra else torch.zeros(1)


def state_of(net):
    tensors = [*net.parameters(), *net.buffers()]
    raw = b"".join(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy()) for tensor in tensors)
    return hashlib.sha256(raw).hexdigest()


def train(request):
    with batched_power_sgd_repaired():
        return {"steps": steps_of(request)}


def steps_of(request):
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=request.get("mixed_precision", "no"),
        gradient_accumulation_steps=request.get("accumulation_steps", 1),
        kwargs_handlers=[ddp_kwargs(request.get("kwargs", {}))],
    )
    set_seed(request["seed"])
    net = Net(request["hidden"])
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(net, sgd)
    set_seed(request["seed"], device_specific=True)
    unused, steps = request.get("unused", "no"), []

    def train_step(step):
        x, target = torch.randn(8, 20), torch.randn(8, 3)
        with accelerator.accumulate(model):
            uses_extra = unused in ("no", "in_loss") or (unused == "at_times" and step % 2 == 0)
            y, extra = model(x, uses_extra)
            loss = (y - target).square().mean()
            if uses_extra and unused != "in_loss":
                loss = loss + extra.square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        steps.append([loss.item().hex(), state_of(net)])

    uneven, local_sgd_steps = request.get("uneven", False), request.get("local_sgd_steps", 0)
    # Accelerate joins uneven inputs on GPUs only; it does so with torch's Join, which is used here directly.
    with Join([model], enable=uneven) if uneven else contextlib.nullcontext():
        with LocalSGD(accelerator, model, local_sgd_steps or 1, enabled=local_sgd_steps > 0) as local_sgd:
            for step in range(max(1, request["steps"] - accelerator.process_index) if uneven else request["steps"]):
                train_step(step)
                local_sgd.step()
    steps.append([(0.0).hex(), state_of(net)])
    return steps


if __name__ == "__main__":
    rank_group.serve(train)

"""Trainings of torch.distributed.pipelining; pipeline_run_answers.cpp is the same in C++.

A rank of a group (rank_group.py): items are {"seed", "schedule", "stages_per_rank", "micro_batches", "rows", "width"}; answers have
"losses", of the batches of three steps on the rank that has the last stage, and of each parameter of the rank's stages a hash in "parameters"
and its elements in "values".
torch divides gradients by the number of micro-batches when they are added up, accel the losses before. So the numbers of micro-batches
are powers of two, for which both give the same bits.
"""
import hashlib

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

import pipelines
import rank_group

RANKS = (2, 3, 4)
STEPS = 3


def random_request(rng, ranks):
    name = rng.choice(["1f1b", *sorted(pipelines.SCHEDULES)])
    per_rank = 1 if name in ("1f1b", "gpipe", "zb_h1") else 2 if name in ("zbv", "dualpipe_v") else rng.randrange(1, 4)
    counts = [2, 4, 8, 16]
    if name in ("interleaved_1f1b", "zb_h1", "interleaved_zero_bubble"):
        counts = [count for count in counts if count % max(1, count // ranks) == 0]
    if name == "dualpipe_v":
        counts = [count for count in counts if count >= ranks * per_rank]
    return {
        "seed": rng.randrange(1000),
        "schedule": name,
        "stages_per_rank": per_rank,
        "micro_batches": rng.choice(counts),
        "rows": rng.randrange(1, 4),  # of a micro-batch
        "width": rng.randrange(1, 9),
    }


class Stage(torch.nn.Module):
    def __init__(self, width, generator):
        super().__init__()
        for name, sizes in (("first", (width, width)), ("bias", (width,)), ("second", (width, width))):
            setattr(self, name, torch.nn.Parameter(torch.randn(sizes, generator=generator)))

    def forward(self, x):
        return x + torch.nn.functional.linear(torch.tanh(torch.nn.functional.linear(x, self.first, self.bias)), self.second)


def stage_of(schedule, rank, ranks, index):
    """The number of the rank's stage `index`."""
    backwards = schedule in ("zbv", "dualpipe_v") and index % 2 == 1
    return index * ranks + (ranks - 1 - rank if backwards else rank)


def answer(request):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    name, count, per_rank = request["schedule"], request["micro_batches"], request["stages_per_rank"]
    generator = torch.Generator().manual_seed(request["seed"])
    modules = [Stage(request["width"], generator) for _ in range(ranks * per_rank)]
    batches = [[torch.randn(count * request["rows"], request["width"], generator=generator) for _ in range(2)] for _ in range(STEPS)]
    indices = [stage_of(name, rank, ranks, index) for index in range(per_rank)]
    # A warm-up of NCCL's connections, in which V-shaped schedules send to themselves, as Gloo cannot.
    PipelineStage._get_init_p2p_neighbors_ops = lambda self: []
    stages = [PipelineStage(modules[index], index, len(modules), torch.device("cpu")) for index in indices]
    kind = schedules.Schedule1F1B if name == "1f1b" else pipelines.SCHEDULES[name]
    is_single = issubclass(kind, schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if is_single else stages, count, loss_fn=torch.nn.functional.mse_loss)
    parameters = {f"{index}.{key}": value for index in indices for key, value in modules[index].named_parameters()}
    losses = []
    for inputs, targets in batches:
        own = []
        given = (inputs,) if 0 in indices else ()
        if len(modules) - 1 in indices:
            schedule.step(*given, target=targets, losses=own)
            total = torch.zeros(())
            for loss in own:
                total = total + loss.detach() * (1 / count)
            losses.append(total.item())
        else:
            schedule.step(*given)
        with torch.no_grad():
            for value in parameters.values():
                value.add_(value.grad, alpha=-0.1)
                value.grad = None
    return {
        "losses": losses,
        "parameters": {key: hashlib.sha256(value.detach().numpy().tobytes()).hexdigest() for key, value in sorted(parameters.items())},
        "values": {key: value.detach().flatten().tolist() for key, value in sorted(parameters.items())},
    }


def difference(theirs, ours):
    """Both: per rank, its answer."""
    for rank, (left, right) in enumerate(zip(theirs, ours, strict=True)):
        if left["losses"] and left["losses"] != right["losses"]:
            return f"rank {rank}: losses are {left['losses']} and {right['losses']}"
        if left["parameters"] != right["parameters"]:
            unequal = [key for key in left["parameters"] if left["parameters"][key] != right["parameters"].get(key)]
            return f"rank {rank}: parameters {unequal or list(right['parameters'])} differ"
    return None


if __name__ == "__main__":
    rank_group.serve(answer)

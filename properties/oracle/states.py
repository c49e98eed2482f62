"""Whole checkpoints, exchanged with accel: a training that Accelerate begins and saves continues in accel, and vice versa, with the
bits of one without a break. `oracle-answers checkpoints` is accel's side; this file, run as a rank, is Accelerate's.
"""
import hashlib
import os
import sys

import compare
import rank_group

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("none", "step", "lambda")


def random_request(rng):
    return {
        "seed": rng.randrange(1000),
        "optimizer": rng.choice(OPTIMIZERS),
        "schedule": rng.choice(SCHEDULES),
        "precision": rng.choice(["no", "no", "bf16"]),
        "accumulation": rng.choice([1, 1, 2]),
        "safe": rng.random() < 0.7,
        "before": 2 * rng.randrange(1, 4),
        "after": 2 * rng.randrange(1, 4),
    }


# --- a training ----------------------------------------------------------------------------------------------------------


class Counter:
    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def train(request):
    """Loads from `load` if it is given, trains `steps` micro-batches, and saves to `save` if it is given."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator(cpu=True, mixed_precision=request["precision"], gradient_accumulation_steps=request["accumulation"])
    set_seed(request["seed"] if not request["load"] else request["seed"] + 1)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.25), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    if request["optimizer"] == "sgd":
        plain = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)
    else:
        plain = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[request["optimizer"]](net.parameters(), lr=0.01, fused=True)
    model, optimizer = accelerator.prepare(net, plain)
    scheduler = None
    if request["schedule"] == "step":
        scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(plain, 2, 0.5))
    if request["schedule"] == "lambda":
        scheduler = accelerator.prepare(torch.optim.lr_scheduler.LambdaLR(plain, lambda step: 1 / (step + 1)))
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    if request["load"]:
        accelerator.load_state(request["load"])
    losses = []
    for _ in range(request["steps"]):
        index = counter.steps * accelerator.num_processes + accelerator.process_index
        inputs = torch.sin(torch.arange(12, dtype=torch.float32).view(2, 6) * float(index + 1))
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), torch.tensor([index % 3, (index + 1) % 3]))
            accelerator.backward(loss)
            optimizer.step()
            if scheduler:
                scheduler.step()
            optimizer.zero_grad()
        counter.steps += 1
        losses.append(loss.item().hex())
    if request["save"]:
        accelerator.save_state(request["save"], safe_serialization=request["safe"])
        accelerator.wait_for_everyone()
    hash = hashlib.sha256()
    for parameter in net.parameters():
        hash.update(parameter.detach().numpy().tobytes())
    return {"losses": losses, "lr": plain.param_groups[0]["lr"], "parameters": hash.hexdigest()}


# --- comparisons ------------------------------------------------------------------------------------------------------------


def parts(requests, folder, who):
    """The training without a break; its first part; its second part, continued from the first part of `who`."""
    uncut = [dict(request, steps=request["before"] + request["after"], load=None, save=None) for request in requests]
    first = [dict(request, steps=request["before"], load=None, save=os.path.join(folder, f"{who}{number}")) for number, request in enumerate(requests)]
    second = [dict(request, steps=request["after"], load=os.path.join(folder, f"{who}{number}"), save=None) for number, request in enumerate(requests)]
    return uncut, first, second


def by_accelerate(items, ranks):
    return list(rank_group.walk(__file__, ranks, items, is_launched=True))


def difference(uncut, first, second):
    for what, answer in (("training without a break", uncut), ("first part", first), ("second part", second)):
        if error := compare.error_of(answer):
            return f"{what}: {error}"
    for rank, (whole, begun, resumed) in enumerate(zip(uncut, first, second, strict=True)):
        losses = begun["losses"] + resumed["losses"]
        if [float.fromhex(loss) for loss in losses] != [float.fromhex(loss) for loss in whole["losses"]]:
            return f"rank {rank}: losses {losses}, uncut {whole['losses']}"
        for key in ("lr", "parameters"):
            if resumed[key] != whole[key]:
                return f"rank {rank}: {key} {resumed[key]}, uncut {whole[key]}"
    return None


if __name__ == "__main__":
    sys.exit(rank_group.serve(train))

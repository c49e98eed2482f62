"""What a learning-rate schedule does to its optimizer over many steps; properties/gen/schedule_values.cpp is the same in C++.

A request is {"optimizer", "lrs": one for each parameter group, "scheduler", "steps", "state_at"}. `scheduler` is that of an
experiment file, or one that such a file cannot express: "lambda" and "multiplicative" of FACTORS, "reduce_lr_on_plateau" (stepped
with `metric`, as "greedy" is), "get_scheduler" of Transformers, lists for parameter groups, "scale_fn" of "cyclic"; "made_before" is a
schedule created earlier on the same optimizer, "last_epoch" starts after that epoch, "parts" is the number of steps in each epoch. An answer has the SHA-256 of all rates, as doubles, and of
the momentum; every 50th of them; and the state dict after `state_at` steps. An exception ends it: "error", and "at" which step.
"""
import hashlib
import math
import struct
import warnings

import torch
from torch.optim import lr_scheduler

import schedules

warnings.filterwarnings("ignore")
EVERY = 50
FACTORS = {
    "inverse": lambda epoch: 1.0 / (1 + epoch),
    "saw": lambda epoch: (epoch % 7 + 1) / 8,
    "wander": lambda epoch: 1.0078125 if epoch % 3 == 0 else 0.99609375,
}
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.5, momentum=0.25),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.5),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.5),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.5),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.5),
}


def metric(step):
    return 1.0 / (1 + step // 40) + (step * 7919) % 97 / 1000


def build(config, optimizer):
    name, arguments = config["name"], {key: value for key, value in config.items() if key != "name"}
    if name in ("lambda", "multiplicative"):
        factors = arguments["factors"]
        factors = [FACTORS[factor] for factor in factors] if isinstance(factors, list) else FACTORS[factors]
        kind = lr_scheduler.LambdaLR if name == "lambda" else lr_scheduler.MultiplicativeLR
        return kind(optimizer, factors, last_epoch=arguments.get("last_epoch", -1))
    if name == "reduce_lr_on_plateau":
        return lr_scheduler.ReduceLROnPlateau(optimizer, **arguments)
    if name == "get_scheduler":
        from transformers.optimization import get_scheduler

        return get_scheduler(arguments.pop("type"), optimizer, **arguments)
    if "scale_fn" in arguments or "last_epoch" in arguments:
        if "scale_fn" in arguments:
            arguments["scale_fn"] = FACTORS[arguments["scale_fn"]]
        return schedules.TORCH[name](optimizer, **arguments)
    return schedules.build_scheduler(config, optimizer)


def step_arguments(request, scheduler, step):
    if "parts" in request:
        return [step / request["parts"]]
    follows_metric = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) or type(scheduler).__name__ == "GreedyLR"
    return [metric(step)] if follows_metric else []


def momentum_of(group):
    return group["betas"][0] if "betas" in group else group.get("momentum")


def start(request):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in request["lrs"]]
    if "last_epoch" in request["scheduler"]:
        groups = [group | {"initial_lr": group["lr"]} for group in groups]
    optimizer = OPTIMIZERS[request["optimizer"]](groups)
    if "made_before" in request:
        build(request["made_before"], optimizer)
    return optimizer, build(request["scheduler"], optimizer)


def answer(request):
    try:
        optimizer, scheduler = start(request)
    except Exception as error:
        return {"error": type(error).__name__, "at": None}
    rates, momentum, found = [], [], {}
    for step in range(request["steps"] + 1):
        if step > 0:
            try:
                scheduler.step(*step_arguments(request, scheduler, step))
            except Exception as error:
                found |= {"error": type(error).__name__, "at": step}
                break
        rates.append(list(scheduler.get_last_lr()))
        momentum.append([momentum_of(group) for group in optimizer.param_groups])
        if step == request["state_at"]:
            found["state"] = plain(scheduler.state_dict())
    found["lr"] = described(rates)
    return found | ({"momentum": described(momentum)} if momentum[0][0] is not None else {})


def described(rows):
    numbers = [float(number) for row in rows for number in row]
    raw = struct.pack(f"<{len(numbers)}d", *numbers)
    return {"sha256": hashlib.sha256(raw).hexdigest(), "some": [list(map(float, row)) for row in rows[::EVERY]]}


def plain(value):
    """The form in JSON. Attributes of functions are not compared; those here have none."""
    if isinstance(value, dict):
        return {str(key): [None] * len(item) if key == "lr_lambdas" else plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


# --- requests --------------------------------------------------------------------------------------------------------


def random_request(rng):
    groups = rng.choice([1, 2])
    scheduler, extra = random_scheduler(rng, groups)
    return {
        "optimizer": rng.choice(list(OPTIMIZERS)),
        "lrs": [rng.choice([0.1, 0.0123, 0.5, 1e-3]) for _ in range(groups)],
        "scheduler": scheduler,
        "steps": 1000,
        "state_at": rng.randint(0, 1000),
    } | extra


def random_scheduler(rng, groups):
    kind = rng.randrange(9)
    if kind == 0:
        factors = rng.choice([rng.choice(list(FACTORS)), [rng.choice(list(FACTORS)) for _ in range(groups)]])
        last_epoch = {"last_epoch": rng.randint(0, 20)} if rng.random() < 0.3 else {}
        return {"name": rng.choice(["lambda", "multiplicative"]), "factors": factors} | last_epoch, {}
    if kind == 1:
        return random_plateau(rng, groups), {}
    if kind == 2 and schedules.has_transformers():
        return random_get_scheduler(rng), {}
    if kind == 3:
        return per_group(rng, groups), {}
    if kind == 4:
        return schedules.random_combined(rng), {}
    if kind == 5:
        restarts = {"name": "cosine_annealing_warm_restarts", "T_0": rng.choice([1, 3, 10]), "T_mult": rng.choice([1, 2, 3])}
        return restarts, {"parts": rng.choice([1, 4, 7, 10])}
    scheduler = schedules.random_part(rng)
    if kind == 6 and scheduler["name"] in schedules.TORCH and scheduler["name"] not in ("one_cycle", "cyclic"):
        return scheduler | {"last_epoch": rng.randint(0, 20)}, {}
    return scheduler, {"made_before": schedules.random_part(rng)} if kind == 7 else {}


def random_plateau(rng, groups):
    arguments = {
        "mode": rng.choice([None, "min", "max"]),
        "factor": rng.choice([None, 0.5, 0.93]),
        "patience": rng.choice([None, 0, 3]),
        "threshold": rng.choice([None, 0.0, 0.01]),
        "threshold_mode": rng.choice([None, "rel", "abs"]),
        "cooldown": rng.choice([None, 2, 9]),
        "min_lr": rng.choice([None, 1e-4, [1e-3 / (group + 1) for group in range(groups)]]),
        "eps": rng.choice([None, 1e-5]),
    }
    return {"name": "reduce_lr_on_plateau"} | {key: value for key, value in arguments.items() if value is not None}


def random_get_scheduler(rng):
    kinds = {
        "linear": [{}], "cosine": [{}, {"num_cycles": 1.5}], "cosine_with_restarts": [{"num_cycles": 3}], "constant": [{}],
        "polynomial": [{"lr_end": 1e-4, "power": 2.0}], "constant_with_warmup": [{}], "inverse_sqrt": [{}, {"timescale": 70}],
        "cosine_with_min_lr": [{"min_lr": 1e-3}, {}], "cosine_warmup_with_min_lr": [{"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}],
        "warmup_stable_decay": [{"num_decay_steps": 30}, {}], "reduce_lr_on_plateau": [{"factor": 0.7}], "unknown": [{}],
        "greedy": [random_greedy(rng) for _ in range(3)],
    }  # fmt: skip
    kind = rng.choice(list(kinds))
    request = {"name": "get_scheduler", "type": kind, "scheduler_specific_kwargs": rng.choice(kinds[kind])}
    steps = {"num_warmup_steps": rng.choice([0, 20]), "num_training_steps": rng.choice([200, 800])}
    return request | {key: value for key, value in steps.items() if rng.random() < 0.9}


def random_greedy(rng):
    arguments = {
        "mode": rng.choice([None, "min", "max"]),
        "factor": rng.choice([None, 0.5, 0.93]),
        "patience": rng.choice([None, 0, 1, 3]),
        "threshold": rng.choice([None, 0.0, 0.01]),
        "threshold_mode": rng.choice([None, "rel", "abs"]),
        "cooldown": rng.choice([None, 2, 9]),
        "warmup": rng.choice([None, 1, 5]),
        "min_lr": rng.choice([None, 1e-4]),
        "max_lr": rng.choice([None, 0.7]),
        "eps": rng.choice([None, 1e-5]),
        "smooth": rng.choice([None, True]),
        "window_size": rng.choice([None, 1, 7]),
        "reset_start": rng.choice([None, 3, 20]),
    }
    return {key: value for key, value in arguments.items() if value is not None}


def per_group(rng, groups):
    def listed(number):
        return [number / (group + 1) for group in range(groups)]

    momentum = {"base_momentum": listed(0.8), "max_momentum": listed(0.95)} if rng.random() < 0.7 else {"cycle_momentum": False}
    if rng.random() < 0.5:
        return {"name": "one_cycle", "max_lr": listed(0.3), "total_steps": rng.choice([900, 1000, 2000])} | momentum
    shape = {"scale_fn": rng.choice(list(FACTORS)), "scale_mode": rng.choice(["cycle", "iterations"])} if rng.random() < 0.6 else {}
    return {"name": "cyclic", "base_lr": listed(0.01), "max_lr": listed(0.3), "step_size_up": rng.choice([10, 77])} | shape | momentum

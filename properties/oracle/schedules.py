"""The `scheduler` of an experiment file: built with torch and Transformers, and random ones."""
import importlib.util

from torch.optim import lr_scheduler

PLATEAU = "reduce_lr_on_plateau"
TORCH = {
    "step": lr_scheduler.StepLR,
    "multi_step": lr_scheduler.MultiStepLR,
    "constant": lr_scheduler.ConstantLR,
    "linear_lr": lr_scheduler.LinearLR,
    "exponential": lr_scheduler.ExponentialLR,
    "polynomial": lr_scheduler.PolynomialLR,
    "cosine_annealing": lr_scheduler.CosineAnnealingLR,
    "cosine_annealing_warm_restarts": lr_scheduler.CosineAnnealingWarmRestarts,
    "one_cycle": lr_scheduler.OneCycleLR,
    "cyclic": lr_scheduler.CyclicLR,
}
TRANSFORMERS = {
    "constant_with_warmup": "get_constant_schedule_with_warmup",
    "linear_with_warmup": "get_linear_schedule_with_warmup",
    "cosine_with_warmup": "get_cosine_schedule_with_warmup",
    "cosine_with_hard_restarts_with_warmup": "get_cosine_with_hard_restarts_schedule_with_warmup",
    "polynomial_decay_with_warmup": "get_polynomial_decay_schedule_with_warmup",
    "inverse_sqrt": "get_inverse_sqrt_schedule",
    "cosine_with_min_lr_with_warmup": "get_cosine_with_min_lr_schedule_with_warmup",
    "cosine_with_min_lr_with_warmup_lr_rate": "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "wsd": "get_wsd_schedule",
}
COUNTS = {
    "step_size", "total_iters", "T_max", "T_0", "T_mult", "total_steps", "epochs", "steps_per_epoch", "step_size_up",
    "step_size_down", "patience", "cooldown", "num_warmup_steps", "num_training_steps", "num_decay_steps", "num_stable_steps", "timescale", "milestones",
}  # fmt: skip


def has_transformers():
    return importlib.util.find_spec("transformers") is not None


def argument(name, key, value):
    """YAML 1.1 reads 1e-3 as a string, and Python's integer arithmetic differs from that of floats."""
    if isinstance(value, list):
        return [argument(name, key, item) for item in value]
    if isinstance(value, bool) or key in COUNTS or key.endswith(("mode", "type", "strategy")):
        return value
    return value if key == "num_cycles" and name == "cosine_with_hard_restarts_with_warmup" else float(value)


def build_scheduler(config, optimizer):
    if config is None:
        return None
    name = config["name"]
    arguments = {key: value for key, value in config.items() if key != "name"}
    if name == "linear":
        return linear(optimizer, **arguments)
    if name in ("sequential", "chained"):
        parts = [build_scheduler(part, optimizer) for part in arguments["schedulers"]]
        if name == "chained":
            return lr_scheduler.ChainedScheduler(parts, optimizer)
        return lr_scheduler.SequentialLR(optimizer, parts, arguments["milestones"])
    arguments = {key: argument(name, key, value) for key, value in arguments.items()}
    if name == PLATEAU:
        return lr_scheduler.ReduceLROnPlateau(optimizer, **arguments)
    if name == "multiplicative":
        return lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: arguments["factor"])
    if name in TORCH:
        return TORCH[name](optimizer, **arguments)
    if name in TRANSFORMERS:
        from transformers import optimization

        return getattr(optimization, TRANSFORMERS[name])(optimizer, **arguments)
    raise ValueError(f"scheduler {name!r}: expected linear, multiplicative, {PLATEAU}, sequential, chained, {', '.join([*TORCH, *TRANSFORMERS])}")

WITHOUT_MOMENTUM = ("adadelta", "adafactor", "adagrad", "asgd", "rprop")  # they have no momentum that a cycle could change


def linear(optimizer, warmup_steps, total_steps):
    def factor(k):
        if k < warmup_steps:
            return (k + 1) / (warmup_steps + 1)
        return max(0.0, (total_steps - k) / max(1, total_steps - warmup_steps))

    return lr_scheduler.LambdaLR(optimizer, factor)


def random_scheduler(rng, optimizer):
    if rng.random() < 0.15:
        return None
    if rng.random() < 0.1:
        return random_plateau(rng) if rng.random() < 0.6 else {"name": "multiplicative", "factor": rng.choice([0.5, 0.93, 0.999])}
    scheduler = random_combined(rng) if rng.random() < 0.2 else random_part(rng)
    return scheduler if optimizer["name"].removeprefix("fused_") not in WITHOUT_MOMENTUM else without_momentum(scheduler)


def random_plateau(rng):
    arguments = {
        "mode": rng.choice([None, "min", "max"]),
        "factor": rng.choice([None, 0.5, 0.93]),
        "patience": rng.choice([0, 1, 3]),
        "threshold": rng.choice([None, 0.0, 0.02]),
        "threshold_mode": rng.choice([None, "rel", "abs"]),
        "cooldown": rng.choice([None, 0, 2]),
        "min_lr": rng.choice([None, 1e-4]),
        "eps": rng.choice([None, 1e-3]),
    }
    return {"name": PLATEAU} | {key: value for key, value in arguments.items() if value is not None}


def without_momentum(scheduler):
    if scheduler["name"] in ("one_cycle", "cyclic"):
        return scheduler | {"cycle_momentum": False}
    return scheduler | {"schedulers": [without_momentum(part) for part in scheduler["schedulers"]]} if "schedulers" in scheduler else scheduler


def random_combined(rng):
    """Never two that cycle: in torch, the first would take over the rates of the second one's cycle."""
    parts = [random_part(rng) for _ in range(rng.randint(1, 4))]
    while sum(part["name"] in ("one_cycle", "cyclic") for part in parts) > 1:
        parts = [random_part(rng) for _ in range(rng.randint(1, 4))]
    parts = [endless(part) for part in parts]
    if rng.random() < 0.4:
        return {"name": "chained", "schedulers": parts}
    if rng.random() < 0.2:
        parts[0] = {"name": "chained", "schedulers": [{"name": "linear_lr"}, {"name": "exponential", "gamma": 0.97}]}
    return {"name": "sequential", "schedulers": parts, "milestones": sorted(rng.randint(1, 60) for _ in parts[1:])}  # torch starts at the wrong rate if one is 0


def endless(part):
    """Accelerate stops at the `total_steps` of a OneCycleLR, but not if it is part of a combined schedule."""
    if part["name"] != "one_cycle":
        return part
    return {key: value for key, value in part.items() if key not in ("epochs", "steps_per_epoch")} | {"total_steps": 20000}


def random_part(rng):
    names = ["linear", *TORCH, *(TRANSFORMERS if has_transformers() else [])]
    name = rng.choice(names)
    return {"name": name} | {key: value for key, value in random_arguments(rng, name).items() if value is not None}


def random_arguments(rng, name):
    few, many = rng.choice([1, 2, 5, 13, 40]), rng.choice([1, 8, 20, 100, 750])
    rate, small = rng.choice([0.001, 0.0123, 0.05, 0.3]), rng.choice([None, 0.0, 1e-5, 0.0007])
    gamma, factor = rng.choice([0.1, 0.5, 0.93, 0.999]), rng.choice([None, 0.01, 0.3333, 0.7, 1.0])
    warmup = {"num_warmup_steps": rng.choice([0, 1, 5, 60]), "num_training_steps": rng.choice([70, 100, 333, 900])}
    cycles = {"num_cycles": rng.choice([None, 0.5, 1.0, 2.5, 3])}
    cosine_min = {"min_lr": 1e-5} if rng.random() < 0.5 else {"min_lr_rate": rng.choice([0.0, 0.1, 0.35])}
    momentum = {
        "cycle_momentum": rng.choice([None, True, False]),
        "base_momentum": rng.choice([None, 0.7, 0.83]),
        "max_momentum": rng.choice([None, 0.9, 0.97]),
    }
    return {
        "linear": lambda: {"warmup_steps": rng.choice([0, 1, 5]), "total_steps": many},
        "step": lambda: {"step_size": few, "gamma": rng.choice([None, gamma])},
        "multi_step": lambda: {"milestones": [rng.randint(0, 90) for _ in range(rng.randint(0, 5))], "gamma": rng.choice([None, gamma])},
        "constant": lambda: {"factor": factor, "total_iters": rng.choice([None, few])},
        "linear_lr": lambda: {"start_factor": factor, "end_factor": rng.choice([None, 0.0, 0.2, 0.9]), "total_iters": rng.choice([None, many])},
        "exponential": lambda: {"gamma": gamma},
        "polynomial": lambda: {"total_iters": rng.choice([None, many]), "power": rng.choice([None, 0.5, 1.0, 2.3])},
        "cosine_annealing": lambda: {"T_max": rng.choice([2, 7, 50, 400]), "eta_min": small},
        "cosine_annealing_warm_restarts": lambda: {"T_0": few, "T_mult": rng.choice([None, 1, 2, 3]), "eta_min": small},
        "one_cycle": lambda: random_one_cycle(rng, rate) | momentum,
        "cyclic": lambda: {
            "base_lr": rate / 10, "max_lr": rate, "step_size_up": rng.choice([None, few, many]), "step_size_down": rng.choice([None, 1, 17]),
            "mode": rng.choice([None, "triangular", "triangular2", "exp_range"]), "gamma": rng.choice([None, 0.99, 0.9994]),
        } | momentum,
        "constant_with_warmup": lambda: {"num_warmup_steps": warmup["num_warmup_steps"]},
        "linear_with_warmup": lambda: warmup,
        "cosine_with_warmup": lambda: warmup | cycles,
        "cosine_with_hard_restarts_with_warmup": lambda: warmup | {"num_cycles": rng.choice([None, 1, 2, 5])},
        "polynomial_decay_with_warmup": lambda: warmup | {"lr_end": rng.choice([None, 0.0, 1e-5]), "power": rng.choice([None, 1.0, 2.0, 0.7])},
        "inverse_sqrt": lambda: {"num_warmup_steps": warmup["num_warmup_steps"], "timescale": rng.choice([None, 10, 300])},
        "cosine_with_min_lr_with_warmup": lambda: warmup | cycles | cosine_min,
        "cosine_with_min_lr_with_warmup_lr_rate": lambda: warmup | cycles | cosine_min | {"warmup_lr_rate": rng.choice([None, 0.0, 0.25])},
        "wsd": lambda: random_wsd(rng, warmup) | cycles,
    }[name]()  # fmt: skip


def random_one_cycle(rng, rate):
    steps = {"total_steps": rng.choice([20, 64, 500, 2000])} if rng.random() < 0.7 else {"epochs": 5, "steps_per_epoch": rng.choice([10, 77])}
    return steps | {
        "max_lr": rate,
        "pct_start": rng.choice([None, 0.0, 0.21, 0.4]),
        "anneal_strategy": rng.choice([None, "cos", "linear"]),
        "div_factor": rng.choice([None, 10.0]),
        "final_div_factor": rng.choice([None, 100.0]),
        "three_phase": rng.choice([None, True, False]),
    }


def random_wsd(rng, warmup):
    kinds = [None, "linear", "cosine", "1-sqrt"]
    arguments = {
        "num_warmup_steps": warmup["num_warmup_steps"],
        "num_decay_steps": rng.choice([0, 1, 50]),
        "warmup_type": rng.choice(kinds),
        "decay_type": rng.choice(kinds),
        "min_lr_ratio": rng.choice([None, 0.0, 0.1]),
    }
    total = {"num_training_steps": warmup["num_training_steps"]} if rng.random() < 0.5 else {"num_stable_steps": rng.choice([0, 3, 80])}
    return arguments | total

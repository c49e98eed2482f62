"""The `optimizer` of an experiment file: built with torch, and random ones."""
import torch

from lion import Lion

SINGLE_TENSOR = ("adafactor", "sparse_adam", "muon")
FUSED, FOREACH = {"fused": True}, {"foreach": True}


def build_optimizer(config, parameters, fused=True):
    if config["name"] not in OPTIMIZERS:
        raise ValueError(f"optimizer {config['name']!r}: expected one of {sorted(OPTIMIZERS)}")
    kind, implementation, _ = OPTIMIZERS[config["name"]]
    if not fused and implementation is FUSED:
        implementation = FOREACH
    return kind(parameters, **arguments(config), **implementation)


def arguments(config):
    return {name: argument(value) for name, value in config.items() if name != "name"}


def argument(value):
    if isinstance(value, list):
        return tuple(map(argument, value))
    if value is None or isinstance(value, (bool, int)):
        return value
    try:
        return float(value)  # YAML 1.1 reads 1e-3 as a string
    except ValueError:
        return value


def random_optimizer(rng, name=None):
    """Arguments that are left out have Python's defaults."""
    name = name or rng.choice(["sgd", *OPTIMIZERS])
    config = {"name": name, "lr": rng.choice([0.0003, 0.001, 0.0123, 0.05])}
    random_arguments = OPTIMIZERS[name][2](rng)
    if name not in ("sgd", "muon", "lion") and rng.random() < 0.2:
        random_arguments["maximize"] = True
    return config | {key: value for key, value in random_arguments.items() if rng.random() < 0.8 or needed(key)}


def needed(key):
    return key in ("momentum", "dampening", "nesterov")  # they go together


def random_sgd(rng):
    momentum = rng.choice([0.0, 0.5, 0.9, 0.99])
    nesterov = momentum > 0 and rng.random() < 0.4
    dampening = 0.0 if nesterov else rng.choice([0.0, 0.0, 0.1, 0.7])
    return {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": rng.choice([0.0, 0.0001, 0.01, 0.3])}


def random_moments(rng):
    return {
        "betas": rng.choice([[0.9, 0.999], [0.8, 0.95], [0.0, 0.5], [0.99, 0.73]]),
        "eps": rng.choice([1e-8, 1e-3]),
        "weight_decay": rng.choice([0.0, 0.0001, 0.01, 0.3]),
    }


def random_adam(rng):
    return random_moments(rng) | {"amsgrad": rng.random() < 0.3}


def random_adagrad(rng):
    return {
        "lr_decay": rng.choice([0.0, 0.001, 0.1]),
        "weight_decay": rng.choice([0.0, 0.01]),
        "initial_accumulator_value": rng.choice([0.0, 0.1, 1.0]),
        "eps": rng.choice([1e-10, 1e-3]),
    }


def random_rmsprop(rng):
    return {
        "alpha": rng.choice([0.99, 0.5, 0.913]),
        "eps": rng.choice([1e-8, 1e-3]),
        "momentum": rng.choice([0.0, 0.9, 0.37]),
        "centered": rng.random() < 0.5,
        "weight_decay": rng.choice([0.0, 0.01]),
    }


def random_asgd(rng):
    return {
        "lambd": rng.choice([1e-4, 0.1]),
        "alpha": rng.choice([0.75, 0.5, 0.31]),
        "t0": rng.choice([1e6, 0.0, 7.0]),
        "weight_decay": rng.choice([0.0, 0.01]),
    }


def random_adafactor(rng):
    return {
        "lr": rng.choice([0.01, 0.5, 3.0]),
        "beta2_decay": rng.choice([-0.8, -0.5, 0.0]),
        "eps": rng.choice([[None, 1e-3], [None, 0.3], [1e-5, 1e-3], [1e-12, 0.0]]),
        "d": rng.choice([1.0, 1.7]),
        "weight_decay": rng.choice([0.0, 0.01]),
        "foreach": rng.choice([None, False, True, True]),
    }


def random_muon(rng):
    return {
        "momentum": rng.choice([0.95, 0.5, 0.0]),
        "nesterov": rng.random() < 0.6,
        "ns_coefficients": rng.choice([[3.4445, -4.775, 2.0315], [2.0, -1.5, 0.5]]),
        "eps": rng.choice([1e-7, 0.1]),
        "ns_steps": rng.choice([5, 1, 0]),
        "adjust_lr_fn": rng.choice([None, "original", "match_rms_adamw"]),
        "weight_decay": rng.choice([0.0, 0.1]),
    }


def random_lion(rng):
    return {"betas": rng.choice([[0.9, 0.99], [0.95, 0.98], [0.0, 0.5], [0.9, 0.0]]), "weight_decay": rng.choice([0.0, 0.01, 0.3])}


# Name in experiments: Python's class, the implementation whose values this library has, random arguments.
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}, random_sgd),
    "fused_sgd": (torch.optim.SGD, FUSED, random_sgd),
    "adam": (torch.optim.Adam, FUSED, random_adam),
    "adamw": (torch.optim.AdamW, FUSED, random_adam),
    "adagrad": (torch.optim.Adagrad, FUSED, random_adagrad),
    "rmsprop": (torch.optim.RMSprop, FOREACH, random_rmsprop),
    "adadelta": (torch.optim.Adadelta, FOREACH, lambda rng: {"rho": rng.choice([0.9, 0.5, 0.97]), "eps": rng.choice([1e-6, 1e-3]), "weight_decay": rng.choice([0.0, 0.01])}),
    "adamax": (torch.optim.Adamax, FOREACH, random_moments),
    "nadam": (torch.optim.NAdam, FOREACH, lambda rng: random_moments(rng) | {"momentum_decay": rng.choice([0.004, 0.0, 0.1]), "decoupled_weight_decay": rng.random() < 0.5}),
    "radam": (torch.optim.RAdam, FOREACH, lambda rng: random_moments(rng) | {"decoupled_weight_decay": rng.random() < 0.5}),
    "rprop": (torch.optim.Rprop, FOREACH, lambda rng: {"etas": rng.choice([[0.5, 1.2], [0.3, 1.7], [0.9, 1.01]]), "step_sizes": rng.choice([[1e-6, 50.0], [0.0004, 0.01]])}),
    "asgd": (torch.optim.ASGD, FOREACH, random_asgd),
    "adafactor": (torch.optim.Adafactor, {}, random_adafactor),
    "sparse_adam": (torch.optim.SparseAdam, {}, lambda rng: {key: value for key, value in random_moments(rng).items() if key != "weight_decay"}),
    "muon": (torch.optim.Muon, {}, random_muon),
    "lion": (Lion, {}, random_lion),
}

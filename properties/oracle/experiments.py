"""Random experiments: small enough for about a second, odd enough to reach every branch of a training loop.

Every experiment runs on each number of ranks in RANKS, so that a divergence shows on which it depends.
"""
RANKS = (1, 2, 3, 4)
DIVIDES_ALL = 12  # of a batch that splits, and of a data set that is even, over any of RANKS


def random_experiment(rng):
    split, even = rng.random() < 0.2, rng.random() < 0.85
    batch_size = DIVIDES_ALL * rng.choice([1, 2]) if split else rng.randint(1, 13)
    eval_batch_size = DIVIDES_ALL * rng.choice([1, 2, 3]) if split else rng.randint(1, 33)
    # The batches that an epoch issues over all ranks; uneven tails would hang without even_batches.
    group = 1 if split else DIVIDES_ALL
    model = random_model(rng)
    most = 12 if model.get("hidden", 0) > 1000 else 60
    if even:
        limit, eval_limit = rng.randint(1, most * batch_size), rng.randint(1, 150)
    else:
        limit = batch_size * group * rng.randint(1, max(1, most // group))
        eval_limit = eval_batch_size * group * rng.randint(1, max(1, 150 // (eval_batch_size * group)))
    experiment = {
        "task": "fashion_mnist",
        "limit": limit,
        "eval_limit": eval_limit,
        "model": model,
        "optimizer": random_optimizer(rng),
        "scheduler": random_scheduler(rng),
        "batch_size": batch_size,
        "eval_batch_size": eval_batch_size if rng.random() < 0.8 or not even else None,
        "shuffle": False if rng.random() < 0.2 else None,
        "drop_last": True if rng.random() < 0.25 else None,
        "epochs": rng.randint(1, 2),
        "max_steps": 6 if model.get("hidden", 0) > 1000 else rng.choice([None, None, rng.randint(1, 30)]),
        "seed": rng.randrange(1 << rng.choice([4, 16, 31])),
        "clip_grad_norm": rng.choice([None, None, 0.1, 0.5, 1.0, 3.7]),
        "accelerator": random_accelerator(rng),
        "dataloader_config": random_loading(rng, split, even),
    }
    return {key: value for key, value in experiment.items() if value not in (None, {})}


def random_model(rng):
    dropout = rng.choice([0.0, 0.1, 0.2, 0.5, 0.75])
    if rng.random() < 0.35:
        return {"name": "cnn", "dropout": dropout}
    return {"name": "mlp", "hidden": rng.choice([16, 17, 32, 64, 100, 128, 257, 333, 512, 1024, 2048, 4096]), "dropout": dropout}


def random_optimizer(rng):
    name, lr = rng.choice(["sgd", "sgd", "adam", "adamw"]), rng.choice([0.0003, 0.001, 0.0123, 0.05])
    weight_decay = rng.choice([0.0, 0.0001, 0.01, 0.3])
    if name == "sgd":
        return {"name": name, "lr": lr, "momentum": rng.choice([0.0, 0.5, 0.9, 0.99]), "weight_decay": weight_decay}
    return {"name": name, "lr": lr} | ({"weight_decay": weight_decay} if name == "adamw" else {})


def random_scheduler(rng):
    name = rng.choice(["linear", "step", None])
    if name == "linear":
        return {"name": name, "warmup_steps": rng.choice([0, 1, 5]), "total_steps": rng.choice([1, 8, 20, 100])}
    if name == "step":
        return {"name": name, "step_size": rng.choice([1, 3, 10]), "gamma": rng.choice([0.1, 0.5, 0.93])}
    return None


def random_accelerator(rng):
    options = {"gradient_accumulation_steps": rng.randint(2, 4)} if rng.random() < 0.5 else {}
    if rng.random() < 0.25:
        options["mixed_precision"] = "bf16"
    if rng.random() < 0.1:
        options["step_scheduler_with_optimizer"] = False
    if rng.random() < 0.15:
        options["rng_types"] = rng.choice([["torch"], ["torch", "generator"]])
    return options


def random_loading(rng, split, even):
    config = {"use_seedable_sampler": True} if rng.random() < 0.5 else {}
    if config and rng.random() < 0.4:
        config["data_seed"] = rng.randrange(1000)
    if split:
        config["split_batches"] = True
    if not even:
        config["even_batches"] = False
    return config

"""Trainings that cover the options of DistributedDataParallel and local SGD; ddp_training.py describes a request."""

RANKS = (2, 4)
SMALL, LARGE = 16, 700  # widths of the model: one bucket, several


def training(seed, hidden=SMALL, steps=5, **fields):
    return {"seed": seed, "hidden": hidden, "steps": steps, **fields}


def power_sgd(hook="power_sgd", wrapper="no", **options):
    return {"comm_hook": hook, "comm_wrapper": wrapper, "comm_state_option": {"start_powerSGD_iter": 2, **options}}


# PowerSGD has one bucket here and does not search for unused parameters: Python starts its later all-reduces on Gloo's threads, so
# their order relative to those of other buckets, and to that of the map of used parameters, is a race.
FIXED = [
    training(1),
    training(2, LARGE),
    *(training(3, hidden, kwargs={"comm_hook": hook}) for hook in ("fp16", "bf16") for hidden in (SMALL, LARGE)),
    training(4, kwargs={"comm_hook": "fp16", "comm_wrapper": "bf16"}),
    training(5, kwargs={"comm_hook": "bf16", "gradient_as_bucket_view": True}),
    training(6, kwargs=power_sgd()),
    training(7, steps=7, hidden=64, kwargs=power_sgd(matrix_approximation_rank=3)),
    training(8, hidden=64, kwargs=power_sgd(matrix_approximation_rank=2, batch_tensors_with_same_shape=True)),
    training(9, hidden=64, kwargs=power_sgd(matrix_approximation_rank=4, use_error_feedback=False, random_seed=11)),
    training(10, hidden=64, kwargs=power_sgd(warm_start=False, orthogonalization_epsilon=1e-8)),
    training(11, kwargs=power_sgd(min_compression_rate=0.5, use_error_feedback=False, warm_start=False, start_powerSGD_iter=0)),
    training(12, kwargs=power_sgd(wrapper="fp16")),
    training(13, hidden=64, kwargs=power_sgd(wrapper="bf16", matrix_approximation_rank=3)),
    training(14, kwargs=power_sgd() | {"gradient_as_bucket_view": True}),
    training(15, kwargs=power_sgd("batched_power_sgd")),
    training(16, hidden=64, kwargs=power_sgd("batched_power_sgd", matrix_approximation_rank=3)),
    training(17, kwargs=power_sgd("batched_power_sgd", warm_start=False, use_error_feedback=False)),
    training(18, kwargs=power_sgd("batched_power_sgd", wrapper="fp16") | {"gradient_as_bucket_view": True}),
    training(19, LARGE, kwargs={"bucket_cap_mb": 1}),
    training(20, LARGE, kwargs={"bucket_cap_mb": 25}),
    training(21, LARGE, kwargs={"bucket_cap_mb": 3, "find_unused_parameters": True}),
    training(22, kwargs={"broadcast_buffers": False}),
    training(23, LARGE, kwargs={"gradient_as_bucket_view": True}),
    training(24, unused="always", kwargs={"find_unused_parameters": True}),
    training(25, unused="at_times", kwargs={"find_unused_parameters": True}),
    training(26, unused="in_loss", kwargs={"find_unused_parameters": True}),
    training(27, unused="at_times", kwargs={"find_unused_parameters": True, "comm_hook": "fp16"}),
    training(28, LARGE, kwargs={"static_graph": True}),
    training(29, unused="always", kwargs={"static_graph": True}),
    training(30, kwargs={"static_graph": True, "comm_hook": "bf16"}),
    training(31, kwargs={"static_graph": True} | power_sgd()),
    training(32, kwargs={"dim": 1, "check_reduction": True}),
    training(33, steps=6, accumulation_steps=2, kwargs={"comm_hook": "fp16"}),
    training(34, steps=10, accumulation_steps=2, kwargs=power_sgd()),
    training(35, uneven=True, steps=6, kwargs={"comm_hook": "fp16"}),
    training(36, uneven=True, steps=7, kwargs={"comm_hook": "bf16", "find_unused_parameters": True}, unused="always"),
    training(37, uneven=True, steps=7, kwargs=power_sgd()),
    training(38, uneven=True, steps=7, kwargs=power_sgd("batched_power_sgd")),
    *(training(39, steps=steps, local_sgd_steps=every) for steps, every in ((7, 3), (4, 8), (3, 1))),
    training(40, LARGE, steps=4, local_sgd_steps=2, mixed_precision="bf16"),
    training(41, mixed_precision="bf16", kwargs={"comm_hook": "bf16"}),
]


def random_request(rng):
    hook = rng.choice(["no", "fp16", "bf16", "power_sgd", "batched_power_sgd"])
    wrapper = rng.choice(["no", "no", "fp16", "bf16"]) if hook != "no" else "no"
    kwargs = {"comm_hook": hook, "comm_wrapper": wrapper}
    if "power_sgd" in hook:
        kwargs = power_sgd(hook, wrapper, **random_state_option(rng))
    for name in ("gradient_as_bucket_view", "static_graph"):
        if rng.random() < 0.25:
            kwargs[name] = True
    if "power_sgd" not in hook and rng.random() < 0.25:
        kwargs["find_unused_parameters"] = True
    if rng.random() < 0.25:
        kwargs["broadcast_buffers"] = False
    several = "power_sgd" not in hook and rng.random() < 0.3
    if several and rng.random() < 0.5:
        kwargs["bucket_cap_mb"] = rng.choice([1, 2, 25, 30])
    request = training(rng.randrange(1 << 31), LARGE if several else rng.choice([8, 16, 33, 64]), rng.randint(1, 8), kwargs=kwargs)
    if kwargs.get("find_unused_parameters") and not kwargs.get("static_graph"):
        request["unused"] = rng.choice(["no", "always", "at_times", "in_loss"])
    if not kwargs.get("static_graph") and rng.random() < 0.25:
        request["accumulation_steps"] = 2
    return request


def random_state_option(rng):
    keeps, warm = rng.random() < 0.6, rng.random() < 0.6
    return {
        "matrix_approximation_rank": rng.randint(1, 4),
        "start_powerSGD_iter": rng.randint(2 if keeps or warm else 0, 4),
        "min_compression_rate": rng.choice([0.5, 1, 2, 3]),
        "use_error_feedback": keeps,
        "warm_start": warm,
        "orthogonalization_epsilon": rng.choice([0, 1e-8]),
        "random_seed": rng.randrange(1 << rng.choice([4, 31, 32])),
        "batch_tensors_with_same_shape": rng.random() < 0.4,
    }

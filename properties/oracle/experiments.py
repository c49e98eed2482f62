"""Random experiments: small enough for about a second, odd enough to reach every branch of a training loop.

Every experiment runs on each number of ranks in RANKS, so that a difference shows on which number it depends.
"""
from accelerators import random_accelerator, random_loading
from optimizers import OPTIMIZERS, random_optimizer
from schedules import random_scheduler
from sharding import UNITS, random_plugin
from tasks import random_task

RANKS = (1, 2, 3, 4)
SHARDED_RANKS = (2, 4)
NOT_OF_MODELS = ("muon", "sparse_adam")  # the models have vectors and dense gradients
NOT_ON_SHARDS = (*NOT_OF_MODELS, "adafactor")
NOT_BY_FSDP2 = ("adagrad", "fused_sgd", "rprop")  # torch has no sharded form of the operators that they call
DIVIDES_ALL = 12  # divides a batch, or an even data set, among any of RANKS
REFUSED = ("in the first step", "in the last step of an epoch")
MANY, FEW = 60, 12  # batches of an epoch, for cheap and for expensive steps


def random_experiment(rng):
    split, even = rng.random() < 0.2, rng.random() < 0.85
    batch_size = DIVIDES_ALL * rng.choice([1, 2]) if split else rng.randint(1, 13)
    eval_batch_size = DIVIDES_ALL * rng.choice([1, 2, 3]) if split else rng.randint(1, 33)
    # The batches of an epoch over all ranks; without even_batches, an uneven end would hang.
    group = 1 if split else DIVIDES_ALL
    task = random_task(rng)
    most = FEW if task["task"] == "cifar_like" or task["model"].get("hidden", 0) > 1000 else MANY
    if task["task"] == "char_gpt":  # a tenth of the text is 146 blocks at least
        eval_batch_size = min(eval_batch_size, DIVIDES_ALL if not split else 3 * DIVIDES_ALL)
    if even:
        limit, eval_limit = rng.randint(1, most * batch_size), rng.randint(1, 150 if most == MANY else 40)
    else:
        limit = batch_size * group * rng.randint(1, max(1, most // group))
        eval_limit = eval_batch_size * group * rng.randint(1, max(1, 150 // (eval_batch_size * group)))
    optimizer = random_optimizer(rng, rng.choice(["sgd", *(name for name in OPTIMIZERS if name not in NOT_OF_MODELS)]))
    experiment = {
        **task,
        "limit": limit,
        "eval_limit": eval_limit,
        "optimizer": optimizer,
        "scheduler": random_scheduler(rng, optimizer),
        "batch_size": batch_size,
        "eval_batch_size": eval_batch_size if rng.random() < 0.8 or not even else None,
        "shuffle": False if rng.random() < 0.2 else None,
        "drop_last": True if rng.random() < 0.25 else None,
        "epochs": rng.randint(1, 2),
        "max_steps": 6 if most == FEW else rng.choice([None, None, rng.randint(1, 30)]),
        "seed": rng.randrange(1 << rng.choice([4, 16, 31])),
        "clip_grad_norm": rng.choice([None, None, 0.1, 0.5, 1.0, 3.7]),
        "clip_grad_value": rng.choice([None, None, None, 0.001, 0.02]),
        "accelerator": random_accelerator(rng, has_one_bucket=task["model"].get("hidden", 0) < 300),
        "dataloader_config": random_loading(rng, split, even),
    }
    if experiment["accelerator"].get("mixed_precision") == "fp8":
        experiment.pop("sample", None)  # accel computes in float8 when the prepared model is called, and text comes from the module
    if experiment["accelerator"].get("mixed_precision") == "fp16" and experiment["clip_grad_norm"]:
        experiment["clip_grad_value"] = None  # Accelerate would unscale twice, which is an error
    return {key: value for key, value in experiment.items() if value not in (None, {})}


def random_refused_experiment(rng, when):
    """One that torch refuses on each number of RANKS: BatchNorm needs more than one value per channel, and in the last layers of a ResNet
    whose images are large, each sample has one."""
    experiment = random_experiment(rng)
    while experiment["task"] != "cifar_like":
        experiment = random_experiment(rng)
    name = rng.choice(["torchvision_resnet18", "torchvision_resnet50"])
    experiment["model"] = {"name": name, "width": rng.choice([1, 3, 8]), "small_images": False}
    for key in ("drop_last", "max_steps"):
        experiment.pop(key, None)
    if when == REFUSED[0]:
        return experiment | {"batch_size": 1, "limit": DIVIDES_ALL, "dataloader_config": {}}
    # The last batch has one sample. Rank 0 repeats samples until each rank has one.
    batch_size = rng.randint(2, 6)
    return experiment | {"batch_size": batch_size, "limit": DIVIDES_ALL * batch_size + 1, "dataloader_config": {"dispatch_batches": True}}


def random_sharded_experiment(rng):
    experiment = random_experiment(rng)
    while experiment["model"]["name"] not in UNITS:
        experiment = random_experiment(rng)
    experiment |= {"scheduler": {"name": "linear", "warmup_steps": 2, "total_steps": 20}}  # one that every optimizer can follow
    accelerator = experiment.setdefault("accelerator", {})
    accelerator.pop("ddp_kwargs", None)
    experiment.pop("clip_grad_value", None)
    plugin = random_plugin(rng, experiment["model"], accelerator.get("mixed_precision", "no"))
    excluded = NOT_ON_SHARDS + (NOT_BY_FSDP2 if plugin["fsdp_version"] == 2 else ())
    if experiment["optimizer"]["name"] in excluded:
        experiment["optimizer"] = random_optimizer(rng, rng.choice([name for name in OPTIMIZERS if name not in excluded]))
    accelerator["fsdp_plugin"] = plugin
    return experiment

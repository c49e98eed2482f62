"""The `task` and `model` of an experiment file: their data and networks, and random ones."""
import functools
import gzip
import os

import torch
from torch import nn

import gpt
import resnet

DATA_DIR = "/usr/share/datasets/fashion-mnist"  # from Debian's package dataset-fashion-mnist
KEYS = {
    "fashion_mnist": {"data_dir"},
    "cifar_like": {"data_dir"},
    "char_gpt": {"data_file", "sample"},
}


def load(config):
    """The data sets for training and for evaluation."""
    if config["task"] == "char_gpt":
        return gpt.load(config)
    folder = config.get("data_dir", DATA_DIR)
    parts = [read_split(folder, "train", config.get("limit")), read_split(folder, "t10k", config.get("eval_limit"))]
    if config["task"] == "cifar_like":  # only accel reads image folders
        return [resnet.SmallImages(*part) for part in parts]
    return [torch.utils.data.TensorDataset(images.float().div_(255), labels.long()) for images, labels in parts]


def read_split(folder, part, limit):
    images = read_idx(folder, f"{part}-images-idx3-ubyte", 16).view(-1, 1, 28, 28)
    return images[:limit], read_idx(folder, f"{part}-labels-idx1-ubyte", 8)[:limit]


@functools.cache
def read_idx(folder, name, header_bytes):
    path = os.path.join(folder, name)
    with gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb") as file:
        return torch.frombuffer(bytearray(file.read()[header_bytes:]), dtype=torch.uint8)


def build_model(config):
    options = dict(config)
    models = {"mlp": mlp, "cnn": cnn, "resnet18": resnet.ResNet18, "gpt": gpt.build}
    models |= {"torchvision_resnet18": torchvision(resnet.torchvision_resnet18), "torchvision_resnet50": torchvision(resnet.torchvision_resnet50)}
    synchronizes = options.pop("sync_batchnorm", False)  # fails in PyTorch on more than one rank without GPUs
    model = models[options.pop("name")](**options)
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if synchronizes else model


def torchvision(build):
    return functools.partial(build, num_classes=10)


def mlp(hidden=128, dropout=0.0):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))


def cnn(dropout=0.0):
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Dropout(dropout), nn.Linear(32 * 7 * 7, 10))


def loss_of(logits, targets):
    """Every task predicts a class: that of an image, or the next byte."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def random_task(rng):
    """The keys of an experiment that belong to its task; those without a value are None."""
    dropout = rng.choice([0.0, 0.1, 0.2, 0.5, 0.75])
    kind = rng.random()
    if kind < 0.25:
        return {"task": "fashion_mnist", "model": {"name": "cnn", "dropout": dropout}}
    if kind < 0.45:
        return {"task": "char_gpt", "model": random_gpt(rng, dropout), "sample": random_sample(rng)}
    if kind < 0.6:
        return {"task": "cifar_like", "model": random_resnet(rng)}
    hidden = rng.choice([16, 17, 32, 64, 100, 128, 257, 333, 512, 1024, 2048, 4096])
    return {"task": "fashion_mnist", "model": {"name": "mlp", "hidden": hidden, "dropout": dropout}}


def random_resnet(rng):
    name = rng.choice(["resnet18", "torchvision_resnet18", "torchvision_resnet50"])
    stem = {"small_images": rng.random() < 0.5} if name != "resnet18" else {}
    return {"name": name, "width": rng.choice([1, 3, 4, 8]), **stem}


def random_gpt(rng, dropout):
    heads = rng.choice([1, 2, 3, 4])
    shape = {"heads": heads, "width": heads * rng.choice([4, 7, 8, 16]), "block_size": rng.choice([1, 7, 16, 24])}
    options = {
        "bias": False,
        "norm": "rms_norm",
        "feed_forward": "swiglu",
        "feed_forward_width": rng.randint(1, 70),
        "key_value_heads": rng.choice([count for count in range(1, heads + 1) if heads % count == 0]),
        "head_width": rng.choice([4, 6, 10]),
        "tied_output": False,
    }
    given = {name: value for name, value in options.items() if rng.random() < 0.3}
    if rng.random() < 0.4 and given.get("head_width", shape["width"] // heads) % 2 == 0:
        given |= {"positions": "rotary", "rope_parameters": {"rope_theta": rng.choice([10000.0, 100.0, 500000.0])}}
    return {"name": "gpt", "layers": rng.randint(1, 3), **shape, "dropout": dropout, **given}


def random_sample(rng):
    if rng.random() < 0.6:
        return None
    prompt = rng.choice(["= ", "The GNU", "\u00e4"])
    likeliest = {"temperature": rng.choice([0.5, 0.8, 1.7]), "top_k": rng.choice([1, 5, 40, 1000])}
    return {"length": rng.randint(1, 60), "prompt": prompt, **likeliest, "seed": rng.randrange(1000)}

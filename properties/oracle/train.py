"""Trains an experiment file under Hugging Face Accelerate and gives its trace, line by line what `sim-run --trace` writes.

A rank of a group (rank_group.py): items are {"file": EXPERIMENT.yaml}, answers are the rank's trace lines.
"""
import functools
import gzip
import hashlib
import os

import torch
import yaml
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn

import rank_group

DATA_DIR = "/usr/share/datasets/fashion-mnist"  # Debian's package dataset-fashion-mnist
KEYS = {
    "task", "data_dir", "limit", "eval_limit", "model", "optimizer", "scheduler", "batch_size", "eval_batch_size", "shuffle",
    "drop_last", "epochs", "max_steps", "seed", "clip_grad_norm", "accelerator", "dataloader_config",
}  # fmt: skip


@functools.cache
def read_idx(folder, name, header_bytes):
    path = os.path.join(folder, name)
    with gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb") as file:
        return torch.frombuffer(bytearray(file.read()[header_bytes:]), dtype=torch.uint8)


def load(folder, part, limit):
    images = read_idx(folder, f"{part}-images-idx3-ubyte", 16).view(-1, 1, 28, 28)[:limit]
    labels = read_idx(folder, f"{part}-labels-idx1-ubyte", 8)[:limit]
    return torch.utils.data.TensorDataset(images.float().div_(255), labels.long())


def build_model(config):
    dropout = config.get("dropout", 0.0)
    if config["name"] == "mlp":
        hidden = config.get("hidden", 128)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))
    if config["name"] == "cnn":
        first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Dropout(dropout), nn.Linear(32 * 7 * 7, 10))
    raise ValueError(f"model {config['name']!r}: expected mlp or cnn")


def build_optimizer(config, parameters):
    lr = float(config["lr"])  # YAML 1.1 reads 1e-3 as a string
    if config["name"] == "sgd":
        momentum, weight_decay = float(config.get("momentum", 0)), float(config.get("weight_decay", 0))
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    if config["name"] == "adam":
        return torch.optim.Adam(parameters, lr=lr, fused=True)
    if config["name"] == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=float(config.get("weight_decay", 0.01)), fused=True)
    raise ValueError(f"optimizer {config['name']!r}: expected sgd, adam or adamw")


def build_scheduler(config, optimizer):
    if config is None:
        return None
    if config["name"] == "step":
        return torch.optim.lr_scheduler.StepLR(optimizer, config["step_size"], float(config.get("gamma", 0.1)))
    if config["name"] == "linear":
        warmup, total = config["warmup_steps"], config["total_steps"]

        def factor(k):
            return (k + 1) / (warmup + 1) if k < warmup else max(0.0, (total - k) / max(1, total - warmup))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    raise ValueError(f"scheduler {config['name']!r}: expected linear or step")


def build_accelerator(config):
    options, loading = dict(config.get("accelerator") or {}), dict(config.get("dataloader_config") or {})
    # Accelerate 1.15 takes split_batches in its constructor and ignores it; the experiment means it.
    loading["split_batches"] = options.pop("split_batches", loading.get("split_batches", False))
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**loading), **options)


def train(item):
    with open(item["file"]) as file:
        config = yaml.safe_load(file)
    if config.keys() - KEYS:
        raise ValueError(f"keys that this script does not know: {sorted(config.keys() - KEYS)}")
    accelerator = build_accelerator(config)
    set_seed(config["seed"])
    model = build_model(config["model"])
    optimizer = build_optimizer(config["optimizer"], model.parameters())
    scheduler = build_scheduler(config.get("scheduler"), optimizer)
    folder = config.get("data_dir", DATA_DIR)
    train_loader = torch.utils.data.DataLoader(
        load(folder, "train", config.get("limit")),
        batch_size=config["batch_size"],
        shuffle=config.get("shuffle", True),
        drop_last=config.get("drop_last", False),
    )
    eval_loader = torch.utils.data.DataLoader(
        load(folder, "t10k", config.get("eval_limit")), batch_size=config.get("eval_batch_size", config["batch_size"])
    )
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    if scheduler is not None:
        scheduler = accelerator.prepare(scheduler)

    rank, trace, step = accelerator.process_index, [], 0
    for epoch in range(config["epochs"]):
        model.train()
        for images, labels in train_loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients and config.get("clip_grad_norm"):
                    accelerator.clip_grad_norm_(model.parameters(), config["clip_grad_norm"])
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                optimizer.zero_grad()
            trace.append(
                {
                    "rank": rank, "epoch": epoch, "step": step, "loss": loss.item().hex(), "samples": len(labels),
                    "sync_gradients": accelerator.sync_gradients, "lr": optimizer.param_groups[0]["lr"],
                }  # fmt: skip
            )
            step += 1
            if step == config.get("max_steps"):
                break
        trace.append({"rank": rank, "epoch": epoch, **evaluate(accelerator, model, eval_loader)})
        if step == config.get("max_steps"):
            break
    parameters = accelerator.unwrap_model(model).parameters()
    raw = b"".join(bytes(parameter.detach().contiguous().flatten().view(torch.uint8).numpy()) for parameter in parameters)
    trace.append({"rank": rank, "parameters_sha256": hashlib.sha256(raw).hexdigest()})
    return trace


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    correct = samples = 0
    for images, labels in loader:
        predictions, targets = accelerator.gather_for_metrics((model(images).argmax(-1), labels))
        correct += int((predictions == targets).sum())
        samples += len(targets)
    return {"eval_correct": correct, "eval_samples": samples}


if __name__ == "__main__":
    rank_group.serve(train)

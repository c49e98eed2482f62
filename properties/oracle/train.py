"""Trains an experiment file under Hugging Face Accelerate and writes its trace in the form of `sim-run --trace`.

A rank of a group (rank_group.py): items are {"file": EXPERIMENT.yaml, "set": ["key.path=value"]}, where "set" is optional; answers
are the rank's trace lines, or {"error", "message", "trace"} with the lines before the error.
"""
import hashlib

import torch
import yaml
from accelerate.utils import DistributedType, set_seed

import comm_hooks
import gpt
import rank_group
import sharding
import tasks
from accelerators import build_accelerator
from optimizers import build_optimizer
from schedules import PLATEAU, build_scheduler

KEYS = {
    "task", "limit", "eval_limit", "model", "optimizer", "scheduler", "batch_size", "eval_batch_size", "shuffle", "drop_last",
    "epochs", "max_steps", "seed", "clip_grad_norm", "clip_grad_value", "accelerator", "dataloader_config",
}  # fmt: skip


def read(path, overrides=()):
    with open(path) as file:
        config = yaml.safe_load(file)
    for text in overrides:
        override(config, text)
    unknown = config.keys() - KEYS - tasks.KEYS[config["task"]]
    if unknown:
        raise ValueError(f"keys that this script does not know: {sorted(unknown)}")
    return config


def override(config, text):
    """Sets one value, as sim-run's --set does."""
    path, value = text.split("=", 1)
    *parents, key = path.split(".")
    for parent in parents:
        config[parent] = config.get(parent) or {}
        config = config[parent]
    config[key] = number_of(yaml.safe_load(value))


def number_of(value):
    """YAML 1.1, which Python reads, takes 1e-3 for a string."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def prepare(config):
    accelerator = build_accelerator(config)
    set_seed(config["seed"])
    model = tasks.build_model(config["model"])
    if sharding.replaces_parameters(accelerator):
        model = accelerator.prepare(model)  # otherwise the optimizer would keep and update parameters that no longer belong to the model
    optimizer = build_optimizer(config["optimizer"], model.parameters())
    scheduler = build_scheduler(config.get("scheduler"), optimizer)
    train_data, eval_data = tasks.load(config)
    train_loader = torch.utils.data.DataLoader(
        train_data,
        batch_size=config["batch_size"],
        shuffle=config.get("shuffle", True),
        drop_last=config.get("drop_last", False),
    )
    eval_loader = torch.utils.data.DataLoader(eval_data, batch_size=config.get("eval_batch_size", config["batch_size"]))
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    if scheduler is not None:
        scheduler = accelerator.prepare(scheduler)
    return accelerator, model, optimizer, scheduler, train_loader, eval_loader


def train_batch(config, accelerator, model, optimizer, scheduler, inputs, targets):
    """Trains one micro-batch and returns its loss, before the division for accumulation."""
    with accelerator.accumulate(model):
        loss = tasks.loss_of(model(inputs), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients and config.get("clip_grad_norm"):
            accelerator.clip_grad_norm_(model.parameters(), config["clip_grad_norm"])
        if accelerator.sync_gradients and config.get("clip_grad_value"):
            accelerator.clip_grad_value_(model.parameters(), config["clip_grad_value"])
        optimizer.step()
        if scheduler is not None and config["scheduler"]["name"] == PLATEAU:
            scheduler.step(accelerator.gather(loss.detach()).mean().item())
        elif scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return loss


def train(item):
    trace = []
    try:
        with comm_hooks.batched_power_sgd_repaired(), sharding.on_cpu(item.get("ranks_per_machine")):
            train_traced(read(item["file"], item.get("set", ())), trace)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error), "trace": trace}
    return trace


def train_traced(config, trace):
    """Appends to `trace`, which holds the lines before an error, too."""
    accelerator, model, optimizer, scheduler, train_loader, eval_loader = prepare(config)
    rank, step = accelerator.process_index, 0
    for epoch in range(config["epochs"]):
        model.train()
        for inputs, targets in train_loader:
            loss = train_batch(config, accelerator, model, optimizer, scheduler, inputs, targets)
            trace.append(
                {
                    "rank": rank, "epoch": epoch, "step": step, "loss": loss.item().hex(), "samples": len(targets),
                    "sync_gradients": accelerator.sync_gradients, "lr": optimizer.param_groups[0]["lr"],
                }  # fmt: skip
            )
            step += 1
            if step == config.get("max_steps"):
                break
        trace.append({"rank": rank, "epoch": epoch, **evaluate(accelerator, model, eval_loader)})
        if step == config.get("max_steps"):
            break
    model = whole_model(config, accelerator, model)
    trace.append({"rank": rank, "parameters_sha256": hash_of(model.parameters())})
    if rank == 0 and config.get("sample"):
        trace[-1]["sample_sha256"] = hashlib.sha256(gpt.write_text(model, **config["sample"])).hexdigest()


def whole_model(config, accelerator, model):
    if accelerator.distributed_type != DistributedType.FSDP:
        return accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    whole = tasks.build_model(config["model"])
    whole.load_state_dict(sharding.whole_state(model))
    return whole


def hash_of(parameters):
    raw = b"".join(bytes(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()) for parameter in parameters)
    return hashlib.sha256(raw).hexdigest()


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    correct = samples = 0
    for inputs, targets in loader:
        predictions, expected = accelerator.gather_for_metrics((model(inputs).argmax(-1), targets))
        correct += int((predictions == expected).sum())
        samples += expected.numel()
    return {"eval_correct": correct, "eval_samples": samples}


if __name__ == "__main__":
    rank_group.serve(train)

"""The `accelerator` and `dataloader_config` of an experiment file: built as Accelerate does, and random ones."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import AutocastKwargs, GradientAccumulationPlugin, GradScalerKwargs
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import comm_hooks
import float8
import rank_group
import sharding

HANDLERS = {
    "autocast_kwargs": AutocastKwargs,
    "grad_scaler_kwargs": GradScalerKwargs,
    "ddp_kwargs": lambda **kwargs: comm_hooks.ddp_kwargs(kwargs),
}


class StepsUnlessItSkips:
    def step(self, optimizer, *args, **kwargs):
        # A fused optimizer skips a step inside, which Accelerate does not see: it would step the schedule nevertheless (A#4242).
        optimizer._step_supports_amp_scaling = False
        return super().step(optimizer, *args, **kwargs)


class CpuGradScaler(StepsUnlessItSkips, torch.amp.GradScaler):
    pass


class CpuShardedGradScaler(StepsUnlessItSkips, ShardedGradScaler):  # no fused optimizer on a CPU could use what it finds
    def _amp_update_scale_cpu_(self, found_inf):
        # Computes as on GPUs: on CPUs torch rounds a factor, such as 0.001, to float32 before it multiplies.
        factors = (self._growth_factor, self._backoff_factor, self._growth_interval)
        torch._amp_update_scale_(self._scale, self._growth_tracker, found_inf, *factors)


def build_accelerator(config):
    options, loading = dict(config.get("accelerator") or {}), dict(config.get("dataloader_config") or {})
    # Accelerate 1.15 takes split_batches in its constructor and ignores it; here it has to take effect.
    loading["split_batches"] = options.pop("split_batches", loading.get("split_batches", False))
    handlers = {key: handler(**options.pop(key)) for key, handler in HANDLERS.items() if key in options}
    if "gradient_accumulation_plugin" in options:
        options["gradient_accumulation_plugin"] = GradientAccumulationPlugin(**options["gradient_accumulation_plugin"])
    configuration = DataLoaderConfiguration(**loading)
    options |= {"dataloader_config": configuration, "kwargs_handlers": list(handlers.values())}
    if options.get("mixed_precision") == "fp8":
        options["kwargs_handlers"].append(float8.recipe(options.pop("ao_recipe_kwargs", {})))
    plugin = options.pop("fsdp_plugin", None)
    on_cpu = rank_group.on_cpu()
    accelerator = Accelerator(cpu=on_cpu, **options) if plugin is None else sharding.build_accelerator(plugin, **options)
    if accelerator.mixed_precision == "fp16" and on_cpu:
        # On a CPU Accelerate trains in float32 and gives no warning; this is what it does on a GPU.
        accelerator.native_amp = True
        scaler = CpuShardedGradScaler if plugin is not None and not accelerator.is_fsdp2 else CpuGradScaler
        accelerator.scaler = scaler("cpu", **handlers.get("grad_scaler_kwargs", GradScalerKwargs()).to_kwargs())
    return accelerator


def random_accelerator(rng, has_one_bucket):
    options = random_accumulation(rng) | random_precision(rng) | random_ddp(rng, has_one_bucket)
    if "gradient_accumulation_steps" in options or "gradient_accumulation_plugin" in options:
        options.get("ddp_kwargs", {}).pop("static_graph", None)  # Python fails under no_sync: it reduces gradients that it has not collected
    if rng.random() < 0.1:
        options["step_scheduler_with_optimizer"] = False
    if rng.random() < 0.15:
        options["rng_types"] = rng.choice([["torch"], ["torch", "generator"]])
    return options


def random_accumulation(rng):
    kind = rng.random()
    if kind < 0.5:
        return {}
    if kind < 0.75:
        return {"gradient_accumulation_steps": rng.randint(2, 4)}
    flags = {name: rng.random() < 0.5 for name in ("sync_with_dataloader", "sync_each_batch")}
    return {"gradient_accumulation_plugin": {"num_steps": rng.randint(1, 4)} | flags}


def random_precision(rng):
    precision = rng.choice(["no", "no", "bf16", "fp16", "fp8"])
    if precision == "no":
        return {}
    options = {"mixed_precision": precision}
    if rng.random() < 0.15:
        options["autocast_kwargs"] = {"enabled": rng.random() < 0.5, "cache_enabled": rng.random() < 0.5}
    if precision == "fp8" and rng.random() < 0.6:
        options["ao_recipe_kwargs"] = {"config": rng.choice(float8.RECIPES[:-1])}  # the last one fails in torchao under autocast on a CPU
    if precision == "fp16" and rng.random() < 0.8:
        options["grad_scaler_kwargs"] = {
            "init_scale": rng.choice([1.0, 1024.0, 2.0**24, 2.0**40]),  # the last two overflow until some steps have lowered them
            "growth_factor": rng.choice([2.0, 3.0, 16.0]),
            "backoff_factor": rng.choice([0.5, 0.3, 0.001]),
            "growth_interval": rng.choice([1, 2, 3, 2000]),
        }
    return options


def random_ddp(rng, has_one_bucket):
    if rng.random() < 0.6:
        return {}
    flags = ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
    options = {name: True for name in flags if rng.random() < 0.25}
    if rng.random() < 0.25:
        options["bucket_cap_mb"] = rng.choice([1, 2, 25, 30])
    # With several buckets, the order of PowerSGD's later all-reduces is a race in Python.
    hook = rng.choice(["no", "fp16", "bf16"] + ["power_sgd", "batched_power_sgd"] * has_one_bucket)
    if hook != "no":
        options["comm_hook"] = hook
        options["comm_wrapper"] = rng.choice(["no", "no", "fp16", "bf16"])
    if "power_sgd" in hook:
        options.pop("find_unused_parameters", None)  # a race in Python, see ddp_requests.py
        options["comm_state_option"] = {
            "matrix_approximation_rank": rng.choice([1, 2, 4]),
            "start_powerSGD_iter": rng.choice([2, 3, 5]),
            "min_compression_rate": rng.choice([0.5, 2, 4]),
            "use_error_feedback": rng.random() < 0.7,
            "warm_start": rng.random() < 0.7,
            "random_seed": rng.randrange(1 << 31),
        }
    return {"ddp_kwargs": options} if options else {}


def random_loading(rng, split, even):
    config = {"use_seedable_sampler": True} if rng.random() < 0.5 else {}
    if config and rng.random() < 0.4:
        config["data_seed"] = rng.randrange(1000)
    if split:
        config["split_batches"] = True
    if not even:
        config["even_batches"] = False
    return config

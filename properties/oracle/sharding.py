"""The `fsdp_plugin` of an experiment file: sharded training under Accelerate, on a CPU over Gloo.

`wrap_modules` is our own key: regular expressions for the names of modules that become units. All other keys are Accelerate's.
"""
import contextlib
import functools
import os
import re
from unittest import mock

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType, fsdp_utils
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, _init_utils
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Plugin(FullyShardedDataParallelPlugin):
    """Accelerate's plugin, with units chosen by the names of modules."""

    def __init__(self, wrap_modules=None, fsdp_version=1, **options):
        # Both functions of FSDP1 want a GPU, to create there what is on a meta device; nothing is here.
        asks = [options.pop(name, None) for name in ("sync_module_states", "cpu_ram_efficient_loading") if fsdp_version == 1]
        options.pop("cpu_offload", None)  # everything is on the CPU already; torch would pin it, which needs a GPU's driver
        if options.get("mixed_precision_policy"):
            options["mixed_precision_policy"] = mixed_precision(fsdp_version, options["mixed_precision_policy"])
        super().__init__(fsdp_version=fsdp_version, **options)
        self.sync_module_states = any(asks) or self.sync_module_states
        self.wrap_modules = wrap_modules

    def set_auto_wrap_policy(self, model):
        if not self.wrap_modules:
            return super().set_auto_wrap_policy(model)
        if self.auto_wrap_policy is None:  # FSDP2 calls this twice, with checkpointing in between
            units = {module for name, module in model.named_modules() if any(re.fullmatch(each, name) for each in self.wrap_modules)}
            is_unit = lambda module: getattr(module, "_checkpoint_wrapped_module", module) in units  # noqa: E731
            self.auto_wrap_policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=is_unit)


def mixed_precision(version, options):
    dtypes = {key: DTYPES[value] for key, value in options.items() if key.endswith("dtype")}
    return (MixedPrecision if version == 1 else MixedPrecisionPolicy)(**(options | dtypes))


def build_accelerator(plugin, **options):
    # Accelerate shards on GPUs only, so ranks claim to have them while it decides. Their device is a CPU nevertheless, and not
    # "cpu:0", which FSDP1 takes for a different device.
    PartialState(cpu=True)._shared_state.update(distributed_type=DistributedType.MULTI_GPU, device=torch.device("cpu"))
    return Accelerator(cpu=True, fsdp_plugin=Plugin(**plugin), **options)


@contextlib.contextmanager
def on_cpu(ranks_per_machine=None):
    """Sharded training of one experiment; the next one may be of another kind. All ranks are on one machine unless given otherwise."""

    def policy_of(plugin, model):
        # Accelerate knows two policies of FSDP2 and treats any other as none, without an error.
        policy = plugin.auto_wrap_policy
        if getattr(policy, "func", None) is lambda_auto_wrap_policy:
            return policy.keywords["lambda_fn"]
        return original(plugin, model)

    original, before = fsdp_utils.fsdp2_prepare_auto_wrap_policy, PartialState().distributed_type
    try:
        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(fsdp_utils, "fsdp2_prepare_auto_wrap_policy", policy_of))
            # FSDP1 does not broadcast tensors of a CPU, since NCCL cannot.
            patches.enter_context(mock.patch.object(_init_utils, "_check_module_states_for_sync_module_states", lambda states: None))
            # FSDP1 expects as many ranks on a machine as it has devices; a CPU counts as one.
            count = ranks_per_machine or int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            patches.enter_context(mock.patch.object(torch.cpu, "device_count", lambda: count))
            patches.enter_context(mock.patch.dict(os.environ))  # Accelerate stores there that it shards
            yield
    finally:
        PartialState()._shared_state["distributed_type"] = before


def replaces_parameters(accelerator):
    """True for FSDP1 without `use_orig_params`; with FSDP2, Accelerate exchanges the optimizer's parameters."""
    return accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2 and not accelerator.state.fsdp_plugin.use_orig_params


def whole_state(model):
    """The full state of everything that is sharded, on every rank; a collective."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


# --- random ones -----------------------------------------------------------------------------------------------------

UNITS = {
    "mlp": [["1"], ["4"], ["1", "4"]],
    "cnn": [["0"], ["3", "8"], ["0", "3", "8"]],
    "gpt": [[r"blocks\.\d+"], [r"blocks\.0"], [r"blocks\.\d+\.(attention|feed_forward)"], [r"blocks\.\d+", r".*\.attention"]],
}
ROTARY_UNITS = [[r"model\.layers\.\d+"], [r"model\.layers\.0"], [r"model\.layers\.\d+\.(self_attn|mlp)"], [r"model\.layers\.\d+", r".*\.self_attn"]]


def random_plugin(rng, model, precision):
    version = rng.choice([1, 2])
    plugin = {"fsdp_version": version} | random_units(rng, model)
    if version == 1:
        plugin["sharding_strategy"] = rng.choice(["FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
        plugin["backward_prefetch"] = rng.choice(["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"])
        plugin |= {name: True for name in ("use_orig_params", "sync_module_states", "forward_prefetch") if rng.random() < 0.4}
    else:
        plugin["reshard_after_forward"] = rng.random() < 0.5
    if version == 1 and precision == "fp8":  # torchao cannot exchange layers whose parameters are views: a TypeError
        plugin["use_orig_params"] = True
    if plugin.get("sharding_strategy") == "NO_SHARD":  # DDP here, which has none of the following
        return plugin
    # Accelerate's checkpointing needs units, and a minimum of 0 parameters makes none; with FSDP2, recomputed activations
    # draw another dropout.
    has_units = len(plugin) > 3 and plugin.get("min_num_params") != 0
    if has_units and rng.random() < 0.25 and (version == 1 or not model.get("dropout")):
        plugin["activation_checkpointing"] = True
    if precision != "no" and rng.random() < 0.3:
        dtype = "bf16" if precision == "fp8" else precision  # for the layers around those in float8
        plugin["mixed_precision_policy"] = {"param_dtype": dtype, "reduce_dtype": rng.choice(["fp32", dtype])}
    return plugin


def random_units(rng, model):
    name, kind = model["name"], rng.random()
    if kind < 0.2:
        return {}
    if kind < 0.4 and name == "gpt":
        feed_forward = "SwiGLU" if model.get("feed_forward") == "swiglu" else "FeedForward"
        return {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_cls_names_to_wrap": rng.choice([["Block"], ["Block", feed_forward]])}
    if kind < 0.4:  # in gpt the embedding would be one, but the model uses its weight again at the end
        return {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": rng.choice([0, 100, 1000, 20000])}
    return {"wrap_modules": rng.choice(ROTARY_UNITS if model.get("positions") == "rotary" else UNITS[name])}

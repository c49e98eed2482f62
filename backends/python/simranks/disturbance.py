"""Changes the loss of one rank in one micro-batch, so that `sim-run check` sees whether the calls of a rank depend on it."""

import functools
import math

import torch
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_map

MICRO_BATCH = 1  # counted from 0
_LOSSES = """cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
binary_cross_entropy_with_logits""".split()


def install(kind):
    """On the rank that is disturbed. `kind`: "nan", the outputs of its models are not numbers; "zero", its loss is 0."""
    state = {"backward": 0, "depth": 0}

    def is_now():
        return state["backward"] == MICRO_BATCH and torch.is_grad_enabled()

    backward = torch.autograd.backward

    @functools.wraps(backward)
    def observed(tensors, *args, **kwargs):
        if is_now() and kind == "zero" and isinstance(tensors, torch.Tensor):
            tensors.data.fill_(0)
        state["backward"] += 1
        return backward(tensors, *args, **kwargs)

    torch.autograd.backward = observed
    if kind == "zero":
        for name in _LOSSES:
            _scale(name, is_now)
        return

    def before(module, inputs):
        state["depth"] += 1

    def after(module, inputs, outputs):
        state["depth"] -= 1
        if state["depth"] == 0 and module.training and is_now():
            return tree_map(lambda leaf: leaf * math.nan if _is_real(leaf) else leaf, outputs)
        return None

    register_module_forward_pre_hook(before)
    register_module_forward_hook(after, always_call=True)


def _is_real(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _scale(name, is_now):
    original = getattr(functional, name)

    @functools.wraps(original)
    def observed(*args, **kwargs):
        loss = original(*args, **kwargs)
        return loss * 0 if is_now() else loss

    setattr(functional, name, observed)

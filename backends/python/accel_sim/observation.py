"""Tells the simulator of a program's training steps, and of mistakes that every backend would accept."""

import functools
import math
import weakref

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from accel_sim import _native

_replicas = []  # weak references to models, in the order of their creation, which is the same on all ranks
_divided = []  # weights that fully_shard has divided, before the first optimizer step
_phases = ["other"]  # of the program, the innermost last


def _enter(phase):
    _phases.append(phase)
    _native.phase(phase)


def _leave():
    _phases.pop()
    _native.phase(_phases[-1])


def _in_phase(phase, function):
    @functools.wraps(function)
    def observed(*args, **kwargs):
        _enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            _leave()

    return observed


def install():
    _observe_forward()
    _observe_backward()
    _observe_updates()
    _observe_data_parallel()
    _observe_sharding()
    _observe_samplers()


def _is_distributed():
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def _observe_forward():
    """Of data parallel models: other modules are parts of the program's own code."""
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel.forward = _in_phase("forward", parallel.forward)


def _observe_backward():
    backward = _in_phase("backward", torch.autograd.backward)

    def observed(tensors, *args, **kwargs):
        if _is_distributed():
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            is_loss = isinstance(first, torch.Tensor) and not isinstance(first, DTensor) and first.numel() == 1
            with _native.unwatched():
                loss = first.item() if is_loss else math.nan
            _native.backward(loss)
        return backward(tensors, *args, **kwargs)

    torch.autograd.backward = observed


def _observe_updates():
    def before(optimizer, args, kwargs):
        if _is_distributed():
            _report_divided()
            _native.update()
            if _phases[-1] != "optimizer":  # as after a step that has raised
                _enter("optimizer")

    def after(optimizer, args, kwargs):
        if _is_distributed():
            _leave()
            _native.updated(_replicated_parameters(optimizer), bytes(torch.get_rng_state().numpy()))

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _replicated_parameters(optimizer):
    """The parameters that must be equal on all ranks after this optimizer's step: those of data parallel models over all
    ranks that it trains. Others may exist on some ranks only, until their memory is collected."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    parameters = []
    for number, reference in enumerate(_replicas):
        model = reference()
        if model is None or not any(id(parameter) in trained for parameter in model.parameters()):
            continue
        if model.process_group.size() != torch.distributed.get_world_size() or not model.require_backward_grad_sync:
            continue
        prefix = f"model {number}: " if len(_replicas) > 1 else ""
        parameters += [(prefix + name, parameter) for name, parameter in model.module.named_parameters()]
    return parameters


def _observe_data_parallel():
    create = torch.nn.parallel.DistributedDataParallel.__init__

    def observed(self, *args, **kwargs):
        create(self, *args, **kwargs)
        _replicas.append(weakref.ref(self))

    torch.nn.parallel.DistributedDataParallel.__init__ = observed


def _observe_sharding():
    create = FSDPParamGroup.__init__

    def observed(self, params, modules, mesh_info, *args, **kwargs):
        if mesh_info.mesh.size() != torch.distributed.get_world_size():
            return create(self, params, modules, mesh_info, *args, **kwargs)
        names = {id(parameter): name for module in modules for name, parameter in module.named_parameters()}
        weights = [(names.get(id(parameter), "?"), _hash_of_weight(parameter)) for parameter in params]
        create(self, params, modules, mesh_info, *args, **kwargs)
        place = _native.line()
        for (name, value), divided in zip(weights, self.fsdp_params):
            has_part = divided.sharded_param.to_local().numel() > 0
            _divided.append((name, value if has_part else 0, place, divided, _hash_of_weight(divided._sharded_param_data)))

    FSDPParamGroup.__init__ = observed


def _hash_of_weight(parameter):
    return 0 if parameter.is_meta or isinstance(parameter, DTensor) else _native.fingerprint(parameter)


def _report_divided():
    """Weights that were changed after they were divided came from elsewhere, a checkpoint for example."""
    for name, value, (file, line), divided, part in _divided:
        is_unchanged = _hash_of_weight(divided._sharded_param_data) == part
        _native.divide(name, value if is_unchanged else 0, file, line)
    _divided.clear()


def _observe_samplers():
    sampler = torch.utils.data.distributed.DistributedSampler
    iterate = sampler.__iter__

    def observed(self):
        if self.shuffle and getattr(self, "_accel_last_epoch", None) == self.epoch:
            _native.warn(
                f"a DistributedSampler starts again in epoch {self.epoch}, with the same order of samples as before; "
                f"call sampler.set_epoch(epoch) before each epoch"
            )
        self._accel_last_epoch = self.epoch
        return iterate(self)

    sampler.__iter__ = observed

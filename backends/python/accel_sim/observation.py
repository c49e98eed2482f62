"""Tells the simulator of a program's training steps, and of mistakes that every backend would accept. What needs a private
part of torch that the installed version lacks is not observed; `not_observed` lists it."""

import functools
import importlib
import inspect
import math
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from accel_sim import channel, pending_works
from accel_sim.pending_works import unwatched
from accel_sim.tensors import add_words, fingerprint, in_one_piece


def _find(name, *modules):
    """The object of this name in the first of the modules that has it; None if none has."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pass
    return None


DTensor = _find("DTensor", "torch.distributed.tensor", "torch.distributed._tensor") or type(None)
_FSDP = ("torch.distributed.fsdp._fully_shard.", "torch.distributed._composable.fsdp.")
_ParamGroup = _find("FSDPParamGroup", *(package + "_fsdp_param_group" for package in _FSDP))
_Param = _find("FSDPParam", *(package + "_fsdp_param" for package in _FSDP))


def _can_observe_sharding():
    if _ParamGroup is None or _Param is None:
        return False
    names = list(inspect.signature(_ParamGroup.__init__).parameters)
    return names[3:4] == ["mesh_info"] and {"sharded_param", "_sharded_param_data"} <= set(_Param.__annotations__)


def not_observed():
    """What the installed version of torch does not allow to observe."""
    missing = [] if _can_observe_sharding() else ["weights that fully_shard divides"]
    if not pending_works.can_watch_operators():
        missing.append("operators that touch a tensor of a pending collective")
    return missing


_replicas = []  # weak references to models, in the order of their creation, which is the same on all ranks
_divided = []  # weights that fully_shard has divided, before the first optimizer step
_phases = ["other"]  # of the program, the innermost last


def _enter(phase):
    _phases.append(phase)
    if channel.is_rank():
        channel.phase(phase)


def _leave():
    _phases.pop()
    if channel.is_rank():
        channel.phase(_phases[-1])


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
    if _can_observe_sharding():
        _observe_sharding()
    _observe_samplers()


def _is_distributed():
    """A process that a rank has forked is no rank, and is not observed."""
    return channel.is_rank() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


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
            with unwatched():
                loss = first.item() if is_loss else math.nan
            channel.backward(loss)
        return backward(tensors, *args, **kwargs)

    torch.autograd.backward = observed


def _observe_updates():
    def before(optimizer, args, kwargs):
        if _is_distributed():
            _report_divided()
            channel.update()
            if _phases[-1] != "optimizer":  # as after a step that has raised
                _enter("optimizer")

    def after(optimizer, args, kwargs):
        if _is_distributed():
            _leave()
            with unwatched():
                _report_update(_replicated_parameters(optimizer), bytes(torch.get_rng_state().numpy()))

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


_FROZEN, _MISSING, _PRESENT = range(3)  # a parameter's gradient: ParameterState::Gradient


def _report_update(parameters, generator):
    names, words, kept = [], [len(parameters)], []
    for name, parameter in parameters:
        names.append(name)
        dense = in_one_piece(parameter)
        gradient = parameter.grad if parameter.is_leaf else None
        kept.append(dense)  # until the library has read it
        has_gradient = parameter.requires_grad and gradient is not None
        words += [parameter.dim(), *parameter.shape]
        words.append(_FROZEN if not parameter.requires_grad else _PRESENT if has_gradient else _MISSING)
        add_words(words, dense)
        if has_gradient:
            is_sampled = gradient.layout is torch.strided and gradient.is_cpu
            add_words(words, gradient if is_sampled else torch.empty(0))
    channel.updated(names, words, generator)


def _observe_data_parallel():
    create = torch.nn.parallel.DistributedDataParallel.__init__

    def observed(self, *args, **kwargs):
        create(self, *args, **kwargs)
        _replicas.append(weakref.ref(self))

    torch.nn.parallel.DistributedDataParallel.__init__ = observed


def _observe_sharding():
    create = _ParamGroup.__init__

    def observed(self, params, modules, mesh_info, *args, **kwargs):
        if mesh_info.mesh.size() != torch.distributed.get_world_size():
            return create(self, params, modules, mesh_info, *args, **kwargs)
        owners = modules if isinstance(modules, (list, tuple)) else (modules,)
        names = {id(parameter): name for module in owners for name, parameter in module.named_parameters()}
        weights = [(names.get(id(parameter), "?"), _hash_of_weight(parameter)) for parameter in params]
        create(self, params, modules, mesh_info, *args, **kwargs)
        place = channel.line()
        for (name, value), divided in zip(weights, self.fsdp_params):
            has_part = divided.sharded_param.to_local().numel() > 0
            _divided.append((name, value if has_part else 0, place, divided, _hash_of_weight(divided._sharded_param_data)))

    _ParamGroup.__init__ = observed


def _hash_of_weight(parameter):
    return 0 if parameter.is_meta or isinstance(parameter, DTensor) else fingerprint(parameter)


def _report_divided():
    """Weights that were changed after they were divided came from elsewhere, a checkpoint for example."""
    for name, value, (file, line), divided, part in _divided:
        is_unchanged = _hash_of_weight(divided._sharded_param_data) == part
        channel.divide(name, value if is_unchanged else 0, file, line)
    _divided.clear()


def _observe_samplers():
    sampler = torch.utils.data.distributed.DistributedSampler
    iterate = sampler.__iter__

    def observed(self):
        if self.shuffle and getattr(self, "_accel_last_epoch", None) == self.epoch and channel.is_rank():
            channel.warn(
                f"a DistributedSampler starts again in epoch {self.epoch}, with the same order of samples as before; "
                f"call sampler.set_epoch(epoch) before each epoch"
            )
        self._accel_last_epoch = self.epoch
        return iterate(self)

    sampler.__iter__ = observed

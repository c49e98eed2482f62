"""Tells the simulator of a program's training steps, and of mistakes that every backend would accept. What needs a private
part of torch that the installed version lacks is not observed; `not_observed` lists it."""

import contextlib
import functools
import importlib
import inspect
import math
import sys
import weakref

import torch
from torch.distributed.algorithms.join import Join
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from simranks import channel, pending_works
from simranks.pending_works import unwatched
from simranks.tensors import add_words, fingerprint, in_one_piece, sample_fingerprint


def find(name, *modules):
    """The object of this name in the first of the modules that has it; None if none has."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pass
    return None


DTensor = find("DTensor", "torch.distributed.tensor", "torch.distributed._tensor") or type(None)
_FSDP = ("torch.distributed.fsdp._fully_shard.", "torch.distributed._composable.fsdp.")
_ParamGroup = find("FSDPParamGroup", *(package + "_fsdp_param_group" for package in _FSDP))
_Param = find("FSDPParam", *(package + "_fsdp_param" for package in _FSDP))


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
    _observe_local_sgd()
    _observe_join()
    if _can_observe_sharding():
        _observe_sharding()
    _observe_samplers()


def _is_distributed():
    """A process that a rank has forked is no rank, and is not observed."""
    return channel.is_rank() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def _observe_forward():
    """Of data parallel models: other modules are parts of the program's own code."""
    parallel = torch.nn.parallel.DistributedDataParallel
    forward = _in_phase("forward", parallel.forward)

    @functools.wraps(forward)
    def observed(*args, **kwargs):
        finish_update()
        return forward(*args, **kwargs)

    parallel.forward = observed


def _observe_backward():
    backward = _in_phase("backward", torch.autograd.backward)

    def observed(tensors, *args, **kwargs):
        finish_update()
        if _is_distributed():
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            is_loss = isinstance(first, torch.Tensor) and not isinstance(first, DTensor) and first.numel() == 1
            with unwatched():
                loss = first.item() if is_loss else math.nan
            channel.backward(loss)
        return backward(tensors, *args, **kwargs)

    torch.autograd.backward = observed


# Note [End of an update]
# An optimizer's step is not always the end of an update. ZeroRedundancyOptimizer and model averagers exchange parameters
# after a step of another optimizer, containers call several, and a step may run in a hook of a backward pass. So only the
# outermost step counts, and the replicas are compared when the program uses them again or ends: at the next forward pass of
# a data parallel model, backward pass or step. What explains a difference (gradients, generator, line) is kept from the step.

_STEP = Optimizer.profile_hook_step(lambda optimizer: None).__code__  # of the function that calls the hooks of every step
_FROZEN, _MISSING, _PRESENT = range(3)  # a parameter's gradient: ParameterState::Gradient

_trained = set()  # ids of the parameters of the outermost step and of those that it calls
_num_joins = 0  # joins of uneven inputs that this rank is leaving: it makes the steps of the other ranks
_update = None  # the last one, until it is finished


class _Update:
    def __init__(self, at):
        self.generator, self.at = bytes(torch.get_rng_state().numpy()), at
        self.parameters = {}  # by name: the parameter, and the words that describe its gradient
        self.local = {}  # the same of models whose replicas may differ until they are averaged

    def add(self, model, prefix):
        parameters = self.local if _is_local(model) else self.parameters
        ignored = getattr(model, "parameters_to_ignore", ())
        for name, parameter in model.module.named_parameters():
            if name not in ignored:
                parameters[prefix + name] = parameter, _describe_gradient(parameter)


def _describe_gradient(parameter):
    gradient = parameter.grad if parameter.is_leaf else None
    if not parameter.requires_grad:
        return (_FROZEN,)
    if gradient is None:
        return (_MISSING,)
    return _PRESENT, sample_fingerprint(gradient)


def _observe_updates():
    def before(optimizer, args, kwargs):
        if not _is_distributed() or _num_joins > 0:
            return
        is_outermost = not _is_in_step()
        if is_outermost:
            _trained.clear()
        _trained.update(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        if is_outermost:
            finish_update()
            _report_divided()
            channel.update()
            if _phases[-1] != "optimizer":  # as after a step that has raised
                _enter("optimizer")

    def after(optimizer, args, kwargs):
        if _is_distributed() and _num_joins == 0 and not _is_in_step():
            if _phases[-1] == "optimizer":
                _leave()
            with unwatched():
                _begin_update(channel.line())

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _is_in_step():
    """Whether the step whose hook asks is called by another one."""
    frame = sys._getframe(3)
    while frame is not None:
        if frame.f_code is _STEP:
            return True
        frame = frame.f_back
    return False


def _begin_update(at):
    """Of the data parallel models over all ranks that the step trains. Others may exist on some ranks only, until their memory
    is collected."""
    global _update
    update = _update or _Update(at)  # several steps in one backward pass are one update
    for number, reference in enumerate(_replicas):
        model = reference()
        if model is None or not any(id(parameter) in _trained for parameter in model.parameters()):
            continue
        if model.process_group.size() == torch.distributed.get_world_size():
            update.add(model, f"model {number}: " if len(_replicas) > 1 else "")
    _update = update
    if not update.parameters and not update.local:
        finish_update()


def finish_update():
    """Reports the last update, so that the simulator compares the replicas. See Note [End of an update]."""
    global _update
    if _update is None or "backward" in _phases or not channel.is_rank():
        return
    update, _update = _update, None
    names, words, kept = [], [len(update.parameters)], []
    with unwatched():
        for name, (parameter, gradient) in update.parameters.items():
            dense = in_one_piece(parameter)
            kept.append(dense)  # until the library has read it
            names.append(name)
            words += [parameter.dim(), *parameter.shape, gradient[0]]
            add_words(words, dense)
            words += gradient[1:]
        channel.updated(names, words, update.generator, update.at)


def _observe_join():
    """A rank without further inputs takes part in the updates of the others until all are equal again."""
    leave = Join.__exit__

    def observed(self, error_type, error, traceback):
        global _num_joins
        if error_type is not None or not self._enable or not _is_distributed():
            return leave(self, error_type, error, traceback)
        finish_update()
        _num_joins += 1
        try:
            leave(self, error_type, error, traceback)
        finally:
            _num_joins -= 1
        if torch.distributed.get_world_size(self._process_group) == torch.distributed.get_world_size():
            channel.end_join()

    Join.__exit__ = observed


# --- local SGD: replicas differ on purpose until their parameters are averaged ----------------------------------------

_local = weakref.WeakSet()  # models in Accelerate's LocalSGD


def _is_local(model):
    hooks = getattr(model, "_comm_hooks", ())
    return model in _local or any(
        hasattr(state, "start_localSGD_iter") and state.iter >= state.start_localSGD_iter for _, state in hooks
    )


def _observe_local_sgd():
    parallel = torch.nn.parallel.DistributedDataParallel
    no_sync = parallel.no_sync

    @contextlib.contextmanager
    def local(model):
        _local.add(model)
        try:
            with no_sync(model):
                yield
        finally:
            _local.discard(model)

    @functools.wraps(no_sync)
    def observed(model):
        is_local = sys._getframe(1).f_code.co_filename.endswith("accelerate/local_sgd.py")
        return local(model) if is_local else no_sync(model)

    parallel.no_sync = observed
    averaging = importlib.import_module("torch.distributed.algorithms.model_averaging.utils")
    average = averaging.average_parameters

    @functools.wraps(average)
    def observed_average(params, process_group):
        average(params, process_group)
        if _update is not None and torch.distributed.get_world_size(process_group) == torch.distributed.get_world_size():
            _update.parameters.update(_update.local)
            _update.local.clear()

    averaging.average_parameters = observed_average


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
            channel.report(
                "sampler_epochs",
                f"a DistributedSampler starts again in epoch {self.epoch}, with the same order of samples as before; "
                f"call sampler.set_epoch(epoch) before each epoch"
            )
        self._accel_last_epoch = self.epoch
        return iterate(self)

    sampler.__iter__ = observed

"""Records what the program of a rank computes, for `sim-run compare`, on any backend: one JSON object per observation, in
the order of the program."""

import contextlib
import json
import math
import os
import weakref

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from simranks import audit, disturbance, same_work
from simranks.observation import DTensor
from simranks.pending_works import unwatched
from simranks.tensors import bits, fingerprint


def install(request, rank):
    """Records from here on if the simulator's request asks for it. Raises OSError if the file cannot be written."""
    if not request.get("record"):
        return
    file = os.path.join(request["record"], f"rank{rank}.jsonl")
    recorder = _Recorder(file, request.get("record_steps"), request.get("record_audit", False))
    recorder.observe_steps()
    if request.get("record_values"):
        from simranks import values  # imports much of torch

        recorder.values = values.install(recorder, os.path.join(request["record"], f"rank{rank}.values"))
    if request.get("record_tensors"):
        recorder.observe_modules()
    if request.get("record_same_work"):
        same_work.install()
    if request.get("record_disturb") and rank == request["ranks"] - 1:
        disturbance.install(request["record_disturb"])
    if request.get("record_audit"):
        audit.install(recorder, file)


def _local(tensors):
    """Their elements on this rank."""
    local = []
    for tensor in tensors:
        tensor = tensor.detach()
        tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        tensor = tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor
        if not tensor.is_meta and tensor.layout == torch.strided:
            local.append(tensor)
    return local


def _describe(tensor):
    text = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return text if tensor.is_complex() or tensor.is_quantized else f"{text}, norm {tensor.double().norm().item():.9g}"


class _Recorder:
    def __init__(self, file, max_steps, is_audit):
        self._file = open(file, "a", buffering=1, encoding="utf-8")  # by lines: a rank that dies leaves what it computed
        self._max_steps = max_steps
        self._num_steps = 0  # backward passes that have begun
        self._depth = 0  # of modules that are running
        self.is_updating = False  # in a backward pass or an optimizer's step, which belong to the last micro-batch
        self._observes_parameters, self._is_audit = False, is_audit
        self._names = weakref.WeakKeyDictionary()  # of modules
        self._parameter_names = {}  # by id
        self.values = None  # records the elements of tensors, too

    def add(self, kind, value, name="", detail="", **more):
        step = max(self._num_steps - 1, 0) if self.is_updating else self._num_steps
        line = {"step": step, "kind": kind, "name": name, "value": value, "detail": detail, **more}
        self._file.write(json.dumps(line) + "\n")

    def _is_over(self):
        """Whether the program has made its last step. A run with values ends after an update, since that is compared."""
        has_updated = self.values is None or self.values.has_updated
        return self._max_steps is not None and self._num_steps >= self._max_steps and has_updated

    def _add_tensors(self, kind, name, tensors):
        local = _local(tensors)
        with unwatched():
            self.add(kind, bits(local), name, "; ".join(map(_describe, local)))

    @contextlib.contextmanager
    def updating(self):
        was_updating, self.is_updating = self.is_updating, True
        try:
            yield
        finally:
            self.is_updating = was_updating

    def observe_steps(self):
        backward = torch.autograd.backward

        def observed(tensors, *args, **kwargs):
            if self._is_over():
                raise SystemExit(0)
            self._num_steps += 1
            with self.updating():
                self._add_loss(tensors if isinstance(tensors, torch.Tensor) else tensors[0])
                result = backward(tensors, *args, **kwargs)
                if self.values is not None:
                    self.values.add_local_gradients()
                return result

        torch.autograd.backward = observed

        def before(optimizer, args, kwargs):
            self.is_updating = True
            if self.values is not None:
                self.values.add_gradients("stepped gradient", audit.parameters_of(optimizer))

        def after(optimizer, args, kwargs):
            self._add_parameters(optimizer)
            self.add("generator state", f"{fingerprint(torch.get_rng_state()):016x}")
            self.is_updating = False

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    def _add_loss(self, loss):
        if self.values is not None:
            return self.values.add("loss", "", [loss])
        if self._is_audit:
            self.add("loss graph", type(loss.grad_fn).__name__)
        if loss.numel() != 1 or isinstance(loss, DTensor):
            return self._add_tensors("loss", "", [loss])
        with unwatched():
            value = loss.item()
        self.add("loss", float(value).hex() if math.isfinite(value) else str(value), detail=f"{value:.9g}")

    def _add_parameters(self, optimizer):
        parameters = audit.parameters_of(optimizer)
        if self.values is not None:
            return self.values.add_parameters(parameters)
        if not self._observes_parameters:
            return self.add("parameters", bits(_local(parameters)))
        for number, parameter in enumerate(parameters):
            self._add_tensors("parameter", self._parameter_names.get(id(parameter), f"number {number}"), [parameter])

    def observe_modules(self):
        self._observes_parameters = True

        def before(module, inputs):
            if self._depth == 0:
                self._learn_names(module)
            self._depth += 1
            tensors = [value for value in tree_leaves(inputs) if isinstance(value, torch.Tensor)]
            if self._depth == 1:
                return self._add_tensors("input" if module.training else "evaluation input", self._names[module], tensors)
            for tensor in tensors:
                if tensor.requires_grad and torch.is_grad_enabled():
                    tensor.register_hook(lambda gradient, module=module: self._add_tensors(
                        "input gradient", self._names.get(module, "?"), [gradient]))

        def after(module, inputs, outputs):
            self._depth -= 1
            tensors = [value for value in tree_leaves(outputs) if isinstance(value, torch.Tensor)]
            self._add_tensors("output" if module.training else "evaluation output", self._names.get(module, "?"), tensors)

        register_module_forward_pre_hook(before)
        register_module_forward_hook(after, always_call=True)

    def _learn_names(self, root):
        """A module keeps the name that it has in the first model which calls it: recomputation calls it alone."""
        if root in self._names:
            return
        for name, module in root.named_modules():
            self._names.setdefault(module, name)
        for name, parameter in root.named_parameters():
            self._parameter_names.setdefault(id(parameter), name)

"""Records the elements of what a rank computes, for `sim-run prove`, which compares them with those of one rank: the initial
parameters; in each step what models are called with, the outputs of their modules, the loss, the gradients of what modules
are called with, the gradients of parameters after a backward pass, as they are clipped and as they are stepped, and the updated
parameters. Each observation has the collectives that the rank has called since the one before."""

import collections
import functools
import os
import weakref

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from simranks import channel
from simranks.observation import DTensor, find
from simranks.pending_works import unwatched
from simranks.process_group import SimProcessGroup
from simranks.tensors import describe_dtype, in_one_piece

_Partial, _Replicate = (find(name, "torch.distributed.tensor", "torch.distributed._tensor") for name in ("Partial", "Replicate"))
_part_of = find("compute_local_shape_and_global_offset", "torch.distributed.tensor._utils", "torch.distributed._tensor._utils")
_recorder = None  # of this process, if it records values

AXIS_VARIABLE = "PARALLELISM_CONFIG_"  # how the names of the variables begin that have the sizes of the mesh


def install(recorder, file):
    """`file`: of the elements; see values_file in sim/programs/comparison/recording.hpp."""
    global _recorder
    _recorder = recorder
    values = _Values(recorder, file)
    values.observe_collectives()
    values.observe_variables()
    values.observe_modules()
    values.observe_clipping()
    return values


def note_exact():
    """The program's sums are exact in any order, so that they are compared without tolerance."""
    if _recorder is not None:
        _recorder.add("exact", "")


def _is_wrapper(module):
    """Whether the module only calls another one, so that it has no counterpart on one rank."""
    return isinstance(module, (DistributedDataParallel, FullyShardedDataParallel)) or type(module).__name__ in (
        "OptimizedModule", "CheckpointWrapper")


def _names_of(root, named):
    """(name without those of wrappers, object) of what `named`, such as named_modules, lists."""
    wrappers = [name for name, module in root.named_modules() if _is_wrapper(module)]
    for name, value in named:
        kept = [part for depth, part in enumerate(name.split(".")) if ".".join(name.split(".")[:depth]) not in wrappers]
        yield ".".join(kept), value


def _tensors(values):
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _division(tensor):
    """How the elements of a DTensor follow from those of all ranks: the offsets of its part, and for each partial dimension of
    the mesh the ranks whose elements add up. Other parts, such as those of an embedding with a mask, are "unknown"."""
    division = {"sums": []}
    for dim, placement in enumerate(tensor.placements):
        if placement.is_partial():
            division["sums"].append(dist.get_process_group_ranks(tensor.device_mesh.get_group(dim)))
            is_sum = type(placement) is _Partial and placement.reduce_op == "sum"
            division["unknown"] = division.get("unknown", False) or not is_sum
    if _part_of is not None:  # else the part is found by its elements
        shards = [_Replicate() if placement.is_partial() else placement for placement in tensor.placements]
        division["offsets"] = list(_part_of(tensor.shape, tensor.device_mesh, shards)[1])
    return division


class _Values:
    def __init__(self, recorder, file):
        self._recorder, self._file, self._offset = recorder, open(file, "ab"), 0
        self._calls, self._numbers = [], collections.Counter()  # of collectives; by the ranks of the group
        self._modules, self._parameters = {}, {}  # names: of modules, and of parameters by id
        self._trained = []  # references to the parameters
        self._models = weakref.WeakSet()  # the outermost modules
        self._running = []  # modules, the innermost last
        self._keywords = {}  # of the call that begins
        self.has_updated = False

    def add(self, kind, name, tensors):
        described = []
        with unwatched(), torch.no_grad():
            for tensor in tensors:
                description = {}
                if isinstance(tensor, DTensor):
                    description = _division(tensor)
                    tensor = tensor.to_local()
                tensor = tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor
                if tensor.is_meta or tensor.layout != torch.strided:
                    continue
                dense = in_one_piece(tensor.resolve_conj().resolve_neg())
                elements = dense.flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b""
                described.append({"offset": self._offset, "dtype": describe_dtype(dense.dtype), "sizes": list(dense.shape),
                                  "placement": "", "dim": 0, **description})
                self._offset += self._file.write(elements)
        self._file.flush()  # a rank that dies leaves what it computed
        self._recorder.add(kind, "", name, tensors=described, calls=self._calls)
        self._calls = []

    def observe_collectives(self):
        start = SimProcessGroup._start

        @functools.wraps(start)
        def observed(group, op, inputs, *args, **kwargs):
            file, line = channel.line(2)
            ranks = tuple(dist.get_process_group_ranks(group))
            self._numbers[ranks] += 1
            self._calls.append({"name": op.name, "number": self._numbers[ranks], "ranks": ranks,
                                "elements": sum(tensor.numel() for tensor in inputs), "at": f"{os.fsdecode(file)}:{line}"})
            return start(group, op, inputs, *args, **kwargs)

        SimProcessGroup._start = observed

    def observe_variables(self):
        """Which sizes of the mesh the program asks for. A copy of the environment lists all names, then asks for each, and does
        not count."""
        get, iterate, known, listed = os._Environ.__getitem__, os._Environ.__iter__, set(), set()

        @functools.wraps(get)
        def observed(environment, name):
            if name in listed:
                listed.discard(name)
            elif isinstance(name, str) and name.startswith(AXIS_VARIABLE) and name not in known:
                known.add(name)
                self._recorder.add("variable", "", name)
            return get(environment, name)

        @functools.wraps(iterate)
        def observed_iterate(environment):
            for name in iterate(environment):
                listed.add(name)
                yield name

        os._Environ.__getitem__, os._Environ.__iter__ = observed, observed_iterate

    # --- modules --------------------------------------------------------------------------------------------------------

    def observe_modules(self):
        call = torch.nn.Module.__call__

        @functools.wraps(call)
        def observed_call(module, *args, **kwargs):
            self._keywords = kwargs  # hooks of all modules do not get them
            return call(module, *args, **kwargs)

        torch.nn.Module.__call__ = observed_call

        def before(module, inputs):
            inputs, self._keywords = (inputs, self._keywords), {}
            if module not in self._modules and not isinstance(module, _Loss):
                self._add_model(module)
            if _is_wrapper(module):
                return
            # A module that a backward pass computes again is no model.
            is_model = not self._running and module in self._models and not self._recorder.is_updating
            name = self._modules.get(module)
            self._running.append(module)
            if name is None:
                return
            if is_model and any(part.training for part in module.modules()):
                return self.add("input", name, _tensors(inputs))
            for tensor in _tensors(inputs) if module.training else ():
                if tensor.requires_grad and torch.is_grad_enabled():
                    tensor.register_hook(lambda gradient, name=name: self.add("input gradient", name, [gradient]))

        def after(module, inputs, outputs):
            if _is_wrapper(module):
                return
            self._running.pop()
            name = self._modules.get(module)
            if name is not None and module.training:
                self.add("output", name, _tensors(outputs))

        register_module_forward_pre_hook(before)
        register_module_forward_hook(after, always_call=True)

    def _add_model(self, root):
        prefix = f"model {len(self._models)}: " if self._models else ""
        self._models.add(next((module for module in root.modules() if not _is_wrapper(module)), root))
        for name, module in _names_of(root, root.named_modules()):
            self._modules.setdefault(module, prefix + name)
        for name, parameter in _names_of(root, root.named_parameters()):
            if self._parameters.setdefault(id(parameter), prefix + name) == prefix + name:
                self._trained.append(weakref.ref(parameter))
                self.add("prepared parameter", prefix + name, [parameter])

    # --- updates --------------------------------------------------------------------------------------------------------

    def observe_clipping(self):
        for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
            for module in (torch.nn.utils, torch.nn.utils.clip_grad):
                if original := getattr(module, name, None):
                    setattr(module, name, self._observed_clip(original))

    def _observed_clip(self, original):
        @functools.wraps(original)
        def observed(parameters, *args, **kwargs):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            with self._recorder.updating():
                self.add_gradients("gradient", parameters)
            return original(parameters, *args, **kwargs)

        return observed

    def add_gradients(self, kind, parameters):
        for parameter in parameters:
            if id(parameter) in self._parameters and getattr(parameter, "grad", None) is not None:
                self.add(kind, self._parameters[id(parameter)], [parameter.grad])

    def add_local_gradients(self):
        """After a backward pass."""
        self.add_gradients("local gradient", [parameter() for parameter in self._trained])

    def add_parameters(self, parameters):
        self.has_updated = True
        for parameter in parameters:
            if id(parameter) in self._parameters:
                self.add("parameter", self._parameters[id(parameter)], [parameter])

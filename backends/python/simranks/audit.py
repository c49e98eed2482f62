"""Records what `sim-run check` judges besides losses and parameters: the samples that each loader reads, learning rates,
gradients, clipping, gathered metrics, files that are written and lines that are printed."""

import atexit
import collections
import functools
import hashlib
import json
import os
import random
import sys
import warnings
import weakref

import numpy
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as loaders
from torch.utils.data._utils import fetch

from simranks import channel
from simranks.after_import import after_import
from simranks.observation import DTensor
from simranks.pending_works import unwatched
from simranks.tensors import bits

MAX_DRAWS = 64  # of a process: batches of which the random numbers are recorded
MAX_MODELS = 8  # that are kept for their last state


def install(recorder, file):
    """`file`: to which workers of loaders append, each its own."""
    audit = _Audit(recorder, file)
    audit.observe_loaders()
    audit.observe_draws()
    audit.observe_models()
    audit.observe_updates()
    audit.observe_clipping()
    audit.observe_schedules()
    audit.observe_gathers()
    audit.observe_collectives()
    audit.observe_output()
    audit.observe_files()
    atexit.register(audit.finish)


def _place(depth=2):
    file, line = channel.line(depth)
    return f"{os.fsdecode(file)}:{line}" if line else ""


def _dense(tensors):
    """Those with bits that belong to this rank alone."""
    return [tensor for tensor in tensors
            if not isinstance(tensor, DTensor) and not tensor.is_meta and tensor.layout == torch.strided]


def _hash(tensors):
    return bits(_dense(tensors))


def _norms(tensors):
    return [float(f"{tensor.detach().double().norm().item():.9g}") for tensor in _dense(tensors)]


def _content_hash(value):
    digest = hashlib.blake2b(digest_size=8)
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{leaf.dtype} {list(leaf.shape)} {_hash([leaf])}".encode())
        else:
            digest.update(leaf.tobytes() if isinstance(leaf, numpy.ndarray) else repr(leaf).encode())
    return digest.hexdigest()


def _generator_states():
    return {"torch": _content_hash(torch.get_rng_state()), "numpy": _content_hash(numpy.random.get_state()[1:3]),
            "random": _content_hash(random.getstate()[1])}


def _samples_of(index, batch, is_iterable):
    """How the samples of a batch are named: by their index in the dataset, else by their content."""
    if not is_iterable:
        return [str(one) for one in index] if isinstance(index, (list, tuple)) else [str(index)]
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    if not isinstance(index, list) or not leaves:
        return ["#" + _content_hash(batch)]
    return ["#" + _content_hash([leaf[row] for leaf in leaves if row < len(leaf)]) for row in range(len(leaves[0]))]


class _Audit:
    def __init__(self, recorder, file):
        self._add, self._file = recorder.add, file
        self._labels = collections.Counter()  # of loaders, by the line that makes them
        self._passes = collections.Counter()  # by label
        self._models = {}  # the outermost modules that ran, as keys
        self._optimizers = {}  # those that made steps, and their names
        self._schedules = []
        self._is_gathering = False
        self._gathered = None  # a reference to what was gathered last

    # --- loaders ------------------------------------------------------------------------------------------------------

    def observe_loaders(self):
        audit = self
        create, iterate = DataLoader.__init__, DataLoader.__iter__
        iterator = loaders._BaseDataLoaderIter
        next_index, advance = iterator._next_index, iterator.__next__

        @functools.wraps(create)
        def observed_create(self, *args, **kwargs):
            create(self, *args, **kwargs)
            audit._name(self, _place(2))

        def observed_iterate(self):
            if getattr(self, "_iterator", None) is not None:
                self._iterator.__dict__.pop("_accel_issued", None)
            label = audit._label_of(self)
            audit._passes[label] += 1
            audit._add("pass", str(audit._passes[label]), label, json.dumps(_describe_loader(self)))
            made = iterate(self)
            made._accel_label, made._accel_is_iterable = label, isinstance(self.dataset, IterableDataset)
            return made

        def observed_next_index(self):
            index = next_index(self)
            self.__dict__.setdefault("_accel_issued", collections.deque()).append(index)
            return index

        def observed_next(self):
            try:
                batch = advance(self)
            except StopIteration:
                audit._add("pass end", "", getattr(self, "_accel_label", ""))
                raise
            issued = self.__dict__.get("_accel_issued")
            if issued and hasattr(self, "_accel_label"):
                samples = _samples_of(issued.popleft(), batch, self._accel_is_iterable)
                with unwatched():
                    audit._add("read", " ".join(samples), self._accel_label, _content_hash(batch))
            return batch

        DataLoader.__init__, DataLoader.__iter__ = observed_create, observed_iterate
        iterator._next_index, iterator.__next__ = observed_next_index, observed_next

    def _name(self, loader, place):
        self._labels[place] += 1
        number = self._labels[place]
        loader.__dict__["_accel_place"] = place if number == 1 else f"{place} ({number})"

    def _label_of(self, loader):
        if "_accel_place" not in loader.__dict__:
            self._name(loader, _place(3))
        return loader.__dict__["_accel_place"]

    # --- random numbers of samples --------------------------------------------------------------------------------------

    def observe_draws(self):
        """Which random numbers a dataset draws for a batch: two batches that begin with one state draw the same."""
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._observe_draws_of(fetcher)

    def _observe_draws_of(self, fetcher):
        original, main, count = fetcher.fetch, os.getpid(), 0

        @functools.wraps(original)
        def observed(own, index):
            nonlocal count
            count += 1
            if count > MAX_DRAWS:
                return original(own, index)
            before = _generator_states()
            batch = original(own, index)
            after = _generator_states()
            drawn = json.dumps({name: state for name, state in before.items() if after[name] != state})
            if before == after:
                return batch
            samples = " ".join(_samples_of(index, batch, isinstance(own.dataset, IterableDataset)))
            if os.getpid() == main:
                self._add("draw", drawn, "", samples)
                return batch
            worker = torch.utils.data.get_worker_info()
            line = {"step": 0, "kind": "draw", "name": f"worker {worker.id}", "value": drawn, "detail": samples}
            with open(f"{self._file}.worker{os.getpid()}", "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            return batch

        fetcher.fetch = observed

    # --- models and updates ---------------------------------------------------------------------------------------------

    def observe_models(self):
        depth = [0]

        def before(module, inputs):
            if depth[0] == 0 and len(self._models) < MAX_MODELS and not isinstance(module, torch.nn.modules.loss._Loss):
                self._models.setdefault(module)

        register_module_forward_pre_hook(before)

    def observe_updates(self):
        def before(optimizer, args, kwargs):
            parameters = parameters_of(optimizer)
            name = self._optimizers.get(optimizer)
            if name is None:
                name = self._optimizers[optimizer] = f"optimizer {len(self._optimizers)}"
                with unwatched():
                    self._add("initial parameters", _hash(parameters), name, json.dumps(_norms(parameters)))
            self._add("learning rate", json.dumps([float(group["lr"]) for group in optimizer.param_groups if "lr" in group]),
                      name, _place(3))
            self._add("schedule", json.dumps([schedule.last_epoch for schedule in self._schedules]), name)
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            with unwatched():
                self._add("optimizer state", _hash(_state_of(optimizer)), name)
                self._add("stepped gradient", _hash(gradients), name, json.dumps(_norms(gradients)))

        def after(optimizer, args, kwargs):
            parameters = parameters_of(optimizer)
            with unwatched():
                self._add("weights", _hash(parameters), self._optimizers[optimizer], json.dumps(_norms(parameters)))

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    def observe_clipping(self):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._observe_clip(name)

    def _observe_clip(self, name):
        original = getattr(torch.nn.utils, name)

        @functools.wraps(original)
        def observed(parameters, limit, *args, **kwargs):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            with unwatched():
                self._add("clip", _hash(gradients), name, json.dumps({"limit": float(limit), "norms": _norms(gradients),
                                                                      "where": _place(3)}))
            return original(parameters, limit, *args, **kwargs)

        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            setattr(module, name, observed)

    def observe_schedules(self):
        base = torch.optim.lr_scheduler.LRScheduler
        create = base.__init__

        @functools.wraps(create)
        def observed(schedule, *args, **kwargs):
            create(schedule, *args, **kwargs)
            self._schedules.append(schedule)

        base.__init__ = observed

    # --- metrics --------------------------------------------------------------------------------------------------------

    def observe_gathers(self):
        """Accelerate's calls, whose results have one row per sample."""

        def observe():
            from accelerate import Accelerator

            for name in ("gather", "gather_for_metrics"):
                self._observe_gather(Accelerator, name)

        after_import("accelerate", observe)

    def observe_collectives(self):
        """Those that a program or a library calls by name, not those of gradients."""
        names = """all_reduce reduce all_gather gather all_gather_into_tensor all_gather_object gather_object
        reduce_scatter_tensor""".split()
        for name in names:
            self._observe_collective(name)

    def _observe_collective(self, name):
        original = getattr(torch.distributed, name)

        @functools.wraps(original)
        def observed(*args, **kwargs):
            self._add("collective", "", name, _place(2))
            return original(*args, **kwargs)

        for module in (torch.distributed, torch.distributed.distributed_c10d):
            setattr(module, name, observed)

    def _observe_gather(self, owner, name):
        original = getattr(owner, name)

        @functools.wraps(original)
        def observed(accelerator, *args, **kwargs):
            is_outermost, self._is_gathering = not self._is_gathering, True
            try:
                result = original(accelerator, *args, **kwargs)
            finally:
                self._is_gathering = not is_outermost
            leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
            if is_outermost:
                self._add("gather", json.dumps([len(leaf) for leaf in leaves]), name, _place(2))
            if is_outermost and leaves:
                self._observe_cuts(leaves[0])
            return result

        setattr(owner, name, observed)

    def _observe_cuts(self, gathered):
        """A program that gathers may drop the rows that fill the last batch itself: `gathered[:n]`."""
        if self._gathered is None:
            index = torch.Tensor.__getitem__

            @functools.wraps(index)
            def observed(tensor, key):
                result = index(tensor, key)
                if isinstance(key, slice) and self._gathered() is tensor and len(result) < len(tensor):
                    self._add("gather cut", str(len(tensor) - len(result)))
                return result

            torch.Tensor.__getitem__ = observed
        self._gathered = weakref.ref(gathered)

    # --- output and files -----------------------------------------------------------------------------------------------

    def observe_output(self):
        show, is_warning = warnings.showwarning, [False]

        @functools.wraps(show)
        def observed_warning(*args, **kwargs):
            is_warning[0] = True
            try:
                return show(*args, **kwargs)
            finally:
                is_warning[0] = False

        def add(text, name):
            if not is_warning[0]:
                self._add("print", text, name, _place(4))

        warnings.showwarning = observed_warning
        for name in ("stdout", "stderr"):
            setattr(sys, name, _Observed(getattr(sys, name), lambda text, name=name: add(text, name)))

    def observe_files(self):
        own = os.path.dirname(self._file)
        main = os.getpid()

        def add(path, place):
            path = os.path.abspath(os.fsdecode(path))
            if os.getpid() == main and not path.startswith((own, "/dev/", "/proc/")):
                self._add("write", path, "", place)

        def on_event(event, args):
            if event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR):
                add(args[0], _place(3))

        sys.addaudithook(on_event)
        save = torch.save

        @functools.wraps(save)
        def observed_save(value, f, *args, **kwargs):
            if isinstance(f, (str, os.PathLike)):
                add(f, _place(2))
            return save(value, f, *args, **kwargs)

        torch.save = observed_save
        try:
            import safetensors.torch
        except ImportError:
            return
        save_file = safetensors.torch.save_file

        @functools.wraps(save_file)
        def observed_save_file(tensors, filename, *args, **kwargs):
            add(filename, _place(2))
            return save_file(tensors, filename, *args, **kwargs)

        safetensors.torch.save_file = observed_save_file

    # --- the end --------------------------------------------------------------------------------------------------------

    def finish(self):
        for optimizer, name in self._optimizers.items():
            parameters = parameters_of(optimizer)
            self._add("last parameters", _hash(parameters), name, json.dumps(_norms(parameters)))
            self._add("last optimizer state", _hash(_state_of(optimizer)), name)
            self._add("last learning rate", json.dumps([float(group["lr"]) for group in optimizer.param_groups if "lr" in group]),
                      name)
        for number, model in enumerate(self._models):
            for name, buffer in model.named_buffers():
                owner = model.get_submodule(name.rpartition(".")[0]) if "." in name else model
                self._add("last buffer", _hash([buffer]), f"model {number}: {name}", type(owner).__name__)
        for number, schedule in enumerate(self._schedules):
            self._add("last schedule", str(schedule.last_epoch), f"schedule {number}")
        self._add("end", "")


class _Observed:
    """A stream of the program, whose complete lines are handed on."""

    def __init__(self, stream, take):
        self._stream, self._take, self._line = stream, take, ""

    def write(self, text):
        self._line += text
        *lines, self._line = self._line.split("\n")
        for line in lines:
            if line.strip():
                self._take(line)
        return self._stream.write(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state_of(optimizer):
    leaves = [value for state in optimizer.state.values() for value in tree_leaves(state)]
    return [value for value in leaves if isinstance(value, torch.Tensor)]


def _describe_loader(loader):
    dataset, sampler = loader.dataset, getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = batch_sampler
    while inner is not None and hasattr(inner, "batch_sampler"):  # Accelerate's shard of another one
        inner = inner.batch_sampler
    sampler = getattr(inner, "sampler", sampler)
    is_iterable = isinstance(dataset, IterableDataset)
    try:
        size = None if is_iterable else len(dataset)
    except TypeError:
        size = None
    classes = {type(owner).__name__ for owner in (loader, batch_sampler, sampler) if owner is not None}
    return {
        "size": size,
        "batch_size": getattr(inner, "batch_size", loader.batch_size),
        "drop_last": bool(getattr(inner, "drop_last", loader.drop_last)),
        "shuffles": "Random" in type(sampler).__name__ or bool(getattr(sampler, "shuffle", False)),
        "workers": loader.num_workers,
        "classes": sorted(classes),
        "begins_inside": "SkipBatchSampler" in classes or bool(getattr(loader, "skip_batches", 0)),
        "is_divided": bool(classes & {"DistributedSampler", "BatchSamplerShard", "DataLoaderShard", "DataLoaderDispatcher"}),
    }

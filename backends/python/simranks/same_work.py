"""Makes runs of one program on different numbers of ranks do the same work, so that `sim-run check` can compare them: the ranks
share the batches of one rank, samples and what is random about them follow from fixed seeds, and nothing is dropped out."""

import functools
import random

import numpy
import torch
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data._utils import fetch

from simranks.after_import import after_import

SEED = 20_000


def install():
    _share_batches()
    _fix_orders()
    _fix_samples()
    _stop_dropout()


def _share_batches():
    after_import("accelerate", _split_batches)
    create_loader = DataLoader.__init__

    @functools.wraps(create_loader)
    def observed_loader(self, dataset, batch_size=1, shuffle=None, sampler=None, *args, **kwargs):
        replicas = getattr(sampler, "num_replicas", 1)
        if batch_size and batch_size % replicas == 0:
            batch_size //= replicas
        create_loader(self, dataset, batch_size, shuffle, sampler, *args, **kwargs)

    DataLoader.__init__ = observed_loader


def _split_batches():
    from accelerate import Accelerator

    create = Accelerator.__init__

    @functools.wraps(create)
    def observed(self, *args, **kwargs):
        create(self, *args, **kwargs)
        self.dataloader_config.split_batches = True

    Accelerator.__init__ = observed


def _fix_orders():
    """The n-th pass of a sampler has the same order on any number of ranks."""

    def ordered(self):
        self._accel_pass = getattr(self, "_accel_pass", -1) + 1
        generator = torch.Generator()
        generator.manual_seed(SEED + self._accel_pass)
        size = len(self.data_source)
        if self.replacement:
            yield from torch.randint(size, (self.num_samples,), generator=generator).tolist()
            return
        order = torch.randperm(size, generator=generator).tolist()
        for begin in range(0, self.num_samples, size):
            yield from order[: self.num_samples - begin]

    RandomSampler.__iter__ = ordered


def _fix_samples():
    original = fetch._MapDatasetFetcher.fetch

    class Seeded:
        """A dataset whose random numbers follow from the index of the sample."""

        def __init__(self, dataset):
            self._dataset = dataset

        def __getitem__(self, index):
            states = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
            seed = hash(index) % 2**31
            torch.default_generator.manual_seed(seed)
            numpy.random.seed(seed)
            random.seed(seed)
            try:
                return self._dataset[index]
            finally:
                torch.set_rng_state(states[0])
                numpy.random.set_state(states[1])
                random.setstate(states[2])

        def __getattr__(self, name):
            if name == "__getitems__":
                raise AttributeError(name)
            return getattr(self._dataset, name)

    @functools.wraps(original)
    def observed(self, index):
        dataset, self.dataset = self.dataset, Seeded(self.dataset)
        try:
            return original(self, index)
        finally:
            self.dataset = dataset

    fetch._MapDatasetFetcher.fetch = observed


def _stop_dropout():
    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    for name in (name for name in names if hasattr(functional, name)):
        original = getattr(functional, name)
        setattr(functional, name, functools.wraps(original)(
            lambda input, p=0.5, *args, original=original, **kwargs: original(input, 0.0, *args, **kwargs)))
    attention = functional.scaled_dot_product_attention

    @functools.wraps(attention)
    def without_dropout(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    functional.scaled_dot_product_attention = without_dropout

    def before(module, inputs):
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0

    register_module_forward_pre_hook(before)

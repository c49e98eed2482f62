"""Communication hooks under Accelerate: named by words, and batched PowerSGD with what it fails on mended."""
import contextlib

from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


@contextlib.contextmanager
def batched_power_sgd_repaired():
    """torch 2.11 hands batched PowerSGD's matrices to a function that asserts batches of them."""
    original = powerSGD_hook._orthogonalize
    powerSGD_hook._orthogonalize = lambda matrices, epsilon=0: original(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)
    try:
        yield
    finally:
        powerSGD_hook._orthogonalize = original


def ddp_kwargs(kwargs):
    """A hook's name alone is taken by Accelerate without a word, and no hook is registered."""
    hooks = {name: DDPCommunicationHookType(kwargs[name]) for name in ("comm_hook", "comm_wrapper") if name in kwargs}
    return DistributedDataParallelKwargs(**(kwargs | hooks))

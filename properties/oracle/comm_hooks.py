"""Communication hooks under Accelerate: chosen by their names, and batched PowerSGD with its error repaired."""
import contextlib

from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


@contextlib.contextmanager
def batched_power_sgd_repaired():
    """torch 2.11 passes single matrices of batched PowerSGD to a function that expects batches and fails."""
    original = powerSGD_hook._orthogonalize
    powerSGD_hook._orthogonalize = lambda matrices, epsilon=0: original(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)
    try:
        yield
    finally:
        powerSGD_hook._orthogonalize = original


def ddp_kwargs(kwargs):
    """Accelerate accepts a hook's name, but registers no hook for it and gives no error."""
    hooks = {name: DDPCommunicationHookType(kwargs[name]) for name in ("comm_hook", "comm_wrapper") if name in kwargs}
    return DistributedDataParallelKwargs(**(kwargs | hooks))

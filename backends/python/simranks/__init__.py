"""Python programs on simulated ranks: `sim-run --ranks 8 -- python train.py`."""

import os
import sys

from simranks._build import TORCH_MAX, TORCH_MIN, VERSION

__version__ = VERSION


def __getattr__(name):
    if name != "Diagnosed":
        raise AttributeError(f"module 'simranks' has no attribute {name!r}")
    from simranks.recorder import Diagnosed

    return Diagnosed


def torch_version():
    """Of the installed torch, such as (2, 11)."""
    import torch

    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def check_torch():
    """Raises ImportError if this package does not support the installed version of torch."""
    import torch

    if not TORCH_MIN <= torch_version() <= TORCH_MAX:
        first, last = ".".join(map(str, TORCH_MIN)), ".".join(map(str, TORCH_MAX))
        raise ImportError(
            f"simranks {VERSION} supports torch {first} to {last}, but torch {torch.__version__} is installed; install a "
            f"version between them, or another simranks"
        )


def map_devices(request):
    """Maps the devices of CUDA in this process if the option --map-cuda asks for it."""
    if request.get("map_cuda"):
        from simranks import cuda_map

        cuda_map.install()


def watch():
    """Explains hangs and calls that differ on real ranks over Gloo, as under torchrun: call it before the first process group.
    Simulated ranks are watched without this."""
    check_torch()
    from simranks import channel, worlds

    if channel.is_rank() or worlds.can_join():
        return
    from simranks import real_ranks

    real_ranks.install()


def dyadic(tensor):
    """Rounds to multiples of 1/8 from -1 to 1. A program whose data and initial parameters are such numbers, and that adds,
    multiplies and compares them in float64, has the same bits in any order of summation; `sim-run prove` then compares without
    tolerance. Anywhere else the values are only rounded."""
    values = sys.modules.get("simranks.values")
    if values is not None:
        values.note_exact()
    return (tensor * 8).round().clamp(-8, 8) / 8


def sim_run():
    """The simulator's program: the one of this package, or that of the build tree which the package lies in."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.path.join(here, "bin", "sim-run"), os.path.join(here, "..", "..", "bin", "sim-run")):
        if os.access(path, os.X_OK):
            return os.path.normpath(path)
    raise FileNotFoundError("simranks has no sim-run; install the package from its wheel")


def run():
    """The command `sim-run` of the installed package."""
    os.execv(sim_run(), ["sim-run", *sys.argv[1:]])


def main():
    """The command `simranks run [OPTIONS] -- PROGRAM`, which is `sim-run [OPTIONS] -- PROGRAM`."""
    if sys.argv[1:2] != ["run"]:
        print("usage: simranks run [OPTIONS] -- python train.py; `simranks run --help` lists the options", file=sys.stderr)
        sys.exit(2)
    os.execv(sim_run(), ["sim-run", *sys.argv[2:]])

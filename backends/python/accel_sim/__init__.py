"""Python programs on simulated ranks: `sim-run --ranks 8 -- python train.py`."""

import os
import sys

from accel_sim._build import TORCH, VERSION

__version__ = VERSION


def check_torch():
    """Raises ImportError if this package was built for another version of torch than the installed one."""
    import torch

    if torch.__version__.split("+")[0] != TORCH:
        raise ImportError(
            f"accel_sim {VERSION} was built for torch {TORCH}, but torch {torch.__version__} is installed; "
            f"install torch=={TORCH}, or an accel_sim that was built for it"
        )


def sim_run():
    """The simulator's program: the one of this package, or that of the build tree which the package lies in."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.path.join(here, "bin", "sim-run"), os.path.join(here, "..", "..", "bin", "sim-run")):
        if os.access(path, os.X_OK):
            return os.path.normpath(path)
    raise FileNotFoundError("accel_sim has no sim-run; install the package from its wheel")


def run():
    """The command `sim-run` of the installed package."""
    os.execv(sim_run(), ["sim-run", *sys.argv[1:]])

"""Runs at the start of every Python process below `sim-run`, which puts this folder first in PYTHONPATH. A process that never
imports torch pays for one more finder of modules."""

import _frozen_importlib_external as external  # loaded in every process; importlib.util takes longer than all of this
import os
import sys
from _frozen_importlib import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))


def _load_package():
    """The package that this file belongs to, also where the interpreter's path lacks it."""
    if "simranks" not in sys.modules:
        folder = os.path.dirname(_here)
        file = os.path.join(folder, "__init__.py")
        spec = external.spec_from_file_location("simranks", file, submodule_search_locations=[folder])
        sys.modules["simranks"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _serve(module):
    from simranks import worlds

    worlds.serve(module)


def _map_devices(_):
    from simranks import worlds

    worlds.map_devices()


class _Finder:
    """Finds these modules as the finders after it do, and patches them when they have run."""

    patches = {"torch": _map_devices, "torch.distributed.distributed_c10d": _serve}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        patch = cls.patches.pop(name, None)
        if patch is None:
            return None
        import importlib.util

        if not cls.patches:
            sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            run = spec.loader.exec_module

            def run_and_patch(module):
                run(module)
                _load_package()
                patch(module)

            spec.loader.exec_module = run_and_patch
        return spec


def _run_next():
    """The sitecustomize that would have run without this one."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != _here]
    spec = external.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if "ACCEL_WORLDS" in os.environ:
    sys.meta_path.insert(0, _Finder)
_run_next()

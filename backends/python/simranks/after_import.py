"""What is done with a module of a program once it has been imported."""

import importlib.abc
import importlib.util
import sys


def after_import(name, then):
    """Calls `then` now if the program has imported the module, else as soon as it does."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name, then):
        self._name, self._then = name, then

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def observed(module):
            execute(module)
            self._then()

        spec.loader.exec_module = observed
        return spec

"""Loads parts of installed packages without all their imports; must be imported before torch."""

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path

# torch's threads synchronize at every operation: for a batch of one, two threads are a third faster on an idle machine, but ten
# times slower alongside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Folders of the packages read so far.
FOLDERS = {}


def own(module, name):
    """A class or function of an installed package, without running its packages' __init__, which import all dependencies."""
    package, *path = module.split(".")
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(f"no package {package}", name=package)
        FOLDERS[package] = Path(spec.submodule_search_locations[0])
    for depth in range(len(path)):
        parent = types.ModuleType(".".join([package, *path[:depth]]))
        parent.__path__ = [str(FOLDERS[package].joinpath(*path[:depth]))]
        sys.modules.setdefault(parent.__name__, parent)
    return getattr(importlib.import_module(module), name)

"""Parts of installed packages, without all that they import."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

# Of packages that have been read, where they are.
FOLDERS = {}


def own(module, name):
    """A class or function of an installed package, without its packages' __init__, which import all its dependencies."""
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

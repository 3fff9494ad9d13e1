"""Imports a single gymnax environment without the rest of the package.

``import gymnax`` imports every environment and plotting libraries: 6.3 s of CPU time, while CartPole alone takes 0.12 s
(gymnax 1.0.1, JAX already imported, best of five on two busy cores). The module of one environment needs only two small
modules of the package. During the import, empty packages therefore replace its parent packages. All of gymnax's modules
are removed from ``sys.modules`` afterwards, so that a later ``import gymnax`` works normally.

If the environment variable ``EVORL_IMPORT_GYMNAX`` is ``whole``, the whole package is imported instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import warnings
from types import ModuleType
from typing import Any

SWITCH = "EVORL_IMPORT_GYMNAX"
_loaded: dict[str, ModuleType] = {}
_lock = threading.Lock()


def load_environment_class(module_name: str, class_name: str) -> Any:
    """Import the class of a gymnax environment.

    Args:
        module_name: module below ``gymnax.environments``, e.g. ``"classic_control.cartpole"``.
        class_name: name of the class in the module, e.g. ``"CartPole"``.

    Raises:
        ImportError: gymnax is not installed or older than 1.0.
    """
    full_name = f"gymnax.environments.{module_name}"
    if "gymnax" in sys.modules or os.environ.get(SWITCH) == "whole":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from plotting libraries
            module = importlib.import_module(full_name)
        base = importlib.import_module("gymnax.environments.environment")
    else:
        module, base = _import_alone(full_name)
    if not hasattr(base.Environment, "is_truncated"):
        raise ImportError(
            "gymnax 1.0 or later is needed (older versions confuse truncation with termination): pip install -U gymnax"
        )
    return getattr(module, class_name)


def _import_alone(full_name: str) -> tuple[ModuleType, ModuleType]:
    with _lock:
        stand_ins = _stand_in_packages(full_name)
        plotting = _lazy_plotting_modules()
        sys.modules.update({**plotting, **stand_ins, **_loaded})
        try:
            base = importlib.import_module("gymnax.environments.environment")
            module = importlib.import_module(full_name)
        finally:
            for name in plotting:
                del sys.modules[name]
            for name in [name for name in sys.modules if name == "gymnax" or name.startswith("gymnax.")]:
                imported = sys.modules.pop(name)
                if name not in stand_ins:
                    _loaded[name] = imported
    return module, base


class _LazyModule(ModuleType):
    """A placeholder for the module of the same name, which is imported when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def _lazy_plotting_modules() -> dict[str, ModuleType]:
    """Return placeholders, by name, for plotting modules that environments import and that are not yet imported."""
    names = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn")
    modules: dict[str, ModuleType] = {name: _LazyModule(name) for name in names if name not in sys.modules}
    for name, module in modules.items():
        package, _, attribute = name.rpartition(".")
        if package in modules:
            setattr(modules[package], attribute, module)
    return modules


def _stand_in_packages(full_name: str) -> dict[str, ModuleType]:
    """Return an empty package, with the search path of the real one, for each parent package of ``full_name``."""
    spec = importlib.util.find_spec("gymnax")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("gymnax environments need the package gymnax: pip install 'gymnax>=1.0'")
    root = list(spec.submodule_search_locations)
    packages = {}
    parts = full_name.split(".")[:-1]
    for depth in range(1, len(parts) + 1):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [os.path.join(path, *parts[1:depth]) for path in root]
        packages[package.__name__] = package
    return packages

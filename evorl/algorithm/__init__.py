"""Alias of the package ``evorl.algorithms``: ``evorl.algorithm.ppo`` is ``evorl.algorithms.ppo``.

Modules are the same objects under both names, so that each class has one identity.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_HERE, _THERE = f"{__name__}.", "evorl.algorithms."


class _SameModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads ``evorl.algorithm.<name>`` as ``evorl.algorithms.<name>``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the import spec of an existing algorithm's module; ``None`` for any other name."""
        name = fullname.removeprefix(_HERE)
        if name == fullname or importlib.util.find_spec(_THERE + name) is None:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Replace the empty module in ``sys.modules`` by the algorithm's module, which the import then returns."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(_THERE + name.removeprefix(_HERE))


def __getattr__(name: str) -> ModuleType:
    """Import and return the module of an algorithm; raise ``AttributeError`` if it does not exist."""
    try:
        return importlib.import_module(_HERE + name)
    except ModuleNotFoundError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error


sys.meta_path.append(_SameModules())

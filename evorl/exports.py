"""Names that a package exports, imported on first access (PEP 562), so that importing the package stays fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Exports(NamedTuple):
    """Special names of a package whose exports are imported on first access.

    Attributes:
        getattr: ``__getattr__`` of the package.
        dir: ``__dir__`` of the package.
        all: ``__all__`` of the package.
    """

    getattr: Callable[[str], Any]
    dir: Callable[[], list[str]]
    all: list[str]


def lazy_exports(package: str, packages: str = "", others: str = "", **modules: str) -> Exports:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its names on first access.

    Type checkers do not see these names, so the package also imports them under ``TYPE_CHECKING``. The architecture
    tests compare both lists.

    Args:
        package: ``__name__`` of the package.
        packages: subpackages that are exported as a whole, separated by spaces.
        others: names that the package defines itself, separated by spaces.
        modules: for each submodule, such as ``ppo`` or ``cli.python_api``, its exported names, separated by spaces.
    """
    origins = {name: module for module, names in modules.items() for name in names.split()}
    below = packages.split()
    exported = sorted([*origins, *below, *others.split()])

    def load(name: str) -> Any:
        if name in origins:
            return getattr(importlib.import_module(f"{package}.{origins[name]}"), name)
        if name in below:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return Exports(load, lambda: exported, exported)

"""``python -m tests.support.only_extras video,onnx -- render run=latest -- export ...`` runs commands of evorl where
only packages of the core and of these extras can be imported, as in a new environment.
``before+onnx`` first requires the commands to fail without the extra.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import sys
import tomllib
import traceback
from collections.abc import Collection, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from evorl.distribution import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]


def _requirements(name: str, extras: Collection[str]) -> list[Requirement]:
    """Return the requirements of a distribution with these extras; evorl's are read from its source tree."""
    if name == DISTRIBUTION:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        texts = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
        return [Requirement(text) for of_one in texts for text in of_one]
    try:
        requirements = map(Requirement, importlib.metadata.requires(name) or [])
    except importlib.metadata.PackageNotFoundError:
        return []
    return [r for r in requirements if not r.marker or any(r.marker.evaluate({"extra": e}) for e in ("", *extras))]


def installed_with(extras: Collection[str]) -> set[str]:
    """Return the canonical names of the distributions that an install with these extras installs."""
    found: dict[str, set[str]] = {}
    left = [(DISTRIBUTION, frozenset(extras))]
    while left:
        name, wanted = left.pop()
        if name in found and wanted <= found[name]:
            continue
        found[name] = found.get(name, set()) | wanted
        for requirement in _requirements(name, wanted):
            left.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return set(found)


class Missing(MetaPathFinder):
    """Import finder that hides some top-level packages."""

    def __init__(self, packages: Collection[str]) -> None:
        self.packages = set(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ``ModuleNotFoundError`` for these packages and their submodules."""
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def packages_beyond(extras: Collection[str]) -> set[str]:
    """Return top-level packages of this environment that do not belong to the core and these extras."""
    there = installed_with(extras) | {"pip", "setuptools"}
    there |= {"pygame"} if "pygame-ce" in there else set()  # both are imported as pygame
    return {
        package
        for package, distributions in importlib.metadata.packages_distributions().items()
        if not there & set(map(canonicalize_name, distributions))
    }


# Separates the output without the extra from that with it, on standard error.
WITH_THE_EXTRA = "--- with the extra"


def main(arguments: Sequence[str]) -> None:
    """Run the commands, one after another, in one process.

    Raises:
        ImportError: a command needs a package beyond the core and the extras.
    """
    extras, *rest = arguments
    before, _, named = extras.rpartition("+")
    beyond = packages_beyond([extra for extra in named.split(",") if extra])
    missing = Missing(packages_beyond([]) if before else beyond)
    assert not missing.packages & set(sys.modules) - {"packaging"}, "too late: they are imported"
    sys.meta_path.insert(0, missing)
    commands = [list(words) for is_command, words in itertools.groupby(rest, lambda word: word != "--") if is_command]
    if before:
        for command in commands:
            fail(command)
        print(WITH_THE_EXTRA, file=sys.stderr, flush=True)
        missing.packages = beyond
    from evorl.cli.commands import run

    for command in commands:
        run(command)


def fail(command: list[str]) -> None:
    """Run a command that must fail, and print its error to standard error, as for an uncaught one."""
    from evorl.cli.commands import run

    try:
        run(command)
    except SystemExit as end:
        has_failed = end.code not in (None, 0)
    except Exception:
        has_failed = True
        traceback.print_exc()
    else:
        has_failed = False
    assert has_failed, f"{command} needs no extra"


if __name__ == "__main__":
    main(sys.argv[1:])

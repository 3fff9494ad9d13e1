"""Checks the ``defaults`` of config files: a file that includes itself would make Hydra recurse without end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any


class Inclusions:
    """The config files that Hydra has read, by path such as ``agent/ppo``, with the files that each includes."""

    def __init__(self) -> None:
        self._included: dict[str, list[str]] = {}

    def add(self, config_path: str, defaults: Any, file: str) -> None:
        """Add a file and check its defaults list, before Hydra reads the files that it includes.

        Args:
            config_path: group and name, ``agent/mine``.
            defaults: the file's defaults list, or ``None``.
            file: path of the file, for the error message.

        Raises:
            ValueError: the file includes itself, directly, through others, or as the choice of its group; or an
                experiment chooses its agent or environment by a relative group, which Hydra resolves in ``experiment``.
        """
        entries = list(defaults) if isinstance(defaults, Sequence) and not isinstance(defaults, str) else []
        group = config_path.partition("/")[0]
        for key, name in _choices(entries, config_path):
            if key == group and "/" in config_path:
                other = name if f"{group}/{name}" != config_path else "NAME"
                raise ValueError(
                    f"{file} includes itself: '/{group}: {name}' in its defaults means the {group} that the run has "
                    f"chosen, which is this file. Write '- /{group}/{other}' to start from the settings of {other}."
                )
            if key in ("experiment/agent", "experiment/env"):
                chosen = key.rpartition("/")[2]
                raise ValueError(f"{file}: write '- override /{chosen}: {name}' to choose the {chosen} of a run.")
        self._included[config_path] = list(_files(entries, config_path))
        if circle := self._circle(config_path, config_path, ()):
            chain = " includes ".join((*circle, config_path))
            raise ValueError(f"{file} includes itself: {chain}. Remove one of these entries of the defaults.")

    def _circle(self, path: str, end: str, before: tuple[str, ...]) -> tuple[str, ...]:
        """Return the files from ``path`` to one that includes ``end``; empty if no file does."""
        for included in self._included.get(path, ()):
            if included == end:
                return (*before, path)
            if included not in before and (circle := self._circle(included, end, (*before, path))):
                return circle
        return ()


def _choices(entries: Sequence[Any], config_path: str) -> Iterator[tuple[str, Any]]:
    """Yield group and name of each entry ``group: name``, except entries with ``override`` or a package (``@``)."""
    for entry in entries:
        for key, name in entry.items() if isinstance(entry, Mapping) else ():
            *keywords, group = str(key).split()
            if "override" not in keywords and "@" not in group:
                yield _absolute(group, config_path), name


def _files(entries: Sequence[Any], config_path: str) -> Iterator[str]:
    """Yield the path of each file that a defaults list includes by its name."""
    for entry in entries:
        if isinstance(entry, str) and entry != "_self_":
            yield _absolute(entry.split()[-1].partition("@")[0], config_path)


def _absolute(name: str, config_path: str) -> str:
    return name.removeprefix("/") if name.startswith("/") else str(PurePosixPath(config_path).parent / name)

"""Lookup of archives by their names in configs."""

from __future__ import annotations

from typing import Any

from evorl.config.names import no_such, path_of
from evorl.config.nodes import VARIANTS, Variants
from evorl.ec.archives.archive import Archive
from evorl.ec.archives.centroid import CentroidArchive
from evorl.ec.archives.dominated_novelty import DominatedNoveltyArchive
from evorl.ec.archives.grid import GridArchive

ARCHIVES: dict[str, type[Archive]] = {
    "grid": GridArchive,
    "centroid": CentroidArchive,
    "dominated_novelty": DominatedNoveltyArchive,
}


def named_archive(cls: type[Archive], name: Any, where: str) -> tuple[type[Archive], dict[str, Any]]:
    """Return an archive class by name, and no implied settings; raise ``ValueError``, with ``where``, for others."""
    if not isinstance(name, str) or name not in ARCHIVES:
        raise ValueError(no_such(f"value of {where}.name", name, ARCHIVES))
    return ARCHIVES[name], {}


def archive_name(archive: Archive) -> str:
    """Return the config name of an archive; for a user-defined archive, ``"module:Class"``."""
    return next((name for name, kind in ARCHIVES.items() if kind is type(archive)), path_of(type(archive)))


VARIANTS[Archive] = Variants(named_archive, archive_name)

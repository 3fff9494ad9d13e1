"""Actor pools by kind: inline, process and ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evorl.actors.inline_pool import InlinePool
from evorl.actors.pool import ActorPool, ActorWorker
from evorl.actors.process_pool import ProcessPool
from evorl.actors.ray_pool import RayPool
from evorl.config.names import no_such

POOLS: Mapping[str, type[ActorPool]] = {"inline": InlinePool, "process": ProcessPool, "ray": RayPool}


def make_pool(kind: str, worker: type[ActorWorker], settings_of: Callable[[int], Any]) -> ActorPool:
    """Return a pool of ``kind`` inline, process or ray (see ``ActorPool``), without actors.

    Raises:
        ValueError: the kind is unknown.
        ImportError: ``kind`` is ray, and Ray is not installed.
    """
    if kind not in POOLS:
        raise ValueError(no_such("kind of actors", kind, POOLS))
    return POOLS[kind](worker, settings_of)

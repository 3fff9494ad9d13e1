"""Settings of actors."""

from __future__ import annotations

from typing import Any, ClassVar

from evorl.config.names import no_such
from evorl.config.nodes import node_from_config
from evorl.config.values import checked_mapping, require_positive
from evorl.types import PyTreeNode, pytree_field

KINDS = ("inline", "process", "ray")
MODES = ("sync", "async")
MOST_ACTORS = 4_096


class ActorSettings(PyTreeNode):
    """How rollouts are collected beside the learner.

    Attributes:
        kind: inline (in this process), process (of this machine) or ray (an actor of Ray each, on a cluster).
        count: actors, which share the environments.
        mode: sync waits for all actors, whose rollouts are by one policy; async learns from each as it comes.
        max_lag: the most updates that a policy may be old when its rollout is learned from, in async mode.
        timeout: seconds that a rollout may take; an actor that takes longer is replaced.
    """

    kind: str = pytree_field(static=True, default="process")
    count: int = pytree_field(static=True, default=2)
    mode: str = pytree_field(static=True, default="sync")
    max_lag: int = pytree_field(static=True, default=8)
    timeout: float = pytree_field(static=True, default=60.0)

    ranges: ClassVar[dict[str, str]] = {"timeout": "(0, inf)"}

    def __post_init__(self) -> None:
        for name, valid in (("kind", KINDS), ("mode", MODES)):
            if getattr(self, name) not in valid:
                raise ValueError(no_such(f"value of actors.{name}", getattr(self, name), valid))
        require_positive(self, "count", "max_lag")
        if self.count > MOST_ACTORS:
            raise ValueError(f"actors.count={self.count:,} is too many processes: choose {MOST_ACTORS:,} at most.")
        if self.is_async and self.max_lag < self.count - 1:
            raise ValueError(
                f"actors.max_lag={self.max_lag} keeps only {self.max_lag + 1} of actors.count={self.count} busy: "
                f"choose at least {self.count - 1}, or fewer actors."
            )

    @property
    def is_async(self) -> bool:
        """Whether rollouts of older policies are learned from."""
        return self.mode == "async"


def actor_settings(config: Any) -> ActorSettings:
    """The settings that ``actors`` of a config describes.

    Raises:
        ValueError: a key or a value cannot be; in words.
    """
    return node_from_config(ActorSettings, checked_mapping(config, "actors"), "actors")

"""Settings of the actors that collect rollouts."""

from __future__ import annotations

from typing import Annotated

from evorl.config.names import no_such
from evorl.config.values import require_positive
from evorl.fields import Within
from evorl.types import PyTreeNode, pytree_field

KINDS = ("inline", "process", "ray")
MODES = ("sync", "async")
MAX_ACTORS = 4_096


class ActorSettings(PyTreeNode):
    """Settings of the actors that collect rollouts for the learner.

    Attributes:
        kind: where actors run: in this process (inline), in processes of this machine (process), or with Ray (ray).
        count: number of actors, among which the environments are divided evenly.
        mode: sync waits for rollouts of all actors with the same policy; async learns from each rollout as it arrives.
        max_lag: in mode async, maximum age in updates of the policy that collected a rollout, when the learner uses it.
        timeout: maximum seconds per rollout, except an actor's first; an actor that takes longer is replaced.
    """

    kind: str = pytree_field(static=True, default="process")
    count: int = pytree_field(static=True, default=2)
    mode: str = pytree_field(static=True, default="sync")
    max_lag: int = pytree_field(static=True, default=8)
    timeout: Annotated[float, Within("(0, inf)")] = pytree_field(static=True, default=60.0)

    def __post_init__(self) -> None:
        for name, valid in (("kind", KINDS), ("mode", MODES)):
            if getattr(self, name) not in valid:
                raise ValueError(no_such(f"actors.{name}", getattr(self, name), valid))
        require_positive(self, "count", "max_lag")
        if self.count > MAX_ACTORS:
            raise ValueError(f"actors.count={self.count:,} is too many: choose at most {MAX_ACTORS:,} actors.")
        if self.is_async and self.max_lag < self.count - 1:
            raise ValueError(
                f"actors.max_lag={self.max_lag} keeps only {self.max_lag + 1} of actors.count={self.count} busy: "
                f"choose at least {self.count - 1}, or fewer actors."
            )

    @property
    def is_async(self) -> bool:
        """True if the learner may use rollouts of older policies."""
        return self.mode == "async"

"""What is drawn out of a replay buffer, as configs say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from evorl.envs.env import Env
from evorl.envs.goals.setting import required_goal_task
from evorl.replay_buffers.hindsight import Strategy
from evorl.types import PyTreeNode, pytree_field


class ReplaySettings(PyTreeNode):
    """What is drawn out of the replay buffer, beyond single transitions as they were.

    Attributes:
        hindsight: whose goals transitions are learned from under, of an environment with goals: those that a later step
            of their episode achieved (future), its last one (final), or any (episode); none leaves them their own.
            Null is without goals.
        ratio: transitions under other goals for each one that keeps its own.
    """

    hindsight: Strategy | None = pytree_field(static=True, default=None)
    ratio: float = 4.0

    ranges: ClassVar[Mapping[str, str]] = {"ratio": "[0, inf)"}

    def check(self, env: Env, prioritized: bool, has_memory: bool) -> None:
        """Raises ``ValueError`` where hindsight makes no sense: an environment without goals, or unsuitable draws."""
        if self.hindsight is None:
            return
        required_goal_task(env, "replay.hindsight")
        if has_memory:
            raise ValueError(
                "replay.hindsight gives goals to single transitions, and this agent learns from sequences of them: "
                "take one without a recurrent network, such as dqn or sac."
            )
        if prioritized:
            raise ValueError(
                "prioritized=true remembers errors of transitions under their own goals, and replay.hindsight learns "
                "from them under others: leave one of the two out."
            )

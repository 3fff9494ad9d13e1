"""What is drawn out of a replay buffer, as configs say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from evorl.envs.env import Env
from evorl.envs.goals.setting import required_goal_task
from evorl.replay_buffers.hindsight import Strategy, take_hindsight
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeNode, pytree_field


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

    def take(
        self,
        state: Any,
        rows: jax.Array,
        envs: jax.Array,
        key: Key,
        num_envs: int,
        num_steps: int,
        discount: jax.Array | float,
        env: Env,
    ) -> SampleBatch:
        """The transitions at ``(rows, envs)`` ``[N]`` under the goals of hindsight, see ``take_hindsight``."""
        assert self.hindsight is not None, "asked for where there is hindsight"
        task = required_goal_task(env, "replay.hindsight")
        return take_hindsight(state, rows, envs, key, num_envs, num_steps, discount, task, self.hindsight, self.ratio)

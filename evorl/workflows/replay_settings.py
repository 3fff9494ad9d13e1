"""What a replay buffer starts with, and what is drawn out of it, as configs say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from evorl.config.names import load
from evorl.envs.goals.setting import required_goal_task
from evorl.replay_buffers.hindsight import Strategy
from evorl.types import PyTreeNode, pytree_field

OffPolicyWorkflow: TypeAlias = Any  # these are its settings
_CHECK_RECORDED_STEPS = "evorl.workflows.recorded_steps:check_recorded_steps"  # loaded where it is asked for


class ReplaySettings(PyTreeNode):
    """What the replay buffer starts with, and what is drawn beyond single transitions as they were.

    Attributes:
        load: what it starts with: a file that scripts/save_replay.py made, the folder of a run that has one, or
            minari:<id> for a data set of Minari. Null is for nothing.
        other_env: whether that may be of an environment of another name, as long as all shapes are the same.
        hindsight: whose goals transitions are learned from under, of an environment with goals: those that a later step
            of their episode achieved (future), its last one (final), or any (episode); none leaves them their own.
            Null is without goals.
        ratio: transitions under other goals for each one that keeps its own.
    """

    load: str | None = pytree_field(static=True, default=None)
    other_env: bool = pytree_field(static=True, default=False)
    hindsight: Strategy | None = pytree_field(static=True, default=None)
    ratio: float = 4.0

    ranges: ClassVar[Mapping[str, str]] = {"ratio": "[0, inf)"}

    def check(self, workflow: OffPolicyWorkflow) -> None:
        """Raises ``ValueError`` where the settings of an off-policy workflow do not fit together, in words."""
        self._check_recorded(workflow)
        if self.hindsight is None:
            return
        required_goal_task(workflow.env, "replay.hindsight")
        if workflow.stores_recurrent_state:
            raise ValueError(
                "replay.hindsight gives goals to single transitions, and this agent learns from sequences of them: "
                "take one without a recurrent network, such as dqn or sac."
            )
        if workflow.prioritized:
            raise ValueError(
                "prioritized=true remembers errors of transitions under their own goals, and replay.hindsight learns "
                "from them under others: leave one of the two out."
            )

    def _check_recorded(self, workflow: OffPolicyWorkflow) -> None:
        if workflow.offline:
            if self.load is None:
                raise ValueError(
                    "offline=true learns from recorded transitions alone: name them by replay.load, a file that "
                    "scripts/save_replay.py made; or set offline=false to learn from the environment."
                )
            if workflow.updates_per_iteration != workflow.most_updates:
                raise ValueError(
                    f"updates_per_iteration={workflow.updates_per_iteration} must be a whole number with offline=true, "
                    "where an iteration is nothing but updates."
                )
            if workflow.actors is not None:
                raise ValueError("offline=true collects nothing, so there is nothing for actors to do: leave them out.")
        if self.load is not None:
            load(_CHECK_RECORDED_STEPS)(workflow, self.load, self.other_env)

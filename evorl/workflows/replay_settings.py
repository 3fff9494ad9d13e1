"""What a replay buffer starts with, what makes room in it, and what is drawn out of it, as configs say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import jax

from evorl.config.names import load
from evorl.envs.goals.setting import required_goal_task
from evorl.envs.vector import VectorEnv
from evorl.replay_buffers.episode import EpisodeReplayBuffer
from evorl.replay_buffers.hindsight import Strategy, take_hindsight
from evorl.replay_buffers.slots import SlotReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeNode, pytree_field

OffPolicyWorkflow: TypeAlias = Any  # these are its settings
_BY_RECENCY = "evorl.replay_buffers.recency:RecencyReplayBuffer"  # as the next, loaded where it is asked for
_CHECK_RECORDED_STEPS = "evorl.workflows.recorded_steps:check_recorded_steps"  # loaded where it is asked for


class ReplaySettings(PyTreeNode):
    """What the replay buffer starts with, what makes room, and what is drawn beyond single transitions as they were.

    Attributes:
        load: what it starts with: a file that evorl save-replay made, the folder of a run that has one, or
            minari:<id> for a data set of Minari. Null is for nothing.
        other_env: whether that may be of an environment of another name, as long as all shapes are the same.
        overwrite: what makes room in a full buffer: the oldest transitions, or a random episode of those that do not
            run. For random, each episode has a slot of as many steps as the environment's time limit.
        hindsight: whose goals transitions are learned from under, of an environment with goals: those that a later step
            of their episode achieved (future), its last one (final), or any (episode); none leaves them their own.
            Null is without goals.
        recency: draw newer steps more often: in proportion to the power of this of their ranks, 1 for the oldest. Null
            draws uniformly.
        ratio: transitions under other goals for each one that keeps its own.
    """

    load: str | None = pytree_field(static=True, default=None)
    other_env: bool = pytree_field(static=True, default=False)
    overwrite: Literal["oldest", "random"] = pytree_field(static=True, default="oldest")
    hindsight: Strategy | None = pytree_field(static=True, default=None)
    recency: float | None = None
    ratio: float = 4.0

    ranges: ClassVar[Mapping[str, str]] = {"ratio": "[0, inf)", "recency": "(0, inf)"}

    def check(self, workflow: OffPolicyWorkflow) -> None:
        """Raises ``ValueError`` where the settings of an off-policy workflow do not fit together, in words."""
        self._check_overwriting(workflow)
        self._check_recorded(workflow)
        if self.recency is not None and (self.has_episodes or workflow.prioritized or workflow.stores_recurrent_state):
            raise ValueError(
                "replay.recency draws single transitions by their age alone: leave out prioritized=true, "
                "replay.hindsight and replay.overwrite=random, and take an agent without a recurrent network."
            )
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

    @property
    def has_episodes(self) -> bool:
        """Whether the buffer keeps episodes apart."""
        return self.hindsight is not None or self.overwrite == "random"

    def own_buffer(self, env: VectorEnv, capacity: int, num_envs: int) -> UniformReplayBuffer:
        """The buffer that does so, or draws by age; ``num_envs`` are environments like ``env``.

        Raises:
            ValueError: episodes have no limit, or there is no room for two of each environment.
        """
        size = {"capacity": capacity, "num_envs": num_envs}
        if self.recency is not None:
            return load(_BY_RECENCY)(**size, exponent=self.recency)
        if self.overwrite == "oldest":
            return EpisodeReplayBuffer(**size, only_complete=False)
        if env.max_episode_steps is None:
            raise ValueError(
                "replay.overwrite=random gives each episode as much room as the environment's time limit, and "
                f"{env.title or 'this one'} has none: set env.max_episode_steps, or replay.overwrite=oldest."
            )
        return SlotReplayBuffer(**size, episode_steps=env.max_episode_steps)

    def with_key(self, buffer: UniformReplayBuffer, key: Key) -> tuple[Key, Callable[[Any], Any]]:
        """The key for all else, and ``buffer.init`` with one of its own if it draws what it overwrites."""
        if not isinstance(buffer, SlotReplayBuffer):
            return key, buffer.init
        key, buffer_key = jax.random.split(key)
        return key, partial(buffer.init, key=buffer_key)

    def take_under_goals(
        self, workflow: OffPolicyWorkflow, replay_state: Any, rows: jax.Array, envs: jax.Array, key: Key
    ) -> SampleBatch:
        """What an off-policy workflow learns from, of the steps ``[M]``, under the goals of hindsight."""
        size = (workflow.num_stored_envs, workflow.n_step, workflow.discount)
        goals = (required_goal_task(workflow.env, "replay.hindsight"), self.hindsight or "none", self.ratio)
        return take_hindsight(replay_state, rows, envs, key, *size, *goals)

    def _check_overwriting(self, workflow: OffPolicyWorkflow) -> None:
        if self.overwrite == "oldest":
            return
        if workflow.stores_recurrent_state:
            raise ValueError(
                "replay.overwrite=random keeps episodes in slots, and this agent learns from sequences that may go "
                "through the end of one: set replay.overwrite=oldest, or take an agent without a recurrent network."
            )
        if workflow.prioritized:
            raise ValueError(
                "prioritized=true keeps priorities of a ring of transitions, and replay.overwrite=random keeps "
                "episodes in slots: leave one of the two out."
            )
        if workflow.num_sharing > 1:
            raise ValueError(
                "shared_replay=true is for a buffer in which the oldest transitions make room: leave out "
                "replay.overwrite=random of the members, or set shared_replay=false."
            )

    def _check_recorded(self, workflow: OffPolicyWorkflow) -> None:
        if workflow.offline:
            if self.load is None:
                raise ValueError(
                    "offline=true learns from recorded transitions alone: name them by replay.load, a file that "
                    "evorl save-replay made; or set offline=false to learn from the environment."
                )
            if workflow.updates_per_iteration != workflow.most_updates:
                raise ValueError(
                    f"updates_per_iteration={workflow.updates_per_iteration} must be a whole number with offline=true, "
                    "where an iteration is nothing but updates."
                )
            if workflow.actors is not None:
                raise ValueError("offline=true collects nothing, so there is nothing for actors to do: leave them out.")
            if workflow.intrinsic is not None:
                raise ValueError("offline=true collects nothing that intrinsic rewards could be for: leave them out.")
        if self.load is not None:
            load(_CHECK_RECORDED_STEPS)(workflow, self.load, self.other_env)

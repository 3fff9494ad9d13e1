"""Settings of replay buffers: initial contents, eviction policy, goal relabeling, and sampling by recency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from evorl.envs.goals.setting import required_goal_task
from evorl.envs.vector import VectorEnv
from evorl.fields import Within
from evorl.replay_buffers.episode import EpisodeReplayBuffer
from evorl.replay_buffers.hindsight import Strategy, take_hindsight
from evorl.replay_buffers.recency import RecencyReplayBuffer
from evorl.replay_buffers.slots import SlotReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeNode, State, pytree_field
from evorl.workflows.off_policy_state import DrawnBatches

OffPolicyWorkflow: TypeAlias = Any  # avoids a circular import


class ReplaySettings(PyTreeNode):
    """Initial contents, eviction policy, goal relabeling and recency weighting of the replay buffer.

    Attributes:
        load: initial contents: a file that evorl save-replay wrote, the run folder that contains this file, or
            minari:<id> for a Minari dataset; ``None`` starts with an empty buffer.
        mixed: keep the transitions of ``load``, if any, in a second buffer of the same capacity, and sample half of
            each batch from it (Ball et al. 2023).
        other_env: accept initial contents of an environment with another name, as long as all shapes match.
        overwrite: eviction policy of a full buffer: the oldest transitions (oldest), or a random completed episode
            (random). With random, each episode occupies a slot with as many steps as the environment's time limit.
        hindsight: hindsight experience replay, for environments with goals: relabel transitions with goals achieved
            at the same or a later step of their episode (future), at its last step (final), or at any step (episode);
            none keeps the original goals. ``None`` disables hindsight.
        recency: sample newer steps more often: in proportion to rank ** recency, where the oldest has rank 1;
            ``None`` samples uniformly.
        ratio: number of transitions that hindsight relabels per transition that keeps its goal.
    """

    load: str | None = pytree_field(static=True, default=None)
    mixed: bool = pytree_field(static=True, default=False)
    other_env: bool = pytree_field(static=True, default=False)
    overwrite: Literal["oldest", "random"] = pytree_field(static=True, default="oldest")
    hindsight: Strategy | None = pytree_field(static=True, default=None)
    recency: Annotated[float | None, Within("(0, inf)")] = None
    ratio: Annotated[float, Within("[0, inf)")] = 4.0

    def check(self, workflow: OffPolicyWorkflow) -> None:
        """Raise ``ValueError`` if the settings are incompatible with each other or with the workflow."""
        collected = workflow.timesteps_per_iteration * workflow.num_sharing
        if workflow.replay_capacity < collected and not workflow.offline:
            raise ValueError(
                f"replay_capacity={workflow.replay_capacity} is too small: one iteration has {collected} transitions. "
                f"Choose {collected} or more."
            )
        self._check_overwriting(workflow)
        self._check_recorded(workflow)
        if self.mixed and self.load is not None:
            purpose = "replay.mixed=true samples uniformly from a ring of recorded and a ring of new transitions"
            _exclude({"offline=true": workflow.offline, **self._not_uniform(workflow)}, purpose, "replay.mixed=false")
            if (size := workflow.batch_size) % 2:
                raise ValueError(f"batch_size={size} is odd, but replay.mixed=true halves it: make it even.")
        if self.recency is not None:
            others = {"replay.hindsight": self.hindsight, "a recurrent agent": workflow.stores_recurrent_state}
            purpose = f"replay.recency={self.recency} samples single transitions by age alone"
            _exclude({**self._not_uniform(workflow), **others}, purpose, "replay.recency=null")
        if self.hindsight is not None:
            self._check_hindsight(workflow)
        num_rows = workflow.replay_buffer.num_rows
        if workflow.n_step > num_rows:
            raise ValueError(
                f"n_step={workflow.n_step} exceeds the {num_rows} steps per environment that "
                f"replay_capacity={workflow.replay_capacity} holds: choose fewer steps, or a larger capacity."
            )

    def _check_hindsight(self, workflow: OffPolicyWorkflow) -> None:
        required_goal_task(workflow.env, "replay.hindsight")
        conflicts = {
            "prioritized=true (TD errors under the original goals)": workflow.prioritized,
            "intrinsic (bonuses in the stored rewards)": workflow.intrinsic is not None,
            "an agent that learns from sequences": workflow.stores_recurrent_state,
        }
        purpose = f"replay.hindsight={self.hindsight} recomputes the goals and rewards of single transitions"
        _exclude(conflicts, purpose, "replay.hindsight=null")
        steps, buffer = workflow.env.max_episode_steps, workflow.replay_buffer
        if steps and buffer.num_rows < steps and not workflow.offline:  # offline, no step is overwritten
            raise ValueError(
                f"replay.hindsight={self.hindsight} samples whole episodes, of up to {steps:,} steps, but "
                f"replay_capacity={buffer.capacity} holds {buffer.num_rows:,} steps of each of {buffer.num_envs:,} "
                f"environments: choose replay_capacity={steps * buffer.num_envs} or more, or a smaller num_envs or "
                "env.max_episode_steps."
            )

    @property
    def has_episodes(self) -> bool:
        """True if the replay buffer tracks the boundaries of episodes."""
        return self.hindsight is not None or self.overwrite == "random"

    def own_buffer(self, env: VectorEnv, capacity: int, num_envs: int) -> UniformReplayBuffer:
        """Return a replay buffer that tracks episodes or samples by recency, for ``num_envs`` copies of ``env``.

        Raises:
            ValueError: ``overwrite`` is random, but ``env`` has no time limit or the capacity is too small.
        """
        size = {"capacity": capacity, "num_envs": num_envs}
        if self.recency is not None:
            return RecencyReplayBuffer(**size, exponent=self.recency)
        if self.overwrite == "oldest":
            return EpisodeReplayBuffer(**size, only_complete=False)
        if env.max_episode_steps is None:
            raise ValueError(
                "replay.overwrite=random needs an environment with a time limit, the length of an episode's slot, but "
                f"{env.title or 'this one'} has no limit: set env.max_episode_steps, or replay.overwrite=oldest."
            )
        return SlotReplayBuffer(**size, episode_steps=env.max_episode_steps)

    def with_key(self, buffer: UniformReplayBuffer, key: Key) -> tuple[Key, Callable[[Any], Any]]:
        """Return an unused key, and ``buffer.init`` with its argument ``key`` bound if the buffer evicts at random."""
        if not isinstance(buffer, SlotReplayBuffer):
            return key, buffer.init
        key, buffer_key = jax.random.split(key)
        return key, partial(buffer.init, key=buffer_key)

    def take_under_goals(
        self, workflow: OffPolicyWorkflow, replay_state: Any, rows: jax.Array, envs: jax.Array, key: Key
    ) -> SampleBatch:
        """Return the n-step transitions from ``(rows, envs)``, ``[M]`` each, some relabeled; see ``take_hindsight``."""
        return take_hindsight(
            replay_state,
            rows,
            envs,
            key,
            num_envs=workflow.num_stored_envs,
            num_steps=workflow.n_step,
            discount=workflow.discount,
            task=required_goal_task(workflow.env, "replay.hindsight"),
            strategy=self.hindsight or "none",
            ratio=self.ratio,
        )

    def _check_overwriting(self, workflow: OffPolicyWorkflow) -> None:
        if self.overwrite == "oldest":
            return
        conflicts = {
            "an agent that learns from sequences, which may span episodes": workflow.stores_recurrent_state,
            "prioritized=true (which needs a ring buffer)": workflow.prioritized,
            "shared_replay=true (which evicts the oldest transitions)": workflow.num_sharing > 1,
        }
        _exclude(conflicts, "replay.overwrite=random stores each episode in a slot", "replay.overwrite=oldest")

    def _not_uniform(self, workflow: OffPolicyWorkflow) -> dict[str, bool]:
        return {"prioritized=true": workflow.prioritized, "replay.overwrite=random": self.overwrite == "random"}

    def _check_recorded(self, workflow: OffPolicyWorkflow) -> None:
        if workflow.offline:
            if self.load is None:
                raise ValueError(
                    "offline=true learns from recorded transitions only, but replay.load is null: set replay.load to a "
                    "file made by evorl save-replay, or offline=false to learn from the environment."
                )
            if workflow.updates_per_iteration != workflow.most_updates:
                raise ValueError(
                    f"updates_per_iteration={workflow.updates_per_iteration} must be an integer with offline=true, "
                    "where an iteration consists of updates only."
                )
            if workflow.execution.collector is not None:
                raise ValueError("offline=true does not collect transitions, so actors have no effect: remove actors.")
            if workflow.intrinsic is not None:
                raise ValueError("offline=true collects no transitions, so bonuses have no effect: remove intrinsic.")


def _exclude(conflicts: Mapping[str, Any], purpose: str, alternative: str) -> None:
    """Raise ``ValueError`` if one of ``conflicts``, settings by name, is set; the message lists all that are set."""
    if names := [name for name, is_set in conflicts.items() if is_set]:
        raise ValueError(f"{purpose} and conflicts with {' and '.join(names)}: set {alternative} or change the others.")


def draw_from_both(workflow: OffPolicyWorkflow, state: State, key: Key, progress: jax.Array) -> DrawnBatches:
    """Return batches like ``OffPolicyWorkflow.draw_batches``, in which recorded and new transitions alternate.

    Because they alternate, every device gets as many recorded as new transitions. ``recency`` applies to new ones only.
    """
    keys, size = jax.random.split(key), workflow.batch_size // 2
    uniform = workflow.replace(replay=workflow.replay.replace(recency=None))  # the order of a recording is not its age
    recorded = uniform.draw_batches(state.replace(replay_state=state.recorded_state), keys[0], progress, size)
    new = workflow.draw_batches(state, keys[1], progress, size)

    def in_turn(first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.stack([first, second], axis=2).reshape(first.shape[0], 2 * size, *first.shape[2:])

    return jax.tree.map(in_turn, recorded, new)

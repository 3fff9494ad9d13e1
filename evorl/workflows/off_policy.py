"""The off-policy family: act, store, and learn from what is drawn out of the replay buffer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, random_actions
from evorl.metrics import episode_statistics
from evorl.ops import collectives
from evorl.ops.normalization import update_statistics
from evorl.replay_buffers import UniformReplayBuffer
from evorl.rollout import rollout
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, PolicyExtras, PyTreeDict, State
from evorl.workflows.settings import require_positive
from evorl.workflows.workflow import Workflow, split_setup_keys

EPISODE_FIELDS = ("termination", "episode_return", "episode_length")


class OffPolicyWorkflow(Workflow):
    """Short rollouts into a replay buffer, each followed by some updates from random batches of it.

    Attributes:
        rollout_length: steps of every environment in one iteration.
        updates_per_iteration: gradient updates in one iteration.
        batch_size: transitions in one update.
        learning_starts: environment steps with random actions and without updates, at the beginning.
        replay_capacity: transitions that are kept, over all environments; the oldest make room.
    """

    rollout_length: int = 1
    updates_per_iteration: int = 1
    batch_size: int = 256
    learning_starts: float = 1000.0
    replay_capacity: int = 1_000_000

    ranges: ClassVar[Mapping[str, str]] = {"learning_starts": "[0, inf)"}
    sharded_axes: ClassVar[Mapping[str, int]] = {"env_state": 0, "replay_state": 1}
    loss_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length", "updates_per_iteration", "batch_size", "replay_capacity")
        if self.replay_capacity < self.timesteps_per_iteration:
            raise ValueError(
                f"replay_capacity={self.replay_capacity} is less than one iteration collects "
                f"({self.timesteps_per_iteration} transitions): choose a larger one."
            )

    @property
    def replay_buffer(self) -> UniformReplayBuffer:
        """Where transitions are kept; its state is in the workflow's state."""
        return UniformReplayBuffer(capacity=self.replay_capacity, num_envs=self.env.num_envs)

    @property
    def timesteps_per_iteration(self) -> int:
        """Steps of one rollout over all environments."""
        return self.rollout_length * self.env.num_envs

    @abstractmethod
    def init_optimizers(self, agent_state: AgentState) -> Any:
        """The optimizers' first state."""

    @abstractmethod
    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """One update from a batch ``[N, ...]`` with a key for each row ``[N]``.

        Returns:
            The agent, the optimizers' state, and float32 scalars named by ``loss_names``.
        """

    def setup(self, key: Key) -> State:
        """Fresh agent, optimizers, environments and an empty buffer."""
        agent_key, env_key, state = split_setup_keys(key)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        state.agent_state = agent_state
        state.opt_state = self.init_optimizers(agent_state)
        state.env_state = self.env.reset(env_key)
        state.replay_state = self.replay_buffer.init(self._transition_spec(state.env_state))
        return state

    def _transition_spec(self, env_state: Any) -> SampleBatch:
        """One transition as it is stored, without leading axes."""
        num_envs = self.env.num_envs
        actions = jax.eval_shape(lambda key: random_actions(self.env.action_space, key, num_envs), jax.random.key(0))
        stored = SampleBatch(
            obs=env_state.obs,
            actions=actions,
            rewards=env_state.reward,
            next_obs=env_state.obs,
            extras=PyTreeDict(termination=env_state.done),
        )
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stored)

    def collect(self, state: State) -> tuple[SampleBatch, State]:
        """A trajectory ``[T, B, ...]`` of this device's environments."""
        key, rollout_key = jax.random.split(state.key)
        warming_up = self._timesteps(state) < self.learning_starts

        def act(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Action, PolicyExtras]:
            policy_key, random_key = _split_rows(key)
            actions, extras = self.agent.compute_actions(agent_state, sample_batch, policy_key)
            num_rows = jax.tree.leaves(actions)[0].shape[0]
            random = random_actions(self.env.action_space, random_key, num_rows)
            return jax.tree.map(lambda r, a: jnp.where(warming_up, r, a), random, actions), extras

        trajectory, env_state = rollout(
            self.env.step,
            act,
            state.env_state,
            state.agent_state,
            rollout_key,
            self.rollout_length,
            env_extra_fields=EPISODE_FIELDS,
            env_chunk=self.env_chunk,
        )
        return trajectory, state.replace(env_state=env_state, key=key)

    def update(self, state: State, batch: SampleBatch) -> tuple[PyTreeDict, State]:
        """Store the trajectory, then update from batches drawn out of all that is stored."""
        key, sample_key, learn_key = jax.random.split(state.key, 3)
        replay_state = self.replay_buffer.add(state.replay_state, _stored_part(batch))
        # All batches are drawn before the updates, so that devices need not talk during them.
        batches = self.replay_buffer.sample_many(replay_state, sample_key, self.updates_per_iteration, self.batch_size)
        info = batch.extras.env_extras
        episode_rows = (batch.dones, info.episode_return, info.episode_length)
        episodes = episode_statistics(*collectives.gather_rows(episode_rows, axis=1))
        agent_state = state.agent_state
        if agent_state.obs_preprocessor_state is not None:
            statistics = update_statistics(agent_state.obs_preprocessor_state, batch.obs, sharded=True)
            agent_state = agent_state.replace(obs_preprocessor_state=statistics)
        started = self._timesteps(state) + self.timesteps_per_iteration >= self.learning_starts
        num_updates = jnp.where(started, self.updates_per_iteration, 0)
        agent_state, opt_state, metrics = self._learn_repeatedly(
            agent_state, state.opt_state, batches, learn_key, num_updates, self.progress(state)
        )
        metrics.episodes = episodes
        return metrics, state.replace(agent_state=agent_state, opt_state=opt_state, replay_state=replay_state, key=key)

    def _learn_repeatedly(
        self,
        agent_state: AgentState,
        opt_state: Any,
        batches: SampleBatch,
        key: Key,
        num_updates: jax.Array,
        progress: jax.Array,
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """``num_updates`` updates in a loop that may also be empty, which needs no branch; metrics are their means."""

        def one_update(i: jax.Array, carry: tuple) -> tuple:
            agent_state, opt_state, sums = carry
            row_keys = jax.random.split(jax.random.fold_in(key, i), self.batch_size)
            rows = collectives.minibatch_share((jax.tree.map(lambda x: x[i], batches), row_keys))
            agent_state, opt_state, metrics = self.learn_from(agent_state, opt_state, *rows, progress)
            return agent_state, opt_state, jax.tree.map(jnp.add, sums, metrics)

        sums = PyTreeDict({name: jnp.zeros(()) for name in self.loss_names})
        agent_state, opt_state, sums = jax.lax.fori_loop(0, num_updates, one_update, (agent_state, opt_state, sums))
        means = jax.tree.map(lambda x: x / jnp.maximum(num_updates, 1), sums)
        return agent_state, opt_state, collectives.mean_over_shares(means)

    def _timesteps(self, state: State) -> jax.Array:
        return state.iterations.as_float() * self.timesteps_per_iteration


def _split_rows(key: Key) -> tuple[Key, Key]:
    """Two keys from one, or two per row from one per row."""
    keys = jax.vmap(jax.random.split)(key) if key.ndim else jax.random.split(key)
    return (keys[:, 0], keys[:, 1]) if key.ndim else (keys[0], keys[1])


def _stored_part(batch: SampleBatch) -> SampleBatch:
    return SampleBatch(
        obs=batch.obs,
        actions=batch.actions,
        rewards=batch.rewards,
        next_obs=batch.next_obs,
        extras=PyTreeDict(termination=batch.extras.env_extras.termination),
    )

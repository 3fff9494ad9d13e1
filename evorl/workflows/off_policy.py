"""The off-policy family: act, store, and learn from what is drawn out of the replay buffer."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, random_actions
from evorl.agents.critic_ensemble import policy_improvers
from evorl.config.names import load
from evorl.config.values import require_positive
from evorl.ops import collectives
from evorl.ops.normalization import update_statistics
from evorl.ops.random import split_rows, unrolled
from evorl.ops.schedules import Schedule, value_at, whole_updates
from evorl.ops.trees import split_leading_axis
from evorl.replay_buffers.n_step import take_n_step
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.rollout import Acting, ActionFn, collect_rollout, recurrent_state_of, with_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeDict, State, pytree_field
from evorl.workflows.replay_settings import ReplaySettings
from evorl.workflows.workflow import Workflow, ended_episodes, split_setup_keys

_WITH_RECORDED_STEPS = "evorl.workflows.recorded_steps:with_recorded_steps"  # loaded where it is asked for


class OffPolicyWorkflow(Workflow):
    """Short rollouts into a replay buffer, each followed by some updates from random batches of it.

    Attributes:
        rollout_length: steps of every environment in one iteration.
        updates_per_iteration: gradient updates in one iteration; below 1, one every so many iterations.
        batch_size: transitions in one update.
        n_step: rewards in one transition, fewer where an episode ends.
        prioritized: draw transitions in proportion to their last temporal-difference error instead of uniformly.
        priority_exponent: how much the errors count: 0 draws uniformly.
        importance_exponent: how much the loss makes up for unequal draws: 0 not at all, 1 in full.
        learning_starts: environment steps with random actions and without updates, at the beginning.
        replay_capacity: transitions that are kept, over all environments.
        replay: what is there at first, what makes room, and what is drawn, of environments with goals.
        intrinsic: intrinsic reward: icm, rnd, diayn, or {name: icm, weight: 0.1}, see ``evorl.workflows.intrinsic``;
            ``None`` for none.
        offline: learn from what ``replay.load`` names alone: a step of the training is an update.
        num_sharing: members of a population that store into the same buffer and learn from it; the population sets it.
    """

    rollout_length: int = 1
    updates_per_iteration: float = pytree_field(static=True, default=1)
    batch_size: int = 256
    n_step: int = 1
    prioritized: bool = False
    priority_exponent: float = 0.6
    importance_exponent: float | Schedule = Schedule(0.4, 1.0)
    learning_starts: float = 1000.0
    replay_capacity: int = 100_000
    replay: ReplaySettings = ReplaySettings()
    intrinsic: Any = None
    offline: bool = pytree_field(static=True, default=False)
    num_sharing: int = pytree_field(static=True, setting=False, default=1)

    ranges: ClassVar[Mapping[str, str]] = {
        "updates_per_iteration": "(0, inf)",
        "learning_starts": "[0, inf)",
        "priority_exponent": "[0, 1]",
        "importance_exponent": "[0, 1]",
    }
    sharded_axes: ClassVar[Mapping[str, int]] = {"env_state": 0, "replay_state": 1}
    env_fields: ClassVar[tuple[str, ...]] = ("termination", "episode_return", "episode_length")
    loss_names: ClassVar[tuple[str, ...]] = ()
    # Whether each step is stored with the agent's recurrent state before it, as ``extras.recurrent_state``.
    stores_recurrent_state: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length", "batch_size", "n_step", "replay_capacity")
        collected = self.timesteps_per_iteration * self.num_sharing
        if self.replay_capacity < collected:
            raise ValueError(
                f"replay_capacity={self.replay_capacity} is less than one iteration collects "
                f"({collected} transitions): choose a larger one."
            )
        self.replay.check(self)
        if self.n_step > self.replay_buffer.num_rows:
            raise ValueError(
                f"n_step={self.n_step} is more than the {self.replay_buffer.num_rows} steps of each environment that "
                f"replay_capacity={self.replay_capacity} keeps: choose fewer, or a larger capacity."
            )

    @property
    def corrects_lag(self) -> bool:
        """Yes: it learns from what older policies did anyway."""
        return True

    @property
    def learns_from_single_steps(self) -> bool:
        """Whether each stored step is learned from by itself."""
        return self.n_step == 1 and not self.stores_recurrent_state and not self.replay.has_episodes

    @property
    def replay_buffer(self) -> UniformReplayBuffer:
        """Where transitions are kept; its state is in the workflow's state."""
        size = {"capacity": self.replay_capacity, "num_envs": self.num_stored_envs}
        if self.replay.hindsight is not None or self.replay.overwrite == "random" or self.replay.recency is not None:
            return self.replay.own_buffer(self.env, **size)
        if self.prioritized:
            return PrioritizedReplayBuffer(**size, exponent=self.priority_exponent)
        return UniformReplayBuffer(**size)

    @property
    def num_stored_envs(self) -> int:
        """Environments whose transitions are in the buffer."""
        return self.env.num_envs * self.num_sharing

    @property
    def most_updates(self) -> int:
        """The most updates in one iteration."""
        return math.ceil(self.updates_per_iteration)

    @property
    def timesteps_per_iteration(self) -> int:
        """Steps of one rollout over all environments; offline updates."""
        return self.most_updates if self.offline else self.rollout_length * self.env.num_envs

    @property
    def collects_as_its_family(self) -> bool:
        """See ``Workflow.collects_as_its_family``; offline nothing is collected."""
        return not self.offline and super().collects_as_its_family

    def init(self, key: Key | int = 0) -> State:
        """See ``Workflow.init``; with the transitions that ``replay.load`` names."""
        state = super().init(key)
        return state if self.replay.load is None else load(_WITH_RECORDED_STEPS)(self, state)

    @abstractmethod
    def init_optimizers(self, agent_state: AgentState) -> Any:
        """The optimizers' first state."""

    @abstractmethod
    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """One update from a batch ``[N, ...]`` with a key for each row ``[N]``.

        Targets are ``batch.rewards + batch.extras.discounts * value(batch.next_obs)``: discounts are those of all steps
        of the transition, 0 where it ended in a termination. Losses of rows are weighed by ``batch.extras.weights``.

        Returns:
            The agent, the optimizers' state, and float32 scalars named by ``loss_names``; beside them ``td_errors``,
            ``[N]``, of which priorities are made.
        """

    def policy_loss(self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key) -> jax.Array:
        """By what the agent's critics improve a policy, which need not be the agent's own; see its ``actor_loss``.

        Raises ``ValueError`` if the agent has no policy apart from its values.
        """
        if not self.agent.improves_policies:
            raise ValueError(
                f"{type(self).__name__} has no policy that critics improve: choose {', '.join(policy_improvers())}."
            )
        agent: Any = self.agent
        return agent.actor_loss(policy_params, agent_state, batch, keys)[0]

    def setup(self, key: Key) -> State:
        """Fresh agent, optimizers, environments and an empty buffer."""
        agent_key, env_key, state = split_setup_keys(key)
        if self.intrinsic is not None:
            agent_key, own_key = jax.random.split(agent_key)
            state |= self.intrinsic.init(self.env.obs_space, own_key)
        state |= self.init_learning(agent_key)
        state.env_state = with_recurrent_state(self.env.reset(env_key), state.agent_state)
        return state

    def init_learning(self, key: Key) -> State:
        """What learning changes: ``agent_state``, ``opt_state`` and the empty ``replay_state``.

        With ``store`` and ``learn_repeatedly`` it is all that a workflow needs whose learner this one is.
        """
        agent_key, init_buffer = self.replay.with_key(self.replay_buffer, key)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        one_env = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
        env_state = jax.eval_shape(lambda keys: with_recurrent_state(self.env.reset(keys), agent_state), one_env)
        return State(
            agent_state=agent_state,
            opt_state=self.init_optimizers(agent_state),
            replay_state=init_buffer(self._transition_spec(env_state)),
        )

    def _transition_spec(self, env_state: Any) -> SampleBatch:
        """One transition as it is stored, without leading axes, from the shapes of one environment ``[1, ...]``."""
        actions = jax.eval_shape(lambda key: random_actions(self.env.action_space, key, 1), jax.random.key(0))
        stored = SampleBatch(
            obs=env_state.obs,
            actions=actions,
            rewards=env_state.reward,
            next_obs=env_state.obs,
            dones=env_state.done,
            extras=self._stored_extras(env_state.done, recurrent_state_of(env_state)),
        )
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stored)

    def acting(self, state: State) -> tuple[Acting, State]:
        """How the agent acts in the next rollout, and the state after its draws."""
        key, rollout_key = jax.random.split(state.key)
        agent_state = self.agent.at_progress(state.agent_state, self.progress(state))
        warming_up = self._timesteps(state) < self.learning_starts
        return Acting(agent_state=agent_state, key=rollout_key, warming_up=warming_up), state.replace(key=key)

    def action_fn(self, acting: Acting) -> ActionFn:
        """The agent's exploring actions, random ones at first."""
        return self.exploring(acting.warming_up)

    def collect(self, state: State) -> tuple[SampleBatch | None, State]:
        """A trajectory ``[T, B, ...]`` of this device's environments; offline none."""
        return (None, state) if self.offline else collect_rollout(self, state)

    def collected(self, trajectory: SampleBatch) -> SampleBatch:
        """What of a rollout is learned from."""
        return trajectory

    def exploring(self, warming_up: jax.Array) -> ActionFn:
        """How the agent acts while it learns: at random as long as ``warming_up``, a bool, holds."""

        def act(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Action, PolicyExtras]:
            policy_key, random_key = split_rows(key)
            actions, extras = self.agent.compute_actions(agent_state, sample_batch, policy_key)
            num_rows = len(jax.tree.leaves(actions)[0])
            random = random_actions(self.env.action_space, random_key, num_rows, sample_batch.obs)
            return jax.tree.map(lambda r, a: jnp.where(warming_up, r, a), random, actions), extras

        return act

    def update(self, state: State, batch: SampleBatch | None) -> tuple[PyTreeDict, State]:
        """Store the trajectory, if there is one, then update from batches drawn out of all that is stored."""
        key, sample_key, learn_key = jax.random.split(state.key, 3)
        state = state.replace(key=key)
        if batch is not None:
            paid, state = (batch, state) if self.intrinsic is None else self.intrinsic.pay(batch, state)
            state = self.take_in(state, paid)
        keys, progress = (sample_key, learn_key), self.progress(state)
        metrics, state = self.learn_repeatedly(state, *keys, self._num_updates(state), progress)
        metrics |= state.get("intrinsic_metrics", {})
        return metrics if batch is None else metrics | {"episodes": ended_episodes(batch)}, state

    def take_in(self, state: State, batch: SampleBatch) -> State:
        """The state with a trajectory ``[T, B, ...]`` in its buffer, and in the statistics of observations."""
        state = self.store(state, batch)
        if (statistics := state.agent_state.obs_preprocessor_state) is None:
            return state
        statistics = update_statistics(statistics, batch.obs, sharded=True)
        return state.replace(agent_state=state.agent_state.replace(obs_preprocessor_state=statistics))

    def store(self, state: State, batch: SampleBatch, mask: jax.Array | None = None) -> State:
        """The state with the steps ``[T, B, ...]`` of a rollout in its buffer; only those of ``mask``, bool ``[T]``."""
        stored = self._stored_part(batch)
        if self.num_sharing > 1:
            stored = collectives.gather_from_members(stored, axis=1)
        return state.replace(replay_state=self.replay_buffer.add(state.replay_state, stored, mask))

    def _num_updates(self, state: State) -> jax.Array:
        """How many updates this iteration makes, int32."""
        started = self.offline or self._timesteps(state) + self.timesteps_per_iteration >= self.learning_starts
        if self.updates_per_iteration == self.most_updates:
            return jnp.where(started, self.most_updates, 0)
        rate = Fraction(self.updates_per_iteration).limit_denominator(10_000)
        return jnp.where(started, whole_updates(rate, state.iterations.low, 1), 0)

    def take(self, replay_state: ReplayState, rows: jax.Array, envs: jax.Array) -> SampleBatch:
        """What is learned from, of the steps ``[M]`` that were drawn: leaves ``[M, ...]`` with a dict of ``extras``."""
        return take_n_step(replay_state, rows, envs, self.num_stored_envs, self.n_step, self.discount)

    def draw_batches(self, state: State, key: Key, progress: jax.Array) -> tuple[SampleBatch, jax.Array, jax.Array]:
        """Batches for all updates of an iteration ``[U, N, ...]``, and the rows and environments they start at.

        They are drawn before the updates, so that devices need not talk during them; priorities count in the next one.
        """
        buffer, replay_state, shape = self.replay_buffer, state.replay_state, (self.most_updates, self.batch_size)
        take = self.take
        if self.replay.hindsight is not None:
            key, goal_key = jax.random.split(key)
            take = partial(self.replay.take_under_goals, self, key=goal_key)
        rows, envs = buffer.draw_indices(replay_state, key, self.most_updates * self.batch_size)
        batches = take(replay_state, rows, envs)
        weights = jnp.ones(rows.shape)
        if isinstance(buffer, PrioritizedReplayBuffer):
            exponent = value_at(self.importance_exponent, progress)
            weights = buffer.importance_weights(replay_state, rows, envs, exponent).reshape(shape)
            weights = (weights / weights.max(axis=1, keepdims=True)).reshape(-1)
        batches = batches.replace(extras=batches.extras | {"weights": weights})
        return split_leading_axis(batches, *shape), rows.reshape(shape), envs.reshape(shape)

    def learn_repeatedly(
        self, state: State, sample_key: Key, learn_key: Key, num_updates: jax.Array | int, progress: jax.Array
    ) -> tuple[PyTreeDict, State]:
        """The updates of an iteration, in a loop that may also be empty, which needs no branch; metrics are means.

        Args:
            state: of ``init_learning``, and whatever else.
            sample_key: of the draws from the buffer.
            learn_key: of the updates.
            num_updates: how many, up to ``most_updates``.
            progress: the share of the training that is over.
        """
        batches, rows, envs = self.draw_batches(state, sample_key, progress)

        def one_update(i: jax.Array, carry: tuple) -> tuple:
            agent_state, opt_state, sums, errors = carry
            row_keys = jax.random.split(unrolled(jax.random.fold_in(learn_key, i)), self.batch_size)
            share = collectives.minibatch_share((jax.tree.map(lambda x: x[i], batches), row_keys))
            agent_state, opt_state, metrics = self.learn_from(agent_state, opt_state, *share, progress)
            td_errors = metrics.pop("td_errors")
            if self.prioritized:
                errors = errors.at[i].set(collectives.whole_minibatch(td_errors, self.batch_size))
            return agent_state, opt_state, jax.tree.map(jnp.add, sums, metrics), errors

        sums = PyTreeDict({name: jnp.zeros(()) for name in self.loss_names})
        carry = (state.agent_state, state.opt_state, sums, jnp.zeros(rows.shape) if self.prioritized else None)
        agent_state, opt_state, sums, errors = jax.lax.fori_loop(0, num_updates, one_update, carry)
        means = jax.tree.map(lambda x: x / jnp.maximum(num_updates, 1), sums)
        state = state.replace(agent_state=agent_state, opt_state=opt_state)
        if isinstance(buffer := self.replay_buffer, PrioritizedReplayBuffer):
            learned = jnp.broadcast_to(jnp.arange(self.most_updates)[:, None] < num_updates, rows.shape)
            replay_state = buffer.set_priorities(state.replay_state, rows, envs, errors, learned)
            state = state.replace(replay_state=replay_state)
        return collectives.mean_over_shares(means), state

    def _timesteps(self, state: State) -> jax.Array:
        return state.iterations.as_float() * self.timesteps_per_iteration

    def _stored_part(self, batch: SampleBatch) -> SampleBatch:
        extras = self._stored_extras(batch.extras.env_extras.termination, batch.extras.get("recurrent_state"))
        steps = {name: getattr(batch, name) for name in ("obs", "actions", "rewards", "next_obs", "dones")}
        return SampleBatch(**steps, extras=extras)

    def _stored_extras(self, termination: jax.Array, recurrent_state: Any) -> PyTreeDict:
        extras = {"recurrent_state": recurrent_state} if self.stores_recurrent_state else {}
        return PyTreeDict(termination=termination, **extras)

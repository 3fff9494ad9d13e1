"""Base class of off-policy algorithms: act, store transitions, and learn from batches of a replay buffer."""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, policy_improvers
from evorl.agents.random_actions import random_actions
from evorl.config.values import require_positive
from evorl.execution.collector import collects_by_acting
from evorl.execution.recorded_steps import with_recorded_steps
from evorl.execution.trainable import Capabilities
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.loops import precomputed, repeated
from evorl.ops.normalization import RewardScale, bounded_rewards, update_statistics
from evorl.ops.random import split_rows, unrolled
from evorl.ops.schedules import Schedule, value_at, whole_updates
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer
from evorl.replay_buffers.ring import ReplayState, take_n_step
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.rollout import Acting, ActionFn, collect_rollout, recurrent_state_of, with_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeDict, State, pytree_field
from evorl.workflows.off_policy_state import DrawnBatches, LearnerState, OffPolicyState, transition_spec
from evorl.workflows.replay_settings import ReplaySettings, draw_from_both
from evorl.workflows.resets import check_renewal, renewed_if_due, with_counts
from evorl.workflows.workflow import Workflow, ended_episodes, split_setup_keys

S = TypeVar("S", bound=State)


class OffPolicyWorkflow(Workflow[OffPolicyState]):
    """Stores short rollouts in a replay buffer, and makes updates on random batches after each rollout.

    Attributes:
        rollout_length: steps of every environment per iteration.
        updates_per_iteration: gradient updates per iteration; may be a fraction: 0.25 is one update every 4 iterations.
        batch_size: transitions per update.
        n_step: number of rewards summed in a transition, fewer at the end of an episode or of the stored steps.
        prioritized: sample transitions by their last absolute temporal-difference error instead of uniformly.
        priority_exponent: priority exponent alpha (Schaul et al. 2016): 0 samples uniformly, 1 in proportion to errors.
        importance_exponent: importance-sampling exponent beta (Schaul et al. 2016): 0 is uncorrected, 1 unbiased.
        reward_bound: scale rewards so that discounted sums have std <= 1 and magnitude <= this; ``None`` disables it.
        learning_starts: number of initial environment steps with random actions and without updates.
        replay_capacity: capacity of the replay buffer in transitions, over all environments.
        replay: initial contents, eviction policy, goal relabeling and recency weighting of the replay buffer.
        intrinsic: intrinsic reward: icm, rnd, diayn, or a mapping such as {name: icm, weight: 0.1}; ``None`` for none.
        offline: learn only from the recorded transitions of ``replay.load``; timesteps of training then count updates.
        resets: numbers of updates after which networks and optimizers are reinitialized; the replay buffer is kept.
        redo_interval: number of updates between two recyclings of dormant units (ReDo); ``None`` disables recycling.
        redo_threshold: a unit is dormant if its mean absolute activation is at most this fraction of its layer's mean.
        num_sharing: number of population members that share the replay buffer; set by the population.
    """

    rollout_length: int = 1
    updates_per_iteration: Annotated[float, Within("[1e-4, inf)")] = pytree_field(static=True, default=1)
    batch_size: int = 256
    n_step: int = 1
    prioritized: bool = False
    priority_exponent: Annotated[float, Within("[0, 1]")] = 0.6
    importance_exponent: Annotated[float | Schedule, Within("[0, 1]")] = Schedule(0.4, 1.0)
    reward_bound: Annotated[float | None, Within("(0, inf)")] = None
    learning_starts: Annotated[float, Within("[0, inf)")] = 1000.0
    replay_capacity: int = 100_000
    replay: ReplaySettings = ReplaySettings()
    intrinsic: Any = None
    offline: bool = pytree_field(static=True, default=False)
    resets: tuple[int, ...] = ()
    redo_interval: int | None = None
    redo_threshold: Annotated[float, Within("[0, inf)")] = 0.025
    num_sharing: int = pytree_field(static=True, setting=False, default=1)

    env_fields: ClassVar[tuple[str, ...]] = ("termination", "episode_return", "episode_length")
    loss_names: ClassVar[tuple[str, ...]] = ()
    latest_metrics: ClassVar[tuple[str, ...]] = ("dormant_share",)  # of the last recycling
    # True if each step is stored with the agent's recurrent state before it, as ``extras.recurrent_state``.
    stores_recurrent_state: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length", "batch_size", "n_step", "replay_capacity")
        self.replay.check(self)
        check_renewal(self)

    @property
    def capabilities(self) -> Capabilities:
        """Accepts rollouts of any policy unless offline, and nonconsecutive ones if it stores independent steps."""
        return Capabilities(
            rollouts=not self.offline and collects_by_acting(self),
            lag=True,
            single_steps=self.n_step == 1
            and not (self.stores_recurrent_state or self.replay.has_episodes or self.reward_bound is not None),
        )

    @property
    def replay_buffer(self) -> UniformReplayBuffer:
        """Replay buffer that the settings select; its state is ``replay_state`` in the workflow's state."""
        size = {"capacity": self.replay_capacity, "num_envs": self.num_stored_envs}
        if self.replay.hindsight is not None or self.replay.overwrite == "random" or self.replay.recency is not None:
            return self.replay.own_buffer(self.env, **size)
        if self.prioritized:
            return PrioritizedReplayBuffer(**size, exponent=self.priority_exponent)
        return UniformReplayBuffer(**size)

    @property
    def num_stored_envs(self) -> int:
        """Number of environments that store transitions in the buffer, over all population members that share it."""
        return self.env.num_envs * self.num_sharing

    @property
    def most_updates(self) -> int:
        """Maximum number of updates per iteration."""
        return math.ceil(self.updates_per_iteration)

    @property
    def timesteps_per_iteration(self) -> int:
        """Environment steps of one rollout over all environments; the number of updates if offline."""
        return self.most_updates if self.offline else self.rollout_length * self.env.num_envs

    def init(self, key: Key | int = 0) -> OffPolicyState:
        """Return the initial state, see ``Workflow.init``, including the transitions that ``replay.load`` names."""
        return with_recorded_steps(self, super().init(key))

    @abstractmethod
    def init_optimizers(self, agent_state: AgentState) -> Any:
        """Return the initial state of the optimizers."""

    @abstractmethod
    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Make one update from this device's share of a batch, ``[N, ...]``, with one key per transition, ``[N]``.

        Targets are ``batch.rewards + batch.extras.discounts * value(batch.next_obs)``. ``discounts`` cover all steps of
        the transition and are 0 if it ended in a termination. ``batch.extras.weights`` are weights of the losses.

        Returns:
            The agent's state, the optimizers' state, and metrics: float32 scalars named by ``loss_names``, and
            ``td_errors`` ``[N]``, which set priorities.
        """

    def policy_loss(self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key) -> jax.Array:
        """Return the scalar loss of the policy ``policy_params`` under the agent's critics, see ``actor_loss``.

        Raises:
            ValueError: the agent's ``improves_policies`` is False, for example because it has only action values.
        """
        if not self.agent.improves_policies:
            raise ValueError(
                f"{type(self).__name__} has no policy that this loss improves: choose {', '.join(policy_improvers())}."
            )
        agent: Any = self.agent
        return agent.actor_loss(policy_params, agent_state, batch, keys)[0]

    def setup(self, key: Key) -> OffPolicyState:
        """Return the initial state of agent, optimizers and environments, with an empty replay buffer."""
        agent_key, env_key, state = split_setup_keys(key, OffPolicyState)
        if self.intrinsic is not None:
            agent_key, intrinsic_key = jax.random.split(agent_key)
            state |= self.intrinsic.init(self.env.obs_space, intrinsic_key)
        state |= self.init_learning(agent_key)
        state.env_state = with_recurrent_state(self.env.reset(env_key), state.agent_state)
        if self.reward_bound is not None:
            state.reward_scale = RewardScale.of_none(len(state.env_state.reward), bounded=True)
        if self.replay.mixed and self.replay.load is not None:
            state.recorded_state = jax.tree.map(jnp.copy, state.replay_state)
        return state

    def init_learning(self, key: Key) -> LearnerState:
        """Return the state of the learner: ``agent_state``, ``opt_state`` and an empty ``replay_state``.

        A workflow that nests this one as its learner calls this method, ``store`` and ``learn_repeatedly``.
        """
        agent_key, init_buffer = self.replay.with_key(self.replay_buffer, key)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        one_env = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
        env_state = jax.eval_shape(lambda keys: with_recurrent_state(self.env.reset(keys), agent_state), one_env)
        extras = self._stored_extras(env_state.done, recurrent_state_of(env_state))
        return LearnerState(
            agent_state=agent_state,
            opt_state=with_counts(self, self.init_optimizers(agent_state)),
            replay_state=init_buffer(transition_spec(env_state, self.env.action_space, extras)),
        )

    def acting(self, state: OffPolicyState) -> tuple[Acting, OffPolicyState]:
        """Return the inputs of the policy for the next rollout, and the workflow's state with a new key."""
        key, rollout_key = jax.random.split(state.key)
        agent_state = self.agent.at_progress(state.agent_state, self.progress(state))
        warming_up = self._timesteps(state) < self.learning_starts
        return Acting(agent_state=agent_state, key=rollout_key, warming_up=warming_up), state.replace(key=key)

    def action_fn(self, acting: Acting) -> ActionFn:
        """Return the function that selects exploratory actions, which are random during warm-up."""
        return self.exploring(acting.warming_up)

    def collect(self, state: OffPolicyState) -> tuple[SampleBatch | None, OffPolicyState]:
        """Return a trajectory ``[T, B, ...]`` of this device's environments, ``None`` if offline, and the new state."""
        return (None, state) if self.offline else collect_rollout(self, state)

    def collected(self, trajectory: SampleBatch) -> SampleBatch:
        """Return the part of a rollout that ``update`` uses: here the whole trajectory."""
        return trajectory

    def exploring(self, warming_up: jax.Array) -> ActionFn:
        """Return the function that selects exploratory actions, or random ones if ``warming_up``, a bool, is true."""

        def act(agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Action, PolicyExtras]:
            policy_key, random_key = split_rows(key)
            actions, extras = self.agent.compute_actions(agent_state, sample_batch, policy_key)
            num_rows = len(jax.tree.leaves(actions)[0])
            random = random_actions(self.env.action_space, random_key, num_rows, sample_batch.obs)
            return jax.tree.map(lambda r, a: jnp.where(warming_up, r, a), random, actions), extras

        return act

    def update(self, state: OffPolicyState, batch: SampleBatch | None) -> tuple[PyTreeDict, OffPolicyState]:
        """Store the trajectory, if any, then make updates on batches from the replay buffer."""
        key, sample_key, learn_key = jax.random.split(state.key, 3)
        state = state.replace(key=key)
        if batch is not None:
            stored, state = (batch, state) if self.intrinsic is None else self.intrinsic.pay(batch, state)
            state = self.take_in(state, stored)
        keys, progress = (sample_key, learn_key), self.progress(state)
        between = (math.floor(self.updates_per_iteration), self.most_updates)
        num_updates = self._num_updates(state)
        metrics, state = self.learn_repeatedly(state, keys, num_updates, progress, between)
        metrics |= state.get("intrinsic_metrics", {}) | {"updates": num_updates.astype(jnp.float32)}
        if self.redo_interval is not None:
            metrics |= {"dormant_share": state.opt_state.dormant_share}
        return metrics if batch is None else metrics | {"episodes": ended_episodes(batch)}, state

    def take_in(self, state: S, batch: SampleBatch) -> S:
        """Add a trajectory ``[T, B, ...]`` to the replay buffer, the reward scale and the observation statistics."""
        state = self.store(state, batch)
        if self.reward_bound is not None:
            state = state.replace(reward_scale=state.reward_scale.after(batch.rewards, batch.dones, self.discount))
        if (statistics := state.agent_state.obs_preprocessor_state) is None:
            return state
        statistics = update_statistics(statistics, batch.obs, sharded=True)
        return state.replace(agent_state=state.agent_state.replace(obs_preprocessor_state=statistics))

    def store(self, state: S, batch: SampleBatch, mask: jax.Array | None = None) -> S:
        """Add the steps ``[T, B, ...]`` of a rollout to the replay buffer; ``mask``, bool ``[T]``, selects steps."""
        stored = self._stored_part(batch)
        if self.num_sharing > 1:
            stored = collectives.gather_from_members(stored, axis=1)
        return state.replace(replay_state=self.replay_buffer.add(state.replay_state, stored, mask))

    def _num_updates(self, state: OffPolicyState) -> jax.Array:
        """Return the number of updates of this iteration, int32; 0 during warm-up, and if nothing can be sampled."""
        started = self.offline or self._timesteps(state) + self.timesteps_per_iteration >= self.learning_starts
        is_endless = self.replay.hindsight is not None and self.env.max_episode_steps is None
        if is_endless or self.stores_recurrent_state:  # other buffers can always sample
            started &= self.replay_buffer.num_choices(state.replay_state) > 0
        if self.updates_per_iteration == self.most_updates:
            return jnp.where(started, self.most_updates, 0)
        rate = Fraction(self.updates_per_iteration).limit_denominator(10_000)
        return jnp.where(started, whole_updates(rate, state.iterations.low, 1), 0)

    def take(self, replay_state: ReplayState, rows: jax.Array, envs: jax.Array) -> SampleBatch:
        """Return the n-step transitions ``[M, ...]`` that start at the stored steps ``(rows, envs)``, ``[M]`` each."""
        return take_n_step(replay_state, rows, envs, self.num_stored_envs, self.n_step, self.discount)

    def draw_batches(self, state: State, key: Key, progress: jax.Array, size: int | None = None) -> DrawnBatches:
        """Return the batches ``[U, N, ...]`` of an iteration's U updates, and their rows and environments ``[U, N]``.

        All batches are sampled before the updates, so that devices do not communicate in between; new priorities take
        effect in the next iteration. N is ``size``, by default ``batch_size``.
        """
        buffer, replay_state = self.replay_buffer, state.replay_state
        shape = (self.most_updates, self.batch_size if size is None else size)
        take = self.take
        if self.replay.hindsight is not None:
            key, goal_key = jax.random.split(key)
            take = partial(self.replay.take_under_goals, self, key=goal_key)
        rows, envs = buffer.draw_indices(replay_state, key, math.prod(shape))
        batches = take(replay_state, rows, envs)
        weights = jnp.ones(rows.shape)
        if isinstance(buffer, PrioritizedReplayBuffer):
            exponent = value_at(self.importance_exponent, progress)
            weights = buffer.importance_weights(replay_state, rows, envs, exponent).reshape(shape)
            weights = (weights / weights.max(axis=1, keepdims=True)).reshape(-1)
        batches = batches.replace(extras=batches.extras | {"weights": weights})
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), (batches, rows, envs))

    def learn_repeatedly(
        self, state: S, keys: tuple[Key, Key], num_updates: Any, progress: jax.Array, between: Any = None
    ) -> tuple[PyTreeDict, S]:
        """Make the updates of an iteration; return metrics averaged over updates, and the new state.

        Args:
            state: state with the entries of ``init_learning``.
            keys: random keys for sampling from the replay buffer and for the updates.
            num_updates: number of updates, an int or int32, from 0 to ``most_updates``.
            progress: completed fraction of training.
            between: ``(n, n)`` or ``(n, n + 1)``: possible values of ``num_updates`` other than 0; ``None`` if unknown.
        """
        draw = partial(draw_from_both, self) if "recorded_state" in state else self.draw_batches
        batches, rows, envs = draw(state, keys[0], progress)
        if self.reward_bound is not None:
            batches = batches.replace(rewards=bounded_rewards(state.reward_scale, batches.rewards, self.reward_bound))

        def inputs(i: jax.Array) -> tuple[SampleBatch, Key]:
            row_keys = jax.random.split(unrolled(jax.random.fold_in(keys[1], i)), self.batch_size)
            return jax.tree.map(lambda x: x[i], batches), row_keys

        of_update = precomputed(inputs, self.most_updates)

        def one_update(i: jax.Array, carry: tuple) -> tuple:
            agent_state, opt_state, sums, errors = carry
            shard = collectives.minibatch_share(of_update(i))
            agent_state, opt_state, metrics = self.learn_from(agent_state, opt_state, *shard, progress)
            td_errors = metrics.pop("td_errors")
            if self.prioritized:
                errors = errors.at[i].set(collectives.whole_minibatch(td_errors, self.batch_size))
            return agent_state, opt_state, jax.tree.map(jnp.add, sums, metrics), errors

        sums = PyTreeDict({name: jnp.zeros(()) for name in self.loss_names})
        is_renewed = bool(self.resets) or self.redo_interval is not None
        opt_state = state.opt_state.optimizers if is_renewed else state.opt_state
        carry = (state.agent_state, opt_state, sums, jnp.zeros(rows.shape) if self.prioritized else None)
        agent_state, opt_state, sums, errors = repeated(one_update, carry, num_updates, between)
        if is_renewed:
            key = jax.random.fold_in(keys[1], self.most_updates)
            agent_state, opt_state = renewed_if_due(self, state, (agent_state, opt_state), num_updates, key)
        state = state.replace(agent_state=agent_state, opt_state=opt_state)
        if isinstance(buffer := self.replay_buffer, PrioritizedReplayBuffer):
            is_used = jnp.broadcast_to(jnp.arange(self.most_updates)[:, None] < num_updates, rows.shape)
            state = state.replace(replay_state=buffer.set_priorities(state.replay_state, rows, envs, errors, is_used))
        return collectives.mean_over_shares(jax.tree.map(lambda x: x / jnp.maximum(num_updates, 1), sums)), state

    def _timesteps(self, state: OffPolicyState) -> jax.Array:
        return state.iterations.as_float() * self.timesteps_per_iteration

    def _stored_part(self, batch: SampleBatch) -> SampleBatch:
        extras = self._stored_extras(batch.extras.env_extras.termination, batch.extras.get("recurrent_state"))
        steps = {name: getattr(batch, name) for name in ("obs", "actions", "rewards", "next_obs", "dones")}
        return SampleBatch(**steps, extras=extras)

    def _stored_extras(self, termination: jax.Array, recurrent_state: Any) -> PyTreeDict:
        extras = {"recurrent_state": recurrent_state} if self.stores_recurrent_state else {}
        return PyTreeDict(termination=termination, **extras)

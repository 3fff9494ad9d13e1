"""Base class of on-policy algorithms: collect a trajectory with the current policy, learn from it, discard it."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.actor_critic import ActorCriticAgent
from evorl.config.values import require_positive
from evorl.envs.env import EnvState
from evorl.execution.collector import collects_by_acting, end_episodes
from evorl.execution.plan import PlanRules
from evorl.execution.trainable import Capabilities
from evorl.fields import Within
from evorl.metrics import WideCounter
from evorl.ops import collectives
from evorl.ops.normalization import RewardScale, normalize_rewards, update_statistics
from evorl.ops.optimization import Optimizer, scan_minibatches, scan_trajectories
from evorl.ops.random import split_rows
from evorl.ops.trees import means, tree_where
from evorl.rollout import Acting, ActionFn, collect_rollout, with_recurrent_state, without_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import Entry, Key, PyTreeDict, State
from evorl.workflows.workflow import Workflow, ended_episodes, split_setup_keys

# Optimizer schedules advance once per trajectory ("environment"), or with every gradient step ("update").
ScheduleStep: TypeAlias = Literal["environment", "update"]
Update: TypeAlias = Callable[..., tuple[Any, Any]]
UpdateOfStates: TypeAlias = Callable[..., tuple[AgentState, Any, PyTreeDict]]


class OnPolicyState(State):
    """State of an on-policy workflow.

    Attributes:
        agent_state: parameters and statistics of the agent.
        opt_state: state of the optimizers.
        env_state: state of the environments ``[B, ...]``, with the agent's recurrent state.
        key: random key of the training run.
        eval_key: random key of evaluations.
        iterations: number of finished iterations.
        reward_scale: discounted sums of past rewards, ``[B]``, and their statistics; only with ``normalize_rewards``.
        intrinsic: state of the intrinsic reward, ``IntrinsicState``; absent without intrinsic rewards.
        intrinsic_metrics: metrics of the intrinsic reward for the last trajectory; absent without intrinsic rewards.
        episodic: state of an episodic intrinsic reward in each environment; absent for other rewards.
    """

    agent_state: AgentState
    opt_state: Any
    env_state: Annotated[EnvState, Entry(axis=0)]
    key: Key
    eval_key: Key
    iterations: WideCounter
    reward_scale: Annotated[RewardScale, Entry(axis=0, optional=True)]
    intrinsic: Annotated[Any, Entry(optional=True)]
    intrinsic_metrics: Annotated[PyTreeDict, Entry(optional=True)]
    episodic: Annotated[Any, Entry(axis=0, optional=True)]


class OnPolicyWorkflow(Workflow[OnPolicyState]):
    """Collects a rollout of fixed length in each iteration, and learns from it with ``learn_from``.

    Attributes:
        rollout_length: steps of every environment per iteration.
        optimizer: optimizer of all parameters.
        normalize_rewards: divide rewards by the standard deviation of discounted sums of past rewards, and clip them to
            [-10, 10]; reported returns are not normalized.
        normalize_until: number of observations, over all environments, after which the statistics of
            ``agent.normalize_obs`` no longer change; ``None`` for no limit.
        random_first_step: start the step counters of first episodes at random values below the time limit (only in
            JAX), so that parallel episodes end at different times; reported lengths include the skipped steps.
        intrinsic: intrinsic reward: icm, rnd, e3b, diayn, or {name: icm, weight: 0.1}, see
            ``evorl.agents.intrinsic``; ``None`` disables it.
    """

    rollout_length: int = 128
    optimizer: Optimizer = Optimizer()
    normalize_rewards: bool = False
    normalize_until: Annotated[float | None, Within("[1, 16777216]")] = None
    random_first_step: bool = False
    intrinsic: Any = None

    plan_rules: ClassVar[PlanRules] = PlanRules(small_updates=True)
    env_fields: ClassVar[tuple[str, ...]] = ("termination", "truncation", "episode_return", "episode_length")

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length")
        if self.normalize_until is not None and not self.agent.normalize_obs:
            raise ValueError(f"normalize_until={self.normalize_until} needs statistics: set agent.normalize_obs=true.")
        if self.random_first_step and (self.env.steps_on_host or self.env.max_episode_steps is None):
            raise ValueError("random_first_step=true needs an environment in JAX with env.max_episode_steps.")
        if self.restarts_episodes and (self.random_first_step or self._has_episodic_bonus):
            raise ValueError(
                "random_first_step and intrinsic=e3b need episodes that continue: set episodes_per_batch=null."
            )

    @property
    def timesteps_per_iteration(self) -> int:
        """Steps of one rollout over all environments."""
        return self.rollout_length * self.env.num_envs

    @property
    def capabilities(self) -> Capabilities:
        """Accepts rollouts unless each starts new episodes, and rollouts of older policies if losses correct for them.

        Normalized rewards, episodic bonuses and random first steps need consecutive rollouts of the same environments.
        """
        return Capabilities(
            rollouts=not self.restarts_episodes and collects_by_acting(self),
            lag=hasattr(self.agent, "clip_rho"),
            single_steps=not (self.normalize_rewards or self._has_episodic_bonus or self.random_first_step),
        )

    @property
    def restarts_episodes(self) -> bool:
        """True if every trajectory starts with new episodes in all environments."""
        return False

    @property
    def _has_episodic_bonus(self) -> bool:
        return self.intrinsic is not None and self.intrinsic.is_episodic

    def require_equal_minibatches(self, num_minibatches: int, by_trajectory: bool = False) -> None:
        """Raise ``ValueError`` if a number is not positive, or transitions or trajectories cannot be split equally."""
        require_positive(self, "num_epochs", "num_minibatches")
        rows, description = self.timesteps_per_iteration, "num_envs * rollout_length = {} transitions"
        if by_trajectory:
            rows, description = self.env.num_envs, "num_envs={} trajectories"
        if rows % num_minibatches:
            raise ValueError(
                f"{description.format(rows)} cannot be cut into num_minibatches={num_minibatches} equal parts: choose "
                f"a divisor of {rows}."
            )

    def step_keys(self, key: Key) -> Key:
        """Return a key for each step of a trajectory of this device's environments, ``[T, B]``."""
        env_keys = jax.random.split(key, self.env.num_envs)[collectives.local_indices(self.env.num_envs)]
        return jnp.stack(split_rows(env_keys, self.rollout_length))

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """Return the initial state of the optimizer or optimizers."""
        return self.optimizer.init(agent_state.params)

    @abstractmethod
    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Learn from a trajectory ``[T, B, ...]`` of this device's environments.

        ``progress`` is the completed fraction of training. Losses use the observation statistics of the rollout. Return
        the states of agent and optimizer, identical on all devices, and scalar metrics, which the caller averages.
        """

    def setup(self, key: Key) -> OnPolicyState:
        """Return the initial state of agent, optimizer and environments."""
        agent_key, env_key, state = split_setup_keys(key, OnPolicyState)
        if self.intrinsic is not None:
            agent_key, intrinsic_key = jax.random.split(agent_key)
            num_envs = self.env.num_envs // collectives.num_shards()
            state |= self.intrinsic.init(self.env.obs_space, intrinsic_key, num_envs)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        state.agent_state = agent_state
        state.opt_state = self.init_optimizers(agent_state)
        env_state = self.env.reset(env_key)
        if self.random_first_step:
            env_state = self.env.at_random_steps(env_state, jax.random.fold_in(env_key, self.env.num_envs))
        state.env_state = with_recurrent_state(env_state, agent_state)
        if self.normalize_rewards:
            state.reward_scale = RewardScale.of_none(len(state.env_state.reward))
        return state

    def acting(self, state: OnPolicyState) -> tuple[Acting, OnPolicyState]:
        """Return the inputs of the policy for the next rollout, and the workflow's state with a new key."""
        key, rollout_key = jax.random.split(state.key)
        agent_state = self.agent.at_progress(state.agent_state, self.progress(state))
        return Acting(agent_state=agent_state, key=rollout_key), state.replace(key=key)

    def action_fn(self, acting: Acting) -> ActionFn:
        """Return the function that selects exploratory actions."""
        return self.agent.compute_actions

    def collect(self, state: OnPolicyState) -> tuple[SampleBatch, OnPolicyState]:
        """Return a trajectory ``[T, B, ...]`` of this device's environments, and the new state.

        ``extras.recurrent_state`` is the state of a recurrent agent before the first step, ``[1, B, *]``.
        """
        if self.restarts_episodes:
            state = self._with_new_episodes(state)
        return collect_rollout(self, state)

    def _with_new_episodes(self, state: OnPolicyState) -> OnPolicyState:
        """Return the state with all environments reset; discounted sums of rewards start at 0, goal memory is kept."""
        key, reset_key = jax.random.split(state.key)
        env_state, reset = without_recurrent_state(state.env_state), self.env.reset
        if self.env.goal_setter is not None:
            reset = functools.partial(self.env.partial_reset, env_state, jnp.ones_like(env_state.done))
        env_state = with_recurrent_state(reset(reset_key), state.agent_state)
        return end_episodes(state, True).replace(key=key, env_state=env_state)

    def collected(self, trajectory: SampleBatch) -> SampleBatch:
        """Return the part of a rollout that ``update`` uses: the trajectory with only its first recurrent state."""
        extras = trajectory.extras
        if "recurrent_state" in extras:  # the loss recomputes the later states
            extras = extras | {"recurrent_state": jax.tree.map(lambda x: x[:1], extras.recurrent_state)}
        return trajectory.replace(extras=extras)

    def update(self, state: OnPolicyState, batch: SampleBatch) -> tuple[PyTreeDict, OnPolicyState]:
        """Learn from the trajectory, then add its observations to the statistics that the next rollout uses."""
        key, learn_key = jax.random.split(state.key)
        if self.normalize_rewards:
            rewards, scale = normalize_rewards(state.reward_scale, batch.rewards, batch.dones, self.discount)
            batch, state = batch.replace(rewards=rewards), state.replace(reward_scale=scale)
        if self.intrinsic is not None:
            batch, state = self.intrinsic.pay(batch, state)
        inputs = (state.agent_state, state.opt_state, batch, learn_key, self.progress(state))
        agent_state, opt_state, metrics = self.learn_from(*inputs)
        if (statistics := agent_state.obs_preprocessor_state) is not None:
            updated = update_statistics(statistics, batch.obs, sharded=True)
            if self.normalize_until is not None:
                updated = tree_where(statistics.count < self.normalize_until, updated, statistics)
            agent_state = agent_state.replace(obs_preprocessor_state=updated)
        metrics = collectives.mean_over_shares(metrics | state.get("intrinsic_metrics", {}))
        metrics.episodes = ended_episodes(batch)
        return metrics, state.replace(agent_state=agent_state, opt_state=opt_state, key=key)


class ActorCriticWorkflow(OnPolicyWorkflow):
    """On-policy workflow whose ``optimizer`` updates a policy and a value function together.

    Attributes:
        value_learning_rate_scale: factor of the learning rate of the value network (its head only, if the torso is
            shared); ``None`` for 1.
    """

    agent: ActorCriticAgent
    value_learning_rate_scale: Annotated[float | None, Within("[0, inf)")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_learning_rate_scale is not None and self.agent.network.value is None:
            raise ValueError(
                f"value_learning_rate_scale={self.value_learning_rate_scale!r} needs a value function, which this "
                "agent does not have: set agent.baseline=true, or value_learning_rate_scale=null."
            )

    @property
    def step_optimizer(self) -> Optimizer:
        """Optimizer that applies ``value_learning_rate_scale``, if set, to the learning rate of value parameters."""
        return self.optimizer.scaled("value", self.value_learning_rate_scale)


class Begin(NamedTuple):
    """Arguments of a loop of updates, except the batch ``[N, ...]``, or ``[T, B, ...]`` for whole trajectories.

    Attributes:
        key: random key that shuffles the batch.
        progress: completed fraction of training.
        by_trajectory: True if minibatches consist of whole trajectories.
    """

    key: Key
    progress: jax.Array
    by_trajectory: bool = False


class Passes(NamedTuple):
    """Range of the passes over an iteration's batch.

    Attributes:
        first: number of passes before this range.
        num: number of passes in this range.
        of: total number of passes of the iteration; determines the progress of schedules.
    """

    first: int
    num: int
    of: int


def learn_in_passes(
    workflow: Any, update: UpdateOfStates, agent_state: AgentState, opt_state: Any, batch: Any, begin: Begin
) -> tuple[AgentState, Any, PyTreeDict]:
    """Run ``update(agent_state, opt_state, minibatch, progress=...)`` on the minibatches of all passes over a batch.

    ``workflow`` has the fields ``num_epochs``, ``num_minibatches`` and ``schedule_step``. ``update`` returns agent
    state, optimizer state and metrics; in the agent state, it may change only the parameters. Return the last states
    and the means of the metrics.
    """

    def one_minibatch(carry: Any, minibatch: Any, progress: jax.Array) -> tuple[Any, PyTreeDict]:
        params, opt_state = carry
        state, opt_state, metrics = update(agent_state.replace(params=params), opt_state, minibatch, progress=progress)
        return (state.params, opt_state), metrics

    (params, opt_state), metrics = scan_updates(workflow, one_minibatch, (agent_state.params, opt_state), batch, begin)
    return agent_state.replace(params=params), opt_state, means(metrics)


def scan_updates(
    workflow: Any, update: Update, carry: Any, batch: Any, begin: Begin, passes: Passes | None = None
) -> tuple[Any, Any]:
    """Call ``update(carry, minibatch, progress=...)`` per minibatch of ``passes``; return carry and stacked metrics."""
    passes = passes or Passes(0, workflow.num_epochs, workflow.num_epochs)
    scan = scan_trajectories if begin.by_trajectory else scan_minibatches
    if workflow.schedule_step == "update":
        return _scan_counted(workflow, update, carry, batch, begin, passes)
    one_update = functools.partial(update, progress=begin.progress)
    return scan(one_update, carry, batch, begin.key, passes.num, workflow.num_minibatches)


def scan_separately(workflow: Any, update: Update, carry: Any, batch: Any, begin: Begin) -> tuple[Any, Any]:
    """Run ``workflow.num_epochs`` passes of the policy, and ``workflow.num_value_epochs`` of the value function.

    Common passes update both networks. Each extra pass calls ``update`` with ``part="policy"`` or ``part="value"``,
    to update only this network. Other arguments and results are as for ``scan_updates``, without ``passes``.
    """
    joint, most = sorted((workflow.num_epochs, workflow.num_value_epochs or workflow.num_epochs))
    key, further_key = jax.random.split(begin.key)
    carry, losses = scan_updates(workflow, update, carry, batch, begin._replace(key=key), Passes(0, joint, most))
    if joint == most:
        return carry, losses
    alone = functools.partial(update, part="policy" if workflow.num_epochs > joint else "value")
    begin, further = begin._replace(key=further_key), Passes(joint, most - joint, most)
    carry, more_losses = scan_updates(workflow, alone, carry, batch, begin, further)
    return carry, jax.tree.map(lambda x, y: jnp.concatenate([x, y]), losses, more_losses)


def _scan_counted(
    workflow: Any, update: Update, carry: Any, batch: Any, begin: Begin, passes: Passes
) -> tuple[Any, Any]:
    """Run updates as ``scan_updates`` does, with a ``progress`` that advances with every update."""
    scan = scan_trajectories if begin.by_trajectory else scan_minibatches
    total_updates = passes.of * workflow.num_minibatches
    increment = workflow.timesteps_per_iteration / workflow.total_timesteps / total_updates

    def counted(carry: tuple[jax.Array, Any], minibatch: Any) -> tuple[Any, Any]:
        num_updates, carry = carry
        carry, metrics = update(carry, minibatch, progress=begin.progress + num_updates * increment)
        return (num_updates + 1, carry), metrics

    start = (jnp.int32(passes.first * workflow.num_minibatches), carry)
    (_, carry), metrics = scan(counted, start, batch, begin.key, passes.num, workflow.num_minibatches)
    return carry, metrics

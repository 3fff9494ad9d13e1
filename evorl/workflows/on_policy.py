"""The on-policy family: collect a trajectory with the current policy, learn from it, throw it away."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.actor_critic import ActorCriticAgent
from evorl.config.values import require_positive
from evorl.ops import collectives
from evorl.ops.normalization import RewardScale, normalize_rewards, update_statistics
from evorl.ops.optimization import Optimizer, scan_minibatches, scan_trajectories
from evorl.rollout import Acting, ActionFn, collect_rollout, with_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict, State
from evorl.workflows.workflow import Workflow, ended_episodes, split_setup_keys

# Schedules of optimizers advance once for each trajectory, or with every gradient step.
ScheduleStep: TypeAlias = Literal["environment", "update"]
Update: TypeAlias = Callable[..., tuple[Any, Any]]


class OnPolicyWorkflow(Workflow):
    """Rollouts of fixed length, each followed by ``learn_from`` it.

    Attributes:
        rollout_length: steps of every environment in one iteration.
        optimizer: of all parameters.
        normalize_rewards: learn from rewards in units of the spread of discounted returns so far; what is reported
            stays as the environment pays it.
        intrinsic: intrinsic reward: icm, rnd, diayn, or {name: icm, weight: 0.1}, see ``evorl.workflows.intrinsic``;
            ``None`` for none.
    """

    rollout_length: int = 128
    optimizer: Optimizer = Optimizer()
    normalize_rewards: bool = False
    intrinsic: Any = None

    has_small_updates: ClassVar[bool] = True
    sharded_axes: ClassVar[Mapping[str, int]] = {"env_state": 0, "reward_scale": 0}
    env_fields: ClassVar[tuple[str, ...]] = ("termination", "truncation", "episode_return", "episode_length")

    @property
    def timesteps_per_iteration(self) -> int:
        """Steps of one rollout over all environments."""
        return self.rollout_length * self.env.num_envs

    @property
    def corrects_lag(self) -> bool:
        """Whether its losses weigh steps by importance ratios, of which its agent has the bound."""
        return hasattr(self.agent, "clip_rho")

    @property
    def learns_from_single_steps(self) -> bool:
        """Whether the steps of a rollout need not be followed by those of the next: sums of rewards go on in it."""
        return not self.normalize_rewards

    @property
    def restarts_episodes(self) -> bool:
        """Return whether every trajectory begins with fresh episodes in all environments."""
        return False

    @property
    def collects_as_its_family(self) -> bool:
        """See ``Workflow.collects_as_its_family``; collectors elsewhere do not restart episodes."""
        return not self.restarts_episodes and super().collects_as_its_family

    def require_equal_minibatches(self, num_minibatches: int, by_trajectory: bool = False) -> None:
        """Raises ``ValueError`` unless an iteration's transitions, or trajectories, can be cut into so many parts."""
        rows, what = self.timesteps_per_iteration, "num_envs * rollout_length = {} transitions"
        if by_trajectory:
            rows, what = self.env.num_envs, "num_envs={} trajectories"
        if rows % num_minibatches:
            raise ValueError(
                f"{what.format(rows)} cannot be cut into num_minibatches={num_minibatches} equal parts: choose a "
                f"divisor of {rows}."
            )

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """The optimizer's first state, or that of several."""
        return self.optimizer.init(agent_state.params)

    @abstractmethod
    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Learn from a trajectory ``[T, B, ...]`` of this device's environments.

        ``progress`` in [0, 1] is the share of the training that is over, for schedules.

        Returns:
            The agent and the optimizer's state, equal on all devices, and scalars by name, averaged over them by
            the caller.
        """

    def setup(self, key: Key) -> State:
        """Fresh agent, optimizer and environments."""
        agent_key, env_key, state = split_setup_keys(key)
        if self.intrinsic is not None:
            agent_key, own_key = jax.random.split(agent_key)
            state |= self.intrinsic.init(self.env.obs_space, own_key)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        state.agent_state = agent_state
        state.opt_state = self.init_optimizers(agent_state)
        state.env_state = with_recurrent_state(self.env.reset(env_key), agent_state)
        if self.normalize_rewards:
            state.reward_scale = RewardScale.of_none(len(state.env_state.reward))
        return state

    def acting(self, state: State) -> tuple[Acting, State]:
        """How the agent acts in the next rollout, and the state after its draws."""
        key, rollout_key = jax.random.split(state.key)
        agent_state = self.agent.at_progress(state.agent_state, self.progress(state))
        return Acting(agent_state=agent_state, key=rollout_key), state.replace(key=key)

    def action_fn(self, acting: Acting) -> ActionFn:
        """The agent's exploring actions."""
        return self.agent.compute_actions

    def collect(self, state: State) -> tuple[SampleBatch, State]:
        """A trajectory ``[T, B, ...]`` of this device's environments.

        ``extras.recurrent_state`` is that of a recurrent agent before the first step, ``[1, B, *]``.
        """
        if self.restarts_episodes:
            key, reset_key = jax.random.split(state.key)
            state = state.replace(key=key, env_state=with_recurrent_state(self.env.reset(reset_key), state.agent_state))
        return collect_rollout(self, state)

    def collected(self, trajectory: SampleBatch) -> SampleBatch:
        """What of a rollout is learned from."""
        extras = trajectory.extras
        if "recurrent_state" in extras:  # later ones are computed again, in learning
            extras = extras | {"recurrent_state": jax.tree.map(lambda x: x[:1], extras.recurrent_state)}
        return trajectory.replace(extras=extras)

    def update(self, state: State, batch: SampleBatch) -> tuple[PyTreeDict, State]:
        """Learn from the trajectory, then count its observations into the statistics of the next rollout."""
        key, learn_key = jax.random.split(state.key)
        if self.normalize_rewards or self.intrinsic is not None:
            batch, state = self._with_other_rewards(batch, state)
        learned_from = (state.agent_state, state.opt_state, batch, learn_key, self.progress(state))
        agent_state, opt_state, metrics = self.learn_from(*learned_from)
        if (statistics := agent_state.obs_preprocessor_state) is not None:
            statistics = update_statistics(statistics, batch.obs, sharded=True)
            agent_state = agent_state.replace(obs_preprocessor_state=statistics)
        metrics = collectives.mean_over_shares(metrics | state.get("intrinsic_metrics", {}))
        metrics.episodes = ended_episodes(batch)
        return metrics, state.replace(agent_state=agent_state, opt_state=opt_state, key=key)

    def _with_other_rewards(self, batch: SampleBatch, state: State) -> tuple[SampleBatch, State]:
        """The trajectory with the rewards that are learned from, and the state after."""
        if self.normalize_rewards:
            rewards, scale = normalize_rewards(state.reward_scale, batch.rewards, batch.dones, self.discount)
            batch, state = batch.replace(rewards=rewards), state.replace(reward_scale=scale)
        return (batch, state) if self.intrinsic is None else self.intrinsic.pay(batch, state)


class ActorCriticWorkflow(OnPolicyWorkflow):
    """On-policy workflows whose ``optimizer`` steps a policy and a value function together.

    Attributes:
        value_learning_rate_scale: the value network (its head, where the rest is shared) moves by this multiple of the
            optimizer's step; ``None`` for 1.
    """

    agent: ActorCriticAgent
    value_learning_rate_scale: float | None = None

    ranges: ClassVar[Mapping[str, str]] = {"value_learning_rate_scale": "[0, inf)"}

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length")
        if self.value_learning_rate_scale is not None and self.agent.network.value is None:
            raise ValueError(
                f"value_learning_rate_scale={self.value_learning_rate_scale!r} scales the steps of a value function, "
                "which this agent does not have: give agent.baseline=true, or leave it out."
            )

    @property
    def step_optimizer(self) -> Optimizer:
        """Return the optimizer of policy and value parameters, with the learning rate of the latter scaled."""
        return self.optimizer.scaled("value", self.value_learning_rate_scale)


class LearnsInPasses(Protocol):
    """Fields of on-policy workflows that learn from each trajectory in passes of minibatches, see ``scan_updates``."""

    @property
    def num_epochs(self) -> int:
        """Passes over each trajectory."""
        ...

    @property
    def num_minibatches(self) -> int:
        """Parts of each pass."""
        ...

    @property
    def schedule_step(self) -> ScheduleStep:
        """Unit in which schedules of optimizers advance, see ``ScheduleStep``."""
        ...

    @property
    def timesteps_per_iteration(self) -> int:
        """Steps of one rollout over all environments."""
        ...

    @property
    def total_timesteps(self) -> float:
        """Environment steps of the whole training."""
        ...


class Begin(NamedTuple):
    """The beginning of an update on a batch: leaves ``[N, ...]``, or whole trajectories ``[T, B, ...]``.

    Attributes:
        key: of the shuffles.
        progress: share of the training that is over.
        by_trajectory: whether minibatches are whole trajectories.
    """

    key: Key
    progress: jax.Array
    by_trajectory: bool = False


class Passes(NamedTuple):
    """Passes over the batch of an iteration, if it has several kinds of them.

    Attributes:
        first: number of passes before these.
        num: number of these passes.
        of: number of all passes of the iteration, which schedules advance by.
    """

    first: int
    num: int
    of: int


def scan_updates(
    workflow: LearnsInPasses, update: Update, carry: Any, batch: Any, begin: Begin, passes: Passes | None = None
) -> tuple[Any, Any]:
    """Run ``update(carry, minibatch, progress) -> (carry, metrics)`` in the passes over a batch, by default in all."""
    passes = passes or Passes(0, workflow.num_epochs, workflow.num_epochs)
    scan = scan_trajectories if begin.by_trajectory else scan_minibatches
    if workflow.schedule_step == "update":
        return _scan_counted(workflow, update, carry, batch, begin, passes)
    one_update = functools.partial(update, progress=begin.progress)
    return scan(one_update, carry, batch, begin.key, passes.num, workflow.num_minibatches)


def _scan_counted(
    workflow: LearnsInPasses, update: Update, carry: Any, batch: Any, begin: Begin, passes: Passes
) -> tuple[Any, Any]:
    """Run the updates with progress that advances with every one of them."""
    scan = scan_trajectories if begin.by_trajectory else scan_minibatches
    in_all = passes.of * workflow.num_minibatches
    share = workflow.timesteps_per_iteration / workflow.total_timesteps / in_all

    def counted(carry: tuple[jax.Array, Any], minibatch: Any) -> tuple[Any, Any]:
        num_updates, carry = carry
        carry, metrics = update(carry, minibatch, progress=begin.progress + num_updates * share)
        return (num_updates + 1, carry), metrics

    start = (jnp.int32(passes.first * workflow.num_minibatches), carry)
    (_, carry), metrics = scan(counted, start, batch, begin.key, passes.num, workflow.num_minibatches)
    return carry, metrics

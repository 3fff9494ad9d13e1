"""Evolution-guided reinforcement learning: a population and a learner that share episodes and a replay buffer."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import with_injection
from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.evaluators.episodes import EpisodeOutcomes, episode_keys, longest_episode, play_episodes, transition_rows
from evorl.evaluators.population_evaluator import join_action_fns, population_action_fn, with_policy
from evorl.execution.plan import PlanRules
from evorl.metrics import WideCounter
from evorl.ops import collectives
from evorl.ops.trees import row_of
from evorl.rollout import ActionFn
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, PolicyExtras, PyTreeDict, pytree_field
from evorl.workflows.evolution import initial_best, update_best
from evorl.workflows.generational import GenerationalState, GenerationalWorkflow, generation_metrics
from evorl.workflows.nested_learner import build_learner, require_room_for, updates_for_steps, with_statistics_of
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.workflow import split_setup_keys


class EvolutionGuidedState(GenerationalState):
    """State of an evolution-guided workflow.

    Attributes:
        learners: ``agent_state`` and ``opt_state`` of the K learners, leaves ``[K, ...]``.
        replay_state: state of the replay buffer that all learners share, a ``ReplayState`` or a subclass.
        ec_state: state of the evolutionary optimizer.
        best: best individual so far, see ``update_best``.
    """

    learners: PyTreeDict
    replay_state: Any
    ec_state: Any
    best: PyTreeDict


class EvolutionGuidedWorkflow(GenerationalWorkflow[EvolutionGuidedState]):
    """Runs one generation per iteration: plays its episodes, breeds the next generation, and trains the learners.

    Trained policies are then injected into the next generation. All policies act through the learner's agent. One
    replay buffer, which all learners share, stores the transitions. After a warm-up of ``learning_starts`` steps, each
    learner by default makes ``updates_per_iteration`` updates per ``rollout_length`` collected steps. The state's
    ``agent_state`` has the optimizer's solution as its policy.

    Attributes:
        learner: off-policy actor-critic; all learners use its settings.
        optimizer: evolutionary optimizer; the fitness is the mean return of an individual's episodes.
        updates_per_generation: updates of each learner per generation; ``None`` derives them from the collected steps.
    """

    learner: OffPolicyWorkflow = pytree_field(kw_only=True)
    optimizer: EvoOptimizer = pytree_field(kw_only=True)
    updates_per_generation: int | None = None
    total_timesteps: float = 1e6
    eval_interval: float = 5e4
    checkpoint_interval: float = 2.5e5

    foreign_keys: ClassVar[tuple[str, ...]] = (*GenerationalWorkflow.foreign_keys, "agent", "eval_chunk")
    plan_rules: ClassVar[PlanRules] = PlanRules(evenly=False)  # min_bytes is the default: learners exchange gradients
    evaluation_entries: ClassVar[tuple[str, ...]] = ("agent_state", "learners.agent_state", "eval_key", "iterations")
    build_learner = staticmethod(build_learner)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_chunk is not None:
            raise ValueError(
                f"eval_chunk={self.eval_chunk} is not supported here, because all episodes run at once: remove it."
            )
        if self.num_injected > (limit := self.optimizer.num_replaceable):
            fewer = "lower improved_share (CEM-RL) or num_rl_agents (ERL), raise its pop_size, or " if limit else ""
            raise ValueError(
                f"The learner replaces {self.num_injected} individuals per generation, but "
                f"{type(self.optimizer).__name__} allows only {limit} of optimizer.pop_size={self.pop_size} to be "
                f"replaced: {fewer}set optimizer.name to one of {', '.join(with_injection())}."
            )
        if isinstance(self.optimizer, BreedingOptimizer):
            of_policy = getattr(self.learner, "actor_optimizer", None)  # a custom learner may name it differently
            if of_policy is not None and of_policy.projection != self.optimizer.projection:
                actual, expected = self.optimizer.projection or "null", of_policy.projection or "null"
                raise ValueError(
                    f"learner.actor_optimizer.projection={expected} but optimizer.projection={actual}: individuals and "
                    f"the learner's policy would have weights of different norms. Set optimizer.projection={expected}."
                )
        require_room_for(self.max_timesteps_per_iteration, self.learner)

    @classmethod
    def individuals(cls, fields: Mapping[str, Any]) -> int:
        """Return the size of the optimizer's population; raise ``ValueError`` without ``optimizer``."""
        if "optimizer" not in fields:
            raise ValueError("optimizer is missing: set the evolutionary optimizer, for example {name: ga}.")
        return fields["optimizer"].pop_size

    @property
    def pop_size(self) -> int:
        """Number of individuals per generation, P."""
        return self.optimizer.pop_size

    @property
    def num_learners(self) -> int:
        """Number of learners K, each with its own parameters and optimizers."""
        return 1

    @property
    def num_explorations(self) -> int:
        """Number of exploration episodes per generation, 0 by default; each learner plays an equal, contiguous part."""
        return 0

    @property
    @abstractmethod
    def num_injected(self) -> int:
        """Maximum number of individuals that ``guide`` replaces per generation."""

    @property
    def num_rows(self) -> int:
        return self.pop_size * self.episodes_per_individual + self.num_explorations

    @abstractmethod
    def guide(
        self, state: EvolutionGuidedState, key: Key, num_updates: jax.Array
    ) -> tuple[PyTreeDict, EvolutionGuidedState]:
        """Update the learners, and inject policies that they trained into the next generation.

        Args:
            state: state whose ``ec_state`` already describes the next generation.
            key: random key.
            num_updates: updates of each learner, int32; 0 during warm-up.

        Returns:
            Means of the losses by name, 0 without updates, and the new state.
        """

    def setup(self, key: Key) -> EvolutionGuidedState:
        """Return the initial state: new learners, and an optimizer that starts from the first learner's policy."""
        agent_key, optimizer_key, state = split_setup_keys(key, EvolutionGuidedState)
        learners = jax.vmap(self.learner.init_learning)(jax.random.split(agent_key, self.num_learners))
        state.replay_state = row_of(learners.pop("replay_state"))  # one for all learners
        state.learners = PyTreeDict(learners)
        state.agent_state = row_of(state.learners.agent_state)
        policy = state.agent_state.params.policy
        # Inject nothing (indices beyond the population), so that the state has its final structure from the start.
        zeros = jax.tree.map(lambda x: jnp.zeros((self.num_injected, *x.shape), x.dtype), policy)
        out_of_range = jnp.full(self.num_injected, self.pop_size, jnp.int32)
        state.ec_state = self.optimizer.inject(self.optimizer.init(policy, optimizer_key), zeros, out_of_range)
        state.best = initial_best(state.agent_state)
        state.timesteps = WideCounter.create()
        return state

    def collect(self, state: EvolutionGuidedState) -> tuple[EpisodeOutcomes, EvolutionGuidedState]:
        """Return the episodes ``[N]`` of the individuals, then of the learners' exploration, and the new state.

        All episodes are played in parallel. On a mesh, the episodes of individuals and of learners are sharded
        separately, and every device receives all outcomes.
        """
        key, play_key = jax.random.split(state.key)
        per_individual, population = self.episodes_per_individual, self.pop_size * self.episodes_per_individual
        first, count = collectives.share_of(self.pop_size, self.optimizer.group_size)
        individual = jnp.repeat(first + jnp.arange(count), per_individual)
        episode = jnp.tile(jnp.arange(per_individual), count)
        numbers = episode if self.common_random_numbers else individual * per_individual + episode
        is_played, num_local = individual < self.pop_size, individual.shape[0]
        act = population_action_fn(
            self.agent.evaluate_actions, self.optimizer.ask(state.ec_state, first, count), per_individual
        )
        if self.num_explorations:
            first, count = collectives.share_of(self.num_explorations)
            rows = first + jnp.arange(count)
            numbers = jnp.concatenate([numbers, population + rows])
            act = join_action_fns(act, self._explorers_act(state, rows), num_local)
            is_played = jnp.concatenate([is_played, rows < self.num_explorations])
        outcomes = play_episodes(
            self.env,
            act,
            self.agent.at_progress(state.agent_state, self.progress(state)),
            episode_keys(play_key, numbers),
            is_played,
            longest_episode(self.env),
            record=("termination",),
            watch=not self.env.steps_on_host,
        )
        parts = [(slice(num_local), population), (slice(num_local, None), self.num_explorations)]
        whole = [row_of(collectives.gather_rows(row_of(outcomes, x)), slice(size)) for x, size in parts if size]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *whole), state.replace(key=key)

    def _explorers_act(self, state: EvolutionGuidedState, rows: jax.Array) -> ActionFn:
        """Return the action function of the exploration episodes ``rows``; its actions are random during warm-up."""
        learner = jnp.minimum(rows // (self.num_explorations // self.num_learners), self.num_learners - 1)
        exploring = self.learner.exploring(state.timesteps.as_float() < self.learner.learning_starts)

        def act(agent_state: AgentState, sample_batch: SampleBatch, keys: Key) -> tuple[Action, PolicyExtras]:
            whole = agent_state.replace(params=agent_state.params.policy)  # exploration may read other parts, too
            return exploring(whole, sample_batch, keys)

        return population_action_fn(act, row_of(state.learners.agent_state.params, learner), 1)

    def update(self, state: EvolutionGuidedState, batch: EpisodeOutcomes) -> tuple[PyTreeDict, EvolutionGuidedState]:
        """Store the transitions, pass the fitness ``[P]`` to the optimizer, then call ``guide``."""
        key, guide_key = jax.random.split(state.key)
        population = batch.returns.shape[0] - self.num_explorations
        fitness = batch.returns[:population].reshape(self.pop_size, -1).mean(axis=1)
        policies = functools.partial(self.optimizer.ask, state.ec_state)
        best = update_best(policies, self.optimizer.group_size, fitness, state)
        metrics = generation_metrics(batch, fitness, best.fitness)
        num_updates = self._num_updates(state.timesteps, metrics.timesteps)
        state = self._stored(state, batch).replace(
            key=key,
            best=best,
            ec_state=self.optimizer.tell(state.ec_state, self.optimizer.tellable(fitness)),
            timesteps=state.timesteps.add(metrics.timesteps),
        )
        losses, state = self.guide(state, guide_key, num_updates)
        solution = self.optimizer.solution(state.ec_state)
        metrics |= losses | PyTreeDict(updates=num_updates.astype(jnp.float32))
        if self.num_explorations:
            explored = batch.returns[population:]
            metrics.exploration_return = explored.mean(where=jnp.isfinite(explored))
        return metrics, state.replace(agent_state=with_policy(row_of(state.learners.agent_state), solution))

    def _stored(self, state: EvolutionGuidedState, batch: EpisodeOutcomes) -> EvolutionGuidedState:
        """Return the state with episodes added to replay buffer and statistics, except those with NaN or infinity."""
        rows, is_step = transition_rows(batch)
        agent_states = with_statistics_of(state.learners.agent_state, rows.obs, is_step[:, None])
        state = state.replace(learners=state.learners.replace(agent_state=agent_states))
        return self.learner.store(state, rows, is_step)

    def _num_updates(self, before: WideCounter, timesteps: jax.Array) -> jax.Array:
        """Return the number of updates per learner due for ``timesteps`` more steps, int32; 0 during warm-up."""
        updates = self.updates_per_generation or updates_for_steps(self.learner, before, timesteps)
        return jnp.where(before.as_float() + timesteps >= self.learner.learning_starts, updates, 0)

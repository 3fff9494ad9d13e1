"""Evolution workflow: evaluates the optimizer's individuals and reports their fitness to the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.policy import PolicyAgent
from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import OpenES
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.evaluators.population_evaluator import with_policy
from evorl.evaluators.reference_batch import reference_observations
from evorl.metrics import WideCounter
from evorl.networks.virtual_batch import check_normalizable
from evorl.ops.normalization import add_groups
from evorl.ops.schedules import ExponentialScheduleSpec
from evorl.ops.trees import tree_where
from evorl.types import Entry, Key, Params, PyTreeDict, State
from evorl.workflows.generational import GenerationalState, GenerationalWorkflow, generation_metrics
from evorl.workflows.workflow import split_setup_keys


class EvolutionState(GenerationalState):
    """State of an evolution workflow.

    Attributes:
        ec_state: state of the evolutionary optimizer.
        best: best individual so far, see ``update_best``.
        reference_batch: observations ``[N, ...]`` of virtual batch normalization; absent without ``virtual_batch``.
    """

    ec_state: Any
    best: PyTreeDict
    reference_batch: Annotated[Any, Entry(optional=True)]


class EvolutionWorkflow(GenerationalWorkflow[EvolutionState]):
    """Evolves the parameters of the agent's policy, one generation per iteration.

    Attributes:
        optimizer: evolutionary optimizer; the fitness is the mean return of an individual's episodes.
        virtual_batch: number of observations in the reference batch of virtual batch normalization, at least 2, see
            ``evorl.networks.virtual_batch``; ``None`` disables it.
    """

    agent: PolicyAgent
    optimizer: EvoOptimizer = OpenES(
        pop_size=256,
        lr_schedule=ExponentialScheduleSpec(init=0.02, final=0.001, decay=0.99),
        noise_std_schedule=ExponentialScheduleSpec(init=0.1, final=0.02, decay=0.99),
    )
    virtual_batch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.virtual_batch is not None:
            if self.virtual_batch < 2:
                raise ValueError(
                    f"virtual_batch={self.virtual_batch}: statistics need at least two observations. Use more, or null "
                    "to disable virtual batch normalization."
                )
            check_normalizable(self.agent.policy_network.torso)

    @classmethod
    def individuals(cls, fields: Mapping[str, Any]) -> int:
        return fields.get("optimizer", cls.optimizer).pop_size

    @property
    def num_rows(self) -> int:
        return self.optimizer.pop_size * self.episodes_per_individual

    def setup(self, key: Key) -> EvolutionState:
        """Return the initial state: a new policy, and an optimizer whose search starts from that policy."""
        agent_key, optimizer_key, state = split_setup_keys(key, EvolutionState)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        if self.virtual_batch is not None:
            optimizer_key, batch_key = jax.random.split(optimizer_key)
            state.reference_batch = reference_observations(self.env, self.virtual_batch, batch_key)
        solution = agent_state.params.policy
        state.ec_state = self.optimizer.init(solution, optimizer_key)
        state.agent_state = self.with_solution(state, agent_state, solution)
        state.best = initial_best(state.agent_state)
        state.timesteps = WideCounter.create()
        return state

    def with_solution(self, state: EvolutionState, agent_state: AgentState, solution: Params) -> AgentState:
        """Return the agent state with policy ``solution``, normalized over ``state.reference_batch`` if present."""
        if self.virtual_batch is None:
            return with_policy(agent_state, solution)
        policy = self.agent.normalized_policy(agent_state, solution, state.reference_batch)
        return with_policy(agent_state, policy)

    def policies(self, state: EvolutionState, first: jax.Array | int, count: int) -> Params:
        """Return the policies ``[count, ...]`` of the individuals ``first`` to ``first + count - 1``."""
        solutions = self.optimizer.ask(state.ec_state, first, count)
        with_solution = functools.partial(self.with_solution, state, state.agent_state)
        return jax.vmap(lambda solution: with_solution(solution).params.policy)(solutions)

    def factored_policies(self, state: EvolutionState, first: jax.Array | int, count: int) -> Params:
        """Return the same individuals as ``policies``, with low-rank noise factored unless ``virtual_batch`` is set."""
        if self.virtual_batch is not None:
            return self.policies(state, first, count)
        population = self.optimizer.ask_factored(state.ec_state, first, count)
        return self.agent.factored_policies(state.agent_state, population, self.env.obs_space)

    @property
    def env_fields(self) -> tuple[str, ...]:
        """Entries of ``info`` that are summed over each episode; by default empty."""
        return ()

    def objective_values(self, outcomes: EpisodeOutcomes, fitness: jax.Array) -> jax.Array:
        """Return the values that the optimizer maximizes, by default the fitness ``[P]``."""
        return fitness

    def collect(self, state: EvolutionState) -> tuple[EpisodeOutcomes, EvolutionState]:
        """Play E episodes with each of the P individuals; return the outcomes ``[P, E]`` and the new state."""
        key, episode_key = jax.random.split(state.key)
        outcomes = self.evaluator(observe=self.agent.normalize_obs, env_fields=self.env_fields).evaluate(
            self.agent,
            state.agent_state,
            functools.partial(self.factored_policies, state),
            self.optimizer.pop_size,
            episode_key,
            self.optimizer.group_size,
        )
        return outcomes, state.replace(key=key)

    def update(self, state: EvolutionState, batch: EpisodeOutcomes) -> tuple[PyTreeDict, EvolutionState]:
        """Pass the fitness ``[P]`` to the optimizer, then update best individual, observation statistics and policy.

        Individuals with a non-finite return get the worst finite fitness or rank last, see ``EvoOptimizer.tellable``.
        """
        fitness = batch.returns.mean(axis=1)
        policies = functools.partial(self.policies, state)
        best = update_best(policies, self.optimizer.group_size, fitness, state)
        ec_state = self.optimizer.tell(state.ec_state, self.objective_values(batch, self.optimizer.tellable(fitness)))
        agent_state = state.agent_state
        statistics = agent_state.obs_preprocessor_state
        if batch.observed is not None and statistics is not None:
            agent_state = agent_state.replace(obs_preprocessor_state=add_groups(statistics, batch.observed))
        agent_state = self.with_solution(state, agent_state, self.optimizer.solution(ec_state))
        metrics = generation_metrics(batch, fitness, best.fitness)
        return metrics, state.replace(
            agent_state=agent_state, ec_state=ec_state, best=best, timesteps=state.timesteps.add(metrics.timesteps)
        )


def initial_best(agent_state: AgentState) -> PyTreeDict:
    """Return the best individual before the first generation: the initial policy, with fitness -inf."""
    initial = PyTreeDict(policy=agent_state.params.policy, obs_preprocessor_state=agent_state.obs_preprocessor_state)
    return jax.tree.map(jnp.copy, initial) | {"fitness": jnp.asarray(-jnp.inf, jnp.float32)}


def update_best(
    policies: Callable[[jax.Array, int], Params], group_size: int, fitness: jax.Array, state: State
) -> PyTreeDict:
    """Return the best individual of all generations: ``policy``, ``obs_preprocessor_state`` and ``fitness``.

    The policy is generated again, because the population is not stored.

    Args:
        policies: ``policies(first, count)`` returns the evaluated policies ``[count, ...]``.
        group_size: number of individuals that ``policies`` generates together, see ``EvoOptimizer.group_size``.
        fitness: fitness of the generation, ``[P]``; individuals with a non-finite fitness are ignored.
        state: state with which the generation was evaluated. Its ``best`` is the best individual of the generations
            before; its ``agent_state`` has the observation statistics, which are stored with the policy.
    """
    fitness = jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)
    fittest = jnp.argmax(fitness)
    group = policies(fittest // group_size * group_size, group_size)
    candidate = PyTreeDict(
        policy=jax.tree.map(lambda rows: rows[fittest % group_size], group),
        obs_preprocessor_state=state.agent_state.obs_preprocessor_state,
        fitness=fitness[fittest],
    )
    return tree_where(candidate.fitness > state.best.fitness, candidate, state.best)

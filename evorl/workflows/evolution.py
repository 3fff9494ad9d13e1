"""Evolution: ask for individuals, play episodes with each, tell their fitness, in one compiled step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evorl.ec import EvoOptimizer
from evorl.ec.fitness_shaping import comparable
from evorl.ec.optimizers import OpenES
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.evaluators.population import with_policy
from evorl.metrics import WideCounter
from evorl.policy_agent import PolicyAgent
from evorl.types import Key, Params, PyTreeDict, State
from evorl.workflows.generations import Generations, of_generation
from evorl.workflows.workflow import Workflow, split_setup_keys


class EvolutionWorkflow(Generations, Workflow):
    """A generation in each iteration. What is evolved are the parameters of the agent's policy.

    Attributes:
        optimizer: the evolutionary optimizer; its fitness is the mean return of an individual's episodes.
    """

    agent: PolicyAgent
    optimizer: EvoOptimizer = OpenES(pop_size=256)

    @classmethod
    def individuals(cls, fields: Mapping[str, Any]) -> int:
        """The optimizer's population."""
        return fields["optimizer"].pop_size

    @property
    def num_rows(self) -> int:
        """Episodes of a generation."""
        return self.optimizer.pop_size * self.episodes_per_individual

    def setup(self, key: Key) -> State:
        """A fresh policy, and the optimizer's first state around it."""
        agent_key, optimizer_key, state = split_setup_keys(key)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        policy = agent_state.params.policy
        state.agent_state = agent_state
        state.ec_state = self.optimizer.init(policy, optimizer_key)
        state.best = best_of_none(policy)
        state.timesteps = WideCounter.create()
        return state

    @property
    def env_fields(self) -> tuple[str, ...]:
        """Entries of ``info`` that are added up over episodes."""
        return ()

    def told(self, outcomes: EpisodeOutcomes, fitness: jax.Array) -> jax.Array:
        """What the optimizer is told of a generation: the fitness ``[P]``."""
        return fitness

    def collect(self, state: State) -> tuple[EpisodeOutcomes, State]:
        """Episodes of the generation, ``[P, E]``."""
        key, episode_key = jax.random.split(state.key)
        outcomes = self.evaluator(observe=self.agent.normalize_obs, env_fields=self.env_fields).evaluate(
            self.agent,
            state.agent_state,
            lambda first, count: self.optimizer.ask(state.ec_state, first, count),
            self.optimizer.pop_size,
            episode_key,
            self.optimizer.group_size,
        )
        return outcomes, state.replace(key=key)

    def update(self, state: State, batch: EpisodeOutcomes) -> tuple[PyTreeDict, State]:
        """Tell the optimizer the fitness ``[P]``, and remember the best individual.

        An individual whose return is not a number is as unfit as the worst.
        """
        fitness = comparable(batch.returns.mean(axis=1))
        best = best_so_far(self.optimizer, state.ec_state, fitness, state.best)
        ec_state = self.optimizer.tell(state.ec_state, self.told(batch, fitness))
        agent_state = with_policy(state.agent_state, self.optimizer.solution(ec_state))
        statistics = agent_state.obs_preprocessor_state
        if batch.observed is not None and statistics is not None:
            agent_state = agent_state.replace(obs_preprocessor_state=batch.observed.added_to(statistics))
        metrics = of_generation(batch, fitness, best.fitness)
        return metrics, state.replace(
            agent_state=agent_state, ec_state=ec_state, best=best, timesteps=state.timesteps.add(metrics.timesteps)
        )


def best_of_none(policy: Params) -> PyTreeDict:
    """The best individual before the first generation: any policy, worse than all."""
    return PyTreeDict(policy=jax.tree.map(jnp.copy, policy), fitness=jnp.asarray(-jnp.inf, jnp.float32))


def best_so_far(optimizer: EvoOptimizer, ec_state: PyTreeDict, fitness: jax.Array, best: PyTreeDict) -> PyTreeDict:
    """The best individual of all generations and its fitness; asked for again, as a population is not kept.

    Args:
        optimizer: the optimizer.
        ec_state: its state, which the generation was asked of.
        fitness: of the generation, ``[P]``.
        best: ``policy`` and ``fitness`` of the generations before.
    """
    fittest = jnp.argmax(fitness)
    group = optimizer.group_size
    together = optimizer.ask(ec_state, fittest // group * group, group)
    is_better = fitness[fittest] > best.fitness
    policy = jax.tree.map(lambda rows, old: jnp.where(is_better, rows[fittest % group], old), together, best.policy)
    return PyTreeDict(policy=policy, fitness=jnp.where(is_better, fitness[fittest], best.fitness))

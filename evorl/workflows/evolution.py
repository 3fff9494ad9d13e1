"""Evolution: ask for individuals, play episodes with each, tell their fitness, in one compiled step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import OpenES
from evorl.envs import AutoresetMode
from evorl.evaluators import PopulationEvaluator
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.evaluators.population import with_policy
from evorl.metrics import EpisodeStatistics, WideCounter
from evorl.policy_agent import PolicyAgent
from evorl.types import Key, PyTreeDict, State
from evorl.workflows.settings import require_positive
from evorl.workflows.workflow import Workflow, split_setup_keys


class EvolutionWorkflow(Workflow):
    """A generation in each iteration. What is evolved are the parameters of the agent's policy.

    Attributes:
        optimizer: the evolutionary optimizer; its fitness is the mean return of an individual's episodes.
        episodes_per_individual: episodes of each individual in a generation.
        common_random_numbers: the episodes of a generation draw the same numbers for every individual.
        eval_chunk: individuals that are in memory and play at one time; ``None`` for as many as suit the processor's
            cache.
    """

    agent: PolicyAgent
    optimizer: EvoOptimizer = OpenES(pop_size=256)
    episodes_per_individual: int = 1
    common_random_numbers: bool = False
    eval_chunk: int | None = None

    foreign_keys: ClassVar[tuple[str, ...]] = ("num_envs", "autoreset_mode")
    min_bytes_per_device: ClassVar[int] = 0  # devices exchange something once in a generation only
    evaluation_entries: ClassVar[tuple[str, ...]] = ("agent_state", "eval_key", "iterations")
    sharded_axes: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        require_positive(self, "episodes_per_individual")
        if self.eval_chunk is not None:
            require_positive(self, "eval_chunk")

    @classmethod
    def training_rows(cls, config: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[int, AutoresetMode]:
        """A row for every episode of a generation; what has ended stands still."""
        episodes = fields.get("episodes_per_individual", cls.episodes_per_individual)
        return fields["optimizer"].pop_size * episodes, AutoresetMode.DISABLED

    @property
    def timesteps_per_iteration(self) -> int:
        """0: episodes differ in length."""
        return 0

    @property
    def evaluator(self) -> PopulationEvaluator:
        """How a generation is evaluated."""
        chunk = self.eval_chunk
        if chunk is None and self.env_chunk is not None:
            chunk = max(1, self.env_chunk // self.episodes_per_individual)
        return PopulationEvaluator(
            env=self.env,
            num_episodes=self.episodes_per_individual,
            max_episode_steps=self.env.max_episode_steps or PopulationEvaluator.max_episode_steps,
            chunk=chunk,
            common_random_numbers=self.common_random_numbers,
            observe=self.agent.normalize_obs,
        )

    def progress(self, state: State) -> jax.Array:
        """The share of ``total_timesteps`` that was played."""
        return jnp.minimum(state.timesteps.as_float() / self.total_timesteps, 1.0)

    def setup(self, key: Key) -> State:
        """A fresh policy, and the optimizer's first state around it."""
        agent_key, optimizer_key, state = split_setup_keys(key)
        agent_state = self.agent.init(self.env.obs_space, self.env.action_space, agent_key)
        policy = agent_state.params.policy
        state.agent_state = agent_state
        state.ec_state = self.optimizer.init(policy, optimizer_key)
        state.best = PyTreeDict(policy=jax.tree.map(jnp.copy, policy), fitness=jnp.asarray(-jnp.inf, jnp.float32))
        state.timesteps = WideCounter.create()
        return state

    def collect(self, state: State) -> tuple[EpisodeOutcomes, State]:
        """Episodes of the generation, ``[P, E]``."""
        key, episode_key = jax.random.split(state.key)
        outcomes = self.evaluator.evaluate(
            self.agent,
            state.agent_state,
            lambda first, count: self.optimizer.ask(state.ec_state, first, count),
            self.optimizer.pop_size,
            episode_key,
            self.optimizer.group_size,
        )
        return outcomes, state.replace(key=key)

    def update(self, state: State, batch: EpisodeOutcomes) -> tuple[PyTreeDict, State]:
        """Tell the optimizer the fitness ``[P]``, and remember the best individual."""
        fitness = batch.returns.mean(axis=1)
        best = self._best(state, fitness)
        ec_state = self.optimizer.tell(state.ec_state, fitness)
        agent_state = with_policy(state.agent_state, self.optimizer.solution(ec_state))
        statistics = agent_state.obs_preprocessor_state
        if batch.observed is not None and statistics is not None:
            agent_state = agent_state.replace(obs_preprocessor_state=batch.observed.added_to(statistics))
        timesteps = batch.lengths.sum()
        metrics = PyTreeDict(
            timesteps=timesteps,
            fitness=fitness.mean(),
            fitness_std=fitness.std(),
            fitness_max=fitness.max(),
            best_fitness=best.fitness,
            episodes=_episodes(batch),
        )
        return metrics, state.replace(
            agent_state=agent_state, ec_state=ec_state, best=best, timesteps=state.timesteps.add(timesteps)
        )

    def _best(self, state: State, fitness: jax.Array) -> PyTreeDict:
        """The best individual of all generations and its fitness; asked for again, as a population is not kept."""
        fittest = jnp.argmax(fitness)
        group = self.optimizer.group_size
        together = self.optimizer.ask(state.ec_state, fittest // group * group, group)
        is_better = fitness[fittest] > state.best.fitness
        policy = jax.tree.map(
            lambda rows, old: jnp.where(is_better, rows[fittest % group], old), together, state.best.policy
        )
        return PyTreeDict(policy=policy, fitness=jnp.where(is_better, fitness[fittest], state.best.fitness))


def _episodes(outcomes: EpisodeOutcomes) -> EpisodeStatistics:
    return EpisodeStatistics(
        count=jnp.asarray(outcomes.returns.size, jnp.float32),
        return_sum=outcomes.returns.sum(),
        length_sum=outcomes.lengths.sum().astype(jnp.float32),
        return_min=outcomes.returns.min(),
        return_max=outcomes.returns.max(),
    )

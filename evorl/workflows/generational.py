"""Iterations in which every individual of a population plays whole episodes: what workflows of evolution share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.config.values import require_positive
from evorl.envs import AutoresetMode
from evorl.evaluators.episodes import EpisodeOutcomes, longest_episode
from evorl.evaluators.population_evaluator import PopulationEvaluator
from evorl.metrics import EpisodeStatistics, episode_statistics
from evorl.types import PyTreeDict, State
from evorl.workflows.workflow import Workflow


class GenerationalWorkflow(Workflow):
    """A generation in each iteration; the state has a counter of environment steps, ``timesteps``.

    Attributes:
        episodes_per_individual: episodes of each individual in a generation.
        common_random_numbers: the episodes of a generation draw the same numbers for every individual.
        eval_chunk: individuals that are in memory and play at one time; ``None`` for as many as suit the processor's
            cache.
    """

    total_timesteps: float = 1e7
    episodes_per_individual: int = 1
    common_random_numbers: bool = False
    eval_chunk: int | None = None
    eval_interval: float = 5e5
    checkpoint_interval: float = 2.5e6

    foreign_keys: ClassVar[tuple[str, ...]] = ("num_envs", "autoreset_mode", "discount")
    min_bytes_per_device: ClassVar[int] = 0  # devices exchange something once in a generation only
    needs_even_shares: ClassVar[bool] = False  # rows past the last individual count for nothing
    sharded_axes: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        require_positive(self, "episodes_per_individual")
        if self.eval_chunk is not None:
            require_positive(self, "eval_chunk")

    @classmethod
    @abstractmethod
    def individuals(cls, fields: Mapping[str, Any]) -> int:
        """How many individuals a generation has, from the workflow's fields that were read from a config."""

    @classmethod
    def training_rows(cls, config: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[int, AutoresetMode]:
        """A row for every episode of a generation; what has ended stands still."""
        episodes = fields.get("episodes_per_individual", cls.episodes_per_individual)
        return cls.individuals(fields) * episodes, AutoresetMode.DISABLED

    @property
    def timesteps_per_iteration(self) -> int:
        """0: episodes differ in length."""
        return 0

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Episodes of a generation."""

    @property
    def most_timesteps_per_iteration(self) -> int:
        """All episodes at their longest."""
        return self.num_rows * longest_episode(self.env)

    def progress(self, state: State) -> jax.Array:
        """The share of ``total_timesteps`` that was played."""
        return jnp.minimum(state.timesteps.as_float() / self.total_timesteps, 1.0)

    def evaluator(self, **options: Any) -> PopulationEvaluator:
        """How a generation is evaluated; ``options`` are fields of the evaluator that are to be others."""
        settings = {
            "env": self.env,
            "num_episodes": self.episodes_per_individual,
            "common_random_numbers": self.common_random_numbers,
            "chunk": self.eval_chunk,
            "watch": not self.env.steps_on_host,
            **options,
        }
        if settings["chunk"] is None and self.env_chunk is not None:
            settings["chunk"] = max(1, self.env_chunk // settings["num_episodes"])
        return PopulationEvaluator(max_episode_steps=longest_episode(settings["env"]), **settings)


def generation_metrics(outcomes: EpisodeOutcomes, fitness: jax.Array, best_fitness: jax.Array) -> PyTreeDict:
    """Metrics of a generation.

    Args:
        outcomes: of its episodes.
        fitness: of its individuals, ``[P]``.
        best_fitness: the best one of this generation and those before.
    """
    return PyTreeDict(
        timesteps=outcomes.lengths.sum(),
        fitness=jnp.nanmean(fitness),
        fitness_std=jnp.nanstd(fitness),
        fitness_max=jnp.nanmax(fitness),
        best_fitness=best_fitness,
        episodes=finite_episode_statistics(outcomes),
    )


def finite_episode_statistics(outcomes: EpisodeOutcomes) -> EpisodeStatistics:
    """Statistics of the episodes of a generation, which the outcomes hold on every device.

    Those whose return is not finite are left out, as one individual of many may break its simulation.
    """
    return episode_statistics(jnp.isfinite(outcomes.returns), outcomes.returns, outcomes.lengths)

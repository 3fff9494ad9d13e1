"""Base class of evolutionary workflows: in each iteration every individual of a population plays complete episodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.values import require_positive
from evorl.envs import AutoresetMode
from evorl.evaluators.episodes import EpisodeOutcomes, longest_episode
from evorl.evaluators.population_evaluator import PopulationEvaluator
from evorl.execution.plan import PlanRules
from evorl.metrics import WideCounter, episode_statistics
from evorl.types import Key, PyTreeDict, State
from evorl.workflows.workflow import Workflow


class GenerationalState(State):
    """State entries common to all evolutionary workflows.

    Attributes:
        agent_state: state of the agent that evaluations use.
        key: random key of the training run.
        eval_key: random key of evaluations.
        iterations: number of finished generations.
        timesteps: number of environment steps played.
    """

    agent_state: AgentState
    key: Key
    eval_key: Key
    iterations: WideCounter
    timesteps: WideCounter


G = TypeVar("G", bound=GenerationalState)


class GenerationalWorkflow(Workflow[G]):
    """Runs one generation per iteration; ``timesteps`` in the state counts environment steps.

    Attributes:
        episodes_per_individual: episodes of each individual per generation.
        common_random_numbers: in each generation, use the same random numbers for all individuals.
        eval_chunk: number of individuals evaluated at a time; ``None`` derives the number from ``env_chunk``.
    """

    total_timesteps: float = 1e7
    episodes_per_individual: int = 1
    common_random_numbers: bool = False
    eval_chunk: int | None = None
    eval_interval: float = 5e5
    checkpoint_interval: float = 2.5e6

    foreign_keys: ClassVar[tuple[str, ...]] = ("num_envs", "autoreset_mode", "discount")
    # Devices communicate only once per generation, so even small states may be split; padding makes shares equal.
    plan_rules: ClassVar[PlanRules] = PlanRules(min_bytes=0, evenly=False)
    latest_metrics: ClassVar[tuple[str, ...]] = ("best_fitness",)

    def __post_init__(self) -> None:
        require_positive(self, "episodes_per_individual")
        episodes, agents = self.episodes_per_individual, self.env.num_agents
        if episodes % agents:
            raise ValueError(
                f"episodes_per_individual={episodes} must be a multiple of {agents}, because an individual plays all "
                f"{agents} agents of an environment: set episodes_per_individual={-(-episodes // agents) * agents}."
            )
        setter = self.env.goal_setter
        if setter is not None and jax.tree.leaves(setter.init(self.env.goal_task)):
            raise ValueError(
                f"env.goal_setter: {type(setter).__name__} learns from earlier episodes, but each generation starts "
                "without memory: use another one, such as uniform, or an algorithm that learns from rollouts, such as "
                "agent=sac."
            )
        if self.eval_chunk is not None:
            require_positive(self, "eval_chunk")

    @classmethod
    @abstractmethod
    def individuals(cls, fields: Mapping[str, Any]) -> int:
        """Return the number of individuals per generation, given the workflow's fields from a config."""

    @classmethod
    def training_rows(cls, fields: Mapping[str, Any], num_envs: Any, autoreset_mode: Any) -> tuple[int, AutoresetMode]:
        """Return the number of episodes of a generation, one per environment, and ``AutoresetMode.DISABLED``."""
        episodes = fields.get("episodes_per_individual", cls.episodes_per_individual)
        return cls.individuals(fields) * episodes, AutoresetMode.DISABLED

    @property
    def timesteps_per_iteration(self) -> int:
        """0, because episodes differ in length."""
        return 0

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Number of episodes per generation."""

    @property
    def max_timesteps_per_iteration(self) -> int:
        """Environment steps of a generation if all episodes have the maximum length."""
        return self.num_rows * longest_episode(self.env)

    def progress(self, state: G) -> jax.Array:
        """Return the completed fraction of ``total_timesteps``, in [0, 1]."""
        return jnp.minimum(state.timesteps.as_float() / self.total_timesteps, 1.0)

    def evaluator(self, **options: Any) -> PopulationEvaluator:
        """Return an evaluator with this workflow's settings; ``options`` set fields except ``max_episode_steps``."""
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
    """Return the metrics of a generation; statistics ignore non-finite returns of individuals that break a simulation.

    Args:
        outcomes: outcomes of the generation's episodes.
        fitness: fitness of the generation's individuals, ``[P]``.
        best_fitness: best fitness of all generations so far.
    """
    fitness = jnp.where(jnp.isfinite(fitness), fitness, jnp.nan)
    return PyTreeDict(
        timesteps=outcomes.lengths.sum(),
        fitness=jnp.nanmean(fitness),
        fitness_std=jnp.nanstd(fitness),
        fitness_max=jnp.nanmax(fitness),
        best_fitness=best_fitness,
        episodes=episode_statistics(jnp.isfinite(outcomes.returns), outcomes.returns, outcomes.lengths),
    )

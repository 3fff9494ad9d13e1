"""Multi-objective policy search by NSGA-II (Deb et al. 2002, https://doi.org/10.1109/4235.996017) or RVEA (Cheng et al.
2016, https://doi.org/10.1109/TEVC.2016.2519378).

Each objective is the episode return or a quantity that the environment reports at each step, such as speed or effort,
summed over the episode. The population approximates the Pareto front of these objectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agents.policy import PolicyAgent
from evorl.ec.operators.pareto import hypervolume_2d, non_dominated_ranks
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.ec.optimizers import NSGA2, MultiObjectiveOptimizer
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.runs.recorder import Chart, Panel, for_each_seed
from evorl.types import PyTreeDict
from evorl.workflows.evolution import EvolutionState, EvolutionWorkflow

RETURN = "return"  # name of the objective that is the episode return


class MultiObjectiveWorkflow(EvolutionWorkflow):
    """Evolves policies with several objectives. The agent acts with the parent that ``optimizer.solution`` returns.

    Attributes:
        optimizer: NSGA-II or RVEA.
        objectives: objectives to maximize: ``return``, or entries of ``info`` summed over the actions of the episode,
            see ``evaluators.episodes.info_entries``; the prefix ``-`` minimizes an objective.
        reference: reference point ``[M]`` of the hypervolume (only for M = 2); negate entries of minimized objectives.
    """

    agent: PolicyAgent
    optimizer: MultiObjectiveOptimizer = NSGA2(
        pop_size=128,
        initial_std=0.5,
        crossover=Crossover(kind="simulated_binary", probability=0.9),
        mutation=Mutation(kind="polynomial", probability=1.0, share=1.0),
    )
    objectives: tuple[str, ...] = (RETURN, "-next_obs.0")
    reference: tuple[float, ...] = (0.0, 0.0)

    latest_metrics: ClassVar[tuple[str, ...]] = ("best_fitness", "best", "front_size", "hypervolume")

    def __post_init__(self) -> None:
        super().__post_init__()
        num_objectives = self.optimizer.num_objectives
        if len(self.objectives) < 2 or len(self.objectives) != num_objectives:
            raise ValueError(
                f"objectives={list(self.objectives)} has {len(self.objectives)} entries. There must be at least 2, and "
                f"as many as optimizer.num_objectives={num_objectives}: change that setting, or list more or fewer "
                "objectives, each 'return' or an entry of info."
            )
        if len(self.reference) != num_objectives:
            raise ValueError(
                f"reference={list(self.reference)} has {len(self.reference)} entries, expected one per objective: "
                f"{num_objectives}."
            )
        if self.agent.normalize_obs:
            raise ValueError(
                "agent.normalize_obs=true would change the behavior of parents after their evaluation: set it to false."
            )

    @property
    def env_fields(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("-") for name in self.objectives if name.removeprefix("-") != RETURN)

    def objective_values(self, outcomes: EpisodeOutcomes, fitness: jax.Array) -> jax.Array:
        """Return mean objectives ``[P, M]``, negated if minimized; raise ``ValueError`` if an objective is a vector."""
        totals = {**outcomes.totals, RETURN: outcomes.returns}
        for name, total in totals.items():
            if total.shape != outcomes.returns.shape:
                raise ValueError(
                    f"objectives: {name} has several components, but an objective is one number: choose a component, "
                    f"such as {name}.0."
                )
        signs = [-1.0 if name.startswith("-") else 1.0 for name in self.objectives]
        columns = [totals[name.removeprefix("-")].mean(axis=1) for name in self.objectives]
        return jnp.stack(columns, axis=1) * jnp.asarray(signs)

    def update(self, state: EvolutionState, batch: EpisodeOutcomes) -> tuple[PyTreeDict, EvolutionState]:
        """Pass the objectives to the optimizer; the metrics describe the Pareto front of the selected parents."""
        ec_state = self.optimizer.at_progress(state.ec_state, self.progress(state))
        metrics, state = super().update(state.replace(ec_state=ec_state), batch)
        objectives = state.ec_state.objectives
        metrics.front_size = (non_dominated_ranks(objectives) == 0).sum()
        if len(self.objectives) == 2:
            metrics.hypervolume = hypervolume_2d(objectives, jnp.asarray(self.reference))
        for number, name in enumerate(self.objectives):
            metrics[f"best/{name}"] = objectives[:, number].max()
        return metrics, state

    def charts(self, state: EvolutionState) -> Mapping[str, Chart]:
        """Return the chart ``pareto_front`` of each seed: the parents' objectives, with the front marked."""
        objectives = jax.device_get(state.ec_state.objectives)
        return for_each_seed("pareto_front", self.execution.num_seeds, lambda i: self._chart(objectives[i]))

    def _chart(self, objectives: np.ndarray) -> Chart:
        objectives = objectives[np.isfinite(objectives).all(axis=1)]  # non-finite rows are empty slots of the parents
        objectives = objectives[np.argsort(objectives[:, 0], kind="stable")]
        on_front = np.asarray(non_dominated_ranks(jnp.asarray(objectives)) == 0)
        columns = dict(zip(self.objectives, objectives.T, strict=True))
        panels = [Panel(self.objectives[0], name, marked="on_front") for name in self.objectives[1:]]
        return Chart({**columns, "on_front": on_front.astype(int)}, tuple(panels))

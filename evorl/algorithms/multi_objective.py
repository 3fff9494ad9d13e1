"""Policies towards the Pareto front of several objectives: by NSGA-II (Deb et al. 2002,
https://doi.org/10.1109/4235.996017) or RVEA (Cheng et al. 2016, https://doi.org/10.1109/TEVC.2016.2519378).

What an environment reports of its steps, such as speed and effort, is added up over an episode, each an objective of
its own. The population spreads over the trade-offs between them.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agents.policy import PolicyAgent
from evorl.ec.operators.pareto import hypervolume_2d, non_dominated_ranks
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.ec.optimizers import NSGA2, MultiObjectiveOptimizer
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.runs.recording import Chart, Panel, for_each_seed
from evorl.types import PyTreeDict, State
from evorl.workflows.evolution import EvolutionWorkflow

RETURN = "return"  # the objective's name


class MultiObjectiveWorkflow(EvolutionWorkflow):
    """Generations of policies with several objectives each. It acts by one end of the front.

    Attributes:
        optimizer: NSGA-II or RVEA.
        objectives: what is maximised: ``return``, or entries of ``info`` added up over the episode, see
            ``evaluators.episodes.info_entries``; a minus in front minimises.
        reference: the point ``[M]`` above which the hypervolume of two objectives is measured.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        num_objectives = self.optimizer.num_objectives
        if len(self.objectives) < 2 or len(self.objectives) != num_objectives:
            raise ValueError(
                f"objectives={list(self.objectives)}: name at least two, 'return' or entries of info, and as many as "
                f"optimizer.num_objectives={num_objectives}."
            )
        if len(self.reference) != num_objectives:
            raise ValueError(
                f"reference={list(self.reference)} has to have a number for each of {num_objectives} objectives."
            )
        if self.agent.normalize_obs:
            raise ValueError(
                "agent.normalize_obs=true would change what parents do after they were evaluated: set it to false."
            )

    @property
    def env_fields(self) -> tuple[str, ...]:
        """The objectives but for the return."""
        return tuple(name.removeprefix("-") for name in self.objectives if name.removeprefix("-") != RETURN)

    def objective_values(self, outcomes: EpisodeOutcomes, fitness: jax.Array) -> jax.Array:
        """The objectives ``[P, M]``: means over the episodes."""
        totals = {**outcomes.totals, RETURN: outcomes.returns}
        for name, total in totals.items():
            if total.shape != outcomes.returns.shape:
                raise ValueError(f"objectives: {name} is no single number. Name one of its numbers, such as {name}.0.")
        signs = [-1.0 if name.startswith("-") else 1.0 for name in self.objectives]
        columns = [totals[name.removeprefix("-")].mean(axis=1) for name in self.objectives]
        return jnp.stack(columns, axis=1) * jnp.asarray(signs)

    def update(self, state: State, batch: EpisodeOutcomes) -> tuple[PyTreeDict, State]:
        """Tell the objectives, and measure the front of the parents that are left."""
        ec_state = self.optimizer.at_progress(state.ec_state, self.progress(state))
        metrics, state = super().update(state.replace(ec_state=ec_state), batch)
        objectives = state.ec_state.objectives
        metrics.front_size = (non_dominated_ranks(objectives) == 0).sum()
        if len(self.objectives) == 2:
            metrics.hypervolume = hypervolume_2d(objectives, jnp.asarray(self.reference))
        for number, name in enumerate(self.objectives):
            metrics[f"best/{name}"] = objectives[:, number].max()
        return metrics, state

    def charts(self, state: State) -> Mapping[str, Chart]:
        """``pareto_front``: the objectives of the parents, those on the front marked; for each seed."""
        objectives = jax.device_get(state.ec_state.objectives)
        return for_each_seed("pareto_front", self.execution.num_seeds, lambda i: self._chart(objectives[i]))

    def _chart(self, objectives: np.ndarray) -> Chart:
        objectives = objectives[np.isfinite(objectives).all(axis=1)]  # the others are places for parents to come
        objectives = objectives[np.argsort(objectives[:, 0], kind="stable")]
        on_front = np.asarray(non_dominated_ranks(jnp.asarray(objectives)) == 0)
        columns = dict(zip(self.objectives, objectives.T, strict=True))
        panels = [Panel(self.objectives[0], name, marked="on_front") for name in self.objectives[1:]]
        return Chart({**columns, "on_front": on_front.astype(int)}, tuple(panels))

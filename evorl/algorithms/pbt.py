"""Population-based training (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846).

The members of a population train in parallel with the same algorithm and different hyperparameters. After every
generation the worst members copy states and hyperparameters of the best, and perturb the hyperparameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from evorl.assembly import BUILD_KEYS, check_keys, config_keys, inner_workflow
from evorl.config.nodes import fields_from_config
from evorl.config.search_space import SearchSpace
from evorl.config.values import require_positive
from evorl.execution.env_faults import watched_step
from evorl.execution.plan import plan_execution
from evorl.execution.programs import side_by_side
from evorl.execution.trainable import loss_names, most_timesteps
from evorl.fields import Within
from evorl.metrics import WideCounter
from evorl.ops import collectives
from evorl.ops.collectives import MEMBER_AXIS
from evorl.ops.competitive_swarm import competitive_swarm_step
from evorl.ops.multi_frequency import check_sub_populations, multi_frequency_inheritance
from evorl.ops.selection import Inheritance, best_member, inheritance_of_clones
from evorl.ops.trees import entries_of, row_of
from evorl.runs.recorder import Chart, for_each_seed
from evorl.runs.spec import RunSpec
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict, State, pytree_field
from evorl.workflows.population import (
    SCORE_METRICS,
    as_member,
    cloned_members,
    healthy_members,
    population_metrics,
    take_faults,
    train_side_by_side,
    training_scores,
)
from evorl.workflows.population_history import PopulationHistory, PopulationState
from evorl.workflows.side_by_side import OF_THE_LOOP, with_numbers
from evorl.workflows.workflow import Workflow

_SHARED = ("env", "eval_episodes", "env_chunk")


class PBTWorkflow(Workflow[PopulationState]):
    """A population of workflows that train in parallel, with selection and variation of their hyperparameters.

    Attributes:
        inner: workflow of every member; the values of the search space replace its hyperparameters.
        search_space: bounds and scales of the hyperparameters that differ between members.
        pop_size: size of the population P.
        generation_interval: environment steps of each member between selections, rounded to whole iterations.
        score: mean return that ranks members: of completed ``training`` episodes, or of an ``evaluation``.
        exploit: worse members copy better ones (true), per sub-population (``multi_frequency``), or never (false).
        frequencies: generations between selections, one number per sub-population of ``multi_frequency``.
        explore: change of replaced members' hyperparameters: ``perturb``, or ``cso`` (competitive swarm optimization).
        truncation: fraction of best members, copied at random by as many worst ones (exploit=true, explore=perturb).
        perturbation_factor: factor or divisor of ``perturb``; on a linear scale, the step is (factor - 1) of the range.
        resample_probability: probability of resampling a hyperparameter of a replaced member from the search space.
        social_factor: attraction of ``cso`` to the mean of the population.
        shared_replay: off-policy members store their transitions in one replay buffer and sample from all of them.
        history_length: number of generations recorded for the chart of the best member's schedule.
    """

    inner: Workflow = pytree_field(kw_only=True)
    search_space: SearchSpace = pytree_field(kw_only=True)
    total_timesteps: float = 1.6e6
    pop_size: int = 8
    generation_interval: int = 5000
    score: Literal["evaluation", "training"] = "training"
    exploit: bool | Literal["multi_frequency"] = True
    frequencies: tuple[int, ...] = (1, 10, 25, 50)
    explore: Literal["perturb", "cso"] = "perturb"
    truncation: Annotated[float, Within("(0, 0.5]")] = 0.25
    perturbation_factor: Annotated[float, Within("(1, inf)")] = 1.2
    resample_probability: Annotated[float, Within("[0, 1]")] = 0.25
    social_factor: Annotated[float, Within("[0, inf)")] = 0.1
    shared_replay: bool = False
    history_length: int = 1000

    optional_metrics: ClassVar[tuple[str, ...]] = SCORE_METRICS  # NaN until the first episode ends
    latest_metrics: ClassVar[Any] = property(lambda self: (*self.inner.latest_metrics, "hyper_parameter"))
    foreign_keys: ClassVar[tuple[str, ...]] = ("agent", "discount", "num_envs", "autoreset_mode")

    def __post_init__(self) -> None:
        require_positive(self, "pop_size", "generation_interval", "history_length")
        if self.pop_size < 2:
            raise ValueError(f"pop_size={self.pop_size} is too small for a population: use 2 or more.")
        if self.exploit == "multi_frequency":
            check_sub_populations(self.pop_size, self.frequencies, self.explore)

    @classmethod
    def _from_spec(cls, spec: RunSpec) -> Self:
        """Build the members' workflow from the section ``inner``, which names a ``workflow``, and the population."""
        check_keys(cls, spec)
        names = config_keys(cls) - {*BUILD_KEYS, *_SHARED, "inner", "search_space"}
        settings = fields_from_config(cls, {name: spec.workflow[name] for name in names if name in spec.workflow}, "")
        pop_size = settings.get("pop_size", cls.pop_size)
        steps_of_member = settings.get("total_timesteps", cls.total_timesteps) / pop_size
        members = inner_workflow(spec, "inner", (*_SHARED, "evaluation"), ("devices", "num_seeds"), steps_of_member)
        env, env_chunk = members.env, members.env_chunk
        execution, _ = plan_execution(env, spec.devices, spec.num_seeds, env_chunk, num_members=pop_size)
        members = as_member(members, pop_size if settings.get("shared_replay") else 1)
        member_fields = {name: getattr(members, name) for name in ("agent", "eval_env", "keeping", *_SHARED)}
        without_effect = (*OF_THE_LOOP, *members.foreign_keys)
        space = SearchSpace.from_config(spec.workflow.get("search_space"), members, without_effect)
        return cls(inner=members, search_space=space, execution=execution, **member_fields, **settings)

    @property
    def iterations_per_generation(self) -> int:
        """Iterations of each member between two selections."""
        return max(1, round(self.generation_interval / most_timesteps(self.inner)))

    @property
    def timesteps_per_iteration(self) -> int:
        """Environment steps of a generation, summed over members; 0 if the number varies."""
        return self.pop_size * self.iterations_per_generation * self.inner.timesteps_per_iteration

    @property
    def max_timesteps_per_iteration(self) -> int:
        """Maximum number of environment steps of a generation, summed over members."""
        return self.pop_size * self.iterations_per_generation * most_timesteps(self.inner)

    @property
    def evaluation_entries(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Entries of the state that evaluation reads; they depend on the inner workflow."""
        return (*(f"members.{name}" for name in self._entries), "hyper_parameters", "scores", "eval_key", "iterations")

    @property
    def _entries(self) -> list[str]:
        """Entries of a member's state that its evaluation reads."""
        return [name for name in self.inner.evaluation_entries if name != "iterations"]

    def member(self, hyper_parameters: jax.Array) -> Workflow:
        """Return the inner workflow with one member's hyperparameters ``[D]`` and share of ``total_timesteps``."""
        values = self.search_space.named(hyper_parameters)
        return with_numbers(self.inner, {**values, "total_timesteps": self.total_timesteps / self.pop_size})

    def setup(self, key: Key) -> PopulationState:
        """Initialize the members, each with its own key and sampled hyperparameters."""
        key, eval_key, space_key, members_key = jax.random.split(key, 4)
        hyper_parameters = self.search_space.sample(space_key, self.pop_size)
        rows = collectives.local_indices(self.pop_size, MEMBER_AXIS)
        member_keys = jax.random.split(members_key, self.pop_size)[rows]
        members = jax.vmap(lambda values, key: self.member(values).setup(key))(hyper_parameters[rows], member_keys)
        shared = {"replay_state": members.pop("replay_state")} if self.shared_replay else {}
        shared, counter = jax.tree.map(lambda x: x[0], (State(shared), members.pop("iterations")))
        return PopulationState(
            members=members,
            shared=shared,
            hyper_parameters=hyper_parameters,
            scores=jnp.full(self.pop_size, jnp.nan, jnp.float32),
            history=PopulationHistory.create(self.history_length, *hyper_parameters.shape),
            key=key,
            eval_key=eval_key,
            iterations=counter,
            timesteps=WideCounter.create(),
            velocities=jnp.zeros_like(hyper_parameters),
        )

    def collect(self, state: PopulationState) -> tuple[SampleBatch, PopulationState]:
        """Train every member for a generation and score it.

        Returns:
            A batch and the new state. ``rewards`` are the scores ``[P]``; ``extras`` has the members' ``metrics``
            ``[P]`` and the mask ``healthy`` ``[P]``. A member with a non-finite metric is not healthy and scores -inf.
            Without a completed training episode a member keeps its previous score, initially NaN.
        """
        rows = collectives.local_indices(self.pop_size, MEMBER_AXIS)
        members = state.members | state.shared | {"hyper_parameters": state.hyper_parameters[rows]}
        members.iterations = state.iterations.times(count := self.iterations_per_generation)
        of_inner = (self.inner.optional_metrics, loss_names(self.inner))
        latest, step = self.inner.latest_metrics, self._step_of_member
        metrics, members = train_side_by_side(step, members, state.shared, count, *of_inner, latest=latest)
        faults = take_faults(metrics, self.inner.timesteps_per_iteration // self.inner.env.num_envs)
        if self.score == "evaluation":
            scores = side_by_side(self._evaluation_of_member, members, tuple(state.shared)).episode_return
            healthy = healthy_members(metrics) & jnp.isfinite(scores)
        else:
            scores, healthy = training_scores(metrics, state.scores[rows]), healthy_members(metrics)
        extras = PyTreeDict(metrics=metrics, healthy=healthy) | faults
        batch = SampleBatch(rewards=jnp.where(healthy, scores, -jnp.inf), extras=extras)
        shared = State({name: members.pop(name) for name in state.shared})
        del members["iterations"], members["hyper_parameters"]
        return collectives.gather_rows(batch, mesh_axis=MEMBER_AXIS), state.replace(members=members, shared=shared)

    def _step_of_member(self, state: State) -> tuple[PyTreeDict, State]:
        hyper_parameters = state.pop("hyper_parameters")
        metrics, state = watched_step(self.member(hyper_parameters), state)
        return metrics, state | {"hyper_parameters": hyper_parameters}

    def _evaluation_of_member(self, state: State) -> PyTreeDict:
        return self.member(state.hyper_parameters).evaluation(state)

    def update(self, state: PopulationState, batch: SampleBatch) -> tuple[PyTreeDict, PopulationState]:
        """Replace worse members by clones of better ones, see ``exploit``, and vary the clones' hyperparameters."""
        key, exploit_key, explore_key = jax.random.split(state.key, 3)
        scores = batch.rewards
        share = self.truncation if self.exploit else None
        inheritance = inheritance_of_clones(exploit_key, scores, share, self.explore == "cso")
        if self.exploit == "multi_frequency":
            inheritance = multi_frequency_inheritance(scores, state.iterations.low, self.frequencies)
        parents = inheritance.states
        history = state.history.record(state.iterations.low, state.hyper_parameters, scores, parents)
        metrics = population_metrics(batch.extras.metrics, scores, batch.extras.healthy, inheritance.replaced)
        best = self.search_space.named(state.hyper_parameters[best_member(scores)])
        metrics |= {f"hyper_parameter/{path}": value for path, value in best.items()}
        timesteps = state.timesteps.add(metrics.get("timesteps", self.timesteps_per_iteration))
        state = state.replace(key=key, history=history, scores=scores[parents], timesteps=timesteps)
        if self.exploit:
            state = self._explore(state, explore_key, inheritance)
            keeps_envs = self.shared_replay or self.env.steps_on_host
            state = state.replace(members=cloned_members(state.members, parents, keeps_envs))
        return metrics, state

    def _explore(self, state: PopulationState, key: Key, inheritance: Inheritance) -> PopulationState:
        """Copy hyperparameters from parents; exploring members vary them, or with ``cso`` move towards the parents."""
        space, before, (move_key, resample_key) = self.search_space, state.hyper_parameters, jax.random.split(key)
        parents, explores = inheritance.hyper_parameters, inheritance.explores[:, None]
        if self.explore == "cso":
            positions = space.to_unit(before)
            moved, velocities = competitive_swarm_step(
                move_key, positions, state.velocities, positions[parents], self.social_factor
            )
            state = state.replace(velocities=jnp.where(explores, velocities, state.velocities))
            explored = space.from_unit(moved)
        else:
            explored = space.perturb(move_key, before[parents], self.perturbation_factor)
        explored = space.resample(resample_key, explored, self.resample_probability)
        return state.replace(hyper_parameters=jnp.where(explores, explored, before[parents]))

    def evaluation(self, state: PopulationState) -> PyTreeDict:
        """Evaluate the member with the best score, on episodes that did not count towards this score."""
        best = best_member(state.scores)
        read = collectives.gather_rows(entries_of(state.members, self._entries), mesh_axis=MEMBER_AXIS)
        member = row_of(read, best)
        member |= {"eval_key": state.eval_key, "iterations": state.iterations.times(self.iterations_per_generation)}
        return self._evaluation_of_member(member | {"hyper_parameters": state.hyper_parameters[best]})

    def charts(self, state: PopulationState) -> Mapping[str, Chart]:
        """Return the chart ``schedule`` of each seed: all members' hyperparameters, and the best member's lineage."""
        size = (int(state.iterations), self.timesteps_per_iteration, self.search_space)
        return for_each_seed("schedule", self.execution.num_seeds, lambda i: state.history[i].chart(*size))

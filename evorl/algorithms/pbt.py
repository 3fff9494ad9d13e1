"""Population-based training (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846).

Members of a population, each any other workflow, train side by side with hyper-parameters of their own. After every
generation the worst go on from the states of the best with hyper-parameters that are varied a little, so that a
schedule of them is found in the time of one training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from evorl.config.nodes import fields_from_config, plain
from evorl.config.search_space import SearchSpace
from evorl.config.values import check_names, positive, require_positive
from evorl.execution.env_faults import watched_step
from evorl.execution.plan import plan_execution
from evorl.execution.programs import side_by_side
from evorl.metrics import WideCounter
from evorl.ops import collectives
from evorl.ops.collectives import MEMBER_AXIS
from evorl.ops.competitive_swarm import competitive_swarm_step
from evorl.ops.selection import best_member, clones, pair_parents, truncation_parents
from evorl.ops.trees import with_leaves
from evorl.runs.recording import Chart, for_each_seed
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict, State, pytree_field
from evorl.workflows.assembly import BUILD_KEYS, RUN_KEYS, config_keys, inner_workflow, refuse_replay
from evorl.workflows.population import (
    SCORE_METRICS,
    healthy_members,
    population_metrics,
    take_faults,
    train_side_by_side,
    training_scores,
    with_shared_replay,
)
from evorl.workflows.population_history import PopulationHistory
from evorl.workflows.workflow import Workflow

_OF_THE_RUN = ("total_timesteps", "log_interval", "eval_interval", "checkpoint_interval")  # the population's
_SHARED = ("env", "eval_episodes", "env_chunk")


class PBTWorkflow(Workflow):
    """A population of workflows that learn at once, and learn from one another.

    Attributes:
        inner: what every member is; its numbers in the search space are the members' own.
        search_space: what members differ in.
        pop_size: size of the population P.
        generation_interval: environment steps of each member between two selections, in whole iterations; where these
            differ, as if all were as long as they can be.
        score: members are compared by the mean return of the episodes that ended in ``training``, or by that of
            ``eval_episodes`` episodes of ``evaluation``.
        exploit: whether there is selection; without it members keep the settings they were given.
        explore: how replaced members vary hyper-parameters: ``perturb``, or ``cso``, competitive swarm optimisation.
        truncation: share of the members that is replaced, by members drawn from as large a share of the best.
        perturbation_factor: see ``SearchSpace.perturb``.
        resample_probability: of drawing a hyper-parameter of a replaced member anew.
        social_factor: see ``competitive_swarm_step``.
        shared_replay: whether off-policy members store into one buffer and learn from what all have stored.
        history_length: generations on record for the chart of the winning schedule.
    """

    inner: Workflow = pytree_field(kw_only=True)
    search_space: SearchSpace = pytree_field(kw_only=True)
    total_timesteps: float = 1.6e6
    pop_size: int = 8
    generation_interval: int = 5000
    score: Literal["evaluation", "training"] = "training"
    exploit: bool = True
    explore: Literal["perturb", "cso"] = "perturb"
    truncation: float = 0.25
    perturbation_factor: float = 1.2
    resample_probability: float = 0.25
    social_factor: float = 0.1
    shared_replay: bool = False
    history_length: int = 1000

    ranges: ClassVar[Mapping[str, str]] = {
        "truncation": "(0, 0.5]",
        "perturbation_factor": "(1, inf)",
        "resample_probability": "[0, 1]",
        "social_factor": "[0, inf)",
    }
    sharded_axes: ClassVar[Mapping[str, int]] = {"members": 0}
    optional_metrics: ClassVar[tuple[str, ...]] = SCORE_METRICS  # there is none before the first episode has ended
    foreign_keys: ClassVar[tuple[str, ...]] = ("agent", "discount", "num_envs", "autoreset_mode")

    def __post_init__(self) -> None:
        require_positive(self, "pop_size", "generation_interval", "history_length")
        if self.pop_size < 2:
            raise ValueError(f"pop_size={self.pop_size} is no population: it takes 2 or more.")

    @classmethod
    def _from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the population and the workflow of its members, which ``inner`` describes with a ``workflow`` key.

        Raises:
            ValueError: a key is unknown, with the nearest valid name; or a value cannot work, in words.
        """
        config = {key: value for key, value in plain(config).items() if key not in RUN_KEYS}
        refuse_replay(cls, config)
        check_names(config, config_keys(cls) | RUN_KEYS, "config key")
        names = config_keys(cls) - {*BUILD_KEYS, *_SHARED, "inner", "search_space"}
        settings = fields_from_config(cls, {name: config[name] for name in names if name in config}, "")
        members = inner_workflow(config, "inner", (*_SHARED, "evaluation"), ("devices", "num_seeds"))
        pop_size = settings.get("pop_size", cls.pop_size)
        num_seeds, devices = positive(config.get("num_seeds", 1), "num_seeds"), config.get("devices", 1)
        execution, _ = plan_execution(members.env, devices, num_seeds, members.env_chunk, num_members=pop_size)
        if settings.get("shared_replay"):
            members = with_shared_replay(members, pop_size)
        of_members = {name: getattr(members, name) for name in ("agent", "eval_env", "keeping", *_SHARED)}
        space = SearchSpace.from_config(config.get("search_space"), members, _OF_THE_RUN)
        return cls(inner=members, search_space=space, execution=execution, **of_members, **settings)

    @property
    def iterations_per_generation(self) -> int:
        """Iterations of the members between two selections."""
        return max(1, round(self.generation_interval / self.inner.most_timesteps_per_iteration))

    @property
    def timesteps_per_iteration(self) -> int:
        """Environment steps of a generation, over all members; 0 where they differ."""
        return self.pop_size * self.iterations_per_generation * self.inner.timesteps_per_iteration

    @property
    def most_timesteps_per_iteration(self) -> int:
        """All of them at their longest."""
        return self.pop_size * self.iterations_per_generation * self.inner.most_timesteps_per_iteration

    @property
    def evaluation_entries(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the members' evaluation reads (so no variable of the class), and what is the population's."""
        of_members = (f"members.{name}" for name in self.inner.evaluation_entries if name != "iterations")
        return (*of_members, "hyper_parameters", "scores", "eval_key", "iterations")

    def member(self, hyper_parameters: jax.Array) -> Workflow:
        """The inner workflow of a member with these hyper-parameters ``[D]``."""
        share = {"total_timesteps": self.total_timesteps / self.pop_size}
        return with_leaves(self.inner, self.search_space.named(hyper_parameters) | share)

    def setup(self, key: Key) -> State:
        """Members with keys and hyper-parameters of their own."""
        key, eval_key, space_key, members_key = jax.random.split(key, 4)
        hyper_parameters = self.search_space.sample(space_key, self.pop_size)
        rows = collectives.local_indices(self.pop_size, MEMBER_AXIS)
        member_keys = jax.random.split(members_key, self.pop_size)[rows]
        members = jax.vmap(lambda values, key: self.member(values).setup(key))(hyper_parameters[rows], member_keys)
        shared = {"replay_state": members.pop("replay_state")} if self.shared_replay else {}
        shared, counter = jax.tree.map(lambda x: x[0], (State(shared), members.pop("iterations")))
        return State(
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

    def collect(self, state: State) -> tuple[SampleBatch, State]:
        """Train every member for a generation and score it.

        Returns:
            ``rewards`` are the scores ``[P]``; ``extras`` the members' metrics ``[P]``, and whether they are
            ``healthy``: a member with a metric that is not finite has the score of minus infinity. NaN is the score
            of a member that has ended no episode yet.
        """
        rows = collectives.local_indices(self.pop_size, MEMBER_AXIS)
        members = state.members | state.shared | {"hyper_parameters": state.hyper_parameters[rows]}
        members.iterations = state.iterations.times(count := self.iterations_per_generation)
        metrics, members = train_side_by_side(self._step_of_member, members, state.shared, count)
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

    def update(self, state: State, batch: SampleBatch) -> tuple[PyTreeDict, State]:
        """Replace the worst by clones of the best, and let these explore."""
        key, exploit_key, explore_key = jax.random.split(state.key, 3)
        scores = batch.rewards
        parents = themselves = jnp.arange(self.pop_size)
        if self.exploit and self.explore == "cso":
            parents = pair_parents(exploit_key, scores)
        elif self.exploit:
            parents = truncation_parents(exploit_key, scores, self.truncation)
        history = state.history.record(state.iterations.low, state.hyper_parameters, scores, parents)
        metrics = population_metrics(batch.extras.metrics, scores, batch.extras.healthy, parents != themselves)
        of_best = self.search_space.named(state.hyper_parameters[best_member(scores)])
        metrics |= {f"hyper_parameter/{path}": value for path, value in of_best.items()}
        timesteps = state.timesteps.add(metrics.get("timesteps", self.timesteps_per_iteration))
        state = state.replace(key=key, history=history, scores=scores[parents], timesteps=timesteps)
        if self.exploit:
            state = self._explore(state, explore_key, parents)
            # Rows of a shared buffer follow one another in time: clones go on in the environments that they have.
            stay = {"env_state": state.members.env_state} if self.shared_replay else {}
            state = state.replace(members=clones(state.members, parents) | stay)
        return metrics, state

    def _explore(self, state: State, key: Key, parents: jax.Array) -> State:
        """Other hyper-parameters for the members that were replaced."""
        space, before, (move_key, resample_key) = self.search_space, state.hyper_parameters, jax.random.split(key)
        replaced = (parents != jnp.arange(self.pop_size))[:, None]
        if self.explore == "cso":
            positions = space.to_unit(before)
            moved, velocities = competitive_swarm_step(
                move_key, positions, state.velocities, positions[parents], self.social_factor
            )
            state = state.replace(velocities=jnp.where(replaced, velocities, state.velocities))
            explored = space.from_unit(moved)
        else:
            explored = space.perturb(move_key, before[parents], self.perturbation_factor)
        explored = space.resample(resample_key, explored, self.resample_probability)
        return state.replace(hyper_parameters=jnp.where(replaced, explored, before))

    def evaluation(self, state: State) -> PyTreeDict:
        """The evaluation of the member with the best score, by other episodes than those it was chosen by."""
        best = best_member(state.scores)
        read = State({name: x for name, x in state.members.items() if name in self.inner.evaluation_entries})
        member = jax.tree.map(lambda x: x[best], collectives.gather_rows(read, mesh_axis=MEMBER_AXIS))
        member |= {"eval_key": state.eval_key, "iterations": state.iterations.times(self.iterations_per_generation)}
        return self._evaluation_of_member(member | {"hyper_parameters": state.hyper_parameters[best]})

    def charts(self, state: State) -> Mapping[str, Chart]:
        """``schedule``: the hyper-parameters of all members, and the line that led to the best; for each seed."""
        size = (int(state.iterations), self.timesteps_per_iteration, self.search_space)
        return for_each_seed("schedule", self.execution.num_seeds, lambda i: state.history[i].chart(*size))

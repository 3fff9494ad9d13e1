"""Evolution-guided reinforcement learning: a population and a learner that share episodes and one replay buffer."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from evorl.agent import Agent, RandomAgent
from evorl.ec import EvoOptimizer
from evorl.envs import AutoresetMode
from evorl.envs.vector import VectorEnv
from evorl.evaluators.episodes import EpisodeOutcomes, episode_keys, longest_episode, play_episodes, transition_rows
from evorl.evaluators.population_evaluator import join_action_fns, population_action_fn, with_policy
from evorl.execution.plan import MIN_BYTES_PER_DEVICE
from evorl.metrics import WideCounter
from evorl.ops import collectives
from evorl.rollout import ActionFn
from evorl.types import Key, PyTreeDict, State, pytree_field
from evorl.workflows.evolution import initial_best, update_best
from evorl.workflows.generational import GenerationalWorkflow, generation_metrics
from evorl.workflows.nested_learner import (
    read_config_with_learner,
    require_room_for,
    row_of,
    updates_for_steps,
    with_statistics_of,
)
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.workflow import split_setup_keys


class EvolutionGuidedWorkflow(GenerationalWorkflow):
    """A generation in each iteration: episodes, updates of the learner, the optimizer's next generation.

    The learner's agent acts, its policy is what is evolved, and its replay buffer holds every step of every episode.
    Its ``updates_per_iteration`` count for each ``rollout_length`` sampled steps, ``learning_starts`` is the warm-up.
    ``learners`` in the state have a leading axis K; ``agent_state`` acts by what the optimizer has found.

    Attributes:
        learner: the off-policy algorithm.
        optimizer: the evolutionary optimizer; its fitness is the mean return of an individual's episodes.
        updates_per_generation: updates of each learner in a generation; ``None`` counts them by sampled steps.
    """

    learner: OffPolicyWorkflow = pytree_field(kw_only=True)
    optimizer: EvoOptimizer = pytree_field(kw_only=True)
    updates_per_generation: int | None = None
    total_timesteps: float = 1e6
    eval_interval: float = 5e4
    checkpoint_interval: float = 2.5e5

    foreign_keys: ClassVar[tuple[str, ...]] = (*GenerationalWorkflow.foreign_keys, "agent", "eval_chunk")
    min_bytes_per_device: ClassVar[int] = MIN_BYTES_PER_DEVICE  # the learner's updates exchange gradients
    evaluation_entries: ClassVar[tuple[str, ...]] = ("agent_state", "learners", "eval_key", "iterations")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_chunk is not None:
            raise ValueError(f"eval_chunk={self.eval_chunk}: all episodes are played at once here, leave it out.")
        if self.num_injected > self.optimizer.num_replaceable:
            raise ValueError(
                f"{self.num_injected} individuals of each generation are to make room for the learner's, and "
                f"optimizer={type(self.optimizer).__name__} lets {self.optimizer.num_replaceable} of {self.pop_size} "
                "be replaced: choose fewer, a larger population, or ga, openes, vanilla_es or sepcem."
            )
        require_room_for(self.most_timesteps_per_iteration, self.learner)

    @classmethod
    def _from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the workflow and its learner, which ``learner`` describes with a ``workflow`` key.

        Raises:
            ValueError: a key is unknown, with the nearest valid name; or a value cannot work, in words.
        """
        return cls(**read_config_with_learner(cls, config))

    @classmethod
    def make_agent(cls, config: Mapping[str, Any], env: VectorEnv) -> Agent:
        """None of its own: the learner's takes its place."""
        return RandomAgent()

    @classmethod
    def training_rows(cls, config: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[int, AutoresetMode]:
        """A row for every episode of the population, which devices share out; what has ended stands still."""
        if "optimizer" not in fields:
            raise ValueError("optimizer is missing: name the evolutionary part, for example {name: ga}.")
        return super().training_rows(config, fields)

    @classmethod
    def individuals(cls, fields: Mapping[str, Any]) -> int:
        """The optimizer's population."""
        return fields["optimizer"].pop_size

    @property
    def pop_size(self) -> int:
        """Individuals P of a generation."""
        return self.optimizer.pop_size

    @property
    def num_learners(self) -> int:
        """Learners K, each with parameters and optimizers of its own."""
        return 1

    @property
    def num_explorations(self) -> int:
        """Episodes that the learners explore in, over all of them; the k-th part of these is that of learner k."""
        return 0

    @property
    @abstractmethod
    def num_injected(self) -> int:
        """How many individuals of a generation ``guide`` may replace."""

    @property
    def num_rows(self) -> int:
        """Episodes of a generation."""
        return self.pop_size * self.episodes_per_individual + self.num_explorations

    @abstractmethod
    def guide(self, state: State, key: Key, num_updates: jax.Array) -> tuple[PyTreeDict, State]:
        """The learner's updates, and what they do for the generation to come.

        Args:
            state: the optimizer's is that of the coming generation.
            key: of all draws.
            num_updates: of each learner, int32; 0 while it warms up.

        Returns:
            Losses, which are 0 without updates, and the state.
        """

    def setup(self, key: Key) -> State:
        """Fresh learners, and the optimizer's first state around the policy of the first."""
        agent_key, optimizer_key, state = split_setup_keys(key)
        learned = jax.vmap(self.learner.init_learning)(jax.random.split(agent_key, self.num_learners))
        state.replay_state = row_of(learned.pop("replay_state"))  # one for all learners
        state.learners = PyTreeDict(learned)
        state.agent_state = row_of(state.learners.agent_state)
        policy = state.agent_state.params.policy
        room = jax.tree.map(lambda x: jnp.zeros((self.num_injected, *x.shape), x.dtype), policy)
        nowhere = jnp.full(self.num_injected, self.pop_size, jnp.int32)
        state.ec_state = self.optimizer.inject(self.optimizer.init(policy, optimizer_key), room, nowhere)
        state.best = initial_best(state.agent_state)
        state.timesteps = WideCounter.create()
        return state

    def collect(self, state: State) -> tuple[EpisodeOutcomes, State]:
        """Episodes ``[N]`` of the generation and then of the learners, with their transitions, on every device.

        All are played at once; the devices of a mesh share out the population's and the learners' each for themselves.
        """
        key, play_key = jax.random.split(state.key)
        per_individual, population = self.episodes_per_individual, self.pop_size * self.episodes_per_individual
        first, count = collectives.share_of(self.pop_size, self.optimizer.group_size)
        individual = jnp.repeat(first + jnp.arange(count), per_individual)
        episode = jnp.tile(jnp.arange(per_individual), count)
        numbers = episode if self.common_random_numbers else individual * per_individual + episode
        is_played, num_own = individual < self.pop_size, individual.shape[0]
        act = population_action_fn(
            self.agent.evaluate_actions, self.optimizer.ask(state.ec_state, first, count), per_individual
        )
        if self.num_explorations:
            first, count = collectives.share_of(self.num_explorations)
            rows = first + jnp.arange(count)
            numbers = jnp.concatenate([numbers, population + rows])
            act = join_action_fns(act, self._explorers_act(state, rows), num_own)
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
        parts = [(slice(num_own), population), (slice(num_own, None), self.num_explorations)]
        whole = [_on_every_device(row_of(outcomes, rows), size) for rows, size in parts if size]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *whole), state.replace(key=key)

    def _explorers_act(self, state: State, rows: jax.Array) -> ActionFn:
        """Each of the learners' episodes has a row; while they warm up they act at random."""
        of_learner = jnp.minimum(rows // (self.num_explorations // self.num_learners), self.num_learners - 1)
        policies = jax.tree.map(lambda x: x[of_learner], state.learners.agent_state.params.policy)
        warming_up = state.timesteps.as_float() < self.learner.learning_starts
        return population_action_fn(self.learner.exploring(warming_up), policies, 1)

    def update(self, state: State, batch: EpisodeOutcomes) -> tuple[PyTreeDict, State]:
        """Store the steps, tell the optimizer the fitness ``[P]``, and let the learner guide it."""
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
            metrics.exploration_return = batch.returns[population:].mean()
        return metrics, state.replace(agent_state=with_policy(row_of(state.learners.agent_state), solution))

    def _stored(self, state: State, batch: EpisodeOutcomes) -> State:
        """With the steps of all episodes in the buffer, one after another, and in the learners' statistics."""
        rows, is_step = transition_rows(batch)
        agent_states = with_statistics_of(state.learners.agent_state, rows.obs, is_step[:, None])
        state = state.replace(learners=state.learners.replace(agent_state=agent_states))
        return self.learner.store(state, rows, is_step)

    def _num_updates(self, before: WideCounter, timesteps: jax.Array) -> jax.Array:
        """Updates of each learner after ``timesteps`` more steps, int32."""
        updates = self.updates_per_generation or updates_for_steps(self.learner, before, timesteps)
        return jnp.where(before.as_float() + timesteps >= self.learner.learning_starts, updates, 0)


def _on_every_device(outcomes: EpisodeOutcomes, num_rows: int) -> EpisodeOutcomes:
    return jax.tree.map(lambda x: x[:num_rows], collectives.gather_rows(outcomes))

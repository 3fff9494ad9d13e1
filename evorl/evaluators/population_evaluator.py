"""Evaluation of populations: individuals x episodes as one axis around ``env.step``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.agent import Agent, AgentState
from evorl.envs.vector import VectorEnv
from evorl.evaluators.episodes import DEFAULT_MAX_EPISODE_STEPS, EpisodeOutcomes, episode_keys, play_episodes
from evorl.ops import collectives
from evorl.ops.random import as_typed_key
from evorl.ops.trees import flatten_leading_axes, split_leading_axis
from evorl.rollout import ActionFn
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class PopulationEvaluator(PyTreeNode):
    """Plays complete episodes with every individual of a population of policies.

    Individuals are asked for in parts, so that a population need not be in memory at once; the devices of a mesh share
    them out. Neither parts nor devices show in the results.

    Attributes:
        env: a vector environment; how many rows it says it has does not matter.
        num_episodes: episodes E of each individual.
        max_episode_steps: an episode still running then is counted as it stands.
        discount: the weight of the reward at step t is ``discount ** t``.
        chunk: so many individuals at a time; ``None`` for all.
        common_random_numbers: episode e starts and goes on with the same random numbers for every individual, so that
            differences are those of the individuals.
        env_fields: entries of ``info`` to add up, see ``play_episodes``.
        observe: whether to add up the observations.
        record: whether to record transitions, and with which entries of ``info``, see ``play_episodes``.
        watch: whether to look for faults of environments, see ``play_episodes``.
    """

    env: VectorEnv = pytree_field(static=True)
    num_episodes: int = 1
    max_episode_steps: int = DEFAULT_MAX_EPISODE_STEPS
    discount: float = 1.0
    chunk: int | None = None
    common_random_numbers: bool = False
    env_fields: tuple[str, ...] = ()
    observe: bool = False
    record: tuple[str, ...] | None = None
    watch: bool = False

    def __post_init__(self) -> None:
        for name in ("num_episodes", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")

    def evaluate(
        self,
        agent: Agent,
        agent_state: AgentState,
        ask: Callable[[jax.Array | int, int], Params],
        pop_size: int,
        key: Key,
        group_size: int = 1,
    ) -> EpisodeOutcomes:
        """Outcomes with leading axes ``[P, E]``, on every device; ``observed`` stays each device's own, ``[rows]``.

        Args:
            agent: how policies act.
            agent_state: all but the policies: it is the same for every individual.
            ask: ``ask(first, count)`` gives policies ``[count, ...]``, as ``EvoOptimizer.ask`` does.
            pop_size: number of individuals P.
            key: of all episodes.
            group_size: how many individuals are best asked for together.
        """
        first, count = collectives.share_of(pop_size, group_size)
        chunk = min(count, -(-(self.chunk or count) // group_size) * group_size)
        num_chunks = -(-count // chunk)
        key = as_typed_key(key)

        def play_chunk(number: jax.Array | int) -> EpisodeOutcomes:
            start = first + number * chunk
            individual = jnp.repeat(start + jnp.arange(chunk), self.num_episodes)  # [chunk * E]
            episode = jnp.tile(jnp.arange(self.num_episodes), chunk)
            inside = (individual < pop_size) & (individual < first + count)
            number_of_draws = episode if self.common_random_numbers else individual * self.num_episodes + episode
            return play_episodes(
                self.env,
                population_action_fn(agent.evaluate_actions, ask(start, chunk), self.num_episodes),
                agent_state,
                episode_keys(key, number_of_draws),
                inside,
                self.max_episode_steps,
                self.discount,
                self.env_fields,
                self.observe,
                self.record,
                watch=self.watch,
            )

        if num_chunks == 1:
            outcomes = play_chunk(0)
        else:
            outcomes = flatten_leading_axes(jax.lax.map(play_chunk, jnp.arange(num_chunks)))
        rows = outcomes.replace(observed=None)
        rows = jax.tree.map(lambda x: x[: count * self.num_episodes], rows)
        rows = jax.tree.map(lambda x: x[: pop_size * self.num_episodes], collectives.gather_rows(rows))
        return split_leading_axis(rows, pop_size, self.num_episodes).replace(observed=outcomes.observed)


def population_action_fn(action_fn: ActionFn, policies: Params, num_rows: int) -> ActionFn:
    """An action function in which policy p of ``policies`` ``[P, ...]`` acts for the p-th ``num_rows`` rows of a batch.

    ``action_fn`` is that of an agent whose policy is ``agent_state.params.policy``.
    """

    def act(agent_state: AgentState, sample_batch: SampleBatch, keys: Key) -> tuple[Action, PolicyExtras]:
        def one_policy(policy: Params, rows: SampleBatch, row_keys: Key) -> tuple[Action, PolicyExtras]:
            return action_fn(with_policy(agent_state, policy), rows, row_keys)

        rows = split_leading_axis((sample_batch, keys), -1, num_rows)
        return flatten_leading_axes(jax.vmap(one_policy)(policies, *rows))

    return act


def join_action_fns(first_fn: ActionFn, second_fn: ActionFn, num_first: int) -> ActionFn:
    """An action function in which the first ``num_first`` rows of a batch act by one, the others by another one.

    Of the policies' extras only their recurrent state is kept.
    """

    def act(agent_state: AgentState, sample_batch: SampleBatch, keys: Key) -> tuple[Action, PolicyExtras]:
        first = jax.tree.map(lambda x: x[:num_first], (sample_batch, keys))
        second = jax.tree.map(lambda x: x[num_first:], (sample_batch, keys))
        (actions, extras), (other_actions, other_extras) = (
            first_fn(agent_state, *first),
            second_fn(agent_state, *second),
        )
        both = (actions, extras.get("recurrent_state")), (other_actions, other_extras.get("recurrent_state"))
        actions, recurrent_state = jax.tree.map(lambda *x: jnp.concatenate(x), *both)
        return actions, PyTreeDict() if recurrent_state is None else PyTreeDict(recurrent_state=recurrent_state)

    return act


def with_policy(agent_state: AgentState, policy: Params) -> AgentState:
    """The state of an agent that acts by another policy."""
    return agent_state.replace(params=agent_state.params.replace(policy=policy))

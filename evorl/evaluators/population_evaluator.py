"""Evaluation of populations: the episodes of all individuals form one batch axis of ``env.step``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.agent import Agent, AgentState
from evorl.envs.vector import VectorEnv
from evorl.evaluators.episodes import DEFAULT_MAX_EPISODE_STEPS, EpisodeOutcomes, episode_keys, play_episodes
from evorl.ops import collectives
from evorl.ops.low_rank import population_axes
from evorl.ops.random import as_typed_key
from evorl.ops.trees import flatten_leading_axes, split_leading_axis
from evorl.rollout import ActionFn
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class PopulationEvaluator(PyTreeNode):
    """Plays complete episodes with every individual of a population of policies.

    Individuals are generated in chunks, so that only a chunk must fit in memory. The devices of a mesh each evaluate a
    part of the individuals. Results depend neither on chunks nor on devices.

    Attributes:
        env: vectorized environment; its ``num_envs`` is ignored.
        num_episodes: number of episodes E per individual, at least 1.
        max_episode_steps: episodes are truncated after this many steps.
        discount: the reward at step t is weighted by ``discount ** t``.
        chunk: number of individuals evaluated at a time, at least 1; ``None`` evaluates all together.
        common_random_numbers: episode e uses the same random numbers for every individual, so that differences are
            due to the individuals.
        env_fields: names of entries of ``info`` to report, see ``play_episodes``.
        observe: also compute statistics of the observations.
        record: also record transitions, with these entries of ``info``, see ``play_episodes``; ``None`` disables it.
        watch: also detect non-finite rewards and observations of environments, see ``play_episodes``.
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
        """Return outcomes ``[P, E]``, equal on all devices, except ``observed``: a row per episode of this device.

        Args:
            agent: agent whose ``evaluate_actions`` selects the actions.
            agent_state: state that all individuals share; each policy replaces ``params.policy``.
            ask: ``ask(first, count)`` returns policies ``[count, ...]``, like ``EvoOptimizer.ask``.
            pop_size: number of individuals P.
            key: key of all episodes.
            group_size: chunks and each device's share are multiples of this number of individuals, such as 2 for pairs.
        """
        first, count = collectives.share_of(pop_size, group_size)
        chunk = min(count, -(-(self.chunk or count) // group_size) * group_size)
        num_chunks = -(-count // chunk)
        key = as_typed_key(key)

        def play_chunk(number: jax.Array | int) -> EpisodeOutcomes:
            start = first + number * chunk
            individual = jnp.repeat(start + jnp.arange(chunk), self.num_episodes)  # [chunk * E]
            episode = jnp.tile(jnp.arange(self.num_episodes), chunk)
            is_valid = (individual < pop_size) & (individual < first + count)
            episode_ids = episode if self.common_random_numbers else individual * self.num_episodes + episode
            return play_episodes(
                self.env,
                population_action_fn(agent.evaluate_actions, ask(start, chunk), self.num_episodes),
                agent_state,
                episode_keys(key, episode_ids),
                is_valid,
                self.max_episode_steps,
                discount=self.discount,
                env_fields=self.env_fields,
                observe=self.observe,
                record=self.record,
                watch=self.watch,
            )

        chunks = jnp.arange(num_chunks)
        outcomes = play_chunk(0) if num_chunks == 1 else flatten_leading_axes(jax.lax.map(play_chunk, chunks))
        rows = jax.tree.map(lambda x: x[: count * self.num_episodes], outcomes.replace(observed=None))
        rows = jax.tree.map(lambda x: x[: pop_size * self.num_episodes], collectives.gather_rows(rows))
        return split_leading_axis(rows, pop_size, self.num_episodes).replace(observed=outcomes.observed)


def population_action_fn(action_fn: ActionFn, policies: Params, num_rows: int) -> ActionFn:
    """Return an action function for P blocks of ``num_rows`` rows, in which policy p of ``policies`` acts in block p.

    ``action_fn`` belongs to an agent with the policy ``agent_state.params.policy``. The leaves of ``policies`` are
    ``[P, ...]``, except the means of perturbed matrices (``ops.low_rank``), which all policies share.
    """

    def act(agent_state: AgentState, sample_batch: SampleBatch, keys: Key) -> tuple[Action, PolicyExtras]:
        def one_policy(policy: Params, rows: SampleBatch, row_keys: Key) -> tuple[Action, PolicyExtras]:
            return action_fn(with_policy(agent_state, policy), rows, row_keys)

        rows = split_leading_axis((sample_batch, keys), -1, num_rows)
        return flatten_leading_axes(jax.vmap(one_policy, (population_axes(policies), 0, 0))(policies, *rows))

    return act


def join_action_fns(first_fn: ActionFn, second_fn: ActionFn, num_first: int) -> ActionFn:
    """Return an action function that uses ``first_fn`` in the first ``num_first`` rows, ``second_fn`` in the others.

    The returned function needs a key per row. It returns only the recurrent state from the policies' extras.
    """

    def act(agent_state: AgentState, sample_batch: SampleBatch, keys: Key) -> tuple[Action, PolicyExtras]:
        first = jax.tree.map(lambda x: x[:num_first], (sample_batch, keys))
        second = jax.tree.map(lambda x: x[num_first:], (sample_batch, keys))
        actions, extras = first_fn(agent_state, *first)
        other_actions, other_extras = second_fn(agent_state, *second)
        both = (actions, extras.get("recurrent_state")), (other_actions, other_extras.get("recurrent_state"))
        actions, recurrent_state = jax.tree.map(lambda *x: jnp.concatenate(x), *both)
        return actions, PyTreeDict() if recurrent_state is None else PyTreeDict(recurrent_state=recurrent_state)

    return act


def with_policy(agent_state: AgentState, policy: Params) -> AgentState:
    """Return the agent state with ``policy`` as the parameters of its policy."""
    return agent_state.replace(params=agent_state.params.replace(policy=policy))

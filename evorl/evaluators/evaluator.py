"""Evaluator: plays an exact number of complete episodes with a policy, and reports their returns."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.envs.vector import VectorEnv
from evorl.evaluators.episodes import DEFAULT_MAX_EPISODE_STEPS, EpisodeOutcomes, episode_keys, play_episodes
from evorl.metrics import EvaluationMetrics
from evorl.ops import collectives
from evorl.ops.random import as_typed_key
from evorl.ops.trees import flatten_leading_axes
from evorl.rollout import ActionFn, block_size
from evorl.types import Key, PyTreeDict, PyTreeNode, pytree_field

_ACHIEVED = "next_obs.achieved_goal"
# Recorded goals, and the entries of ``info`` with their values: ``start`` at the reset, the others at the last step.
GOAL_FIELDS = {"start": _ACHIEVED, "achieved": _ACHIEVED, "desired": "next_obs.desired_goal"}


class Evaluator(PyTreeNode):
    """Plays complete episodes and reports their returns.

    Only the first episode of an environment after a reset counts, in any autoreset mode. Stepping stops when all
    requested episodes have ended, or after ``max_episode_steps``.

    Attributes:
        env: vectorized environment; if there are more episodes than environments, they are played in several rounds.
        agent_fn: ``agent.evaluate_actions`` or ``agent.compute_actions``; ``action_fn`` is an alias.
        max_episode_steps: episodes are truncated after this many steps, unless the environment ends them earlier.
        discount: the reward at step t is weighted by ``discount ** t``.
        env_chunk: maximum number of environments stepped together, see ``evorl.rollout.rollout``; ``None`` for all.
        keep_goals: record the goals of episodes, if observations contain them.
        keep_steps: number of episodes, from the first, to record step by step.

    Raises:
        ValueError: not exactly one of ``agent_fn`` and ``action_fn`` is passed, or ``env`` is not vectorized.
    """

    env: VectorEnv = pytree_field(static=True)
    agent_fn: Callable | None = pytree_field(static=True, default=None)
    max_episode_steps: int = DEFAULT_MAX_EPISODE_STEPS
    discount: float = 1.0
    action_fn: Callable | None = pytree_field(static=True, default=None)
    env_chunk: int | None = None
    keep_goals: bool = False
    keep_steps: int = 0

    def __post_init__(self) -> None:
        if (self.agent_fn is None) == (self.action_fn is None):
            raise ValueError("Evaluator needs exactly one of agent_fn and action_fn (aliases of the same argument).")
        if not hasattr(self.env, "num_envs"):
            raise ValueError("Evaluator needs a vectorized environment: wrap yours, as in VmapWrapper(env, num_envs).")

    def evaluate(self, agent_state: AgentState, key: Key, num_episodes: int) -> EvaluationMetrics:
        """Play one or more episodes; return results ``[num_episodes]``, determined by ``agent_state`` and ``key``."""
        if num_episodes < 1:
            raise ValueError(f"num_episodes must be at least 1, got {num_episodes}.")
        return _evaluate(self, agent_state, as_typed_key(key), num_episodes)


@functools.partial(jax.jit, static_argnames="num_episodes")
def _evaluate(evaluator: Evaluator, agent_state: AgentState, key: Key, num_episodes: int) -> EvaluationMetrics:
    num_envs = evaluator.env.num_envs
    num_rounds = -(-num_episodes // num_envs)
    first_episodes = jnp.arange(num_rounds) * num_envs

    def one_round(first_episode: jax.Array) -> EvaluationMetrics:
        episode_ids = first_episode + collectives.local_indices(num_envs)
        play = functools.partial(_play, evaluator, agent_state, key, num_episodes=num_episodes)
        size = block_size(episode_ids.shape[0], evaluator.env_chunk)
        if size == episode_ids.shape[0]:
            return play(episode_ids)
        return flatten_leading_axes(jax.lax.map(play, episode_ids.reshape(-1, size)))

    results = one_round(first_episodes[0]) if num_rounds == 1 else jax.lax.map(one_round, first_episodes)
    results = collectives.gather_rows(results, axis=min(num_rounds, 2) - 1)
    results = results if num_rounds == 1 else flatten_leading_axes(results)
    # Each chunk records its first episodes, so the first episodes overall come first.
    steps = jax.tree.map(lambda x: x[: evaluator.keep_steps], results.steps)
    return jax.tree.map(lambda x: x[:num_episodes], results.replace(steps=None)).replace(steps=steps)


def _play(
    evaluator: Evaluator, agent_state: AgentState, key: Key, episode_ids: jax.Array, num_episodes: int
) -> EvaluationMetrics:
    """Return results ``[B]`` of the episodes with these indices; indices from ``num_episodes`` on are not played.

    The random numbers of an episode depend only on ``key`` and its index, not on rounds, chunks or devices.
    """
    action_fn: ActionFn = evaluator.agent_fn or evaluator.action_fn  # pyright: ignore[reportAssignmentType]
    has_goals = evaluator.env.goal_task is not None
    goal_fields = GOAL_FIELDS.values() if evaluator.keep_goals and evaluator.env.observes_goals else ()
    outcomes = play_episodes(
        evaluator.env,
        action_fn,
        agent_state,
        episode_keys(key, episode_ids),
        episode_ids < num_episodes,
        evaluator.max_episode_steps,
        discount=evaluator.discount,
        env_fields=("is_success", *goal_fields) if has_goals else (),
        num_kept=evaluator.keep_steps,
    )
    return EvaluationMetrics(
        episode_returns=outcomes.returns,
        episode_lengths=outcomes.lengths,
        success_at_end=outcomes.last.is_success > 0 if has_goals else None,
        success_ever=outcomes.totals.is_success > 0 if has_goals else None,
        goals=_goals(outcomes) if goal_fields else None,
        steps=outcomes.steps,
    )


def _goals(outcomes: EpisodeOutcomes) -> PyTreeDict:
    entries = {"start": outcomes.first, "achieved": outcomes.last, "desired": outcomes.last}
    return PyTreeDict({name: (entries[name] or {})[field] for name, field in GOAL_FIELDS.items()})

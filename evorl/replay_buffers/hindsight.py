"""Hindsight experience replay (Andrychowicz et al. 2017): relabels transitions with goals achieved in their episode.

Stored transitions do not change. When steps are sampled, a fraction of them receives goals achieved in their episodes;
rewards and terminations are then recomputed for these goals.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from evorl.envs.goals.task import GoalTask, with_desired_goal
from evorl.ops.random import as_typed_key
from evorl.replay_buffers.episode import EpisodeReplayState, EpisodeSpan
from evorl.replay_buffers.ring import discounted_sum, take, window_from
from evorl.replay_buffers.slots import SlotReplayState
from evorl.sample_batch import SampleBatch
from evorl.types import Key

Strategy: TypeAlias = Literal["future", "final", "episode", "none"]


def take_hindsight(
    state: EpisodeReplayState | SlotReplayState,
    rows: jax.Array,
    envs: jax.Array,
    key: Key,
    *,
    num_envs: int,
    num_steps: int,
    discount: jax.Array | float,
    task: GoalTask,
    strategy: Strategy,
    ratio: jax.Array | float,
) -> SampleBatch:
    """Return n-step transitions from ``(rows, envs)``, on average ``ratio / (1 + ratio)`` of them with other goals.

    Rewards, and terminations by success, are computed for the goal of the returned transition, relabeled or not. A
    transition also ends where its goal is reached, if success ends episodes.

    Args:
        state: ring or slots of ``SampleBatch`` whose observations have goals, with ``dones`` and
            ``extras.termination``.
        rows: filled rows ``[N]`` of episodes whose first step is stored.
        envs: global indices ``[N]`` of environments or slots.
        key: a single key.
        num_envs: number of environments over all devices.
        num_steps: largest number n of rewards in a transition.
        discount: discount per step.
        task: computes rewards and terminations for a goal.
        strategy: step of the same episode whose achieved goal is used: this or a later one (``future``), the last
            (``final``), or any (``episode``). ``none`` keeps the original goals.
        ratio: mean number of relabeled transitions per transition with its original goal.

    Returns:
        As ``take_n_step``, with the goal in ``obs`` and ``next_obs``; ``extras.is_relabeled``, bool, is True for
        relabeled transitions.
    """
    share_key, step_key = jax.random.split(as_typed_key(key))
    span = state.span(rows, envs, num_envs)
    is_relabeled = jnp.zeros(rows.shape, jnp.bool_)
    if strategy != "none":
        is_relabeled = jax.random.uniform(share_key, rows.shape) < ratio / (1.0 + ratio)
    num_rows = state.data.dones.shape[0]
    goal_rows = (span.start + _goal_step(span, strategy, step_key)) % num_rows
    achieved = take(state.data.next_obs.achieved_goal, goal_rows, envs, num_envs)

    data: Any = state.data
    first = take(data.replace(next_obs=None, rewards=None, dones=None), rows, envs, num_envs)
    original = first.obs.desired_goal
    goal = jnp.where(is_relabeled[:, None], achieved.astype(original.dtype), original)  # [N, G]

    window_rows, window_envs, is_stored = window_from(state, rows, envs, num_envs, num_steps)  # [N, n]
    fields = (data.next_obs, data.actions, data.dones, data.extras.termination)
    next_obs, actions, dones, termination = take(fields, window_rows, window_envs, num_envs)
    by_original = _outcome(task, next_obs, next_obs.desired_goal, actions)
    goals = jnp.broadcast_to(goal[:, None], next_obs.desired_goal.shape)
    by_goal = _outcome(task, next_obs, goals, actions)
    termination = (termination.astype(jnp.bool_) & ~by_original.termination) | by_goal.termination

    ends = dones.astype(jnp.bool_) | by_goal.termination
    rewards, num_rewards = discounted_sum(by_goal.reward, ends, is_stored, discount)
    last = num_rewards - 1
    after = jax.tree.map(lambda x: x[jnp.arange(rows.shape[0]), last], (next_obs, termination))
    discounts = discount**num_rewards * (1.0 - after[1].astype(jnp.float32))
    computed = {"num_rewards": num_rewards, "discounts": discounts, "is_relabeled": is_relabeled}
    return first.replace(
        obs=with_desired_goal(first.obs, goal),
        rewards=rewards,
        next_obs=with_desired_goal(after[0], goal),
        extras=first.extras | computed,
    )


def _goal_step(span: EpisodeSpan, strategy: Strategy, key: Key) -> jax.Array:
    """Return the steps whose achieved goals are used, as indices in their episodes, int32 ``[N]``."""
    if strategy == "final":
        return span.length - 1
    first = span.step if strategy == "future" else jnp.zeros_like(span.step)
    later = jax.random.uniform(key, span.step.shape) * (span.length - first)
    return jnp.minimum(first + later.astype(jnp.int32), span.length - 1)  # the product may round up


def _outcome(task: GoalTask, next_obs: Any, goals: jax.Array, actions: Any) -> Any:
    outcome = jax.vmap(jax.vmap(task.outcome))
    return outcome(next_obs.achieved_goal, goals, actions, next_obs.observation)

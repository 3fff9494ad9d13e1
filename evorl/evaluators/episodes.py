"""Complete episodes, played side by side until all have ended: the one loop under every evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.envs.env import EnvState
from evorl.envs.wrappers.vector import VectorEnv
from evorl.ops.normalization import ObservationSums
from evorl.rollout import ActionFn, env_step, with_memory
from evorl.suggestions import did_you_mean
from evorl.types import Key, PyTreeData, PyTreeDict


class EpisodeOutcomes(PyTreeData):
    """What came of B episodes.

    Attributes:
        returns: float32 ``[B]``.
        lengths: in steps, int32 ``[B]``.
        totals: sums over the episode of the named entries of ``info``, ``[B, ...]`` each.
        last: their values at the episode's last step.
        observed: sums of the observations the agent acted on; ``None`` unless wanted.
    """

    returns: jax.Array
    lengths: jax.Array
    totals: PyTreeDict
    last: PyTreeDict
    observed: ObservationSums | None


class _Progress(PyTreeData):
    env_state: EnvState
    outcomes: EpisodeOutcomes
    ended: jax.Array  # [B]
    step: jax.Array


def play_episodes(
    env: VectorEnv,
    action_fn: ActionFn,
    agent_state: AgentState,
    keys: tuple[Key, Key],
    wanted: jax.Array,
    max_episode_steps: int,
    discount: jax.Array | float = 1.0,
    env_fields: Sequence[str] = (),
    observe: bool = False,
) -> EpisodeOutcomes:
    """Play one episode in each row until all wanted ones have ended, or ``max_episode_steps``.

    Args:
        env: a vector environment in any autoreset mode; an episode is the first one after a reset.
        action_fn: ``agent.evaluate_actions`` or ``agent.compute_actions``.
        agent_state: of the agent.
        keys: each episode's key of its reset ``[B]`` and of its actions ``[B]``.
        wanted: bool ``[B]``; the others are not waited for, and their outcomes stay 0.
        max_episode_steps: an episode still running then is counted as it stands.
        discount: the weight of the reward at step t is ``discount ** t``.
        env_fields: entries of ``info`` to add up, with dots between the names of nested ones (``metrics.x_position``).
        observe: whether to add up observations too.

    Raises:
        ValueError: ``info`` has no such entry; in words.
    """
    reset_keys, action_keys = keys
    env_state = with_memory(env.reset(reset_keys), agent_state)

    def running(progress: _Progress) -> jax.Array:
        return ~progress.ended.all() & (progress.step < max_episode_steps)

    def advance(progress: _Progress) -> _Progress:
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(action_keys, progress.step)
        env_state, transition = env_step(env.step, action_fn, progress.env_state, agent_state, step_keys)
        alive, old = ~progress.ended, progress.outcomes
        weight = jnp.asarray(discount, jnp.float32) ** progress.step
        fields = info_entries(env_state.info, env_fields)
        outcomes = EpisodeOutcomes(
            returns=old.returns + jnp.where(alive, weight * transition.rewards, 0.0),
            lengths=old.lengths + alive,
            totals=jax.tree.map(lambda total, x: total + _where(alive, x, 0.0), old.totals, fields),
            last=jax.tree.map(lambda last, x: _where(alive, x, last), old.last, fields),
            observed=old.observed.add(transition.obs, alive) if old.observed is not None else None,
        )
        return _Progress(
            env_state=env_state, outcomes=outcomes, ended=progress.ended | transition.dones, step=progress.step + 1
        )

    num_rows = wanted.shape[0]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), info_entries(env_state.info, env_fields))
    start = EpisodeOutcomes(
        returns=jnp.zeros(num_rows, jnp.float32),
        lengths=jnp.zeros(num_rows, jnp.int32),
        totals=zeros,
        last=zeros,
        observed=ObservationSums.start(agent_state.obs_preprocessor_state, env_state.obs) if observe else None,
    )
    progress = _Progress(env_state=env_state, outcomes=start, ended=~wanted, step=jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(running, advance, progress).outcomes


def episode_keys(key: Key, episode_ids: jax.Array) -> tuple[Key, Key]:
    """The keys of resets ``[B]`` and of actions ``[B]`` of the episodes with these numbers."""
    fold_rows = jax.vmap(jax.random.fold_in, (None, 0))
    reset_key, action_key = jax.random.split(key)
    return fold_rows(reset_key, episode_ids), fold_rows(action_key, episode_ids)


def info_entries(info: PyTreeDict, names: Sequence[str]) -> PyTreeDict:
    """Entries of ``info`` by name; a dot goes one level down.

    Raises:
        ValueError: there is no such entry, with the nearest one that is there.
    """
    there: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(info):
        there[".".join(str(getattr(entry, "key", getattr(entry, "name", entry))) for entry in path)] = leaf
    for name in names:
        if name not in there:
            raise ValueError(
                f"the environment's info has no entry {name!r}.{did_you_mean(name, there)} There are: "
                f"{', '.join(sorted(there))}."
            )
    return PyTreeDict({name: there[name].astype(jnp.float32) for name in names})


def _where(rows: jax.Array, values: jax.Array, others: jax.Array | float) -> jax.Array:
    return jnp.where(rows.reshape(rows.shape + (1,) * (values.ndim - rows.ndim)), values, others)

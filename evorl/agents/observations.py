"""Selects and normalizes observations for networks, and masks the outputs of forbidden actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.names import no_such
from evorl.envs.space import ACTION_MASK, GOAL_KEYS, Space
from evorl.ops.normalization import normalize
from evorl.ops.trees import as_float
from evorl.types import Observation, PyTreeDict

# Settings that name the entry of an observation to read; a run has only some of them.
_KEYS = "agent.policy_obs_key, agent.value_obs_key, agent.obs_key or intrinsic.obs_key"


def select_observation(obs: Observation, key: str | None) -> Observation:
    """Return the entry ``key`` of a dict observation; ``None`` applies ``default_entries``, or returns an array as is.

    Raises:
        ValueError: the entry does not exist, the observation is not a dict, or it cannot be concatenated with its goal.
    """
    if key is None:
        return default_entries(obs) if isinstance(obs, Mapping) else obs
    if not isinstance(obs, Mapping):
        raise ValueError(f"the observation is one array: remove the observation key {key!r} ({_KEYS}).")
    if key not in obs:
        raise ValueError(f"{no_such('observation entry', key, sorted(map(str, obs)))} Change {_KEYS}.")
    entries: Mapping[Any, Observation] = obs
    return entries[key]


def default_entries(obs: Mapping[str, Any]) -> Observation:
    """Return the part of a dict observation that networks read by default: all entries except the action mask.

    Observations with goals are concatenated with the desired goal, see ``joined_with_goal``. If removing the mask
    leaves a single entry, that entry is returned instead of a dict.
    """
    entries = obs
    if ACTION_MASK in obs:
        entries = PyTreeDict({name: entry for name, entry in obs.items() if name != ACTION_MASK})
    if set(entries) == GOAL_KEYS:
        return joined_with_goal(entries)
    return next(iter(entries.values())) if len(entries) == 1 < len(obs) else entries


def allowed_only(outputs: jax.Array, obs: Observation) -> jax.Array:
    """Set ``outputs`` of discrete actions to ``-inf`` where the ``action_mask`` of an observation forbids an action.

    All masks are applied here: to policy logits, and to action values before an action is selected. A mask that forbids
    every action, as can happen after the end of an episode, is ignored.

    Args:
        outputs: one value per action, ``[..., A]``.
        obs: observations ``[..., *observation]``; the entry ``action_mask`` ``[..., A]`` is nonzero where an action is
            allowed. Without that entry, the outputs are returned unchanged.

    Raises:
        ValueError: the mask and the outputs differ in the number of actions.
    """
    mask = obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
    if mask is None:
        return outputs
    if mask.shape[-1:] != outputs.shape[-1:]:
        raise ValueError(
            f"the observation's action_mask has shape {mask.shape}, but the network's outputs have {outputs.shape}: a "
            "mask has one entry for each discrete action."
        )
    mask = mask.astype(jnp.bool_)
    return jnp.where(mask | ~mask.any(axis=-1, keepdims=True), outputs, -jnp.inf)


def joined_with_goal(obs: Mapping[str, Any]) -> jax.Array:
    """Concatenate an observation and its desired goal, ``[..., O + G]``.

    Raises:
        ValueError: the observation is not an array, or differs from the goal in its number of axes.
    """
    observation, goal = obs["observation"], obs["desired_goal"]
    if not hasattr(observation, "ndim") or observation.ndim != goal.ndim:
        raise ValueError(
            "the observation and the desired goal are concatenated and must both be vectors, but they "
            f"are {jax.tree.map(jnp.shape, observation)} and {goal.shape}: name the entry to read with "
            f"{_KEYS}, or set env.flatten_obs=true."
        )
    return jnp.concatenate([as_float(observation), as_float(goal)], axis=-1)


def preprocess(agent_state: AgentState, obs: Observation, obs_key: str | None = None) -> jax.Array:
    """Return the input of a network: the entry ``obs_key`` of the observations, normalized if ``normalize_obs``.

    All observations are normalized here: for acting, losses and evaluation.

    Raises:
        ValueError: ``select_observation`` rejects the observation or the entry.
    """
    if agent_state.obs_preprocessor_state is not None:
        obs = normalize(agent_state.obs_preprocessor_state, obs)
    return select_observation(obs, obs_key)


def one_observation(obs_space: Space, obs_key: str | None = None) -> jax.Array:
    """Return zeros shaped like one observation or its entry ``obs_key``, with a batch axis, to initialize networks."""
    return jax.tree.map(lambda x: x[None], select_observation(obs_space.zeros(), obs_key))


def observation_ndim(obs_space: Space, obs_key: str | None) -> int:
    """Return the number of axes of one observation or of its entry ``obs_key``.

    Raises:
        ValueError: ``select_observation`` rejects the entry, or there are several entries and no ``obs_key``.
    """
    obs = select_observation(obs_space.zeros(), obs_key)
    if not isinstance(obs, jax.Array):
        raise ValueError(
            f"observations have several entries, {obs_space!r}, and a network reads one: name it with "
            f"{_KEYS}, or set env.flatten_obs=true."
        )
    return obs.ndim

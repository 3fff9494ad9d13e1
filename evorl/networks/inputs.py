"""Observations as the float32 arrays that networks read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from evorl.types import Observation


def as_float(x: jax.typing.ArrayLike) -> jax.Array:
    """Convert to float32: pixels (uint8) are scaled to [0, 1], other integers and bools are cast."""
    x = jnp.asarray(x)
    return x.astype(jnp.float32) / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def network_input(obs: Observation, observation_ndim: int, input_ndim: int) -> jax.Array:
    """Return observations ``[..., *observation]`` as float32 with the rank that a torso expects, ``[..., *input]``.

    Args:
        obs: an array with any leading axes.
        observation_ndim: number of axes of one observation.
        input_ndim: number of axes of one input of the torso: 1 flattens each observation.

    Raises:
        ValueError: the observation is a dict, or does not have the rank that the torso expects.
    """
    if isinstance(obs, Mapping):
        raise ValueError(
            f"a network expects one array, got a dict with {', '.join(sorted(map(str, obs)))}: select an entry with "
            "policy_obs_key or value_obs_key."
        )
    x = as_float(jnp.asarray(obs))
    if x.ndim < observation_ndim:
        raise ValueError(f"expected an observation with {observation_ndim} axes, got an array of shape {x.shape}.")
    if observation_ndim == input_ndim:
        return x
    if input_ndim != 1:
        raise ValueError(
            f"this torso expects observations with {input_ndim} axes, got {observation_ndim}: choose another torso."
        )
    leading = x.shape[: x.ndim - observation_ndim]
    return x.reshape(leading + (math.prod(x.shape[len(leading) :]),))

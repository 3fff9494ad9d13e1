"""Exploration noise. Keys are scalar or one per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from evorl.ops.random import draw, split_rows
from evorl.ops.schedules import Schedule, value_at
from evorl.types import Key, PyTreeDict, PyTreeNode


def epsilon_greedy_probabilities(q_values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Probabilities of the epsilon-greedy policy; the greedy part is shared by all maximal actions.

    Args:
        q_values: ``[..., A]``; an action of value ``-inf`` is forbidden, unless all are.
        epsilon: probability of acting uniformly at random, a number or ``[...]``.

    Returns:
        ``[..., A]``, summing to 1 over the last axis.
    """
    is_best = (q_values == q_values.max(axis=-1, keepdims=True)).astype(q_values.dtype)
    greedy = is_best / is_best.sum(axis=-1, keepdims=True)
    epsilon = jnp.asarray(epsilon, q_values.dtype)[..., None]
    is_allowed = jnp.maximum(is_best, q_values != -jnp.inf)
    return (1.0 - epsilon) * greedy + epsilon * is_allowed / is_allowed.sum(axis=-1, keepdims=True)


def epsilon_greedy(key: Key, q_values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Actions drawn by ``epsilon_greedy_probabilities``, int32 ``[...]`` for values ``[..., A]``."""
    probabilities = epsilon_greedy_probabilities(q_values, epsilon)
    noise = draw(jax.random.gumbel, key, q_values.shape)
    return jnp.argmax(jnp.log(probabilities) + noise, axis=-1).astype(jnp.int32)


def add_gaussian_noise(
    key: Key,
    actions: jax.Array,
    scale: jax.Array | float,
    noise_bound: jax.Array | float = jnp.inf,
    low: jax.Array | float = -1.0,
    high: jax.Array | float = 1.0,
) -> jax.Array:
    """``clip(actions + clip(scale * N(0, 1), -noise_bound, noise_bound), low, high)``, the shape of ``actions``.

    With a finite ``noise_bound`` it is target policy smoothing (Fujimoto et al. 2018, eq. 14).
    """
    noise = jnp.clip(scale * draw(jax.random.normal, key, actions.shape), -noise_bound, noise_bound)
    return jnp.clip(actions + noise, low, high)


def ou_noise_step(
    key: Key,
    noise: jax.Array,
    theta: jax.Array | float = 0.15,
    sigma: jax.Array | float = 0.2,
    step: jax.Array | float = 1.0,
) -> jax.Array:
    """One step of an Ornstein-Uhlenbeck process around 0: ``x - theta x dt + sigma sqrt(dt) N(0, 1)``."""
    return noise - theta * noise * step + sigma * jnp.sqrt(step) * draw(jax.random.normal, key, noise.shape)


class ActionNoise(PyTreeNode):
    """Noise on the actions of a deterministic policy, in [-1, 1], as a config describes it.

    What a row remembers is zeros where its episode starts, so that noise is new in every episode.

    Attributes:
        kind: ``gaussian``, drawn anew at each step, or ``ornstein_uhlenbeck``, which wanders.
        scale: standard deviation of what is drawn at each step, a number or a schedule.
        max_scale: each row draws its scale at the start of an episode, uniformly from ``scale`` up to this; ``None``
            for ``scale`` in all rows.
        theta: how fast noise that wanders goes back to 0: the correlation of two steps is ``1 - theta``.
    """

    kind: Literal["gaussian", "ornstein_uhlenbeck"] = "gaussian"
    scale: float | Schedule = 0.1
    max_scale: float | None = None
    theta: float = 0.15

    ranges: ClassVar[Mapping[str, str]] = {"scale": "[0, inf)", "max_scale": "[0, inf)", "theta": "(0, 1]"}

    def __post_init__(self) -> None:
        scale, greatest = self.scale, self.max_scale
        if isinstance(scale, int | float) and isinstance(greatest, int | float) and greatest < scale:
            raise ValueError(f"noise: max_scale={greatest:g} is below scale={scale:g}.")

    def at_progress(self, progress: jax.Array) -> jax.Array | None:
        """The scale at this share of the training; ``None`` where it stays."""
        return jnp.asarray(value_at(self.scale, progress)) if isinstance(self.scale, Schedule) else None

    def initial_state(self, action_size: int) -> Any:
        """The recurrent state of one row where its episode starts; ``None`` for noise without one."""
        recurrent_state = PyTreeDict()
        if self.kind == "ornstein_uhlenbeck":
            recurrent_state.noise = jnp.zeros(action_size)
        if self.max_scale is not None:
            recurrent_state.scale = jnp.zeros(())
        return recurrent_state or None

    def add(self, key: Key, actions: jax.Array, recurrent_state: Any) -> tuple[jax.Array, Any]:
        """Actions ``[..., A]`` with noise, clipped to [-1, 1], and what their rows remember next.

        Args:
            key: one for all rows or one per row.
            actions: of the policy.
            recurrent_state: of the rows, leaves ``[..., *]``; ``None`` for noise without one.
        """
        noise_key, scale_key = split_rows(key)
        scale: Any = value_at(self.scale, 0.0)  # of a schedule its start, where nobody told ``at_progress``
        if self.max_scale is not None:
            new_scale = scale + (self.max_scale - scale) * draw(jax.random.uniform, scale_key, actions.shape[:-1])
            scale = jnp.where(recurrent_state.scale > 0.0, recurrent_state.scale, new_scale)  # 0: the episode starts
            recurrent_state = recurrent_state.replace(scale=scale)
            scale = scale[..., None]
        if self.kind == "gaussian":
            return add_gaussian_noise(noise_key, actions, scale), recurrent_state
        noise = ou_noise_step(noise_key, recurrent_state.noise, self.theta, scale)
        return jnp.clip(actions + noise, -1.0, 1.0), recurrent_state.replace(noise=noise)

"""Exploration noise. Every ``key`` is a single key for the batch, or one key per batch element."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp

from evorl.fields import Within
from evorl.ops.random import draw, split_rows
from evorl.ops.schedules import Schedule, value_at
from evorl.types import Key, PyTreeDict, PyTreeNode


def epsilon_greedy_probabilities(q_values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Return the probabilities ``[..., A]`` of the epsilon-greedy policy; tied maxima are equally probable.

    Args:
        q_values: action values, ``[..., A]``; ``-inf`` masks an action, unless all are ``-inf``.
        epsilon: probability of a uniformly random unmasked action, a number or ``[...]``.
    """
    is_max = q_values == q_values.max(axis=-1, keepdims=True)
    # A program may compute the values twice with different rounding. Then none equals the maximum: also use the argmax.
    is_first = jnp.arange(q_values.shape[-1]) == jnp.argmax(q_values, axis=-1, keepdims=True)
    is_best = (is_max | is_first).astype(q_values.dtype)
    greedy = is_best / is_best.sum(axis=-1, keepdims=True)
    epsilon = jnp.asarray(epsilon, q_values.dtype)[..., None]
    is_allowed = jnp.maximum(is_best, q_values != -jnp.inf)
    return (1.0 - epsilon) * greedy + epsilon * is_allowed / is_allowed.sum(axis=-1, keepdims=True)


def epsilon_greedy(key: Key, q_values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Sample actions from ``epsilon_greedy_probabilities``, int32 ``[...]`` for values ``[..., A]``."""
    probabilities = epsilon_greedy_probabilities(q_values, epsilon)
    noise = draw(jax.random.gumbel, key, q_values.shape)
    return jnp.argmax(jnp.log(probabilities) + noise, axis=-1).astype(jnp.int32)


def add_gaussian_noise(
    key: Key, actions: jax.Array, scale: jax.Array | float, noise_bound: jax.Array | float = jnp.inf
) -> jax.Array:
    """Return ``clip(actions + clip(scale * N(0, 1), -noise_bound, noise_bound), -1, 1)``, shaped as ``actions``.

    A finite ``noise_bound`` gives target policy smoothing (Fujimoto et al. 2018, eq. 14).
    """
    noise = jnp.clip(scale * draw(jax.random.normal, key, actions.shape), -noise_bound, noise_bound)
    return jnp.clip(actions + noise, -1.0, 1.0)


def ou_noise_step(
    key: Key,
    noise: jax.Array,
    theta: jax.Array | float = 0.15,
    sigma: jax.Array | float = 0.2,
    step: jax.Array | float = 1.0,
) -> jax.Array:
    """Return the next Ornstein-Uhlenbeck noise, ``noise - theta noise step + sigma sqrt(step) N(0, 1)``."""
    return noise - theta * noise * step + sigma * jnp.sqrt(step) * draw(jax.random.normal, key, noise.shape)


class NoiseRepetition(PyTreeNode):
    """Repetition of a stochastic policy's standard normal noise over several steps (FlashSAC, Kim et al. 2026,
    https://arxiv.org/abs/2604.04539).

    The number of steps n is random, with probability proportional to ``n ** -exponent``. Noise and n are independent
    between environments. The recurrent state is zeros at the start of an episode, so that new noise is sampled there.

    Attributes:
        max_steps: largest number of steps with the same noise; 1 samples new noise at each step.
        exponent: exponent of the distribution of the number of steps; larger exponents make repetitions shorter.
    """

    max_steps: int = 1
    exponent: Annotated[float, Within("[0, inf)")] = 2.0

    def initial_state(self, action_size: int) -> PyTreeDict:
        """Return an environment's initial recurrent state: ``noise``, zeros ``[action_size]``, and ``remaining``, 0."""
        return PyTreeDict(noise=jnp.zeros(action_size), remaining=jnp.zeros((), jnp.int32))

    def next_noise(self, key: Key, recurrent_state: PyTreeDict) -> tuple[jax.Array, PyTreeDict]:
        """Return the noise ``[..., A]`` of this step, and the next recurrent state.

        Args:
            key: one key, or one per environment.
            recurrent_state: recurrent state of each environment, leaves ``[..., *]``.
        """
        noise_key, steps_key = split_rows(key)
        remaining = recurrent_state.remaining
        weights = jnp.arange(1.0, self.max_steps + 1.0) ** -self.exponent
        shares = jnp.cumsum(weights / weights.sum())[:-1]
        drawn = draw(jax.random.uniform, steps_key, remaining.shape)
        steps = 1 + (drawn[..., None] >= shares).sum(axis=-1, dtype=jnp.int32)
        is_over = remaining == 0
        new_noise = draw(jax.random.normal, noise_key, recurrent_state.noise.shape)
        noise = jnp.where(is_over[..., None], new_noise, recurrent_state.noise)
        return noise, PyTreeDict(noise=noise, remaining=jnp.where(is_over, steps, remaining) - 1)


class ActionNoise(PyTreeNode):
    """Noise on the actions of a deterministic policy; noisy actions are clipped to [-1, 1].

    The recurrent state is zeros at the start of an episode, so that every episode has independent noise.

    Attributes:
        kind: ``gaussian``, independent at each step, or ``ornstein_uhlenbeck``, correlated in time.
        scale: standard deviation of each step's normal sample, a number or a schedule.
        max_scale: each environment samples its scale at the start of an episode, uniformly from ``scale`` to this
            value; ``None`` always uses ``scale``.
        theta: for ``ornstein_uhlenbeck``, 1 minus the correlation of the noise of two consecutive steps.
    """

    kind: Literal["gaussian", "ornstein_uhlenbeck"] = "gaussian"
    scale: Annotated[float | Schedule, Within("[0, inf)")] = 0.1
    max_scale: Annotated[float | None, Within("[0, inf)")] = None
    theta: Annotated[float, Within("(0, 1]")] = 0.15

    def __post_init__(self) -> None:
        low, high = self.scale, self.max_scale
        if isinstance(low, int | float) and isinstance(high, int | float) and high < low:
            raise ValueError(f"max_scale={high:g} is below scale={low:g}: raise max_scale or lower scale.")

    def at_progress(self, progress: jax.Array) -> jax.Array | None:
        """Return the value of ``scale`` at ``progress``, a fraction in [0, 1]; ``None`` if ``scale`` is a constant."""
        return jnp.asarray(value_at(self.scale, progress)) if isinstance(self.scale, Schedule) else None

    def initial_state(self, action_size: int) -> Any:
        """Return the initial recurrent state of one environment; ``None`` for Gaussian noise without ``max_scale``."""
        recurrent_state = PyTreeDict()
        if self.kind == "ornstein_uhlenbeck":
            recurrent_state.noise = jnp.zeros(action_size)
        if self.max_scale is not None:
            recurrent_state.scale = jnp.zeros(())
        return recurrent_state or None

    def add(self, key: Key, actions: jax.Array, recurrent_state: Any) -> tuple[jax.Array, Any]:
        """Add noise to actions ``[..., A]``, clip them to [-1, 1], and return them with the next recurrent state.

        Args:
            key: one key, or one per environment.
            actions: actions of the policy.
            recurrent_state: state of each environment, leaves ``[..., *]``, or ``None``, as in ``initial_state``.
        """
        noise_key, scale_key = split_rows(key)
        scale: Any = value_at(self.scale, 0.0)  # a schedule's initial value, unless replaced by ``at_progress``
        if self.max_scale is not None:
            new_scale = scale + (self.max_scale - scale) * draw(jax.random.uniform, scale_key, actions.shape[:-1])
            scale = jnp.where(recurrent_state.scale > 0.0, recurrent_state.scale, new_scale)  # 0: the episode starts
            recurrent_state = recurrent_state.replace(scale=scale)
            scale = scale[..., None]
        if self.kind == "gaussian":
            return add_gaussian_noise(noise_key, actions, scale), recurrent_state
        noise = ou_noise_step(noise_key, recurrent_state.noise, self.theta, scale)
        return jnp.clip(actions + noise, -1.0, 1.0), recurrent_state.replace(noise=noise)

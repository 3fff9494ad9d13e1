"""Recurrent cells that are linear in their state, so that all steps of a sequence can be computed in parallel.

A cell has the methods of ``evorl.networks.recurrent.GRU`` for single steps, and ``unroll`` for sequences.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.layers import Dense, Dtype, float32_outputs, kernel_initializer
from evorl.ops.platform import on_cpu
from evorl.types import Key, PyTreeDict

# Real and imaginary parts of complex numbers.
Parts: TypeAlias = tuple[jax.Array, jax.Array]
# Minimum modulus and maximum angle of an LRU's initial eigenvalues: the paper's choice for long sequences. With its
# defaults, moduli in [0, 1] and all angles, only 5 % of the units would retain a tenth of an input after 100 steps.
MIN_MODULUS, MAX_PHASE = 0.9, math.pi / 10


def linear_scan(decays: jax.Array, inputs: jax.Array, first: jax.Array) -> jax.Array:
    """Return all ``h_t = decays_t h_{t-1} + inputs_t``, ``[T, ...]``, along the first axis, with ``h_{-1} = first``.

    Accelerators use a parallel scan (Blelloch 1990) of logarithmic depth. A CPU uses sequential steps, which are
    faster there: 128 steps of ``[16, 64]`` take 0.16 ms instead of 0.56, and 2.6 ms instead of 6.6 with the gradient.

    Args:
        decays: factors ``[T, ...]``, broadcastable to ``inputs``; 0, as at an episode's start, discards earlier steps.
        inputs: ``[T, ...]``.
        first: state before the first step, ``[...]``.
    """
    if on_cpu():

        def one_step(state: jax.Array, terms: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            state = terms[0] * state + terms[1]
            return state, state

        return jax.lax.scan(one_step, first, (decays, inputs))[1]

    def combine(early: tuple[jax.Array, jax.Array], late: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return late[0] * early[0], late[0] * early[1] + late[1]

    inputs = inputs.at[0].add(decays[0] * first)
    return jax.lax.associative_scan(combine, (decays, inputs))[1]


class MinGRU(nn.Module):
    """Minimal gated recurrent unit (Feng et al. 2024, https://arxiv.org/abs/2410.01201, section 3.1).

    ``h_t = (1 - z_t) h_{t-1} + z_t c_t``, where gate ``z_t`` and candidate ``c_t`` depend only on the input. It is
    computed directly, not in log space, so candidates may be negative, as in the paper's appendix.

    The biases of the gates set the initial time constants of the units, geometrically spaced up to about ``horizon``
    (after Tallec & Ollivier 2018). The weights of a unit's candidate are scaled by ``sqrt((2 - z) / z)``, where ``z``
    is its initial gate, so that all units have the same variance for white-noise inputs, as with ``gamma`` in ``LRU``.
    Otherwise a unit that remembers 100 steps would add only a hundredth of each input, too little to learn from.

    Attributes:
        size: number of units.
        horizon: longest initial time constant, in steps.
        dtype: dtype of the operands of matrix multiplications, float32 or bfloat16; results and scan are float32.
    """

    size: int = 128
    horizon: int = 1000
    dtype: Dtype = "float32"

    def initial_state(self, shape: tuple[int, ...] = ()) -> PyTreeDict:
        """Return ``hidden``, zeros ``[*shape, size]``."""
        return PyTreeDict(hidden=jnp.zeros((*shape, self.size)))

    def setup(self) -> None:
        def biases(key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
            gates = -jnp.linspace(0.0, math.log(self.horizon), self.size)
            return jnp.concatenate([gates, jnp.zeros(self.size)]).astype(dtype)

        def weights(key: Key, shape: tuple[int, ...], dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
            update = nn.sigmoid(biases(key, (shape[-1],), dtype)[: self.size])
            scales = jnp.concatenate([jnp.ones(self.size, dtype), jnp.sqrt((2.0 - update) / update)])
            return scales * kernel_initializer(False, 1.0)(key, shape, dtype)

        products = float32_outputs(self.dtype)
        self.input_gates = Dense(2 * self.size, kernel_init=weights, bias_init=biases, **products)

    def inputs(self, x: jax.Array) -> jax.Array:
        """Compute gates and candidates ``[..., 2 size]`` from inputs ``[..., F]`` of any number of steps."""
        gates, candidates = jnp.split(self.input_gates(x), 2, axis=-1)
        return jnp.concatenate([nn.sigmoid(gates), candidates], axis=-1)

    def __call__(self, state: PyTreeDict, inputs: jax.Array) -> tuple[PyTreeDict, jax.Array]:
        """Return the next state and the output ``[..., size]``; ``inputs`` is the result of the method ``inputs``."""
        update, candidates = jnp.split(inputs, 2, axis=-1)
        hidden = (1.0 - update) * state.hidden + update * candidates
        return PyTreeDict(hidden=hidden), hidden

    def unroll(self, state: PyTreeDict, inputs: jax.Array, starts: jax.Array) -> tuple[PyTreeDict, jax.Array]:
        """Return states and outputs of all steps, leaves ``[T, B, size]``.

        Args:
            state: state before the first step, ``[B, size]``.
            inputs: result of the method ``inputs``, ``[T, B, 2 size]``.
            starts: True where a step is the first of an episode, ``[T, B]``; the state is zeros before such a step.
        """
        update, candidates = jnp.split(inputs, 2, axis=-1)
        decays = jnp.where(starts[..., None], 0.0, 1.0 - update)
        hidden = linear_scan(decays, update * candidates, state.hidden)
        return PyTreeDict(hidden=hidden), hidden


class LRU(nn.Module):
    """Linear recurrent unit (Orvieto et al. 2023, https://arxiv.org/abs/2303.06349, table 8), with a gated output.

    ``h_t = lambda h_{t-1} + gamma B x_t`` and ``y_t = Re(C h_t) + D x_t``, where the diagonal ``lambda`` is complex,
    ``exp(-exp(nu) + i exp(theta))``, with a modulus below 1 for all parameters. ``gamma`` is initially
    ``sqrt(1 - |lambda|^2)``, so that all units have the same variance for white-noise inputs; it is learned. The output
    is ``g * sigmoid(W g + b)`` with ``g = gelu(y)`` (Smith et al. 2023), because ``y`` itself is linear in all inputs.
    States are two real arrays, because replay buffers and exported policies do not support complex numbers.

    Attributes:
        size: number of complex units, and of outputs.
        horizon: longest initial time constant, in steps, above 10; initial moduli are at most ``1 - 1 / horizon``.
        dtype: dtype of the operands of matrix multiplications, float32 or bfloat16; results and scan are float32.
    """

    size: int = 128
    horizon: int = 1000
    dtype: Dtype = "float32"

    def initial_state(self, shape: tuple[int, ...] = ()) -> PyTreeDict:
        """Return ``real`` and ``imaginary`` parts, zeros ``[*shape, size]``."""
        return PyTreeDict(real=jnp.zeros((*shape, self.size)), imaginary=jnp.zeros((*shape, self.size)))

    def setup(self) -> None:
        low, high = MIN_MODULUS**2, (1.0 - 1.0 / self.horizon) ** 2

        def log_rate(key: Key, shape: tuple[int, ...]) -> jax.Array:  # squared moduli are uniform: equal area of a ring
            return jnp.log(-0.5 * jnp.log(jax.random.uniform(key, shape, minval=low, maxval=high)))

        def log_phase(key: Key, shape: tuple[int, ...]) -> jax.Array:
            return jnp.log(MAX_PHASE * (1.0 - jax.random.uniform(key, shape)))  # in (0, MAX_PHASE]

        self.nu = self.param("nu", log_rate, (self.size,))
        self.theta = self.param("theta", log_phase, (self.size,))
        nu = self.nu
        self.gamma = self.param("gamma", lambda key: 0.5 * jnp.log(-jnp.expm1(-2.0 * jnp.exp(nu))))
        normal, products = nn.initializers.variance_scaling, float32_outputs(self.dtype)
        inputs_init, outputs_init = normal(0.5, "fan_in", "normal"), normal(2.0, "fan_in", "normal")
        self.input_product = Dense(3 * self.size, use_bias=False, kernel_init=inputs_init, **products)
        self.state_product = Dense(self.size, use_bias=False, kernel_init=outputs_init, **products)
        self.output_gate = Dense(self.size, kernel_init=kernel_initializer(False, 1.0), **products)

    def inputs(self, x: jax.Array) -> jax.Array:
        """Compute real and imaginary parts of ``gamma B x``, and ``D x``: ``[..., 3 size]`` for inputs ``[..., F]``."""
        scale = jnp.exp(self.gamma)
        return self.input_product(x) * jnp.concatenate([scale, scale, jnp.ones_like(scale)])

    def __call__(self, state: PyTreeDict, inputs: jax.Array) -> tuple[PyTreeDict, jax.Array]:
        """Return the next state and the output ``[..., size]``; ``inputs`` is the result of the method ``inputs``."""
        real_x, imaginary_x, skipped = jnp.split(inputs, 3, axis=-1)
        modulus, phase = jnp.exp(-jnp.exp(self.nu)), jnp.exp(self.theta)
        real, imaginary = _rotated(state.real, state.imaginary, phase)
        state = PyTreeDict(real=modulus * real + real_x, imaginary=modulus * imaginary + imaginary_x)
        return state, self._outputs(state, skipped)

    def unroll(self, state: PyTreeDict, inputs: jax.Array, starts: jax.Array) -> tuple[PyTreeDict, jax.Array]:
        """Return states and outputs of all steps, leaves ``[T, B, size]``.

        Args:
            state: state before the first step, leaves ``[B, size]``.
            inputs: result of the method ``inputs``, ``[T, B, 3 size]``.
            starts: True where a step is the first of an episode, ``[T, B]``; the state is zeros before such a step.
        """
        real_x, imaginary_x, skipped = jnp.split(inputs, 3, axis=-1)
        modulus, phase = jnp.exp(-jnp.exp(self.nu)), jnp.exp(self.theta)
        steps = (jnp.logical_not(starts)[..., None], (real_x, imaginary_x), (state.real, state.imaginary))
        if on_cpu():
            real, imaginary = _scan_in_sequence((modulus * jnp.cos(phase), modulus * jnp.sin(phase)), *steps)
        else:
            real, imaginary = _scan_at_once(modulus, phase, *steps)
        states = PyTreeDict(real=real, imaginary=imaginary)
        return states, self._outputs(states, skipped)

    def _outputs(self, state: PyTreeDict, skipped: jax.Array) -> jax.Array:
        parts = jnp.concatenate([state.real, state.imaginary], axis=-1)
        outputs = nn.gelu(self.state_product(parts) + skipped)
        return outputs * nn.sigmoid(self.output_gate(outputs))


def _scan_at_once(modulus: jax.Array, phase: jax.Array, goes_on: jax.Array, inputs: Parts, first: Parts) -> Parts:
    """Compute the states of an LRU, real and imaginary parts ``[T, B, size]``, by a parallel scan.

    Args:
        modulus: moduli of the eigenvalues, ``[size]``.
        phase: angles of the eigenvalues, ``[size]``.
        goes_on: False where a step is the first of an episode, ``[T, B, 1]``.
        inputs: real and imaginary parts, ``[T, B, size]``.
        first: real and imaginary parts before the first step, ``[B, size]``.
    """
    # Rotated back by t angles, the state at step t decays by the real modulus, so one real scan computes both parts.
    phases = phase * jnp.arange(1.0, len(goes_on) + 1.0)[:, None, None]  # [T, 1, size]
    rotated = jnp.stack(_rotated(*inputs, -phases), axis=-2)  # [T, B, 2, size]
    decays = jnp.where(goes_on[..., None], modulus, 0.0)  # [T, B, 1, size]
    states = linear_scan(decays, rotated, jnp.stack(first, axis=-2))
    return _rotated(states[..., 0, :], states[..., 1, :], phases)


def _steps(eigenvalues: Parts, goes_on: jax.Array, inputs: Parts, first: Parts) -> Parts:
    """Compute ``_scan_at_once`` step by step; ``eigenvalues`` contains real and imaginary parts, ``[size]``."""

    def one_step(state: Parts, row: tuple[jax.Array, Parts]) -> tuple[Parts, Parts]:
        keeps, (real_x, imaginary_x) = row
        before = (jnp.where(keeps, state[0], 0.0), jnp.where(keeps, state[1], 0.0))
        real, imaginary = _products(eigenvalues, before)
        state = (real + real_x, imaginary + imaginary_x)
        return state, state

    return jax.lax.scan(one_step, first, (goes_on, inputs))[1]


@jax.custom_jvp
def _scan_in_sequence(eigenvalues: Parts, goes_on: jax.Array, inputs: Parts, first: Parts) -> Parts:
    """Compute the states as ``_steps`` does, with a gradient whose loop only multiplies and adds.

    On a CPU, with gradients, this takes half the time of ``_scan_at_once``, which rotates the states of every step.
    """
    return _steps(eigenvalues, goes_on, inputs, first)


@_scan_in_sequence.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Parts, Parts]:
    eigenvalues, goes_on, _, first = primals
    states = _scan_in_sequence(*primals)
    earlier = jax.tree.map(lambda x, y: jnp.where(goes_on, jnp.concatenate([x[None], y[:-1]]), 0.0), first, states)
    # The same recurrence, driven by the tangents.
    driven = jax.tree.map(jnp.add, _products(tangents[0], earlier), tangents[2])
    return states, _steps(eigenvalues, goes_on, driven, tangents[3])


def _products(x: Parts, y: Parts) -> Parts:
    """Multiply complex numbers given as real and imaginary parts."""
    return x[0] * y[0] - x[1] * y[1], x[1] * y[0] + x[0] * y[1]


def _rotated(real: jax.Array, imaginary: jax.Array, phase: jax.Array) -> Parts:
    return _products((jnp.cos(phase), jnp.sin(phase)), (real, imaginary))

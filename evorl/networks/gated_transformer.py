"""Gated Transformer-XL as a recurrent cell: attention to recent steps, with gates in place of residual connections.

The cell has the methods of ``evorl.networks.recurrent.GRU`` for single steps, and ``unroll`` for sequences.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from evorl.networks.layers import Dense, Dtype, float32_outputs, kernel_initializer
from evorl.types import PyTreeDict

GATE_BIAS = 2.0  # initially a layer is almost the identity (Parisotto et al. 2020)


class GTrXL(nn.Module):
    """Gated Transformer-XL (Parisotto et al. 2020, https://arxiv.org/abs/1910.06764), with gates of a GRU.

    Each layer attends to its inputs at the current step and the last ``window`` steps of the episode, by content and
    distance (Dai et al. 2019, https://arxiv.org/abs/1901.02860, section 3.3). The state contains these inputs:
    ``num_layers * window * size`` numbers, also for each step of a stored trajectory.

    Attributes:
        size: number of units of a layer, and of outputs.
        num_layers: number of layers.
        num_heads: number of attention heads; must divide ``size``.
        window: number of earlier steps that a layer attends to.
        dtype: dtype of the operands of matrix multiplications, float32 or bfloat16; results are float32.
    """

    size: int = 64
    num_layers: int = 1
    num_heads: int = 4
    window: int = 16
    dtype: Dtype = "float32"

    def initial_state(self, shape: tuple[int, ...] = ()) -> PyTreeDict:
        """Return ``memory``, zeros ``[*shape, layers, window, size]``, oldest first, and ``count``, int32 ``shape``."""
        memory = jnp.zeros((*shape, self.num_layers, self.window, self.size))
        return PyTreeDict(memory=memory, count=jnp.zeros(shape, jnp.int32))

    def setup(self) -> None:
        self.embedding = linear(self.size, self.dtype)
        self.layers = [_Layer(self.size, self.num_heads, self.window, self.dtype) for _ in range(self.num_layers)]

    def inputs(self, x: jax.Array) -> jax.Array:
        """Return the embedding ``[..., size]`` of inputs ``[..., F]`` of any number of steps."""
        return self.embedding(x)

    def __call__(self, state: PyTreeDict, inputs: jax.Array) -> tuple[PyTreeDict, jax.Array]:
        """Return the next state and the output ``[..., size]``; ``inputs`` is the result of the method ``inputs``."""
        leading = inputs.shape[:-1]
        memory = state.memory.reshape(-1, *state.memory.shape[len(leading) :])
        memory, outputs = self._read(memory, inputs.reshape(1, -1, self.size), state.count.reshape(1, -1))
        memory = memory.reshape(state.memory.shape)
        return PyTreeDict(memory=memory, count=state.count + 1), outputs.reshape(inputs.shape)

    def unroll(self, state: PyTreeDict, inputs: jax.Array, starts: jax.Array) -> tuple[PyTreeDict, jax.Array]:
        """Return states and outputs of all steps, leaves ``[T, B, ...]``.

        Args:
            state: state before the first step, leaves ``[B, ...]``.
            inputs: result of the method ``inputs``, ``[T, B, size]``.
            starts: True where a step is the first of an episode, ``[T, B]``; earlier steps are then masked.
        """
        steps = jnp.arange(len(starts), dtype=jnp.int32)[:, None]
        start = jax.lax.cummax(jnp.where(starts, steps, -1))  # of the current episode; -1 if before this sequence
        count = jnp.where(start < 0, state.count + steps, steps - start)
        memory, outputs = self._read(state.memory, inputs, count)
        return PyTreeDict(memory=memory, count=count + 1), outputs

    def _read(self, memory: jax.Array, x: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the memory after each step, ``[T, B, layers, window, size]``, and the outputs ``[T, B, size]``.

        Args:
            memory: memory before the first step, ``[B, layers, window, size]``.
            x: inputs of the first layer, ``[T, B, size]``.
            count: number of earlier steps of the episode, ``[T, B]``.
        """
        ages = self.window - np.arange(self.window + 1)  # of the steps that a step may attend to, including itself
        is_visible = count[..., None] >= ages  # [T, B, window + 1]
        is_kept = (ages[:-1] <= count[..., None] + 1)[..., None]  # visible to the next step, [T, B, window, 1]
        memories = []
        for layer, earlier in zip(self.layers, jnp.moveaxis(memory, 0, 2), strict=True):
            seen = jnp.concatenate([earlier, x])  # [window + T, B, size]
            memories.append(jnp.where(is_kept, _windows(seen, self.window), 0.0))
            x = layer(x, seen, is_visible)
        return jnp.stack(memories, axis=2), x


class _Layer(nn.Module):
    """Attention, then a two-layer perceptron; both have normalized inputs and a gate (Parisotto et al. 2020).

    The perceptron has one GELU, between its layers, where the paper has a ReLU there and another one after it.

    Attributes:
        size: number of units.
        num_heads: number of attention heads.
        window: number of earlier steps that a step attends to.
        dtype: dtype of the operands of matrix multiplications; results are float32.
    """

    size: int
    num_heads: int
    window: int
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array, is_visible: jax.Array) -> jax.Array:
        """Return outputs ``[T, B, size]`` for inputs ``x``, which are the last T of ``seen`` ``[window + T, B, size]``.

        ``is_visible`` ``[T, B, window + 1]`` masks the steps that each step attends to: earlier ones, oldest first,
        then itself.
        """
        depth, num_steps = self.size // self.num_heads, len(x)

        def heads(x: jax.Array) -> jax.Array:
            return x.reshape(*x.shape[:-1], self.num_heads, depth)

        normalized = nn.LayerNorm(name="attention_norm")(seen)
        keys_values = linear(2 * self.size, self.dtype, "keys_values", use_bias=False)(normalized)
        keys, values = map(heads, jnp.split(keys_values, 2, axis=-1))  # [P, B, H, D]
        queries = heads(linear(self.size, self.dtype, "queries", use_bias=False)(normalized[-num_steps:]))
        distances = linear(self.size, self.dtype, "distances", use_bias=False)(_sinusoids(self.window, self.size))
        shape = (self.num_heads, depth)
        content_bias, distance_bias = (
            self.param(name, nn.initializers.zeros, shape) for name in ("content_bias", "distance_bias")
        )
        by_content = _product("tbhd,pbhd->bhtp", queries + content_bias, keys, self.dtype)
        by_distance = _product("tbhd,mhd->bhtm", queries + distance_bias, heads(distances), self.dtype)
        scores = (by_content + _placed(by_distance)) / math.sqrt(depth)
        visible = _placed(jnp.moveaxis(is_visible, 1, 0))[:, None]  # [B, 1, T, P]
        weights = nn.softmax(jnp.where(visible, scores, jnp.finfo(jnp.float32).min))
        attended = _product("bhtp,pbhd->tbhd", weights, values, self.dtype).reshape(x.shape)
        x = _Gate(self.dtype, name="attention_gate")(x, nn.relu(linear(self.size, self.dtype, "attended")(attended)))
        hidden = nn.gelu(linear(self.size, self.dtype, "hidden")(nn.LayerNorm(name="hidden_norm")(x)))
        return _Gate(self.dtype, name="hidden_gate")(x, linear(self.size, self.dtype, "outputs")(hidden))


class _Gate(nn.Module):
    """GRU gate between the inputs of a sublayer and its outputs (Parisotto et al. 2020).

    Attributes:
        dtype: dtype of the operands of matrix multiplications; results are float32.
    """

    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Return ``(1 - z) x + z h`` with gate z and candidate h; ``x`` are inputs, ``y`` outputs, ``[..., size]``."""
        size = x.shape[-1]
        reset_y, update_y, new_y = jnp.split(linear(3 * size, self.dtype, "of_outputs", use_bias=False)(y), 3, axis=-1)
        reset_x, update_x = jnp.split(linear(2 * size, self.dtype, "of_inputs", use_bias=False)(x), 2, axis=-1)
        bias = self.param("bias", nn.initializers.constant(GATE_BIAS), (size,))
        update = nn.sigmoid(update_y + update_x - bias)
        reset = nn.sigmoid(reset_y + reset_x) * x
        new = jnp.tanh(new_y + linear(size, self.dtype, "of_kept", use_bias=False)(reset))
        return (1.0 - update) * x + update * new


def _product(equation: str, x: jax.Array, y: jax.Array, dtype: Dtype) -> jax.Array:
    """Return ``einsum(equation, x, y)``, computed in ``dtype`` and converted to float32, as are its gradients."""
    return jnp.einsum(equation, x.astype(dtype), y.astype(dtype)).astype(jnp.float32)


def linear(size: int, dtype: Dtype, name: str | None = None, use_bias: bool = True) -> nn.Dense:
    """Return a dense layer with uniform initial weights of gain 1 and float32 outputs."""
    init = kernel_initializer(False, 1.0)
    return Dense(size, use_bias=use_bias, kernel_init=init, name=name, **float32_outputs(dtype))


def _sinusoids(window: int, size: int) -> np.ndarray:
    """Return encodings of the distances ``window .. 0``, ``[window + 1, size]`` (Vaswani et al. 2017, section 3.5)."""
    half = (size + 1) // 2
    angles = np.arange(window, -1, -1)[:, None] * 10_000.0 ** (-np.arange(half) / half)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)[:, :size].astype(np.float32)


def _placed(x: jax.Array) -> jax.Array:
    """Scatter the entries ``[..., T, window + 1]`` of each step to the steps it attends to, ``[..., T, window + T]``.

    Row t is shifted by t positions; other entries are zero.
    """
    num_steps, num_seen = x.shape[-2:]
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, num_steps)])
    # The rows are one entry too long: after reshaping to the right length, row t starts t positions later.
    flat = padded.reshape(*x.shape[:-2], -1)[..., :-num_steps]
    return flat.reshape(*x.shape[:-1], num_seen - 1 + num_steps)


def _windows(seen: jax.Array, window: int) -> jax.Array:
    """Return the last ``window`` of ``seen`` ``[window + T, B, F]`` after each of T steps, ``[T, B, window, F]``."""
    num_steps = len(seen) - window
    if num_steps == 1:
        return jnp.swapaxes(seen[1:], 0, 1)[None]
    rows = 1 + np.arange(num_steps)[:, None] + np.arange(window)  # [T, window]
    return jnp.swapaxes(seen[rows], 1, 2)

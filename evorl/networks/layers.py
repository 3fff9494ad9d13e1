"""Layers: dense layers with fast gradients, noisy layers and batch renormalization.

Parameters are float32. A layer computes in one of ``DTYPES``; in bfloat16, inputs and weights are rounded on use.
The last layer of a network (see ``float32_outputs``) returns float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype

from evorl.ops import collectives
from evorl.ops.low_rank import PerturbedMatrix
from evorl.ops.platform import on_cpu
from evorl.ops.random import draw
from evorl.types import Key, Params

# Flax collection of running statistics, which are separate from the parameters because gradients do not update them.
STATISTICS = "batch_stats"
# Dtypes that layers can compute in.
Dtype: TypeAlias = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def compute_dtype(dtype: Dtype) -> jnp.dtype | None:
    """Return the ``dtype`` argument of a Flax layer for one of ``DTYPES``: ``None`` (no rounding) for float32."""
    return None if dtype == "float32" else jnp.dtype(dtype)


@functools.cache  # shared by equal layers, so that Flax modules compare equal
def kernel_initializer(orthogonal: bool, scale: float) -> jax.nn.initializers.Initializer:
    """Return a kernel initializer: orthogonal times ``scale`` (Saxe et al. 2014), or uniform with gain ``scale``."""
    if orthogonal:
        return functools.partial(orthogonal_matrix, scale=scale)
    return jax.nn.initializers.variance_scaling(scale**2, "fan_in", "uniform")


def orthogonal_matrix(
    key: Key, shape: Sequence[int], dtype: jax.typing.DTypeLike = jnp.float32, scale: float = 1.0
) -> jax.Array:
    """Return ``scale`` times a random matrix with orthonormal rows or columns; all axes but the last count as rows.

    If there are more rows than columns, the columns are orthonormal. The polar factor of a normal random matrix is
    computed by Newton-Schulz iteration (Higham 2008, eq. 8.20), which uses only matrix products. QR decomposition takes
    seconds to compile, and its batch form can deadlock on a CPU with several devices.
    """
    rows = math.prod(shape[:-1])
    x = jax.random.normal(key, (rows, shape[-1]), jnp.float32)
    x = x.T if rows > shape[-1] else x

    def iterate(_: jax.Array, x: jax.Array) -> jax.Array:
        return 1.5 * x - 0.5 * (x @ x.T) @ x

    # Each iteration increases singular values by half until they are near 1; then they converge quadratically.
    x = jax.lax.fori_loop(0, 50, iterate, x / jnp.linalg.norm(x))
    x = x.T if rows > shape[-1] else x
    return (scale * x).reshape(shape).astype(dtype)


# Layers with at most this many outputs multiply their inputs by transposed weights,
NARROW = 16
# except for at most this many rows: policies of a population, with about one row each, would take twice as long.
FEW_ROWS = 8
# Wider layers with at least this many rows and inputs compute the kernel's gradient from transposed inputs.
MANY_ROWS, MANY_INPUTS = 256, 32


@jax.custom_jvp
def _with_transposed_inputs(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return ``x @ kernel``, ``[N, I] x [I, O] -> [N, O]``; the kernel's gradient is computed as ``copy(x.T) @ g``.

    On a CPU, XLA's matrix multiplication reads ``x.T`` from ``x``; copying ``x.T`` first is up to 1.6 times faster.
    """
    return x @ kernel


@_with_transposed_inputs.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (x_tangent, kernel_tangent) = primals, tangents
    transposed = jax.lax.optimization_barrier(x.T)
    # Transposed with respect to the kernel, this becomes ``transposed @ g``.
    by_kernel = jax.lax.dot_general(transposed, kernel_tangent, (((0,), (0,)), ((), ())))
    return x @ kernel, x_tangent @ kernel + by_kernel


# The gradient of a kernel ``[I, O]`` is ``x.T @ g``, which XLA's CPU products compute at a tenth of the usual speed if
# O is small; that of a kernel ``[O, I]`` is ``g.T @ x``. The barrier prevents the compiler from swapping them.
def _product(x: jax.Array, kernel: jax.Array | PerturbedMatrix, dimension_numbers: Any, **options: Any) -> jax.Array:
    """Return ``x @ kernel``, ``[..., I] x [I, O] -> [..., O]``, in the form with the fastest gradient on a CPU."""
    if isinstance(kernel, PerturbedMatrix):
        return kernel.product(x)
    num_outputs, num_inputs, num_rows = kernel.shape[-1], kernel.shape[0], np.prod(x.shape[:-1])
    is_large = num_outputs > NARROW and num_inputs >= MANY_INPUTS and num_rows >= MANY_ROWS
    if is_large and on_cpu():
        return _with_transposed_inputs(x.reshape(-1, num_inputs), kernel).reshape(*x.shape[:-1], num_outputs)
    if not on_cpu() or not 1 < num_outputs <= NARROW or num_rows <= FEW_ROWS:
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    transposed = jax.lax.optimization_barrier(kernel.T)
    return jax.lax.dot_general(x, transposed, (((x.ndim - 1,), (1,)), ((), ())), **options)


# Biases remain float32, and so do their gradients, which are sums over all rows: in bfloat16, 256 + 1 is 256.
def promoted(*arrays: Any, dtype: Any = None, inexact: bool = True) -> list[Any]:
    """Round inputs and kernel to ``dtype``; for ``None``, promote as Flax does, except with a ``PerturbedMatrix``."""
    if dtype is not None:
        return _narrow_factors(*arrays, dtype=dtype)
    is_perturbed = any(isinstance(x, PerturbedMatrix) for x in arrays)
    return list(arrays) if is_perturbed else promote_dtype(*arrays, inexact=inexact)


def rounded(layer: Any, outputs: jax.Array) -> jax.Array:
    """Round the outputs of a layer to its dtype, unless ``float32_outputs`` keeps them in float32."""
    return outputs.astype(layer.dtype) if layer.dtype is not None and layer.promote_dtype is promoted else outputs


@jax.custom_jvp
def _float32_sums(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return ``x @ kernel``, ``[..., I] x [I, O] -> [..., O]``, of bfloat16 arrays, in float32.

    Sums are not rounded. Gradients are also products of bfloat16 arrays, because products of float32 arrays are
    several times slower on a GPU.
    """
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)


@_float32_sums.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (x_tangent, kernel_tangent) = primals, tangents
    return _float32_sums(x, kernel), (x_tangent @ kernel + x @ kernel_tangent).astype(jnp.float32)


def product_in(dtype: Dtype, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return ``x @ kernel``, ``[..., I] x [I, O] -> [..., O]``, in float32; the operands are rounded to ``dtype``."""
    return x @ kernel if dtype == "float32" else _float32_sums(x.astype(dtype), kernel.astype(dtype))


def _output_product(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any) -> jax.Array:
    del dimension_numbers, options  # the defaults of a dense layer
    return _float32_sums(x, kernel)


def _narrow_factors(*arrays: Any, dtype: Any) -> list[Any]:
    """Round the operands of a product to ``dtype``; the bias, which is added to float32 sums, remains float32."""
    return [*(x.astype(dtype) for x in arrays[:2]), *arrays[2:]]


class Dense(nn.Dense):
    """Flax's dense layer, except that existing parameters of the right shape are used directly.

    Flax traces the initializer at each use of a layer to check the shapes of its parameters, which this class avoids.
    In layers of the function ``dense``, the kernel may be a ``PerturbedMatrix``.
    """

    @nn.nowrap
    def param(self, name: str, init_fn: Callable[..., Any], *init_args: Any, **options: Any) -> Any:
        """Return the parameter with this name. Flax creates a missing parameter and reports a wrong shape."""
        existing = self.get_variable("params", name)
        return existing if np.shape(existing) == init_args[0] else super().param(name, init_fn, *init_args, **options)

    @nn.nowrap  # Flax then intercepts only the inherited method, not both
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Map ``[..., I]`` to ``[..., features]``."""
        return rounded(self, super().__call__(inputs))


_PERTURBABLE: dict[str, Any] = {"dot_general": _product, "promote_dtype": promoted}
_he_normal = jax.nn.initializers.he_normal()


def dense(size: int, orthogonal: bool, scale: float, name: str | None = None, **options: Any) -> nn.Dense:
    """Return a dense layer with zero biases and a ``kernel_initializer``; ``options`` are arguments of ``nn.Dense``."""
    return Dense(size, kernel_init=kernel_initializer(orthogonal, scale), name=name, **{**_PERTURBABLE, **options})


def he_normal_dense(size: int, dtype: Dtype = "float32") -> nn.Dense:
    """Return a dense layer with normal initial weights of gain sqrt(2) (He et al. 2015) and initial biases 0."""
    return Dense(size, kernel_init=_he_normal, dtype=compute_dtype(dtype), **_PERTURBABLE)


def dense_kernels(network: nn.Module, params: Params, *inputs: Any) -> Params:
    """Return a tree like ``params``, True for kernels that may be a ``PerturbedMatrix``: in float32 ``dense`` layers.

    Args:
        network: any module; it is traced, not run.
        params: parameters as returned by the network's ``init``.
        *inputs: inputs of the network.
    """
    paths = set()

    def note(next_fn: Callable[..., Any], args: tuple, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module = context.module
        if isinstance(module, Dense) and module.promote_dtype is promoted and module.dtype is None:
            paths.add(("params", *module.path, "kernel"))
        return next_fn(*args, **kwargs)

    with nn.intercept_methods(note):
        jax.eval_shape(network.apply, params, *inputs)
    return jax.tree.map_with_path(lambda path, _: tuple(entry.key for entry in path) in paths, params)


def float32_outputs(dtype: Dtype) -> dict[str, Any]:
    """Return options of a dense layer that rounds inputs and weights to ``dtype``; sums and outputs are float32."""
    if dtype == "float32":
        return {}
    return {"dtype": jnp.dtype(dtype), "promote_dtype": _narrow_factors, "dot_general": _output_product}


class NoisyDense(nn.Module):
    """Dense layer with learned noise on its weights, for exploration (Fortunato et al. 2018,
    https://arxiv.org/abs/1706.10295).

    Noise is factorized Gaussian (section 3, case b), and sampled separately for every row of the input, except that
    rows along the last ``num_shared_axes`` of these axes have the same noise.

    Attributes:
        size: number of outputs.
        initial_scale: the paper's ``sigma_0``; the initial noise scale is ``sigma_0 / sqrt(number of inputs)``.
        dtype: dtype of the operands of matrix multiplications, one of ``DTYPES``; outputs are float32.
        num_shared_axes: number of axes before the last one along which the noise is the same.
    """

    size: int
    initial_scale: float = 0.5
    dtype: Dtype = "float32"
    num_shared_axes: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, key: Key | None = None) -> jax.Array:
        """Map ``[..., I]`` to ``[..., size]``; ``key`` is one key, one per row ``[...]``, or ``None`` for no noise."""
        num_inputs = x.shape[-1]
        bound = 1.0 / math.sqrt(num_inputs)

        def uniform(key: Key, shape: tuple[int, ...]) -> jax.Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        constant = nn.initializers.constant(self.initial_scale * bound)
        kernel = self.param("kernel", uniform, (num_inputs, self.size))
        bias = self.param("bias", uniform, (self.size,))
        kernel_scale = self.param("kernel_scale", constant, (num_inputs, self.size))
        bias_scale = self.param("bias_scale", constant, (self.size,))
        mean = product_in(self.dtype, x, kernel) + bias
        if key is None:
            return mean
        rows = (*x.shape[: x.ndim - 1 - self.num_shared_axes], *(1,) * self.num_shared_axes)
        noise = draw(jax.random.normal, key, (*rows, num_inputs + self.size))
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        # Factorized noise needs no per-row weight matrix: (x * e_in) W * e_out equals x (W * e_in e_out^T).
        noise_in, noise_out = noise[..., :num_inputs], noise[..., num_inputs:]
        return mean + (product_in(self.dtype, x * noise_in, kernel_scale) + bias_scale) * noise_out


class BatchRenorm(nn.Module):
    """Batch renormalization (Ioffe 2017, https://arxiv.org/abs/1702.03275), ``[..., F] -> [..., F]``.

    Features are normalized to mean 0 and variance 1, then scaled and shifted by learned parameters. In training (if the
    collection ``STATISTICS`` is mutable), batch statistics over all devices are used, corrected towards the running
    statistics within bounds (algorithm 1), and the running statistics are updated. Acting and evaluation use the
    running statistics. Statistics and outputs are float32 for inputs of any dtype.

    Attributes:
        momentum: weight of the old values when a batch updates the running statistics.
        epsilon: constant that is added to variances, for numerical stability.
        max_scale: the paper's ``r_max``: the correcting factor is within ``1 / max_scale`` and ``max_scale``.
        max_shift: the paper's ``d_max``: the correcting shift is within ``-max_shift`` and ``max_shift``.
        warmup: number of batches of plain batch normalization (Ioffe & Szegedy 2015) before the correction starts;
            ``None`` never starts it.
    """

    momentum: float = 0.99
    epsilon: float = 1e-3
    max_scale: float = 3.0
    max_shift: float = 5.0
    warmup: int | None = 100_000

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x, features = x.astype(jnp.float32), x.shape[-1:]
        mean = self.variable(STATISTICS, "mean", jnp.zeros, features)
        variance = self.variable(STATISTICS, "variance", jnp.ones, features)
        is_counted = self.warmup is not None
        num_batches = self.variable(STATISTICS, "num_batches", jnp.zeros, (), jnp.int32) if is_counted else None
        scale = self.param("scale", nn.initializers.ones, features)
        bias = self.param("bias", nn.initializers.zeros, features)
        deviation = jnp.sqrt(variance.value + self.epsilon)
        if self.is_initializing() or not self.is_mutable_collection(STATISTICS):
            return (x - mean.value) / deviation * scale + bias
        axes = tuple(range(x.ndim - 1))
        batch_mean = collectives.mean_over_shares(x.mean(axes))
        batch_variance = collectives.mean_over_shares(jnp.square(x - batch_mean).mean(axes))
        batch_deviation = jnp.sqrt(batch_variance + self.epsilon)
        normalized = (x - batch_mean) / batch_deviation
        if num_batches is not None and self.warmup is not None:
            factor = jnp.clip(batch_deviation / deviation, 1.0 / self.max_scale, self.max_scale)
            shift = jnp.clip((batch_mean - mean.value) / deviation, -self.max_shift, self.max_shift)
            is_warm = num_batches.value >= self.warmup
            # The correction counts as a constant: no gradient flows through it.
            factor = jax.lax.stop_gradient(jnp.where(is_warm, factor, 1.0))
            shift = jax.lax.stop_gradient(jnp.where(is_warm, shift, 0.0))
            normalized = normalized * factor + shift
            num_batches.value = jnp.minimum(num_batches.value + 1, self.warmup)
        mean.value = self.momentum * mean.value + (1.0 - self.momentum) * batch_mean
        variance.value = self.momentum * variance.value + (1.0 - self.momentum) * batch_variance
        return normalized * scale + bias

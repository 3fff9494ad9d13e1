"""Functions of one array that together use every exported operation."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((3, 2, 2, 5)).astype(np.float32)
MATRIX = RNG.standard_normal((6, 4)).astype(np.float32)
STACK = RNG.standard_normal((6, 3, 2)).astype(np.float32)


def scanned(x: jax.Array) -> jax.Array:
    def turn(carry: jax.Array, item: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jnp.tanh(carry * 0.5 + item)
        return carry, carry * 2.0

    last, outputs = lax.scan(turn, jnp.zeros(()), x, reverse=True)
    return jnp.concatenate([last[None], outputs])


def convolved(x: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        x[None], KERNEL, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
    )[0]


def integers(x: jax.Array) -> jax.Array:
    n = jnp.round(x * 5.0).astype(jnp.int32)
    return jnp.stack([n // 3, n % 3, jnp.sign(n), n ^ 6, n & 3, n | 4, jnp.abs(n)]).astype(jnp.int32)


def wrapped(x: jax.Array) -> jax.Array:
    """Results beyond the range of their integers, which wrap around, and a hash of constants beyond 2^31."""
    whole = jnp.round(x * 50.0).astype(jnp.int32)
    n, large = whole.astype(jnp.uint8), np.arange(2**32 - x.size, 2**32, dtype=np.uint32)
    powers = [(whole + 123456789) ** i for i in (2, 3, 7)]
    hashed = (n.astype(jnp.uint32) * np.uint32(2654435761) ^ np.uint32(0xFFFF0000)) + large
    rest = [power % 1000 for power in powers]
    return jnp.stack([n - np.uint8(200), n * n, hashed % 1000, hashed > np.uint32(2**31), *rest]).astype(jnp.float32)


def reduced_integers(x: jax.Array) -> jax.Array:
    """Sums, products and extrema of integers of several widths, also beyond their range."""
    whole = jnp.round(x * 50.0).astype(jnp.int32) * 20_000_003 | 1
    kinds = [whole, whole.astype(jnp.uint32), whole.astype(jnp.int16), whole.astype(jnp.uint8)]
    sums = [n.sum(axis=(0, 2), dtype=n.dtype) for n in kinds]
    products = [n.prod(axis=(0, 2), dtype=n.dtype) for n in kinds]
    rest = [n.max(axis=(0, 2)) for n in kinds] + [n.min(axis=(0, 2)) for n in kinds]
    return jnp.stack([n.astype(jnp.int32) % 1000 for n in (*sums, *products, *rest)])


def cast_to_integers(x: jax.Array) -> jax.Array:
    """Casts of numbers within and beyond the range of each integer dtype, of infinities and of NaN."""
    numbers = jnp.concatenate([100.0 * x, 1e5 * x, 1e10 * x, jnp.log(x), jnp.exp(1e3 * x), -jnp.exp(1e3 * x)])
    kinds = (jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.int32, jnp.uint32)
    return jnp.stack([numbers.astype(kind).astype(jnp.float32) for kind in kinds])


FUNCTIONS: dict[str, tuple[Callable[[jax.Array], jax.Array], tuple[int, ...]]] = {
    "wrapped": (wrapped, (18,)),
    "empty_part": (lambda x: jnp.concatenate([x[:, :0], x, x[:, 1:]], axis=1), (3, 2)),
    "elementwise": (lambda x: jnp.exp(-x) + jnp.log1p(x * x) + lax.rsqrt(x * x + 1.0) - jnp.sin(x) * jnp.cos(x), (6,)),
    "roundings": (lambda x: jnp.floor(x) + jnp.ceil(x * 3.0) + jnp.round(x * 2.0) + lax.sign(x), (6,)),
    "powers": (lambda x: x**3 + jnp.abs(x) ** 1.5 + jnp.exp2(x) + jnp.expm1(x) + jnp.sqrt(jnp.abs(x)), (6,)),
    "integer_exponents": (
        lambda x: jnp.power(x, jnp.arange(6)) + jnp.power(jnp.abs(x) + 1.0, jnp.round(x).astype(jnp.int32)),
        (6,),
    ),
    "error_function": (lambda x: jax.nn.gelu(x, approximate=False) + lax.erf(4.0 * x), (6,)),
    "comparisons": (lambda x: jnp.where((x > 0) & ~(x >= 1.0) | (x != x), x, -x) + (x <= 0.3), (6,)),
    "finite": (lambda x: jnp.where(jnp.isfinite(1.0 / jnp.floor(x)), x, 7.0), (6,)),
    "clamped": (lambda x: jnp.clip(x, -0.5, 0.7) + lax.clamp(-1.0, x, 1.0) + jnp.minimum(x, 0.2), (6,)),
    "integers": (integers, (6,)),
    "cast_to_integers": (cast_to_integers, (6,)),
    "cases": (lambda x: lax.select_n(jnp.clip(jnp.floor(x) + 1, 0, 2).astype(jnp.int32), x, 2 * x, 3 * x), (6,)),
    "reductions": (
        lambda x: jnp.stack([x.sum(), x.max(), x.min(), x.prod(), (x > -2).all() * 1.0, (x > 1).any() * 1.0]),
        (2, 3),
    ),
    "reduced_integers": (reduced_integers, (2, 3, 4)),
    "reduced_axes": (lambda x: x.sum(axis=(0, 2)) + x.max(axis=(0, 2)), (2, 3, 4)),
    "choices": (lambda x: jnp.stack([jnp.argmax(x, axis=0), jnp.argmin(x, axis=0)]).astype(jnp.int32), (3, 4)),
    "choices_of_nan": (
        lambda x: jnp.stack([jnp.argmax(jnp.log(x), axis=0), jnp.argmin(jnp.log(x), axis=0)]).astype(jnp.int32),
        (3, 4),
    ),
    "moved": (lambda x: jnp.transpose(x, (2, 0, 1))[::-1, :, 1:].reshape(-1), (2, 3, 4)),
    "sliced": (lambda x: jnp.concatenate([x[1:6:2], x[:2], lax.dynamic_slice(x, (3,), (2,))]), (6,)),
    "padded": (lambda x: lax.pad(x, 1.5, ((-1, 2, 0), (1, -2, 0))), (3, 4)),
    "parts": (lambda x: jnp.concatenate(jnp.split(x, [1, 4], axis=0)[::-1]), (6,)),
    "unstacked": (lambda x: jnp.concatenate(jnp.unstack(x, axis=1)[::-1]), (2, 3, 2)),  # an operation since JAX 0.11
    "looked_up": (lambda x: jnp.concatenate([x[np.array([2, 0])], x[:, np.array([1, 1])].T], axis=1), (3, 3)),
    "counted": (lambda x: x + jnp.arange(6) + jax.nn.one_hot(2, 6), (6,)),
    "matrix": (lambda x: x @ MATRIX + MATRIX.T @ x, (6,)),
    "matrix_of_matrix": (lambda x: jnp.einsum("ij,kj->ki", x, MATRIX[:3]), (5, 4)),
    "matrices": (lambda x: jnp.einsum("fi,fij->fj", x, STACK), (6, 3)),
    "convolved": (convolved, (5, 6, 2)),
    "pooled": (lambda x: nn.max_pool(x[None], (3, 3), (2, 2), "SAME")[0], (5, 6, 2)),
    "loop": (scanned, (4,)),
    "normalized": (lambda x: jax.nn.softmax(x) + jax.nn.log_softmax(x) + jax.nn.softplus(x) + jax.nn.mish(x), (6,)),
}


def rows_of(name: str, num_rows: int) -> np.ndarray:
    """Return random inputs for a function."""
    return np.random.default_rng(1).uniform(-1.9, 1.9, (num_rows, *FUNCTIONS[name][1])).astype(np.float32)

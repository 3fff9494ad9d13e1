"""Activation functions: selected by name, so that modules compare by value, or learned.

Kernel activation functions (Scardapane et al. 2019, https://arxiv.org/abs/1707.04035) are sums of Gaussian bumps on a
fixed grid that all neurons share; the height of each bump is learned. They vanish far outside the grid, so
pre-activations should stay within the boundary; layer normalization helps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.custom_parts import CustomPart, custom_class, custom_part
from evorl.config.names import did_you_mean, is_custom_name, load_named, name_and_options, no_such
from evorl.config.values import LONGEST_AXIS, checked_value, whole_number

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "celu": jax.nn.celu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "identity": lambda x: x,
    "leaky_relu": jax.nn.leaky_relu,
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "softmax": jax.nn.softmax,
    "softplus": jax.nn.softplus,
    "swish": jax.nn.swish,
    "tanh": jnp.tanh,
}


def activation_by_name(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return an activation function, elementwise except softmax (last axis); raise ``ValueError`` for unknown names."""
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    hint = did_you_mean(str(name).lower(), ACTIVATIONS)
    raise ValueError(f"unknown activation {name!r}.{hint} Available: {', '.join(ACTIVATIONS)}.")


_NAME = "kaf"
_RIDGE = 1e-4  # section 3.3


@dataclasses.dataclass(frozen=True)
class KernelActivation:
    """Settings of kernel activation functions.

    Attributes:
        kernel: ``rbf`` maps single features; ``rbf2d`` maps pairs of neighboring features to one feature each, by the
            product of their kernels.
        size: D, number of grid points in each direction.
        boundary: the grid spans ``[-boundary, boundary]``.
        gamma: sharpness of the kernel, as a multiple of the paper's rule: larger values give narrower bumps.
        initial: name of the activation that all functions approximate initially; for ``rbf2d``, it is applied to the
            larger of the two features.
    """

    kernel: Literal["rbf", "rbf2d"] = "rbf"
    size: int = 20
    boundary: float = 3.0
    gamma: float = 1.0
    initial: str = "elu"

    @property
    def grid(self) -> np.ndarray:
        """Centers of the bumps, ``[D]``."""
        return np.linspace(-self.boundary, self.boundary, self.size)

    @property
    def sharpness(self) -> float:
        """Factor in the exponent: ``gamma / (6 step^2)``, where ``step`` is the grid spacing (section 3.2)."""
        return self.gamma * (self.size - 1) ** 2 / (6.0 * (2.0 * self.boundary) ** 2)


Activation: TypeAlias = str | KernelActivation | CustomPart


class KernelActivationLayer(nn.Module):
    """Learned activation with a separate function for each feature of ``[..., F]``; ``rbf2d`` returns ``[..., F / 2]``.

    ``rbf`` is ``sum_i w_i exp(-g (x - d_i)^2)`` with weights ``[F, D]`` (section 3.1); ``rbf2d``, for neighbors x, y,
    is ``sum_ij w_ij exp(-g (x - d_i)^2) exp(-g (y - d_j)^2)`` with weights ``[F / 2, D, D]`` (section 3.4). All weights
    are learned, and initialized by ridge regression on the grid (section 3.3).

    Attributes:
        options: settings of the kernels.
    """

    options: KernelActivation = KernelActivation()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        start = _regression(self.options)

        def initial_weights(_: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return jnp.broadcast_to(jnp.asarray(start, jnp.float32), shape)

        if self.options.kernel == "rbf":
            weights = self.param("weights", initial_weights, (x.shape[-1], *start.shape))
            return jnp.einsum("...fi,fi->...f", self._bumps(x), weights)
        check_features(self.options, x.shape[-1])
        weights = self.param("weights", initial_weights, (x.shape[-1] // 2, *start.shape))
        first, second = self._bumps(x[..., 0::2]), self._bumps(x[..., 1::2])
        return (first * jnp.einsum("...fj,fij->...fi", second, weights)).sum(axis=-1)

    def _bumps(self, x: jax.Array) -> jax.Array:
        """Evaluate all bumps: ``[..., F] -> [..., F, D]``."""
        grid = jnp.asarray(self.options.grid, jnp.float32)
        return jnp.exp(-self.options.sharpness * jnp.square(x[..., None] - grid))


def build_activation(config: Any, where: str = "activation") -> Activation:
    """Build an activation from its name, or from a mapping with ``name`` and, for ``kaf``, ``KernelActivation`` fields.

    ``package.module:name`` is a user-defined activation: a function of an array ``[..., F]`` or a Flax module, with its
    settings in the same mapping.

    Raises:
        ValueError: the activation or a field is unknown, or a value is invalid.
    """
    if isinstance(config, KernelActivation | CustomPart):
        return config
    name, options = name_and_options(config)
    if is_custom_name(name):
        return custom_network_part(name, options, where)
    if name not in (*ACTIVATIONS, _NAME):
        raise ValueError(f"{where}: {no_such('activation', name, (*ACTIVATIONS, _NAME))}")
    names = [field.name for field in dataclasses.fields(KernelActivation)] if name == _NAME else []
    for option, value in options.items():
        if option not in names:
            raise ValueError(f"{where}: {no_such(f'option of activation {name}', option, names or ('none',))}")
        options[option] = _checked(option, value, where)
    return KernelActivation(**options) if name == _NAME else name


def custom_network_part(name: str, options: Mapping[str, Any], setting: str) -> CustomPart:
    """Import a user-defined function of an array, or a Flax module; see ``evorl.config.custom_parts.custom_part``.

    Raises:
        ValueError: the class is not a Flax module, or ``custom_part`` rejects it.
    """
    is_module = isinstance(load_named(name, setting), type)
    if is_module:
        custom_class(name, nn.Module, setting)
    return custom_part(name, options, setting, num_inputs=0 if is_module else 1)


def apply_custom_part(part: CustomPart, x: jax.Array) -> jax.Array:
    """Return the output of a user-defined function, or of a new instance of a Flax module, for ``[..., F]``."""
    return part.call()(x) if isinstance(part.function, type) else part.call(x)


def check_features(activation: Activation, num_features: int) -> None:
    """Raise ``ValueError`` if the activation does not support a layer of ``num_features`` features."""
    if isinstance(activation, KernelActivation) and activation.kernel == "rbf2d" and num_features % 2:
        raise ValueError(
            f"activation rbf2d joins features in pairs, but a layer has {num_features} features: choose an even number."
        )


def _checked(option: str, value: Any, where: str) -> Any:
    names = {"kernel": ("rbf", "rbf2d"), "initial": tuple(ACTIVATIONS)}.get(option)
    if names is not None and value not in names:
        raise ValueError(f"{where}: {no_such(f'value of {option}', value, names)}")
    if names is not None:
        return value
    if option == "size":
        return whole_number(value, f"{where}: size", 2, LONGEST_AXIS)
    return checked_value(value, float, f"{where}: {option}", "(0, inf)")


@functools.lru_cache
def _regression(options: KernelActivation) -> np.ndarray:
    """Return kernel weights ``[D]`` or ``[D, D]``, fitted to the initial function on the grid by ridge regression."""
    grid = options.grid
    with jax.ensure_compile_time_eval():
        targets = np.asarray(activation_by_name(options.initial)(jnp.asarray(grid, jnp.float32)), np.float64)
    kernel = np.exp(-options.sharpness * np.square(grid[:, None] - grid))
    if options.kernel == "rbf":
        return np.linalg.solve(kernel + _RIDGE * np.eye(options.size), targets)
    # The kernel matrix of pairs is a Kronecker product: its eigenvalues are the products of its factors' eigenvalues.
    values, vectors = np.linalg.eigh(kernel)
    targets = targets[np.maximum.outer(np.arange(options.size), np.arange(options.size))]
    return vectors @ (vectors.T @ targets @ vectors / (np.outer(values, values) + _RIDGE)) @ vectors.T

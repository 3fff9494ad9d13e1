"""Activation functions by name, so that modules are compared by value and configs can name them."""

from __future__ import annotations

from collections.abc import Callable

import jax

from evorl.suggestions import did_you_mean

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "celu": jax.nn.celu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "identity": lambda x: x,
    "leaky_relu": jax.nn.leaky_relu,
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "swish": jax.nn.swish,
    "tanh": jax.numpy.tanh,
}


def activation_names() -> tuple[str, ...]:
    """The names that ``activation_by_name`` knows, sorted."""
    return tuple(sorted(_ACTIVATIONS))


def activation_by_name(name: str) -> Callable[[jax.Array], jax.Array]:
    """The elementwise activation function of that name.

    Raises:
        ValueError: there is none; the message gives the nearest name.
    """
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name]
    hint = did_you_mean(str(name).lower(), _ACTIVATIONS)
    raise ValueError(f"there is no activation {name!r}.{hint} There are: {', '.join(activation_names())}.")

"""Recycling of dormant units, ReDo (Sokar et al. 2023, https://arxiv.org/abs/2302.12902).

A unit is dormant if its mean absolute activation is at most a fraction of the mean over its layer. Its incoming weights
are reinitialized and its outgoing weights set to zero, so that outputs of the network hardly change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.blocks import Dense as DenseSettings
from evorl.networks.implicit_quantiles import EMBEDDING
from evorl.networks.layers import Dense
from evorl.types import Key, Params

Path: TypeAlias = tuple[str, ...]
_xavier_uniform = jax.nn.initializers.xavier_uniform()


class Recycled(NamedTuple):
    """Result of recycling.

    Attributes:
        params: parameters with new weights of dormant units.
        is_new: bool arrays with the structure and shapes of ``params``, True for entries that are new or set to zero.
        share: fraction of hidden units that are dormant, float32 scalar.
    """

    params: Params
    is_new: Any
    share: jax.Array


def check_recyclable(network: nn.Module, where: str) -> None:
    """Raise ``ValueError`` if a network's hidden units cannot be recycled; ``where`` names its torso in the message."""
    torso: Any = getattr(network, "torso", None)
    layers = getattr(torso, "layers", ())
    if not layers or not all(isinstance(x, DenseSettings) and not x.batch_norm for x in layers):
        raise ValueError(
            f"redo_interval requires that all hidden layers are dense, without batch_norm: set {where} to a list of "
            "sizes, such as [256, 256], or redo_interval=null."
        )
    alone = (torso.clone(layers=(layer,), parent=None) for layer in layers)
    shapes = [jax.eval_shape(x.init_with_output, jax.random.key(0), jnp.zeros((1, 1)))[0].shape for x in alone]
    if shapes != [(1, layer.size) for layer in layers]:
        raise ValueError(
            f"redo_interval requires activations with one output per unit, but one in {where} has a different number, "
            "as rbf2d does: choose another activation, such as relu, or set redo_interval=null."
        )


def recycle_dormant_units(
    network: nn.Module, params: Params, inputs: tuple[Any, ...], threshold: jax.Array | float, key: Key
) -> Recycled:
    """Recycle the dormant units of a network that ``check_recyclable`` accepts; biases of these units become 0.

    Args:
        network: network with a torso of dense layers, followed by one or more dense heads.
        params: parameters as returned by the network's ``init``.
        inputs: inputs of the network, with one batch axis.
        threshold: largest activity of a dormant unit, relative to the mean of its layer.
        key: random key of the new weights.
    """
    activities = _inputs_of_dense_layers(network, params, *inputs)
    hidden = [path for path in activities if "torso" in path]
    heads = [path for path in activities if "torso" not in path and path[-1] != EMBEDDING]
    new, is_new = params, jax.tree.map(lambda x: jnp.zeros(x.shape, bool), params)
    dormant: list[tuple[list[Path], jax.Array]] = []
    for i, path in enumerate(hidden):
        readers = [hidden[i + 1]] if i + 1 < len(hidden) else heads
        activity = activities[readers[0]]
        mask = activity / (activity.mean() + 1e-9) <= threshold  # [F]
        dormant.append((readers, mask))

        def with_fresh_columns(name: str, x: jax.Array, i: int = i, mask: jax.Array = mask) -> jax.Array:
            fresh = jnp.zeros_like(x) if name == "bias" else _xavier_uniform(jax.random.fold_in(key, i), x.shape)
            return jnp.where(mask, fresh, x)

        new = _changed(new, path, with_fresh_columns)
        is_new = _changed(is_new, path, lambda _, x, mask=mask: x | mask)
    for readers, mask in dormant:  # last, so that weights between two dormant units are zero
        for path in readers:
            rows = mask[:, None]
            new = _changed(new, path, lambda name, x, rows=rows: x if name == "bias" else jnp.where(rows, 0.0, x))
            is_new = _changed(is_new, path, lambda name, x, rows=rows: x if name == "bias" else x | rows)
    return Recycled(new, is_new, jnp.concatenate([mask for _, mask in dormant]).mean())


def _inputs_of_dense_layers(network: nn.Module, params: Params, *inputs: Any) -> dict[Path, jax.Array]:
    """Return each dense layer's mean absolute inputs ``[F]`` by the path of its parameters, in network order."""
    means: dict[Path, jax.Array] = {}

    def note(next_fn: Callable[..., Any], args: tuple, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        if isinstance(context.module, Dense) and context.method_name == "__call__":
            x = jnp.abs(args[0]).astype(jnp.float32)
            means[("params", *context.module.path)] = x.reshape(-1, x.shape[-1]).mean(axis=0)
        return next_fn(*args, **kwargs)

    with nn.intercept_methods(note):
        network.apply(params, *inputs)
    return means


def _changed(tree: Any, path: Path, change: Callable[[str, jax.Array], jax.Array]) -> Any:
    """Return ``tree`` with kernel and bias, if any, of the dense layer at ``path`` replaced by ``change(name, x)``."""
    if not path:
        return type(tree)({name: change(name, x) for name, x in tree.items()})
    first, *rest = path
    return type(tree)({**tree, first: _changed(tree[first], tuple(rest), change)})

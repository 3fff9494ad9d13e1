"""Action distributions: sample, log_prob, entropy, mode and kl, each written once.

A distribution holds its parameters as leaves, ``[..., event]``. ``sample`` takes one key for the whole batch or one per
row of the leading axes. ``entropy`` takes a key in every class; only those without a closed form use it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.random import draw
from evorl.types import Key, PyTreeData, pytree_field

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_BORDER = 1e-6  # actions of a tanh-normal are taken to be at least this far inside (-1, 1)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class Categorical(PyTreeData):
    """A choice among the entries of the last axis.

    Attributes:
        logits: ``[..., A]``, unnormalised; ``-inf`` forbids a choice.
    """

    logits: jax.Array

    @property
    def log_probs(self) -> jax.Array:
        """Normalised logits, ``[..., A]``."""
        return jax.nn.log_softmax(self.logits)

    @property
    def probs(self) -> jax.Array:
        """Probabilities, ``[..., A]``."""
        return jax.nn.softmax(self.logits)

    def sample(self, key: Key) -> jax.Array:
        """Choices, int32 ``[...]`` (the Gumbel-max trick)."""
        return jnp.argmax(self.logits + draw(jax.random.gumbel, key, self.logits.shape), axis=-1).astype(jnp.int32)

    def sample_and_log_prob(self, key: Key) -> tuple[jax.Array, jax.Array]:
        """Choices and their log-probabilities, both ``[...]``."""
        action = self.sample(key)
        return action, self.log_prob(action)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability of integer choices ``[...]``."""
        # A masked sum is what XLA fuses best for few actions, and its gradient needs no scatter.
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1])
        return jnp.sum(jnp.where(chosen, self.log_probs, 0.0), axis=-1)

    def entropy(self, key: Key | None = None) -> jax.Array:
        """Entropy in nats, ``[...]``, in closed form."""
        del key
        log_probs = self.log_probs
        return -jnp.sum(_weighted(self.probs, log_probs), axis=-1)

    def mode(self) -> jax.Array:
        """The most probable choice, int32 ``[...]``."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def kl(self, other: Categorical) -> jax.Array:
        """``KL(self || other)``, ``[...]``; infinite where ``other`` forbids what ``self`` allows."""
        return jnp.sum(_weighted(self.probs, self.log_probs) - _weighted(self.probs, other.log_probs), axis=-1)


class Normal(PyTreeData):
    """Independent normals; the last axis is one event.

    Attributes:
        loc: ``[..., A]``.
        scale: standard deviations, of a shape that broadcasts to that of ``loc``.
    """

    loc: jax.Array
    scale: jax.Array

    def sample(self, key: Key) -> jax.Array:
        """Values ``[..., A]``, differentiable in the parameters."""
        return self.loc + self.scale * draw(jax.random.normal, key, self.loc.shape)

    def sample_and_log_prob(self, key: Key) -> tuple[jax.Array, jax.Array]:
        """Values ``[..., A]`` and their log-densities ``[...]``."""
        noise = draw(jax.random.normal, key, self.loc.shape)
        return self.loc + self.scale * noise, self._log_prob_of_noise(noise)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density, ``[...]``."""
        return self._log_prob_of_noise((action - self.loc) / self.scale)

    def entropy(self, key: Key | None = None) -> jax.Array:
        """Differential entropy in nats, ``[...]``, in closed form."""
        del key
        return jnp.sum(0.5 + _LOG_SQRT_2PI + jnp.broadcast_to(jnp.log(self.scale), self.loc.shape), axis=-1)

    def mode(self) -> jax.Array:
        """The mean, ``[..., A]``."""
        return self.loc

    def kl(self, other: Normal) -> jax.Array:
        """``KL(self || other)``, ``[...]``."""
        ratio = jnp.square(self.scale / other.scale)
        distance = jnp.square((self.loc - other.loc) / other.scale)
        return 0.5 * jnp.sum(ratio + distance - 1.0 - jnp.log(ratio), axis=-1)

    def _log_prob_of_noise(self, noise: jax.Array) -> jax.Array:
        return jnp.sum(-0.5 * jnp.square(noise) - jnp.log(self.scale) - _LOG_SQRT_2PI, axis=-1)


class TanhNormal(PyTreeData):
    """The hyperbolic tangent of independent normals: actions in (-1, 1) (Haarnoja et al. 2018, appendix C).

    Attributes:
        loc: ``[..., A]``, of the normal before the tangent.
        scale: standard deviations before the tangent, of a shape that broadcasts to that of ``loc``.
        bounded: for each dimension whether the tangent is applied; empty for all. The others stay normal.
    """

    loc: jax.Array
    scale: jax.Array
    bounded: tuple[bool, ...] = pytree_field(static=True, default=())

    @property
    def base(self) -> Normal:
        """The normal before the tangent."""
        return Normal(self.loc, self.scale)

    def sample(self, key: Key) -> jax.Array:
        """Actions ``[..., A]``, differentiable in the parameters."""
        return squash(self.base.sample(key), self.bounded)

    def sample_and_log_prob(self, key: Key) -> tuple[jax.Array, jax.Array]:
        """Actions ``[..., A]`` and their log-densities ``[...]``, exact however near the border."""
        pre_tanh, log_prob = self.base.sample_and_log_prob(key)
        return squash(pre_tanh, self.bounded), log_prob - jnp.sum(self._log_slope(pre_tanh), axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density ``[...]``; actions on or within 1e-6 of the border count as 1e-6 inside it."""
        pre_tanh = _where_bounded(self.bounded, jnp.arctanh(jnp.clip(action, -1.0 + _BORDER, 1.0 - _BORDER)), action)
        return self.base.log_prob(pre_tanh) - jnp.sum(self._log_slope(pre_tanh), axis=-1)

    def entropy(self, key: Key | None = None) -> jax.Array:
        """Differential entropy in nats, ``[...]``.

        With a key, the usual estimate ``-log_prob`` of one sample. Without, ``H(base) + E[log(1 - tanh^2 x)]`` by
        Gauss-Hermite quadrature: no noise, and good to about 1e-3 per dimension for scales up to 2.
        """
        if key is not None:
            return -self.sample_and_log_prob(key)[1]
        nodes = self.loc[..., None] + jnp.broadcast_to(self.scale, self.loc.shape)[..., None] * jnp.float32(_NODES)
        slope = jnp.sum(_log_tanh_slope(nodes) * jnp.float32(_WEIGHTS / _WEIGHTS.sum()), axis=-1)
        slope = _where_bounded(self.bounded, slope, jnp.zeros_like(slope))
        return self.base.entropy() + jnp.sum(slope, axis=-1)

    def mode(self) -> jax.Array:
        """The tangent of the mean, ``[..., A]``: what is called the deterministic action."""
        return squash(self.loc, self.bounded)

    def kl(self, other: TanhNormal) -> jax.Array:
        """``KL(self || other)``, ``[...]``: that of the normals, since the tangent is invertible."""
        return self.base.kl(other.base)

    def _log_slope(self, x: jax.Array) -> jax.Array:
        return _where_bounded(self.bounded, _log_tanh_slope(x), jnp.zeros_like(x))


@dataclasses.dataclass(frozen=True)
class ActionDistribution:
    """How network outputs become a distribution. Compared and hashed by value, so it may be a static field.

    Attributes:
        kind: ``"categorical"``, ``"normal"`` or ``"tanh_normal"``.
        size: number of choices, or of action dimensions.
        bounded: for each action dimension whether actions lie in [-1, 1]; empty for all.
        min_log_std: bounds of the log standard deviation the network asks for.
        max_log_std: the upper one.
    """

    kind: str
    size: int
    min_log_std: float = -20.0
    max_log_std: float = 2.0
    bounded: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        kinds = ("categorical", "normal", "tanh_normal")
        if self.kind not in kinds:
            raise ValueError(f"there is no action distribution {self.kind!r}; there are: {', '.join(kinds)}.")
        if self.size < 1:
            raise ValueError(f"an action distribution needs at least one action, got size {self.size}.")
        if self.min_log_std >= self.max_log_std:
            raise ValueError(f"min_log_std {self.min_log_std} must be below max_log_std {self.max_log_std}.")
        if self.bounded and len(self.bounded) != self.size:
            raise ValueError(f"bounded has an entry for each of {self.size} dimensions, got {len(self.bounded)}.")

    @property
    def is_discrete(self) -> bool:
        """Whether actions are integers."""
        return self.kind == "categorical"

    @property
    def num_parameters(self) -> int:
        """How many outputs the network needs: the logits, or locations followed by log standard deviations."""
        return self.size if self.is_discrete else 2 * self.size

    def __call__(self, parameters: jax.Array) -> Categorical | Normal | TanhNormal:
        """The distribution of network outputs ``[..., num_parameters]``.

        Raises:
            ValueError: the last axis has another length.
        """
        if parameters.shape[-1] != self.num_parameters:
            raise ValueError(
                f"a {self.kind} distribution of size {self.size} takes {self.num_parameters} parameters, "
                f"got {parameters.shape[-1]}: give the policy network num_outputs={self.num_parameters}."
            )
        if self.is_discrete:
            return Categorical(parameters)
        loc, log_std = jnp.split(parameters, 2, axis=-1)
        scale = jnp.exp(jnp.clip(log_std, self.min_log_std, self.max_log_std))
        return Normal(loc, scale) if self.kind == "normal" else TanhNormal(loc, scale, self.bounded)

    def squash(self, samples: jax.Array) -> jax.Array:
        """Map samples ``[..., A]`` of an unsquashed normal into the action space; choices stay as they are."""
        return samples if self.is_discrete else squash(samples, self.bounded)


def distribution_for(
    *,
    num_actions: int | None = None,
    action_size: int | None = None,
    squashed: bool = True,
    bounded: tuple[bool, ...] = (),
    **options: Any,
) -> ActionDistribution:
    """Return the action distribution for a discrete space of ``num_actions`` or a box of ``action_size`` dimensions.

    Args:
        num_actions: choices of a discrete space.
        action_size: dimensions of a box.
        squashed: for boxes, a tanh-normal with actions in (-1, 1) instead of an unbounded normal.
        bounded: of a box, for each dimension whether it is bounded; empty for all. Only these are squashed.
        **options: ``min_log_std`` and ``max_log_std``.

    Raises:
        ValueError: both or neither of the two sizes are given, or ``bounded`` is of another size.
    """
    if (num_actions is None) == (action_size is None):
        raise ValueError("give either num_actions (a discrete space) or action_size (a box), not both and not neither.")
    if num_actions is not None:
        return ActionDistribution("categorical", int(num_actions), **options)
    is_squashed = squashed and (not bounded or any(bounded))
    kind = "tanh_normal" if is_squashed else "normal"
    return ActionDistribution(kind, int(action_size or 0), bounded=bounded, **options)


def squash(x: jax.Array, bounded: tuple[bool, ...] = ()) -> jax.Array:
    """Return the hyperbolic tangent of the dimensions of ``x`` ``[..., A]`` that are bounded, all if none is named."""
    return _where_bounded(bounded, jnp.tanh(x), x)


def clip_bounded(x: jax.Array, bounded: tuple[bool, ...] = ()) -> jax.Array:
    """Clip the dimensions of ``x`` ``[..., A]`` that are bounded, all if none is named, to [-1, 1]."""
    return _where_bounded(bounded, jnp.clip(x, -1.0, 1.0), x)


def _where_bounded(bounded: tuple[bool, ...], value: jax.Array, otherwise: jax.Array) -> jax.Array:
    """Choose ``value`` ``[..., A]`` in bounded dimensions and ``otherwise`` in the rest."""
    if all(bounded):  # or none is named
        return value
    if not any(bounded):
        return otherwise
    return jnp.where(jnp.array(bounded), value, otherwise)


def _log_tanh_slope(x: jax.Array) -> jax.Array:
    """``log(1 - tanh(x)^2)`` without cancellation."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))


def _weighted(probs: jax.Array, values: jax.Array) -> jax.Array:
    """``probs * values`` where impossible entries count 0 whatever their value, also in the gradient."""
    possible = probs > 0.0
    return jnp.where(possible, probs * jnp.where(possible, values, 0.0), 0.0)

"""Action distributions with sample, log_prob, entropy, mode and kl.

The parameters of a distribution are its leaves, ``[..., event]``. ``sample`` takes one key for the whole batch or one
key per element of the leading axes. ``entropy`` takes a key in every class, but only ``TanhNormal`` uses the key.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.random import draw
from evorl.types import Key, PyTreeData, pytree_field

LogStdBound: TypeAlias = Literal["clip", "tanh", "add"]  # see ``ActionDistribution``
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_BORDER = 1e-6  # minimum distance of clipped tanh-normal actions from the bounds -1 and 1
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class Categorical(PyTreeData):
    """Categorical distribution over A actions.

    Attributes:
        logits: ``[..., A]``, unnormalized; ``-inf`` excludes an action.
    """

    logits: jax.Array

    @property
    def log_probs(self) -> jax.Array:
        """Normalized logits, ``[..., A]``."""
        return jax.nn.log_softmax(self.logits)

    @property
    def probs(self) -> jax.Array:
        """Probabilities, ``[..., A]``."""
        return jax.nn.softmax(self.logits)

    def sample(self, key: Key) -> jax.Array:
        """Return sampled actions, int32 ``[...]`` (Gumbel-max trick)."""
        return jnp.argmax(self.logits + draw(jax.random.gumbel, key, self.logits.shape), axis=-1).astype(jnp.int32)

    def sample_and_log_prob(self, key: Key) -> tuple[jax.Array, jax.Array]:
        """Return sampled actions and their log-probabilities, both ``[...]``."""
        action = self.sample(key)
        return action, self.log_prob(action)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-probabilities ``[...]`` of integer actions ``[...]``."""
        # XLA fuses a masked sum best for few actions, and its gradient needs no scatter.
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1])
        return jnp.sum(jnp.where(chosen, self.log_probs, 0.0), axis=-1)

    def entropy(self, key: Key | None = None) -> jax.Array:
        """Return the entropy in nats, ``[...]``, in closed form."""
        del key
        return -jnp.sum(_weighted(self.probs, self.log_probs), axis=-1)

    def mode(self) -> jax.Array:
        """Return the most probable action, int32 ``[...]``."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def kl(self, other: Categorical) -> jax.Array:
        """Return ``KL(self || other)``, ``[...]``; infinite where ``other`` excludes an action that ``self`` allows."""
        return jnp.sum(_weighted(self.probs, self.log_probs) - _weighted(self.probs, other.log_probs), axis=-1)


class Normal(PyTreeData):
    """Independent normal distributions of A action dimensions, which form one event.

    Attributes:
        loc: means, ``[..., A]``.
        scale: standard deviations, broadcastable to the shape of ``loc``.
    """

    loc: jax.Array
    scale: jax.Array

    def sample(self, key: Key) -> jax.Array:
        """Return samples ``[..., A]``, differentiable with respect to the parameters."""
        return self.loc + self.scale * draw(jax.random.normal, key, self.loc.shape)

    def sample_and_log_prob(self, key: Key) -> tuple[jax.Array, jax.Array]:
        """Return samples ``[..., A]`` and their log-densities ``[...]``."""
        return self.transform(draw(jax.random.normal, key, self.loc.shape))

    def transform(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the samples ``[..., A]`` of standard normal noise ``[..., A]``, and their log-densities ``[...]``."""
        return self.loc + self.scale * noise, self._log_prob_of_noise(noise)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-densities ``[...]`` of actions ``[..., A]``."""
        return self._log_prob_of_noise((action - self.loc) / self.scale)

    def entropy(self, key: Key | None = None) -> jax.Array:
        """Return the differential entropy in nats, ``[...]``, in closed form."""
        del key
        return jnp.sum(0.5 + _LOG_SQRT_2PI + jnp.broadcast_to(jnp.log(self.scale), self.loc.shape), axis=-1)

    def mode(self) -> jax.Array:
        """Return the mean, ``[..., A]``."""
        return self.loc

    def kl(self, other: Normal) -> jax.Array:
        """Return ``KL(self || other)``, ``[...]``."""
        ratio = jnp.square(self.scale / other.scale)
        distance = jnp.square((self.loc - other.loc) / other.scale)
        return 0.5 * jnp.sum(ratio + distance - 1.0 - jnp.log(ratio), axis=-1)

    def _log_prob_of_noise(self, noise: jax.Array) -> jax.Array:
        return jnp.sum(-0.5 * jnp.square(noise) - jnp.log(self.scale) - _LOG_SQRT_2PI, axis=-1)


class TanhNormal(PyTreeData):
    """Tanh of independent normals: actions in (-1, 1) (Haarnoja et al. 2018, appendix C).

    Attributes:
        loc: means before tanh, ``[..., A]``.
        scale: standard deviations before tanh, broadcastable to the shape of ``loc``.
        bounded: for each dimension, True if tanh is applied, False if not; empty if tanh is applied to all dimensions.
    """

    loc: jax.Array
    scale: jax.Array
    bounded: tuple[bool, ...] = pytree_field(static=True, default=())

    @property
    def base(self) -> Normal:
        """Normal distribution before tanh."""
        return Normal(self.loc, self.scale)

    def sample(self, key: Key) -> jax.Array:
        """Return sampled actions ``[..., A]``, differentiable with respect to the parameters."""
        return squash(self.base.sample(key), self.bounded)

    def sample_and_log_prob(self, key: Key) -> tuple[jax.Array, jax.Array]:
        """Return sampled actions ``[..., A]`` and their log-densities ``[...]``, accurate even next to the bounds."""
        return self.transform(draw(jax.random.normal, key, self.loc.shape))

    def transform(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the samples ``[..., A]`` of standard normal noise ``[..., A]``, and their log-densities ``[...]``."""
        pre_tanh, log_prob = self.base.transform(noise)
        return squash(pre_tanh, self.bounded), log_prob - jnp.sum(self._log_slope(pre_tanh), axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return log-densities ``[...]`` of actions ``[..., A]``, after clipping bounded dimensions to +-(1 - 1e-6)."""
        pre_tanh = _where_bounded(self.bounded, jnp.arctanh(jnp.clip(action, -1.0 + _BORDER, 1.0 - _BORDER)), action)
        return self.base.log_prob(pre_tanh) - jnp.sum(self._log_slope(pre_tanh), axis=-1)

    def entropy(self, key: Key | None = None) -> jax.Array:
        """Return the differential entropy in nats, ``[...]``.

        With a key, return the standard estimate, ``-log_prob`` of one sample. Without a key, return
        ``H(base) + E[log(1 - tanh^2 x)]`` by Gauss-Hermite quadrature, which has no noise and is accurate to about 1e-3
        per dimension for scales up to 2.
        """
        if key is not None:
            return -self.sample_and_log_prob(key)[1]
        nodes = self.loc[..., None] + jnp.broadcast_to(self.scale, self.loc.shape)[..., None] * jnp.float32(_NODES)
        slope = jnp.sum(_log_tanh_slope(nodes) * jnp.float32(_WEIGHTS / _WEIGHTS.sum()), axis=-1)
        slope = _where_bounded(self.bounded, slope, jnp.zeros_like(slope))
        return self.base.entropy() + jnp.sum(slope, axis=-1)

    def mode(self) -> jax.Array:
        """Return the deterministic action, ``[..., A]``: tanh of ``loc`` in bounded dimensions."""
        return squash(self.loc, self.bounded)

    def kl(self, other: TanhNormal) -> jax.Array:
        """Return ``KL(self || other)``, ``[...]``, which equals the normals' divergence because tanh is invertible."""
        return self.base.kl(other.base)

    def _log_slope(self, x: jax.Array) -> jax.Array:
        return _where_bounded(self.bounded, _log_tanh_slope(x), jnp.zeros_like(x))


@dataclasses.dataclass(frozen=True)
class ActionDistribution:
    """Converts network outputs to a distribution. Compares and hashes by value, so it may be a static field.

    Attributes:
        kind: ``"categorical"``, ``"normal"`` or ``"tanh_normal"``.
        size: number of discrete actions, or of action dimensions.
        bounded: for each action dimension, True if actions are within [-1, 1]; empty if all are.
        min_log_std: lower bound on the log standard deviation.
        max_log_std: upper bound on the log standard deviation; ``add`` only clips the outputs to it.
        log_std_bound: ``clip`` clips outputs to the bounds; ``tanh`` maps outputs into the bounds, 0 to the middle;
            ``add`` adds ``exp(min_log_std)`` to the standard deviation.
    """

    kind: str
    size: int
    min_log_std: float = -20.0
    max_log_std: float = 2.0
    bounded: tuple[bool, ...] = ()
    log_std_bound: LogStdBound = "clip"

    def __post_init__(self) -> None:
        kinds = ("categorical", "normal", "tanh_normal")
        if self.kind not in kinds:
            raise ValueError(f"kind of an action distribution must be one of {', '.join(kinds)}; got {self.kind!r}.")
        if self.size < 1:
            raise ValueError(f"an action distribution needs at least one action or dimension, got size {self.size}.")
        if self.log_std_bound not in get_args(LogStdBound):
            raise ValueError(f"log_std_bound must be {' or '.join(get_args(LogStdBound))}; got {self.log_std_bound!r}.")
        if not self.min_log_std < self.max_log_std:  # also true for NaN
            raise ValueError(f"min_log_std={self.min_log_std} must be below max_log_std={self.max_log_std}.")
        if self.bounded and len(self.bounded) != self.size:
            raise ValueError(f"bounded needs an entry for each of {self.size} dimensions, got {len(self.bounded)}.")

    @property
    def is_discrete(self) -> bool:
        """True if actions are integers."""
        return self.kind == "categorical"

    @property
    def num_parameters(self) -> int:
        """Required number of network outputs: logits, or means followed by log standard deviations."""
        return self.size if self.is_discrete else 2 * self.size

    def __call__(self, parameters: jax.Array) -> Categorical | Normal | TanhNormal:
        """Return the distribution with parameters ``[..., num_parameters]``; other shapes raise ``ValueError``."""
        if parameters.shape[-1] != self.num_parameters:
            raise ValueError(
                f"a {self.kind} distribution of size {self.size} takes {self.num_parameters} parameters, "
                f"got {parameters.shape[-1]}: give the policy network num_outputs={self.num_parameters}."
            )
        if self.is_discrete:
            return Categorical(parameters)
        loc, log_std = jnp.split(parameters, 2, axis=-1)
        scale = jnp.exp(self._bounded_log_std(log_std))
        return Normal(loc, scale) if self.kind == "normal" else TanhNormal(loc, scale, self.bounded)

    def _bounded_log_std(self, outputs: jax.Array) -> jax.Array:
        low, high = self.min_log_std, self.max_log_std
        if self.log_std_bound == "clip":
            return jnp.clip(outputs, low, high)
        if self.log_std_bound == "add":
            return jnp.logaddexp(jnp.minimum(outputs, high), low)
        return low + 0.5 * (high - low) * (1.0 + jnp.tanh(outputs))

    def squash(self, samples: jax.Array) -> jax.Array:
        """Map samples ``[..., A]`` of an unsquashed normal into the action space; discrete actions stay unchanged."""
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
        num_actions: number of actions of a discrete space.
        action_size: number of dimensions of a box.
        squashed: for boxes, True for a tanh-normal with actions in (-1, 1), False for an unbounded normal.
        bounded: for each dimension of a box, True if it is bounded and therefore squashed; empty if all are.
        **options: ``min_log_std``, ``max_log_std`` and ``log_std_bound``, see ``ActionDistribution``.

    Raises:
        ValueError: not exactly one of the two sizes is passed, or an argument is invalid, see ``ActionDistribution``.
    """
    if (num_actions is None) == (action_size is None):
        raise ValueError(f"pass exactly one of {num_actions=} (a discrete space) and {action_size=} (a box).")
    if num_actions is not None:
        return ActionDistribution("categorical", int(num_actions), **options)
    kind = "tanh_normal" if squashed and (not bounded or any(bounded)) else "normal"
    return ActionDistribution(kind, int(action_size or 0), bounded=bounded, **options)


def squash(x: jax.Array, bounded: tuple[bool, ...] = ()) -> jax.Array:
    """Apply tanh to the bounded dimensions of ``x`` ``[..., A]``; an empty ``bounded`` means all."""
    return _where_bounded(bounded, jnp.tanh(x), x)


def clip_bounded(x: jax.Array, bounded: tuple[bool, ...] = ()) -> jax.Array:
    """Clip the bounded dimensions of ``x`` ``[..., A]`` to [-1, 1]; an empty ``bounded`` means all."""
    return _where_bounded(bounded, jnp.clip(x, -1.0, 1.0), x)


def _where_bounded(bounded: tuple[bool, ...], value: jax.Array, otherwise: jax.Array) -> jax.Array:
    """Return ``value`` ``[..., A]`` in bounded dimensions and ``otherwise`` in the others."""
    if all(bounded):  # also true if empty
        return value
    if not any(bounded):
        return otherwise
    return jnp.where(jnp.array(bounded), value, otherwise)


def _log_tanh_slope(x: jax.Array) -> jax.Array:
    """Return ``log(1 - tanh(x)^2)`` without cancellation."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))


def _weighted(probs: jax.Array, values: jax.Array) -> jax.Array:
    """Return ``probs * values``; result and gradient are 0 where ``probs`` is 0, even if the value is infinite."""
    possible = probs > 0.0
    return jnp.where(possible, probs * jnp.where(possible, values, 0.0), 0.0)

"""Losses, importance ratios and log-probabilities have finite values and gradients, however unlikely an action is."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evorl.distributions import ActionDistribution
from evorl.ops import losses
from evorl.ops.munchausen import Munchausen
from evorl.ops.returns import vtrace
from evorl.ops.value_distributions import quantile_huber
from evorl.ops.value_rescaling import rescale, undo_rescale

Loss = Callable[[jax.Array, jax.Array], jax.Array]
LARGE = st.floats(-1e4, 1e4, width=32)


def _vtrace(log_ratios: jax.Array, values: jax.Array) -> jax.Array:
    zeros = jnp.zeros_like(values)
    return sum(vtrace(values, values, values, zeros, zeros, log_ratios, discount=0.9))


def _munchausen(q_values: jax.Array, values: jax.Array) -> jax.Array:
    q_values, values = q_values[None], values[None]
    excluded = q_values.at[:, 0].set(-jnp.inf)
    bonus = Munchausen().bonus(excluded, jnp.array([1]))
    return Munchausen().soft_values(values, excluded) + bonus


def _distribution(kind: str, **options: str) -> Loss:
    size = 1 if "normal" in kind else 2
    distribution = ActionDistribution(kind, size, **options)

    def loss(parameters: jax.Array, others: jax.Array) -> jax.Array:
        policy, old = distribution(parameters), distribution(jax.lax.stop_gradient(others))
        _, log_prob = policy.sample_and_log_prob(jax.random.key(0))
        return log_prob + policy.log_prob(jax.lax.stop_gradient(old.mode())) + policy.entropy() + old.kl(policy)

    return loss


LOSSES: dict[str, Loss] = {
    "clipped_surrogate": lambda x, y: losses.clipped_surrogate(x, y, 0.2),
    "drift_surrogate": losses.drift_surrogate,
    "approximate_kl": lambda x, y: losses.approximate_kl(x),
    "extend_linearly": lambda x, y: losses.extend_linearly(jnp.exp, x) * y,
    "policy_gradient": losses.policy_gradient,
    "clipped_value_error": lambda x, y: losses.clipped_value_error(x, y, -y, 0.2),
    "explained_variance": losses.explained_variance,
    "vtrace": _vtrace,
    "munchausen": _munchausen,
    "quantile_huber": quantile_huber,
    "rescale": lambda x, y: rescale(x) + undo_rescale(y),
    "categorical": _distribution("categorical"),
    "normal": _distribution("normal"),
    "tanh_normal": _distribution("tanh_normal"),
    "tanh_normal-tanh": _distribution("tanh_normal", log_std_bound="tanh"),
    "tanh_normal-add": _distribution("tanh_normal", log_std_bound="add"),
}


def _value_and_gradients(loss: Loss, *inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jax.value_and_grad(lambda *x: loss(*x).sum(), argnums=(0, 1))(*inputs)


COMPILED = {name: jax.jit(lambda *x, loss=loss: _value_and_gradients(loss, *x)) for name, loss in LOSSES.items()}


@pytest.mark.parametrize("name", LOSSES)
@given(x=st.tuples(LARGE, LARGE), y=st.tuples(LARGE, LARGE))
@example(x=(89.0, 300.0), y=(1.0, 0.0))
@example(x=(89.0, 300.0), y=(-1.0, -0.0))
@example(x=(-1e4, 1e4), y=(1e4, -1e4))
def test_values_and_gradients_are_finite(name: str, x: tuple[float, float], y: tuple[float, float]) -> None:
    results = COMPILED[name](jnp.array(x, jnp.float32), jnp.array(y, jnp.float32))
    for result in jax.tree.leaves(results):
        assert np.isfinite(result).all(), results


def _plain_clip(log_ratio: jax.Array, advantages: jax.Array) -> jax.Array:
    ratio = jnp.exp(log_ratio)
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)


def _plain_drift(log_ratio: jax.Array, advantages: jax.Array) -> jax.Array:
    increase, decrease = jnp.expm1(log_ratio) * advantages, log_ratio * advantages
    of_increase = jax.nn.relu(increase - 2.0 * jnp.tanh(increase / 2.0))
    of_decrease = jax.nn.relu(decrease - 0.6 * jnp.tanh(decrease / 0.6))
    return -(jnp.exp(log_ratio) * advantages - jnp.where(advantages >= 0.0, of_increase, of_decrease))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("clipped_surrogate", _plain_clip),
        ("drift_surrogate", _plain_drift),
        ("approximate_kl", lambda x, y: jnp.expm1(x) - x),
        ("extend_linearly", lambda x, y: jnp.exp(x) * y),
    ],
)
def test_ordinary_ratios_are_the_same_bits(name: str, plain: Loss) -> None:
    rng = np.random.default_rng(0)
    log_ratio = jnp.asarray(np.concatenate([rng.normal(size=500), rng.uniform(-100, 20, 500)]), jnp.float32)
    advantages = jnp.asarray(rng.normal(size=1000), jnp.float32)
    for transform in (lambda f: f, jax.jit):
        expected = transform(lambda *x: _value_and_gradients(plain, *x))(log_ratio, advantages)
        result = transform(lambda *x: _value_and_gradients(LOSSES[name], *x))(log_ratio, advantages)
        jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_an_action_that_became_far_too_likely_is_pushed_back() -> None:
    """Beyond the bound the gradient of a bad action is large and negative in its probability, and not 0."""
    for loss in ("clipped_surrogate", "drift_surrogate"):
        _, (slopes, _) = _value_and_gradients(LOSSES[loss], jnp.array([19.0, 21.0, 500.0]), -jnp.ones(3))
        assert np.all(np.asarray(slopes) > 1e8), loss

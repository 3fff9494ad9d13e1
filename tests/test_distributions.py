from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.distributions import ActionDistribution, Categorical, Normal, TanhNormal, distribution_for
from tests.support.errors import raises_naming

KEY = jax.random.key(0)
LOC, SCALE = jnp.array([[0.3, -1.0], [2.0, 0.0]]), jnp.array([0.5, 1.5])
ALL = pytest.mark.parametrize(
    "distribution",
    [Categorical(jnp.array([[0.0, 1.0, -2.0], [3.0, 0.0, 0.0]])), Normal(LOC, SCALE), TanhNormal(LOC, SCALE)],
    ids=["categorical", "normal", "tanh_normal"],
)


@ALL
def test_samples_come_with_their_log_prob(distribution) -> None:
    action, log_prob = jax.jit(lambda d: d.sample_and_log_prob(KEY))(distribution)
    assert log_prob.shape == (2,)
    np.testing.assert_allclose(action, distribution.sample(KEY), rtol=1e-6)
    np.testing.assert_allclose(log_prob, distribution.log_prob(action), rtol=1e-3)


@ALL
def test_keys_per_row_draw_rows_independently(distribution) -> None:
    keys = jax.random.split(KEY, 2)
    rows = distribution.sample(keys)
    second = type(distribution)(*(jnp.broadcast_to(x, (2, x.shape[-1]))[1] for x in jax.tree.leaves(distribution)))
    np.testing.assert_allclose(rows[1], second.sample(keys[1]), rtol=1e-6)


@ALL
def test_entropy_is_the_mean_negative_log_prob(distribution) -> None:
    many = jax.jit(jax.vmap(lambda key: distribution.sample_and_log_prob(key)[1]))(jax.random.split(KEY, 20_000))
    np.testing.assert_allclose(distribution.entropy(), -many.mean(axis=0), atol=0.04)
    assert distribution.entropy(KEY).shape == (2,)


@ALL
def test_kl_is_the_mean_log_ratio(distribution) -> None:
    other = jax.tree.map(lambda x: 0.8 * x + 0.1, distribution)

    def log_ratio(key: jax.Array) -> jax.Array:
        action, log_prob = distribution.sample_and_log_prob(key)
        return log_prob - other.log_prob(action)

    many = jax.jit(jax.vmap(log_ratio))(jax.random.split(KEY, 20_000))
    np.testing.assert_allclose(distribution.kl(other), many.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(distribution.kl(distribution), 0.0, atol=1e-6)


def test_categorical_probabilities_mode_and_frequencies() -> None:
    distribution = Categorical(jnp.log(jnp.array([0.1, 0.6, 0.3])) + 5.0)
    np.testing.assert_allclose(distribution.probs, [0.1, 0.6, 0.3], rtol=1e-5)
    assert distribution.mode() == 1
    np.testing.assert_allclose(distribution.log_prob(jnp.arange(3)[:, None])[:, 0], np.log([0.1, 0.6, 0.3]), rtol=1e-5)
    samples = jax.vmap(distribution.sample)(jax.random.split(KEY, 5000))
    assert samples.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(samples, minlength=3) / 5000, [0.1, 0.6, 0.3], atol=0.03)


def test_categorical_with_forbidden_choices_stays_finite() -> None:
    logits = jnp.array([0.0, -jnp.inf, 0.0])
    np.testing.assert_allclose(Categorical(logits).entropy(), np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(Categorical(logits).kl(Categorical(jnp.zeros(3))), np.log(1.5), rtol=1e-6)
    assert Categorical(jnp.zeros(3)).kl(Categorical(logits)) == jnp.inf
    assert jnp.isfinite(jax.grad(lambda x: Categorical(logits.at[0].add(x)).entropy())(0.1))


def test_normal_matches_its_density() -> None:
    action = np.array([0.1, 0.4])
    expected = -0.5 * ((action - LOC) / SCALE) ** 2 - np.log(SCALE * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(Normal(LOC, SCALE).log_prob(action), expected.sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(Normal(LOC, SCALE).mode(), LOC)


def test_tanh_normal_density_integrates_to_one() -> None:
    grid = jnp.linspace(-1 + 1e-4, 1 - 1e-4, 20_001)[:, None]
    density = jnp.exp(TanhNormal(jnp.array([0.4]), jnp.array([0.7])).log_prob(grid))
    np.testing.assert_allclose(jnp.trapezoid(density, grid[:, 0]), 1.0, atol=1e-3)


def test_tanh_normal_is_stable_at_the_borders() -> None:
    far = TanhNormal(jnp.array([40.0]), jnp.array([1.0]))
    (action, log_prob), slope = (
        far.sample_and_log_prob(KEY),
        jax.grad(lambda loc: TanhNormal(loc[None], jnp.array([1.0])).sample_and_log_prob(KEY)[1])(40.0),
    )
    assert action == 1.0
    # log(1 - tanh(x)^2) tends to 2 log 2 - 2 x, so the density grows by 2 per unit of the location.
    assert jnp.isfinite(log_prob)
    np.testing.assert_allclose(slope, 2.0, rtol=1e-3)
    for border in (-1.0, 1.0):
        distribution = TanhNormal(jnp.zeros(1), jnp.ones(1))
        assert jnp.isfinite(distribution.log_prob(jnp.array([border])))
        assert jnp.isfinite(jax.grad(lambda a, d=distribution: d.log_prob(a[None]))(border))
    np.testing.assert_allclose(TanhNormal(LOC, SCALE).mode(), np.tanh(LOC), rtol=1e-6)


def test_tanh_normal_entropy_without_a_key_is_quadrature() -> None:
    for scale in (0.05, 0.5, 2.0):
        distribution = TanhNormal(jnp.array([0.7]), jnp.array([scale]))
        x = np.linspace(0.7 - 9 * scale, 0.7 + 9 * scale, 200_001)
        density = np.exp(-0.5 * ((x - 0.7) / scale) ** 2) / (scale * np.sqrt(2 * np.pi))
        log_slope = 2 * (np.log(2) - x - np.logaddexp(0, -2 * x))
        expected = 0.5 + 0.5 * np.log(2 * np.pi) + np.log(scale) + np.trapezoid(density * log_slope, x)
        np.testing.assert_allclose(distribution.entropy(), expected, atol=2e-3)


def test_action_distributions_read_network_outputs() -> None:
    discrete = distribution_for(num_actions=3)
    assert (discrete.num_parameters, discrete.is_discrete) == (3, True)
    assert isinstance(discrete(jnp.zeros((5, 3))), Categorical)
    squashed, plain = distribution_for(action_size=2), distribution_for(action_size=2, squashed=False)
    assert (squashed.num_parameters, squashed.is_discrete) == (4, False)
    parameters = jnp.array([0.1, 0.2, jnp.log(0.5), 99.0])
    assert isinstance(squashed(parameters), TanhNormal)
    normal = plain(parameters)
    assert isinstance(normal, Normal)
    np.testing.assert_allclose(normal.loc, [0.1, 0.2])
    np.testing.assert_allclose(normal.scale, [0.5, np.exp(2.0)], rtol=1e-6)
    smooth = distribution_for(action_size=2, min_log_std=-10.0, log_std_bound="tanh")
    np.testing.assert_allclose(smooth(parameters).scale, np.exp([-4.0 + 6.0 * np.tanh(np.log(0.5)), 2.0]), rtol=1e-5)
    np.testing.assert_allclose(smooth(jnp.zeros(4)).scale, np.exp(-4.0), rtol=1e-5)  # the middle
    sums = distribution_for(action_size=2, min_log_std=float(np.log(0.1)), log_std_bound="add")
    np.testing.assert_allclose(sums(parameters).scale, [0.6, np.exp(2.0) + 0.1], rtol=1e-5)
    assert jax.grad(lambda x: sums(x).scale[0])(jnp.array([0.0, 0.0, -2.0, 0.0]))[2] > 0.1  # also near the bound
    assert distribution_for(action_size=2) == squashed
    assert hash(distribution_for(action_size=2)) == hash(squashed)
    assert squashed != plain


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: distribution_for(), ("one of num_actions", "action_size")),
        (lambda: distribution_for(num_actions=2, action_size=2), ("one of num_actions", "action_size")),
        (lambda: distribution_for(num_actions=0), ("at least one action",)),
        (lambda: ActionDistribution("beta", 2), ("action distribution", "'beta'")),
        (lambda: distribution_for(action_size=2, min_log_std=3.0), ("min_log_std", "max_log_std")),
        (lambda: distribution_for(action_size=2, min_log_std=math.nan), ("min_log_std=nan", "max_log_std")),
        (lambda: distribution_for(action_size=2, max_log_std=math.nan), ("min_log_std", "max_log_std=nan")),
        (
            lambda: distribution_for(action_size=2, log_std_bound="clipped"),
            ("log_std_bound", "'clipped'", "clip or tanh"),
        ),
        (lambda: distribution_for(action_size=2)(jnp.zeros(3)), ("4 parameters", "got 3")),
    ],
)
def test_nonsense_is_refused_in_words(build, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        build()


def test_the_entropy_of_a_standard_normal() -> None:
    """The entropy is ``1/2 (log 2 pi + 1)``."""
    np.testing.assert_allclose(Normal(jnp.zeros(1), jnp.ones(1)).entropy(), 1.4189, atol=5e-5)

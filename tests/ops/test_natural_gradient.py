"""Fisher products equal dense matrices, conjugate gradients a solver; line searches follow a script."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from evorl.distributions import Categorical, Normal
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.natural_gradient import (
    Step,
    TrustRegion,
    conjugate_gradient,
    hessian_product,
    score_product,
    trajectory_sums,
)

T, B, FEATURES, ACTIONS = 6, 4, 3, 2
OBS = jax.random.normal(jax.random.key(0), (T, B, FEATURES))
DONES = jnp.zeros((T, B)).at[np.array([2, 5, 0, 3]), np.array([0, 1, 2, 2])].set(1.0)


@functools.cache
def _params(kind: str) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(1), 3)
    params = {
        "hidden": jax.random.normal(keys[0], (FEATURES, 5)),
        "head": jax.random.normal(keys[1], (5, ACTIONS)),
        "bias": jnp.array([0.3, -0.2]),
    }
    return params if kind == "categorical" else params | {"log_std": jnp.array([0.2, -0.4])}


def _policy(params: dict[str, jax.Array], obs: jax.Array) -> Any:
    outputs = jnp.tanh(obs @ params["hidden"]) @ params["head"] + params["bias"]
    if "log_std" not in params:
        return Categorical(outputs)
    return Normal(outputs, jnp.exp(params["log_std"]))


def _divergence(params: dict, obs: jax.Array) -> Callable[[dict], jax.Array]:
    return lambda new: _policy(params, obs).kl(_policy(new, obs)).mean()


def _random_like(params: dict, seed: int) -> dict:
    return jax.tree.map(lambda x: jax.random.normal(jax.random.key(seed), x.shape), params)


def _dense(fn: Callable[[dict], jax.Array], params: dict) -> np.ndarray:
    flat, unravel = ravel_pytree(params)
    return np.asarray(jax.jit(jax.hessian(lambda x: fn(unravel(x))))(flat), np.float64)


def _flat(tree: dict) -> np.ndarray:
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])


def _relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("kind", ["categorical", "normal"])
def test_hessian_product_is_that_of_the_dense_hessian(kind: str) -> None:
    params = _params(kind)
    fn = _divergence(params, OBS)
    vector = _random_like(params, 2)
    product = jax.jit(lambda v: hessian_product(fn, params)(v))(vector)
    assert _relative_error(_flat(product), _dense(fn, params) @ _flat(vector)) <= 1e-4
    both = jax.tree.map(lambda x: np.stack([x, 2 * x]), vector)
    several = jax.jit(jax.vmap(hessian_product(fn, params)))(both)
    assert _relative_error(_flat(jax.tree.map(lambda x: np.asarray(x)[1], several)), 2 * _flat(product)) <= 1e-4


@pytest.mark.parametrize("kind", ["categorical", "normal"])
def test_the_hessian_of_the_divergence_is_the_fisher_matrix(kind: str) -> None:
    """The Hessian equals the mean outer product of scores over many sampled actions."""
    params, obs = _params(kind), OBS[:1, :2]
    flat, unravel = ravel_pytree(params)

    @jax.jit
    @jax.vmap
    def scores_of(key: jax.Array) -> jax.Array:
        actions = _policy(params, obs).sample(key)
        return jax.jacobian(lambda x: _policy(unravel(x), obs).log_prob(actions))(flat)

    scores = scores_of(jax.random.split(jax.random.key(3), 40_000))
    scores = np.asarray(scores, np.float64).reshape(-1, flat.size)
    assert _relative_error(scores.T @ scores / len(scores), _dense(_divergence(params, obs), params)) < 0.03


def _actions(params: dict) -> jax.Array:
    return jax.jit(lambda params: _policy(params, OBS).sample(jax.random.key(4)))(params)


@pytest.mark.parametrize("kind", ["categorical", "normal"])
def test_score_product_is_that_of_the_dense_outer_products(kind: str) -> None:
    params = _params(kind)
    actions = _actions(params)
    weights = np.ones((T, B), np.float32)
    weights[:3, 0] = 0.0  # the first trajectory of the first column is excluded
    flat, unravel = ravel_pytree(params)
    jacobian = jax.jit(jax.jacobian(lambda x: _policy(unravel(x), OBS).log_prob(actions)))(flat)
    scores = np.asarray(jacobian, np.float64)
    matrix = np.zeros((flat.size, flat.size))
    for b, bounds in enumerate([(3, 6), (0, 6), (0, 1, 4, 6), (0, 6)]):
        for first, after in itertools.pairwise(bounds):
            score = scores[first:after, b].sum(axis=0)
            matrix += np.outer(score, score) / (T * B)
    vector = _random_like(params, 5)

    def product(vector: dict) -> dict:
        return score_product(lambda p: _policy(p, OBS).log_prob(actions), params, DONES, weights)(vector)

    assert _relative_error(_flat(jax.jit(product)(vector)), matrix @ _flat(vector)) <= 1e-4


def test_score_product_of_three_trajectories_of_known_gradients() -> None:
    """The product equals RELAAX's trpo-d1: the mean of ``g (g v)`` over single steps, plus ``damping v``."""
    gradients, vector = jnp.array([[1.0, 2.0], [0.0, 1.0], [2.0, 0.0]]), np.array([1.0, -1.0], np.float32)

    @jax.jit
    def product(vector: jax.Array) -> jax.Array:
        ones = jnp.ones((1, 3))
        return score_product(lambda p: (gradients @ p)[None], jnp.zeros(2), ones, ones)(vector)

    np.testing.assert_allclose(np.asarray(product(vector)) + 0.1 * vector, [1.1, -1.1], rtol=1e-6)


def test_both_products_agree_over_many_trajectories_of_one_step() -> None:
    """Both products estimate the same matrix for single steps with the policy's own actions."""
    params = _params("categorical")
    obs = np.tile(OBS, (1000, 1, 1))

    @jax.jit
    def products(vector: dict, obs: jax.Array) -> tuple[dict, dict]:
        actions = _policy(params, obs).sample(jax.random.key(6))
        exact = hessian_product(_divergence(params, obs), params)(vector)
        sampled = score_product(
            lambda p: _policy(p, obs).log_prob(actions), params, jnp.ones(obs.shape[:2]), jnp.float32(1)
        )
        return sampled(vector), exact

    sampled, exact = products(_random_like(params, 7), obs)
    assert _relative_error(_flat(sampled), _flat(exact)) < 0.05


def test_sums_of_trajectories() -> None:
    values, sums_of = np.arange(1, 7, dtype=np.float32)[:, None], jax.jit(trajectory_sums)
    for dones, expected in (
        ([0, 1, 0, 0, 1, 0], [3, 3, 12, 12, 12, 6]),
        ([0, 1, 0, 0, 1, 1], [3, 3, 12, 12, 12, 6]),
        ([0] * 6, [21] * 6),
    ):
        np.testing.assert_allclose(sums_of(values, np.array(dones)[:, None])[:, 0], expected)


def test_conjugate_gradient_solves() -> None:
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(8, 8))
    matrix = jnp.asarray(factor @ factor.T + 0.5 * np.eye(8), jnp.float32)
    target = {"a": jnp.asarray(rng.normal(size=3)), "b": jnp.asarray(rng.normal(size=5))}
    flat, unravel = ravel_pytree(target)

    def product(vector: dict) -> dict:
        return unravel(matrix @ ravel_pytree(vector)[0])

    solve = jax.jit(lambda t, num: conjugate_gradient(product, t, num), static_argnums=1)
    solution = solve(target, 16)
    np.testing.assert_allclose(_flat(solution), np.linalg.solve(matrix, np.asarray(flat)), rtol=2e-3, atol=1e-4)
    few, more = (np.linalg.norm(np.asarray(matrix) @ _flat(solve(target, num)) - np.asarray(flat)) for num in (1, 4))
    assert more < few
    nothing = solve(jax.tree.map(jnp.zeros_like, target), 16)
    np.testing.assert_array_equal(_flat(nothing), np.zeros(8))


def test_the_whole_step_has_the_divergence_of_the_region() -> None:
    params = _params("categorical")
    region = TrustRegion(max_kl=1e-4, damping=0.0, cg_iterations=40)
    fn, gradient = _divergence(params, OBS), _random_like(params, 8)
    gradient = jax.jit(lambda g: hessian_product(fn, params)(g))(gradient)  # in the range of the singular matrix
    step_along = jax.jit(lambda g: region.step(hessian_product(fn, params), g))
    step = step_along(gradient)
    np.testing.assert_allclose(jax.jit(fn)(jax.tree.map(np.add, params, step.change)), 1e-4, rtol=0.05)
    np.testing.assert_allclose(step.expected_gain, _flat(gradient) @ _flat(step.change), rtol=1e-5)
    assert float(step.expected_gain) > 0
    still = step_along(jax.tree.map(np.zeros_like, gradient))
    np.testing.assert_array_equal(_flat(still.change), 0.0)


@pytest.mark.parametrize("damping", [0.0, 0.1, 10.0])
def test_the_step_is_that_of_an_explicit_matrix(damping: float) -> None:
    """The change is ``sqrt(2 max_kl / s^T F s) s`` with ``s = F^-1 g``, where the damping is part of ``F``."""
    rng = np.random.default_rng(1)
    factor, gradient = rng.normal(size=(6, 6)), rng.normal(size=6)
    matrix = factor @ factor.T + 0.5 * np.eye(6)
    damped = matrix + damping * np.eye(6)
    direction = np.linalg.solve(damped, gradient)
    expected = np.sqrt(2 * 0.02 / (direction @ damped @ direction)) * direction
    region = TrustRegion(max_kl=0.02, damping=damping, cg_iterations=30)
    step = jax.jit(lambda g: region.step(lambda v: jnp.asarray(matrix, jnp.float32) @ v, g))(jnp.asarray(gradient))
    np.testing.assert_allclose(step.change, expected, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(step.expected_gain, gradient @ expected, rtol=1e-3)


def _parabola(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return gain ``x - x^2`` and divergence ``x^2 / 2``."""
    return x - x**2, 0.5 * x**2


SEARCHES = {
    # first fraction, changed defaults -> fraction, number of trials
    "the whole step": ({"max_kl": 1.0}, 0.4, 1.0, 1.0, 1),
    "less gain than promised": ({"max_kl": 1.0, "accept_ratio": 0.3}, 1.0, 1.0, 0.5, 2),
    "too far": ({"max_kl": 0.04}, 0.8, 1.0, 0.25, 3),
    "a later start": ({"max_kl": 1.0}, 0.4, 2.0, 2.0, 1),
    "none of them": ({"max_kl": 1e-9}, 0.8, 1.0, 0.0, 4),
}


# The gain is 0.05 of the expected one and the divergence 1.4 times the bound: one rule accepts, the other rejects.
RULES = {
    # the rule, gain, divergence, expected gain -> accepted
    "the gain is too small": ("gain", 0.05, 0.0, 1.0, False),
    "the divergence does not matter": ("gain", 0.2, 100.0, 1.0, True),
    "no gain": ("gain", 0.0, 0.0, 1.0, False),
    "a small gain will do": ("divergence", 0.05, 0.014, 1.0, True),
    "no loss will do": ("divergence", 0.0, 0.014, 1.0, True),
    "a loss will not": ("divergence", -1e-6, 0.0, 1.0, False),
    "too far": ("divergence", 1.0, 0.016, 1.0, False),
    "infinite": ("divergence", np.inf, 0.0, 1.0, False),
    "both": ("gain_and_divergence", 0.2, 0.009, 1.0, True),
    "both but the bound": ("gain_and_divergence", 0.2, 0.011, 1.0, False),
    "both but the gain": ("gain_and_divergence", 0.05, 0.009, 1.0, False),
}


@pytest.mark.parametrize("name", RULES)
def test_a_step_is_accepted_by_its_rule(name: str) -> None:
    rule, gain, divergence, expected, accepted = RULES[name]
    region = TrustRegion(max_kl=0.01, accept_by=rule)
    assert bool(region.accepts(*map(jnp.float32, (gain, divergence, expected)))) is accepted


@pytest.mark.parametrize("rule", ["gain", "divergence", "gain_and_divergence"])
def test_a_search_halves_and_keeps_the_old_parameters_where_it_fails(rule: str) -> None:
    """A line search halves the step at most ten times, like RELAAX's, and keeps the old parameters if it fails."""
    region = TrustRegion(accept_by=rule, backtrack_factor=0.5, max_kl=1e-3)
    step, old = Step(jnp.float32(0.5), jnp.float32(0.5)), jnp.float32(2.0)

    def search(sign: jax.Array) -> Any:
        return region.search(lambda x: (sign * (x - old), 0.5 * (x - old) ** 2), old, step)

    found, failed = (jax.jit(search)(sign) for sign in (1.0, -1.0))
    assert bool(found.accepted)
    assert float(found.fraction) == {"gain": 1.0, "divergence": 2.0**-4, "gain_and_divergence": 2.0**-4}[rule]
    assert not bool(failed.accepted)
    assert int(failed.num_trials) == 10
    assert float(failed.params) == 2.0


searched = jax.jit(lambda region, step, first: region.search(_parabola, jnp.float32(0.0), step, first))


@pytest.mark.parametrize("name", SEARCHES)
def test_line_search_by_script(name: str) -> None:
    options, length, first, fraction, num_trials = SEARCHES[name]
    region = TrustRegion(**{"backtrack_factor": 0.5, "max_trials": 4, **options})
    step = Step(jnp.float32(length), jnp.float32(length))
    found = searched(region, step, first)
    np.testing.assert_allclose(found.fraction, fraction)
    np.testing.assert_allclose(found.params, fraction * length, rtol=1e-6)
    assert int(found.num_trials) == num_trials
    assert bool(found.accepted) == (fraction > 0)


@pytest.mark.parametrize(
    "evaluate",
    [lambda x: (-x, 0.0 * x), lambda x: (jnp.nan * x, 0.0 * x), lambda x: (x, jnp.nan * x), lambda x: (0 * x, 0 * x)],
    ids=["loss", "gain is not a number", "divergence is not a number", "nothing"],
)
def test_a_failed_search_keeps_the_parameters(evaluate: Callable) -> None:
    old = {"a": jnp.array([0.1, -0.7]), "b": jnp.float32(3.0)}
    step = Step(jax.tree.map(jnp.ones_like, old), jnp.float32(1.0))
    found = jax.jit(lambda old, step: TrustRegion().search(lambda p: evaluate(p["b"]), old, step))(old, step)
    assert not bool(found.accepted)
    jax.tree.map(np.testing.assert_array_equal, found.params, old)
    np.testing.assert_array_equal(found.fraction, 0.0)


def test_searches_side_by_side_end_on_their_own() -> None:
    region = TrustRegion(max_kl=0.04, backtrack_factor=0.5, max_trials=4)

    def search(length: jax.Array) -> Any:
        return region.search(_parabola, jnp.float32(0.0), Step(length, length))

    found = jax.jit(jax.vmap(search))(np.array([0.2, 0.8, 8.0], np.float32))
    np.testing.assert_allclose(found.fraction, [1.0, 0.25, 0.0])
    np.testing.assert_array_equal(found.num_trials, [1, 3, 4])


def test_an_adaptive_search_begins_where_the_last_one_ended() -> None:
    region = TrustRegion(max_kl=0.04, backtrack_factor=0.5, max_trials=4, growth=1.5)
    first, begun = jnp.float32(1.0), []
    after = jax.jit(lambda region, step, first: region.next_first_fraction(searched(region, step, first)))
    for length in (0.8, 0.8, 0.8, 80.0, 0.2):
        begun.append(float(first))
        step = Step(jnp.float32(length), jnp.float32(length))
        first = after(region, step, first)
    # 0.8: a quarter is accepted; then a quarter at once; then 0.375 is too far and its half accepted; 80 fails.
    np.testing.assert_allclose(begun, [1.0, 0.25, 0.375, 0.1875, 1.0])
    np.testing.assert_allclose(first, 1.5)


def test_devices_share_the_rows_of_products() -> None:
    params = _params("categorical")
    vector, actions = _random_like(params, 9), _actions(params)

    def products(obs: jax.Array, actions: jax.Array, dones: jax.Array) -> tuple:
        exact = hessian_product(_divergence(params, obs), params)
        weights = jnp.ones_like(dones)
        return exact(vector), score_product(lambda p: _policy(p, obs).log_prob(actions), params, dones, weights)(vector)

    rows, whole = PartitionSpec(None, DATA_AXIS), PartitionSpec()
    mesh = jax.make_mesh((2,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    shared = jax.jit(jax.shard_map(products, mesh=mesh, in_specs=(rows,) * 3, out_specs=whole, check_vma=False))
    for actual, expected in zip(shared(OBS, actions, DONES), jax.jit(products)(OBS, actions, DONES), strict=True):
        assert _relative_error(_flat(actual), _flat(expected)) <= 1e-5

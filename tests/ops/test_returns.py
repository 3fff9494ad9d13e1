"""Returns equal slow loops that follow the definitions, and each other in special cases."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from evorl.ops import returns
from evorl.ops.platform import compiled_for
from tests.support.errors import raises_naming

DISCOUNT, LAMBDA = 0.9, 0.7
T, B = 7, 3


@pytest.fixture(scope="module")
def window() -> dict[str, np.ndarray]:
    """Return a window: column 0 has no end, column 1 terminates at t=2, column 2 is truncated at t=3 and terminates
    last.
    """
    rng = np.random.default_rng(0)
    terminations, truncations = np.zeros((T, B), np.float32), np.zeros((T, B), np.float32)
    terminations[2, 1] = truncations[3, 2] = terminations[-1, 2] = 1.0
    values = rng.normal(size=(T, B)).astype(np.float32)
    next_values = rng.normal(size=(T, B)).astype(np.float32)
    dones = np.maximum(terminations, truncations)
    # Within an episode the successor of step t is the state of step t + 1.
    next_values[:-1] = np.where(dones[:-1] > 0, next_values[:-1], values[1:])
    return {
        "rewards": rng.normal(size=(T, B)).astype(np.float32),
        "values": values,
        "next_values": next_values,
        "terminations": terminations,
        "dones": dones,
    }


def _without_values(window: dict) -> dict:
    return {name: array for name, array in window.items() if name != "values"}


def _slow_lambda_return(w: dict, lambda_: float, discount: float = DISCOUNT) -> np.ndarray:
    """Return the weighted mean of n-step returns, cut at the end of episode or window (Sutton & Barto, eq. 12.3)."""
    result = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            total, weight, reward_sum, factor = 0.0, 1.0, 0.0, 1.0
            for k in range(t, T):
                reward_sum += factor * w["rewards"][k, b]
                factor *= discount
                estimate = reward_sum + factor * (1 - w["terminations"][k, b]) * w["next_values"][k, b]
                if w["dones"][k, b] or k == T - 1:
                    total += weight * estimate
                    break
                total += weight * (1 - lambda_) * estimate
                weight *= lambda_
            result[t, b] = total
    return result


def test_linear_recurrence_follows_its_definition() -> None:
    a, b = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 2.0, 0.1])
    x = returns.linear_recurrence(a, b, final=10.0)
    np.testing.assert_allclose(x, [1 + 0.5 * (2 + 2 * 4.0), 2 + 2 * 4.0, 3 + 0.1 * 10], rtol=1e-6)
    np.testing.assert_allclose(returns.linear_recurrence(a, 1.0), [6, 5, 3])


@pytest.mark.parametrize("lambda_", [0.0, LAMBDA, 1.0])
def test_gae_targets_are_lambda_returns(window: dict, lambda_: float) -> None:
    advantages, targets = jax.jit(returns.gae)(**window, discount=DISCOUNT, gae_lambda=lambda_)
    expected = _slow_lambda_return(window, lambda_)
    np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantages, expected - window["values"], rtol=1e-4, atol=1e-5)
    direct = returns.lambda_return(**_without_values(window), discount=DISCOUNT, lambda_=lambda_)
    np.testing.assert_allclose(direct, expected, rtol=1e-4, atol=1e-5)


gae_of, lambda_return_of, vtrace_of = jax.jit(returns.gae), jax.jit(returns.lambda_return), jax.jit(returns.vtrace)


@given(
    flags=arrays.arrays(np.bool_, (2, T, B)),
    discount=st.sampled_from([0.0, DISCOUNT, 1.0]),
    lambda_=st.sampled_from([0.0, LAMBDA, 1.0]),
)
def test_episodes_may_end_anywhere(flags: np.ndarray, discount: float, lambda_: float) -> None:
    """Returns equal loops for any terminations and truncations, at the first and last step too, and V-trace on policy
    has the same targets.
    """
    rng = np.random.default_rng(0)
    dones, (rewards, values, next_values) = flags.any(axis=0), rng.normal(size=(3, T, B)).astype(np.float32)
    next_values[:-1] = np.where(dones[:-1], next_values[:-1], values[1:])
    w = {"rewards": rewards, "values": values, "next_values": next_values, "terminations": flags[0], "dones": dones}
    expected = _slow_lambda_return(w, lambda_, discount)
    advantages, targets = gae_of(**w, discount=discount, gae_lambda=lambda_)
    direct = lambda_return_of(**_without_values(w), discount=discount, lambda_=lambda_)
    on_policy = vtrace_of(**w, log_ratios=np.zeros((T, B), np.float32), discount=discount, lambda_=lambda_)
    for found in (targets, advantages + values, direct, on_policy.value_targets, on_policy.advantages + values):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    ones = jnp.ones((1,))
    for terminated, truncated, expected in ((1.0, 0.0, 1.0), (0.0, 1.0, 1.0 + DISCOUNT * 5.0), (1.0, 1.0, 1.0)):
        done = jnp.maximum(terminated, truncated) * ones
        _, targets = returns.gae(ones, 2 * ones, 5 * ones, terminated * ones, done, discount=DISCOUNT, gae_lambda=0.95)
        np.testing.assert_allclose(targets, [expected], rtol=1e-6)


def test_nothing_leaks_over_the_end_of_an_episode(window: dict) -> None:
    poisoned = {name: array.copy() for name, array in window.items()}
    for name in ("rewards", "values", "next_values"):
        poisoned[name][3:, 1] = 1e6
        poisoned[name][4:, 2] = 1e6
    for fn in (
        lambda w: returns.gae(**w, discount=DISCOUNT, gae_lambda=LAMBDA)[0],
        lambda w: returns.vtrace(**w, log_ratios=jnp.zeros((T, B)), discount=DISCOUNT).advantages,
        lambda w: returns.vtrace(**w, log_ratios=jnp.zeros((T, B)), discount=DISCOUNT).value_targets,
        lambda w: returns.n_step_return(**_without_values(w), discount=DISCOUNT, num_steps=5),
    ):
        np.testing.assert_array_equal(fn(poisoned)[:3, 1], fn(window)[:3, 1])
        np.testing.assert_array_equal(fn(poisoned)[:4, 2], fn(window)[:4, 2])


@pytest.mark.parametrize("num_steps", [1, 3, 20])
def test_n_step_return(window: dict, num_steps: int) -> None:
    result = returns.n_step_return(**_without_values(window), discount=DISCOUNT, num_steps=num_steps)
    expected = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            factor = 1.0
            for k in range(t, min(t + num_steps, T)):
                expected[t, b] += factor * window["rewards"][k, b]
                factor *= DISCOUNT
                if window["dones"][k, b]:
                    break
            expected[t, b] += factor * (1 - window["terminations"][k, b]) * window["next_values"][k, b]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_n_step_return_needs_a_step(window: dict) -> None:
    with raises_naming(ValueError, "num_steps", "got 0"):
        returns.n_step_return(**_without_values(window), discount=DISCOUNT, num_steps=0)


def test_discounted_return() -> None:
    rewards, dones = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.0, 1.0, 0.0])
    np.testing.assert_allclose(returns.discounted_return(rewards, dones, 0.5, final_values=8.0), [2.0, 2.0, 8.0])


def test_vtrace_follows_equation_1(window: dict) -> None:
    """Targets equal the sum over k of eq. 1, with both clips active."""
    log_ratios = np.random.default_rng(1).normal(size=(T, B)).astype(np.float32)
    rho, c = np.minimum(np.exp(log_ratios), 0.9), np.minimum(np.exp(log_ratios), 0.8)
    w = window
    deltas = rho * (w["rewards"] + DISCOUNT * (1 - w["terminations"]) * w["next_values"] - w["values"])
    expected = w["values"].astype(np.float64)
    for s in range(T):
        for b in range(B):
            product = 1.0
            for k in range(s, T):
                expected[s, b] += product * deltas[k, b]
                product *= DISCOUNT * c[k, b] * (1 - w["dones"][k, b])
    result = jax.jit(returns.vtrace)(**w, log_ratios=log_ratios, discount=DISCOUNT, clip_rho=0.9, clip_c=0.8)
    np.testing.assert_allclose(result.value_targets, expected, rtol=1e-4, atol=1e-5)
    # Section 4.2: the advantage uses r + discount v_{t+1}, at the end of an episode the successor's value.
    following = np.concatenate([expected[1:], np.zeros((1, B))])
    is_last = np.arange(T)[:, None] == T - 1
    following = np.where((w["dones"] > 0) | is_last, w["next_values"], following)
    q_values = w["rewards"] + DISCOUNT * (1 - w["terminations"]) * following
    advantages = np.minimum(np.exp(log_ratios), 1.0) * (q_values - w["values"])
    np.testing.assert_allclose(result.advantages, advantages, rtol=1e-4, atol=1e-5)


def test_vtrace_on_policy_is_gae(window: dict) -> None:
    on_policy = returns.vtrace(**window, log_ratios=jnp.zeros((T, B)), discount=DISCOUNT, lambda_=LAMBDA)
    advantages, targets = returns.gae(**window, discount=DISCOUNT, gae_lambda=LAMBDA)
    np.testing.assert_allclose(on_policy.advantages, advantages, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(on_policy.value_targets, targets, rtol=1e-4, atol=1e-6)


def test_flags_may_be_bools_and_batch_axes_any(window: dict) -> None:
    expected, _ = returns.gae(**window, discount=DISCOUNT, gae_lambda=LAMBDA)
    reshaped = {name: array.reshape(T, 1, B, 1) for name, array in window.items()}
    for name in ("terminations", "dones"):
        reshaped[name] = reshaped[name].astype(bool)
    advantages, _ = returns.gae(**reshaped, discount=DISCOUNT, gae_lambda=LAMBDA)
    np.testing.assert_allclose(advantages.reshape(T, B), expected, rtol=1e-6)


def test_shapes_are_checked(window: dict) -> None:
    with pytest.raises(AssertionError, match="shape"):
        returns.gae(**{**window, "next_values": window["next_values"][:-1]}, discount=DISCOUNT, gae_lambda=LAMBDA)


@pytest.mark.parametrize(
    ("rewards", "values", "last", "discount", "lambda_", "expected"),
    [
        ([1, 1, 1], [0.5, 0.5, 0.5], 0.2, 0.97, 0.95, [2.4820, 1.6245, 0.6940]),
        ([1, 0, 2], [0.5, 0.25, 1.0], 0.4, 0.9, 0.8, [1.8980, 1.6292, 1.36]),
        ([1, 0, 2], [0.5, 0.25, 1.0], 0.4, 0.9, 1.0, [2.4116, 1.874, 1.36]),
    ],
)
def test_advantages_as_relaax_has_them(
    rewards: list[float], values: list[float], last: float, discount: float, lambda_: float, expected: list[float]
) -> None:
    """Advantages equal RELAAX's DPPO and DA3C; the returns of DA3C are the targets with lambda 1."""
    now, following = jnp.array(values, jnp.float32), jnp.array([*values[1:], last], jnp.float32)
    going_on = jnp.zeros(3)
    steps = (jnp.array(rewards, jnp.float32), now, following, going_on, going_on)
    advantages, targets = returns.gae(*steps, discount=discount, gae_lambda=lambda_)
    np.testing.assert_allclose(advantages, expected, atol=5e-5)
    np.testing.assert_allclose(targets, np.asarray(expected) + values, atol=5e-5)


def test_accelerators_follow_the_same_recursion(window: dict) -> None:
    """Several steps at a time; rows are repeated so that the window is longer than those."""
    longer = {name: np.tile(array, (5, 1)) for name, array in window.items()}
    expected = returns.gae(**longer, discount=DISCOUNT, gae_lambda=LAMBDA)
    with compiled_for("gpu"):
        assert len(longer["rewards"]) > returns.STEPS_AT_ONCE
        found = returns.gae(**longer, discount=DISCOUNT, gae_lambda=LAMBDA)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, expected)

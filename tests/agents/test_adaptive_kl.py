"""Adaptive learning rates of PPO: the rule, the divergence that it reads, and the step to which it applies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.agents import adaptive_kl
from evorl.agents.adaptive_kl import (
    FACTOR,
    HIGHEST,
    LOWEST,
    adaptive_gradient_step,
    init_adaptive,
    rate_after,
    with_policies,
)
from evorl.algorithms.ppo import PPOWorkflow
from evorl.distributions import Categorical
from evorl.ops.optimization import Optimizer
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close, small

DESIRED = 0.01
SETTINGS: dict[str, Any] = {"desired_kl": DESIRED, "optimizer": {"name": "sgd", "learning_rate": 9e-3}}


def by_hand(rate: np.float32, divergence: float, desired: float = DESIRED) -> np.float32:
    """Return the learning rate of the rule, in plain NumPy."""
    if divergence > 2.0 * desired:
        return max(np.float32(LOWEST), rate / np.float32(FACTOR))
    if 0.0 < divergence < desired / 2.0:
        return min(np.float32(HIGHEST), rate * np.float32(FACTOR))
    return rate


def test_the_rates_of_a_trace_of_divergences() -> None:
    """The trace includes both bounds, both thresholds, and a divergence of 0, which leaves the rate unchanged."""
    random = np.random.default_rng(0)
    low, high = np.full(25, 1e-4), np.full(25, 0.5)
    recorded = np.concatenate([[0.0], low, [0.0, 0.005, 0.02, 0.01], high, random.exponential(0.012, 150), high, [0.0]])
    recorded = recorded.astype(np.float32)
    trace = jax.jit(
        lambda first: jax.lax.scan(lambda rate, kl: (rate_after(rate, kl, DESIRED),) * 2, first, recorded)[1]
    )
    rate, expected = np.float32(3e-4), []
    for divergence in recorded:
        rate = by_hand(rate, float(divergence))
        expected.append(rate)
    np.testing.assert_allclose(trace(jnp.float32(3e-4)), expected, rtol=2e-6)  # rounding of divisions
    assert {np.float32(LOWEST), np.float32(HIGHEST)} <= set(expected)


@pytest.mark.parametrize(("desired", "factor"), [(1e-12, 1.0 / FACTOR), (1e3, FACTOR)])
def test_the_first_step_on_a_trajectory_leaves_the_rate_unchanged(desired: float, factor: float) -> None:
    """Its divergence is only rounding error, which may be far from the desired one; later steps follow the rule."""
    optimizer, params = Optimizer(name="sgd", learning_rate=3e-4), PyTreeDict(x=jnp.ones(2))

    @jax.vmap
    def two_rates(key: jax.Array) -> jax.Array:
        logits, noise = jnp.array([1.0, 1e-7])[:, None, None] * jax.random.normal(key, (2, 64, 4))

        def loss(params: PyTreeDict, _: AgentState) -> tuple[jax.Array, PyTreeDict]:
            divergence = jnp.abs(Categorical(logits).kl(Categorical(logits + noise)).mean())
            return (params.x**2).sum(), PyTreeDict(kl=divergence)

        start, before = init_adaptive(optimizer, params), AgentState(params=params)
        first, state, _ = adaptive_gradient_step(desired, loss, optimizer, params, start, before)
        _, second, _ = adaptive_gradient_step(desired, loss, optimizer, first, state, before)
        return jnp.stack([state.learning_rate, second.learning_rate])

    rates = two_rates(jax.random.split(jax.random.key(0), 50))
    np.testing.assert_allclose(rates, np.broadcast_to([3e-4, 3e-4 * factor], (50, 2)), rtol=1e-6)


def one_batch(workflow: PPOWorkflow, state: Any) -> Any:
    """Return the batch of the next trajectory, with advantages as the loss reads them."""
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    agent, agent_state = workflow.agent, state.agent_state
    batch = agent.batch_with_advantages(agent_state, trajectory, workflow.discount, workflow.gae_lambda)
    return with_policies(agent, agent_state, batch).flatten().with_standardized_advantages()


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_learning_rates_of_a_training_follow_the_rule(env: str) -> None:
    """Over ten iterations of two updates, the recorded divergences determine the rates; several cases occur."""
    workflow: Any = small("ppo", env, num_epochs=2, num_minibatches=1, **{**SETTINGS, "desired_kl": 2e-5})
    state = workflow.init(0)
    rate, factors = np.float32(9e-3), set()
    for _ in range(10):
        metrics, state = workflow.step(state)
        before = rate
        # The first update of a trajectory has no divergence, so that the mean is half of the second one.
        rate = by_hand(rate, 2.0 * float(metrics.kl), 2e-5)
        np.testing.assert_allclose(state.opt_state.learning_rate, rate, rtol=1e-6)
        np.testing.assert_allclose(metrics.learning_rate, (before + rate) / 2.0, rtol=1e-6)
        factors.add(round(float(rate / before), 1))
    assert len(factors) > 1, factors


def test_a_skipped_update_lowers_the_rate_once() -> None:
    """``target_kl`` below 2 ``desired_kl`` skips the second to fourth update, but the rate that caused it decreases."""
    settings = {"optimizer": {"learning_rate": 9e-3}, "num_minibatches": 1, "desired_kl": 1e-5}
    once, skipping = (small("ppo", **settings, **x) for x in ({"num_epochs": 1}, {"num_epochs": 4, "target_kl": 1e-5}))
    _, expected = once.step(once.init(0))
    _, state = skipping.step(skipping.init(0))
    assert_close(state.agent_state.params, expected.agent_state.params, 1e-6)
    np.testing.assert_allclose(expected.opt_state.learning_rate, 9e-3, rtol=1e-6)
    np.testing.assert_allclose(state.opt_state.learning_rate, 9e-3 / FACTOR, rtol=1e-6)


def test_the_rate_is_that_of_the_present_divergence_and_applies_to_the_same_step() -> None:
    """Two updates equal those by hand: KL(old || new) before the gradient step determines its size."""
    optimizer = {**SETTINGS["optimizer"], "max_grad_norm": None}
    workflow: Any = small("ppo", num_epochs=2, num_minibatches=1, desired_kl=1e-9, optimizer=optimizer)
    state = workflow.init(0)
    agent, before = workflow.agent, state.agent_state
    batch = one_batch(workflow, state)
    params, rate = before.params, np.float32(9e-3)
    for _ in range(2):
        policy = agent.policy(before, params, batch.obs)
        old = agent.policy(before, before.params, batch.obs)
        rate = by_hand(rate, float(old.kl(policy).mean()), 1e-9)
        gradients, _ = jax.grad(agent.loss, has_aux=True)(params, before, batch, jnp.float32(0.0))
        params = jax.tree.map(lambda x, g, step=rate: x - step * g, params, gradients)
    assert rate == np.float32(9e-3) / np.float32(1.5), "the first update changes nothing, the second is too far"
    _, after = workflow.step(state)
    assert_close(after.agent_state.params, params, 1e-5)


def test_the_divergence_is_that_from_the_old_policy_to_the_new_one() -> None:
    workflow: Any = small("ppo", "Pendulum-v1", **SETTINGS)
    state = workflow.init(0)
    batch, agent, agent_state = one_batch(workflow, state), workflow.agent, state.agent_state
    moved = jax.tree.map(lambda x: x + 0.3, agent_state.params)
    _, losses = agent.loss(moved, agent_state, batch, jnp.float32(0.0))
    old, new = (agent.policy(agent_state, params, batch.obs) for params in (agent_state.params, moved))
    np.testing.assert_allclose(losses.kl, old.kl(new).mean(), rtol=1e-5)
    assert abs(float(old.kl(new).mean() - new.kl(old).mean())) > 0.01, "the two directions differ"
    assert "kl" not in agent.loss(moved, agent_state, batch.replace(policy=None), jnp.float32(0.0))[1]


def test_policies_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On accelerators, the policies of long trajectories are computed a few steps at a time."""
    workflow: Any = small("ppo", "Pendulum-v1", **SETTINGS)
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    batch = workflow.agent.batch_of(trajectory)
    whole = with_policies(workflow.agent, state.agent_state, batch).policy
    monkeypatch.setattr(adaptive_kl, "on_cpu", lambda: False)
    monkeypatch.setattr(adaptive_kl, "ROWS_AT_ONCE", 3 * batch.log_probs.shape[1])
    assert_close(with_policies(workflow.agent, state.agent_state, batch).policy, whole, 1e-6)


def test_all_devices_use_the_rate_of_the_whole_minibatch() -> None:
    """A device that read only its own divergence would take another learning rate."""
    states = []
    for devices in (1, 2):
        workflow = small("ppo", devices=devices, **{**SETTINGS, "desired_kl": 2e-5})
        state = workflow.init(0)
        for _ in range(3):
            _, state = workflow.step(state)
        states.append(PyTreeDict(rate=state.opt_state.learning_rate, params=state.agent_state.params))
    assert_close(states[1], states[0], 1e-4)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"optimizer": {"learning_rate": {"start": 1e-3}}}, ("desired_kl=0.01", "optimizer.learning_rate=0.001")),
        ({"optimizer": {"name": "rprop", "learning_rate": 1e-3}}, ("desired_kl=0.01", "rprop", "adam")),
        ({"num_value_epochs": 3}, ("desired_kl=0.01", "num_value_epochs=3")),
        ({"desired_kl": 0.0}, ("desired_kl", "got 0")),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("ppo", **{**SETTINGS, **changes})

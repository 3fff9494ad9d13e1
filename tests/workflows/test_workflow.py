"""The contract: setup, steps and evaluations compose, and consist of the declared parts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.execution.collector import PROGRAM, ProgramCollector, iterate
from evorl.execution.trainable import Capabilities, Execution, collected_by
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close, assert_identical, small

ALGORITHMS = ["ppo", "sac"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_kind_of_key_starts_the_same(algorithm: str) -> None:
    workflow = small(algorithm)
    expected = workflow.init(3)
    assert_identical(workflow.init(jax.random.key(3)), expected)
    assert_identical(workflow.init(jax.random.PRNGKey(3)), expected)
    with raises_naming(TypeError, "key", "got 'three'"):
        workflow.init("three")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_is_collect_then_update(algorithm: str) -> None:
    workflow = small(algorithm)
    state = workflow.init(0)

    @jax.jit
    def by_hand(workflow: Workflow, state):
        batch, collected = workflow.collect(state)
        return workflow.update(collected, batch)

    metrics, after = by_hand(workflow, state)
    expected_metrics, expected = workflow.step(state)
    assert_close(metrics, expected_metrics, 1e-5)
    assert_close(after.agent_state, expected.agent_state, 1e-5)
    assert (int(after.iterations), int(expected.iterations)) == (0, 1)


def test_steps_compose_with_scan() -> None:
    workflow = small("ppo")
    state = workflow.init(0)
    scanned, metrics = jax.jit(lambda state: jax.lax.scan(lambda s, _: workflow.step(s)[::-1], state, length=3))(state)
    for _ in range(3):
        last, state = workflow.step(state)
    assert_close(scanned.agent_state.params, state.agent_state.params, 1e-5)
    np.testing.assert_allclose(metrics.value_loss[-1], last.value_loss, rtol=1e-4)
    assert int(scanned.iterations) == 3


def test_seeds_evaluate_side_by_side() -> None:
    together = small("ppo", num_seeds=2)
    state = together.init(4)
    metrics = together.evaluate(state)
    assert metrics.episode_return.shape == (2,)
    alone = small("ppo")
    np.testing.assert_allclose(metrics.episode_return[1], alone.evaluate(alone.init(5)).episode_return, rtol=1e-5)


def test_an_evaluation_depends_on_the_iteration_and_the_seed() -> None:
    workflow = small("ppo", "Pendulum-v1")
    state = workflow.init(0)
    now = float(workflow.evaluate(state).episode_return)
    later = float(workflow.evaluate(state.replace(iterations=state.iterations.add(1))).episode_return)
    assert now != later
    assert now == float(workflow.evaluate(state.replace(key=jax.random.key(9))).episode_return)


def test_close_may_be_called_twice() -> None:
    workflow = small("ppo")
    workflow.close()
    workflow.close()


@pytest.mark.parametrize(
    ("algorithm", "options", "expected"),
    [
        ("ppo", {}, Capabilities(rollouts=True)),
        ("ppo", {"normalize_rewards": True}, Capabilities(rollouts=True, single_steps=False)),
        (
            "trpo",
            {"episodes_per_batch": 2, "rollout_length": 10},
            Capabilities(),
        ),  # episodes restart before each rollout
        ("impala", {}, Capabilities(rollouts=True, lag=True)),
        ("sac", {}, Capabilities(rollouts=True, lag=True)),
        ("sac", {"n_step": 2}, Capabilities(rollouts=True, lag=True, single_steps=False)),
        ("sac", {"reward_bound": 5.0}, Capabilities(rollouts=True, lag=True, single_steps=False)),
        ("neuroevolution", {}, Capabilities()),
    ],
)
def test_capabilities(algorithm: str, options: dict[str, Any], expected: Capabilities) -> None:
    assert small(algorithm, **options).capabilities == expected


def test_the_collector_is_that_of_the_execution() -> None:
    workflow, other = small("ppo"), ProgramCollector(is_one_program=False)
    assert workflow.collector is PROGRAM
    collected = collected_by(workflow, other)
    assert collected.collector is other
    assert collected_by(collected, None).execution == workflow.execution == Execution(in_order=True)


def test_iterations_equal_steps() -> None:
    workflow = small("ppo")
    _, expected = workflow.step(workflow.step(workflow.init(0))[1])
    metrics, state = iterate(workflow, workflow.init(0), 2)
    assert_close(state.agent_state, expected.agent_state, 1e-5)
    assert metrics is not None
    assert int(state.iterations) == 2


@pytest.mark.parametrize(("algorithm", "options"), [("sac", {}), ("neuroevolution", {"eval_interval": 0})])
def test_the_64_bit_mode_of_jax_is_named_as_the_cause(algorithm: str, options: dict[str, Any]) -> None:
    """Actions of 64 bits do not fit the replay buffer, and mutated parameters of 64 bits not the state."""
    with jax.enable_x64(True):
        workflow = small(algorithm, "Pendulum-v1", **options)
        with raises_naming(ValueError, "jax_enable_x64", "JAX_ENABLE_X64") as raised:
            workflow.learn()
    assert "float64" in str(raised.value.__cause__)

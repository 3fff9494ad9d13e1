"""Resets of networks and optimizers: their number, and the entries that they renew and keep."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.types import PyTreeDict, State
from evorl.workflows.nested_learner import UPDATES_AT_ONCE, learn_in_blocks
from evorl.workflows.off_policy import OffPolicyWorkflow
from tests.support.errors import raises_naming
from tests.support.gpu_programs import broken_rules, lowered_for_gpus
from tests.support.small_workflows import arrays, assert_identical, small

STARTS = {"learning_starts": 0, "updates_per_iteration": 2}
ALGORITHMS = {
    "sac": "Pendulum-v1",
    "tqc": "Pendulum-v1",
    "discor": "Pendulum-v1",
    "crossq": "Pendulum-v1",
    "td3": "Pendulum-v1",
    "dqn": "CartPole-v1",
    "r2d2": "CartPole-v1",
}


def _states(workflow: OffPolicyWorkflow, num_steps: int) -> list[State]:
    """Return the first state and that after each of some iterations."""
    states: list[Any] = [workflow.init(0)]
    for _ in range(num_steps):
        states.append(workflow.step(states[-1])[1])
    return states


def _steps_of_optimizers(opt_state: Any) -> set[int]:
    """Return the numbers of updates that the optimizers have counted."""
    return {int(x) for x in jax.tree.leaves(opt_state) if np.issubdtype(x.dtype, np.integer)}


def test_networks_and_optimizers_are_renewed_where_due_only() -> None:
    """With two updates per iteration, the numbers 3 and 8 are reached by the second and the fourth iteration."""
    plain = _states(small("sac", "Pendulum-v1", agent={"network": {"torso": [8]}, "normalize_obs": True}, **STARTS), 2)
    workflow = small(
        "sac", "Pendulum-v1", resets=[3, 8], agent={"network": {"torso": [8]}, "normalize_obs": True}, **STARTS
    )
    states = _states(workflow, 5)
    assert [_steps_of_optimizers(state.opt_state.optimizers) for state in states] == [{0}, {2}, {0}, {2}, {0}, {2}]
    assert [int(state.opt_state.num_updates) for state in states] == [0, 2, 4, 6, 8, 10]
    assert_identical(states[1].agent_state, plain[1].agent_state)
    for after in (states[2], states[4]):
        fresh, learned = after.agent_state.params, states[1].agent_state.params
        assert float(fresh.log_temperature) == float(states[0].agent_state.params.log_temperature)
        assert_identical(fresh.target_critic, fresh.critic)  # fresh, too
        for name in ("policy", "critic", "target_critic"):
            pairs = zip(arrays(fresh[name]).items(), arrays(learned[name]).values(), strict=True)
            assert all((x != y).mean() > 0.9 for (path, x), y in pairs if "kernel" in path)
        assert not any(np.asarray(x).any() for x in jax.tree.leaves(after.opt_state.optimizers))  # also both moments
    first, second = (arrays(states[i].agent_state.params.critic) for i in (2, 4))
    assert all((first[path] != second[path]).all() for path in first if "kernel" in path)  # each has its own weights
    # Statistics of observations and transitions are as without resets.
    assert_identical(states[2].agent_state.obs_preprocessor_state, plain[2].agent_state.obs_preprocessor_state)
    assert int(states[2].replay_state.size) == int(plain[2].replay_state.size)


def test_a_reset_ends_in_what_a_fresh_learner_starts_with() -> None:
    """Also projections and the network's running statistics: critics of XQC."""
    unit_norm = {"projection": "unit_norm"}
    optimizers = {"actor_optimizer": unit_norm, "critic_optimizer": unit_norm}
    workflow = small("crossq", "Pendulum-v1", resets=[2], **optimizers, **STARTS)
    first, after = _states(workflow, 1)
    assert_identical(after.agent_state.extra_state, first.agent_state.extra_state)
    kernels = [x for path, x in arrays(after.agent_state.params).items() if "kernel" in path]
    assert kernels
    for x in kernels:
        np.testing.assert_allclose(np.linalg.norm(x, axis=-2), 1.0, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_off_policy_algorithm_can_be_reset(algorithm: str) -> None:
    workflow = small(algorithm, ALGORITHMS[algorithm], resets=[1], learning_starts=0)
    for state in _states(workflow, 12):
        if int(state.opt_state.num_updates):  # sequences of R2D2 have to be complete first
            break
    assert _steps_of_optimizers(state.opt_state.optimizers) == {0}
    metrics, following = workflow.step(state)
    assert all(np.isfinite(metrics[name]) for name in workflow.loss_names)
    assert _steps_of_optimizers(following.opt_state.optimizers) != {0}


def test_a_learner_of_a_population_is_reset_between_blocks_of_updates() -> None:
    workflow = small(
        "sac", "Pendulum-v1", num_envs=1, batch_size=4, updates_per_iteration=1, learning_starts=1000, resets=[70]
    )
    stored = _states(workflow, 8)[-1]
    learned = PyTreeDict(agent_state=stored.agent_state, opt_state=stored.opt_state)
    run = jax.jit(lambda num: learn_in_blocks(workflow, learned, stored.replay_state, jax.random.key(7), num, 0.0)[1])
    assert _steps_of_optimizers(run(UPDATES_AT_ONCE).opt_state.optimizers) == {UPDATES_AT_ONCE}
    assert _steps_of_optimizers(run(2 * UPDATES_AT_ONCE).opt_state.optimizers) == {0}
    after = run(2 * UPDATES_AT_ONCE + 3).opt_state
    assert (_steps_of_optimizers(after.optimizers), int(after.num_updates)) == ({3}, 2 * UPDATES_AT_ONCE + 3)


def test_without_resets_nothing_is_counted_or_compiled() -> None:
    """The program has as many loops as without the option, and the state no count."""
    workflow = small("sac", "Pendulum-v1")
    assert "num_updates" not in workflow.init(0).opt_state

    def num_loops(workflow: OffPolicyWorkflow) -> int:
        state = jax.eval_shape(workflow.setup, jax.random.key(0))
        return jax.jit(workflow.pure_step).lower(state).as_text().count("stablehlo.while")

    assert num_loops(small("sac", "Pendulum-v1", resets=[])) == num_loops(workflow)
    assert num_loops(small("sac", "Pendulum-v1", resets=[5])) > num_loops(workflow)


def test_a_gpu_does_not_wait_in_a_loop() -> None:
    def step_and_state() -> Any:
        workflow = small("sac", "Pendulum-v1", resets=[5, 9])
        return workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0))

    assert broken_rules(lowered_for_gpus(step_and_state)) == []


def test_wrong_numbers_are_refused() -> None:
    for resets in ([0], [-3], [2**40]):
        with raises_naming(ValueError, "resets", str(resets[0])):
            small("sac", "Pendulum-v1", resets=resets)

"""Results do not depend on devices or blocks of environments, up to rounding.

``tests/conformance/workflow.py`` tests this for every algorithm.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest

from evorl.execution import programs
from evorl.execution.trainable import Execution
from evorl.ops import collectives
from evorl.ops.collectives import DATA_AXIS
from evorl.types import State
from evorl.workflows.workflow import Workflow
from tests.support.small_workflows import arrays, assert_close, assert_identical, small

ROLLOUT_TOLERANCE, PARAMETER_TOLERANCE = 1e-5, 1e-4
FAMILIES = [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")]
RAINBOW = {
    "network": {"torso": [8], "heads": {"dueling": True, "noisy": True}},
    "values": "categorical",
    "num_atoms": 11,
}
FAST_TD3 = {
    "network": {"torso": [8], "layer_norm": True},
    "values": "categorical",
    "num_atoms": 11,
    "noise": {"kind": "ornstein_uhlenbeck", "max_scale": 0.5},
    "normalize_obs": True,
}
# Options of other algorithms whose means and samples involve all devices.
OPTIONS: dict[str, dict[str, Any]] = {
    "a2c": {"agent": {"network": {"torso": [8], "shared": True}, "normalize_advantages": True}},
    "discor": {"prioritized": True},
    "dqn": {"prioritized": True, "n_step": 3, "agent": RAINBOW},
    "a2c, recurrent state": {"agent": {"network": {"torso": [8], "recurrent": {"name": "lstm", "size": 4}}}},
    "a2c, linear memory": {"agent": {"network": {"torso": [8], "recurrent": {"name": "lru", "size": 4}}}},
    "impala": {"agent": {"network": {"torso": [8]}, "normalize_advantages": True}},
    "ppo, recurrent state": {
        "agent": {"network": {"torso": [8], "recurrent": {"name": "gru", "size": 4}, "shared": True}}
    },
    "ppo, normalized rewards": {"normalize_rewards": True},
    "pqn": {"agent": {"network": {"torso": [8], "layer_norm": True}, "normalize_obs": True}},
    "pqn_continuous": {"agent": {"network": {"torso": [8]}, "noise": {"kind": "ornstein_uhlenbeck", "max_scale": 0.5}}},
    "pqn_recurrent": {"agent": {"network": {"torso": [8], "recurrent": "lru"}, "normalize_obs": True}},
    "r2d2": {"prioritized": True, "n_step": 2},
    "recurrent_sac": {"prioritized": True, "n_step": 2},
    # Adam divides by the size of a gradient. Where it vanishes, rounding moves 9 of 360 weights by 1e-4; with this
    # constant, none by more than 1e-7.
    "reppo": {"normalize_rewards": True, "optimizer": {"epsilon": 1e-3}},
    "reinforce": {"rollout_length": 16},
    "sac, prioritized": {"prioritized": True, "n_step": 3},
    "td3": {"prioritized": True, "n_step": 3, "agent": FAST_TD3},
    "trpo": {"linesearch": "adaptive"},
    "trpo, clipped": {"kind": "ppo"},
    "trpo, first derivatives": {"kind": "trpo-d1", "episodes_per_batch": 12, "rollout_length": 24},
}
PARAMETER_TOLERANCES = {"reppo": 1e-6}
LAYOUTS = {
    "2 devices": {"execution": Execution(axis=DATA_AXIS, num_devices=2)},
    "4 devices": {"execution": Execution(axis=DATA_AXIS, num_devices=4)},
    "blocks of 2": {"env_chunk": 2},
}
MORE_LAYOUTS = {
    "2 devices, blocks of 3": {"execution": Execution(axis=DATA_AXIS, num_devices=2), "env_chunk": 3},
}


def _run(workflow: Workflow, state: State) -> tuple[dict[str, Any], State]:
    """Return the results of the first rollout, and the state after five updates."""
    metrics, state = programs.iterate_program(workflow, state, 1)
    after_rollout = {"env_state": state.env_state, "metrics": jax.tree.map(lambda x: x[0], metrics)}
    if "replay_state" in state:
        after_rollout["replay"] = state.replay_state
    after_rollout = arrays(after_rollout)
    _, state = programs.iterate_program(workflow, state, 4)
    return after_rollout, state


@functools.cache
def _on_one_device(algorithm: str, env: str) -> tuple[Workflow, dict[str, Any], State]:
    workflow = small(algorithm.partition(",")[0], env, **OPTIONS.get(algorithm, {}))
    after_rollout, state = _run(workflow, workflow.init(0))
    fresh, trained = arrays(workflow.init(0).agent_state.params), arrays(state.agent_state.params)
    assert any(abs(trained[path] - fresh[path]).max() > 10 * PARAMETER_TOLERANCE for path in fresh)
    return workflow, after_rollout, state


def _check_layout(algorithm: str, env: str, layout: dict[str, Any]) -> None:
    workflow, after_rollout, state = _on_one_device(algorithm, env)
    laid_out = workflow.replace(**layout)
    after_its_rollout, its_state = _run(laid_out, programs.place(laid_out, workflow.init(0)))
    assert_close(after_its_rollout, after_rollout, ROLLOUT_TOLERANCE)
    tolerance = PARAMETER_TOLERANCES.get(algorithm, PARAMETER_TOLERANCE)
    assert_close(its_state.agent_state, state.agent_state, tolerance)
    assert_identical(its_state.iterations, state.iterations)


@pytest.mark.parametrize(("algorithm", "env"), FAMILIES)
def test_blocks_do_not_show(algorithm: str, env: str) -> None:
    _check_layout(algorithm, env, LAYOUTS["blocks of 2"])


def test_the_order_of_operations_does_not_show() -> None:
    workflow, after_rollout, state = _on_one_device(*FAMILIES[0])
    assert workflow.execution.in_order
    laid_out = workflow.replace(execution=Execution())
    after_its_rollout, its_state = _run(laid_out, workflow.init(0))
    assert_identical(after_its_rollout, after_rollout)
    assert_identical(its_state, state)


@pytest.mark.parametrize(("algorithm", "env"), FAMILIES)
@pytest.mark.parametrize("layout", MORE_LAYOUTS)
def test_other_layouts_do_not_show_either(algorithm: str, env: str, layout: str) -> None:
    _check_layout(algorithm, env, MORE_LAYOUTS[layout])


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_devices_do_not_show_in_other_algorithms(algorithm: str) -> None:
    env = "CartPole-v1" if algorithm in ("dqn", "pqn", "pqn_recurrent", "r2d2") else "Pendulum-v1"
    _check_layout(algorithm, env, LAYOUTS["2 devices"])


@pytest.mark.parametrize("layout", ["4 devices", "2 devices, blocks of 3"])
def test_every_transition_of_the_first_rollout(layout: str) -> None:
    workflow = small("ppo", "Pendulum-v1")
    laid_out = workflow.replace(**(LAYOUTS | MORE_LAYOUTS)[layout])

    def collect(workflow: Workflow, state: State) -> tuple[Any, State]:
        trajectory, state = workflow.collect(state)
        return collectives.gather_rows(trajectory, axis=1), state

    expected, _ = jax.jit(collect)(workflow, workflow.init(0))
    on_mesh = jax.jit(programs.on_mesh(laid_out, collect, returns_state=True))
    trajectory, _ = on_mesh(laid_out, programs.place(laid_out, workflow.init(0)))
    assert_close(trajectory, expected, ROLLOUT_TOLERANCE)


def test_seeds_and_environments_on_one_mesh() -> None:
    """Three seeds, which do not fill two devices evenly, train with sharded environments and equal single runs."""
    together = small("ppo", num_seeds=3, devices=2)
    assert together.execution.axis == DATA_AXIS
    _, states = _run(together, together.init(5))
    solo = small("ppo")
    _, state = _run(solo, solo.init(7))
    assert_close(jax.tree.map(lambda x: x[2], states.agent_state), state.agent_state, PARAMETER_TOLERANCE)


def test_evaluation_on_a_mesh() -> None:
    workflow = small("ppo", eval_episodes=6)
    wide = small("ppo", eval_episodes=6, devices=4)
    assert wide.eval_env.num_envs == 8
    expected, on_mesh = workflow.evaluate(workflow.init(0)), wide.evaluate(wide.init(0))
    assert_close(on_mesh, expected, ROLLOUT_TOLERANCE)

"""Compiled programs: number, compilations and contents."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.ppo import PPOAgent, PPOWorkflow
from evorl.algorithms.sac import SACWorkflow
from evorl.execution import programs
from evorl.execution.compile_clock import CompileClock
from evorl.workflows.workflow import Workflow
from tests.support.compilation import compiled_to_run_long
from tests.support.small_workflows import arrays, assert_close, assert_identical, small

FAMILIES = [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")]


def _use_everything(workflow: Workflow) -> None:
    state = workflow.init(0)
    workflow.step(state)
    workflow.evaluate(state)
    _, state = programs.iterate_program(workflow, state, 2)
    jax.block_until_ready(state)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"discount": 0.5}),
    ("ppo", {"optimizer": {"learning_rate": 1}}),
    ("ppo", {"agent": {"network": {"torso": [8]}, "clip_epsilon": 0.1, "entropy_coefficient": 0}}),
    ("ppo", {"gae_lambda": 1, "total_timesteps": 1e9, "log_interval": 1, "checkpoint_interval": 7}),
    ("sac", {"discount": 0, "tau": 1, "learning_starts": 7, "importance_exponent": {"start": 0.1, "end": 0.2}}),
    ("sac", {"critic_optimizer": {"learning_rate": 0.1}, "actor_optimizer": {"learning_rate": 0.2}}),
    ("sac", {"agent": {"network": {"torso": [8]}, "temperature": 2, "adaptive_temperature": True}}),
]


@pytest.mark.parametrize(("algorithm", "changes"), CHANGES)
def test_another_config_of_equal_structure_compiles_nothing(algorithm: str, changes: dict[str, Any]) -> None:
    env = dict(FAMILIES)[algorithm]
    first = small(algorithm, env)
    _use_everything(first)
    clock = CompileClock()
    second = small(algorithm, env, **changes)
    _use_everything(second)
    assert clock.num_programs == 0
    assert jax.tree.structure(second) == jax.tree.structure(first)
    assert hash(jax.tree.structure(second)) == hash(jax.tree.structure(first))


@pytest.mark.parametrize("changes", [{"num_epochs": 1}, {"agent": {"network": {"torso": [9]}}}])
def test_another_structure_is_another_program(changes: dict[str, Any]) -> None:
    assert jax.tree.structure(small("ppo", **changes)) != jax.tree.structure(small("ppo"))


def test_workflows_and_agents_are_arguments_of_jitted_functions() -> None:
    workflow = small("ppo")
    state = workflow.init(0)

    @jax.jit
    def step(workflow: PPOWorkflow, state: Any) -> Any:
        return workflow.step(state)

    metrics, after = step(workflow, state)
    expected_metrics, expected = workflow.step(state)
    assert_close(metrics, expected_metrics, 1e-5)
    assert_close(after.agent_state, expected.agent_state, 1e-5)

    @jax.jit
    def clip(agent: PPOAgent) -> jax.Array:
        return agent.clip_epsilon * 2

    assert float(clip(workflow.agent)) == pytest.approx(0.4)


def test_a_sweep_is_one_vmap() -> None:
    workflow = small("ppo")
    state = workflow.init(0)
    rates = jnp.array([1e-4, 1e-3, 1e-2])

    @jax.jit
    def train(rate: jax.Array) -> Any:
        tuned = workflow.replace(optimizer=workflow.optimizer.replace(learning_rate=rate))
        return tuned.step(state)[1].agent_state.params

    swept = jax.vmap(train)(rates)
    alone = workflow.replace(optimizer=workflow.optimizer.replace(learning_rate=1e-3)).step(state)[1]
    assert_close(jax.tree.map(lambda x: x[1], swept), alone.agent_state.params, 1e-5)


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_step_leaves_its_state_alone(algorithm: str) -> None:
    workflow = small(algorithm)
    state = workflow.init(0)
    before = arrays(state)
    first, second = workflow.step(state), workflow.step(state)
    assert_identical(first, second)
    assert_identical(before, arrays(state))


ROWS = 4099  # a size that no other array has
LAYOUTS: dict[str, Callable[[], Workflow]] = {
    "one device": lambda: _with_large_buffer(),
    "two seeds": lambda: _with_large_buffer(num_seeds=2),
    "two devices": lambda: _with_large_buffer(devices=2),
}


def _with_large_buffer(**changes: Any) -> SACWorkflow:
    return small("sac", "Pendulum-v1", replay_capacity=ROWS * 8, **changes)


@pytest.mark.parametrize("layout", LAYOUTS)
@compiled_to_run_long()
def test_no_copy_of_the_replay_buffer(layout: str) -> None:
    workflow = LAYOUTS[layout]()
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    specs = programs.state_specs(workflow.execution, state)
    if workflow.execution.axis is not None:
        mesh = workflow.execution.mesh
        shardings = jax.tree.map(lambda spec: jax.sharding.NamedSharding(mesh, spec), specs)
        state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)
    compiled = programs.training_program(workflow.execution.in_order).lower(workflow, state, 3).compile()
    text = compiled.as_text()
    assert re.search(rf"\[(\d+,)*{ROWS},", text), "the buffer is not to be found in the program"
    copies = re.findall(rf"^.*= \S*\[(?:\d+,)*{ROWS},[^=]* copy(?:-start)?\(.*$", text, re.MULTILINE)
    assert not copies, f"{len(copies)} copies, such as {copies[0].strip()[:200]}"
    shapes = jax.tree.leaves(state.replay_state.data)
    share = sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in shapes) // workflow.execution.num_devices
    assert compiled.memory_analysis().temp_size_in_bytes < share / 2

"""The plan of a run, reported before anything is built."""

from __future__ import annotations

import jax
import pytest

from evorl.execution import live_bytes, memory
from evorl.execution import preflight as module
from evorl.execution.preflight import Preflight, preflight
from tests.support.errors import raises_naming
from tests.support.small_workflows import inner_config, small

GB = 10**9


def test_a_learner_with_replay() -> None:
    workflow = small("sac", "Pendulum-v1")
    plan = preflight(workflow)
    state = jax.eval_shape(workflow.setup, jax.random.key(0))
    sizes = {name: sum(x.size for x in jax.tree.leaves(part)) for name, part in state.agent_state.params.items()}
    assert plan.parameters == sizes
    replay = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay_state))
    assert plan.entries["replay"] == replay
    assert plan.entries["agent"] == 4 * sum(sizes.values())
    assert plan.state_bytes == sum(plan.entries.values())
    assert plan.peak_bytes == plan.state_bytes + plan.step_bytes + plan.process_bytes
    assert plan.process_bytes > 50_000_000
    assert (plan.num_iterations, plan.steps_per_iteration) == (20, 8)
    message = "\n".join(plan.lines())
    assert f"parameters    {sum(sizes.values()):,} (" in message
    assert "iterations    20" in message


def test_more_environments_take_more_of_an_iteration() -> None:
    few, many = (preflight(small("ppo", num_envs=n, rollout_length=64)) for n in (8, 800))
    assert many.step_bytes > 50 * few.step_bytes
    assert many.entries["environments"] == pytest.approx(100 * few.entries["environments"], rel=0.01)
    assert many.parameters == few.parameters


def test_activations_in_bfloat16_take_half_of_those_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(dtype: str) -> Preflight:
        network = {"torso": [512, 512], "dtype": dtype}
        return preflight(small("ppo", num_envs=256, rollout_length=64, agent={"network": network}, num_minibatches=1))

    narrow, wide = plan("bfloat16"), plan("float32")
    # A CPU computes in float32, with rounded copies of weights and inputs.
    assert wide.step_bytes < narrow.step_bytes < 1.02 * wide.step_bytes
    monkeypatch.setattr(live_bytes, "on_cpu", lambda: False)
    narrow, wide = plan("bfloat16"), plan("float32")
    assert narrow.parameters == wide.parameters
    assert narrow.state_bytes == wide.state_bytes
    assert 0.45 < narrow.step_bytes / wide.step_bytes < 0.75


def test_members_and_seeds_count_and_parameters_are_those_of_one() -> None:
    space = {"discount": {"low": 0.9, "high": 0.99}}
    population = small("pbt", "CartPole-v1", inner=inner_config("ppo"), pop_size=4, search_space=space)
    alone, seeds = preflight(small("ppo")), preflight(small("ppo", num_seeds=3))
    assert preflight(population).parameters == alone.parameters == seeds.parameters
    assert preflight(population).entries["population"] >= 4 * alone.entries["agent"]
    assert seeds.entries["agent"] == 3 * alone.entries["agent"]


def test_it_fits_if_a_share_of_the_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(peak: int, available: int | None) -> Preflight:
        return Preflight({}, {}, 1, peak, 0, 0, available, 3, 4)

    assert plan(8 * GB, 10 * GB).fits
    assert not plan(9 * GB, 10 * GB).fits
    assert plan(9 * GB, None).fits
    assert plan(9 * GB, 10 * GB).lines()[-1] == "memory        about 9 GB at most of 10 GB: state 9 GB"
    monkeypatch.setattr(memory, "available_bytes", lambda: 16 * GB)
    with raises_naming(ValueError, "replay_capacity=1,000,000,000", "largest that may fit"):
        module.preflight(small("sac", "Pendulum-v1", replay_capacity=1e9))

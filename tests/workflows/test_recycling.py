"""Recycling of dormant units in training runs: when, in which networks, and the optimizers' states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.sac import SACWorkflow
from evorl.types import State
from evorl.workflows.recycling import recycle_if_due
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.gpu_programs import broken_rules, lowered_for_gpus
from tests.support.small_workflows import SAC_CONFIG, arrays, assert_identical, small

# With this threshold, half of the units are dormant.
ALWAYS: dict[str, Any] = {"redo_interval": 4, "redo_threshold": 1.0, "learning_starts": 0}


class TestContract(WorkflowContract):
    """Bit-identical resumption, one program, and any number of devices and seeds, with recycling and resets."""

    workflow = SACWorkflow
    SMALL = {**SAC_CONFIG, "redo_interval": 4, "redo_threshold": 1.0, "resets": [10]}


def _trained(workflow: Any, num_steps: int) -> list[State]:
    states = [workflow.init(0)]
    for _ in range(num_steps):
        states.append(workflow.step(states[-1])[1])
    return states


def test_units_are_recycled_where_due_only() -> None:
    """With two updates per iteration and an interval of 4, every second iteration recycles units."""
    workflow, plain = small("sac", "Pendulum-v1", **ALWAYS), small("sac", "Pendulum-v1", learning_starts=0)
    states, expected = _trained(workflow, 3), _trained(plain, 2)
    assert_identical(states[1].agent_state, expected[1].agent_state)
    assert float(states[1].opt_state.dormant_share) == 0.0
    assert 0.2 < float(states[2].opt_state.dormant_share) < 0.8
    metrics, _ = workflow.step(states[2])
    assert float(metrics.dormant_share) == float(states[2].opt_state.dormant_share)  # kept until the next one
    after, before = (arrays(x[2].agent_state.params) for x in (states, expected))
    changed = {path.split("'")[1] for path, x in after.items() if (x != before[path]).any()}
    assert changed == {"policy", "critic"}  # not the target networks


def test_moments_of_new_weights_are_zero_and_counts_stay() -> None:
    workflow = small("sac", "Pendulum-v1", **{**ALWAYS, "redo_threshold": 0.9})
    state: Any = _trained(workflow, 1)[1]
    learned = (state.agent_state, state.opt_state.optimizers)
    run = jax.jit(lambda is_due: recycle_if_due(workflow, state, learned, is_due, jax.random.key(9)))
    assert_identical(run(False)[0], learned)
    (agent_state, optimizers), _ = run(True)
    for name in ("policy", "critic"):
        changed = {
            path: x != arrays(learned[0].params[name])[path] for path, x in arrays(agent_state.params[name]).items()
        }
        before = arrays(learned[1][name])
        cleared = 0
        for path, x in arrays(optimizers[name]).items():
            if "mu" in path or "nu" in path:
                (weights,) = (mask for end, mask in changed.items() if path.endswith(end))
                assert not x[weights].any()
                np.testing.assert_array_equal(x[~weights], before[path][~weights])
                cleared += int(weights.sum())
            else:
                np.testing.assert_array_equal(x, before[path])
                assert x == 2
        assert cleared > 0


def test_each_critic_is_judged_by_its_own_activity() -> None:
    workflow = small("sac", "Pendulum-v1", **{**ALWAYS, "redo_threshold": 0.0})
    state: Any = _trained(workflow, 1)[1]
    params = state.agent_state.params
    critic = jax.tree.map(jnp.copy, params.critic)
    bias = critic["params"]["members"]["torso"]["Dense_0"]["bias"]
    critic["params"]["members"]["torso"]["Dense_0"]["bias"] = bias.at[1, 3].set(-100.0)  # relu is 0 in the second one
    agent_state = state.agent_state.replace(params=params.replace(critic=critic))
    learned = (agent_state, state.opt_state.optimizers)
    run = jax.jit(lambda: recycle_if_due(workflow, state, learned, jnp.bool_(True), jax.random.key(9)))
    new = arrays(run()[0][0].params.critic["params"]["members"])
    old = arrays(critic["params"]["members"])
    kernel = "['torso']['Dense_0']['kernel']"
    changed = np.argwhere((new[kernel] != old[kernel]).all(axis=1))
    assert [1, 3] in changed.tolist()
    assert [0, 3] not in changed.tolist()
    assert new["['torso']['Dense_0']['bias']"][1, 3] == 0.0


@pytest.mark.parametrize(("algorithm", "env"), [("td3", "Pendulum-v1"), ("dqn", "CartPole-v1"), ("tqc", "Pendulum-v1")])
def test_other_algorithms_recycle_units(algorithm: str, env: str) -> None:
    state = _trained(small(algorithm, env, **ALWAYS), 4)[-1]
    assert 0.1 < float(state.opt_state.dormant_share) < 0.9


@pytest.mark.parametrize("name", ["adafactor", "adagrad", "adamw", "novograd", "rprop", "yogi"])
def test_every_optimizer_restarts_at_new_weights(name: str) -> None:
    """A new weight has the initial state of its optimizer; statistics of whole layers and other weights are kept."""
    workflow = small("dqn", "CartPole-v1", **ALWAYS, optimizer={"name": name, "learning_rate": 1e-3})
    state: Any = _trained(workflow, 1)[1]
    params = state.agent_state.params
    online = jax.tree.map(lambda x: x + 0.01, params.online)  # no weight is 0, so every new one has another value
    learned = (state.agent_state.replace(params=params.replace(online=online)), state.opt_state.optimizers)
    (agent_state, optimizers), _ = jax.jit(
        lambda: recycle_if_due(workflow, state, learned, jnp.bool_(True), jax.random.key(9))
    )()
    old, new, fresh = (arrays(x) for x in (learned[1], optimizers, workflow.init_optimizers(learned[0])))
    before, after = (arrays(x.params.online) for x in (learned[0], agent_state))
    changed = {path: x != after[path] for path, x in before.items()}
    assert any(mask.any() for mask in changed.values())
    for path, x in new.items():
        (mask, *_) = [*(mask for end, mask in changed.items() if path.endswith(end)), np.bool_(False)]
        mask = mask if mask.shape == x.shape else np.zeros(x.shape, bool)
        np.testing.assert_array_equal(x[mask], fresh[path][mask], err_msg=path)
        np.testing.assert_array_equal(x[~mask], old[path][~mask], err_msg=path)


def test_a_gpu_does_not_wait_in_a_loop() -> None:
    def step_and_state() -> Any:
        workflow = small("sac", "Pendulum-v1", **ALWAYS)
        return workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0))

    assert broken_rules(lowered_for_gpus(step_and_state)) == []


@pytest.mark.parametrize(
    ("algorithm", "changes", "parts"),
    [
        ("sac", {"redo_interval": 0}, ("redo_interval", "got 0")),
        ("sac", {"redo_threshold": -1.0}, ("redo_threshold", "got -1")),
        ("bro", {"redo_interval": 5}, ("agent.network.torso", "redo_interval=null")),
        ("r2d2", {"redo_interval": 5}, ("redo_interval=5", "R2D2Workflow")),
        ("recurrent_sac", {"redo_interval": 5}, ("redo_interval=5", "RecurrentSACWorkflow", "redo_interval=null")),
    ],
)
def test_impossible_options_are_refused(algorithm: str, changes: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small(algorithm, "CartPole-v1" if algorithm == "r2d2" else "Pendulum-v1", **changes)

"""PPO solves problems with closed-form solutions, and each option has its documented effect."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.every_probe import ActorCriticProbes, RecurrentActorCriticProbes, train_on_every_probe
from tests.support.small_workflows import PPO_CONFIG, assert_close, small


class TestContract(WorkflowContract):
    workflow = PPOWorkflow
    as_for_users = True
    SMALL = PPO_CONFIG
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestContractWithLinearMemory(WorkflowContract):
    workflow = PPOWorkflow
    SMALL = {
        **TestContract.SMALL,
        "agent": {"network": {"torso": [8], "recurrent": {"name": "lru", "size": 8}, "shared": True}},
    }
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)


class TestContractWithAttention(WorkflowContract):
    workflow = PPOWorkflow
    SMALL = {**TestContract.SMALL, "agent": {"network": {"torso": [8], "recurrent": {"name": "gtrxl", "size": 8}}}}


class TestAgentWithLinearMemory(AgentContract):
    workflow = PPOWorkflow
    settings = TestContractWithLinearMemory.SMALL["agent"]


class TestAgent(AgentContract):
    workflow = PPOWorkflow
    settings = TestContract.SMALL["agent"]
    env_name = "CartPole-v1"


def _train(continuous: bool, num_iterations: int = 350, **network: Any) -> tuple[bool, Any, Any]:
    return train_on_every_probe(
        PPOWorkflow,
        {"network": {"torso": [32, 32], **network}, "entropy_coefficient": 0.0, "value_coefficient": 1.0},
        continuous,
        num_envs=32,
        runs_long=True,
        rollout_length=16,
        num_epochs=4,
        num_minibatches=4,
        optimizer=Optimizer(learning_rate=Schedule(5e-3, 0.0), max_grad_norm=0.5),
        total_timesteps=512 * num_iterations,
    )


class TestProbes(ActorCriticProbes):
    train = staticmethod(_train)


class TestProbesWithMemory(RecurrentActorCriticProbes):
    @staticmethod
    def train(continuous: bool) -> tuple[bool, Any, Any]:
        return _train(continuous, num_iterations=300, recurrent={"name": "gru", "size": 32})


def _with_options(**changes: Any) -> PPOWorkflow:
    """Return a small workflow that uses every option."""
    options = {"normalize_obs": True, "value_clip_epsilon": 0.2, "clip_epsilon": {"start": 0.2, "end": 0.1}}
    return small(
        "ppo",
        "Pendulum-v1",
        target_kl=1e9,
        optimizer={"learning_rate": {"start": 3e-4, "end": 1e-4}, "max_grad_norm": 1.0, "weight_decay": 0.01},
        agent={"network": {"torso": [8], "layer_norm": True}, **options},
        **changes,
    )


def test_the_policy_that_learns_is_the_one_that_acted() -> None:
    """At the first minibatch all ratios are 1, also after changes of the observation statistics."""
    workflow = _with_options(num_epochs=1, num_minibatches=1)
    state = workflow.init(0)
    for _ in range(3):
        metrics, state = workflow.step(state)
        assert float(state.agent_state.obs_preprocessor_state.count) > 0
        np.testing.assert_allclose(metrics.approximate_kl, 0.0, atol=1e-6)
        assert float(metrics.clip_fraction) == 0.0
    assert all(np.isfinite(value) for name, value in metrics.items() if name != "episodes")


def test_target_kl_ends_the_learning_from_a_trajectory() -> None:
    """If every update exceeds the limit, only the first one is applied."""
    free = _with_options()
    state = free.init(0)
    num_updates = {}
    for name, limit in (("free", 1e9), ("held", 0.0)):
        _, after = free.replace(target_kl=limit).step(state)
        counts = [int(x) for x in jax.tree.leaves(after.opt_state) if np.issubdtype(x.dtype, np.integer)]
        num_updates[name] = max(counts)
    assert num_updates["free"] == free.num_epochs * free.num_minibatches
    assert num_updates["held"] < num_updates["free"]


def _moved(before: Any, after: Any) -> bool:
    return any(bool((a != b).any()) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))


@pytest.mark.parametrize(("num_epochs", "num_value_epochs"), [(1, 3), (3, 1), (2, 2)])
def test_the_two_networks_may_have_passes_of_their_own(num_epochs: int, num_value_epochs: int) -> None:
    """Each network takes ``passes x minibatches`` steps of its optimizer, and both change."""
    workflow = small("ppo", num_epochs=num_epochs, num_value_epochs=num_value_epochs, num_minibatches=2)
    state = workflow.init(0)
    metrics, after = workflow.step(state)
    for part, passes in {"policy": num_epochs, "value": num_value_epochs}.items():
        counts = {int(x) for x in jax.tree.leaves(after.opt_state[part]) if np.issubdtype(x.dtype, np.integer)}
        assert counts == {2 * passes}
        assert _moved(state.agent_state.params[part], after.agent_state.params[part])
    assert np.isfinite(metrics.policy_loss + metrics.value_loss)


def test_a_further_pass_of_the_value_function_leaves_the_policy_alone() -> None:
    settings = {"num_epochs": 1, "num_minibatches": 1}  # independent of the shuffle
    few, many = (small("ppo", num_value_epochs=passes, **settings) for passes in (1, 4))
    state = few.init(0)
    params = [workflow.step(state)[1].agent_state.params for workflow in (few, many)]
    assert_close(params[1].policy, params[0].policy, 1e-6)
    assert _moved(params[0].value, params[1].value)
    held = many.replace(target_kl=0.0).step(state)[1].agent_state.params  # of the policy only
    assert _moved(few.replace(target_kl=0.0).step(state)[1].agent_state.params.value, held.value)


def test_passes_of_their_own_need_networks_of_their_own() -> None:
    with raises_naming(ValueError, "num_value_epochs=3", "agent.network.shared=false"):
        small("ppo", num_value_epochs=3, agent={"network": {"torso": [8], "shared": True}})
    with raises_naming(ValueError, "num_value_epochs", "got 0"):
        small("ppo", num_value_epochs=0)


def test_the_loss_has_the_value_networks_squared_parameters() -> None:
    workflow = small("ppo", agent={"network": {"torso": [8]}, "value_l2": 0.5})
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    agent, agent_state = workflow.agent, state.agent_state
    batch = agent.batch_with_advantages(agent_state, trajectory, 0.9, 1.0).flatten()
    with_it, _ = agent.loss(agent_state.params, agent_state, batch, 0.0)
    without, _ = agent.replace(value_l2=None).loss(agent_state.params, agent_state, batch, 0.0)
    squares = sum(float(np.square(leaf).sum()) for leaf in jax.tree.leaves(agent_state.params.value))
    np.testing.assert_allclose(with_it - without, 0.5 * squares, rtol=1e-4)

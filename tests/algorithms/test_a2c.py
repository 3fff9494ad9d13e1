"""A2C solves problems with closed-form solutions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.algorithms.a2c import A2CAgent, A2CWorkflow, _clipped_mean
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.every_probe import ActorCriticProbes, RecurrentActorCriticProbes, train_on_every_probe
from tests.support.small_workflows import ONE_STEP_CONFIG, small


class TestContract(WorkflowContract):
    workflow = A2CWorkflow
    SMALL = ONE_STEP_CONFIG


class TestContractWithLinearMemory(WorkflowContract):
    workflow = A2CWorkflow
    SMALL = {**TestContract.SMALL, "agent": {"network": {"torso": [8], "recurrent": {"name": "min_gru", "size": 8}}}}


class TestAgent(AgentContract):
    workflow = A2CWorkflow
    settings = TestContract.SMALL["agent"]


def _train(continuous: bool, runs_long: bool = False, **network: Any) -> tuple[bool, Any, Any]:
    return train_on_every_probe(
        A2CWorkflow,
        {"network": {"torso": [32, 32], **network}, "entropy_coefficient": 0.0, "value_coefficient": 1.0},
        continuous,
        num_envs=32,
        runs_long=runs_long,
        rollout_length=8,
        gae_lambda=0.95,
        optimizer=Optimizer(learning_rate=Schedule(1e-2, 0.0), max_grad_norm=0.5),
        total_timesteps=256 * 1500,
    )


class TestProbes(ActorCriticProbes):
    train = staticmethod(_train)


class TestProbesWithMemory(RecurrentActorCriticProbes):
    @staticmethod
    def train(continuous: bool) -> tuple[bool, Any, Any]:
        return _train(continuous, runs_long=True, recurrent={"name": "lstm", "size": 32}, shared=True)


def test_its_loss_is_the_papers() -> None:
    """Loss and gradient of one transition equal ``-log pi A + c_v (V - G)^2 - c_e H``, computed by hand."""
    agent_config = {"network": {"torso": [4]}, "value_coefficient": 0.25, "entropy_coefficient": 0.1}
    workflow = small("a2c", agent=agent_config)
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    agent, agent_state = workflow.agent, state.agent_state
    batch = agent.batch_with_advantages(agent_state, trajectory, 0.9, 1.0).flatten()
    loss, losses = agent.loss(agent_state.params, agent_state, batch, 0.0)
    policy = agent.policy(agent_state, agent_state.params, batch.obs)
    log_probs, entropies = policy.log_prob(batch.raw_actions), policy.entropy()
    values = agent.values(agent_state, agent_state.params, batch.obs)
    expected = [
        -float(log_probs[i] * batch.advantages[i])
        + 0.25 * float(values[i] - batch.targets[i]) ** 2
        - 0.1 * float(entropies[i])
        for i in range(len(values))
    ]
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)
    assert set(losses) == {"policy_loss", "value_loss", "entropy"}


def test_the_entropy_bonus_follows_its_schedule() -> None:
    workflow = small("a2c", agent={"network": {"torso": [4]}, "entropy_coefficient": {"start": 0.01, "end": 0.0}})
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    agent, agent_state = workflow.agent, state.agent_state
    batch = agent.batch_with_advantages(agent_state, trajectory, 0.9, 1.0).flatten()
    (first, losses), (last, _) = (agent.loss(agent_state.params, agent_state, batch, p) for p in (0.0, 1.0))
    np.testing.assert_allclose(last - first, 0.01 * losses.entropy, rtol=1e-4)


@pytest.mark.parametrize("bound", [5.0, 0.01])
def test_losses_may_be_kept_within_bounds(bound: float) -> None:
    """Losses beyond the bounds have no gradient, like DA3C's clipped scalar losses."""
    clips = {"policy_loss_clip": bound, "value_loss_clip": bound}
    workflow, free = (small("a2c", agent={"network": {"torso": [4]}, **options}) for options in (clips, {}))
    state = workflow.init(0)
    trajectory, _ = jax.jit(lambda w, s: w.collect(s))(workflow, state)
    batch = workflow.agent.batch_with_advantages(state.agent_state, trajectory, 0.9, 1.0).flatten()
    batch = batch.replace(targets=batch.values + 7.0**0.5)  # a value loss of 7

    def losses(agent: A2CAgent, params: Any) -> tuple[jax.Array, jax.Array]:
        terms = agent.loss(params, state.agent_state, batch, 0.0)[1]
        return terms.policy_loss, terms.value_loss

    (policy_loss, value_loss), unbound = (losses(w.agent, state.agent_state.params) for w in (workflow, free))
    np.testing.assert_allclose(unbound[1], 7.0, rtol=1e-5)
    np.testing.assert_allclose(value_loss, bound, rtol=1e-6)
    np.testing.assert_allclose(policy_loss, np.clip(unbound[0], -bound, bound), rtol=1e-6)
    gradient = jax.grad(lambda params: losses(workflow.agent, params)[1])(state.agent_state.params)
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(gradient))


def test_devices_clip_the_same_loss() -> None:
    """The mean over all devices decides, not that of each device: 3 is within the bound, although one device has 5."""

    def gradient(losses: jax.Array, bound: float) -> jax.Array:
        return jax.lax.pmean(jax.grad(lambda scale: _clipped_mean(scale * losses, bound))(1.0), DATA_AXIS)

    mesh = jax.make_mesh((2,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"in_specs": (PartitionSpec(DATA_AXIS), PartitionSpec()), "out_specs": PartitionSpec()}
    on_devices = jax.jit(jax.shard_map(gradient, mesh=mesh, check_vma=False, **specs))
    losses = np.array([1.0, 1.0, 5.0, 5.0], np.float32)
    np.testing.assert_allclose(on_devices(losses, 3.5), 3.0, rtol=1e-6)
    assert on_devices(losses, 2.5) == 0.0

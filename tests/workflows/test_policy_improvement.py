"""Policies are improved by a learner's critics, independently and on any number of devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.agent import AgentState
from evorl.algorithms.td3_bc import TD3BCWorkflow
from evorl.ops.collectives import DATA_AXIS
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.policy_improvement import improved_policies
from tests.support.errors import raises_naming
from tests.support.small_workflows import SAC_CONFIG, assert_close, assert_identical, moved_apart, small

KEY, OPTIMIZER = jax.random.key(3), Optimizer(learning_rate=1e-2)
NUM_POLICIES, NUM_UPDATES, BATCH = 3, 5, 16


@functools.cache
def _learner(algorithm: str) -> tuple[OffPolicyWorkflow, AgentState, Params, SampleBatch]:
    workflow = (
        TD3BCWorkflow.build_from_config({**SAC_CONFIG, "env": "Pendulum-v1", "offline": False})
        if algorithm == "td3_bc"
        else small(algorithm, "Pendulum-v1")
    )
    assert isinstance(workflow, OffPolicyWorkflow)
    agent_state = moved_apart(workflow.init_learning(jax.random.key(0)).agent_state, "critic")
    policies = [workflow.init_learning(jax.random.key(i)).agent_state.params.policy for i in range(NUM_POLICIES)]
    obs = jax.random.normal(jax.random.key(9), (NUM_UPDATES, BATCH, 3))
    batch = SampleBatch(obs=obs, actions=jnp.tanh(obs[..., :1]))
    return workflow, agent_state, jax.tree.map(lambda *x: jnp.stack(x), *policies), batch


def _improved(algorithm: str, policies: Params, num_updates: int = NUM_UPDATES) -> Params:
    workflow, agent_state, _, batches = _learner(algorithm)
    return jax.jit(_improve)(workflow, agent_state, policies, batches, num_updates)


def _improve(
    workflow: OffPolicyWorkflow,
    agent_state: AgentState,
    policies: Params,
    batches: SampleBatch,
    num_updates: jax.Array | int = NUM_UPDATES,
) -> Params:
    """Improve policies with fixed batches, independent of the order of sampling."""

    def draw(key: Key, num: int) -> SampleBatch:
        return batches[jnp.arange(num) % NUM_UPDATES]

    options = {"key": KEY, "optimizer": OPTIMIZER}
    return improved_policies(workflow, agent_state, policies, draw, num_updates, **options)[0]


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_losses_fall(algorithm: str) -> None:
    workflow, agent_state, policies, batches = _learner(algorithm)
    keys = jax.random.split(KEY, NUM_UPDATES * BATCH)

    def losses(policies: Params) -> np.ndarray:
        flat = batches.flatten()
        return np.asarray(jax.vmap(lambda policy: workflow.policy_loss(policy, agent_state, flat, keys))(policies))

    assert (losses(_improved(algorithm, policies)) < losses(policies) - 1e-3).all()


def test_one_step_is_that_of_the_gradient() -> None:
    workflow, agent_state, policies, batches = _learner("td3")
    improved = _improved("td3", policies, num_updates=1)
    for i in range(NUM_POLICIES):
        policy = jax.tree.map(lambda x, i=i: x[i], policies)
        gradients = jax.grad(lambda p: workflow.agent.actor_loss(p, agent_state, batches[0])[0])(policy)
        expected, _ = OPTIMIZER.apply(gradients, OPTIMIZER.init(policy), policy)
        assert_close(jax.tree.map(lambda x, i=i: x[i], improved), expected, 1e-5)


def test_policies_do_not_touch_one_another() -> None:
    _, _, policies, _ = _learner("sac")
    others = jax.tree.map(lambda x: x.at[1].mul(3.0), policies)
    first, second = (_improved("sac", population) for population in (policies, others))
    assert_identical(*(jax.tree.map(lambda x: x[::2], tree) for tree in (first, second)))


@pytest.mark.parametrize("algorithm", ["td3", "sac", "td3_bc"])  # the loss of TD3+BC depends on the whole batch
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_share_the_policies_out(algorithm: str, devices: int) -> None:
    workflow, agent_state, policies, batches = _learner(algorithm)
    mesh = jax.make_mesh(
        (devices,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    everywhere = PartitionSpec()
    on_mesh = jax.shard_map(_improve, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    improved = jax.jit(on_mesh)(workflow, agent_state, policies, batches)
    assert_close(improved, _improved(algorithm, policies), 1e-5)


def test_a_learner_without_a_policy_is_refused() -> None:
    workflow = small("dqn")
    assert isinstance(workflow, OffPolicyWorkflow)
    with raises_naming(ValueError, "DQNWorkflow", "policy", "crossq, ", "td3"):
        workflow.policy_loss(None, AgentState(params=None), SampleBatch(), KEY)

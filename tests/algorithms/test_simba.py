"""SimBa and SimbaV2: settings of SAC, with a planted fault for each mistake that still trains."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from evorl.algorithms.sac import SACWorkflow
from evorl.assembly import workflow_from_config
from evorl.networks.blocks import Hypersphere, Simba
from evorl.ops.normalization import normalize
from evorl.ops.optimization import Optimizer
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.config_files import composed
from tests.support.errors import raises_naming
from tests.support.small_workflows import SAC_CONFIG, arrays, fresh_state, small

SMOOTH = {"min_log_std": -10.0, "log_std_bound": "tanh", "normalize_obs": True, "temperature": 0.01}
SIMBA_AGENT = {
    **SMOOTH,
    "network": {"torso": [8, {"simba": 1}], "orthogonal": True},
    "policy_output_scale": 1.0,
    "num_critics": 1,
}
DECAY = {"name": "adamw", "weight_decay": 0.01}
# Epsilon keeps adam from scaling up rounding errors, which differ between devices.
UNIT_NORM = {"projection": "unit_norm", "epsilon": 1e-4}
SIMBA_V2_AGENT = {
    **SMOOTH,
    "network": {"torso": [8, {"simba_v2": 1}], "orthogonal": True},
    "values": "categorical",
    "num_atoms": 11,
    "support_low": -5.0,
    "support_high": 5.0,
}


class TestContract(WorkflowContract):
    workflow = SACWorkflow
    SMALL = {**SAC_CONFIG, "actor_optimizer": DECAY, "critic_optimizer": DECAY, "agent": SIMBA_AGENT}


class TestAgent(AgentContract):
    workflow = SACWorkflow
    settings = SIMBA_AGENT


class TestContractHypersphere(WorkflowContract):
    workflow = SACWorkflow
    has_other_products = True  # means of categorical values
    SMALL = {
        **SAC_CONFIG,
        "reward_bound": 5.0,
        "actor_optimizer": UNIT_NORM,
        "critic_optimizer": UNIT_NORM,
        "agent": SIMBA_V2_AGENT,
    }


class TestAgentHypersphere(AgentContract):
    workflow = SACWorkflow
    settings = SIMBA_V2_AGENT


def _shipped(agent: str) -> Any:
    return workflow_from_config(composed(f"agent={agent}", "env=pendulum"))


def _same_in_both(workflow: Any) -> None:
    agent = workflow.agent
    assert (agent.normalize_obs, float(agent.temperature)) == (True, 0.01)
    assert (agent.distribution.min_log_std, agent.distribution.log_std_bound) == (-10.0, "tanh")
    assert (workflow.updates_per_iteration, workflow.batch_size, float(workflow.tau)) == (2, 256, 0.005)
    assert (workflow.replay_capacity, float(workflow.learning_starts)) == (1_000_000, 5000.0)


def test_the_shipped_settings_of_simba() -> None:
    workflow = _shipped("simba")
    _same_in_both(workflow)
    agent = workflow.agent
    assert agent.policy_network.torso.layers == (Simba(1, 128),)
    assert agent.critic_network.torso.layers == (Simba(2, 512),)
    assert (agent.policy_network.output_scale, agent.policy_network.torso.orthogonal) == (1.0, True)
    for optimizer in (workflow.actor_optimizer, workflow.critic_optimizer):
        values = (optimizer.name, float(optimizer.learning_rate), float(optimizer.weight_decay))
        assert values == ("adamw", 1e-4, 0.01)
    assert workflow.temperature_optimizer.weight_decay is None
    assert (workflow.reward_bound, agent.critic_network.num_atoms) == (None, None)


def test_the_shipped_settings_of_simba_v2() -> None:
    workflow = _shipped("simba_v2")
    _same_in_both(workflow)
    agent = workflow.agent
    assert agent.policy_network.torso.layers == (Hypersphere(1, 128),)
    assert agent.critic_network.torso.layers == (Hypersphere(2, 512),)
    for optimizer in (workflow.actor_optimizer, workflow.critic_optimizer):
        rates = (float(optimizer.learning_rate.start), float(optimizer.learning_rate.end))
        assert (rates, optimizer.projection, optimizer.weight_decay) == ((1e-4, 5e-5), "unit_norm", None)
    assert workflow.temperature_optimizer.projection is None
    assert (workflow.reward_bound, agent.critic_network.num_atoms) == (5.0, 101)
    assert (agent.support_low, agent.support_high) == (-5.0, 5.0)


@pytest.mark.parametrize("agent", ["simba", "simba_v2"])
def test_the_target_entropy_is_half_of_that_of_sac(agent: str) -> None:
    """Minus half the number of dimensions; the target of SAC would be twice as low."""
    own, usual = _shipped(agent).agent, _shipped("sac").agent
    assert own.target_entropy == -0.5 * own.distribution.size
    assert usual.target_entropy == -1.0 * own.distribution.size


def test_the_discount_follows_the_number_of_decisions() -> None:
    """``1 - 5 / T`` for T decisions in an episode: 500 in dm_control with repeated actions, else 1000."""
    tasks = {
        "gymnasium/dm_control/walker-walk-v0": 500,
        "gymnasium/dm_control/walker-run-v0": 500,
        "playground/CheetahRun": 500,
        "host/hopper": 1000,
    }
    for env, decisions in tasks.items():
        config = composed("agent=simba", f"env={env}")
        repeat = OmegaConf.select(config, "env.action_repeat") or 1
        assert (env, 1000 // repeat) == (env, decisions)
        np.testing.assert_allclose(config.discount, np.clip(1.0 - 5.0 / decisions, 0.95, 0.995))
        # One critic where episodes do not terminate.
        assert config.agent.num_critics == (1 if decisions == 500 else 2)


def test_initial_deviations_lie_around_the_middle_of_the_bounds() -> None:
    """The last layer starts with gain 1: deviations differ between observations. With gain 0.01 all equal exp(-4)."""
    spreads = {}
    for scale in (1.0, 0.01):
        workflow: Any = TestContract.make(agent={**SIMBA_AGENT, "policy_output_scale": scale})
        state = fresh_state(workflow.agent, workflow.env)
        obs = jnp.asarray(np.random.default_rng(0).normal(size=(256, 3)), jnp.float32)
        log_std = np.log(workflow.agent.policy(state, state.params.policy, obs).scale)
        np.testing.assert_allclose(np.median(log_std), -4.0, atol=3.0)
        spreads[scale] = log_std.std()
    assert spreads[1.0] > 0.5
    assert spreads[0.01] < 0.1


def test_the_buffer_holds_observations_as_they_are() -> None:
    """Sampled batches are normalized by the latest statistics; normalized ones in the buffer would break the circle."""
    workflow: Any = TestContract.make()
    state = workflow.init(0)
    for _ in range(5):
        _, state = workflow.step(state)
    batches, _, _ = workflow.draw_batches(state, jax.random.key(0), jnp.zeros(()))
    agent_state, obs = state.agent_state, batches.obs[0]

    def on_circle(obs: jax.Array) -> bool:  # cosine and sine of Pendulum's angle
        return np.allclose(np.square(obs[:, :2]).sum(axis=-1), 1.0, atol=1e-4)

    assert on_circle(obs)
    assert not on_circle(normalize(agent_state.obs_preprocessor_state, obs))  # the planted fault
    batch, keys = jax.tree.map(lambda x: x[0], batches), jax.random.split(jax.random.key(1), 16)
    later = agent_state.obs_preprocessor_state.replace(mean=agent_state.obs_preprocessor_state.mean + 1.0)
    losses = [
        workflow.agent.critic_loss(x.params.critic, x, batch, keys)[0]
        for x in (agent_state, agent_state.replace(obs_preprocessor_state=later))
    ]
    assert abs(losses[0] - losses[1]) > 1e-4
    # Every step counts, also the random ones.
    np.testing.assert_array_equal(agent_state.obs_preprocessor_state.count, 5 * workflow.timesteps_per_iteration)


@pytest.mark.parametrize("contract", [TestContract, TestContractHypersphere])
def test_time_limits_do_not_end_the_return(contract: type[WorkflowContract]) -> None:
    """Pendulum is only truncated: all targets bootstrap, although episodes in the buffer have ended."""
    workflow: Any = contract.make()
    state = workflow.init(0)
    for _ in range(12):
        _, state = workflow.step(state)
    batches, rows, envs = workflow.draw_batches(state, jax.random.key(0), jnp.zeros(()))
    np.testing.assert_allclose(batches.extras.discounts, 0.99, rtol=1e-6)
    assert np.asarray(state.replay_state.data.dones).any()  # the planted fault: 1 - dones as factor
    assert rows.shape == envs.shape == batches.rewards.shape


def test_all_parameters_decay() -> None:
    """Without gradients, AdamW shrinks weights, biases and gains by the same factor."""
    workflow: Any = TestContract.make()
    params = jax.tree.map(jnp.ones_like, fresh_state(workflow.agent, workflow.env).params.critic)
    optimizer = Optimizer(name="adamw", learning_rate=0.1, weight_decay=0.01)
    after, _ = optimizer.apply(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert {path.split("'")[-2] for path in arrays(after)} == {"kernel", "bias", "scale"}
    for x in jax.tree.leaves(after):
        np.testing.assert_allclose(x, 0.999, rtol=1e-6)


def _columns(params: Any) -> list[np.ndarray]:
    return [np.linalg.norm(x, axis=-2) for path, x in arrays(params).items() if "kernel" in path]


def test_simba_v2_projects_kernels_only() -> None:
    """After updates all kernels have columns of unit norm; scalers and biases have moved freely."""
    fast = {**UNIT_NORM, "learning_rate": 0.05}
    workflow: Any = TestContractHypersphere.make(actor_optimizer=fast, critic_optimizer=fast, learning_starts=0)
    state = workflow.init(0)
    before = {name: arrays(state.agent_state.params[name]) for name in ("policy", "critic")}
    for _ in range(4):
        _, state = workflow.step(state)
    for name, old in before.items():
        params = state.agent_state.params[name]
        columns = _columns(params)
        assert len(columns) == 5  # embedding, two of the block, and two of the head
        for x in columns:
            np.testing.assert_allclose(x, 1.0, rtol=1e-5)
        after = arrays(params)
        others = [path for path in old if "kernel" not in path]
        assert len(others) == 5  # of the embedding, two of the block, of the head; and a bias
        for path in others:
            assert (after[path] != old[path]).any()
            np.testing.assert_raises(
                AssertionError, np.testing.assert_allclose, np.linalg.norm(after[path], axis=-1), 1.0, rtol=1e-4
            )
    kernel = next(x for path, x in arrays(state.agent_state.params.policy).items() if "Dense_1" in path)
    wrong = kernel / np.linalg.norm(kernel, axis=-1, keepdims=True)  # the planted fault: the other axis
    assert not np.allclose(np.linalg.norm(wrong, axis=-2), 1.0, rtol=1e-2)


def test_outputs_do_not_depend_on_the_length_of_weights() -> None:
    """SimbaV2's features are the same for kernels of any length, except the last one; the features of SimBa differ."""
    for contract, is_free in ((TestContractHypersphere, True), (TestContract, False)):
        workflow: Any = contract.make()
        agent, state = workflow.agent, fresh_state(workflow.agent, workflow.env)
        torso = agent.policy_network.torso
        params = state.params.policy["params"]["torso"]
        (name, blocks), *_ = params.items()
        last = sorted(x for x in blocks if "Dense" in x)[-1] if is_free else None
        longer = {k: jax.tree.map(lambda x: 3.0 * x, v) if "Dense" in k and k != last else v for k, v in blocks.items()}
        obs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
        features = [torso.apply({"params": {name: each}}, obs) for each in (blocks, longer)]
        assert np.allclose(*features, rtol=1e-4, atol=1e-5) == is_free


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"min_log_std": 3.0}, ("min_log_std", "max_log_std")),
        ({"log_std_bound": "tan"}, ("log_std_bound", "tanh", "'tan'")),
    ],
)
def test_impossible_options_are_refused(settings: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("sac", "Pendulum-v1", agent=settings)

"""PPO with a centralized value function (MAPPO): it reads the world state, and the policy does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.algorithms.ppo import PPOWorkflow
from evorl.workflows.workflow import Workflow
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.small_workflows import EPISODE_STEPS, PPO_CONFIG

need("jaxmarl", "jaxmarl")

KEYS = {"policy_obs_key": "observation", "value_obs_key": "world_state"}
SPREAD = {"library": "jaxmarl", "name": "MPE_simple_spread_v3", "num_agents": 2, "num_landmarks": 2}


class TestContract(WorkflowContract):
    """MAPPO on Spread with two agents per copy."""

    workflow = PPOWorkflow
    SMALL = {**PPO_CONFIG, "agent": {"network": {"torso": [8]}, "normalize_obs": True, **KEYS}}

    @classmethod
    def make(cls, env: str | Mapping[str, Any] | None = None, **changes: Any) -> Workflow:
        """Build the small workflow; only the time limit of ``env`` is used."""
        limit = env["max_episode_steps"] if isinstance(env, Mapping) else EPISODE_STEPS
        env = {**SPREAD, "world_state": True, "max_episode_steps": limit}
        return cls.workflow.build_from_config({**cls.SMALL, "env": env, **changes})


def test_the_policy_does_not_read_the_world_state_and_the_value_function_reads_nothing_else() -> None:
    """Otherwise the agents could not act without the observations of the others."""
    workflow: Any = TestContract.make()
    state = workflow.init(0)
    obs, agent = state.env_state.obs, workflow.agent

    @jax.jit
    def outputs(obs: Any) -> tuple[jax.Array, jax.Array]:
        estimates = agent.estimates(state.agent_state, state.agent_state.params, obs)
        return estimates.policy.logits, estimates.values

    logits, values = outputs(obs)
    other_logits, other_values = outputs(obs.replace(world_state=obs.world_state + 1.0))
    np.testing.assert_array_equal(other_logits, logits)
    assert (np.abs(other_values - values) > 1e-6).all()
    own_logits, own_values = outputs(obs.replace(observation=obs.observation + 1.0))
    np.testing.assert_array_equal(own_values, values)
    assert (np.abs(own_logits - logits) > 1e-6).any()
    np.testing.assert_allclose(values[0::2], values[1::2], rtol=1e-5)  # one value per copy
    assert len(np.unique(np.round(values, 5))) == len(values) // 2


def test_both_networks_learn() -> None:
    workflow: Any = TestContract.make()
    state = workflow.init(0)
    metrics, after = workflow.step(state)
    for part in ("policy", "value"):
        before, learned = (jax.tree.leaves(s.agent_state.params[part]) for s in (state, after))
        assert any(bool((jnp.abs(x - y) > 0.0).any()) for x, y in zip(before, learned, strict=True))
    assert np.isfinite(metrics.value_loss)


def test_without_the_world_state_the_entry_is_missing() -> None:
    config = {**TestContract.SMALL, "env": {**SPREAD, "max_episode_steps": EPISODE_STEPS}}
    with raises_naming(ValueError, "observation"):
        PPOWorkflow.build_from_config(config)

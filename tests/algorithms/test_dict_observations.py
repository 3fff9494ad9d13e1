"""Agents train on dict observations; policy and critics receive only their entries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from evorl.algorithms.sac import SACWorkflow
from evorl.algorithms.td3 import TD3Workflow
from evorl.envs import Box, DictSpace, EnvState, Space
from evorl.envs.wrappers import EpisodeWrapper, VmapAutoResetWrapper, VmapWrapper
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv
from tests.support.small_workflows import arrays, assert_identical

LIMIT = 4
OPTIONS: dict[str, tuple[type[Workflow], dict[str, Any]]] = {
    "ppo": (PPOWorkflow, {"rollout_length": 4, "num_epochs": 1, "num_minibatches": 2}),
    "sac": (SACWorkflow, {"batch_size": 4, "learning_starts": 4.0, "replay_capacity": 32}),
    "td3": (TD3Workflow, {"batch_size": 4, "learning_starts": 4.0, "replay_capacity": 32}),
}


class NamedProbe(ProbeEnv):
    """Two named observations: ``seen`` with two entries and ``hidden`` with three, one of them a counter."""

    @property
    def obs_space(self) -> Space:
        return DictSpace({"seen": Box(-jnp.inf, jnp.inf, (2,)), "hidden": Box(-jnp.inf, jnp.inf, (3,))})

    def _state(self, *args: Any) -> EnvState:
        state = super()._state(*args)
        number, t = state.obs[0], state.env_state.t.astype(jnp.float32)
        obs = PyTreeDict(seen=jnp.stack([number, -number]), hidden=jnp.stack([number, t, 1.0 + t]))
        return state.replace(obs=obs)


def _workflow(algorithm: str, continuous: bool, policy_key: str | None, value_key: str | None) -> Workflow:
    cls, options = OPTIONS[algorithm]
    env = EpisodeWrapper(NamedProbe("observation_dependent_action", continuous), LIMIT)
    settings = {
        "network": {"torso": [5]},
        "policy_obs_key": policy_key,
        "value_obs_key": value_key,
        "normalize_obs": True,
    }
    train_env = VmapAutoResetWrapper(env, 4)
    return cls(
        env=train_env,
        eval_env=VmapWrapper(env, 4),
        agent=cls.make_agent(settings, train_env),
        eval_episodes=4,
        total_timesteps=4 * 4 * 5,
        **options,
    )


@pytest.mark.parametrize(("algorithm", "continuous"), [("ppo", False), ("sac", True), ("td3", True)])
def test_training_on_named_observations(algorithm: str, continuous: bool) -> None:
    workflow = _workflow(algorithm, continuous, "seen", "hidden")
    first = workflow.init(0)
    state = workflow.learn(key=0)
    params = state.agent_state.params
    values = params.value if algorithm == "ppo" else params.critic
    num_inputs = {"policy": 2, "values": 3 + (algorithm != "ppo")}
    assert {leaf.shape[-2] for path, leaf in arrays(params.policy).items() if leaf.ndim == 2} == {
        num_inputs["policy"],
        5,
    }
    assert {leaf.shape[-2] for path, leaf in arrays(values).items() if leaf.ndim >= 2 and leaf.shape[-2] != 1} >= {
        num_inputs["values"]
    }
    before, after = arrays(first.agent_state.params), arrays(params)
    assert any((after[path] != before[path]).any() for path in after)
    statistics = state.agent_state.obs_preprocessor_state
    assert sorted(statistics.mean) == ["hidden", "seen"]
    assert float(statistics.count) > 0
    assert jnp.isfinite(workflow.evaluate(state).episode_return)


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "td3"])
def test_the_policy_does_not_see_the_other_entry(algorithm: str) -> None:
    workflow = _workflow(algorithm, True, "seen", "hidden")
    agent_state = workflow.init(0).agent_state
    obs = PyTreeDict(seen=jnp.ones((3, 2)), hidden=jnp.ones((3, 3)))
    other = obs.replace(hidden=jnp.full((3, 3), 7.0))
    key = jax.random.key(1)
    actions, _ = workflow.agent.compute_actions(agent_state, SampleBatch(obs=obs), key)
    same, _ = workflow.agent.compute_actions(agent_state, SampleBatch(obs=other), key)
    assert_identical(same, actions)
    changed, _ = workflow.agent.compute_actions(
        agent_state, SampleBatch(obs=obs.replace(seen=jnp.full((3, 2), 7.0))), key
    )
    assert (changed != actions).any()


def test_an_entry_that_is_not_there_is_refused() -> None:
    with raises_naming(ValueError, "entry 'sen'", "'seen'"):
        _workflow("ppo", False, "sen", "hidden")
    with raises_naming(ValueError, "agent.policy_obs_key"):
        _workflow("sac", False, None, None)

"""The policy for evolution is deterministic, for discrete and for continuous actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.agents.policy import PolicyAgent
from evorl.envs import Box, Discrete, Env, TupleSpace
from evorl.envs.space import DictSpace
from evorl.ops.normalization import update_statistics
from evorl.sample_batch import SampleBatch
from tests.support.errors import raises_naming
from tests.support.toy_envs import ToyEnv

KEY = jax.random.key(0)
OBS = jax.random.normal(KEY, (50, 3))
FEATURES = Box(-jnp.inf, jnp.inf, (3,))


def _agent(env: Env, **config: object) -> tuple[PolicyAgent, AgentState]:
    agent = PolicyAgent.from_config({"network": {"torso": [8]}, **config}, env)
    return agent, agent.init(env.obs_space, env.action_space, KEY)


def _outputs(agent: PolicyAgent, state: AgentState, obs: jax.Array) -> np.ndarray:
    return np.asarray(agent.policy_network.apply(state.params.policy, obs))


def test_discrete_actions_are_those_of_the_greatest_output() -> None:
    agent, state = _agent(ToyEnv(Discrete(4), FEATURES))
    actions, _ = agent.compute_actions(state, SampleBatch(obs=OBS), KEY)
    assert actions.dtype == jnp.int32
    np.testing.assert_array_equal(actions, _outputs(agent, state, OBS).argmax(axis=-1))
    assert len(np.unique(actions)) > 1
    np.testing.assert_array_equal(agent.evaluate_actions(state, SampleBatch(obs=OBS), jax.random.key(1))[0], actions)


@pytest.mark.parametrize(("bound", "squash"), [(1.0, np.tanh), (jnp.inf, lambda x: x)])
def test_continuous_actions_keep_to_the_bounds(bound: float, squash: object) -> None:
    agent, state = _agent(ToyEnv(Box(-bound, bound, (2,)), FEATURES))
    actions, _ = agent.compute_actions(state, SampleBatch(obs=OBS), KEY)
    np.testing.assert_allclose(actions, squash(_outputs(agent, state, OBS)), rtol=1e-5)  # pyright: ignore[reportCallIssue]


def test_observations_are_normalised_if_wanted() -> None:
    env = ToyEnv(Discrete(4), FEATURES)
    assert _agent(env)[1].obs_preprocessor_state is None
    agent, state = _agent(env, normalize_obs=True)
    shifted = 100.0 + 30.0 * OBS
    state = state.replace(obs_preprocessor_state=update_statistics(state.obs_preprocessor_state, shifted))
    actions, _ = agent.compute_actions(state, SampleBatch(obs=shifted), KEY)
    normal = (shifted - shifted.mean(axis=0)) / shifted.std(axis=0)
    np.testing.assert_array_equal(actions, _outputs(agent, state, normal).argmax(axis=-1))


def test_one_entry_of_an_observation() -> None:
    env = ToyEnv(Discrete(4), DictSpace({"seen": FEATURES, "hidden": FEATURES}))
    agent, state = _agent(env, policy_obs_key="seen")
    actions, _ = agent.compute_actions(state, SampleBatch(obs={"seen": OBS, "hidden": 0 * OBS}), KEY)
    np.testing.assert_array_equal(actions, _outputs(agent, state, OBS).argmax(axis=-1))
    with raises_naming(ValueError, "several entries", "policy_obs_key"):
        _agent(env)


def test_other_action_spaces_are_refused() -> None:
    with raises_naming(ValueError, "Discrete, MultiDiscrete, MultiBinary", "Boxes", "TupleSpace"):
        _agent(ToyEnv(TupleSpace([Discrete(2), Box(-1.0, 1.0, (2,))]), FEATURES))

"""No agent with discrete actions selects a masked action, and learning stays finite."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import agents_acting_in
from evorl.envs import Box, DictSpace, EnvState, create_env
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.stack import wrap_env
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.small_workflows import arrays, contract_of, one_iteration, small
from tests.support.toy_envs import MASKED, NUM_ACTIONS, ToyEnv, toy_state

ENV = {"factory": MASKED, "max_episode_steps": 10}
AGENTS = {
    "a2c": "A2C",
    "crossq": "CrossQ",
    "discor": "DisCor",
    "dqn": "DQN",
    "impala": "IMPALA",
    "iql": "IQL",
    "pqn": "PQN",
    "pqn_recurrent": "PQNRecurrent",
    "ppo": "PPO",
    "r2d2": "R2D2",
    "recurrent_sac": "RecurrentSAC",
    "reinforce": "Reinforce",
    "sac": "SAC",
    "trpo": "TRPO",
}
ONLINE = {"iql": {"offline": False, "replay": {"load": None}}}  # agents that learn from recorded transitions
NUM_ROWS = 64


def _observed() -> PyTreeDict:
    masks = jax.random.bernoulli(jax.random.key(1), 0.4, (NUM_ROWS, NUM_ACTIONS)).at[:, 2].set(True)
    return PyTreeDict(observation=jax.random.normal(jax.random.key(2), (NUM_ROWS, 3)), action_mask=masks)


def _seen(agent_state: Any, obs: Any) -> SampleBatch:
    if agent_state.recurrent_state is None:
        return SampleBatch(obs=obs)
    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (NUM_ROWS, *x.shape)), agent_state.recurrent_state)
    return SampleBatch(obs=obs, extras=PyTreeDict(recurrent_state=start))


def _are_allowed(actions: Any, obs: Any) -> bool:
    return bool(np.take_along_axis(np.asarray(obs.action_mask), np.asarray(actions)[:, None], axis=1).all())


def test_these_are_all_agents_with_discrete_actions() -> None:
    """The contract covers all agents with discrete actions; tests/agents/test_random_actions.py covers the random
    agent.
    """
    assert {*AGENTS.values(), "Random"} == set(agents_acting_in(ActionSpaces.DISCRETE))


@pytest.mark.parametrize("algorithm", [*AGENTS, "neuroevolution"])
def test_only_allowed_actions_are_taken(algorithm: str) -> None:
    workflow, obs = small(algorithm, ENV, **ONLINE.get(algorithm, {})), _observed()
    agent, env = workflow.agent, create_env(ENV)

    @jax.jit
    def act(key: jax.Array) -> tuple[Any, Any, Any]:
        state = agent.init(env.obs_space, env.action_space, key)
        # Parameters far from zero, so that the network prefers a masked action somewhere.
        state = state.replace(params=jax.tree.map(lambda x: 5.0 * x, state.params))
        batch = _seen(state, obs)
        explored = jax.vmap(lambda k: agent.compute_actions(state, batch, k)[0])(jax.random.split(key, 8))
        warmed_up = getattr(workflow, "exploring", None)
        random = (
            explored
            if warmed_up is None
            else jax.vmap(lambda k: warmed_up(jnp.bool_(True))(state, batch, k)[0])(jax.random.split(key, 8))
        )
        return explored, random, agent.evaluate_actions(state, batch, key)[0]

    explored, random, evaluated = act(jax.random.key(0))
    assert all(_are_allowed(actions, obs) for actions in (*explored, *random, evaluated))
    if algorithm != "neuroevolution":
        assert len(np.unique(np.asarray(explored))) == NUM_ACTIONS


class MaskedBox(ToyEnv):
    """Box actions, and an observation entry ``action_mask`` with as many entries as a policy has outputs."""

    action_space = Box(-1.0, 1.0, (2,))
    obs_space = DictSpace({"observation": Box(-1.0, 1.0, (3,)), "action_mask": Box(0, 1, (4,), jnp.int8)})

    def reset(self, key: jax.Array) -> EnvState:
        return toy_state(key, self.obs_space.zeros())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return self.reset(env_state.env_state)


@pytest.mark.parametrize("num_choices", [2, 4])
@pytest.mark.parametrize("algorithm", ["ppo", "sac", "crossq"])
def test_a_mask_does_not_apply_to_box_actions(algorithm: str, num_choices: int) -> None:
    env = wrap_env(MaskedBox(), parallel=2, limit=4)
    contract = contract_of(algorithm)
    agent = contract.workflow.make_agent(contract.SMALL["agent"], env)
    key, masks = jax.random.key(0), jnp.eye(NUM_ROWS, num_choices, dtype=jnp.int8)

    @jax.jit
    def act(masks: jax.Array) -> Any:
        state = agent.init(env.obs_space, env.action_space, key)
        obs = PyTreeDict(observation=jnp.ones((NUM_ROWS, 3)), action_mask=masks)
        batch = SampleBatch(obs=obs, next_obs=obs, actions=jnp.zeros((NUM_ROWS, 2)), extras=PyTreeDict(weights=1.0))
        acted = agent.compute_actions(state, batch, key)[0], agent.evaluate_actions(state, batch, key)[0]
        losses = [agent.actor_loss(state.params.policy, state, batch, key)[0]] if agent.improves_policies else []
        return acted, losses

    jax.tree.map(np.testing.assert_array_equal, act(masks), act(jnp.ones_like(masks)))


@pytest.mark.parametrize("algorithm", ["ppo", "trpo", "dqn", "iql", "r2d2", "recurrent_sac", "sac", "crossq"])
def test_what_is_learned_stays_finite(algorithm: str) -> None:
    changes = {"learning_starts": 8.0} if algorithm in ("dqn", "iql", "sac", "crossq") else {}
    workflow = small(algorithm, ENV, **ONLINE.get(algorithm, {}), **changes)
    state = workflow.init(0)
    before = arrays(state.agent_state.params)
    for _ in range(3):
        metrics, state = one_iteration(workflow, state)
    after = arrays(state.agent_state.params)
    assert all(np.isfinite(leaf).all() for leaf in after.values())
    assert any((after[name] != before[name]).any() for name in after)
    losses = [value for name, value in metrics.items() if name.endswith("loss")]
    assert losses
    assert all(np.isfinite(value).all() for value in losses)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_run_is_never_fined_for_a_forbidden_action(algorithm: str) -> None:
    """Evaluations and training rollouts never receive the penalty for masked actions."""
    workflow = small(algorithm, ENV)
    state = workflow.init(0)
    evaluation = workflow.evaluate(state)
    np.testing.assert_allclose(evaluation.episode_return, evaluation.episode_length)

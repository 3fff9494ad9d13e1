"""Replays are the episodes of an evaluation with the same key."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.ppo import PPOWorkflow
from evorl.envs import create_env
from evorl.episodes import replay
from evorl.episodes.replay import Player, episode_title, replay_episodes
from evorl.evaluators.evaluator import Evaluator
from evorl.types import PyTreeDict

KEY = jax.random.key(3)


def agent_state(shift: int) -> AgentState:
    return AgentState(params=PyTreeDict(policy=jnp.int32(shift)))


def lean_left_or_right(agent_state: AgentState, batch: Any, key: Any) -> tuple[Any, Any]:
    """Sample an action from each environment's key: equal keys give equal episodes."""
    shift = agent_state.params.policy
    return (jax.vmap(lambda k: jax.random.bernoulli(k).astype(jnp.int32))(key) + shift) % 2, PyTreeDict()


def test_every_policy_plays_the_first_episodes_of_the_evaluation() -> None:
    config = {"library": "gymnax", "name": "CartPole-v1", "max_episode_steps": 12}
    env = create_env(config, parallel=2, autoreset_mode="disabled")
    evaluator = Evaluator(env=env, agent_fn=lean_left_or_right, max_episode_steps=12, keep_steps=3)
    evaluated = [evaluator.evaluate(agent_state(shift), KEY, 3) for shift in (0, 1)]
    assert all(metrics.steps is not None for metrics in evaluated)
    assert (evaluated[0].steps.actions != evaluated[1].steps.actions).any()
    players = [Player("as is", agent_state(0), 2), Player("opposite", agent_state(1), 1)]
    replays = replay_episodes(env, lean_left_or_right, players, KEY)
    assert [title for title, _ in replays] == ["as is episode 1", "as is episode 2", "opposite"]
    for (_, episode), (which, number) in zip(replays, [(0, 0), (0, 1), (1, 0)], strict=True):
        expected = evaluated[which].steps
        length = int(evaluated[which].episode_lengths[number])
        assert episode.about["length"] == length
        np.testing.assert_array_equal(episode.arrays["action"], expected.actions[number][:length])
        np.testing.assert_array_equal(episode.arrays["obs"], expected.obs[number][: length + 1])


def test_equal_agents_share_the_program() -> None:
    """Each rendering in a notebook compiled and kept a program, because methods are equal only if their objects are."""
    env = create_env({"library": "gymnax", "name": "CartPole-v1", "max_episode_steps": 4}, autoreset_mode="disabled")
    played, before = [], replay._results._cache_size()
    for seed in range(3):
        agent = PPOWorkflow.make_agent({"network": {"torso": [4]}}, env)
        state = agent.init(env.obs_space, env.action_space, jax.random.key(seed))
        ((_, episode),) = replay_episodes(env, agent.evaluate_actions, [Player("", state, 1)], KEY)
        played.append(Evaluator(env=env, agent_fn=agent.evaluate_actions, keep_steps=1).evaluate(state, KEY, 1))
        length = int(played[-1].episode_lengths[0])
        np.testing.assert_array_equal(episode.arrays["action"], played[-1].steps.actions[0][:length])
    assert replay._results._cache_size() == before + 1


@pytest.mark.parametrize(
    ("title", "of", "expected"),
    [("", 1, "episode 1"), ("cell 5", 1, "cell 5"), ("cell 5", 2, "cell 5 episode 1"), ("", 2, "episode 1")],
)
def test_an_episode_has_a_number_where_there_are_several(title: str, of: int, expected: str) -> None:
    assert episode_title(title, 0, of) == expected

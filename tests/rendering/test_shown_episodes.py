"""Rendered episodes equal the episodes of an evaluation, for every renderer."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.envs import create_env
from evorl.envs.env import EnvState
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.episodes.replay import Player
from evorl.evaluators.evaluator import Evaluator
from evorl.rendering.shown_episodes import Album, shown_episodes, simulator_renderer
from evorl.types import PyTreeDict
from tests.support import toy_envs
from tests.support.errors import raises_naming

KEY = jax.random.key(3)
MODULE = __name__
SOMEBODY = AgentState(params=PyTreeDict(policy=jnp.zeros(())))


def lean_left_or_right(agent_state: AgentState, batch: Any, key: Any) -> tuple[Any, Any]:
    """Sample an action from each environment's key: equal keys give equal episodes."""
    shift = jnp.int32(agent_state.params.policy)
    return (jax.vmap(lambda k: jax.random.bernoulli(k).astype(jnp.int32))(key) + shift) % 2, PyTreeDict()


def test_of_lines_the_episodes_are_those_of_an_evaluation() -> None:
    config = {"library": "gymnax", "name": "CartPole-v1", "max_episode_steps": 12}
    env = create_env(config, parallel=2, autoreset_mode="disabled")
    evaluated = Evaluator(env=env, agent_fn=lean_left_or_right, max_episode_steps=12).evaluate(SOMEBODY, KEY, 2)
    with shown_episodes(
        env, config, lean_left_or_right, [Player("", SOMEBODY, 2)], KEY, size=40, num_frames=5
    ) as shown:
        assert [each.title for each in shown] == ["episode 1", "episode 2"]
        assert [each.length for each in shown] == evaluated.episode_lengths.tolist()
        np.testing.assert_allclose([each.rewards.sum() for each in shown], evaluated.episode_returns)
        assert shown[0].draw(0).shape == (40, 80, 3)
        assert shown[0].episode is not None
        # Independent of the agent's observations.
        assert shown[0].episode.arrays["theta"].shape == (shown[0].length + 1,)
        assert (shown[0].draw(0) != shown[0].draw(shown[0].length)).any()
    with shown_episodes(
        env, config, lean_left_or_right, [Player("", SOMEBODY, 2)], KEY, size=40, num_frames=5, num_steps=3
    ) as first:
        assert [(each.length, each.is_whole) for each in first] == [(3, False)] * 2
        assert [each.rewards.tolist() for each in first] == [each.rewards[:3].tolist() for each in shown]


class Lamp(toy_envs.Countdown):
    """User environment with its own renderer, whose brightness is the step."""

    def render(self, state: EnvState) -> np.ndarray:
        """Return a gray image of one environment."""
        assert state.reward.shape == ()
        return np.full((8, 8, 3), 10 * int(state.info.steps), np.uint8)


def make_lamp() -> Lamp:
    return Lamp()


def test_an_environment_of_the_user_draws_itself() -> None:
    config = {"factory": f"{MODULE}:make_lamp", "max_episode_steps": 4}
    env = create_env(config, parallel=2, autoreset_mode="disabled")

    def act(agent_state: AgentState, batch: Any, key: Any) -> tuple[Any, Any]:
        return env.action_space.zeros((jax.tree.leaves(batch.obs)[0].shape[0],)), PyTreeDict()

    players = [Player("mine", SOMEBODY, 1), Player("yours", SOMEBODY, 2)]
    with shown_episodes(env, config, act, players, KEY, size=16, num_frames=9) as shown:
        assert [each.title for each in shown] == ["mine", "yours episode 1", "yours episode 2"]
        for each in shown:
            assert [int(each.draw(moment)[0, 0, 0]) for moment in range(each.length + 1)] == [
                10 * moment for moment in range(each.length + 1)
            ]
            assert each.draw(0).shape == (16, 16, 3)
    lengths = [each.length for each in shown]
    for num_steps in range(1, max(lengths) + 1):
        with shown_episodes(env, config, act, players, KEY, size=16, num_frames=1, num_steps=num_steps) as first:
            expected = [(min(length, num_steps), length <= num_steps) for length in lengths]
            assert [(each.length, each.is_whole) for each in first] == expected
            assert int(first[0].draw(first[0].length)[0, 0, 0]) == 10 * first[0].length


def test_an_album_has_the_first_the_last_and_few_between() -> None:
    album, taken = Album(3), []

    def look(moment: int) -> np.ndarray:
        taken.append(moment)
        return np.full((1, 1, 3), moment, np.uint8)

    for moment in range(101):
        album.add(moment, lambda moment=moment: look(moment), is_last=moment == 100)
    assert int(album.picture(0)[0, 0, 0]) == 0
    assert int(album.picture(100)[0, 0, 0]) == 100
    assert abs(int(album.picture(50)[0, 0, 0]) - 50) <= 16
    assert len(taken) < 30
    kept = {int(album.picture(moment)[0, 0, 0]) for moment in range(101)}
    assert 3 <= len(kept) <= 7


class Blind:
    title = "gymnasium/Blind-v0"

    def __init__(self, picture: Any) -> None:
        self._picture = picture

    def render(self) -> Any:
        if isinstance(self._picture, Exception):
            raise self._picture
        return self._picture


@pytest.mark.parametrize(
    ("picture", "kind", "parts"),
    [
        (None, HostEnvError, ("gymnasium/Blind-v0", "no image")),
        (RuntimeError("no pygame"), HostEnvError, ("gymnasium/Blind-v0", "RuntimeError: no pygame")),
        (np.zeros((4, 4)), ValueError, ("image", "uint8 [height, width, 3]", "got float64 [4, 4]")),
    ],
)
def test_a_simulator_that_draws_nothing_is_told(picture: Any, kind: type[Exception], parts: tuple[str, ...]) -> None:
    with raises_naming(kind, *parts):
        simulator_renderer(Blind(picture), 8)(None)  # pyright: ignore[reportArgumentType]  # a stand-in


class Stumbling(gymnasium.Env):
    """A simulator whose third step fails."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 3:
            raise ZeroDivisionError("no ground")
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


class Brightening(Stumbling):
    """A simulator whose picture brightens in each step; the episode ends after the second one."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(1, np.float32), 1.0, self._steps == 2, False, {}

    def render(self) -> Any:
        return np.full((4, 4, 3), 10 * self._steps, np.uint8)


def test_the_last_frame_of_a_simulator_shows_the_end_of_the_episode() -> None:
    config = {"factory": f"{MODULE}:Brightening", "max_episode_steps": 5}
    env = create_env(config, parallel=1, autoreset_mode="disabled")
    players = [Player("", SOMEBODY, 2)]
    with shown_episodes(env, config, lean_left_or_right, players, KEY, size=4, num_frames=3) as episodes:
        for episode in episodes:
            assert [int(episode.draw(i)[0, 0, 0]) for i in range(episode.length + 1)] == [0, 10, 20]


def test_a_failing_simulator_is_told_in_one_line() -> None:
    config = {"factory": f"{MODULE}:Stumbling", "max_episode_steps": 5}
    env = create_env(config, parallel=1, autoreset_mode="disabled")
    players = [Player("", SOMEBODY, 1)]
    with (
        raises_naming(HostEnvError, "environment 0", "failed in step", "ZeroDivisionError: no ground") as error,
        shown_episodes(env, config, lean_left_or_right, players, KEY, size=8, num_frames=3),
    ):
        pass
    assert "\n" not in str(error.value)

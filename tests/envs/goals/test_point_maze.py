"""A point in a maze."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, create_env
from evorl.envs.goals.point_maze import MAZES, REACH, STEP, MazePositions, make_point_maze
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import VectorEnvContract
from tests.support.errors import raises_naming


class TestContract(VectorEnvContract):
    """Episodes end only by the time limit."""

    can_terminate = False

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        return create_env("goal/point_maze", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=20)


@pytest.mark.parametrize("name", MAZES)
def test_no_walk_goes_through_a_wall(name: str) -> None:
    """The point stays in free cells and moves at most one step at a time."""
    env = create_env("goal/point_maze", maze=name, parallel=32, max_episode_steps=400)
    places = MazePositions(MAZES[name])

    def step(state, key):
        # Mostly one direction, so that the point meets walls.
        action = jax.random.normal(key, (32, 2)) + jnp.sign(jax.random.normal(jax.random.key(1), (32, 2)))
        state = env.step(state, jnp.clip(action, -1.0, 1.0))
        return state, state.obs.observation

    start = env.reset(jax.random.key(0))
    _, places_seen = jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(jax.random.key(2), 399)))(start)
    walk = np.concatenate([start.obs.observation[None], places_seen])
    cells = np.floor(walk + places.middle).astype(int)
    assert not places.is_wall[cells[..., 1], cells[..., 0]].any()
    assert np.abs(np.diff(walk, axis=0)).max() <= STEP + 1e-5
    assert (np.abs(np.diff(cells, axis=0)).max(axis=-1) > 0).any()


def test_a_wall_stops_the_point_in_front_of_it() -> None:
    env = make_point_maze("u", start="S", goal="F")
    state = env.reset(jax.random.key(0))
    for _ in range(10):
        state = env.step(state, jnp.array([-1.0, -0.1]))
    np.testing.assert_allclose(state.obs.observation + MazePositions(MAZES["u"]).middle, [1.05, 1.25], atol=1e-5)


def test_the_goal_is_reached_from_the_far_end() -> None:
    env = make_point_maze("u", start="S", goal="F")
    state = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(state.obs.observation, [-1.0, -1.0])
    np.testing.assert_array_equal(state.obs.desired_goal, [-1.0, 1.0])
    rewards = []
    for move, times in (([1.0, 0.0], 8), ([0.0, 1.0], 8), ([-1.0, 0.0], 8)):
        for _ in range(times):
            state = env.step(state, jnp.array(move))
            rewards.append(float(state.reward))
            distance = float(np.linalg.norm(np.asarray(state.obs.achieved_goal) - np.asarray(state.obs.desired_goal)))
            assert (rewards[-1] == 0.0) == bool(state.info.is_success) == (distance <= REACH)
            assert not state.done
    assert rewards == [-1.0] * 22 + [0.0] * 2


@pytest.mark.parametrize("name", MAZES)
def test_places_are_drawn_from_all_free_cells_alike(name: str) -> None:
    places = MazePositions(MAZES[name])
    draw = jax.jit(lambda key: jax.vmap(places.sample)(jax.random.split(key, 20_000)))
    contains = jax.jit(places.contains)
    drawn = np.asarray(draw(jax.random.key(0))) + places.middle
    cells, counts = np.unique(np.floor(drawn).astype(int), axis=0, return_counts=True)
    assert len(cells) == (~places.is_wall).sum()
    expected = 20_000 / len(cells)
    assert ((counts - expected) ** 2 / expected).sum() < 2 * len(cells) + 20
    assert np.all(contains(np.float32(drawn - places.middle)))
    corners = np.array(np.nonzero(places.is_wall)).T[:, ::-1] + 0.5 - places.middle
    assert not np.any(contains(np.float32(corners)))
    assert not np.any(contains(np.zeros(3, np.float32)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maze": "spirl"}, ("'spirl'", "'spiral'")),
        ({"maze": ["####", "#  ", "####"]}, ("maze", "equal length")),
        ({"maze": ["###", "#  ", "###"]}, ("maze", "walls ('#')")),
        ({"maze": ["###", "###"]}, ("maze", "free cell")),
        ({"maze": ["###", "# #", "###"], "start": "S"}, ("maze", "S")),
        ({"maze": 5}, ("env.maze", "list", "got 5")),
        ({"maze": [5, 6]}, ("env.maze", "text", "got 5")),
        ({"maze": {"u": 1}}, ("env.maze", "list", "got {'u': 1}")),
        ({"maze": []}, ("env.maze", "equal length")),
        ({"goal": "S"}, ("goal 'S'",)),
    ],
)
def test_what_is_no_maze_is_told(options: dict, words: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *words):
        make_point_maze(**options)


def test_a_maze_of_the_users_own() -> None:
    env = create_env("goal/point_maze", maze=["####", "#SF#", "####"], start="S", goal="F")
    assert env == create_env("goal/point_maze", maze=["####", "#SF#", "####"], start="S", goal="F")
    state = env.reset(jax.random.key(0))
    assert float(state.obs.desired_goal[0, 0] - state.obs.observation[0, 0]) == 1.0


def test_a_setter_asks_for_other_places_than_the_far_end() -> None:
    far = create_env("goal/point_maze", goal="F", parallel=64)
    uniform = create_env("goal/point_maze", goal="F", parallel=64, goal_setter="uniform")
    key = jax.random.key(0)
    assert len(np.unique(far.reset(key).obs.desired_goal, axis=0)) == 1
    assert len(np.unique(uniform.reset(key).obs.desired_goal, axis=0)) == 64

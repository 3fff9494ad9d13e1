"""Choices are one-hot encoded and pixels scaled by one rule, wherever they occur in an observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from evorl.envs import Box, DictSpace, Discrete, MultiDiscrete, Space, TupleSpace
from evorl.envs.gymnasium_spaces import space_of
from evorl.envs.stack import wrap_env
from evorl.envs.wrapped_row import WrappedRow
from evorl.envs.wrappers import ObsFlattenWrapper
from evorl.envs.wrappers.encoding import ChannelsLastWrapper, decoded, encoded, encoded_space, has_choices
from evorl.envs.wrappers.goal import GoalWrapper
from evorl.ops.trees import as_float
from evorl.types import PyTreeDict
from tests.envs.wrappers.test_observation import Showing
from tests.support.errors import raises_naming

LEAVES = (
    spaces.Discrete(3),
    spaces.Discrete(4, start=2),
    spaces.Discrete(2, start=-5),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 4], [3, 1]], start=[[1, -1], [0, 7]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-3, 9, (2,), np.int64),
    spaces.Box(0, 200, (), np.uint16),
    spaces.Box(0, 255, (2, 2, 1), np.uint8),
    spaces.Box(-1.0, 1.0, (2,), np.float64),
    spaces.Box(-np.inf, np.inf, (1, 2), np.float16),
)
some_spaces = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda members: spaces.Tuple(members)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(
            lambda members: spaces.Dict(members)
        ),
    ),
    max_leaves=4,
)


def read_alone(space: spaces.Space, obs: Any) -> list[np.ndarray]:
    """Return the expected network inputs for each array of a Gymnasium observation, each as one vector."""
    if isinstance(space, spaces.Dict):
        return [x for name in sorted(space.spaces) for x in read_alone(space[name], obs[name])]
    if isinstance(space, spaces.Tuple):
        return [x for member, part in zip(space, obs, strict=True) for x in read_alone(member, part)]
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return [np.float32(spaces.flatten(space, obs))]  # Gymnasium's one-hot encoding
    numbers = np.ravel(obs).astype(np.float32)
    return [numbers / np.float32(255) if space.dtype == np.uint8 else numbers]


def as_ours(space: Space, obs: Any) -> Any:
    if isinstance(space, DictSpace):
        return PyTreeDict({name: as_ours(member, obs[name]) for name, member in space.spaces.items()})
    if isinstance(space, TupleSpace):
        return tuple(as_ours(member, part) for member, part in zip(space.spaces, obs, strict=True))
    return np.asarray(obs, space.dtype)


@settings(max_examples=60, deadline=None)
@given(theirs=some_spaces, seed=st.integers(0, 99))
def test_every_space_is_read_by_one_rule_alone_in_containers_and_flat(theirs: spaces.Space, seed: int) -> None:
    theirs.seed(seed)
    obs, space = theirs.sample(), space_of(theirs)
    expected = read_alone(theirs, obs)
    ours = as_ours(space, obs)
    apart, its_space = encoded(space, ours), encoded_space(space)
    assert bool(its_space.contains(apart))
    assert not has_choices(its_space)
    again = decoded(space, apart)
    assert bool(space.contains(again))
    assert jax.tree.all(jax.tree.map(np.array_equal, again, ours))
    assert jax.tree.all(jax.tree.map(lambda s, x: (s.shape, s.dtype) == (x.shape, x.dtype), its_space.spec, apart))
    for one, read in zip(jax.tree.leaves(apart), expected, strict=True):
        np.testing.assert_allclose(np.ravel(as_float(one)), read, rtol=1e-6)
    flat = ObsFlattenWrapper(Showing(space))
    vector = flat.observation(ours)
    assert (vector.shape, vector.dtype) == (flat.obs_space.shape, flat.obs_space.dtype)
    assert bool(flat.obs_space.contains(vector))
    np.testing.assert_allclose(as_float(vector), np.concatenate(expected), rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "options"),
    [(Discrete(200, start=-3), {}), (Box(0, 255, (3, 2, 4), np.uint8), {"channels": "first"})],
)
def test_rewards_of_goals_read_the_observations_of_the_environment(space: Space, options: dict[str, Any]) -> None:
    """Under other goals, too: hindsight replay computes rewards from stored observations, which are encoded."""

    def reward_of(achieved: Any, desired: Any, action: Any, obs: Any) -> jax.Array:
        weights = jnp.arange(1.0, 1.0 + np.prod(space.shape)).reshape(space.shape)
        return -(weights * obs).sum()

    one = Box(0.0, 1.0, (1,))
    goals = GoalWrapper(Showing(space), one, lambda state: jnp.zeros(1), reward_of, lambda achieved, desired: False)
    env = wrap_env(goals, parallel=2, max_episode_steps=5, **options)
    actions = env.action_space.sample(jax.random.key(3)) * jnp.ones(2, jnp.int32)
    state = env.step(env.reset(jax.random.key(0)), actions)
    seen = state.info.next_obs
    stored = (seen.achieved_goal, seen.desired_goal, actions, seen.observation)
    np.testing.assert_allclose(jax.vmap(env.goal_task.outcome)(*stored).reward, state.reward)


@pytest.mark.parametrize(
    ("space", "flat", "is_encoded"),
    [
        (Discrete(3, start=-1), None, Box(0.0, 1.0, (3,))),
        (MultiDiscrete([2, 3]), None, Box(0.0, 1.0, (5,))),
        (DictSpace({"a": Discrete(2), "b": Box(0.0, 1.0, (2,))}), None, None),
        (Discrete(3, start=-1), False, Discrete(3, start=-1)),
        (MultiDiscrete([2, 3]), True, Box(0.0, 1.0, (5,))),
        (Box(0, 3, (2,), np.int32), None, Box(0, 3, (2,), np.int32)),
    ],
)
def test_environments_are_encoded_unless_flatten_obs_is_false(
    space: Space, flat: Any, is_encoded: Space | None
) -> None:
    expected = DictSpace({"a": Box(0.0, 1.0, (2,)), "b": Box(0.0, 1.0, (2,))}) if is_encoded is None else is_encoded
    assert wrap_env(Showing(space), flatten_obs=flat).obs_space == expected


def test_goals_and_action_masks_stay_what_they_are() -> None:
    goal = MultiDiscrete([2, 2])
    space = DictSpace({"observation": goal, "achieved_goal": goal, "desired_goal": goal})
    assert encoded_space(space) == DictSpace({**space.spaces, "observation": Box(0.0, 1.0, (4,))})
    masked = DictSpace({"observation": Discrete(2), "action_mask": goal})
    assert encoded_space(masked)["action_mask"] == goal
    seen = encoded(masked, PyTreeDict(observation=jnp.int32(1), action_mask=jnp.ones(2, jnp.int32)))
    assert seen.observation.tolist() == [0.0, 1.0]
    assert seen.action_mask.tolist() == [1, 1]


def test_pixels_beside_other_numbers_are_scaled_as_alone() -> None:
    image, numbers = Box(0, 255, (2, 2), np.uint8), Box(-1.0, 1.0, (1,))
    obs = PyTreeDict(image=np.full((2, 2), 200, np.uint8), numbers=np.float32([0.5]))
    both = ObsFlattenWrapper(Showing(DictSpace({"image": image, "numbers": numbers})))
    np.testing.assert_allclose(both.observation(obs), [*[200 / 255] * 4, 0.5], rtol=1e-6)
    images = ObsFlattenWrapper(Showing(DictSpace({"a": image, "b": image})))
    assert images.obs_space == Box(0, 255, (8,), np.uint8)  # unchanged: networks scale them


class Game(gymnasium.Env):
    """Observes samples of its space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(0 if seed is None else seed % 2**31)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 1.0, False, False, {}


@pytest.mark.parametrize("flat", [None, True])
def test_an_exported_policy_takes_the_environment_s_own_observations(flat: bool | None) -> None:
    from evorl.envs.gymnasium import InProcessGymnasiumEnv
    from evorl.envs.host.bridge import HostBackedEnv
    from evorl.envs.options import EnvOptions

    theirs = spaces.Dict(
        {
            "kind": spaces.Discrete(3, start=1),
            "grid": spaces.MultiDiscrete([2, 5]),
            "eye": spaces.Box(0, 255, (2,), np.uint8),
        }
    )
    env = HostBackedEnv(
        lambda n: InProcessGymnasiumEnv(lambda: Game(theirs), n), EnvOptions(parallel=2, flatten_obs=flat)
    )
    row = WrappedRow(env)
    assert row.obs_space == space_of(theirs)
    theirs.seed(3)
    obs = theirs.sample()
    seen, _ = row.seen(as_ours(row.obs_space, obs), None)
    assert jax.tree.all(jax.tree.map(lambda s, x: s.shape == x.shape, env.obs_space.spec, seen))
    read = np.concatenate([np.ravel(as_float(x)) for x in jax.tree.leaves(seen)])
    np.testing.assert_allclose(read, np.concatenate(read_alone(theirs, obs)), rtol=1e-6)
    started = env.reset(jax.random.key(0))
    assert jax.tree.map(jnp.shape, started.obs) == jax.tree.map(lambda s: (2, *s.shape), env.obs_space.spec)
    env.close()


def test_channels_of_images_are_moved_behind_wherever_they_are() -> None:
    image = Box(0, 255, (3, 4, 5), np.uint8)
    env = wrap_env(Showing(DictSpace({"eye": image, "speed": Box(-1.0, 1.0, (2,))})), channels="first")
    assert env.obs_space == DictSpace({"eye": Box(0, 255, (4, 5, 3), np.uint8), "speed": Box(-1.0, 1.0, (2,))})
    row = WrappedRow(env)
    pixels = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    seen, _ = row.seen(PyTreeDict(eye=pixels, speed=np.zeros(2, np.float32)), None)
    np.testing.assert_array_equal(seen.eye, np.moveaxis(pixels, 0, -1))
    with raises_naming(ValueError, "env.channels=first", "images"):
        wrap_env(Showing(Box(-1.0, 1.0, (2,))), channels="first")
    with raises_naming(ValueError, "channels", "first, last", "middle"):
        wrap_env(Showing(image), channels="middle")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_moved_choices_keep_their_dtype(dtype: Any) -> None:
    theirs = MultiDiscrete(np.full((3, 4, 5), 9), dtype=dtype)
    space = ChannelsLastWrapper(Showing(theirs)).obs_space
    assert space == MultiDiscrete(np.full((4, 5, 3), 9), dtype=dtype)
    assert wrap_env(Showing(theirs), channels="first", flatten_obs=False).obs_space.dtype == dtype


def test_a_history_is_bounded() -> None:
    with raises_naming(ValueError, "env.history", "4,096", "1000000000"):
        wrap_env(Showing(Box(-1.0, 1.0, (2,))), history=10**9)

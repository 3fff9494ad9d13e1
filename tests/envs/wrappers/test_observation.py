"""Flattened, selected and stacked observations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, DictSpace, Discrete, EnvState, MultiDiscrete, Space, TupleSpace, create_env
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers import (
    VECTOR_ENVS,
    EpisodeWrapper,
    FrameStackWrapper,
    ObsFlattenWrapper,
    ObsSelectWrapper,
    VectorEnv,
)
from tests.conformance.env import VectorEnvContract
from tests.support.errors import raises_naming
from tests.support.toy_envs import ToyEnv, toy_state


class Showing(ToyEnv):
    """Observes an element of any space with equal entries: the step (plus 10 times a random number)."""

    action_space = Discrete(2)

    def __init__(self, space: Space) -> None:
        super().__init__(obs_space=space)

    def reset(self, key: jax.Array) -> EnvState:
        """Return step 0."""
        return self._state(10 * jax.random.randint(key, (), 0, 10), 0.0)

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """Return the next number."""
        return self._state(env_state.env_state + 1, 1.0)

    def _state(self, number: jax.Array, reward: float) -> EnvState:
        return toy_state(
            number, jax.tree.map(lambda s: jnp.full(s.shape, number, s.dtype), self.obs_space.spec), reward
        )


class Pixels(ToyEnv):
    """A random image that scrolls and brightens until a corner pixel has a given remainder."""

    action_space = Discrete(2)
    obs_space = Box(0, 255, (3, 2, 1), np.uint8)

    def reset(self, key: jax.Array) -> EnvState:
        """Return another image."""
        return self._state(jax.random.randint(key, (3, 2, 1), 0, 256).astype(jnp.uint8), jnp.zeros((), jnp.int32))

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """Scroll by one pixel."""
        image, t = env_state.env_state
        return self._state(jnp.roll(image, 1, axis=0) + jnp.uint8(1), t + 1)

    def _state(self, image: jax.Array, t: jax.Array) -> EnvState:
        ended = (image[0, 0, 0] % 16 == 0) & (t > 0)
        return toy_state((image, t), image, image.mean(dtype=jnp.float32), ended)


class TestStackedVectors(VectorEnvContract):
    """Two components of CartPole, stacked four times."""

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build CartPole with at most 25 steps."""
        return create_env(
            "CartPole-v1",
            parallel=parallel,
            autoreset_mode=autoreset_mode,
            max_episode_steps=25,
            history=4,
            observed=[0, 2],
        )


class TestStackedImages(VectorEnvContract):
    """Bytes stay bytes, frames are channels."""

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build an environment with at most 9 steps."""
        return wrap_env(Pixels(), parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=9, history=3)

    def test_frames_are_the_last_observations(self, start: EnvState, records: dict) -> None:
        """Stacked frames are the last observations of the episode, also for true next observations."""
        newest_of_start, done = np.asarray(start.obs)[..., -1], records["done"]
        for i in range(done.shape[1]):
            frames = [newest_of_start[i]] * 3
            for t in range(len(done)):
                frames = [*frames[1:], records["next_obs"][t, i, ..., -1]]
                np.testing.assert_array_equal(records["next_obs"][t, i], np.stack(frames, axis=-1))
                frames = [records["obs"][t, i, ..., -1]] * 3 if done[t, i] else frames
                np.testing.assert_array_equal(records["obs"][t, i], np.stack(frames, axis=-1))


def test_only_the_chosen_components_are_seen() -> None:
    cartpole = create_env("CartPole-v1").env
    env = ObsSelectWrapper(cartpole, [2, 0])
    low, high = (np.asarray(bound)[[2, 0]] for bound in (cartpole.obs_space.low, cartpole.obs_space.high))
    assert env.obs_space == Box(low, high)
    key = jax.random.key(0)
    whole, state = cartpole.step(cartpole.reset(key), 1), env.step(env.reset(key), 1)
    np.testing.assert_array_equal(state.obs, whole.obs[jnp.array([2, 0])])
    np.testing.assert_array_equal(env.reset(key).obs, cartpole.reset(key).obs[jnp.array([2, 0])])
    assert env == ObsSelectWrapper(cartpole, (2, 0))
    assert env != ObsSelectWrapper(cartpole, (0, 2))


@pytest.mark.parametrize(
    ("space", "components", "parts"),
    [
        (Box(0, 255, (2, 2)), [0], ("env.observed", "flatten")),
        (Discrete(3), [0], ("env.observed", "flatten")),
        (Box(0, 1, (3,)), [], ("integers from 0 to 2", "got []")),
        (Box(0, 1, (3,)), [-1], ("integers from 0 to 2", "got [-1]")),
        (Box(0, 1, (3,)), [True], ("integers from 0 to 2", "got [True]")),
        (Box(0, 1, (3,)), "01", ("integers from 0 to 2", "got '01'")),
        (Box(0, 1, (3,)), 2, ("integers from 0 to 2", "got 2")),
        (Box(0, 1, (3,)), [1, 1], ("env.observed", "twice", "[1, 1]")),
    ],
)
def test_impossible_choices_are_refused(space: Space, components: object, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        ObsSelectWrapper(Showing(space), components)


def test_flatten_joins_everything() -> None:
    space = DictSpace({"b": Discrete(4), "a": TupleSpace([Box(0, 200, (2, 3)), Box(-5, 500, ())])})
    env = ObsFlattenWrapper(Showing(space))
    assert env.obs_space == Box([0.0] * 6 + [-5.0] + [0.0] * 4, [200.0] * 6 + [500.0] + [1.0] * 4)
    state = env.reset(jax.random.key(0))
    first = float(state.env_state)
    np.testing.assert_array_equal(state.obs[:7], np.full(7, first))
    state = env.step(state, 0)
    assert env.obs_space.contains(state.obs)
    np.testing.assert_array_equal(state.obs[:7], np.full(7, first + 1))


def test_flatten_keeps_bytes_and_encodes_integers() -> None:
    assert ObsFlattenWrapper(Showing(Box(0, 255, (2, 2), np.uint8))).obs_space == Box(0, 255, (4,), np.uint8)
    env = ObsFlattenWrapper(Showing(Discrete(100)))
    state = env.step(env.reset(jax.random.key(1)), 0)
    assert int(state.obs.argmax()) == int(state.env_state)
    assert state.obs.sum() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_frames_are_stacked_on_the_last_axis(dtype: type) -> None:
    env = FrameStackWrapper(Showing(Box(0, 255, (2, 2, 3), dtype)), 3)
    assert env.obs_space == Box(0, 255, (2, 2, 9), dtype)
    state = env.reset(jax.random.key(0))
    first = int(state.env_state)

    def frames() -> list[int]:
        assert state.obs.dtype == dtype
        return [int(x) - first for x in state.obs[0, 0, ::3]]

    assert frames() == [0, 0, 0]
    state = env.step(state, 0)
    assert frames() == [0, 0, 1]
    state = env.step(env.step(state, 0), 0)
    assert frames() == [1, 2, 3]


def test_grey_images_become_channels() -> None:
    env = FrameStackWrapper(Showing(Box(0, 255, (4, 3), np.uint8)), 4)
    assert env.obs_space == Box(0, 255, (4, 3, 4), np.uint8)
    state = env.reset(jax.random.key(0))
    assert env.obs_space.contains(state.obs)
    state = env.step(state, 0)
    np.testing.assert_array_equal(state.obs[0, 0] - state.obs[0, 0, 0], [0, 0, 0, 1])


def test_flattened_stack_and_stacked_flat() -> None:
    image = Showing(Box(0, 255, (2, 1)))
    outer, inner = ObsFlattenWrapper(FrameStackWrapper(image, 2)), FrameStackWrapper(ObsFlattenWrapper(image), 2)
    key = jax.random.key(0)
    states = [env.step(env.step(env.reset(key), 0), 0) for env in (outer, inner)]
    first = float(states[0].env_state)
    np.testing.assert_array_equal(states[0].obs, [first - 1, first, first - 1, first])
    np.testing.assert_array_equal(states[1].obs, [first - 1, first - 1, first, first])
    with raises_naming(ValueError, "already", "FrameStackWrapper"):
        FrameStackWrapper(FrameStackWrapper(image, 2), 2)


def test_frames_of_containers() -> None:
    space = DictSpace({"a": Box(0, 255, (2,)), "b": TupleSpace([Box(0, 255, (1,))])})
    env = FrameStackWrapper(Showing(space), 2)
    assert env.obs_space.shape == {"a": (4,), "b": ((2,),)}
    assert env.obs_space.contains(env.reset(jax.random.key(0)).obs)


def test_scalars_cannot_be_stacked() -> None:
    with raises_naming(ValueError, "env.history", "Discrete(3)", "flatten_obs"):
        FrameStackWrapper(Showing(Discrete(3)), 2)


def test_a_new_episode_fills_the_stack_with_its_first_frame() -> None:
    inner = EpisodeWrapper(Showing(Box(0, 255, (1,))), 3)
    env = VECTOR_ENVS[AutoresetMode.NORMAL](FrameStackWrapper(inner, 2), 4)
    state = env.reset(jax.random.key(0))
    for _ in range(3):
        state = env.step(state, jnp.zeros(4, jnp.int32))
    assert state.done.all()
    np.testing.assert_array_equal(state.obs[:, 0], state.obs[:, 1])
    np.testing.assert_array_equal(state.info.next_obs[:, 1], state.info.next_obs[:, 0] + 1)


def test_integers_beside_floats_are_flattened_to_float32() -> None:
    env = ObsFlattenWrapper(Showing(DictSpace({"a": Box(0.0, 99.0, (2,)), "b": Box(0, 99, (), np.int32)})))
    assert env.obs_space == Box(0.0, 99.0, (3,))
    assert env.reset(jax.random.key(0)).obs.dtype == np.float32


@pytest.mark.parametrize("mask", [Box(False, True, (2,), bool), MultiDiscrete([99, 99])])
def test_an_action_mask_is_neither_flattened_nor_stacked(mask: Space) -> None:
    env = Showing(DictSpace({"a": Box(0.0, 99.0, (2, 2)), "b": Discrete(3), "action_mask": mask}))
    flat = ObsFlattenWrapper(env)
    assert flat.obs_space == DictSpace({"observation": Box([0.0] * 7, [99.0] * 4 + [1.0] * 3), "action_mask": mask})
    stacked = FrameStackWrapper(flat, 2)
    state = stacked.step(stacked.reset(jax.random.key(0)), 0)
    assert stacked.obs_space.contains(state.obs)
    assert (state.obs.observation.shape, state.obs.action_mask.shape) == ((14,), (2,))
    seen = np.asarray(state.obs.observation)
    assert seen[7] - seen[0] == 1.0

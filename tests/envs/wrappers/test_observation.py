"""Flattened observations and stacked frames."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, DictSpace, Discrete, Env, EnvState, Space, TupleSpace
from evorl.envs.wrappers import VECTOR_ENVS, EpisodeWrapper, FrameStackWrapper, ObsFlattenWrapper
from evorl.types import PyTreeDict


class Showing(Env):
    """Observes an element of any space, the same for all entries: the number of the step (plus 10 times a draw)."""

    action_space = Discrete(2)

    def __init__(self, space: Space) -> None:
        self._space = space

    @property
    def obs_space(self) -> Space:
        """The space it was made with."""
        return self._space

    def reset(self, key: jax.Array) -> EnvState:
        """Step 0."""
        return self._state(10 * jax.random.randint(key, (), 0, 10), 0.0)

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """The next number."""
        return self._state(env_state.env_state + 1, 1.0)

    def _state(self, number: jax.Array, reward: float) -> EnvState:
        false = jnp.zeros((), bool)
        return EnvState(
            env_state=number,
            obs=jax.tree.map(lambda s: jnp.full(s.shape, number, s.dtype), self._space.spec),
            reward=jnp.asarray(reward, jnp.float32),
            done=false,
            info=PyTreeDict(termination=false, truncation=false, metrics=PyTreeDict()),
        )


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


def test_flattened_stack_and_stacked_flat() -> None:
    image = Showing(Box(0, 255, (2, 1)))
    outer, inner = ObsFlattenWrapper(FrameStackWrapper(image, 2)), FrameStackWrapper(ObsFlattenWrapper(image), 2)
    key = jax.random.key(0)
    states = [env.step(env.step(env.reset(key), 0), 0) for env in (outer, inner)]
    first = float(states[0].env_state)
    np.testing.assert_array_equal(states[0].obs, [first - 1, first, first - 1, first])
    np.testing.assert_array_equal(states[1].obs, [first - 1, first - 1, first, first])
    with pytest.raises(ValueError, match="FrameStackWrapper inside already"):
        FrameStackWrapper(FrameStackWrapper(image, 2), 2)


def test_frames_of_containers() -> None:
    space = DictSpace({"a": Box(0, 255, (2,)), "b": TupleSpace([Box(0, 255, (1,))])})
    env = FrameStackWrapper(Showing(space), 2)
    assert env.obs_space.shape == {"a": (4,), "b": ((2,),)}
    assert env.obs_space.contains(env.reset(jax.random.key(0)).obs)


def test_scalars_cannot_be_stacked() -> None:
    with pytest.raises(ValueError, match="flatten them first"):
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

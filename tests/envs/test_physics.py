"""Physical states of environments, inside compiled programs and on the host."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import create_env
from evorl.envs.host.seed_bits import fold_seeds
from evorl.envs.mujoco import make_mujoco_simulators
from evorl.envs.vector import VectorEnv

NUM_STEPS = 3


def walked(env: VectorEnv) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """Step one episode of each environment; return the physical states, and the seeds of their resets."""
    state = env.reset(jax.random.key(0))
    keys = jax.vmap(jax.random.fold_in)(state._internal.key, state._internal.episode)
    words = np.asarray(jax.random.key_data(keys)).astype(np.uint64)
    states = [env.physics(state)]
    for _ in range(NUM_STEPS):
        state = env.step(state, jnp.full((2, *env.action_space.shape), 0.1))
        states.append(env.physics(state))
    assert state.done.all()
    states = [{name: np.asarray(x) for name, x in moment.items()} for moment in states]
    return states, (words[:, 0] << np.uint64(32)) | words[:, 1]


@pytest.mark.parametrize("name", ["host/inverted_pendulum", "gymnasium/InvertedPendulum-v5"])
def test_simulators_tell_positions_exactly_also_of_the_last_step(name: str) -> None:
    """Positions of a compiled environment equal the simulator exactly, also after the last step."""
    env = create_env(name, parallel=2, autoreset_mode="disabled", max_episode_steps=NUM_STEPS)
    assert not env.physics(env.reset(jax.random.key(0)))  # not requested
    env.close()
    env = create_env(name, parallel=2, autoreset_mode="disabled", max_episode_steps=NUM_STEPS)
    env.show_physics()
    states, seeds = walked(env)
    peer = make_mujoco_simulators("inverted_pendulum", 2, max_episode_steps=NUM_STEPS)
    peer.reset(fold_seeds(seeds, env.simulators.main.seed_bits))
    low, high = peer.action_space.low, peer.action_space.high
    action = (low + (np.float32(0.1) + 1) / 2 * (high - low)).astype(np.float32)
    for moment in states:
        assert moment["qpos"].dtype == np.uint8
        for part, values in peer.physics().items():
            np.testing.assert_allclose(moment[part].view(np.float64), values, rtol=0, atol=1e-7)
        peer.step(np.stack([action] * 2))
    assert (env.mujoco_model.nq, env.mujoco_model.nv) == (2, 2)
    env.close()


def test_brax_tells_its_coordinates() -> None:
    env = create_env("brax/inverted_pendulum", parallel=2, autoreset_mode="disabled", max_episode_steps=NUM_STEPS)
    states, _ = walked(env)
    assert {name: x.shape for name, x in states[0].items()} == {"q": (2, 2), "qd": (2, 2)}
    assert all((before["q"] != after["q"]).any() for before, after in itertools.pairwise(states))
    assert (env.mujoco_model.nq, env.mujoco_model.nv) == (2, 2)


def test_classic_control_tells_what_its_pictures_show() -> None:
    env = create_env("gymnax/CartPole-v1")
    state = env.reset(jax.random.key(0))
    physics = env.physics(state)
    assert set(physics) == {"x", "x_dot", "theta", "theta_dot"}
    np.testing.assert_array_equal(
        np.stack([physics[n] for n in ("x", "x_dot", "theta", "theta_dot")], axis=-1), state.obs
    )
    assert env.mujoco_model is None


def test_others_have_no_bodies() -> None:
    env = create_env("gymnax/Catch-bsuite")
    assert env.physics(env.reset(jax.random.key(0))) == {}
    assert env.mujoco_model is None

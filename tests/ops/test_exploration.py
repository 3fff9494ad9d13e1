from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.exploration import (
    ActionNoise,
    NoiseRepetition,
    add_gaussian_noise,
    epsilon_greedy_probabilities,
    ou_noise_step,
)
from evorl.rollout import recurrent_state_of
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.small_workflows import EPISODE_STEPS, NUM_ENVS, small


def test_epsilon_greedy_splits_ties_and_sums_to_one() -> None:
    q_values = jnp.array([[1.0, 3.0, 2.0], [5.0, 5.0, 0.0]])
    result = epsilon_greedy_probabilities(q_values, 0.3)
    np.testing.assert_allclose(result, [[0.1, 0.8, 0.1], [0.45, 0.45, 0.1]], rtol=1e-6)
    per_row = epsilon_greedy_probabilities(q_values, jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(per_row, [[0, 1, 0], [1 / 3] * 3], rtol=1e-6)


def test_epsilon_greedy_shares_chance_among_allowed_actions() -> None:
    q_values = jnp.array([[1.0, -jnp.inf, 2.0], [-jnp.inf, -jnp.inf, -jnp.inf]])
    result = epsilon_greedy_probabilities(q_values, 0.5)
    np.testing.assert_allclose(result, [[0.25, 0.0, 0.75], [1 / 3] * 3], rtol=1e-6)


def test_gaussian_noise_is_bounded_and_clipped() -> None:
    actions = jnp.zeros((1000, 2))
    noise = add_gaussian_noise(jax.random.key(0), actions, 0.2)
    np.testing.assert_allclose(noise.std(), 0.2, rtol=0.1)
    smoothing = add_gaussian_noise(jax.random.key(0), actions + 0.9, 1.0, noise_bound=0.5)
    assert smoothing.max() == 1.0
    np.testing.assert_allclose(smoothing.min(), 0.4, rtol=1e-5)
    np.testing.assert_array_equal(add_gaussian_noise(jax.random.key(0), actions, 0.0), actions)


def test_keys_per_row_make_rows_independent_of_the_batch() -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    whole = add_gaussian_noise(keys, jnp.zeros((6, 2)), 0.1)
    np.testing.assert_array_equal(add_gaussian_noise(keys[2:4], jnp.zeros((2, 2)), 0.1), whole[2:4])


def test_ou_noise_has_its_stationary_deviation() -> None:
    def step(noise: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = ou_noise_step(key, noise, theta=0.5, sigma=0.3)
        return noise, noise

    _, path = jax.lax.scan(step, jnp.zeros(200), jax.random.split(jax.random.key(0), 200))
    # x' = (1 - theta) x + sigma N has variance sigma^2 / (1 - (1 - theta)^2).
    np.testing.assert_allclose(path[20:].std(), 0.3 / np.sqrt(1 - 0.25), rtol=0.05)
    np.testing.assert_allclose(path[20:].mean(), 0.0, atol=0.05)


def _remembered(noise: ActionNoise, num_rows: int) -> PyTreeDict:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *x.shape)), noise.initial_state(2))


def test_noise_remembers_what_it_needs() -> None:
    assert ActionNoise().initial_state(2) is None
    assert set(ActionNoise(max_scale=0.5).initial_state(2)) == {"scale"}
    assert set(ActionNoise("ornstein_uhlenbeck").initial_state(2)) == {"noise"}
    both = ActionNoise("ornstein_uhlenbeck", max_scale=0.5).initial_state(2)
    assert {name: leaf.shape for name, leaf in both.items()} == {"noise": (2,), "scale": ()}


def test_a_row_keeps_the_scale_that_it_drew() -> None:
    noise = ActionNoise(scale=0.1, max_scale=0.5)
    keys = jax.random.split(jax.random.key(0), 2000)
    _, recurrent_state = noise.add(keys, jnp.zeros((2000, 2)), _remembered(noise, 2000))
    assert 0.1 <= recurrent_state.scale.min() < 0.11
    assert 0.49 < recurrent_state.scale.max() <= 0.5
    np.testing.assert_allclose(recurrent_state.scale.mean(), 0.3, atol=0.01)
    other_keys = jax.random.split(jax.random.key(1), 2000)
    actions, kept = noise.add(other_keys, jnp.zeros((2000, 2)), recurrent_state)
    np.testing.assert_array_equal(kept.scale, recurrent_state.scale)
    standard = actions / recurrent_state.scale[:, None]
    assert (jnp.abs(actions) < 1.0).mean() > 0.95
    np.testing.assert_allclose(standard.std(), 1.0, rtol=0.05)
    some, _ = noise.add(other_keys[3:7], jnp.zeros((4, 2)), jax.tree.map(lambda x: x[3:7], recurrent_state))
    np.testing.assert_array_equal(some, actions[3:7])


def test_noise_that_wanders_goes_on_from_what_is_remembered() -> None:
    noise = ActionNoise("ornstein_uhlenbeck", scale=0.1, theta=0.25)
    recurrent_state = _remembered(noise, 5).replace(noise=jnp.full((5, 2), 0.4))
    key = jax.random.key(0)
    actions, recurrent_state = noise.add(key, jnp.full((5, 2), 0.1), recurrent_state)
    np.testing.assert_allclose(actions, 0.1 + recurrent_state.noise, rtol=1e-6)
    drawn = (recurrent_state.noise - 0.75 * 0.4) / 0.1
    assert len(np.unique(np.asarray(drawn).round(5))) == 10
    assert (jnp.abs(drawn) < 4.0).all()
    clipped, beyond = noise.add(key, jnp.full((5, 2), 0.95), recurrent_state.replace(noise=jnp.full((5, 2), 2.0)))
    np.testing.assert_array_equal(clipped, 1.0)
    assert (beyond.noise > 1.0).all()  # the stored noise is not clipped


def test_a_greatest_scale_below_the_least_is_refused() -> None:
    with raises_naming(ValueError, "max_scale=0.1", "scale=0.2"):
        ActionNoise(scale=0.2, max_scale=0.1)


def _repeated(repetition: NoiseRepetition, num_steps: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise ``[T, B, 2]`` and remaining steps ``[T, B]`` after each step."""
    start = jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape), x.dtype), repetition.initial_state(2))

    def step(state: PyTreeDict, key: jax.Array) -> tuple[PyTreeDict, tuple[jax.Array, jax.Array]]:
        noise, state = repetition.next_noise(jax.random.split(key, num_rows), state)
        return state, (noise, state.remaining)

    _, (noise, remaining) = jax.lax.scan(step, start, jax.random.split(jax.random.key(0), num_steps))
    return np.asarray(noise), np.asarray(remaining)


def test_noise_is_held_for_a_random_number_of_steps() -> None:
    """Numbers of steps n have shares ``n ** -2``, up to the largest; the noise itself is standard normal."""
    noise, remaining = _repeated(NoiseRepetition(max_steps=4), 400, 64)
    changed = (noise[1:] != noise[:-1]).any(axis=-1)
    np.testing.assert_array_equal(changed, remaining[:-1] == 0)  # the number is drawn with the noise, and kept to
    lengths = remaining[1:][changed] + 1
    weights = np.arange(1.0, 5.0) ** -2
    shares = np.bincount(lengths, minlength=5)[1:] / lengths.size
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.015)
    fresh = noise[1:][changed]
    np.testing.assert_allclose([fresh.mean(), fresh.std()], [0.0, 1.0], atol=0.03)
    assert len(np.unique(remaining[10])) > 1  # each environment has its own number


def test_noise_without_repetition_is_new_at_each_step() -> None:
    noise, remaining = _repeated(NoiseRepetition(), 50, 8)
    assert (noise[1:] != noise[:-1]).all()
    assert not remaining.any()


@pytest.mark.parametrize("kind", ["gaussian", "ornstein_uhlenbeck"])
def test_the_scale_of_noise_may_follow_a_schedule(kind: str) -> None:
    """The noise scale decays by a factor of e in the first 25 episodes, like RELAAX's ``exp(-episode / 25)``."""
    steps = 25 * EPISODE_STEPS * NUM_ENVS
    scale = {"start": 0.2, "end": 0.2 / np.e**2, "kind": "exponential", "steps": 2 * steps}
    config = {"network": {"torso": [4]}, "noise": {"kind": kind, "scale": scale}}
    workflow: Any = small("td3", "Pendulum-v1", total_timesteps=4 * steps, learning_starts=0, agent=config)
    state = workflow.init(0)
    assert state.agent_state.extra_state is None
    acting = workflow.agent.at_progress(state.agent_state, 0.25)
    np.testing.assert_allclose(acting.extra_state, 0.2 / np.e, rtol=1e-5)
    _, after = workflow.step(state)
    assert after.agent_state.extra_state is None
    obs = SampleBatch(obs=state.env_state.obs, extras=PyTreeDict(recurrent_state=recurrent_state_of(state.env_state)))
    params = jax.tree.map(jnp.zeros_like, state.agent_state.params)
    actions = [
        workflow.agent.compute_actions(acting.replace(params=params, extra_state=noise), obs, jax.random.key(0))[0]
        for noise in (None, jnp.float32(0.1))
    ]
    np.testing.assert_allclose(actions[0], 2.0 * actions[1], rtol=1e-5)

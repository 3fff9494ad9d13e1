"""E3B: bonuses by hand, within episodes, and as part of a training."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.episodic_bonus import E3B
from evorl.agents.intrinsic_kinds import make_intrinsic
from evorl.algorithms.a2c import A2CWorkflow
from evorl.envs import create_env
from evorl.sample_batch import SampleBatch
from evorl.types import State
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.small_workflows import NUM_ENVS, ONE_STEP_CONFIG, small

BONUS = {"name": "e3b", "network": {"torso": [6], "activation": "elu"}, "ridge": 0.5}


class TestContract(WorkflowContract):
    """A2C with episodic bonuses, whose state is divided among devices and resumed."""

    workflow = A2CWorkflow
    SMALL = {**ONE_STEP_CONFIG, "intrinsic": BONUS}
    env = "CartPole-v1"
    endless_env = ("MountainCar-v0", 100)
    has_other_products = True  # covariances of features


def trajectory(num_steps: int = 7) -> SampleBatch:
    """Return a trajectory ``[T, 2]`` of random observations; the first environment's episode ends after three steps."""
    obs_key, next_obs_key = jax.random.split(jax.random.key(1))
    dones = jnp.zeros((num_steps, 2)).at[2, 0].set(1.0)
    shape = (num_steps, 2, 4)
    return SampleBatch(
        obs=jax.random.normal(obs_key, shape),
        actions=jnp.zeros((num_steps, 2), jnp.int32),
        rewards=jnp.zeros((num_steps, 2)),
        next_obs=jax.random.normal(next_obs_key, shape),
        dones=dones,
    )


@pytest.fixture(scope="module")
def built() -> tuple[E3B, State]:
    env = create_env("CartPole-v1", parallel=2)
    bonus = make_intrinsic(BONUS, env)
    assert isinstance(bonus, E3B)
    return bonus, bonus.init(env.obs_space, jax.random.key(0), 2)


def by_hand(bonus: Any, state: State, batch: SampleBatch) -> np.ndarray:
    """Return the bonuses, by inverting the sum of products of features in each episode."""
    features = np.asarray(bonus._features(state.intrinsic.params, bonus._inputs(state.intrinsic, batch)), np.float64)
    expected = np.zeros(features.shape[:2])
    for env in range(2):
        sums = 0.5 * np.eye(6)
        for step, phi in enumerate(features[:, env]):
            expected[step, env] = phi @ np.linalg.inv(sums) @ phi
            sums = sums + np.outer(phi, phi)
            if batch.dones[step, env]:
                expected[step, env], sums = 0.0, 0.5 * np.eye(6)
    return expected


def test_bonuses_are_those_of_the_inverse_within_each_episode(built: tuple[E3B, State]) -> None:
    """Without the reset at an end, or with features of other episodes, they would be smaller; the last is 0."""
    bonus, state = built
    batch = trajectory()
    expected = by_hand(bonus, state, batch)
    np.testing.assert_allclose(jax.jit(bonus.bonuses)(state.intrinsic, batch), expected, rtol=1e-3, atol=1e-5)
    without_end = by_hand(bonus, state, batch.replace(dones=jnp.zeros((7, 2))))
    assert (expected[3:, 0] > 1.05 * without_end[3:, 0]).any()
    np.testing.assert_array_equal(expected[:, 1], without_end[:, 1])


def test_episodes_continue_in_the_next_trajectory(built: tuple[E3B, State]) -> None:
    """Two halves of a trajectory have the bonuses of the whole one."""
    bonus, state = built
    batch = trajectory()
    whole = bonus.bonuses(state.intrinsic, batch)
    found, now = [], state
    for part in (slice(0, 4), slice(4, 7)):
        half = jax.tree.map(lambda x, part=part: x[part], batch)
        bonuses, now = bonus.step_bonuses(now.intrinsic, bonus._inputs(now.intrinsic, half), half, now)
        found.append(bonuses)
    np.testing.assert_allclose(jnp.concatenate(found), whole, rtol=1e-4, atol=1e-6)


def test_a_repeated_observation_is_worth_less(built: tuple[E3B, State]) -> None:
    """The same features n times earlier reduce the bonus to ``b / (1 + n b)``."""
    bonus, state = built
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), trajectory()).replace(dones=jnp.zeros((7, 2)))
    bonuses = np.asarray(bonus.bonuses(state.intrinsic, batch))
    np.testing.assert_allclose(bonuses, bonuses[0] / (1.0 + np.arange(7)[:, None] * bonuses[0]), rtol=1e-3)


def test_a_training_pays_and_trains_the_features() -> None:
    workflow: Any = small("ppo", intrinsic=BONUS)
    state = workflow.init(0)
    assert state.episodic.inverse.shape == (NUM_ENVS, 6, 6)
    np.testing.assert_array_equal(state.episodic.inverse[0], np.eye(6))
    metrics, after = workflow.step(state)
    assert float(metrics.intrinsic_reward) > 0.0
    assert (after.episodic.inverse != state.episodic.inverse).any()
    assert (
        after.intrinsic.params["inverse_output"]["kernel"] != state.intrinsic.params["inverse_output"]["kernel"]
    ).any()
    assert not workflow.capabilities.single_steps


def test_it_is_refused_where_steps_are_not_in_their_order() -> None:
    with raises_naming(ValueError, "intrinsic=e3b", "agent=ppo"):
        small("dqn", intrinsic="e3b")
    with raises_naming(ValueError, "intrinsic=e3b", "episodes_per_batch", "null"):
        small("trpo", intrinsic="e3b", episodes_per_batch=4, rollout_length=10)
    with raises_naming(ValueError, "intrinsic.ridge", "got 0"):
        small("ppo", intrinsic={"name": "e3b", "ridge": 0.0})

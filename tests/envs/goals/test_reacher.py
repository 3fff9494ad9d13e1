"""A reacher arm with a goal for its fingertip."""

from __future__ import annotations

import jax
import numpy as np

from evorl.envs import AutoresetMode, create_env
from evorl.envs.goals.reacher import RADIUS, REACH, Disc
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import EnvContract, Rolled


class TestContract(EnvContract):
    """Episodes end only by the time limit."""

    can_terminate = False

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        return create_env("goal/reacher", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=20)

    def test_the_fingertip_is_where_brax_has_it(self, rolled: Rolled) -> None:
        state = rolled[1]
        target = state.env_state.pipeline_state.x.pos[:, 2, :2]
        np.testing.assert_allclose(state.obs.achieved_goal, state.env_state.obs[:, 8:10] + target, atol=1e-4)

    def test_success_is_to_be_near(self, env: VectorEnv, records: dict) -> None:
        reached = np.linalg.norm(records["next_obs"].achieved_goal - records["next_obs"].desired_goal, axis=-1)
        np.testing.assert_array_equal(records["is_success"], reached <= REACH)
        np.testing.assert_array_equal(records["reward"], records["is_success"] - 1.0)


def test_goals_lie_in_a_disc_uniformly_by_area() -> None:
    draw = jax.jit(lambda key: jax.vmap(Disc(RADIUS).sample)(jax.random.split(key, 10_000)))
    places, contains = np.asarray(draw(jax.random.key(0))), jax.jit(Disc(RADIUS).contains)
    distances = np.linalg.norm(places, axis=-1)
    assert distances.max() <= RADIUS + 1e-6
    assert abs((distances < RADIUS / np.sqrt(2)).mean() - 0.5) < 0.02
    assert np.abs(places.mean(axis=0)).max() < 0.01
    assert np.all(contains(places * np.float32(0.999)))
    assert not contains(np.full(2, 0.95 * RADIUS, np.float32))
    assert not np.any(contains(np.zeros(3, np.float32)))

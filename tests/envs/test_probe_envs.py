"""The probe environments pay their closed-form values under optimal actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, EnvState
from tests.support.probe_envs import PROBES, TIME_LIMIT, make_probe

DISCOUNT = 0.9


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("name", PROBES)
def test_value_is_the_discounted_sum_of_rewards(name: str, continuous: bool) -> None:
    env = make_probe(name, 4, AutoresetMode.DISABLED, continuous)

    def step(state: EnvState, discount: jax.Array) -> tuple[EnvState, jax.Array]:
        action = env.unwrapped.best_action(state.obs)
        state = env.step(state, env.action_space.zeros((4,)) if action is None else action)
        return state, discount * state.reward

    @jax.jit
    def play(key: jax.Array) -> tuple[EnvState, jax.Array, jax.Array, jax.Array]:
        start = env.reset(key)
        end, paid = jax.lax.scan(step, start, DISCOUNT ** jnp.arange(TIME_LIMIT))
        values = [env.unwrapped.value(obs, DISCOUNT) for obs in (start.obs, end.info.next_obs)]
        return end, paid.sum(axis=0), *values

    state, total, value, value_at_the_end = play(jax.random.key(0))
    assert np.all(state.done)
    truncated = np.asarray(state.info.truncation)
    assert bool(truncated.all()) == (name == "time_limit")
    total = np.asarray(total) + np.where(truncated, DISCOUNT**TIME_LIMIT * np.asarray(value_at_the_end), 0.0)
    np.testing.assert_allclose(total, value, rtol=1e-5)


def test_other_actions_pay_less() -> None:
    for continuous in (False, True):
        env = make_probe("observation_dependent_action", 4, continuous=continuous)
        state = env.reset(jax.random.key(1))
        best = env.unwrapped.best_action(state.obs)
        assert (env.step(state, -best if continuous else 1 - best).reward < env.step(state, best).reward).all()


def test_both_observations_occur() -> None:
    obs = make_probe("value_is_observation", 32).reset(jax.random.key(0)).obs
    assert set(np.unique(obs)) == {-1.0, 1.0}

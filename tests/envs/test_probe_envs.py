"""The probes pay what their closed forms say when the best action is taken."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode
from tests.support.probe_envs import PROBES, TIME_LIMIT, make_probe

DISCOUNT = 0.9


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("name", PROBES)
def test_value_is_the_discounted_sum_of_rewards(name: str, continuous: bool) -> None:
    env = make_probe(name, 4, AutoresetMode.DISABLED, continuous)
    state = env.reset(jax.random.key(0))
    value = env.unwrapped.value(state.obs, DISCOUNT)
    total = jnp.zeros(4)
    for t in range(TIME_LIMIT):
        action = env.unwrapped.best_action(state.obs)
        state = env.step(state, env.action_space.zeros((4,)) if action is None else action)
        total += DISCOUNT**t * state.reward
    assert state.done.all()
    truncated = state.info.truncation
    assert bool(truncated.all()) == (name == "time_limit")
    total += jnp.where(truncated, DISCOUNT**TIME_LIMIT * env.unwrapped.value(state.info.next_obs, DISCOUNT), 0.0)
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

"""Reference observations: one per episode, uniform over its steps."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.envs import AutoresetMode
from evorl.envs.wrappers import VECTOR_ENVS, EpisodeWrapper
from evorl.evaluators.reference_batch import reference_observations
from tests.support.toy_envs import LONGEST, Countdown

NUM_EPISODES = 6000
KEY = jax.random.key(3)


def _drawn(mode: AutoresetMode, limit: int, num_episodes: int = NUM_EPISODES) -> np.ndarray:
    env = VECTOR_ENVS[mode](EpisodeWrapper(Countdown(), limit), 1)
    return np.asarray(jax.jit(lambda key: reference_observations(env, num_episodes, key))(KEY))


# In the last mode another episode follows, which must not contribute.
@pytest.mark.parametrize(
    ("mode", "limit"), [(AutoresetMode.DISABLED, LONGEST), (AutoresetMode.DISABLED, 2), (AutoresetMode.NORMAL, LONGEST)]
)
def test_every_step_of_an_episode_is_as_likely(mode: AutoresetMode, limit: int) -> None:
    """Reference observations are uniform over the steps of episodes, which start at 1 to 6."""
    obs = _drawn(mode, limit)
    assert obs.shape == (NUM_EPISODES, 1)
    expected = np.zeros(LONGEST + 1)
    for start in range(1, LONGEST + 1):
        lived = range(max(1, start - limit + 1), start + 1)
        expected[list(lived)] += 1.0 / LONGEST / len(lived)
    shares = np.bincount(obs[:, 0].astype(int), minlength=LONGEST + 1) / NUM_EPISODES
    np.testing.assert_allclose(shares, expected, atol=4.0 * 0.5 / np.sqrt(NUM_EPISODES))
    assert shares[0] == 0.0  # no action at the end of an episode


def test_an_episode_does_not_depend_on_how_many_there_are() -> None:
    few = _drawn(AutoresetMode.DISABLED, LONGEST, num_episodes=10)
    np.testing.assert_array_equal(few, _drawn(AutoresetMode.DISABLED, LONGEST)[:10])

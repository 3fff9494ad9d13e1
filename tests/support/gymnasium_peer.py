"""A MuJoCo task together with Gymnasium's environment of the same task."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from evorl.envs.mujoco import make_mujoco_simulators

NUM_STEPS = 50


def compare_with_gymnasium(name: str, gymnasium_id: str, **options: Any) -> None:
    """Assert that equal seeds and actions give equal numbers for the second of three environments.

    Several episodes detect leftovers of earlier ones.
    """
    peer = gymnasium.make(gymnasium_id, **options)
    env = make_mujoco_simulators(name, 3, **options)
    rng, num_steps = np.random.default_rng(5), 0
    low, high = env.action_space.low, env.action_space.high
    for episode in range(3):
        seeds = np.array([episode, 50 + episode, 100 + episode], np.uint64)
        _assert_close(env.reset(seeds)[1], peer.reset(seed=int(seeds[1]))[0], "the first observation")
        for step in range(NUM_STEPS):
            actions = rng.uniform(1.2 * low, 1.2 * high, (3, *low.shape)).astype(np.float32)
            obs, reward, termination, truncation, info = env.step(actions)
            its_obs, its_reward, its_termination, its_truncation, its_info = peer.step(actions[1].astype(np.float64))
            where = f"step {step} of episode {episode}"
            _assert_close(obs[1], its_obs, f"the observation of {where}")
            _assert_close(reward[1], its_reward, f"the reward of {where}")
            assert (termination[1], truncation[1]) == (its_termination, its_truncation), where
            for entry in info.keys() & its_info.keys():
                _assert_close(info[entry][1], its_info[entry], f"{entry} of {where}")
            num_steps += 1
            if its_termination or its_truncation:
                break
    assert num_steps >= 10
    env.close()
    peer.close()


def _assert_close(mine: Any, its: Any, label: str) -> None:
    # Both compute in float64; ours is converted to float32.
    np.testing.assert_allclose(mine, np.asarray(its, np.float32), rtol=1e-6, atol=1e-8, err_msg=label)

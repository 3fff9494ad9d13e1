"""Simulators and agents may reuse returned arrays: stored data are copies."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import Box
from evorl.envs.gymnasium import InProcessGymnasiumEnv
from evorl.envs.host.bridge import HostBackedEnv
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds
from evorl.envs.options import EnvOptions
from evorl.interop.collector import Collector
from evorl.interop.host_agent import HostAgent
from evorl.interop.host_evaluation import play_on_host
from evorl.interop.vector_collector import VectorCollector

SHARED = {"obs": np.zeros(2, np.float32), "reward": np.zeros((), np.float32), "over": np.zeros((), np.bool_)}


class Walk(gymnasium.Env):
    """Observes its seed and its step, ends after three steps or by its time limit; clips its actions in place.

    Args:
        reuses: write all results into arrays that all such environments share.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, reuses: bool) -> None:
        self.reuses = reuses

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.seed, self.t = 7 if seed is None else seed % 1000, 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        self.t += 1
        reward = np.float32(self.t + action[0])
        action[:] = 99.0 if self.reuses else action
        over, cut = self.t == 3 and self.seed % 2 == 0, self.t == 4
        if not self.reuses:
            return self._see(), float(reward), over, cut, {}
        SHARED["reward"][...], SHARED["over"][...] = reward, over
        return self._see(), SHARED["reward"], SHARED["over"], cut, {}

    def _see(self) -> Any:
        obs = SHARED["obs"] if self.reuses else np.zeros(2, np.float32)
        obs[:] = self.seed, self.t
        return obs


class WalkRows(HostVectorEnv):
    """Batched version; with ``reuses`` it writes starts into the last observations, and clears its arguments."""

    obs_space, action_space = Box(-np.inf, np.inf, (2,)), Box(-1.0, 1.0, (1,))

    def __init__(self, num_envs: int, reuses: bool) -> None:
        self.num_envs, self.reuses = num_envs, reuses
        self.obs, self.reward = np.zeros((num_envs, 2), np.float32), np.zeros(num_envs, np.float32)
        self.over = np.zeros(num_envs, np.bool_)

    def reset(self, seeds: np.ndarray) -> Any:
        return self.partial_reset(np.ones(self.num_envs, bool), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        self.obs[mask, 0], self.obs[mask, 1] = (seeds % np.uint64(1000))[mask], 0
        if not self.reuses:
            return self.obs.copy()
        self.reward[:], self.over[:], mask[:] = -5.0, True, False
        return self.obs

    def step(self, actions: Any) -> Any:
        self.obs[:, 1] += 1
        self.reward[:] = self.obs[:, 1] + actions[:, 0]
        self.over[:] = (self.obs[:, 1] == 3) & (self.obs[:, 0] % 2 == 0)
        cut = self.obs[:, 1] == 4
        if not self.reuses:
            return self.obs.copy(), self.reward.copy(), self.over.copy(), cut, {}
        actions[:] = 99.0
        return self.obs, self.reward, self.over, cut, {}


class Pusher(HostAgent):
    """Policy whose action depends on the number of its calls, returned in one array if ``reuses``."""

    def __init__(self, env: Any, reuses: bool, rows: int | None = None) -> None:
        super().__init__(env.action_space, 0, rows)
        self.reuses, self.calls = reuses, 0
        self.array = np.zeros((1,) if rows is None else (rows, 1), np.float32)
        self.extra = np.zeros(() if rows is None else rows, np.float32)

    def step(self, obs: Any, history: Any = None) -> Any:
        return self.eval_step(obs), {"number": self.extra if self.reuses else self.extra.copy()}

    def eval_step(self, obs: Any, history: Any = None) -> Any:
        self.calls += 1
        self.array[:], self.extra[...] = self.calls % 5 / 10, self.calls
        return self.array if self.reuses else self.array.copy()


def of_collector(reuses: bool) -> Any:
    env = Walk(reuses)
    return Collector(env, seed=4).collect(Pusher(env, reuses), 10).transitions


def of_vector_collector(reuses: bool) -> Any:
    env = WalkRows(3, reuses)
    return VectorCollector(env, seed=4).collect(Pusher(env, reuses, 3), 10).transitions


def of_evaluation(reuses: bool) -> Any:
    env = Walk(reuses)
    metrics = play_on_host(env, Pusher(env, reuses), 3, 4, 2)
    return metrics.episode_returns, metrics.steps.actions, metrics.steps.obs


def of_vector_evaluation(reuses: bool) -> Any:
    env = WalkRows(3, reuses)
    metrics = play_on_host(env, Pusher(env, reuses, 3), 5, 4, 2)
    return metrics.episode_returns, metrics.steps.actions, metrics.steps.obs


def _through_the_bridge(make: Any, host: str) -> Any:
    env = HostBackedEnv(make, EnvOptions(parallel=3), host)
    states, state = [], env.reset(jax.random.key(0))
    for step in range(8):
        states.append(jax.device_get((state.obs, state.reward, state.done, state.info.next_obs)))
        state = env.step(state, np.full((3, 1), step / 10, np.float32))
    env.close()
    return states


def of_rows(reuses: bool) -> Any:
    return _through_the_bridge(lambda n: WalkRows(n, reuses), "loop")


def of_single_environments(reuses: bool) -> Any:
    return _through_the_bridge(lambda n: InProcessGymnasiumEnv(lambda: Walk(reuses), n), "callback")


PLACES = (of_collector, of_vector_collector, of_evaluation, of_vector_evaluation, of_rows, of_single_environments)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_reusing_arrays_changes_nothing(place: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, place(True), place(False))


def test_a_cut_episode_has_its_true_successor() -> None:
    states = of_rows(True)
    successors = np.concatenate([next_obs[done] for _, _, done, next_obs in states])
    assert len(successors) > 2
    assert set(successors[:, 1].tolist()) == {3.0, 4.0}  # steps at which episodes end, never 0


def test_seeds_of_64_bits_are_folded_to_31() -> None:
    seeds = np.array([5, 2**31 - 1, 2**31, 2**40 + 3, 2**64 - 1], np.uint64)
    folded = fold_seeds(seeds)
    assert folded[:2].tolist() == [5, 2**31 - 1]
    assert (folded < 2**31).all()
    assert fold_seeds(folded).tolist() == folded.tolist()
    np.testing.assert_array_equal(fold_seeds(seeds, 64), seeds)


class NeedsSmallSeeds(Walk):
    """Requires seeds that fit into a signed C integer."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if seed is not None:
            np.random.RandomState(np.int32(seed))
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("key", range(4))
def test_environments_get_seeds_that_they_take(key: int) -> None:
    env = HostBackedEnv(
        lambda n: InProcessGymnasiumEnv(lambda: NeedsSmallSeeds(False), n), EnvOptions(parallel=3), "loop"
    )
    env.reset(jax.random.key(key))
    env.close()
    assert Collector(NeedsSmallSeeds(False), seed=2**32 - 1).collect(Pusher(Walk(False), False), 2).transitions

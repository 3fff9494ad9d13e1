"""Host environments and agents with known numbers, for collectors, runners and batchers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box as GymnasiumBox
from gymnasium.spaces import Discrete as GymnasiumDiscrete

from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.space import Box, Discrete
from evorl.interop.batch_agent import BatchAgent
from evorl.interop.host_agent import HostAgent


class CountingEnv:
    """Gymnasium environment with episodes of ``length`` steps, ended by a time limit if ``truncates``.

    It writes every observation into the same array. ``seeds`` contains the seeds of its resets.
    """

    def __init__(self, length: int, truncates: bool = False) -> None:
        self.observation_space = GymnasiumBox(0.0, np.inf, (1,))
        self.action_space = GymnasiumDiscrete(3)
        self.length, self.truncates = length, truncates
        self.seeds: list[int | None] = []
        self.num_steps = 0
        self._obs = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.seeds.append(seed)
        self._obs[0] = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        assert self._obs[0] < self.length, "the episode is over"
        self._obs[0] += 1
        self.num_steps += 1
        over = bool(self._obs[0] == self.length)
        info = {"twice": 2 * self._obs[0]}
        return self._obs, float(self._obs[0]), over and not self.truncates, over and self.truncates, info


class CountingRows(HostVectorEnv):
    """Environments with episodes of the given lengths; odd ones end by a time limit."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.num_envs = len(lengths)
        self.obs_space, self.action_space = Box(0.0, np.inf, (1,)), Discrete(3)
        self.info_spec = {"row": ((), np.int32)}
        self._lengths, self._t = np.array(lengths), np.zeros(self.num_envs, int)
        self.seeds: list[tuple[list[int], np.ndarray]] = []  # which environments were reset, with which seeds

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.partial_reset(np.ones(self.num_envs, bool), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        assert mask.any()
        self.seeds.append((np.flatnonzero(mask).tolist(), seeds))
        self._t[mask] = 0
        return np.where(mask, 0, -1)[:, None].astype(np.float32)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        assert np.shape(actions) == (self.num_envs,)
        self._t += 1
        over, by_time = self._t == self._lengths, np.arange(self.num_envs) % 2 == 1
        info = {"row": np.arange(self.num_envs, dtype=np.int32)}
        return self._t[:, None].astype(np.float32), self._t * 1.0, over & ~by_time, over & by_time, info


class TracingAgent(HostAgent):
    """Agent that records its calls, and stores the observation with the step (``seen``)."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.batches: list[Any] = []

    def step(self, obs: Any) -> tuple[Any, Mapping[str, Any]]:
        self.calls.append("step")
        return np.zeros(np.shape(obs)[:-1], np.int64), {"seen": 10 * np.asarray(obs)[..., 0]}

    def view(self, transition: Mapping[str, Any], extras: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append("view")
        return {**extras, "error": np.asarray(transition["next_obs"])[..., 0] - np.asarray(transition["rewards"])}

    def terminal(self, ended: Any = True) -> None:
        self.calls.append("terminal")

    def update(self, batch: Any) -> Any:
        self.calls.append("update")
        self.batches.append(batch)
        return {"loss": 0.5}


class Rows(HostVectorEnv):
    """Environment i has episodes of ``lengths[i]`` steps, or of the argument ``length``.

    Observations are the step, the argument ``env_id`` (default -1) and a number derived from the seed; rewards are the
    action.
    """

    def __init__(
        self, num_envs: int, lengths: Sequence[int] = (2, 3, 3, 5), seconds: float = 0.0, fails_at: int = -1
    ) -> None:
        self.num_envs = num_envs
        self.obs_space, self.action_space = Box(-1.0, np.inf, (3,)), Discrete(1000)
        self.info_spec = {"process": ((), np.int32)}
        self._usual = np.resize(np.asarray(lengths, np.int32), num_envs)
        self._seconds, self._fails_at = seconds, fails_at
        self._obs = np.zeros((num_envs, 3), np.float32)
        self.set_arguments({})

    def set_arguments(self, arguments: Mapping[str, np.ndarray]) -> None:
        self._lengths = arguments.get("length", self._usual)
        self._ids = arguments.get("env_id", np.full(self.num_envs, -1))

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.partial_reset(np.ones(self.num_envs, bool), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        fresh = np.stack([np.zeros(self.num_envs), self._ids, seeds % np.uint64(2**16)], axis=1)
        self._obs[mask] = fresh[mask]
        return self._obs

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        time.sleep(self._seconds)
        self._obs[:, 0] += 1
        if (self._obs[:, 0] == self._fails_at).any():
            raise RuntimeError("the motor is burnt")
        info = {"process": np.full(self.num_envs, os.getpid(), np.int32)}
        no = np.zeros(self.num_envs, bool)
        return self._obs.copy(), np.asarray(actions, np.float32), self._obs[:, 0] >= self._lengths, no, info


class Numbered(BatchAgent):
    """Agent that acts by its last update, and stores its number and action count per environment."""

    def __init__(self, start: int = 0, wants_history: bool = False) -> None:
        self.action = start
        self.wants_history = wants_history

    def initial_state(self, agent_info: Any, num_rows: int) -> Any:
        return {"calls": np.zeros(num_rows, np.int32)}

    def __call__(self, state: Any, obs: Any, agent_info: Any, history: Any = None) -> tuple[Any, Any]:
        num_rows = len(obs)
        given = {"actions": np.full(num_rows, self.action), "calls": state["calls"]}
        given["agent_id"] = np.full(num_rows, -1) if agent_info is None else agent_info["agent_id"]
        if history is not None:
            given["num_before"] = np.full(num_rows, len(history))
        return given, {"calls": state["calls"] + 1}

    def update(self, info: Any) -> None:
        self.action = int(info["action"])


def make_counting(num_envs: int) -> HostVectorEnv:
    return CountingRows([2] * num_envs)

"""Checks of the answers of a Gymnasium environment within the process that steps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evorl.envs.gymnasium_spaces import space_of
from evorl.envs.host.answers import (
    as_flag,
    as_metric,
    as_reward,
    as_start,
    as_step,
    blank_observations,
    put_observation,
)


class CheckedAnswers:
    """An environment whose answers are checked before Gymnasium converts them, as ``None`` to ``False``, silently.

    Args:
        make: makes the environment.
        obs_key: of observations that are a dict, the only entry that is used and checked.
        metrics: numbers that the info of every step must have. Gymnasium takes 0 for missing ones.
    """

    def __init__(self, make: Callable[[], Any], obs_key: str | None, metrics: Sequence[str] = ()) -> None:
        self._env, self._obs_key, self._metrics = make(), obs_key, metrics
        space = self._env.observation_space
        self._space = space_of(space if obs_key is None else space[obs_key])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> tuple[Any, Any]:
        """Start an episode. Raises ``HostEnvError`` for a wrong answer."""
        answer = self._env.reset(**arguments)
        self._check(as_start(answer))
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Take a step. Raises ``HostEnvError`` for a wrong answer."""
        obs, reward, terminated, truncated, info = as_step(self._env.step(action))
        self._check(obs)
        info = {**info, **{name: as_metric(info, name) for name in self._metrics}}
        return obs, as_reward(reward), as_flag(terminated, "terminated"), as_flag(truncated, "truncated"), info

    def _check(self, obs: Any) -> None:
        put_observation(
            self._space, blank_observations(self._space, 1), 0, obs if self._obs_key is None else obs[self._obs_key]
        )

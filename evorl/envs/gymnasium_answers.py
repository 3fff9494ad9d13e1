"""Checks the results of a Gymnasium environment in its worker process, where the original values are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evorl.envs.gymnasium_spaces import space_of
from evorl.envs.host import answers


class CheckedAnswers:
    """Checks the results of an environment before Gymnasium silently converts them, for example ``None`` to ``False``.

    Args:
        make: function that creates the environment.
        obs_key: only entry of dict observations to check; ``None`` checks the whole observation.
        metrics: names of numbers that every ``info`` must contain; Gymnasium would replace missing numbers by 0.
    """

    def __init__(self, make: Callable[[], Any], obs_key: str | None, metrics: Sequence[str] = ()) -> None:
        self._env, self._obs_key, self._metrics = make(), obs_key, metrics
        space = self._env.observation_space
        self._space = space_of(space if obs_key is None else space[obs_key])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> tuple[Any, Any]:
        """Return observation and ``info`` of a new episode. Raises ``HostEnvError`` if they are invalid."""
        answer = self._env.reset(**arguments)
        self._check(answers.as_start(answer))
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Return the result of a step, with plain floats and bools. Raises ``HostEnvError`` if it is invalid."""
        obs, reward, terminated, truncated, info = answers.as_step(self._env.step(action))
        self._check(obs)
        info = {**info, **{name: answers.as_metric(info, name) for name in self._metrics}}
        terminated, truncated = answers.as_flag(terminated, "terminated"), answers.as_flag(truncated, "truncated")
        return obs, answers.as_reward(reward), terminated, truncated, info

    def _check(self, obs: Any) -> None:
        obs = obs if self._obs_key is None else obs[self._obs_key]
        answers.put_observation(self._space, answers.blank_observations(self._space, 1), 0, obs)

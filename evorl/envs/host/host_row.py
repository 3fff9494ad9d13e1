"""One row of the simulators as an environment, so that wrappers can be put around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.env import Env, EnvState
from evorl.envs.space import Space
from evorl.types import Action, PyTreeDict


class HostRow(Env):
    """What wrappers see of a simulator, which has answered before they are asked.

    ``reset`` takes the observation that the episode started with where others take a key. ``step`` takes the
    simulator's answer as ``env_state.env_state``, and leaves there the action that reached it. So the wrappers are run
    twice in a step: once for the action that the simulator is to be given, once for what its answer means. What is not
    needed of either run is no part of the compiled program.

    Args:
        obs_space: of the simulator.
        action_space: of the simulator.
        info_spec: of the simulator, see ``HostVectorEnv``.
        max_episode_steps: the simulator's time limit.
    """

    def __init__(
        self,
        obs_space: Space,
        action_space: Space,
        info_spec: Mapping[str, tuple[tuple[int, ...], Any]],
        max_episode_steps: int | None,
    ) -> None:
        self._obs_space, self._action_space = obs_space, action_space
        self._info_spec = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in info_spec.items()}
        self._max_episode_steps = max_episode_steps

    @property
    def obs_space(self) -> Space:
        """That of the simulator."""
        return self._obs_space

    @property
    def action_space(self) -> Space:
        """That of the simulator."""
        return self._action_space

    @property
    def max_episode_steps(self) -> int | None:
        """The simulator's time limit."""
        return self._max_episode_steps

    def reset(self, key: Any) -> EnvState:
        """The start of an episode, whose observation stands in for ``key``."""
        return self._env_state(None, self.blank_answer().replace(obs=key))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """What the answer ``env_state.env_state`` means; ``action`` takes its place."""
        return self._env_state(action, env_state.env_state)

    def blank_answer(self) -> PyTreeDict:
        """Of the structure of an answer; means nothing."""
        return PyTreeDict(
            obs=self._obs_space.zeros(),
            reward=jnp.zeros((), jnp.float32),
            termination=jnp.asarray(False),
            truncation=jnp.asarray(False),
            metrics=PyTreeDict({name: jnp.zeros(spec.shape, spec.dtype) for name, spec in self._info_spec.items()}),
        )

    def _env_state(self, env_state: Any, answer: PyTreeDict) -> EnvState:
        info = PyTreeDict({name: answer[name] for name in ("termination", "truncation", "metrics")})
        return EnvState(env_state, answer.obs, answer.reward, answer.termination | answer.truncation, info)

    def _identity(self) -> Any:
        return id(self)

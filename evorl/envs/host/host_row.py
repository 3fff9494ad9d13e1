"""Presents one simulator of a batch as an ``Env``, so that the wrappers of JAX environments can be applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from evorl.envs.env import EnvState, EnvWithSpaces
from evorl.envs.space import Space
from evorl.ops.trees import shape_and_dtype
from evorl.types import Action, PyTreeDict


class HostRow(EnvWithSpaces):
    """A placeholder for a simulator inside the wrappers: it replays a result that the simulator has returned.

    ``reset`` receives the first observation of the episode in place of a key. ``step`` reads the simulator's result
    from ``env_state.env_state``, and stores there the action that passed through the wrappers. The wrappers therefore
    run twice per step: once to convert the action for the simulator, once to process its result. The compiler removes
    the unused parts of both runs.

    Args:
        obs_space: observation space of the simulator.
        action_space: action space of the simulator.
        info_spec: see ``HostVectorEnv``.
        max_episode_steps: the simulator's time limit in environment steps; ``None`` without a limit.
    """

    steps_on_host = True

    def __init__(
        self,
        obs_space: Space,
        action_space: Space,
        info_spec: Mapping[str, tuple[tuple[int, ...], Any]],
        max_episode_steps: int | None,
    ) -> None:
        self._obs_space, self._action_space = obs_space, action_space
        self._info_spec = {name: shape_and_dtype(shape, dtype) for name, (shape, dtype) in info_spec.items()}
        self._max_episode_steps = max_episode_steps

    @property
    def max_episode_steps(self) -> int | None:
        """The simulator's time limit in environment steps; ``None`` without a limit."""
        return self._max_episode_steps

    def reset(self, key: Any) -> EnvState:
        """Return the first state of an episode; pass the simulator's first observation as ``key``."""
        return self._env_state(None, self.blank_answer().replace(obs=key))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Return the result in ``env_state.env_state`` as a state; its own entry ``env_state`` is ``action``."""
        return self._env_state(action, env_state.env_state)

    def blank_answer(self) -> PyTreeDict:
        """Return zeros with the structure of a simulator's result."""
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

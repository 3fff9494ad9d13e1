"""Collector of transitions from a single environment, for agents of any framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evorl.envs.host.answers import as_flag, as_reward, as_start, refuse_exit
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.host.seed_bits import fold_seeds
from evorl.interop.agent_calls import ActFn, CompleteFn, EnvStep, calls_of, env_step_for
from evorl.interop.transitions import (
    Collected,
    Step,
    as_columns,
    check_done_means,
    make_collected,
    n_step_transitions,
    own_copies,
    own_copy,
)
from evorl.types import PyTreeDict

_WRONG_ANSWER = (
    "a step of the environment must return a tuple (observation, reward, terminated, truncated, info), but returned a "
    "{}."
)


class Collector:
    """Steps one environment with Gymnasium's interface (``reset``, ``step``) and builds transitions.

    An unfinished episode, and steps that are not yet part of a complete transition, carry over to the next call. A new
    episode starts immediately after the end of the last one.

    Args:
        env: environment; only its first reset is seeded.
        num_steps: number of steps in a transition, n. If above 1, ``rewards`` are ``[N, n]``, see
            ``n_step_transitions``.
        done_means: meaning of ``dones``: ``"terminated"``, or ``"either"`` (terminated or truncated). Transitions also
            have ``termination`` and ``truncation``.
        info_names: entries of the environment's ``info`` to store.
        seed: seed of the first reset; ``None`` lets the environment choose.

    Attributes:
        timesteps: number of steps taken so far.

    Raises:
        ValueError: ``num_steps`` is less than 1, or ``done_means`` is unknown.
    """

    def __init__(
        self,
        env: Any,
        *,
        num_steps: int = 1,
        done_means: str = "either",
        info_names: Sequence[str] = (),
        seed: int | None = None,
    ) -> None:
        check_done_means(done_means)
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps} must be at least 1, the number of steps in a transition.")
        self.env = env
        self.num_steps = num_steps
        self.timesteps = 0
        self._done_means = done_means
        self._info_names = tuple(info_names)
        self._seed = seed
        self._obs: Any = None
        self._episode = (0.0, 0)  # return so far of the running episode, and the timestep at which it started
        self._waiting: list[Step] = []

    @property
    def num_envs(self) -> int:
        """Number of environments: 1."""
        return 1

    @property
    def num_waiting(self) -> int:
        """Number of stored steps from which no complete transition starts yet."""
        return len(self._waiting)

    def restart(self) -> None:
        """Abandon the running episode and discard its pending steps: the next step starts another episode."""
        self._obs = None
        self._waiting = []

    def collect(self, agent: Any, length: int, agent_info: Any = None) -> Collected:
        """Take ``length`` steps, and return the complete transitions and the episodes that ended.

        Args:
            agent: see ``HostAgent``.
            length: number of steps.
            agent_info: new value of ``agent.agent_info``, stored with each step; ``None`` changes and stores nothing.

        Raises:
            TypeError: the agent lacks a method.
            ValueError: ``length`` is negative, or steps are inconsistent, see ``as_columns``.
            HostEnvError: the environment returns an invalid result.
        """
        if length < 0:
            raise ValueError(f"length must be at least 0, got {length}; for a whole episode use collect_episode.")
        return self._collect(agent, length, agent_info)

    def collect_episode(self, agent: Any, agent_info: Any = None) -> Collected:
        """Take steps until an episode ends; otherwise the same as ``collect``."""
        return self._collect(agent, None, agent_info)

    def _collect(self, agent: Any, length: int | None, agent_info: Any) -> Collected:
        act, complete = calls_of(agent, self._info_names, agent_info)
        try:
            env_step = env_step_for(self.env, agent)
            ended = self._take_steps(env_step, act, complete, agent.terminal, length)
            return make_collected(self._take_transitions(), ended)
        except BaseException as error:
            self.restart()  # the state of the environment is unknown
            refuse_exit(error, f"step {self.timesteps + 1} or later of the environment or agent")
            raise

    def _take_transitions(self) -> PyTreeDict | None:
        steps = self._waiting
        if not steps:
            return None
        columns = as_columns(steps, self._done_means)
        if self.num_steps == 1:
            self._waiting = []
            return columns
        transitions, num_left = n_step_transitions(columns, self.num_steps)
        self._waiting = steps[len(steps) - num_left :]
        return transitions if len(transitions.rewards) else None

    def _take_steps(
        self,
        env_step: EnvStep,
        act: ActFn,
        complete: CompleteFn | None,
        terminal: Callable[[], None],
        length: int | None,
    ) -> list[tuple[float, int, int]]:
        """Take and store steps; return (return, length, timestep at the end) of each episode that ended."""
        store, ended = self._waiting.append, []
        now = self.timesteps
        last = None if length is None else now + length
        obs, episode_return, started_at = self._obs, *self._episode
        while now != last:
            if obs is None:
                obs, episode_return, started_at = self._reset(), 0.0, now
            action, extras = act(obs)
            stored_action = action if action.__class__ is int else own_copy(action)
            if extras:
                extras = own_copies(extras)
            answer = env_step(action)
            if type(answer) is not tuple or len(answer) != 5:
                got = f"tuple of length {len(answer)}" if type(answer) is tuple else type(answer).__name__
                raise HostEnvError(_WRONG_ANSWER.format(got))
            next_obs, reward, termination, truncation, info = answer
            if reward.__class__ is not float or not (termination.__class__ is truncation.__class__ is bool):
                reward, termination, truncation = _checked(reward, termination, truncation)
            next_obs = next_obs.copy() if next_obs.__class__ is np.ndarray else own_copy(next_obs)
            step = (obs, stored_action, reward, next_obs, termination, truncation, extras)
            store(step if complete is None else complete(step, info))
            now += 1
            episode_return += reward
            obs = next_obs
            if termination or truncation:
                terminal()
                ended.append((float(episode_return), now - started_at, now))
                obs = None
                if length is None:
                    break
        self.timesteps, self._obs, self._episode = now, obs, (episode_return, started_at)
        return ended

    def _reset(self) -> Any:
        seed, self._seed = self._seed, None
        return own_copy(as_start(self.env.reset(seed=None if seed is None else int(fold_seeds(seed)))))


def _checked(reward: Any, termination: Any, truncation: Any) -> tuple[Any, bool, bool]:
    """Return the reward, unchanged if it is a scalar, and both flags; raise ``HostEnvError`` for other values."""
    plain = reward.item() if type(reward) is np.ndarray and not reward.shape else reward
    as_reward(plain)
    return plain, as_flag(termination, "terminated"), as_flag(truncation, "truncated")

"""Collector of transitions from a single environment, for agents of any framework."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evorl.config.values import LONGEST_AXIS, positive, whole_number
from evorl.envs.host.answers import as_flag, as_reward, as_start, as_step, refuse_exit
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
from evorl.ops.terminal_text import counted
from evorl.types import PyTreeDict


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
        ValueError: ``num_steps`` is not a positive integer, or ``done_means`` is unknown.
    """

    num_envs = 1  # a single environment

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
        self.env = env
        self.num_steps = positive(num_steps, "num_steps")
        self.timesteps = 0
        self._done_means = done_means
        self._info_names = tuple(info_names)
        self._seed = seed
        self._obs: Any = None
        self._episode = (0.0, 0)  # return so far of the running episode, and the timestep at which it started
        self._waiting: list[Step] = []

    @property
    def num_waiting(self) -> int:
        """Number of stored steps from which no complete transition starts yet."""
        return len(self._waiting)

    def restart(self) -> None:
        """Abandon the episode and pending steps without ``agent.terminal``; the next step starts another episode."""
        self._obs = None
        self._waiting = []

    def collect(self, agent: Any, length: int, agent_info: Any = None) -> Collected:
        """Take ``length`` steps, and return the complete transitions and the episodes that ended.

        After an error, ``agent.terminal`` is called for a running episode, and the next call starts another episode.

        Args:
            agent: see ``HostAgent``.
            length: number of steps.
            agent_info: new value of ``agent.agent_info``, stored with each step; ``None`` changes and stores nothing.

        Raises:
            TypeError: the agent lacks a method.
            ValueError: ``length`` is not an integer from 0, or steps are inconsistent, see ``as_columns``.
            HostEnvError: the environment returns an invalid result.
        """
        return self._collect(agent, whole_number(length, "length", 0, LONGEST_AXIS), agent_info)

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
            if self._obs is not None:
                with contextlib.suppress(Exception):  # the first error is the one to report
                    agent.terminal()
            self.restart()  # the state of the environment is unknown
            refuse_exit(error, f"the environment or the agent, after {counted(self.timesteps, 'step')},")
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
        store, ended, now = self._waiting.append, [], self.timesteps
        last = None if length is None else now + length
        obs, episode_return, started_at = self._obs, *self._episode
        try:
            while now != last:
                if obs is None:
                    obs, episode_return, started_at = self._reset(), 0.0, now
                action, extras = act(obs)
                stored_action = action if action.__class__ is int else own_copy(action)
                if extras:
                    extras = own_copies(extras)
                answer = env_step(action)
                now += 1
                if type(answer) is not tuple or len(answer) != 5:
                    answer = as_step(answer)
                next_obs, reward, termination, truncation, info = answer
                if reward.__class__ is not float or not (termination.__class__ is truncation.__class__ is bool):
                    reward, termination, truncation = _checked(reward, termination, truncation)
                next_obs = next_obs.copy() if next_obs.__class__ is np.ndarray else own_copy(next_obs)
                step = (obs, stored_action, reward, next_obs, termination, truncation, extras)
                store(step if complete is None else complete(step, info))
                episode_return += reward
                obs = next_obs
                if termination or truncation:
                    obs = None
                    ended.append((float(episode_return), now - started_at, now))
                    terminal()
                    if length is None:
                        break
        finally:  # also after an error, so that the steps are counted
            self.timesteps, self._obs, self._episode = now, obs, (episode_return, started_at)
        return ended

    def _reset(self) -> Any:
        seed, self._seed = self._seed, None
        return own_copy(as_start(self.env.reset(seed=None if seed is None else int(fold_seeds(seed)))))


def _checked(reward: Any, termination: Any, truncation: Any) -> tuple[float, bool, bool]:
    """Return the reward, which must be a scalar, as a float, and both flags; otherwise raise ``HostEnvError``."""
    return as_reward(reward), as_flag(termination, "terminated"), as_flag(truncation, "truncated")

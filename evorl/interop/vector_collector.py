"""Collector of transitions from vectorized simulators, for agents of any framework."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from evorl.config.values import LONGEST_AXIS, whole_number
from evorl.envs.host.answers import refuse_exit
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds
from evorl.envs.host.simulators import rows_where
from evorl.interop.agent_calls import ActFn, CompleteFn, EnvStep, calls_of, env_step_for
from evorl.interop.transitions import (
    Collected,
    Step,
    as_columns,
    check_done_means,
    make_collected,
    own_copies,
    own_copy,
)
from evorl.ops.terminal_text import counted


class VectorCollector:
    """Steps vectorized simulators and builds transitions; after an episode, a simulator starts the next one.

    ``next_obs`` is the true next observation, even at the end of an episode.

    Args:
        env: simulators.
        num_steps: number of steps in a transition, must be 1.
        done_means: meaning of ``dones``, see ``Collector``.
        info_names: entries of the simulators' ``info`` to store, arrays ``[B, ...]``.
        seed: seed from which the seeds of all episodes are derived; ``None`` for an arbitrary one.

    Attributes:
        timesteps: number of steps taken so far, over all environments.

    Raises:
        TypeError: ``num_steps`` is not 1.
        ValueError: ``done_means`` is unknown.
    """

    num_waiting = 0  # every step is a complete transition

    def __init__(
        self,
        env: HostVectorEnv,
        *,
        num_steps: int = 1,
        done_means: str = "either",
        info_names: Sequence[str] = (),
        seed: int | None = None,
    ) -> None:
        check_done_means(done_means)
        if num_steps != 1:
            raise TypeError(
                f"num_steps must be 1 for a vector environment, got {num_steps}: collect from a single environment, or "
                "build n-step transitions when sampling (evorl.replay_buffers.ring.take_n_step)."
            )
        self.env = env
        self.timesteps = 0
        self._done_means = done_means
        self._info_names = tuple(info_names)
        self._seeds = np.random.default_rng(seed)
        self._obs: Any = None
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        self._are_running = np.ones(env.num_envs, np.bool_)

    @property
    def num_envs(self) -> int:
        """Number of environments B."""
        return self.env.num_envs

    def restart(self) -> None:
        """Abandon the running episodes, without ``agent.terminal``; the next step starts new ones."""
        self._obs = None

    def collect(self, agent: Any, length: int, agent_info: Any = None) -> Collected:
        """Take ``length`` steps in every environment; transitions have leaves ``[length, B, ...]``.

        After an error, ``agent.terminal`` is called for running episodes, and the next call starts other episodes.

        Args:
            agent: see ``HostAgent``.
            length: number of steps of each environment.
            agent_info: new value of ``agent.agent_info``, leaves ``[B, ...]``, also stored with each step; ``None``
                changes and stores nothing.

        Raises:
            TypeError: the agent lacks a method.
            ValueError: ``length`` is not an integer from 0, or steps are inconsistent, see ``as_columns``.
            HostEnvError: a simulator failed.
        """
        length = whole_number(length, "length", 0, LONGEST_AXIS)
        act, complete = calls_of(agent, self._info_names, agent_info)
        try:
            env_step = env_step_for(self.env, agent)
            steps, ended = self._take_steps(env_step, act, complete, agent.terminal, length)
            return make_collected(as_columns(steps, self._done_means) if steps else None, ended)
        except BaseException as error:
            if self._obs is not None:
                with contextlib.suppress(Exception):  # the first error is the one to report
                    agent.terminal(self._are_running)
            self.restart()  # the state of the simulators is unknown
            refuse_exit(error, f"the simulators or the agent, after {counted(self.timesteps, 'step')},")
            raise

    def _take_steps(
        self, env_step: EnvStep, act: ActFn, complete: CompleteFn | None, terminal: Callable[[Any], None], length: int
    ) -> tuple[list[Step], list[tuple[float, int, int]]]:
        """Take steps; return them, and (return, length, timestep) of each episode that ended."""
        steps: list[Step] = []
        ended: list[tuple[float, int, int]] = []
        obs = self._obs = self._start() if self._obs is None else self._obs
        for _ in range(length):
            action, extras = act(obs)
            stored_action, extras = own_copy(action), own_copies(extras)
            next_obs, reward, termination, truncation, info = env_step(action)
            self.timesteps += self.num_envs
            next_obs = jax.tree.map(np.array, next_obs)
            flags = np.array(termination, np.bool_), np.array(truncation, np.bool_)
            step = (obs, stored_action, np.array(reward), next_obs, *flags, extras)
            steps.append(step if complete is None else complete(step, info))
            self._returns += reward
            self._lengths += 1
            obs, is_over = next_obs, flags[0] | flags[1]
            if is_over.any():
                terminal(is_over)
                self._are_running = ~is_over
                ended += [(self._returns[i], self._lengths[i], self.timesteps) for i in np.flatnonzero(is_over)]
                obs = self._restarted(is_over, next_obs)
                self._are_running = np.ones_like(is_over)
        self._obs = obs
        return steps, ended

    def _start(self) -> Any:
        self._returns[:], self._lengths[:] = 0.0, 0
        self._are_running = np.ones(self.num_envs, np.bool_)
        return jax.tree.map(np.array, self.env.reset(self._draw_seeds()))

    def _restarted(self, is_over: np.ndarray, next_obs: Any) -> Any:
        self._returns[is_over], self._lengths[is_over] = 0.0, 0
        start = self.env.partial_reset(is_over.copy(), self._draw_seeds())
        return rows_where(is_over, start, next_obs)

    def _draw_seeds(self) -> np.ndarray:
        """Return a seed per environment, used or not, so that seeds do not depend on episodes of other environments."""
        return fold_seeds(self._seeds.integers(0, 2**32, self.num_envs, np.uint64), self.env.seed_bits)

"""Collecting from one environment, by an agent of any framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evorl.collecting.agent_calls import ActFn, CompleteFn, EnvStep, calls_of, env_step_for
from evorl.collecting.transitions import (
    Collected,
    Step,
    as_columns,
    check_done_means,
    make_collected,
    n_step_transitions,
    own_copies,
    own_copy,
)
from evorl.envs.host.answers import as_flag, as_reward, as_start, refuse_exit
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.host.seed_bits import fold_seeds
from evorl.types import PyTreeDict

_WRONG_ANSWER = (
    "a step of an environment gives a tuple (observation, reward, terminated, truncated, info); this one gave a {} of "
    "another kind."
)


class Collector:
    """Steps one environment of Gymnasium's interface (``reset``, ``step``), and makes transitions of the steps.

    An episode goes on from one call to the next, and so do steps that wait for others to be a transition. After its end
    the next one starts at once.

    Args:
        env: the environment; its first reset gets a seed, and goes on from there.
        num_steps: steps in a transition, n. With more than one, ``rewards`` are ``[N, n]``, see ``n_step_transitions``.
        done_means: whether ``dones`` are true where an episode ended ``either`` way, or only where it ``terminated``.
            ``termination`` and ``truncation`` are there in both cases.
        info_names: entries of the environment's ``info`` to store.
        seed: of the first reset.

    Attributes:
        timesteps: steps that were taken so far.

    Raises:
        ValueError: ``num_steps`` is less than 1, or there is no such meaning of ``dones``.
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
            raise ValueError(f"a transition is over one step at least, got num_steps={num_steps}.")
        self.env = env
        self.num_steps = num_steps
        self.timesteps = 0
        self._done_means = done_means
        self._info_names = tuple(info_names)
        self._seed = seed
        self._obs: Any = None
        self._episode = (0.0, 0)  # the return so far of the one that runs, and when it started
        self._waiting: list[Step] = []

    @property
    def num_envs(self) -> int:
        """Steps of environments in one step of the collector."""
        return 1

    @property
    def num_waiting(self) -> int:
        """Steps that are not the start of a transition yet."""
        return len(self._waiting)

    def restart(self) -> None:
        """Leave the running episode and forget its steps: the next step starts another."""
        self._obs = None
        self._waiting = []

    def collect(self, agent: Any, length: int, agent_info: Any = None) -> Collected:
        """Take so many steps.

        Args:
            agent: see ``HostAgent``.
            length: steps.
            agent_info: given to the agent, and stored with each step, under this name.

        Raises:
            TypeError: the agent lacks a method.
            ValueError: steps do not fit together, see ``as_columns``.
            HostEnvError: the environment answers what it may not.
        """
        if length < 0:
            raise ValueError(
                f"a collector takes 0 steps or more, got length={length}; collect_episode takes an episode."
            )
        return self._collect(agent, length, agent_info)

    def collect_episode(self, agent: Any, agent_info: Any = None) -> Collected:
        """Go on to the end of one episode; see ``collect``."""
        return self._collect(agent, None, agent_info)

    def _collect(self, agent: Any, length: int | None, agent_info: Any) -> Collected:
        act, complete = calls_of(agent, self._info_names, agent_info)
        try:
            env_step = env_step_for(self.env, agent)
            ended = self._take_steps(env_step, act, complete, agent.terminal, length)
            return make_collected(self._take_transitions(), ended)
        except BaseException as error:
            self.restart()  # where the environment is now is unknown
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
        """Take steps, which wait then; of the episodes that ended, return, length and when."""
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
                raise HostEnvError(_WRONG_ANSWER.format(type(answer).__name__))
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
    """Return the reward, unchanged if it is a scalar, and both flags; refuse anything else."""
    plain = reward.item() if type(reward) is np.ndarray and not reward.shape else reward
    as_reward(plain)
    return plain, as_flag(termination, "terminated"), as_flag(truncation, "truncated")

"""Worker of a ``Batcher``: acquires steps with its agent and simulators on request."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from evorl.config.names import did_you_mean, load_named
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.host.simulators import Simulators
from evorl.envs.options import parameter_names
from evorl.interop.transitions import STEP_NAMES, as_columns, own_copies
from evorl.ops.trees import merged
from evorl.types import PyTreeDict

Seeds: TypeAlias = tuple[int, ...]


class Acquired(NamedTuple):
    """Steps of a worker in those R of its B environments in which an episode was running at the start.

    Attributes:
        transitions: transitions, leaves ``[R, T, ...]``, T being the largest length; zeros after the end of an episode.
        lengths: number of transitions of each environment, int32 ``[R]``.
        numbers: indices of the R environments in the worker, int32 ``[R]``.
        agent_state: state of the agent before the first step, leaves ``[R, ...]``.
        is_running: True where the episode has not ended, bool ``[B]``, for all environments of the worker.
    """

    transitions: PyTreeDict
    lengths: np.ndarray
    numbers: np.ndarray
    agent_state: Any
    is_running: np.ndarray


class BatchWorker:
    """Agent and simulators of one worker, which the constructor creates.

    Args:
        settings: ``agent``, ``env``, ``agent_args``, ``env_args``, ``num_envs`` of this worker, ``num_steps``,
            ``max_episode_steps`` (see ``Batcher``), ``seed`` of this worker, and ``updates``: values with which
            ``update`` of the agent is called, in order.

    Raises:
        ValueError: the result of ``agent`` lacks a required method, or that of ``env`` is not a ``HostVectorEnv``.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._num_rows, self._num_steps = settings["num_envs"], settings["num_steps"]
        self._seed = settings["seed"]
        self._simulators = Simulators(
            functools.partial(_made_env, settings), self._num_rows, settings["max_episode_steps"]
        )
        self._info_names = tuple(self._simulators.main.info_spec)
        self._agent = self._made_agent(settings)
        for info in settings["updates"]:
            self._agent.update(info)
        self._position: tuple[int, int] | None = None  # number of resets, and of slices since the last reset
        self._obs: Any = None
        self._state: Any = None

    def _made_agent(self, settings: Mapping[str, Any]) -> Any:
        make, env = load_named(settings["agent"], "agent"), self._simulators.main
        arguments = {"obs_space": env.obs_space, "action_space": env.action_space, "seed": self._seed}
        arguments = {name: value for name, value in arguments.items() if name in parameter_names(make)}
        agent = make(**(arguments | settings["agent_args"]))
        missing = [name for name in ("__call__", "initial_state", "update") if not hasattr(agent, name)]
        if missing:
            raise ValueError(
                f"agent={settings['agent']} returned a {type(agent).__name__} without {', '.join(missing)}: inherit "
                "from evorl.interop.BatchAgent."
            )
        return agent

    def answer(self, task: str, *arguments: Any) -> Any:
        """Call the method named ``task``, one of ``episodes``, ``next_slice`` and ``update``, and return its result."""
        return getattr(self, task)(*arguments)

    def episodes(self, number: int, num_rounds: int, agent_info: Any, env_info: Any) -> list[Acquired]:
        """Acquire a complete episode in every environment per round, and return one ``Acquired`` per round.

        Args:
            number: number of the acquisition; determines the seeds of the episodes.
            num_rounds: number of episodes per environment.
            agent_info: information for the agent, leaves ``[num_rounds * B, ...]``, or ``None``.
            env_info: arguments of the environments, leaves ``[num_rounds * B, ...]``, or ``None``.
        """
        acquired = []
        for i in range(num_rounds):
            rows = slice(i * self._num_rows, (i + 1) * self._num_rows)
            round_agent_info, round_env_info = jax.tree.map(lambda x, rows=rows: x[rows], (agent_info, env_info))
            self._start((number, i), np.ones(self._num_rows, bool), round_agent_info, round_env_info)
            acquired.append(self._advance(round_agent_info, None))
        return acquired

    def next_slice(self, position: tuple[int, int], is_running: np.ndarray, agent_info: Any, env_info: Any) -> Acquired:
        """Acquire the next steps, at most ``num_steps``, of each running environment.

        Args:
            position: number of resets of the batcher, and of slices since the last reset. A worker at another position
                starts new episodes: after a reset, or as the replacement of a worker that died.
            is_running: True for environments whose episode has not ended, bool ``[B]``.
            agent_info: information for the agent, leaves ``[B, ...]``, or ``None``.
            env_info: arguments of the environments if episodes start, leaves ``[B, ...]``, or ``None``.
        """
        if self._position != position:
            self._start(position, is_running, agent_info, env_info)
        acquired = self._advance(agent_info, self._num_steps)
        self._position = (position[0], position[1] + 1)
        return acquired

    def update(self, info: Any) -> None:
        """Update the agent with ``info``, see ``BatchAgent.update``."""
        self._agent.update(info)

    def _start(self, seeds: Seeds, is_running: np.ndarray, agent_info: Any, env_info: Any) -> None:
        self._rng = np.random.default_rng((self._seed, *seeds))
        self._simulators.main.set_arguments(env_info or {})
        answer = self._simulators.reset(self._draw_seeds())
        self._obs, self._token, self._saved = _copied(answer["start"]), answer["token"], answer["saved"]
        self._steps = np.zeros(self._num_rows, np.int32)
        self._is_running = np.array(is_running)
        self._state = self._agent.initial_state(agent_info, self._num_rows)

    def _advance(self, agent_info: Any, num_steps: int | None) -> Acquired:
        """Step all environments until their episodes have ended, at most ``num_steps`` times (``None``: no limit)."""
        state = _copied(self._state)
        wrong = {np.shape(leaf) for leaf in jax.tree.leaves(state) if np.shape(leaf)[:1] != (self._num_rows,)}
        if wrong:
            raise ValueError(
                f"leaves of an agent's state must have a leading axis of {self._num_rows} environments, got shapes "
                f"{sorted(wrong)}."
            )
        rows = np.flatnonzero(self._is_running).astype(np.int32)
        lengths = np.zeros(self._num_rows, np.int32)
        steps: list[Any] = []
        history: list[Mapping[str, Any]] | None = [] if getattr(self._agent, "wants_history", False) else None
        while self._is_running.any() and (num_steps is None or len(steps) < num_steps):
            lengths += self._is_running
            steps.append(self._step(agent_info, history))
        return Acquired(
            transitions=_by_row(as_columns(steps, "either"), rows, lengths[rows]),
            lengths=lengths[rows],
            numbers=rows,
            agent_state=jax.tree.map(lambda x: x[rows], state),
            is_running=self._is_running.copy(),
        )

    def _step(self, agent_info: Any, history: list[Mapping[str, Any]] | None) -> Any:
        keywords = {} if history is None else {"history": history}
        output, self._state = self._agent(self._state, self._obs, agent_info, **keywords)
        output = own_copies(output)  # the agent may reuse its arrays
        if "actions" not in output:
            raise ValueError(
                f"an agent must return the entry 'actions', got {sorted(output)}.{did_you_mean('actions', output)}"
            )
        request = {"actions": output["actions"], "seeds": self._draw_seeds(), "episode_steps": self._steps}
        answer = self._simulators.step({**request, "token": self._token, "saved": self._saved})
        self._token, self._saved = answer["token"], answer["saved"]
        extras = {name: value for name, value in output.items() if name != "actions"}
        metrics = {name: answer["metrics"][name] for name in self._info_names}
        flags = [np.array(answer[name]) for name in ("termination", "truncation")]
        step = (self._obs, output["actions"], np.array(answer["reward"]), _copied(answer["obs"]), *flags)
        if history is not None:
            history.append({**dict(zip(STEP_NAMES, step, strict=True)), **extras})
        self._obs, ended = _copied(answer["start"]), flags[0] | flags[1]
        self._steps = np.where(ended, 0, self._steps + 1)
        self._is_running &= ~ended
        return *step, merged(extras, _copied(metrics))

    def _draw_seeds(self) -> np.ndarray:
        return self._rng.integers(0, 2**32, (self._num_rows, 2), np.uint32)

    def close(self) -> None:
        """Close the simulators."""
        self._simulators.close()


def _made_env(settings: Mapping[str, Any], num_envs: int) -> HostVectorEnv:
    env = load_named(settings["env"], "env")(num_envs=num_envs, **settings["env_args"])
    if not isinstance(env, HostVectorEnv):
        raise ValueError(
            f"env={settings['env']} returned a {type(env).__name__}, but must return a HostVectorEnv, as "
            "evorl.envs.gymnasium:make_gymnasium_simulators does."
        )
    return env


def _copied(tree: Any) -> Any:
    """Copy all arrays, because simulators and agents may reuse theirs."""
    return jax.tree.map(np.array, tree)


def _by_row(columns: PyTreeDict, rows: np.ndarray, lengths: np.ndarray) -> PyTreeDict:
    """Select the environments ``rows`` of columns ``[T, B, ...]``, as ``[R, T, ...]``, with zeros after ``lengths``."""

    def select(x: np.ndarray) -> np.ndarray:
        selected = np.swapaxes(x[:, rows], 0, 1)
        is_valid = np.arange(selected.shape[1]) < lengths[:, None]
        is_valid = is_valid.reshape(*is_valid.shape, *[1] * (selected.ndim - 2))
        return np.where(is_valid, selected, np.zeros((), selected.dtype))

    return jax.tree.map(select, columns)

"""Asynchronous acquisition of batches of episodes, or of slices of episodes, by agents in other processes."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from evorl.actors.pools import make_pool
from evorl.actors.supervisor import Supervisor
from evorl.config.names import load_named
from evorl.config.values import checked_value, positive, whole_number
from evorl.interop.batch_worker import Acquired, BatchWorker
from evorl.padded_batch import PaddedBatch, concatenate
from evorl.types import PyTreeDict


class Batcher:
    """Workers, each with an agent and simulators, which acquire data on request while the caller continues.

    Without ``num_steps``, an acquisition consists of complete episodes. With ``num_steps``, an acquisition continues
    the current episodes until ``reset`` starts new ones: agents and environments keep their states between calls, and
    ended episodes are omitted.

    Args:
        agent: name ``"package.module:function"`` of a function that returns a ``BatchAgent``. Its arguments are
            ``agent_args``, and ``obs_space``, ``action_space`` and the worker's ``seed`` if it has these parameters.
        env: name ``"package.module:function"`` of a function that returns a ``HostVectorEnv``. Its arguments are
            ``num_envs``, the number of environments of one worker, and ``env_args``.
        num_envs: total number of environments, split evenly over the workers.
        num_workers: number of workers.
        num_steps: maximum number of steps per environment in one acquisition; ``None`` for complete episodes.
        kind: kind of the workers: ``process`` on this machine, ``ray``, or ``inline`` in this process, where they work
            while ``get`` is called.
        agent_args: keyword arguments of ``agent``.
        env_args: keyword arguments of ``env``.
        seeds: one seed per worker, or a number from which they are derived.
        max_episode_steps: number of steps after which episodes are truncated; ``None`` leaves it to the environments.
        timeout: maximum seconds per request, except a worker's first; a slower worker is replaced, unless ``inline``.
        message: callback for messages about replaced workers; warns by default. A new worker repeats the episodes of
            the request (with ``num_steps``, it starts new ones), and its agent gets the last ``update``.

    Raises:
        ValueError: a name, a number or the seeds are invalid.
        ImportError: ``kind`` is ``ray``, and Ray is not installed.
    """

    def __init__(
        self,
        agent: str,
        env: str,
        *,
        num_envs: int,
        num_workers: int = 1,
        num_steps: int | None = None,
        kind: str = "process",
        agent_args: Mapping[str, Any] | None = None,
        env_args: Mapping[str, Any] | None = None,
        seeds: int | Sequence[int] = 0,
        max_episode_steps: int | None = None,
        timeout: float = math.inf,
        message: Callable[[str], None] | None = None,
    ) -> None:
        self.num_envs, self.num_workers = positive(num_envs, "num_envs"), positive(num_workers, "num_workers")
        if self.num_envs % self.num_workers:
            raise ValueError(
                f"num_envs={num_envs} environments cannot be divided evenly among num_workers={num_workers}: choose a "
                f"multiple of {num_workers}."
            )
        self._rows_each = self.num_envs // self.num_workers
        self._num_steps = checked_value(num_steps, int | None, "num_steps")
        self._seeds = _seeds_of(seeds, self.num_workers)
        self._settings: dict[str, Any] = {
            "agent": _checked_name(agent, "agent", agent_args or {}),
            "env": _checked_name(env, "env", {"num_envs": self._rows_each, **(env_args or {})}),
            "agent_args": dict(agent_args or {}),
            "env_args": dict(env_args or {}),
            "num_envs": self._rows_each,
            "num_steps": self._num_steps,
            "max_episode_steps": checked_value(max_episode_steps, int | None, "max_episode_steps"),
        }
        self._updates: tuple[Any, ...] = ()
        self._acquired: dict[int, list[Acquired]] | None = None  # by worker; None without a pending request
        self._asked: list[int] = []  # workers with a request
        self._last: dict[str, Any] | None = None
        self._infos: tuple[Any, Any] = (None, None)  # agent_info and env_info of this acquisition
        self._reset_infos = self._infos  # agent_info and env_info of the last reset
        self._rows_per_worker = 0  # rows of the infos that belong to one worker
        self._num_acquisitions = 0
        self._position = (0, 0)  # number of resets, and of slices since the last reset
        self._is_running = np.ones((self.num_workers, self._rows_each), bool)
        pool = make_pool(kind, BatchWorker, self._settings_of)
        self._supervisor: Supervisor | None = Supervisor(pool, self.num_workers, timeout, message or warnings.warn)

    def _settings_of(self, number: int) -> dict[str, Any]:
        return {**self._settings, "seed": self._seeds[number], "updates": self._updates}

    @property
    def num_running(self) -> int:
        """Number of running episodes at the last ``get`` or ``reset``; ``num_envs`` without ``num_steps``."""
        return int(self._is_running.sum())

    def reset(self, agent_info: Any = None, env_info: Mapping[str, Any] | None = None) -> None:
        """Start new episodes with the next acquisition; a pending acquisition is completed and discarded.

        Args:
            agent_info: information on the policy of each environment, arrays ``[num_envs, ...]``, passed to the agents.
            env_info: arguments of the environments, see ``HostVectorEnv.set_arguments``; arrays ``[num_envs, ...]``.

        Raises:
            ValueError: ``num_steps`` is ``None``, or an info has the wrong number of rows.
            HostEnvError: a worker failed.
        """
        if self._num_steps is None:
            raise ValueError(
                "reset requires num_steps. Without it, each execute starts new episodes: pass agent_info and env_info "
                "to execute."
            )
        count = self.num_envs
        infos = _checked_rows("agent_info", agent_info, count), _checked_rows("env_info", env_info, count)
        self._wait()
        self._acquired, self._reset_infos = None, infos
        resets, slices = self._position
        self._position = (resets + (slices > 0), 0)
        self._is_running[:] = True

    def execute(
        self, agent_info: Any = None, env_info: Mapping[str, Any] | None = None, num_episodes: int | None = None
    ) -> None:
        """Request an acquisition and return immediately.

        Args:
            agent_info: information on the policy of each episode, a tree of arrays ``[num_episodes, ...]``. With
                ``num_steps``, it is ``[num_envs, ...]`` and replaces that of ``reset`` for this acquisition.
            env_info: arguments of the environments, see ``HostVectorEnv.set_arguments``; arrays
                ``[num_episodes, ...]``. With ``num_steps``, pass it to ``reset`` instead.
            num_episodes: number of episodes, a multiple of ``num_envs``, which is the default; ``None`` with
                ``num_steps``. Each worker acquires an equal consecutive part, one episode per environment at a time.

        Raises:
            ValueError: an argument is invalid, the last result has not been fetched, or the batcher was closed.
        """
        supervisor = self._live()
        agent_info, env_info = jax.tree.map(np.array, (agent_info, env_info))  # the caller may change its arrays
        if self._acquired is not None:
            raise ValueError("the result of the last execute has not been fetched: call get before the next execute.")
        make = self._requests_of_episodes if self._num_steps is None else self._requests_of_slices
        requests = make(agent_info, env_info, num_episodes)
        self._last = {"agent_info": agent_info, "env_info": env_info, "num_episodes": num_episodes}
        self._num_acquisitions += 1
        self._acquired, self._asked = {}, list(requests)
        for number, request in requests.items():
            supervisor.submit(number, request)

    def reexecute(self) -> None:
        """Repeat the last ``execute``; complete episodes get new seeds. Raise ``ValueError`` if there was none."""
        if self._last is None:
            raise ValueError("no previous request to repeat: call execute first.")
        self.execute(**self._last)

    def get(self, blocking: bool = True) -> PaddedBatch[PyTreeDict] | None:
        """Return the acquired transitions.

        Args:
            blocking: if True, wait for all workers; if False, return ``None`` while a worker is not done.

        Returns:
            A batch with a row per episode, in the order of ``agent_info``. Transitions have the entries that collectors
            return, outputs of agents, and entries of ``env.info_spec``; zeros follow the end of an episode. The batch's
            ``info`` has, for each row, the index of its episode (``row``), ``agent_info`` and ``env_info`` if set, and
            the ``agent_state`` before the first step, if any. ``None`` if a worker is not done and ``blocking`` is
            False, or if all episodes had already ended (``num_running`` is 0).

        Raises:
            ValueError: no acquisition is pending, or the batcher was closed.
            HostEnvError: a worker failed (``inline`` workers raise the error itself); the batcher is then closed.
        """
        self._live()
        if self._acquired is None:
            raise ValueError("get needs a pending request: call execute first.")
        self._wait(blocking)
        if len(self._acquired) < len(self._asked):
            return None
        acquired, self._acquired = self._acquired, None
        if self._num_steps is not None:
            for number, (part,) in acquired.items():
                self._is_running[number] = part.is_running
        batches = [
            self._batch_of(part, number * self._rows_per_worker + i * self._rows_each)
            for number in self._asked
            for i, part in enumerate(acquired[number])
        ]
        return concatenate(batches) if batches else None

    def update(self, info: Any) -> None:
        """Call ``update`` of each worker's agent, and wait until all agents are updated.

        A pending acquisition is completed first, and ``get`` returns it afterwards.

        Args:
            info: complete information for an agent, a tree of arrays; a replacement worker gets only the last update.

        Raises:
            ValueError: the batcher was closed.
            HostEnvError: a worker failed (``inline`` workers raise the error itself); the batcher is then closed.
        """
        supervisor = self._live()
        self._wait()
        info = jax.tree.map(np.array, info)
        self._updates = (info,)
        for number in range(self.num_workers):
            supervisor.submit(number, ("update", info))
        for number in range(self.num_workers):
            self._take(number)

    def close(self) -> None:
        """Stop the workers, even during an acquisition."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _live(self) -> Supervisor:
        if self._supervisor is None:
            raise ValueError("this batcher was closed, by close or because a worker failed: create another one.")
        return self._supervisor

    def _requests_of_episodes(self, agent_info: Any, env_info: Any, num_episodes: int | None) -> dict[int, Any]:
        count = self.num_envs if num_episodes is None else positive(num_episodes, "num_episodes")
        if count % self.num_envs:
            below = count - count % self.num_envs
            nearest = " or ".join(str(x) for x in (below, below + self.num_envs) if x)
            raise ValueError(f"num_episodes={count} is not a multiple of num_envs={self.num_envs}: choose {nearest}.")
        self._infos = _checked_rows("agent_info", agent_info, count), _checked_rows("env_info", env_info, count)
        self._rows_per_worker = count // self.num_workers
        num_rounds = self._rows_per_worker // self._rows_each
        number = self._num_acquisitions
        return {i: ("episodes", number, num_rounds, *self._infos_of(i)) for i in range(self.num_workers)}

    def _requests_of_slices(self, agent_info: Any, env_info: Any, num_episodes: int | None) -> dict[int, Any]:
        if env_info is not None or num_episodes is not None:
            raise ValueError(
                f"with num_steps={self._num_steps}, reset starts one episode per environment: pass env_info to reset, "
                "and remove num_episodes."
            )
        agent_info = _checked_rows("agent_info", agent_info, self.num_envs)
        self._infos = (self._reset_infos[0] if agent_info is None else agent_info, self._reset_infos[1])
        self._rows_per_worker = self._rows_each
        running = [i for i in range(self.num_workers) if self._is_running[i].any()]
        resets, slices = self._position
        self._position = (resets, slices + 1)
        return {i: ("next_slice", (resets, slices), self._is_running[i], *self._infos_of(i)) for i in running}

    def _infos_of(self, number: int) -> tuple[Any, Any]:
        start = number * self._rows_per_worker
        return jax.tree.map(lambda x: x[start : start + self._rows_per_worker], self._infos)

    def _batch_of(self, acquired: Acquired, first_row: int) -> PaddedBatch[PyTreeDict]:
        rows = acquired.numbers + np.int32(first_row)
        infos = zip(("agent_info", "env_info"), self._infos, strict=True)
        info = PyTreeDict({name: jax.tree.map(lambda x: x[rows], tree) for name, tree in infos if tree is not None})
        info.row = rows
        if jax.tree.leaves(acquired.agent_state):
            info.agent_state = acquired.agent_state
        return PaddedBatch(data=acquired.transitions, lengths=acquired.lengths, info=info)

    def _wait(self, blocking: bool = True) -> None:
        """Fetch the results of workers that are done; if ``blocking``, wait for all of them."""
        if self._acquired is None:
            return
        if not blocking:
            self._guarded(self._live().poll)
        for number in self._asked:
            if number not in self._acquired and (blocking or self._live().is_done(number)):
                answer = self._take(number)
                self._acquired[number] = answer if isinstance(answer, list) else [answer]

    def _take(self, number: int) -> Any:
        return self._guarded(lambda: self._live().take([number])[1])

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception:  # the state of the workers is unknown
            self.close()
            raise


def _seeds_of(seeds: int | Sequence[int], num_workers: int) -> list[int]:
    array = np.asarray(seeds, object)  # exact for the seeds of 128 bits that NumPy recommends
    if array.shape not in ((), (num_workers,)):
        raise ValueError(
            f"seeds must be a number, or one number for each of {num_workers} workers, got shape {list(array.shape)}: "
            f"{array.tolist()}."
        )
    numbers = [whole_number(seed, "seeds", 0, 2**128 - 1) for seed in array.ravel().tolist()]
    return numbers if array.shape else np.random.SeedSequence(numbers[0]).generate_state(num_workers).tolist()


def _checked_name(path: Any, setting: str, arguments: Mapping[str, Any]) -> str:
    if callable(path):
        raise ValueError(
            f"{setting} must be the name of a function that workers import, 'package.module:function', got {path!r}: "
            "define the function at the top level of a module, and pass its name."
        )
    function = load_named(path, setting)
    try:
        inspect.signature(function).bind_partial(**arguments)
    except TypeError as error:
        raise ValueError(f"{setting}={path} cannot be called with arguments {sorted(arguments)}: {error}.") from error
    return path


def _checked_rows(name: str, info: Any, count: int) -> Any:
    """Copy ``info`` to NumPy arrays ``[count, ...]``; raise ``ValueError`` for another leading axis."""
    arrays = jax.tree.map(np.array, info)
    shapes = sorted({leaf.shape for leaf in jax.tree.leaves(arrays)})
    if any(shape[:1] != (count,) for shape in shapes):
        raise ValueError(f"{name} must have one row for each of {count} episodes, got leaves of shapes {shapes}.")
    return arrays

"""Batches of episodes, or of slices of them, that agents of any framework acquire in other processes meanwhile."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from evorl.actors.pool import make_pool
from evorl.actors.supervisor import Supervisor
from evorl.collecting.batch_worker import Acquired
from evorl.config.names import load_named
from evorl.config.values import positive
from evorl.padded_batch import PaddedBatch, concatenate
from evorl.types import PyTreeDict

_WORKER = "evorl.collecting.batch_worker:BatchWorker"


class Batcher:
    """Workers, each with an agent and simulators of its own, that acquire on request while the caller goes on.

    Without ``num_steps`` an acquisition is of whole episodes. With it, it is of the next steps of the episodes that
    ``reset`` started: agents and environments go on between calls, and rows whose episode has ended are left out.

    Args:
        agent: ``"package.module:function"``, which makes a ``BatchAgent``. Besides ``agent_args`` it is given
            ``obs_space``, ``action_space`` and the worker's ``seed``, those of them that are its parameters.
        env: ``"package.module:function"``, which makes a ``HostVectorEnv`` of ``num_envs`` rows; it is given its share
            of them, and ``env_args``.
        num_envs: rows in all, that are acquired from at once; workers share them evenly.
        num_workers: how many.
        num_steps: the most steps of a row in one acquisition; ``None`` for whole episodes.
        kind: where workers are: ``process`` of this machine, ``ray``, or ``inline``: in this process, where they work
            while ``get`` is called.
        agent_args: by name.
        env_args: by name.
        seeds: one for each worker, or a number of which they are made.
        max_episode_steps: episodes are cut after so many; ``None`` leaves that to the environments.
        timeout: seconds that an acquisition may take; a worker that takes longer is replaced.
        message: is told in a sentence when a worker was replaced; by default it is a warning. The new one acquires
            episodes of the same seeds from their start, by an agent that knows the last ``update``.

    Raises:
        ValueError: names, numbers or seeds cannot be; in words.
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
                f"num_envs={num_envs} rows cannot be shared evenly by num_workers={num_workers}: every worker needs as "
                "many as the others, one at least."
            )
        self._rows_each = self.num_envs // self.num_workers
        self._num_steps = None if num_steps is None else positive(num_steps, "num_steps")
        self._seeds = _seeds_of(seeds, self.num_workers)
        self._settings: dict[str, Any] = {
            "agent": _checked_name(agent, "agent", agent_args or {}),
            "env": _checked_name(env, "env", {"num_envs": self._rows_each, **(env_args or {})}),
            "agent_args": dict(agent_args or {}),
            "env_args": dict(env_args or {}),
            "num_envs": self._rows_each,
            "num_steps": self._num_steps,
            "max_episode_steps": max_episode_steps,
        }
        self._updates: tuple[Any, ...] = ()
        self._acquired: dict[int, list[Acquired]] | None = None  # by worker; None if nothing was asked for
        self._asked: list[int] = []
        self._last: dict[str, Any] | None = None
        self._infos: tuple[Any, Any] = (None, None)  # of the agents and of the environments, this acquisition's
        self._started_with = self._infos  # the last reset's
        self._share = 0  # rows of the infos that one worker has
        self._num_acquisitions = 0
        self._place = (0, 0)  # resets, slices since
        self._is_running = np.ones((self.num_workers, self._rows_each), bool)
        pool = make_pool(kind, _WORKER, self._settings_of)
        self._supervisor: Supervisor | None = Supervisor(pool, self.num_workers, timeout, message or _warn)

    def _settings_of(self, number: int) -> dict[str, Any]:
        return {**self._settings, "seed": self._seeds[number], "updates": self._updates}

    @property
    def num_running(self) -> int:
        """Rows whose episodes go on, of acquisitions with ``num_steps``; as of the last ``get``."""
        return int(self._is_running.sum())

    def reset(self, agent_info: Any = None, env_info: Mapping[str, Any] | None = None) -> None:
        """Start episodes with the next acquisition; one that is under way is waited for, and dropped.

        Args:
            agent_info: who acts in each row, a tree of arrays ``[num_envs, ...]``.
            env_info: arguments of the environments, see ``HostVectorEnv.set_arguments``; arrays ``[num_envs, ...]``.

        Raises:
            ValueError: acquisitions are of whole episodes; or an info has not so many rows.
            HostEnvError: a worker failed.
        """
        if self._num_steps is None:
            raise ValueError("whole episodes start with every execute: give it agent_info and env_info.")
        count = self.num_envs
        infos = _checked_rows("agent_info", agent_info, count), _checked_rows("env_info", env_info, count)
        self._wait()
        self._acquired, self._started_with = None, infos
        resets, slices = self._place
        self._place = (resets + (slices > 0), 0)
        self._is_running[:] = True

    def execute(
        self, agent_info: Any = None, env_info: Mapping[str, Any] | None = None, num_episodes: int | None = None
    ) -> None:
        """Ask for an acquisition, and return at once.

        Args:
            agent_info: who acts in each episode, a tree of arrays ``[num_episodes, ...]``. With ``num_steps`` its rows
                are those of ``reset``, and it stands in the place of that for this time.
            env_info: arguments of the environments, see ``HostVectorEnv.set_arguments``; arrays
                ``[num_episodes, ...]``. With ``num_steps``, give it to ``reset``.
            num_episodes: a multiple of ``num_envs``, which is the default. Each worker has as many that follow on each
                other, and acquires them in rounds of as many as it has rows.

        Raises:
            ValueError: the last acquisition was not taken; or arguments do not fit, in words.
            HostEnvError: a worker failed before.
        """
        supervisor = self._live()
        if self._acquired is not None:
            raise ValueError("the last acquisition is still there: take it by get before the next execute.")
        if self._num_steps is None:
            requests = self._requests_of_episodes(agent_info, env_info, num_episodes)
        else:
            requests = self._requests_of_slices(agent_info, env_info, num_episodes)
        self._last = {"agent_info": agent_info, "env_info": env_info, "num_episodes": num_episodes}
        self._num_acquisitions += 1
        self._acquired, self._asked = {}, list(requests)
        for number, request in requests.items():
            supervisor.submit(number, request)

    def reexecute(self) -> None:
        """``execute`` with the arguments of the last one; episodes are others, as their seeds are."""
        if self._last is None:
            raise ValueError("there is nothing to repeat: call execute first.")
        self.execute(**self._last)

    def get(self, blocking: bool = True) -> PaddedBatch[PyTreeDict] | None:
        """The transitions that were acquired.

        Args:
            blocking: wait for all workers.

        Returns:
            Rows in the order of the infos. Transitions are as a collector's, with all that agents give and
            environments tell in their ``info``; zeros follow the end of a row. The batch's ``info`` has of every row
            its number (``row``), ``agent_info`` and ``env_info`` where they were given, and ``agent_state``, that of
            the agent before the first step. ``None`` if not all workers are done and it does not wait; or if the
            episodes of all rows had ended before (``num_running`` is 0).

        Raises:
            ValueError: nothing was asked for.
            HostEnvError: an environment or an agent failed in a worker, which ends the batcher.
        """
        self._live()
        if self._acquired is None:
            raise ValueError("there is nothing to get: call execute first.")
        self._wait(blocking)
        if len(self._acquired) < len(self._asked):
            return None
        acquired, self._acquired = self._acquired, None
        if self._num_steps is not None:
            for number, (one,) in acquired.items():
                self._is_running[number] = one.is_running
        batches = [
            self._batch_of(one, number * self._share + i * self._rows_each)
            for number in self._asked
            for i, one in enumerate(acquired[number])
        ]
        return concatenate(batches) if batches else None

    def update(self, info: Any) -> None:
        """Tell the agents of all workers, by ``update`` of each, and wait until they know.

        An acquisition that is under way is finished before, and can be taken by ``get`` after.

        Args:
            info: all that an agent needs to know, numbers or trees of arrays: a worker that is replaced is told the
                last one only.

        Raises:
            HostEnvError: a worker failed.
        """
        supervisor = self._live()
        self._wait()
        info = jax.tree.map(np.asarray, info)
        self._updates = (info,)
        for number in range(self.num_workers):
            supervisor.submit(number, ("update", info))
        for number in range(self.num_workers):
            self._take(number)

    def close(self) -> None:
        """End the workers, also in the middle of an acquisition."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _live(self) -> Supervisor:
        if self._supervisor is None:
            raise ValueError("this batcher was closed, by close or because a worker failed: make another one.")
        return self._supervisor

    def _requests_of_episodes(self, agent_info: Any, env_info: Any, num_episodes: int | None) -> dict[int, Any]:
        count = self.num_envs if num_episodes is None else positive(num_episodes, "num_episodes")
        if count % self.num_envs:
            below = count - count % self.num_envs
            near = " or ".join(str(x) for x in (below, below + self.num_envs) if x)
            raise ValueError(f"num_episodes={count} is no multiple of num_envs={self.num_envs}: take {near}.")
        self._infos = _checked_rows("agent_info", agent_info, count), _checked_rows("env_info", env_info, count)
        self._share = count // self.num_workers
        num_rounds = self._share // self._rows_each
        requests = {}
        for i in range(self.num_workers):
            requests[i] = ("episodes", self._num_acquisitions, num_rounds, *self._infos_of(i))
        return requests

    def _requests_of_slices(self, agent_info: Any, env_info: Any, num_episodes: int | None) -> dict[int, Any]:
        if env_info is not None or num_episodes is not None:
            raise ValueError(
                f"with num_steps={self._num_steps} episodes start by reset, one in each row: give it env_info, and "
                "leave num_episodes out."
            )
        of_agent, of_env = self._started_with
        if agent_info is not None:
            of_agent = _checked_rows("agent_info", agent_info, self.num_envs)
        self._infos, self._share = (of_agent, of_env), self._rows_each
        running = [i for i in range(self.num_workers) if self._is_running[i].any()]
        (resets, slices), self._place = self._place, (self._place[0], self._place[1] + 1)
        return {i: ("next_slice", (resets, slices), self._is_running[i], *self._infos_of(i)) for i in running}

    def _infos_of(self, number: int) -> tuple[Any, Any]:
        start = number * self._share
        return jax.tree.map(lambda x: x[start : start + self._share], self._infos)

    def _batch_of(self, acquired: Acquired, first_row: int) -> PaddedBatch[PyTreeDict]:
        rows = acquired.numbers + np.int32(first_row)
        known = zip(("agent_info", "env_info"), self._infos, strict=True)
        info = PyTreeDict({name: jax.tree.map(lambda x: x[rows], tree) for name, tree in known if tree is not None})
        info.row = rows
        if jax.tree.leaves(acquired.agent_state):
            info.agent_state = acquired.agent_state
        return PaddedBatch(data=acquired.transitions, lengths=acquired.lengths, info=info)

    def _wait(self, blocking: bool = True) -> None:
        """Take what the workers have done; or wait for all that they were asked for."""
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

    def _guarded(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception:  # nobody knows where the workers stand
            self.close()
            raise


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=2)


def _seeds_of(seeds: int | Sequence[int], num_workers: int) -> list[int]:
    given = np.random.SeedSequence(seeds).generate_state(num_workers) if isinstance(seeds, int) else np.asarray(seeds)
    if given.shape != (num_workers,):
        raise ValueError(f"{num_workers} workers have a seed each, got {list(given.shape)} of them: {given.tolist()}.")
    return [int(seed) for seed in given]


def _checked_name(path: Any, setting: str, arguments: Mapping[str, Any]) -> str:
    if callable(path):
        raise ValueError(
            f"{setting} is the name of a function, which workers import, as 'package.module:function'; got "
            f"{path!r}: define it by def at the top of a module, and give its name."
        )
    function = load_named(path, setting)
    try:
        inspect.signature(function).bind_partial(**arguments)
    except TypeError as error:
        raise ValueError(f"{setting}={path} cannot be called with {sorted(arguments)}: {error}.") from error
    return path


def _checked_rows(name: str, info: Any, count: int) -> Any:
    """``info`` as NumPy arrays ``[count, ...]``."""
    arrays = jax.tree.map(np.asarray, info)
    shapes = sorted({leaf.shape for leaf in jax.tree.leaves(arrays)})
    if any(shape[:1] != (count,) for shape in shapes):
        raise ValueError(f"{name} has one row for each of {count} episodes, got leaves of shapes {shapes}.")
    return arrays

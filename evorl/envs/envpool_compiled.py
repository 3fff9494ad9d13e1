"""EnvPool inside of compiled programs: its simulators are stepped by calls that XLA makes, without Python."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from evorl.envs.env import EnvState, compiled
from evorl.envs.envpool import EnvPoolTask, EnvPoolVectorEnv
from evorl.envs.host.bridge import HostBackedEnv
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.host.simulators import failures
from evorl.envs.options import EnvOptions, split_options
from evorl.envs.vector import VectorEnv
from evorl.ops.collectives import joined_under_vmap
from evorl.ops.trees import tree_where
from evorl.types import Action, Key, PyTreeDict

_PLAYING_AND_SPARE = 2  # simulators of a row, of which one plays while the other waits at a start
_SETS = 3  # of them and of those that fill up a batch


class EnvPoolXlaEnv(VectorEnv):
    """Environments of EnvPool in a compiled program, for tasks whose steps are short: there most time goes to Python.

    EnvPool starts the next episode of a simulator at the step after the end, which would be no step of the environment.
    So each row has two simulators. One plays; when its episode ends the other one, which waits at a start, takes over
    in the same step. The first time a row needs a start while its spare simulator has none, all spare ones that ended
    are given the step that starts them, in one batch that is filled up by a third simulator of each row.

    Where episodes start depends on ``seed``, not on the key of ``reset``: EnvPool is seeded where a pool is made, and a
    program is compiled for one pool. A later reset goes on with the simulators' streams of random numbers. So the same
    program run in a new process gives the same numbers. Rows are not restarted from outside.

    Args:
        task: what the simulators simulate.
        options: the number of rows, and what wrappers change.
        seed: where episodes start.
        num_threads: of a pool; 0 for as many as EnvPool thinks right.

    Raises:
        ValueError: JAX computes elsewhere than on a CPU.
    """

    steps_on_host = True
    host = "compiled"
    can_be_saved = False

    def __init__(self, task: EnvPoolTask, options: EnvOptions, seed: int = 0, num_threads: int = 0) -> None:
        if jax.default_backend() != "cpu":
            raise ValueError("host=compiled is for programs on a CPU: take loop.")
        self._rows = HostBackedEnv(lambda num_envs: EnvPoolVectorEnv(task, num_envs), options, "callback")
        # Of the class elsewhere: here options choose it.
        self.autoreset_mode = self._rows.autoreset_mode  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(self._rows.env, options.parallel)
        self._task, self._seed, self._num_threads = task, seed, num_threads
        self._pools: dict[int, _Pool] = {}

    def _identity(self) -> Any:
        return id(self)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``VectorEnv.step``."""
        answer = joined_under_vmap(self._step_rows)(self._rows.request(env_state, action))
        return self._rows.complete(env_state, action, answer)

    def partial_reset(self, env_state: EnvState, mask: jax.Array, key: Key) -> EnvState:
        """Raises ``ValueError``."""
        raise ValueError(
            "partial_reset cannot be told to EnvPool out of a compiled program: take host=loop, or wait for the ends "
            "of episodes."
        )

    def is_live(self, env_state: EnvState) -> bool:
        """Whether the simulators have been reset in this process; a step of an older state is refused by itself."""
        token = np.asarray(env_state._internal.token).reshape(-1)
        return len(token) in self._pools and self._pools[len(token)].token == int(token[0])

    @compiled
    def next_episodes(self, env_state: EnvState) -> EnvState:
        """The starts of the episodes that follow, wherever the simulators are."""
        internal = env_state._internal
        fresh = self._start(internal.key, internal.env_id)
        # What else a state carries through its episodes, as an agent's recurrent state, begins at zeros.
        others = {name: value for name, value in internal.items() if name not in fresh._internal}
        return fresh.replace(_internal=fresh._internal | jax.tree.map(jnp.zeros_like, others))

    def _start(self, keys: jax.Array, env_id: jax.Array) -> EnvState:
        episode = jnp.zeros_like(env_id)
        answer = joined_under_vmap(self._reset_rows)(jax.random.key_data(keys))
        return self._rows.started(answer, keys, env_id, episode)

    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        return self._rows._continue(env_state, stepped)

    def _pool(self, num_rows: int) -> _Pool:
        if num_rows not in self._pools:
            self._pools[num_rows] = _Pool(self._task, num_rows, self._seed, self._num_threads)
        return self._pools[num_rows]

    def _reset_rows(self, seeds: jax.Array) -> PyTreeDict:
        """The starts of all rows, by a callback; ``seeds`` ``[B, 2]`` serve to order the calls and to count rows."""
        num_rows = seeds.shape[0]

        def reset(seeds: Any) -> PyTreeDict:
            pool = self._pool(num_rows)
            try:
                playing, spare = pool.restart(np.asarray(seeds))
            except HostEnvError as error:
                failures.append(error)
                raise
            rows = np.zeros(num_rows, np.int32)
            saved = PyTreeDict(playing=rows, elapsed=rows, is_fresh=rows == 0, spare_start=spare)
            return PyTreeDict(start=playing, token=np.full(num_rows, pool.token, np.uint32), saved=saved)

        counter, flag = (jax.ShapeDtypeStruct((num_rows,), dtype) for dtype in (jnp.int32, jnp.bool_))
        shapes = self._rows.answer_shapes("reset", num_rows)
        saved = PyTreeDict(playing=counter, elapsed=counter, is_fresh=flag, spare_start=shapes.start)
        shapes = shapes.replace(saved=saved)
        return io_callback(reset, shapes, seeds)

    def _step_rows(self, told: PyTreeDict) -> PyTreeDict:
        """What ``Simulators.step`` answers, computed within the program."""
        pool, before = self._pool(told.token.shape[0]), told.saved
        token, outcome = pool.step(told.token, told.actions, before.playing)
        token = self._checked_position(token, outcome.elapsed == before.elapsed + 1)
        ended = outcome.termination | outcome.truncation

        def start_spare_ones(token: jax.Array, start: Any) -> tuple[jax.Array, Any]:
            chosen = jnp.where(before.is_fresh, _PLAYING_AND_SPARE, 1 - before.playing)
            token, outcome = pool.step(token, jnp.zeros_like(told.actions), chosen)
            token = self._checked_position(token, (outcome.elapsed == 0) | before.is_fresh)
            return token, tree_where(before.is_fresh, start, outcome.obs)

        lacking = jnp.any(ended & ~before.is_fresh)
        token, spare_start = jax.lax.cond(
            lacking, start_spare_ones, lambda token, start: (token, start), token, before.spare_start
        )
        saved = PyTreeDict(
            playing=jnp.where(ended, 1 - before.playing, before.playing),
            elapsed=jnp.where(ended, 0, outcome.elapsed),
            is_fresh=(before.is_fresh | lacking) & ~ended,
            spare_start=spare_start,
        )
        start = tree_where(ended, spare_start, outcome.obs)
        del outcome["elapsed"]
        return outcome | {"start": start, "token": token, "saved": saved}

    def _checked_position(self, token: jax.Array, is_right: jax.Array) -> jax.Array:
        """The token, or an error if the simulators are not where the state that is stepped left them.

        The next call of EnvPool waits for it, so that no answer is left behind in a pool when a program ends so.
        """

        def refuse(told: Any) -> Any:
            _, is_right = told
            error = HostEnvError(
                f"EnvPool's simulators of {self._task.name} are no longer where this state left them (environment "
                f"{int(np.argmin(is_right))}), and cannot go back: step the state that the last step returned, or "
                "start new episodes by init or reset."
            )
            failures.append(error)
            raise error

        shape = jax.ShapeDtypeStruct(token.shape, token.dtype)
        told = (token, is_right)
        return jax.lax.cond(
            jnp.all(is_right), lambda told: told[0], lambda told: io_callback(refuse, shape, told), told
        )


class _Pool:
    """Three sets of B simulators, of which any B are stepped at a time: one of each row, numbered ``set * B + row``."""

    def __init__(self, task: EnvPoolTask, num_rows: int, seed: int, num_threads: int) -> None:
        self._task, self._num_rows = task, num_rows
        seeds = np.random.SeedSequence(seed).generate_state(_SETS * num_rows, np.uint64)
        self._pool = task.make_pool(seeds, batch_size=num_rows, num_threads=num_threads)
        with jax.enable_x64(True):  # else its float64 arrays are taken for float32
            _, _, _, self._step = self._pool.xla()
        self.token = 0

    def restart(self, seeds: np.ndarray) -> tuple[Any, Any]:
        """The first observations of the first two sets, ``[B, ...]`` each; ``seeds`` serve to tell resets apart."""
        self.token = zlib.crc32(seeds.tobytes(), os.getpid())
        self._pool.async_reset()
        batches = [self._pool.recv(reset=True) for _ in range(_SETS)]
        number = np.concatenate([info["env_id"] for _, info in batches])
        order = np.argsort(number)
        if (number[order] != np.arange(len(order))).any():
            raise HostEnvError(
                f"a program that stepped EnvPool's simulators of {self._task.name} was broken off: make a new one."
            )
        order = order[: _PLAYING_AND_SPARE * self._num_rows]
        starts = jax.tree.map(lambda *x: np.concatenate(x)[order], *[self._task.observed(obs) for obs, _ in batches])
        return tuple(jax.tree.map(lambda x, s=s: np.split(x, _PLAYING_AND_SPARE)[s], starts) for s in (0, 1))

    def step(self, token: jax.Array, actions: Any, chosen: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        """A step of the simulator of the set ``chosen`` ``[B]`` in each row.

        Args:
            token: uint32 ``[B]``, all equal. It goes through EnvPool's calls unchanged, and so puts them in order.
            actions: ``[B, ...]``.
            chosen: sets, int32 ``[B]``.

        Returns:
            The token; and ``obs``, ``reward``, ``termination``, ``truncation``, ``metrics`` and ``elapsed`` ``[B]``.
        """
        num_rows, task = self._num_rows, self._task
        rows = jnp.arange(num_rows, dtype=jnp.int32)
        with jax.enable_x64(True):
            handle = jax.lax.bitcast_convert_type(token[jnp.array([0, 0])], jnp.uint8).reshape(8)
            sent = actions.astype(task.pool_action_dtype)
            handle, (obs, reward, termination, truncation, info) = self._step(handle, sent, rows + num_rows * chosen)
            outcome = PyTreeDict(
                obs=task.observed(obs),
                reward=reward,
                termination=termination,
                truncation=truncation,
                metrics=PyTreeDict(task.metrics(info)),
                elapsed=info["elapsed_step"],
            )
        # They come in the order in which EnvPool's threads were ready.
        order = jnp.zeros_like(rows).at[info["env_id"] % num_rows].set(rows)
        outcome = jax.tree.map(lambda x: x[order], outcome)
        token = jax.lax.bitcast_convert_type(handle.reshape(2, 4), jnp.uint32)[0]
        return jnp.full((num_rows,), token), outcome


def create_compiled_envpool_env(
    name: str, *, seed: int = 0, metrics: Sequence[str] = (), num_threads: int = 0, **options: Any
) -> EnvPoolXlaEnv:
    """A vector env of EnvPool's simulators, stepped within compiled programs.

    Args:
        name: such as ``CartPole-v1``.
        seed: where episodes start, see ``EnvPoolXlaEnv``.
        metrics: numbers in EnvPool's info that are reported.
        num_threads: 0 for as many as EnvPool thinks right.
        **options: the fields of ``EnvOptions``, and the options of the task.

    Raises:
        ValueError: there is no such task or option, or it is not for compiled programs; in words.
        ImportError: EnvPool is not installed.
    """
    shared, arguments = split_options(options)
    task = EnvPoolTask(name, shared.get("max_episode_steps"), metrics, arguments)
    return EnvPoolXlaEnv(task, EnvOptions(**shared), seed, num_threads)

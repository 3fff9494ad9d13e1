"""EnvPool inside compiled programs: XLA calls the C++ simulators directly, without Python."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import partial
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
from evorl.ops.platform import on_cpu
from evorl.ops.trees import tree_where
from evorl.types import Action, Key, PyTreeDict

_PLAYING_AND_SPARE = 2  # simulators per environment: one plays, and one waits at the start of an episode
_SETS = 3  # sets of simulators: playing, spare, and padding


class EnvPoolXlaEnv(VectorEnv):
    """EnvPool environments in a compiled program, for tasks with steps so short that Python would dominate the time.

    An EnvPool simulator needs an additional step, which ignores its action, to start its next episode. Each environment
    therefore has two simulators. One simulator plays; when its episode ends, the spare simulator, which waits at the
    start of an episode, replaces it in the same step. If a spare simulator is needed but has ended, all ended spare
    simulators restart in one batch; a third simulator of each other environment fills this batch.

    Start states depend on ``seed``, not on the key of ``reset``: EnvPool is seeded when a pool is created, and a
    program is compiled for one pool. A later reset continues the simulators' random streams. The same sequence of calls
    in a new process gives the same numbers. If the first call is ``next_episodes``, as in a resumed run, start states
    depend on keys and episode numbers, too. ``partial_reset`` is not supported.

    Args:
        task: the task to simulate.
        options: number of environments, and settings of the wrappers.
        seed: seed of the start states.
        num_threads: number of threads of the pool; 0 for EnvPool's default.

    Raises:
        ValueError: JAX's default backend is not the CPU, or an option is invalid or not supported for simulators.
    """

    steps_on_host = True
    host = "compiled"
    can_be_saved = False

    def __init__(self, task: EnvPoolTask, options: EnvOptions, seed: int = 0, num_threads: int = 0) -> None:
        if not on_cpu():
            raise ValueError("env.host=compiled needs JAX on the CPU, not on an accelerator: use env.host=loop.")
        self._rows = HostBackedEnv(lambda num_envs: EnvPoolVectorEnv(task, num_envs), options, "callback")
        # A class attribute in the base class; here it depends on the options.
        self.autoreset_mode = self._rows.autoreset_mode  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(self._rows.env, options.parallel)
        self._task, self._seed, self._num_threads = task, seed, num_threads
        self._pools: dict[int, _Pool] = {}

    def _identity(self) -> Any:
        return id(self)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        answer = joined_under_vmap(self._step_rows)(self._rows.request(env_state, action))
        return self._rows.complete(env_state, action, answer)

    def partial_reset(self, env_state: EnvState, mask: jax.Array, key: Key) -> EnvState:
        """Raise ``ValueError``: compiled programs cannot restart single simulators."""
        raise ValueError(
            "partial_reset is not available for EnvPool in a compiled program: use env.host=loop, or wait until the "
            "episodes end."
        )

    def is_live(self, env_state: EnvState) -> bool:
        """Return True if ``env_state`` follows the latest reset; of such states, only the newest can be stepped."""
        token = np.asarray(env_state._internal.token).reshape(-1)
        return len(token) in self._pools and self._pools[len(token)].token == int(token[0])

    @compiled
    def next_episodes(self, env_state: EnvState) -> EnvState:
        """Return the start states of new episodes; works in any state of the simulators."""
        internal = env_state._internal
        episode = internal.episode + (internal.inner.episode_steps > 0)
        fresh = self._started(internal.key, internal.env_id, episode, is_first=False)
        # Other entries carried through episodes, such as an agent's recurrent state, start at zero.
        carried = {name: value for name, value in internal.items() if name not in fresh._internal}
        return fresh.replace(_internal=fresh._internal | jax.tree.map(jnp.zeros_like, carried))

    def _start(self, keys: jax.Array, env_id: jax.Array) -> EnvState:
        return self._started(keys, env_id, jnp.zeros_like(env_id), is_first=True)

    def _started(self, keys: jax.Array, env_id: jax.Array, episode: jax.Array, is_first: bool) -> EnvState:
        answer = joined_under_vmap(partial(self._reset_rows, is_first))(self._rows._seeds(keys, episode))
        return self._rows.started(answer, keys, env_id, episode)

    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        return self._rows._continue(env_state, stepped)

    def _pool(self, num_rows: int, *entropy: int) -> _Pool:
        if num_rows not in self._pools:
            self._pools[num_rows] = _Pool(self._task, num_rows, [self._seed, *entropy], self._num_threads)
        return self._pools[num_rows]

    def _reset_rows(self, is_first: bool, seeds: jax.Array) -> PyTreeDict:
        """Reset all simulators in a host callback; return ``start``, ``token`` and ``saved``. ``seeds``: ``[B, 2]``."""
        num_rows = seeds.shape[0]

        def reset(seeds: Any) -> PyTreeDict:
            seeds = np.asarray(seeds)
            pool = self._pool(num_rows, *([] if is_first else [zlib.crc32(seeds.tobytes())]))
            try:
                playing, spare = pool.restart(seeds)
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

    def _step_rows(self, request: PyTreeDict) -> PyTreeDict:
        """Step the simulators inside the program; return the same entries as ``Simulators.step``."""
        pool, before = self._pool(request.token.shape[0]), request.saved
        token, outcome = pool.step(request.token, request.actions, before.playing)
        token = self._checked_position(token, outcome.elapsed == before.elapsed + 1)
        ended = outcome.termination | outcome.truncation

        def start_spares(token: jax.Array, start: Any) -> tuple[jax.Array, Any]:
            chosen = jnp.where(before.is_fresh, _PLAYING_AND_SPARE, 1 - before.playing)
            token, outcome = pool.step(token, jnp.zeros_like(request.actions), chosen)
            token = self._checked_position(token, (outcome.elapsed == 0) | before.is_fresh)
            return token, tree_where(before.is_fresh, start, outcome.obs)

        needs_starts = jnp.any(ended & ~before.is_fresh)
        token, spare_start = jax.lax.cond(
            needs_starts, start_spares, lambda token, start: (token, start), token, before.spare_start
        )
        saved = PyTreeDict(
            playing=jnp.where(ended, 1 - before.playing, before.playing),
            elapsed=jnp.where(ended, 0, outcome.elapsed),
            is_fresh=(before.is_fresh | needs_starts) & ~ended,
            spare_start=spare_start,
        )
        start = tree_where(ended, spare_start, outcome.obs)
        del outcome["elapsed"]
        return outcome | {"start": start, "token": token, "saved": saved}

    def _checked_position(self, token: jax.Array, is_valid: jax.Array) -> jax.Array:
        """Return ``token``; raise ``HostEnvError`` unless ``is_valid`` ``[B]`` is true for all simulators.

        The next EnvPool call waits for this check, so that no result remains in a pool if the program fails here.
        """

        def refuse(operands: Any) -> Any:
            _, is_valid = operands
            error = HostEnvError(
                f"EnvPool's simulators of {self._task.name} have advanced beyond this state (environment "
                f"{int(np.argmin(is_valid))}), and cannot go back: step the state that the last step returned, or "
                "start new episodes with init or reset."
            )
            failures.append(error)
            raise error

        shape = jax.ShapeDtypeStruct(token.shape, token.dtype)
        operands = (token, is_valid)
        return jax.lax.cond(jnp.all(is_valid), lambda x: x[0], lambda x: io_callback(refuse, shape, x), operands)


class _Pool:
    """A pool with three sets of B simulators, with ids ``set * B + row``; a step advances one simulator per row."""

    def __init__(self, task: EnvPoolTask, num_rows: int, seed: list[int], num_threads: int) -> None:
        self._task, self._num_rows = task, num_rows
        seeds = np.random.SeedSequence(seed).generate_state(_SETS * num_rows, np.uint64)
        self._pool = task.make_pool(seeds, batch_size=num_rows, num_threads=num_threads)
        with jax.enable_x64(True):  # otherwise JAX would read the pool's float64 arrays as float32
            _, _, _, self._step = self._pool.xla()
        self.token = 0

    def restart(self, seeds: np.ndarray) -> tuple[Any, Any]:
        """Reset all simulators, derive ``token`` from ``seeds``, and return the observations of the first two sets."""
        self.token = zlib.crc32(seeds.tobytes(), os.getpid())
        self._pool.async_reset()
        batches = [self._pool.recv(reset=True) for _ in range(_SETS)]
        number = np.concatenate([info["env_id"] for _, info in batches])
        order = np.argsort(number)
        if (number[order] != np.arange(len(order))).any():
            raise HostEnvError(
                f"a program that stepped EnvPool's simulators of {self._task.name} was interrupted: create a new "
                "environment."
            )
        order = order[: _PLAYING_AND_SPARE * self._num_rows]
        starts = jax.tree.map(lambda *x: np.concatenate(x)[order], *[self._task.observed(obs) for obs, _ in batches])
        return tuple(jax.tree.map(lambda x, s=s: np.split(x, _PLAYING_AND_SPARE)[s], starts) for s in (0, 1))

    def step(self, token: jax.Array, actions: Any, chosen: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        """Step one simulator per environment: the simulator in the set ``chosen``.

        Args:
            token: uint32 ``[B]``, all equal; passed unchanged through EnvPool's calls, which orders them.
            actions: actions of the environments, ``[B, ...]``.
            chosen: index of the set of each environment's simulator, int32 ``[B]``.

        Returns:
            ``token``, and by name ``obs``, ``reward``, ``termination``, ``truncation``, ``metrics``, ``elapsed`` steps.
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
        # EnvPool returns results in the order in which its threads finished.
        order = jnp.zeros_like(rows).at[info["env_id"] % num_rows].set(rows)
        outcome = jax.tree.map(lambda x: x[order], outcome)
        token = jax.lax.bitcast_convert_type(handle.reshape(2, 4), jnp.uint32)[0]
        return jnp.full((num_rows,), token), outcome


def create_compiled_envpool_env(
    name: str, *, seed: int = 0, metrics: Sequence[str] = (), num_threads: int = 0, **options: Any
) -> EnvPoolXlaEnv:
    """Create a vector environment of EnvPool's simulators, which are stepped inside compiled programs.

    Args:
        name: id of the task, such as ``CartPole-v1``.
        seed: seed of the start states, see ``EnvPoolXlaEnv``.
        metrics: entries of EnvPool's ``info`` for ``info.metrics``, such as ``lives``.
        num_threads: number of threads of the pool; 0 for EnvPool's default.
        **options: the fields of ``EnvOptions``, and the options of the task.

    Raises:
        ValueError: the task or option does not exist, or is not available in compiled programs.
        ImportError: EnvPool is not installed.
    """
    shared, arguments = split_options(options)
    if arguments.get("episodic_life"):
        raise ValueError(
            "env.host=compiled does not support episodic_life, with which an episode may start within a game: use "
            "env.host=loop."
        )
    task = EnvPoolTask(name, shared.get("max_episode_steps"), metrics, arguments)
    return EnvPoolXlaEnv(task, EnvOptions(**shared), seed, num_threads)

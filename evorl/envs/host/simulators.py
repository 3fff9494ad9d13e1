"""Steps and restarts simulators on the host for ``HostBackedEnv``, and checks their results, in NumPy."""

from __future__ import annotations

import contextlib
import copy
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from evorl.envs.env_check import space_of
from evorl.envs.host.answers import as_step, changes_values, refuse_exit
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds
from evorl.types import PyTreeDict

Arrays = Any  # a pytree of NumPy arrays with leading axis B
_CREATE_NEW = "create a new one in every call of the function (is it cached, or created outside of it?)"
failures: deque[HostEnvError] = deque(maxlen=1)  # last failure of this process; see ``evorl.execution.host_errors``
# Id of an object with state -> the last one that reset it, or restored a state.
_users: weakref.WeakValueDictionary[int, Simulators] = weakref.WeakValueDictionary()


class Simulators:
    """Sets of simulators of one kind, one set per number of simulators B; more sets are created when needed.

    Simulators have internal state, but a compiled step is a pure function. Each result therefore has a ``token``, a
    checksum of the seeds, masks and actions since the reset. The next request must contain this token, to verify that
    the simulators are in the state that the caller assumes. ``saved`` is the result of ``HostVectorEnv.get_state``.

    Args:
        make: function that creates a given number of simulators.
        num_rows: number of simulators in the first set, which is created immediately and defines the spaces.
        max_episode_steps: number of actions after which episodes are truncated; ``None`` adds no limit.
    """

    def __init__(self, make: Callable[[int], HostVectorEnv], num_rows: int, max_episode_steps: int | None) -> None:
        self._make = make
        self._max_episode_steps = max_episode_steps
        self.main = self._checked_maker(num_rows)
        self._live = {num_rows: self.main}
        self.shows_physics = False  # true if results include ``physics``, as bytes
        self.shows_pictures = False  # true if ``picture`` keeps the last frame of an episode of the first simulator
        self.picture: Any = None
        self._tokens: dict[int, int] = {}
        self._num_steps: dict[int, int] = {}
        self._obs_dtypes = jax.tree.map(lambda spec: spec.dtype, self.main.obs_space.spec)
        self._obs_shapes = jax.tree.map(lambda spec: spec.shape, self.main.obs_space.spec)

    def _checked_maker(self, num_rows: int) -> HostVectorEnv:
        try:
            simulators = self._make(num_rows)
        except BaseException as error:
            refuse_exit(error, "the function that makes the simulators")
            raise
        name = type(simulators).__name__
        if not isinstance(simulators, HostVectorEnv):
            raise HostEnvError(
                f"a function with a parameter num_envs must return a HostVectorEnv, here with num_envs={num_rows}; "
                f"got {name}. Return one, or remove the parameter and return a single environment."
            )
        for problem in (space_of(simulators, kind, name)[1] for kind in ("obs_space", "action_space")):
            if problem:
                raise HostEnvError(problem)
        if (number := getattr(simulators, "num_envs", None)) != num_rows:
            raise HostEnvError(f"expected num_envs={num_rows} simulators, but {name} has num_envs={number}.")
        parts = simulators.stateful_objects()
        if len(set(map(id, parts))) < len(parts):
            raise HostEnvError(f"the function returned the same {type(parts[0]).__name__} twice: {_CREATE_NEW}.")
        return simulators

    def _ensure_made(self, num_rows: int) -> None:
        if num_rows not in self._live:
            self._live[num_rows] = self._checked_maker(num_rows)
        self._num_steps.setdefault(num_rows, 0)
        for part in self._live[num_rows].stateful_objects():
            if (user := _users.get(id(part), self)) is not self:
                user._tokens.clear()  # the simulators leave its states
            _users[id(part)] = self

    def reset(self, seeds: np.ndarray) -> dict[str, Arrays]:
        """Start episodes with ``seeds``, uint32 ``[B, 2]``; return ``start`` (observations), ``token``, ``saved``."""
        return self._noting_failures(self._reset, seeds)

    def step(self, request: dict[str, Arrays]) -> dict[str, Arrays]:
        """Step all simulators, and start new episodes where the step ended one.

        ``request`` has ``actions`` ``[B, ...]``; ``seeds``, uint32 ``[B, 2]``, for episodes that this step may start;
        ``episode_steps`` ``[B]``, steps before this step; and ``token`` and ``saved`` of the previous result.

        Returns:
            ``obs``, the true successor; ``start``, the observation for the next action, which differs where an episode
            started; ``reward``, ``termination``, ``truncation``, ``metrics``, ``token`` and ``saved``. If
            ``shows_physics`` is true, every result also has ``physics``, uint8 ``[B, N]``, at the time of ``obs``.
        """
        return self._noting_failures(self._step, request)

    def restart(self, request: dict[str, Arrays]) -> dict[str, Arrays]:
        """Start episodes where ``request["mask"]`` is True; return ``start`` (observations), ``token``, ``saved``."""
        return self._noting_failures(self._restart, request)

    def is_live(self, token: np.ndarray) -> bool:
        """Return True if ``token`` ``[B]`` is that of the latest result, from which the B simulators can be stepped."""
        return len(token) in self._tokens and self._tokens[len(token)] == int(token.flat[0])

    def close(self) -> None:
        """Close all simulators."""
        for simulators in self._live.values():
            simulators.close()
        self._live, self._tokens = {}, {}

    def _noting_failures(self, fn: Callable[[Any], dict], request: Any) -> dict[str, Arrays]:
        self.picture = None
        # A compiled program raises a ``JaxRuntimeError`` instead; ``evorl.execution.host_errors`` restores this error.
        try:
            return fn(jax.tree.map(np.asarray, request))
        except HostEnvError as error:
            failures.append(error)
            raise

    def _reset(self, seeds: np.ndarray) -> dict[str, Arrays]:
        num_rows = len(seeds)
        self._ensure_made(num_rows)
        self._num_steps[num_rows] = 0
        self._tokens.pop(num_rows, None)  # if the call fails, the state of the simulators is unknown
        start = self._checked_obs(self._called(num_rows, "reset", self._joined(seeds)), num_rows)
        return {"start": start, **self._position(num_rows, zlib.crc32(seeds.tobytes())), **self._physics(num_rows)}

    def _step(self, request: dict[str, Arrays]) -> dict[str, Arrays]:
        num_rows = len(request["token"])
        self._go_to(request)
        self._num_steps[num_rows] += 1
        sent = jax.tree.map(np.array, request["actions"])  # a simulator may modify its arguments
        obs, reward, termination, truncation, info = as_step(self._called(num_rows, "step", sent))
        answer = {
            "obs": self._checked_obs(obs, num_rows),
            "reward": self._checked("reward", reward, (num_rows,), np.float32),
            "termination": self._checked("termination", termination, (num_rows,), np.bool_),
            "truncation": self._checked("truncation", truncation, (num_rows,), np.bool_),
        }
        specs = self.main.info_spec.items()
        missing = [name for name, _ in specs if name not in info]
        if missing:
            raise HostEnvError(
                f"info has no {missing[0]!r} at step {self._num_steps[num_rows]}; it has {sorted(info)}."
            )
        answer["metrics"] = PyTreeDict(
            {name: self._checked(name, info[name], (num_rows, *shape), dtype) for name, (shape, dtype) in specs}
        )
        if self._max_episode_steps is not None:
            answer["truncation"] = answer["truncation"] | (request["episode_steps"] + 1 >= self._max_episode_steps)
        answer["truncation"] = answer["truncation"] & ~answer["termination"]
        ended = answer["termination"] | answer["truncation"]
        answer |= self._physics(num_rows)  # before new episodes start
        with contextlib.suppress(Exception):  # ``render`` raises the error again
            self.picture = copy.copy(self.main.render()) if self.shows_pictures and ended[0] else None
        answer["start"] = self._started(answer["obs"], ended, request["seeds"])
        actions = b"".join(leaf.tobytes() for leaf in jax.tree.leaves(request["actions"]))
        return answer | self._position(num_rows, zlib.crc32(actions, int(request["token"].flat[0])))

    def _restart(self, request: dict[str, Arrays]) -> dict[str, Arrays]:
        num_rows = len(request["token"])
        self._go_to(request)
        mask, seeds = request["mask"], request["seeds"]
        start = self._started(request["obs"], mask, seeds)
        token = zlib.crc32(mask.tobytes() + seeds.tobytes(), int(request["token"].flat[0]))
        return {"start": start, **self._position(num_rows, token), **self._physics(num_rows)}

    def _started(self, obs: Arrays, mask: np.ndarray, seeds: np.ndarray) -> Arrays:
        if not mask.any():
            return obs
        started = self._called(len(mask), "partial_reset", mask.copy(), self._joined(seeds))
        return rows_where(mask, self._checked_obs(started, len(mask), mask), obs)

    def _go_to(self, request: dict[str, Arrays]) -> None:
        """Ensure that the simulators are in the state of ``request["token"]``; restore ``request["saved"]`` if needed.

        Afterwards no state is live until ``_position`` is called: if the caller fails, the state is unknown.

        Raises:
            HostEnvError: the simulators are in another state, and cannot restore a state.
        """
        token, saved, num_rows = request["token"], request["saved"], len(request["token"])
        is_live = self.is_live(token)
        if not is_live and saved is None:
            raise HostEnvError(
                "these simulators have advanced beyond this state, never were in it, or failed after it, and cannot "
                "restore it: step the state that the last step returned, or start new episodes with init or reset. If "
                f"training and evaluation share a simulator, {_CREATE_NEW}."
            )
        has_state = self._tokens.pop(num_rows, None) is not None
        if is_live:
            return
        self._ensure_made(num_rows)
        if not has_state:  # some simulators must be reset before a state can be restored, also after a failure
            self._called(num_rows, "reset", np.zeros(num_rows, np.uint64))
        self._called(num_rows, "set_state", saved)

    def _position(self, num_rows: int, token: int) -> dict[str, Arrays]:
        self._tokens[num_rows] = token
        saved = self._live[num_rows].get_state()
        return {"token": np.full(num_rows, token, np.uint32), "saved": None if saved is None else np.array(saved)}

    def _physics(self, num_rows: int) -> dict[str, Arrays]:
        return {"physics": joined_bytes(self._called(num_rows, "physics"))} if self.shows_physics else {}

    def _called(self, num_rows: int, method: str, *args: Any) -> Any:
        try:
            return getattr(self._live[num_rows], method)(*args)
        except HostEnvError as error:
            raise HostEnvError(f"{error} (at step {self._num_steps[num_rows]} of the simulators)") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit of a simulator
            raise HostEnvError(
                f"the simulators' {method} failed at step {self._num_steps[num_rows]}: {type(error).__name__}: {error}"
            ) from error

    def _joined(self, seeds: np.ndarray) -> np.ndarray:
        """Join the two words of each seed, uint32 ``[B, 2]``, and return the folded seeds, uint64 ``[B]``."""
        halves = seeds.astype(np.uint64)
        return fold_seeds((halves[:, 0] << np.uint64(32)) | halves[:, 1], self.main.seed_bits)

    def _checked_obs(self, obs: Arrays, num_rows: int, mask: np.ndarray | None = None) -> Arrays:
        obs = PyTreeDict(obs=obs).obs  # libraries return plain dicts
        try:
            return jax.tree.map(
                lambda dtype, shape, x: self._checked("observation", x, (num_rows, *shape), dtype, mask),
                self._obs_dtypes,
                self._obs_shapes,
                obs,
            )
        except (ValueError, TypeError) as error:
            raise HostEnvError(
                f"observations must have the structure of {self.main.obs_space}; it differs at step "
                f"{self._num_steps[num_rows]}: {error}"
            ) from error

    def _checked(
        self, name: str, value: Any, shape: tuple[int, ...], dtype: Any, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Return a copy of ``value`` as an array of this shape and dtype, because simulators may reuse their arrays.

        Raises:
            HostEnvError: wrong shape or not numeric; or, where ``mask`` is true, values out of range or not finite.
        """
        array = np.array(value)
        step = self._num_steps[shape[0]]
        if array.shape != shape:
            raise HostEnvError(f"{name} must have the shape {list(shape)} at step {step}, got {list(array.shape)}.")
        if array.dtype.kind not in "biuf":
            raise HostEnvError(f"{name} must be numbers at step {step}, got {array.dtype.name}: {str(value)[:60]}.")
        if changes_values(array, dtype) and (mask is None or changes_values(array[mask], dtype)):
            raise HostEnvError(
                f"{name} must fit into {np.dtype(dtype).name} at step {step}, got {array.dtype.name} with values from "
                f"{array.min()} to {array.max()}."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            array = array.astype(dtype, copy=False)
        if array.dtype.kind not in "biu":  # checked after the conversion: a large float64 is an infinite float32
            bad = ~np.isfinite(array)
            if bad.any():
                bad = bad.reshape(len(array), -1).any(axis=1) & (True if mask is None else mask)
            if bad.any():
                raise HostEnvError(
                    f"environment {int(bad.argmax())} returned {name} values that are not finite at step {step}."
                )
        return array


def joined_bytes(numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    """Concatenate arrays ``[B, k]`` as float64, and return their bytes: uint8 ``[B, N]``."""
    rows = [np.asarray(values, np.float64) for values in numbers.values()]
    return np.ascontiguousarray(np.concatenate(rows, axis=1)).view(np.uint8)


def rows_where(mask: np.ndarray, on_true: Any, on_false: Any) -> Any:
    """Select rows of ``on_true`` where ``mask``, bool ``[B]``, is true, and of ``on_false`` elsewhere."""
    return jax.tree.map(lambda a, b: np.where(mask.reshape(-1, *[1] * (np.ndim(b) - 1)), a, b), on_true, on_false)

"""The host's side of the bridge: simulators that are stepped, checked and restarted, in numpy."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from evorl.envs.host.answers import as_step, loses_numbers, refuse_exit
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds
from evorl.types import PyTreeDict

Arrays = Any  # a pytree of numpy arrays with leading axis B
failures: deque[HostEnvError] = deque(maxlen=1)  # the last one of this process, until somebody tells it


class Simulators:
    """Simulators by how many are stepped together, made when they are first reset.

    Simulators have a state of their own, which a pure function cannot have. So each answer has a ``token``, a checksum
    of all that the simulators were told since their reset, which must be shown at the next step: it tells whether they
    are where the caller believes.

    Args:
        make: gives so many simulators of one kind.
        num_rows: the usual number of them; these are made at once, and say what all are like.
        max_episode_steps: an episode of that many steps is cut; ``None`` leaves this to the simulators.
    """

    def __init__(self, make: Callable[[int], HostVectorEnv], num_rows: int, max_episode_steps: int | None) -> None:
        self._make = make
        self._max_episode_steps = max_episode_steps
        self.usual = self._checked_maker(num_rows)
        self._live = {num_rows: self.usual}
        self.shows_physics = False  # whether answers have ``physics`` too, as bytes
        self._tokens: dict[int, int] = {}
        self._num_steps: dict[int, int] = {}
        self._obs_dtypes = jax.tree.map(lambda spec: spec.dtype, self.usual.obs_space.spec)
        self._obs_shapes = jax.tree.map(lambda spec: spec.shape, self.usual.obs_space.spec)

    def _checked_maker(self, num_rows: int) -> HostVectorEnv:
        try:
            simulators = self._make(num_rows)
        except BaseException as error:
            refuse_exit(error, "the function that makes the simulators")
            raise
        if simulators.num_envs != num_rows:
            raise HostEnvError(f"{num_rows} simulators were asked for, and {simulators.num_envs} made.")
        return simulators

    def reset(self, seeds: np.ndarray) -> dict[str, Arrays]:
        """Start episodes by the seeds, uint32 ``[B, 2]``: observations, ``token`` ``[B]``, and ``saved`` states."""
        return self._noting_failures(self._reset, seeds)

    def step(self, told: dict[str, Arrays]) -> dict[str, Arrays]:
        """One step, and new episodes where it ended one.

        Args:
            told: ``actions``; ``seeds``, uint32 ``[B, 2]``, of the episodes that may start; ``episode_steps`` before
                this step; ``token`` and ``saved`` of the answer before.

        Returns:
            ``obs``, the true successor; ``start``, what is seen next, which differs where an episode started;
            ``reward``, ``termination``, ``truncation``, ``metrics``, ``token`` and ``saved``. Where it
            ``shows_physics``, every answer has that of ``obs`` too.
        """
        return self._noting_failures(self._step, told)

    def restart(self, told: dict[str, Arrays]) -> dict[str, Arrays]:
        """Start episodes where ``told["mask"]`` holds: ``start`` of these rows, ``token``, ``saved``."""
        return self._noting_failures(self._restart, told)

    def is_live(self, token: np.ndarray) -> bool:
        """Whether the simulators stand where the answer with this token left them."""
        return len(token) in self._tokens and self._tokens[len(token)] == int(token.flat[0])

    def close(self) -> None:
        """Close all of them."""
        for simulators in self._live.values():
            simulators.close()
        self._live, self._tokens = {}, {}

    def _noting_failures(self, fn: Callable[[Any], dict], told: Any) -> dict[str, Arrays]:
        # Out of a compiled program an exception comes back as text of another one: see ``evorl.execution.host_errors``.
        try:
            return fn(jax.tree.map(np.asarray, told))
        except HostEnvError as error:
            failures.append(error)
            raise

    def _reset(self, seeds: np.ndarray) -> dict[str, Arrays]:
        num_rows = len(seeds)
        if num_rows not in self._live:
            self._live[num_rows] = self._checked_maker(num_rows)
        self._num_steps[num_rows] = 0
        obs = self._called(num_rows, "reset", self._joined(seeds))
        start = self._checked_obs(obs, num_rows)
        return {"start": start, **self._position(num_rows, zlib.crc32(seeds.tobytes())), **self._physics(num_rows)}

    def _step(self, told: dict[str, Arrays]) -> dict[str, Arrays]:
        num_rows = len(told["token"])
        self._go_to(told)
        self._num_steps[num_rows] += 1
        sent = jax.tree.map(np.array, told["actions"])  # a simulator may write into its arguments
        obs, reward, termination, truncation, info = as_step(self._called(num_rows, "step", sent))
        answer = {
            "obs": self._checked_obs(obs, num_rows),
            "reward": self._checked("reward", reward, (num_rows,), np.float32),
            "termination": self._checked("termination", termination, (num_rows,), np.bool_),
            "truncation": self._checked("truncation", truncation, (num_rows,), np.bool_),
        }
        specs = self.usual.info_spec.items()
        missing = [name for name, _ in specs if name not in info]
        if missing:
            raise HostEnvError(
                f"info has no {missing[0]!r} at step {self._num_steps[num_rows]}; it has {sorted(info)}."
            )
        answer["metrics"] = PyTreeDict(
            {name: self._checked(name, info[name], (num_rows, *shape), dtype) for name, (shape, dtype) in specs}
        )
        if self._max_episode_steps is not None:
            answer["truncation"] = answer["truncation"] | (told["episode_steps"] + 1 >= self._max_episode_steps)
        answer["truncation"] = answer["truncation"] & ~answer["termination"]
        ended = answer["termination"] | answer["truncation"]
        answer |= self._physics(num_rows)  # before others start
        answer["start"] = self._started(answer["obs"], ended, told["seeds"])
        actions = b"".join(leaf.tobytes() for leaf in jax.tree.leaves(told["actions"]))
        return answer | self._position(num_rows, zlib.crc32(actions, int(told["token"].flat[0])))

    def _restart(self, told: dict[str, Arrays]) -> dict[str, Arrays]:
        num_rows = len(told["token"])
        self._go_to(told)
        mask, seeds = told["mask"], told["seeds"]
        start = self._started(told["obs"], mask, seeds)
        token = zlib.crc32(mask.tobytes() + seeds.tobytes())
        return {"start": start, **self._position(num_rows, token), **self._physics(num_rows)}

    def _started(self, obs: Arrays, mask: np.ndarray, seeds: np.ndarray) -> Arrays:
        if not mask.any():
            return obs
        fresh = self._checked_obs(
            self._called(len(mask), "partial_reset", mask.copy(), self._joined(seeds)), len(mask), mask
        )
        return jax.tree.map(lambda new, old: np.where(_as_rows(mask, new), new, old), fresh, obs)

    def _go_to(self, told: dict[str, Arrays]) -> None:
        """Put the simulators where the caller believes them to be.

        Raises:
            HostEnvError: they are elsewhere, and cannot be moved.
        """
        token, saved = told["token"], told["saved"]
        if self.is_live(token):
            return
        num_rows = len(token)
        if saved is None:
            raise HostEnvError(
                "these simulators are no longer where this state left them, and cannot go back: step the state that "
                "the last step returned, or start new episodes by init or reset."
            )
        if num_rows not in self._live:
            self._live[num_rows] = self._checked_maker(num_rows)
        self._num_steps.setdefault(num_rows, 0)
        if num_rows not in self._tokens:  # never reset yet, as some must be before they take a state
            self._called(num_rows, "reset", np.zeros(num_rows, np.uint64))
        self._called(num_rows, "set_state", saved)
        self._tokens[num_rows] = int(token.flat[0])

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
        except BaseException as error:  # SystemExit of a simulator, too
            raise HostEnvError(
                f"the simulators' {method} failed at step {self._num_steps[num_rows]}: {type(error).__name__}: {error}"
            ) from error

    def _joined(self, seeds: np.ndarray) -> np.ndarray:
        """Return seeds uint64 ``[B]``, as the simulators accept them, from the halves of keys, uint32 ``[B, 2]``."""
        halves = seeds.astype(np.uint64)
        return fold_seeds((halves[:, 0] << np.uint64(32)) | halves[:, 1], self.usual.seed_bits)

    def _checked_obs(self, obs: Arrays, num_rows: int, mask: np.ndarray | None = None) -> Arrays:
        obs = PyTreeDict(obs=obs).obs  # libraries give plain dicts
        try:
            return jax.tree.map(
                lambda dtype, shape, x: self._checked("observation", x, (num_rows, *shape), dtype, mask),
                self._obs_dtypes,
                self._obs_shapes,
                obs,
            )
        except (ValueError, TypeError) as error:
            raise HostEnvError(
                f"observations must be {self.usual.obs_space}, got another structure at step "
                f"{self._num_steps[num_rows]}: {error}"
            ) from error

    def _checked(
        self, name: str, value: Any, shape: tuple[int, ...], dtype: Any, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Return a copy of ``value`` as an array of this shape and dtype: simulators may write into theirs again.

        Raises:
            HostEnvError: it has another shape or no numbers, or in the rows of ``mask`` one that is not finite.
        """
        array = np.array(value)
        step = self._num_steps[shape[0]]
        if array.shape != shape:
            raise HostEnvError(f"{name} must have the shape {list(shape)} at step {step}, got {list(array.shape)}.")
        if array.dtype.kind not in "biuf":
            raise HostEnvError(f"{name} must be numbers at step {step}, got {array.dtype.name}: {str(value)[:60]}.")
        if loses_numbers(array, dtype) and (mask is None or loses_numbers(array[mask], dtype)):
            raise HostEnvError(
                f"{name} must be numbers that {np.dtype(dtype).name} holds at step {step}, got {array.dtype.name} with "
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
                    f"environment {int(bad.argmax())} gave {name} numbers that are not finite at step {step}."
                )
        return array


def joined_bytes(numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    """Arrays ``[B, k]`` as float64 beside one another, as bytes: uint8 ``[B, N]``."""
    rows = [np.asarray(values, np.float64) for values in numbers.values()]
    return np.ascontiguousarray(np.concatenate(rows, axis=1)).view(np.uint8)


def _as_rows(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *[1] * (like.ndim - 1))

"""Checks the results of environments on the host: observations, rewards, flags and metrics.

Observations are copied immediately, because an environment may reuse its arrays for the next result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.space import DictSpace, Space, TupleSpace
from evorl.types import PyTreeDict

_FLAGS = (bool, np.bool_)
_NUMBERS = (float, int, np.float64, np.float32)


def blank_observations(space: Space, num_rows: int) -> Any:
    """Return a batch of zeros for observations of ``num_rows`` environments, NumPy arrays ``[num_rows, ...]``."""
    if isinstance(space, DictSpace):
        return PyTreeDict({name: blank_observations(member, num_rows) for name, member in space.spaces.items()})
    if isinstance(space, TupleSpace):
        return tuple(blank_observations(member, num_rows) for member in space.spaces)
    return np.zeros((num_rows, *space.shape), space.dtype)


def put_observation(space: Space, batch: Any, row: int, obs: Any, name: str = "observation") -> None:
    """Copy ``obs``, an observation of environment ``row``, into ``batch``, which ``blank_observations`` created.

    Raises:
        HostEnvError: structure or shape differs from the space, or a value does not fit the dtype of the space.
    """
    if isinstance(space, DictSpace):
        missing = set(space.spaces) if not isinstance(obs, Mapping) else set(space.spaces) - set(obs)
        if missing or not isinstance(obs, Mapping):
            got = f"a dict without {', '.join(sorted(missing))}" if isinstance(obs, Mapping) else _described(obs)
            raise HostEnvError(f"{name} must be a dict with {', '.join(space.spaces)}, got {got}.")
        for entry, member in space.spaces.items():
            put_observation(member, batch[entry], row, obs[entry], f"{name} {entry!r}")
    elif isinstance(space, TupleSpace):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            raise HostEnvError(f"{name} must be a tuple of {len(space.spaces)} entries, got {_described(obs)}.")
        for i, member in enumerate(space.spaces):
            put_observation(member, batch[i], row, obs[i], f"{name}[{i}]")
    elif type(obs) is np.ndarray and obs.dtype == space.dtype and obs.shape == space.shape:
        batch[row] = obs
    else:
        batch[row] = _converted(space, obs, name)


def as_reward(reward: Any) -> float:
    """Return a reward as a float; raise ``HostEnvError`` unless it is a single real number or bool."""
    if type(reward) in _NUMBERS:
        return float(reward)
    number = _as_array(reward)
    if number is None or number.shape or number.dtype.kind not in "biuf":
        advice = ": write reward.item(), or reward.sum()" if number is not None and number.shape else ""
        raise HostEnvError(f"reward must be a single number, got {_described(reward)}{advice}.")
    return float(number)


def as_flag(flag: Any, name: str) -> bool:
    """Return the flag ``name`` as a bool; raise ``HostEnvError`` unless it is a bool, 0 or 1."""
    if type(flag) in _FLAGS:
        return bool(flag)
    truth = _as_array(flag)
    if truth is None or truth.shape or truth.dtype.kind not in "biu" or int(truth) not in (0, 1):
        raise HostEnvError(f"{name} must be True or False, got {_described(flag)}.")
    return bool(truth)


def as_metric(info: Mapping[str, Any], name: str) -> float:
    """Return the number ``info[name]`` as a float; raise ``HostEnvError`` if it is missing, or not a single number."""
    if name not in info:
        raise HostEnvError(
            f"info has no {name!r}, which env.metrics requests, but has {sorted(map(str, info))}: return {name!r} at "
            "every step, or remove it from env.metrics."
        )
    value = _as_array(info[name])
    if value is None or value.shape or value.dtype.kind not in "biuf":
        raise HostEnvError(f"{name!r} of info must be a single number, got {_described(info[name])}.")
    return float(value)


def as_step(answer: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
    """Return the result of ``step``; raise ``HostEnvError`` unless it has five parts, the last one a dict."""
    if not isinstance(answer, tuple | list) or len(answer) != 5:
        raise HostEnvError(
            f"step must return (observation, reward, terminated, truncated, info), got {_described(answer)}."
        )
    if not isinstance(answer[4], Mapping):
        raise HostEnvError(f"info must be a dict, got {_described(answer[4])}.")
    return answer  # pyright: ignore[reportReturnType]


def as_start(answer: Any) -> Any:
    """Return the observation in the result of ``reset``; raise ``HostEnvError`` unless the result is (obs, dict)."""
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not isinstance(answer[1], Mapping):
        raise HostEnvError(f"reset must return (observation, info), got {_described(answer)}.")
    return answer[0]


def _converted(space: Space, obs: Any, name: str) -> np.ndarray:
    array = _as_array(obs)
    if array is None or array.dtype.kind not in "biuf":
        raise HostEnvError(f"{name} must be numbers of shape {list(space.shape)}, got {_described(obs)}.")
    if array.shape != space.shape:
        raise HostEnvError(f"{name} must have the shape {list(space.shape)} of its space, got {list(array.shape)}.")
    if changes_values(array, space.dtype):
        raise HostEnvError(f"{name} must fit into its space's dtype {space.dtype.name}, got {array}.")
    return array


def _as_array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value)
    except (ValueError, TypeError):  # nested lists of unequal lengths
        return None


def _described(value: Any) -> str:
    shape = np.shape(value) if hasattr(value, "shape") else ()
    if shape:
        return f"an array of shape {list(shape)}"
    text = repr(value)
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{length} {text if len(text) <= 60 else text[:57] + '...'}".strip()


def changes_values(array: np.ndarray, dtype: np.dtype) -> bool:
    """Return True if ``dtype`` is integer or bool, and converting ``array`` to it would change a number."""
    if array.dtype == dtype or np.dtype(dtype).kind not in "biu":
        return False
    with np.errstate(invalid="ignore"):
        return bool((array.astype(dtype) != array).any())


def failure_of(who: str, method: str, error: BaseException) -> HostEnvError:
    """Return the error for ``error``, raised by ``method`` of ``who``. Re-raises ``KeyboardInterrupt``."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, HostEnvError):
        return HostEnvError(f"{who} returned an invalid value from {method}: {error}")
    text = str(error)
    return HostEnvError(f"{who} failed in {method}: {type(error).__name__}{': ' if text else ''}{text}")


def refuse_exit(error: BaseException, where: str) -> None:
    """Raise ``HostEnvError`` if ``error`` would end the process without a message, such as ``SystemExit``.

    User code may call ``sys.exit``, which must not end a run. Ordinary errors and Ctrl-C are left to the caller.
    """
    if not isinstance(error, Exception | KeyboardInterrupt | GeneratorExit):
        raise HostEnvError(
            f"{where} raised {type(error).__name__}({error}): raise an exception that describes the problem instead."
        ) from error

"""Rejects sizes in a config that are too large for any environment, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evorl.envs.libraries import HOST_LIBRARIES
from evorl.execution.memory import MEMORY_SHARE, available_bytes, rounded, shown_bytes

MIN_CHECKED_BYTES = 10**9  # bytes; smaller sizes are not checked
MAX_SIMULATORS = 20_000
MIN_SEED_BYTES = 256  # bytes: keys, counters, and a network of a few numbers
MIN_INDIVIDUAL_BYTES = 16  # bytes: a few parameters and the fitness
MIN_TRANSITION_BYTES = 16  # bytes: observation, next observation, action and reward, with one number each


def refuse_hopeless_sizes(config: Mapping[str, Any]) -> None:
    """Reject sizes in a config that exceed the memory in any environment, 32-bit indices, or ``MAX_SIMULATORS``.

    Raises:
        ValueError: a size is too large; the message states the setting, its value, and a limit.
    """
    parts = [(name, config.get(name)) for name in ("inner", "learner")]
    for above, node in [("", config), *((f"{name}.", part) for name, part in parts if isinstance(part, Mapping))]:
        capacity, rollout, num_envs, episodes = (
            _number(node.get(name)) for name in ("replay_capacity", "rollout_length", "num_envs", "eval_episodes")
        )
        _refuse_bytes(f"{above}replay_capacity", capacity, MIN_TRANSITION_BYTES, "transitions")
        if rollout * num_envs >= 2**31:
            raise ValueError(
                f"{above}num_envs={num_envs:,} times {above}rollout_length={rollout:,} are {num_envs * rollout:,} "
                f"transitions per iteration, but at most {2**31 - 1:,} can be indexed: choose smaller numbers."
            )
        _refuse_bytes(f"{above}rollout_length", rollout, MIN_TRANSITION_BYTES * max(1, num_envs), "transitions")
        _refuse_bytes(f"{above}eval_episodes", episodes, MIN_TRANSITION_BYTES, "episodes")
    _refuse_bytes("num_seeds", _number(config.get("num_seeds")), MIN_SEED_BYTES, "seeds")
    _refuse_bytes("pop_size", _number(config.get("pop_size")), MIN_SEED_BYTES, "members")
    optimizer = config.get("optimizer")
    if isinstance(optimizer, Mapping):
        _refuse_bytes("optimizer.pop_size", _number(optimizer.get("pop_size")), MIN_INDIVIDUAL_BYTES, "individuals")
    _refuse_many_simulators(config.get("env"), config.get("num_envs"))


def _refuse_bytes(name: str, number: int, bytes_of_each: int, what: str) -> None:
    """Raise ``ValueError`` if ``number`` items of ``bytes_of_each`` bytes exceed the memory; ``what`` names them."""
    if number * bytes_of_each < MIN_CHECKED_BYTES:
        return
    available = available_bytes()
    if available is None or number * bytes_of_each <= MEMORY_SHARE * available:
        return
    most = int(MEMORY_SHARE * available / bytes_of_each)
    raise ValueError(
        f"{name}={number:,} is too large for {shown_bytes(available)} of memory, in any environment: the largest "
        f"that may fit is {rounded(most):,}, at the minimum of {bytes_of_each:,} bytes for each of the {what}. --plan "
        "prints the actual size in this environment."
    )


def _refuse_many_simulators(env: Any, num_envs: Any) -> None:
    """Raise ``ValueError`` for more than ``MAX_SIMULATORS`` simulators of a library outside JAX."""
    library, number = env.get("library") if isinstance(env, Mapping) else None, _number(num_envs)
    if number > MAX_SIMULATORS and isinstance(library, str) and library in HOST_LIBRARIES:
        raise ValueError(
            f"num_envs={number:,} simulators of {library} are too many, because each one is started separately: choose "
            f"at most {MAX_SIMULATORS:,}, or an environment in JAX."
        )


def _number(value: Any) -> int:
    """Return a size from the config; 0 for an invalid value, which is rejected where it is used."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value < 1e300 else 0

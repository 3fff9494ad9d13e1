"""Kernels of an iteration by part: environment steps, updates, and the rest; and the speed that follows from them.

A turn is one iteration of a loop. The loops of a program are recognized by their numbers of turns, which the setting
states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.setting import GpuSetting

KERNEL_SECONDS = 2e-6  # a small kernel with its launch: 1.4 to 2.2 us measured on an H200
WAIT_SECONDS = 15e-6  # the host waits for a predicate: 10 to 20 us
BYTES_PER_SECOND = 3.35232e12  # memory bandwidth of an H100 SXM, as in h100.textproto


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """Kernels of one iteration.

    Attributes:
        step: kernels of one step of all environments, including an equal share of the kernels per block of steps;
            ``None`` if the program has no loop over steps.
        update: kernels of one gradient step, with an equal share of the kernels per epoch; ``None`` without a loop.
        rest: all other kernels of an iteration.
    """

    step: float | None
    update: float | None
    rest: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Estimated speed, limited by kernel launches or by memory bandwidth.

    Attributes:
        steps_per_second: environment steps per second.
        bound: limiting factor, ``"launches"`` or ``"memory"``.
    """

    steps_per_second: float
    bound: str


def waits(cost: Mapping[str, Any]) -> int:
    """Return the number of times an iteration waits for the host: turns of uncounted loops, and branches."""
    return cost["unknown_loops"] + cost["conditionals"]


def estimate(setting: GpuSetting, cost: Mapping[str, Any]) -> Estimate:
    """Estimate the speed of a side from its recorded cost; the devices of a mesh work at the same time."""
    launches = KERNEL_SECONDS * cost["kernels"] + WAIT_SECONDS * waits(cost)
    memory = cost["traffic_bytes"] / BYTES_PER_SECOND
    return Estimate(setting.steps / max(launches, memory), "launches" if launches >= memory else "memory")


def break_down(setting: GpuSetting, cost: Mapping[str, Any]) -> Breakdown:
    """Divide the kernels of a side among the parts of an iteration."""
    chains = list(_chains(_with_assumed_turns(cost["loops"], setting.unknown_turns)))
    steps = [chain for chain in chains if chain[-1]["trip_count"] == setting.rollout > 1]
    # Evaluators play episodes in blocks of steps.
    steps = steps or [chain[:-1] for chain in chains if len(chain) > 1 and _turns(chain[-2:]) == setting.rollout > 1]
    rollout = max(steps, key=lambda chain: _kernels(chain[-1]), default=[])
    repeats = _turns(rollout[:-1])
    update = max(
        (c for c in chains if setting.updates and _turns(c) == repeats * setting.updates and c != rollout),
        key=lambda chain: _kernels(chain[-1]),
        default=[],
    )
    rest, step_kernels, update_kernels = cost["kernels"], None, None
    if rollout:
        total = _turns(rollout[-1:]) * _kernels(rollout[-1])
        step_kernels = total / setting.rollout
        rest -= repeats * total
    if update:
        shared = next(depth for depth, loop in enumerate(update) if depth >= len(rollout) or loop is not rollout[depth])
        total = _turns(update[: shared + 1]) * _kernels(update[shared])
        update_kernels = total / (repeats * setting.updates)
        rest -= total
    return Breakdown(step_kernels, update_kernels, rest)


def describe_loops(cost: Mapping[str, Any]) -> str:
    """Return kernels as a sum over loops, such as ``32 x (19 + ? x 11) + 16 x 72 + 50``."""
    return " + ".join([*(_describe(loop) for loop in cost["loops"]), str(cost["outside"])])


def _describe(loop: Mapping[str, Any]) -> str:
    inner = "".join(f" + {_describe(inner)}" for inner in loop["loops"])
    turns = "?" if loop["trip_count"] is None else str(loop["trip_count"])
    return f"{turns} x ({loop['kernels']}{inner})" if inner else f"{turns} x {loop['kernels']}"


def _with_assumed_turns(loops: Sequence[Any], turns: int) -> list[Any]:
    """Return the loops, with ``turns`` as trip count of the largest loop of unknown length, as in ``Program``."""
    unknown = [loop for loop in loops if loop["trip_count"] is None]
    longest = max(unknown, key=_kernels, default=None) if turns > 1 else None
    return [{**loop, "trip_count": turns} if loop is longest else loop for loop in loops]


def _kernels(loop: Mapping[str, Any]) -> int:
    """Return the kernels of one turn."""
    return loop["kernels"] + sum((inner["trip_count"] or 1) * _kernels(inner) for inner in loop["loops"])


def _chains(loops: Sequence[Any], outer: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    """Yield every loop with the loops that surround it, outermost first."""
    for loop in loops:
        yield [*outer, loop]
        yield from _chains(loop["loops"], (*outer, loop))


def _turns(chain: Sequence[Any]) -> int:
    turns = 1
    for loop in chain:
        turns *= loop["trip_count"] or 1
    return turns

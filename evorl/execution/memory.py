"""Checks the memory of a run, given the shapes of its state, before anything is computed.

The check uses a lower bound: the state, and a copy of everything that a step replaces. A rejected run therefore could
not have worked. An accepted run may still need more memory than is available.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jax
from flax import linen as nn

from evorl.execution.plan import item_size
from evorl.execution.trainable import Execution
from evorl.ops.platform import on_cpu
from evorl.ops.trees import leaf_name
from evorl.replay_buffers.ring import ReplayState
from evorl.types import PyTreeNode, State

MEMORY_SHARE = 0.8  # fraction of the memory that a run may use; the rest is for other processes and errors of estimates
_PROCESS_BYTES = 700_000_000  # minimum memory of a process without state: Python, JAX, compiled programs
# Settings that do not determine the length of any array of the state, but may equal one by coincidence.
_OF_UPDATES = ("batch_size", "num_minibatches", "num_epochs", "num_value_epochs", "eval_episodes", "n_step")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array of the state.

    Attributes:
        name: path in the state.
        shape: shape over all devices.
        num_bytes: size in this process or on one accelerator, with replicas and any copy that a step makes.
        is_ring: True if the array belongs to a ring buffer of transitions, ``[.., R, B, ...]``.
    """

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    is_ring: bool


def check_memory(workflow: Any, state: State, specs: State | None, available: int | None = None) -> None:
    """Raise an error if the run's state does not fit in the memory of the machine or of an accelerator.

    Args:
        workflow: workflow whose settings the message refers to.
        state: shapes of the initial state, over all seeds and devices.
        specs: ``PartitionSpec`` of each array; ``None`` if no array is sharded.
        available: bytes that the run may use; ``None`` for about ``MEMORY_SHARE`` of the memory (no check if unknown).

    Raises:
        ValueError: the state does not fit; the message states the largest setting that may fit, or the largest array.
    """
    arrays = _arrays(state, specs, workflow.execution)
    needed = sum(array.num_bytes for array in arrays)
    available, described = _memory_for_run(available)
    if available is not None and needed > available:
        raise ValueError(_describe_shortage(workflow, arrays, available, described))


def _describe_shortage(workflow: Any, arrays: list[_Array], available: int, described: str) -> str:
    """Return the message for arrays that do not fit in the ``available`` bytes, a limit that ``described`` states."""
    needed = sum(array.num_bytes for array in arrays)
    summary = f"This run needs at least {shown_bytes(needed)} of memory, but {described}: "
    for name, value, part in _scaling_settings(workflow, arrays):
        fits = int(value * (available - (needed - part)) / part)
        if 1 <= fits < value:
            return f"{summary}{name}={value:,} is too large. The largest that may fit is {rounded(fits):,}."
    largest = max(arrays, key=lambda array: array.num_bytes)
    side = largest.shape[-1] if len(largest.shape) >= 2 and largest.shape[-1] == largest.shape[-2] else 0
    squares = sum(array.num_bytes for array in arrays if array.shape[-2:] == (side, side))
    fits = int(side * math.sqrt(max(0, available - (needed - squares)) / squares)) if squares else 0
    advice = f" A side of at most {rounded(fits):,} may fit: choose a smaller network." if fits else ""
    return (
        f"{summary}the largest array of the state is {largest.name} of shape {largest.shape}, "
        f"{shown_bytes(largest.num_bytes)}{'' if largest.is_ring else ' with the copy that a step makes'}.{advice}"
    )


def required_bytes(state: State, specs: State, execution: Execution) -> int:
    """Return the minimum bytes that a run with this state needs, per accelerator or, on a CPU, per process."""
    return sum(array.num_bytes for array in _arrays(state, specs, execution))


def check_program_memory(compiled: Any, num_devices: int, available: int | None = None) -> None:
    """Raise an error if a compiled program needs more memory than available.

    Args:
        compiled: result of ``lower(...).compile()``. If the backend does not report memory needs, no error is raised.
        num_devices: number of devices, over all processes, that run the program at the same time.
        available: bytes that the run may use, see ``check_memory``.

    Raises:
        ValueError: the program needs more memory than available.
    """
    total = program_bytes(compiled, num_devices)
    available, described = _memory_for_run(available)
    if total is None or available is None or total <= available:
        return
    raise ValueError(
        f"One iteration of this run needs {shown_bytes(total)} of memory, but {described}: choose a "
        "smaller rollout_length, or fewer environments, members or transitions in a batch."
    )


def program_bytes(compiled: Any, num_devices: int) -> int | None:
    """Return the bytes of a program and its state, per accelerator or, on a CPU, per process; ``None`` if unknown."""
    needs = compiled.memory_analysis()
    if needs is None:
        return None
    state = needs.argument_size_in_bytes + needs.output_size_in_bytes - needs.alias_size_in_bytes
    memories = max(1, num_devices // jax.process_count()) if on_cpu() else 1
    return memories * (state + needs.temp_size_in_bytes)


def _memory_for_run(available: int | None) -> tuple[int | None, str]:
    """Return the bytes that a run may use (``None`` if unknown), and a clause for messages that states this limit."""
    if available is not None:
        return available, f"{shown_bytes(available)} are available"
    machine = available_bytes()
    if machine is None:
        return None, ""
    share = int(MEMORY_SHARE * machine) - (_PROCESS_BYTES if on_cpu() else 0)
    return max(0, share), f"a run may use only {shown_bytes(max(0, share))} of the total {shown_bytes(machine)}"


def process_peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def held_bytes(state: Any, specs: Any, execution: Execution) -> int:
    """Return the bytes of a part of a state on one accelerator, or on all CPU devices of this process."""
    return sum(array.num_bytes // (1 if array.is_ring else 2) for array in _arrays(state, specs, execution))


def available_bytes() -> int | None:
    """Return the memory of one accelerator or, on a CPU, of this machine or control group; ``None`` if unknown."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    if not on_cpu():
        return None
    limits = list(_control_group_limits())
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not available on every system
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _control_group_limits(root: Path = _CONTROL_GROUPS, groups: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Yield the memory limits of this process's control group and its parents, for both versions of control groups."""
    try:
        lines = groups.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            folder, file = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for level in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                yield int((folder / level / file).read_text(encoding="ascii"))


def _arrays(state: State, specs: State | None, execution: Execution) -> list[_Array]:
    """Return the arrays of a state; those outside ring buffers count twice, because a step replaces them by copies."""
    in_place = jax.tree.map(
        lambda node: jax.tree.map(lambda _: isinstance(node, ReplayState), node),
        state,
        is_leaf=lambda node: isinstance(node, ReplayState),
    )
    arrays = []
    leaves = jax.tree_util.tree_leaves_with_path(state)
    layouts: list[Any] = [()] * len(leaves)
    if specs is not None:
        layouts = jax.tree.leaves(specs, is_leaf=lambda spec: isinstance(spec, jax.sharding.PartitionSpec))
    for (path, leaf), is_ring, spec in zip(leaves, jax.tree.leaves(in_place), layouts, strict=True):
        is_sharded = any(axis is not None for axis in spec)
        # The devices of a CPU share one memory, which holds a copy of replicated arrays for each device.
        devices = execution.num_devices
        local = devices / jax.process_count()
        copies = (local / devices if is_sharded else local) if on_cpu() else (1 / devices if is_sharded else 1)
        num_bytes = math.prod(leaf.shape) * item_size(leaf) * copies * (1 if is_ring else 2)
        arrays.append(_Array(leaf_name(path), leaf.shape, int(num_bytes), is_ring))
    return arrays


def _scaling_settings(workflow: Any, arrays: list[_Array]) -> list[tuple[str, int, int]]:
    """Return the settings that scale parts of the state, as name, value and bytes of these parts, most bytes first."""
    # Ties prefer settings of the whole run. An inner workflow configures the agent, so agent.* comes last.
    seeds = workflow.execution.num_seeds
    sizes = [] if seeds is None else [("num_seeds", seeds)]
    sizes += _sizes_of_node(workflow, "")
    sizes.sort(key=lambda size: (size[0].startswith("agent."), size[0].count(".")))
    parts = dict.fromkeys(sizes, 0)
    for array in arrays:
        lengths = _lengths(array, [value for _, value in sizes])
        for name, value in sizes:
            parts[name, value] += array.num_bytes if value in lengths else 0
    by_bytes = sorted(parts, key=lambda size: -parts[size])
    return [(name, value, parts[name, value]) for name, value in by_bytes if parts[name, value]]


def _lengths(array: _Array, values: list[int]) -> set[int]:
    """Return the lengths of an array's axes; the time and environment axes of a ring count as one, its capacity."""
    shape = array.shape
    if array.is_ring:
        for i, (rows, num_envs) in enumerate(itertools.pairwise(shape)):
            capacity = next((value for value in values if value <= rows * num_envs < value + num_envs), None)
            if capacity is not None and rows > 1:
                return {capacity, *shape[:i], *shape[i + 2 :]}
    return set(shape)


def _sizes_of_node(node: PyTreeNode, above: str) -> Iterator[tuple[str, int]]:
    """Yield name and value of the integer settings that may determine the length of an axis."""
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if field.name in _OF_UPDATES:
            continue
        if isinstance(value, nn.Module):
            of_parts: Any = getattr(node, "part_settings", node)
            settings = {each.name for each in dataclasses.fields(of_parts)}
            yield from _sizes_of_network(value, settings, above)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{above}{field.name}", value
        elif isinstance(value, PyTreeNode):
            yield from _sizes_of_node(value, f"{above}{field.name}.")
    env = getattr(node, "env", None)
    if env is not None and env.num_envs > 1:  # last: prefer the number of individuals if equal
        yield f"{above}num_envs", env.num_envs


def _sizes_of_network(network: nn.Module, settings: set[str], above: str) -> Iterator[tuple[str, int]]:
    """Yield integer network fields, also of submodules, that are settings of the agent, such as ``num_critics``."""
    for name, value in vars(network).items():
        if name in settings and isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{above}{name}", value
        elif isinstance(value, nn.Module) and name != "parent":
            yield from _sizes_of_network(value, settings, above)


def rounded(number: int) -> int:
    """Return a number rounded down to two significant digits, because the largest fitting size is an estimate."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return number // unit * unit


def shown_bytes(num_bytes: float) -> str:
    """Return a number of bytes as text with a decimal unit, such as ``19 GB``."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.0f} PB"

"""Whether a run fits the memory of the machine: from the shapes of its state, before anything is computed.

What is counted is the least that a run can do with: the state, and beside it once more what a step replaces. So a run
that is refused could not have worked; one that is not may still need more than there is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.execution.trainable import Execution
from evorl.ops.collectives import on_cpu
from evorl.replay_buffers.ring import ReplayState
from evorl.types import PyTreeNode, State

MEMORY_SHARE = 0.8  # that a run may take: the rest is for what cannot be told beforehand, and for others
_PROCESS_BYTES = 700_000_000  # what a process takes without a state, at least: Python, JAX, compiled programs
# Whole numbers that are the length of no array of the state, and may be equal to one by chance.
_OF_UPDATES = ("batch_size", "num_minibatches", "num_epochs", "num_value_epochs", "eval_episodes", "n_step")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array of the state.

    Attributes:
        name: where it stands.
        shape: over all devices.
        num_bytes: that it takes of one memory, with its copies.
        is_ring: whether it belongs to a ring of transitions, ``[.., R, B, ...]``.
    """

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    is_ring: bool


def check_memory(workflow: Any, state: State, specs: State, available: int | None = None) -> None:
    """Refuse a run that the memory of the machine cannot hold.

    Args:
        workflow: whose settings are named in the message.
        state: shapes of its first state, over all seeds and devices.
        specs: how each of them is laid out, a ``PartitionSpec``.
        available: bytes of memory; by default those of this machine. Where they are not known, nothing is refused.

    Raises:
        ValueError: it does not fit; with the largest value that does of the setting that asks for most.
    """
    arrays = _arrays(state, specs, workflow.execution)
    needed = least_bytes(state, specs, workflow.execution)
    available, there = _for_a_run(available)
    if available is None or needed <= available:
        return
    said = f"This run needs at least {shown_bytes(needed)} of memory, and {there}: "
    for name, value, part in _scaling_settings(workflow, arrays):
        fits = int(value * (available - (needed - part)) / part)
        if 1 <= fits < value:
            raise ValueError(f"{said}{name}={value:,} is too large. The largest that may fit is {rounded(fits):,}.")
    largest = max(arrays, key=lambda array: array.num_bytes)
    side = largest.shape[-1] if len(largest.shape) >= 2 and largest.shape[-1] == largest.shape[-2] else 0
    squares = sum(array.num_bytes for array in arrays if array.shape[-2:] == (side, side))
    fits = int(side * math.sqrt(max(0, available - (needed - squares)) / squares)) if squares else 0
    advice = f" A side of at most {rounded(fits):,} may fit: a network of so many parameters." if fits else ""
    raise ValueError(
        f"{said}most of it is the state's {largest.name} of shape {largest.shape}, {shown_bytes(largest.num_bytes)} "
        f"with the copy that a step makes.{advice}"
    )


def least_bytes(state: State, specs: State, execution: Execution) -> int:
    """Memory that a run cannot do without; see ``check_memory`` for the arguments."""
    return sum(array.num_bytes for array in _arrays(state, specs, execution))


def check_program_memory(compiled: Any, num_devices: int, available: int | None = None) -> None:
    """Refuse to run a compiled program that needs more memory than there is.

    Args:
        compiled: what ``lower(...).compile()`` returned. Not every backend tells what a program needs: then none is
            refused.
        num_devices: that run it at once.
        available: as for ``check_memory``.

    Raises:
        ValueError: it needs more, in words.
    """
    total = program_bytes(compiled, num_devices)
    available, there = _for_a_run(available)
    if total is None or available is None or total <= available:
        return
    raise ValueError(
        f"One iteration of this run needs {shown_bytes(total)} of memory, and {there}: choose a "
        "shorter rollout_length, or fewer environments, members or transitions in a batch."
    )


def program_bytes(compiled: Any, num_devices: int) -> int | None:
    """Memory that a compiled program needs on this machine, its state included; ``None`` where nothing tells."""
    needs = compiled.memory_analysis()
    if needs is None:
        return None
    state = needs.argument_size_in_bytes + needs.output_size_in_bytes - needs.alias_size_in_bytes
    memories = max(1, num_devices // jax.process_count()) if on_cpu() else 1
    return memories * (state + needs.temp_size_in_bytes)


def _for_a_run(available: int | None) -> tuple[int | None, str]:
    """How many bytes a run's state may take, by default of this machine's memory; and how that is said."""
    if available is not None:
        return available, f"{shown_bytes(available)} are there"
    machine = available_bytes()
    if machine is None:
        return None, ""
    share = int(MEMORY_SHARE * machine) - (_PROCESS_BYTES if on_cpu() else 0)
    return max(0, share), f"{shown_bytes(machine)} are there, of which it may take {shown_bytes(max(0, share))}"


def held_bytes(state: Any, specs: Any, execution: Execution) -> int:
    """Bytes that a part of a state takes of one memory, with the copies that devices of a CPU have of it.

    Args:
        state: arrays or their shapes.
        specs: how each is laid out.
        execution: the plan.
    """
    return sum(array.num_bytes // (1 if array.is_ring else 2) for array in _arrays(state, specs, execution))


def available_bytes() -> int | None:
    """Memory for a run: of a CPU's machine, or of the control group this process is in; of one accelerator.

    ``None`` where nothing says how much that is.
    """
    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    if not on_cpu():
        return None
    limits = list(_control_group_limits())
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on every system
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _control_group_limits(root: Path = _CONTROL_GROUPS, groups: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Limits of the memory of this process's group and of those above it; of both versions of control groups."""
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
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                yield int((folder / level / file).read_text(encoding="ascii"))


def _arrays(state: State, specs: State, execution: Execution) -> list[_Array]:
    """The arrays of a state: a ring of transitions is written in place, of all else a step makes a new one."""
    in_place = jax.tree.map(
        lambda node: jax.tree.map(lambda _: isinstance(node, ReplayState), node),
        state,
        is_leaf=lambda node: isinstance(node, ReplayState),
    )
    arrays = []
    leaves = jax.tree_util.tree_leaves_with_path(state)
    layouts = jax.tree.leaves(specs, is_leaf=lambda spec: isinstance(spec, jax.sharding.PartitionSpec))
    for (path, leaf), is_ring, spec in zip(leaves, jax.tree.leaves(in_place), layouts, strict=True):
        shared_out = any(axis is not None for axis in spec)
        # The devices of a CPU have one memory, in which each keeps its own of what is not shared out.
        devices = execution.num_devices
        local = devices / jax.process_count()
        copies = (local / devices if shared_out else local) if on_cpu() else (1 / devices if shared_out else 1)
        num_bytes = math.prod(leaf.shape) * _item_size(leaf) * copies * (1 if is_ring else 2)
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        arrays.append(_Array(name, leaf.shape, int(num_bytes), is_ring))
    return arrays


def _item_size(leaf: Any) -> int:
    return 8 if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.dtype.itemsize


def _scaling_settings(workflow: Any, arrays: list[_Array]) -> list[tuple[str, int, int]]:
    """Return settings whose values multiply bytes: name, value and these bytes, the setting with most of them first."""
    # Of equals that of the whole run; but an agent that a part of the run has too is described there.
    sizes = sorted(_sizes(workflow), key=lambda size: (size[0].startswith("agent."), size[0].count(".")))
    parts = dict.fromkeys(sizes, 0)
    for array in arrays:
        lengths = _lengths(array, [value for _, value in sizes])
        for name, value in sizes:
            parts[name, value] += array.num_bytes if value in lengths else 0
    by_bytes = sorted(parts, key=lambda size: -parts[size])
    return [(name, value, parts[name, value]) for name, value in by_bytes if parts[name, value]]


def _lengths(array: _Array, values: list[int]) -> set[int]:
    """How long an array is along its axes; a ring along two of them: rows by environments, rounded up to a value."""
    shape = array.shape
    if array.is_ring:
        for i, (rows, num_envs) in enumerate(itertools.pairwise(shape)):
            capacity = next((value for value in values if value <= rows * num_envs < value + num_envs), None)
            if capacity is not None and rows > 1:
                return {capacity, *shape[:i], *shape[i + 2 :]}
    return set(shape)


def _sizes(workflow: Any) -> Iterator[tuple[str, int]]:
    """Settings that are whole numbers, by the names they have in a config."""
    if workflow.execution.num_seeds is not None:
        yield "num_seeds", workflow.execution.num_seeds
    yield from _sizes_of_node(workflow, "")


def _sizes_of_node(node: PyTreeNode, above: str) -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(node):  # pyright: ignore[reportArgumentType]
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
    if env is not None and env.num_envs > 1:  # last: where they are as many as individuals, these are the setting
        yield f"{above}num_envs", env.num_envs


def _sizes_of_network(network: nn.Module, settings: set[str], above: str) -> Iterator[tuple[str, int]]:
    """Yield whole numbers of a network and its parts that are settings of the agent, such as ``num_critics``."""
    for name, value in vars(network).items():
        if name in settings and isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield f"{above}{name}", value
        elif isinstance(value, nn.Module) and name != "parent":
            yield from _sizes_of_network(value, settings, above)


def rounded(number: int) -> int:
    """Down to two digits: what fits is known no better."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return number // unit * unit


def shown_bytes(num_bytes: float) -> str:
    """Bytes in words, with a sensible unit: ``19 GB``."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if num_bytes < 1000 or unit == "PB":
            return f"{num_bytes:,.3g} {unit}" if num_bytes < 1000 else f"{num_bytes:,.0f} {unit}"
        num_bytes /= 1000
    raise AssertionError("the last unit takes all")

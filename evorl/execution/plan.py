"""Layout of a workflow on this machine: devices, sharded axis, and the number of environments stepped together."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.values import positive
from evorl.execution.trainable import SEED_AXIS, Execution
from evorl.ops.collectives import DATA_AXIS, MEMBER_AXIS
from evorl.ops.platform import on_cpu
from evorl.ops.processes import number_of_first

# Fraction of a core's second-level cache that the states of a chunk of environments may fill. The rest is for a copy of
# the states and for intermediate results of a step. See ``benchmarks/speed/env_chunk.py``.
CACHE_SHARE = 0.3
MIN_BLOCK = 16  # minimum number of environments per chunk: fewer do not fill the vector units of a core
DEFAULT_CACHE = 1 << 20  # bytes, used if the system does not report the size
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Below this state size per device, communication costs more than a second core gains (4 CartPoles: 0.25 kB).
MIN_BYTES_PER_DEVICE = 1 << 13


@dataclasses.dataclass(frozen=True)
class PlanRules:
    """A workflow's requirements for its plan, and properties that decide whether several devices are worthwhile.

    Attributes:
        min_bytes: on a CPU, minimum size of environment states per device for which ``"auto"`` uses several devices.
        evenly: require the same number of environments (or members of a population) on every device.
        small_updates: True if small environment states imply that updates also consist of small operations.
    """

    min_bytes: int = MIN_BYTES_PER_DEVICE
    evenly: bool = True
    small_updates: bool = False


USUAL_RULES = PlanRules()


def plan_execution(
    env: Any,
    devices: str | int = "auto",
    num_seeds: int = 1,
    env_chunk: str | int | None = "auto",
    *,
    rules: PlanRules = USUAL_RULES,
    num_members: int | None = None,
) -> tuple[Execution, int | None]:
    """Return the execution plan of a workflow, and the number of environments stepped at a time (``None`` for all).

    Args:
        env: vectorized training environment.
        devices: ``"auto"`` uses as many devices as are worthwhile, at least one of each process; an integer is the
            number of devices, divided evenly among processes. Pass 1 for a nested workflow.
        num_seeds: number of seeds to run in parallel.
        env_chunk: number of environments to step at a time; ``None`` steps all together. ``"auto"`` chooses as many as
            fit into the cache of a CPU core; on an accelerator, all.
        rules: requirements of the workflow.
        num_members: number of members of a population, which are sharded instead of environments; or ``None``.

    Raises:
        ValueError: ``devices`` or ``env_chunk`` is invalid, or the environments or members cannot be divided evenly.
    """
    processes = jax.process_count()
    available = processes * min(len(jax.local_devices(process_index=i)) for i in range(processes))
    seeds = None if num_seeds == 1 else num_seeds
    if isinstance(env_chunk, str) and env_chunk != "auto":
        raise ValueError(f"env_chunk must be auto, null or a positive integer, got {env_chunk!r}.")
    env_chunk = env_chunk if env_chunk in ("auto", None) else positive(env_chunk, "env_chunk")
    if env.steps_on_host:
        return _plan_for_simulators(devices, seeds), None
    # Rows of agents that act in the same copy of an environment must stay together.
    copy_keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), env.num_agents))
    episodes = jax.ShapeDtypeStruct(copy_keys.shape, jnp.int32)
    bytes_per_copy = state_bytes(jax.eval_shape(env.starts_of, copy_keys, episodes))
    if env.num_agents > 1:
        if env_chunk not in ("auto", None):
            raise ValueError(
                f"env_chunk={env_chunk!r} is not supported with {env.num_agents} agents per copy, which must be "
                "stepped together: remove it."
            )
        env_chunk = None
    elif env_chunk == "auto":
        cache = number_of_first(core_cache_bytes())  # all processes must compile the same program
        env_chunk = max(MIN_BLOCK, int(CACHE_SHARE * cache) // bytes_per_copy) if on_cpu() else None
    axis, rows = (MEMBER_AXIS, num_members) if num_members else (DATA_AXIS, env.num_envs // env.num_agents)
    if devices == "auto":
        enough = max(1, math.ceil(rules.min_bytes / bytes_per_copy)) if on_cpu() and num_members is None else 1
        count = _worthwhile_devices(available, seeds, rows, enough, rules.evenly, processes)
    else:
        count = _checked_devices(devices, available, processes)
    if count == 1:
        in_order = on_cpu() and rules.small_updates and rows * (seeds or 1) * bytes_per_copy < 2 * rules.min_bytes
        return Execution(num_seeds=seeds, in_order=in_order), env_chunk
    if rules.evenly:
        _check_shares(count, seeds, rows, axis, env.num_agents)
    axis = SEED_AXIS if seeds is not None and seeds % count == 0 else axis
    return Execution(num_seeds=seeds, num_devices=count, axis=axis), env_chunk


def _plan_for_simulators(devices: str | int, seeds: int | None) -> Execution:
    """Return the plan for simulators on the host, which use one device; raise ``ValueError`` for other ``devices``."""
    if devices not in ("auto", 1):
        raise ValueError(
            f"devices={devices!r} is not supported by simulators on the host, which use one device: remove it, or "
            "use several processes with actors.count."
        )
    return Execution(num_seeds=seeds)


def _worthwhile_devices(
    available: int, seeds: int | None, num_rows: int, min_rows: int, evenly: bool, processes: int
) -> int:
    for count in range(available, processes, -processes):
        if seeds is not None and seeds % count == 0:
            return count
        if (num_rows % count == 0 or not evenly) and num_rows >= count * min_rows:
            return count
    return processes


def _checked_devices(devices: str | int, available: int, processes: int) -> int:
    if isinstance(devices, str):
        raise ValueError(f"devices must be 'auto' or a positive integer, got {devices!r}.")
    devices = positive(devices, "devices")
    if devices > available:
        raise ValueError(f"devices={devices} is more than the {available} that JAX sees: use at most {available}.")
    if devices > 1 and devices % processes:
        raise ValueError(f"devices={devices} must be a multiple of the number of processes, {processes}.")
    return devices


def _check_shares(devices: int, seeds: int | None, num_rows: int, axis: str, num_agents: int) -> None:
    if num_rows % devices and (seeds is None or seeds % devices):
        noun, name, multiple = "members", "pop_size", devices
        if axis == DATA_AXIS:
            noun = "environments" if num_agents == 1 else f"copies of {num_agents} agents"
            name, multiple = "num_envs", devices * num_agents
        raise ValueError(
            f"{num_rows} {noun} cannot be divided evenly among {devices} devices: set {name} to a multiple of "
            f"{multiple} (or num_seeds to a multiple of {devices}), or use another number of devices."
        )


def core_cache_bytes(caches: Path = _CACHES) -> int:
    """Return the second-level cache per core in bytes; ``DEFAULT_CACHE`` if Linux does not report it in ``caches``."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        for cache in sorted(caches.glob("index*")):
            level, kind, size, cores = (
                (cache / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "size", "shared_cpu_list")
            )
            if level == "2" and kind != "Instruction":
                ends = [[int(end) for end in part.split("-")] for part in cores.split(",")]  # such as 0-3,8
                num_cores = sum(part[-1] - part[0] + 1 for part in ends)
                return int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]] // num_cores
    return DEFAULT_CACHE


def state_bytes(shapes: Any) -> int:
    """Return the bytes of a pytree of arrays, or of their shapes."""
    return sum(int(np.prod(x.shape)) * item_size(x) for x in jax.tree.leaves(shapes))


def item_size(x: Any) -> int:
    """Return the bytes of one element of an array or of its shape; a typed key counts 8 bytes."""
    return 8 if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize


def describe_devices(devices: str | int = "auto") -> str:
    """Return a description of ``devices`` devices, such as ``2 x cpu`` or ``1 x NVIDIA H100 80GB HBM3``."""
    kinds = [device.device_kind for device in jax.devices()][: None if devices == "auto" else int(devices)]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))

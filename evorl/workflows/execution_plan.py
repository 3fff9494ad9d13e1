"""How a workflow is laid out on this machine: how many devices share what, and how many environments step at a time."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.collectives import DATA_AXIS, MEMBER_AXIS
from evorl.workflows.execution import SEED_AXIS, Execution

# A block of environments is stepped out of the processor's cache when their states are below this; measured on brax
# hopper (mjx), where 64 environments run 2.9 times faster than 512. (A vector environment keeps about twice as much.)
CHUNK_BYTES = 1 << 19
# Below these states per device the exchange between devices costs more than a second core gives (4 CartPoles: 0.25 kB).
MIN_BYTES_PER_DEVICE = 1 << 13


def plan_execution(
    env: Any,
    devices: str | int = "auto",
    num_seeds: int = 1,
    env_chunk: str | int | None = "auto",
    min_bytes: int = MIN_BYTES_PER_DEVICE,
    num_members: int | None = None,
    evenly: bool = True,
) -> tuple[Execution, int | None]:
    """How to run a workflow on this machine, and how many environments to step at a time.

    Args:
        env: the vector environment of the training.
        devices: ``"auto"`` takes all devices if the work is worth it; a number takes that many.
        num_seeds: seeds to run side by side.
        env_chunk: ``"auto"`` steps as many environments at a time as fit the cache of a CPU; a number or ``None``
            (all together) decides.
        min_bytes: on a CPU, environments' states per device from which ``"auto"`` takes several.
        num_members: of a population, which are shared out instead of the environments of each; ``None`` without one.
        evenly: whether every device has to have as many environments.

    Raises:
        ValueError: more devices are asked for than there are, or the environments cannot be shared among them.
    """
    available = len(jax.devices())
    on_cpu = jax.default_backend() == "cpu"
    seeds = None if num_seeds == 1 else num_seeds
    bytes_per_env = state_bytes(jax.eval_shape(env.env.reset, jax.random.key(0)))
    if env_chunk == "auto":
        env_chunk = max(16, CHUNK_BYTES // bytes_per_env) if on_cpu else None
    if not (env_chunk is None or (isinstance(env_chunk, int) and env_chunk > 0)):
        raise ValueError(f"env_chunk is 'auto', null or a positive number, got {env_chunk!r}.")
    axis, rows = (DATA_AXIS, env.num_envs) if num_members is None else (MEMBER_AXIS, num_members)
    if devices == "auto":
        enough = max(1, math.ceil(min_bytes / bytes_per_env)) if on_cpu and num_members is None else 1
        count = _worthwhile_devices(available, seeds, rows, enough, evenly)
    else:
        count = _checked_devices(devices, available)
        if evenly:
            _check_shares(count, seeds, rows, axis)
    if count == 1:
        return Execution(num_seeds=seeds), env_chunk
    axis = SEED_AXIS if seeds is not None and seeds % count == 0 else axis
    return Execution(num_seeds=seeds, num_devices=count, axis=axis), env_chunk


def _worthwhile_devices(available: int, seeds: int | None, num_rows: int, min_rows: int, evenly: bool) -> int:
    for count in range(available, 1, -1):
        if seeds is not None and seeds % count == 0:
            return count
        if (num_rows % count == 0 or not evenly) and num_rows >= count * min_rows:
            return count
    return 1


def _checked_devices(devices: str | int, available: int) -> int:
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise ValueError(f"devices is 'auto' or a positive number, got {devices!r}.")
    if devices > available:
        raise ValueError(f"devices={devices} was asked for, and JAX sees {available}: ask for at most {available}.")
    return devices


def _check_shares(devices: int, seeds: int | None, num_rows: int, axis: str) -> None:
    if num_rows % devices and (seeds is None or seeds % devices):
        what, name = ("environments", "num_envs") if axis == DATA_AXIS else ("members", "num_members")
        raise ValueError(
            f"{num_rows} {what} cannot be shared evenly by {devices} devices: "
            f"choose {name} (or num_seeds) as a multiple of {devices}, or another number of devices."
        )


def state_bytes(shapes: Any) -> int:
    """Bytes of a pytree of arrays, or of their shapes."""
    return sum(int(np.prod(x.shape)) * _item_size(x) for x in jax.tree.leaves(shapes))


def _item_size(x: Any) -> int:
    return 8 if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize

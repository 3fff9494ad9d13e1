"""Compiles a program for GPUs that this machine does not have, from a description of the device.

Needs the CUDA plugin of JAX (``jax[cuda13]``), whose compiler runs without a device. Call
``describe_devices`` before any other use of JAX. Unlike on a real device, sorts use a fallback, matrix products are not
autotuned, and no CUDA graphs are formed.

Peers import this module in separate environments: it requires only JAX and the standard library.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.hlo import Program

H100 = Path(__file__).with_name("h100.textproto")


def describe_devices(count: int = 1, target: Path = H100) -> list[Any]:
    """Return devices of one host that exist only as descriptions.

    Args:
        count: number of devices.
        target: file with the description, a ``GpuTargetConfigProto`` as text.

    Raises:
        SystemExit: the CUDA plugin is not installed.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    import jax
    from jax.experimental import topologies

    jax.devices()  # registers the plugins
    text = "\n".join(line for line in target.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name=target.stem, topology=f"1x1x{count}", target_config=text
        )
    except NotImplementedError:
        sys.exit(f"{sys.executable} has no CUDA plugin: pip install 'jax[cuda13]=={jax.__version__}' there.")
    return list(topology.devices)


def compile_for(device: Any, step: Callable[[Any], Any], state: Any, unknown_turns: int = 1) -> dict[str, Any]:
    """Compile ``step`` for a described device and return its cost as JSON.

    Args:
        device: one of ``describe_devices``, for the shapes without a sharding.
        step: function of the state, which is donated.
        state: shapes of the state, as ``jax.eval_shape`` returns them.
        unknown_turns: see ``Program``.
    """
    import jax

    single = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or single), state)
    lowered = jax.jit(step, donate_argnums=0).trace(shapes).lower(lowering_platforms=("cuda",))
    compiled = lowered.compile(compiler_options={"xla_gpu_autotune_level": 0})
    cost, memory = Program(compiled.as_text(), unknown_turns).cost, compiled.memory_analysis()
    return {
        **dataclasses.asdict(cost),
        "temporary_bytes": memory.temp_size_in_bytes,
        "state_bytes": memory.argument_size_in_bytes,
    }

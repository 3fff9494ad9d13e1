"""Compiles a program for a described GPU that this machine does not have.

Needs the CUDA plugin of JAX (``jax[cuda13]``), whose compiler runs without a device. ``describe_device`` has to be
called before JAX is used otherwise. Sorts use a fallback, matrix products are not tuned and no CUDA graphs are formed:
in these three a real device differs.

Peers import this module in environments of their own: it needs JAX and the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.hlo import Program

H100 = Path(__file__).with_name("h100.textproto")


def describe_device(target: Path = H100, num_devices: int = 1) -> list[Any]:
    """Return described devices of one host.

    Args:
        target: file with the description, a ``GpuTargetConfigProto`` as text.
        num_devices: number of devices of the host.

    Raises:
        SystemExit: the CUDA plugin is not installed.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    import jax
    from jax.experimental import topologies

    try:
        import jax_plugins.xla_cuda13  # noqa: F401 - only asked whether it is there
    except ImportError:
        sys.exit(f"{sys.executable} has no CUDA plugin: pip install 'jax[cuda13]=={jax.__version__}' there.")
    _discover_plugins()
    text = "\n".join(line for line in target.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name=target.stem, topology=f"1x1x{num_devices}", target_config=text
    )
    return list(topology.devices)


def compile_for(device: Any, step: Callable[[Any], Any], state: Any) -> dict[str, Any]:
    """Compile ``step`` for a described device and return its cost as JSON.

    Args:
        device: one of ``describe_device``.
        step: function of the state, which is donated.
        state: shapes of the state, as ``jax.eval_shape`` returns them.
    """
    import jax

    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
    lowered = jax.jit(step, donate_argnums=0).trace(shapes).lower(lowering_platforms=("cuda",))
    compiled = lowered.compile(compiler_options={"xla_gpu_autotune_level": 0})
    cost, memory = Program(compiled.as_text()).cost, compiled.memory_analysis()
    return {
        "kernels": cost.kernels,
        "parts": cost.describe(),
        "unknown_loops": cost.unknown_loops,
        "traffic_bytes": cost.traffic_bytes,
        "collectives": cost.collectives,
        "host_calls": cost.host_calls,
        "wide_floats": cost.wide_floats,
        "temporary_bytes": memory.temp_size_in_bytes,
        "state_bytes": memory.argument_size_in_bytes,
    }


def _discover_plugins() -> None:
    """Register the CUDA plugin with its compiler. JAX prints a traceback if that is done twice, which is harmless."""
    import jax
    import jax._src.xla_bridge as bridge

    with contextlib.redirect_stderr(open(os.devnull, "w", encoding="utf-8")):
        with contextlib.suppress(Exception):
            bridge.discover_pjrt_plugins()
        jax.devices()

"""What concerns the whole process: devices on a CPU, the cache of compiled programs, when Python looks for garbage."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path


def prepare_runtime(
    devices: str | int = "auto", compilation_cache: bool | str = True, long_programs: bool = False
) -> None:
    """Set JAX up for a run; call it before anything is computed.

    On a CPU one device is made for each core the process may use (``devices`` of them if a number is given), so that
    environments or seeds can be spread over the cores. Once JAX's backend has started, the devices stay as they are.

    Args:
        devices: ``"auto"`` or a number.
        compilation_cache: keep compiled programs on disk, so that the next start of the same run compiles little;
            ``True`` for the user's cache folder, or the one that ``JAX_COMPILATION_CACHE_DIR`` names; a path for
            another; ``False`` leaves JAX as it is.
        long_programs: whether a physics engine will be compiled: then loops are neither unrolled nor tiled on a CPU,
            which leaves its speed as it is and takes a third off the time to compile it, and 0.1 GB off the memory.
            Small programs do lose speed by it.
    """
    import jax

    _set_xla_flags(long_programs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = devices if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0 else cores
    # The backend may run already, as in the second job of a sweep.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", wanted)
    release_programs()
    if not compilation_cache:
        return
    folder = None if compilation_cache is True else Path(compilation_cache).expanduser()
    if folder or "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder or cache_folder()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # By default only programs that took more than a second to compile are kept.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def collect_garbage_seldom() -> None:
    """Let Python look for garbage a hundred times less often; for processes that are ours alone.

    Tracing makes hundreds of thousands of objects that stay, and each look goes through many of them: of 4.7 s to trace
    PPO for hopper 3.8 are left.
    """
    gc.set_threshold(100_000, 10, 10)


def release_programs(share: float = 0.5) -> bool:
    """Forget all compiled programs if they take more than this share of the memory maps Linux allows a process.

    On a CPU each of a program's kernels is mapped for itself, a thousand maps for a training; at the limit
    (``vm.max_map_count``, usually 65,530) XLA ends the process. Sweeps and test suites that compile many programs come
    there; what is needed again is compiled again, or read from the cache.

    Returns:
        Whether they were forgotten; always ``False`` where maps are not counted so.
    """
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
        with Path("/proc/self/maps").open("rb") as maps:
            num_maps = sum(1 for _ in maps)
    except OSError:
        return False
    if num_maps <= share * limit:
        return False
    import jax

    jax.clear_caches()
    gc.collect()
    return True


def _set_xla_flags(long_programs: bool) -> None:
    """Set what can only be set for the whole process, by the environment; flags that the user has set stay.

    Devices of a CPU wait for one another as long as it takes: XLA would end the process when one waits for 40 seconds,
    which a suspended terminal or a sleeping laptop would bring about.
    """
    given = os.environ.get("XLA_FLAGS", "")
    wanted = {
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds": "600",
        "--xla_cpu_collective_call_terminate_timeout_seconds": str(7 * 24 * 3600),
    }
    if long_programs:
        wanted["--xla_backend_extra_options"] = "xla_cpu_disable_loop_unrolling,xla_cpu_disable_tiled_emitter"
    added = [f"{name}={value}" for name, value in wanted.items() if name not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()


def cache_folder() -> Path:
    """The folder of compiled programs below the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "evorl" / "compiled"

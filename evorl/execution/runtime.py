"""Process-wide setup: CPU devices, compilation cache, XLA flags and garbage collection."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from pathlib import Path

import jax

from evorl.config.command_lines import user_path
from evorl.config.gate import admit
from evorl.execution.multiprocess import join_processes, process_info
from evorl.ops.platform import available_cores, on_cpu, set_precision
from evorl.runs.files import RunFolderError, make_private_folder, user_cache
from evorl.runs.spec import Precision, RunSpec
from evorl.xla_flags import add_xla_flags

MAX_CPU_DEVICES = 64  # or the number of cores, if larger; hundreds of devices, each a client, make XLA stall


def prepare_runtime(
    devices: str | int = "auto",
    compilation_cache: bool | str = True,
    long_programs: bool = False,
    deterministic: bool = False,
    precision: Precision = "default",
) -> None:
    """Set up JAX for a run, before any computation. With several processes, wait until all have joined.

    The devices of a CPU, over which environments or seeds are spread, are fixed once JAX's backend has started.

    Args:
        devices: number of devices of the run, over all processes; ``"auto"`` for one per core that the process may use.
            A single process divides a CPU into at least one per core, up to ``MAX_CPU_DEVICES``.
        compilation_cache: keep compiled programs on disk, so that the next start of the same run compiles little.
            ``True`` uses the user's cache folder, or the folder in ``JAX_COMPILATION_CACHE_DIR``; a path uses that
            folder; ``False`` does not configure a cache. Programs in the folder are executed, so other users are denied
            access, unless ``JAX_COMPILATION_CACHE_DIR`` names the folder.
        long_programs: True if a physics engine will be compiled. On a CPU, loops are then neither unrolled nor tiled,
            which reduces compile time by a third and memory by 0.1 GB, but makes small programs slower.
        deterministic: see ``RunSpec``. The flag ``--xla_gpu_deterministic_ops=true`` makes XLA avoid operations of
            undefined order and the search for the fastest kernels. On a TPU, only ``precision`` is set.
        precision: precision of float32 matrix products and convolutions in all programs of the process; sets
            ``jax_default_matmul_precision``. ``highest`` is float32, as always on a CPU; ``high`` is TF32 on a GPU and
            three bfloat16 passes on a TPU; ``default`` is the user's ``JAX_DEFAULT_MATMUL_PRECISION``, else the
            device's fastest: TF32 on a GPU that supports it, one bfloat16 pass on a TPU.

    Raises:
        ValueError: more devices are requested than a CPU can be divided into.
        ForeignCodeError: the path of the cache comes from an untrusted source.
        RuntimeError: JAX has already computed something, and there are several processes.
    """
    info = process_info()
    cores = available_cores()
    num_devices = devices if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0 else None
    if info:
        num_devices = info.devices or max(1, num_devices // info.count if num_devices else cores // info.local_count)
    else:  # a later run of this process may use more devices, and cannot add any
        num_devices = max(num_devices or cores, min(cores, MAX_CPU_DEVICES))
    if num_devices > max(cores, MAX_CPU_DEVICES):
        raise ValueError(
            f"devices={devices} is too many: this machine has {cores} cores, and a CPU is divided into at most "
            f"{max(cores, MAX_CPU_DEVICES)} devices."
        )
    _set_xla_flags(long_programs, deterministic, several=info is not None)
    # The backend may already be running, as in the second run of a sweep.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", num_devices)
    release_programs()
    if compilation_cache:
        if compilation_cache is not True:  # cached programs are executed
            admit(str(compilation_cache), "compilation_cache")
        _keep_programs(None if compilation_cache is True else user_path(compilation_cache))
    if info:
        join_processes(info)
    set_precision("highest" if precision == "default" and deterministic and not on_cpu() else precision)


def prepare_for(spec: RunSpec) -> None:
    """Set up JAX for the run ``spec``, see ``prepare_runtime``; set ``long_programs`` for brax environments."""
    prepare_runtime(
        spec.devices,
        spec.compilation_cache,
        long_programs=spec.env.get("library") == "brax",
        deterministic=spec.deterministic,
        precision=spec.precision,
    )


def _keep_programs(folder: Path | None) -> None:
    """Enable the cache of compiled programs; print a warning if its folder is not usable.

    The folder is ``folder``, else ``JAX_COMPILATION_CACHE_DIR``, else a folder in the user's cache folder.
    """
    if folder or "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = folder or cache_folder()
        try:
            make_private_folder(folder)
        except RunFolderError as error:
            _warn_once(folder, str(getattr(error.__cause__, "strerror", None) or error).rstrip("."))
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # By default JAX caches only programs that took more than a second to compile.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@functools.cache
def _warn_once(folder: Path, reason: str) -> None:
    text = f"compiled programs are not cached in {folder} ({reason}), so the next start compiles again"
    advice = "Set compilation_cache to a folder that you own and may write."
    print(f"Warning: {text}. {advice}", file=sys.stderr, flush=True)


def reduce_gc_frequency() -> None:
    """Make Python collect garbage about a hundred times less often. Call it only in processes that evorl starts.

    Tracing creates hundreds of thousands of long-lived objects, and each collection visits many of them: tracing PPO
    for hopper takes 3.8 s instead of 4.7.
    """
    gc.set_threshold(100_000, 10, 10)


def release_programs(share: float = 0.5) -> bool:
    """Discard all compiled programs if this process uses more than ``share`` of the memory maps that Linux allows.

    On a CPU each kernel of a program has a memory map, about a thousand per training run. At the limit
    (``vm.max_map_count``, usually 65,530), which sweeps and test suites with many programs reach, XLA ends the process.
    Programs that are needed again are recompiled, or read from the cache.

    Returns:
        True if programs were discarded; always False on systems without ``/proc``.
    """
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
        with Path("/proc/self/maps").open("rb") as maps:
            num_maps = sum(1 for _ in maps)
    except OSError:
        return False
    if num_maps <= share * limit:
        return False
    jax.clear_caches()
    gc.collect()
    return True


def _set_xla_flags(long_programs: bool, deterministic: bool = False, several: bool = False) -> None:
    """Set XLA flags for the whole process; the user's flags take precedence.

    Timeouts between devices of a CPU are raised to a week: by default XLA ends the process when a device waits for 40
    seconds, as in a suspended terminal or on a sleeping laptop. ``several`` also raises those between processes.
    """
    flags = {
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds": "600",
        "--xla_cpu_collective_call_terminate_timeout_seconds": str(7 * 24 * 3600),
    }
    if several:
        flags["--xla_cpu_collective_timeout_seconds"] = flags["--xla_cpu_collective_call_terminate_timeout_seconds"]
    if long_programs:
        flags["--xla_backend_extra_options"] = "xla_cpu_disable_loop_unrolling,xla_cpu_disable_tiled_emitter"
    if deterministic:
        flags["--xla_gpu_deterministic_ops"] = "true"
    add_xla_flags(flags)


def cache_folder() -> Path:
    """Return the folder of compiled programs inside the user's cache folder."""
    return user_cache("compiled")

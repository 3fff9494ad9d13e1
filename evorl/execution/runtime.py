"""Process-wide setup: CPU devices, compilation cache, XLA flags and garbage collection."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from evorl.config.command_lines import user_path
from evorl.config.gate import admit
from evorl.execution.multiprocess import join_processes, process_info
from evorl.ops.platform import on_cpu, set_precision
from evorl.runs.files import RunFolderError, make_private_folder, user_cache
from evorl.runs.spec import Precision, RunSpec

MAX_CPU_DEVICES = 64  # or the number of cores if larger: each device is a separate client, and hundreds of them stall


def prepare_runtime(
    devices: str | int = "auto",
    compilation_cache: bool | str = True,
    long_programs: bool = False,
    deterministic: bool = False,
    precision: Precision = "default",
) -> None:
    """Set up JAX for a run; call it before any computation. With several processes it returns when all have joined.

    On a CPU one device is created for each core the process may use (``devices`` of them if a number is given), so that
    environments or seeds can be spread over the cores. Once JAX's backend has started, the devices are fixed.

    Args:
        devices: ``"auto"`` or a number.
        compilation_cache: keep compiled programs on disk, so that the next start of the same run compiles little.
            ``True`` uses the user's cache folder, or the folder in ``JAX_COMPILATION_CACHE_DIR``; a path uses that
            folder; ``False`` does not configure a cache. The folder is closed to other users, since programs in it are
            executed.
        long_programs: true if a physics engine will be compiled. Loops are then neither unrolled nor tiled on a CPU,
            which reduces its compile time by a third and memory by 0.1 GB at the same speed. Small programs become
            slower.
        deterministic: true if a GPU computes bit-identical results for the same seed, machine and versions. It sets
            ``--xla_gpu_deterministic_ops=true`` in ``XLA_FLAGS`` (XLA then avoids operations of undefined order and
            does not search for the fastest kernels) and ``precision`` to ``highest``, unless it is set too. Training
            is slower; the factor depends on the GPU and the networks. On a TPU it only sets ``precision``. On a CPU it
            has no effect: results are always deterministic.
        precision: precision of float32 matrix products and convolutions in all programs of the process; it sets
            ``jax_default_matmul_precision``. ``highest`` is float32; ``high`` is TF32 on a GPU and three bfloat16
            passes on a TPU; ``default`` is the fastest of the device (TF32 on a GPU that has it, one bfloat16 pass on
            a TPU), or the user's ``JAX_DEFAULT_MATMUL_PRECISION``. A CPU always computes in float32.

    Raises:
        ValueError: more devices are requested than a CPU can be divided into.
        ForeignCodeError: the folder comes from an untrusted source.
        RuntimeError: JAX has already computed something, and there are several processes.
    """
    import jax

    info = process_info()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_devices = devices if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0 else None
    if info:
        num_devices = info.devices or max(1, num_devices // info.count if num_devices else cores // info.local_count)
    num_devices = num_devices or cores
    if num_devices > max(cores, MAX_CPU_DEVICES):
        raise ValueError(
            f"devices={devices} is too many: this machine has {cores} cores, and a CPU is divided into at most "
            f"{max(cores, MAX_CPU_DEVICES)} devices."
        )
    _set_xla_flags(long_programs, deterministic, several=info is not None)
    # The backend may already run, as in the second run of a sweep.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", num_devices)
    release_programs()
    if compilation_cache:
        if compilation_cache is not True:  # programs in it are executed
            admit(str(compilation_cache), "compilation_cache")
        _keep_programs(None if compilation_cache is True else user_path(compilation_cache))
    if info:
        join_processes(info)
    set_precision("highest" if precision == "default" and deterministic and not on_cpu() else precision)


def prepare_for(spec: RunSpec) -> None:
    """Set up JAX for a run, see ``prepare_runtime``; physics engines have long programs."""
    env = spec.workflow.get("env")
    prepare_runtime(
        spec.devices,
        spec.compilation_cache,
        long_programs=isinstance(env, Mapping) and env.get("library") == "brax",
        deterministic=spec.deterministic,
        precision=spec.precision,
    )


def _keep_programs(folder: Path | None) -> None:
    """Enable the cache of compiled programs; warn if its folder is not usable.

    The folder is ``folder``, else that of ``JAX_COMPILATION_CACHE_DIR``, else one in the user's cache folder.
    """
    import jax

    if folder or "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = folder or cache_folder()
        try:
            make_private_folder(folder)
        except RunFolderError as error:
            _warn_once(f"Warning: compiled programs are not cached, so the next start compiles again. {error}")
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # By default JAX caches only programs that took more than a second to compile.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@functools.cache
def _warn_once(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def collect_garbage_seldom() -> None:
    """Make Python collect garbage a hundred times less often; for processes that run only evorl.

    Tracing creates hundreds of thousands of long-lived objects, and each collection visits many of them: tracing PPO
    for hopper takes 3.8 s instead of 4.7.
    """
    gc.set_threshold(100_000, 10, 10)


def release_programs(share: float = 0.5) -> bool:
    """Discard all compiled programs if they use more than this fraction of the memory maps that Linux allows a process.

    On a CPU each kernel of a program has its own memory map, about a thousand for a training. At the limit
    (``vm.max_map_count``, usually 65,530) XLA ends the process. Sweeps and test suites that compile many programs reach
    it. Programs that are needed again are compiled again, or read from the cache.

    Returns:
        True if they were discarded; always False on systems without ``/proc``.
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


def _set_xla_flags(long_programs: bool, deterministic: bool = False, several: bool = False) -> None:
    """Set XLA flags for the whole process through the environment; flags that the user has set are kept.

    Devices of a CPU wait for one another without a timeout: by default XLA ends the process when one waits for 40
    seconds, which happens with a suspended terminal or a sleeping laptop. The same applies to ``several`` processes.
    """
    present = os.environ.get("XLA_FLAGS", "")
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
    added = [f"{name}={value}" for name, value in flags.items() if name not in present]
    os.environ["XLA_FLAGS"] = " ".join([present, *added]).strip()


def cache_folder() -> Path:
    """Return the folder of compiled programs below the user's cache folder."""
    return user_cache("compiled")

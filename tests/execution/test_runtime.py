"""JAX is configured as requested, and environment variables of the user have precedence."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from evorl.execution import runtime
from evorl.execution.multiprocess import PROCESS_VARIABLE, ProcessInfo
from evorl.execution.programs import lowered_training
from evorl.execution.runtime import (
    MAX_CPU_DEVICES,
    _set_xla_flags,
    cache_folder,
    prepare_runtime,
    reduce_gc_frequency,
)
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical, one_iteration, small

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
LEAST = min(CORES, MAX_CPU_DEVICES)  # devices of a CPU in a single process
FOLDER, SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"


def _settings() -> tuple[str | None, float]:
    return jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Simulate a user without settings, and restore the tests' settings afterwards."""
    before = _settings()
    for name in (FOLDER, SECONDS):
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.config.update(FOLDER, None)
    jax.config.update(SECONDS, 1.0)
    yield
    jax.config.update(FOLDER, before[0])
    jax.config.update(SECONDS, before[1])


def test_programs_are_kept_in_the_cache_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_runtime()
    assert _settings() == (str(tmp_path / "cache" / "evorl" / "compiled"), 0.1)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "evorl" / "compiled"


def test_a_folder_of_ones_own_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    prepare_runtime(compilation_cache="~/programs")
    assert _settings() == (str(tmp_path / "programs"), 0.1)


def test_without_a_cache_jax_stays_as_it_is() -> None:
    prepare_runtime(compilation_cache=False)
    assert _settings() == (None, 1.0)


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        prepare_runtime(compilation_cache=str(tmp_path / "file" / "programs"))
    assert _settings() == (None, 1.0)
    err = capsys.readouterr().err
    assert err.startswith(f"Warning: compiled programs are not cached in {tmp_path / 'file' / 'programs'} (")
    assert "compilation_cache" in err
    assert err.count("\n") == 1


def test_the_folder_is_the_users_alone(tmp_path: Path) -> None:
    prepare_runtime(compilation_cache=str(tmp_path / "programs"))
    assert (tmp_path / "programs").stat().st_mode & 0o077 == 0


def test_a_gpu_computes_the_same_bits_again_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    flag, setting = "--xla_gpu_deterministic_ops=true", "jax_default_matmul_precision"
    before = jax.config.jax_default_matmul_precision
    try:
        prepare_runtime(compilation_cache=False)
        assert flag not in os.environ["XLA_FLAGS"].split()
        prepare_runtime(compilation_cache=False, deterministic=True)
        assert flag in os.environ["XLA_FLAGS"].split()
        assert jax.config.jax_default_matmul_precision == before  # CPU products always have full precision
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        prepare_runtime(compilation_cache=False, deterministic=True)
        assert jax.config.jax_default_matmul_precision == "highest"
    finally:
        jax.config.update(setting, before)


def test_precision_of_a_run_reaches_its_programs_and_ends_with_it() -> None:
    setting, workflow = "jax_default_matmul_precision", small("ppo")
    before = jax.config.jax_default_matmul_precision
    assert before is None  # no user's choice, in a process of tests
    texts = {}
    try:
        for precision in ("default", "high", "highest", "default"):
            prepare_runtime(compilation_cache=False, precision=precision)
            texts[precision] = lowered_training(workflow, jax.random.key(0)).as_text()
        assert jax.config.jax_default_matmul_precision is None
        prepare_runtime(compilation_cache=False, deterministic=True, precision="high")
        assert jax.config.jax_default_matmul_precision == "high"
    finally:
        jax.config.update(setting, before)
    for precision, text in texts.items():
        stated = set(re.findall(r"dot_general .*?precision = (\[\w+, \w+\])", text))
        assert stated == {f"[{precision.upper()}, {precision.upper()}]"}


def test_a_cpu_computes_the_same_bits_at_any_precision() -> None:
    workflow, states = small("ppo"), []
    jax.clear_caches()  # an earlier test may have compiled the same program with other optimization passes
    try:
        for precision in ("default", "highest"):
            prepare_runtime(compilation_cache=False, precision=precision)
            states.append(one_iteration(workflow, workflow.init(0)))
    finally:
        prepare_runtime(compilation_cache=False)
    assert_identical(*states)


def test_more_devices_than_a_cpu_is_divided_into_are_refused() -> None:
    most = max(CORES, 64)
    with raises_naming(ValueError, f"devices={most + 1}", f"{CORES} cores", f"at most {most} devices"):
        prepare_runtime(devices=most + 1, compilation_cache=False)


def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jax.config.update(FOLDER, "theirs")  # as JAX does during its import
    monkeypatch.setenv(FOLDER.upper(), "theirs")
    monkeypatch.setenv(SECONDS.upper(), "1.0")
    prepare_runtime()
    assert _settings() == ("theirs", 1.0)
    prepare_runtime(compilation_cache=str(tmp_path))  # an argument has precedence over the environment
    assert _settings() == (str(tmp_path), 1.0)


def test_devices_stay_as_they_are_once_the_backend_runs() -> None:
    before = len(jax.devices())
    prepare_runtime(devices=before + 1, compilation_cache=False)
    assert len(jax.devices()) == before


@pytest.mark.usefixtures("few_objects")
def test_garbage_is_looked_for_seldom() -> None:
    def num_collections() -> int:
        return sum(generation["collections"] for generation in gc.get_stats())

    before = gc.get_threshold()
    try:
        reduce_gc_frequency()
        gc.collect()
        started = num_collections()
        kept = [[] for _ in range(50_000)]
        assert num_collections() == started
        kept += [[] for _ in range(100_000)]
        assert num_collections() > started
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize(("devices", "expected"), [(3, max(3, LEAST)), (1, LEAST), ("auto", CORES)])
def test_a_fresh_process_gets_its_devices_and_knows_every_flag(devices: int | str, expected: int) -> None:
    code = (  # XLA aborts a process with an unknown flag
        f"from evorl.execution.runtime import prepare_runtime; prepare_runtime({devices!r}, False, True, True); "
        "import jax; print(len(jax.devices()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected


def test_devices_may_wait_for_one_another_and_the_users_flags_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_collective_call_warn_stuck_timeout_seconds=7")
    _set_xla_flags(long_programs=False)
    _set_xla_flags(long_programs=True)
    _set_xla_flags(long_programs=True)
    flags = os.environ["XLA_FLAGS"].split()
    assert flags[0] == "--xla_cpu_collective_call_warn_stuck_timeout_seconds=7"
    assert [flag for flag in flags if "terminate" in flag] == [
        "--xla_cpu_collective_call_terminate_timeout_seconds=604800"
    ]
    assert flags[2:] == ["--xla_backend_extra_options=xla_cpu_disable_loop_unrolling,xla_cpu_disable_tiled_emitter"]


FORGETTING = """
import jax
from evorl.execution.runtime import release_programs

traces = []

@jax.jit
def program(x):
    traces.append(x)
    return x + 1

program(1.0)
assert not release_programs(share=1.0)
program(1.0)
assert len(traces) == 1
assert release_programs(share=0.0)
program(1.0)
assert len(traces) == 2
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts memory maps as Linux does")
def test_programs_are_forgotten_before_there_are_too_many() -> None:
    """Compiled programs are released before they reach the limit; tested in a separate process."""
    done = subprocess.run([sys.executable, "-c", FORGETTING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_processes_of_a_machine_share_its_cores_and_all_of_them_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []
    with monkeypatch.context() as context:  # the settings are restored afterwards
        context.setattr(runtime, "join_processes", lambda info: None)
        context.setattr(jax.config, "update", lambda name, value: numbers.append(value))
        context.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
        for own_devices in (None, 5):
            info = ProcessInfo(2, 8, "node0:8476", 0, 4, own_devices, "")
            context.setenv(PROCESS_VARIABLE, info.as_variable()[PROCESS_VARIABLE])
            for devices in ("auto", 24):
                prepare_runtime(devices, compilation_cache=False)
    assert numbers == [8 // 4, 24 // 8, 5, 5]
    assert "--xla_cpu_collective_timeout_seconds" in os.environ["XLA_FLAGS"]

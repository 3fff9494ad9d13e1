"""Compile times are remembered in the cache folder, and announced at later starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import pytest

from evorl.execution.compile_times import CompileTimes
from evorl.runs.spec import RunSpec

CONFIG = {"workflow": "evorl.algorithms.ppo.PPOWorkflow", "num_envs": 4, "seed": 0, "title": "a"}


def times_of(folder: Path, config: dict = CONFIG, env: str = "brax/hopper") -> CompileTimes:
    return dataclasses.replace(
        CompileTimes.of_run(RunSpec.from_config(config), env), file=folder / "compile_times.json"
    )


def test_the_next_start_announces_the_time_of_the_last_one(tmp_path: Path) -> None:
    first = times_of(tmp_path)
    assert "hopper for the first time" in str(first.announce())
    first.remember(40.2)
    assert times_of(tmp_path, {**CONFIG, "seed": 1, "title": "b"}).announce() is None  # the programs are cached
    assert times_of(tmp_path, {**CONFIG, "num_envs": 8}).announce() == (
        "Compiling hopper: about 40 s as last time, less if its programs are in the cache."
    )
    assert "for the first time" in str(times_of(tmp_path, env="mjx/hopper").announce())
    assert "hopper (mjx)" in str(times_of(tmp_path, env="mjx/hopper").announce())
    first.remember(3.0)  # a start that loads the programs
    assert times_of(tmp_path).announce() == "Loading hopper: about 3 s, as last time."
    times_of(tmp_path, {**CONFIG, "num_envs": 8}).remember(150.0)
    assert times_of(tmp_path, {**CONFIG, "num_envs": 16}).announce() == (
        "Compiling hopper: about 2 min as last time, less if its programs are in the cache."
    )
    times_of(tmp_path, {**CONFIG, "num_envs": 16}).remember(3.0)  # new settings whose programs were in the cache
    assert "about 2 min" in str(times_of(tmp_path, {**CONFIG, "num_envs": 32}).announce())


HUGE = f'{{"x": {{"new": {"9" * 400}}}}}'  # no float


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"x": 1}', "[" * 5000, '{"x": {"new": "a"}}', '{"x": {"new": NaN}}', HUGE]
)
def test_an_unusable_file_is_replaced(text: str, tmp_path: Path) -> None:
    times = times_of(tmp_path)
    (tmp_path / "compile_times.json").write_text(text)
    assert "for the first time" in str(times.announce())
    times.remember(5.0)
    assert times.announce() is None


def test_without_a_writable_folder_nothing_is_remembered(tmp_path: Path) -> None:
    times = times_of(tmp_path / "missing")
    times.remember(5.0)
    assert not (tmp_path / "missing").exists()
    assert "every start compiles again" in str(dataclasses.replace(times, file=None).announce())


def test_the_file_is_in_the_cache_of_programs() -> None:
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    file = CompileTimes.of_run(RunSpec.from_config(CONFIG), "brax/hopper").file
    assert (file is None) if not folder else (file is not None and str(file.parent) == folder)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(230):
        times_of(tmp_path, env=f"brax/{number}").remember(5.0)
    assert "first time" in str(times_of(tmp_path, env="brax/0").announce())
    assert times_of(tmp_path, env="brax/229").announce() is None

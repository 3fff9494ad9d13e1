"""Files of recorded transitions: round trips, reading by NumPy, and errors for corrupted files."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.runs.files import RunFolderError
from evorl.runs.replay_file import (
    ReplayFileError,
    episode_facts,
    find_replay_file,
    read_columns,
    read_replay_facts,
    write_replay_file,
)
from tests.support.errors import raises_naming
from tests.support.recorded_pendulum import EPISODE, NUM_STEPS, TITLE, pendulum_columns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_replay_file(tmp_path / "data" / "pendulum", pendulum_columns(), TITLE)
    return tmp_path / "data" / "pendulum.npz"


def test_what_is_written_is_read(path: Path) -> None:
    facts = read_replay_facts(path)
    columns = read_columns(path, facts)
    assert set(columns) == set(pendulum_columns())
    for name, column in pendulum_columns().items():
        np.testing.assert_array_equal(columns[name], column)
        np.testing.assert_array_equal(np.load(path, allow_pickle=False)[name], column)  # as a user would open it
    assert sorted(p.name for p in path.parent.iterdir()) == ["pendulum.json", "pendulum.npz"]
    described = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert (described["env"], described["num_steps"]) == (TITLE, NUM_STEPS)
    assert described["columns"]["obs"] == {"dtype": "float32", "shape": [3]}
    returns = pendulum_columns()["rewards"].reshape(-1, EPISODE).sum(axis=1)
    assert described["num_episodes"] == len(returns)
    assert described["episode_return_mean"] == pytest.approx(returns.mean(), rel=1e-5)
    assert described["episode_return_std"] == pytest.approx(returns.std(), rel=1e-5)


def test_without_an_end_there_is_no_return() -> None:
    columns = {**pendulum_columns(), "termination": np.zeros(NUM_STEPS, bool), "truncation": np.zeros(NUM_STEPS, bool)}
    assert episode_facts(columns) == {"num_episodes": 0, "episode_return_mean": None, "episode_return_std": None}


def test_files_are_found_by_their_names(path: Path, tmp_path: Path) -> None:
    assert find_replay_file(str(path)) == path
    assert find_replay_file(str(path.with_suffix(""))) == path
    write_replay_file(tmp_path / "run" / "replay", pendulum_columns(), TITLE)
    for name, num_steps in {"lr_0.1": 16, "lr_0.2": 32, "lr_0.3.npz": 48}.items():  # dots in names
        write_replay_file(tmp_path / name, pendulum_columns(num_steps), TITLE)
    for name, num_steps in {"lr_0.1": 16, "lr_0.2": 32, "lr_0.3": 48}.items():
        assert read_replay_facts(find_replay_file(str(tmp_path / name)))["num_steps"] == num_steps
    assert find_replay_file(str(tmp_path / "run")) == tmp_path / "run" / "replay.npz"
    with raises_naming(ReplayFileError, "no replay.npz", "evorl save-replay run="):
        find_replay_file(str(path.parent))
    with raises_naming(ReplayFileError, "replay file", "nowhere", "evorl save-replay"):
        find_replay_file(str(tmp_path / "nowhere"))


BROKEN: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no description": (
        lambda path: path.with_suffix(".json").unlink(),
        ("description of pendulum.npz", "cannot be read"),
    ),
    "no JSON": (lambda path: path.with_suffix(".json").write_text("{", "utf-8"), ("pendulum.json", "valid JSON")),
    "a list": (
        lambda path: path.with_suffix(".json").write_text("[]", "utf-8"),
        ("pendulum.json", "num_steps and columns"),
    ),
    "another format": (lambda path: _describe(path, format=7), ("pendulum.json", "format must be 1", "got 7")),
    "a column less": (lambda path: _describe(path, columns={}), ("pendulum.npz", "column 'actions'")),
    "other lengths": (lambda path: _describe(path, num_steps=3), ("pendulum.npz", "float32[256, 3]", "float32[3, 3]")),
    "half a file": (lambda path: path.write_bytes(path.read_bytes()[:999]), ("pendulum.npz", "cannot be read")),
    "no numbers": (lambda path: _with_nan(path), ("rewards", "pendulum.npz", "row 5")),
}


def _describe(path: Path, **changes: object) -> None:
    described = json.loads(path.with_suffix(".json").read_text("utf-8"))
    path.with_suffix(".json").write_text(json.dumps(described | changes), "utf-8")


def _with_nan(path: Path) -> None:
    columns = pendulum_columns()
    columns["rewards"][5] = np.nan
    np.savez(path, **columns)


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_broken_is_told_in_words(path: Path, kind: str) -> None:
    damage, message = BROKEN[kind]
    damage(path)
    with raises_naming(ReplayFileError, *message):
        read_columns(path, read_replay_facts(path))


def test_nothing_is_executed(path: Path) -> None:
    columns = {**pendulum_columns(), "obs": np.array([{"a": 1}] * NUM_STEPS, object)}
    with path.open("wb") as file:
        np.savez(file, **columns)
    with raises_naming(ReplayFileError, "pendulum.npz", "cannot be read"):
        read_columns(path, read_replay_facts(path))


INVALID: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "a column less": ({"termination": None}, ("column 'termination'",)),
    "a shorter column": ({"rewards": np.zeros(NUM_STEPS - 1, np.float32)}, ("float32[256", "255 steps")),
    "no steps": ({name: x[:0] for name, x in pendulum_columns().items()}, ("0 steps",)),
    "numbers as flags": ({"truncation": np.zeros(NUM_STEPS)}, ("truncation", "float64", "bool")),
    "a matrix of rewards": ({"rewards": np.zeros((NUM_STEPS, 1))}, ("rewards", "[256, 1]", "number")),
    "objects": ({"obs": np.array([{"a": 1}] * NUM_STEPS, object)}, ("obs", "object", "numbers")),
    "a dict of arrays": ({"obs": {"a": np.zeros((NUM_STEPS, 2))}}, ("obs", "column for each entry")),
    "a scalar": ({"obs": 0.0}, ("obs", "256 steps")),
    "not finite": ({"obs": np.full((NUM_STEPS, 3), np.inf)}, ("obs", "not finite", "row 0")),
}


@pytest.mark.parametrize("kind", INVALID)
def test_what_could_not_be_read_is_not_written(path: Path, kind: str) -> None:
    changes, message = INVALID[kind]
    before = path.read_bytes()
    columns = {name: x for name, x in {**pendulum_columns(), **changes}.items() if x is not None}
    with raises_naming(ReplayFileError, *message):
        write_replay_file(path, columns, TITLE)
    assert path.read_bytes() == before


def test_lists_and_arrays_of_jax_are_columns(tmp_path: Path) -> None:
    low = jnp.asarray(pendulum_columns()["obs"], jnp.bfloat16)
    rewards = [float(x) for x in pendulum_columns()["rewards"]]
    write_replay_file(str(tmp_path / "data"), {**pendulum_columns(), "obs": low, "rewards": rewards}, TITLE)
    columns = read_columns(tmp_path / "data.npz", read_replay_facts(tmp_path / "data.npz"))
    np.testing.assert_array_equal(columns["obs"], low.astype(jnp.float32))  # NumPy's files have no bfloat16
    np.testing.assert_array_equal(columns["rewards"], rewards)


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_old_file_stays_where_the_new_one_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    with monkeypatch.context() as patched, pytest.raises(RunFolderError):
        patched.setattr(np, "savez", _full_disk)
        write_replay_file(path.with_suffix(""), pendulum_columns(), TITLE)
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["pendulum.json", "pendulum.npz"]
    link = path.with_name("link.npz")
    link.symlink_to(path)
    with raises_naming(RunFolderError, "link.npz", "symbolic link"):
        write_replay_file(link.with_suffix(""), pendulum_columns(), TITLE)

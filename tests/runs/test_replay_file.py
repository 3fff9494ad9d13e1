"""Files of recorded transitions: round trips, reading by NumPy, and errors for corrupted files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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
    write_replay_file(path.with_suffix(""), columns, TITLE)


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


def test_an_old_file_stays_where_the_new_one_cannot_be_written(path: Path) -> None:
    before = path.read_bytes()
    columns = {**pendulum_columns(), "obs": np.array([{"a": 1}] * NUM_STEPS, object)}
    with pytest.raises(ValueError, match="Object arrays cannot"):
        write_replay_file(path.with_suffix(""), columns, TITLE)
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["pendulum.json", "pendulum.npz"]
    link = path.with_name("link.npz")
    link.symlink_to(path)
    with raises_naming(RunFolderError, "link.npz", "symbolic link"):
        write_replay_file(link.with_suffix(""), pendulum_columns(), TITLE)

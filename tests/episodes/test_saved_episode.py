"""Episodes as files."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.episodes.saved_episode import SavedEpisode
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming

ARRAYS = {"qpos": np.arange(8.0).reshape(4, 2) / 3, "action": np.ones((3, 1), np.float32)}
EPISODE = SavedEpisode({"env": {"name": "hopper"}, "length": 3, "return": 1.0}, ARRAYS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "episodes" / "000000001000_000"
    EPISODE.save(path)
    return path


def test_numpy_alone_opens_it(path: Path) -> None:
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["qpos"], ARRAYS["qpos"])
        assert stored["qpos"].dtype == np.float64
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["env"] == {"name": "hopper"}
    assert about["arrays"]["action"] == {"shape": [3, 1], "dtype": "float32"}
    assert sorted(file.name for file in path.parent.iterdir()) == [f"{path.name}.json", f"{path.name}.npz"]


@pytest.mark.parametrize("suffix", ["", ".npz", ".json"])
def test_it_is_read_by_either_name_and_written_again(path: Path, suffix: str) -> None:
    episode = SavedEpisode.load(path.with_suffix(suffix))
    assert episode.about["length"] == 3
    assert episode.arrays.keys() == ARRAYS.keys()
    SavedEpisode({**EPISODE.about, "length": 0}, {"qpos": ARRAYS["qpos"][:1]}).save(path)
    assert SavedEpisode.load(path).arrays["qpos"].shape == (1, 2)


@pytest.mark.parametrize("suffix", ["", ".npz", ".json"])
def test_names_with_dots_are_different_episodes(suffix: str, tmp_path: Path) -> None:
    names = ["lr_0.5", "lr_0.1", "lr_0", "a.npz.x", "1.5e-3"]
    for number, name in enumerate(names):
        SavedEpisode({**EPISODE.about, "return": float(number)}, ARRAYS).save(tmp_path / f"{name}{suffix}")
    assert len(list(tmp_path.iterdir())) == 2 * len(names)
    for number, name in enumerate(names):
        for ending in ("", ".npz", ".json"):
            assert SavedEpisode.load(tmp_path / f"{name}{ending}").about["return"] == number


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16", "uint8"])
def test_floats_that_numpy_cannot_read_keep_their_values(dtype: str, tmp_path: Path) -> None:
    obs = jnp.arange(8).reshape(4, 2).astype(dtype)
    SavedEpisode(EPISODE.about, {**ARRAYS, "obs": np.asarray(obs)}).save(tmp_path / "low")
    np.testing.assert_array_equal(SavedEpisode.load(tmp_path / "low").arrays["obs"], obs.astype(jnp.float32))


def test_what_is_missing_or_damaged_is_told(path: Path, tmp_path: Path) -> None:
    with raises_naming(RunFolderError, "none.json", "no file", ".npz"):
        SavedEpisode.load(tmp_path / "none.npz")
    whole = path.with_suffix(".npz").read_bytes()
    path.with_suffix(".npz").write_bytes(whole[:100])
    with raises_naming(RunFolderError, path, "corrupted"):
        SavedEpisode.load(path)
    with path.with_suffix(".npz").open("wb") as file:
        np.savez(file, qpos=ARRAYS["qpos"][:2], action=ARRAYS["action"])
    with raises_naming(RunFolderError, "description", "arrays"):
        SavedEpisode.load(path)
    path.with_suffix(".npz").write_bytes(whole)
    path.with_suffix(".json").write_text("{}")
    with raises_naming(RunFolderError, path.with_suffix(".json"), "description of an episode"):
        SavedEpisode.load(path)


def test_objects_are_not_read(path: Path) -> None:
    """Files with pickled objects, which could run code, are rejected."""
    np.savez(path.with_suffix(".npz"), qpos=np.array([print], dtype=object))
    with raises_naming(RunFolderError, path, "corrupted"):
        SavedEpisode.load(path)


def test_nothing_is_written_through_a_link(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    path.with_suffix(".npz").unlink()
    path.with_suffix(".npz").symlink_to(precious)
    with raises_naming(RunFolderError, ".npz", "symbolic link"):
        EPISODE.save(path)
    assert not precious.exists()

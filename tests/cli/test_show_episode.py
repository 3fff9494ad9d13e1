"""Selection of the replayed episode, and errors without episodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evorl.cli import show_episode
from evorl.cli.show_episode import show_episode_from_arguments
from evorl.episodes.saved_episode import SavedEpisode
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming

WALK = {"obs": np.linspace(0.0, 1.0, 12).reshape(4, 3), "reward": np.ones(3)}


@pytest.fixture(autouse=True)
def nothing_chosen_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_episode, "draw_without_screen", lambda: None)


def save(path: Path, env: dict, arrays: dict[str, np.ndarray] = WALK) -> Path:
    SavedEpisode({"env": env, "length": 3, "return": 3.0, "name": "Pendulum-v1"}, arrays).save(path)
    return path


def test_the_last_episode_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path, {"seed": 1})
    with raises_naming(RunFolderError, "saved episodes", "evorl evaluate run="):
        show_episode_from_arguments([f"run={folder.path}"])
    for steps in (100, 200):
        save(folder.episodes / f"{steps:012d}_000", {"library": "gymnax", "name": "Pendulum-v1"})
    picture = show_episode_from_arguments([f"run={folder.path.name}", f"runs_folder={tmp_path}"])
    assert picture == folder.episodes / "000000000200_000.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"000000000200_000.npz: 3 steps, return 3.00: {picture}\n"


def test_pictures_are_no_vectors(tmp_path: Path) -> None:
    path = save(tmp_path / "images", {"name": "gymnax/Breakout-MinAtar"}, {"obs": np.zeros((4, 10, 10, 4))})
    with raises_naming(ValueError, "observations are not vectors", "arrays are obs"):
        show_episode_from_arguments([f"episode={path}"])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("episode=<file>", "run=<folder>")),
        (["episode=a", "run=b"], ("episode=<file>", "run=<folder>")),
        (["episode"], ("'episode' is not an option", "episode=VALUE")),
        (["episode=a", "frame=3"], ("option of evorl show-episode", "'frame'", "'frames'")),
        (["episode=a", "frames=0"], ("frames", "got 0.")),
        (["episode=a", "trust=1"], ("trust", "true or false, got 1")),
    ],
)
def test_arguments_are_checked(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        show_episode_from_arguments(arguments)


def test_a_plot_has_the_extension_of_its_format(tmp_path: Path) -> None:
    file = save(tmp_path / "a", {"library": "gymnax", "name": "Pendulum-v1"})
    target = tmp_path / "b.gif"
    with raises_naming(ValueError, target, ".png", "no MuJoCo positions"):
        show_episode_from_arguments([f"episode={file}", f"to={target}"])
    assert not target.exists()


def test_a_strangers_code_is_not_executed(tmp_path: Path) -> None:
    path = save(tmp_path / "theirs", {"factory": "os:system", "command": "touch executed"})
    assert json.loads(path.with_suffix(".json").read_text())["env"]["factory"] == "os:system"
    with raises_naming(RunFolderError, "outside evorl", "env.factory=os:system"):
        show_episode_from_arguments([f"episode={path}"])

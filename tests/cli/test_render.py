"""``evorl render`` on a stored run: images, output files, and errors."""

from __future__ import annotations

import ctypes.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import evorl
from evorl.cli import main as cli
from evorl.cli import render
from evorl.cli.options import RENDER, RENDER_FORMATS
from evorl.cli.render import render_from_arguments
from evorl.rendering.players import players_of
from evorl.reports.seed_choice import choose_seed
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from tests.support.command_line import QUIET
from tests.support.errors import raises_naming

SMALL = (
    "agent=random env=cartpole env.max_episode_steps=12 num_envs=2 rollout_length=8 total_timesteps=64 "
    "eval_interval=32 eval_episodes=2"
).split() + QUIET


@pytest.fixture
def trained(train_once: Callable[..., RunFolder]) -> RunFolder:
    return train_once(*SMALL)


def test_the_episodes_are_those_of_an_evaluation(
    trained: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evorl", f"run={trained.path}", "eval_episodes=2"])
    cli.evaluate()
    evaluated = float(re.search(r"episode_return +([\d.]+)", capsys.readouterr().out)[1])  # pyright: ignore[reportOptionalSubscript]
    picture = render_from_arguments([f"run={trained.path}", "episodes=2", "frames=5", "size=40"])
    assert picture.parent == trained.videos
    assert re.fullmatch(r"0000000000(32|64)\.webp", picture.name)
    output = capsys.readouterr().out
    returns = [float(value) for value in re.findall(r"\(end\)  return ([\d.]+)", output)]
    assert len(returns) == 2
    assert sum(returns) / 2 == pytest.approx(evaluated, abs=0.01)
    assert output.rstrip().endswith(str(picture))
    with Image.open(picture) as animation:
        assert animation.n_frames <= 5  # equal frames are merged
        assert animation.size[0] > 2 * 80  # two tiles side by side


def test_a_page_of_what_has_no_bodies_holds_the_picture(trained: RunFolder, tmp_path: Path) -> None:
    page = render_from_arguments(
        [f"run={trained.path}", "episodes=1", "frames=3", "size=32", f"to={tmp_path / 'a' / 'page.html'}", "seed=4"]
    )
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/webp;base64,") == 1
    assert "http:" not in text
    assert "https:" not in text


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("run=<folder>",)),
        (["run=a", "episode=3"], ("option of evorl render", "'episode'", "'episodes'")),
        (["run=a", "format=mov"], ("format 'mov'",)),
        (["run=a", "to=b.jpg"], ("to=b.jpg", "suffix 'jpg'")),
        (["run=a", "format=gif", "to=b.png"], ("to=b.png", "format=gif", ".gif")),
        (["run=a", "format=html", "to=b.GIF"], ("to=b.GIF", "format=html", ".html")),
        (["run=a", "format=webp", "to=b.html"], ("to=b.html", "format=webp", ".webp")),
        (["run=a", "format=mp4", "to=b"], ("to=b", "format=mp4", ".mp4")),
        (["run=a", "to=b"], ("to=b", "format=webp", ".webp")),
        (["run=a", "frames=0"], ("frames", "got 0.")),
        (["run=a", "fps=0"], ("fps", "(0, 100], got 0.")),
        (["run=a", "size=100000"], ("size", "16 to 4,096, got 100000.")),
        (["run=a", "episodes=100", "frames=1000", "size=4096"], ("5,033.2 GB", "2.0 GB")),
        (["run=a", "cells=[]"], ("cells", "number of elites")),
        (["run=a", "cells=best"], ("cells", "number of elites")),
        (["run=a", "seed=-1"], ("seed", "got -1")),
        (["run=a", "checkpoint=first"], ("checkpoint", "'best', 'latest'", "got 'first'.")),
        (["run=a", "seed_number=-1"], ("seed_number", "best", "got '-1'")),
        (["run=a", "trust=1"], ("trust", "true or false, got 1")),
    ],
)
def test_arguments_are_checked(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        render_from_arguments(arguments)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(["agent=random"], id="one agent"),
        pytest.param(["agent=ec/openes", "optimizer.pop_size=4"], id="evolution"),
        pytest.param(["agent=meta/pbt", "pop_size=2", "inner.num_envs=2", "inner.rollout_length=8"], id="population"),
        pytest.param(["agent=qd/map_elites", "pop_size=4"], id="archive"),
    ],
)
def test_of_several_seeds_one_is_shown(
    kind: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default the seed with the best evaluation is rendered, also from notebooks and for every kind of run."""
    own = [setting for setting in SMALL if not setting.startswith(("agent=", "num_envs", "rollout_length"))]
    of_agent = ["num_envs=2", "rollout_length=8"] if kind == ["agent=random"] else []
    folder = evorl.train(*own, *of_agent, *kind, num_seeds=2, runs_folder=tmp_path)
    capsys.readouterr()
    best = choose_seed(folder, 2, 10**9).number
    small = {"run": folder, "size": 24, "frames": 2, "format": "png"}
    if "map_elites" not in kind[0]:
        small["episodes"] = 1
    assert evorl.render(**small).stat().st_size
    assert f"seed_number={best} of 2 seeds (the best by evaluation" in capsys.readouterr().out
    other = evorl.render(**small, seed_number=1 - best)
    assert f"seed_number_{1 - best}" in other.name
    assert f"seed_number={1 - best} of 2 seeds:" in capsys.readouterr().out
    with raises_naming(ValueError, "seed_number=2", "0 to 1"):
        evorl.render(**small, seed_number=2)
    if kind != ["agent=random"]:  # its policy has no observation
        observation = np.zeros(4)
        actions = [evorl.load_policy(folder, seed_number=number)(observation) for number in ("best", best)]
        assert actions[0] == actions[1]
    monkeypatch.setattr(sys, "argv", ["evorl", f"run={folder}"])
    cli.evaluate()
    assert "for each of 2 seeds" in capsys.readouterr().out


def test_cells_need_an_archive(trained: RunFolder) -> None:
    with raises_naming(ValueError, "cells=4", "archive", "RandomAgentWorkflow"):
        render_from_arguments([f"run={trained.path}", "cells=4"])


@pytest.mark.parametrize("kind", ["html", "gif"])
def test_many_pictures_are_refused(trained: RunFolder, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of environments without bodies, and elites beyond ``episodes=``, need as much memory as other images."""
    monkeypatch.setattr(render, "MAX_PICTURE_BYTES", 3 * 2 * 4 * 32**2 - 1)
    monkeypatch.setattr(render, "players_of", lambda *arguments: [*players_of(*arguments), *players_of(*arguments)])
    with raises_naming(ValueError, "GB", "smaller"):
        render_from_arguments([f"run={trained.path}", "episodes=1", "frames=4", "size=32", f"format={kind}"])


def test_no_such_run(tmp_path: Path) -> None:
    with raises_naming(RunFolderError, "no folder", tmp_path / "none"):
        render_from_arguments([f"run={tmp_path / 'none'}", f"runs_folder={tmp_path}"])


def test_every_format_is_told() -> None:
    assert all(name in RENDER["format"].meaning for name in RENDER_FORMATS)


def test_a_training_is_drawn_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["evorl", *SMALL, f"runs_folder={tmp_path}", "render_interval=32"])
    started = []

    def start(command: list[str], **options: object) -> object:
        started.append(command[3:])
        return subprocess.CompletedProcess(command, 0)  # as if the command had succeeded

    monkeypatch.setattr(subprocess.CompletedProcess, "poll", lambda self: self.returncode, raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    cli.train()
    folder = RunFolder.latest(tmp_path)
    assert started[-1] == ["render", f"run={folder.path}", "trust=true"]
    monkeypatch.undo()
    picture = render_from_arguments([*started[-1][1:], "size=16", "frames=2"])
    assert picture.parent == folder.videos
    assert picture.stat().st_size


def test_where_nothing_can_draw_a_page_is_offered(tmp_path: Path) -> None:
    """Without a renderer, ``evorl render`` suggests an HTML page, which it can write."""
    root = tmp_path / "runs"
    settings = [*SMALL, "env=host/inverted_pendulum", f"runs_folder={root}"]
    call = "from evorl.cli.commands import main; main()"
    environment = {**os.environ, "MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}
    environment.pop("DISPLAY", None)

    def command(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", call, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**environment, **changes},
        )

    done = command("train", *settings, MUJOCO_GL="disable")
    assert done.returncode == 0, done.stderr
    run = [f"run={RunFolder.latest(root).path}", "episodes=1", "frames=3", "size=32"]
    page = command("render", *run, "format=html")
    assert page.returncode == 0, page.stderr
    assert Path(page.stdout.splitlines()[-1]).suffix == ".html"
    cartpole = [*SMALL, "env=gymnasium/CartPole-v1", f"runs_folder={root}"]
    assert command("train", *cartpole).returncode == 0
    pictures = command("render", f"run={RunFolder.latest(root).path}", *run[1:])
    assert pictures.returncode == 0, pictures.stderr  # not drawn by MuJoCo
    if ctypes.util.find_library("OSMesa") is None:
        picture = command("render", *run)
        assert picture.returncode == 1
        assert "apt-get install libegl1 libegl-mesa0" in picture.stderr
        assert picture.stderr.endswith("shown without a graphics library: format=html.\n")

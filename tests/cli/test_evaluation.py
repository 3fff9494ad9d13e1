"""Files that evaluations of goal-conditioned runs write, from the command line."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evorl.cli import main as cli
from evorl.cli import show_episode
from evorl.cli.evaluation import evaluate_run
from evorl.cli.save_replay import save_replay_of_run
from evorl.episodes.saved_episode import SavedEpisode
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StoredRun
from evorl.workflows.workflow import Workflow
from tests.support.command_line import QUIET
from tests.support.errors import assert_names, raises_naming

SMALL = (
    "agent=random env=goal/point_maze env.maze=open env.max_episode_steps=8 num_envs=2 rollout_length=8 "
    "total_timesteps=64 eval_interval=32 eval_episodes=6 evaluation.save_episodes=2 evaluation.plot_episodes=3"
).split() + QUIET


@pytest.fixture
def trained(train_once: Callable[..., RunFolder]) -> RunFolder:
    return train_once(*SMALL)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_training_leaves_goals_episodes_and_pictures(trained: RunFolder) -> None:
    with trained.eval_goals.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["timesteps"] for row in rows] == ["0"] * 6 + ["32"] * 6 + ["64"] * 6
    saved = [f"{steps:012d}_{i:03d}.{kind}" for steps in (0, 32, 64) for i in range(2) for kind in ("json", "npz")]
    assert names(trained.episodes) == saved
    assert names(trained.plots) == [f"{steps:012d}.png" for steps in (0, 32, 64)]
    episode = SavedEpisode.load(trained.episodes / "000000000064_001.npz")
    assert episode.about["env"]["maze"] == "open"
    assert (episode.about["library"], episode.about["name"], episode.about["seed"]) == ("goal", "point_maze", 0)
    desired = [float(rows[13][f"desired_{i}"]) for i in range(2)]
    np.testing.assert_allclose(episode.arrays["obs.desired_goal"][0], desired, rtol=1e-6)
    assert episode.about["return"] == float(rows[13]["return"])


def test_a_resumed_run_leaves_what_a_whole_one_does(run, trained: RunFolder, tmp_path: Path) -> None:
    run(cli.train, *SMALL, f"runs_folder={tmp_path}")
    folder = RunFolder.latest(tmp_path)
    shutil.rmtree(max(folder.checkpoints.glob("[0-9]*")))  # as if the run had been killed before the last save
    (folder.episodes / "000000000048_000.npz").touch()  # written with an earlier configuration
    _, err = run(cli.train, f"resume={folder.path}")
    assert err == ""
    assert folder.eval_goals.read_bytes() == trained.eval_goals.read_bytes()
    assert names(folder.episodes) == names(trained.episodes)
    assert names(folder.plots) == names(trained.plots)


def test_an_evaluation_tells_which_goals_are_reached(run, trained: RunFolder) -> None:
    before = trained.eval_goals.read_bytes(), names(trained.episodes)
    out, err = run(cli.evaluate, f"run={trained.path}", "eval_episodes=40", "evaluation.goal_cells=2", "seed=3")
    assert err == ""
    lines = out.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split() == "goal episodes success ever return".split())
    table = lines[header + 1 : header + 5]
    assert [line.split()[0] for line in table] == ["goal_0"] * 4
    assert sum(int(line.split()[8]) for line in table) == 40
    assert "To watch one: evorl show-episode episode=" in out
    assert trained.eval_goals.read_bytes() == before[0]
    new = set(names(trained.episodes)) - set(before[1])
    stems = {Path(name).stem.removesuffix("_000").removesuffix("_001") for name in new}
    assert len(new) == 4
    assert len(stems) == 1
    assert stems.pop().endswith("_evaluated_3")


@pytest.mark.parametrize("command", ["evaluate", "save_replay"])
def test_simulators_end_with_the_command(
    command: str, trained: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs that evaluate several runs would keep the processes of all their simulators."""
    closed: list[Workflow] = []
    monkeypatch.setattr(Workflow, "close", lambda workflow: closed.append(workflow))
    named = RunSpec(stored=StoredRun(run=str(trained.path)))
    if command == "evaluate":
        evaluate_run(named)
    else:
        with raises_naming(ValueError, "off-policy"):
            save_replay_of_run(named)
    assert len(closed) == 1


def test_a_run_without_records_can_be_evaluated_with_records(run, trained: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(trained.path, tmp_path / "run"))
    config = folder.load_config()
    config.evaluation = None
    folder.update_config(config)
    out, err = run(cli.evaluate, f"run={folder.path}", "evaluation.save_episodes=1", "seed=3")
    assert err == ""
    assert_names(out, "_evaluated_3_000.npz")


def test_a_checkpoint_plays_the_episodes_of_its_training_again(run, trained: RunFolder) -> None:
    (steps,) = {path.name[:12] for path in trained.episodes.glob("*64_*.npz")}
    before = SavedEpisode.load(trained.episodes / f"{steps}_000.npz")
    out, _ = run(cli.evaluate, f"run={trained.path}", "evaluation.plot_episodes=null")
    played = next(line for line in out.splitlines() if line.startswith("checkpoint of "))
    if played.startswith("checkpoint of 64 "):
        after = SavedEpisode.load(trained.episodes / f"{steps}_000.npz")
        np.testing.assert_array_equal(after.arrays["obs.achieved_goal"], before.arrays["obs.achieved_goal"])
    assert "trajectories are drawn" not in out


def test_an_episode_without_bodies_is_drawn(
    run, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show_episode, "draw_without_screen", lambda: None)  # it would affect the whole process
    out, err = run(cli.show_episode, f"run={trained.path}", f"to={tmp_path / 'way.png'}")
    assert err == ""
    assert out.endswith(f": {tmp_path / 'way.png'}\n")
    assert (tmp_path / "way.png").stat().st_size > 1000


def test_what_cannot_be_kept_is_one_sentence(run, tmp_path: Path) -> None:
    _, err = run(cli.train, *SMALL, f"runs_folder={tmp_path}", "evaluation.save_episodes=9")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert_names(err, "evaluation.save_episodes=9", "eval_episodes=6", "record fewer")
    assert list(tmp_path.iterdir()) == []

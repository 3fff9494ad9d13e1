"""Files of recorded evaluations, selected by the config."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.assembly import workflow_from_config
from evorl.episodes.saved_episode import SavedEpisode
from evorl.recorders.episode_records import episode_recorders
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from tests.support.recorded_runs import kept_episodes

CONFIG = {
    "workflow": "evorl.algorithms.random_agent.RandomAgentWorkflow",
    "env": {"name": "goal/point_maze", "goal_setter": "achieved"},
    "seed": 3,
    "eval_episodes": 5,
}


@pytest.mark.parametrize(
    ("evaluation", "of_training", "written"),
    [
        ({"goals": True}, True, ["eval_goals.csv"]),
        ({"goals": True}, False, []),
        ({"save_episodes": 1}, True, ["episodes"]),
        ({"plot_episodes": 1}, False, ["plots"]),
        ({"goals": True, "save_episodes": 1, "plot_episodes": 2}, True, ["episodes", "eval_goals.csv", "plots"]),
        (None, True, []),
    ],
)
def test_what_is_asked_for_is_written(
    tmp_path: Path, evaluation: dict | None, of_training: bool, written: list
) -> None:
    config = {**CONFIG, "evaluation": evaluation}
    folder = RunFolder.create(tmp_path, {})
    for recorder in episode_recorders(
        folder, workflow_from_config(config), RunSpec.from_config(config), of_training, "_evaluated_1"
    ):
        recorder.evaluation(1, 100, kept_episodes())
        recorder.close()
    assert sorted(path.name for path in folder.path.iterdir()) == sorted(["config.yaml", *written])
    if folder.episodes.exists():
        about = SavedEpisode.load(folder.episodes / "000000000100_evaluated_1_000").about
        assert about["env"] == {"name": "goal/point_maze"}  # as played: without the goal setter of training
        assert about["seed"] == 3

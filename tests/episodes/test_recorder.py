"""Evaluation episodes as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evorl.episodes.recorder import EpisodeRecorder
from evorl.episodes.saved_episode import SavedEpisode
from tests.support.recorded_runs import LENGTHS, QPOS, kept_episodes, make_plan

ABOUT = {"library": "goal", "name": "walk", "env": {"library": "goal", "name": "walk"}, "seed": 7}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.npz"))


def test_an_episode_has_all_its_steps_and_no_more(tmp_path: Path) -> None:
    EpisodeRecorder(tmp_path, ABOUT, 2).evaluation(5, 1000, kept_episodes())
    assert names(tmp_path) == ["000000001000_000.npz", "000000001000_001.npz"]
    episode = SavedEpisode.load(tmp_path / "000000001000_001.npz")
    about, arrays, length = episode.about, episode.arrays, LENGTHS[1]
    assert {name: about[name] for name in ABOUT} == ABOUT
    assert (about["iterations"], about["timesteps"], about["episode"], about["length"]) == (5, 1000, 1, length)
    assert (about["return"], about["success"], about["success_ever"]) == (-3.0, True, True)
    assert arrays["qpos"].dtype == np.float64
    np.testing.assert_array_equal(arrays["qpos"], QPOS[1, : length + 1])
    np.testing.assert_array_equal(arrays["qvel"], 2 * QPOS[1, : length + 1])
    moments, steps = {"obs.observation", "obs.achieved_goal", "obs.desired_goal", "qpos", "qvel"}, length
    assert {name for name, x in arrays.items() if len(x) == steps + 1} == moments
    assert {name for name, x in arrays.items() if len(x) == steps} == {"action", "reward", "termination", "success"}
    np.testing.assert_array_equal(arrays["success"], [False, False, False, True])


def test_of_seeds_each_has_its_own_and_evaluations_beside_the_run_another_name(tmp_path: Path) -> None:
    EpisodeRecorder(tmp_path, ABOUT, 1, "_evaluated_3").evaluation(5, 1000, kept_episodes(num_seeds=2))
    assert names(tmp_path) == [f"000000001000_evaluated_3_seed_{i}_000.npz" for i in range(2)]
    assert SavedEpisode.load(tmp_path / "000000001000_evaluated_3_seed_1_000").about["seed_index"] == 1


def test_a_resume_forgets_what_came_later(tmp_path: Path) -> None:
    recorder = EpisodeRecorder(tmp_path, ABOUT, 1)
    recorder.start(make_plan())
    for steps in (100, 200, 300):
        recorder.evaluation(steps // 100, steps, kept_episodes())
    (tmp_path / "notes.txt").touch()
    EpisodeRecorder(tmp_path, ABOUT, 1).start(make_plan(first_iterations=2))
    assert names(tmp_path) == ["000000000100_000.npz", "000000000200_000.npz"]
    assert (tmp_path / "notes.txt").exists()


def test_without_steps_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    EpisodeRecorder(folder, ABOUT, 1).evaluation(5, 1000, kept_episodes().replace(steps=None))
    assert not folder.exists()

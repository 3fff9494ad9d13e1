"""Learning curves of a training run, and its overrides."""

from __future__ import annotations

import pytest

from benchmarks.learning.judgment import judge
from benchmarks.learning.task import LearningTask
from benchmarks.learning.training import ScoreCurve, joined, overrides_of, train, trainings


def test_curve_keeps_evaluations_with_their_spread():
    times = iter([10.0, 12.0, 15.0])
    curve = ScoreCurve(clock=lambda: next(times))
    curve.write({"timesteps": 1, "train/loss": 0.0})
    curve.write({"timesteps": 2, "eval/episode_return": 7.0, "eval/episode_return_std": 0.5})
    over_seeds = {"eval/episode_return_seed_0": 7.0, "eval/episode_return_seed_1": 9.0}
    curve.write(
        {
            "timesteps": 3,
            "eval/episode_return": 8.0,
            "eval/episode_return_std": 0.5,
            "eval/episode_return_std_over_seeds": 1.0,
            **over_seeds,
        }
    )
    assert curve.points == [
        {"timesteps": 2, "seconds": 2.0, "mean": 7.0, "spread": 0.5},
        {"timesteps": 3, "seconds": 5.0, "mean": 8.0, "spread": 1.0, "by_seed": [7.0, 9.0]},
    ]


def test_another_score_is_kept_and_judged_by_its_name():
    judged_by = {"score": "train/qd_score", "one_seed_at_a_time": True}
    task = LearningTask("archive", "", (), threshold=50.0, within_timesteps=400, **judged_by)
    assert "qd_score" in task.limit
    times = iter([10.0, 12.0])
    curve = ScoreCurve(task.score, clock=lambda: next(times))
    curve.write({"timesteps": 2, "eval/episode_return": 7.0, "eval/episode_return_std": 0.5})
    curve.write({"timesteps": 3, "train/qd_score": 60.0})
    assert curve.points == [{"timesteps": 3, "seconds": 2.0, "mean": 60.0, "spread": None}]
    assert judge(task, {"curve": curve.points}).met


def test_number_of_seeds_and_steps_are_overrides():
    task = LearningTask("t", "", ("agent=ppo", "total_timesteps=10"), threshold=1.0, within_timesteps=10)
    evaluated = ["eval_episodes=20", "eval_at_start=false"]  # a lucky untrained policy has learned nothing
    assert overrides_of(task, 5) == ["agent=ppo", "total_timesteps=10", "num_seeds=5", *evaluated]
    assert overrides_of(task, 1, 20) == ["agent=ppo", "num_seeds=1", *evaluated, "total_timesteps=20"]


def test_seeds_one_after_another_are_told_as_side_by_side():
    task = LearningTask(
        "t",
        "",
        ("agent=reinforce", "env=cartpole", "eval_interval=2048"),
        threshold=1.0,
        within_timesteps=4096,
        one_seed_at_a_time=True,
    )
    result = train(task, 2, 4096)
    assert result["seeds"] == [0, 1]
    assert not any(override.startswith("seed=") for override in result["overrides"])
    assert result["timesteps"] == 4096
    for point in result["curve"]:
        assert len(point["by_seed"]) == 2
        assert point["mean"] == sum(point["by_seed"]) / 2
    assert len({tuple(point["by_seed"]) for point in result["curve"]}) == 2
    assert judge(task, result).met


def test_a_training_that_was_interrupted_continues_in_its_folder(tmp_path, monkeypatch):
    overrides = ("agent=reinforce", "env=cartpole", "eval_interval=2048", "log_interval=2048")
    task = LearningTask("t", "", overrides, threshold=1.0, within_timesteps=8192)
    whole = train(task, 2, 8192)
    assert len(whole["curve"]) == 4
    write = ScoreCurve.write

    def interrupted(curve, row):
        write(curve, row)
        if len(curve.points) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.learning.training.SAVE_SECONDS", 1e-9)
    monkeypatch.setattr(ScoreCurve, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(trainings(task, 2, 8192, folder=tmp_path))
    written = []
    monkeypatch.setattr(ScoreCurve, "write", lambda curve, row: (written.append(row), write(curve, row)))
    (result,) = trainings(task, 2, 8192, folder=tmp_path)
    assert 1 <= len([row for row in written if task.score in row]) <= 2  # the others are from before
    assert [point["by_seed"] for point in result["curve"]] == [point["by_seed"] for point in whole["curve"]]
    assert [point["timesteps"] for point in result["curve"]] == [2048, 4096, 6144, 8192]
    seconds = [point["seconds"] for point in result["curve"]]
    assert seconds == sorted(seconds)
    assert result["seconds"] >= seconds[-1]
    assert not list(tmp_path.iterdir())  # an ended training is not continued


def test_seeds_that_are_recorded_are_not_trained_again(monkeypatch):
    trained = []

    def quick(task, overrides, folder):
        seed = int(overrides[-1].removeprefix("seed="))
        trained.append(seed)
        curve = [{"timesteps": step, "seconds": step, "mean": seed + step, "spread": 1.0} for step in (1, 2)]
        return {"overrides": list(overrides), "seeds": [seed], "curve": curve, "seconds": 2.0, "load": seed / 10}

    monkeypatch.setattr("benchmarks.learning.training._train", quick)
    task = LearningTask("quick", "", ("agent=ppo",), threshold=1.0, within_timesteps=2, one_seed_at_a_time=True)
    first, second = trainings(task, 2)
    assert [first["seeds"], second["seeds"]] == [[0], [0, 1]]
    (third,) = trainings(task, 3, None, second)
    assert trained == [0, 1, 2]
    assert third == train(task, 3)
    list(trainings(task, 1, 500, second))  # other settings are a different training run
    assert trained[-1] == 0


def test_of_seeds_that_ended_early_counts_what_all_have():
    whole = [{"timesteps": step, "seconds": step, "mean": step, "spread": 1.0} for step in (1.0, 2.0)]
    other = [{"timesteps": 1.0, "seconds": 5.0, "mean": 3.0, "spread": 1.0}]
    assert joined([whole, other]) == [
        {"timesteps": 1.0, "seconds": 5.0, "mean": 2.0, "spread": 1.0, "by_seed": [1.0, 3.0]}
    ]

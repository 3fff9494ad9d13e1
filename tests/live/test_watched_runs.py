"""Growing runs, read from their folders."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.live import watched_runs
from evorl.live.watched_runs import WatchedRuns, as_points, thinned
from evorl.reports.recorded_run import Curve, RecordedRun
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import RUNNING, HeldState, RunState
from tests.support.errors import raises_naming
from tests.support.run_folders import PNG, START, make_run


def append(folder: RunFolder, text: str) -> None:
    with folder.metrics_csv.open("a") as file:
        file.write(text)


def listed(runs: WatchedRuns) -> dict[str, dict[str, Any]]:
    return {summary.data["name"]: summary.data for summary in runs.summaries()}


def test_what_is_told_of_a_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a/1", [[1.0, 3.0], [2.0, 4.0]], {"total_timesteps": 10_000}, start=START)
    held = HeldState(folder.state)
    held.write(RunState(RUNNING, 10_000))
    runs = WatchedRuns([str(tmp_path)])
    assert not runs.looked
    assert runs.refresh()
    run = listed(runs)["a/1"]
    assert (run["index"], run["algorithm"], run["env"], run["seeds"]) == (0, "ppo", "gymnax/CartPole-v1", 2)
    assert (run["state"], run["timesteps"], run["total"], run["return"]) == ("running", 2000, 10_000, 3.0)
    assert (run["steps_per_second"], run["seconds_left"]) == (200.0, 80.0)  # steps are counted per seed, of two
    assert run["metrics"] == ["eval/episode_return", "time/steps_per_second", "train/entropy", "train/value_loss"]
    assert json.loads(json.dumps(run)) == run
    assert not runs.refresh()
    held.release()  # as the system does for a killed process: no file changes
    assert runs.refresh()
    assert listed(runs)["a/1"]["state"] == "stopped"
    assert listed(runs)["a/1"]["seconds_left"] is None


def test_a_half_written_line_is_never_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", [[1.0], [2.0]])
    runs = WatchedRuns([str(folder.path)])
    runs.refresh()
    version = runs.version
    append(folder, "3,3000,3.3,0.5,1")  # completed to 12.5 below
    runs.refresh()
    curve = runs.curve(0, "eval/episode_return")
    assert curve is not None
    assert curve["points"] == [[1000.0, 1.0], [2000.0, 2.0]]
    append(folder, "2.5\n")
    assert runs.refresh()
    curve = runs.curve(0, "eval/episode_return")
    assert curve is not None
    assert curve["points"][-1] == [3000.0, 12.5]
    assert [summary.index for summary in runs.summaries(version)] == [0]
    assert runs.summaries(runs.version) == []


def test_curves_have_their_seeds_and_spread(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", [[1.0, 3.0], [2.0, 4.0]])
    lines = folder.metrics_csv.read_text().splitlines()
    lines[0] += ",eval/episode_return_std_over_seeds"
    folder.metrics_csv.write_text("\n".join([lines[0], lines[1] + ",1.0", lines[2] + ","]) + "\n")
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    curve = runs.curve(0, "eval/episode_return")
    assert curve is not None
    assert curve["seeds"] == [[[1000.0, 1.0], [2000.0, 2.0]], [[1000.0, 3.0], [2000.0, 4.0]]]
    assert curve["spread"] == [[1000.0, 1.0, 3.0]]
    speed = runs.curve(0, "time/steps_per_second")
    assert speed is not None
    assert (speed["points"], speed["seeds"], speed["spread"]) == ([[1000.0, 100.0], [2000.0, 200.0]], [], [])
    for index, metric in ((0, "nothing"), (1, "eval/episode_return"), (0, "../config.yaml")):
        assert runs.curve(index, metric) is None


def test_runs_appear_when_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = WatchedRuns([], tmp_path / "runs")
    assert runs.described_places == str(tmp_path / "runs")
    assert not runs.refresh()
    assert runs.looked
    make_run(tmp_path / "runs", "b", [[1.0]])
    monkeypatch.setattr(runs, "_look_again", 0.0)
    assert runs.refresh()
    make_run(tmp_path / "runs", "a", [[1.0]])
    monkeypatch.setattr(runs, "_look_again", 0.0)
    assert runs.refresh()
    assert {name: run["index"] for name, run in listed(runs).items()} == {"b": 0, "a": 1}  # indices are stable


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ppo/1", "ppo/2", "sac/1"):
        make_run(tmp_path / "runs", name, [[1.0]])
    cases = {("ppo",): ["1", "2"], ("ppo/1", "sac"): ["ppo/1", "sac/1"], ("runs/ppo/2",): ["ppo/2"]}
    for places, names in cases.items():
        runs = WatchedRuns(places)
        runs.refresh()
        assert list(listed(runs)) == names
    (tmp_path / "runs/ppo/config.yaml").write_bytes((tmp_path / "runs/ppo/1/config.yaml").read_bytes())
    (tmp_path / "runs/ppo/search.csv").touch()
    for place in ("ppo", "runs/ppo"):  # the folder of a search has a config, but is not a run
        runs = WatchedRuns([place])
        runs.refresh()
        assert list(listed(runs)) == ["1", "2"]
    (make_run(tmp_path / "runs", "new", [[1.0]]).path / "sweep.csv").touch()
    runs = WatchedRuns(["new"])
    runs.refresh()
    assert list(listed(runs)) == ["runs/new"], "a sweep in one program, which has no best run yet"
    with raises_naming(RunFolderError, "ppo/3", "no folder"):
        WatchedRuns(["ppo/3"])


def test_the_time_left_of_several_seeds_without_an_evaluation(tmp_path: Path) -> None:
    with HeldState(make_run(tmp_path / "runs", "a", [[1.0]], {"num_seeds": 4, "total_timesteps": 3000}).state):
        folder = RunFolder(tmp_path / "runs/a")
        folder.metrics_csv.write_text("iterations,timesteps,train/episode_return\n1,1000,2.0\n")
        runs = WatchedRuns([str(folder.path)])
        runs.refresh()
        (run,) = listed(runs).values()
    assert (run["seeds"], run["steps_per_second"], run["seconds_left"]) == (4, 100.0, 2000 * 4 / 100.0)


def test_a_run_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    damaged = make_run(tmp_path, "damaged", [[1.0]])
    append(damaged, "1,2\n")
    make_run(tmp_path, "strange", [[1.0]]).config.write_text("- a\n")
    make_run(tmp_path, "good", [[1.0]])
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    assert "header has 5" in listed(runs)["damaged"]["problem"]
    assert "problem" in listed(runs)["strange"]
    assert "problem" not in listed(runs)["good"]
    assert runs.curve(listed(runs)["damaged"]["index"], "eval/episode_return") is None


def test_the_newest_picture(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs", "a", [[1.0]])
    runs = WatchedRuns([str(tmp_path / "runs")])
    runs.refresh()
    assert (listed(runs)["a"]["picture"], runs.picture(0), runs.picture(7)) == (None, None, None)
    folder.learning_curve.write_bytes(PNG)
    os.utime(folder.learning_curve, (100, 100))
    runs.refresh()
    assert listed(runs)["a"]["picture"] == {"name": "learning_curve.png", "type": "image/png", "version": 100_000}
    folder.videos.mkdir()
    (folder.videos / "1.webp").write_bytes(b"film")
    runs.refresh()
    assert runs.picture(0) == (b"film", "image/webp")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder.videos / "1.webp").unlink()
    (folder.videos / "1.webp").symlink_to(tmp_path / "secret.png")
    assert runs.picture(0) is None  # it was not a link when it was found
    runs.refresh()
    assert runs.picture(0) == (PNG, "image/png")


def test_a_large_picture_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "a", [[1.0]]).learning_curve.write_bytes(PNG)
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    monkeypatch.setattr(watched_runs, "MAX_PICTURE", len(PNG) - 1)
    assert runs.picture(0) is None


def test_few_runs_are_kept_in_memory_and_few_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        os.utime(make_run(tmp_path, str(i), [[float(i)]]).config, (i, i))
    monkeypatch.setattr(watched_runs, "MAX_READ", 2)
    monkeypatch.setattr(watched_runs, "MAX_RUNS", 3)
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    assert sorted(listed(runs)) == ["2", "3", "4"]
    assert runs.notes == ["Shown: the newest 3 of 5 runs."]
    assert len(runs._read) == 2
    for name, run in listed(runs).items():
        curve = runs.curve(run["index"], "eval/episode_return")
        assert curve is not None
        assert curve["points"] == [[1000.0, float(name)]]
    assert len(runs._read) == 2


def test_numbers_of_a_server_are_told_apart(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", [[1.0]])
    header, row = folder.metrics_csv.read_text().splitlines()
    folder.metrics_csv.write_text(f"{header},serving/clients,serving/queue_length\n{row},4,0.5\n")
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    assert listed(runs)["a"]["serving"] == {"serving/clients": 4.0, "serving/queue_length": 0.5}


def test_thinning_keeps_the_peaks() -> None:
    values = np.zeros(10_000)
    values[1234], values[7777] = 5.0, -3.0
    kept = thinned(values, 100)
    assert len(kept) <= 102
    assert {0, 1234, 7777, 9999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    assert thinned(values[:7], 7).tolist() == list(range(7)) == thinned(values[:7], None).tolist()
    assert as_points(Curve(np.arange(3.0), np.arange(3.0)), 2)[0] == [0.0, 0.0]
    assert thinned(np.zeros(0), 2).tolist() == []


@pytest.mark.parametrize(
    "error", [OverflowError("too large"), KeyError("steps"), RecursionError(), ZeroDivisionError()]
)
def test_an_error_in_one_run_hides_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    make_run(tmp_path, "bad", [[1.0]])
    make_run(tmp_path, "good", [[1.0]])
    course = watched_runs._course

    def fails_for_one(run: RecordedRun, latest: dict[str, float]) -> dict[str, Any]:
        if run.name == "bad":
            raise error
        return course(run, latest)

    monkeypatch.setattr(watched_runs, "_course", fails_for_one)
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    assert runs.looked
    assert str(error) in listed(runs)["bad"]["problem"]
    assert type(error).__name__ in listed(runs)["bad"]["problem"]
    assert listed(runs)["good"]["return"] == 1.0


def test_a_deleted_run_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {name: make_run(tmp_path, name, [[1.0]]) for name in "abc"}
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    version = runs.version
    shutil.rmtree(folders["b"].path)
    monkeypatch.setattr(runs, "_look_again", 0.0)
    assert runs.refresh()
    assert {name: run["index"] for name, run in listed(runs).items()} == {"a": 0, "c": 2}
    assert runs.version > version
    assert runs.curve(1, "eval/episode_return") is None
    assert runs.picture(1) is None
    assert not runs.refresh()
    make_run(tmp_path, "b", [[5.0]])
    monkeypatch.setattr(runs, "_look_again", 0.0)
    assert runs.refresh()
    assert (listed(runs)["b"]["index"], listed(runs)["b"]["return"]) == (1, 5.0)
    curve = runs.curve(1, "eval/episode_return")
    assert curve is not None
    assert curve["points"] == [[1000.0, 5.0]]


def test_a_run_beyond_the_newest_is_removed_until_it_is_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_runs, "MAX_RUNS", 2)
    for i in range(2):
        os.utime(make_run(tmp_path, str(i), [[float(i)]]).config, (i, i))
    runs = WatchedRuns([str(tmp_path)])
    runs.refresh()
    newest = make_run(tmp_path, "2", [[2.0]])
    monkeypatch.setattr(runs, "_look_again", 0.0)
    runs.refresh()
    assert sorted(listed(runs)) == ["1", "2"]
    shutil.rmtree(newest.path)
    monkeypatch.setattr(runs, "_look_again", 0.0)
    assert runs.refresh()
    assert sorted(listed(runs)) == ["0", "1"]

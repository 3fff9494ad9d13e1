"""A run as recorded in its folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.reports.comparison import grouped
from evorl.reports.recorded_run import RecordedRun, curves_in, find_runs, named
from evorl.reports.run_list import cells
from evorl.reports.summary_table import as_csv, summary_rows
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.sweep_folder import SweepFolder
from evorl.sweeps.multirun import train_runs
from evorl.training.start import RunPlace, Trained
from tests.support.errors import raises_naming
from tests.support.run_folders import START, make_run, with_checkpoint


def read(folder: RunFolder) -> RecordedRun:
    return named([folder])[0]


def test_a_run_of_one_seed(tmp_path: Path) -> None:
    run = read(make_run(tmp_path, "ppo-cartpole/first", [[1.0], [3.0], [2.0]]))
    assert (run.name, run.algorithm, run.env) == ("ppo-cartpole/first", "ppo", "gymnax/CartPole-v1")
    assert (run.timesteps, run.total_timesteps) == (3000, 3000)
    assert (run.mean(), run.best(), run.steps_per_second) == (2.0, 3.0, 200.0)
    (curve,) = run.by_seed()
    np.testing.assert_array_equal(curve.steps, [1000, 2000, 3000])
    np.testing.assert_array_equal(run.curves["train/value_loss"].values, [10.0, 5.0, 10.0 / 3])


def test_each_seed_has_a_curve(tmp_path: Path) -> None:
    run = read(make_run(tmp_path, "run", [[float(10 * i + k) for k in range(12)] for i in range(2)]))
    assert [curve.values[-1] for curve in run.by_seed()] == list(range(10, 22))  # sorted by seed number, 10 after 9
    assert run.mean() == run.last().mean() == 15.5
    assert [len(run.by_seed(metric)) for metric in ("train/entropy", "eval/success")] == [1, 0]


def test_names_say_what_was_chosen(tmp_path: Path) -> None:
    pbt = make_run(tmp_path, "a", [[1.0]], algorithm="pbt.PBT", start=START | {"agent": "meta/pbt"})
    assert read(pbt).algorithm == "meta/pbt"
    assert read(make_run(tmp_path, "b", [[1.0]], algorithm="map_elites.MapElites")).algorithm == "map_elites"
    own = make_run(tmp_path, "c", [[1.0]], {"env": {"library": None, "name": None, "factory": "mine:make"}})
    assert read(own).env == "mine:make"
    assert read(make_run(tmp_path, "d", [[1.0]], {"env": "brax/ant"})).env == "brax/ant"


def test_time_is_from_each_start_to_its_last_row(tmp_path: Path) -> None:
    """The duration is the sum of the times from each start to its last row."""
    day = "2001-09-09T01:46:"
    without = make_run(tmp_path, "without", [[1.0]] * 3)
    assert read(without).seconds == 2.0
    once = make_run(tmp_path, "once", [[1.0]] * 3, start=START | {"time": f"{day}31+00:00"})
    assert read(once).seconds == 12.0
    again = make_run(tmp_path, "again", [[1.0]] * 3, start=START | {"time": f"{day}31+00:00"})
    again.about.write_text(again.about.read_text().replace("\n ]", f',\n  {{"time": "{day}42.5+00:00"}}\n ]'))
    assert len(read(again).starts) == 2
    assert read(again).seconds == 11.0 + 0.5


def test_what_is_torn_or_not_finite_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", [[1.0], [2.0]])
    with folder.metrics_csv.open("a") as file:
        file.write("3,3000,nan,0.5,7.0\n4,4000,1.0,0.5,9.")  # the last line is incomplete
    with folder.metrics_jsonl.open("a") as file:
        file.write('no row\n["none"]\n')
    run = read(folder)
    assert run.mean() == 7.0
    assert run.curves["train/value_loss"].steps[-1] == 2000
    assert run.steps_per_second == 150.0


@pytest.mark.parametrize(("line", "parts"), [("1,2\n", ("line 3", "header has 5")), ("1,2,x,4,5\n", ("line 3", "'x'"))])
def test_a_damaged_table_is_told(tmp_path: Path, line: str, parts: tuple[str, ...]) -> None:
    folder = make_run(tmp_path, "run", [[1.0]])
    with folder.metrics_csv.open("a") as file:
        file.write(line)
    with raises_naming(RunFolderError, *parts):
        read(folder).is_readable()


@given(st.permutations([(0, 1.0), (100, 2.0), (100, 3.0), (300, 4.0), (400, math.nan)]))
def test_rows_in_any_order_are_a_curve(rows: list[tuple[int, float]]) -> None:
    """Charts interpolate between steps in ascending order; tables joined by hand gave warnings of NumPy."""
    curve = curves_in({"timesteps": steps, "eval/episode_return": value} for steps, value in rows)
    (each,) = curve.values()
    assert each.steps.tolist() == [0, 100, 100, 300]
    assert each.values.tolist() == [1.0, *[value for steps, value in rows if steps == 100], 4.0]


def test_a_table_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    """A list of runs omits such a run; the bare error of the system ended the whole list."""
    run = make_run(tmp_path, "run", [[1.0]])
    run.metrics_csv.unlink()
    run.metrics_csv.mkdir()
    with raises_naming(RunFolderError, "metrics.csv cannot be read", "directory"):
        read(run).is_readable()


def test_who_can_be_resumed(tmp_path: Path) -> None:
    stopped = make_run(tmp_path, "stopped", [[1.0]], log="Stopping early at 1,000 of 9,000 steps.")
    assert not read(stopped).can_be_resumed  # no checkpoint to resume from
    assert read(with_checkpoint(stopped)).can_be_resumed
    assert not read(with_checkpoint(make_run(tmp_path, "finished", [[1.0]]))).can_be_resumed


def test_runs_are_found_at_any_depth(tmp_path: Path) -> None:
    for name in ("b/2", "a", "b/1"):
        make_run(tmp_path, name, [[1.0]])
    RunFolder.create(tmp_path, "defaults: []\n", "configs")  # a config without a run
    assert [run.name for run in find_runs(tmp_path)] == ["a", "b/1", "b/2"]
    (alone,) = find_runs(tmp_path / "b/1")
    assert alone.name == "b/1"
    assert [run.name for run in named([RunFolder(tmp_path / "b/1"), RunFolder(tmp_path / "b/2")] * 2)] == ["1", "2"]
    with raises_naming(RunFolderError, "nowhere", "no folder"):
        find_runs(tmp_path / "nowhere")


def names_below(folder: Path) -> set[str]:
    return {run.folder.path.relative_to(folder).as_posix() for run in find_runs(folder)}


@pytest.mark.parametrize("num_lost", [1, 2, 9])
def test_a_trial_that_was_started_again_in_another_folder_counts_once(tmp_path: Path, num_lost: int) -> None:
    """A trial that is killed before its first checkpoint leaves a folder with metrics."""
    names = ["trial_0001", *(f"trial_0001_{number}" for number in range(2, num_lost + 2))]
    others = [
        "trial_0010",
        "trial_0011",
        "trial_0001_copy",
        "trial_0001-backup",
        "trial_00012",
        "trial_00012_2_old",
        "1",
    ]
    for name in (*names, *others):
        make_run(tmp_path, name, [[1.0]])
    assert names_below(tmp_path) == {*names, *others}  # any folder
    (tmp_path / "search.csv").touch()
    assert names_below(tmp_path) == {names[-1], *others}


@pytest.mark.parametrize("num_lost", [0, 1, 2])
@pytest.mark.parametrize("setting", [{"seed": "1"}, {}])
def test_a_run_of_a_sweep_that_was_started_again_in_another_folder_counts_once(
    tmp_path: Path, setting: dict[str, str], num_lost: int
) -> None:
    """Only the folder in the list of the sweep counts. Copies are other runs."""

    def train(_: Sequence[str], place: RunPlace) -> Trained:
        make_run(place.root, str(place.name), [[1.0]])
        return Trained(None, stopped=True)

    sweep = SweepFolder.create(tmp_path, [], [([], setting), ([], {"seed": "2"})], "sweep")
    first = sweep.runs[0].folder
    for _ in range(num_lost + 1):
        train_runs(sweep, train, str, lambda _: pytest.fail("there is no checkpoint"))
        sweep = SweepFolder.open(sweep.path)
    others = {f"{first}_copy", f"{first}_3", f"{first}-backup", "1-backup", "1", "30"}
    for name in (*others, f"{first}/trial_0000"):
        make_run(sweep.path, name, [[1.0]])
    lost = {f"{first}/trial_0000"} if num_lost == 0 else set()
    assert names_below(sweep.path) == {sweep.runs[0].folder, *lost, *others}
    assert names_below(sweep.path / first) == {".", "trial_0000"}, "it is found if it is named"
    (sweep.path / "sweep.json").write_text("{")
    assert {first, sweep.runs[0].folder, *others} <= names_below(sweep.path)


def test_the_best_is_none_of_the_untrained_policy(tmp_path: Path) -> None:
    """The best return excludes the evaluation of the untrained policy, in the list, the page and the table."""
    folder = make_run(tmp_path, "run", [[20.0], [30.0], [10.0]])
    text = folder.metrics_csv.read_text().replace("\n1,1000,10.0", "\n0,0,10.0,0.5,500.0\n1,1000,10.0", 1)
    folder.metrics_csv.write_text(text)
    run = read(folder)
    assert run.curves["eval/episode_return"].values[0] == 500.0
    assert run.best() == 30.0
    assert cells(run)["best"] == "30.0"
    assert summary_rows(grouped([run]))[0]["best"] == 30.0
    folder.metrics_csv.write_text("".join(text.splitlines(keepends=True)[:2]))
    untrained = read(folder)
    assert (cells(untrained)["return"], cells(untrained)["best"]) == ("500.0", "-")
    assert summary_rows(grouped([untrained]))[0]["best"] is None
    assert "500.0,,0" in as_csv(grouped([untrained]))


@pytest.mark.parametrize("total", ["9" * 400, "9" * 30, "-" + "9" * 400, ".inf", ".nan", "many", "null"])
@pytest.mark.parametrize("is_in_state", [False, True])
def test_a_number_of_steps_that_no_run_can_have_is_unknown(tmp_path: Path, total: str, is_in_state: bool) -> None:
    folder = make_run(tmp_path, "a", [[1.0]])
    folder.config.write_text(folder.config.read_text().replace("total_timesteps: 1000", f"total_timesteps: {total}"))
    if is_in_state:
        stored = total if total.strip("-").isdigit() else "null"
        folder.state.write_text(f'{{"state": "finished", "total_timesteps": {stored}}}')
    assert read(folder).total_timesteps is None

"""The list of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.reports.recorded_run import RecordedRun, find_runs
from evorl.reports.run_list import Filters, as_lines, in_order, readable
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming
from tests.support.run_folders import START, make_run, with_checkpoint


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedRun]:
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "a", [[100.0], [50.0]], start=START)
    with_checkpoint(make_run(root, "b", [[70.0]], algorithm="sac.SAC", env="Pendulum-v1", log="killed here"))
    make_run(root, "c", [[60.0], [60.0], [60.0]], {"total_timesteps": 1.5e6}, log="Recorded data is in runs/c.")
    empty = make_run(root, "d", [[1.0]])
    empty.metrics_csv.unlink()
    return find_runs(root)


def test_the_list(runs: list[RecordedRun]) -> None:
    assert as_lines(runs) == [
        "run  algorithm  env                 return   best  steps    of  state     resume",
        "a    ppo        gymnax/CartPole-v1    50.0  100.0     2k    2k  finished  no",
        "b    sac        gymnax/Pendulum-v1    70.0   70.0     1k    1k  stopped   yes",
        "c    ppo        gymnax/CartPole-v1    60.0   60.0     3k  1.5M  failed    no",
        "d    ppo        gymnax/CartPole-v1       -      -      0    1k  finished  no",
    ]


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("return", "bcad"),
        ("best", "abcd"),
        ("steps", "cabd"),
        ("run", "abcd"),
        ("algorithm", "acdb"),
        ("state", "badc"),
    ],
)
def test_orders(runs: list[RecordedRun], sort: str, names: str) -> None:
    assert "".join(run.name for run in in_order(reversed(runs), sort)) == names


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (Filters(), "abcd"),
        (Filters(algorithm="PPO"), "acd"),
        (Filters(env="pend"), "b"),
        (Filters(env="cartpole", state="failed"), "c"),
        (Filters(state="running"), ""),
    ],
)
def test_filters(runs: list[RecordedRun], filters: Filters, names: str) -> None:
    assert "".join(run.name for run in filters.chosen(runs)) == names


@pytest.mark.parametrize(
    ("filters", "parts"),
    [
        (Filters(state="finish"), ("'finish'", "'finished'")),
        (Filters(algorithm="pop"), ("algorithm=pop", "'ppo'", "ppo, sac")),
        (Filters(env="hopper"), ("env=hopper",)),
    ],
)
def test_what_there_is_not_is_told(runs: list[RecordedRun], filters: Filters, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        filters.chosen(runs)
    with raises_naming(ValueError, "value of sort", "'reward'"):
        in_order(runs, "reward")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    make_run(tmp_path, "good", [[1.0]])
    make_run(tmp_path, "bad", [[1.0]]).config.write_text("a: &x 1\nb: *x\n")
    other = RunFolder.create(tmp_path, {"some": "tool"}, "other")
    other.metrics_csv.write_text("timesteps\n")
    kept, notes = readable(find_runs(tmp_path))
    assert [run.name for run in kept] == ["good"]
    assert len(notes) == 1
    assert notes[0].startswith("bad is omitted: ")

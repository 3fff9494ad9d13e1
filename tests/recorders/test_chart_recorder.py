"""Charts at the end of a run: a table that reads back bit for bit, and an image."""

from __future__ import annotations

import csv
import errno
from pathlib import Path

import numpy as np
import pytest

from evorl.recorders import ChartRecorder, Recorder, RecorderGroup
from evorl.recorders.chart_recorder import draw_chart
from evorl.runs.files import RunFolderError
from evorl.runs.recorder import Chart, HeatMap, Panel
from tests.recorders.test_learning_curve import assert_is_picture
from tests.support.errors import raises_naming

CHART = Chart(
    {
        "steps": np.arange(1, 9) * 1000,
        "rate": np.float32(10.0) ** -np.arange(8, dtype=np.float32),
        "score": np.array([-np.inf, 1.0, np.nan, 2.0, 1 / 3, 5.0, 6.0, 7.0]),
        "best": np.arange(8) % 2,
    },
    (Panel("steps", "score"), Panel("steps", "rate", marked="best", log=True)),
)


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    ChartRecorder(tmp_path).chart("front", CHART)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["front.csv", "front.png"]
    with open(tmp_path / "front.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name, column in CHART.columns.items():
        np.testing.assert_array_equal(np.array([row[name] for row in rows], float), column.astype(float))
    assert rows[0]["steps"] == "1000"
    assert_is_picture(tmp_path / "front.png")


def test_a_line_goes_through_marked_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, *a, **k: drawn.append(list(x)) or plot(self, x, y, *a, **k))
    draw_chart(tmp_path / "a.png", CHART)
    assert drawn[0] == [2000, 4000, 5000, 6000, 7000, 8000]  # non-finite values are omitted
    assert drawn[2] == [2000, 4000, 6000, 8000]


def test_points_are_colored_by_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn = []
    scatter = Axes.scatter
    monkeypatch.setattr(
        Axes, "scatter", lambda self, x, y, c, **k: drawn.append((list(x), list(c))) or scatter(self, x, y, c=c, **k)
    )
    chart = Chart(
        {"a": np.arange(3), "b": np.array([1.0, np.nan, 2.0]), "c": np.array([7, 8, 9])}, (Panel("a", "b", color="c"),)
    )
    draw_chart(tmp_path / "a.png", chart)
    assert drawn == [([0, 2], [7, 9])]
    assert_is_picture(tmp_path / "a.png")


def test_a_heat_map_lies_over_its_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn = []
    mesh = Axes.pcolormesh
    monkeypatch.setattr(Axes, "pcolormesh", lambda self, *a, **k: drawn.append(a) or mesh(self, *a, **k))
    heat = HeatMap(np.array([[1.0, np.nan], [2.0, 3.0], [4.0, 5.0]]), low=(0.0, -1.0), high=(3.0, 1.0), label="fitness")
    draw_chart(tmp_path / "a.png", Chart({"a": np.arange(2), "b": np.arange(2)}, (Panel("a", "b", heat=heat),)))
    x, y, values = drawn[0]
    assert (x.tolist(), y.tolist()) == ([0, 1, 2, 3], [-1, 0, 1])
    assert values.filled(-9).tolist() == [[1, 2, 4], [-9, 3, 5]]  # rows are the vertical axis
    assert_is_picture(tmp_path / "a.png")


def test_a_group_tells_those_who_listen(tmp_path: Path) -> None:
    RecorderGroup([Recorder(), ChartRecorder(tmp_path)]).chart("front", CHART)
    assert (tmp_path / "front.csv").exists()


@pytest.mark.parametrize("name", ["front.csv", "front.png"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "target")
    with raises_naming(RunFolderError, name, "symbolic link"):
        ChartRecorder(tmp_path).chart("front", CHART)
    assert not (tmp_path / "target").exists()


def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with raises_naming(RunFolderError, tmp_path, "no space"):
        draw_chart(tmp_path / "a.png", CHART)

"""The learning curve: an image of all recorded data, or none."""

from __future__ import annotations

import errno
import math
import sys
from pathlib import Path

import pytest

from evorl.recorders import CsvRecorder, LearningCurveRecorder, RecorderGroup, draw_learning_curve
from evorl.recorders.learning_curve import format_steps, read_curves
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.recorded_runs import record


def assert_is_picture(path: Path) -> None:
    from matplotlib.image import imread

    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    pixels = imread(path)
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > 800
    assert pixels.std() > 0.02  # the image is not blank


def test_the_picture_is_drawn_when_the_run_ends(tmp_path: Path) -> None:
    csv, picture = tmp_path / "metrics.csv", tmp_path / "learning_curve.png"
    record(RecorderGroup([CsvRecorder(csv), LearningCurveRecorder(csv, picture)]))
    assert_is_picture(picture)


def test_returns_alone_and_losses_alone_can_be_drawn(tmp_path: Path) -> None:
    csv = tmp_path / "metrics.csv"
    csv.write_text("iterations,timesteps,eval/episode_return\n1,100,2.5\n")
    assert draw_learning_curve(csv, tmp_path / "a.png")
    assert_is_picture(tmp_path / "a.png")
    csv.write_text("iterations,timesteps,train/loss\n1,100,2.5\n")
    assert draw_learning_curve(csv, tmp_path / "b.png")


@pytest.mark.parametrize("value", [3.4e38, -1e299, 1e301, -9e307, sys.float_info.max, 5e-324, math.inf])
def test_numbers_near_the_limits_of_floats_are_drawn_or_left_out(tmp_path: Path, value: float) -> None:
    csv = tmp_path / "metrics.csv"
    spread = abs(value)
    csv.write_text(
        "iterations,timesteps,eval/episode_return,eval/episode_return_std,train/loss\n"
        f"1,100,{value!r},{spread!r},{value!r}\n2,200,{-value!r},{spread!r},{-value!r}\n3,300,1.0,2.0,3.0\n"
    )
    assert draw_learning_curve(csv, tmp_path / "a.png")
    assert_is_picture(tmp_path / "a.png")


def test_of_several_seeds_each_is_a_line_and_the_band_is_over_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    seeds = "eval/episode_return_seed_0,eval/episode_return_seed_1"
    columns = f"eval/episode_return,eval/episode_return_std,eval/episode_return_std_over_seeds,{seeds}"
    csv = tmp_path / "metrics.csv"
    csv.write_text(f"iterations,timesteps,{columns}\n1,100,2.0,50.0,1.0,1.0,3.0\n2,200,4.0,50.0,2.0,2.0,6.0\n")
    assert draw_learning_curve(csv, tmp_path / "a.png")
    (axes,) = drawn[0].axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.0, 2.0], [3.0, 6.0], [2.0, 4.0]]
    band = axes.collections[0].get_datalim(axes.transData)
    assert (band.y0, band.y1) == (1.0, 6.0)
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["± standard deviation over 2 seeds", "each seed", "evaluation"]


def test_a_run_without_rows_has_no_picture(tmp_path: Path) -> None:
    csv, picture = tmp_path / "metrics.csv", tmp_path / "learning_curve.png"
    group = RecorderGroup([CsvRecorder(csv), LearningCurveRecorder(csv, picture)])
    record(group, last=0)
    assert not picture.exists()
    LearningCurveRecorder(tmp_path / "nowhere.csv", picture).close()


def test_curves_skip_what_is_empty_or_not_finite(tmp_path: Path) -> None:
    csv = tmp_path / "metrics.csv"
    csv.write_text("iterations,timesteps,a,b\n1,100,1.0,\n2,200,nan,3.0\n3,300,inf,\n")
    assert read_curves(csv) == {"a": ([100.0], [1.0]), "b": ([200.0], [3.0])}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("iterations,timesteps,a\n1,10,1.0\n2,20,abc\n", "line 3"),
        ("iterations,timesteps,a\n1,x,1.0\n", "line 2"),
        ("iterations,timesteps,a\n1,inf,1.0\n", "line 2 has no valid number of timesteps"),
        ("iterations,timesteps,a\n1,,1.0\n", "line 2 has no valid number of timesteps"),
        ("iterations,a\n1,1.0\n", "line 2 has no valid number of timesteps"),
        ("iterations,timesteps,a\n1,10\n", "line 2 has 2 cells, but the header has 3"),
    ],
)
def test_a_corrupted_table_is_reported_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    csv = tmp_path / "metrics.csv"
    csv.write_text(text)
    with raises_naming(RunFolderError, csv, "is corrupted", reason):
        read_curves(csv)


def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    csv = tmp_path / "metrics.csv"
    csv.write_text("iterations,timesteps,train/loss\n1,100,2.5\n")
    monkeypatch.setattr(Figure, "savefig", fail)
    with raises_naming(RunFolderError, tmp_path, "no space"):
        draw_learning_curve(csv, tmp_path / "a.png")


def test_steps_on_the_axis() -> None:
    assert [format_steps(x) for x in (0, 500, 25_000, 1.5e6, 2e9)] == ["0", "500", "25k", "1.5M", "2B"]


def test_the_picture_is_not_written_through_a_link(tmp_path: Path) -> None:
    record(CsvRecorder(tmp_path / "metrics.csv"))
    (tmp_path / "curve.png").symlink_to(tmp_path / "target")
    with raises_naming(RunFolderError, "curve.png", "symbolic link"):
        draw_learning_curve(tmp_path / "metrics.csv", tmp_path / "curve.png")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("cells", [("", "3.0", "4.0"), ("1.0", "nan", "4.0"), ("", "", "4.0"), ("inf", "", "nan")])
def test_a_seed_without_finite_returns_has_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: tuple[str, ...]
) -> None:
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    columns = ["eval/episode_return", *(f"eval/episode_return_seed_{i}" for i in range(len(cells)))]
    csv = tmp_path / "metrics.csv"
    csv.write_text(f"iterations,timesteps,{','.join(columns)}\n1,100,2.0,{','.join(cells)}\n")
    assert draw_learning_curve(csv, tmp_path / "a.png")
    finite = [[float(cell)] for cell in cells if cell not in ("", "nan", "inf")]
    assert [list(line.get_ydata()) for line in drawn[0].axes[0].lines] == [*finite, [2.0]]

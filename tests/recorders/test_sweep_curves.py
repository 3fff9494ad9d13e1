"""The plot of a sweep: a color per setting, a line per run, and means over several runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.recorders.sweep_curves import draw_sweep, mean_curve


def test_means_are_over_the_runs_that_were_all_evaluated_there() -> None:
    steps, means = mean_curve([([10, 20, 30], [1.0, 2.0, 3.0]), ([10, 20], [3.0, 6.0])])
    assert steps.tolist() == [10, 20]
    np.testing.assert_array_equal(means, [2.0, 4.0])


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=2, max_size=8, unique=True), min_size=1, max_size=5))
def test_means_of_runs_with_other_steps_are_on_the_line_that_all_share(steps_of_runs: list[list[int]]) -> None:
    """As in evolution, where the steps of an evaluation depend on the lengths of the episodes."""
    runs = [(sorted(steps), [2.0 * step + i for step in sorted(steps)]) for i, steps in enumerate(steps_of_runs)]
    steps, means = mean_curve(runs)
    first, last = max(min(steps) for steps, _ in runs), min(max(steps) for steps, _ in runs)
    assert steps.tolist()[:: len(steps) - 1 or 1] == sorted({first, last}) if first <= last else not steps.size
    np.testing.assert_allclose(means, 2.0 * steps + (len(runs) - 1) / 2)


def test_every_setting_and_run_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    runs = [([10, 20], [1.0, 2.0]), ([10, 20], [3.0, 4.0])]
    many = {f"seed {i}": runs[:1] for i in range(12)}
    assert draw_sweep(tmp_path / "a.png", {"one": {"agent=ppo": runs, "agent=sac": runs[:1], "none": []}, "two": many})
    one, two = drawn[0].axes
    assert [list(line.get_ydata()) for line in one.lines] == [[1, 2], [3, 4], [2, 3], [1, 2]]
    assert one.get_legend_handles_labels()[1] == ["agent=ppo (mean of 2)", "agent=sac"]
    assert (
        len({line.get_color() if isinstance(line.get_color(), str) else tuple(line.get_color()) for line in two.lines})
        == 12
    )


def test_without_a_curve_there_is_no_picture(tmp_path: Path) -> None:
    assert not draw_sweep(tmp_path / "a.png", {"one": {"agent=ppo": []}})
    assert list(tmp_path.iterdir()) == []


def test_it_is_a_picture(tmp_path: Path) -> None:
    assert draw_sweep(tmp_path / "a.png", {"one": {"agent=ppo": [([10], [1.0])]}})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

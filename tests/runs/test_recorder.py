"""An inconsistent chart is rejected at its creation, not at the end of a run."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.runs.recorder import Chart, Panel
from tests.support.errors import raises_naming

COLUMNS = {"steps": np.arange(3), "score": np.ones(3), "best": np.array([0, 1, 0])}


def test_a_chart_that_fits() -> None:
    chart = Chart(COLUMNS, (Panel("steps", "score", marked="best"), Panel("steps", "best", log=True)))
    assert [panel.marked for panel in chart.panels] == ["best", None]


@pytest.mark.parametrize("panel", [Panel("step", "score"), Panel("score", "step"), Panel("score", "score", "step")])
def test_a_panel_of_a_column_that_is_not_there(panel: Panel) -> None:
    with raises_naming(ValueError, "column 'step'", "'steps'"):
        Chart(COLUMNS, (panel,))


def test_columns_of_different_lengths() -> None:
    with raises_naming(ValueError, "equal lengths", "{'steps': 3, 'score': 2}"):
        Chart({"steps": np.arange(3), "score": np.ones(2)}, ())

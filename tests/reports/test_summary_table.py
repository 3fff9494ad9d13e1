"""The results table."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from evorl.reports.comparison import grouped
from evorl.reports.recorded_run import find_runs
from evorl.reports.summary_table import COLUMNS, HEADING, as_cells, as_csv, number, summary_rows
from tests.support.run_folders import make_run


def test_a_row_for_each_group(tmp_path: Path) -> None:
    make_run(tmp_path, "a", [[9.0, 12.0, 15.0], [1.0, 2.0, 6.0]], {"total_timesteps": 3000})
    make_run(
        tmp_path, "b", [[3.0]], {"seed": 1, "total_timesteps": 3000}, log="Stopping early at 1,000 of 3,000 steps."
    )
    make_run(tmp_path, "c", [[5.0]], algorithm="sac.SAC")
    groups = grouped(find_runs(tmp_path))
    ppo, sac = summary_rows(groups)
    assert tuple(ppo) == COLUMNS
    assert (ppo["runs"], ppo["seeds"], ppo["iqm"], ppo["mean"], ppo["best"]) == (2, 4, 2.5, 3.0, 12.0)
    assert 1.0 <= ppo["low"] < 2.5 < ppo["high"] <= 6.0
    assert (ppo["steps"], ppo["steps_per_second"], ppo["seconds"]) == (2000, 125.0, 1.0)
    assert ppo["state"] == "1 finished, 1 stopped"
    assert (sac["low"], sac["high"], sac["state"]) == (None, None, "finished")
    assert len(as_cells(ppo)) == len(HEADING)
    assert as_cells(sac) == [
        "gymnax/CartPole-v1", "sac", "1", "1", "5", "-", "5", "5", "1k", "100", "0:00:00", "finished"
    ]  # fmt: skip
    read = list(csv.DictReader(io.StringIO(as_csv(groups))))
    assert [row["group"] for row in read] == ["ppo", "sac"]
    assert float(read[0]["low"]) == ppo["low"]
    assert read[1]["low"] == ""


def test_numbers_of_a_table() -> None:
    assert [number(x) for x in (1234.56, 12.0, 0.012345, 0.0, -3.14159, math.nan)] == [
        "1,234.6", "12.0", "0.0123", "0.0", "-3.14", "-"
    ]  # fmt: skip

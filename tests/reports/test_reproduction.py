"""Commands that reproduce runs."""

from __future__ import annotations

from pathlib import Path

from evorl.reports.elements import as_html, element
from evorl.reports.recorded_run import find_runs
from evorl.reports.reproduction import reproduction
from evorl.runs.about import add_start
from tests.support.run_folders import START, make_run


def shown(root: Path) -> str:
    return as_html(element("div", reproduction(find_runs(root))))


def test_one_machine_is_told_once(tmp_path: Path) -> None:
    first = make_run(tmp_path, "a", [[1.0]], start=START)
    add_start(first.about, START | {"command": "evorl train resume=/disk/anna/runs/a total_timesteps=2e6"})
    make_run(tmp_path, "b", [[1.0]], start=START)
    page = shown(tmp_path)
    assert "<code>evorl train agent=ppo runs_folder=.../runs</code><br>" in page
    assert "<code>evorl train resume=.../a total_timesteps=2e6</code>" in page
    assert page.count("A processor") == page.count("0123abc") == page.count("2 x cpu") == 1
    assert "evorl 0.1.0, python 3.11.7, jax 0.10.2" in page
    assert "flax 0.12.8" in page
    assert "anna" not in page


def test_machines_that_differ_are_told_with_their_runs(tmp_path: Path) -> None:
    make_run(tmp_path, "a", [[1.0]], start=START)
    make_run(tmp_path, "b", [[1.0]], start=START | {"device": "1 x NVIDIA H100", "versions": None})
    make_run(tmp_path, "c", [[1.0]])
    page = shown(tmp_path)
    assert "<h3>a</h3>" in page
    assert "<h3>b</h3>" in page
    assert page.count("its command was not recorded") == 1

"""The whole report page is valid, self-contained, small, and reproducible."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evorl.reports.page import MAX_BYTES, Report
from evorl.reports.recorded_run import find_runs
from tests.support.errors import missing_parts, raises_naming
from tests.support.html_check import PageCheck
from tests.support.run_folders import PNG, START, make_run, make_sweep

SECTIONS = [
    "results",
    "learning-curves",
    "comparison",
    "hyperparameters",
    "losses-and-speed",
    "pictures",
    "how-to-reproduce-it",
]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_sweep(root)
    picture = root / "ppo-0" / "00" / "plots" / "000000000100.png"
    picture.parent.mkdir()
    picture.write_bytes(PNG)
    return root


@pytest.fixture(scope="module")
def page(sweep: Path) -> str:
    return Report.of(find_runs(sweep)).to_html()


def test_the_page_is_whole_and_loads_nothing(page: str) -> None:
    check = PageCheck(page)
    assert check.faults == []
    assert [name for name in check.ids if name in SECTIONS] == SECTIONS
    assert len(page.encode()) < MAX_BYTES
    assert "http" not in page
    assert check.tags["img"] == 1
    # Curves of two environments, profile, improvement, two sweeps, two loss charts per algorithm, speeds.
    assert page.count('class="chart"') == 2 + 1 + 1 + 2 + 4 + 1


def test_what_is_wrong_with_a_page_is_seen() -> None:
    page = (
        '<!DOCTYPE html>\n<html><body id="a"><p id="a"><b></p></b><img src="http://x/y.png"><script src="z"></script>'
    )
    page += (
        '<a href="https://a.b">text</a><use href="#c"></use><i style="background: url(//d)" onclick="e()"></i></body>'
    )
    faults = "\n".join(PageCheck(page).faults)
    for message in ("</p> where ['b'] is open", "the id a stands twice", "<img> fetches http://x/y.png", "<script>",
                 "there is no #c", "a style fetches //d", "runs a script", "<html> is never closed"):  # fmt: skip
        assert message in faults
    assert "a.b" not in faults  # a link as text is not loaded


def test_the_page_says_what_was_reached(page: str) -> None:
    text = PageCheck(page).text
    assert "a2c, ppo on 2 environments" in text
    assert "16 runs, 24 seeds, 6 groups; episode return, evaluation." in text
    assert "gymnax/CartPole-v1ppo, learning_rate=0.00135" in text
    assert "Agarwal et al. 2021" in text
    assert "evorl train agent=ppo runs_folder=.../runs" in text


def test_both_color_modes_and_print(page: str) -> None:
    assert "@media screen and (prefers-color-scheme: dark)" in page
    assert "@media print" in page
    used = set(re.findall(r"var\(--(\w+)\)", page))
    assert used <= set(re.findall(r"--(\w+):", page))


def test_the_same_runs_give_the_same_page_without_places_and_times(sweep: Path, page: str) -> None:
    assert Report.of(find_runs(sweep)).to_html() == page
    assert str(sweep) not in page
    assert "anna" not in page


def test_a_single_run_shows_its_settings_and_its_failure(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a<b", [[1.0, 2.0]] * 3, {"agent": {"network": {"torso": [64, 64]}}}, start=START)
    folder.state.write_text('{"state": "failed", "failure": "OSError: no space in /disk/anna/runs/x"}')
    check = PageCheck(Report.of(find_runs(tmp_path)).to_html(pictures=False))
    assert check.faults == []
    assert "ppo on gymnax/CartPole-v1" in check.text
    assert "agent.network.torso[64, 64]" in check.text
    assert "a<b failed: OSError: no space in .../x" in check.text
    assert not {"comparison", "pictures"} & set(check.ids)


def test_pictures_that_would_make_it_large_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", [[1.0]])
    for name in ("a", "b", "c"):
        (folder.path / f"{name}.png").write_bytes(PNG + bytes(900_000))
    page = Report.of(find_runs(tmp_path)).to_html()
    assert len(page.encode()) < MAX_BYTES
    check = PageCheck(page)
    assert check.tags["img"] == 2
    assert "Omitted to keep the page small: run: a.png." in check.text


def test_what_recorded_nothing_is_named(tmp_path: Path) -> None:
    make_run(tmp_path, "a", [[1.0]])
    make_run(tmp_path, "b", [[1.0]]).metrics_csv.unlink()
    runs = find_runs(tmp_path)
    report = Report.of(runs, title="Mine")
    assert report.notes == ("Omitted, because they have not recorded eval/episode_return: b.",)
    assert "<title>Mine</title>" in report.to_html()
    with raises_naming(ValueError, "2 runs", "eval/success", "eval/epi"):
        Report.of(runs, metric="eval/success")
    with raises_naming(ValueError, "Did you mean 'eval/episode_return'?") as error:
        Report.of(find_runs(make_run(tmp_path, "c", [[1.0, 2.0]]).path), metric="eval/episode_retrun")
    assert "_seed_" not in str(error.value)
    with raises_naming(ValueError, "1 runs", "recorded a return"):
        Report.of(runs[1:])


def test_groups_after_different_steps_are_named(tmp_path: Path) -> None:
    """Groups of one environment: 10 % fewer steps are the rounding to iterations, other environments do not count."""
    for agent, env, evaluations in (("ppo", "A", 10), ("sac", "A", 9), ("ppo", "B", 30), ("sac", "B", 3)):
        make_run(tmp_path, f"{agent}{env}", [[1.0]] * evaluations, env=env, start=START | {"agent": agent})
    report = Report.of(find_runs(tmp_path))
    assert not missing_parts(report.unequal_steps or "", "gymnax/B", "ppo 30k", "sac 3k")
    assert missing_parts(report.unequal_steps or "", "gymnax/A")
    assert report.unequal_steps in report.to_html()
    assert Report.of([run for run in report.runs if "B" not in run.env]).unequal_steps is None


def test_the_page_of_one_run_has_its_title(tmp_path: Path) -> None:
    config = make_run(tmp_path, "a", [[1.0]]).config
    config.write_text(f"{config.read_text()}title: ppo <1>\n")
    assert "<title>ppo &lt;1&gt;</title>" in Report.of(find_runs(tmp_path)).to_html()

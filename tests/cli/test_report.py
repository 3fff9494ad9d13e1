"""``evorl report``."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from evorl.cli.report import write_report
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.html_check import PageCheck
from tests.support.run_folders import make_run, with_checkpoint


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with_checkpoint(make_run(tmp_path, "runs/ppo/1", [[1.0]]))
    make_run(tmp_path, "runs/ppo/2", [[3.0]], {"seed": 1})
    make_run(tmp_path, "runs/sac/1", [[2.0]], algorithm="sac.SAC")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def groups_in(path: Path) -> list[str]:
    with path.open() as file:
        return [row["group"] for row in csv.DictReader(file)]


@pytest.mark.parametrize("flag", ["csv=table.csv", "--csv=table.csv", "--csv table.csv"])
def test_a_folder_has_its_page_and_its_table(runs: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = write_report(["runs", *flag.split(), "pictures=false"])
    assert page == Path("runs/report.html")
    assert PageCheck(page.read_text()).faults == []
    assert groups_in(Path("table.csv")) == ["ppo", "sac"]
    assert capsys.readouterr().out == "3 runs, 2 groups: runs/report.html and table.csv (0.1 MB)\n"


def test_runs_by_name_and_options(runs: Path) -> None:
    page = write_report(["ppo/2", "sac/1", "latest", "--csv", "by=run", "to=out/page.html", "title=Three"])
    assert page == Path("out/page.html")
    assert groups_in(Path("out/page.csv")) == ["ppo/1", "ppo/2", "sac/1"]
    assert "<h1>Three</h1>" in page.read_text()
    assert write_report(["runs/ppo/1"]) == Path("runs/ppo/1/report.html")
    assert write_report(["runs", "algorithm=sac", "csv=sac.csv"]) == Path("runs/report.html")
    assert groups_in(Path("sac.csv")) == ["sac"]


def test_what_hydra_leaves_of_a_sweep_names_it(runs: Path) -> None:
    (runs / "multirun.yaml").write_text("hydra: {}\n")
    assert write_report(["runs/multirun.yaml", "to=page.html", "csv=all.csv"]) == Path("page.html")
    assert groups_in(Path("all.csv")) == ["ppo", "sac"]


def test_the_folder_of_a_search_names_its_trials(runs: Path) -> None:
    (runs / "ppo/config.yaml").write_bytes((runs / "ppo/1/config.yaml").read_bytes())
    (runs / "ppo/search.csv").touch()
    write_report(["runs/ppo", "by=run", "csv=all.csv"])
    assert groups_in(Path("all.csv")) == ["1", "2"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("runs", "evorl report runs")),
        (["nowhere"], ("no folder nowhere",)),
        (["runs", "state=failed"], ("matching runs in runs",)),
        (["runs", "by=colour"], ("setting 'colour'",)),
        (["runs", "pictures=3"], ("pictures",)),
        (["runs", "--page"], ("'--page' is not an option", "name=value")),
    ],
)
def test_what_cannot_be_is_told(runs: Path, arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming((ValueError, RunFolderError), *parts):
        write_report(arguments)


def test_the_folder_of_runs_may_be_a_link(runs: Path, tmp_path: Path) -> None:
    """On clusters, the folder of runs is often a link to a larger disk."""
    (tmp_path / "linked").symlink_to(runs)
    for arguments, page in ((["linked"], "report.html"), (["linked", "to=linked/page.html"], "page.html")):
        write_report(arguments)
        assert (runs / page).is_file()


def test_a_page_is_not_written_through_a_link(runs: Path, tmp_path: Path) -> None:
    (runs / "report.html").symlink_to(tmp_path / "precious")
    with raises_naming(RunFolderError, "report.html", "symbolic link"):
        write_report(["runs"])
    assert not (tmp_path / "precious").exists()

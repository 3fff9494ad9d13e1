"""``evorl report``: writes a page that describes one run or compares several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl.cli.command_options import read_options
from evorl.cli.options import REPORT
from evorl.config.command_lines import user_path
from evorl.config.values import checked_value
from evorl.ops.terminal_text import counted
from evorl.recorders.screen import print_line
from evorl.reports.page import Report
from evorl.reports.recorded_run import find_runs, is_run, named
from evorl.reports.run_list import Filters, readable
from evorl.reports.summary_table import as_csv
from evorl.reports.swept_setting import expand_sweep
from evorl.runs.files import RunFolderError, sibling, write_atomically, writing_to
from evorl.runs.folder import RunFolder


def write_report(arguments: Sequence[str]) -> Path:
    """Write an HTML page that describes one run or compares several, and print and return its path."""
    settings, places = read_options(_without_flag(arguments), REPORT, "evorl report", unnamed="run")
    if not places:
        raise ValueError("no runs were given: pass run folders, folders of runs or latest, as in evorl report runs.")
    checked_value(settings["pictures"], bool, "pictures")
    return write_page(report_of(places, settings), settings, places)


def write_page(report: Report, settings: Mapping[str, Any], places: Sequence[str]) -> Path:
    """Write the page of a report, and a table if the option ``csv`` is set; return the path of the page."""
    only = user_path(places[0])
    folder = only if len(places) == 1 and only.is_dir() else Path()
    page = Path(settings["to"] or folder / "report.html")
    outputs = {page: report.to_html(settings["pictures"])}
    if settings["csv"] is not None:
        outputs[Path(settings["csv"] or sibling(page, ".csv", ".html"))] = as_csv(report.groups)
    for path, content in outputs.items():
        with writing_to(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)  # may be a link, because the user chose the path
            write_atomically(path, content.encode(errors="backslashreplace"))  # names of folders may not be UTF-8
    number = f"{counted(len(report.runs), 'run')}, {counted(len(report.groups), 'group')}"
    print_line(f"{number}: {' and '.join(map(str, outputs))} ({page.stat().st_size / 1e6:.1f} MB)")
    return page


def report_of(places: Sequence[str], settings: Mapping[str, Any]) -> Report:
    """Return the report on the runs in ``places`` with the options ``settings``; print which runs are unreadable.

    Raises:
        ValueError: no run has recorded the metric, or a filter or ``by`` is invalid.
        RunFolderError: a run or folder does not exist, or no run matches the filters.
    """
    folders = [folder for source in places for folder in _folders(source, settings["runs_folder"])]
    runs, notes = readable(each for run in named(folders) for each in expand_sweep(run))
    runs = Filters(settings["algorithm"], settings["env"], settings["state"]).chosen(runs)
    for note in notes:
        print_line(note)
    if not runs:
        remedy = f"remove state={settings['state']}" if settings["state"] else "pass other folders, which contain runs"
        raise RunFolderError(f"no matching runs in {', '.join(places)}: {remedy}.")
    by = [name.strip() for name in (settings["by"] or "").split(",") if name.strip()]
    return Report.of(runs, by, settings["metric"], settings["title"])


def _without_flag(arguments: Sequence[str]) -> list[str]:
    """Replace ``--csv``, ``--csv=<file>`` and ``--csv <file>.csv`` by the option ``csv=``."""
    plain: list[str] = []
    for argument in arguments:
        if plain and plain[-1] == "csv=" and argument.endswith(".csv"):
            plain[-1] += argument
        elif argument == "--csv" or argument.startswith("--csv="):
            plain.append(f"csv={argument.partition('=')[2]}")
        else:
            plain.append(argument)
    return plain


def _folders(source: str, runs_folder: str) -> list[Any]:
    """Return the run folders that an argument names."""
    path = user_path(source)
    if path.name == "multirun.yaml":  # file that Hydra writes into the folder of a sweep
        path = path.parent
    if path.is_dir() and not is_run(path) and (runs := find_runs(path, sweeps=True)):
        return [run.folder for run in runs]
    return [RunFolder.find(source, runs_folder)]

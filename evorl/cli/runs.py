"""``evorl runs``: lists runs, with their progress and state."""

from __future__ import annotations

from collections.abc import Sequence

from evorl.cli.command_options import read_options
from evorl.cli.options import RUNS
from evorl.config.command_lines import as_arguments
from evorl.recorders.screen import print_line
from evorl.reports.recorded_run import find_runs
from evorl.reports.run_list import Filters, as_lines, in_order, readable
from evorl.runs.trust import confirmation, foreign_names


def list_runs(arguments: Sequence[str]) -> list[str]:
    """Print the runs in a folder, at any depth, and the command that resumes the newest resumable one; return names."""
    settings, folders = read_options(arguments, RUNS, "evorl runs", unnamed="folder")
    if len(folders) > 1:
        raise ValueError(f"expected one folder, got {', '.join(folders)}: pass their parent folder.")

    runs, notes = readable(find_runs(folders[0] if folders else "runs"))
    filters = Filters(settings["algorithm"], settings["env"], settings["state"])
    runs = in_order(filters.chosen(runs), settings["sort"])
    for line in as_lines(runs) if runs else ["No runs."]:
        print_line(line)
    waiting = [run for run in runs if run.can_be_resumed]
    if waiting:
        newest = max(waiting, key=lambda run: run.folder.saved_at() or 0.0)
        names = foreign_names(newest.folder.load_config(trust=True))
        command = as_arguments({"resume": newest.folder.path, **confirmation(names)})
        print_line(f"\n{len(waiting)} can be resumed. To resume the newest: evorl train {command}")
        if names:
            print_line(f"It runs code from outside evorl ({as_arguments(names)}): resume it only if you trust it.")
    for note in notes:
        print_line(note)
    return [run.name for run in runs]

"""``evorl compare``: trains agents on the same seeds, and reports which one is better and how certain that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from evorl.cli.arguments import given_text
from evorl.cli.command_options import read_options
from evorl.cli.config_tree import config_folder, config_names
from evorl.cli.options import COMPARE, REPORT
from evorl.cli.report import report_of, write_page
from evorl.cli.train import train
from evorl.config.command_lines import as_arguments, user_path
from evorl.config.names import no_such
from evorl.recorders.screen import print_line
from evorl.reports.comparison_charts import improvements
from evorl.reports.verdict import verdict
from evorl.runs.run_state import FINISHED
from evorl.runs.sweep_folder import SweepFolder

EXAMPLE = "evorl compare ppo sac env=pendulum seeds=10"
_SET_HERE = {"agent": "omit agent=", "num_seeds": "use seeds=", "hydra.sweep.dir": "use runs_folder="}


def compare(arguments: Sequence[str], train_all: Callable[[Sequence[str]], None] = train) -> Path | None:
    """Train each agent with ``num_seeds=seeds``, one agent after the other, and write a report that compares them.

    Args:
        arguments: two or more agents, ``seeds=10`` and settings; or ``resume=<folder>`` of a stopped comparison.
        train_all: function that trains the sweep of a command line, ``-m ...`` or ``resume=...``.

    Returns:
        Path of the report; ``None`` if the trainings were stopped.

    Raises:
        ValueError: fewer than two different agents are named, an agent does not exist, or ``seeds`` is invalid.
        RunFolderError: the folder to resume contains no comparison, or is not trusted.
        SystemExit: a setting is invalid, or a training failed (others continue); ``ValueError`` with ``train_sweep``.
    """
    values = {argument.partition("=")[0]: given_text(argument) for argument in arguments if "=" in argument}
    if "resume" in values:
        folder, overrides = user_path(values["resume"]), list(arguments)
    else:
        agents, seeds = _read(arguments, values)
        folder = user_path(values.get("runs_folder", "runs")).resolve() / time.strftime("compare_%Y-%m-%d_%H-%M-%S")
        settings = [argument for argument in arguments if "=" in argument and not argument.startswith("seeds=")]
        overrides = ["-m", f"agent={','.join(agents)}", f"num_seeds={seeds}", *settings, f"hydra.sweep.dir={folder}"]
    is_ours = "resume" not in values or values.get("trust") == "true"
    if "resume" in values:
        SweepFolder.open(folder, trust=is_ours)  # raises an error before anything is resumed
    train_all(overrides)
    if any(run.state != FINISHED for run in SweepFolder.open(folder, trust=is_ours).runs):
        print_line(f"To resume: evorl compare {as_arguments({'resume': folder})}")
        return None
    options, places = read_options([str(folder), "by=agent"], REPORT, "evorl report", unnamed="run")
    report = report_of(places, options)
    for pair in improvements(report.groups):
        compared = [group for group in report.groups if group.label in (pair.better, pair.than)]
        print_line(verdict(pair, min(len(group.scores) for group in compared)))
    return write_page(report, options, places)


def _read(arguments: Sequence[str], values: dict[str, str]) -> tuple[list[str], int]:
    """Return the agents and the number of seeds; raise ``ValueError`` for invalid ones or settings in ``_SET_HERE``."""
    for name, remedy in _SET_HERE.items():
        if name in values:
            raise ValueError(f"evorl compare does not accept {name}={values[name]}: {remedy}. Example: {EXAMPLE}.")
    agents = [argument for argument in arguments if "=" not in argument]
    known = config_names(config_folder() / "agent")
    for agent in agents:
        if agent not in known:
            raise ValueError(no_such("agent", agent, known))
    if len(set(agents)) < 2:
        raise ValueError(f"evorl compare needs two different agents, got {' '.join(agents) or 'none'}: {EXAMPLE}.")
    seeds = [argument for argument in arguments if argument.startswith("seeds=")]
    return agents, read_options(seeds, COMPARE, "evorl compare")[0]["seeds"]

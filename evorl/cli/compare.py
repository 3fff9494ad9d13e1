"""``evorl compare``: trains agents on the same seeds, and reports which one is better and how certain that is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from evorl.cli.arguments import argument_values, overrides_first, with_literal_text
from evorl.cli.command_options import read_options
from evorl.cli.config_tree import config_folder, config_names
from evorl.cli.options import COMPARE, REPORT
from evorl.cli.overrides import refuse_sweeps, sweep_to_resume
from evorl.cli.report import report_of, write_page
from evorl.cli.train import train
from evorl.config.command_lines import user_path
from evorl.config.names import no_such
from evorl.recorders.screen import print_line
from evorl.reports.comparison_charts import improvements
from evorl.reports.verdict import verdict
from evorl.runs.files import RunFolderError
from evorl.runs.run_state import FINISHED
from evorl.runs.sweep_folder import SweepFolder

EXAMPLE = "evorl compare ppo sac env=pendulum seeds=10"
_SET_HERE = {"agent": "omit agent=", "num_seeds": "use seeds=", "hydra.sweep.dir": "use runs_folder="}
_SET_HERE |= dict.fromkeys(("sweep", "search"), "give all agents the same settings")


def compare(arguments: Sequence[str], train_all: Callable[[Sequence[str]], None] = train) -> Path | None:
    """Train each agent with ``num_seeds=seeds``, one agent after the other, and write a report that compares them.

    Args:
        arguments: two or more agents, ``seeds=10`` and settings; or ``resume=<folder>`` of a stopped comparison.
        train_all: function that trains the sweep of a command line, ``-m ...`` or ``resume=...``.

    Returns:
        Path of the report; ``None`` if the training runs were stopped.

    Raises:
        ValueError: the agents, ``seeds`` or a setting are invalid, or a setting has several values.
        RunFolderError: the folder to resume contains no comparison, or is not trusted.
        SystemExit: a setting is invalid, or a training run failed; ``train_sweep`` raises ``ValueError`` instead.
    """
    values = argument_values(arguments)
    if "resume" in values:
        folder, trust, overrides = None, False, list(arguments)
        with contextlib.suppress(RunFolderError):
            folder, trust = sweep_to_resume(overrides_first(overrides))
        SweepFolder.open(folder := folder or user_path(values["resume"]), trust)  # raises before anything is resumed
    else:
        folder = user_path(values.get("runs_folder", "runs")).resolve() / time.strftime("compare_%Y-%m-%d_%H-%M-%S")
        overrides, trust = ["-m", *_read(arguments, values), f"hydra.sweep.dir={folder}"], True
    train_all(overrides)
    sweep = SweepFolder.open(folder, trust)
    if any(run.state != FINISHED for run in sweep.runs):
        print_line(f"To resume: evorl compare {sweep.resume_arguments}")
        return None
    options, places = read_options([str(folder), "by=agent"], REPORT, "evorl report", unnamed="run")
    report = report_of(places, options)
    for pair in improvements(report.groups):
        compared = [group for group in report.groups if group.label in (pair.better, pair.than)]
        print_line(verdict(pair, min(len(group.scores) for group in compared)))
    if report.unequal_steps:
        print_line(report.unequal_steps)
    return write_page(report, options, places)


def _read(arguments: Sequence[str], values: dict[str, str]) -> list[str]:
    """Return the overrides of the training runs: the agents, the number of seeds and the settings; see ``compare``.

    Settings other than ``env`` must have one value: the report would count the other runs as seeds of the agent.
    """
    for name, remedy in _SET_HERE.items():
        if name in values:
            raise ValueError(f"evorl compare does not accept {name}={values[name]}: {remedy}. Example: {EXAMPLE}.")
    agents = [argument for argument in arguments if "=" not in argument]
    known = config_names(config_folder() / "agent")
    for agent in agents:
        if agent not in known:
            raise ValueError(no_such("agent", agent, known))
    if len(set(agents)) < max(2, len(agents)):
        named = " ".join(agents) or "none"
        raise ValueError(f"compare needs two different agents or more, each once; got {named}. Example: {EXAMPLE}.")
    seeds = [argument for argument in arguments if argument.startswith("seeds=")]
    settings = [argument for argument in arguments if "=" in argument and argument not in seeds]
    literal = with_literal_text(["-m", *settings])
    refuse_sweeps([text for text in literal if not text.startswith(("-", "env="))], "a comparison")
    number = read_options(seeds, COMPARE, "evorl compare")[0]["seeds"]
    return [f"agent={','.join(agents)}", f"num_seeds={number}", *settings]

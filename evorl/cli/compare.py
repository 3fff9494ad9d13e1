"""``evorl compare``: trains several agents on the same seeds, and reports which is better and how certain that is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from evorl.cli.arguments import given_text
from evorl.cli.command_options import read_options
from evorl.cli.config_tree import config_folder, config_names
from evorl.cli.options import COMPARE, REPORT
from evorl.cli.report import report_of, write_report
from evorl.cli.train import train
from evorl.config.command_lines import user_path
from evorl.config.names import no_such
from evorl.recorders.screen import print_line
from evorl.reports.comparison_charts import improvements
from evorl.reports.verdict import verdict
from evorl.runs.run_state import FINISHED
from evorl.runs.sweep_folder import SweepFolder

EXAMPLE = "evorl compare ppo sac env=pendulum seeds=10"
_SET_HERE = {"agent": "name the agents alone", "num_seeds": "use seeds", "hydra.sweep.dir": "use runs_folder"}


def compare(arguments: Sequence[str]) -> Path | None:
    """Train each agent with ``num_seeds=seeds``, one agent after the other, and write a report that compares them.

    Args:
        arguments: names of two agents or more, ``seeds=10``, and settings of the trainings. Instead,
            ``resume=<folder>`` continues a comparison that was stopped.

    Returns:
        Path of the report; ``None`` if the trainings were stopped.

    Raises:
        ValueError: fewer than two agents are named, an agent does not exist, or ``seeds`` is invalid.
        SystemExit: a setting is invalid, or a training failed; all others were trained.
    """
    values = {argument.partition("=")[0]: given_text(argument) for argument in arguments if "=" in argument}
    if "resume" in values:
        folder, overrides = user_path(values["resume"]), list(arguments)
    else:
        agents, seeds = _read(arguments, values)
        folder = user_path(values.get("runs_folder", "runs")).resolve() / time.strftime("compare_%Y-%m-%d_%H-%M-%S")
        settings = [argument for argument in arguments if "=" in argument and not argument.startswith("seeds=")]
        overrides = ["-m", f"agent={','.join(agents)}", f"num_seeds={seeds}", *settings, f"hydra.sweep.dir={folder}"]
    train(overrides)
    if any(run.state != FINISHED for run in SweepFolder.open(folder, trust=True).runs):
        print_line(f"To go on: evorl compare resume={folder}")
        return None
    options, places = read_options([str(folder), "by=agent"], REPORT, "evorl report", unnamed="run")
    groups = report_of(places, options).groups
    for pair in improvements(groups):
        print_line(verdict(pair, min(len(group.scores) for group in groups if group.label in pair[:2])))
    return write_report([str(folder), "by=agent"])


def _read(arguments: Sequence[str], values: dict[str, str]) -> tuple[list[str], int]:
    """Return the agents and the number of seeds."""
    for name, remedy in _SET_HERE.items():
        if name in values:
            raise ValueError(f"{name}={values[name]} has no place in a comparison: {remedy}, as in {EXAMPLE}.")
    agents = [argument for argument in arguments if "=" not in argument]
    known = config_names(config_folder() / "agent")
    for agent in agents:
        if agent not in known:
            raise ValueError(no_such("agent", agent, known))
    if len(set(agents)) < 2:
        raise ValueError(f"a comparison needs two agents or more, got {' '.join(agents) or 'none'}: {EXAMPLE}.")
    chosen, _ = read_options([text for text in arguments if text.startswith("seeds=")], COMPARE, "evorl compare")
    return agents, chosen["seeds"]

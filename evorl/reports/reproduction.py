"""Page section on reproducing runs: commands, machines and versions; equal machines are listed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evorl.reports.elements import Content, element, table, without_folders
from evorl.reports.recorded_run import RecordedRun

_FACTS = {"commit": "commit", "device": "devices", "processor": "processor", "system": "system"}
_NOT_KNOWN = "its command was not recorded; only its config.yaml is known"


def reproduction(runs: Sequence[RecordedRun]) -> list[Content]:
    """Return the commands of all runs, and each machine with its versions."""
    rows = [[name, _commands(run)] for name, run in {run.origin: run for run in runs}.items()]
    content: list[Content] = [table(["run", "command"], rows, left=2)]
    machines: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for run in runs:
        for start in run.starts:
            _, names = machines.setdefault(str(_machine(start)), (_machine(start), []))
            names.append(run.origin)
    for about, names in machines.values():
        unique = list(dict.fromkeys(names))
        heading = "All runs" if len(unique) == len(rows) else ", ".join(unique)
        content += [element("h3", heading) if len(machines) > 1 else None, _facts(about)]
    return content


def _commands(run: RecordedRun) -> Content:
    commands = [without_folders(str(start.get("command"))) for start in run.starts]
    if not commands:
        return element("span", _NOT_KNOWN, class_="note")
    then = [element("br") if i else None for i in range(len(commands))]
    return [[line, element("code", command)] for line, command in zip(then, commands, strict=True)]


def _machine(start: dict[str, Any]) -> dict[str, Any]:
    return {name: start.get(name) for name in (*_FACTS, "versions")}


def _facts(about: dict[str, Any]) -> Content:
    rows = [[label, str(about[name])] for name, label in _FACTS.items() if about[name]]
    versions = about["versions"] if isinstance(about["versions"], dict) else {}
    first = {name: versions[name] for name in ("evorl", "python", "jax", "jaxlib", "numpy") if name in versions}
    rows.append(["versions", ", ".join(f"{name} {version}" for name, version in first.items())])
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in first)
    folded = (
        element("details", element("summary", "Versions of all packages"), element("p", others)) if others else None
    )
    return [table(["", ""], rows, left=2), folded]

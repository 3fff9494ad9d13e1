"""Documentation pages as data: their code blocks, and tables generated from YAML files and results.

``python -m tests.support.doc_pages`` rewrites the tables in the pages.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.gpu.page import with_gpu
from benchmarks.learning.page import with_learning
from benchmarks.results import load
from evorl.cli.command_table import COMMANDS
from evorl.cli.commands import help_of
from evorl.cli.settings import as_yaml, commented_settings, run_comments, workflow_settings
from evorl.config.descriptions import Setting, described_settings
from evorl.config.nodes import completed_node
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.runs.spec import RunSpec
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"(<!-- commands -->\n).*?(<!-- end of commands -->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- settings: (\S+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page at which the text starts."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """Return the README and every page below ``docs``."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1) for match in _FENCE.finditer(text)]


def settings_table(file: Path) -> str:
    """Return a Markdown table of the settings of a config file, including class defaults."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, value, comment in settings(file):
        if isinstance(value, str) and not value and not comment:
            continue
        shown = "" if (isinstance(value, Mapping) and value) or value == "" else f"`{_shown(value)}`"
        rows.append(f"| `{name}` | {shown} | {comment.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def optimizer_settings(config: Mapping[str, Any]) -> Iterator[Setting]:
    """Return path, value and description of an evolutionary optimizer's settings, from ``configs/evolution``."""
    optimizer = completed_node(EvoOptimizer, config["optimizer"], None, "optimizer")
    return described_settings(EvolutionGuidedWorkflow, {**config, "optimizer": optimizer})


def settings(file: Path) -> Iterator[Setting]:
    if file == ROOT / "configs" / "config.yaml":
        return run_settings(RunSpec().as_config(), run_comments())
    config = OmegaConf.to_container(OmegaConf.load(file))
    config.pop("defaults", None)
    if "workflow" in config:
        return (setting for setting in workflow_settings(config) if setting[0] != "workflow")
    if file.parent.name == "evolution":
        return optimizer_settings(config)
    return (
        (name, _Text(value), comment) for name, value, comment in commented_settings(file.read_text(encoding="utf-8"))
    )


def run_settings(config: Mapping[str, Any], comments: Mapping[str, str], above: str = "") -> Iterator[Setting]:
    """Yield path, default and meaning of every setting of a run, with its groups."""
    for name, value in config.items():
        yield f"{above}{name}", value, comments[f"{above}{name}"]
        if isinstance(value, Mapping):
            yield from run_settings(value, comments, f"{above}{name}.")


class _Text(str):
    """A value in the syntax of its file."""


def _shown(value: Any) -> str:
    return value if isinstance(value, _Text) else as_yaml(value)


def describe_commands() -> str:
    """Return ``evorl <command> --help`` of every command as Markdown."""
    return "".join(f"### evorl {name}\n\n```text\n{help_of(name)}```\n\n" for name in COMMANDS)


def with_tables(text: str) -> str:
    """Return a page's text with up-to-date tables of YAML files, commands and recorded results."""
    text = _COMMANDS.sub(lambda m: f"{m[1]}\n{describe_commands()}{m[2]}", text)
    text = _TABLE.sub(lambda m: f"{m[1]}\n{settings_table(ROOT / m[2])}\n{m[3]}", text)
    return with_gpu(with_learning(text, load("learning")))


if __name__ == "__main__":
    for path in pages():
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")

"""Settings of a run with their descriptions, for ``--cfg job`` and the tables of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evorl.assembly import complete_config, workflow_class
from evorl.cli.config_tree import AGENT_PARTS
from evorl.config.descriptions import Setting, described_settings, field_descriptions
from evorl.config.yaml_text import inline_yaml
from evorl.runs.spec import RunSpec

_SETTING = re.compile(r"^( *)([\w/]+):(?: +(.*?))? *(?:# (.*))?$")


def workflow_settings(config: Mapping[str, Any], above: str = "") -> Iterator[Setting]:
    """Yield path (after ``above``), value and description of each workflow setting, with class defaults.

    Raises:
        ValueError: the workflow class, or a variant of a setting, does not exist.
    """
    cls = workflow_class(config["workflow"])
    complete = complete_config(cls, config)
    parts = {name: complete.pop(name) for name in AGENT_PARTS if "workflow" in (complete.get(name) or {})}
    yield from described_settings(cls, complete, above)
    for name, part in parts.items():
        yield f"{above}{name}", part, "a complete algorithm, with its settings"
        yield from workflow_settings(part, f"{above}{name}.")


def commented_settings(text: str) -> Iterator[Setting]:
    """Yield path, value text (empty for parents) and comment of YAML settings, except ``defaults`` and ``hydra``."""
    parents: list[tuple[int, str]] = []
    in_block = ""  # the defaults list and Hydra's own settings are skipped
    for line in text.splitlines():
        match = _SETTING.match(line)
        if not match or not line.strip() or line.lstrip().startswith(("#", "-")):
            continue
        indent, key, value, comment = len(match[1]), match[2], match[3] or "", match[4] or ""
        if indent == 0:
            in_block = key
        if in_block in ("defaults", "hydra"):
            continue
        while parents and parents[-1][0] >= indent:
            parents.pop()
        name = ".".join([*(parent for _, parent in parents), key])
        parents.append((indent, key))
        yield name, value, comment


def run_comments() -> dict[str, str]:
    """Return the description of every run setting and every group of settings, by path."""
    comments: dict[str, str] = {}
    for above, part in RunSpec.parts():
        comments |= {f"{above}{name}": text for name, text in field_descriptions(part).items()}
    return comments


def commented_yaml(config: Mapping[str, Any], folder: Path) -> str:
    """Format a composed config as YAML, with a comment for each setting; ``folder`` is the config tree."""
    comments = {name: text for name, _, text in workflow_settings(config) if text}
    env = config.get("env")
    library = env.get("library") if isinstance(env, Mapping) else None
    preferred = [folder / "env" / f"_{name}.yaml" for name in (library, "options")]  # these files take precedence
    others = sorted((folder / "env").glob("**/*.yaml"))
    for file in [*(file for file in preferred if file.exists()), *others]:
        of_file = {name: text for name, _, text in commented_settings(file.read_text(encoding="utf-8")) if text}
        comments = of_file | comments
    comments |= run_comments()
    return "".join(_lines(config, comments, ""))


def _lines(node: Mapping[str, Any], comments: Mapping[str, str], above: str) -> Iterator[str]:
    for name, value in node.items():
        comment = f"  # {comments[above + name]}" if above + name in comments else ""
        indent = "  " * above.count(".")
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:{comment}\n"
            yield from _lines(value, comments, f"{above}{name}.")
        else:
            yield f"{indent}{name}: {as_yaml(value)}{comment}\n"


def as_yaml(value: Any) -> str:
    """Format a value on one line; integral floats of at least 1000 are written without a decimal point."""
    if isinstance(value, float) and abs(value) >= 1000 and value.is_integer():
        value = int(value)
    return inline_yaml(value)

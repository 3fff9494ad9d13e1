"""The model card of a packed policy: Markdown with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evorl.config.yaml_text import dump_yaml
from evorl.ops.terminal_text import escaped
from evorl.recorders.run_status import EVALUATION
from evorl.reports.comparison import settings_of
from evorl.reports.elements import without_folders
from evorl.reports.page import Report
from evorl.reports.recorded_run import RecordedRun
from evorl.reports.summary_table import number, summary_rows

_NOT_STATED = "not stated"
_VERSIONS = ("evorl", "python", "jax", "jaxlib", "numpy")
_NOT_OF_POLICY = ("init_from.", "stop.")
_USE = """\
```bash
evorl evaluate run=policy.zip
evorl render run=policy.zip to=episodes.webp
evorl train agent={agent} env=... init_from=policy.zip # use the same network settings
```

`policy.zip` is the path or the address of the packed policy. In Python:

```py
policy = evorl.load_policy("policy.zip")
action = policy(obs)
```"""


class PackedCheckpoint(NamedTuple):
    """The checkpoint of a packed policy.

    Attributes:
        timesteps: environment steps trained, per seed.
        score: its evaluation score; ``None`` if it was not evaluated.
        seeds: number of seeds.
        foreign: code outside evorl that its config names, by setting.
        license: license of the policy; ``None`` if its author states none.
        page: file name of the offline page that runs the policy in a browser, or the reason why the page is absent.
    """

    timesteps: int
    score: float | None
    seeds: int
    foreign: Mapping[str, str]
    license: str | None
    page: str


def model_card(run: RecordedRun, checkpoint: PackedCheckpoint) -> str:
    """Return the card of a run as Markdown: agent, environment, score and its spread, settings, versions, license."""
    score = _score(run, checkpoint)
    start = run.starts[-1] if run.starts else {}
    facts = {
        "agent": run.algorithm,
        "environment": run.env,
        "seeds": f"{checkpoint.seeds} (first seed: {run.config.get('seed', 0)})",
        "steps": f"{checkpoint.timesteps:,} environment steps per seed",
        "score": score or "not evaluated",
        **_training(run),
        "license": checkpoint.license or _NOT_STATED,
        "offline page": checkpoint.page,
        "trained by": " ".join(without_folders(str(start.get("command", _NOT_STATED))).split()),
        "trained on": ", ".join(str(start[key]) for key in ("device", "processor", "system") if start.get(key)),
        "commit": start.get("commit") or _NOT_STATED,
        "versions": _versions(start),
    }
    if checkpoint.foreign:
        named = ", ".join(f"{name}={value}" for name, value in checkpoint.foreign.items())
        facts["needs code"] = f"{named}; install this code, and set trust=true if you trust it"
    settings = {
        name: without_folders(value)
        for name, value in settings_of(run).items()
        if value != "null" and not name.startswith(_NOT_OF_POLICY)
    }
    parts = [
        f"---\n{dump_yaml(_metadata(run, checkpoint, score), sort_keys=False, allow_unicode=True)}---",
        f"# {_cell(run.algorithm)} on {_cell(run.env)}",
        f"A policy trained with evorl and packed by `evorl pack`.\n\n{_USE.format(agent=_cell(run.algorithm))}",
        f"## Facts\n\n{_table(('', ''), facts)}",
        f"## Settings\n\n{_table(('setting', 'value'), settings)}",
    ]
    return "\n\n".join(parts) + "\n"


def _score(run: RecordedRun, checkpoint: PackedCheckpoint) -> str | None:
    """Describe the score with its standard deviation over episodes and range over seeds; ``None`` without score."""
    if checkpoint.score is None:
        return None
    over = run.config.get("best_over", 1)
    averaged, whose = ("an evaluation", "its") if over == 1 else (f"up to {over} evaluations", "the last one's")
    text = f"{number(checkpoint.score)}, the mean return of {averaged}"
    spread = _at(run, f"{EVALUATION}_std", checkpoint.timesteps)
    if math.isfinite(spread):
        text += f", with a standard deviation of {number(spread)} over {whose} episodes"
    seeds = [_at(run, f"{EVALUATION}_seed_{i}", checkpoint.timesteps) for i in range(checkpoint.seeds)]
    if checkpoint.seeds > 1 and all(map(math.isfinite, seeds)):
        text += f"; from {number(min(seeds))} to {number(max(seeds))} over the seeds"
    return text


def _at(run: RecordedRun, metric: str, timesteps: int) -> float:
    """Return the value of a metric at these steps; NaN if it was not recorded then."""
    curve = run.curves.get(metric)
    values = [] if curve is None else curve.values[curve.steps == timesteps].tolist()
    return values[-1] if values else math.nan


def _training(run: RecordedRun) -> dict[str, str]:
    """Return the entry ``training`` with the results of the whole run, as in a report; empty without metrics."""
    try:
        (row,) = summary_rows(Report.of([run]).groups)
    except ValueError:  # nothing was recorded
        return {}
    interval = "" if row["low"] is None else f", 95 % interval [{number(row['low'])}, {number(row['high'])}]"
    center = f"{number(row['iqm'])}, the interquartile mean of the last values of {row['seeds']} seeds{interval}"
    return {"training": f"{center}; best value {number(row['best'])}; {row['steps']:,} steps"}


def _versions(start: Mapping[str, Any]) -> str:
    versions = start.get("versions")
    known = versions if isinstance(versions, Mapping) else {}
    return ", ".join(f"{name} {known[name]}" for name in _VERSIONS if name in known) or _NOT_STATED


def _metadata(run: RecordedRun, checkpoint: PackedCheckpoint, score: str | None) -> dict[str, Any]:
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metadata: dict[str, Any] = {
        "library_name": "evorl",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "evorl", run.algorithm, run.env],
    }
    if checkpoint.license is not None:
        metadata["license"] = checkpoint.license
    if score is not None and checkpoint.score is not None:
        result = {
            "task": task,
            "dataset": {"name": run.env, "type": run.env},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": round(checkpoint.score, 4)}],
        }
        metadata["model-index"] = [{"name": f"{run.algorithm} on {run.env}", "results": [result]}]
    return metadata


def _table(heading: Sequence[str], rows: Mapping[str, Any]) -> str:
    lines = [heading, ("---", "---"), *((_cell(name), _cell(value)) for name, value in rows.items())]
    return "\n".join(f"| {left} | {right} |" for left, right in lines)


def _cell(value: Any) -> str:
    """Return text for a cell of a Markdown table, without markup."""
    text = escaped(str(value), lines=True).replace("\\", "\\\\")
    for mark, code in {"&": "&amp;", "<": "&lt;", "|": "\\|", "`": "\\`", "[": "\\[", "*": "\\*"}.items():
        text = text.replace(mark, code)
    return text

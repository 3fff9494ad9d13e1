"""Comparison of the settings of a recorded result with the settings that ``tasks.yaml`` composes now."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.learning.judgment import NEARLY_AS_LONG
from benchmarks.learning.task import LearningTask
from benchmarks.learning.training import overrides_of
from evorl.assembly import complete_config, workflow_class
from evorl.cli.composition import compose_config
from evorl.config.values import field_types, plain
from evorl.runs.spec import RunSpec

# Keys that depend on the machine or the output, and the seeds, whose number each row shows.
IGNORED = ("seed", "num_seeds", "devices", "compilation_cache", "runs_folder", "recorders", "title")
OLD = "recorded before commits were stored"
_MAX_KEYS = 3


def staleness(task: LearningTask, result: Mapping[str, Any]) -> str | None:
    """Return the reason why a result does not count any more; ``None`` if its settings are current.

    Results without ``config`` or ``commit`` never count. The reason depends on their overrides; no config is composed.
    Trainings that were stopped long before the limit of the task's threshold do not count either. A setting that did
    not exist when the result was recorded must have its default value now, also in nested configs (``inner`` of PBT).
    An agent's setting that is a setting no longer must have been recorded with its default.
    """
    if "config" not in result or "commit" not in result:
        return OLD if _same_overrides(task, result) else "its overrides differ"
    recorded_by = result.get("recorded", {}).get("overrides")
    if recorded_by != (None if task.recorded_by is None else list(task.recorded_by)):
        return "its replay buffer was recorded with other overrides"
    now = _compared(composed(task))
    keys = list(_differing(_compared(result["config"]), now, None))
    if not keys:
        steps, limit = result["timesteps"], task.within_timesteps or 0
        return f"its training ended after {steps:,} of {limit:,} steps" if steps < NEARLY_AS_LONG * limit else None
    return f"its settings differ: {', '.join(keys[:_MAX_KEYS])}" + (
        f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
    )


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return plain(compose_config(overrides))


def composed(task: LearningTask, num_seeds: int = 5) -> dict[str, Any]:
    """Return the settings of a task as composed now, which takes a tenth of a second once per process."""
    return _composed(tuple(overrides_of(task, num_seeds)))


@functools.cache
def _defaults(workflow: str) -> dict[str, Any]:
    """Return the settings of a run and of a workflow class with their defaults.

    They include fields of the agent that only earlier versions recorded as settings, although they have no effect.
    """
    cls = workflow_class(workflow)
    config = RunSpec().as_config() | complete_config(cls, {})
    fields = dataclasses.fields(field_types(cls)["agent"]) if "agent" in config else ()
    inert = {field.name: field.default for field in fields if not field.metadata.get("setting", True)}
    return _compared(config | ({"agent": config["agent"] | inert} if inert else {}))


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as read from JSON, without the ignored keys."""
    return json.loads(json.dumps({key: value for key, value in config.items() if key not in IGNORED}))


def _same_overrides(task: LearningTask, result: Mapping[str, Any]) -> bool:
    num_seeds = 1 if task.one_seed_at_a_time else len(result["seeds"])
    return sorted(result["overrides"]) == sorted(overrides_of(task, num_seeds))


def _differing(recorded: Any, now: Any, defaults: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the settings that differ, with both values."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        defaults = _defaults(now["workflow"]) if isinstance(now.get("workflow"), str) else defaults
        for key in sorted({*recorded, *now}):
            default = defaults.get(key) if isinstance(defaults, dict) else None
            before = recorded.get(key) if key in recorded else default
            yield from _differing(before, now.get(key, default), default, f"{path}.{key}" if path else key)
    elif recorded != now or isinstance(recorded, bool) != isinstance(now, bool):
        yield f"`{path}` {_short(recorded)}, now {_short(now)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

"""Settings of a run that can affect learning, as a flat table for reports and experiment trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evorl.runs.privacy import shareable

_IGNORED = {
    *"title sweep search eval_at_start render_interval resume run trust runs_folder recorders evaluation".split(),
    *"best_checkpoints_kept best_over checkpoint_seconds".split(),
    *"checkpoints_kept compilation_cache devices env_chunk deterministic checkpoint_interval log_interval".split(),
}


def learning_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all settings that can affect learning, by dotted name, without secrets."""
    settings = {key: value for key, value in shareable(config).items() if key not in _IGNORED}
    return {name: value for name, value in _flat(settings) if name not in _IGNORED}


def _flat(node: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name)
        else:
            yield name, value

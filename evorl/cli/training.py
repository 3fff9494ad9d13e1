"""Starts training: finds the run to resume, then trains a single run, a sweep or a search."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from evorl.cli.arguments import without_implied
from evorl.cli.config_tree import config_folder
from evorl.cli.errors import failure_text
from evorl.cli.overrides import changed_spec
from evorl.cli.run_names import has_general_defaults, hydra_settings, origin_of_settings, place_of_run, title_of
from evorl.config.gate import scope
from evorl.parameter_server.service import settle_parameters
from evorl.runs.about import read_starts
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import refuse_running
from evorl.runs.spec import RunKind, RunSpec, learning_settings
from evorl.runs.spec_parts import StoredRun
from evorl.runs.stored import StoredConfig
from evorl.runs.sweep_folder import find_to_resume
from evorl.runs.trust import foreign_names, settable
from evorl.sweeps.search import check_search, search_settings
from evorl.sweeps.sweep import sweep_groups, sweep_settings
from evorl.training.preparation import check_build
from evorl.training.run import train
from evorl.training.start import RunPlace, RunStart, Trained

# Options of sweeps and searches that a resume may change.
_OF_A_RESUME = {"sweep.at_once", "sweep.memory", "search.trials", "search.pruner"}


@scope()
def train_run(
    spec: RunSpec, overrides: Sequence[str] = (), place: RunPlace | None = None, began: float | None = None
) -> Trained:
    """Train a run, or all runs of ``sweep=`` or ``search=``; return the result. For errors see ``evorl.training.run``.

    Args:
        spec: settings of the run; with ``resume`` only ``spec.stored`` is used, the rest comes from the run folder.
        overrides: overrides that change the config of a resumed run; empty for a new run.
        place: location within a sweep; ``None`` for a separate run.
        began: start of the run in seconds, by ``time.perf_counter``; ``None`` for now.
    """
    spec, resumed = _stored_run(spec.stored.resume, spec.stored, overrides) if spec.stored.resume else (spec, None)
    if spec.parameters is not None:
        spec = settle_parameters(spec, place is not None)
    start = dataclasses.replace(_start(spec, resumed, overrides, place), began=began or time.perf_counter())
    if spec.kind is RunKind.SWEEP:
        return sweep_settings(spec, start)
    if spec.kind is RunKind.SEARCH:
        return search_settings(spec, start, lambda trial, place: train_run(trial, (), place), failure_text)
    return train(spec, start)


def check_training(spec: RunSpec) -> None:
    """Raise the errors that a run of a sweep with these settings would raise before its first iteration is compiled.

    The workflow and the shapes of its initial state are built, then the workflow is closed.

    Raises:
        ValueError: the settings are inconsistent, need a parameter server or too much memory, or allow no update.
        RunFolderError: the run that ``init_from`` names cannot be read.
    """
    if spec.parameters is not None:
        spec = settle_parameters(spec, in_sweep=True)
    if spec.kind is RunKind.SWEEP:
        sweep_groups(spec)
    elif spec.kind is RunKind.SEARCH:
        check_search(spec, check_build)
    else:
        check_build(spec)


def _stored_run(which: str, stored: StoredRun, overrides: Sequence[str]) -> tuple[RunSpec, RunFolder]:
    """Return the changed settings and the folder of the run that ``resume`` names, if it can be resumed."""
    folder = RunFolder(find_to_resume(which, stored.runs_folder))
    folder.refuse_links()
    refuse_running(folder.state)
    refuse_with_resume(overrides)
    spec, _ = changed_spec(folder, stored.trust, overrides)
    before = RunSpec.from_config(StoredConfig.read(folder).config)
    _refuse_other_comparison(before.as_config(), spec.as_config())
    return spec, folder


def _refuse_other_comparison(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a change would attribute results of a sweep or search to other settings.

    The error is also raised if a single run would become a sweep or search.
    """
    kinds = ("sweep", "search")
    old, new = (
        learning_settings(config)
        | {f"{kind}.{name}": x for kind in kinds for name, x in (config.get(kind) or {}).items()}
        for config in (before, after)
    )
    changed = [name for name in (old | new) if old.get(name) != new.get(name)]
    changed = [name for name in changed if name not in {*_OF_A_RESUME, *map(settable, foreign_names(before))}]
    if changed and any(config.get(kind) is not None for kind in kinds for config in (before, after)):
        raise ValueError(
            f"{', '.join(changed)}: a resumed sweep or search keeps its settings, and a run cannot become a sweep or "
            f"search. Remove {'it' if len(changed) == 1 else 'them'}, resume one run by its folder, or omit resume."
        )


def refuse_with_resume(overrides: Sequence[str]) -> None:
    """Raise ``ValueError`` if the arguments of a resumed run contain a setting that has an effect only at its start."""
    for argument in overrides:
        if re.match(r"\+*(init_from|seed|num_seeds)[=.]", argument):
            raise ValueError(f"{argument}: a resumed run keeps its seeds and parameters. Remove it or start a new run.")


def _start(spec: RunSpec, resumed: RunFolder | None, overrides: Sequence[str], place: RunPlace | None) -> RunStart:
    """Return the start of a run; if Hydra composed the settings, its job defines the overrides, names and folder."""
    hydra = None if resumed else hydra_settings()
    chosen, names = hydra.runtime.choices if hydra else {}, {}
    if place and not hydra:
        overrides, names = _origin_in_sweep(place, resumed)
    elif hydra and not overrides:
        names = {group: str(chosen.get(group, default)) for group, default in (("agent", "run"), ("env", "env"))}
        overrides = without_implied(hydra.overrides.task)
    origin = origin_of_settings(chosen)
    return RunStart(
        place=place or RunPlace(*place_of_run(spec)),
        resumed=resumed,
        title=title_of(spec, chosen or names),
        overrides=overrides,
        names=names,
        source=config_folder().parent,
        notice=origin,
        suggests_changes=has_general_defaults(origin),
    )


def _origin_in_sweep(place: RunPlace, resumed: RunFolder | None) -> tuple[list[str], dict[str, str]]:
    """Return overrides and names for ``about.json`` of a run that a resumed sweep or search resumes or starts."""
    starts = [] if resumed else read_starts(RunFolder(place.root).about)
    names = {name: str(starts[0][name]) for name in ("agent", "env", "command") if starts and name in starts[0]}
    return [f"resume={place.root}"], names

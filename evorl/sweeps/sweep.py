"""``sweep=``: trains many settings; settings with the same program structure run in parallel in one program."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evorl.assembly import workflow_from_config
from evorl.config.command_lines import describe_setting
from evorl.config.names import no_such
from evorl.config.values import dotted_keys
from evorl.execution.first_update import refuse_idle_training
from evorl.execution.multiprocess import refuse_several_processes
from evorl.execution.rows import describe_evaluation
from evorl.execution.runtime import prepare_for
from evorl.execution.signals import resume_advice, stop_on_signals
from evorl.ops.terminal_text import counted
from evorl.ops.trees import with_leaves
from evorl.recorders import LogRecorder, ProgressRecorder, RecorderGroup, make_recorder
from evorl.recorders.sweep_curves import Curve, draw_sweep
from evorl.runs.about import add_start, read_starts
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder, RunPlan
from evorl.runs.rescue import WatchedFolder
from evorl.runs.run_state import RESULTS_IN, HeldState
from evorl.runs.spec import RunSpec
from evorl.sweeps.grouping import Group, grouped
from evorl.sweeps.part import Part
from evorl.sweeps.sweep_run import SweepRun, check_halving, last_rounds, last_score, ranked, returns_of
from evorl.sweeps.sweep_settings import SweepSettings, is_shared
from evorl.sweeps.sweep_table import RETURN, Returns, write_evaluations, write_sweep
from evorl.training.start import RunStart, Trained
from evorl.types import PyTreeDict
from evorl.workflows.side_by_side import SideBySideWorkflow
from evorl.workflows.workflow import Workflow


def sweep_settings(spec: RunSpec, start: RunStart) -> Trained:
    """Train all settings of ``spec.sweep``, or the remaining ones of a resumed sweep.

    Args:
        spec: settings that all runs share.
        start: folder and title of the sweep; the run that holds its best setting has the same title.

    Returns:
        ``Trained``: ``best_return`` is the last mean return of the best setting; ``None`` if stopped or all diverged.

    Raises:
        ValueError: a setting is invalid.
        RunFolderError: another process trains the sweep, or its folder cannot be written.
    """
    refuse_several_processes("sweep")
    sweep, settings, groups = sweep_groups(spec, is_new=start.resumed is None)
    folder = start.folder(spec)
    command = start.resume_command(folder, spec)
    table, screen = folder.sweep_table, spec.recorders.progress
    log, watched, held = LogRecorder(folder.log), WatchedFolder(folder), HeldState(folder.state)

    def tell(text: str) -> None:
        log.message(text)
        if screen:
            print(text, flush=True)

    try:
        held.hold()
        start.record_resume(spec)
        tell(f"{counted(len(settings), 'setting')} of {', '.join(sweep.over)}: {counted(len(groups), 'program')}.")
        seconds = spec.checkpoints.checkpoint_seconds
        run = SweepRun(folder.path, sweep, groups, spec.num_seeds, spec.seed, spec.devices, tell, seconds)
        write_sweep(table, settings, returns_of(run.evaluations()), spec.num_seeds)
        with stop_on_signals(lambda: resume_advice(command)) as should_stop:
            recorders = functools.partial(_recorders, folder.log, start.title) if screen else lambda _: []
            finished = run.train(recorders, lambda: should_stop() or watched.is_missing)
            watched.refuse_missing()
            evaluations = run.evaluations()
            returns = returns_of(evaluations)
            ranking = ranked(returns, last_rounds(run.rounds()))
            write_sweep(table, settings, returns, spec.num_seeds)
            write_evaluations(folder.sweep_evaluations, evaluations, spec.num_seeds)
            curves = _curves(settings, returns, ranking)
            draw_sweep(folder.path / "learning_curves.png", {folder.path.parent.name: curves})
        if not finished:
            tell(f"Stopped early. To resume: {command}")
            return Trained(None, True, folder.path)
        failures = tuple(
            f"{describe_setting(setting)}: diverged; last return of each seed: "
            f"{', '.join(f'{value:,.1f}' for value in returns[member][max(returns[member])])}."
            for member, setting in enumerate(settings)
            if _has_diverged(returns[member])
        )
        if len(failures) == len(settings):
            tell(f"Every setting diverged. {RESULTS_IN}{table}")
            return Trained(None, False, folder.path, failures)
        best = ranking[0]
        path = _keep_best(run, replace(spec, title=start.title), settings[best], best, folder)
        score = last_score(returns[best])
        described = f"{describe_setting(settings[best])}, with a return of {score:,.1f}"
        tell(f"Best of {counted(len(settings), 'setting')}: {described}.")
        tell(f"All are in {table}. The best is stored as a separate run: {path}")
        return Trained(score, False, folder.path, failures)
    finally:
        held.release()
        watched.close()
        log.close()


def sweep_groups(spec: RunSpec, is_new: bool = True) -> tuple[SweepSettings, list[dict[str, Any]], list[Group]]:
    """Set up JAX and build the workflows of a sweep; ``is_new`` is False if the sweep is resumed.

    Returns:
        The options of the sweep, its settings, and the settings grouped by the program that trains them.

    Raises:
        ValueError: a setting cannot be trained, or allows no update.
    """
    sweep = SweepSettings.from_config(spec.sweep)
    refuse_invalid_paths(sweep.over, spec)
    if is_new:
        _refuse_what_has_no_effect(sweep.over, spec)
    prepare_for(spec)
    settings = sweep.settings(spec.seed)
    with contextlib.ExitStack() as built:  # closes simulators on the host, which are rejected; others hold nothing

        def build(setting: Mapping[str, Any]) -> Workflow:
            config = spec_of(spec, setting).workflow_config()
            return built.enter_context(contextlib.closing(workflow_from_config(config)))

        try:
            groups = list(grouped(settings, build))
        except ValueError as error:
            if any(isinstance(values, Mapping) and isinstance(values["low"], int) for values in sweep.over.values()):
                raise ValueError(f"{error} A range also samples non-integers: list the values.") from error
            raise
        for group in groups:
            SideBySideWorkflow.of(group.workflow, group.paths, group.numbers[:1], [0])  # raises for such simulators
    for group in groups:
        if is_new and not group.workflow.timesteps_per_iteration and (sweep.at_once or 1) > 1:
            raise ValueError(
                f"sweep.at_once={sweep.at_once}: in this algorithm, the steps per iteration vary, and settings trained "
                "in parallel would share total_timesteps. Remove at_once to train them one after another."
            )
        if is_new and sweep.halving is not None:
            check_halving(group, sweep.halving)
        for numbers in group.numbers if is_new else ():
            refuse_idle_training(with_leaves(group.workflow, dict(zip(group.paths, numbers, strict=True))))
    return sweep, settings, groups


def _refuse_what_has_no_effect(over: Mapping[str, Any], spec: RunSpec) -> None:
    settings = {"init_from": spec.init_from.run, "actors": spec.actors, "render_interval": spec.render_interval}
    settings["serve"] = spec.serve
    settings |= {f"recorders.{name}": getattr(spec.recorders, name) for name in ("wandb", "mlflow", "own")}
    settings = {name: value for name, value in settings.items() if value not in (None, False, 0, ())}
    # Sections are named without their values, which may be credentials.
    names = [name if isinstance(value, Mapping) else f"{name}={value!r}" for name, value in settings.items()]
    names += [path for path in over if path.partition(".")[0] in RunSpec.keys() - {"env_chunk"}]
    if names:
        raise ValueError(
            f"sweep does not support {', '.join(names)}: it trains its settings in one program, not as separate runs. "
            "Remove these settings, or compare settings with -m or search."
        )


def _has_diverged(of_setting: Mapping[int, Sequence[float]]) -> bool:
    return bool(of_setting) and not math.isfinite(last_score(of_setting))


def _recorders(log: Path, title: str, part: Part) -> list[Recorder]:
    rows = f"{counted(len(part.members), 'setting')} x {counted(part.num_seeds, 'seed')}"
    return [RecorderGroup([LogRecorder(log), ProgressRecorder()], title, rows)]


def spec_of(spec: RunSpec, setting: Mapping[str, Any], **others: Any) -> RunSpec:
    """Return ``spec`` with ``setting`` and ``others``; by default one seed and device, no ``evaluation``, no actors.

    Raises:
        ValueError: a value is invalid, or contains ``${``: a trial's settings may come from an untrusted file.
    """
    for path, value in setting.items():
        if "${" in str(value):
            raise ValueError(f"{path}={value}: interpolations are not supported here: write the value.")
    run = {"num_seeds": 1, "devices": 1, "evaluation": None, "actors": None, "sweep": None, "search": None}
    return spec.changed({**run, **others, **setting})  # ``setting`` may contain ``actors.max_lag``


def whole_run(spec: RunSpec) -> dict[str, Any]:
    """Return the run settings that apply to a separate run, but not to a row of a sweep's program."""
    config = spec.as_config()
    return {name: config[name] for name in ("num_seeds", "devices", "evaluation", "actors")}


def _curves(settings: Sequence[Mapping[str, Any]], returns: Returns, ranking: Sequence[int]) -> dict[str, list[Curve]]:
    curves = {}
    for member in ranking:
        steps = sorted(returns[member])
        seeds = zip(*(returns[member][at] for at in steps), strict=True)
        curves[describe_setting(settings[member])] = [(steps, list(of_seed)) for of_seed in seeds]
    return curves


def refuse_invalid_paths(over: Mapping[str, Any], spec: RunSpec) -> None:
    """Raise ``ValueError`` if a path is not a setting that can vary, or if evaluations are disabled."""
    keys = dotted_keys(spec.as_config())
    known = [key for key in keys if key.partition(".")[0] not in ("sweep", "search")]
    for path in over:
        if path in ("agent", "env", "workflow", "env.library", "env.name", "env.factory"):
            name = path.partition(".")[0].replace("workflow", "agent")
            raise ValueError(
                f"{path} changes the whole run, so its returns cannot be ranked: compare with -m {name}=..."
            )
        if path == "checkpoint_interval":
            raise ValueError(f"{path} does not change the training, so its values cannot be compared. Remove it.")
        if is_shared(path):
            instead = "For several seeds of each setting, set num_seeds." if path == "seed" else "Remove it."
            raise ValueError(f"{path} is shared by all runs, so its values cannot be compared. {instead}")
        if path not in known:
            raise ValueError(no_such("config key", path, known))
    if not spec.workflow.get("eval_interval"):
        raise ValueError("settings are compared by evaluations, but eval_interval is 0: set it to a number of steps.")


def _keep_best(run: SweepRun, spec: RunSpec, setting: Mapping[str, Any], member: int, folder: RunFolder) -> Path:
    """Save the best setting, with all its seeds, as a separate run for evaluation or export; return its folder."""
    title = str(spec.title)
    others = {**whole_run(spec), "title": title}
    best = RunFolder(folder.path / "best")
    if best.saved_at() is not None:  # complete, and possibly trained further since
        return best.path
    if not best.config.exists():
        best = RunFolder.create(folder.path, spec_of(spec, setting, **others).as_config(), "best")
        for start in read_starts(folder.about):
            add_start(best.about, start)
    evaluations = run.evaluations()
    state, progress = run.final_state(member)
    _record(best, evaluations[member], title, spec.recorders.learning_curve)
    returns = returns_of(evaluations)[member]
    score = float(np.nanmax([np.mean(of_seeds) for of_seeds in returns.values()]))
    progress = {name: progress[name] for name in ("iterations", "timesteps")}  # others are means over all settings
    RunCheckpointer(best.checkpoints).save(state, {**progress, "best_score": score}, last_score(returns))
    return best.path


def _record(
    folder: RunFolder, evaluations: Mapping[int, Mapping[str, Sequence[float]]], title: str, learning_curve: bool
) -> None:
    """Write the evaluations of a setting to a run folder, as if a run had recorded them."""
    num_seeds = len(next(iter(evaluations.values()))[RETURN])
    recorder = make_recorder(folder, title=title, progress=False, tensorboard=False, learning_curve=learning_curve)
    recorder.resume_at(-1)
    recorder.start(RunPlan(title, max(evaluations), 0, 0, num_seeds, 1))
    for number, timesteps in enumerate(sorted(evaluations), start=1):
        metrics = {name: np.asarray(x if num_seeds > 1 else x[0]) for name, x in evaluations[timesteps].items()}
        recorder.write({"iterations": number, "timesteps": timesteps, **describe_evaluation(PyTreeDict(metrics))})
    recorder.close()

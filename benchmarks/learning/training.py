"""Trains one learning task as the command line does, with its learning curve."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.task import EVAL_EPISODES, LearningTask
from benchmarks.machine import versions
from evorl.cli.composition import compose_config
from evorl.config.values import plain
from evorl.runs.recorder import Recorder, Row
from evorl.runs.spec import RunSpec

SAVE_SECONDS = 600.0  # longest time between two checkpoints of a training run in a folder that is kept
PACKAGES = ("jax", "jaxlib", "brax", "mujoco-mjx", "gymnax", "flax", "optax", "evorl")


class ScoreCurve(Recorder):
    """Recorder of the learning curve of a score, with the seconds of training at each point.

    Args:
        score: name of the score, a column of the metrics.
        clock: function that returns the time in seconds.
        file: JSON file, rewritten with all points after each new one; ``resume_at`` reads it. ``None`` for no file.
    """

    def __init__(
        self,
        score: str = LearningTask.score,
        clock: Callable[[], float] = time.perf_counter,
        file: Path | None = None,
    ) -> None:
        self.score = score
        self.points: list[dict[str, Any]] = []
        self._iterations: list[int] = []  # iteration of each point
        self._file = file
        self.timesteps = 0  # environment steps of each seed at the last progress report
        self._clock, self._start = clock, clock()

    @property
    def seconds(self) -> float:
        """Seconds of training, including the earlier part of a continued run."""
        return self._clock() - self._start

    def write(self, row: Row) -> None:
        """Keep a row's score: the mean of an evaluation over seeds and episodes, with the spread over seeds, or over
        the episodes of a single seed.
        """
        if self.score not in row:
            return
        by_seed = [value for name, value in row.items() if name.startswith(f"{self.score}_seed_")]
        spread = row.get(f"{self.score}_std_over_seeds" if by_seed else f"{self.score}_std")
        point = {"timesteps": row["timesteps"], "seconds": self.seconds, "mean": row[self.score], "spread": spread}
        self.points.append({**point, **({"by_seed": by_seed} if by_seed else {})})
        self._iterations.append(row.get("iterations", 0))
        if self._file is not None:
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps([self._iterations, self.points]), "utf-8")
            part.replace(self._file)

    def resume_at(self, iterations: int) -> None:
        """Continue the curve in the file, without its points after ``iterations``."""
        if self._file is None or not self._file.is_file():
            return
        stored = zip(*json.loads(self._file.read_text("utf-8")), strict=True)
        earlier = [(iteration, point) for iteration, point in stored if iteration <= iterations]
        self._iterations, self.points = [iteration for iteration, _ in earlier], [point for _, point in earlier]
        self._start -= max((point["seconds"] for point in self.points), default=0.0)

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        """Record the progress of the training."""
        self.timesteps = timesteps


def overrides_of(task: LearningTask, num_seeds: int, total_timesteps: int | None = None) -> list[str]:
    """Return the overrides of ``scripts/train.py`` for a task.

    Args:
        task: the task.
        num_seeds: seeds trained in parallel.
        total_timesteps: environment steps, if different from the task's.
    """
    overrides = [
        *task.overrides,
        f"num_seeds={num_seeds}",
        f"eval_episodes={EVAL_EPISODES}",
        "eval_at_start=false",
    ]
    if total_timesteps is None:
        return overrides
    others = [override for override in overrides if not override.startswith("total_timesteps=")]
    return [*others, f"total_timesteps={total_timesteps}"]


def joined(curves: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the curves of seeds that were trained sequentially into one curve over all seeds.

    Args:
        curves: curve of each seed, at the same evaluations; a seed that ended early has only the first ones.
    """
    points = []
    for same in zip(*curves, strict=False):
        by_seed = [point["mean"] for point in same]
        seconds = max(point["seconds"] for point in same)
        mean, spread = float(np.mean(by_seed)), float(np.std(by_seed))
        points.append({**same[0], "seconds": seconds, "mean": mean, "spread": spread, "by_seed": by_seed})
    return points


@functools.cache
def recorded_steps(overrides: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the replay buffer of a training run with these overrides, as a temporary file, and its description."""
    from evorl.assembly import workflow_from_config
    from evorl.execution.recorded_steps import save_recorded_steps
    from evorl.execution.runtime import prepare_for

    config = compose_config([*overrides, "eval_interval=0"])
    prepare_for(RunSpec.from_config({**config, "compilation_cache": False}))
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    workflow = workflow_from_config(config)
    path = Path(folder) / "recorded"
    facts = save_recorded_steps(workflow, workflow.learn(key=config.seed), path)
    workflow.close()
    return str(path), {name: value for name, value in facts.items() if name not in ("format", "columns")}


def trainings(
    task: LearningTask,
    num_seeds: int,
    total_timesteps: int | None = None,
    earlier: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Train as the command line does; yield the results so far after each seed.

    Args:
        task: the task.
        num_seeds: seeds trained in parallel, or sequentially if the task requires it.
        total_timesteps: environment steps, if different from the task's.
        earlier: a recorded result of the task. If seeds are trained sequentially, those recorded with the same
            settings are not trained again.
        folder: folder for runs with checkpoints. An interrupted run of this task in it is continued; a run is removed
            when it has ended. ``None`` for a temporary folder.

    Yields:
        JSON: settings, ``config`` as composed, versions and ``curve``; ``load`` is the largest load of the machine at
        the start or end of a training run. Yielded after each seed if seeds are trained sequentially.
    """
    if not task.one_seed_at_a_time:
        yield _train(task, overrides_of(task, num_seeds, total_timesteps), folder)
        return
    overrides = overrides_of(task, 1, total_timesteps)
    results = _of_each_seed(earlier) if earlier is not None and earlier["overrides"] == overrides else []
    for seed in range(len(results), num_seeds):
        result = _train(task, [*overrides, f"seed={seed}"], folder)
        results.append(result)
        yield {
            **result,
            "overrides": overrides,
            "seeds": [seed for result in results for seed in result["seeds"]],
            "curve": joined([result["curve"] for result in results]),
            "seconds": sum(result["seconds"] for result in results),
            "load": max(result["load"] for result in results),
        }


def _of_each_seed(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the results from which a result of sequentially trained seeds was merged."""
    share = result["seconds"] / len(result["seeds"])
    of_seeds = []
    for i, seed in enumerate(result["seeds"]):
        curve = [{**point, "mean": point["by_seed"][i]} for point in result["curve"]]
        of_seeds.append({**result, "seeds": [seed], "curve": curve, "seconds": share})
    return of_seeds


def train(task: LearningTask, num_seeds: int, total_timesteps: int | None = None) -> dict[str, Any]:
    """Return the final result of ``trainings``."""
    return list(trainings(task, num_seeds, total_timesteps))[-1]


def _train(task: LearningTask, overrides: Sequence[str], kept: Path | None = None) -> dict[str, Any]:
    from evorl.assembly import workflow_from_config
    from evorl.execution.restoration import restore
    from evorl.execution.runtime import prepare_for
    from evorl.recorders import make_recorder
    from evorl.recorders.standard import RecorderGroup
    from evorl.runs.checkpointer import RunCheckpointer
    from evorl.runs.folder import RunFolder

    load_before = os.getloadavg()[0]
    loaded, recorded = [], {}
    if task.recorded_by is not None:
        path, facts = recorded_steps(tuple(task.recorded_by))
        loaded, recorded = [f"replay.load={path}"], {"recorded": {"overrides": list(task.recorded_by), **facts}}
    settings = plain(compose_config(overrides))
    config = compose_config([*overrides, *loaded])
    prepare_for(RunSpec.from_config({**config, "compilation_cache": False}))
    workflow = workflow_from_config(config)
    with tempfile.TemporaryDirectory() as temporary:
        root, name = Path(temporary) if kept is None else kept, f"{task.name}-{config.num_seeds}-{config.seed}"
        run = RunFolder(root / name) if (root / name).is_dir() else RunFolder.create(root, config, name)
        checkpointer = state = progress = None
        curve = ScoreCurve(task.score, file=run.path / "curve.json")
        recorder = RecorderGroup([make_recorder(run, live=False), curve])
        if kept is not None:
            checkpointer = RunCheckpointer(run.checkpoints, 1, seconds=SAVE_SECONDS)
            if checkpointer.steps:
                state, progress = restore(workflow, checkpointer, config.seed, "latest")
            recorder.resume_at(progress["iterations"] if progress else -1)
        try:
            state = workflow.learn(
                state,
                key=config.seed,
                recorder=recorder,
                checkpointer=checkpointer,
                progress=progress,
            )
        finally:
            recorder.close()
        shutil.rmtree(run.path)
    return {
        "title": task.title,
        "overrides": list(overrides),
        "config": settings,
        **recorded,
        "backend": config.env.get("backend"),
        "seeds": [config.seed + i for i in range(config.num_seeds)],
        "eval_episodes": config.eval_episodes,
        "num_devices": workflow.execution.num_devices,
        "curve": curve.points,
        "timesteps": int(state.iterations) * workflow.timesteps_per_iteration or curve.timesteps,
        "seconds": curve.seconds,
        "load": max(load_before, os.getloadavg()[0]),
        "versions": versions(*PACKAGES),
    }

"""The one learn loop: chunks of compiled iterations, and between them rows of metrics, evaluations and checkpoints.

Rows, evaluations and checkpoints come at fixed iterations, whatever the length of the chunks, and nothing that is
timed reaches them. So what is recorded does not depend on the machine's speed or on interruptions.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from evorl.metrics import EpisodeStatistics
from evorl.types import Key, PyTreeDict, State
from evorl.workflows import execution as programs
from evorl.workflows.compile_clock import CompileClock

if TYPE_CHECKING:
    from evorl.workflows.workflow import Workflow

SECONDS_PER_CHUNK = 0.3  # the host is touched this often at most
Row = dict[str, float | int]


class TrainingDiverged(ArithmeticError):
    """A loss became NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """What a run sets out to do; recorders are told at the start.

    Attributes:
        name: of the algorithm's workflow.
        total_timesteps: environment steps of the whole run, for each seed.
        first_timesteps: environment steps already taken when it starts (0 unless resumed).
        first_iterations: iterations already done.
        num_seeds: seeds that run side by side.
        num_devices: devices in use.
    """

    name: str
    total_timesteps: int
    first_timesteps: int
    first_iterations: int
    num_seeds: int
    num_devices: int


class Recorder(Protocol):
    """Where metrics go."""

    def start(self, plan: RunPlan) -> None:
        """The run begins."""

    def write(self, row: Mapping[str, float | int]) -> None:
        """One row: ``iterations``, ``timesteps``, and ``train/*``, ``eval/*``, ``time/*`` as far as there are any."""

    def progress(self, timesteps: int, steps_per_second: float, latest: Mapping[str, float | int]) -> None:
        """A sign of life between rows, with the latest value of every metric."""

    def message(self, text: str) -> None:
        """A line on the course of the run."""

    def close(self) -> None:
        """The run is over."""


class Checkpointer(Protocol):
    """Where states are saved."""

    def save(self, state: State, progress: dict[str, Any], score: float | None) -> None:
        """Keep a state. ``progress`` is JSON; ``score`` is the evaluation of exactly this state, if there was one."""


class NoRecorder:
    """Records nothing."""

    def start(self, plan: RunPlan) -> None:
        """Nothing to do."""

    def write(self, row: Mapping[str, float | int]) -> None:
        """Forget the row."""

    def progress(self, timesteps: int, steps_per_second: float, latest: Mapping[str, float | int]) -> None:
        """Say nothing."""

    def message(self, text: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Nothing to close."""


def run_learning(
    workflow: Workflow,
    state: State | None,
    key: Key | int,
    recorder: Recorder | None,
    checkpointer: Checkpointer | None,
    progress: Mapping[str, Any] | None,
    should_stop: Callable[[], bool] | None,
) -> State:
    """Train from ``state`` to the end of the plan. See ``Workflow.learn``."""
    done = 0 if state is None else int(state.iterations)
    run = LearningRun(workflow, recorder or NoRecorder(), checkpointer, progress or {}, done)
    return run.train(state, key, should_stop or (lambda: False))


class LearningRun:
    """One training run on the host: counts iterations, calls the compiled chunks, and does what is due between them."""

    def __init__(
        self,
        workflow: Workflow,
        recorder: Recorder,
        checkpointer: Checkpointer | None,
        progress: Mapping[str, Any],
        iterations: int,
    ) -> None:
        self.workflow = workflow
        self.recorder = recorder
        self.checkpointer = checkpointer
        self.steps = workflow.timesteps_per_iteration
        self.last_iteration = max(1, int(workflow.total_timesteps) // self.steps)
        self.iterations = iterations
        self.best_score = float(progress.get("best_score", -math.inf))
        self.means = RunningMeans(progress.get("means", {}))
        self.latest: Row = {}
        self.chunks: deque[tuple[int, PyTreeDict]] = deque()  # dispatched, not counted yet
        self.waited_since = 0.0
        self.seconds_per_iteration = math.inf
        self.saved_at: int | None = self.iterations if progress else None
        self.log_every = self._every(workflow.log_interval, 1) or self.last_iteration
        self.eval_every = self._every(workflow.eval_interval, self.log_every)
        self.save_every = self._every(workflow.checkpoint_interval, self.log_every)

    def _every(self, interval: float, unit: int) -> int | None:
        """An interval in environment steps as a number of iterations; ``None`` for never.

        Longer ones are whole multiples of ``unit``, so that evaluations and checkpoints fall on rows of metrics.
        """
        if interval <= 0:
            return None
        iterations = max(1, round(interval / self.steps))
        return iterations if iterations < unit else unit * round(iterations / unit)

    @property
    def timesteps(self) -> int:
        """Environment steps taken so far, for each seed."""
        return self.iterations * self.steps

    @property
    def dispatched(self) -> int:
        """Iterations done or handed to the device."""
        return self.iterations + sum(num_iterations for num_iterations, _ in self.chunks)

    def train(self, state: State | None, key: Key | int, should_stop: Callable[[], bool]) -> State:
        """Run the loop; returns the last state."""
        execution = self.workflow.execution
        total = self.last_iteration * self.steps
        self.recorder.start(
            RunPlan(
                name=type(self.workflow).__name__,
                total_timesteps=total,
                first_timesteps=self.timesteps,
                first_iterations=self.iterations,
                num_seeds=execution.num_seeds or 1,
                num_devices=execution.num_devices,
            )
        )
        if total != int(self.workflow.total_timesteps):
            self.recorder.message(f"Whole iterations of {self.steps:,} steps: training for {total:,} steps.")
        if state is None:
            state = self._fresh_start(key)
        stopping = False
        while self.chunks or (self.iterations < self.last_iteration and not stopping):
            while not stopping and self._may_dispatch():
                state = self._dispatch(state)
            self._count_chunk()
            self._between_chunks(state)
            stopping = stopping or should_stop()
        if self.iterations < self.last_iteration:
            self.recorder.message(f"Stopping early at {self.timesteps:,} of {total:,} steps.")
        if self.saved_at != self.iterations:
            self._save(state, None)
        return state

    def _fresh_start(self, key: Key | int) -> State:
        """Set up, and compile the training at the same time."""
        clock = CompileClock()
        compiling = self.workflow.compile_ahead(key)
        state = self.workflow.init(key)
        jax.block_until_ready(state)
        compiling.join()
        self.recorder.message(f"Set up and compiled in {clock.report()}.")
        return state

    def _may_dispatch(self) -> bool:
        """Whether to call the program now: if it is idle; and, where a short chunk runs, once more behind it.

        So rows of fast trainings are written while the next iterations run. What needs the state of that boundary, an
        evaluation or a checkpoint, is waited for. Programs over several devices take their turns: each blocks threads
        that the other one may need.
        """
        if not self.chunks:
            return True
        return (
            len(self.chunks) == 1
            and self.dispatched < self.last_iteration
            and self._is_due(self.log_every, self.dispatched)
            and not self._is_due(self.eval_every, self.dispatched)
            and not self._is_due(self.save_every, self.dispatched)
            and self.chunks[0][0] * self.seconds_per_iteration < SECONDS_PER_CHUNK
            and self.workflow.execution.num_devices == 1
        )

    def _dispatch(self, state: State) -> State:
        """One call of the compiled program, of as many iterations as fit the time between touches of the host."""
        first = self.seconds_per_iteration == math.inf
        wanted = 1 if first else SECONDS_PER_CHUNK / self.seconds_per_iteration
        num_iterations = int(np.clip(wanted, 1, min(self._until_due(), programs.MAX_FOLD)))
        if not self.chunks:
            self.waited_since = time.perf_counter()
        clock = CompileClock()
        metrics, state = programs.iterate_program(self.workflow, state, num_iterations)
        if first:
            jax.block_until_ready(metrics)
            self.recorder.message(f"First step in {clock.report()}.")
            self.waited_since = time.perf_counter() - clock.seconds_of_the_rest
        self.chunks.append((num_iterations, metrics))
        return state

    def _count_chunk(self) -> None:
        """Wait for the oldest chunk, and count its metrics."""
        num_iterations, metrics = self.chunks.popleft()
        metrics = jax.device_get(metrics)
        now = time.perf_counter()
        self.seconds_per_iteration = max(now - self.waited_since, 1e-6) / num_iterations
        self.waited_since = now
        self.iterations += num_iterations
        rows = jax.tree.map(lambda x: x[:num_iterations], metrics)
        self._refuse_divergence(rows)
        self.means.add(rows)
        self.recorder.progress(self.timesteps, self.steps_per_second, self.latest)

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of the last chunk, over all seeds."""
        return self.steps * (self.workflow.execution.num_seeds or 1) / self.seconds_per_iteration

    def _until_due(self) -> int:
        """Iterations until the next row, evaluation, checkpoint or the end."""
        left = [self.last_iteration - self.dispatched]
        for every in (self.log_every, self.eval_every, self.save_every):
            if every:
                left.append(every - self.dispatched % every)
        return min(left)

    def _is_due(self, every: int | None, iterations: int | None = None) -> bool:
        iterations = self.iterations if iterations is None else iterations
        return bool(every) and (iterations % every == 0 or iterations == self.last_iteration)

    def _between_chunks(self, state: State) -> None:
        """What is due at this iteration; ``state`` is a later one if neither an evaluation nor a checkpoint is."""
        score = None
        evaluated: Row = {}
        if self._is_due(self.eval_every):
            clock = CompileClock()
            evaluated = describe_evaluation(jax.device_get(self.workflow.evaluate(state)))
            evaluated["time/evaluation_seconds"] = clock.seconds
            score = float(evaluated["eval/episode_return"])
        if evaluated or self._is_due(self.log_every):
            row: Row = {"iterations": self.iterations, "timesteps": self.timesteps}
            row |= self.means.take() | evaluated
            row["time/steps_per_second"] = self.steps_per_second
            row["time/clock"] = time.time()
            self.latest |= row
            self.recorder.write(row)
            self.recorder.progress(self.timesteps, self.steps_per_second, self.latest)
        if score is not None and score > self.best_score:
            self.best_score = score
            self._save(state, score)
        elif self._is_due(self.save_every):
            self._save(state, score)

    def _save(self, state: State, score: float | None) -> None:
        if self.checkpointer is None:
            return
        self._refuse_broken_parameters(state)
        progress = {
            "iterations": self.iterations,
            "timesteps": self.timesteps,
            "best_score": self.best_score,
            "means": self.means.to_json(),
        }
        self.checkpointer.save(state, progress, score)
        self.saved_at = self.iterations

    def _refuse_broken_parameters(self, state: State) -> None:
        """A last update may break the parameters after a loss that was finite still: such a state is not kept."""
        if "agent_state" not in state:
            return
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(state.agent_state.params)):
            if not np.isfinite(leaf).all():
                name = "parameters" + jax.tree_util.keystr(path)
                raise self._divergence(name, leaf[~np.isfinite(leaf)][0], self.iterations)

    def _refuse_divergence(self, rows: PyTreeDict) -> None:
        for name, values in rows.items():
            if name == "episodes" or np.isfinite(values).all():
                continue
            bad = int(np.argmax(~np.isfinite(values).reshape(len(values), -1).all(axis=1)))
            iteration = self.iterations - len(values) + bad + 1
            raise self._divergence(name, np.ravel(values[bad])[0], iteration)

    def _divergence(self, name: str, value: float, iteration: int) -> TrainingDiverged:
        kept = (
            f"the last good checkpoint, of {self.saved_at * self.steps:,} steps, is kept"
            if self.saved_at
            else "no checkpoint had been saved yet"
        )
        return TrainingDiverged(
            f"{name} became {value} in iteration {iteration:,} ({iteration * self.steps:,} steps); {kept}. "
            "Try a smaller learning rate, or clip gradients by optimizer.max_grad_norm."
        )


class RunningMeans:
    """Means of metrics between two rows, summed one value after another so that the chunks' lengths do not show.

    Metrics are averaged over iterations (and seeds), but for ``episodes``, whose sums become means over the episodes
    that ended.
    """

    def __init__(self, sums: Mapping[str, Any]) -> None:
        self.sums: dict[str, float] = {name: float(value) for name, value in sums.items()}

    def add(self, rows: PyTreeDict) -> None:
        """Take in metrics ``[iterations]`` or ``[iterations, S]``."""
        flat = {f"train/{name}": values for name, values in rows.items() if name != "episodes"}
        if "episodes" in rows:
            episodes: EpisodeStatistics = rows.episodes
            flat["episodes/count"] = episodes.count
            flat["episodes/returns"] = episodes.return_sum
            flat["episodes/lengths"] = episodes.length_sum
        for name, values in flat.items():
            values = np.asarray(values, np.float64)
            per_iteration = values.reshape(len(values), -1)
            per_iteration = per_iteration.sum(axis=1) if name.startswith("episodes/") else per_iteration.mean(axis=1)
            # cumsum adds one after another, so a sum taken up again after a pause is the same to the last bit.
            self.sums[name] = float(np.cumsum(np.append(self.sums.get(name, 0.0), per_iteration))[-1])
        self.sums["iterations"] = self.sums.get("iterations", 0.0) + len(next(iter(flat.values()), ()))

    def take(self) -> Row:
        """The means since the last row, and start anew."""
        sums, self.sums = self.sums, {}
        iterations = sums.pop("iterations", 0.0)
        row: Row = {
            name: total / iterations for name, total in sums.items() if iterations and name.startswith("train/")
        }
        episodes = sums.get("episodes/count", 0.0)
        row["train/episodes"] = int(episodes)
        if episodes:
            row["train/episode_return"] = sums["episodes/returns"] / episodes
            row["train/episode_length"] = sums["episodes/lengths"] / episodes
        return row

    def to_json(self) -> dict[str, float]:
        """What has been summed since the last row."""
        return dict(self.sums)


def describe_evaluation(metrics: PyTreeDict) -> Row:
    """``eval/*`` columns: means over seeds, and with several seeds the return of each and their spread."""
    row: Row = {f"eval/{name}": float(np.mean(value, dtype=np.float64)) for name, value in metrics.items()}
    returns = np.asarray(metrics["episode_return"], np.float64)
    if returns.ndim:
        row["eval/episode_return_std_over_seeds"] = float(returns.std())
        row |= {f"eval/episode_return_seed_{i}": float(value) for i, value in enumerate(returns)}
    return row

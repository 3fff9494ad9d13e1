"""Bookkeeping of a run: metric rows, evaluations, best score, checkpoints, divergence and stop requests.

Each training loop (``LearningRun``, ``ParameterRun``, ``Runner``) reports its iterations to a ``RunSession``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, Self

import jax
import numpy as np

from evorl.agent import AgentState
from evorl.execution.compile_clock import CompileClock
from evorl.execution.compile_times import CompileTimes
from evorl.execution.early_stop import EarlyStop
from evorl.execution.intervals import Interval
from evorl.execution.rows import RunningMeans, SlidingScore, describe_evaluation
from evorl.ops import processes
from evorl.runs.recorder import Recorder, RunPlan
from evorl.types import PyTreeDict, State


class TrainingDiverged(ArithmeticError):
    """Raised when a metric, a parameter or an environment's output becomes NaN or infinite."""


class Checkpointer(Protocol):
    """Saves states of a run; ``has_rules``, ``wants`` and ``score_over`` of ``RunCheckpointer`` are optional."""

    def save(self, state: State, progress: dict[str, Any], score: float | None) -> None:
        """Save a state, with JSON data for resuming and, if this state was evaluated, its score."""


class Intervals(NamedTuple):
    """Intervals between the rows of metrics, the evaluations and the checkpoints of a run; ``None`` for never."""

    rows: Interval | None = None
    evaluations: Interval | None = None
    checkpoints: Interval | None = None


class Pace:
    """Measures environment steps per second between two readings; ``timesteps`` is the number of steps so far."""

    def __init__(self, timesteps: int) -> None:
        self._timesteps, self._since = timesteps, time.perf_counter()

    def read(self, timesteps: int, excluded: float = 0.0) -> float:
        """Return the steps per second since the last reading, except ``excluded`` seconds, such as an evaluation."""
        now = time.perf_counter()
        steps, seconds = timesteps - self._timesteps, max(now - self._since - excluded, 1e-6)
        self._timesteps, self._since = timesteps, now
        return steps / seconds


@dataclasses.dataclass(frozen=True)
class SessionRules:
    """Rules of a run's bookkeeping.

    Attributes:
        intervals: intervals of rows, evaluations and checkpoints.
        eval_episodes: number of episodes per evaluation, its weight in a score that averages several evaluations.
        steps_per_iteration: environment steps of an iteration, per seed; 0 if the number varies.
        pace: measures the steps per second between rows; ``None`` if the loop sets ``steps_per_second`` itself.
        columns: returns additional columns of a row.
        progress: returns additional entries of a checkpoint's progress.
        optional_metrics: metrics that may be NaN because they have no value yet.
        latest_metrics: metrics whose last value, instead of their mean, is in a row.
        losses: metrics that are means over the updates of an iteration, and in a row over all updates.
        refuses_divergence: raise ``TrainingDiverged`` for metrics and parameters that are not finite.
        iteration_name: name of an iteration in error messages.
        advice: last sentence of the error after a divergence.
    """

    intervals: Intervals
    eval_episodes: int = 1
    steps_per_iteration: int = 0
    pace: Pace | None = None
    columns: Callable[[], dict[str, float | int]] = dict
    progress: Callable[[], dict[str, Any]] = dict
    optional_metrics: tuple[str, ...] = ()
    latest_metrics: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    refuses_divergence: bool = True
    iteration_name: str = "iteration"
    advice: str = "Try a smaller learning rate, or clip gradients with the optimizer's max_grad_norm."


class RunSession:
    """Bookkeeping of one run. As a context manager, it reports an error to the recorder, and calls ``closes``.

    A loop calls ``begin`` once, ``advance`` after its iterations, and ``complete_iteration`` where an evaluation, a row
    or a checkpoint may be due.

    Args:
        recorder: receives metric rows, messages and episodes; ``None`` records nothing.
        checkpointer: saves states; ``None`` saves nothing.
        progress: progress of the checkpoint that the run continues from; ``None`` for a new run.
        should_stop: returns True once a stop of the run is requested; ``None`` for never.
        closes: functions called in this order at the end of the session, even if an earlier one raised an error.
        early_stop: conditions that end the training before its last step; ``None`` for no conditions.

    Attributes:
        iterations: iterations so far.
        counted: environment steps so far, over all seeds.
        best_score: best score so far; ``-inf`` before the first evaluation.
        means: running means of the metrics since the last row.
        latest: latest value of each metric.
        steps_per_second: environment steps per second, over all seeds, as the next row reports them.
        compile_times: compile times of earlier starts, to announce a long compilation; ``None`` announces nothing.
    """

    def __init__(
        self,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        progress: Mapping[str, Any] | None = None,
        should_stop: Callable[[], bool] | None = None,
        closes: tuple[Callable[[], None], ...] = (),
        early_stop: EarlyStop | None = None,
    ) -> None:
        self.recorder, self.checkpointer = recorder or Recorder(), checkpointer
        self._should_stop, self._closes = should_stop, closes
        self.early_stop = early_stop or EarlyStop()
        self._resumes, progress = bool(progress), progress or {}
        self.best_score = float(progress.get("best_score", -math.inf))
        self.means = RunningMeans(progress.get("means", {}))
        self._score = SlidingScore(getattr(checkpointer, "score_over", 1), progress.get("scores", ()))
        self.latest: dict[str, float | int] = {}
        self.compile_times: CompileTimes | None = None
        self.iterations = self.counted = self._steps_of_last = 0
        self._saved_at: int | None = None
        self._deferred: list[Exception] | None = None
        self._is_over = False
        self.steps_per_second, self._saved_timesteps = 0.0, 0
        self._num_seeds, self._rules = 1, SessionRules(Intervals())

    def begin(self, plan: RunPlan, rules: SessionRules, counted: int) -> None:
        """Set the first iteration and the rules of a run that starts, and announce the run to the recorder.

        Args:
            plan: plan of the run.
            rules: rules of the bookkeeping.
            counted: environment steps before the start, over all seeds.
        """
        self._num_seeds, self._rules = plan.num_seeds, rules
        self.iterations, self.counted = plan.first_iterations, counted
        if self._resumes:
            self._saved_at, self._saved_timesteps = self.iterations, self.timesteps
        self.recorder.start(plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        with contextlib.ExitStack() as stack:
            for close in reversed(self._closes):
                stack.callback(close)
            if isinstance(error, Exception) and not self._is_over:
                self.recorder.failure(error)

    @contextlib.contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Context that reports an error that ends the run; errors of the recorder wait until the run is saved."""
        self._deferred = []
        try:
            yield
            if self._deferred:
                raise self._deferred[0]
        except Exception as error:
            self.recorder.failure(error)
            raise
        finally:
            self._deferred, self._is_over = None, True

    @property
    def timesteps(self) -> int:
        """Environment steps so far, for each seed."""
        return round(self.counted / self._num_seeds)

    @property
    def is_saved(self) -> bool:
        """True if the newest checkpoint was saved at this iteration."""
        return self._saved_at == self.iterations

    def should_stop(self) -> bool:
        """Return True if a process received a stop request, or ``early_stop`` was met; all processes must call it."""
        requested = processes.any_says(bool(self._deferred) or (self._should_stop is not None and self._should_stop()))
        return self.early_stop.reason is not None or requested

    def advance(self, iterations: int, steps: int, steps_of_last: int, metrics: PyTreeDict) -> None:
        """Count iterations and add their metrics.

        Args:
            iterations: number of iterations N since the last call.
            steps: environment steps of these iterations, over all seeds.
            steps_of_last: environment steps of the last of these iterations, over all seeds.
            metrics: metrics of each iteration by name, ``[N]`` or ``[N, S]``.

        Raises:
            TrainingDiverged: a metric is not finite, see ``refuse_divergence``.
        """
        self.iterations += iterations
        self.counted += steps
        self._steps_of_last = steps_of_last
        self.refuse_divergence(metrics, self.iterations)
        self.means.add(metrics, self._rules.latest_metrics, self._rules.losses, self._rules.optional_metrics)

    def is_due(self, interval: Interval | None, is_last: bool = False) -> bool:
        """Return True if ``interval`` ends with the iteration just completed, or ``is_last``; ``None`` is never due."""
        if interval is None or is_last:
            return interval is not None
        iterations = np.asarray([self.iterations - 1, self.iterations])
        counted = np.asarray([self.counted - self._steps_of_last, self.counted])
        return bool(interval.is_due(iterations, counted)[0])

    def complete_iteration(
        self, evaluate: Callable[[], PyTreeDict], state: Callable[[], State], is_last: bool = False
    ) -> None:
        """Evaluate, write a row and save, each if due; write a row after each evaluation, and save each new best state.

        Args:
            evaluate: returns the metrics of an evaluation of the current state.
            state: returns the current state.
            is_last: True if training is complete: everything with an interval is then due, as at the end of
                ``stop.hours``.
        """
        is_last = is_last or self.early_stop.is_met()
        rows, evaluations, checkpoints = self._rules.intervals
        score, evaluated = None, {}
        if self.is_due(evaluations, is_last):
            evaluated = self.evaluate(evaluate)
            score = self._score.push(float(evaluated["eval/episode_return"]), self._rules.eval_episodes)
        if evaluated or self.is_due(rows, is_last):
            self.write_row(evaluated)
            self.report_progress()
        saves = self.is_due(checkpoints, is_last) or self._checkpointer_wants(score)
        if score is not None:
            is_best = score > self.best_score
            self.early_stop.evaluated(self.timesteps, score, is_best)
            if is_best:
                self.best_score, saves = score, True
        if saves:
            self.save(state(), score)

    def evaluate(self, evaluate: Callable[[], PyTreeDict]) -> dict[str, float | int]:
        """Evaluate, pass any recorded episodes to the recorder, and return the columns of the evaluation."""
        clock = CompileClock()
        metrics = processes.on_host(evaluate())
        if (episodes := metrics.pop("episodes", None)) is not None:
            self.record(self.recorder.evaluation, self.iterations, self.timesteps, episodes)
        return describe_evaluation(metrics) | {"time/evaluation_seconds": clock.seconds}

    def write_untrained(self, evaluated: Mapping[str, float | int]) -> None:
        """Write the row of an evaluation before the first iteration. Its score never counts as the best."""
        self.latest |= {"iterations": 0, "timesteps": 0, **evaluated, "time/clock": time.time()}
        self.recorder.write(dict(self.latest))

    def write_row(self, evaluated: Mapping[str, float | int] | None = None) -> None:
        """Write a row: means since the last row, the columns of the loop and of an evaluation, and the speed."""
        row: dict[str, float | int] = {"iterations": self.iterations, "timesteps": self.timesteps}
        row |= self.means.take() | self._rules.columns() | dict(evaluated or {})
        if self._rules.pace is not None:
            self.steps_per_second = self._rules.pace.read(self.counted, row.get("time/evaluation_seconds", 0.0))
        row |= {"time/steps_per_second": self.steps_per_second, "time/clock": time.time()}
        self.latest |= row
        self.record(self.recorder.write, row)

    def report_progress(self) -> None:
        """Report the environment steps, the steps per second and the latest metrics to the recorder."""
        self.record(self.recorder.progress, self.timesteps, self.steps_per_second, self.latest)

    def record(self, method: Callable[..., None], *values: Any) -> None:
        """Call a method of the recorder; defer its error, see ``reporting_failure``."""
        try:
            method(*values)
        except Exception as error:
            if self._deferred is None:
                raise
            self._deferred.append(error)

    def save(self, state: State, score: float | None = None) -> None:
        """Save a state, if there is a checkpointer.

        Raises:
            TrainingDiverged: a parameter of an agent in the state is not finite, unless the rules allow it.
        """
        if self.checkpointer is None:
            return
        self._refuse_broken_parameters(state)
        progress = {"iterations": self.iterations, "timesteps": self.timesteps, "best_score": self.best_score}
        progress |= {"means": self.means.to_json(), **self._score.to_json(), **self._rules.progress()}
        progress |= self.early_stop.to_json()
        self.checkpointer.save(state, progress, score)
        self._saved_at, self._saved_timesteps = self.iterations, self.timesteps

    def report_early_stop(self, total_timesteps: int) -> None:
        """Report to the recorder that the run ends early: completed by ``early_stop``, or interrupted by a request."""
        position = f"at {self.timesteps:,} of {total_timesteps:,} steps"
        if self.early_stop.reason is None:
            self.record(self.recorder.message, f"Stopping early {position}.")
            return
        self.record(self.recorder.message, f"Complete {position}: {self.early_stop.reason}.")
        self.record(self.recorder.complete)

    def refuse_divergence(self, metrics: PyTreeDict, iterations: int) -> None:
        """Raise ``TrainingDiverged`` if a metric is not finite, unless the rules allow it.

        Args:
            metrics: metrics of each iteration by name, ``[N]`` or ``[N, S]``.
            iterations: number of the last of these iterations.
        """
        for name, values in metrics.items() if self._rules.refuses_divergence else ():
            if name == "episodes" or name in self._rules.optional_metrics or np.isfinite(values).all():
                continue
            bad = int(np.argmax(~np.isfinite(values).reshape(len(values), -1).all(axis=1)))
            raise self._divergence(name, np.ravel(values[bad])[0], iterations - len(values) + bad + 1)

    def _checkpointer_wants(self, score: float | None) -> bool:
        """Return True if the checkpointer of any process requests this state: all processes save together."""
        checkpointer: Any = self.checkpointer
        return getattr(checkpointer, "has_rules", False) and processes.any_says(checkpointer.wants(score))

    def _refuse_broken_parameters(self, state: State) -> None:
        """Raise ``TrainingDiverged`` if a parameter of any agent is not finite, unless the rules allow divergence."""
        if not self._rules.refuses_divergence:
            return
        nodes = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda node: isinstance(node, AgentState))
        agents = {path: node.params for path, node in nodes if isinstance(node, AgentState)}
        for path_of_agent, params in agents.items():  # no pytree: paths cannot be sorted
            for path, leaf in jax.tree_util.tree_leaves_with_path(processes.on_host(params)):
                if not np.isfinite(leaf).all():
                    name = "parameters" + jax.tree_util.keystr((*path_of_agent, *path))
                    raise self._divergence(name, leaf[~np.isfinite(leaf)][0], self.iterations)

    def _divergence(self, name: str, value: float, iteration: int) -> TrainingDiverged:
        saved = "no checkpoint had been saved yet"
        if self._saved_at is not None:
            saved = f"the last good checkpoint, at {self._saved_timesteps:,} steps, is kept"
        steps = iteration * self._rules.steps_per_iteration
        at = f" ({steps:,} steps)" if steps else ""
        return TrainingDiverged(
            f"{name} became {value} in {self._rules.iteration_name} {iteration:,}{at}; {saved}. {self._rules.advice}"
        )

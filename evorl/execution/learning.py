"""Training loop: chunks of compiled iterations with any number of metric rows; evaluations and checkpoints in between.

Rows, evaluations and checkpoints occur at fixed iterations, independent of the length of the chunks and of measured
times. Recorded data therefore depends neither on the speed of the machine nor on interruptions.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from evorl.agent import AgentState
from evorl.execution import programs
from evorl.execution.compile_clock import CompileClock
from evorl.execution.intervals import EveryIterations, Interval, every
from evorl.execution.rows import RunningMeans, SlidingScore, describe_evaluation
from evorl.execution.trainable import Trainable
from evorl.ops import processes
from evorl.ops.trees import num_rows
from evorl.replay_buffers.ring import ReplayState
from evorl.runs.recording import Recorder, RunPlan, algorithm_name, run_title
from evorl.types import Key, PyTreeDict, State

SECONDS_PER_CHUNK = 0.3  # target time between returns to the host
NEW_EPISODES = (
    "These simulators cannot be restored to their saved state: new episodes begin. Everything else continues exactly."
)
MANY_STEPS = 1e9  # per iteration: minutes to hours without any output or a chance to stop


class TrainingDiverged(ArithmeticError):
    """A loss, a parameter or an environment's output became NaN or infinite."""


class Checkpointer(Protocol):
    """Storage of states. It may have additional rules for saving, see ``RunCheckpointer``."""

    def save(self, state: State, progress: dict[str, Any], score: float | None) -> None:
        """Save a state. ``progress`` is JSON; ``score`` is the evaluation of exactly this state, if there was one."""


def run_learning(
    workflow: Trainable,
    state: State | None,
    key: Key | int,
    recorder: Recorder | None,
    checkpointer: Checkpointer | None,
    progress: Mapping[str, Any] | None,
    should_stop: Callable[[], bool] | None,
    eval_at_start: bool = False,
) -> State:
    """Train from ``state`` to the end of the plan. See ``Workflow.learn``."""
    done = 0 if state is None else int(state.iterations)
    counted = 0 if state is None or workflow.timesteps_per_iteration else processes.on_host(state.timesteps).total()
    run = LearningRun(workflow, recorder or Recorder(), checkpointer, progress or {}, done, counted)
    run.evaluates_at_start = eval_at_start
    try:
        return run.train(state, key, lambda: processes.any_says(should_stop is not None and should_stop()))
    except Exception as error:
        run.recorder.failure(error)
        raise


def _fetch_for_charts(state: State) -> State:
    """Return the state with all entries on this host, except replay buffers, also if other processes hold them."""
    if not processes.are_several():
        return state

    def fetch(node: Any) -> Any:
        return node if isinstance(node, ReplayState) else processes.on_host(node)

    return jax.tree.map(fetch, state, is_leaf=lambda node: isinstance(node, ReplayState))


class LearningRun:
    """Training run on the host: counts iterations, calls the compiled chunks, and runs all events due in between."""

    def __init__(
        self,
        workflow: Trainable,
        recorder: Recorder,
        checkpointer: Checkpointer | None,
        progress: Mapping[str, Any],
        iterations: int,
        counted: int,
    ) -> None:
        self.workflow = workflow
        self.recorder = recorder
        self.checkpointer = checkpointer
        self.steps = workflow.timesteps_per_iteration  # 0 if iterations differ: then steps are counted
        self.last_iteration = max(1, int(workflow.total_timesteps) // self.steps) if self.steps else sys.maxsize
        self.iterations = iterations
        self.counted = counted  # environment steps over all seeds, if iterations differ
        self.best_score = float(progress.get("best_score", -math.inf))
        self.score = SlidingScore(getattr(checkpointer, "score_over", 1), progress.get("scores", ()))
        self.means = RunningMeans(progress.get("means", {}))
        self.latest: dict[str, float | int] = {}
        self.seconds_per_iteration = math.inf
        self.chunk_seconds = math.inf  # time of the last chunk
        self.num_seeds = workflow.execution.num_seeds or 1
        self.evaluates_at_start = False
        self.saved_at: int | None = self.iterations if progress else None
        self.saved_timesteps = self.timesteps
        self.total = int(workflow.total_timesteps) * self.num_seeds
        self.steps_of_last = 0  # environment steps of the last iteration, over all seeds
        make = functools.partial(every, steps_per_iteration=self.steps, num_seeds=self.num_seeds)
        self.rows = make(workflow.log_interval) or EveryIterations(self.last_iteration)
        self.evaluations = make(workflow.eval_interval, rows=self.rows)
        self.checkpoints = make(workflow.checkpoint_interval, rows=self.rows)
        self._end_if_counted()

    @property
    def timesteps(self) -> int:
        """Environment steps so far, per seed."""
        return self.iterations * self.steps if self.steps else round(self.counted / self.num_seeds)

    def train(self, state: State | None, key: Key | int, should_stop: Callable[[], bool]) -> State:
        """Run the loop and return the last state."""
        execution = self.workflow.execution
        total = self.last_iteration * self.steps if self.steps else int(self.workflow.total_timesteps)
        self.recorder.start(
            RunPlan(
                name=self._title(key if state is None else None),
                total_timesteps=total,
                first_timesteps=self.timesteps,
                first_iterations=self.iterations,
                num_seeds=self.num_seeds,
                num_devices=execution.num_devices,
            )
        )
        self._refuse_endless_iterations()
        self._refuse_idle_processes()
        if total != int(self.workflow.total_timesteps):
            self.recorder.message(f"Whole iterations of {self.steps:,} steps: training for {total:,} steps.")
        if state is None:
            state = self._fresh_start(key)
        elif (live := self.workflow.with_new_episodes(state)) is not state:
            self.recorder.message(NEW_EPISODES)
            state = live
        if self.iterations == 0:
            self._evaluate_untrained(state)
        stopping = False
        while self.iterations < self.last_iteration and not stopping:
            before, state = self.iterations, self._run_chunk(state)
            self._end_if_counted()
            if self.iterations > before:
                self._between_chunks(state)
            stopping = should_stop()
        if self.iterations < self.last_iteration:
            self.recorder.message(f"Stopping early at {self.timesteps:,} of {total:,} steps.")
        if self.saved_at != self.iterations:
            self._save(state, None)
        for name, chart in self.workflow.charts(_fetch_for_charts(state)).items():
            self.recorder.chart(name, chart)
        return state

    def _title(self, key: Key | int | None) -> str:
        library, _, name = (self.workflow.env.title or "").partition("/")
        algorithm = algorithm_name(type(self.workflow).__name__)
        return run_title(algorithm, name or library, key if isinstance(key, int) else None, self.num_seeds)

    def _refuse_endless_iterations(self) -> None:
        steps, total = self.steps or self.workflow.most_timesteps_per_iteration, self.workflow.total_timesteps
        if steps > max(MANY_STEPS, 100 * total):
            raise ValueError(
                f"One iteration may take {steps:,} environment steps, {steps / total:,.0f} times "
                f"total_timesteps={total:,.0f}: choose fewer individuals or environments, or shorter rollouts."
            )

    def _refuse_idle_processes(self) -> None:
        if processes.are_several() and self.workflow.execution.axis is None:
            raise ValueError(
                f"This run has {jax.process_count()} processes but uses one device, because of devices=1 or of "
                "environments outside JAX: start one process, or remove devices."
            )

    def _end_if_counted(self) -> None:
        """End training with the iteration that completes the steps, if steps are counted."""
        if not self.steps and self.counted >= self.total:
            self.last_iteration = self.iterations

    def _fresh_start(self, key: Key | int) -> State:
        """Set up the state, and compile the training program at the same time."""
        clock = CompileClock()
        compiling = self.workflow.compile_ahead(key) if self.workflow.is_one_program else None
        state = self.workflow.init(key)
        jax.block_until_ready(state)
        if compiling is not None:
            compiling.join()
        self.recorder.message(f"Set up and compiled in {clock.report()}.")
        return state

    def _evaluate_untrained(self, state: State) -> None:
        """Evaluate the untrained policy; its score never counts as the best checkpoint."""
        if self.evaluations and self.evaluates_at_start:
            self.latest |= {"iterations": 0, "timesteps": 0} | self._evaluate(state) | {"time/clock": time.time()}
            self.recorder.write(dict(self.latest))

    def _evaluate(self, state: State) -> dict[str, float | int]:
        """Evaluate and return the columns of the evaluation; episodes are passed to the recorder."""
        clock = CompileClock()
        metrics = processes.on_host(self.workflow.evaluate(state))
        if (episodes := metrics.pop("episodes", None)) is not None:
            self.recorder.evaluation(self.iterations, self.timesteps, episodes)
        return describe_evaluation(metrics) | {"time/evaluation_seconds": clock.seconds}

    def _run_chunk(self, state: State) -> State:
        """Call the compiled program once, for as many iterations as fit the target time of a chunk."""
        first = self.seconds_per_iteration == math.inf
        target = 1 if first else SECONDS_PER_CHUNK / self.seconds_per_iteration
        num_iterations = int(np.clip(target, 1, min(self._until_due(), programs.MAX_FOLD)))
        num_iterations = processes.number_of_first(num_iterations)  # clocks differ
        started = time.perf_counter()
        clock = CompileClock()
        metrics, state = self.workflow.iterate(state, num_iterations, self.recorder.message)
        if metrics is None:
            return state  # collection was stopped
        if first:
            jax.block_until_ready(metrics)
            self.recorder.message(f"First step in {clock.report()}.")
            started = time.perf_counter() - clock.seconds_of_the_rest
        metrics = processes.on_host(metrics)
        num_iterations = min(num_iterations, num_rows(metrics))
        self.chunk_seconds = max(time.perf_counter() - started, 1e-6)
        self.seconds_per_iteration = self.chunk_seconds / num_iterations
        self._count(jax.tree.map(lambda x: x[:num_iterations], metrics), num_iterations)
        return state

    def _count(self, metrics: PyTreeDict, num_iterations: int) -> None:
        """Count the iterations of a chunk, and write the rows that are due within it."""
        if self.steps:
            steps = np.full(num_iterations, self.steps * self.num_seeds)
        else:
            steps = np.asarray(metrics.pop("timesteps"), np.int64).reshape(num_iterations, -1).sum(axis=1)
        self.chunk_steps, self.steps_of_last = int(steps.sum()), int(steps[-1])
        timesteps = self.counted + np.concatenate([[0], np.cumsum(steps)])
        is_row = self.rows.is_due(self.iterations + np.arange(num_iterations + 1), timesteps)
        ends = [*(np.flatnonzero(is_row[:-1]) + 1).tolist(), num_iterations]
        for start, end in itertools.pairwise([0, *ends]):
            self.iterations += end - start
            self.counted += int(steps[start:end].sum())
            rows = jax.tree.map(lambda x, part=slice(start, end): x[part], metrics)
            self._refuse_divergence(rows)
            self.means.add(rows)
            if end < num_iterations:
                self._write_row({})
        self.recorder.progress(self.timesteps, self.steps_per_second, self.latest)

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of the last chunk, over all seeds."""
        return self.chunk_steps / self.chunk_seconds

    def _until_due(self) -> int:
        """Return the number of iterations until the next evaluation, checkpoint or the end."""
        most = self.workflow.most_timesteps_per_iteration * self.num_seeds
        intervals = filter(None, (self.evaluations, self.checkpoints))
        remaining = [interval.until_due(self.iterations, self.counted, most) for interval in intervals]
        remaining.append(self.last_iteration - self.iterations)
        if not self.steps:
            remaining.append(math.ceil((self.total - self.counted) / most))
        return min(remaining)

    def _is_due(self, interval: Interval | None) -> bool:
        """Return True if the event is due after the last iteration; always true at the end of training."""
        if interval is None:
            return False
        iterations = np.asarray([self.iterations - 1, self.iterations])
        timesteps = np.asarray([self.counted - self.steps_of_last, self.counted])
        return self.iterations == self.last_iteration or bool(interval.is_due(iterations, timesteps)[0])

    def _between_chunks(self, state: State) -> None:
        """Run all events due at this iteration; ``state`` is the state after it."""
        score, evaluated = None, {}
        if self._is_due(self.evaluations):
            evaluated = self._evaluate(state)
            score = self.score.push(float(evaluated["eval/episode_return"]), self.workflow.eval_episodes)
        if evaluated or self._is_due(self.rows):
            self._write_row(evaluated)
            self.recorder.progress(self.timesteps, self.steps_per_second, self.latest)
        is_due = self._is_due(self.checkpoints) or self._is_requested(score)
        if score is not None and score > self.best_score:
            self.best_score, is_due = score, True
        if is_due:
            self._save(state, score)

    def _is_requested(self, score: float | None) -> bool:
        """Return True if the checkpointer's rules request this state in any process; all processes save together."""
        checkpointer: Any = self.checkpointer
        return getattr(checkpointer, "has_rules", False) and processes.any_says(checkpointer.wants(score))

    def _write_row(self, evaluated: dict[str, float | int]) -> None:
        row: dict[str, float | int] = {"iterations": self.iterations, "timesteps": self.timesteps}
        row |= self.means.take() | evaluated
        row |= {"time/steps_per_second": self.steps_per_second, "time/clock": time.time()}
        self.latest |= row
        self.recorder.write(row)

    def _save(self, state: State, score: float | None) -> None:
        if self.checkpointer is None:
            return
        self._refuse_broken_parameters(state)
        progress = {"iterations": self.iterations, "timesteps": self.timesteps, "best_score": self.best_score}
        progress |= {"means": self.means.to_json(), **self.score.to_json()}
        self.checkpointer.save(state, progress, score)
        self.saved_at, self.saved_timesteps = self.iterations, self.timesteps

    def _refuse_broken_parameters(self, state: State) -> None:
        """Raise an error for non-finite parameters: an update may break them although the loss was still finite.

        Checks all agents in the state, including members of a population and their learners.
        """
        if self.workflow.rows_stand_alone:
            return
        nodes = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda node: isinstance(node, AgentState))
        agents = {path: node.params for path, node in nodes if isinstance(node, AgentState)}
        for agent_path, params in agents.items():  # not a pytree, whose keys must be sortable
            for path, leaf in jax.tree_util.tree_leaves_with_path(processes.on_host(params)):
                if not np.isfinite(leaf).all():
                    name = "parameters" + jax.tree_util.keystr((*agent_path, *path))
                    raise self._divergence(name, leaf[~np.isfinite(leaf)][0], self.iterations)

    def _refuse_divergence(self, rows: PyTreeDict) -> None:
        for name, values in () if self.workflow.rows_stand_alone else rows.items():
            if name == "episodes" or name in self.workflow.optional_metrics or np.isfinite(values).all():
                continue
            bad = int(np.argmax(~np.isfinite(values).reshape(len(values), -1).all(axis=1)))
            iteration = self.iterations - len(values) + bad + 1
            raise self._divergence(name, np.ravel(values[bad])[0], iteration)

    def _divergence(self, name: str, value: float, iteration: int) -> TrainingDiverged:
        saved = (
            f"the last good checkpoint, at {self.saved_timesteps:,} steps, is kept"
            if self.saved_at
            else "no checkpoint had been saved yet"
        )
        where = f" ({iteration * self.steps:,} steps)" if self.steps else ""
        return TrainingDiverged(
            f"{name} became {value} in iteration {iteration:,}{where}; {saved}. "
            "Try a smaller learning rate, or clip gradients with optimizer.max_grad_norm."
        )

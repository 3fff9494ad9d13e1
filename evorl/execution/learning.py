"""The one learn loop: chunks of compiled iterations, any number of rows of metrics from each, and between them
evaluations and checkpoints.

Rows, evaluations and checkpoints come at fixed iterations, whatever the length of the chunks, and nothing that is
timed reaches them. So what is recorded does not depend on the machine's speed or on interruptions.
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
from evorl.execution.env_faults import KeyedMessages
from evorl.execution.intervals import EveryIterations, Interval, every
from evorl.execution.rows import RunningMeans, SlidingScore, describe_evaluation
from evorl.execution.trainable import Trainable
from evorl.ops import processes
from evorl.ops.trees import num_rows
from evorl.replay_buffers.ring import ReplayState
from evorl.runs.recording import Recorder, RunPlan, algorithm_name, run_title
from evorl.types import Key, PyTreeDict, State

SECONDS_PER_CHUNK = 0.3  # the host is touched this often at most
NEW_EPISODES = (
    "These simulators cannot be put back to where they were: new episodes begin. All else goes on exactly as it was."
)
MANY_STEPS = 1e9  # in one iteration: minutes to hours, in which nothing is told and nothing stops the run


class TrainingDiverged(ArithmeticError):
    """A loss became NaN or infinite."""


class Checkpointer(Protocol):
    """Where states are saved. It may have rules of its own for when, see ``RunCheckpointer``."""

    def save(self, state: State, progress: dict[str, Any], score: float | None) -> None:
        """Keep a state. ``progress`` is JSON; ``score`` is the evaluation of exactly this state, if there was one."""


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


def _for_charts(state: State) -> State:
    """A state whose entries may be read, but for replay buffers, whichever process holds them."""
    if not processes.are_several():
        return state

    def fetch(node: Any) -> Any:
        return node if isinstance(node, ReplayState) else processes.on_host(node)

    return jax.tree.map(fetch, state, is_leaf=lambda node: isinstance(node, ReplayState))


class LearningRun:
    """One training run on the host: counts iterations, calls the compiled chunks, and does what is due between them."""

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
        self.recorder, self.message = recorder, KeyedMessages(recorder.message)
        self.checkpointer = checkpointer
        self.steps = workflow.timesteps_per_iteration  # 0 where they differ: then they are counted
        self.last_iteration = max(1, int(workflow.total_timesteps) // self.steps) if self.steps else sys.maxsize
        self.iterations = iterations
        self.counted = counted  # environment steps over all seeds, where iterations differ in them
        self.best_score = float(progress.get("best_score", -math.inf))
        self.score = SlidingScore(getattr(checkpointer, "score_over", 1), progress.get("scores", ()))
        self.means = RunningMeans(progress.get("means", {}))
        self.latest: dict[str, float | int] = {}
        self.seconds_per_iteration = self.chunk_seconds = math.inf  # of the last chunk, over all seeds
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
        """Environment steps taken so far, for each seed."""
        return self.iterations * self.steps if self.steps else round(self.counted / self.num_seeds)

    def train(self, state: State | None, key: Key | int, should_stop: Callable[[], bool]) -> State:
        """Run the loop; returns the last state."""
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
            self._before_the_first_step(state)
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
        for name, chart in self.workflow.charts(_for_charts(state)).items():
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
                f"total_timesteps={total:,.0f}: choose fewer individuals, environments or steps of a rollout."
            )

    def _refuse_idle_processes(self) -> None:
        if processes.are_several() and self.workflow.execution.axis is None:
            raise ValueError(
                f"This run has {jax.process_count()} processes and is laid out for one device, as devices=1 says and "
                "environments outside JAX need: start one process, or leave devices out."
            )

    def _end_if_counted(self) -> None:
        """Where steps are counted, the training ends with the iteration that has all."""
        if not self.steps and self.counted >= self.total:
            self.last_iteration = self.iterations

    def _fresh_start(self, key: Key | int) -> State:
        """Set up, and compile the training at the same time."""
        clock = CompileClock()
        compiling = self.workflow.compile_ahead(key) if self.workflow.is_one_program else None
        state = self.workflow.init(key)
        jax.block_until_ready(state)
        if compiling is not None:
            compiling.join()
        self.recorder.message(f"Set up and compiled in {clock.report()}.")
        return state

    def _before_the_first_step(self, state: State) -> None:
        """Tell what the policy is worth untrained. It is not kept as the best one, whatever that is."""
        if self.evaluations and self.evaluates_at_start:
            self.latest |= {"iterations": 0, "timesteps": 0} | self._evaluate(state) | {"time/clock": time.time()}
            self.recorder.write(dict(self.latest))

    def _evaluate(self, state: State) -> dict[str, float | int]:
        """The columns of an evaluation; its episodes go to the recorder."""
        clock = CompileClock()
        metrics = processes.on_host(self.workflow.evaluate(state))
        if (episodes := metrics.pop("episodes", None)) is not None:
            self.recorder.evaluation(self.iterations, self.timesteps, episodes)
        return describe_evaluation(metrics) | {"time/evaluation_seconds": clock.seconds}

    def _run_chunk(self, state: State) -> State:
        """One call of the compiled program, of as many iterations as fit the time between touches of the host."""
        first = self.seconds_per_iteration == math.inf
        target = 1 if first else SECONDS_PER_CHUNK / self.seconds_per_iteration
        num_iterations = int(np.clip(target, 1, min(self._until_due(), programs.MAX_FOLD)))
        num_iterations = processes.number_of_first(num_iterations)  # clocks differ
        started = time.perf_counter()
        clock = CompileClock()
        metrics, state = self.workflow.iterate(state, num_iterations, self.message)
        if metrics is None:
            return state  # who collects was told to stop
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
        """Count the iterations of a chunk, and write the rows that fall inside of it."""
        if self.steps:
            steps = np.full(num_iterations, self.steps * self.num_seeds)
        else:
            steps = np.asarray(metrics.pop("timesteps"), np.int64).reshape(num_iterations, -1).sum(axis=1)
        self.chunk_steps, self.steps_of_last = int(steps.sum()), int(steps[-1])
        timesteps = self.counted + np.concatenate([[0], np.cumsum(steps)])
        of_rows = self.rows.is_due(self.iterations + np.arange(num_iterations + 1), timesteps)
        ends = [*(np.flatnonzero(of_rows[:-1]) + 1).tolist(), num_iterations]
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
        """Iterations until the next evaluation, checkpoint or the end."""
        most = self.workflow.most_timesteps_per_iteration * self.num_seeds
        intervals = filter(None, (self.evaluations, self.checkpoints))
        left = [interval.until_due(self.iterations, self.counted, most) for interval in intervals]
        left.append(self.last_iteration - self.iterations)
        if not self.steps:
            left.append(math.ceil((self.total - self.counted) / most))
        return min(left)

    def _is_due(self, interval: Interval | None) -> bool:
        """Whether it is, after the last iteration; when the training ends, all is."""
        if interval is None:
            return False
        iterations = np.asarray([self.iterations - 1, self.iterations])
        timesteps = np.asarray([self.counted - self.steps_of_last, self.counted])
        return self.iterations == self.last_iteration or bool(interval.is_due(iterations, timesteps)[0])

    def _between_chunks(self, state: State) -> None:
        """What is due at this iteration, of which ``state`` is."""
        score, evaluated = None, {}
        if self._is_due(self.evaluations):
            evaluated = self._evaluate(state)
            score = self.score.push(float(evaluated["eval/episode_return"]), self.workflow.eval_episodes)
        if evaluated or self._is_due(self.rows):
            self._write_row(evaluated)
            self.recorder.progress(self.timesteps, self.steps_per_second, self.latest)
        is_due = self._is_due(self.checkpoints) or self._is_asked_for(score)
        if score is not None and score > self.best_score:
            self.best_score, is_due = score, True
        if is_due:
            self._save(state, score)

    def _is_asked_for(self, score: float | None) -> bool:
        """Whether the checkpointer wants the state by rules of its own, in any of the processes: they save together."""
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
        """A last update may break parameters after a loss that was finite still: such a state is not kept.

        Looked at are all agents in the state: also those of a population's members, and of learners beside it.
        """
        if self.workflow.rows_stand_alone:
            return
        nodes = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda node: isinstance(node, AgentState))
        agents = {path: node.params for path, node in nodes if isinstance(node, AgentState)}
        for of_agent, params in agents.items():  # keys that cannot be sorted: no pytree
            for path, leaf in jax.tree_util.tree_leaves_with_path(processes.on_host(params)):
                if not np.isfinite(leaf).all():
                    name = "parameters" + jax.tree_util.keystr((*of_agent, *path))
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
            f"the last good checkpoint, of {self.saved_timesteps:,} steps, is kept"
            if self.saved_at
            else "no checkpoint had been saved yet"
        )
        where = f" ({iteration * self.steps:,} steps)" if self.steps else ""
        return TrainingDiverged(
            f"{name} became {value} in iteration {iteration:,}{where}; {saved}. "
            "Try a smaller learning rate, or clip gradients by optimizer.max_grad_norm."
        )

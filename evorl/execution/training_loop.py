"""Training loop: chunks of compiled iterations, with evaluations and checkpoints in between.

Metric rows, evaluations and checkpoints occur at fixed iterations, independent of chunk lengths and measured times.
Recorded data therefore depends neither on the speed of the machine nor on interruptions.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
import time
from typing import Any

import jax
import numpy as np

from evorl.envs import EnvState
from evorl.envs.libraries import short_title
from evorl.execution import programs
from evorl.execution.collector import end_episodes, iterate
from evorl.execution.compile_clock import CompileClock
from evorl.execution.env_faults import KeyedMessages
from evorl.execution.intervals import EveryIterations, every
from evorl.execution.session import Intervals, RunSession, SessionRules
from evorl.execution.trainable import Trainable, loss_names, most_timesteps
from evorl.ops import processes
from evorl.ops.random import seed_or_key
from evorl.ops.trees import num_rows
from evorl.replay_buffers.ring import ReplayState
from evorl.runs.recorder import RunPlan, algorithm_name, run_title
from evorl.types import Key, PyTreeDict, State

SECONDS_PER_CHUNK = 0.3  # target duration of one call of the compiled program
NEW_EPISODES = (
    "The simulators of this environment cannot be restored: new episodes begin. Everything else is restored exactly."
)
MANY_STEPS = 1e9  # per iteration: minutes to hours without output or a chance to stop


def run_learning(
    workflow: Trainable, session: RunSession, state: State | None, key: Key | int, eval_at_start: bool = False
) -> State:
    """Train from ``state`` (``None`` for a new one from ``key``), and return the last state; see ``Workflow.learn``."""
    with session.reporting_failure():
        return LearningRun(workflow, session, state).train(state, key, eval_at_start)


def _for_charts(state: State) -> State:
    """With several processes, return the state with whole arrays on the host, except replay buffers; else ``state``."""
    if not processes.is_multiprocess():
        return state

    def fetch(node: Any) -> Any:
        return node if isinstance(node, ReplayState) else processes.on_host(node)

    return jax.tree.map(fetch, state, is_leaf=lambda node: isinstance(node, ReplayState))


def with_new_episodes(env: Any, state: State) -> State:
    """End the running episodes and start new ones if ``state`` cannot be stepped; else return ``state`` itself.

    Simulators on the host that are in this state, or can restore it, continue their episodes.

    Args:
        env: training environments.
        state: state of the workflow.
    """
    if not env.steps_on_host:
        return state

    def renewed(node: Any) -> Any:
        if not isinstance(node, EnvState) or env.is_live(node):
            return node
        restart = env.next_episodes
        for _ in range(node.done.ndim - 1):  # seeds, or members of a population
            restart = jax.vmap(restart)
        return restart(node)

    nodes, structure = jax.tree.flatten(state, is_leaf=lambda node: isinstance(node, EnvState))
    live = [renewed(node) for node in nodes]
    return state if all(map(operator.is_, live, nodes)) else end_episodes(jax.tree.unflatten(structure, live), True)


class LearningRun:
    """Training loop on the host: runs compiled chunks that end where host work is due, from ``state``, if any."""

    def __init__(self, workflow: Trainable, session: RunSession, state: State | None) -> None:
        self.workflow, self.session = workflow, session
        self.message = KeyedMessages(functools.partial(session.record, session.recorder.message))
        self.steps = workflow.timesteps_per_iteration  # 0 if the number varies: steps are then counted
        self.last_iteration = max(1, int(workflow.total_timesteps) // self.steps) if self.steps else sys.maxsize
        self.seconds_per_iteration, self.set_up_seconds = math.inf, 0.0
        self.num_seeds = workflow.execution.num_seeds or 1
        self.total = int(workflow.total_timesteps) * self.num_seeds
        self.total_timesteps = self.last_iteration * self.steps if self.steps else int(workflow.total_timesteps)
        make = functools.partial(every, steps_per_iteration=self.steps, num_seeds=self.num_seeds)
        self.rows = make(workflow.log_interval) or EveryIterations(self.last_iteration)
        self.intervals = Intervals(
            self.rows, make(workflow.eval_interval, rows=self.rows), make(workflow.checkpoint_interval, rows=self.rows)
        )
        self.first_iterations = 0 if state is None else int(state.iterations)
        self.first_counted = self.first_iterations * self.steps * self.num_seeds
        if not self.steps and state is not None:
            self.first_counted = processes.on_host(state.timesteps).total()

    def train(self, state: State | None, key: Key | int, eval_at_start: bool) -> State:
        """Train until the last step or a stop; return the last state. The arguments are as in ``run_learning``."""
        session, workflow = self.session, self.workflow
        session.begin(self._plan(key if state is None else None), self._rules(), self.first_counted)
        self._end_if_counted()
        self._refuse_endless_iterations()
        self._refuse_idle_processes()
        if self.total_timesteps != int(workflow.total_timesteps):
            session.recorder.message(
                f"Training for {self.total_timesteps:,} steps: total_timesteps is rounded to iterations of "
                f"{self.steps:,} steps."
            )
        if session.compile_times and (notice := session.compile_times.announce()):
            session.recorder.message(notice)
        if state is None:
            state = self._fresh_start(key, eval_at_start)
        else:
            if (live := with_new_episodes(workflow.env, state)) is not state:
                session.recorder.message(NEW_EPISODES)
                state = live
            self._evaluate_untrained(state, eval_at_start)
        stopping = False
        while not (self._is_over or stopping):
            before, state = session.iterations, self._run_chunk(state)
            self._end_if_counted()
            if session.iterations > before:
                session.complete_iteration(
                    functools.partial(workflow.evaluate, state), lambda state=state: state, is_last=self._is_over
                )
            stopping = session.should_stop()
        if not self._is_over:
            session.report_early_stop(self.total_timesteps)
        if not session.is_saved:
            session.save(state)
        for name, chart in workflow.charts(_for_charts(state)).items():
            session.recorder.chart(name, chart)
        return state

    def _plan(self, key: Key | int | None) -> RunPlan:
        algorithm = algorithm_name(type(self.workflow).__name__)
        seed = key if isinstance(key, int) else None
        return RunPlan(
            name=run_title(algorithm, short_title(self.workflow.env.title or ""), seed, self.num_seeds),
            total_timesteps=self.total_timesteps,
            first_timesteps=round(self.first_counted / self.num_seeds),
            first_iterations=self.first_iterations,
            num_seeds=self.num_seeds,
            num_devices=self.workflow.execution.num_devices,
        )

    def _rules(self) -> SessionRules:
        return SessionRules(
            intervals=self.intervals,
            eval_episodes=self.workflow.eval_episodes,
            steps_per_iteration=self.steps,
            optional_metrics=self.workflow.optional_metrics,
            latest_metrics=self.workflow.latest_metrics,
            losses=loss_names(self.workflow),
            refuses_divergence=not self.workflow.rows_stand_alone,
        )

    @property
    def _is_over(self) -> bool:
        return self.session.iterations >= self.last_iteration

    def _refuse_endless_iterations(self) -> None:
        steps, total = most_timesteps(self.workflow), self.workflow.total_timesteps
        if steps > max(MANY_STEPS, 100 * total):
            raise ValueError(
                f"One iteration may take {steps:,} environment steps, {steps / total:,.0f} times "
                f"total_timesteps={total:,.0f}: choose fewer individuals or environments, or shorter rollouts."
            )

    def _refuse_idle_processes(self) -> None:
        if processes.is_multiprocess() and self.workflow.execution.axis is None:
            raise ValueError(
                f"This run has {jax.process_count()} processes but uses one device, because of devices=1 or "
                "environments outside JAX: start one process, or remove devices=1."
            )

    def _end_if_counted(self) -> None:
        """If steps are counted, end training with the iteration that reaches the total."""
        if not self.steps and self.session.counted >= self.total:
            self.last_iteration = self.session.iterations

    def _fresh_start(self, key: Key | int, eval_at_start: bool) -> State:
        """Return a new state, set up and evaluated while the training program is compiled."""
        clock = CompileClock()
        is_one_program = self.workflow.collector.is_one_program
        compiling = programs.compile_ahead(self.workflow, seed_or_key(key)) if is_one_program else None
        state = self.workflow.init(key)
        jax.block_until_ready(state)
        self._evaluate_untrained(state, eval_at_start)
        if compiling is not None:
            compiling.join()
        self.set_up_seconds = clock.seconds
        self.session.recorder.message(f"Set up and compiled in {clock.report()}.")
        return state

    def _evaluate_untrained(self, state: State, eval_at_start: bool) -> None:
        """Evaluate the state before the first iteration, if that is requested."""
        if eval_at_start and self.session.iterations == 0 and self.intervals.evaluations:
            evaluated = self.session.evaluate(functools.partial(self.workflow.evaluate, state))
            self.session.write_untrained(evaluated)

    def _run_chunk(self, state: State) -> State:
        """Run and count a chunk of iterations that takes about ``SECONDS_PER_CHUNK``; return the new state."""
        first = self.seconds_per_iteration == math.inf
        target = 1 if first else SECONDS_PER_CHUNK / self.seconds_per_iteration
        num_iterations = int(np.clip(target, 1, min(self._until_due(), programs.MAX_FOLD)))
        num_iterations = processes.number_of_first(num_iterations)  # the processes' clocks differ
        started = time.perf_counter()
        clock = CompileClock()
        metrics, state = iterate(self.workflow, state, num_iterations, self.message)
        if metrics is None:
            return state  # a stop was requested while the collector waited for clients
        if first:
            jax.block_until_ready(metrics)
            self.message(f"First step in {clock.report()}.")
            if self.session.compile_times:
                compiled = self.set_up_seconds + clock.trace_seconds + clock.compile_seconds
                self.session.compile_times.remember(compiled)
            started = time.perf_counter() - clock.other_seconds
        metrics = processes.on_host(metrics)
        num_iterations = min(num_iterations, num_rows(metrics))
        seconds = max(time.perf_counter() - started, 1e-6)
        self.seconds_per_iteration = seconds / num_iterations
        self._count(jax.tree.map(lambda x: x[:num_iterations], metrics), num_iterations, seconds)
        return state

    def _count(self, metrics: PyTreeDict, num_iterations: int, seconds: float) -> None:
        """Count the iterations of a chunk, and write the rows that are due within it."""
        session = self.session
        if self.steps:
            steps = np.full(num_iterations, self.steps * self.num_seeds)
        else:
            steps = np.asarray(metrics.pop("timesteps"), np.int64).reshape(num_iterations, -1).sum(axis=1)
        session.steps_per_second = int(steps.sum()) / seconds
        counted = session.counted + np.concatenate([[0], np.cumsum(steps)])
        writes = self.rows.is_due(session.iterations + np.arange(num_iterations + 1), counted)
        ends = [*(np.flatnonzero(writes[:-1]) + 1).tolist(), num_iterations]
        for start, end in itertools.pairwise([0, *ends]):
            rows = jax.tree.map(lambda x, part=slice(start, end): x[part], metrics)
            session.advance(end - start, int(steps[start:end].sum()), int(steps[end - 1]), rows)
            if end < num_iterations:
                session.write_row()
        session.report_progress()

    def _until_due(self) -> int:
        """Return the number of iterations until an evaluation, a checkpoint or the end of training may be due."""
        session = self.session
        max_steps = most_timesteps(self.workflow) * self.num_seeds
        intervals = filter(None, (self.intervals.evaluations, self.intervals.checkpoints))
        left = [interval.until_due(session.iterations, session.counted, max_steps) for interval in intervals]
        left.append(self.last_iteration - session.iterations)
        if not self.steps:
            left.append(math.ceil((self.total - session.counted) / max_steps))
        return min(left)

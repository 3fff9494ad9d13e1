"""The course of a training by a parameter server: rows of metrics, evaluations and checkpoints, as in every run."""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.execution.intervals import EverySteps, every
from evorl.execution.learning import TrainingDiverged
from evorl.execution.rows import RunningMeans, describe_evaluation
from evorl.metrics import EpisodeStatistics, WideCounter
from evorl.ops import processes
from evorl.parameter_server.parameter_commands import ParameterCommands, Pushed
from evorl.parameter_server.push_record import max_steps_per_push
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.recording import Recorder, RunPlan, algorithm_name, run_title
from evorl.types import PyTreeDict, State
from evorl.workflows.parameter_server import ParameterServerSettings, create
from evorl.workflows.parameter_worker import ServedParameters, worker_key
from evorl.workflows.workflow import Workflow


class ParameterRun:
    """Keeps the books of a training: ``iterations`` are pushes that were accepted, ``timesteps`` their steps.

    What is evaluated and saved is a state of the workflow with ``agent_state``, so that such a run is evaluated,
    watched and exported as any other; what the server needs beside it is its entry ``parameter_server``.

    Args:
        workflow: that workers train.
        settings: of the server.
        seed: of the first parameters and of evaluations.
        recorder: where metrics go.
        checkpointer: where states are saved. The newest one that lies there is where the training goes on.

    Raises:
        CheckpointError: what lies there is of another network or mode.
    """

    def __init__(
        self,
        workflow: Workflow,
        settings: ParameterServerSettings,
        seed: int = 0,
        recorder: Recorder | None = None,
        checkpointer: RunCheckpointer | None = None,
    ) -> None:
        self._workflow, self._recorder, self._checkpointer = workflow, recorder or Recorder(), checkpointer
        self._served = ServedParameters.of(workflow)
        fresh = workflow.init(worker_key(seed, 0))
        self._eval_key, agent_state = fresh.eval_key, fresh.agent_state
        state = State(
            agent_state=agent_state,
            eval_key=fresh.eval_key,
            iterations=WideCounter.create(),
            parameter_server=create(settings, self._served.taken_from(agent_state)),
        )
        progress: dict[str, Any] = {}
        if checkpointer is not None and checkpointer.steps:
            restored, progress = checkpointer.restore(state)
            state = jax.tree.map(jnp.asarray, restored)
        self._agent_state: AgentState = state.agent_state
        self.commands = ParameterCommands(
            settings,
            state.parameter_server,
            self._served.rest_of(self._agent_state),
            float(workflow.total_timesteps),
            self._after_push,
            self._save if checkpointer is not None else None,
            max_steps_per_push(workflow),
        )
        self._means = RunningMeans(progress.get("means", {}))
        self._best = float(progress.get("best_score", -math.inf))
        self._saved_at = self._evaluated_at = -1
        self._dropped, self._workers, self._started = 0, set(), time.perf_counter()
        self._since: tuple[float, int] = (time.perf_counter(), self.commands.step)
        if progress:
            self.commands.go_on(progress["parameter_server"])
            self._recorder.resume_at(progress["iterations"])
        self._start(seed)

    def _start(self, seed: int) -> None:
        library, _, name = (self._workflow.env.title or "").partition("/")
        title = run_title(algorithm_name(type(self._workflow).__name__), name or library, seed)
        plan = RunPlan(
            name=f"{title}, parameter server ({self.commands.settings.mode})",
            total_timesteps=int(self._workflow.total_timesteps),
            first_timesteps=self.commands.step,
            first_iterations=self.commands.pushes,
            num_seeds=1,
            num_devices=1,
        )
        self._recorder.start(plan)
        if self.commands.pushes:
            self._recorder.message(f"Going on after {self.commands.pushes:,} pushes, at {self.commands.step:,} steps.")

    @property
    def agent_state(self) -> AgentState:
        """The agent with the present parameters, and the rest of the worker that pushed last."""
        agent_state = self._served.with_rest(self._agent_state, [jnp.asarray(x) for x in self.commands.rest])
        return self._served.put_into(agent_state, jax.tree.map(jnp.asarray, self.commands.parameters()))

    def _after_push(self, pushed: Pushed) -> None:
        self._workers.add(pushed.worker)
        self._dropped += not pushed.accepted
        count, returns, lengths = (jnp.full(1, x) for x in pushed.episodes)
        rows = PyTreeDict({name: np.full(1, x) for name, x in pushed.metrics.items() if name != "episodes"})
        rows["staleness"] = np.full(1, float(pushed.staleness))
        rows["episodes"] = EpisodeStatistics(count, returns, lengths, jnp.zeros(1), jnp.zeros(1))
        self._means.add(rows)
        over = self.commands.is_over
        evaluated = self._evaluate() if self._is_due(self._workflow.eval_interval, pushed) and not over else {}
        if evaluated or (self._is_due(self._workflow.log_interval, pushed) and not over):
            self._write_row(evaluated)
        if self._is_due(self._workflow.checkpoint_interval, pushed) and not over:
            self._save()

    @staticmethod
    def _is_due(interval: float, pushed: Pushed) -> bool:
        due = every(interval, 0)
        steps = np.asarray([pushed.before, pushed.step])
        return isinstance(due, EverySteps) and bool(due.is_due(steps, steps)[0])

    def _state(self) -> State:
        pushes = WideCounter.create(self.commands.pushes)
        return State(agent_state=self.agent_state, eval_key=self._eval_key, iterations=pushes)

    def _evaluate(self) -> dict[str, float | int]:
        """The columns of an evaluation; a better one than all before is saved."""
        started, state = time.perf_counter(), self._state()
        self._evaluated_at = self.commands.pushes
        metrics = processes.on_host(self._workflow.evaluate(state))
        if (episodes := metrics.pop("episodes", None)) is not None:
            self._recorder.evaluation(self.commands.pushes, self.commands.step, episodes)
        row = describe_evaluation(metrics) | {"time/evaluation_seconds": time.perf_counter() - started}
        if (score := float(row["eval/episode_return"])) > self._best:
            self._best = score
            if self._checkpointer is not None:
                self._save(score)
        return row

    def _write_row(self, evaluated: dict[str, float | int]) -> None:
        (then, step), now = self._since, time.perf_counter()
        speed = (self.commands.step - step) / max(now - then, 1e-6)
        self._since = now, self.commands.step
        row = {"iterations": self.commands.pushes, "timesteps": self.commands.step} | self._means.take()
        row |= {"train/workers": len(self._workers), "train/dropped": self._dropped} | evaluated
        self._workers, self._dropped = set(), 0
        row |= {"time/steps_per_second": speed, "time/clock": time.time()}
        self._recorder.write(row)
        self._recorder.progress(self.commands.step, speed, row)

    def _save(self, score: float | None = None) -> int:
        """Save, unless nothing was accepted since; returns the pushes in the newest checkpoint."""
        pushes = self.commands.pushes
        if self._checkpointer is None or (pushes == self._saved_at and score is None):
            return pushes
        for leaf in jax.tree.leaves(self.commands.parameters()):
            if not np.isfinite(leaf).all():
                raise TrainingDiverged(
                    f"parameters became {leaf[~np.isfinite(leaf)][0]} after {pushes:,} pushes; the checkpoints before "
                    "are kept. Try a smaller learning rate, or clip gradients by optimizer.max_grad_norm."
                )
        progress = {
            "iterations": pushes,
            "timesteps": self.commands.step,
            "best_score": self._best,
            "means": self._means.to_json(),
            "parameter_server": self.commands.to_json(),
        }
        self._checkpointer.save(self._state() | {"parameter_server": self.commands.state}, progress, score)
        self._saved_at = pushes
        return pushes

    def end(self) -> AgentState:
        """The last evaluation if the training is complete, the last row and checkpoint; returns the agent."""
        complete = self.commands.step >= self._workflow.total_timesteps
        evaluates = complete and self._workflow.eval_interval > 0 and self._evaluated_at != self.commands.pushes
        evaluated = self._evaluate() if evaluates else {}
        if evaluated or self._means.to_json():
            self._write_row(evaluated)
        if not complete:
            done, total = self.commands.step, int(self._workflow.total_timesteps)
            self._recorder.message(f"Stopping early at {done:,} of {total:,} steps.")
        self._save()
        return self.agent_state

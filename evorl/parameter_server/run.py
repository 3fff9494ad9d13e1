"""Server side of training, recorded as a run with metrics, evaluations and checkpoints; its iterations are pushes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.envs.libraries import short_title
from evorl.execution.intervals import every
from evorl.execution.session import Intervals, Pace, RunSession, SessionRules
from evorl.metrics import EpisodeStatistics, WideCounter
from evorl.parameter_server.commands import ParameterCommands, Pushed
from evorl.parameter_server.push_record import max_steps_per_push
from evorl.parameter_server.update_rules import ParameterServerSettings, create
from evorl.parameter_server.worker import ServedParameters, worker_key
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.recorder import Recorder, RunPlan, algorithm_name, run_title
from evorl.types import PyTreeDict, State
from evorl.workflows.workflow import Workflow


class ParameterRun:
    """Run of a parameter server. Its ``iterations`` are accepted pushes; its ``timesteps`` are steps of applied pushes.

    The saved state has an entry ``agent_state``, as in a workflow, so such a run can be evaluated, watched and exported
    like any other; the entry ``parameter_server`` contains the state of the server.

    Args:
        workflow: workflow that the workers train.
        settings: settings of the server.
        seed: seed of the initial parameters and of evaluations.
        recorder: receives metrics; ``None`` for no metrics.
        checkpointer: saves states; the run resumes from its newest intact checkpoint, if any. ``None`` saves nothing.

    Raises:
        CheckpointError: the newest checkpoint belongs to a different network or mode, or all are corrupted.
    """

    def __init__(
        self,
        workflow: Workflow,
        settings: ParameterServerSettings,
        seed: int = 0,
        recorder: Recorder | None = None,
        checkpointer: RunCheckpointer | None = None,
    ) -> None:
        self._workflow = workflow
        self._served = ServedParameters.of(workflow)
        fresh = workflow.init(worker_key(seed, 0))
        self._eval_key, agent_state = fresh.eval_key, fresh.agent_state
        state = State(
            agent_state=agent_state,
            eval_key=fresh.eval_key,
            iterations=WideCounter.create(),
            parameter_server=create(settings, self._served.params_of(agent_state)),
        )
        progress: dict[str, Any] = {}
        if checkpointer is not None and any(checkpointer.folder.glob("[0-9]*")):  # intact or not
            restored, progress = checkpointer.restore(state)
            state = jax.tree.map(jnp.asarray, restored)
        self._agent_state: AgentState = state.agent_state
        self.commands = ParameterCommands(
            settings,
            state.parameter_server,
            self._served.other_arrays(self._agent_state),
            total_steps=float(workflow.total_timesteps),
            after_push=self._after_push,
            save=self._save if checkpointer is not None else None,
            max_steps=max_steps_per_push(workflow),
        )
        self._session = RunSession(recorder, checkpointer, progress)
        self._dropped, self._workers = 0, set[str]()
        if progress:
            self.commands.go_on(progress["parameter_server"])
            self._session.recorder.resume_at(progress["iterations"])
        self._start(seed)
        if checkpointer is not None and progress:
            checkpointer.resume_at(progress["iterations"])
            differing = checkpointer.differing_records(progress["iterations"])
            resumed = f"Resuming after {self.commands.pushes:,} pushes, at {self.commands.step:,} steps."
            for message in (*checkpointer.notices, *differing, resumed):
                self._session.recorder.message(message)

    def _start(self, seed: int) -> None:
        workflow, step = self._workflow, self.commands.step
        title = run_title(algorithm_name(type(workflow).__name__), short_title(workflow.env.title or ""), seed)
        plan = RunPlan(
            name=f"{title}, parameter server ({self.commands.settings.mode})",
            total_timesteps=int(workflow.total_timesteps),
            first_timesteps=step,
            first_iterations=self.commands.pushes,
            num_seeds=1,
            num_devices=1,
        )
        intervals = (workflow.log_interval, workflow.eval_interval, workflow.checkpoint_interval)
        rules = SessionRules(
            intervals=Intervals(*(every(interval, 0) for interval in intervals)),
            eval_episodes=workflow.eval_episodes,
            pace=Pace(step),
            columns=self._columns,
            progress=lambda: {"parameter_server": self.commands.to_json()},
            losses=getattr(workflow, "loss_names", ()),
            iteration_name="push",
        )
        self._session.begin(plan, rules, step)

    @property
    def agent_state(self) -> AgentState:
        """Agent with the current parameters; its other entries come from the last accepted push."""
        agent_state = self._served.with_rest(self._agent_state, [jnp.asarray(x) for x in self.commands.rest])
        return self._served.with_params(agent_state, jax.tree.map(jnp.asarray, self.commands.parameters()))

    def _after_push(self, pushed: Pushed) -> None:
        self._workers.add(pushed.worker)
        self._dropped += not pushed.accepted
        count, returns, lengths = (jnp.full(1, x) for x in pushed.episodes)
        rows = PyTreeDict({name: np.full(1, x) for name, x in pushed.metrics.items()})
        rows["staleness"] = np.full(1, float(pushed.staleness))
        rows["episodes"] = EpisodeStatistics(count, returns, lengths, jnp.zeros(1), jnp.zeros(1))
        steps = pushed.step - pushed.before
        self._session.advance(self.commands.pushes - self._session.iterations, steps, steps, rows)
        if not self.commands.is_over:
            self._session.complete_iteration(self._evaluate, self._state)

    def _columns(self) -> dict[str, float | int]:
        """Return the number of workers and of dropped pushes since the last row, as columns of the next row."""
        columns: dict[str, float | int] = {"train/workers": len(self._workers), "train/dropped": self._dropped}
        self._workers, self._dropped = set(), 0
        return columns

    def _state(self) -> State:
        """Return the state to save."""
        return self._evaluated_state() | {"parameter_server": self.commands.state}

    def _evaluated_state(self) -> State:
        pushes = WideCounter.create(self.commands.pushes)
        return State(agent_state=self.agent_state, eval_key=self._eval_key, iterations=pushes)

    def _evaluate(self) -> PyTreeDict:
        return self._workflow.evaluate(self._evaluated_state())

    def _save(self) -> int:
        """Save unless the newest checkpoint has the current parameters; return its number of accepted pushes."""
        if not self._session.is_saved:
            self._session.save(self._state())
        return self.commands.pushes

    def end(self) -> AgentState:
        """Finish the run and return the agent: evaluate if training is complete, then save."""
        session = self._session
        has_metrics = bool(session.means.to_json())  # false if the run was resumed after its end
        if self.commands.step >= self._workflow.total_timesteps:
            if has_metrics:
                session.complete_iteration(self._evaluate, self._state, is_last=True)
        else:
            if has_metrics and not session.is_saved:  # a checkpoint stores the means that belong to the next row
                session.write_row()
            session.report_early_stop(int(self._workflow.total_timesteps))
        self._save()
        return self.agent_state

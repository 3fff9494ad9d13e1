"""Training with simulators that connect over the network; the server answers requests while the learner updates."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from evorl.actors.host_loop import stacked_rows
from evorl.execution.collector import begin_acting, peek_acting
from evorl.live.spans import Spans
from evorl.ops.trees import Packed
from evorl.serving.batched_inference import BatchedInference
from evorl.serving.client_metrics import ClientMetrics
from evorl.serving.event_thread import EventThread
from evorl.serving.segments import Segments
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.switchboard import Switchboard
from evorl.types import ByValue, PyTreeDict, State
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.on_policy import OnPolicyWorkflow
from evorl.workflows.workflow import ended_episodes, learning_algorithms

SECONDS_BETWEEN_WARNINGS = 60.0


class TrainingServer(ByValue):
    """Collects from remote simulators for a workflow with ``env=remote``; a ``Collector``.

    Attributes:
        settings: settings of the server.
        switchboard: answers the simulators.

    Raises:
        ValueError: remote simulators cannot train the workflow, see ``reason_not_served``.
    """

    def __init__(self, workflow: Any, settings: ServeSettings) -> None:
        self.settings = settings
        self._should_stop: Callable[[], bool] = lambda: False
        self._metrics: ClientMetrics | None = None
        self._message: Callable[[str], None] = lambda _: None
        self._spans = Spans(settings.profile_dir, "training server")
        self.check(workflow)
        simulators = workflow.env.simulators.main
        self._inference = BatchedInference(workflow, settings.max_clients, records=True)
        self._segments = Segments(
            workflow.rollout_length,
            workflow.env.num_envs,
            _max_lag(workflow, settings),
            joins_only_at_starts=getattr(workflow.agent, "is_recurrent", False),
        )
        self.switchboard = Switchboard(
            self._inference,
            self._segments,
            simulators.obs_space,
            simulators.action_space,
            settings.max_clients,
            token=settings.token,
        )
        self._thread: EventThread | None = None
        self._counted = (time.perf_counter(), 0)
        self._warned = -math.inf
        self._dropped = 0

    is_one_program = False

    def keep(self, metrics: ClientMetrics, message: Callable[[str], None]) -> None:
        """Store the metrics of clients in ``metrics``, which is closed with the server; ``message`` shows a text."""
        self._metrics, self._message = metrics, message
        self.switchboard.store_metric = metrics.store

    def stop_when(self, should_stop: Callable[[], bool]) -> None:
        """Set the function that is polled while the server waits for data; True ends ``iterate`` early."""
        self._should_stop = should_stop

    def check(self, workflow: Any) -> None:
        """Raise ``ValueError`` with the reason if remote simulators cannot train a workflow."""
        if not workflow.env.is_remote:
            raise ValueError("training on a server needs simulators that connect to it: set env=remote.")
        if reason := reason_not_served(workflow):
            raise ValueError(reason)

    def iterate(
        self, workflow: Any, state: State, num_iterations: int, message: Callable[[str], None]
    ) -> tuple[PyTreeDict | None, State]:
        """Run N = ``num_iterations`` iterations, or fewer after a stop; return ``(metrics [N, ...], state)``.

        The metrics are ``None`` for N = 0. ``state`` is donated. A failure of the inference raises ``RuntimeError``.
        """
        rows: list[PyTreeDict] = []
        steps = int(state.iterations) * workflow.timesteps_per_iteration
        for _ in range(num_iterations):
            acting, state = begin_acting(workflow, state)
            self._publish(acting, message)
            with self._spans.span("collect"):
                batch = self.switchboard.wait_for_batch(self._should_stop)
            if batch is None:
                break
            arrays, cuts, lag = batch
            with self._spans.span("update"):
                metrics, state = _learn(workflow, state, self._packed(arrays), cuts)
                if self._spans.are_on:
                    jax.block_until_ready(state)
            rows.append(metrics | self._activity(lag, message))
            if self._metrics is not None:
                self._metrics.advance(steps + len(rows) * workflow.timesteps_per_iteration)
        return stacked_rows(rows) if rows else None, state

    def evaluate(self, workflow: Any, state: State) -> PyTreeDict:
        """Return statistics of episodes of greedy clients (``exploit``); NaN if none ends within ``eval_seconds``."""
        acting, _ = peek_acting(workflow, state)
        is_first = self._thread is None  # no client could connect yet
        self._publish(acting, self._message)
        self.switchboard.begin_evaluation()
        episodes = []
        if self.switchboard.num_greedy or is_first:
            episodes = self.switchboard.wait_for_episodes(
                workflow.eval_episodes, self.settings.eval_seconds, self._should_stop
            )
        returns, lengths = np.array(episodes or [(math.nan, math.nan)], np.float64).T
        return PyTreeDict(
            episode_return=returns.mean(),
            episode_return_std=returns.std(),
            episode_return_min=returns.min(),
            episode_return_max=returns.max(),
            episode_return_median=np.median(returns),
            episode_length=lengths.mean(),
        )

    def _publish(self, acting: Any, message: Callable[[str], None]) -> None:
        self._inference.publish(acting)
        self.switchboard.note_new_policy()
        if self._thread is None:
            self._inference.compile_all()
            self._thread = EventThread(self.settings, self.switchboard)
            message(f"Waiting for simulators at {', '.join(self._thread.addresses)}.")

    def _packed(self, arrays: list[np.ndarray]) -> Packed:
        leaves, treedef = jax.tree.flatten(self._inference.step_template)
        assert len(leaves) == len(arrays), "steps have as many arrays as their packed form"
        return jax.tree.unflatten(treedef, arrays)

    def _activity(self, lag: float, message: Callable[[str], None]) -> PyTreeDict:
        """Return metrics of the server's activity since the last call; warn about dropped segments once a minute."""
        (before, answered), now = self._counted, time.perf_counter()
        self._counted = (now, self.switchboard.num_answers)
        dropped = self._segments.dropped - self._dropped
        if dropped and now - self._warned > SECONDS_BETWEEN_WARNINGS:
            message(
                f"{dropped} segments were dropped because the policy that collected them was too old. If more than "
                "num_envs simulators are connected, raise num_envs or serve.max_policy_lag."
            )
            self._warned = now
        self._dropped = self._segments.dropped
        numbers = {
            "policy_lag": lag,
            "serving/clients": self.switchboard.num_clients,
            "serving/responses_per_second": (self._counted[1] - answered) / max(now - before, 1e-9),
            "serving/requests_waiting": self.switchboard.num_waiting,
            "serving/segments_waiting": self._segments.num_full,
            "serving/segments_dropped": dropped,
        }
        return PyTreeDict({name: np.float32(value) for name, value in numbers.items()})

    def close(self) -> None:
        """Close all connections, the metrics of clients and the profile."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        if self._metrics is not None:
            self._metrics.close()
        self._spans.close()


def reason_not_served(workflow: Any) -> str | None:
    """Return the reason why remote simulators cannot train a workflow for ``env=remote``; ``None`` if they can."""
    name = type(workflow).__name__
    if not workflow.agent.learns:
        return f"{name} does not learn: choose one of {learning_algorithms(OnPolicyWorkflow, OffPolicyWorkflow)}."
    if getattr(workflow, "restarts_episodes", False):
        return (
            f"{name} restarts all episodes before each trajectory, which remote simulators do not support: remove the "
            "setting that requires this (episodes_per_batch)."
        )
    if not workflow.capabilities.rollouts:
        return (
            f"{name} does not learn from rollouts, which remote simulators provide: choose one of "
            f"{learning_algorithms(OnPolicyWorkflow, OffPolicyWorkflow)}."
        )
    if workflow.execution.num_seeds is not None:
        return f"remote simulators train a single seed, got num_seeds={workflow.execution.num_seeds}: remove num_seeds."
    if not workflow.capabilities.single_steps:
        return (
            f"{name} learns from consecutive steps across batches, but segments of remote simulators are not "
            "consecutive: remove the settings that need this (n_step, reward_bound, replay.hindsight, "
            "replay.overwrite=random, normalize_rewards, intrinsic=e3b), or use an agent without a replay of sequences."
        )
    return None


def _max_lag(workflow: Any, settings: ServeSettings) -> int | None:
    if settings.max_policy_lag is not None:
        return int(settings.max_policy_lag)
    return None if workflow.capabilities.lag else 1


@functools.partial(jax.jit, donate_argnames="state")
def _learn(workflow: Any, state: State, packed: Packed, cuts: jax.Array) -> tuple[PyTreeDict, State]:
    trajectory = packed.unpack()
    env_extras, episodes = trajectory.extras.env_extras, ended_episodes(trajectory)  # without those cut off
    if "truncation" in env_extras:
        env_extras = env_extras | {"truncation": env_extras.truncation | cuts}
    trajectory = trajectory.replace(
        dones=trajectory.dones | cuts, extras=trajectory.extras | {"env_extras": env_extras}
    )
    metrics, state = workflow.pure_step(state, workflow.collected(trajectory))
    return metrics | {"episodes": episodes}, state

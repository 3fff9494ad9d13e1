"""Deterministic simulation of a parameter server with delayed workers in one process, to compare server modes.

Time is counted in ticks. A worker pulls, learns, and pushes after its delay; meanwhile other workers push. Pushes in
the same tick are ordered by worker number. After the last of them, the workers that pushed in this tick pull again.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from evorl.agent import AgentState
from evorl.config.values import positive
from evorl.execution.rows import RunningMeans
from evorl.parameter_server.update_rules import ParameterServerSettings, ParameterServerState, create, pull, push
from evorl.parameter_server.worker import ParameterWorker, check_supported, settings_for, worker_key
from evorl.types import Params, PyTreeDict, State
from evorl.workflows.workflow import Workflow


@dataclasses.dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation.

    Attributes:
        rows: one row per push, in order: ``time`` in ticks, ``worker``, ``step`` of the server after the push,
            ``staleness`` (updates since the worker pulled), ``accepted``, and the worker's metrics as ``train/*``.
        params: final parameters, by the name of their optimizer.
        agent_state: worker 0's agent with these parameters.
        server: final state of the server.
        evaluation: metrics of an evaluation of ``agent_state``, see ``Workflow.evaluate``.
    """

    rows: list[dict[str, float | int]]
    params: Params
    agent_state: AgentState
    server: ParameterServerState
    evaluation: PyTreeDict


def simulate_workers(
    workflow: Workflow,
    num_workers: int,
    delays: Sequence[int | Sequence[int]] = (),
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    num_pushes: int | None = None,
) -> SimulationResult:
    """Simulate training with workers that share a parameter server, and return the result.

    With one worker, ``mode="fifo"`` and ``send="gradient"``, the result equals ordinary training with this seed.

    Args:
        workflow: workflow that all workers train, each in separate environments.
        num_workers: number of workers.
        delays: ticks from a pull to the push, per worker: one number, or several that are cycled through. By default
            all workers take ``num_workers`` ticks and start one tick apart.
        settings: values for ``ParameterServerSettings``, such as mode and send; ``None`` for the defaults.
        seed: seed of the training run; each worker derives its random numbers from this seed and its number.
        num_pushes: number of pushes, accepted or not; ``None`` runs until the server reaches ``total_timesteps``.

    Raises:
        ValueError: the workflow does not support a parameter server, or an argument is invalid.
    """
    check_supported(workflow)
    server_settings = settings_for(workflow, settings)
    num_workers = positive(num_workers, "num_workers")
    worker_delays = _delays(delays, num_workers)
    workers = [ParameterWorker(workflow, server_settings.send, seed, i) for i in range(num_workers)]
    first = workers[0]
    for other in workers[1:]:
        other.take_rest(first.served.other_arrays(first.agent_state))
    server = create(server_settings, first.served.params_of(first.agent_state))
    starts = [0 if delays else worker - num_workers + 1 for worker in range(num_workers)]
    loop = _Ticks(server_settings, server, workers, worker_delays, starts)
    while (num_pushes is None and loop.step < server_settings.total_timesteps) or len(loop.rows) < (num_pushes or 0):
        loop.next_push()
    params, _ = pull(loop.server)
    agent_state = first.served.with_params(first.agent_state, params)
    eval_key = workflow.init(worker_key(seed, 0)).eval_key
    state = State(agent_state=agent_state, eval_key=eval_key, iterations=loop.server.updates)
    return SimulationResult(loop.rows, params, agent_state, loop.server, workflow.evaluate(state))


class _Ticks:
    """Simulated clock with the pending pushes."""

    def __init__(
        self,
        settings: ParameterServerSettings,
        server: ParameterServerState,
        workers: Sequence[ParameterWorker],
        delays: Sequence[Sequence[int]],
        starts: Sequence[int],
    ) -> None:
        self.server, self.step = server, 0
        self.rows: list[dict[str, float | int]] = []
        self._settings, self._workers, self._delays = settings, workers, delays
        self._turns = [0] * len(workers)
        self._pulled: dict[int, tuple[Params, int, int]] = {}  # parameters, step and updates of the server when pulled
        self._due: list[tuple[int, int]] = []
        self._pulling: list[int] = []
        for worker in range(len(workers)):
            self._begin(worker, starts[worker])

    def _begin(self, worker: int, now: int) -> None:
        delays = self._delays[worker]
        self._pulled[worker] = *pull(self.server), int(self.server.updates)
        heapq.heappush(self._due, (now + delays[self._turns[worker] % len(delays)], worker))
        self._turns[worker] += 1

    def next_push(self) -> None:
        """Finish the next iteration and push its result, if any; at the end of a tick, its workers pull again."""
        now, worker = heapq.heappop(self._due)
        params, step, updates = self._pulled.pop(worker)
        work = self._workers[worker].work(params, step)
        if work.sent is not None:
            staleness = int(self.server.updates) - updates
            self.server, accepted = push(self._settings, self.server, work.sent, work.steps, step)
            self.step = int(self.server.step)
            row = {"time": now, "worker": worker, "step": self.step, "staleness": staleness, "accepted": int(accepted)}
            means = RunningMeans({})
            means.add(jax.tree.map(lambda x: np.asarray(x)[None], work.metrics))
            self.rows.append(row | means.take())
        self._pulling.append(worker)
        if not self._due or self._due[0][0] > now:
            pulling, self._pulling = self._pulling, []
            for number in pulling:
                self._begin(number, now)


def _delays(delays: Sequence[int | Sequence[int]], num_workers: int) -> list[list[int]]:
    if not delays:
        delays = [num_workers] * num_workers
    if len(delays) != num_workers:
        raise ValueError(f"delays must have one entry per worker ({num_workers}), got {len(delays)}: {list(delays)}.")
    lists = [[x] if isinstance(x, int) else list(x) for x in delays]
    return [[positive(x, f"delays[{i}]") for x in row or [[]]] for i, row in enumerate(lists)]

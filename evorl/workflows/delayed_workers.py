"""A parameter server and its workers in one process, with given delays: what each mode does, again and again the same.

Time is counted in ticks. A worker pulls, learns, and pushes so many ticks later; meanwhile others push. Of those that
push at one tick the one of the lower number is first, and all pull again when the last of them has pushed.
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
from evorl.types import Params, PyTreeDict, State
from evorl.workflows.parameter_server import ParameterServerSettings, ParameterServerState, create, pull, push
from evorl.workflows.parameter_worker import ParameterWorker, settings_for, worker_key, workflow_of
from evorl.workflows.workflow import Workflow


@dataclasses.dataclass(frozen=True)
class Simulated:
    """What came of a simulation.

    Attributes:
        rows: one for each push, in order: ``time``, ``worker``, ``step`` of the server after it, ``staleness`` (updates
            since the worker pulled), ``accepted``, and the worker's metrics as ``train/*``.
        params: the last parameters, by the name of their optimizer.
        agent_state: worker 0's agent with them.
        server: the server's last state.
        evaluation: of that agent, as ``Workflow.evaluate`` gives it.
    """

    rows: list[dict[str, float | int]]
    params: Params
    agent_state: AgentState
    server: ParameterServerState
    evaluation: PyTreeDict


def simulate_workers(
    config: Mapping[str, Any] | Workflow,
    num_workers: int,
    delays: Sequence[int | Sequence[int]] = (),
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    num_pushes: int | None = None,
) -> Simulated:
    """Train by workers that share a parameter server.

    With one worker and ``send="gradient"`` it is the ordinary training of the seed.

    Args:
        config: of the workflow, with ``workflow``; or the workflow.
        num_workers: each with environments as the config says.
        delays: ticks from a pull to the push, of each worker: a number, or several that it takes in turn. Without them
            all take as long: ``num_workers`` ticks, and begin one tick apart.
        settings: of the server: mode, send and so on, see ``ParameterServerSettings``.
        seed: of everything.
        num_pushes: so many, whether accepted or not; ``None`` for as many as make ``total_timesteps``.

    Raises:
        ValueError: the workflow cannot work for a parameter server, or numbers do not fit together.
    """
    workflow = workflow_of(config)
    chosen = settings_for(workflow, settings)
    num_workers = positive(num_workers, "num_workers")
    clocks = _delays(delays, num_workers)
    workers = [ParameterWorker(workflow, chosen.send, seed, i) for i in range(num_workers)]
    first = workers[0]
    for other in workers[1:]:
        other.take_rest(first.served.rest_of(first.agent_state))
    server = create(chosen, first.served.taken_from(first.agent_state))
    starts = [0 if delays else worker - num_workers + 1 for worker in range(num_workers)]
    loop = _Ticks(chosen, server, workers, clocks, starts)
    while (num_pushes is None and loop.step < chosen.total_timesteps) or len(loop.rows) < (num_pushes or 0):
        loop.next_push()
    params, _ = pull(loop.server)
    agent_state = first.served.put_into(first.agent_state, params)
    eval_key = workflow.init(worker_key(seed, 0)).eval_key
    evaluated = State(agent_state=agent_state, eval_key=eval_key, iterations=loop.server.updates)
    return Simulated(loop.rows, params, agent_state, loop.server, workflow.evaluate(evaluated))


class _Ticks:
    """The clock, and what is under way."""

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
        self._pulled: dict[int, tuple[Params, int, int]] = {}  # parameters, and the server's step and updates then
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
        """Go on to the next push; after the last of a tick, those who pushed in it begin again."""
        now, worker = heapq.heappop(self._due)
        params, step, updates = self._pulled.pop(worker)
        work = self._workers[worker].work(params, step)
        if work.sent is not None:
            staleness = int(self.server.updates) - updates
            self.server, accepted = push(self._settings, self.server, work.sent, work.steps, step)
            self.step = int(self.server.step)
            row = {"time": now, "worker": worker, "step": self.step, "staleness": staleness, "accepted": int(accepted)}
            self.rows.append(row | _means(work.metrics))
        self._pulling.append(worker)
        if not self._due or self._due[0][0] > now:
            pulling, self._pulling = self._pulling, []
            for one in pulling:
                self._begin(one, now)


def _means(metrics: PyTreeDict) -> dict[str, float | int]:
    """Those of one iteration, as a row tells them."""
    means = RunningMeans({})
    means.add(jax.tree.map(lambda x: np.asarray(x)[None], metrics))
    return means.take()


def _delays(delays: Sequence[int | Sequence[int]], num_workers: int) -> list[list[int]]:
    if not delays:
        delays = [num_workers] * num_workers
    if len(delays) != num_workers:
        raise ValueError(f"delays are one for each of the {num_workers} workers, got {len(delays)}: {list(delays)}.")
    lists = [[x] if isinstance(x, int) else list(x) for x in delays]
    return [[positive(x, f"delays[{i}]") for x in row or [0]] for i, row in enumerate(lists)]

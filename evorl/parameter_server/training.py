"""Training with a parameter server: ``serve_parameters`` runs in one process, ``work`` in each worker process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.execution.trainable import Collector
from evorl.live.spans import Spans
from evorl.metrics import EpisodeStatistics
from evorl.parameter_server.client import ParameterClient
from evorl.parameter_server.flat_arrays import FlatArrays
from evorl.parameter_server.frames import CommandRefused
from evorl.parameter_server.run import ParameterRun
from evorl.parameter_server.wire import CommandServer
from evorl.parameter_server.worker import ParameterWorker, check_supported, settings_for
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.recorder import Recorder
from evorl.sockets.socket_server import ConnectionLimits
from evorl.types import PyTreeDict
from evorl.workflows.workflow import Workflow

_LOOK = 0.05  # interval in seconds between two checks for the end of the training
_ASK = 1.0  # interval in seconds at which a worker that waits for simulators asks if training has ended


@dataclasses.dataclass(frozen=True)
class ServerResult:
    """Result of a training run.

    Attributes:
        agent_state: final state of the agent.
        step: number of environment steps of the applied pushes.
        pushes: number of accepted pushes.
        complete: True if training is complete; a stopped run can be resumed from its checkpoint.
    """

    agent_state: AgentState
    step: int
    pushes: int
    complete: bool


def serve_parameters(
    workflow: Workflow,
    bind: str = "127.0.0.1:0",
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    recorder: Recorder | None = None,
    checkpointer: RunCheckpointer | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
    should_stop: Callable[[], bool] | None = None,
    patience: float = 10.0,
    limits: ConnectionLimits | None = None,
    worker_config: Mapping[str, Any] | None = None,
    profile_dir: str | None = None,
) -> ServerResult:
    """Run a parameter server until the applied pushes cover ``total_timesteps`` environment steps; return the result.

    Args:
        workflow: workflow to train; workers need an equal one.
        bind: ``host:port``; port 0 selects a free port. An address that other machines can reach requires a ``token``.
        settings: values for ``ParameterServerSettings``, such as mode and send; ``None`` for the defaults.
        seed: seed of the initial parameters and of evaluations.
        token: access token that workers must send; ``None`` disables authentication.
        tls: TLS context of encrypted connections; ``None`` for unencrypted ones.
        recorder: receives metrics; the caller closes it. ``None`` for no metrics.
        checkpointer: saves states every ``checkpoint_interval``, on request of a worker, and at the end. Training
            resumes from its newest checkpoint, if there is one. ``None`` saves nothing.
        on_ready: callback that receives the address once the server listens.
        should_stop: polled often; True saves and ends the training early. ``None`` ends it after SIGINT or SIGTERM if
            called in the main thread.
        patience: maximum seconds that the server waits at the end for workers to disconnect.
        limits: limits of connections; ``None`` for defaults that let a worker be silent for 24 hours.
        worker_config: config that workers can request, JSON-serializable; ``None`` to provide no config.
        profile_dir: folder for a profile, see ``evorl.live.spans``; ``None`` disables profiling.

    Raises:
        ValueError: the workflow or a setting is unsuitable, or other machines could connect without a token.
        OSError: the address is in use, or does not belong to this machine.
        TrainingDiverged: parameters became NaN or infinite; checkpoints are kept.
        RunFolderError: a checkpoint cannot be written.
    """
    check_supported(workflow)
    run = ParameterRun(workflow, settings_for(workflow, settings), seed, recorder, checkpointer)
    run.commands.worker_config = worker_config
    spans = Spans(profile_dir, "parameter server")
    with _asked_to_stop(should_stop) as stop, contextlib.closing(spans):
        server = CommandServer(run.commands.table(spans), bind, token, limits, tls)
        asyncio.run(_serve(run, server, on_ready, stop, patience))
    agent_state = run.end()
    step = run.commands.step
    return ServerResult(agent_state, step, run.commands.pushes, step >= workflow.total_timesteps)


async def _serve(
    run: ParameterRun,
    server: CommandServer,
    on_ready: Callable[[str], None],
    should_stop: Callable[[], bool],
    patience: float,
) -> None:
    try:
        on_ready(await server.start())
        while not (run.commands.is_over or server.failure or should_stop()):
            await asyncio.sleep(_LOOK)
        if run.commands.is_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while server.sockets.connections and not should_stop():
                        await asyncio.sleep(_LOOK)
    finally:
        await server.stop()
    if server.failure is not None:
        raise server.failure


@contextlib.contextmanager
def _asked_to_stop(should_stop: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """Yield ``should_stop``; if ``None``, a function that returns True after SIGINT or SIGTERM in the main thread."""
    if should_stop is not None or threading.current_thread() is not threading.main_thread():
        yield should_stop or (lambda: False)
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclasses.dataclass(frozen=True)
class WorkerResult:
    """Result of a worker.

    Attributes:
        pushes: number of answered pushes.
        accepted: number of accepted pushes.
        step: last known step of the server.
    """

    pushes: int
    accepted: int
    step: int


def work(
    workflow: Workflow,
    address: str,
    *,
    worker: int = 0,
    seed: int = 0,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    attempts: int = 10,
    should_stop: Callable[[], bool] = lambda: False,
    max_pushes: int | None = None,
    profile_dir: str | None = None,
    collector: Collector | None = None,
    message: Callable[[str], None] = lambda _: None,
) -> WorkerResult:
    """Run a worker of a parameter server until training ends, and return its counts of pushes.

    Args:
        workflow: workflow to train, equal to that of the server.
        address, token, tls: see ``ParameterClient``.
        worker: number of this worker; its random numbers depend on ``seed`` and this number.
        seed: seed of the training run.
        attempts: maximum number of connection attempts per request; pauses between them grow up to 6 seconds.
        should_stop: polled before every iteration, and while ``collector`` waits; True ends the worker.
        max_pushes: maximum number of pushes; ``None`` for no limit.
        profile_dir: folder for a profile, see ``evorl.live.spans``; ``None`` disables profiling.
        collector: ``TrainingServer`` to which simulators connect, for a workflow with ``env=remote``; the caller closes
            it. ``None`` for local environments.
        message: callback for messages of the collector.

    Raises:
        ValueError: the address is invalid, or the workflow does not support the server or its setting ``send``.
        CommandRefused: the server rejected a command, or has parameters of a different network.
        ServerLost: the server cannot be reached.
    """
    check_supported(workflow)
    spans = Spans(profile_dir, f"worker {worker}")
    with contextlib.closing(spans), ParameterClient(address, f"worker{worker}", token, attempts, tls) as client:
        announced = client.n_step()
        workflow = workflow.replace(total_timesteps=float(announced["total_timesteps"]))
        settings_for(workflow, {"send": announced["send"]})
        local = ParameterWorker(workflow, announced["send"], seed, worker, collector, message)
        link = _Link(client, local, announced, spans)
        if collector is not None:
            collector.stop_when(lambda: should_stop() or link.poll_is_over())
        while not (link.is_over or should_stop() or link.pushes == max_pushes):
            link.run_iteration()
    return WorkerResult(link.pushes, link.accepted, link.step)


class _Link:
    """Connection of a worker to its server: the last pulled parameters, and counts of pushes."""

    def __init__(
        self, client: ParameterClient, local: ParameterWorker, announced: Mapping[str, Any], spans: Spans
    ) -> None:
        served = local.served
        self._client, self._local, self._spans = client, local, spans
        self._layout = FlatArrays(served.params_of(local.agent_state))
        self._rest = FlatArrays(served.other_arrays(local.agent_state))
        if (self._layout.digest, self._rest.digest) != (announced["parameters"], announced["rest"]):
            raise CommandRefused(
                f"The server at {client.address} has parameters of a different network or algorithm: start the worker "
                "with the config of the server."
            )
        self.pushes = self.accepted = 0
        self._asked = time.monotonic()
        pulled, body = client.pull(rest=True, size=self._layout.num_bytes + self._rest.num_bytes)
        rest = self._rest.from_bytes(memoryview(body)[self._layout.num_bytes :])
        local.take_rest([jnp.asarray(x) for x in rest])
        self._take(pulled, body[: self._layout.num_bytes])

    def _take(self, pulled: Mapping[str, Any], body: bytes) -> None:
        self.step, self._updates, self.is_over = int(pulled["step"]), int(pulled["updates"]), bool(pulled["stop"])
        self._params = jax.tree.map(jnp.asarray, self._layout.from_bytes(body))

    def poll_is_over(self) -> bool:
        """Return True if training is over; a waiting worker asks the server at most once every ``_ASK`` seconds."""
        if not self.is_over and time.monotonic() - self._asked > _ASK:
            self._asked, self.is_over = time.monotonic(), bool(self._client.n_step()["stop"])
        return self.is_over

    def run_iteration(self) -> None:
        """Run one iteration with the pulled parameters, push its result, and pull again."""
        with self._spans.span("update"):
            done = self._local.work(self._params, self.step)
        if done.sent is not None:
            rest = self._rest.to_bytes(self._local.served.other_arrays(self._local.agent_state))
            body = self._layout.to_bytes(done.sent) + rest
            stands = {"step": self.step, "updates": self._updates, "steps": done.steps}
            with self._spans.span("push", steps=done.steps):
                answer = self._client.push(body, **stands, **_statistics(done.metrics))
            self.pushes += 1
            self.accepted += bool(answer["accepted"])
        with self._spans.span("pull"):
            pulled = self._client.pull(size=self._layout.num_bytes)
        self._take(*pulled)


def _statistics(metrics: PyTreeDict) -> dict[str, Any]:
    """Return the finite metrics and the episode sums in JSON-serializable form."""
    numbers = {name: float(np.mean(x)) for name, x in metrics.items() if not isinstance(x, EpisodeStatistics)}
    statistics: dict[str, Any] = {"metrics": {name: x for name, x in numbers.items() if np.isfinite(x)}}
    if isinstance(episodes := metrics.get("episodes"), EpisodeStatistics):
        statistics["episodes"] = [float(episodes.count), float(episodes.return_sum), float(episodes.length_sum)]
    return statistics

"""Common parts of server measurements: the agent, clients in another process, and processor time per message.

Clients resemble simulators of a locomotion task: states float32[17], actions float32[6], and a policy with two layers
of 64. All compared servers receive the same messages.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.speed.measuring import ROOT

OBS_SIZE, ACTION_SIZE = 17, 6
WARM_UP_SECONDS, MEASURED_SECONDS = 0.7, 2.5
STARTING_SECONDS = 60.0
STATE = np.linspace(-1.0, 1.0, OBS_SIZE, dtype=np.float32)
INIT = {"command": "init", "exploit": False}
UPDATE = {"command": "update", "reward": 0.5, "state": STATE, "terminal": False}
CONFIG = {
    "workflow": "evorl.algorithms.ppo.PPOWorkflow",
    "env": {
        "library": "remote",
        "name": "simulator",
        "obs_space": {"shape": [OBS_SIZE]},
        "action_space": {"shape": [ACTION_SIZE], "low": -1.0, "high": 1.0},
    },
    "num_envs": 64,
    "rollout_length": 128,
    "agent": {"network": {"torso": [64, 64]}},
}


class Policy:
    """The agent of a training run, which acts without learning.

    Args:
        max_clients: number of slots.
        records: record transitions, as in a training run.

    Attributes:
        workflow: workflow of the training run.
        inference: the batched inference.
        sizes: number of batches by their size.
    """

    def __init__(self, max_clients: int, records: bool) -> None:
        from omegaconf import OmegaConf

        from evorl.assembly import workflow_from_config
        from evorl.serving.batched_inference import BatchedInference

        self.workflow: Any = workflow_from_config(OmegaConf.create(CONFIG))
        acting, _ = self.workflow.acting(self.workflow.init(0))
        self.inference = BatchedInference(self.workflow, max_clients, records)
        self.inference.publish(acting)
        self.inference.compile_all()
        self.sizes: collections.Counter[int] = collections.Counter()
        ask = self.inference.ask

        def counted(questions: Sequence[Any]) -> Any:
            self.sizes[len(questions)] += 1
            return ask(questions)

        self.inference.ask = counted

    def own_cpu_seconds(self) -> float:
        """Return the processor time of the compiled program per message, for the batch sizes in ``sizes``."""
        from evorl.serving.batched_inference import bucket_sizes

        costs: dict[int, float] = {}
        for size in {bucket_sizes(size)[-1] for size in self.sizes}:
            call = self._call_of(size)
            costs[size] = cpu_seconds_of(call)
        spent = sum(costs[bucket_sizes(size)[-1]] * count for size, count in self.sizes.items())
        return spent / sum(size * count for size, count in self.sizes.items())

    def _call_of(self, size: int) -> Callable[[], object]:
        """Return a call of the program on existing arrays."""
        from evorl.serving.batched_inference import ActionRequest

        inference = self.inference
        question = ActionRequest(0, 0, 0, STATE, 0.5, False, False, False, False, None)
        inputs = inference.inputs([question._replace(session=i, slot=i) for i in range(size)])
        return lambda: inference.run(inputs, exploit=False)


def cpu_seconds_of(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Return the processor time of one call."""
    call()
    count, start, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
        count += 1
    return (time.process_time() - start) / count


class Clients:
    """Clients in a separate process, which play until they are closed.

    Args:
        module: module of the benchmarks that the process runs.
        settings: JSON, its argument.

    Raises:
        RuntimeError: they did not become ready.
    """

    def __init__(self, module: str, settings: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.speed.{module}", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None, "opened as a pipe"
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the clients did not become ready ({settings}): {self.close()}")

    @property
    def is_over(self) -> bool:
        """True if the clients ended by themselves."""
        return self._process.poll() is not None

    def close(self) -> dict[str, Any]:
        """Return the results of the clients."""
        output, _ = self._process.communicate(timeout=STARTING_SECONDS)
        return json.loads(output or "{}")


class Load(Clients):
    """Clients that repeat one request.

    Args:
        address: host and port of the server.
        carrier: rlx, websocket or grpc.
        clients: number of clients.
        messages: the first and the repeated message, as bytes.
        pause: mean seconds between a response and the next request; 0 for none.
    """

    def __init__(
        self, address: Sequence[Any], carrier: str, clients: int, messages: tuple[bytes, bytes], pause: float = 0.0
    ) -> None:
        hello, question = (base64.b64encode(message).decode() for message in messages)
        settings = {"address": list(address), "carrier": carrier, "clients": clients, "pause": pause}
        super().__init__("wire_load", {**settings, "hello": hello, "question": question})


@contextlib.contextmanager
def loads(*arguments: tuple[Any, ...]) -> Iterator[list[dict[str, float]]]:
    """Run several loads; append their results to the list, in order."""
    started: list[Load] = []
    seen: list[dict[str, float]] = []
    try:
        started += [Load(*each) for each in arguments]
        yield seen
    finally:
        seen += [load.close() for load in started]


def message_cpu_seconds(
    count: Callable[[], int], begin: Callable[[], object] = lambda: None, seconds: float = MEASURED_SECONDS
) -> dict[str, float]:
    """Return the processor time of this process per message, while clients send requests.

    Args:
        count: returns the number of messages answered so far.
        begin: called at the end of the warm-up.
        seconds: duration of the measurement.
    """
    time.sleep(WARM_UP_SECONDS)
    begin()
    counted, start, cpu_start = count(), time.perf_counter(), time.process_time()
    time.sleep(seconds)
    messages, cpu_seconds = count() - counted, time.process_time() - cpu_start
    return {
        "message_cpu_seconds": cpu_seconds / messages,
        "messages_per_second": messages / (time.perf_counter() - start),
    }


def messages_as(carrier: str) -> tuple[bytes, bytes]:
    """Return the first and the repeated message."""
    from evorl.serving.client import encode
    from evorl.serving.packed_messages import pack_message

    make = {"rlx": encode, "websocket": pack_message, "grpc": lambda message: STATE.tobytes()}[carrier]
    return make(INIT), make(UPDATE)

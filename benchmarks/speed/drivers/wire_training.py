"""Training over the network: simulators in separate processes connect to its server.

Settings: as for ``training``, whose config has env=remote, and ``simulators``, the number of processes that play
Gymnasium's CartPole. Measured by wall time, since the simulators use the processor time of other processes.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
import subprocess
import sys
from typing import Any

from benchmarks.speed.child import read_settings, serve
from benchmarks.speed.drivers.training import Training
from benchmarks.speed.measuring import ROOT
from evorl.execution.runtime import prepare_for
from evorl.execution.trainable import collected_by
from evorl.runs.spec import RunSpec


class WireTraining(Training):
    """One run with its server and its simulators."""

    def make_workflow(self, settings: dict[str, Any]) -> Any:
        """Build the workflow with a server instead of environments, and start simulators that connect to it."""
        from evorl.serving.serve_settings import ServeSettings
        from evorl.serving.training_server import TrainingServer

        workflow = super().make_workflow(settings)
        address = f"127.0.0.1:{free_port()}"
        for number in range(settings["simulators"]):
            command = [sys.executable, "-m", "benchmarks.speed.wire_player", address, str(number)]
            player = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
            atexit.register(player.kill)
        return collected_by(workflow, TrainingServer(workflow, ServeSettings(bind=address)))


def free_port() -> int:
    """Return a free port of this machine."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        return listening.getsockname()[1]


def prepare() -> Any:
    settings = read_settings()
    prepare_for(RunSpec.from_config({**settings["config"], "compilation_cache": settings.get("cache") or False}))
    training = WireTraining(settings)
    return lambda: training.learn(training.steps)


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "gymnasium", "evorl")

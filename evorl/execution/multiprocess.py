"""A process among several of one program: how it is told of them, joins them and leaves. See ``evorl.launch``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACE_VARIABLE = "EVORL_PROCESS"
HEARTBEAT_SECONDS = 15  # a process that is silent for so long is given up, and with it the program
LOST_STATUS = 75  # of a process that ended because another one had: by convention, try again


class ProcessLost(ConnectionError):
    """Another process of the program has ended."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process stands among those of its program.

    Attributes:
        index: of the process; the first one, 0, writes.
        count: of processes.
        coordinator: host and port at which the first process brings them together; ``None`` where the cluster (SLURM)
            tells.
        local_index: of the process among those on its machine.
        local_count: of those, which share the cores of the machine.
        devices: of the process; ``None`` for its share of the cores, or one accelerator.
        command: how the program was started, without the settings of the run.
    """

    index: int
    count: int
    coordinator: str | None
    local_index: int
    local_count: int
    devices: int | None
    command: str

    def as_variable(self) -> dict[str, str]:
        """The environment variable by which a process is told."""
        return {PLACE_VARIABLE: json.dumps(dataclasses.asdict(self))}


def own_place() -> Place | None:
    """The place of this process; ``None`` if it is a program by itself."""
    described = os.environ.get(PLACE_VARIABLE)
    return Place(**json.loads(described)) if described else None


def train_command() -> str:
    """How a training like this one is started, without its settings."""
    place = own_place()
    if place:
        return place.command
    command = Path(sys.argv[0]).name
    return {"train.py": "python scripts/train.py", "evorl-train": command}.get(command, "evorl train")


def join_processes(place: Place) -> None:
    """Meet the other processes of the program; returns when all are there. The backend starts with it.

    Raises:
        RuntimeError: something was computed before.
    """
    import jax

    from evorl.ops import processes

    if jax.distributed.is_initialized():  # as in the second job of a sweep
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which asks a training to stop
    told = {}
    if place.coordinator is not None:
        first = place.local_index * (place.devices or 1)
        told = {
            "coordinator_address": place.coordinator,
            "num_processes": place.count,
            "process_id": place.index,
            "coordinator_bind_address": place.coordinator if place.coordinator.startswith("127.") else None,
            "local_device_ids": list(range(first, first + (place.devices or 1))),
        }
    with _libraries_silent():
        jax.distributed.initialize(**told, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
        processes.wait_for_all()
    threading.Thread(target=_stop_with_launcher, name="launcher", daemon=True).start()


@contextmanager
def _libraries_silent() -> Iterator[None]:
    """Keep from the screen what Gloo prints on its connections."""
    sys.stdout.flush()
    screen, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(screen, 1)
        os.close(screen)
        os.close(nowhere)


def _stop_with_launcher() -> None:
    """Ask this process to stop when its standard input ends: the launcher, which holds the other end, is gone."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def refuse_different_settings(settings: str) -> None:
    """Make sure that all processes were told the same.

    Raises:
        ValueError: they were not.
    """
    from evorl.ops import processes

    number = int.from_bytes(hashlib.sha256(settings.encode()).digest()[:3])
    if processes.any_says(processes.number_of_first(number) != number):
        raise ValueError(
            "The processes of this run differ in its settings or its folder: start all of them by the same command "
            "line, where they see the same files."
        )


def loss_in_words(error: BaseException, way_on: str = "") -> str | None:
    """What to say of an error that came because another process has ended; ``None`` if it is another error."""
    if not _has_joined():
        return None
    from evorl.ops import processes

    if isinstance(error, ProcessLost):
        return str(error)
    if not processes.tells_of_loss(error):
        return None
    return f"Another process of this run has ended, and without it this one cannot go on.{way_on}"


def _has_joined() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


@contextmanager
def leaving_together() -> Iterator[None]:
    """Within a program runs; at its end the processes part.

    One that fails ends at once: JAX would have it wait for the others, which wait for its part of a computation.
    """
    try:
        yield
    except BaseException as error:
        if not _has_joined():
            raise
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)
    if _has_joined():
        import jax

        jax.distributed.shutdown()

"""Lets a process join and leave a program of several processes, which ``evorl.launch`` starts."""

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

from evorl.ops import processes

PROCESS_VARIABLE = "EVORL_PROCESS"
HEARTBEAT_SECONDS = 15  # a process without a heartbeat for this time is lost, which ends the program
LOST_STATUS = 75  # exit status of a process that ended because another one did; EX_TEMPFAIL, "try again"


class ProcessLost(ConnectionError):
    """Raised if another process of the program has ended."""


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """Position of a process in its program.

    Attributes:
        index: index of the process; process 0 writes the files.
        count: number of processes.
        coordinator: host and port at which the first process coordinates the others; ``None`` if the cluster (SLURM)
            provides it.
        local_index: index of the process on its machine.
        local_count: number of processes on its machine, which share its cores.
        devices: number of devices of the process; ``None`` uses one accelerator, or its share of the CPU devices.
        command: the command that started the program, without the settings of the run.
    """

    index: int
    count: int
    coordinator: str | None
    local_index: int
    local_count: int
    devices: int | None
    command: str

    def as_variable(self) -> dict[str, str]:
        """Return ``{name: value}`` of the environment variable that passes this object to the process."""
        return {PROCESS_VARIABLE: json.dumps(dataclasses.asdict(self))}


def process_info() -> ProcessInfo | None:
    """Return the position of this process in its program; ``None`` if it was not started as one of several."""
    described = os.environ.get(PROCESS_VARIABLE)
    return ProcessInfo(**json.loads(described)) if described else None


def train_command() -> str:
    """Return the command that started this training, without its settings; ``evorl train`` by default."""
    info = process_info()
    if info:
        return info.command
    command = Path(sys.argv[0]).name
    return {"train.py": "python scripts/train.py", "evorl-train": command}.get(command, "evorl train")


def refuse_several_processes(setting: str) -> None:
    """Raise ``ValueError`` if this process is one of several, which ``setting`` does not support."""
    if (info := process_info()) and info.count > 1:
        raise ValueError(
            f"{setting} trains in one process, but {info.count} were started: use evorl train, whose process uses all "
            "devices of its machine, or compare settings with -m."
        )


def join_processes(info: ProcessInfo) -> None:
    """Connect to the other processes, unless connected, and wait for all; this starts JAX's backend.

    Raises:
        RuntimeError: JAX has already computed something.
    """
    import jax

    if jax.distributed.is_initialized():  # as in the second run of a sweep
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM, which stops training
    arguments = {}
    if info.coordinator is not None:
        first = info.local_index * (info.devices or 1)
        arguments = {
            "coordinator_address": info.coordinator,
            "num_processes": info.count,
            "process_id": info.index,
            "coordinator_bind_address": info.coordinator if info.coordinator.startswith("127.") else None,
            "local_device_ids": list(range(first, first + (info.devices or 1))),
        }
    with _libraries_silent():
        jax.distributed.initialize(**arguments, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
        processes.wait_for_all()
    threading.Thread(target=_stop_with_launcher, name="launcher", daemon=True).start()


@contextmanager
def _libraries_silent() -> Iterator[None]:
    """Discard standard output within the context, where Gloo prints messages about its connections."""
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
    """Send SIGTERM to this process when its standard input ends: the launcher has then ended."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def refuse_different_settings(settings: str) -> None:
    """Raise ``ValueError`` if the text ``settings`` differs between the processes of the run; all must call this."""
    number = int.from_bytes(hashlib.sha256(settings.encode()).digest()[:3])
    if processes.any_says(processes.number_of_first(number) != number):
        raise ValueError(
            "The processes of this run differ in settings or run folder: start all of them with the same command "
            "line and access to the same files."
        )


def describe_lost_process(error: BaseException, advice: str = "") -> str | None:
    """Return the text of a ``ProcessLost``, a message with ``advice`` if another process ended, otherwise ``None``."""
    if not _has_joined():
        return None
    if isinstance(error, ProcessLost):
        return str(error)
    if not processes.means_lost_process(error):
        return None
    return f"Another process of this run has ended, and this process cannot continue without it.{advice}"


def _has_joined() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


@contextmanager
def leaving_together() -> Iterator[None]:
    """Context for running the program; at its end, the process disconnects from the other processes.

    After an error, a joined process exits at once: JAX would make it wait for the others, which wait for its result.
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

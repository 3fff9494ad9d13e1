"""Several processes of one training: ``python -m evorl.launch -n 2 agent=ppo env=hopper``.

This process starts the others and watches over them. The first one's output is shown; of the others only what a
failing one said last. When one ends, the others are stopped: by themselves, for they notice it at once when they
exchange something, or by signals.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from evorl.cli.signals import SHOW_CURSOR
from evorl.execution.multiprocess import LOST_STATUS, Place
from evorl.ops.processes import without_working_directory

PATIENCE = 5.0  # seconds that the others have to end by themselves, and again after they were asked to
# How JAX begins to say that a process has lost another, pages before it ends it.
_LOSS = re.compile(r"[EF]\d{4} [\d:.]+ +\d+ (coordination_service|client\.h)")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST")


class Process:
    """One process of the training.

    Args:
        place: its place among them.
        arguments: the settings of the training; or a Python file, and arguments of it.
    """

    def __init__(self, place: Place, arguments: Sequence[str]) -> None:
        self.place = place
        self.last_lines: collections.deque[str] = collections.deque(maxlen=50)
        self.stopped_by = 0  # the signal by which this launcher ended it
        self._lost_another = False
        program = (
            [] if arguments and arguments[0].endswith(".py") else [*without_working_directory(), "-m", "evorl.cli"]
        )
        # A group of its own, so that Ctrl-C reaches this launcher alone, which hands it on once. Standard input is held
        # open as long as the launcher lives.
        self._child = subprocess.Popen(
            [sys.executable, *program, *arguments],
            env={**os.environ, **place.as_variable()},
            stdin=subprocess.PIPE,
            stdout=None if place.index == 0 else subprocess.PIPE,
            stderr=subprocess.PIPE if place.index == 0 else subprocess.STDOUT,
            process_group=0,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        output = self._child.stderr or self._child.stdout
        assert output is not None, "one of them is a pipe"
        for line in output:
            text = line.decode(errors="backslashreplace").rstrip("\n")
            self._lost_another = self._lost_another or _LOSS.match(text) is not None
            if self._lost_another:
                continue
            self.last_lines.append(text)
            if self.place.index == 0:
                print(text, file=sys.stderr, flush=True)

    @property
    def status(self) -> int | None:
        """0 or another exit status, or the negative number of the signal that ended it; ``None`` while it runs."""
        return self._child.poll()

    @property
    def lost_another(self) -> bool:
        """Whether it ended because another one had."""
        self._reading.join(timeout=1)
        return self._lost_another or self.status == LOST_STATUS

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self._child.send_signal(number)

    def describe_end(self) -> str:
        """How it ended, as a part of a sentence."""
        if self.stopped_by == signal.SIGKILL:
            return "did not answer"
        status = self.status or 0
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the processes that the command line describes, and wait for them; returns the exit status."""
    options, settings = _parser().parse_known_args(arguments)
    processes = [Process(place, settings) for place in places(options, os.environ)]
    received: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        received.append(number)
        for process in processes:
            process.signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hand_on)
    while not any(statuses := [process.status for process in processes]) and None in statuses:
        time.sleep(0.1)
    if not any(statuses):
        return 0
    _stop(processes)
    if sys.stdout.isatty():
        print(SHOW_CURSOR, end="", flush=True)
    first = _first_to_fail(processes)
    if not received:
        _tell(first, processes, settings)
    status = first.status or 1
    return 128 - status if status < 0 else status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m evorl.launch",
        description="Train by several processes. Under SLURM's srun every task is one: leave all options out.",
        epilog="All other arguments are those of evorl train.",
        allow_abbrev=False,
    )
    parser.add_argument("-n", type=int, metavar="N", help="processes on this machine")
    parser.add_argument("--devices-per-process", type=int, metavar="K", help="devices (on a CPU: cores) of each")
    parser.add_argument("--hosts", type=int, default=1, metavar="H", help="machines, with N processes on each")
    parser.add_argument("--host", type=int, default=0, metavar="I", help="which of them this is, from 0")
    parser.add_argument("--coordinator", metavar="NAME:PORT", help="a free port of host 0, where there are several")
    return parser


def places(options: argparse.Namespace, environment: Mapping[str, str]) -> list[Place]:
    """The places of the processes to be started here.

    Raises:
        SystemExit: the options do not say how many, or do not fit together.
    """
    command = "python -m evorl.launch"
    devices = options.devices_per_process
    if options.n is None:
        if not all(name in environment for name in _SLURM):
            _parser().error("how many processes? Give -n 2, or start this by SLURM's srun, which makes them itself")
        index, count = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
        return [Place(index, count, None, 0, 1, devices, f"srun {command}")]
    if options.n < 1 or options.hosts < 1 or not 0 <= options.host < options.hosts or (devices or 1) < 1:
        _parser().error("-n, --hosts and --devices-per-process are 1 or more, and --host from 0 to --hosts - 1")
    if options.hosts > 1 and not re.fullmatch(r".+:\d+", options.coordinator or ""):
        _parser().error("several hosts meet at a port of host 0: give all of them the same --coordinator name:port")
    if options.host == 0 and options.coordinator and not _is_free(port := int(options.coordinator.rpartition(":")[2])):
        _parser().error(f"something else listens at port {port} of this machine: choose another --coordinator")
    command += f" -n {options.n}" + (f" --devices-per-process {devices}" if devices else "")
    if options.hosts > 1:
        command += f" --hosts {options.hosts} --host {options.host} --coordinator {options.coordinator}"
    coordinator = options.coordinator or f"127.0.0.1:{_free_port()}"
    first = options.host * options.n
    count = options.hosts * options.n
    return [Place(first + i, count, coordinator, i, options.n, devices, command) for i in range(options.n)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _stop(processes: Sequence[Process]) -> None:
    """End those that still run: they are waited for, then asked by a first signal, ended by a second, and killed."""
    for numbers in ((), (signal.SIGTERM, signal.SIGTERM), (signal.SIGKILL,)):
        for number in numbers:
            for process in processes:
                if process.status is None:
                    process.stopped_by = number
                    process.signal(number)
            time.sleep(0.2)
        deadline = time.monotonic() + PATIENCE
        while any(process.status is None for process in processes):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


def _first_to_fail(processes: Sequence[Process]) -> Process:
    """The one that the others were stopped for: that failed by itself, or did not answer, or lost one elsewhere."""

    def is_consequence(process: Process) -> tuple[bool, bool, bool]:
        return process.lost_another, process.stopped_by != 0, process.stopped_by != signal.SIGKILL

    return min((process for process in processes if process.status), key=is_consequence)


def _tell(first: Process, processes: Sequence[Process], settings: Sequence[str]) -> None:
    """Say which process ended, with its last words unless they are on the screen already."""
    ended_itself = (first.status or 0) > 0
    if first.place.index == 0 and ended_itself:
        return
    shown = [line for process in processes if process.place.index == 0 for line in process.last_lines]
    name = f"Process {first.place.index} of {first.place.count}"
    for line in first.last_lines if ended_itself else ():
        if line not in shown:
            print(f"[{first.place.index}] {line}", file=sys.stderr)
    said = f"{name} {first.describe_end()}, and the others were stopped."
    if first.lost_another:
        said = f"{name} ended because another one has ended, or cannot be reached."
    if not ended_itself:
        arguments = [each for each in settings if each.startswith(("runs_folder=", "trust="))]
        resume = shlex.join(["resume=latest", *arguments])
        said += f" Checkpoints are kept; to go on: {first.place.command} {resume}"
    if first.status != LOST_STATUS:  # which has said so itself
        print(said, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

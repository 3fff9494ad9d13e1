"""Launches several processes of one training run: ``python -m evorl.launch -n 2 agent=ppo env=hopper``.

The launcher starts the processes and supervises them. It shows the output of process 0; if another process fails first,
it also shows the last lines of that process. When one process fails, the others stop: either they notice the loss in
their next collective operation, or the launcher sends signals.
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

from evorl.execution.multiprocess import LOST_STATUS, ProcessInfo
from evorl.execution.signals import SHOW_CURSOR
from evorl.ops.processes import without_working_directory

PATIENCE = 5.0  # seconds to wait for the other processes to end by themselves, and again after each stop signal
# Start of the log lines in which JAX reports a lost process, at great length, before it ends the current process.
_LOSS = re.compile(r"[EF]\d{4} [\d:.]+ +\d+ (coordination_service|client\.h)")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST")


class Process:
    """One process of the training run.

    Args:
        info: position of this process in the program.
        arguments: settings of ``evorl train``; or a Python file followed by its arguments.
    """

    def __init__(self, info: ProcessInfo, arguments: Sequence[str]) -> None:
        self.info = info
        self.last_lines: collections.deque[str] = collections.deque(maxlen=50)
        self.stopped_by = 0  # signal with which this launcher stopped the process; 0 if it did not
        self._reported_lost_peer = False
        is_program = bool(arguments) and _is_program(arguments[0])
        program = [] if is_program else [*without_working_directory(), "-m", "evorl.cli"]
        # The child has its own process group, so Ctrl-C reaches only this launcher, which forwards it once. The child's
        # standard input stays open while the launcher runs.
        self._child = subprocess.Popen(
            [sys.executable, *program, *arguments],
            env={**os.environ, **info.as_variable()},
            stdin=subprocess.PIPE,
            stdout=None if info.index == 0 else subprocess.PIPE,
            stderr=subprocess.PIPE if info.index == 0 else subprocess.STDOUT,
            process_group=0,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        output = self._child.stderr or self._child.stdout
        assert output is not None, "stdout or stderr is a pipe"
        for line in output:
            text = line.decode(errors="backslashreplace").rstrip("\n")
            self._reported_lost_peer = self._reported_lost_peer or _LOSS.match(text) is not None
            if self._reported_lost_peer:
                continue
            self.last_lines.append(text)
            if self.info.index == 0:
                print(text, file=sys.stderr, flush=True)

    @property
    def status(self) -> int | None:
        """Exit status, or the negated number of the signal that ended the process; ``None`` while it runs."""
        return self._child.poll()

    @property
    def lost_peer(self) -> bool:
        """True if the process ended because another process had ended."""
        self._reading.join(timeout=1)
        return self._reported_lost_peer or self.status == LOST_STATUS

    def signal(self, number: int) -> None:
        """Send a signal to the process unless it has ended."""
        self._child.send_signal(number)

    def describe_end(self) -> str:
        """Return a text that continues a sentence about the process, such as ``ended with status 1``."""
        if self.stopped_by == signal.SIGKILL:
            return "did not respond"
        status = self.status or 0
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Start and supervise the processes; return 0, or the status of the first to fail (128 + N for signal N)."""
    options, settings = parsed(sys.argv[1:] if arguments is None else arguments)
    processes = [Process(info, settings) for info in process_infos(options, os.environ)]
    received: list[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        for process in processes:
            process.signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    while not any(statuses := [process.status for process in processes]) and None in statuses:
        time.sleep(0.1)
    if not any(statuses):
        return 0
    _stop(processes)
    if getattr(sys.stdout, "isatty", bool)():
        print(SHOW_CURSOR, end="", flush=True)
    first = _first_to_fail(processes)
    if not received:
        _report(first, processes, settings)
    status = first.status or 1
    return 128 - status if status < 0 else status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m evorl.launch",
        description="Train with several processes. Under SLURM's srun, each task is one process: omit -n.",
        epilog="Other arguments are passed to evorl train, or are a Python file to run instead and its arguments.",
        allow_abbrev=False,
    )
    parser.add_argument("-n", type=int, metavar="N", help="number of processes on this machine")
    parser.add_argument("--devices-per-process", type=int, metavar="K", help="accelerators, or CPU cores, per process")
    parser.add_argument("--hosts", type=int, default=1, metavar="H", help="number of machines, each with N processes")
    parser.add_argument("--host", type=int, default=0, metavar="I", help="index of this machine, from 0 to H - 1")
    parser.add_argument("--coordinator", metavar="NAME:PORT", help="host 0 and a free port on it; required if H > 1")
    return parser


def _is_program(word: str) -> bool:
    return word.endswith(".py") and "=" not in word


def parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the launcher's options and all other arguments; those after the name of a Python file are not options."""
    end = next((i for i, word in enumerate(arguments) if _is_program(word)), len(arguments))
    options, settings = _parser().parse_known_args(arguments[:end])
    return options, [*settings, *arguments[end:]]


def process_infos(options: argparse.Namespace, environment: Mapping[str, str]) -> list[ProcessInfo]:
    """Return the position in the program of each process to start on this machine.

    Raises:
        SystemExit: the number of processes is missing, an option is invalid, or the coordinator's port is in use.
    """
    command = "python -m evorl.launch"
    devices = options.devices_per_process
    if options.n is None:
        if not all(name in environment for name in _SLURM):
            _parser().error("the number of processes is missing: pass -n 2, or start with SLURM's srun, which sets it")
        index, count = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
        return [ProcessInfo(index, count, None, 0, 1, devices, f"srun {command}")]
    least = min(options.n, options.hosts, 1 if devices is None else devices)
    if least < 1 or not 0 <= options.host < options.hosts:
        got = f"got {options.n}, {options.hosts}, {'none' if devices is None else devices} and {options.host}"
        rule = "-n, --hosts and --devices-per-process must be 1 or more, and --host from 0 to --hosts - 1"
        _parser().error(f"{rule}, {got}")
    address = re.fullmatch(r".+:([0-9]{1,5})", options.coordinator or "")
    port = int(address[1]) if address else 0
    if (options.coordinator or options.hosts > 1) and not 0 < port <= 65535:
        rule = "pass the same --coordinator name:port on each host, with a port of host 0 from 1 to 65535"
        _parser().error(f"{rule}, got {options.coordinator or 'none'}")
    if options.host == 0 and port and not _is_free(port):
        _parser().error(f"port {port} of this machine is in use: choose another port in --coordinator on all hosts")
    command += f" -n {options.n}" + (f" --devices-per-process {devices}" if devices else "")
    if options.hosts > 1:
        command += f" --hosts {options.hosts} --host {options.host} --coordinator {options.coordinator}"
    coordinator = options.coordinator or f"127.0.0.1:{_free_port()}"
    first, count = options.host * options.n, options.hosts * options.n
    return [ProcessInfo(first + i, count, coordinator, i, options.n, devices, command) for i in range(options.n)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _stop(processes: Sequence[Process]) -> None:
    """Stop the running processes: wait, then send SIGTERM twice, then SIGKILL; wait ``PATIENCE`` after each step."""
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
    """Return the process that caused the stop: it failed, did not respond, or lost contact with another machine."""
    failed = [process for process in processes if process.status]
    return min(failed, key=lambda each: (each.lost_peer, each.stopped_by != 0, each.stopped_by != signal.SIGKILL))


def _report(first: Process, processes: Sequence[Process], settings: Sequence[str]) -> None:
    """Print which process failed, with its last lines or resume command; nothing if process 0 ended with an error."""
    ended_itself = (first.status or 0) > 0
    if first.info.index == 0 and ended_itself:
        return
    shown = [line for process in processes if process.info.index == 0 for line in process.last_lines]
    name = f"Process {first.info.index} of {first.info.count}"
    for line in first.last_lines if ended_itself else ():
        if line not in shown:
            print(f"[{first.info.index}] {line}", file=sys.stderr)
    message = f"{name} {first.describe_end()}, and the others were stopped."
    if first.lost_peer:
        message = f"{name} ended because another process had ended or could not be reached."
    if not ended_itself:
        arguments = [each for each in settings if each.startswith(("runs_folder=", "trust="))]
        resume = shlex.join(["resume=latest", *arguments])
        message += f" Checkpoints are kept. To resume: {first.info.command} {resume}"
    if first.status != LOST_STATUS:  # a process with this status has printed its own message
        print(message, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

"""Runs tests against mutated copies of the checkout; the checkout itself is never changed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.machine import CHECKOUT
from benchmarks.mutations.mutation import Mutation, MutationError

COPIED = ("evorl", "configs", "tests", "benchmarks", "scripts", "pyproject.toml")
TIME_LIMIT = 300.0  # seconds for the tests of one mutation
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class TrialError(RuntimeError):
    """Raised if tests could not run, so that the mutation has no outcome."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of the tests of one mutation.

    Attributes:
        caught: True if a test failed.
        by: node id of the first test that failed; empty if none did.
        seconds: duration of the process until the first failure, including its start.
    """

    caught: bool
    by: str
    seconds: float


@contextlib.contextmanager
def copied_checkout() -> Iterator[Path]:
    """Yield a temporary copy of sources, configs and tests, which is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="evorl_mutations_") as folder:
        for name in COPIED:
            source, target = CHECKOUT / name, Path(folder, name)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results"))
            else:
                shutil.copy2(source, target)
        yield Path(folder)


@contextlib.contextmanager
def applied(mutation: Mutation, copy: Path) -> Iterator[None]:
    """Apply a mutation to a copy of the checkout, and undo it at the end.

    Raises:
        MutationError: it does not apply.
    """
    path = copy / mutation.file
    if not path.is_file():
        raise MutationError(f"mutation {mutation.name}: there is no file {mutation.file}: update the mutation.")
    source = path.read_text(encoding="utf-8")
    path.write_text(mutation.mutated(source), encoding="utf-8")
    _forget_bytecode(path)
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")
        _forget_bytecode(path)


def _forget_bytecode(path: Path) -> None:
    """Delete compiled files of a module: Python would reuse them if a change keeps mtime (in seconds) and length."""
    for file in path.parent.joinpath("__pycache__").glob(f"{path.stem}.*.pyc"):
        file.unlink()


def run_tests(copy: Path, tests: Sequence[str], time_limit: float = TIME_LIMIT) -> Outcome:
    """Run tests in a copy of the checkout until the first failure, in a separate process.

    Tests that exceed the time limit are stopped and do not count as failed.

    Raises:
        TrialError: the tests cannot be collected, or pytest itself fails.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--lane", "all", "--tb", "no", "-rfE", *tests]
    # Without compiled files, each process would compile all sources again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(copy)
    begin = time.perf_counter()
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen([*command, "-p", "no:cacheprovider"], cwd=copy, env=environment, **options) as process:
        try:
            output, _ = process.communicate(timeout=time_limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Outcome(caught=False, by=f"stopped after {time_limit:.0f} s", seconds=time.perf_counter() - begin)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    seconds = time.perf_counter() - begin
    if process.returncode not in (0, 1):
        raise TrialError(f"pytest ended with status {process.returncode} for {' '.join(tests)}:\n{output[-3000:]}")
    failures = _FAILURE.findall(output)
    return Outcome(caught=process.returncode == 1, by=failures[0] if failures else "", seconds=seconds)


def try_mutation(mutation: Mutation, copy: Path, time_limit: float = TIME_LIMIT) -> Outcome:
    """Return the outcome of a mutation's tests in a copy of the checkout, which is restored."""
    with applied(mutation, copy):
        return run_tests(copy, mutation.tests, time_limit)

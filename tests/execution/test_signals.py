"""A signal stops a training run in order or ends the process without traceback, in every state of the main thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from evorl.execution import signals
from evorl.execution.signals import handled_signals, stop_on_signals
from tests.support.waiting import wait_until

# The main thread cannot run Python's handlers, as during compilation.
CHILD = """
import contextlib, ctypes
from evorl.execution.signals import handled_signals, stop_on_signals
with handled_signals(), {training}:
    print("ready", flush=True)
    for _ in range(100):
        ctypes.CDLL(None).sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "training", "expected"),
    [
        (signal.SIGINT, False, "SIGINT: ended.\n"),
        (signal.SIGTERM, False, "SIGTERM: ended.\n"),
        (
            signal.SIGINT,
            True,
            (
                "SIGINT: stopping after this iteration; a second signal exits at once.\n"
                "SIGINT: ended. Its checkpoints are kept. To resume: python scripts/train.py resume=a/run\n"
            ),
        ),
    ],
)
def test_the_process_says_what_a_signal_does(number: int, training: bool, expected: str) -> None:
    code = CHILD.format(
        training="stop_on_signals('python scripts/train.py resume=a/run')" if training else "contextlib.nullcontext()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(3 if training else 1):
        process.send_signal(number)
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, expected)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the signals that would have ended the process."""
    numbers: list[int] = []
    monkeypatch.setattr(signals, "_end_process", numbers.append)
    return numbers


def test_a_first_signal_asks_for_a_stop_and_a_second_one_ends(ended: list[int]) -> None:
    before = [signal.getsignal(number) for number in signals.ENDING]  # a shell's background jobs ignore SIGINT
    with stop_on_signals() as should_stop:
        assert not should_stop()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(should_stop, 10.0)
        assert ended == []
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: ended == [signal.SIGINT], 10.0)
    assert [signal.getsignal(number) for number in signals.ENDING] == before


def test_outside_of_a_training_the_first_one_ends(ended: list[int]) -> None:
    with handled_signals():
        with stop_on_signals():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: ended == [signal.SIGINT], 10.0)


def test_another_thread_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with stop_on_signals() as should_stop:
            seen.extend([signal.getsignal(signal.SIGINT), should_stop()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]

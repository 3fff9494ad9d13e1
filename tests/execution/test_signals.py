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
from evorl.execution.signals import handled_signals, resume_advice, stop_on_signals
with handled_signals(), {training}:
    print("ready", flush=True)
    for _ in range(100):
        ctypes.CDLL(None).sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "has_checkpoint", "expected"),
    [
        (signal.SIGINT, None, "SIGINT: ended.\n"),
        (signal.SIGTERM, None, "SIGTERM: ended.\n"),
        (
            signal.SIGINT,
            True,
            (
                "SIGINT: stopping after this iteration; a second signal exits at once.\n"
                "SIGINT: ended. Its checkpoints are kept. To resume: python scripts/train.py resume=a/run\n"
            ),
        ),
        (
            signal.SIGINT,
            False,
            (
                "SIGINT: stopping after this iteration; a second signal exits at once.\n"
                "SIGINT: ended. No checkpoint was saved: start over.\n"
            ),
        ),
    ],
)
def test_the_process_says_what_a_signal_does(number: int, has_checkpoint: bool | None, expected: str) -> None:
    """``has_checkpoint`` is ``None`` outside training."""
    training = has_checkpoint is not None
    stops = f"stop_on_signals(lambda: resume_advice('python scripts/train.py resume=a/run', {has_checkpoint}))"
    code = CHILD.format(training=stops if training else "contextlib.nullcontext()")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(3 if training else 1):
        process.send_signal(number)
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, expected)


@pytest.mark.parametrize("fault", ["advice", "reader"])
def test_a_second_signal_ends_a_process_whose_message_cannot_be_written(fault: str) -> None:
    """Ctrl-C also ends ``tee``, the reader, and advice may read a folder that was just removed: the thread ended."""
    advice = "lambda: 1 / 0" if fault == "advice" else "lambda: resume_advice('train')"
    command = [sys.executable, "-c", CHILD.format(training=f"stop_on_signals({advice})")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        if fault == "reader":
            process.stderr.close()
        both = (signal.SIGINT, signal.SIGTERM)  # different ones: the system may deliver two equal ones as one
        for number in both:
            process.send_signal(number)
        try:
            assert process.wait(timeout=60) - 128 in both
        finally:
            process.kill()


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


def test_a_stop_of_a_run_also_stops_its_sweep(ended: list[int]) -> None:
    with stop_on_signals() as sweep_stops:
        with stop_on_signals() as run_stops:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(run_stops, 10.0)
        assert sweep_stops()
    assert ended == []


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

"""Trials in copies: a planted fault is caught, a harmless change is not, and the copy is restored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.machine import CHECKOUT
from benchmarks.mutations.mutation import load_mutations
from benchmarks.mutations.trial import TrialError, applied, copied_checkout, run_tests, try_mutation
from tests.support.errors import raises_naming

FAULT = load_mutations()["schedule_reversed"]
HARMLESS = dataclasses.replace(FAULT, name="harmless", text="class Schedule(", replacement="# fault\nclass Schedule(")
SLEEP = "import pathlib, time\n\ndef test_sleep():\n    time.sleep(60)\n    pathlib.Path('ended').touch()\n"


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    with copied_checkout() as folder:
        yield folder
    assert not folder.exists()


def _source(folder: Path) -> str:
    return (folder / FAULT.file).read_text(encoding="utf-8")


def test_a_copy_is_changed_and_restored(copy: Path) -> None:
    original = _source(CHECKOUT)
    with applied(FAULT, copy):
        assert _source(copy) == FAULT.mutated(original)
        assert _source(CHECKOUT) == original
    assert _source(copy) == original
    missing = dataclasses.replace(FAULT, file="evorl/none.py")
    with raises_naming(ValueError, FAULT.name, "evorl/none.py"), applied(missing, copy):
        pass


def test_a_fault_is_caught_and_a_comment_is_not(copy: Path) -> None:
    caught = try_mutation(FAULT, copy)
    assert caught.caught
    assert caught.by.startswith(FAULT.tests[0])
    harmless = try_mutation(HARMLESS, copy)
    assert (harmless.caught, harmless.by) == (False, "")
    assert _source(copy) == _source(CHECKOUT)


def test_tests_that_cannot_run_prove_nothing(copy: Path) -> None:
    with raises_naming(TrialError, "status 4", "tests/none.py"):
        run_tests(copy, ["tests/none.py"])


def test_tests_that_take_too_long_are_stopped(copy: Path) -> None:
    path = copy / "tests" / "test_sleep.py"
    path.write_text(SLEEP, encoding="utf-8")
    slow = run_tests(copy, ["tests/test_sleep.py"], time_limit=1.0)
    assert not slow.caught
    assert "stopped after 1 s" in slow.by
    assert not (copy / "ended").exists()

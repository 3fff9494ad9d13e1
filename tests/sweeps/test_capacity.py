"""The number of settings trained in parallel is limited by memory."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from evorl.execution.programs import lowered_training
from evorl.sweeps import capacity
from evorl.workflows.side_by_side import SideBySideWorkflow
from tests.support.small_workflows import small


@pytest.fixture(autouse=True)
def nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "process_peak_bytes", lambda: 0)


def rows(number: int) -> SideBySideWorkflow:
    return SideBySideWorkflow.of(small("ppo"), ["discount"], np.full((number, 1), 0.9), np.zeros(number), 1)


def test_settings_are_shared_evenly_by_the_fewest_trainings() -> None:
    assert capacity.settings_at_once(rows, 7)[0] == 7
    one = capacity.BESIDE_THE_STATE * capacity._state_bytes(rows(1))
    compiled = lowered_training(rows(4), jax.random.key(0)).compile()
    needed = capacity.program_bytes(compiled, 1)
    assert needed is not None
    enough_for_four = max(4 * one, needed)
    assert capacity.settings_at_once(rows, 7, enough_for_four)[0] == 4  # in groups of 4 and 3
    assert capacity.settings_at_once(rows, 7, 1.0)[0] == 1  # a single setting is always tried


@pytest.mark.parametrize(("is_on_cpu", "expected"), [(True, 5), (False, 28)])
def test_the_memory_of_the_process_counts_only_on_a_cpu(
    is_on_cpu: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "process_peak_bytes", lambda: 6000)
    monkeypatch.setattr(capacity, "on_cpu", lambda: is_on_cpu)
    monkeypatch.setattr(capacity, "program_bytes", lambda compiled, num_devices: None)
    monkeypatch.setattr(capacity, "_state_bytes", lambda workflow: 100)
    monkeypatch.setattr(capacity, "available_bytes", lambda: 10_000)
    assert capacity.settings_at_once(rows, 28) == (expected, 5.0 if is_on_cpu else math.inf)


def test_what_the_program_takes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "program_bytes", lambda compiled, num_devices: 1000)
    monkeypatch.setattr(capacity, "_state_bytes", lambda workflow: 1)
    assert capacity.settings_at_once(rows, 8, 500.0) == (4, 4.0)

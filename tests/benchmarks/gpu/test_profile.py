"""Figures of a profile."""

from __future__ import annotations

import jax
import pytest

from benchmarks.gpu.profile import profile, summary


def test_time_in_which_a_kernel_runs_counts_once() -> None:
    kernels = [("a", 0.0, 2e6), ("b", 1e6, 3e6), ("a", 5e6, 6e6), ("c", 5.5e6, 5.7e6)]  # two streams overlap
    figures = summary(kernels, 2)
    assert figures["launched"] == 2.0
    assert figures["busy_seconds"] == pytest.approx(0.002)
    assert figures["span_seconds"] == pytest.approx(0.003)
    assert figures["slowest"] == [["a", 1.0, pytest.approx(0.0015)], ["b", 0.5, pytest.approx(0.001)], ["c", 0.5, 1e-4]]


def test_a_cpu_has_no_kernels() -> None:
    program = jax.jit(lambda: jax.numpy.arange(3.0) * 2)
    assert profile(program, 1) == {}

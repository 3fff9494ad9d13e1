"""The compile clock separates tracing and compiling from the rest."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp

from evorl.execution.compile_clock import CompileClock


def test_it_counts_programs_from_its_making_on() -> None:
    x = jax.block_until_ready(jnp.arange(7.0))
    first = CompileClock()

    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        return jnp.sin(x).sum()

    program(x)
    second = CompileClock()
    program(x)
    assert first.num_programs == 1
    assert second.num_programs == 0
    assert second.compile_seconds == 0.0
    assert 0.0 < first.compile_seconds < first.seconds
    assert 0.0 < first.trace_seconds < first.seconds
    assert 0.0 <= first.other_seconds < first.seconds
    assert re.fullmatch(r"\d+\.\d s \(trace \d+\.\d s, compile \d+\.\d s, 1 program\)", first.report())

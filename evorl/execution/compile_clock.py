"""Clock that separates the tracing and compilation time of a call from its total time."""

from __future__ import annotations

import functools
import time

import jax.monitoring

_TRACE_EVENTS = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration")
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_totals = {"trace": 0.0, "compile": 0.0, "programs": 0}


def _listen(event: str, duration_secs: float, **_: object) -> None:
    if event in _TRACE_EVENTS:
        _totals["trace"] += duration_secs
    elif event == _COMPILE_EVENT:
        _totals["compile"] += duration_secs
        _totals["programs"] += 1


@functools.cache
def _start_listening() -> None:
    jax.monitoring.register_event_duration_secs_listener(_listen)


class CompileClock:
    """Measures wall-clock time, and JAX's tracing and compilation time in this process, since its creation."""

    def __init__(self) -> None:
        _start_listening()
        self._start = time.perf_counter()
        self._before = dict(_totals)

    @property
    def seconds(self) -> float:
        """Seconds since the creation of the clock."""
        return time.perf_counter() - self._start

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling in XLA, or fetching programs from the compilation cache."""
        return _totals["compile"] - self._before["compile"]

    @property
    def trace_seconds(self) -> float:
        """Seconds spent tracing and lowering; the time of separately traced inner functions counts twice."""
        return _totals["trace"] - self._before["trace"]

    @property
    def num_programs(self) -> int:
        """Number of programs compiled or fetched from the cache."""
        return int(_totals["programs"] - self._before["programs"])

    @property
    def other_seconds(self) -> float:
        """Seconds spent neither tracing nor compiling; an underestimate if programs are compiled in parallel."""
        return max(0.0, self.seconds - self.trace_seconds - self.compile_seconds)

    def report(self) -> str:
        """Return a summary, such as ``4.1 s (trace 1.2 s, compile 2.5 s, 3 programs)``."""
        programs = f"{self.num_programs} program{'s' * (self.num_programs != 1)}"
        return (
            f"{self.seconds:.1f} s (trace {self.trace_seconds:.1f} s, compile {self.compile_seconds:.1f} s, {programs})"
        )

"""Child process of a measurement on a GPU: ``python -m benchmarks.gpu.measured KIND SETTINGS``.

It prints lines of JSON: the first one when the program has run once, then one for every line of its standard input,
a profile if that line is ``profile``.
rejax is measured in a separate environment, so this module imports evorl only where evorl is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any

from benchmarks.gpu.profile import profile
from benchmarks.gpu.sides import make_evosax, make_rejax, make_workflow
from benchmarks.machine import versions

Settings = dict[str, Any]
Rows = Generator[dict[str, Any], str, None]
ITERATIONS = 8  # iterations per call of a program


def evorl(settings: Settings, window: float) -> Rows:
    """Yield the first call, then readings of a training program without evaluations and recording."""
    from evorl.execution.programs import iterate_program
    from evorl.execution.runtime import prepare_runtime
    from evorl.execution.trainable import most_timesteps

    started = time.perf_counter()
    physics = (settings.get("env") or {}).get("library") == "brax"
    prepare_runtime(settings.get("devices", 1), compilation_cache=False, long_programs=physics)
    workflow = make_workflow(settings)
    state = [workflow.init(0)]

    def run() -> Any:
        metrics, state[0] = iterate_program(workflow, state[0], ITERATIONS)
        return metrics, state[0]

    steps = most_timesteps(workflow) * (workflow.execution.num_seeds or 1)
    yield from _readings(run, steps, window, started)


def rejax(settings: Settings, window: float) -> Rows:
    """Yield the first call, then readings of rejax's iterations."""
    started = time.perf_counter()
    step, init, key = make_rejax(settings)
    config = settings["config"]
    steps = config["num_envs"] * config.get("num_steps", 1) * settings.get("num_seeds", 1)
    yield from _readings(_repeated(step, init(key)), steps, window, started)


def evosax(settings: Settings, window: float) -> Rows:
    """Yield the first call, then readings of evosax's generations."""
    started = time.perf_counter()
    steps = settings["pop_size"] * settings["episode_length"]
    yield from _readings(_repeated(*make_evosax(settings)), steps, window, started)


def brax(settings: Settings, window: float) -> Rows:
    """Yield the first epoch of brax's own trainer, then readings of three further ones, measured at once.

    The second epoch, in which the trainer compiles again, is not a reading.
    """
    from benchmarks.speed.peers.brax_ppo import train

    iterations = ITERATIONS * settings["batch_size"] * settings["num_minibatches"] // settings["num_envs"]
    steps = settings["num_envs"] * settings["unroll_length"] * iterations
    times = [time.perf_counter()]
    train(settings, steps, 5, lambda: times.append(time.perf_counter()))
    seconds = [after - before for before, after in itertools.pairwise(times)]
    yield {"first_seconds": seconds[0], **_about_process()}
    for each in seconds[2:]:
        yield {"steps_per_second": steps / each}


def learning(settings: Settings, window: float) -> Rows:
    """Yield the best evaluation of a training run from the command line, and whether it is good enough."""
    from benchmarks.learning.task import LearningTask
    from benchmarks.learning.training import train

    task = LearningTask("gpu", "", settings["overrides"], threshold=settings["at_least"], within_timesteps=sys.maxsize)
    result = train(task, settings.get("num_seeds", 1))
    best = max(point["mean"] for point in result["curve"])
    row = {"best": best, "at_least": settings["at_least"], "met": best >= settings["at_least"]}
    yield {**row, "seconds": result["seconds"], **_about_process()}


def bits(settings: Settings, window: float) -> Rows:
    """Yield True for equal bits: of two runs with one seed, and of a run that continues from a copied state."""
    import jax
    import numpy as np

    from evorl.execution.programs import iterate_program

    workflow = make_workflow(settings)

    def trained(*parts: int) -> list[bytes]:
        state = workflow.init(0)
        for part in parts:
            _, state = iterate_program(workflow, state, part)
            state = jax.tree.map(jax.numpy.copy, state)
        return [np.asarray(_plain(x)).tobytes() for x in jax.tree.leaves(state)]

    whole = trained(4)
    yield {"same_seed": whole == trained(4), "resumed": whole == trained(2, 2), **_about_process()}


def tests(settings: Settings, window: float) -> Rows:
    """Yield the outcome of test files, run on this device."""
    import pytest

    class Outcomes:
        """Counts the outcomes of tests."""

        def __init__(self) -> None:
            self.counts = {"passed": 0, "failed": 0}
            self.failures: list[str] = []

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed or (report.when == "call" and report.passed):
                self.counts["failed" if report.failed else "passed"] += 1
            if report.failed:
                self.failures.append(report.nodeid)

    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", *settings["files"]], plugins=[outcomes])
    yield {**outcomes.counts, "failures": outcomes.failures[:20], **_about_process()}


def _repeated(step: Callable[[Any], Any], state: Any) -> Callable[[], Any]:
    """Return a function that continues a peer's iterations in one program."""
    import jax

    def iterate(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: (step(state), None), state, None, length=ITERATIONS)[0]

    program = jax.jit(iterate, donate_argnums=0)
    latest = [jax.tree.map(jax.numpy.copy, state)]  # a buffer that leaves share cannot be donated twice

    def run() -> Any:
        latest[0] = program(latest[0])
        return latest[0]

    return run


def _readings(run: Callable[[], Any], steps: int, window: float, started: float) -> Rows:
    """Yield the seconds until the program has run once, then its speed over ``window`` seconds, again and again."""
    import jax

    jax.block_until_ready(run())
    request = yield {"first_seconds": time.perf_counter() - started, **_about_process()}
    while True:
        if request == "profile":
            request = yield profile(run, ITERATIONS)
            continue
        calls, begin = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begin) < window or not calls:
            jax.block_until_ready(run())
            calls += 1
        request = yield {"steps_per_second": calls * ITERATIONS * steps / seconds, **_memory()}


def _about_process() -> dict[str, Any]:
    import jax

    packages = ("jax", "jaxlib", "evorl", "brax", "gymnax", "mujoco-mjx", "rejax", "evosax")
    return {"device": jax.devices()[0].device_kind, "versions": versions(*packages), **_memory()}


def _memory() -> dict[str, int]:
    """Return the peak memory of the device; of a CPU, that of the process."""
    import jax

    statistics = jax.local_devices()[0].memory_stats() or {}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"peak_bytes": statistics.get("peak_bytes_in_use", resident)}


def _plain(x: Any) -> Any:
    import jax

    return jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x


KINDS: Mapping[str, Callable[[Settings, float], Rows]] = {
    kind.__name__: kind for kind in (evorl, rejax, evosax, brax, learning, bits, tests)
}


def main() -> None:
    """Measure, and print a line of JSON for each request."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # redirect the output of libraries to standard error
    warnings.simplefilter("ignore")
    settings = json.loads(sys.argv[2])
    rows = KINDS[sys.argv[1]](settings, settings.pop("window", 1.0))
    print(json.dumps(next(rows)), file=answers, flush=True)
    for line in sys.stdin:
        with contextlib.suppress(StopIteration):
            print(json.dumps(rows.send(line.strip())), file=answers, flush=True)


if __name__ == "__main__":
    main()

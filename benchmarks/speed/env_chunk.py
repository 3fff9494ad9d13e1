"""``python -m benchmarks.speed.env_chunk``: learning speed by the number of environments stepped at a time.

``env_chunk=auto`` is compared with 16, 32, 64, 128 and all together, in turn, on two physics of hopper. It must reach
0.95 of the best speed. Steps per second are the result; steps per second of processor time, over all threads, depend
less on the load of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.machine import about
from evorl.execution.runtime import prepare_runtime

BAR = 0.95
CHUNKS = ("auto", 16, 32, 64, 128, None)
PPO = {
    "workflow": "evorl.algorithms.ppo.PPOWorkflow",
    "rollout_length": 32,
    "num_epochs": 4,
    "num_minibatches": 8,
    "optimizer": {"learning_rate": 2.5e-4, "max_grad_norm": 0.5},
    "agent": {"normalize_obs": True, "network": {"torso": [64, 64]}},
}
TASKS: Mapping[str, Mapping[str, Any]] = {
    "mjx_512": {"env": {"library": "brax", "name": "hopper", "backend": "mjx"}, "num_envs": 512},
    "generalized_64": {"env": {"library": "brax", "name": "hopper", "backend": "generalized"}, "num_envs": 64},
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.env_chunk", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(TASKS)}; both by default")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements of each value (default 5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="approximate seconds per measurement (default 4)")
    parser.add_argument("--devices", default="auto", help="auto, or a number of devices")
    parser.add_argument("--cpu", action="store_true", help="judge by steps per second of processor time")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(f"unknown task {unknown[0]!r}: expected one of {', '.join(TASKS)}")
    devices = options.devices if options.devices == "auto" else int(options.devices)
    prepare_runtime(devices, long_programs=True)
    print(", ".join(about().values()))
    passed = [_measure(name, devices, options) for name in options.names or TASKS]
    return 0 if all(passed) else 1


def _measure(name: str, devices: str | int, options: argparse.Namespace) -> bool:
    """Measure one task with every chunk in turn, show it, and return True if the bar is met."""
    sides = {}
    for chunk in CHUNKS:
        measure, taken = _training({**PPO, **TASKS[name], "devices": devices, "env_chunk": chunk}, options.seconds)
        sides["all together" if chunk is None else f"auto ({taken})" if chunk == "auto" else str(chunk)] = measure
        print(f"{name} env_chunk={chunk}: compiled", flush=True)
    readings: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, measure in sides.items():
            readings[side].append(measure())
    medians = {side: [statistics.median(column) for column in zip(*found)] for side, found in readings.items()}
    quantity = 1 if options.cpu else 0
    best = max(median[quantity] for median in medians.values())
    for side, (steps, cpu_steps) in medians.items():
        share = medians[side][quantity] / best
        print(f"  {side:14s} {steps:9,.0f} steps/s {cpu_steps:9,.0f} steps/cpu-s   {share:.2f} of the best", flush=True)
    auto = next(iter(medians.values()))[quantity]
    print(f"  auto: {auto / best:.2f} of the best (bar: >= {BAR})", flush=True)
    return auto / best >= BAR


def _training(config: Mapping[str, Any], seconds: float) -> tuple[Callable[[], tuple[float, float]], int | None]:
    """Return a function that measures a training (steps per second, and per processor second), and ``env_chunk``."""
    import jax

    from evorl.assembly import workflow_from_config
    from evorl.execution import programs

    workflow = workflow_from_config(config)
    states = [workflow.init(0)]

    def run(num_iterations: int) -> tuple[float, float]:
        start, cpu_start = time.perf_counter(), time.process_time()
        metrics, states[0] = programs.iterate_program(workflow, states[0], num_iterations)
        jax.block_until_ready((metrics, states[0]))
        return time.perf_counter() - start, time.process_time() - cpu_start

    run(1)
    num_iterations = max(1, round(seconds / run(1)[0]))

    def measure() -> tuple[float, float]:
        steps = num_iterations * workflow.timesteps_per_iteration
        passed, cpu_passed = run(num_iterations)
        return steps / passed, steps / cpu_passed

    return measure, workflow.env_chunk


if __name__ == "__main__":
    raise SystemExit(main())

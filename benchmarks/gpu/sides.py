"""The programs that are compared: one iteration of evorl, and the same work by each peer.

Every function takes the settings of its side and returns a step and the shapes of its state. ``python -m
benchmarks.gpu.sides PROGRAM SETTINGS UNKNOWN_TURNS`` compiles one for a described GPU and prints its cost as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu.described import compile_for, describe_devices
from benchmarks.machine import versions

Step = Callable[[Any], Any]
Settings = dict[str, Any]


def make_workflow(settings: Settings) -> Any:
    """Return evorl's workflow for a side.

    Args:
        settings: settings of a run. ``sweep`` with the keys ``over``, ``settings`` and ``num_seeds`` makes a program
            of that many settings and seeds, in which the numbers at the paths ``over`` vary.
    """
    import numpy as np

    from evorl.assembly import workflow_from_config
    from evorl.ops.trees import named_leaves
    from evorl.workflows.side_by_side import SideBySideWorkflow

    config = {"devices": 1, **settings}
    sweep, devices = config.pop("sweep", None), config["devices"]
    if sweep is None:
        return workflow_from_config(config)
    inner = workflow_from_config({**config, "devices": 1})
    rows, seeds = sweep["settings"] * sweep["num_seeds"], sweep["num_seeds"]
    present = [float(named_leaves(inner)[path]) for path in sweep["over"]]
    factors = np.repeat(np.geomspace(0.5, 2.0, sweep["settings"]), seeds)
    numbers = np.outer(factors, present)
    return SideBySideWorkflow.of(inner, sweep["over"], numbers, np.tile(np.arange(seeds), rows // seeds), devices)


def evorl(settings: Settings) -> tuple[Step, Any]:
    """Return one iteration of a workflow, over its seeds and devices; see ``make_workflow``."""
    import jax

    from evorl.execution import programs

    workflow = make_workflow(settings)
    shapes = programs.laid_out(workflow, jax.eval_shape(workflow.init, jax.random.key(0)))
    return lambda state: programs.iterations_on_mesh(workflow, state, 1), shapes


def make_rejax(settings: Settings) -> tuple[Step, Callable[[Any], Any], Any]:
    """Return rejax's ``train_iteration``, its ``init_state``, and their key.

    Args:
        settings: ``algorithm``, ``config`` (arguments of its ``create``) and ``num_seeds``.
    """
    import jax

    _replace_seaborn()
    import rejax as library

    algorithm = library.get_algo(settings["algorithm"]).create(**settings["config"])
    step, init, key = algorithm.train_iteration, algorithm.init_state, jax.random.PRNGKey(0)
    if num_seeds := settings.get("num_seeds"):
        return jax.vmap(step), jax.vmap(init), jax.random.split(key, num_seeds)
    return step, init, key


def _replace_seaborn() -> None:
    """Make ``import seaborn`` succeed if it is not installed: gymnax imports it, but uses it only for plots."""
    if importlib.util.find_spec("seaborn") is None:
        sys.modules["seaborn"] = types.ModuleType("seaborn")


def rejax(settings: Settings) -> tuple[Step, Any]:
    """Return rejax's iteration, see ``make_rejax``."""
    import jax

    step, init, key = make_rejax(settings)
    return step, jax.eval_shape(init, key)


def make_evosax(settings: Settings) -> tuple[Step, Any]:
    """Return one generation of evosax, and its first state; settings of ``benchmarks.speed.peers.evosax_evolution``."""
    import jax

    _replace_seaborn()
    from benchmarks.speed.peers.evosax_evolution import make_generation

    generation, carry, key = make_generation(settings)
    return lambda state: (generation(*state)[0], jax.random.split(state[1], 1)[0]), (carry, key)


def evosax(settings: Settings) -> tuple[Step, Any]:
    """Return one generation of evosax, see ``make_evosax``."""
    import jax

    step, state = make_evosax(settings)
    return step, jax.eval_shape(lambda: state)


def brax(settings: Settings) -> tuple[Step, Any]:
    """Return brax's ``training_epoch`` of one iteration; settings of ``benchmarks.speed.peers.brax_ppo``."""
    import jax

    from benchmarks.speed.peers.brax_ppo import train

    class Reached(Exception):
        """Raised when the epoch is about to run."""

    reached: list[Any] = []

    def pmap(fn: Any, axis_name: str, **_: Any) -> Any:
        mapped = jax.vmap(fn, axis_name=axis_name)  # one device: an axis of length 1
        if fn.__name__ != "training_epoch":
            return jax.jit(mapped)

        def reach(*arguments: Any) -> Any:
            reached.extend((mapped, arguments))
            raise Reached

        return reach

    before, jax.pmap = jax.pmap, pmap
    try:
        steps = settings["num_envs"] * settings["unroll_length"]
        with contextlib.suppress(Reached):
            train(settings, steps, 1, lambda: None)
    finally:
        jax.pmap = before
    epoch, arguments = reached
    return lambda state: epoch(*state), jax.eval_shape(lambda: arguments)


SIDES: Mapping[str, tuple[Callable[[Settings], tuple[Step, Any]], tuple[str, ...]]] = {
    "evorl": (evorl, ("evorl", "gymnax", "brax")),
    "rejax": (rejax, ("rejax", "gymnax")),
    "brax": (brax, ("brax",)),
    "evosax": (evosax, ("evosax", "gymnax")),
}


def main() -> None:
    """Compile the program of one side and print its cost."""
    name, settings, unknown_turns = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # redirect the output of libraries to standard error
    warnings.simplefilter("ignore")
    devices = describe_devices(settings.get("devices", 1))
    make, packages = SIDES[name]
    with _for_gpus(devices) if name == "evorl" else contextlib.nullcontext():
        step, shapes = make(settings)
        cost = compile_for(devices[0], step, shapes, unknown_turns)
        if name == "evorl":
            cost["estimated_bytes"] = _estimated_bytes(step, shapes)
    print(json.dumps({**cost, "versions": versions("jax", "jaxlib", *packages)}), file=answers, flush=True)


@contextlib.contextmanager
def _for_gpus(devices: list[Any]) -> Any:
    """Let evorl see the described devices, and compile for them."""
    import jax

    from evorl.ops.platform import compiled_for

    before, jax.local_devices = jax.local_devices, lambda process_index=None, **_: devices
    try:
        with compiled_for("gpu"):
            yield
    finally:
        jax.local_devices = before


def _estimated_bytes(step: Step, shapes: Any) -> int:
    """Return the temporary memory of an iteration as ``--plan`` estimates it."""
    import jax

    from evorl.execution.live_bytes import temporary_bytes

    return temporary_bytes(jax.make_jaxpr(step)(shapes))


if __name__ == "__main__":
    main()

"""The programs that are compared: one iteration of evorl, and the same work by each peer.

Every function takes the settings of its side and returns a step and the shapes of its state. ``python -m
benchmarks.gpu.sides SIDE SETTINGS`` compiles one for a described GPU and prints its cost as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu.described import compile_for, describe_device
from benchmarks.machine import versions

Step = Callable[[Any], Any]
Settings = dict[str, Any]


def evorl(settings: Settings) -> tuple[Step, Any]:
    """One iteration of a workflow; ``settings`` are those of a run."""
    import jax

    from evorl.assembly import workflow_from_config

    workflow = workflow_from_config(settings)
    return workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0))


def rejax(settings: Settings) -> tuple[Step, Any]:
    """rejax's ``train_iteration``; settings ``algorithm`` and ``config``, the arguments of its ``create``."""
    import jax
    import rejax as library

    algorithm = library.get_algo(settings["algorithm"]).create(**settings["config"])
    return algorithm.train_iteration, jax.eval_shape(algorithm.init_state, jax.random.PRNGKey(0))


def evosax(settings: Settings) -> tuple[Step, Any]:
    """One generation of evosax; settings of ``benchmarks.speed.peers.evosax_evolution``."""
    import jax

    from benchmarks.speed.peers.evosax_evolution import make_generation

    generation, carry, key = make_generation(settings)
    shapes = jax.eval_shape(lambda: (carry, key))
    return lambda state: (generation(*state)[0], jax.random.split(state[1], 1)[0]), shapes


def brax(settings: Settings) -> tuple[Step, Any]:
    """brax's ``training_epoch`` of one iteration; settings of ``benchmarks.speed.peers.brax_ppo``."""
    import jax

    from benchmarks.speed.peers.brax_ppo import train

    class Reached(Exception):
        """The epoch is about to run."""

    reached: list[Any] = []

    def pmap(fn: Any, axis_name: str, **_: Any) -> Any:
        mapped = jax.vmap(fn, axis_name=axis_name)  # one device: an axis of one
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
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    warnings.simplefilter("ignore")
    device = describe_device()[0]
    make, packages = SIDES[name]
    with _for_gpus() if name == "evorl" else contextlib.nullcontext():
        step, shapes = make(settings)
        cost = compile_for(device, step, shapes)
    print(json.dumps({**cost, "versions": versions("jax", "jaxlib", *packages)}), file=answers, flush=True)


def _for_gpus() -> contextlib.AbstractContextManager[None]:
    from evorl.ops.platform import compiled_for

    return compiled_for("gpu")


if __name__ == "__main__":
    main()

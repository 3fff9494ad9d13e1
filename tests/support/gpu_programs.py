"""Rules of programs for a GPU, checked on the input of its compiler: needs neither a device nor a CUDA package."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import jax
from jaxlib.mlir import ir

from evorl.ops.platform import compiled_for

# Loops whose number of turns follows from numbers, by their file.
OPEN_LOOPS = {
    "mujoco/mjx/_src/solver.py": "MJX's solver iterates until it has converged",
    "evorl/rollout.py": "gymnax's Asterix has one in its step, which is traced before it is called there",
    "evorl/ops/natural_gradient.py": "TRPO's line search, once per trajectory",
    "evorl/ec/operators/pareto.py": "the fronts of a population, once per generation",
    "evorl/ec/optimizers/cma_es.py": "a root of the covariance, once in many generations",
    "evorl/workflows/nested_learner.py": "as many updates as the episodes of a generation had steps",
    "evorl/workflows/policy_improvement.py": "as many updates as the episodes of a generation had steps",
    "evorl/envs/vector.py": "starts where resets are dear, see evorl.envs.starts",
}
NESTED = "evorl/workflows/nested_learner.py"  # passes a number of updates to other modules
_FILE = re.compile(r'"([^"]+\.py)":(\d+)')
_WIDE = re.compile(r"\bf64\b")


def lowered_for_gpus(make: Callable[[], tuple[Callable[..., Any], Any]]) -> Any:
    """Return the program of ``step(state)`` that the compiler of a GPU reads.

    Args:
        make: returns the step, and the shapes of its state; called where programs are built for a GPU.
    """
    with compiled_for("gpu"):
        step, state = make()
        return jax.jit(step).trace(state).lower(lowering_platforms=("cuda",))


def broken_rules(lowered: Any, open_loops: Collection[str] = (), *, calls_hosts: bool = False) -> list[str]:
    """Return everything in a program that makes a GPU wait or slow; empty for a good program.

    A loop with a number of turns that is not known before; a call of the host; numbers of 64 bits; and barriers between
    operations, which are a workaround for CPUs.

    Args:
        lowered: the program.
        open_loops: keys of ``OPEN_LOOPS`` that the program may have.
        calls_hosts: True if its environment is simulated by the host.
    """
    found: dict[str, None] = {}

    def visit(operation: Any) -> Any:
        name, place = operation.name, _place(operation)
        if name == "stablehlo.while" and not _is_counted(operation):
            nested = NESTED in open_loops and NESTED in str(operation.location)
            if not nested and not any(path in place for path in open_loops):
                found[f"loop: {place}"] = None
        elif name == "stablehlo.custom_call" and "callback" in str(operation.attributes["call_target_name"]):
            if not calls_hosts:
                found[f"host: {place}"] = None
        elif name == "stablehlo.optimization_barrier":
            found[f"barrier: {place}"] = None
        if any(_WIDE.search(str(result.type)) for result in operation.results):
            found[f"float64: {place}"] = None
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir().operation.walk(visit)
    return list(found)


def _is_counted(loop: Any) -> bool:
    """Return True if the condition compares a counter with a constant."""
    *others, compare, _ = loop.regions[0].blocks[0].operations
    if compare.name != "stablehlo.compare" or any(op.name != "stablehlo.constant" for op in others):
        return False
    return any(getattr(operand.owner, "name", "") == "stablehlo.constant" for operand in compare.operands)


def _place(operation: Any) -> str:
    """Return file and line of the innermost call outside of JAX."""
    found = _FILE.search(str(operation.location))
    return f"{found[1]}:{found[2]}" if found else "unknown"

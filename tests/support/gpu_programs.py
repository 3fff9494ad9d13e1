"""Rules of programs for a GPU, checked on the input of its compiler: needs neither a device nor a CUDA package."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jaxlib.mlir import ir

from evorl.ops.platform import compiled_for

# Reasons for loops whose number of turns follows from numbers, by their file. A program names the files that it uses.
OPEN_LOOPS = {
    "mujoco/mjx/_src/solver.py": "MJX's solver iterates until it has converged",
    "evorl/envs/wrappers/clock.py": "MJX's solver in a reset of Playground, which is traced before it is called there",
    "evorl/rollout.py": "gymnax's Asterix has one in its step, which is traced before it is called there",
    "evorl/ops/natural_gradient.py": "TRPO's conjugate gradient and its line search, each once per trajectory",
    "evorl/ec/operators/pareto.py": "the fronts of a population, once or twice per generation",
    "evorl/ec/optimizers/cma_es.py": "a root of the covariance, once in many generations",
    "evorl/workflows/nested_learner.py": "as many blocks of updates as the episodes of a generation had steps",
    "evorl/workflows/policy_improvement.py": "the updates of a block of nested_learner.py",
    "evorl/ops/loops.py": "the updates of a block of nested_learner.py, from nowhere else",
    "evorl/envs/vector.py": "starts of episodes where resets are expensive, see evorl.envs.starts",
}
# Reasons for branches: a GPU waits for the host at each, too.
BRANCHES = {
    "evorl/ops/loops.py": "updates that are due once in several steps, which are skipped otherwise",
    "evorl/evaluators/episodes.py": "blocks of steps are skipped once all episodes have ended",
}
NO_LOOPS: Mapping[str, int] = MappingProxyType({})
# Loops in the first file are accepted only if the second one calls them: other callers pass static numbers.
_CALLED_BY = {"evorl/ops/loops.py": "evorl/workflows/nested_learner.py"}
_FILE = re.compile(r'"([^"]+\.py)":(\d+)')
_WIDE = re.compile(r"f64\b")
_BRANCH = "stablehlo.case"  # of every ``cond`` and ``switch``
_COUNTER = re.compile(r"tensor<u?i\d+>")


def lowered_for_gpus(make: Callable[[], tuple[Callable[..., Any], Any]]) -> Any:
    """Return the program of ``step(state)`` that the compiler of a GPU reads.

    Without a GPU, JAX cannot lower calls of the host for one. A program with such calls is lowered for this machine
    instead, so that ``broken_rules`` reports their places.

    Args:
        make: returns the step, and the shapes of its state; called where programs are built for a GPU.
    """
    with compiled_for("gpu"):
        step, state = make()
        traced = jax.jit(step).trace(state)
        try:
            return traced.lower(lowering_platforms=("cuda",))
        except ValueError as error:
            if "lowering platform cuda" not in str(error):
                raise
            return traced.lower()


def broken_rules(lowered: Any, open_loops: Mapping[str, int] = NO_LOOPS) -> list[str]:
    """Return everything in a program that makes a GPU wait or slow; empty for a good program.

    A loop with a number of turns that is not known before; a branch that is not in ``BRANCHES``; a call of the host;
    numbers of 64 bits; and barriers between operations, which are a workaround for CPUs.

    Args:
        lowered: the program.
        open_loops: number of such loops that the program has, by their file, a key of ``OPEN_LOOPS``. A loop that
            several functions call counts once.

    Raises:
        ValueError: a file is not in ``OPEN_LOOPS``.
    """
    if unknown := open_loops.keys() - OPEN_LOOPS.keys():
        raise ValueError(f"open_loops must name files of OPEN_LOOPS, where their reasons are; got {sorted(unknown)}.")
    found: dict[str, None] = {}
    accepted: dict[str, set[str]] = defaultdict(set)

    def visit(operation: Any) -> Any:
        name, places = operation.name, _places(operation)
        if name == "stablehlo.while" and not _is_counted(operation):
            path = next((path for path in open_loops if _is_in(places, path)), None)
            if path is None:
                found[f"loop: {places[0]}"] = None
            else:
                accepted[path].add(places[0])
        elif name == _BRANCH and not _is_constant(operation.operands[0]):
            if not any(_is_file(places[0], path) for path in BRANCHES):
                found[f"branch: {places[0]}"] = None
        elif name == "stablehlo.custom_call" and "callback" in str(operation.attributes["call_target_name"]):
            found[f"host: {places[0]}"] = None
        elif name == "stablehlo.optimization_barrier":
            found[f"barrier: {places[0]}"] = None
        if any(_WIDE.search(str(value.type)) for value in (*operation.operands, *operation.results)):
            found[f"float64: {places[0]}"] = None
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir().operation.walk(visit)
    for path, number in open_loops.items():
        if len(accepted[path]) != number:
            found[f"loop: {path} has {len(accepted[path])}, not {number}: {sorted(accepted[path])}"] = None
    return list(found)


def _is_counted(loop: Any) -> bool:
    """Return True if the number of turns is known: a constant limit of a counter that starts and grows by constants."""
    condition, body = (region.blocks[0] for region in loop.regions)
    *others, compare, result = [None, *condition.operations]
    if getattr(compare, "name", "") != "stablehlo.compare" or result.operands[0] != compare.results[0]:
        return False
    if any(op.name != "stablehlo.constant" for op in others[1:]):
        return False
    counter, limit = compare.operands
    arguments = list(condition.arguments)
    if counter not in arguments or "LT" not in str(compare.attributes["comparison_direction"]):
        return False
    number = arguments.index(counter)
    growth = list(body.operations)[-1].operands[number].owner
    if getattr(growth, "name", "") != "stablehlo.add" or body.arguments[number] not in list(growth.operands):
        return False
    steps = [x for x in growth.operands if x != body.arguments[number]]
    is_whole = _COUNTER.fullmatch(str(counter.type)) is not None
    return is_whole and len(steps) == 1 and all(map(_is_constant, (limit, loop.operands[number], *steps)))


def _is_constant(value: Any) -> bool:
    """Return True if the compiler knows a value: a constant, a conversion of one, or a known branch of constants."""
    owner = value.owner
    name = getattr(owner, "name", "")
    ends = [list(region.blocks[0].operations)[-1].operands for region in owner.regions] if name == _BRANCH else []
    inputs = [*owner.operands, *(x for end in ends for x in end)] if name in (_BRANCH, "stablehlo.convert") else []
    return name == "stablehlo.constant" or (bool(inputs) and all(map(_is_constant, inputs)))


def _places(operation: Any) -> list[str]:
    """Return file and line of the calls outside of JAX, the innermost first, or ``["unknown"]``."""
    return [f"{path}:{line}" for path, line in _FILE.findall(str(operation.location))] or ["unknown"]


def _is_in(places: list[str], path: str) -> bool:
    """Return True if the innermost call is in a file, and comes from the caller that the file requires."""
    caller = _CALLED_BY.get(path, path)
    return _is_file(places[0], path) and any(_is_file(place, caller) for place in places)


def _is_file(place: str, path: str) -> bool:
    return place.rpartition(":")[0].endswith(f"/{path}")

"""Warm start: initializes a new run's agent with parameters and observation statistics of another run.

Only arrays are read from the other run, and no code that its config names is executed, so it may be untrusted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.config.names import no_such
from evorl.execution import programs
from evorl.ops.trees import leaf_name
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.storage import read_structure
from evorl.runs.structure import CheckpointError, LeafSpec, describe_structure
from evorl.types import Key, PyTreeDict, State
from evorl.workflows.evolution import EvolutionWorkflow, initial_best
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.on_policy import OnPolicyWorkflow
from evorl.workflows.workflow import Workflow, learning_algorithms

STATISTICS = "observation statistics"
_PARAMS = "agent_state/params/"
_NORMALIZATION = "agent_state/extra_state/"  # statistics of batch normalization, by part
_STATISTICS = "agent_state/obs_preprocessor_state/"
_SPREAD = "log_std"  # state-independent parameter of stochastic policies, absent from deterministic ones
_TARGETS = {"online": "target"}  # target networks with special names; others are called target_<network>

Leaves = dict[str, LeafSpec]  # leaves of one seed, by their path within the part


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Arrays of another run that initialize a new run.

    Attributes:
        workflow: workflow of the new run.
        arrays: parameters and statistics by path in the state, with a leading axis S if the run has several seeds.
        messages: sentences for the user about loaded and omitted parts.
    """

    workflow: Workflow
    arrays: Mapping[str, np.ndarray]
    messages: tuple[str, ...]

    def first_state(self, key: Key | int = 0) -> State:
        """Return ``workflow.init(key)`` with the loaded arrays; an evolutionary search starts at the loaded policy."""
        state = self.workflow.init(key)
        agent_state = jax.tree.map_with_path(self._loaded, {"agent_state": state.agent_state})["agent_state"]
        state = programs.place(self.workflow, state.replace(agent_state=agent_state))
        if isinstance(self.workflow, EvolutionWorkflow):
            _, state = _search_around(self.workflow, state)
        return state

    def _loaded(self, path: Any, leaf: jax.Array) -> Any:
        array = self.arrays.get(leaf_name(path, "/"))
        # A copy: two leaves must not share memory, because training donates the state.
        return leaf if array is None else np.array(np.broadcast_to(array, leaf.shape))


def warm_start(
    workflow: Workflow, run: Path | str, parts: Sequence[str] | None = None, which: str | int = "best"
) -> WarmStart:
    """Load the parameters and observation statistics with which ``workflow`` starts from another run's agent.

    Args:
        workflow: workflow of the new run; its algorithm may differ if parts have the same names and shapes.
        run: folder of the other run.
        parts: names of the parts of the agent's parameters, such as ``policy``; ``None`` loads all parts that both runs
            have. Target networks are loaded with their online networks, observation statistics with every part.
        which: checkpoint to load: ``best``, ``latest``, or an iteration. Without evaluations, ``best`` is ``latest``.

    Raises:
        ValueError: parts, shapes, seeds or normalization of the agents differ, or a run's algorithm is unsupported.
        CheckpointError: the checkpoint does not exist or is corrupted.
    """
    checkpointer = RunCheckpointer(Path(run) / "checkpoints")
    which = checkpointer.available(which)
    here = _shapes_here(workflow)
    there, seeds_there = _shapes_there(checkpointer, which, Path(run))
    if seeds_there not in (None, workflow.execution.num_seeds):
        raise ValueError(
            f"{run} has {seeds_there} seeds, but this run has {workflow.execution.num_seeds or 1}: set "
            f"num_seeds={seeds_there}, or start from a run with one seed, which fits any number of seeds."
        )
    parts_here, parts_there = _by_part(here), _by_part(there)
    loaded, copies = _parts_to_load(parts_here, parts_there, parts, run)
    statistics_here, statistics_there = _under(here, _STATISTICS), _under(there, _STATISTICS)
    with_statistics, remark = _statistics(statistics_here, statistics_there, run)
    for part in loaded:
        _compare(part, parts_there[part], parts_here[part], loaded, run)
    pairs = [(parts_here[part], parts_there[part]) for part in loaded]
    pairs += [(parts_here[copy], parts_there[part]) for copy, part in copies.items()]
    pairs += [(statistics_here, statistics_there)] if with_statistics else []
    origins = {
        leaf.path: before[within].path for after, before in pairs for within, leaf in after.items() if within in before
    }
    read, progress = _read(checkpointer, which, [there[path] for path in dict.fromkeys(origins.values())], seeds_there)
    arrays = {path: read[origin] for path, origin in origins.items()}
    messages = (
        *checkpointer.notices,
        _describe_loaded(run, progress, {part: parts_there[part] for part in loaded}, copies, with_statistics),
        _describe_fresh(parts_here, parts_there, loaded, copies),
        *remark,
    )
    return WarmStart(workflow, arrays, messages)


def _search_around(workflow: EvolutionWorkflow, state: State) -> tuple[PyTreeDict, State]:
    """Return empty metrics, and the state with a new search of the evolutionary optimizer around the loaded policy."""

    def begin(state: State) -> tuple[PyTreeDict, State]:
        key, optimizer_key = jax.random.split(state.key)
        ec_state = workflow.optimizer.init(state.agent_state.params.policy, optimizer_key)
        return PyTreeDict(), state.replace(key=key, ec_state=ec_state, best=initial_best(state.agent_state))

    def begin_all(workflow: EvolutionWorkflow, state: State) -> tuple[PyTreeDict, State]:
        return programs.over_seeds(workflow.execution, begin, state, returns_state=True)

    return jax.jit(programs.on_mesh(workflow, begin_all, returns_state=True))(workflow, state)


def _shapes_here(workflow: Workflow) -> Leaves:
    """Return the shapes and dtypes of this run's agent, without the axis of seeds.

    Raises:
        ValueError: the workflow is not on-policy, off-policy or evolutionary, or uses virtual batch normalization.
    """
    name = type(workflow).__name__.removesuffix("Workflow")
    if not isinstance(workflow, OnPolicyWorkflow | OffPolicyWorkflow | EvolutionWorkflow):
        raise ValueError(
            f"init_from loads the parameters of one agent, but {name} trains several, such as a population: choose an "
            f"evolutionary optimizer, or one of {learning_algorithms(OnPolicyWorkflow, OffPolicyWorkflow)}."
        )
    if getattr(workflow, "virtual_batch", None) is not None:
        raise ValueError(
            "init_from is not supported with virtual_batch, whose layers are normalized for a particular reference "
            "batch: remove one of the two."
        )
    state = jax.eval_shape(programs.initial_state, workflow, jax.random.key(0))
    agent = State(agent_state=state.agent_state)
    return {spec.path: spec for spec in _of_one_seed(describe_structure(agent), workflow.execution.num_seeds)}


def _shapes_there(checkpointer: RunCheckpointer, which: str | int, run: Path) -> tuple[Leaves, int | None]:
    """Return the shapes and dtypes of the other run's agent for one seed, and the number of seeds (``None``: no axis).

    Raises:
        CheckpointError: the checkpoint does not exist.
        ValueError: the run did not train a single agent.
    """
    steps = checkpointer.steps
    if not steps:
        raise CheckpointError(f"init_from.run={run} has no complete checkpoint: choose another run.")
    step = {"latest": steps[-1], "best": checkpointer.best_step}.get(str(which), which)
    if str(step) not in map(str, steps):
        raise CheckpointError(
            f"init_from.which={which}: {run} has no such checkpoint. Choose latest, best or one of "
            f"{', '.join(map(str, steps))}."
        )
    specs, _ = read_structure(checkpointer.folder / str(step))
    seeds = next((spec.shape for spec in specs if spec.path == "eval_key"), ())
    num_seeds = seeds[0] if seeds else None
    agent = [spec for spec in specs if spec.path.startswith((_PARAMS, _NORMALIZATION, _STATISTICS))]
    if not any(spec.path.startswith(_PARAMS) for spec in agent):
        entries = ", ".join(dict.fromkeys(spec.path.partition("/")[0] for spec in specs))
        raise ValueError(
            f"{run} did not train a single agent: its checkpoint has {entries}. Start from a run of an "
            f"evolutionary optimizer, or of one of {learning_algorithms(OnPolicyWorkflow, OffPolicyWorkflow)}."
        )
    return {spec.path: spec for spec in _of_one_seed(agent, num_seeds)}, num_seeds


def _of_one_seed(specs: Sequence[LeafSpec], num_seeds: int | None) -> list[LeafSpec]:
    if num_seeds is None:
        return list(specs)
    return [dataclasses.replace(spec, shape=spec.shape[1:]) for spec in specs]


def _by_part(leaves: Leaves) -> dict[str, Leaves]:
    """Return the parameters and normalization statistics by part, without the level ``params`` that some parts have."""
    parts: dict[str, Leaves] = {}
    for path, spec in _under(leaves, _PARAMS).items():
        name, _, within = path.partition("/")
        parts.setdefault(name, {})[within.removeprefix("params/")] = spec
    for path, spec in _under(leaves, _NORMALIZATION).items():
        name, _, within = path.partition("/")
        if name in parts:
            parts[name][f"normalization/{within}"] = spec
    return parts


def _under(leaves: Leaves, prefix: str) -> Leaves:
    return {path.removeprefix(prefix): spec for path, spec in leaves.items() if path.startswith(prefix)}


def _parts_to_load(
    here: Mapping[str, Leaves], there: Mapping[str, Leaves], requested: Sequence[str] | None, run: Path | str
) -> tuple[list[str], dict[str, str]]:
    """Return the parts to load, and the loaded part to copy for each target network that the other run lacks.

    Raises:
        ValueError: a requested part is not in both agents, or the agents have no common part.
    """
    common = [name for name in here if name in there]
    if requested is not None and not requested:
        raise ValueError(f"init_from.parts is empty: choose from {', '.join(common)}, or null for all of them.")
    for name in requested or ():
        for where, parts in ((str(run), there), ("this run's agent", here)):
            if name not in parts:
                raise ValueError(f"init_from.parts: {no_such(f'part in {where}', name, parts)}")
    loaded = [name for name in common if requested is None or name in requested]
    if not loaded:
        raise ValueError(
            f"init_from: {run} has {', '.join(there)}, but this run's agent has {', '.join(here) or 'no parameters'}. "
            "Choose a run and an algorithm whose agents have a common part."
        )
    copies = {}
    for name in list(loaded):
        target = _TARGETS.get(name, f"target_{name}")
        if target in here and target not in loaded:
            if target in there:
                loaded.append(target)
            else:
                copies[target] = name
    return loaded, copies


def _compare(part: str, there: Leaves, here: Leaves, loaded: Sequence[str], run: Path | str) -> None:
    """Raise ``ValueError`` if a part's arrays differ in name, shape or dtype; either run may lack a ``log_std``."""
    for path in dict.fromkeys([*there, *here]):
        before, after = there.get(path), here.get(path)
        is_common = before is not None and after is not None
        if str(before) == str(after) or (path.rpartition("/")[2] == _SPREAD and not is_common):
            continue
        name = f"{part}/{path}" if path else part
        difference = f"{name} is {before} in {run} but {after} here"
        if not is_common:
            difference = f"{name} ({before or after}) is only in {'this run' if before is None else run}"
        others = [other for other in loaded if other.removeprefix("target_") != part.removeprefix("target_")]
        advice = f"Omit {part} with init_from.parts=[{', '.join(others)}], or use" if others else "Use"
        raise ValueError(f"init_from: {difference}. {advice} an environment with the same spaces and the same network.")


def _statistics(here: Leaves, there: Leaves, run: Path | str) -> tuple[bool, tuple[str, ...]]:
    """Return True if observation statistics are loaded, and messages for the user, possibly none.

    Raises:
        ValueError: only the other run normalizes observations, or the shapes of the observations differ.
    """
    if there and not here:
        raise ValueError(
            f"The networks of {run} were trained on normalized observations, but this run does not normalize them: set "
            "agent.normalize_obs=true."
        )
    if here and not there:
        remark = (
            "The other run did not normalize observations, but this run does, so the scale of the networks' inputs "
            "changes. Set agent.normalize_obs=false to keep the scale."
        )
        return False, (remark,)
    if there:
        _compare(STATISTICS, there, here, (), run)
    return bool(there), ()


def _read(
    checkpointer: RunCheckpointer, which: str | int, specs: Sequence[LeafSpec], num_seeds: int | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of these leaves, by path, and the progress of the other run, both read from its checkpoint."""
    template: dict[str, Any] = {}
    seeds = () if num_seeds is None else (num_seeds,)
    for spec in specs:
        node = template
        *parents, name = spec.path.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = jax.ShapeDtypeStruct((*seeds, *spec.shape), spec.dtype)
    restored, progress = checkpointer.restore(template, which, partial=True)
    leaves = jax.tree.leaves_with_path(restored)
    arrays = {leaf_name(path, "/"): np.asarray(leaf) for path, leaf in leaves}
    return arrays, progress


def _describe_loaded(
    run: Path | str,
    progress: Mapping[str, Any],
    loaded: Mapping[str, Leaves],
    copies: Mapping[str, str],
    with_statistics: bool,
) -> str:
    sizes = {name: sum(math.prod(spec.shape) for spec in leaves.values()) for name, leaves in loaded.items()}
    parts = [f"{name} ({size:,} numbers)" for name, size in sizes.items()]
    parts += [f"{copy} (a copy of {name})" for copy, name in copies.items()]
    parts += [STATISTICS] if with_statistics else []
    return f"Starts from {run}, checkpoint of {progress['timesteps']:,} steps: {', '.join(parts)}."


def _describe_fresh(
    here: Mapping[str, Leaves], there: Mapping[str, Leaves], loaded: Sequence[str], copies: Mapping[str, str]
) -> str:
    fresh = [name for name in here if name not in loaded and name not in copies]
    unused = [name for name in there if name not in loaded]
    not_loaded = f" Not loaded: {', '.join(unused)}." if unused else ""
    fresh += ["optimizers", "environments", "counters"]
    return f"Newly initialized: {', '.join(fresh)}, and the replay buffer if there is one.{not_loaded}"

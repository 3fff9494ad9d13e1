"""A new run that begins with the parameters of another one: what is taken, what is fresh, and what does not fit.

Only arrays are read of the other run. Nothing that its config names is executed, so that one may begin from the run of
a stranger without trusting it.
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
from evorl.execution.trainable import Execution
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.storage import read_structure
from evorl.runs.structure import CheckpointError, LeafSpec, describe_structure
from evorl.types import Key, PyTreeDict, State
from evorl.workflows.evolution import EvolutionWorkflow, initial_best
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.on_policy import OnPolicyWorkflow
from evorl.workflows.workflow import Workflow

STATISTICS = "observation statistics"
_PARAMS = "agent_state/params/"
_STATISTICS = "agent_state/obs_preprocessor_state/"
_SPREAD = "log_std"  # of a policy's actions, apart from its network: what acts without noise has none
_TARGETS = {"online": "target"}  # of agents of one network; others call that of x target_x

Leaves = dict[str, LeafSpec]  # of one seed, by the path within the part


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What a run begins with.

    Attributes:
        workflow: of the run that begins.
        arrays: the parameters and statistics that were taken, by their paths in the state, leading with axis S
            where the other run has seeds.
        said: what was taken, and what was not, in sentences.
    """

    workflow: Workflow
    arrays: Mapping[str, np.ndarray]
    said: tuple[str, ...]

    def first_state(self, key: Key | int = 0) -> State:
        """The first state, as ``workflow.init`` makes it, but for what was taken."""
        state = self.workflow.init(key)
        agent_state = jax.tree_util.tree_map_with_path(self._taken, {"agent_state": state.agent_state})["agent_state"]
        state = programs.place(self.workflow, state.replace(agent_state=agent_state))
        if isinstance(self.workflow, EvolutionWorkflow):
            _, state = _search_around(self.workflow, state)
        return state

    def _taken(self, path: Any, leaf: jax.Array) -> Any:
        array = self.arrays.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        # A copy: two leaves must not share memory that is given to the training.
        return leaf if array is None else np.array(np.broadcast_to(array, leaf.shape))


def warm_start(
    workflow: Workflow, run: Path | str, parts: Sequence[str] | None = None, which: str | int = "best"
) -> WarmStart:
    """What ``workflow`` begins with after a run.

    Args:
        workflow: of the run that begins; of another algorithm perhaps, with parts of the same names and shapes.
        run: the folder of a run.
        parts: of the agent, by the names of its parameters, such as ``policy``; ``None`` for all that both have. Target
            networks come with what they follow, and statistics of observations with every part.
        which: ``best``, ``latest``, or the iteration of a checkpoint. The latest stands for the best where none was
            evaluated.

    Raises:
        ValueError: nothing or no such part can be taken, or shapes differ; in words.
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    checkpointer = RunCheckpointer(Path(run) / "checkpoints")
    if which == "best" and checkpointer.best_step is None:
        which = "latest"
    here = _shapes_here(workflow)
    there, seeds_there = _shapes_there(checkpointer, which, Path(run))
    _check_seeds(workflow.execution, seeds_there, run)
    parts_here, parts_there = _by_part(here), _by_part(there)
    taken, copies = _parts_to_take(parts_here, parts_there, parts, run)
    statistics_here, statistics_there = _under(here, _STATISTICS), _under(there, _STATISTICS)
    with_statistics, remark = _statistics(statistics_here, statistics_there, run)
    for part in taken:
        _compare(part, parts_there[part], parts_here[part], taken, run)
    pairs = [(parts_here[part], parts_there[part]) for part in taken]
    pairs += [(parts_here[copy], parts_there[part]) for copy, part in copies.items()]
    pairs += [(statistics_here, statistics_there)] if with_statistics else []
    origins = {
        leaf.path: before[within].path for after, before in pairs for within, leaf in after.items() if within in before
    }
    read, progress = _read(checkpointer, which, [there[path] for path in dict.fromkeys(origins.values())], seeds_there)
    arrays = {path: read[origin] for path, origin in origins.items()}
    said = (
        *checkpointer.notices,
        _told(run, progress, {part: parts_there[part] for part in taken}, copies, with_statistics),
        _left(parts_here, parts_there, taken, copies),
        *remark,
    )
    return WarmStart(workflow, arrays, said)


def _search_around(workflow: EvolutionWorkflow, state: State) -> tuple[PyTreeDict, State]:
    """The state in which the optimizer begins anew around the policy."""

    def begin(state: State) -> tuple[PyTreeDict, State]:
        key, optimizer_key = jax.random.split(state.key)
        ec_state = workflow.optimizer.init(state.agent_state.params.policy, optimizer_key)
        return PyTreeDict(), state.replace(key=key, ec_state=ec_state, best=initial_best(state.agent_state))

    def begin_all(workflow: EvolutionWorkflow, state: State) -> tuple[PyTreeDict, State]:
        return programs.over_seeds(workflow.execution, begin, state, returns_state=True)

    return jax.jit(programs.on_mesh(workflow, begin_all, returns_state=True))(workflow, state)


def _shapes_here(workflow: Workflow) -> Leaves:
    """Of this run's agent, without the axis of seeds.

    Raises:
        ValueError: the workflow has no agent of its own that something could be put into.
    """
    name = type(workflow).__name__.removesuffix("Workflow")
    if not isinstance(workflow, OnPolicyWorkflow | OffPolicyWorkflow | EvolutionWorkflow):
        raise ValueError(
            f"init_from puts parameters into one agent, and {name} trains a population, or nothing: take an agent such "
            "as ppo, a2c, sac, td3, dqn or ec/openes."
        )
    if getattr(workflow, "virtual_batch", None) is not None:
        raise ValueError("init_from does not go with virtual_batch, whose layers are made for a batch of their own.")
    state = jax.eval_shape(programs.initial_state, workflow, jax.random.key(0))
    agent = State(agent_state=state.agent_state)
    return {spec.path: spec for spec in _of_one_seed(describe_structure(agent), workflow.execution.num_seeds)}


def _shapes_there(checkpointer: RunCheckpointer, which: str | int, run: Path) -> tuple[Leaves, int | None]:
    """Of the stored run's agent, without the axis of seeds, and how many these are.

    Raises:
        CheckpointError: there is no checkpoint.
        ValueError: the run has no agent of its own.
    """
    steps = checkpointer.steps
    if not steps:
        raise CheckpointError(f"{run} has no complete checkpoint to begin from.")
    chosen = {"latest": steps[-1], "best": checkpointer.best_step}.get(str(which), which)
    if str(chosen) not in map(str, steps):
        raise CheckpointError(
            f"{run} has no checkpoint {which!r}: choose latest, best or one of {', '.join(map(str, steps))}."
        )
    specs, _ = read_structure(checkpointer.folder / str(chosen))
    seeds = next((spec.shape for spec in specs if spec.path == "eval_key"), ())
    num_seeds = seeds[0] if seeds else None
    agent = [spec for spec in specs if spec.path.startswith((_PARAMS, _STATISTICS))]
    if not any(spec.path.startswith(_PARAMS) for spec in agent):
        entries = ", ".join(dict.fromkeys(spec.path.partition("/")[0] for spec in specs))
        raise ValueError(
            f"{run} is no run of one agent: its checkpoint has {entries}. Begin from a run of ppo, a2c, sac, td3, dqn, "
            "ec/openes or the like."
        )
    return {spec.path: spec for spec in _of_one_seed(agent, num_seeds)}, num_seeds


def _of_one_seed(specs: Sequence[LeafSpec], num_seeds: int | None) -> list[LeafSpec]:
    if num_seeds is None:
        return list(specs)
    return [dataclasses.replace(spec, shape=spec.shape[1:]) for spec in specs]


def _check_seeds(execution: Execution, there: int | None, run: Path | str) -> None:
    if there not in (None, execution.num_seeds):
        raise ValueError(
            f"{run} has {there} seeds, and this run has {execution.num_seeds or 1}: give num_seeds={there}, or begin "
            "from a run of one seed, which serves any number."
        )


def _by_part(leaves: Leaves) -> dict[str, Leaves]:
    """Parameters by the name of the part and the path within it; some parts have a level ``params`` above all."""
    parts: dict[str, Leaves] = {}
    for path, spec in _under(leaves, _PARAMS).items():
        name, _, within = path.partition("/")
        parts.setdefault(name, {})[within.removeprefix("params/")] = spec
    return parts


def _under(leaves: Leaves, prefix: str) -> Leaves:
    return {path.removeprefix(prefix): spec for path, spec in leaves.items() if path.startswith(prefix)}


def _parts_to_take(
    here: Mapping[str, Leaves], there: Mapping[str, Leaves], wanted: Sequence[str] | None, run: Path | str
) -> tuple[list[str], dict[str, str]]:
    """Which parts are taken, and which target networks are copies of them, as the other run has none.

    Raises:
        ValueError: one that is wanted is not in both, or none is.
    """
    for name in wanted or ():
        for where, parts in ((str(run), there), ("this run's agent", here)):
            if name not in parts:
                raise ValueError(f"init_from.parts: {no_such(f'part in {where}', name, parts)}")
    taken = [name for name in here if name in there and (wanted is None or name in wanted)]
    if not taken:
        raise ValueError(
            f"{run} has {', '.join(there)}, and this run's agent has {', '.join(here) or 'no parameters'}: there is no "
            "part that both have."
        )
    copies = {}
    for name in list(taken):
        target = _TARGETS.get(name, f"target_{name}")
        if target in here and target not in taken:
            if target in there:
                taken.append(target)
            else:
                copies[target] = name
    return taken, copies


def _compare(part: str, there: Leaves, here: Leaves, taken: Sequence[str], run: Path | str) -> None:
    """Refuse a part whose arrays are not those of this run."""
    for path in dict.fromkeys([*there, *here]):
        if path.rpartition("/")[2] == _SPREAD and not (path in there and path in here):
            continue
        name = f"{part}/{path}" if path else part
        if path in there and path in here and str(there[path]) == str(here[path]):
            continue
        if path in there and path in here:
            what = f"{name} is {there[path]} in {run} and {here[path]} here"
        else:
            leaves, only = (there, str(run)) if path in there else (here, "this run")
            what = f"{name} ({leaves[path]}) is in {only} only"
        others = [other for other in taken if other.removeprefix("target_") != part.removeprefix("target_")]
        without = f"Leave it out by init_from.parts=[{', '.join(others)}], or give" if others else "Give"
        raise ValueError(
            f"init_from: {what}. {without} this run an environment of the same spaces and the same network."
        )


def _statistics(here: Leaves, there: Leaves, run: Path | str) -> tuple[bool, tuple[str, ...]]:
    """Whether statistics of observations are taken, and what is to be said of it.

    Raises:
        ValueError: they cannot be, and the parameters were learned with them.
    """
    if there and not here:
        raise ValueError(
            f"The networks of {run} read normalised observations, and those of this run would not: give "
            "agent.normalize_obs=true."
        )
    if here and not there:
        remark = (
            "That run did not normalise observations, and this one does: its networks read other numbers than they "
            "learned from. agent.normalize_obs=false keeps them as they were."
        )
        return False, (remark,)
    if there:
        _compare(STATISTICS, there, here, (), run)
    return bool(there), ()


def _read(
    checkpointer: RunCheckpointer, which: str | int, specs: Sequence[LeafSpec], num_seeds: int | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of these leaves by path, and what the checkpoint says of the run."""
    template: dict[str, Any] = {}
    seeds = () if num_seeds is None else (num_seeds,)
    for spec in specs:
        node = template
        *above, name = spec.path.split("/")
        for step in above:
            node = node.setdefault(step, {})
        node[name] = jax.ShapeDtypeStruct((*seeds, *spec.shape), spec.dtype)
    restored, progress = checkpointer.restore(template, which, partial=True)
    leaves = jax.tree_util.tree_leaves_with_path(restored)
    arrays = {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
    return arrays, progress


def _told(
    run: Path | str,
    progress: Mapping[str, Any],
    taken: Mapping[str, Leaves],
    copies: Mapping[str, str],
    with_statistics: bool,
) -> str:
    sizes = {name: sum(math.prod(spec.shape) for spec in leaves.values()) for name, leaves in taken.items()}
    shown = [f"{name} ({size:,} numbers)" for name, size in sizes.items()]
    shown += [f"{copy} (a copy of {name})" for copy, name in copies.items()]
    shown += [STATISTICS] if with_statistics else []
    return f"Begins from {run}, checkpoint of {progress['timesteps']:,} steps: {', '.join(shown)}."


def _left(
    here: Mapping[str, Leaves], there: Mapping[str, Leaves], taken: Sequence[str], copies: Mapping[str, str]
) -> str:
    fresh = [name for name in here if name not in taken and name not in copies]
    unused = [name for name in there if name not in taken]
    not_taken = f" Not taken: {', '.join(unused)}." if unused else ""
    fresh += ["optimizers", "environments", "counters"]
    return f"Fresh are {', '.join(fresh)}, and replay where there is any.{not_taken}"

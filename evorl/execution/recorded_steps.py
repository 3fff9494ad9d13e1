"""Loads recorded transitions into the replay buffer of an off-policy workflow, and saves the buffer's contents."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from evorl.envs.space import Box, Discrete, Space
from evorl.envs.vector import VectorEnv
from evorl.envs.wrapped_row import WrappedRow
from evorl.execution.programs import on_mesh, over_seeds
from evorl.ops import processes
from evorl.ops.collectives import local_indices
from evorl.ops.trees import leaf_name, shape_and_dtype
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.slots import SlotReplayBuffer, SlotReplayState
from evorl.runs.minari_data import minari_columns, minari_conversion, minari_facts, open_minari_dataset
from evorl.runs.replay_file import (
    COLUMNS,
    ReplayFileError,
    find_replay_file,
    read_columns,
    read_replay_facts,
    write_replay_file,
)
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State

OffPolicyWorkflow: TypeAlias = Any  # avoids a circular import
S = TypeVar("S", bound=State)
MAX_AT_ONCE = 65_536  # maximum number of transitions per call of the program that stores them
_ROUNDING = 1e-5  # recorded actions may exceed their bounds by this much, for rounding errors


def check_recorded_steps(workflow: OffPolicyWorkflow) -> None:
    """Raise ``ReplayFileError`` if the transitions of ``replay.load``, if any, cannot be read or do not fit."""
    replay = getattr(workflow, "replay", None)
    if replay is None or replay.load is None:
        return
    named = replay.load
    dataset = open_minari_dataset(named.removeprefix("minari:")) if named.startswith("minari:") else None
    facts = read_replay_facts(find_replay_file(named)) if dataset is None else minari_facts(dataset)
    title, num_steps = workflow.env.title, facts["num_steps"]
    if not replay.other_env and None not in (title, facts["env"]) and facts["env"] != title:
        raise ReplayFileError(
            f"{named} was recorded in {facts['env']}, but this run's environment is {title}: train in {facts['env']}, "
            "or set replay.other_env=true if the two are compatible."
        )
    if num_steps > workflow.replay_capacity:
        raise ReplayFileError(
            f"{named} has {num_steps:,} transitions, more than replay_capacity={workflow.replay_capacity:,}: set "
            f"replay_capacity={num_steps} or more."
        )
    options = WrappedRow(workflow.env).reward_options
    if not replay.other_env and (recorded := facts.get("reward_options", options)) != options:
        raise ReplayFileError(
            f"the rewards in {named} have the options {recorded} of env, but this run has {options}: set the same."
        )
    is_complete = workflow.offline or replay.mixed  # no transitions are added to the recorded ones
    steps = max(workflow.n_step, getattr(workflow.replay_buffer, "length", 1) if is_complete else 1)
    num_envs = workflow.num_stored_envs
    if num_steps < steps * num_envs:
        raise ReplayFileError(
            f"{named} has {num_steps:,} transitions, but each of {num_envs=} environments needs {steps:,} consecutive "
            f"ones: use a recording with at least {steps * num_envs:,}, or a smaller num_envs."
        )
    if dataset is not None:
        minari_conversion(dataset, workflow.env.action_space)
        _learned_rewards(WrappedRow(workflow.env), np.zeros(1, np.float32), named)
    if "columns" in facts:
        columns = {
            name: shape_and_dtype((num_steps, *column["shape"]), np.dtype(column["dtype"]))
            for name, column in facts["columns"].items()
        }
        _check_columns(_stored_spec(workflow), columns, named)


def with_recorded_steps(workflow: Any, state: S) -> S:
    """Return an initial state, which is donated, with the transitions of ``replay.load``, if any, added.

    They are added to the replay buffer (with ``replay.mixed``, to ``recorded_state`` instead), the reward scale and the
    observation statistics. Each environment gets one contiguous piece, so that only episodes at the boundaries are cut.
    If their number is not a multiple of the number of environments, the surplus at the start is dropped.
    ``workflow`` is off-policy, or trains copies of an off-policy workflow ``inner``; each copy gets these transitions.

    Raises:
        ReplayFileError: the transitions cannot be read, or do not fit the workflow or its replay buffer.
    """
    learner = getattr(workflow, "inner", workflow)
    if not hasattr(learner, "replay") or learner.replay.load is None:
        return state
    check_recorded_steps(learner)
    named, spec = learner.replay.load, _stored_spec(learner)
    if named.startswith("minari:"):
        columns = minari_columns(open_minari_dataset(named.removeprefix("minari:")), learner.env.action_space)
        columns = _wrap_steps(learner.env, columns, named)
    else:
        path = find_replay_file(named)
        columns = read_columns(path, read_replay_facts(path))
    _check_columns(spec, columns, named)
    _check_choices(learner.env.action_space, columns["actions"], named)
    stored = _converted(spec, {**columns, "dones": columns["termination"] | columns["truncation"]}, named)
    others = {name: leaf for name, leaf in stored.extras.items() if name != "termination"}
    extras = PyTreeDict(env_extras=PyTreeDict(termination=stored.extras.termination), **others)
    num_envs = learner.num_stored_envs
    num_rows = len(columns["rewards"]) // num_envs
    rows = jax.tree.map(lambda x: _time_major(x, num_rows, num_envs), stored.replace(extras=extras))
    rows.dones[-1] = True  # the step after the last one of an environment's piece is not stored
    _check_slots(learner, rows.dones, named)
    at_once = max(1, MAX_AT_ONCE // num_envs)
    for start in range(0, num_rows, at_once):
        state = _store(workflow, state, jax.tree.map(lambda x, i=start: x[i : i + at_once], rows))
    if not learner.replay.mixed:
        return state
    return state.replace(replay_state=state.recorded_state, recorded_state=state.replay_state)  # the empty buffer


@functools.partial(jax.jit, donate_argnames="state")
def _store(workflow: Any, state: State, rows: SampleBatch) -> State:
    """Add ``rows`` ``[T, B, ...]`` to the state of every seed; each device stores its environments' part."""

    def store(workflow: Any, state: State, rows: SampleBatch) -> tuple[PyTreeDict, State]:
        num_envs = rows.dones.shape[1]
        shard = rows if num_envs == 1 else jax.tree.map(lambda x: x[:, local_indices(num_envs)], rows)

        def one_seed(state: State) -> tuple[PyTreeDict, State]:
            return PyTreeDict(), workflow.take_in(state, shard)

        return over_seeds(workflow.execution, one_seed, state, returns_state=True)

    return on_mesh(workflow, store, returns_state=True)(workflow, state, rows)[1]


def save_recorded_steps(workflow: OffPolicyWorkflow, state: State, path: Path) -> dict[str, Any]:
    """Write a replay buffer's contents to ``<path>.npz``, their description to ``<path>.json``; return the description.

    Transitions are ordered by seed, then by environment (or slot), then by time. The last transition of an environment
    (or slot) that does not end an episode becomes a truncation.

    Raises:
        ReplayFileError: the replay buffer is empty, or its rewards contain the bonuses of ``intrinsic``.
        RunFolderError: the files cannot be written.
    """
    if workflow.intrinsic is not None:
        raise ReplayFileError(
            f"{path} was not written, because the stored rewards contain the bonuses of intrinsic: train with "
            "intrinsic=null to record them."
        )
    replay: ReplayState = processes.on_host(state.replay_state)
    if not np.asarray(replay.size).any():
        raise ReplayFileError(f"{path} was not written, because the replay buffer is still empty: train for longer.")
    num_seeds = workflow.execution.num_seeds
    columns: dict[str, list[np.ndarray]] = {}
    for seed in range(num_seeds or 1):
        seed_replay = replay if num_seeds is None else jax.tree.map(lambda x, i=seed: x[i], replay)
        rows, envs = _stored_indices(seed_replay)
        data = jax.tree.map(lambda x, at=(rows, envs): np.asarray(x)[at], seed_replay.data)
        data.dones[np.append(envs[1:] != envs[:-1], True)] = True  # the last stored step of an environment
        for name, leaf in _named_leaves(data):
            columns.setdefault(name, []).append(leaf)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    joined["truncation"] = joined.pop("dones") & ~joined["termination"]
    return write_replay_file(path, joined, workflow.env.title, WrappedRow(workflow.env).reward_options)


def _stored_indices(replay: ReplayState) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and environments (or slots) of all stored steps, ``[N]``, ordered by environment, then by time."""
    num_rows, num_envs = jax.tree.leaves(replay.data)[0].shape[:2]
    size: Any = np.asarray(replay.size)
    if isinstance(replay, SlotReplayState):
        row, env = np.meshgrid(np.arange(num_rows), np.arange(num_envs))
        is_stored = row < size[0][:, None]
        return row[is_stored], env[is_stored]
    order = (np.asarray(replay.cursor) - size + np.arange(size)) % num_rows
    return np.tile(order, num_envs), np.repeat(np.arange(num_envs), size)


def _check_slots(workflow: OffPolicyWorkflow, dones: np.ndarray, named: str) -> None:
    """Raise ``ReplayFileError`` if an environment has too few slots for its episodes, ended by ``dones`` ``[R, B]``."""
    buffer = workflow.replay_buffer
    if not isinstance(buffer, SlotReplayBuffer):
        return
    steps = buffer.episode_steps
    needed = max(
        int(np.ceil(np.diff(np.flatnonzero(of_env), prepend=-1) / steps).sum()) for of_env in dones.astype(bool).T
    )
    if needed > buffer.slots_per_env:
        raise ReplayFileError(
            f"{named} needs up to {needed:,} slots of {steps:,} steps per environment (num_envs={buffer.num_envs:,}), "
            f"but replay.overwrite=random with replay_capacity={workflow.replay_capacity:,} has only "
            f"{buffer.slots_per_env:,}: set replay_capacity={needed * steps * buffer.num_envs} or more."
        )


def _wrap_steps(env: VectorEnv, columns: dict[str, np.ndarray], named: str) -> dict[str, np.ndarray]:
    """Return ``columns`` with rewards and observations passed through the wrappers of ``env``.

    Raises:
        ReplayFileError: the columns do not match the environment's observations, or its rewards are sums.
    """
    row = WrappedRow(env)
    columns = columns | {"rewards": _learned_rewards(row, columns["rewards"], named)}
    if not row.changes_observations:
        return columns
    spec = SampleBatch(obs=row.obs_space.spec, next_obs=row.obs_space.spec)
    _check_columns(spec, columns, named)
    recorded = _converted(spec, columns, named)
    starts = np.append(True, columns["termination"] | columns["truncation"])[:-1]
    obs, next_obs = jax.device_get(row.seen_steps(recorded.obs, recorded.next_obs, starts))
    others = {name: x for name, x in columns.items() if name in COLUMNS}
    return others | dict(_named_leaves(SampleBatch(obs=obs, next_obs=next_obs)))


def _learned_rewards(row: WrappedRow, rewards: np.ndarray, named: str) -> np.ndarray:
    try:
        return np.asarray(row.learned_rewards(rewards))
    except ValueError as error:
        raise ReplayFileError(f"{named}: {error}") from error


def _stored_spec(workflow: OffPolicyWorkflow) -> SampleBatch:
    """Return shapes and dtypes of one transition in the workflow's replay buffer."""
    data = jax.eval_shape(workflow.setup, jax.random.key(0)).replay_state.data
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), data)


def _named_leaves(stored: SampleBatch) -> list[tuple[str, Any]]:
    """Return ``(column name, leaf)`` of each leaf of stored transitions; raise ``ReplayFileError`` for equal names."""
    leaves = jax.tree.leaves_with_path(stored)
    names = [leaf_name(path).removeprefix("extras.") for path, _ in leaves]
    for name, count in Counter(names).items():
        if count > 1:
            raise ReplayFileError(
                f"{count} arrays of a step would share the column {name!r}: an entry of a dict observation with a dot "
                "in its name conflicts with a nested entry. Rename one of them."
            )
    return [(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]


def _check_columns(spec: SampleBatch, columns: Mapping[str, Any], named: str) -> None:
    """Raise ``ReplayFileError`` if a column except ``dones`` is missing, or has the wrong shape or kind of number."""
    for name, leaf in _named_leaves(spec):
        if name == "dones":  # derived from termination and truncation
            continue
        if name not in columns:
            raise ReplayFileError(f"{named} has no column {name!r} (it has {', '.join(columns)}): use another file.")
        column = columns[name]
        if column.shape[1:] != leaf.shape or (column.dtype.kind in "iub") != (leaf.dtype.kind in "iub"):
            raise ReplayFileError(
                f"{name} in {named} is {column.dtype}{list(column.shape[1:])} per step, but this environment needs "
                f"{leaf.dtype}{list(leaf.shape)}: choose a file that was recorded in this environment."
            )


def _check_choices(space: Space, actions: np.ndarray, named: str) -> None:
    """Raise ``ReplayFileError`` if a recorded action, of ``[N]`` or ``[N, A]``, is not in the agents' action space."""
    if not isinstance(space, Discrete | Box):
        return
    low, high = (0, space.n - 1) if isinstance(space, Discrete) else (space.low - _ROUNDING, space.high + _ROUNDING)
    if (is_invalid := (actions < low) | (actions > high)).any():
        at = np.unravel_index(np.argmax(is_invalid), is_invalid.shape)
        scaling = ", or scale the actions, so that -1 and 1 are the environment's bounds"
        raise ReplayFileError(
            f"an action in row {at[0]} of {named} is {actions[at]}, but agents act in {space}: choose a file that was "
            f"recorded in this environment{'' if isinstance(space, Discrete) else scaling}."
        )


def _converted(spec: SampleBatch, columns: Mapping[str, np.ndarray], named: str) -> SampleBatch:
    """Return columns ``[N, ...]`` in the form of ``spec``; raise ``ReplayFileError`` if a dtype cannot store them."""
    leaves = []
    for name, leaf in _named_leaves(spec):
        column = columns[name]
        with np.errstate(over="ignore", invalid="ignore"):
            leaves.append(column.astype(leaf.dtype))
        is_lost = leaves[-1] != column if leaf.dtype.kind in "iub" else ~np.isfinite(leaves[-1])
        if is_lost.any():
            at = np.unravel_index(np.argmax(is_lost), is_lost.shape)
            raise ReplayFileError(
                f"{name} in row {at[0]} of {named} is {column[at]}, which cannot be stored in the environment's "
                f"{leaf.dtype}: scale the recorded numbers, or choose a file that was recorded in this environment."
            )
    return jax.tree.unflatten(jax.tree.structure(spec), leaves)


def _time_major(column: np.ndarray, num_rows: int, num_envs: int) -> np.ndarray:
    """Return the last ``R * B`` entries of ``[N, ...]`` as ``[R, B, ...]``: R consecutive ones for each environment."""
    pieces = column[len(column) - num_rows * num_envs :].reshape(num_envs, num_rows, *column.shape[1:])
    return np.ascontiguousarray(np.swapaxes(pieces, 0, 1))

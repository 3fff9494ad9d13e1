"""Detects non-finite rewards and observations of environments: the program finds them, the host reports them.

Such values make losses NaN and corrupt the running observation statistics for the rest of the run. Environments are
checked before losses, so that a fault in an environment is not attributed to the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.vector import env_title
from evorl.evaluators.episodes import NO_FAULT, EpisodeOutcomes
from evorl.execution.session import TrainingDiverged
from evorl.ops import collectives, processes
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State

ENV_FAULTS = "env_faults"  # metric of a program; ``without_env_faults`` removes it
_KINDS = ("rewards", "observations", "observations")  # observations before a step, and after a step
_NONE = NO_FAULT


def watched_step(workflow: Any, state: State) -> tuple[PyTreeDict, State]:
    """Run one iteration of one seed, ``pure_step``, with ``ENV_FAULTS`` added to its metrics.

    The entry is missing if ``env_faults`` returns ``None``, for workflows that override ``pure_step`` without defining
    ``watched_step``, and for simulators on the host, which are checked on the host.
    """
    custom_step = getattr(workflow, "watched_step", None)
    if custom_step is not None:
        return custom_step(state)
    if type(workflow).pure_step.__qualname__ != "Workflow.pure_step" or workflow.env.steps_on_host:
        return workflow.pure_step(state)
    experience, state = workflow.collect(state)
    faults = env_faults(experience)
    metrics, state = workflow.pure_step(state, experience)
    return metrics if faults is None else PyTreeDict(metrics | {ENV_FAULTS: faults}), state


def env_faults(experience: Any) -> jax.Array | None:
    """Return the first step at which an environment returned non-finite values after finite actions.

    Args:
        experience: data collected by a workflow. The episodes of a generation have a fault only if none of them has a
            finite return and finite values, because some individuals may break their simulation.

    Returns:
        int32 ``[3]``: the step in the rollout or episode from 0 (``NO_FAULT`` without a fault), the index of
        the environment or episode, and the index in ``_KINDS``; ``[P, 3]`` for the members of a population; ``None`` if
        the experience is neither a rollout ``[T, B, ...]`` nor contains watched episodes.
    """
    if isinstance(experience, EpisodeOutcomes):
        return None if experience.faults is None else _fault_of_generation(experience.returns, experience.faults)
    if not isinstance(experience, SampleBatch):
        return None
    if isinstance(experience.extras, Mapping) and ENV_FAULTS in experience.extras:  # already detected by the members
        return experience.extras[ENV_FAULTS]
    if getattr(experience.dones, "ndim", None) != 2:
        return None
    shape = experience.dones.shape
    # A non-finite action comes from a diverged policy: the environment is not at fault for what follows.
    first_action = _first_bad(experience.actions, shape)
    rewards, obs, next_obs = (_first_bad(getattr(experience, x), shape) for x in ("rewards", "obs", "next_obs"))
    firsts = [
        jnp.where(rewards < first_action, rewards, _NONE),
        jnp.where(obs <= first_action, obs, _NONE),  # observed before the action of the same step
        jnp.where(next_obs < first_action, next_obs, _NONE),
    ]
    steps = collectives.gather_rows(jnp.stack(firsts, axis=1))  # [B, 3], with the environments of all devices
    index = jnp.argmin(steps)
    return jnp.stack([steps.ravel()[index], index // len(_KINDS), index % len(_KINDS)]).astype(jnp.int32)


def _fault_of_generation(returns: jax.Array, faults: jax.Array) -> jax.Array:
    """Return the first fault ``[3]`` of a generation's episodes; no fault if any episode is finite throughout."""
    rows = faults.reshape(-1, faults.shape[-1])
    at = jnp.argmin(rows[:, 0])
    is_sound = jnp.isfinite(returns) & (faults[..., 0] == _NONE)
    step = jnp.where(is_sound.any(), _NONE, rows[at, 0])
    return jnp.stack([step, at, rows[at, 1]]).astype(jnp.int32)


def drop_later_faults(faults: Any, metrics: Mapping[str, Any], optional: Collection[str]) -> Any:
    """Return ``faults`` with ``NO_FAULT`` for those after a divergence, which result from invalid actions.

    Args:
        faults: faults of consecutive iterations, ``[N, ..., 3]``, see ``env_faults``; a JAX or NumPy array.
        metrics: metrics of the same iterations by name, ``[N, ...]``; a non-finite metric indicates a divergence.
        optional: names of metrics that may be NaN because they have no value yet.
    """
    rows = faults.shape[:2] if faults.ndim > 2 else (len(faults), 1)
    diverged = jnp.zeros(rows, jnp.bool_)
    for name, values in metrics.items():
        is_number = name not in optional and jnp.issubdtype(getattr(values, "dtype", jnp.bool_), jnp.floating)
        if is_number and values.size % math.prod(rows) == 0:
            diverged |= ~jnp.isfinite(jnp.reshape(values, (*rows, -1))).all(axis=-1)
    before = jnp.cumsum(diverged, axis=0) - diverged > 0  # diverged in an earlier iteration
    before = before.reshape(*before.shape, *[1] * (faults.ndim - 2)) if faults.ndim > 2 else before
    return jnp.where(before, jnp.asarray([_NONE, 0, 0], jnp.int32), faults)


def first_fault(faults: jax.Array, steps_per_iteration: int) -> jax.Array:
    """Return the first of the ``faults`` ``[N, ..., 3]`` of N iterations; its step counts from the first iteration."""
    at = jnp.argmax(faults[..., 0] != _NONE, axis=0)
    first = jnp.take_along_axis(faults, at[None, ..., None], axis=0)[0]
    step = first[..., 0]
    return first.at[..., 0].set(jnp.where(step == _NONE, _NONE, step + at * steps_per_iteration).astype(jnp.int32))


def _first_bad(tree: Any, shape: tuple[int, int]) -> jax.Array:
    """Return the first step with a non-finite value in each environment, ``[B]``; ``_NONE`` for only finite values."""
    is_bad = jnp.zeros(shape, jnp.bool_)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape[:2] == shape:
            is_bad |= ~jnp.isfinite(leaf).all(axis=tuple(range(2, leaf.ndim)))
    return jnp.where(is_bad.any(axis=0), jnp.argmax(is_bad, axis=0), _NONE).astype(jnp.int32)


class KeyedMessages:
    """Forwards messages without a key, and the first message with each key."""

    def __init__(self, message: Callable[[str], None]) -> None:
        self._message = message
        self._keys: set[str] = set()

    def __call__(self, text: str, key: str | None = None) -> None:
        if key is None or key not in self._keys:
            self._message(text)
        self._keys |= set() if key is None else {key}


def without_env_faults(
    workflow: Any,
    metrics: Mapping[str, Any],
    state: State,
    num_iterations: int,
    message: Callable[..., None] = lambda *_: None,
) -> tuple[PyTreeDict, State]:
    """Report environment faults; return the metrics without the entry ``ENV_FAULTS``, and the state.

    Args:
        workflow: workflow that owns the environments.
        metrics: metrics of a program by name, ``[N, ...]``.
        state: state after these iterations.
        num_iterations: number of valid rows, at most N.
        message: called with a text and a key, see ``KeyedMessages``, if a member of a population or an independent run
            has a fault and the others continue.

    Raises:
        TrainingDiverged: an environment returned non-finite values (in a population, an environment of every member),
            unless runs are independent; the message states the environment and the step.
    """
    remaining = PyTreeDict({name: value for name, value in metrics.items() if name != ENV_FAULTS})
    if ENV_FAULTS not in metrics:
        return remaining, state
    num_seeds = workflow.execution.num_seeds or 1
    faults = np.asarray(processes.on_host(metrics[ENV_FAULTS]))[:num_iterations]
    faults = faults.reshape(num_iterations, num_seeds, -1, 3)  # [N, S, P, 3]
    if (faults[..., 0] == _NONE).all():
        return remaining, state  # the usual case: no other metric is transferred
    numbers = {name: processes.on_host(x)[:num_iterations] for name, x in remaining.items() if name != "episodes"}
    faults = np.asarray(drop_later_faults(faults, numbers, workflow.optional_metrics))
    is_bad = faults[..., 0] != _NONE
    first = int(state.iterations) - num_iterations + 1
    rows = np.argmax(is_bad, axis=0)  # the first of each, [S, P]
    for seed, member in sorted(np.argwhere(is_bad.any(axis=0)).tolist(), key=lambda at: rows[*at]):
        row = int(rows[seed, member])
        text = _describe_fault(workflow, faults[row], seed, member, first + row)
        if not workflow.rows_stand_alone and is_bad[:, seed].all(axis=-1).any():
            raise TrainingDiverged(text)
        message(f"{text} The other members or runs continue.", f"environment of {seed}, {member}")
    return remaining, state


def _describe_fault(workflow: Any, faults: np.ndarray, seed: int, member: int, iteration: int) -> str:
    """Return the message for one of the faults ``[S, P, 3]`` of an iteration."""
    num_seeds, num_members = faults.shape[:2]
    step, number, kind = faults[seed, member].tolist()
    per_env = workflow.timesteps_per_iteration // (workflow.env.num_envs * num_members)
    part = "this environment" if num_members > 1 or workflow.rows_stand_alone else "the run"
    number_of_step = (iteration - 1) * per_env + step + 1
    moment = f"step {number_of_step:,} of {part}" if per_env else f"step {step + 1:,} of an episode"
    who = f"{number} of member {member}" if num_members > 1 else str(number)
    if workflow.rows_stand_alone:
        who += f" of {workflow.describe_row(seed)}"
    elif num_seeds > 1:
        who += f" of seed {seed}"
    generation = "" if per_env else ", in which every episode has such values"
    return _described(workflow.env, who, kind, f"{moment}, in iteration {iteration:,}{generation}")


def refuse_faulty_rollout(env: Any, experience: SampleBatch) -> None:
    """Raise ``HostEnvError`` for non-finite values of a JAX environment in an actor's rollout ``[T, B, ...]``."""
    faults = None if env.steps_on_host else env_faults(experience)
    if faults is None or int(faults[0]) == _NONE:
        return
    step, number, kind = np.asarray(faults).tolist()
    raise HostEnvError(_described(env, str(number), kind, f"step {step + 1:,} of a rollout"))


def _described(env: Any, number: str, kind: int, moment: str) -> str:
    """Return the message for non-finite values; ``kind`` is an index in ``_KINDS``, ``moment`` names the step."""
    return (
        f"environment {number} of {env_title(env)} returned {_KINDS[kind]} that are not finite (NaN or infinite) at "
        f"{moment}: fix the environment (evorl check-env tests your own), or replace such values with a wrapper."
    )

"""Detects rewards and observations of a rollout that are not finite: checked in the program, reported on the host.

Such numbers make losses NaN, and running statistics of observations for the rest of the run. Environments are checked
before losses, so that a fault of an environment is not blamed on the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import load
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.vector import env_title
from evorl.evaluators.episodes import NO_FAULT, EpisodeOutcomes
from evorl.ops import collectives, processes
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State

ENV_FAULTS = "env_faults"  # an entry of the metrics of a program, which never leaves ``Workflow.iterate``
_KINDS = ("rewards", "observations", "observations")  # before a step, and after it
_NONE = NO_FAULT


def watched_step(workflow: Any, state: State) -> tuple[PyTreeDict, State]:
    """Run one iteration of one seed, ``pure_step``, with ``ENV_FAULTS`` among its metrics.

    The entry is missing for workflows with a ``pure_step`` of their own, unless they have a ``watched_step`` too, and
    for simulators on the host, whose answers are checked there.
    """
    step_of_its_own = getattr(workflow, "watched_step", None)
    if step_of_its_own is not None:
        return step_of_its_own(state)
    if type(workflow).pure_step.__qualname__ != "Workflow.pure_step" or workflow.env.steps_on_host:
        return workflow.pure_step(state)
    experience, state = workflow.collect(state)
    faults = env_faults(experience)
    metrics, state = workflow.learn_once(state, experience)
    return metrics if faults is None else PyTreeDict(metrics | {ENV_FAULTS: faults}), state


def env_faults(experience: Any) -> jax.Array | None:
    """Find the first step at which an environment gave numbers that are not finite.

    Args:
        experience: what a workflow collected. A generation has no fault while any of its episodes has a finite return
            and finite numbers, as one individual of many may break its simulation.

    Returns:
        int32 ``[3]``: the step in the rollout or episode from 0 on (``NO_FAULT`` where all is finite), the number of
        the environment or episode, and which of ``_KINDS``; ``[P, 3]`` for the members of a population; ``None`` where
        the experience is neither a rollout ``[T, B, ...]`` nor has it watched episodes.
    """
    if isinstance(experience, EpisodeOutcomes):
        return None if experience.faults is None else _fault_of_generation(experience.returns, experience.faults)
    if not isinstance(experience, SampleBatch):
        return None
    if isinstance(experience.extras, Mapping) and ENV_FAULTS in experience.extras:  # of members, found by each of them
        return experience.extras[ENV_FAULTS]
    if getattr(experience.dones, "ndim", None) != 2:
        return None
    shape = experience.dones.shape
    # An action that is not finite, of a policy that diverged, is no fault of the environment, nor is what follows it.
    first_action = _first_bad(experience.actions, shape)
    rewards, obs, next_obs = (
        _first_bad(part, shape) for part in (experience.rewards, experience.obs, experience.next_obs)
    )
    firsts = [
        jnp.where(rewards < first_action, rewards, _NONE),
        jnp.where(obs <= first_action, obs, _NONE),  # seen before the action of the same step
        jnp.where(next_obs < first_action, next_obs, _NONE),
    ]
    # [B, 3] with the environments of all devices.
    steps = collectives.gather_rows(jnp.stack(firsts, axis=1))
    at = jnp.argmin(steps)
    return jnp.stack([steps.ravel()[at], at // len(_KINDS), at % len(_KINDS)]).astype(jnp.int32)


def _fault_of_generation(returns: jax.Array, faults: jax.Array) -> jax.Array:
    """Return the first fault ``[3]`` of the episodes of a generation, none while any of them is sound."""
    rows = faults.reshape(-1, faults.shape[-1])
    at = jnp.argmin(rows[:, 0])
    is_sound = jnp.isfinite(returns) & (faults[..., 0] == _NONE)
    step = jnp.where(is_sound.any(), _NONE, rows[at, 0])
    return jnp.stack([step, at, rows[at, 1]]).astype(jnp.int32)


def first_fault(faults: jax.Array, steps_per_iteration: int) -> jax.Array:
    """Return the first of the faults ``[N, ..., 3]`` of consecutive iterations, ``[..., 3]``.

    Args:
        faults: see ``env_faults``.
        steps_per_iteration: of one environment; the step is counted from the first iteration on.
    """
    at = jnp.argmax(faults[..., 0] != _NONE, axis=0)
    first = jnp.take_along_axis(faults, at[None, ..., None], axis=0)[0]
    step = first[..., 0]
    return first.at[..., 0].set(jnp.where(step == _NONE, _NONE, step + at * steps_per_iteration).astype(jnp.int32))


def _first_bad(tree: Any, shape: tuple[int, int]) -> jax.Array:
    """Return the first step of each environment ``[B]`` at which a number is not finite, or ``_NONE``."""
    is_bad = jnp.zeros(shape, jnp.bool_)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape[:2] == shape:
            is_bad |= ~jnp.isfinite(leaf).all(axis=tuple(range(2, leaf.ndim)))
    return jnp.where(is_bad.any(axis=0), jnp.argmax(is_bad, axis=0), _NONE).astype(jnp.int32)


class KeyedMessages:
    """Passes texts on to ``message``, of those with the same key the first only."""

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
    """Return the metrics ``[N, ...]`` of some iterations without their entry for faults, and the state after them.

    Args:
        workflow: whose environments these are.
        metrics: of a program.
        state: after these iterations.
        num_iterations: number of rows that count.
        message: called with the text and a key, see ``KeyedMessages``, where a fault is one member's of a population,
            or one row's of several that stand alone: the others go on.

    Raises:
        TrainingDiverged: an environment gave numbers that are not finite; the message says which one, and when. Of a
            population, all members have such an environment.
    """
    rest = PyTreeDict({name: value for name, value in metrics.items() if name != ENV_FAULTS})
    if ENV_FAULTS not in metrics:
        return rest, state
    num_seeds = workflow.execution.num_seeds or 1
    faults = np.asarray(processes.on_host(metrics[ENV_FAULTS]))[:num_iterations]
    faults = faults.reshape(num_iterations, num_seeds, -1, 3)  # [N, S, P, 3]
    is_bad = faults[..., 0] != _NONE
    first = int(state.iterations) - num_iterations + 1
    rows = np.argmax(is_bad, axis=0)  # the first of each, [S, P]
    for seed, member in sorted(np.argwhere(is_bad.any(axis=0)).tolist(), key=lambda at: rows[*at]):
        row = int(rows[seed, member])
        text = _describe_fault(workflow, faults[row], seed, member, first + row)
        if not workflow.rows_stand_alone and is_bad[:, seed].all(axis=-1).any():
            raise load("evorl.execution.learning:TrainingDiverged")(text)
        message(f"{text} The others go on.", f"environment of {seed}, {member}")
    return rest, state


def _describe_fault(workflow: Any, faults: np.ndarray, seed: int, member: int, iteration: int) -> str:
    """Return the message for a fault among those ``[S, P, 3]`` of an iteration."""
    num_seeds, num_members = faults.shape[:2]
    step, number, kind = faults[seed, member].tolist()
    per_env = workflow.timesteps_per_iteration // (workflow.env.num_envs * num_members)
    moment = f"step {(iteration - 1) * per_env + step + 1:,} of it" if per_env else f"step {step + 1:,} of an episode"
    who = f"{number} of member {member}" if num_members > 1 else str(number)
    if workflow.rows_stand_alone:
        who += f" of {workflow.describe_row(seed)}"
    elif num_seeds > 1:
        who += f" of seed {seed}"
    generation = "" if per_env else ", in which no episode is free of such numbers"
    return _described(workflow.env, who, kind, f"{moment}, in iteration {iteration:,}{generation}")


def refuse_faulty_rollout(env: Any, experience: SampleBatch) -> None:
    """Raise ``HostEnvError`` where environments of one rollout, on the host, gave numbers that are not finite."""
    faults = None if env.steps_on_host else env_faults(experience)
    if faults is None or int(faults[0]) == _NONE:
        return
    step, number, kind = np.asarray(faults).tolist()
    raise HostEnvError(_described(env, str(number), kind, f"step {step + 1:,} of a rollout"))


def _described(env: Any, number: str, kind: int, moment: str) -> str:
    """Return the message for numbers that are not finite."""
    return (
        f"environment {number} of {env_title(env)} gave {_KINDS[kind]} that are not finite (NaN or infinite) at "
        f"{moment}: mend the environment (evorl check-env plays random actions in it), or replace such numbers by a "
        "wrapper."
    )

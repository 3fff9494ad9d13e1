"""Detects non-finite rewards and observations in a rollout: checked in the program, reported on the host.

Such values make losses NaN, and corrupt the running observation statistics for the rest of the run. Environments are
checked before losses, so that an environment fault is not attributed to the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.vector import env_title
from evorl.execution.session import TrainingDiverged
from evorl.ops import collectives, processes
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State

ENV_FAULTS = "env_faults"  # metric of a program; ``Workflow.iterate`` removes it
_KINDS = ("rewards", "observations", "observations")  # before a step, and after it
_NONE = np.iinfo(np.int32).max


def watched_step(workflow: Any, state: State) -> tuple[PyTreeDict, State]:
    """Run one iteration of one seed, ``pure_step``, with ``ENV_FAULTS`` added to its metrics.

    The entry is missing for workflows that override ``pure_step``, and for simulators on the host, whose responses are
    checked there.
    """
    if type(workflow).pure_step.__qualname__ != "Workflow.pure_step" or workflow.env.steps_on_host:
        return workflow.pure_step(state)
    experience, state = workflow.collect(state)
    faults = env_faults(experience)
    metrics, state = workflow.learn_once(state, experience)
    return metrics if faults is None else PyTreeDict(metrics | {ENV_FAULTS: faults}), state


def env_faults(experience: Any) -> jax.Array | None:
    """Return the first step of a rollout at which an environment returned non-finite values.

    Args:
        experience: data collected by a workflow.

    Returns:
        int32 ``[3]``: the step in the rollout from 0 (the largest int32 if all values are finite), the index of the
        environment, and the index in ``_KINDS``; ``None`` if the experience is not a rollout ``[T, B, ...]``.
    """
    is_rollout = isinstance(experience, SampleBatch) and getattr(experience.dones, "ndim", None) == 2
    if not is_rollout:
        return None
    shape = experience.dones.shape
    # The environment is not at fault for a non-finite action, of a diverged policy, nor for anything after it.
    first_action = _first_bad(experience.actions, shape)
    rewards, obs, next_obs = (
        _first_bad(part, shape) for part in (experience.rewards, experience.obs, experience.next_obs)
    )
    firsts = [
        jnp.where(rewards < first_action, rewards, _NONE),
        jnp.where(obs <= first_action, obs, _NONE),  # observed before the action of the same step
        jnp.where(next_obs < first_action, next_obs, _NONE),
    ]
    # [B, 3], with the environments of all devices.
    steps = collectives.gather_rows(jnp.stack(firsts, axis=1))
    index = jnp.argmin(steps)
    return jnp.stack([steps.ravel()[index], index // len(_KINDS), index % len(_KINDS)]).astype(jnp.int32)


def _first_bad(tree: Any, shape: tuple[int, int]) -> jax.Array:
    """Return the first step with a non-finite value in each environment, ``[B]``, or ``_NONE``."""
    is_bad = jnp.zeros(shape, jnp.bool_)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape[:2] == shape:
            is_bad |= ~jnp.isfinite(leaf).all(axis=tuple(range(2, leaf.ndim)))
    return jnp.where(is_bad.any(axis=0), jnp.argmax(is_bad, axis=0), _NONE).astype(jnp.int32)


def without_env_faults(
    workflow: Any, metrics: Mapping[str, Any], state: State, num_iterations: int
) -> tuple[PyTreeDict, State]:
    """Remove the entry for environment faults from the metrics ``[N, ...]``; return them and the state.

    Args:
        workflow: workflow that owns the environments.
        metrics: metrics of a program.
        state: state after these iterations.
        num_iterations: number of valid rows.

    Raises:
        TrainingDiverged: an environment returned non-finite values; the message states the environment and the step.
    """
    remaining = PyTreeDict({name: value for name, value in metrics.items() if name != ENV_FAULTS})
    if ENV_FAULTS not in metrics:
        return remaining, state
    faults = np.asarray(processes.on_host(metrics[ENV_FAULTS]))[:num_iterations].reshape(num_iterations, -1, 3)
    rows, seeds = np.nonzero(faults[..., 0] != _NONE)
    if not len(rows):
        return remaining, state
    step, number, kind = faults[rows[0], seeds[0]].tolist()
    iteration = int(state.iterations) - num_iterations + int(rows[0]) + 1
    per_env = workflow.timesteps_per_iteration // workflow.env.num_envs
    step_text = (
        f"step {(iteration - 1) * per_env + step + 1:,} of the run" if per_env else f"step {step + 1:,} of a rollout"
    )
    seed = f" of seed {seeds[0]}" if faults.shape[1] > 1 else ""
    raise TrainingDiverged(
        _described(workflow.env, f"{number}{seed}", kind, f"{step_text}, in iteration {iteration:,}")
    )


def refuse_faulty_rollout(env: Any, experience: SampleBatch) -> None:
    """Raise ``HostEnvError`` if an environment returned non-finite values in a rollout, in an actor."""
    faults = None if env.steps_on_host else env_faults(experience)
    if faults is None or int(faults[0]) == _NONE:
        return
    step, number, kind = np.asarray(faults).tolist()
    raise HostEnvError(_described(env, str(number), kind, f"step {step + 1:,} of a rollout"))


def _described(env: Any, number: str, kind: int, moment: str) -> str:
    """Return the message for non-finite values."""
    return (
        f"environment {number} of {env_title(env)} gave {_KINDS[kind]} that are not finite (NaN or infinite) at "
        f"{moment}: fix the environment (evorl check-env runs random actions in it), or replace such values with a "
        "wrapper."
    )

"""Detects rewards and observations of a rollout that are not finite: checked in the program, reported on the host.

Such numbers make losses NaN, and running statistics of observations for the rest of the run. Environments are checked
before losses, so that a fault of an environment is not blamed on the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import load
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.vector import env_title
from evorl.ops import collectives, processes
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State

ENV_FAULTS = "env_faults"  # an entry of the metrics of a program, which never leaves ``Workflow.iterate``
_KINDS = ("rewards", "observations", "observations")  # before a step, and after it
_NONE = np.iinfo(np.int32).max


def watched_step(workflow: Any, state: State) -> tuple[PyTreeDict, State]:
    """Run one iteration of one seed, ``pure_step``, with ``ENV_FAULTS`` among its metrics.

    The entry is missing for workflows with a ``pure_step`` of their own, and for simulators on the host, whose answers
    are checked there.
    """
    if type(workflow).pure_step.__qualname__ != "Workflow.pure_step" or workflow.env.steps_on_host:
        return workflow.pure_step(state)
    experience, state = workflow.collect(state)
    faults = env_faults(experience)
    metrics, state = workflow.learn_once(state, experience)
    return metrics if faults is None else PyTreeDict(metrics | {ENV_FAULTS: faults}), state


def env_faults(experience: Any) -> jax.Array | None:
    """Find the first step of a rollout at which an environment gave numbers that are not finite.

    Args:
        experience: what a workflow collected.

    Returns:
        int32 ``[3]``: the step in the rollout from 0 on (the largest int32 where all is finite), the number of the
        environment, and which of ``_KINDS``; ``None`` where the experience is no rollout ``[T, B, ...]``.
    """
    is_rollout = isinstance(experience, SampleBatch) and getattr(experience.dones, "ndim", None) == 2
    if not is_rollout:
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


def _first_bad(tree: Any, shape: tuple[int, int]) -> jax.Array:
    """Return the first step of each environment ``[B]`` at which a number is not finite, or ``_NONE``."""
    is_bad = jnp.zeros(shape, jnp.bool_)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape[:2] == shape:
            is_bad |= ~jnp.isfinite(leaf).all(axis=tuple(range(2, leaf.ndim)))
    return jnp.where(is_bad.any(axis=0), jnp.argmax(is_bad, axis=0), _NONE).astype(jnp.int32)


def without_env_faults(
    workflow: Any, metrics: Mapping[str, Any], state: State, num_iterations: int
) -> tuple[PyTreeDict, State]:
    """Return the metrics ``[N, ...]`` of some iterations without their entry for faults, and the state after them.

    Args:
        workflow: whose environments these are.
        metrics: of a program.
        state: after these iterations.
        num_iterations: number of rows that count.

    Raises:
        TrainingDiverged: an environment gave numbers that are not finite; the message says which one, and when.
    """
    rest = PyTreeDict({name: value for name, value in metrics.items() if name != ENV_FAULTS})
    if ENV_FAULTS not in metrics:
        return rest, state
    faults = np.asarray(processes.on_host(metrics[ENV_FAULTS]))[:num_iterations].reshape(num_iterations, -1, 3)
    rows, seeds = np.nonzero(faults[..., 0] != _NONE)
    if not len(rows):
        return rest, state
    step, number, kind = faults[rows[0], seeds[0]].tolist()
    iteration = int(state.iterations) - num_iterations + int(rows[0]) + 1
    per_env = workflow.timesteps_per_iteration // workflow.env.num_envs
    of_run = f"step {(iteration - 1) * per_env + step + 1:,} of it" if per_env else f"step {step + 1:,} of a rollout"
    seed = f" of seed {seeds[0]}" if faults.shape[1] > 1 else ""
    raise load("evorl.execution.learning:TrainingDiverged")(
        _described(workflow.env, f"{number}{seed}", kind, f"{of_run}, in iteration {iteration:,}")
    )


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

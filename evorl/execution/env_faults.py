"""Rewards and observations of environments that are not finite: found in the program, reported on the host.

Such numbers make losses NaN, and running statistics of observations for the rest of the run. Environments are checked
before losses, so that a run that an environment broke does not blame the learning rate. In a generation of evolution an
individual whose simulation breaks gets the worst fitness; it is a fault only if every episode is broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import load
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.evaluators.episodes import EpisodeOutcomes
from evorl.ops import collectives, processes
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State

ENV_FAULTS = "env_faults"  # an entry of the metrics of a program, which never leaves ``Workflow.iterate``
_KINDS = ("rewards", "observations", "observations")  # before a step, and after it
_ALL_RETURNS = len(_KINDS)  # the kind of a generation without a finite return
_NONE = np.iinfo(np.int32).max


def watched_step(workflow: Any, state: State) -> tuple[PyTreeDict, State]:
    """One iteration of one seed, ``pure_step``, with ``ENV_FAULTS`` among its metrics.

    Not of workflows with a ``pure_step`` of their own, nor of simulators on the host, whose answers are checked there.
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
        environment, and which of ``_KINDS``. Of a generation of episodes 0, 0, and ``_ALL_RETURNS`` where no return
        is finite. ``None`` where the experience is neither a rollout ``[T, B, ...]`` nor a generation.
    """
    if isinstance(experience, EpisodeOutcomes):
        step = jnp.where(jnp.isfinite(experience.returns).any(), _NONE, 0)
        return jnp.stack([step, jnp.zeros_like(step), jnp.full_like(step, _ALL_RETURNS)]).astype(jnp.int32)
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
    """The first step of each environment ``[B]`` at which a number is not finite, or ``_NONE``."""
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
        num_iterations: how many of the rows count.

    Raises:
        TrainingDiverged: an environment gave numbers that are not finite; says which one, and when.
    """
    rest = PyTreeDict({name: value for name, value in metrics.items() if name != ENV_FAULTS})
    if ENV_FAULTS not in metrics:
        return rest, state
    found = np.asarray(processes.on_host(metrics[ENV_FAULTS]))[:num_iterations].reshape(num_iterations, -1, 3)
    rows, seeds = np.nonzero(found[..., 0] != _NONE)
    if not len(rows):
        return rest, state
    step, number, kind = found[rows[0], seeds[0]].tolist()
    iteration = int(state.iterations) - num_iterations + int(rows[0]) + 1
    per_env = workflow.timesteps_per_iteration // workflow.env.num_envs
    of_run = f"step {(iteration - 1) * per_env + step + 1:,} of it" if per_env else f"step {step + 1:,} of a rollout"
    seed = f" of seed {seeds[0]}" if found.shape[1] > 1 else ""
    title = workflow.env.title or type(workflow.env.unwrapped).__name__
    where = f"environment {number}{seed} of {title} gave {_KINDS[kind % _ALL_RETURNS]}"
    if kind == _ALL_RETURNS:
        where, of_run = f"all episodes{seed} in {title} had returns", "their ends"
    raise load("evorl.execution.learning:TrainingDiverged")(
        f"{where} that are not finite (NaN or infinite) at {of_run}, in iteration {iteration:,}: mend the environment "
        "(evorl check-env plays random actions in it), or replace such numbers by a wrapper."
    )


def refuse_faulty_rollout(env: Any, experience: SampleBatch) -> None:
    """Raise ``HostEnvError`` where environments of one rollout, on the host, gave numbers that are not finite."""
    faults = None if env.steps_on_host else env_faults(experience)
    if faults is None or int(faults[0]) == _NONE:
        return
    step, number, kind = np.asarray(faults).tolist()
    raise HostEnvError(
        f"environment {number} of {env.title or type(env.unwrapped).__name__} gave {_KINDS[kind]} that are not finite "
        f"(NaN or infinite) at step {step + 1:,} of a rollout: mend the environment (evorl check-env plays random "
        "actions in it), or replace such numbers by a wrapper."
    )

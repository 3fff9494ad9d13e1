"""A population of workflows that train side by side in one program, and what their metrics say."""

from __future__ import annotations

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp

from evorl.execution.env_faults import ENV_FAULTS, first_fault
from evorl.execution.programs import side_by_side
from evorl.ops.collectives import LOCAL_MEMBER_AXIS
from evorl.types import PyTreeDict, State
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.workflow import Workflow

SCORE_METRICS = ("score_mean", "score_best", "score_median", "score_worst")
_COUNTS = ("episodes", "timesteps")  # metrics that are summed


def train_side_by_side(
    step: Callable[[State], tuple[PyTreeDict, State]], members: State, shared: Collection[str], num_iterations: int
) -> tuple[PyTreeDict, State]:
    """Iterations of every member.

    Args:
        step: one of one member, ``state -> (metrics, state)``.
        members: entries ``[P, ...]``, but for those that all members share.
        shared: names of the latter.
        num_iterations: how many.

    Returns:
        Means of the metrics over the iterations, ``[P]``; ``episodes`` and ``timesteps``, if they are told, are those
        of all; faults of environments are those of each iteration, ``[N, P, 3]``. And the members.
    """

    def one_iteration(members: State, _: None) -> tuple[State, PyTreeDict]:
        metrics, members = side_by_side(step, members, shared, returns_state=True, axis_name=LOCAL_MEMBER_AXIS)
        return members, metrics

    members, metrics = jax.lax.scan(one_iteration, members, length=num_iterations)
    faults = {name: metrics.pop(name) for name in (ENV_FAULTS,) if name in metrics}
    return _reduced(metrics, lambda x: jnp.mean(x, axis=0), True) | faults, members


def with_shared_replay(workflow: Workflow, num_members: int) -> Workflow:
    """The workflow of members that store into one buffer.

    Raises:
        ValueError: it has no replay buffer, or one whose priorities are those of a single learner.
    """
    if not isinstance(workflow, OffPolicyWorkflow):
        raise ValueError(f"shared_replay=true needs an off-policy inner workflow, not {type(workflow).__name__}.")
    if workflow.prioritized:
        raise ValueError("shared_replay=true needs inner.prioritized=false: priorities are those of a single learner.")
    return workflow.replace(num_sharing=num_members)


def training_scores(metrics: PyTreeDict, before: jax.Array) -> jax.Array:
    """Mean returns of the episodes that the members ended in training, ``[P]``; ``before`` where they ended none.

    Raises:
        ValueError: the members do not tell of episodes.
    """
    if "episodes" not in metrics:
        raise ValueError("score=training needs members that tell of training episodes; these do not: score=evaluation.")
    return jnp.where(metrics.episodes.count > 0, metrics.episodes.mean_return, before)


def take_faults(metrics: PyTreeDict, steps_per_iteration: int) -> PyTreeDict:
    """Remove the faults of environments from the metrics of members, if there are any.

    Returns:
        The first fault of each member under the same name, ``[P, 3]``, see ``env_faults``.
    """
    faults = {name: metrics.pop(name) for name in (ENV_FAULTS,) if name in metrics}
    return PyTreeDict({name: first_fault(x, steps_per_iteration) for name, x in faults.items()})


def healthy_members(metrics: PyTreeDict) -> jax.Array:
    """Whether all metrics of a member are finite, bool ``[P]``: broken parameters show in its losses."""
    losses = [values for name, values in metrics.items() if name not in _COUNTS]
    return jnp.all(jnp.isfinite(jnp.stack(losses)), axis=0)


def population_metrics(metrics: PyTreeDict, scores: jax.Array, healthy: jax.Array, replaced: jax.Array) -> PyTreeDict:
    """``means_over_members``, and what became of these.

    Args:
        metrics: of the members, ``[P]``.
        scores: ``[P]``; what is not finite is left out of their mean, median, and extremes.
        healthy: bool ``[P]``.
        replaced: bool ``[P]``.
    """
    known = jnp.where(jnp.isfinite(scores), scores, jnp.nan)
    return means_over_members(metrics, healthy) | {
        "score_mean": jnp.nanmean(known),
        "score_best": jnp.nanmax(known),
        "score_median": jnp.nanmedian(known),
        "score_worst": jnp.nanmin(known),
        "replaced_members": jnp.sum(replaced, dtype=jnp.float32),
        "diverged_members": jnp.sum(~healthy, dtype=jnp.float32),
    }


def means_over_members(metrics: PyTreeDict, healthy: jax.Array) -> PyTreeDict:
    """Means of metrics ``[P]`` over healthy members, NaN without any; ``episodes`` are those of all these, and
    ``timesteps`` those of all members.
    """
    return _reduced(metrics, lambda x: jnp.mean(x, where=healthy), healthy)


def _reduced(metrics: PyTreeDict, mean: Callable[[jax.Array], jax.Array], episodes_of: jax.Array | bool) -> PyTreeDict:
    """Metrics without their first axis."""
    reduced = {name: mean(x) for name, x in metrics.items() if name not in _COUNTS}
    if "episodes" in metrics:
        reduced["episodes"] = metrics.episodes.over(axis=0, where=episodes_of)
    if "timesteps" in metrics:
        reduced["timesteps"] = jnp.sum(metrics.timesteps, axis=0)
    return PyTreeDict(reduced)

"""Parallel training of a population of workflows in one program, with scores and metrics of the population."""

from __future__ import annotations

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp

from evorl.config.nodes import named_section
from evorl.execution.collector import end_episodes
from evorl.execution.env_faults import ENV_FAULTS, drop_later_faults, first_fault
from evorl.execution.programs import side_by_side
from evorl.ops import collectives
from evorl.ops.collectives import LOCAL_MEMBER_AXIS, MEMBER_AXIS
from evorl.ops.selection import clones
from evorl.rollout import with_fresh_recurrent_state
from evorl.types import PyTreeDict, State
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.workflow import Workflow

SCORE_METRICS = ("score_mean", "score_best", "score_median", "score_worst")
_COUNTS = ("episodes", "timesteps")  # metrics that are summed


def train_side_by_side(
    step: Callable[[State], tuple[PyTreeDict, State]],
    members: State,
    shared: Collection[str],
    num_iterations: int,
    optional_metrics: Collection[str] = (),
    losses: Collection[str] = (),
    *,
    latest: Collection[str] = (),
) -> tuple[PyTreeDict, State]:
    """Run iterations of all members in parallel.

    Args:
        step: iteration of one member, ``state -> (metrics, state)``.
        members: state with entries ``[P, ...]``, except for entries that all members share.
        shared: names of the shared entries.
        num_iterations: number of iterations.
        optional_metrics: metrics that may be NaN because they have no value yet.
        losses: metrics that are means over the updates of an iteration, whose number is ``updates``.
        latest: metrics whose last value counts, see ``Workflow.latest_metrics``.

    Returns:
        Metrics ``[P]``, averaged over the iterations, and ``losses`` over their updates; the new state of the members.
        ``episodes`` and ``timesteps``, if reported, are summed; faults of environments are kept per iteration,
        ``[N, P, 3]``.
    """

    def one_iteration(members: State, _: None) -> tuple[State, PyTreeDict]:
        metrics, members = side_by_side(step, members, shared, returns_state=True, axis_name=LOCAL_MEMBER_AXIS)
        return members, metrics

    members, metrics = jax.lax.scan(one_iteration, members, length=num_iterations)
    faults = {name: metrics.pop(name) for name in (ENV_FAULTS,) if name in metrics}
    faults = {name: drop_later_faults(x, metrics, optional_metrics) for name, x in faults.items()}
    means = _reduced(metrics, lambda x: jnp.mean(x, axis=0), True)
    if "updates" in metrics:
        weights = metrics.updates / jnp.maximum(jnp.sum(metrics.updates, axis=0), 1.0)
        means |= {name: jnp.sum(metrics[name] * weights, axis=0) for name in losses if name in metrics}
    means |= {name: values[-1] for name, values in metrics.items() if name.partition("/")[0] in latest}
    return means | faults, members


def as_member(workflow: Workflow, num_sharing: int = 1) -> Workflow:
    """Return the workflow of a member, changed so that ``num_sharing`` members share one replay buffer.

    Raises:
        ValueError: ``replay.load`` is set, or the workflow cannot share: it has no replay buffer, or, for example,
            ``prioritized`` is true.
    """
    if isinstance(workflow, OffPolicyWorkflow) and workflow.replay.load is not None:
        raise ValueError(
            f"inner.replay.load={workflow.replay.load} is not supported, because the replay buffers of a population "
            "start empty: set it to null, or compare settings of the inner algorithm with sweep= instead."
        )
    if num_sharing == 1:
        return workflow
    if not isinstance(workflow, OffPolicyWorkflow):
        raise ValueError(f"shared_replay=true needs an off-policy workflow in inner, not {type(workflow).__name__}.")
    if workflow.prioritized:
        raise ValueError(
            "shared_replay=true needs inner.prioritized=false, not true: priorities in a replay buffer belong to a "
            "single learner. Set one of the two to false."
        )
    with named_section("inner"):
        return workflow.replace(num_sharing=num_sharing)


def cloned_members(members: State, parents: jax.Array, keeps_envs: bool) -> State:
    """Return the states of this device's members, ``[P / num_shards, ...]``, after each copied that of its parent.

    With ``keeps_envs``, every member keeps its environments, because simulators on the host cannot be copied, and the
    steps of an environment in a shared replay buffer must be consecutive. The parent's episodes then end in the clone's
    replay buffer and reward sums, and the clone forgets the recurrent state of the networks that it replaces.
    """
    cloned = clones(members, parents)
    if not keeps_envs or "env_state" not in members:
        return cloned
    rows = collectives.local_indices(len(parents), MEMBER_AXIS)
    replaced = parents[rows] != rows
    env_state = with_fresh_recurrent_state(members.env_state, replaced)
    return jax.vmap(end_episodes)(cloned, replaced).replace(env_state=env_state)


def training_scores(metrics: PyTreeDict, before: jax.Array) -> jax.Array:
    """Return the mean return of each member's completed training episodes, ``[P]``; ``before`` for members without any.

    Raises:
        ValueError: the members do not report episodes.
    """
    if "episodes" not in metrics:
        raise ValueError("score=training needs members that report training episodes: set score=evaluation.")
    return jnp.where(metrics.episodes.count > 0, metrics.episodes.mean_return, before)


def take_faults(metrics: PyTreeDict, steps_per_iteration: int) -> PyTreeDict:
    """Remove the faults of environments ``[N, P, 3]`` from the metrics of members, in place.

    Returns:
        The first fault of each member, int32 ``[P, 3]``, by the metric's name, see ``env_faults``; may be empty.
    """
    faults = {name: metrics.pop(name) for name in (ENV_FAULTS,) if name in metrics}
    return PyTreeDict({name: first_fault(x, steps_per_iteration) for name, x in faults.items()})


def healthy_members(metrics: PyTreeDict) -> jax.Array:
    """Return a mask, bool ``[P]``, True for members with only finite metrics; divergence makes losses non-finite.

    The mean return of completed episodes is one of these metrics.
    """
    values = [values for name, values in metrics.items() if name not in _COUNTS]
    if "episodes" in metrics:
        values.append(jnp.where(metrics.episodes.count > 0, metrics.episodes.mean_return, 0.0))
    return jnp.all(jnp.isfinite(jnp.stack(values)), axis=0)


def population_metrics(metrics: PyTreeDict, scores: jax.Array, healthy: jax.Array, replaced: jax.Array) -> PyTreeDict:
    """Return ``means_over_members``, statistics of the scores, and counts of replaced and diverged members.

    Args:
        metrics: metrics of the members, ``[P]``.
        scores: scores of the members, ``[P]``; the statistics ignore non-finite ones.
        healthy: mask of members with finite metrics, bool ``[P]``.
        replaced: mask of members that selection replaced, bool ``[P]``.
    """
    finite = jnp.where(jnp.isfinite(scores), scores, jnp.nan)
    return means_over_members(metrics, healthy) | {
        "score_mean": jnp.nanmean(finite),
        "score_best": jnp.nanmax(finite),
        "score_median": jnp.nanmedian(finite),
        "score_worst": jnp.nanmin(finite),
        "replaced_members": jnp.sum(replaced, dtype=jnp.float32),
        "diverged_members": jnp.sum(~healthy, dtype=jnp.float32),
    }


def means_over_members(metrics: PyTreeDict, healthy: jax.Array) -> PyTreeDict:
    """Return the means of metrics ``[P]`` over healthy members, NaN if all members have diverged.

    ``episodes`` are summed over healthy members, ``timesteps`` over all members.
    """
    return _reduced(metrics, lambda x: jnp.mean(x, where=healthy), healthy)


def _reduced(metrics: PyTreeDict, mean: Callable[[jax.Array], jax.Array], episodes_of: jax.Array | bool) -> PyTreeDict:
    """Reduce the first axis of metrics by ``mean``; sum timesteps, and episodes where ``episodes_of`` is True."""
    reduced = {name: mean(x) for name, x in metrics.items() if name not in _COUNTS}
    if "episodes" in metrics:
        reduced["episodes"] = metrics.episodes.over(axis=0, where=episodes_of)
    if "timesteps" in metrics:
        reduced["timesteps"] = jnp.sum(metrics.timesteps, axis=0)
    return PyTreeDict(reduced)

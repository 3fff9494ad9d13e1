"""Rejects training runs that would never update their policy, and warns of settings with unintended effects.

The checks read attributes of the workflow: ``learning_starts``, ``updates_per_iteration`` and ``replay_buffer`` if
it learns from a replay buffer, ``updates_per_policy_update`` if the policy is updated less often than the critics,
``num_minibatches`` and ``agent.normalize_advantages`` if advantages are standardized, ``inner`` in a population, and
``learner`` with ``num_learners``. Other workflows may define ``idle_reasons()``, which yields a sentence per reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from evorl.execution.recorded_steps import check_recorded_steps
from evorl.ops.schedules import Schedule
from evorl.ops.terminal_text import counted

_EXPLAINED = "Nothing would be learned"
# Fewer than 10 iterations of 10,000 or more steps cause a warning, which suggests sizes for 50 iterations.
_LARGE_ITERATION, _FEW_ITERATIONS, _ENOUGH_ITERATIONS = 10_000, 10, 50
_LONG_ROLLOUT = 128


def refuse_idle_training(workflow: Any) -> None:
    """Raise ``ValueError``, with advice, if no update would happen in a new run, or ``replay.load`` does not fit."""
    for reason in idle_reasons(workflow):
        raise ValueError(f"{_EXPLAINED}: {reason}")


def idle_reasons(workflow: Any, total: float | None = None, above: str = "") -> Iterator[str]:
    """Yield a sentence for each setting that prevents every update of the policy.

    Args:
        workflow: workflow of the run, or a workflow nested in it.
        total: environment steps in which the workflow can learn; ``None`` for ``workflow.total_timesteps``.
        above: prefix of the workflow's settings in the config, for example ``learner.``; empty for the run.
    """
    total = float(workflow.total_timesteps) if total is None else total
    if hasattr(workflow, "idle_reasons"):
        yield from workflow.idle_reasons()
    if hasattr(workflow, "generation_interval"):
        yield from _population_reasons(workflow)
    elif hasattr(workflow, "num_learners"):
        yield from _guided_evolution_reasons(workflow.learner, total, f"{above}learner.learning_starts")
    elif hasattr(workflow, "learning_starts"):
        yield from _replay_reasons(workflow, total, above)
    elif getattr(workflow.agent, "normalize_advantages", False):
        yield from _one_sample_reasons(workflow, above)


def weak_spots(workflow: Any) -> Iterator[str]:
    """Yield a sentence for each setting with a probably unintended effect."""
    total, steps = float(workflow.total_timesteps), workflow.timesteps_per_iteration
    if 0 < total < workflow.eval_interval:
        yield (
            f"The run has no evaluation between its start and its end: eval_interval={workflow.eval_interval:,.0f} is "
            f"more than total_timesteps={total:,.0f}. Choose a smaller eval_interval."
        )
    yield from _too_few_iterations(workflow, total)
    rates = {name: optimizer.learning_rate for name, optimizer in _optimizers(workflow)}
    if rates and all(_is_zero(rate) for rate in rates.values()):
        yield f"All learning rates are 0, so nothing is learned: {', '.join(f'{n}.learning_rate' for n in rates)}."
    replay = getattr(workflow, "replay", None)
    if replay is not None and replay.mixed and replay.load is None:
        yield (
            "All transitions are collected in the environment: replay.mixed=true has no effect without replay.load, "
            "which names recorded transitions."
        )
    if getattr(workflow, "exploit", False) and steps and total < 2 * steps:
        yield (
            f"The run has a single generation, so no member trains after a selection: a generation takes {steps:,} "
            f"steps (generation_interval={workflow.generation_interval:,}, {workflow.pop_size} members) of "
            f"total_timesteps={total:,.0f}. Choose a smaller generation_interval."
        )


def _too_few_iterations(workflow: Any, total: float) -> Iterator[str]:
    """Yield a sentence if an on-policy run has few iterations because each iteration has many steps."""
    steps = workflow.timesteps_per_iteration or 0
    if not hasattr(workflow, "normalize_rewards") or steps < _LARGE_ITERATION or total >= _FEW_ITERATIONS * steps:
        return
    length, total_text = min(workflow.rollout_length, _LONG_ROLLOUT), f"total_timesteps={total:,.0f}"
    num_envs = 2 ** max(0, int(math.log2(max(1.0, total / _ENOUGH_ITERATIONS / length))))
    yield (
        f"The run has only {counted(max(1, int(total) // steps), 'iteration')}: each takes num_envs * rollout_length = "
        f"{workflow.env.num_envs:,} * {workflow.rollout_length:,} = {steps:,} steps of {total_text}. Choose smaller "
        f"values, such as num_envs={num_envs} rollout_length={length}, or a larger total_timesteps."
    )


def num_updates(workflow: Any, total: float) -> int:
    """Return an upper bound on the updates of a workflow with a replay buffer in ``total`` environment steps."""
    steps = workflow.timesteps_per_iteration
    iterations = max(1, int(total) // steps)
    length = getattr(workflow.replay_buffer, "length", 1)
    waiting = max(math.ceil(float(workflow.learning_starts) / steps), math.ceil(length / workflow.rollout_length))
    first = 0 if workflow.offline else waiting - 1
    if first >= iterations:
        return 0
    rate = workflow.updates_per_iteration
    return math.floor(iterations * rate + 1e-6) - math.floor(first * rate + 1e-6)


def _replay_reasons(workflow: Any, total: float, above: str) -> Iterator[str]:
    check_recorded_steps(workflow)
    steps = workflow.timesteps_per_iteration
    total = max(1, int(total) // steps) * steps
    starts, length = float(workflow.learning_starts), getattr(workflow.replay_buffer, "length", 1)
    count, delay = num_updates(workflow, total), getattr(workflow, "updates_per_policy_update", 1)
    learner = "a member" if above else "the run"
    training = f"{learner}'s {total:,.0f} steps"
    if not workflow.offline and starts >= total:
        yield (
            f"{above}learning_starts={starts:,.0f} is not less than {training}. Choose a smaller one, such as "
            f"{above}learning_starts={total // 10:,.0f}, or a larger total_timesteps."
        )
    elif count == 0 and length * workflow.env.num_envs > total:
        yield (
            f"sequences of {length} steps of each of {workflow.env.num_envs} environments are longer than {training}. "
            f"Choose a smaller {above}sequence_length or {above}burn_in, or a larger total_timesteps."
        )
    elif count == 0:
        rate = workflow.updates_per_iteration
        yield (
            f"{above}updates_per_iteration={rate:g} is too small for an update in {training} ({steps:,} per "
            "iteration). Choose a larger one, or a larger total_timesteps."
        )
    elif count < delay:
        yield (
            f"{above}policy_delay={delay}: the policy is first updated after {delay} critic updates, but {learner} has "
            f"only {count}. Choose a smaller one, or a larger {above}updates_per_iteration or total_timesteps."
        )


def _one_sample_reasons(workflow: Any, above: str) -> Iterator[str]:
    """Yield a reason if minibatches have one sample, which makes standardized advantages and gradients 0."""
    rows, parts = workflow.timesteps_per_iteration, getattr(workflow, "num_minibatches", 1)
    if parts and rows // parts == 1:
        fewer = f"a smaller {above}num_minibatches, " if parts > 1 else ""
        yield (
            f"advantages are standardized over minibatches of one sample ({above}num_envs={workflow.env.num_envs}, "
            f"{above}rollout_length={workflow.rollout_length}, {above}num_minibatches={parts}), which makes each "
            f"of them 0. Choose {fewer}a larger {above}rollout_length, or {above}agent.normalize_advantages=false."
        )


def _population_reasons(workflow: Any) -> Iterator[str]:
    """Yield the reasons for one member; none if ``learning_starts``, ``total_timesteps`` or iteration lengths vary."""
    steps = workflow.timesteps_per_iteration
    if not steps:
        return
    generations = max(1, int(workflow.total_timesteps) // steps)
    searched = set(workflow.search_space.paths)
    if searched.isdisjoint(("learning_starts", "total_timesteps")):
        yield from idle_reasons(workflow.inner, generations * steps / workflow.pop_size, "inner.")


def _guided_evolution_reasons(learner: Any, total: float, name: str) -> Iterator[str]:
    starts = float(learner.learning_starts)
    if starts >= total:
        yield (
            f"{name}={starts:,.0f} is not less than total_timesteps={total:,.0f}, so that the learner "
            f"makes no update. Choose a smaller one, such as {name}={total // 10:,.0f}, or a larger total_timesteps."
        )


def _optimizers(workflow: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(workflow).items():
        if name.endswith("optimizer") and hasattr(value, "learning_rate") and hasattr(value, "max_grad_norm"):
            yield name, value


def _is_zero(rate: Any) -> bool:
    ends = (rate.start, rate.end) if isinstance(rate, Schedule) else (rate,)
    return all(float(end) == 0 for end in ends)

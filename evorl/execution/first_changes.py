"""Suggests the settings to change first in a run whose settings were not tuned for its task.

The suggestions read attributes of the workflow: ``normalize_rewards`` of on-policy algorithms, ``learning_starts`` of
algorithms with a replay buffer, ``agent.normalize_obs`` and ``agent.entropy_coefficient``.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from evorl.envs.space import Box, Discrete

_FEW_UPDATES, _MANY_UPDATES = Fraction(1, 4), Fraction(1, 2)  # numbers of updates per environment step


def first_changes(workflow: Any) -> str | None:
    """Return the settings to change first in a run with general defaults, and reasons; ``None`` without suggestions."""
    changes = list(_changes(workflow))
    return f"If the run learns too little, change first: {'; '.join(changes)}." if changes else None


def _changes(workflow: Any) -> Iterator[str]:
    agent, env = workflow.agent, workflow.env
    is_on_policy, is_off_policy = hasattr(workflow, "normalize_rewards"), hasattr(workflow, "learning_starts")
    if not agent.learns or not (is_on_policy or is_off_policy):
        return
    is_vector = isinstance(env.obs_space, Box) and len(env.obs_space.shape) == 1
    # Agents with batch normalization (``keeps_statistics``) do not need normalized observations.
    if is_vector and not getattr(agent, "keeps_statistics", False) and getattr(agent, "normalize_obs", True) is False:
        yield "agent.normalize_obs=true, because components of observations may differ in scale"
    if is_on_policy and not workflow.normalize_rewards and not env.is_remote:
        yield "normalize_rewards=true if returns are in the hundreds or more, which critics learn slowly"
    is_discrete = isinstance(env.action_space, Discrete)
    if is_discrete and getattr(agent, "entropy_coefficient", None) == 0.0:
        yield "agent.entropy_coefficient=0.01, because a policy over discrete actions may stop exploring early"
    if is_off_policy and not workflow.offline:
        steps = workflow.timesteps_per_iteration
        rate = Fraction(workflow.updates_per_iteration).limit_denominator(10_000) / steps
        if rate < _FEW_UPDATES:
            more, interval = max(1, int(_MANY_UPDATES * steps)), float(1 / rate)
            yield f"updates_per_iteration={more} if steps are expensive, instead of one update for {interval:g} steps"
    if is_vector and not env.is_remote:
        yield "env.action_repeat=4 or more if random actions never reach a reward"

"""Action repeat for Gymnasium environments, applied in the process that steps them."""

from __future__ import annotations

import copy
from typing import Any

from evorl.envs.host.answers import as_reward


def with_repeated_actions(env: Any, num_repeats: int, max_steps: int | None = None) -> Any:
    """Wrap a Gymnasium environment so that it applies each action ``num_repeats`` times, or until the episode ends.

    The rewards are summed, as in ``evorl.envs.wrappers.ActionRepeatWrapper``. For 1, ``env`` is returned unchanged.

    Args:
        env: a Gymnasium environment, including its time limit in environment steps, if it has one.
        num_repeats: environment steps per action, at least 1.
        max_steps: time limit to add, in environment steps; only with ``num_repeats`` > 1.
    """
    if num_repeats == 1:
        return env
    import gymnasium

    own_spec = env.spec
    env = env if max_steps is None else gymnasium.wrappers.TimeLimit(env, max_steps)

    class RepeatedActions(gymnasium.Wrapper):
        """Applies each action ``num_repeats`` times."""

        @property
        def spec(self) -> Any:
            """Spec without ``max_steps``, so that the environment's own time limit can be read."""
            return own_spec

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
            """Take up to ``num_repeats`` steps; return the last result, with the sum of the rewards."""
            result = env.step(copy.deepcopy(action))  # ``env`` may modify it
            total = as_reward(result[1])
            for _ in range(num_repeats - 1):
                if result[2] or result[3]:  # the episode has ended
                    break
                result = env.step(copy.deepcopy(action))
                total += as_reward(result[1])
            return result[0], total, *result[2:]

    return RepeatedActions(env)

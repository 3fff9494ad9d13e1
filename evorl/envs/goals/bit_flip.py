"""Bit flipping, a goal environment: each action flips one of n bits, and the goal is a random vector of bits.

Source: Andrychowicz et al. 2017, Hindsight experience replay, section 3.1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.config.values import positive
from evorl.envs.env import EnvState, EnvWithSpaces
from evorl.envs.goals.sparse import MinusOneUntil, full_obs, observed
from evorl.envs.space import Box, Discrete
from evorl.envs.wrappers.goal import GoalWrapper
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key


class Bits(EnvWithSpaces):
    """A random vector of bits, int8 ``[num_bits]``; action i flips bit i. Rewards are 0, and episodes never end."""

    def __init__(self, num_bits: int) -> None:
        self.num_bits = positive(num_bits, "env.num_bits")
        self._obs_space, self._action_space = Box(0, 1, (self.num_bits,), jnp.int8), Discrete(self.num_bits)

    def _identity(self) -> int:
        return self.num_bits

    def reset(self, key: Key) -> EnvState:
        return observed(self._obs_space.sample(as_typed_key(key)))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        is_flipped = jnp.arange(self.num_bits) == action
        return observed(jnp.where(is_flipped, 1 - env_state.env_state, env_state.env_state))


def make_bit_flip(num_bits: int = 15) -> GoalWrapper:
    """Create bit flipping. The step that reaches the goal has reward 0 and ends the episode; other rewards are -1.

    Args:
        num_bits: number of bits, at least 1; ``create_wrapped_goal_env`` uses it as the default time limit, too.
    """
    bits = Bits(num_bits)
    return GoalWrapper(bits, bits._obs_space, full_obs, MinusOneUntil(_is_equal), _is_equal, terminate_on_success=True)


def _is_equal(achieved: jax.Array, desired: jax.Array) -> jax.Array:
    return jnp.all(achieved == desired)

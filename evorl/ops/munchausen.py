"""Munchausen targets: temporal differences with a soft policy (Vieillard et al. 2020, https://arxiv.org/abs/2007.14430).

The policy is ``softmax(Q / temperature)``. Its scaled log-probability is added to the reward, and its scaled entropy
to the values of the next observation.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp

from evorl.fields import Within
from evorl.types import PyTreeNode

LOWEST = -1.0  # lower bound of scaled log-probabilities, l_0 of the paper


class Munchausen(PyTreeNode):
    """Soft policy, and the weight of its log-probabilities in rewards.

    Attributes:
        weight: factor of ``temperature log pi(a|s)`` in the reward, alpha of the paper.
        temperature: temperature of the policy ``softmax(Q / temperature)``, tau of the paper.
    """

    weight: Annotated[float, Within("[0, 1]")] = 0.9
    temperature: Annotated[float, Within("(0, inf)")] = 0.03

    def bonus(self, q_values: jax.Array, actions: jax.Array) -> jax.Array:
        """Return ``weight clip(temperature log pi(a|s), -1, 0)``, ``[N]``.

        Args:
            q_values: values of all actions, ``[N, A]``; ``-inf`` excludes an action.
            actions: actions that were taken, int ``[N]``.
        """
        log_policy = self.temperature * jax.nn.log_softmax(q_values / self.temperature)
        return self.weight * jnp.clip(log_policy[jnp.arange(actions.shape[0]), actions], LOWEST, 0.0)

    def soft_values(self, values: jax.Array, q_values: jax.Array) -> jax.Array:
        """Return ``sum_a pi(a|s) (values_a - temperature log pi(a|s))``, ``[N]`` or ``[N, M]``.

        For ``values = q_values`` the result is ``temperature logsumexp(q_values / temperature)``.

        Args:
            values: finite values of all actions, ``[N, A]``, or M atoms of their distributions, ``[N, A, M]``.
            q_values: values that determine the policy, ``[N, A]``; ``-inf`` excludes an action.
        """
        log_policy = jax.nn.log_softmax(q_values / self.temperature)
        policy = jnp.exp(log_policy)
        entropy = -(policy * jnp.where(policy > 0.0, log_policy, 0.0)).sum(axis=-1)
        if values.ndim == q_values.ndim:
            return (policy * values).sum(axis=-1) + self.temperature * entropy
        return (policy[..., None] * values).sum(axis=-2) + self.temperature * entropy[..., None]

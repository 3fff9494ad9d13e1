"""Implicit quantile networks: action values whose quantiles are evaluated at any fractions."""

from __future__ import annotations

import math
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from evorl.networks.heads import torso_output
from evorl.networks.layers import dense, float32_outputs
from evorl.networks.q_networks import QNetwork
from evorl.ops.random import draw, split_rows
from evorl.types import Key, Observation

NUM_COSINES = 64  # in the embedding of a fraction
EMBEDDING = "fractions"  # name of the dense layer that embeds fractions


class ImplicitQNetwork(QNetwork):
    """Quantiles of the returns of all discrete actions (Dabney et al. 2018, https://arxiv.org/abs/1806.06923, eq. 4).

    The features of an observation are multiplied by an embedding of the fraction, ``relu(Dense(cos(pi i fraction)))``
    with ``i`` from 0 to 63. The heads map the product to the quantile of each action.

    Attributes:
        num_fractions: number M of default fractions, the midpoints ``(2 i + 1) / (2 M)``.
    """

    num_fractions: int = 32

    num_shared_axes: ClassVar[int] = 1  # same noise for all fractions: independent noise would average out

    @nn.compact
    def __call__(self, obs: Observation, fractions: jax.Array | None = None, key: Key | None = None) -> jax.Array:
        """Return quantiles ``[..., A, M]`` for observations ``[..., *observation]`` at fractions ``[..., M]``.

        ``fractions`` default to midpoints. ``key`` samples the noise of noisy heads; ``None`` disables the noise.
        """
        assert self.num_actions is not None, "implicit quantile networks support only discrete actions: set num_actions"
        hidden = torso_output(self.torso, obs, self.observation_ndim)[..., None, :]
        if fractions is None:  # constants, so that exported policies need no cosine
            midpoints = (np.arange(self.num_fractions) + 0.5) / self.num_fractions
            cosines = jnp.asarray(np.cos(np.pi * np.outer(midpoints, np.arange(NUM_COSINES))), jnp.float32)
        else:
            cosines = jnp.cos(math.pi * fractions[..., None] * jnp.arange(NUM_COSINES))
        scale, options = (math.sqrt(2.0) if self.torso.orthogonal else 1.0), float32_outputs(self.torso.dtype)
        embedded = nn.relu(dense(hidden.shape[-1], self.torso.orthogonal, scale, EMBEDDING, **options)(cosines))
        values = self._all_action_values(hidden * embedded, self.num_actions, key)
        return jnp.swapaxes(values, -1, -2)


def implicit(network: QNetwork, num_fractions: int) -> ImplicitQNetwork:
    """Return an implicit quantile network with the settings of ``network``, except ``num_atoms``, which is ignored."""
    return ImplicitQNetwork(
        network.torso.clone(parent=None),
        network.num_actions,
        network.observation_ndim,
        network.output_scale,
        dueling=network.dueling,
        noisy=network.noisy,
        num_fractions=num_fractions,
    )


def sample_fractions(keys: Key, num_fractions: int) -> tuple[Key, jax.Array, jax.Array]:
    """Return new keys ``[N]``, and two independent uniform samples of fractions ``[N, num_fractions]``."""
    keys, first, second = split_rows(keys, 3)
    shape = (*keys.shape, num_fractions)
    return keys, draw(jax.random.uniform, first, shape), draw(jax.random.uniform, second, shape)

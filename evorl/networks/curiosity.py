"""Networks whose errors tell what an agent has not seen yet: the models of ICM and of RND.

They read observations ``[..., *observation]``. All are modules compared by value.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.heads import torso_output
from evorl.networks.layers import dense
from evorl.networks.torsos import Torso, dense_torso


class CuriosityModel(nn.Module):
    """The intrinsic curiosity module (Pathak et al. 2017, https://arxiv.org/abs/1705.05363, figure 2).

    Features of the observation are what tells which action was taken; a forward model predicts the next ones.

    Attributes:
        torso: from an observation to its features.
        num_outputs: numbers that describe an action, ``A``.
        hidden: width of the hidden layer of the forward and of the inverse model.
        observation_ndim: number of axes of one observation.
    """

    torso: Torso
    num_outputs: int
    hidden: int = 256
    observation_ndim: int = 1

    @nn.compact
    def __call__(
        self, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The features that are predicted, those that came, both ``[..., F]``; and what the inverse model says of the
        action, ``[..., A]``. Gradients reach the features through the inverse model only (eq. 3 and 5).
        """
        features = torso_output(self.torso, obs, self.observation_ndim)
        next_features = torso_output(self.torso, next_obs, self.observation_ndim)
        fixed, came = jax.lax.stop_gradient((features, next_features))
        predicted = self._two_layers("forward", jnp.concatenate([fixed, actions], axis=-1), features.shape[-1])
        both = jnp.concatenate([features, next_features], axis=-1)
        return predicted, came, self._two_layers("inverse", both, self.num_outputs)

    def _two_layers(self, name: str, x: jax.Array, size: int) -> jax.Array:
        options = {"activation": self.torso.activation, "orthogonal": self.torso.orthogonal}
        x = dense_torso(self.hidden, **options, name=f"{name}_model")(x)
        return dense(size, self.torso.orthogonal, 1.0, name=f"{name}_output")(x)


class DistillationNetwork(nn.Module):
    """One of the two networks of random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894).

    Attributes:
        torso: from an observation to features.
        size: number of outputs.
        hidden: widths of layers between the two, which the predictor has more of than its target.
        observation_ndim: number of axes of one observation.
    """

    torso: Torso
    size: int = 64
    hidden: tuple[int, ...] = ()
    observation_ndim: int = 1

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """``[..., *observation] -> [..., size]``."""
        x = torso_output(self.torso, obs, self.observation_ndim)
        options = {"activation": self.torso.activation, "orthogonal": self.torso.orthogonal}
        return dense(self.size, self.torso.orthogonal, 1.0, name="head")(dense_torso(*self.hidden, **options)(x))

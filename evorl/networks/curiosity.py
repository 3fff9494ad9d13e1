"""Networks of intrinsic rewards: the models of ICM, E3B, RND and DIAYN.

Their inputs are observations ``[..., *observation]``, and in ICM also actions. All modules compare by value.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.heads import output_layer, torso_output
from evorl.networks.torsos import Torso, dense_torso


class CuriosityModel(nn.Module):
    """Intrinsic curiosity module (Pathak et al. 2017, https://arxiv.org/abs/1705.05363, figure 2).

    An inverse model learns features by predicting the action between two observations; a forward model predicts the
    features of the next observation from features and action.

    Attributes:
        torso: maps an observation to its features.
        num_outputs: size A of the vector of an action, which is one-hot if actions are discrete.
        hidden: width of the hidden layer of the forward and the inverse model.
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
        """Return predicted and actual next features, both ``[..., F]``, and the inverse model's output ``[..., A]``.

        Gradients reach the features only through the inverse model (eq. 3 and 5).
        """
        features = torso_output(self.torso, obs, self.observation_ndim).astype(jnp.float32)
        next_features = torso_output(self.torso, next_obs, self.observation_ndim).astype(jnp.float32)
        fixed, actual = jax.lax.stop_gradient((features, next_features))
        predicted = self._two_layers("forward", jnp.concatenate([fixed, actions], axis=-1), features.shape[-1])
        both = jnp.concatenate([features, next_features], axis=-1)
        return predicted, actual, self._two_layers("inverse", both, self.num_outputs)

    def _two_layers(self, name: str, x: jax.Array, size: int) -> jax.Array:
        x = _dense_layers(self.torso, self.hidden, name=f"{name}_model")(x)
        return output_layer(self.torso, size, 1.0, f"{name}_output")(x)


class DistillationNetwork(nn.Module):
    """Network of random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894), and of DIAYN.

    Attributes:
        torso: maps an observation to features.
        size: number of outputs.
        hidden: widths of the hidden layers after the torso; in distillation only the predictor has such layers.
        observation_ndim: number of axes of one observation.
    """

    torso: Torso
    size: int = 64
    hidden: tuple[int, ...] = ()
    observation_ndim: int = 1

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """Map ``[..., *observation]`` to ``[..., size]``."""
        x = torso_output(self.torso, obs, self.observation_ndim)
        return output_layer(self.torso, self.size, 1.0)(_dense_layers(self.torso, *self.hidden)(x))


def _dense_layers(torso: Torso, *sizes: int, name: str | None = None) -> Torso:
    return dense_torso(*sizes, activation=torso.activation, orthogonal=torso.orthogonal, dtype=torso.dtype, name=name)

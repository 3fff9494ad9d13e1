"""Policy and value networks: a torso with a head.

Observations have any leading axes and ``observation_ndim`` axes of their own; integers are cast and pixels scaled.
All networks are modules compared by value.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.inputs import network_input
from evorl.networks.layers import dense
from evorl.types import Observation, Params


class FeatureNetwork(nn.Module):
    """Observations to features that several networks share: ``[..., *observation] -> [..., F]``.

    Attributes:
        torso: a module such as ``Torso``.
        observation_ndim: number of axes of one observation.
    """

    torso: nn.Module
    observation_ndim: int = 1

    @nn.compact
    def __call__(self, obs: Observation) -> jax.Array:
        return torso_output(self.torso, obs, self.observation_ndim)


class PolicyNetwork(nn.Module):
    """Observations to the parameters of an action distribution: ``[..., *observation] -> [..., num_outputs]``.

    Attributes:
        torso: a module such as ``Torso``.
        num_outputs: ``ActionDistribution.num_parameters``.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the head's initial weights; a small one starts near the same action everywhere.
        state_independent_std: the second half of the outputs (log standard deviations) is learnt as one vector instead
            of computed from the observation.
        initial_log_std: where that vector starts.
    """

    torso: nn.Module
    num_outputs: int
    observation_ndim: int = 1
    output_scale: float = 0.01
    state_independent_std: bool = False
    initial_log_std: float = 0.0

    @nn.compact
    def __call__(self, obs: Observation) -> jax.Array:
        hidden = torso_output(self.torso, obs, self.observation_ndim)
        if not self.state_independent_std:
            return _head(self.torso, self.num_outputs, self.output_scale)(hidden)
        if self.num_outputs % 2:
            raise ValueError(
                f"locations and log standard deviations come in pairs, got num_outputs={self.num_outputs}."
            )
        loc = _head(self.torso, self.num_outputs // 2, self.output_scale)(hidden)
        log_std = self.param("log_std", nn.initializers.constant(self.initial_log_std), (self.num_outputs // 2,))
        return jnp.concatenate([loc, jnp.broadcast_to(log_std, loc.shape)], axis=-1)


class ValueNetwork(nn.Module):
    """Observations to state values: ``[..., *observation] -> [...]``.

    Attributes:
        torso: a module such as ``Torso``.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the head's initial weights.
    """

    torso: nn.Module
    observation_ndim: int = 1
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, obs: Observation) -> jax.Array:
        hidden = torso_output(self.torso, obs, self.observation_ndim)
        return _head(self.torso, 1, self.output_scale)(hidden)[..., 0]


def apply_network(network: nn.Module, params: Params, *inputs: Any) -> jax.Array:
    """What a network of this module makes of ``inputs``, with the parameters that its ``init`` returned."""
    # Flax's own ``apply`` returns a pair when asked for changed collections, which no network here has.
    return network.apply(params, *inputs)  # pyright: ignore[reportReturnType]


def torso_output(torso: nn.Module, obs: Observation, observation_ndim: int) -> jax.Array:
    """Features ``[..., F]`` of observations ``[..., *observation]``."""
    return torso(network_input(obs, observation_ndim, torso.input_ndim))


def _head(torso: nn.Module, size: int, scale: float) -> nn.Dense:
    return dense(size, torso.orthogonal, scale, name="head")

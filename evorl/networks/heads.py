"""Policy and value networks: a torso with a head.

Observations have any leading axes followed by ``observation_ndim`` axes; integers are cast and pixels are scaled.
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
    """Network that maps observations to features shared by several networks: ``[..., *observation] -> [..., F]``.

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
    """Network that maps observations to action distributions: ``[..., *observation] -> [..., num_outputs]``.

    Attributes:
        torso: a module such as ``Torso``.
        num_outputs: ``ActionDistribution.num_parameters``.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the head's initial weights; a small gain makes initial actions almost independent of the
            observation.
        state_independent_std: the second half of the outputs (log standard deviations) is one learned vector that does
            not depend on the observation.
        initial_log_std: initial value of that vector.
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
                f"num_outputs must be even, for means and log standard deviations, got num_outputs={self.num_outputs}."
            )
        loc = _head(self.torso, self.num_outputs // 2, self.output_scale)(hidden)
        log_std = self.param("log_std", nn.initializers.constant(self.initial_log_std), (self.num_outputs // 2,))
        return jnp.concatenate([loc, jnp.broadcast_to(log_std, loc.shape)], axis=-1)


class ValueNetwork(nn.Module):
    """Network that maps observations to state values: ``[..., *observation] -> [...]``.

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
    """Apply a network to ``inputs`` with the parameters that its ``init`` returned."""
    # Flax's ``apply`` returns a pair if asked for mutated collections, which is never done here.
    return network.apply(params, *inputs)  # pyright: ignore[reportReturnType]


def torso_output(torso: nn.Module, obs: Observation, observation_ndim: int) -> jax.Array:
    """Return the torso's features ``[..., F]`` of observations ``[..., *observation]``."""
    return torso(network_input(obs, observation_ndim, torso.input_ndim))


def _head(torso: nn.Module, size: int, scale: float) -> nn.Dense:
    return dense(size, torso.orthogonal, scale, name="head")

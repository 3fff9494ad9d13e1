"""Policy and value networks (a torso with a head), and conversion of observations to their float32 inputs.

Observations have any leading axes followed by ``observation_ndim`` axes; integers are cast and pixels are scaled.
All networks are modules that compare by value. Their outputs are float32; the torso may compute in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.layers import dense, float32_outputs
from evorl.ops.trees import as_float
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
        return torso_output(self.torso, obs, self.observation_ndim).astype(jnp.float32)


class PolicyNetwork(nn.Module):
    """Network that maps observations to outputs of a policy: ``[..., *observation] -> [..., num_outputs]``.

    Attributes:
        torso: a module such as ``Torso``.
        num_outputs: number of outputs, such as ``num_parameters`` of an ``ActionDistribution``.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the head's initial weights; if small, first actions depend little on observations.
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
            return output_layer(self.torso, self.num_outputs, self.output_scale)(hidden)
        if self.num_outputs % 2:
            raise ValueError(f"num_outputs={self.num_outputs} must be even, for means and log standard deviations.")
        loc = output_layer(self.torso, self.num_outputs // 2, self.output_scale)(hidden)
        log_std = self.param("log_std", nn.initializers.constant(self.initial_log_std), (self.num_outputs // 2,))
        return jnp.concatenate([loc, jnp.broadcast_to(log_std, loc.shape)], axis=-1)


class ValueNetwork(nn.Module):
    """Network that maps observations to state values: ``[..., *observation] -> [...]``.

    Attributes:
        torso: a module such as ``Torso``.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the head's initial weights.
        num_quantiles: number N of quantiles of the return, for outputs ``[..., N]``; ``None`` for values ``[...]``.
    """

    torso: nn.Module
    observation_ndim: int = 1
    output_scale: float = 1.0
    num_quantiles: int | None = None

    @nn.compact
    def __call__(self, obs: Observation) -> jax.Array:
        hidden = torso_output(self.torso, obs, self.observation_ndim)
        outputs = output_layer(self.torso, self.num_quantiles or 1, self.output_scale)(hidden)
        return outputs if self.num_quantiles else outputs[..., 0]


class ShiftNetwork(nn.Module):
    """Network that maps observations and means of actions to shifts of the means: ``[..., A] -> [..., A]``.

    Attributes:
        torso: a module for flat inputs, the concatenated observation and means.
        size: number A of dimensions of an action.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the head's initial weights; with a small gain, initial shifts are small.
    """

    torso: nn.Module
    size: int
    observation_ndim: int = 1
    output_scale: float = 0.01

    @nn.compact
    def __call__(self, obs: Observation, means: jax.Array) -> jax.Array:
        if self.torso.input_ndim != 1:
            raise ValueError("a network that shifts actions cannot have convolutions: use a torso of dense layers.")
        features = network_input(obs, self.observation_ndim, 1)
        hidden = self.torso(jnp.concatenate([features, means], axis=-1))
        return output_layer(self.torso, self.size, self.output_scale, use_bias=False)(hidden)


def apply_network(network: nn.Module, params: Params, *inputs: Any) -> jax.Array:
    """Apply a network to ``inputs`` with the parameters that its ``init`` returned."""
    # Flax's ``apply`` returns a pair only if mutable collections are requested, which is never done here.
    return network.apply(params, *inputs)  # pyright: ignore[reportReturnType]


def torso_output(torso: nn.Module, obs: Observation, observation_ndim: int) -> jax.Array:
    """Return the torso's features ``[..., F]`` of observations ``[..., *observation]``."""
    return torso(network_input(obs, observation_ndim, torso.input_ndim))


def output_layer(torso: nn.Module, size: int, scale: float, name: str = "head", **options: Any) -> nn.Dense:
    """Return the last layer of a network: dense, with float32 outputs, and the torso's initialization and dtype."""
    return dense(size, torso.orthogonal, scale, name, **float32_outputs(torso.dtype), **options)


def network_input(obs: Observation, observation_ndim: int, input_ndim: int) -> jax.Array:
    """Return observations as float32 with the ``input_ndim`` axes that a torso expects; 1 flattens each observation.

    Leading axes are unchanged.

    Raises:
        ValueError: the observation is a dict, has fewer than ``observation_ndim`` axes, or does not fit the torso.
    """
    if isinstance(obs, Mapping):
        raise ValueError(
            f"a network expects one array, got a dict with {', '.join(sorted(map(str, obs)))}: select an entry with "
            "agent.policy_obs_key or agent.value_obs_key."
        )
    x = as_float(jnp.asarray(obs))
    if x.ndim < observation_ndim:
        raise ValueError(f"expected an observation with {observation_ndim} axes, got an array of shape {x.shape}.")
    if observation_ndim == input_ndim:
        return x
    if input_ndim != 1:
        raise ValueError(f"convolutions need {input_ndim} axes, got {observation_ndim}: use a list of dense layers.")
    leading = x.shape[: x.ndim - observation_ndim]
    return x.reshape(leading + (math.prod(x.shape[len(leading) :]),))

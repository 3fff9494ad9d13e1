"""Action-value networks: heads for all discrete actions or for given continuous actions, and ensembles."""

from __future__ import annotations

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.heads import network_input, output_layer, torso_output
from evorl.networks.layers import STATISTICS, NoisyDense
from evorl.networks.torsos import apply_activation
from evorl.ops.random import split_rows
from evorl.types import Action, Key, Observation, Params


class QNetwork(nn.Module):
    """Action values: ``[...]`` for the passed continuous action, or ``[..., num_actions]`` for all discrete actions.

    With ``num_atoms``, an additional last axis of that size parametrizes a distribution of returns.

    Attributes:
        torso: a module such as ``Torso``; for continuous actions, its input is the concatenated observation and action.
        num_actions: number of discrete actions; ``None`` for continuous actions.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the head's initial weights.
        num_atoms: size of the last axis; ``None`` omits it.
        dueling: compute action values as state value plus advantages minus mean advantage (Wang et al. 2016, eq. 9).
        noisy: the heads have learned noise, sampled with ``key``: one key, one per row, or ``None`` for no noise.
    """

    torso: nn.Module
    num_actions: int | None = None
    observation_ndim: int = 1
    output_scale: float = 1.0
    num_atoms: int | None = None
    dueling: bool = False
    noisy: bool = False

    num_shared_axes: ClassVar[int] = 0  # trailing axes of the heads' inputs along which the noise is the same

    @nn.compact
    def __call__(self, obs: Observation, action: Action | None = None, key: Key | None = None) -> jax.Array:
        if (action is None) != (self.num_actions is not None):
            raise ValueError(f"Q networks take an action if and only if num_actions is None; it is {self.num_actions}.")
        if self.num_actions is not None:
            return self._all_action_values(torso_output(self.torso, obs, self.observation_ndim), self.num_actions, key)
        hidden = self.torso(_joined_with_action(self.torso, obs, self.observation_ndim, action))
        values = self._outputs("head", hidden, self.num_atoms or 1, key)
        return values if self.num_atoms else values[..., 0]

    def _outputs(self, name: str, x: jax.Array, size: int, key: Key | None) -> jax.Array:
        if self.noisy:
            return NoisyDense(size, dtype=self.torso.dtype, num_shared_axes=self.num_shared_axes, name=name)(x, key)
        return output_layer(self.torso, size, self.output_scale, name)(x)

    def _all_action_values(self, hidden: jax.Array, num_actions: int, key: Key | None) -> jax.Array:
        key, value_key = (None, None) if key is None else split_rows(key)
        num_atoms = self.num_atoms or 1
        values = self._outputs("head", hidden, num_actions * num_atoms, key)
        values = values.reshape((*values.shape[:-1], num_actions, num_atoms))
        if self.dueling:
            state_value = self._outputs("state_value", hidden, num_atoms, value_key)[..., None, :]
            values = state_value + values - values.mean(axis=-2, keepdims=True)
        return values if self.num_atoms else values[..., 0]


class PredictiveQNetwork(nn.Module):
    """Distribution of the return of an action, computed from an embedding of observation and action.

    An auxiliary head predicts the next embedding, then the reward, from this embedding (Voelcker et al. 2025,
    https://arxiv.org/abs/2507.11019, section 4.3).

    Attributes:
        torso: a module such as ``Torso`` below the embedding; its input is the concatenated observation and action.
        head_torso: torso of each head, above the embedding; the two heads do not share parameters.
        num_atoms: number M of parameters of the distribution.
        embedding_size: size F of the embedding, which is linear.
        observation_ndim: number of axes of one observation.
    """

    torso: nn.Module
    head_torso: nn.Module
    num_atoms: int
    embedding_size: int
    observation_ndim: int = 1
    num_actions: ClassVar[None] = None  # continuous actions

    @nn.compact
    def __call__(self, obs: Observation, action: Action) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return distribution parameters ``[..., M]``, embedding ``[..., F]`` and prediction ``[..., F + 1]``."""
        hidden = self.torso(_joined_with_action(self.torso, obs, self.observation_ndim, action))
        embedding = output_layer(self.torso, self.embedding_size, 1.0, "embedding")(hidden)
        hidden = apply_activation(self.head_torso.activation, embedding)
        logits = output_layer(self.torso, self.num_atoms, 1.0)(self.head_torso(hidden))
        prediction_torso = self.head_torso.clone(parent=self, name="prediction_torso")
        prediction = output_layer(self.torso, self.embedding_size + 1, 1.0, "prediction")(prediction_torso(hidden))
        return logits, embedding, prediction


class EnsembleQNetwork(nn.Module):
    """``num_critics`` independently initialized Q networks, evaluated in parallel by ``vmap``.

    ``(obs, action) -> [K, ...]`` for continuous actions, ``obs -> [K, ..., num_actions]`` for discrete ones, with an
    additional axis for ``num_atoms``. Every parameter has a leading axis K.

    Attributes:
        torso: torso of one member; for continuous actions, its input is the concatenated observation and action.
        num_critics: number K of members.
        num_actions: number of discrete actions; ``None`` for continuous actions.
        observation_ndim: number of axes of one observation.
        output_scale: gain of the initial weights of each member's head.
        num_atoms: size of the additional last axis; ``None`` omits it.
    """

    torso: nn.Module
    num_critics: int = 2
    num_actions: int | None = None
    observation_ndim: int = 1
    output_scale: float = 1.0
    num_atoms: int | None = None

    @nn.nowrap
    def member(self) -> QNetwork:
        """Return the network of one member; its parameters are entries along axis 0 of the ensemble's ``members``."""
        return QNetwork(*self._member_fields())

    @nn.nowrap
    def _member_fields(self) -> tuple[Any, ...]:
        torso = self.torso.clone(parent=None)
        return torso, self.num_actions, self.observation_ndim, self.output_scale, self.num_atoms

    @nn.compact
    def __call__(self, obs: Observation, action: Action | None = None) -> jax.Array:
        if self.num_critics < 1:
            raise ValueError(f"an ensemble needs at least one critic, got num_critics={self.num_critics}.")
        members = nn.vmap(
            QNetwork,
            variable_axes={"params": 0, STATISTICS: 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            out_axes=0,
            axis_size=self.num_critics,
        )
        member = members(*self._member_fields(), name="members")
        return member(obs) if action is None else member(obs, action)


def _joined_with_action(torso: nn.Module, obs: Observation, observation_ndim: int, action: Action | None) -> jax.Array:
    """Return the torso's input for continuous actions, ``[..., O + A]``."""
    if torso.input_ndim != 1:
        raise ValueError(
            "critics of continuous actions cannot have convolutions: set agent.network.torso (or critic_network.torso) "
            "to a list of dense layers, such as [256, 256]."
        )
    return jnp.concatenate([network_input(obs, observation_ndim, 1), jnp.asarray(action, jnp.float32)], axis=-1)


def apply_in_training(network: nn.Module, params: Params, statistics: Params, *inputs: Any) -> tuple[jax.Array, Params]:
    """Apply a network with running ``statistics`` to a minibatch; return outputs and updated statistics."""
    outputs, changed = network.apply({**params, STATISTICS: statistics}, *inputs, mutable=[STATISTICS])
    return outputs, changed.get(STATISTICS, statistics)

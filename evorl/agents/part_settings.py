"""Settings of the networks of each agent family, with their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from evorl.distributions import LogStdBound
from evorl.networks.layers import Dtype
from evorl.networks.torsos import Torso, build_torso
from evorl.types import PyTreeNode, pytree_field


class TorsoSettings(PyTreeNode):
    """Settings of a torso, see ``build_torso``.

    Attributes:
        torso: list of layers, where a number is a dense layer of that width; a convolutional preset: minatar, nature,
            classic, impala or universe; or package.module:name for a user-defined layer.
        activation: name of an activation, such as relu; kaf, or {name: kaf, kernel: rbf2d}, for activations learned per
            neuron; or package.module:name for a user-defined activation.
        layer_norm: layer normalization between each dense layer and its activation.
        orthogonal: initial weights are orthogonal matrices; false samples them uniformly.
        dtype: float32 or bfloat16: number format that the layers compute in; parameters, network outputs, losses
            and statistics are always float32.
    """

    torso: Any = pytree_field(static=True, default=(64, 64))
    activation: Any = pytree_field(static=True, default="tanh")
    layer_norm: bool = False
    orthogonal: bool = True
    dtype: Dtype = "float32"


class TorsoDifferences(PyTreeNode):
    """Settings of a torso that override ``network``.

    Attributes:
        torso: list of layers or a preset, as in ``network.torso``; null uses that of ``network``.
        activation: activation, as in ``network.activation``; null uses that of ``network``.
        layer_norm: layer normalization between each dense layer and its activation; null uses that of ``network``.
        orthogonal: initial weights are orthogonal matrices; null uses that of ``network``.
        dtype: number format that the layers compute in, float32 or bfloat16; null uses that of ``network``.
    """

    torso: Any = pytree_field(static=True, default=None)
    activation: Any = pytree_field(static=True, default=None)
    layer_norm: bool | None = None
    orthogonal: bool | None = None
    dtype: Dtype | None = None


def differing_torsos(
    options: Mapping[str, Any], differences: Mapping[str, Any], where: str = "agent.critic_network", keeps: bool = False
) -> tuple[Torso, Torso]:
    """Build two torsos: from ``options``, and from ``options`` with the non-null ``differences`` at ``where``."""
    torso = build_torso(options, keeps_statistics=keeps)  # built first: its errors do not name ``where``
    differing = {name: value for name, value in differences.items() if value is not None}
    return torso, build_torso({**options, **differing}, where=where, keeps_statistics=keeps)


class CellSettings(PyTreeNode):
    """Settings of a recurrent cell, see ``build_cell``.

    Attributes:
        name: kind of cell: gru, lstm, dilated_lstm, min_gru, lru, gtrxl, or package.module:Class (user-defined).
        size: number of units of the cell.
    """

    name: str = "lstm"
    size: int = 128


class ActorCriticHeads(PyTreeNode):
    """Additional layers of each network, after the shared or recurrent part.

    Attributes:
        policy: additional layers of the policy, a list as in ``torso``.
        value: additional layers of the value function or critics, a list as in ``torso``.
    """

    policy: Any = pytree_field(static=True, default=())
    value: Any = pytree_field(static=True, default=())


class ActorCriticNetworkSettings(TorsoSettings):
    """Settings of the networks of a policy and a value function.

    Attributes:
        shared: policy and value function share one torso, on which both have heads, instead of separate networks.
        recurrent: recurrent cell after the torso: gru, lstm, dilated_lstm, min_gru, lru, gtrxl, or
            package.module:Class (user-defined); or a mapping, {name: lstm, size: 128}; null for none.
        initial_log_std: initial logarithm of the standard deviation of continuous actions, before squashing.
        heads: additional layers of each network, after the shared or recurrent part.
    """

    shared: bool = False
    recurrent: Any = pytree_field(static=True, default=None)
    initial_log_std: float = 0.0
    heads: ActorCriticHeads = ActorCriticHeads()


class ActorCriticSettings(PyTreeNode):
    """Network settings of an actor-critic.

    Attributes:
        network: networks of the policy and the value function.
    """

    network: ActorCriticNetworkSettings = ActorCriticNetworkSettings()


class QuantileNetworkSettings(ActorCriticNetworkSettings):
    """Settings of the networks of a policy and a value function that may estimate quantiles.

    Attributes:
        num_quantiles: number of quantiles of the return that the value function estimates, whose mean is the value;
            null to estimate the expected value instead.
    """

    num_quantiles: int | None = None


class QuantileActorCriticSettings(PyTreeNode):
    """Network settings of an actor-critic whose value function may estimate quantiles.

    Attributes:
        network: networks of the policy and the value function.
    """

    network: QuantileNetworkSettings = QuantileNetworkSettings()


class CriticEnsembleSettings(PyTreeNode):
    """Network settings of an agent with a policy and an ensemble of critics.

    Attributes:
        network: network of the policy, and of the critics unless overridden by critic_network.
        critic_network: overrides of ``network`` for the critics.
        num_critics: number of critics in the ensemble.
    """

    network: TorsoSettings = TorsoSettings(torso=(256, 256), activation="relu", orthogonal=False)
    critic_network: TorsoDifferences = TorsoDifferences()
    num_critics: int = 2


class CategoricalCriticSettings(CriticEnsembleSettings):
    """Network settings of an agent whose critics may estimate distributions of returns.

    Attributes:
        values: output of the critics: ``expected`` values, or ``categorical`` distributions of returns.
        num_atoms: number of atoms of categorical distributions; null for expected values.
    """

    values: Literal["expected", "categorical"] = "expected"
    num_atoms: int | None = None


class DeviationSettings(PyTreeNode):
    """Bounds on the standard deviation of a policy's normal distribution, before squashing.

    Attributes:
        min_log_std: smallest logarithm of the policy's standard deviation, before squashing.
        max_log_std: largest logarithm of the policy's standard deviation, before squashing.
        log_std_bound: use of min_log_std and max_log_std: ``clip`` clips the output to them; ``tanh`` maps it between
            them, 0 to the middle; ``add`` clips it to max_log_std, then adds exp(min_log_std) to the deviation.
    """

    min_log_std: float = -20.0
    max_log_std: float = 2.0
    log_std_bound: LogStdBound = "clip"


def pop_deviation_bounds(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields of ``DeviationSettings`` from the settings, and return them."""
    return {field.name: settings.pop(field.name) for field in dataclasses.fields(DeviationSettings)}


class SoftActorCriticSettings(CriticEnsembleSettings, DeviationSettings):
    """Network settings of a soft actor-critic.

    Attributes:
        policy_output_scale: gain of the initial weights of the policy's last layer.
    """

    policy_output_scale: float = 0.01


class CategoricalSoftActorCriticSettings(SoftActorCriticSettings, CategoricalCriticSettings):
    """Network settings of a soft actor-critic whose critics may estimate distributions of returns."""


class PredictiveCriticSettings(DeviationSettings):
    """Network settings of an agent with a policy and one distributional critic, which also predicts the next step.

    Attributes:
        network: network of the policy; its settings also apply to the critic unless overridden by critic_network.
        critic_network: overrides of ``network`` for the critic; ``torso`` sets the layers before the embedding.
        embedding_size: size of the embedding of an observation and an action.
        critic_heads: layers after the embedding, with separate parameters for the values and the prediction.
        num_atoms: number of atoms of the distribution of returns.
    """

    min_log_std: float = -2.3026  # adds exp(-2.3026) = 0.1 to the standard deviation
    log_std_bound: LogStdBound = "add"
    network: TorsoSettings = TorsoSettings(torso=(512, 512), activation="swish", layer_norm=True, orthogonal=False)
    critic_network: TorsoDifferences = TorsoDifferences(torso=(512,))
    embedding_size: int = 512
    critic_heads: Any = pytree_field(static=True, default=(512,))
    num_atoms: int = 151


class RecurrentHeads(PyTreeNode):
    """Settings of the head of a recurrent action-value network.

    Attributes:
        dueling: compute action values as a state value plus the advantages of the actions.
        layers: additional layers between the recurrent cell and the values.
    """

    dueling: bool = True
    layers: Any = pytree_field(static=True, default=())


class RecurrentNetworkSettings(TorsoSettings):
    """Settings of a recurrent action-value network.

    Attributes:
        recurrent: cell after the torso: gru, lstm, dilated_lstm, min_gru, lru or gtrxl, or {name: gru, size: 64}.
        heads: settings of the head that maps the outputs of the cell to action values.
    """

    recurrent: CellSettings = CellSettings(size=64)
    heads: RecurrentHeads = RecurrentHeads()


class RecurrentValueSettings(PyTreeNode):
    """Network settings of a recurrent action-value agent.

    Attributes:
        network: network of the action values.
    """

    network: RecurrentNetworkSettings = RecurrentNetworkSettings(torso=(64,), activation="relu", orthogonal=False)


class MemoryNetworkSettings(TorsoSettings):
    """Settings of a recurrent network, and of the actor and the critics on its output.

    Attributes:
        recurrent: cell after the torso: gru, lstm, dilated_lstm, min_gru, lru or gtrxl, or {name: gru, size: 64}.
        heads: additional layers of each network, after the recurrent part.
    """

    recurrent: CellSettings = CellSettings("gru", size=64)
    heads: ActorCriticHeads = ActorCriticHeads(policy=(128,), value=(128,))


class MemoryCriticSettings(PyTreeNode):
    """Network settings of an agent whose policy and ensemble of critics read a memory.

    Attributes:
        network: the recurrent network (memory), and the actor and the critics that read its output.
        num_critics: number of critics in the ensemble.
    """

    network: MemoryNetworkSettings = MemoryNetworkSettings(torso=(64,), activation="relu", orthogonal=False)
    num_critics: int = 2


class NetworkSettings(PyTreeNode):
    """Network settings of an agent with one network.

    Attributes:
        network: the agent's network.
    """

    network: TorsoSettings = TorsoSettings(torso=(120, 84), activation="relu", orthogonal=False)


class DQNHeads(PyTreeNode):
    """Settings of the Q-network's heads.

    Attributes:
        dueling: estimate a state value and the advantage of each action, instead of action values directly.
        noisy: explore by learned noise on the weights of the heads.
    """

    dueling: bool = False
    noisy: bool = False


class DQNNetworkSettings(TorsoSettings):
    """Settings of the Q-network.

    Attributes:
        heads: settings of the Q-network's heads.
    """

    heads: DQNHeads = DQNHeads()


class DQNSettings(PyTreeNode):
    """Network settings of a DQN agent.

    Attributes:
        network: settings of the Q-network.
        num_atoms: number of atoms (categorical), quantiles (quantile), or sampled fractions (implicit); null for
            expected values.
    """

    network: DQNNetworkSettings = DQNNetworkSettings(torso=(120, 84), activation="relu", orthogonal=False)
    num_atoms: int | None = None

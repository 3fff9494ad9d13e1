"""What configs say of the networks that families of agents build, with the usual values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evorl.networks.torsos import Torso, build_torso
from evorl.types import PyTreeNode, pytree_field


class TorsoSettings(PyTreeNode):
    """A torso, see ``build_torso``.

    Attributes:
        torso: layers, a number being a dense one of that width; or minatar, nature, classic, impala or universe; or
            package.module:name of your own, as a layer too.
        activation: by name; or kaf, or {name: kaf, kernel: rbf2d}: every neuron learns its own; or package.module:name
            of your own.
        layer_norm: normalise before each activation.
        orthogonal: orthogonal initial weights.
    """

    torso: Any = pytree_field(static=True, default=(64, 64))
    activation: Any = pytree_field(static=True, default="tanh")
    layer_norm: bool = False
    orthogonal: bool = True


class TorsoDifferences(PyTreeNode):
    """Where a torso differs from that of ``network``.

    Attributes:
        torso: layers; null for the same.
        activation: null for the same.
        layer_norm: null for the same.
        orthogonal: null for the same.
    """

    torso: Any = pytree_field(static=True, default=None)
    activation: Any = pytree_field(static=True, default=None)
    layer_norm: bool | None = None
    orthogonal: bool | None = None


def differing_torso(options: Mapping[str, Any], differences: Mapping[str, Any], **given: Any) -> Torso:
    """The torso of ``options`` with the differences that are not null; ``given`` goes to ``build_torso``."""
    return build_torso({**options, **{k: v for k, v in differences.items() if v is not None}}, **given)


class CellSettings(PyTreeNode):
    """A recurrent cell, see ``build_cell``.

    Attributes:
        name: gru, lstm or dilated_lstm.
        size: units.
    """

    name: str = "lstm"
    size: int = 128


class ActorCriticHeads(PyTreeNode):
    """Further layers of each network, above what is shared or recurrent.

    Attributes:
        policy: of the policy.
        value: of the value function.
    """

    policy: Any = pytree_field(static=True, default=())
    value: Any = pytree_field(static=True, default=())


class ActorCriticNetworkSettings(TorsoSettings):
    """Networks of a policy and a value function.

    Attributes:
        shared: one network below both heads instead of two.
        recurrent: null, gru, lstm or dilated_lstm, or {name: lstm, size: 128}: the recurrent cell behind the torso.
        heads: further layers of each network, above what is shared or recurrent.
    """

    shared: bool = False
    recurrent: Any = pytree_field(static=True, default=None)
    heads: ActorCriticHeads = ActorCriticHeads()


class ActorCriticSettings(PyTreeNode):
    """What is built of an actor-critic.

    Attributes:
        network: of the policy and of the value function.
    """

    network: ActorCriticNetworkSettings = ActorCriticNetworkSettings()


class CriticEnsembleSettings(PyTreeNode):
    """What is built of a policy and an ensemble of critics.

    Attributes:
        network: of the policy, and of the critics but for ``critic_network``.
        critic_network: where the critics' networks differ.
        num_critics: size of the ensemble.
    """

    network: TorsoSettings = TorsoSettings(torso=(256, 256), activation="relu", orthogonal=False)
    critic_network: TorsoDifferences = TorsoDifferences()
    num_critics: int = 2


class ActionValueSettings(PyTreeNode):
    """What is built of an agent of action values.

    Attributes:
        network: of the values of all actions.
    """

    network: TorsoSettings = TorsoSettings(torso=(120, 84), activation="relu", orthogonal=False)


class RecurrentHeads(PyTreeNode):
    """What reads the cell's outputs.

    Attributes:
        dueling: values as a state's value plus the actions' advantages.
        layers: further layers below the values.
    """

    dueling: bool = True
    layers: Any = pytree_field(static=True, default=())


class RecurrentNetworkSettings(TorsoSettings):
    """A recurrent network of action values.

    Attributes:
        recurrent: the cell behind the torso: gru, lstm or dilated_lstm, or a mapping.
        heads: what reads the cell's outputs.
    """

    recurrent: CellSettings = CellSettings(size=64)
    heads: RecurrentHeads = RecurrentHeads()


class RecurrentValueSettings(PyTreeNode):
    """What is built of an agent of action values that depend on the episode so far.

    Attributes:
        network: of the values of all actions.
    """

    network: RecurrentNetworkSettings = RecurrentNetworkSettings(torso=(64,), activation="relu", orthogonal=False)


class PolicySettings(PyTreeNode):
    """What is built of an agent of one policy.

    Attributes:
        network: of the policy.
    """

    network: TorsoSettings = TorsoSettings(torso=(16, 16), orthogonal=False)

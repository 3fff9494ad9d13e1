"""What configs say of networks, with the usual values: agents build their networks from such settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evorl.networks.torsos import Torso, build_torso
from evorl.types import PyTreeNode, pytree_field


class TorsoSettings(PyTreeNode):
    """A torso, see ``build_torso``.

    Attributes:
        torso: layers, a number being a dense one of that width; or minatar, nature, impala or universe.
        activation: by name; or kaf, or {name: kaf, kernel: rbf2d}: every neuron learns its own.
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

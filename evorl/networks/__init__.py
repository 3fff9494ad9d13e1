"""Network modules: torsos, heads, and what stands between them and observations."""

from evorl.networks.activations import activation_by_name, activation_names
from evorl.networks.batch_renorm import STATISTICS, BatchRenorm
from evorl.networks.heads import (
    EnsembleQNetwork,
    FeatureNetwork,
    PolicyNetwork,
    QNetwork,
    ValueNetwork,
    apply_in_training,
    apply_network,
)
from evorl.networks.inputs import network_input, select_observation
from evorl.networks.memory import MemoryNetwork, assemble, build_cell
from evorl.networks.torsos import Torso, build_torso, dense_torso

__all__ = [
    "STATISTICS",
    "BatchRenorm",
    "EnsembleQNetwork",
    "FeatureNetwork",
    "MemoryNetwork",
    "PolicyNetwork",
    "QNetwork",
    "Torso",
    "ValueNetwork",
    "activation_by_name",
    "activation_names",
    "apply_in_training",
    "apply_network",
    "assemble",
    "build_cell",
    "build_torso",
    "dense_torso",
    "network_input",
    "select_observation",
]

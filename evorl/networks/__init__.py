"""Network modules: torsos (stacks of layers), recurrent cells, and heads for policies, values and action values."""

from typing import TYPE_CHECKING

from evorl.exports import lazy_exports

if TYPE_CHECKING:
    from evorl.networks.gated_transformer import GTrXL as GTrXL
    from evorl.networks.heads import PolicyNetwork as PolicyNetwork
    from evorl.networks.heads import ValueNetwork as ValueNetwork
    from evorl.networks.linear_cells import LRU as LRU
    from evorl.networks.linear_cells import MinGRU as MinGRU
    from evorl.networks.q_networks import EnsembleQNetwork as EnsembleQNetwork
    from evorl.networks.q_networks import QNetwork as QNetwork
    from evorl.networks.recurrent import GRU as GRU
    from evorl.networks.recurrent import LSTM as LSTM
    from evorl.networks.recurrent import DilatedLSTM as DilatedLSTM
    from evorl.networks.recurrent import RecurrentNetwork as RecurrentNetwork
    from evorl.networks.torsos import Torso as Torso
    from evorl.networks.torsos import build_torso as build_torso
    from evorl.networks.torsos import dense_torso as dense_torso
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        gated_transformer="GTrXL",
        heads="PolicyNetwork ValueNetwork",
        linear_cells="LRU MinGRU",
        q_networks="EnsembleQNetwork QNetwork",
        recurrent="DilatedLSTM GRU LSTM RecurrentNetwork",
        torsos="Torso build_torso dense_torso",
    )

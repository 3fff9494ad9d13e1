"""Algorithms, one file each, with their hyperparameters, losses and update order."""

from typing import TYPE_CHECKING

from evorl.exports import lazy_exports

if TYPE_CHECKING:
    from evorl.algorithms.a2c import A2CAgent as A2CAgent
    from evorl.algorithms.a2c import A2CWorkflow as A2CWorkflow
    from evorl.algorithms.bro import BROAgent as BROAgent
    from evorl.algorithms.bro import BROWorkflow as BROWorkflow
    from evorl.algorithms.cemrl import CEMRLWorkflow as CEMRLWorkflow
    from evorl.algorithms.crossq import CrossQAgent as CrossQAgent
    from evorl.algorithms.crossq import CrossQWorkflow as CrossQWorkflow
    from evorl.algorithms.discor import DisCorAgent as DisCorAgent
    from evorl.algorithms.discor import DisCorWorkflow as DisCorWorkflow
    from evorl.algorithms.dqn import DQNAgent as DQNAgent
    from evorl.algorithms.dqn import DQNWorkflow as DQNWorkflow
    from evorl.algorithms.erl import ERLWorkflow as ERLWorkflow
    from evorl.algorithms.impala import IMPALAAgent as IMPALAAgent
    from evorl.algorithms.impala import IMPALAWorkflow as IMPALAWorkflow
    from evorl.algorithms.iql import IQLAgent as IQLAgent
    from evorl.algorithms.iql import IQLWorkflow as IQLWorkflow
    from evorl.algorithms.map_elites import MAPElitesWorkflow as MAPElitesWorkflow
    from evorl.algorithms.multi_objective import MultiObjectiveWorkflow as MultiObjectiveWorkflow
    from evorl.algorithms.neuroevolution import NeuroevolutionWorkflow as NeuroevolutionWorkflow
    from evorl.algorithms.pbt import PBTWorkflow as PBTWorkflow
    from evorl.algorithms.pga_me import PGAMEWorkflow as PGAMEWorkflow
    from evorl.algorithms.ppo import PPOAgent as PPOAgent
    from evorl.algorithms.ppo import PPOWorkflow as PPOWorkflow
    from evorl.algorithms.pqn import PQNAgent as PQNAgent
    from evorl.algorithms.pqn import PQNWorkflow as PQNWorkflow
    from evorl.algorithms.pqn_continuous import PQNContinuousAgent as PQNContinuousAgent
    from evorl.algorithms.pqn_continuous import PQNContinuousWorkflow as PQNContinuousWorkflow
    from evorl.algorithms.pqn_recurrent import PQNRecurrentAgent as PQNRecurrentAgent
    from evorl.algorithms.pqn_recurrent import PQNRecurrentWorkflow as PQNRecurrentWorkflow
    from evorl.algorithms.r2d2 import R2D2Agent as R2D2Agent
    from evorl.algorithms.r2d2 import R2D2Workflow as R2D2Workflow
    from evorl.algorithms.random_agent import RandomAgentWorkflow as RandomAgentWorkflow
    from evorl.algorithms.recurrent_sac import RecurrentSACAgent as RecurrentSACAgent
    from evorl.algorithms.recurrent_sac import RecurrentSACWorkflow as RecurrentSACWorkflow
    from evorl.algorithms.reinforce import ReinforceAgent as ReinforceAgent
    from evorl.algorithms.reinforce import ReinforceWorkflow as ReinforceWorkflow
    from evorl.algorithms.reppo import REPPOAgent as REPPOAgent
    from evorl.algorithms.reppo import REPPOWorkflow as REPPOWorkflow
    from evorl.algorithms.rlpd import RLPDAgent as RLPDAgent
    from evorl.algorithms.rlpd import RLPDWorkflow as RLPDWorkflow
    from evorl.algorithms.sac import SACAgent as SACAgent
    from evorl.algorithms.sac import SACWorkflow as SACWorkflow
    from evorl.algorithms.td3 import TD3Agent as TD3Agent
    from evorl.algorithms.td3 import TD3Workflow as TD3Workflow
    from evorl.algorithms.td3_bc import TD3BCAgent as TD3BCAgent
    from evorl.algorithms.td3_bc import TD3BCWorkflow as TD3BCWorkflow
    from evorl.algorithms.tqc import TQCAgent as TQCAgent
    from evorl.algorithms.tqc import TQCWorkflow as TQCWorkflow
    from evorl.algorithms.trpo import TRPOAgent as TRPOAgent
    from evorl.algorithms.trpo import TRPOWorkflow as TRPOWorkflow
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        a2c="A2CAgent A2CWorkflow",
        bro="BROAgent BROWorkflow",
        cemrl="CEMRLWorkflow",
        crossq="CrossQAgent CrossQWorkflow",
        discor="DisCorAgent DisCorWorkflow",
        dqn="DQNAgent DQNWorkflow",
        erl="ERLWorkflow",
        impala="IMPALAAgent IMPALAWorkflow",
        iql="IQLAgent IQLWorkflow",
        map_elites="MAPElitesWorkflow",
        multi_objective="MultiObjectiveWorkflow",
        neuroevolution="NeuroevolutionWorkflow",
        pbt="PBTWorkflow",
        pga_me="PGAMEWorkflow",
        ppo="PPOAgent PPOWorkflow",
        pqn="PQNAgent PQNWorkflow",
        pqn_continuous="PQNContinuousAgent PQNContinuousWorkflow",
        pqn_recurrent="PQNRecurrentAgent PQNRecurrentWorkflow",
        r2d2="R2D2Agent R2D2Workflow",
        random_agent="RandomAgentWorkflow",
        recurrent_sac="RecurrentSACAgent RecurrentSACWorkflow",
        reinforce="ReinforceAgent ReinforceWorkflow",
        reppo="REPPOAgent REPPOWorkflow",
        rlpd="RLPDAgent RLPDWorkflow",
        sac="SACAgent SACWorkflow",
        td3="TD3Agent TD3Workflow",
        td3_bc="TD3BCAgent TD3BCWorkflow",
        tqc="TQCAgent TQCWorkflow",
        trpo="TRPOAgent TRPOWorkflow",
    )

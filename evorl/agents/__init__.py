"""Base agents of algorithm families: actor-critics, action values, policies without a critic, random actions."""

from typing import TYPE_CHECKING

from evorl.exports import lazy_exports

if TYPE_CHECKING:
    from evorl.agents.action_value import ActionValueAgent as ActionValueAgent
    from evorl.agents.actor_critic import ActorCriticAgent as ActorCriticAgent
    from evorl.agents.critic_ensemble import CriticEnsembleAgent as CriticEnsembleAgent
    from evorl.agents.critic_ensemble import StochasticPolicyAgent as StochasticPolicyAgent
    from evorl.agents.policy import PolicyAgent as PolicyAgent
    from evorl.agents.quantile_critics import QuantileCriticsAgent as QuantileCriticsAgent
    from evorl.agents.random_actions import RandomAgent as RandomAgent
    from evorl.agents.recurrent_value import RecurrentValueAgent as RecurrentValueAgent
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        action_value="ActionValueAgent",
        actor_critic="ActorCriticAgent",
        critic_ensemble="CriticEnsembleAgent StochasticPolicyAgent",
        policy="PolicyAgent",
        quantile_critics="QuantileCriticsAgent",
        random_actions="RandomAgent",
        recurrent_value="RecurrentValueAgent",
    )

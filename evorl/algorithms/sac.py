"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905), also for discrete actions
(Christodoulou 2019, https://arxiv.org/abs/1910.07207).

An off-policy actor-critic that maximises the return and the policy's entropy; the temperature that weighs the two is
adapted so that the entropy stays near a target. An ensemble of critics guards against overestimated values.

It is what the family shares, and nothing else: the losses are in ``evorl.soft_actor_critic``, the order of updates in
``evorl.workflows.soft_actor_critic``.
"""

from __future__ import annotations

from evorl.soft_actor_critic import SoftActorCriticAgent
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.soft_actor_critic import SoftActorCriticUpdates


class SACAgent(SoftActorCriticAgent):
    """A stochastic policy, an ensemble of critics with slow copies, of which the least value counts; a temperature."""


class SACWorkflow(SoftActorCriticUpdates, OffPolicyWorkflow):
    """SAC: critics, actor and temperature in turn, then the slow critics follow."""

    agent: SACAgent

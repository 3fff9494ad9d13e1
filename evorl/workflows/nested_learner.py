"""Off-policy learners nested in another workflow: construction, checks, and updates whose number may be traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, policy_improvers
from evorl.assembly import inner_workflow, workflow_class
from evorl.config.values import checked_mapping, field_types, short_repr
from evorl.metrics import WideCounter
from evorl.ops.normalization import update_statistics
from evorl.ops.platform import on_cpu
from evorl.ops.schedules import whole_updates
from evorl.ops.trees import Tree, row_of
from evorl.runs.spec import RunSpec
from evorl.types import Key, Observation, PyTreeDict
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.off_policy_state import LearnerState
from evorl.workflows.workflow import Workflow

UPDATES_AT_ONCE = 64  # number of updates whose batches are in memory at a time


def build_learner(spec: RunSpec, total_timesteps: Any) -> OffPolicyWorkflow:
    """Build the learner from the section ``learner`` of the settings, with the run's environment.

    A workflow class with this function as attribute acts with its learner's agent, see ``workflow_fields``.

    Raises:
        ValueError: the section is invalid, or ``checked_learner`` rejects the learner.
    """
    if spec.workflow.get("agent"):
        raise ValueError("agent is a setting of the learner here: set learner.agent instead.")
    part = checked_mapping(spec.workflow.get("learner"), "learner")
    if "workflow" in part:  # checked before its settings are read, because an unsuitable class may lack them
        chosen = workflow_class(part["workflow"], "learner.workflow")
        check_learner_class(chosen)
        if part.get("offline", chosen.offline):
            raise ValueError(
                "learner.offline=true learns from recorded transitions alone, but a learner inside another algorithm "
                "learns from the episodes of the population: set learner.offline=false."
            )
    spec = dataclasses.replace(spec, workflow={**spec.workflow, "learner": {"num_envs": 1, **part}})
    run_settings = ("devices", "num_seeds", "env_chunk", "evaluation")
    return checked_learner(inner_workflow(spec, "learner", ("env",), run_settings, total_timesteps))


def checked_learner(learner: Workflow) -> OffPolicyWorkflow:
    """Return the learner, after checking that an outer workflow can evolve its policy and fill its replay buffer.

    Raises:
        ValueError: ``check_learner_class`` rejects the class, or a setting is incompatible with nesting.
    """
    check_learner_class(type(learner))
    assert isinstance(learner, OffPolicyWorkflow), "check_learner_class rejects others"
    env = learner.env
    if env.num_agents > 1:
        raise ValueError(
            f"learner supports environments with a single agent, but this one has {env.num_agents}: choose an "
            "algorithm without the section learner, such as agent=ppo or agent=ec/openes."
        )
    agent: Any = learner.agent  # an agent that improves policies
    agent_state = jax.eval_shape(lambda key: agent.init(env.obs_space, env.action_space, key), jax.random.key(0))
    if jax.tree.leaves(agent.policy_statistics(agent_state)):
        raise ValueError(
            f"learner is {type(learner).__name__}, whose policy has running statistics, but "
            "only parameters are evolved: set learner.agent.network.torso to layers without batch_norm and "
            "batch_renorm, such as [256, 256] (learner.agent.critic_network may keep them)."
        )
    required = {
        "replay.load": (
            learner.replay.load,
            None,
            "its replay buffer starts empty and stores episodes of the population",
        ),
        "intrinsic": (learner.intrinsic, None, "the population collects the transitions"),
        "reward_bound": (learner.reward_bound, None, "the population collects the episodes that would scale rewards"),
        "num_envs": (env.num_envs, 1, "the learner steps no environments"),
    }
    for name, (value, valid, reason) in required.items():
        if value != valid:
            remedy = f"set learner.{name}={valid or 'null'}"
            raise ValueError(f"learner.{name}={short_repr(value)} has no effect, because {reason}: {remedy}.")
    return learner


def check_learner_class(cls: type[Workflow]) -> None:
    """Reject algorithms without a replay buffer, or without a policy of observations that critics can improve.

    The agent of a suitable algorithm declares ``improves_policies``.

    Raises:
        ValueError: the class is not suitable; the message names evorl's suitable algorithms.
    """
    if not issubclass(cls, OffPolicyWorkflow):
        lacks = "which does not learn from a replay buffer"
    elif not field_types(cls)["agent"].improves_policies:
        lacks = "which has no policy that reads observations and that critics can improve"
    else:
        return
    *others, last = policy_improvers()
    raise ValueError(f"learner is {cls.__name__}, {lacks}: choose {', '.join(others)} or {last}.")


def require_room_for(num_transitions: int, learner: OffPolicyWorkflow) -> None:
    """Raise ``ValueError`` if the learner's replay buffer cannot hold a generation of ``num_transitions``."""
    if learner.replay_capacity < num_transitions:
        raise ValueError(
            f"learner.replay_capacity={learner.replay_capacity} is too small for one generation, which may collect "
            f"{num_transitions} transitions: choose {num_transitions} or more."
        )


def updates_for_steps(learner: OffPolicyWorkflow, before: WideCounter, timesteps: jax.Array) -> jax.Array:
    """Return the number of updates, int32, due for ``timesteps`` environment steps after ``before`` earlier steps."""
    per_step = Fraction(learner.updates_per_iteration).limit_denominator(10_000) / learner.timesteps_per_iteration
    return whole_updates(per_step, before.low, timesteps)


def with_statistics_of(agent_states: AgentState, obs: Observation, mask: jax.Array) -> AgentState:
    """Return the agent states ``[K, ...]`` with ``obs`` added to the observation statistics, if any, which all K share.

    Args:
        agent_states: states of the learners' agents.
        obs: observations with any leading axes, identical on all devices.
        mask: True for observations to include, bool, with the shape of the leading axes of ``obs``.
    """
    old = agent_states.obs_preprocessor_state
    if old is None:
        return agent_states
    new = update_statistics(row_of(old), obs, mask)
    new = jax.tree.map(lambda x, rows: jnp.broadcast_to(x, rows.shape), new, old)
    return agent_states.replace(obs_preprocessor_state=new)


def in_blocks(
    num_updates: jax.Array | int,
    one_block: Callable[[Any, Any, Tree], Tree],
    carry: Tree,
    at_once: int = UPDATES_AT_ONCE,
) -> Tree:
    """Run ``carry = one_block(i, size, carry)`` for blocks i of ``size <= at_once`` updates; return the last carry."""
    if isinstance(num_updates, int) and not on_cpu():  # loops of unknown length make accelerators wait for the host
        num_blocks, rest = divmod(num_updates, at_once)
        carry = jax.lax.fori_loop(0, num_blocks, lambda i, carry: one_block(i, at_once, carry), carry)
        return one_block(num_blocks, rest, carry) if rest else carry

    def body(i: jax.Array, carry: Tree) -> Tree:
        return one_block(i, jnp.minimum(num_updates - i * at_once, at_once), carry)

    return jax.lax.fori_loop(0, -(-num_updates // at_once), body, carry)


def learn_in_blocks(
    learner: OffPolicyWorkflow, learned: PyTreeDict, replay_state: Any, key: Key, num_updates: jax.Array, progress: Any
) -> tuple[PyTreeDict, PyTreeDict, Any]:
    """Make ``num_updates`` updates; batches are sampled for one block of updates at a time, to limit memory.

    Args:
        learner: off-policy algorithm.
        learned: state of the learner, ``agent_state`` and ``opt_state``.
        replay_state: state of the replay buffer.
        key: random key.
        num_updates: number of updates, int32; may be traced.
        progress: completed fraction of training.

    Returns:
        Means of the losses by name, the learner's new state, and the replay buffer's new state with updated priorities.
    """
    learner = learner.replace(updates_per_iteration=UPDATES_AT_ONCE)
    data = replay_state.data  # not carried: a loop under vmap over seeds would copy it in each iteration

    def one_block(i: jax.Array, updates: jax.Array, carry: tuple[PyTreeDict, Any, PyTreeDict]) -> tuple:
        learned, replay_state, sums = carry
        sample_key, learn_key = jax.random.split(jax.random.fold_in(key, i))
        state = LearnerState(**learned, replay_state=replay_state.replace(data=data))
        means, state = learner.learn_repeatedly(state, (sample_key, learn_key), updates, progress)
        sums = jax.tree.map(lambda total, mean: total + updates * mean, sums, means)
        learned = PyTreeDict(agent_state=state.agent_state, opt_state=state.opt_state)
        return learned, state.replay_state.replace(data=None), sums

    sums = PyTreeDict({name: jnp.zeros(()) for name in learner.loss_names})
    learned, replay_state, sums = in_blocks(num_updates, one_block, (learned, replay_state.replace(data=None), sums))
    means = jax.tree.map(lambda x: x / jnp.maximum(num_updates, 1), sums)
    return means, learned, replay_state.replace(data=data)

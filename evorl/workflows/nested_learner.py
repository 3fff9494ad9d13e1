"""A learner inside of another workflow: what it has to be, and any number of updates of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import policy_improvers
from evorl.config.nodes import plain
from evorl.config.values import checked_mapping, field_types
from evorl.metrics import WideCounter
from evorl.ops.normalization import update_statistics
from evorl.ops.schedules import whole_updates
from evorl.types import Key, Observation, PyTreeDict, State
from evorl.workflows.assembly import inner_workflow, read_workflow_config, workflow_class
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.workflow import Workflow

Tree = TypeVar("Tree")
UPDATES_AT_ONCE = 64  # batches of so many updates are in memory


def build_learner(config: Mapping[str, Any]) -> OffPolicyWorkflow:
    """The learner that the part ``learner`` of a config describes, in the environment of the whole run.

    Raises:
        ValueError: as ``checked_learner``, or a key or value of it cannot work; in words.
    """
    part = checked_mapping(config.get("learner"), "learner")
    if "workflow" in part:  # before its settings are read, which an unsuitable one does not have
        chosen = workflow_class(part["workflow"], "learner.workflow")
        check_learner_class(chosen)
        if part.get("offline", chosen.offline):
            raise ValueError(
                "learner.offline=true learns from recorded transitions alone, and a learner inside another algorithm "
                "learns from the episodes of the population: set learner.offline=false."
            )
    part = {"num_envs": 1, **part}
    of_the_run = ("devices", "num_seeds", "env_chunk", "evaluation")
    return checked_learner(inner_workflow({**config, "learner": part}, "learner", ("env",), of_the_run))


def read_config_with_learner(cls: type[Workflow], config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a workflow that has a learner, whose agent acts for all; see ``read_workflow_config``.

    Raises:
        ValueError: as ``build_learner``, or a key or value of the workflow itself cannot work; in words.
    """
    config = plain(config)
    learner = build_learner(config)
    return {**read_workflow_config(cls, {**config, "learner": learner}), "agent": learner.agent}


def checked_learner(learner: Workflow) -> OffPolicyWorkflow:
    """The learner, if it has a policy to evolve.

    Raises:
        ValueError: it has none, or its settings do not fit; in words.
    """
    check_learner_class(type(learner))
    assert isinstance(learner, OffPolicyWorkflow), "check_learner_class refuses others"
    env = learner.env
    agent: Any = learner.agent  # it improves policies
    agent_state = jax.eval_shape(lambda key: agent.init(env.obs_space, env.action_space, key), jax.random.key(0))
    if jax.tree.leaves(agent.policy_statistics(agent_state)):
        raise ValueError(
            f"learner is {type(learner).__name__}, whose policy keeps running statistics beside its parameters, and "
            "only parameters are evolved: set learner.agent.network.torso to layers without batch_renorm, such as "
            "[256, 256] (critics keep theirs, learner.agent.critic_network)."
        )
    if learner.replay.load is not None:
        raise ValueError(
            f"learner.replay.load={learner.replay.load}: the buffer of a learner inside another algorithm is empty at "
            "first, and holds the episodes of the population. Leave it out."
        )
    if learner.intrinsic is not None:
        raise ValueError(
            "learner.intrinsic pays for what the learner itself collects, and here a population collects for it: leave "
            "it out."
        )
    if env.num_envs != 1:
        raise ValueError(
            f"learner.num_envs={env.num_envs}: the learner has no environments of its own, it learns from the "
            "population's episodes. Set learner.num_envs=1; learner.updates_per_iteration is for each step then."
        )
    return learner


def check_learner_class(cls: type[Workflow]) -> None:
    """Refuse an algorithm of which a population cannot learn: it has no replay buffer, or no policy to improve.

    Its agent declares ``improves_policies``.

    Raises:
        ValueError: the class does not fit; the message names the algorithms of evorl that do.
    """
    if not issubclass(cls, OffPolicyWorkflow):
        lacks = "which does not learn from a replay buffer"
    elif not field_types(cls)["agent"].improves_policies:
        lacks = "whose agent has no policy that critics improve"
    else:
        return
    *others, last = policy_improvers()
    raise ValueError(
        f"learner is {cls.__name__}, {lacks}: choose an off-policy actor-critic, {', '.join(others)} or {last}."
    )


def require_room_for(num_transitions: int, learner: OffPolicyWorkflow) -> None:
    """Raises ``ValueError`` unless the learner's replay buffer holds all that a generation may collect."""
    if learner.replay_capacity < num_transitions:
        raise ValueError(
            f"learner.replay_capacity={learner.replay_capacity} is less than one generation may collect "
            f"({num_transitions} transitions): choose a larger one."
        )


def updates_for_steps(learner: OffPolicyWorkflow, before: WideCounter, timesteps: jax.Array) -> jax.Array:
    """How many updates ``timesteps`` more environment steps call for, int32: as many as the learner makes alone."""
    per_step = Fraction(learner.updates_per_iteration).limit_denominator(10_000) / learner.timesteps_per_iteration
    return whole_updates(per_step, before.low, timesteps)


def with_statistics_of(agent_states: AgentState, obs: Observation, mask: jax.Array) -> AgentState:
    """Agents ``[K, ...]``, whose statistics of observations are the same, that have seen more of them.

    Args:
        agent_states: of the learners.
        obs: observations with any leading axes, equal on every device.
        mask: which of them count, of the shape of those axes.
    """
    old = agent_states.obs_preprocessor_state
    if old is None:
        return agent_states
    new = update_statistics(row_of(old), obs, mask)
    new = jax.tree.map(lambda x, rows: jnp.broadcast_to(x, rows.shape), new, old)
    return agent_states.replace(obs_preprocessor_state=new)


def row_of(tree: Tree, i: int | slice | jax.Array = 0) -> Tree:
    """One row of leaves ``[K, ...]``, or some."""
    return jax.tree.map(lambda x: x[i], tree)


def in_blocks(
    num_updates: jax.Array | int,
    one_block: Callable[[jax.Array, jax.Array, Tree], Tree],
    carry: Tree,
    at_once: int = UPDATES_AT_ONCE,
) -> Tree:
    """``one_block(i, updates, carry)`` until there were ``num_updates``, at most ``at_once`` in each block."""

    def body(i: jax.Array, carry: Tree) -> Tree:
        return one_block(i, jnp.minimum(num_updates - i * at_once, at_once), carry)

    return jax.lax.fori_loop(0, -(-num_updates // at_once), body, carry)


def learn_in_blocks(
    learner: OffPolicyWorkflow, learned: PyTreeDict, replay_state: Any, key: Key, num_updates: jax.Array, progress: Any
) -> tuple[PyTreeDict, PyTreeDict, Any]:
    """Any number of updates, also a traced one: batches are drawn for some of them at a time.

    Args:
        learner: the algorithm.
        learned: ``agent_state`` and ``opt_state``.
        replay_state: of the buffer.
        key: of all draws.
        num_updates: how many, int32.
        progress: the share of the training that is over.

    Returns:
        Means of the losses, what was learned, and the buffer, in which priorities may have changed.
    """
    learner = learner.replace(updates_per_iteration=UPDATES_AT_ONCE)
    data = replay_state.data  # not carried: a loop over several seeds would copy it in each turn

    def one_block(i: jax.Array, updates: jax.Array, carry: tuple[PyTreeDict, Any, PyTreeDict]) -> tuple:
        learned, replay_state, sums = carry
        sample_key, learn_key = jax.random.split(jax.random.fold_in(key, i))
        state = State(**learned, replay_state=replay_state.replace(data=data))
        means, state = learner.learn_repeatedly(state, sample_key, learn_key, updates, progress)
        sums = jax.tree.map(lambda total, mean: total + updates * mean, sums, means)
        learned = PyTreeDict(agent_state=state.agent_state, opt_state=state.opt_state)
        return learned, state.replay_state.replace(data=None), sums

    sums = PyTreeDict({name: jnp.zeros(()) for name in learner.loss_names})
    learned, replay_state, sums = in_blocks(num_updates, one_block, (learned, replay_state.replace(data=None), sums))
    means = jax.tree.map(lambda x: x / jnp.maximum(num_updates, 1), sums)
    return means, learned, replay_state.replace(data=data)

"""A learner inside of another workflow: any number of updates."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.td3 import TD3Agent, TD3Workflow
from evorl.metrics import WideCounter
from evorl.ops.trees import row_of
from evorl.types import PyTreeDict, State
from evorl.workflows.nested_learner import (
    UPDATES_AT_ONCE,
    check_learner_class,
    checked_learner,
    in_blocks,
    learn_in_blocks,
    updates_for_steps,
)
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.recorded_pendulum import recorded_pendulum
from tests.support.small_workflows import assert_identical, inner_config, small


class Undeclared(TD3Agent):
    improves_policies = False


class OwnWorkflow(TD3Workflow):
    agent: Undeclared


def learner(**changes: object) -> OffPolicyWorkflow:
    workflow = small("td3", "Pendulum-v1", **{"num_envs": 1, "batch_size": 4, **changes})
    assert isinstance(workflow, OffPolicyWorkflow)
    return workflow


@pytest.mark.parametrize(("updates", "rollout_length"), [(1, 1), (2, 1), (0.25, 1), (1.3, 1), (1, 3), (5, 2)])
def test_updates_follow_the_steps(updates: float, rollout_length: int) -> None:
    """The number of updates over all generations is the integer part of the ratio times all steps."""
    workflow = learner(updates_per_iteration=updates, rollout_length=rollout_length)
    ratio = Fraction(updates).limit_denominator(10_000) / rollout_length
    counter, made, steps = WideCounter.create(), 0, 0
    for sampled in (1, 7, 1000, 3, 0, 4096, 33, 10_999):
        made += int(updates_for_steps(workflow, counter, jnp.int32(sampled)))
        counter, steps = counter.add(sampled), steps + sampled
        assert made == int(ratio * steps)


@pytest.mark.parametrize("algorithm", ["erl", "pga_me", "pbt"])
def test_simulators_of_the_learner_are_closed_with_the_workflow(algorithm: str) -> None:
    env = {"factory": "tests.support.host_envs:pendulum", "max_episode_steps": 5}
    space = {"learner.tau": {"low": 0.01, "high": 0.1}}
    changes = {"inner": inner_config("erl"), "search_space": space} if algorithm == "pbt" else {}
    workflow: Any = small(algorithm, env, **changes)
    nested = getattr(workflow, "inner", workflow).learner
    envs = [part for owner in (workflow, nested) for part in (owner.env, owner.eval_env)]
    assert all(env.simulators._live for env in envs)
    workflow.close()
    assert not any(env.simulators._live for env in envs)


def test_every_update_is_in_one_block() -> None:
    def block(i: jax.Array, updates: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        blocks, total = carry
        return blocks.at[i].set(updates), total + updates

    run = jax.jit(lambda num: in_blocks(num, block, (jnp.zeros(4, jnp.int32), jnp.int32(0))))
    for num in (0, 1, UPDATES_AT_ONCE, UPDATES_AT_ONCE + 1, 3 * UPDATES_AT_ONCE - 1):
        blocks, total = run(num)
        assert int(total) == int(blocks.sum()) == num
        assert (np.asarray(blocks)[: num // UPDATES_AT_ONCE] == UPDATES_AT_ONCE).all()


def _stored(workflow: Workflow) -> State:
    state = workflow.init(0)
    for _ in range(20):
        _, state = workflow.step(state)
    return state


@pytest.mark.parametrize("prioritized", [False, True])
def test_any_number_of_updates(prioritized: bool) -> None:
    workflow = learner(prioritized=prioritized, updates_per_iteration=1, learning_starts=1000)
    stored = _stored(workflow)
    learned = PyTreeDict(agent_state=stored.agent_state, opt_state=stored.opt_state)
    run = jax.jit(lambda num: learn_in_blocks(workflow, learned, stored.replay_state, jax.random.key(7), num, 0.0))
    losses, same, replay_state = run(0)
    assert_identical((same, replay_state), (learned, stored.replay_state))
    assert not any(float(x) for x in losses.values())
    for num in (3, UPDATES_AT_ONCE + 3):
        losses, after, replay_state = run(num)
        assert int(after.opt_state.num_updates) == num
        assert float(losses.critic_loss) > 0.0
        assert_identical(replay_state.data, stored.replay_state.data)
        if prioritized:
            assert float(replay_state.priorities.total) != float(stored.replay_state.priorities.total)


def test_the_first_block_is_the_learners_own_loop() -> None:
    workflow = learner(updates_per_iteration=UPDATES_AT_ONCE, learning_starts=1000)
    stored = _stored(workflow)
    learned = PyTreeDict(agent_state=stored.agent_state, opt_state=stored.opt_state)
    key = jax.random.key(3)
    sample_key, learn_key = jax.random.split(jax.random.fold_in(key, 0))
    num, progress = jnp.int32(5), jnp.zeros(())
    losses, after, _ = jax.jit(lambda: learn_in_blocks(workflow, learned, stored.replay_state, key, num, progress))()
    expected, state = jax.jit(lambda: workflow.learn_repeatedly(stored, (sample_key, learn_key), num, progress))()
    assert_identical(after.agent_state, state.agent_state)
    np.testing.assert_allclose(losses.critic_loss, expected.critic_loss, rtol=1e-6)


def test_a_learner_of_a_population_starts_with_an_empty_buffer() -> None:
    """A population's learner with recorded transitions, which would be ignored, is rejected."""
    recorded = learner(replay={"load": recorded_pendulum()}, replay_capacity=300)
    with raises_naming(ValueError, "learner.replay.load=", "empty"):
        checked_learner(recorded)
    assert checked_learner(learner()).replay.load is None


def test_a_learner_does_not_scale_rewards_of_a_population() -> None:
    with raises_naming(ValueError, "learner.reward_bound=5", "reward_bound=null"):
        checked_learner(learner(reward_bound=5.0))


@pytest.mark.parametrize(("layers", "fits"), [([8], True), (["batch_renorm", 8], False)])
def test_a_policy_with_running_statistics_cannot_be_evolved(layers: list[str | int], fits: bool) -> None:
    network = {"network": {"torso": layers}, "critic_network": {"torso": ["batch_renorm", 8]}}
    crossq: Any = small("crossq", "Pendulum-v1", num_envs=1, batch_size=4, agent=network)
    if fits:
        assert checked_learner(crossq) is crossq
    else:
        with raises_naming(ValueError, "CrossQWorkflow", "running statistics", "critic_network"):
            checked_learner(crossq)


def test_the_agent_of_a_learner_declares_that_it_improves_policies() -> None:
    with raises_naming(ValueError, "OwnWorkflow", "policy", "critics"):
        check_learner_class(OwnWorkflow)
    check_learner_class(TD3Workflow)


def test_a_row() -> None:
    assert row_of({"x": jnp.arange(6).reshape(3, 2)}, 1)["x"].tolist() == [2, 3]

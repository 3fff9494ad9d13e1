"""The order of updates shared by soft actor-critics."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.critic_ensemble import update_part
from evorl.ops.trees import copied
from evorl.types import PyTreeDict
from tests.support.small_workflows import (
    BATCH_RENORM,
    assert_close,
    assert_identical,
    contract_of,
    fresh_state,
    small,
    transitions,
)

KEYS = jax.random.split(jax.random.key(0), 4)


def test_each_part_sees_those_before_it() -> None:
    """Updates run in order: critics, policy with the new critics, temperature with its entropy, target critics."""
    workflow = small("sac", "Pendulum-v1", tau=0.25)
    state, batch = workflow.init(0), transitions(workflow.env, 4)
    first, progress = state.agent_state, jnp.float32(0.0)
    last, _, losses = jax.jit(workflow.learn_from)(first, state.opt_state, batch, KEYS, progress)
    critic_keys, actor_keys = (jax.vmap(jax.random.split)(KEYS)[:, i] for i in range(2))
    agent = workflow.agent

    step = {"loss_fn": agent.critic_loss, "optimizer": workflow.critic_optimizer, "progress": progress}
    actor_loss = jax.jit(agent.actor_loss)
    critic, _, critic_losses = jax.jit(functools.partial(update_part, "critic", **step))(
        first, state.opt_state, first, batch, critic_keys
    )
    _, actor_losses = actor_loss(first.params.policy, critic, batch, actor_keys)
    assert_close(last.params.critic, critic.params.critic, 1e-6)
    np.testing.assert_allclose(losses.actor_loss, actor_losses.actor_loss, rtol=1e-5)
    assert not np.allclose(losses.actor_loss, actor_loss(first.params.policy, first, batch, actor_keys)[0])
    np.testing.assert_allclose(losses.td_errors, critic_losses.td_errors.mean(axis=0), rtol=1e-5)
    rate = workflow.temperature_optimizer.learning_rate  # the first step of Adam
    expected = first.params.log_temperature - rate * np.sign(actor_losses.entropy - agent.target_entropy)
    np.testing.assert_allclose(last.params.log_temperature, expected, rtol=1e-4)
    followed = jax.tree.map(lambda t, c: 0.75 * t + 0.25 * c, first.params.target_critic, last.params.critic)
    assert_close(last.params.target_critic, followed, 1e-6)


def test_the_temperature_may_stay() -> None:
    workflow = small("sac", agent={"network": {"torso": [8]}, "adaptive_temperature": False, "temperature": 0.2})
    state = workflow.init(0)
    for _ in range(3):
        _, state = workflow.step(state)
    np.testing.assert_allclose(state.agent_state.params.log_temperature, np.log(0.2), rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["bro", "crossq", "rlpd", "sac", "tqc"])
def test_a_constant_temperature_is_the_setting(algorithm: str) -> None:
    """The state may be of another setting: PBT copies states and changes settings, as a resume or ``init_from`` may."""
    fixed = {**contract_of(algorithm).SMALL["agent"], "adaptive_temperature": False, "temperature": 0.2}
    workflow = small(algorithm, "Pendulum-v1", agent=fixed)
    state, batch = fresh_state(workflow.agent, workflow.env), transitions(workflow.env, 4)

    @jax.jit
    def losses(agent: Any) -> tuple[jax.Array, ...]:
        actor_loss, metrics = agent.actor_loss(state.params.policy, state, batch, KEYS)
        critic_loss, _ = agent.critic_loss(state.params.critic, state, batch, KEYS)
        shown = agent.temperature_loss(state.params.log_temperature, metrics.entropy)[1].temperature
        return actor_loss, metrics.entropy, critic_loss, shown

    (actor_loss, entropy, critic_loss, _) = losses(workflow.agent)
    other_actor_loss, _, other_critic_loss, shown = losses(workflow.agent.replace(temperature=2.0))
    np.testing.assert_allclose(other_actor_loss - actor_loss, -1.8 * entropy, rtol=1e-3)
    assert not np.allclose(other_critic_loss, critic_loss, rtol=1e-3)
    assert float(shown) == 2.0


def test_targets_of_sequences_have_the_constant_temperature_of_the_setting() -> None:
    fixed = {**contract_of("recurrent_sac").SMALL["agent"], "adaptive_temperature": False}
    workflow = small("recurrent_sac", "Pendulum-v1", agent=fixed)
    state = workflow.init(0)
    for _ in range(6):
        metrics, state = workflow.step(state)
    assert metrics.updates > 0
    params = state.agent_state.params.replace(log_temperature=jnp.float32(2.0))
    states = (state, state.replace(agent_state=state.agent_state.replace(params=params)))
    loss, same = (float(workflow.step(copied(x))[0].critic_loss) for x in states)
    assert same == loss
    other = workflow.replace(agent=workflow.agent.replace(temperature=2.0))
    assert abs(float(other.step(copied(state))[0].critic_loss) - loss) > 0.01


def test_a_part_is_updated_alone() -> None:
    workflow = small("sac")
    state = workflow.init(0)

    def loss(params: jax.Array, factor: float) -> tuple[jax.Array, PyTreeDict]:
        return factor * params, PyTreeDict(seen=params)

    step = {"loss_fn": loss, "optimizer": workflow.temperature_optimizer, "progress": jnp.float32(0.0)}
    agent_state, opt_state, losses = update_part("log_temperature", state.agent_state, state.opt_state, 2.0, **step)
    assert float(losses.seen) == float(state.agent_state.params.log_temperature)
    assert float(agent_state.params.log_temperature) < float(losses.seen)
    for name in ("critic", "policy", "target_critic"):
        assert_identical(agent_state.params[name], state.agent_state.params[name])
    for name in ("critic", "policy"):
        assert_identical(opt_state[name], state.opt_state[name])


@pytest.mark.parametrize("algorithm", ["crossq", "discor", "sac", "tqc"])
def test_every_option_of_replay_works_for_all(algorithm: str) -> None:
    """All algorithms support 3-step transitions, prioritized sampling, 1.5 updates per iteration and three critics."""
    options = {"n_step": 3, "prioritized": True, "updates_per_iteration": 1.5, "learning_starts": 0}
    agent = {
        "network": BATCH_RENORM if algorithm == "crossq" else {"torso": [8]},
        "num_critics": 3,
        "normalize_obs": True,
    }
    workflow = small(algorithm, "Pendulum-v1", agent=agent, **options)
    state = first = workflow.init(0)
    for _ in range(2):
        metrics, state = workflow.step(state)
        assert set(metrics) == {*workflow.loss_names, "episodes", "updates"}
        assert all(np.isfinite(metrics[name]) for name in workflow.loss_names)
    counts = {int(x) for x in jax.tree.leaves(state.opt_state) if np.issubdtype(x.dtype, np.integer)}
    assert counts == ({1, 3} if algorithm == "crossq" else {3})  # delayed policy updates
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), first.agent_state.params, state.agent_state.params)
    assert all(any(jax.tree.leaves(moved[name])) for name in moved)
    assert (
        agent["num_critics"]
        == workflow.agent.values(state.agent_state, state.agent_state.params, jnp.ones((1, 3))).shape[0]
    )
    assert float(state.replay_state.greatest) != 1.0

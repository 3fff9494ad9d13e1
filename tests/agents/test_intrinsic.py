"""Intrinsic rewards: higher for novel observations, decreasing with repetition, and part of the state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.intrinsic import DIAYN, ICM, RND, IntrinsicReward
from evorl.agents.intrinsic_kinds import make_intrinsic
from evorl.algorithms.sac import SACWorkflow
from evorl.envs import create_env
from evorl.execution.restoration import restore
from evorl.sample_batch import SampleBatch
from evorl.types import State
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.key_record import KeyRecord
from tests.support.small_workflows import NUM_ENVS, SAC_CONFIG, assert_close, assert_identical, small

NOVELTY = ("icm", "rnd")
ENVS = {"CartPole-v1": jnp.int32(1), "Pendulum-v1": jnp.asarray([0.5])}
NETWORK = {"torso": [16], "activation": "elu"}


def built(name: str, env_name: str = "CartPole-v1", **options: Any) -> tuple[IntrinsicReward, Any]:
    env = create_env({"library": "gymnax", "name": env_name}, parallel=2)
    return make_intrinsic({"name": name, "network": NETWORK, **options}, env), env


def steps(env: Any, env_name: str, level: float, num_steps: int = 4) -> SampleBatch:
    """Return ``num_steps`` equal transitions of two environments each, with observations ``level`` and successors ``2
    level``.
    """
    obs = jnp.full((num_steps, 2, *env.obs_space.shape), level)
    actions = jnp.broadcast_to(ENVS[env_name], (num_steps, 2, *ENVS[env_name].shape))
    return SampleBatch(obs=obs, actions=actions, rewards=jnp.zeros((num_steps, 2)), next_obs=2.0 * obs)


@pytest.mark.parametrize("env_name", ENVS)
@pytest.mark.parametrize("name", NOVELTY)
def test_a_repeated_step_is_worth_less_and_a_new_one_more(name: str, env_name: str) -> None:
    intrinsic, env = built(name, env_name)
    state = State(intrinsic.init(env.obs_space, jax.random.key(3)))
    # Two kinds of observations, so that their statistics have a spread.
    seen, other, new = (steps(env, env_name, level) for level in (0.1, -0.1, 0.35))
    met = jax.tree.map(lambda *x: jnp.concatenate(x), seen, other)
    pay = jax.jit(lambda node, state: node.pay(met, state))
    _, state = pay(intrinsic, state)
    first = float(state.intrinsic_metrics.intrinsic_reward)
    for _ in range(60):
        _, state = pay(intrinsic, state)
    bonus_of_seen, bonus_of_new = (float(intrinsic.bonuses(state.intrinsic, x).mean()) for x in (seen, new))
    assert bonus_of_seen < 0.2 * first, "a bonus falls where a transition is met again and again"
    assert bonus_of_new > 3.0 * bonus_of_seen, "and is higher where one is new"


@pytest.mark.parametrize("name", NOVELTY)
def test_what_is_paid_is_weight_times_the_bonus_in_its_unit(name: str) -> None:
    intrinsic, env = built(name, weight=0.5)
    state = State(intrinsic.init(env.obs_space, jax.random.key(0)))
    of_two_kinds = [steps(env, "CartPole-v1", level, 2) for level in (0.1, -0.3)]
    batch = jax.tree.map(lambda *x: jnp.concatenate(x), *of_two_kinds).replace(rewards=jnp.full((4, 2), 2.0))
    paid, after = intrinsic.pay(batch, state)
    bonuses = (paid.rewards - 2.0) / 0.5
    np.testing.assert_allclose(jnp.square(bonuses).mean(), 1.0, rtol=1e-4)
    raw = intrinsic.bonuses(state.intrinsic.replace(observations=after.intrinsic.observations), batch)
    np.testing.assert_allclose(bonuses, raw / jnp.sqrt(jnp.square(raw).mean()), rtol=1e-4)
    np.testing.assert_allclose(after.intrinsic_metrics.intrinsic_reward, raw.mean(), rtol=1e-5)
    np.testing.assert_allclose(after.intrinsic.squares.mean, jnp.square(raw).mean(), rtol=1e-5)
    unpaid, _ = intrinsic.replace(weight=0.0).pay(batch, state)
    np.testing.assert_array_equal(unpaid.rewards, batch.rewards)


def test_the_errors_are_those_of_the_papers() -> None:
    icm, _ = built("icm", forward_share=0.3)
    assert isinstance(icm, ICM)
    params, fixed = icm.init_params(jnp.zeros((1, 4)), jax.random.key(1))
    obs, actions = jax.random.normal(jax.random.key(2), (5, 4)), jax.nn.one_hot(jnp.asarray([0, 1, 1, 0, 1]), 2)
    model: Any = icm.model
    predicted, came, inverse = model.apply({"params": params}, obs, actions, obs[::-1])
    bonus, loss = icm.errors(params, fixed, obs, actions, obs[::-1])
    forward = 0.5 * ((predicted - came) ** 2).sum(-1)
    backward = -(actions * jax.nn.log_softmax(inverse)).sum(-1)
    np.testing.assert_allclose(bonus, forward, rtol=1e-5)
    np.testing.assert_allclose(loss, 0.7 * backward + 0.3 * forward, rtol=1e-5)
    # The inverse model alone trains the features: without its share of the loss they do not change.
    only_forward = icm.replace(forward_share=1.0)
    gradient = jax.grad(lambda p: only_forward.errors(p, fixed, obs, actions, obs[::-1])[1].sum())(params)
    assert all(float(jnp.abs(x).max()) == 0.0 for x in jax.tree.leaves(gradient["torso"]))
    assert float(jnp.abs(gradient["forward_output"]["kernel"]).max()) > 0.0


def test_the_target_of_rnd_stays() -> None:
    rnd, env = built("rnd", optimizer={"name": "adamw", "learning_rate": 0.1, "weight_decay": 0.1})
    assert isinstance(rnd, RND)
    state = State(rnd.init(env.obs_space, jax.random.key(0)))
    _, after = rnd.pay(steps(env, "CartPole-v1", 0.1), state)
    assert_identical(after.intrinsic.fixed, state.intrinsic.fixed)
    assert not np.array_equal(after.intrinsic.params["head"]["kernel"], state.intrinsic.params["head"]["kernel"])


SKILLED = {"library": "gymnax", "name": "CartPole-v1", "skills": 3}


def skilled_steps(skills: jax.Array) -> SampleBatch:
    """Return transitions ``[B]`` whose next observation reveals the skill by the sign of its first entry."""
    one_hot = jax.nn.one_hot(skills, 3)
    states = jnp.zeros((len(skills), 4)).at[:, 0].set(skills - 1.0)
    obs = jnp.concatenate([jnp.zeros_like(states), one_hot], axis=-1)
    next_obs = jnp.concatenate([states, one_hot], axis=-1)
    return SampleBatch(
        obs=obs, actions=jnp.zeros(len(skills), jnp.int32), rewards=jnp.ones(len(skills)), next_obs=next_obs
    )


def test_diayn_pays_for_what_reveals_the_skill() -> None:
    """The reward (Eysenbach et al. 2018, eq. 3) is 0 for an untrained discriminator and reaches log(number
    of skills).
    """
    env = create_env(SKILLED, parallel=2)
    diayn = make_intrinsic({"name": "diayn", "network": NETWORK, "optimizer": {"learning_rate": 1e-2}}, env)
    assert isinstance(diayn, DIAYN)
    state = State(diayn.init(env.obs_space, jax.random.key(0)))
    batch = skilled_steps(jnp.arange(30) % 3)
    pay = jax.jit(lambda node, state: node.pay(batch, state))
    paid, state = pay(diayn, state)
    bonuses = diayn.bonuses(state.intrinsic, batch)
    for _ in range(40):
        paid, state = pay(diayn, state)
    np.testing.assert_allclose(paid.rewards, np.log(3.0), atol=0.05)  # the environment's reward of 1 is not added
    assert float(bonuses.mean()) < 0.8 * np.log(3.0)
    lying = batch.replace(obs=skilled_steps((jnp.arange(30) + 1) % 3).obs)
    assert float(diayn.bonuses(state.intrinsic, lying).max()) < -1.0, "another skill than the one that was followed"
    both, _ = diayn.replace(weight=0.5, environment_weight=2.0).pay(batch, state)
    np.testing.assert_allclose(both.rewards, 2.0 + 0.5 * diayn.bonuses(state.intrinsic, batch), rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_any_algorithm_learns_skills(algorithm: str) -> None:
    workflow = small(algorithm, SKILLED, intrinsic={"name": "diayn", "network": {"torso": [8]}})
    state = workflow.init(0)
    for _ in range(2):
        metrics, state = workflow.step(state)
    assert abs(float(metrics["intrinsic_reward"])) < np.log(3.0)
    assert float(metrics["intrinsic_loss"]) > 0.0


def made(algorithm: str, **changes: Any) -> Workflow:
    env = "CartPole-v1" if algorithm in ("dqn", "a2c") else "Pendulum-v1"
    return small(algorithm, env, intrinsic={"name": "rnd", "network": {"torso": [8]}}, **changes)


@pytest.mark.parametrize("algorithm", ["a2c", "sac"])
def test_any_algorithm_learns_from_them_and_reports_what_the_environment_pays(algorithm: str) -> None:
    workflow = made(algorithm)
    state = workflow.init(0)
    metrics = {}
    for _ in range(3):
        metrics, state = workflow.step(state)
    assert float(metrics["intrinsic_reward"]) > 0.0
    assert float(metrics["intrinsic_loss"]) > 0.0
    plain = small(algorithm, "CartPole-v1" if algorithm == "a2c" else "Pendulum-v1")
    other = plain.init(0)
    assert set(state) - set(other) == {"intrinsic", "intrinsic_metrics"}
    for _ in range(3):
        metrics, other = plain.step(other)
    assert "intrinsic_reward" not in metrics
    with pytest.raises(AssertionError):
        assert_close(state.agent_state.params, other.agent_state.params, 1e-6)


def test_replay_stores_rewards_with_the_bonus() -> None:
    workflow = made("sac", learning_starts=1000)  # no updates: both act at random with the same keys
    plain = small("sac", "Pendulum-v1", learning_starts=1000)
    paid, unpaid = (w.step(w.init(0))[1].replay_state.data for w in (workflow, plain))
    np.testing.assert_array_equal(paid.obs, unpaid.obs)
    added = np.asarray(paid.rewards - unpaid.rewards)[0]
    assert added.shape == (NUM_ENVS,)
    assert (added > 0.0).all()


def test_a_training_is_resumed_with_its_model(tmp_path) -> None:
    from evorl.runs.checkpointer import RunCheckpointer

    workflow = made("a2c", total_timesteps=64 * 4)
    whole = workflow.learn(key=1)
    first = made("a2c", total_timesteps=64 * 2, optimizer={"learning_rate": 1e-3})
    first.learn(key=1, checkpointer=RunCheckpointer(tmp_path))
    state, progress = restore(workflow, RunCheckpointer(tmp_path), 1, "latest")
    resumed = workflow.learn(state, progress=progress)
    assert_identical(resumed.intrinsic, whole.intrinsic)


def test_no_key_is_used_twice() -> None:
    workflow, record = made("a2c"), KeyRecord()
    state = record.run(workflow.setup, jax.random.key(0))
    for _ in range(2):
        _, state = record.run(workflow.pure_step, state)
    assert record.misused(but_for=KeyRecord()) == []


def test_two_devices_learn_as_one_does() -> None:
    one, two = (made("a2c", devices=devices) for devices in (1, 2))
    assert two.execution.num_devices == 2
    states = []
    for workflow in (one, two):
        _, state = workflow.step(workflow.init(0))
        metrics, state = workflow.step(state)
        states.append((state.intrinsic.params, state.intrinsic.squares, metrics.intrinsic_reward))
    assert_close(states[1], states[0], 1e-4)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("rmd", ("intrinsic.name 'rmd'", "'rnd'")),
        ({"weight": 1.0}, ("intrinsic.name None",)),
        ("diayn", ("intrinsic=diayn", "env.skills")),
        ({"name": "icm", "size": 3}, ("key of intrinsic", "'size'")),
        ({"name": "rnd", "model": 3}, ("key of intrinsic", "'model'")),
        ({"name": "icm", "weight": -1.0}, ("intrinsic.weight", "got -1.0")),
        ({"name": "icm", "network": {"torso": "natur"}}, ("'natur'", "'nature'")),
    ],
)
def test_what_cannot_be_is_refused(config: Any, words: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *words):
        small("a2c", intrinsic=config)


def test_it_is_refused_where_nothing_is_collected_for_it() -> None:
    with raises_naming(ValueError, "offline=true", "remove intrinsic"):
        config = {**SAC_CONFIG, "env": "Pendulum-v1", "intrinsic": "icm", "offline": True, "replay": {"load": "x"}}
        SACWorkflow.build_from_config(config)
    with raises_naming(ValueError, "config key 'intrinsic'"):
        small("neuroevolution", intrinsic="icm")

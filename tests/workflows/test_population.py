"""A population of members, with a workflow whose numbers are known: it counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.env import EnvState
from evorl.execution.programs import side_by_side
from evorl.metrics import EpisodeStatistics, WideCounter
from evorl.ops import collectives
from evorl.ops.collectives import LOCAL_MEMBER_AXIS
from evorl.ops.normalization import RewardScale
from evorl.rollout import recurrent_state_of
from evorl.types import PyTreeDict, State
from evorl.workflows.population import (
    as_member,
    cloned_members,
    healthy_members,
    means_over_members,
    population_metrics,
    train_side_by_side,
    training_scores,
)
from tests.support.errors import raises_naming
from tests.support.small_workflows import NUM_ENVS, assert_identical, small

STEP = jnp.array([1.0, 10.0, 100.0])


def _members() -> State:
    return State(total=jnp.zeros(3), step=STEP, iterations=WideCounter.create(5))


def _episodes(count: jax.Array, returns: jax.Array) -> EpisodeStatistics:
    return EpisodeStatistics(count=count, return_sum=returns, length_sum=count, return_min=returns, return_max=returns)


def _one_step(state: State) -> tuple[PyTreeDict, State]:
    assert state.iterations.low.shape == ()
    total = state.total + state.step
    metrics = PyTreeDict(loss=total, timesteps=jnp.int32(7), episodes=_episodes(jnp.ones(()), total))
    return metrics, state.replace(total=total, iterations=state.iterations.add(1))


def test_metrics_of_a_generation() -> None:
    metrics, members = jax.jit(lambda members: train_side_by_side(_one_step, members, (), 4))(_members())
    np.testing.assert_array_equal(members.total, 4 * STEP)
    assert int(members.iterations) == 9
    assert members.iterations.low.shape == ()  # shared, so that loops over it stay scalar
    np.testing.assert_allclose(metrics.loss, 2.5 * STEP)
    np.testing.assert_array_equal(metrics.timesteps, [28] * 3)
    np.testing.assert_array_equal(metrics.episodes.count, [4.0] * 3)
    np.testing.assert_array_equal(metrics.episodes.return_sum, 10 * STEP)
    np.testing.assert_array_equal(metrics.episodes.return_max, 4 * STEP)


def test_losses_of_a_generation_are_averaged_over_the_updates() -> None:
    def step(state: State) -> tuple[PyTreeDict, State]:
        updates = (state.total % 3.0) * (state.step < 100)  # 0, 1, 2, 0; always 0 in the last member
        metrics = PyTreeDict(loss=updates * state.step, bonus=updates, updates=updates)
        return metrics, state.replace(total=state.total + 1, iterations=state.iterations.add(1))

    metrics, _ = train_side_by_side(step, _members(), (), 4, losses=("loss", "absent"))
    np.testing.assert_allclose(metrics.loss, np.array([1.0, 10.0, 0.0]) * 5 / 3)
    np.testing.assert_allclose(metrics.bonus, [0.75, 0.75, 0.0])
    np.testing.assert_allclose(metrics.updates, [0.75, 0.75, 0.0])


def test_metrics_of_the_state_are_those_after_the_generation() -> None:
    def step(state: State) -> tuple[PyTreeDict, State]:
        metrics, state = _one_step(state)
        return metrics | {"best": state.total, "best/return": state.total, "bests": state.total}, state

    metrics, _ = train_side_by_side(step, _members(), (), 4, latest=("best",))
    for name in ("best", "best/return"):
        np.testing.assert_allclose(metrics[name], 4 * STEP)
    np.testing.assert_allclose(metrics.bests, 2.5 * STEP)


def test_side_by_side_shares_the_counter() -> None:
    sums = side_by_side(lambda state: state.step + state.iterations.low, _members(), ())
    np.testing.assert_array_equal(sums, STEP + 5)


def test_side_by_side_shares_what_all_store() -> None:
    def store(state: State) -> tuple[jax.Array, State]:
        stored = collectives.gather_from_members(state.step[None])
        return state.store.sum(), state.replace(store=state.store + stored)

    members = _members() | {"store": jnp.ones(3)}
    sums, members = side_by_side(store, members, ("store",), returns_state=True, axis_name=LOCAL_MEMBER_AXIS)
    np.testing.assert_array_equal(sums, [3.0] * 3)
    np.testing.assert_array_equal(members.store, STEP + 1)  # once, not per member


def test_who_can_share_a_buffer() -> None:
    assert as_member(small("sac", "Pendulum-v1"), 3).replay_buffer.num_envs == 3 * NUM_ENVS
    with raises_naming(ValueError, "off-policy", "PPOWorkflow"):
        as_member(small("ppo"), 3)
    with raises_naming(ValueError, "inner.prioritized=false"):
        as_member(small("sac", prioritized=True), 3)
    with raises_naming(ValueError, "shared_replay=true", "replay.overwrite=random"):
        as_member(small("sac", replay={"overwrite": "random"}, replay_capacity=160), 2)
    with raises_naming(ValueError, "replay_capacity=128", "one iteration"):
        as_member(small("sac"), 30)
    with raises_naming(ValueError, "'num_sharing'"):
        small("sac", num_sharing=2)


@pytest.mark.parametrize("keeps_envs", [True, False])
def test_a_clone_that_keeps_its_environments_starts_new_sums_of_rewards(keeps_envs: bool) -> None:
    sums = jnp.arange(1.0, 7.0).reshape(3, 2)
    scale = jax.vmap(lambda x: RewardScale.of_none(2, bounded=True).replace(sums=x, greatest=x.max()))(sums)
    envs = EnvState(sums, sums, sums, sums > 2, _internal=PyTreeDict(recurrent_state=sums.at[1].set(jnp.nan)))
    members = State(env_state=envs, reward_scale=scale, key=jax.random.split(jax.random.key(0), 3))
    cloned = cloned_members(members, jnp.array([0, 0, 2]), keeps_envs)
    copied = sums[jnp.array([0, 0, 2])]
    np.testing.assert_array_equal(cloned.env_state.obs, sums if keeps_envs else copied)
    forgotten = sums.at[1].set(0.0)  # the recurrent state of the networks that were replaced
    np.testing.assert_array_equal(recurrent_state_of(cloned.env_state), forgotten if keeps_envs else copied)
    np.testing.assert_array_equal(cloned.reward_scale.sums[1], [0.0, 0.0] if keeps_envs else sums[0])
    np.testing.assert_array_equal(cloned.reward_scale.sums[::2], sums[::2])
    np.testing.assert_array_equal(cloned.reward_scale.greatest, [2.0, 2.0, 6.0])
    assert_identical(cloned.key, members.key)


def test_population_metrics() -> None:
    scores = jnp.array([4.0, -jnp.inf, 1.0, 3.0])
    healthy = jnp.array([True, False, True, True])
    metrics = population_metrics(PyTreeDict(loss=jnp.arange(4.0)), scores, healthy, ~healthy)
    assert {name: float(value) for name, value in metrics.items()} == {
        "loss": pytest.approx(5 / 3),
        "score_mean": pytest.approx(8 / 3),
        "score_best": 4.0,
        "score_median": 3.0,
        "score_worst": 1.0,
        "replaced_members": 1.0,
        "diverged_members": 1.0,
    }
    nobody = population_metrics(PyTreeDict(loss=jnp.zeros(2)), jnp.full(2, -jnp.inf), jnp.ones(2, bool), healthy)
    assert jnp.isnan(jnp.stack([nobody.score_mean, nobody.score_best, nobody.score_median, nobody.score_worst])).all()


def test_what_is_not_finite_is_left_out_of_means_but_not_of_timesteps() -> None:
    loss = jnp.array([1.0, jnp.nan, 3.0])
    metrics = PyTreeDict(loss=loss, other=STEP, timesteps=jnp.full(3, 7), episodes=_episodes(jnp.ones(3), loss))
    healthy = healthy_members(metrics)
    assert healthy.tolist() == [True, False, True]
    means = means_over_members(metrics, healthy)
    assert (means.loss, means.other, means.timesteps) == (2.0, 50.5, 21)
    assert (means.episodes.count, means.episodes.return_sum) == (2.0, 4.0)
    assert jnp.isnan(means_over_members(metrics, jnp.zeros(3, bool)).loss)
    episodes = _episodes(jnp.array([1.0, 1.0, 0.0]), jnp.array([jnp.inf, 1.0, jnp.nan]))
    assert healthy_members(PyTreeDict(loss=STEP, episodes=episodes)).tolist() == [False, True, True]


def test_training_scores() -> None:
    episodes = _episodes(jnp.array([2.0, 0.0, 1.0]), jnp.array([10.0, 0.0, 3.0]))
    scores = training_scores(PyTreeDict(episodes=episodes), jnp.array([-1.0, -2.0, -3.0]))
    assert scores.tolist() == [5.0, -2.0, 3.0]
    with raises_naming(ValueError, "score=training", "training episodes"):
        training_scores(PyTreeDict(loss=jnp.zeros(3)), jnp.zeros(3))

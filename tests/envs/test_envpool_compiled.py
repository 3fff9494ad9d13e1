"""EnvPool in compiled programs: true next observations, autoreset in the same step, the numbers of
EnvPool on the host.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Discrete
from evorl.envs.env import AutoresetMode, EnvState
from evorl.envs.envpool import EnvPoolTask, EnvPoolVectorEnv
from evorl.envs.envpool_compiled import EnvPoolXlaEnv, create_compiled_envpool_env
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.options import EnvOptions
from evorl.execution.host_errors import translate_host_errors
from evorl.rollout import rollout
from evorl.types import PyTreeDict
from tests.conformance.env import random_actions
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close

NUM_ENVS, NUM_STEPS = 6, 120


@functools.partial(jax.jit, static_argnums=(0, 2))
def _play(env: EnvPoolXlaEnv, state: EnvState, num_steps: int) -> tuple[EnvState, PyTreeDict]:
    """Play random actions; return the last state and the transitions of every step."""

    def step(state: EnvState, t: jax.Array) -> tuple[EnvState, PyTreeDict]:
        actions = random_actions(env, state, t)
        after = env.step(state, actions)
        outcome = PyTreeDict(obs=state.obs, actions=actions, reward=after.reward, done=after.done, **after.info)
        return after, outcome

    return jax.lax.scan(step, state, jnp.arange(num_steps))


def _episodes(name: str = "CartPole-v1", num_steps: int = NUM_STEPS, **options: object) -> PyTreeDict:
    env = create_compiled_envpool_env(name, **{"parallel": NUM_ENVS, **options})
    return jax.device_get(_play(env, env.reset(jax.random.key(0)), num_steps)[1])


@pytest.fixture(scope="module")
def cartpole() -> PyTreeDict:
    """Play random actions in CartPole, whose episodes end after about 20 steps."""
    return _episodes()


def test_every_row_is_a_chain_of_episodes(cartpole: PyTreeDict) -> None:
    assert cartpole.done.sum() > 3 * NUM_ENVS, "each row has had to renew its spare simulator"
    goes_on = ~cartpole.done[:-1]
    np.testing.assert_array_equal(cartpole.obs[1:][goes_on], cartpole.next_obs[:-1][goes_on])
    starts = cartpole.obs[1:][~goes_on]
    assert abs(starts).max() <= 0.05
    assert len(np.unique(starts[:, 0])) == len(starts), "no start is used twice"
    assert abs(cartpole.next_obs[cartpole.done][:, 2]).min() > 0.2, "the true successor of the last step has fallen"


def test_no_step_is_spent_on_a_reset(cartpole: PyTreeDict) -> None:
    moved = cartpole.obs[..., 0] + 0.02 * cartpole.obs[..., 1]
    np.testing.assert_allclose(cartpole.next_obs[..., 0], moved, atol=1e-6)
    assert (cartpole.reward == 1).all()
    assert not cartpole.is_reset_step.any()


def test_episodes_are_counted(cartpole: PyTreeDict) -> None:
    steps = np.zeros(NUM_ENVS)
    for t in range(NUM_STEPS):
        steps += 1
        np.testing.assert_array_equal(cartpole.steps[t], steps)
        np.testing.assert_array_equal(cartpole.episode_return[t], steps)
        steps[cartpole.done[t]] = 0
    np.testing.assert_array_equal(cartpole.done, cartpole.termination)


def test_threads_and_another_instance_give_the_same_and_another_seed_does_not(cartpole: PyTreeDict) -> None:
    assert_close(_episodes(num_threads=3), cartpole)
    assert np.any(_episodes(seed=1).obs != cartpole.obs)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Hopper-v5"])
def test_first_episodes_are_those_of_the_pool_on_the_host(name: str) -> None:
    metrics = ("x_velocity",) if name == "Hopper-v5" else ()
    compiled = _episodes(name, num_steps=12, metrics=metrics, seed=4)
    task = EnvPoolTask(name, metrics=metrics)
    pool = task.make_pool(np.random.SeedSequence(4).generate_state(3 * NUM_ENVS, np.uint64)[:NUM_ENVS])
    obs, running = task.observed(pool.reset()[0]), np.ones(NUM_ENVS, np.bool_)
    scale = 2.0 if name == "Pendulum-v1" else 1  # agent actions are in [-1, 1]
    for t in range(12):
        np.testing.assert_array_equal(compiled.obs[t][running], obs[running])
        obs, reward, termination, _, info = pool.step(task.pool_actions(scale * compiled.actions[t]))
        obs = task.observed(obs)
        np.testing.assert_array_equal(compiled.next_obs[t][running], obs[running])
        np.testing.assert_array_equal(compiled.reward[t][running], reward[running])
        for metric, value in task.metrics(info).items():
            np.testing.assert_array_equal(compiled.metrics[metric][t][running], value[running])
        running &= ~termination
    assert running.any()
    assert not (name == "CartPole-v1" and running.all())


def test_time_limit_is_truncation() -> None:
    steps = _episodes("Pendulum-v1", num_steps=25, max_episode_steps=7)
    assert not steps.termination.any()
    assert np.flatnonzero(steps.truncation.all(axis=1)).tolist() == [6, 13, 20]
    assert steps.truncation.any(axis=1).sum() == 3


def test_ended_rows_freeze_where_that_is_asked_for() -> None:
    steps = _episodes(autoreset_mode=AutoresetMode.DISABLED, num_steps=60)
    first = steps.done.argmax(axis=0)
    for row in range(NUM_ENVS):
        assert steps.reward[: first[row] + 1, row].all()
        assert not steps.reward[first[row] + 1 :, row].any()
        assert (steps.next_obs[first[row] + 1 :, row] == steps.next_obs[first[row], row]).all()


def test_pictures_and_wrappers() -> None:
    env = create_compiled_envpool_env("Pong-v5", parallel=2, reward_scale=2.0)
    state = jax.jit(env.reset)(jax.random.key(0))
    after = env.step(state, jnp.array([2, 3]))
    assert (state.obs.shape, state.obs.dtype) == ((2, 84, 84, 4), jnp.uint8)
    np.testing.assert_array_equal(after.obs[..., :3], state.obs[..., 1:])


def test_seeds_side_by_side_are_more_rows() -> None:
    env = create_compiled_envpool_env("CartPole-v1", parallel=3)
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 2))
    states, steps = jax.jit(jax.vmap(lambda state: _play(env, state, 40)))(states)
    joined = create_compiled_envpool_env("CartPole-v1", parallel=6)
    starts = joined.reset(jax.random.key(0)).obs
    np.testing.assert_array_equal(steps.obs[:, 0].reshape(6, 4), starts)
    assert steps.done.any(axis=1).all()
    goes_on = ~steps.done[:, :-1]
    np.testing.assert_array_equal(steps.obs[:, 1:][goes_on], steps.next_obs[:, :-1][goes_on])


def test_rollout_runs_over_it() -> None:
    env = create_compiled_envpool_env("CartPole-v1", parallel=NUM_ENVS)

    def act(agent_state: object, batch: PyTreeDict, key: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        del agent_state
        return jax.vmap(env.action_space.sample)(key), PyTreeDict()

    state = env.reset(jax.random.key(0))
    agent_state = PyTreeDict(recurrent_state=None)
    run = jax.jit(
        lambda state: rollout(env.step, act, state, agent_state, jax.random.key(1), 30, env_extra_fields=("steps",))
    )
    batch, state = run(state)
    batch, state = run(state)
    assert batch.obs.shape == (30, NUM_ENVS, 4)
    np.testing.assert_array_equal(state.info.steps, batch.extras.env_extras.steps[-1])


def test_older_state_is_refused_in_words_and_a_reset_helps() -> None:
    env = create_compiled_envpool_env("CartPole-v1", parallel=2)
    old = env.reset(jax.random.key(0))
    action = jnp.zeros(2, jnp.int32)
    state = env.step(old, action)
    jax.block_until_ready(env.step(state, action))
    assert env.is_live(old)
    for _ in range(2):
        with raises_naming(HostEnvError, "CartPole-v1", "advanced beyond"), translate_host_errors():
            jax.block_until_ready(_play(env, old, 5))
    fresh = env.next_episodes(state)
    assert env.is_live(fresh)
    assert (env.step(fresh, action).info.steps == 1).all()
    other = create_compiled_envpool_env("CartPole-v1", parallel=2)
    assert not other.is_live(fresh), "of simulators that were never reset"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Cartpole-v1", {}, ("EnvPool", "'Cartpole-v1'", "'CartPole-v1'")),
        ("CartPole-v1", {"sed": 1}, ("envpool/CartPole-v1", "'sed'")),
        ("CartPole-v1", {"autoreset_mode": "envpool"}, ("autoreset_mode=envpool", "JAX environment")),
        ("Breakout-v5", {"episodic_life": True}, ("episodic_life", "host=compiled", "env.host=loop")),
    ],
)
def test_errors_in_words(name: str, options: dict, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        create_compiled_envpool_env(name, **options)


def test_several_choices_at_once_are_stepped_as_from_the_host() -> None:
    env = create_compiled_envpool_env("Tetris-v0", parallel=2)
    assert env.action_space == Discrete(40)
    state = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    for i in range(3):
        state = step(state, jnp.array([i, i + 2], jnp.int32))
    assert bool(env.obs_space.contains(state.obs).all())
    assert state.info.steps.tolist() == [3, 3]


def test_partial_reset_and_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = create_compiled_envpool_env("CartPole-v1", parallel=2)
    state = env.reset(jax.random.key(0))
    with raises_naming(ValueError, "host=loop"):
        env.partial_reset(state, jnp.array([True, False]), jax.random.key(1))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with raises_naming(ValueError, "JAX on the CPU"):
        EnvPoolXlaEnv(EnvPoolTask("CartPole-v1"), EnvOptions(parallel=2))


def test_spaces_are_those_on_the_host() -> None:
    task = EnvPoolTask("Hopper-v5")
    env, on_host = create_compiled_envpool_env("Hopper-v5", parallel=2), EnvPoolVectorEnv(task, 2)
    assert env.obs_space == on_host.obs_space
    assert env.action_space == on_host.action_space
    assert env.max_episode_steps == on_host.max_episode_steps == 1000


def test_answers_left_behind_in_a_pool_are_found() -> None:
    env = create_compiled_envpool_env("CartPole-v1", parallel=2)
    env.reset(jax.random.key(0))
    env._pool(2)._pool.send(np.zeros(2, np.int32), np.array([0, 3]))  # as an interrupted program would
    with raises_naming(HostEnvError, "CartPole-v1", "interrupted"), translate_host_errors():
        jax.block_until_ready(env.reset(jax.random.key(0)))


def test_a_resumed_run_does_not_repeat_its_episodes() -> None:
    """Simulators that continue a run in a new process are seeded for the next episodes, the same at every attempt."""
    first = create_compiled_envpool_env("CartPole-v1", parallel=NUM_ENVS)
    start = first.reset(jax.random.key(0))
    seen, steps = _play(first, start, 30)
    early, late = (
        [create_compiled_envpool_env("CartPole-v1", parallel=NUM_ENVS).next_episodes(state) for _ in range(2)]
        for state in (start, seen)
    )
    for attempts in (early, late):
        np.testing.assert_array_equal(attempts[0].obs, attempts[1].obs)
    known = np.concatenate([start.obs[:, 0], steps.obs[..., 0].reshape(-1)])
    assert not np.isin(early[0].obs[:, 0], known).any()
    assert not np.isin(late[0].obs[:, 0], np.concatenate([known, early[0].obs[:, 0]])).any()
    assert (late[0]._internal.episode == seen._internal.episode + ~seen.done).all()

"""The snippets of the seed documents run unchanged, with imports added."""

# ruff: noqa: C408 (the snippets are unchanged)

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evorl import RandomAgent
from evorl.envs import AutoresetMode, create_wrapped_brax_env
from evorl.evaluators import Evaluator
from evorl.ops.schedules import ExponentialScheduleSpec
from evorl.rollout import rollout
from evorl.types import PyTreeData, PyTreeDict, PyTreeNode, pytree_field
from tests.support.errors import raises_naming


def test_algorithms_are_found_in_evorl_algorithm() -> None:
    """All import styles of ``evorl.algorithm`` return the modules of ``evorl.algorithms``."""
    import evorl.algorithm.a2c
    from evorl.algorithm.ppo import PPOWorkflow

    from evorl.algorithm import sac

    assert evorl.algorithm.a2c is importlib.import_module("evorl.algorithms.a2c")
    assert sac is importlib.import_module("evorl.algorithms.sac")
    assert PPOWorkflow is importlib.import_module("evorl.algorithms.ppo").PPOWorkflow
    assert evorl.algorithm.td3.TD3Workflow.__module__ == "evorl.algorithms.td3"
    spec = importlib.import_module("evorl.algorithms.ppo").__spec__
    assert spec is not None
    assert spec.name == "evorl.algorithms.ppo"
    with pytest.raises(ModuleNotFoundError, match=r"evorl\.algorithm\.none"):
        importlib.import_module("evorl.algorithm.none")
    with pytest.raises(AttributeError, match="none"):
        _ = evorl.algorithm.none


@pytest.mark.parametrize("name", ["PPOWorkflow", "SACWorkflow", "PBTWorkflow", "ERLWorkflow", "PGAMEWorkflow"])
def test_arguments_of_the_first_description_are_answered(name: str) -> None:
    modules = {"PPO": "ppo", "SAC": "sac", "PBT": "pbt", "ERL": "erl", "PGAME": "pga_me"}
    module = importlib.import_module(f"evorl.algorithm.{modules[name.removesuffix('Workflow')]}")
    for argument, answer in {"enable_jit": "jax.disable_jit", "enable_multi_devices": "devices=auto"}.items():
        with raises_naming(TypeError, argument, answer):
            getattr(module, name).build_from_config({}, **{argument: True})


def test_object_oriented_functional_programming() -> None:
    class Foo:
        def __init__(self, n, i):
            # n and i should be treated as static variables,
            # we should not change them after initialization.
            self.n = n
            self.i = i

        def init(self):
            return dict(
                a=jnp.ones((self.n,)),
                b=jnp.zeros((self.n,)),
            )

        @partial(jax.jit, static_argnums=0)
        def increment(self, state):
            res = state["a"] * state["b"]
            new_state = dict(
                a=state["a"] + self.i,
                b=state["b"] + self.i,
            )
            return res, new_state

    foo = Foo(n=3, i=1)
    state = foo.init()
    for _ in range(10):
        res, state = foo.increment(state)
    np.testing.assert_array_equal(res, [90.0] * 3)


def test_pytree_dict() -> None:
    d = PyTreeDict({"a": jnp.ones((3,)), "b": jnp.zeros((3,))})
    print(d.a, d["b"])
    d.c = jnp.zeros((5,))
    assert sorted(d) == ["a", "b", "c"]
    assert len(jax.tree.leaves(d)) == 3


# Classes are at module level, where their annotations can be resolved.
class SampleBatch(PyTreeData):
    obs: jax.Array | None = None
    actions: jax.Array | None = None
    rewards: jax.Array | None = None
    next_obs: jax.Array | None = None
    dones: jax.Array | None = None


class Bar(PyTreeData):
    a: jax.Array
    b: int = pytree_field(static=True, default=1)  # b is static


def test_pytree_data() -> None:
    sample_batch = SampleBatch(obs=jnp.ones((3, 4)))
    assert [leaf.shape for leaf in jax.tree.leaves(sample_batch)] == [(3, 4)]


def test_static_fields_and_replace() -> None:
    bar = Bar(a=jnp.ones((3, 4)), b=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bar.a = jnp.zeros((3, 4))
    # To change the field, use the `replace` method,
    # which will return a new data instance.
    new_bar = bar.replace(a=jnp.zeros((3, 4)))
    assert new_bar.b == 5
    assert float(new_bar.a.sum()) == 0.0
    assert len(jax.tree.leaves(bar)) == 1


class EvoOptimizer(PyTreeNode):
    """Stand-in for the base of evolutionary optimizers: the snippet only requires a node."""


def compute_centered_ranks(fitness: jax.Array) -> jax.Array:
    return jnp.argsort(jnp.argsort(fitness)) / (fitness.shape[0] - 1) - 0.5


class OpenES(EvoOptimizer):
    """OpenAI ES."""

    pop_size: int
    lr_schedule: ExponentialScheduleSpec
    noise_std_schedule: ExponentialScheduleSpec
    mirror_sampling: bool = True
    optimizer_name: str = "adam"
    weight_decay: float | None = None
    fitness_shaping_fn: Callable[[chex.Array], chex.Array] = pytree_field(static=True, default=compute_centered_ranks)
    optimizer: optax.GradientTransformation = pytree_field(static=True, init=False)

    def __post_init__(self):
        self.optimizer = optax.adam(learning_rate=self.lr_schedule.init)


def test_pytree_node() -> None:
    schedule = ExponentialScheduleSpec(init=0.01, final=0.001, decay=0.999)
    es = OpenES(pop_size=8, lr_schedule=schedule, noise_std_schedule=schedule)
    assert len(jax.tree.leaves(es)) == 6  # two numbers of each schedule
    updates, _ = es.optimizer.update({"w": jnp.ones(2)}, es.optimizer.init({"w": jnp.zeros(2)}))
    np.testing.assert_allclose(updates["w"], -0.01, rtol=1e-5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        es.pop_size = 4
    rate = jax.jit(lambda node: node.lr_schedule.init * node.pop_size)(es)
    np.testing.assert_allclose(rate, 0.08, rtol=1e-6)


def test_environment_interaction() -> None:
    from brax.envs import get_environment

    from evorl.envs.brax import BraxAdapter

    brax_env = get_environment("hopper")
    env = BraxAdapter(brax_env)

    # reset the environment
    env_key = jax.random.PRNGKey(42)
    env_state = env.reset(env_key)

    # apply one step
    actions = jnp.zeros((3,))
    env_nstate = env.step(env_state, actions)

    assert env.obs_space.shape == env_nstate.obs.shape == (11,)
    assert not np.array_equal(env_state.obs, env_nstate.obs)


def test_environment_creation() -> None:
    train_vec_env = create_wrapped_brax_env("hopper", parallel=16, autoreset_mode=AutoresetMode.NORMAL)
    eval_vec_env = create_wrapped_brax_env("hopper", parallel=16, autoreset_mode=AutoresetMode.DISABLED)
    assert train_vec_env.num_envs == eval_vec_env.num_envs == 16
    assert train_vec_env != eval_vec_env


def test_rollout() -> None:
    env = create_wrapped_brax_env("hopper", parallel=16, autoreset_mode=AutoresetMode.NORMAL)
    agent = RandomAgent()

    key = jax.random.PRNGKey(42)
    rollout_key, env_key, agent_key = jax.random.split(key, 3)

    env_state = env.reset(env_key)
    agent_state = agent.init(env.obs_space, env.action_space, agent_key)

    # trajectory data shape [128, 16, ...]
    trajectory, env_nstate = rollout(
        env.step,
        agent.compute_actions,
        env_state,
        agent_state,
        rollout_key,
        rollout_length=128,
        env_extra_fields=("termination", "truncation", "steps"),
    )

    assert {leaf.shape[:2] for leaf in jax.tree.leaves(trajectory)} == {(128, 16)}
    assert sorted(trajectory.extras.env_extras) == ["steps", "termination", "truncation"]
    assert bool(trajectory.dones.any())
    goes_on = ~trajectory.dones[:-1]
    np.testing.assert_array_equal(trajectory.obs[1:][goes_on], trajectory.next_obs[:-1][goes_on])
    assert env_nstate.obs.shape == (16, 11)


def test_evaluator_counts_first_episodes_only() -> None:
    env = create_wrapped_brax_env("hopper", parallel=16, autoreset_mode=AutoresetMode.NORMAL)
    agent = RandomAgent()

    key = jax.random.PRNGKey(42)
    eval_key, env_key, agent_key = jax.random.split(key, 3)

    env_state = env.reset(env_key)
    agent_state = agent.init(env.obs_space, env.action_space, agent_key)

    evaluator = Evaluator(
        env=env,
        agent_fn=agent.evaluate_actions,
        max_episode_steps=1000,
        discount=1,
    )
    eval_metrics = evaluator.evaluate(agent_state, eval_key, num_episodes=10)

    print("Avg Return:", eval_metrics.episode_returns.mean())
    print("Avg Length:", eval_metrics.episode_lengths.mean())

    assert env_state.obs.shape == (16, 11)
    assert eval_metrics.episode_returns.shape == eval_metrics.episode_lengths.shape == (10,)
    assert len(np.unique(eval_metrics.episode_returns)) == 10
    frozen_env = create_wrapped_brax_env("hopper", parallel=16, autoreset_mode=AutoresetMode.DISABLED)
    frozen = evaluator.replace(env=frozen_env).evaluate(agent_state, eval_key, num_episodes=10)
    np.testing.assert_array_equal(eval_metrics.episode_lengths, frozen.episode_lengths)
    np.testing.assert_allclose(eval_metrics.episode_returns, frozen.episode_returns, rtol=1e-5)

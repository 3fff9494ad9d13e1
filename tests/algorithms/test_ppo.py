"""PPO learns what can be known in closed form, and CartPole."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.algorithms.ppo import PPOAgent, PPOWorkflow
from evorl.cli import build_workflow, config_folder
from evorl.envs.wrappers import VmapWrapper
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from tests.every_probe import DISCOUNT, NAMES, every_probe, questions
from tests.small_workflows import small

KINDS = {"discrete": False, "continuous": True}


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> tuple[bool, PPOAgent, AgentState]:
    continuous = KINDS[request.param]
    env = every_probe(continuous, num_envs=64)
    settings = {"network": {"hidden_sizes": [64, 64]}, "entropy_coefficient": 0.0, "value_coefficient": 1.0}
    workflow = PPOWorkflow(
        env=env,
        eval_env=VmapWrapper(env.env, 4),
        agent=PPOWorkflow.make_agent(settings, env),
        discount=DISCOUNT,
        rollout_length=16,
        num_epochs=4,
        num_minibatches=4,
        optimizer=Optimizer(learning_rate=5e-3, final_learning_rate=0.0, max_grad_norm=0.5),
        total_timesteps=1024 * 500,
        eval_interval=0.0,
    )
    state = workflow.learn()
    return continuous, workflow.agent, state.agent_state


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_probe(trained: tuple, name: str) -> None:
    continuous, agent, agent_state = trained
    obs, values, _ = questions(name, continuous)
    learned = agent.values(agent_state, agent_state.params, obs)
    np.testing.assert_allclose(learned, values, rtol=0.01)


@pytest.mark.parametrize("name", ["best_action", "observation_dependent_action"])
def test_actions_in_a_probe(trained: tuple, name: str) -> None:
    continuous, agent, agent_state = trained
    obs, _, best = questions(name, continuous)
    actions, _ = agent.evaluate_actions(agent_state, SampleBatch(obs=obs), jax.random.key(0))
    np.testing.assert_allclose(actions, best, atol=0.05)


def test_cartpole_is_solved() -> None:
    """Three seeds, by the shipped config, in the steps that it takes."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        config = compose("config", ["agent=ppo", "env=cartpole", "num_seeds=3", "devices=1", "eval_interval=0"])
    workflow = build_workflow(config)
    assert workflow.total_timesteps <= 200_000
    metrics = workflow.evaluate(workflow.learn())
    assert metrics.episode_return.shape == (3,)
    assert float(metrics.episode_return.mean()) >= 475.0


def _with_options(**changes: Any) -> PPOWorkflow:
    """A small workflow with every option in use."""
    options = {"normalize_obs": True, "value_clip_epsilon": 0.2, "final_clip_epsilon": 0.1}
    return small(
        "ppo",
        "Pendulum-v1",
        target_kl=1e9,
        optimizer={"final_learning_rate": 1e-4, "max_grad_norm": 1.0, "weight_decay": 0.01},
        agent={"network": {"hidden_sizes": [8], "layer_norm": True}, **options},
        **changes,
    )


def test_the_policy_that_learns_is_the_one_that_acted() -> None:
    """At the first minibatch the ratio is 1 everywhere, also after the statistics of observations have changed."""
    workflow = _with_options(num_epochs=1, num_minibatches=1)
    state = workflow.init(0)
    for _ in range(3):
        metrics, state = workflow.step(state)
        assert float(state.agent_state.obs_preprocessor_state.count) > 0
        np.testing.assert_allclose(metrics.approximate_kl, 0.0, atol=1e-6)
        assert float(metrics.clip_fraction) == 0.0
    assert all(np.isfinite(value) for name, value in metrics.items() if name != "episodes")


def test_target_kl_ends_the_learning_from_a_trajectory() -> None:
    """With a limit that any change exceeds, the first of the updates is the only one."""
    free = _with_options()
    state = free.init(0)
    num_updates = {}
    for name, limit in (("free", 1e9), ("held", 0.0)):
        _, after = free.replace(target_kl=limit).step(state)
        counts = [int(x) for x in jax.tree.leaves(after.opt_state) if np.issubdtype(x.dtype, np.integer)]
        num_updates[name] = max(counts)
    assert num_updates["free"] == free.num_epochs * free.num_minibatches
    assert num_updates["held"] < num_updates["free"]

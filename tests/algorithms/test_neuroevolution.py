"""Every optimizer in the configs finds the best actions of a probe."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from evorl.algorithms.neuroevolution import NeuroevolutionWorkflow
from evorl.cli.config_tree import config_folder
from evorl.config.nodes import fields_from_config
from evorl.config.values import plain
from evorl.envs import AutoresetMode
from evorl.sample_batch import SampleBatch
from evorl.types import State
from evorl.workflows.evolution import EvolutionWorkflow
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.probe_envs import make_probe
from tests.support.small_workflows import EPISODE_STEPS, POP_SIZE, RUN_CONFIG

CONFIGS = {path.stem: plain(OmegaConf.load(path)) for path in sorted((config_folder() / "agent/ec").glob("*.yaml"))}
NAMES = [name for name, config in CONFIGS.items() if str(config["workflow"]).endswith(".NeuroevolutionWorkflow")]
GENERATIONS = 100
OBS = jnp.array([[-1.0], [1.0]])  # all observations of the probe


class TestContract(WorkflowContract):
    workflow = NeuroevolutionWorkflow
    has_other_products = True
    as_for_users = True
    SMALL = {
        **RUN_CONFIG,
        "agent": {"network": {"torso": [8]}},
        "optimizer": {"name": "openes", "pop_size": POP_SIZE},
        "total_timesteps": POP_SIZE * EPISODE_STEPS * 20,
    }
    endless_env = ("Pendulum-v1", 3)


class TestLowRankContract(WorkflowContract):
    workflow = NeuroevolutionWorkflow
    SMALL = {**TestContract.SMALL, "optimizer": {"name": "openes", "pop_size": POP_SIZE, "rank": 1}}
    endless_env = ("Pendulum-v1", 3)
    has_other_products = True  # of the factors of the noise


class TestAgent(AgentContract):
    workflow = NeuroevolutionWorkflow
    settings = TestContract.SMALL["agent"]
    explores = False


def _evolved_actions(name: str, continuous: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the final policy's actions and the best ones."""
    settings = {key: value for key, value in CONFIGS[name].items() if key == "optimizer"}
    optimizer = fields_from_config(NeuroevolutionWorkflow, settings, "").get("optimizer", EvolutionWorkflow.optimizer)
    env = make_probe("observation_dependent_action", 1, AutoresetMode.DISABLED, continuous)
    agent = NeuroevolutionWorkflow.make_agent({"network": {"torso": [4], "orthogonal": True}}, env)
    workflow = NeuroevolutionWorkflow(
        env=env, eval_env=env, agent=agent, optimizer=optimizer, episodes_per_individual=4, common_random_numbers=True
    )

    def generation(state: State, _: None) -> tuple[State, None]:
        return workflow.pure_step(state)[1], None

    run = jax.jit(lambda key: jax.lax.scan(generation, workflow.setup(key), None, GENERATIONS)[0].agent_state)
    actions, _ = agent.evaluate_actions(run(jax.random.key(0)), SampleBatch(obs=OBS), jax.random.key(0))
    return np.asarray(actions), np.asarray(env.unwrapped.best_action(OBS))


@pytest.mark.parametrize("name", NAMES)
def test_continuous_actions(name: str) -> None:
    actions, best = _evolved_actions(name, continuous=True)
    np.testing.assert_allclose(actions, best, atol=0.1)


def test_discrete_actions() -> None:
    actions, best = _evolved_actions("sepcem", continuous=False)
    np.testing.assert_array_equal(actions, best)

"""SAC solves problems with closed-form solutions, and Pendulum."""

from __future__ import annotations

from evorl.algorithms.sac import SACWorkflow
from tests.conformance.agent import AgentContract
from tests.conformance.workflow import WorkflowContract
from tests.support.compilation import compiled_to_run_long
from tests.support.every_probe import ActorCriticProbes, train_soft_actor_critic
from tests.support.small_workflows import SAC_CONFIG


class TestContract(WorkflowContract):
    workflow = SACWorkflow
    as_for_users = True
    SMALL = SAC_CONFIG


class TestAgent(AgentContract):
    workflow = SACWorkflow
    settings = TestContract.SMALL["agent"]


class TestProbes(ActorCriticProbes):
    @staticmethod
    def train(continuous: bool) -> tuple:
        return train_soft_actor_critic(SACWorkflow, {}, continuous)


@compiled_to_run_long()
def test_pendulum_is_learned() -> None:
    """A small network learns Pendulum in few steps, far above the -1200 of uniformly random actions."""
    rates = {f"{part}_optimizer": {"learning_rate": 2e-3} for part in ("actor", "critic", "temperature")}
    workflow = SACWorkflow.build_from_config(
        {
            "env": "Pendulum-v1",
            "num_envs": 2,
            "devices": 1,
            "agent": {"network": {"torso": [64, 64]}},
            "batch_size": 128,
            "learning_starts": 500,
            "replay_capacity": 20_000,
            "total_timesteps": 12_000,
            "eval_interval": 0,
            **rates,
        }
    )
    assert float(workflow.evaluate(workflow.learn()).episode_return) >= -250.0

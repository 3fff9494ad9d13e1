"""A user-defined algorithm, named by its class, serves simulators; greedy clients use published policies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import jax.numpy as jnp
import pytest
from omegaconf import OmegaConf

from evorl.agent import ActionSpaces, AgentState
from evorl.agents.random_actions import RandomAgent
from evorl.assembly import workflow_from_config
from evorl.sample_batch import SampleBatch
from evorl.serving.batched_inference import BatchedInference
from evorl.serving.event_thread import EventThread
from evorl.serving.segments import Segments
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.switchboard import Switchboard
from evorl.types import Action, Key, PolicyExtras, PyTreeDict
from evorl.workflows.on_policy import OnPolicyWorkflow
from tests.support.rlx_client import RlxClient


class ReversingAgent(RandomAgent):
    """Agent that returns the reversed state times its only parameter."""

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.ANY

    def init(self, obs_space: Any, action_space: Any, key: Key) -> AgentState:
        return super().init(obs_space, action_space, key).replace(params=PyTreeDict(gain=jnp.ones(())))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return agent_state.params.gain * sample_batch.obs[..., ::-1], PyTreeDict()


class ReversingWorkflow(OnPolicyWorkflow):
    """Workflow that learns nothing."""

    agent: ReversingAgent
    total_timesteps: float = 1e3

    def learn_from(self, agent_state: Any, opt_state: Any, trajectory: Any, key: Any, progress: Any) -> Any:
        return agent_state, opt_state, PyTreeDict()


class Server:
    """Server with the user-defined algorithm."""

    def __init__(self) -> None:
        spaces = {"obs_space": {"shape": [2]}, "action_space": {"shape": [2]}}
        env = {"library": "remote", "name": "simulator", **spaces}
        config = {"workflow": f"{__name__}.ReversingWorkflow", "env": env, "rollout_length": 4, "num_envs": 1}
        self.workflow: Any = workflow_from_config(OmegaConf.create(config))
        self.acting, _ = self.workflow.acting(self.workflow.init(0))
        self.inference = BatchedInference(self.workflow, num_slots=4, records=True)
        self.inference.publish(self.acting)
        usual = self.workflow.env.simulators.main
        self.segments = Segments(length=1000, num_rows=1, max_lag=None)
        self.switchboard = Switchboard(self.inference, self.segments, usual.obs_space, usual.action_space, 4)
        self.thread = EventThread(ServeSettings(bind="127.0.0.1:0"), self.switchboard)

    def publish(self, gain: float) -> None:
        """Publish a policy as a learner does."""
        state = self.acting.agent_state
        self.inference.publish(
            self.acting.replace(agent_state=state.replace(params=PyTreeDict(gain=jnp.asarray(gain))))
        )
        self.switchboard.note_new_policy()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.thread.close()


def test_a_state_comes_back_in_reverse(server: Server) -> None:
    client = RlxClient(server.thread.addresses[0])
    assert client.ask("init", exploit=False) == {"response": "ready"}
    assert client.ask("update", reward=None, state=[1.0, 0.0]) == {"response": "action", "data": [0.0, 1.0]}
    assert client.ask("update", reward=1.0, state=[3.0, 4.0], terminal=False)["data"] == [4.0, 3.0]
    client.close()


def test_who_exploits_follows_the_newest_policy_and_leaves_no_trace(server: Server) -> None:
    client = RlxClient(server.thread.addresses[0])
    assert client.ask("init", exploit=True) == {"response": "ready"}
    version = server.segments.version
    for step in range(100):
        assert client.ask("update", reward=1.0 if step else None, state=[1.0, step / 50.0])["data"][1] == 1.0
    assert server.segments.version == version
    assert sum(len(row.steps) for row in server.segments._open.values()) == 0
    server.publish(2.5)
    assert client.ask("update", reward=1.0, state=[1.0, 0.0])["data"] == [0.0, 2.5]
    client.close()

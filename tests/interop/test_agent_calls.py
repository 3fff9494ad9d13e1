from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.envs.space import Box
from evorl.interop.agent_calls import calls_of, env_step_for
from evorl.interop.collector import Collector
from evorl.interop.host_agent import HostAgent
from evorl.interop.runner import Runner
from evorl.interop.vector_collector import VectorCollector
from tests.support.errors import raises_naming
from tests.support.interop_parts import CountingEnv

STEP = (np.zeros(1), 0, 1.0, np.ones(1), True, False, {"a": 1})


class _Viewing(HostAgent):
    def view(self, transition: Mapping[str, Any], extras: Mapping[str, Any]) -> Mapping[str, Any]:
        self.viewed = transition
        return {**extras, "b": 2}


def test_nothing_is_called_after_steps_that_nobody_adds_to() -> None:
    act, complete = calls_of(HostAgent(CountingEnv(1).action_space))
    assert complete is None
    assert act(STEP[0])[1] == {}


def test_a_view_is_called_with_the_whole_step() -> None:
    agent = _Viewing(CountingEnv(1).action_space)
    _, complete = calls_of(agent, ("c",), {"d": 4})
    assert complete is not None
    assert complete(STEP, {"c": 3, "e": 5})[6] == {"a": 1, "b": 2, "c": 3, "agent_info": {"d": 4}}
    assert agent.viewed == dict(
        zip(("obs", "actions", "rewards", "next_obs", "termination", "truncation"), STEP[:6], strict=True)
    )
    assert agent.agent_info == {"d": 4}


def test_a_view_of_one_object_counts_too() -> None:
    agent: Any = HostAgent(CountingEnv(1).action_space)
    agent.view = lambda transition, extras: {"b": 2}
    _, complete = calls_of(agent)
    assert complete is not None
    assert complete(STEP, {})[6] == {"b": 2}


class _OfAgents(HostAgent):
    gives_agent_actions = True


NUMBERS = spaces.Box(0.0, 1.0, (1,))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict({"a": NUMBERS, "b": spaces.Discrete(2, start=1)}),
        spaces.Tuple([NUMBERS, spaces.Dict({"c": spaces.MultiDiscrete([4])})]),
    ],
    ids=repr,
)
def test_discrete_observations_are_refused_unless_they_are_encoded(space: Any) -> None:
    env = CountingEnv(3)
    agents = _OfAgents(env.action_space), HostAgent(env.action_space)
    env.observation_space = space
    with raises_naming(ValueError, "one-hot", "Discrete", "FlattenObservation", "env=gymnasium/"):
        Collector(env).collect(agents[0], 1)
    with raises_naming(ValueError, "one-hot"):
        Runner.on_policy(env, agents[0], rollout_length=1)
    assert Collector(env).collect(agents[1], 2).transitions.obs.shape == (2, 1)
    env.observation_space = spaces.flatten_space(space)
    assert Collector(env).collect(agents[0], 2).transitions.obs.shape == (2, 1)


def test_discrete_observations_of_simulators_are_refused() -> None:
    agent = _OfAgents(Box(-1.0, 1.0, (1,)), num_envs=2)
    simulators = make_gymnasium_simulators("FrozenLake-v1", 2)
    with raises_naming(ValueError, "Discrete(16)", "make_gymnasium_simulators", "FlattenObservation"):
        VectorCollector(simulators).collect(agent, 1)
    simulators = make_gymnasium_simulators("FrozenLake-v1", 2, wrappers=["FlattenObservation"])
    assert env_step_for(simulators, agent) == simulators.step
    assert simulators.obs_space.shape == (16,)

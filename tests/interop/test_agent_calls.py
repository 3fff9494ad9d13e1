from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evorl.interop.agent_calls import calls_of
from evorl.interop.host_agent import HostAgent
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

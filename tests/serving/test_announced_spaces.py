"""Spaces that a client declares with init must match the server's, and are rejected without memory cost."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.remote import make_remote_simulators
from evorl.envs.space import Box, DictSpace, Discrete
from tests.serving.test_session import FakeHost, Talk
from tests.support.errors import missing_parts


class TestSpaces:
    def test_those_of_the_server_are_welcome(self) -> None:
        talk = Talk(begun=False)
        obs_space = {"shape": [2], "low": -1.0, "high": 1.0}
        assert talk.say("init", obs_space=obs_space, action_space={"n": 3}) == {"response": "ready"}

    @pytest.mark.parametrize("config", [{"shape": [0]}, {"shape": [3, 0], "low": 0, "high": 1}])
    def test_one_without_numbers_is_that_of_the_same_config(self, config: dict[str, Any]) -> None:
        host = FakeHost(obs_space=make_remote_simulators("simulator", 1, config, {"n": 3}).obs_space)
        talk = Talk(host, begun=False)
        assert talk.say("init", obs_space=config) == {"response": "ready"}
        assert "space of the server" in Talk(begun=False).error("init", obs_space=config)

    def test_others_are_refused_in_words(self) -> None:
        talk = Talk(begun=False)
        message = talk.error("init", action_space={"n": 4})
        assert not missing_parts(message, "action_space", "Discrete(3)", "space of the server")
        assert not talk.session.has_begun

    @pytest.mark.parametrize(
        "space",
        [
            {"shape": [10**6, 10**6]},
            {"shape": [4000, 4000]},
            {"shape": [4000.0, 4000.0]},
            {"shape": ["4000", "4000"]},
            {"shape": "99999999"},
            {"shape": np.array([4000, 4000])},
            {"shape": [1], "dtype": "U30000000"},
            {"shape": [1], "dtype": "V300000000"},
            {"shape": [1], "low": [0.0] * 100_000},
            {"shape": [2**40, 0]},
            {"low": [[0.0]] * 5000, "high": [[1.0] * 5000]},
            {"shape": [10**9], "dtype": "uint8"},
            {"a": {"b": {"shape": [10**12]}}},
            {str(i): {"shape": [4096]} for i in range(200)},
            {str(i): {str(j): {"shape": [100]} for j in range(10)} for i in range(5)},
            {str(i): {"n": 2} for i in range(4097)},
            {"low": 0, "shape": {"100000000": 0}},
            {"shape": [2], "dtype": "nothing"},
            {"shape": [2], "dtype": "object"},
            {"shape": ["a"]},
            {"shape": [-1]},
            {"shape": 5.5},
            {"low": [[1], [1, 2]]},
            {"low": "a", "shape": [2]},
            {"n": -3},
            {"n": "many"},
            [1, 2],
            "text",
            {},
        ],
        ids=lambda space: str(space)[:60],
    )
    def test_what_is_none_takes_no_memory(self, space: Any) -> None:
        talk = Talk(begun=False)
        tracemalloc.start()
        try:
            assert "obs_space" in talk.error("init", obs_space=space)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * 10**6

    def test_a_space_may_be_as_large_as_the_servers(self) -> None:
        space = Box([0.0] * 5000, 1.0)
        talk = Talk(FakeHost(obs_space=space), begun=False)
        declared = {"low": [0.0] * 5000, "high": [1.0] * 5000, "shape": None}
        assert talk.say("init", obs_space=declared) == {"response": "ready"}

    def test_the_parts_together_may_be_as_large_as_the_servers(self) -> None:
        parts = {"a": Box(0.0, 1.0, (3000,)), "b": DictSpace({"c": MultiDiscrete([2] * 3000), "d": Discrete(3)})}
        space = DictSpace({**parts, "e": Box(0.0, 1.0, (0, 2))})
        declared = {
            "a": {"shape": [3000], "low": 0, "high": 1},
            "b": {"c": {"n": [2] * 3000}, "d": {"n": 3}},
            "e": {"shape": [0, 2], "low": 0, "high": 1},
        }
        talk = Talk(FakeHost(obs_space=space), begun=False)
        assert talk.say("init", obs_space=declared) == {"response": "ready"}
        more = {**declared, "f": {"n": 2}}
        message = Talk(FakeHost(obs_space=space), begun=False).error("init", obs_space=more)
        assert not missing_parts(message, "obs_space", "more than 6003 elements")

    def test_parts_in_parts_in_parts_come_to_an_end(self) -> None:
        space: dict[str, Any] = {"shape": [2]}
        for _ in range(700):
            space = {"a": space}
        assert "more than 8 levels" in Talk(begun=False).error("init", obs_space=space)

"""Validation of values that environments return, with errors that name environment and step."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import create_env
from evorl.envs.gymnasium import InProcessGymnasiumEnv
from evorl.envs.host.bridge import HostBackedEnv
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.options import EnvOptions
from tests.support.errors import raises_naming


class Answering(gymnasium.Env):
    """Stand-in that returns a configured value at its second step or its reset."""

    observation_space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Discrete(3)})
    action_space = spaces.Discrete(2)

    def __init__(self, changes: dict[int, Any]) -> None:
        self.changes, self.t = changes, 0
        self.usual = [{"a": np.zeros(2), "b": 1}, 1.0, False, False, {}]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.changes.get(5, (self.usual[0], {}))

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t < 2:
            return tuple(self.usual)
        raised = self.changes.get(6)
        if raised is not None:
            raise raised
        return tuple(self.changes.get(i, part) for i, part in enumerate(self.usual))


FAULTS: list[tuple[dict[int, Any], tuple[str, ...]]] = [
    ({0: None}, ("observation", "dict", "with a, b", "got NoneType")),
    ({0: {"a": np.zeros(2)}}, ("observation", "dict without b")),
    ({0: {"a": None, "b": 1}}, ("observation 'a'", "shape [2]", "got NoneType")),
    ({0: {"a": np.zeros(3), "b": 1}}, ("'a'", "shape [2]", "got [3]")),
    ({0: {"a": "ab", "b": 1}}, ("'a'", "numbers")),
    ({0: {"a": np.zeros(2), "b": 1.5}}, ("'b'", "dtype int32", "got 1.5")),
    ({0: {"a": np.zeros(2), "b": 2**40}}, ("'b'", "dtype int32")),
    ({0: {"a": np.array([0, np.nan]), "b": 1}}, ("observation", "not finite")),
    ({1: None}, ("reward", "got NoneType")),
    ({1: np.ones(1)}, ("reward", "shape [1]", "reward.item")),
    ({1: "1"}, ("reward", "got str")),
    ({1: np.nan}, ("reward", "not finite")),
    ({1: 1j}, ("reward", "got complex")),
    ({2: None}, ("terminated", "True or False", "got NoneType")),
    ({3: np.zeros(2, bool)}, ("truncated", "True or False", "shape [2]")),
    ({2: 2}, ("terminated", "True or False", "got int 2")),
    ({4: None}, ("info", "dict", "got NoneType")),
    ({6: SystemExit(3)}, ("failed in step", "SystemExit: 3")),
    ({6: asyncio.CancelledError()}, ("failed in step", "CancelledError")),
    ({6: GeneratorExit()}, ("failed in step", "GeneratorExit")),
    ({6: RuntimeError("burnt")}, ("failed in step", "RuntimeError: burnt")),
]


def simulated(changes: dict[int, Any]) -> HostBackedEnv:
    return HostBackedEnv(lambda n: InProcessGymnasiumEnv(lambda: Answering(changes), n), EnvOptions(parallel=2), "loop")


@pytest.mark.parametrize(("changes", "parts"), FAULTS, ids=[", ".join(parts) for _, parts in FAULTS])
def test_a_wrong_answer_names_the_environment_and_the_step(changes: dict[int, Any], parts: tuple[str, ...]) -> None:
    simulators = simulated(changes).simulators
    actions, seeds = np.zeros(2, np.int32), np.zeros((2, 2), np.uint32)
    answer = simulators.reset(seeds)
    arguments = {"actions": actions, "seeds": seeds, "episode_steps": np.zeros(2, np.int32)}
    answer = simulators.step({**arguments, "token": answer["token"], "saved": answer["saved"]})
    with raises_naming(HostEnvError, "environment 0", *parts) as caught:
        simulators.step({**arguments, "token": answer["token"], "saved": answer["saved"]})
    assert "step 2" in str(caught.value)


@pytest.mark.parametrize("answer", [None, np.zeros(2), ({"a": np.zeros(2), "b": 0},), (None, {})])
def test_a_wrong_start_is_refused(answer: Any) -> None:
    with raises_naming(HostEnvError, "environment 0", "reset", "step 0"):
        simulated({5: answer}).simulators.reset(np.zeros((2, 2), np.uint32))


@pytest.mark.parametrize("flag", [True, np.True_, np.array(True), 1, jnp.asarray(True)])
@pytest.mark.parametrize("reward", [1, 1.0, np.float64(1.0), np.array(1.0), jnp.float32(1.0), True])
def test_numbers_and_flags_of_any_library_are_taken(flag: Any, reward: Any) -> None:
    rows = InProcessGymnasiumEnv(lambda: Answering({1: reward, 2: flag}), 1)
    rows.reset(np.zeros(1, np.uint64))
    rows.step(np.zeros(1, np.int32))
    obs, paid, terminated, _, _ = rows.step(np.zeros(1, np.int32))
    assert (paid.tolist(), terminated.tolist()) == ([1.0], [True])
    assert obs["b"].dtype == np.int32


def leaving() -> Any:
    """Raise ``SystemExit`` instead of creating an environment."""
    raise SystemExit(3)


def test_a_factory_that_leaves_is_an_error() -> None:
    with raises_naming(HostEnvError, "leaving", "SystemExit(3)"):
        create_env({"factory": f"{__name__}:leaving"})


def test_ctrl_c_passes() -> None:
    rows = InProcessGymnasiumEnv(lambda: Answering({6: KeyboardInterrupt()}), 1)
    rows.reset(np.zeros(1, np.uint64))
    rows.step(np.zeros(1, np.int32))
    with pytest.raises(KeyboardInterrupt):
        rows.step(np.zeros(1, np.int32))

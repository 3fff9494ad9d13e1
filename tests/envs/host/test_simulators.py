"""Host side of the bridge: calls of simulators, and validation of their results."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.envs import Box, Discrete
from evorl.envs.gymnasium import InProcessGymnasiumEnv
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.simulators import Simulators
from evorl.envs.pettingzoo import PettingZooVectorEnv
from tests.envs.host.test_answers import Answering
from tests.envs.test_pettingzoo import WalkGame
from tests.support.errors import raises_naming

SEEDS = np.array([[1, 2], [0, 7]], np.uint32)


class Counter(HostVectorEnv):
    """Observes the number of steps since the reset and the seed; ends at three. Records its calls."""

    obs_space = Box(-np.inf, np.inf, (2,))
    action_space = Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.calls: list[Any] = []
        self.closed = False
        self.answer: dict[str, Any] = {}

    def reset(self, seeds: np.ndarray) -> Any:
        self.steps, self.seeds = np.zeros(self.num_envs), seeds.copy()
        self.calls.append(("reset", seeds.tolist()))
        return self._obs()

    def step(self, actions: Any) -> Any:
        self.steps += 1
        self.calls.append(("step", actions.tolist()))
        usual = {"obs": self._obs(), "reward": np.ones(self.num_envs), "termination": self.steps >= 3}
        usual |= {"truncation": np.zeros(self.num_envs, bool), "info": {}} | self.answer
        return tuple(usual.values())

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        self.steps, self.seeds = np.where(mask, 0, self.steps), np.where(mask, seeds, self.seeds)
        self.calls.append(("partial_reset", mask.tolist()))
        return self._obs()

    def close(self) -> None:
        self.closed = True

    def _obs(self) -> np.ndarray:
        return np.stack([self.steps, self.seeds % 2**16], axis=1).astype(np.float32)


def step_arguments(answer: dict, actions: tuple = (0, 1), steps: int = 0, **changes: Any) -> dict:
    seeds = np.array([[0, 100], [0, 200]], np.uint32)
    now = {"actions": np.array(actions), "seeds": seeds, "episode_steps": np.full(2, steps), "obs": answer["start"]}
    return now | {"token": answer["token"], "saved": answer["saved"]} | changes


def test_ended_rows_start_by_their_seeds_and_the_successor_is_true() -> None:
    simulators = Simulators(Counter, 2, None)
    answer = simulators.reset(SEEDS)
    assert simulators.main.calls == [("reset", [1 ^ 2, 7])]  # two words folded to 31 bits
    for step in range(3):
        answer = simulators.step(step_arguments(answer, steps=step))
    np.testing.assert_array_equal(answer["obs"][:, 0], [3, 3])
    np.testing.assert_array_equal(answer["start"], [[0, 100], [0, 200]])
    assert answer["termination"].all()
    assert [name for name, _ in simulators.main.calls] == ["reset", "step", "step", "step", "partial_reset"]


def test_a_time_limit_of_ours_cuts_and_the_end_of_the_task_comes_first() -> None:
    simulators = Simulators(Counter, 2, 2)
    answer = simulators.step(step_arguments(simulators.reset(SEEDS), steps=1))
    assert (answer["truncation"].tolist(), answer["termination"].tolist()) == ([True, True], [False, False])
    simulators.main.answer = {"termination": np.array([True, False])}
    answer = simulators.step(step_arguments(answer, steps=1))
    assert (answer["truncation"].tolist(), answer["termination"].tolist()) == ([False, True], [True, False])


def test_tokens_tell_where_the_simulators_are() -> None:
    simulators, twin = Simulators(Counter, 2, None), Simulators(Counter, 2, None)
    start = simulators.reset(SEEDS)
    assert not twin.is_live(start["token"])
    np.testing.assert_array_equal(twin.reset(SEEDS)["token"], start["token"])
    after = simulators.step(step_arguments(start))
    assert simulators.is_live(after["token"])
    assert not simulators.is_live(start["token"])
    assert twin.step(step_arguments(start, actions=(1, 1)))["token"][0] != after["token"][0]
    with raises_naming(HostEnvError, "advanced beyond"):
        simulators.step(step_arguments(start))


@given(calls=st.lists(st.one_of(st.none(), st.tuples(st.booleans(), st.booleans())), min_size=2, max_size=8))
def test_only_the_last_of_all_states_is_live(calls: list[tuple[bool, bool] | None]) -> None:
    """After any sequence of steps and restarts, also equal ones, every older state is recognized."""
    simulators = Simulators(Counter, 2, None)
    answers = [simulators.reset(SEEDS)]
    for mask in calls:
        arguments = step_arguments(answers[-1])
        answers.append(
            simulators.step(arguments) if mask is None else simulators.restart(arguments | {"mask": np.array(mask)})
        )
    assert [simulators.is_live(answer["token"]) for answer in answers] == [False] * len(calls) + [True]


def test_a_restart_is_of_the_rows_it_names() -> None:
    simulators = Simulators(Counter, 2, None)
    answer = simulators.step(step_arguments(simulators.reset(SEEDS)))
    again = simulators.restart(step_arguments(answer, mask=np.array([True, False])))
    np.testing.assert_array_equal(again["start"][0], [0, 100])
    assert simulators.is_live(again["token"])
    np.testing.assert_array_equal(simulators.main.steps, [0, 1])


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ({"obs": np.zeros((2, 3), np.float32)}, ("observation", "shape [2, 2]", "step 1", "got [2, 3]")),
        ({"obs": {"a": np.zeros((2, 2))}}, ("observation", "shape [2, 2]", "step 1", "got []")),
        ({"reward": np.zeros(3)}, ("reward", "shape [2]", "step 1")),
        ({"reward": np.array([0.0, np.nan])}, ("environment 1", "reward", "not finite", "step 1")),
        ({"reward": np.array([0.0, 1e300])}, ("environment 1", "reward", "not finite", "step 1")),
        ({"obs": np.full((2, 2), 1e300)}, ("environment 0", "observation", "not finite", "step 1")),
        ({"obs": np.full((2, 2), np.inf)}, ("environment 0", "observation", "not finite", "step 1")),
    ],
)
def test_answers_that_may_not_be_are_told_in_a_sentence(answer: dict, parts: tuple[str, ...]) -> None:
    simulators = Simulators(Counter, 2, None)
    start = simulators.reset(SEEDS)
    simulators.main.answer = answer
    with raises_naming(HostEnvError, *parts):
        simulators.step(step_arguments(start))


def test_other_numbers_of_rows_have_simulators_of_their_own_and_all_are_closed() -> None:
    made: list[Counter] = []

    def make(num_rows: int) -> Counter:
        made.append(Counter(num_rows))
        return made[-1]

    simulators = Simulators(make, 2, None)
    answer = simulators.reset(SEEDS)
    simulators.reset(np.repeat(SEEDS, 2, axis=0))
    assert [env.num_envs for env in made] == [2, 4]
    simulators.step(step_arguments(answer))
    simulators.close()
    assert all(env.closed for env in made)
    with raises_naming(HostEnvError, "num_envs=3", "num_envs=2"):
        Simulators(lambda _: Counter(2), 3, None)


class Fragile(Counter):
    """Advances, and then fails in the call that ``fails_in`` names; with ``saves``, its state can be saved."""

    fails_in = ""
    saves = False

    def reset(self, seeds: np.ndarray) -> Any:
        return self._checked("reset", super().reset(seeds))

    def step(self, actions: Any) -> Any:
        return self._checked("step", super().step(actions))

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        return self._checked("partial_reset", super().partial_reset(mask, seeds))

    def get_state(self) -> np.ndarray | None:
        return np.stack([self.steps, self.seeds], axis=1).astype(np.float64).view(np.uint8) if self.saves else None

    def set_state(self, state: np.ndarray) -> None:
        self.steps, self.seeds = np.ascontiguousarray(state).view(np.float64).T.copy()

    def _checked(self, method: str, answer: Any) -> Any:
        if method == self.fails_in:
            raise ZeroDivisionError("after it advanced")
        return answer


FAILURES = pytest.mark.parametrize("fails_in", ["reset", "step", "partial_reset", "observation"])


def _failed(simulators: Simulators, start: dict, fails_in: str) -> None:
    simulators.main.fails_in = fails_in
    simulators.main.answer = {"obs": np.zeros((2, 3))} if fails_in == "observation" else {}
    with pytest.raises(HostEnvError):
        if fails_in == "reset":
            simulators.reset(SEEDS)
        elif fails_in == "partial_reset":
            simulators.restart(step_arguments(start, mask=np.array([True, False])))
        else:
            simulators.step(step_arguments(start))
    simulators.main.fails_in, simulators.main.answer = "", {}


def changed(**attributes: Any) -> Counter:
    """Create a ``Counter`` of a class with other attributes; reading an attribute that is ``None`` fails."""
    return type("Odd", (Counter,), {k: property() if v is None else v for k, v in attributes.items()})(2)


OTHERS: list[Any] = [None, 3, [], Counter, np.ones(2), gymnasium.Env(), gymnasium.vector.VectorEnv()]


@pytest.mark.parametrize(
    ("made", "parts"),
    [
        *((other, ("HostVectorEnv", "num_envs=2", f"got {type(other).__name__}", "remove")) for other in OTHERS),
        (object.__new__(Counter), ("num_envs=2", "Counter has num_envs=None")),
        (changed(obs_space=None), ("Odd.obs_space fails",)),
        (changed(action_space=None), ("Odd.action_space fails",)),
        (changed(action_space=gymnasium.spaces.Discrete(2)), ("Odd.action_space", "Gymnasium", "Discrete(n)")),
        (changed(obs_space=Box(0.0, 1.0, (0,))), ("Odd.obs_space", "no numbers")),
    ],
)
def test_a_function_that_makes_no_simulators_is_described(made: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(HostEnvError, *parts):
        Simulators(lambda _: made, 2, None)


@FAILURES
def test_no_state_is_live_after_a_failed_call(fails_in: str) -> None:
    simulators = Simulators(Fragile, 2, None)
    start = simulators.reset(SEEDS)
    _failed(simulators, start, fails_in)
    assert not simulators.is_live(start["token"])
    with raises_naming(HostEnvError, "failed", "init or reset"):
        simulators.step(step_arguments(start))
    answer = simulators.step(step_arguments(simulators.reset(SEEDS)))
    np.testing.assert_array_equal(answer["obs"][:, 0], [1, 1])


@FAILURES
def test_a_saved_state_is_restored_after_a_failed_call(fails_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "saves", True)
    simulators = Simulators(Fragile, 2, None)
    start = simulators.step(step_arguments(simulators.reset(SEEDS)))
    _failed(simulators, start, fails_in)
    np.testing.assert_array_equal(simulators.step(step_arguments(start))["obs"][:, 0], [2, 2])


def test_a_refused_state_leaves_the_latest_one_live() -> None:
    simulators = Simulators(Fragile, 2, None)
    start = simulators.reset(SEEDS)
    after = simulators.step(step_arguments(start))
    with raises_naming(HostEnvError, "advanced beyond"):
        simulators.step(step_arguments(start))
    np.testing.assert_array_equal(simulators.step(step_arguments(after))["obs"][:, 0], [2, 2])


GAME, SINGLE = WalkGame(limits=(3.0,)), Answering({})
SHARED: list[Any] = [
    functools.cache(Counter),
    lambda num_envs: PettingZooVectorEnv(lambda: GAME, num_envs),
    lambda num_envs: InProcessGymnasiumEnv(lambda: SINGLE, num_envs),
]


@pytest.mark.parametrize("make", SHARED)
def test_state_has_one_user(make: Any) -> None:
    simulators, others = Simulators(make, 1, None), Simulators(make, 1, None)
    start = simulators.reset(SEEDS[:1])
    after = simulators.step(step_arguments(start))
    others.reset(SEEDS[:1])
    with raises_naming(HostEnvError, "advanced beyond", "training and evaluation", "create a new one"):
        simulators.step(step_arguments(after))
    simulators.step(step_arguments(simulators.reset(SEEDS[:1])))


@pytest.mark.parametrize("make", SHARED[1:])
def test_simulators_of_one_batch_share_no_state(make: Any) -> None:
    with raises_naming(HostEnvError, "twice", "create a new one"):
        Simulators(make, 2, None)
    Simulators(make, 1, None).close()

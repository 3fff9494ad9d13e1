"""Agents of parallel environments as batch entries: the contract, ends of agents, spaces, error messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium.spaces as spaces
import jax
import jax.numpy as jnp
import numpy as np
import pettingzoo
import pytest

from evorl.assembly import workflow_from_config
from evorl.envs import create_env
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.pettingzoo import PettingZooVectorEnv, make_pettingzoo_simulators
from evorl.envs.space import Box, DictSpace, Discrete
from tests.conformance.host_vector_env import SEEDS, HostVectorEnvContract, assert_same, random_actions
from tests.support.errors import raises_naming


class WalkGame(pettingzoo.ParallelEnv):
    """Agent i starts between 0 and 1, moves by 0 or 1, gets its position as reward, and falls beyond ``limits[i]``."""

    metadata = {"name": "walk"}
    render_mode = None

    def __init__(
        self,
        limits: tuple[float, ...] = (3.0, 6.0, 9.0),
        max_cycles: int = 50,
        kind: str = "vector",
        fails_at: int = -1,
        keeps: bool = False,
    ) -> None:
        self.possible_agents = [f"walker_{i}" for i in range(len(limits))]
        self.agents: list[str] = []
        self._limits, self._max_cycles, self._kind, self._fails_at = limits, max_cycles, kind, fails_at
        self._keeps = keeps  # fallen agents stay in ``agents`` until the end
        self.closed = False

    def observation_space(self, agent: str) -> Any:
        vector = spaces.Box(-1.0, 100.0, (2,), np.float64)
        return spaces.Dict({"place": vector}) if self._kind == "dict" else vector

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3 if self._kind == "unequal" and agent == self.possible_agents[-1] else 2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self._time = list(self.possible_agents), 0
        self._place = dict(zip(self.agents, np.random.default_rng(seed).uniform(0, 1, len(self.agents))))
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents), "an action for each agent that is there, and for no other"
        self._time += 1
        if self._time == self._fails_at:
            raise ZeroDivisionError("the floor is gone")
        for agent in self.agents:
            self._place[agent] += actions[agent]
        limits = dict(zip(self.possible_agents, self._limits))
        fell = {agent: bool(self._place[agent] > limits[agent]) for agent in self.agents}
        late = dict.fromkeys(self.agents, self._time >= self._max_cycles)
        seen = {agent: self._see(agent) for agent in self.agents}
        paid = {agent: float(self.possible_agents.index(agent) + 1) for agent in self.agents}
        info = {agent: {"time": self._time} for agent in self.agents}
        left = [agent for agent in self.agents if not fell[agent] and not late[agent]]
        self.agents = self.agents if self._keeps and left else left
        return seen, paid, fell, late, info

    def _see(self, agent: str) -> Any:
        seen = np.array([self._place[agent], self._time], np.float64)
        return {"place": seen} if self._kind == "dict" else seen

    def close(self) -> None:
        self.closed = True


def make_no_game() -> object:
    """Return an object instead of an environment."""
    return object()


GAME = "tests.envs.test_pettingzoo:WalkGame"
SIX_SEEDS = np.arange(6, dtype=np.uint64)
SECOND_COPY = np.array([False] * 3 + [True] * 3)
WALK = np.ones(3, np.int32)


class TestOneAgentEach(HostVectorEnvContract):
    """Each copy has one agent, so that any of them may be reset."""

    @staticmethod
    def make(num_envs: int) -> PettingZooVectorEnv:
        return make_pettingzoo_simulators(GAME, num_envs, limits=(3.0,), metrics=["time"])


class TestDicts(HostVectorEnvContract):
    """Has named observations."""

    @staticmethod
    def make(num_envs: int) -> PettingZooVectorEnv:
        return make_pettingzoo_simulators(GAME, num_envs, limits=(3.0,), kind="dict")


def _walk(env: PettingZooVectorEnv, num_steps: int) -> list[tuple]:
    env.reset(SIX_SEEDS[: env.num_envs])
    return [env.step(np.ones(env.num_envs, np.int32)) for _ in range(num_steps)]


def test_rows_are_the_agents_of_copies_in_order() -> None:
    env = make_pettingzoo_simulators(GAME, 6)
    assert (env.obs_space, env.action_space) == (Box(-1.0, 100.0, (2,)), Discrete(2))
    start = env.reset(SIX_SEEDS)
    assert start.dtype == np.float32
    games = [WalkGame(), WalkGame()]
    for copy, game in enumerate(games):
        seen, _ = game.reset(seed=3 * copy)  # the seed of the copy's first agent
        np.testing.assert_array_equal(start[3 * copy : 3 * copy + 3], np.float32(list(seen.values())))
    obs, reward, *_ = env.step(np.array([1, 0, 0, 0, 1, 1]))
    np.testing.assert_allclose(obs[:, 0] - start[:, 0], [1, 0, 0, 0, 1, 1], atol=1e-6)
    assert reward.tolist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("keeps", [False, True])
def test_copy_ends_with_its_last_agent_and_those_gone_wait_in_nothing(keeps: bool) -> None:
    env = make_pettingzoo_simulators(GAME, 3, metrics=["time"], keeps=keeps)
    steps = _walk(env, 9)
    obs, reward, termination, truncation = (np.array([step[i] for step in steps]) for i in range(4))
    time = np.array([step[4]["time"] for step in steps])
    assert not truncation.any()
    assert termination[:-1].sum() == 0
    assert termination[-1].all()
    assert reward[:, 0].tolist() == [1, 1, 1] + [0] * 6, "the return of the first agent is that of its own episode"
    assert reward[:, 1].tolist() == [2] * 6 + [0] * 3
    assert not obs[2:, 0].any(), "from its end on, the successor of the last step included"
    assert not obs[5:, 1].any()
    assert obs[1, 0].all()
    assert obs[-1, 2, 0] > 9, "the true successor of the agent that was last"
    assert time[:, 0].tolist() == [1, 2, 3] + [0] * 6


def test_copy_ends_with_its_first_agent_where_that_is_asked_for() -> None:
    steps = _walk(make_pettingzoo_simulators(GAME, 3, ends="any"), 3)
    obs, reward, termination, truncation, _ = steps[-1]
    assert termination.tolist() == [True, False, False]
    assert truncation.tolist() == [False, True, True]
    assert (obs[:, 0] > 3).all(), "true successors, also of those that are cut"
    assert reward.tolist() == [1, 2, 3]
    assert not any((step[2] | step[3]).any() for step in steps[:-1])


def test_time_ends_a_copy_and_does_not_terminate_who_is_left() -> None:
    steps = _walk(make_pettingzoo_simulators(GAME, 3, max_cycles=5), 5)
    obs, _, termination, truncation, _ = steps[-1]
    assert termination.tolist() == [True, False, False]
    assert truncation.tolist() == [False, True, True]
    assert not obs[0].any()
    assert obs[1:, 0].min() > 5


def test_copies_restart_one_by_one() -> None:
    env, twin = make_pettingzoo_simulators(GAME, 6), make_pettingzoo_simulators(GAME, 6)
    for each in (env, twin):
        each.reset(SIX_SEEDS)
        for step in range(4):
            each.step(random_actions(each, step))
    start = env.partial_reset(SECOND_COPY, SIX_SEEDS + np.uint64(50))
    assert (start[SECOND_COPY, 1] == 0).all()
    mine, its = env.step(random_actions(env, 9)), twin.step(random_actions(twin, 9))
    assert_same(mine, its, ~SECOND_COPY)
    assert mine[0][SECOND_COPY, 1].tolist() == [1, 1, 1]
    with raises_naming(ValueError, "3 rows of a copy", "mask"):
        env.partial_reset(np.array([True, False, False] * 2), SIX_SEEDS)


def test_agents_that_are_gone_are_back_after_a_restart() -> None:
    env = make_pettingzoo_simulators(GAME, 3)
    _walk(env, 9)
    assert env.partial_reset(np.ones(3, np.bool_), SIX_SEEDS[:3]).any(axis=1).all()
    obs, reward, termination, truncation, _ = env.step(WALK)
    assert obs.all()
    assert reward.tolist() == [1, 2, 3]
    assert not (termination | truncation).any()


def test_registered_environments_and_dicts(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pettingzoo.EnvSpec(id="tests/walk-v0", entry_point=WalkGame)
    monkeypatch.setitem(pettingzoo.parallel_registry, "tests/walk-v0", spec)
    env = make_pettingzoo_simulators("tests/walk-v0", 3, kind="dict")
    assert isinstance(env.obs_space, DictSpace)
    obs = env.reset(SEEDS)
    assert obs["place"].shape == (3, 2)
    copies = env._envs
    env.close()
    assert all(copy.closed for copy in copies)


@pytest.mark.parametrize(
    ("name", "num_envs", "options", "message"),
    [
        ("sisl/pursit-v5", 3, {}, ("PettingZoo environment", "'sisl/pursit-v5'", "'sisl/pursuit")),
        (GAME, 4, {}, ("3 agents", "multiple of 3", "got 4")),
        (GAME, 3, {"limts": (1.0,)}, ("{'limts'", "unexpected keyword argument 'limts'")),
        (GAME, 3, {"ends": "al"}, ("env.ends", "'al'", "'all'")),
        (GAME, 3, {"kind": "unequal"}, ("action_space", "walker_0 is Discrete(2)", "walker_2 is Discrete")),
        ("tests.envs.test_pettingzoo:make_no_game", 3, {}, ("parallel PettingZoo environment", "possible_agents")),
        ("tests.envs.test_pettingzoo:nothing", 3, {}, ("function of tests.envs.test_pettingzoo", "'nothing'")),
        ("tests.support.no_module:make", 3, {}, ("module 'tests.support.no_module'",)),
    ],
)
def test_errors_in_words(name: str, num_envs: int, options: dict[str, Any], message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        make_pettingzoo_simulators(name, num_envs, **options)


def test_missing_library_of_an_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pettingzoo.EnvSpec(id="tests/needy-v0", entry_point="no_such_library_of_games:make")
    monkeypatch.setitem(pettingzoo.parallel_registry, "tests/needy-v0", spec)
    with raises_naming(ImportError, "no_such_library_of_games"):
        make_pettingzoo_simulators("tests/needy-v0", 3)


class Unstarted(WalkGame):
    """Has the attribute ``agents`` only after a reset, like PettingZoo's own environments."""

    def __init__(self) -> None:
        super().__init__()
        del self.agents


def test_step_before_reset_is_refused() -> None:
    env = make_pettingzoo_simulators("tests.envs.test_pettingzoo:Unstarted", 6)
    with raises_naming(HostEnvError, "copy 0", "stepped before", "call reset"):
        env.step(np.ones(6, np.int32))
    env.partial_reset(~SECOND_COPY, SIX_SEEDS)
    with raises_naming(HostEnvError, "copy 1", "call reset"):
        env.step(np.ones(6, np.int32))
    env.reset(SIX_SEEDS)
    assert len(env.step(np.ones(6, np.int32))[1]) == 6


def test_failure_of_a_copy_names_its_rows() -> None:
    env = make_pettingzoo_simulators(GAME, 6, fails_at=2)
    env.reset(SIX_SEEDS)
    env.step(np.ones(6, np.int32))
    env.partial_reset(~SECOND_COPY, SIX_SEEDS)
    with raises_naming(HostEnvError, "environments 3 to 5", "copy 1", "failed in step", "ZeroDivisionError: the flo"):
        env.step(np.ones(6, np.int32))


class Forgetful(WalkGame):
    """Changes one part of its results: observations of a reset (5), or one part of step results."""

    def __init__(self, part: int, change: Callable[[dict], Any]) -> None:
        super().__init__()
        self._part, self._change = part, change

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, info = super().reset(seed, options)
        return (self._change(seen) if self._part == 5 else seen), info

    def step(self, actions: dict) -> Any:
        answer = super().step(actions)
        return tuple(self._change(part) if i == self._part else part for i, part in enumerate(answer))


PARTS = {5: "observations", 0: "observations", 1: "rewards", 2: "terminations", 3: "truncations"}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda part: None, ("by agent", "got NoneType")),
        (lambda part: {name: x for name, x in part.items() if name != "walker_1"}, ("walker_1",)),
    ],
)
def test_a_part_that_misses_an_agent_is_not_taken_for_zeros(part: int, change: Any, parts: tuple[str, ...]) -> None:
    env = PettingZooVectorEnv(lambda: Forgetful(part, change), 3)
    with raises_naming(HostEnvError, f"{PARTS[part]} of copy 0", *parts):
        env.reset(SEEDS)
        env.step(WALK)


def test_a_cut_episode_needs_its_last_observations() -> None:
    game = Forgetful(0, lambda part: {})
    game._max_cycles = 1
    env = PettingZooVectorEnv(lambda: game, 3)
    env.reset(SEEDS)
    with raises_naming(HostEnvError, "observations of copy 0", "walker_0, walker_1, walker_2"):
        env.step(WALK)


def test_unknown_metric_is_told() -> None:
    env = make_pettingzoo_simulators(GAME, 3, metrics=["tme"])
    env.reset(SEEDS)
    with raises_naming(HostEnvError, "walker_0", "copy 0", "info has no 'tme'"):
        env.step(WALK)


@pytest.mark.parametrize("value", ["3.5", None, np.zeros(1), [1.0]])
def test_a_metric_must_be_a_number(value: Any) -> None:
    class Odd(WalkGame):
        def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
            answer = super().step(actions)
            return *answer[:4], {agent: {"time": value} for agent in answer[4]}

    env = PettingZooVectorEnv(Odd, 3, metrics=["time"])
    env.reset(SEEDS)
    with raises_naming(HostEnvError, "walker_0", "copy 0", "'time' of info", "single number"):
        env.step(WALK)


def test_import_of_the_adapter_does_not_import_pettingzoo() -> None:
    code = "import sys, evorl.envs.pettingzoo; print('pettingzoo' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_a_vector_environment_knows_its_agents() -> None:
    env = create_env({"library": "pettingzoo", "name": GAME}, parallel=6)
    assert env.num_agents == 3
    state = env.step(env.reset(jax.random.key(0)), jnp.zeros(6, jnp.int32))
    after = env.partial_reset(state, np.arange(6) == 4, jax.random.key(1))  # an agent of the second copy
    np.testing.assert_array_equal(after.info.steps, [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(after.obs[:3], state.obs[:3])
    after = env.step(after, jnp.ones(6, jnp.int32))
    np.testing.assert_array_equal(after.info.steps, [2, 2, 2, 1, 1, 1])
    env.close()


def test_evaluation_rounds_up_to_whole_copies() -> None:
    workflow = workflow_from_config(
        {
            "workflow": "evorl.algorithms.ppo.PPOWorkflow",
            "env": {"library": "pettingzoo", "name": GAME, "max_episode_steps": 20},
            "eval_episodes": 4,
            "num_envs": 3,
            "rollout_length": 4,
            "num_minibatches": 1,
        }
    )
    assert (workflow.env.num_agents, workflow.eval_env.num_envs) == (3, 6)
    workflow.close()

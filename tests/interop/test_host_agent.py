from __future__ import annotations

from typing import Any

import gymnasium.spaces
import jax
import numpy as np
import pytest

from evorl.envs.space import Box, DictSpace, Discrete
from evorl.interop.host_agent import HostAgent

SPACES = [
    gymnasium.spaces.Discrete(5),
    gymnasium.spaces.Box(-1.0, 2.0, (2,)),
    Discrete(5),
    Box(-1.0, 2.0, (2,)),
    DictSpace({"a": Discrete(3), "b": Box(0.0, 1.0, (2,))}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("num_envs", [None, 4])
def test_random_actions_are_in_the_space_and_follow_from_the_seed(space: Any, num_envs: int | None) -> None:
    actions = [[HostAgent(space, seed, num_envs).step(None)[0]] for seed in (0, 0, 1)]
    for seed, taken in zip((0, 0, 1), actions, strict=True):
        agent = HostAgent(space, seed, num_envs)
        taken.extend(agent.step(None)[0] for _ in range(8))
        rows = taken if num_envs is None else [jax.tree.map(lambda x: x[3], action) for action in taken]
        assert all(space.contains(row) for row in rows)
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(taken)]) for taken in actions]
    np.testing.assert_array_equal(flat[0], flat[1])
    assert (flat[0] != flat[2]).any()


@pytest.mark.parametrize("space", [Discrete(4), gymnasium.spaces.Discrete(4, start=2)], ids=str)
@pytest.mark.parametrize("num_envs", [None, 3])
def test_random_actions_exclude_masked_ones(space: Any, num_envs: int | None) -> None:
    allowed = np.array([[0, 1, 0, 1], [1, 0, 0, 0], [0, 1, 1, 0]])
    agent = HostAgent(space, num_envs=num_envs)
    obs = {"board": np.zeros((3, 2)), "action_mask": allowed}
    obs = obs if num_envs else {name: entry[0] for name, entry in obs.items()}
    taken = np.array([np.atleast_1d(agent.step(obs)[0]) for _ in range(40)]) - getattr(space, "start", 0)
    for row, actions in enumerate(taken.T):
        assert set(actions.tolist()) == set(np.flatnonzero(allowed[row]).tolist())


class Coin:
    """Space of a user, whose ``sample`` takes no mask."""

    def seed(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def sample(self) -> int:
        return int(self.random.integers(2))


@pytest.mark.parametrize("space", [Coin(), Box(-1.0, 1.0, (2,))], ids=["of a user", "evorl"])
def test_masks_of_other_spaces_are_not_read(space: Any) -> None:
    action, _ = HostAgent(space).step({"action_mask": ([1, 0], [1, 0, 1])})
    assert np.abs(action).max() <= 1


def test_the_environments_own_space_draws_what_it_would() -> None:
    space, alone = gymnasium.spaces.Discrete(1000, seed=3), gymnasium.spaces.Discrete(1000, seed=3)
    HostAgent(space, seed=9).step(None)
    assert [space.sample() for _ in range(5)] == [alone.sample() for _ in range(5)]


def test_what_is_not_overridden_changes_nothing() -> None:
    agent = HostAgent(gymnasium.spaces.Discrete(5))
    assert agent.step(None)[1] == {}
    assert agent.view({"obs": 0}, {"a": 1}) == {"a": 1}
    assert agent.update({}) == {}
    assert agent.terminal() is None
    assert agent.eval_start() is None

    class Fixed(HostAgent):
        def step(self, obs: Any) -> Any:
            return obs + 1, {"a": 0}

    assert Fixed(gymnasium.spaces.Discrete(5)).eval_step(2) == 3  # equal to step, without its extras

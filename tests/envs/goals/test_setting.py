"""Goal setters in vector environments: current goals, rewards and ends, and the setter's memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.random_actions import RandomAgent
from evorl.envs import AutoresetMode, create_env
from evorl.envs.goals.setters import UniformGoals
from evorl.envs.goals.setting import GoalSetter, GoalStep
from evorl.envs.goals.task import GoalTask
from evorl.envs.wrappers import VectorEnv
from evorl.rollout import rollout
from tests.conformance.env import VectorEnvContract, compiled_play
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical

NUM_ENVS = 3


@dataclasses.dataclass(frozen=True)
class Counting(GoalSetter):
    """The goal is the number of the episode, plus 0.5 from its third step on; every step pays 7.

    An episode ends after ``length`` steps.
    """

    length: int = 5

    def init(self, task: GoalTask) -> jax.Array:
        return jnp.zeros((), jnp.int32)

    def start(self, memory: jax.Array, task: GoalTask, obs: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return jnp.full(2, memory, jnp.float32), memory + 1

    def after(self, memory: Any, task: GoalTask, step: GoalStep, key: jax.Array) -> tuple[GoalStep, Any]:
        goal = jnp.where(step.steps == 3, step.next_goal + 0.5, step.next_goal)
        changed = step.replace(next_goal=goal, reward=jnp.float32(7.0), truncation=step.steps == self.length)
        return changed, memory


def _maze(
    setter: Any, mode: AutoresetMode = AutoresetMode.NORMAL, parallel: int = NUM_ENVS, limit: int = 20
) -> VectorEnv:
    return create_env(
        "goal/point_maze", parallel=parallel, autoreset_mode=mode, goal_setter=setter, max_episode_steps=limit
    )


class TestContract(VectorEnvContract):
    """An environment with a setter keeps the contract, except that starts depend on more than their keys."""

    can_terminate = False

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        return create_env(
            "goal/bit_flip",
            parallel=parallel,
            autoreset_mode=autoreset_mode,
            goal_setter=UniformGoals(),
            num_bits=12,  # random flips do not find the goal
        )

    test_every_episode_starts_from_a_fresh_reset = None
    test_fast_reuses_the_first_start = None
    test_envpool_has_reset_steps = None
    test_partial_reset = None


def _played(env: VectorEnv, num_steps: int) -> tuple[Any, dict]:
    start = env.reset(jax.random.key(0))
    end, records = compiled_play(env, start, num_steps)
    return (start, end), jax.tree.map(np.asarray, records)


def test_goals_rewards_and_ends_are_the_setters() -> None:
    (start, _), records = _played(_maze(Counting()), 12)
    np.testing.assert_array_equal(start.obs.desired_goal, 0.0)
    desired = records["obs"].desired_goal[:, 0, 0]  # after each of the steps 1 to 12
    np.testing.assert_array_equal(desired, [0, 0, 0.5, 0.5, 1, 1, 1, 1.5, 1.5, 2, 2, 2])
    pursued = records["next_obs"].desired_goal[:, 0, 0]  # next observations contain the goal of their step
    np.testing.assert_array_equal(pursued, [0, 0, 0, 0.5, 0.5, 1, 1, 1, 1.5, 1.5, 2, 2])
    np.testing.assert_array_equal(records["reward"], 7.0)
    np.testing.assert_array_equal(np.flatnonzero(records["done"][:, 0]), [4, 9])
    np.testing.assert_array_equal(records["truncation"], records["done"])


def test_a_frozen_environment_keeps_its_goal_and_its_memory() -> None:
    (_, end), records = _played(_maze(Counting(), AutoresetMode.DISABLED), 12)
    np.testing.assert_array_equal(records["obs"].desired_goal[4:, :, 0], 0.5)
    np.testing.assert_array_equal(records["reward"][:, 0], [7.0] * 5 + [0.0] * 7)
    np.testing.assert_array_equal(end._internal.goals.memory, 1)


def test_rows_that_start_anew_get_new_goals_and_remember() -> None:
    env = _maze(Counting())
    (_, state), _ = _played(env, 6)
    after = env.partial_reset(state, jnp.array([True, False, True]), jax.random.key(4))
    np.testing.assert_array_equal(after.obs.desired_goal[:, 0], [2.0, 1.0, 2.0])
    np.testing.assert_array_equal(after._internal.goals.memory, [3, 2, 3])
    np.testing.assert_array_equal(after.info.steps, [0, 1, 0])


def test_the_next_step_pursues_the_goal_that_was_set() -> None:
    env = _maze(Counting())
    state = env.reset(jax.random.key(0))
    stepped = env.step(state, jnp.zeros((NUM_ENVS, 2)))
    np.testing.assert_array_equal(stepped.info.next_obs.desired_goal, 0.0)
    distance = jnp.linalg.norm(stepped.obs.achieved_goal, axis=-1)
    np.testing.assert_array_equal(stepped.info.is_success, distance <= 0.35)


def test_blocks_of_environments_are_set_the_same_goals() -> None:
    env = _maze("curriculum", parallel=4)
    agent = RandomAgent()
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    state = env.reset(jax.random.key(1))
    run = jax.jit(
        lambda chunk: (
            rollout(env.step, agent.compute_actions, state, agent_state, jax.random.key(2), 50, env_chunk=chunk)[0].obs
        ),
        static_argnums=0,
    )
    # Equal up to rounding between programs, which is far less than the distance of goals.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), run(None), run(2))


@pytest.mark.parametrize("setter", ["uniform", "achieved", "curriculum", "several"])
def test_what_is_remembered_is_resumed_bit_for_bit(setter: str) -> None:
    """A run resumed in the middle of an episode equals an uninterrupted one."""
    env = _maze(setter)
    (start, whole), _ = _played(env, 60)
    half, _ = compiled_play(env, start, 30)
    resumed, _ = compiled_play(env, half, 30, first=30)
    np.testing.assert_array_equal(resumed.obs.desired_goal, whole.obs.desired_goal)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "gymnax/CartPole-v1", "goal_setter": "uniform"}, ("env.goal_setter", "env=goal/")),
        ({"name": "goal/bit_flip", "goal_setter": "unform"}, ("env.goal_setter", "'unform'", "'uniform'")),
        (
            {"name": "goal/bit_flip", "goal_setter": {"name": "achieved", "shar": 1}},
            ("env.goal_setter", "'shar'", "'share'"),
        ),
        ({"name": "goal/bit_flip", "goal_setter": "builtins:dict"}, ("env.goal_setter=builtins:dict", "GoalSetter")),
        (
            {"name": "goal/bit_flip", "goal_setter": "uniform", "flatten_obs": True},
            ("env.goal_setter", "env.flatten_obs"),
        ),
        (
            {"name": "goal/bit_flip", "goal_setter": "uniform", "autoreset_mode": "envpool"},
            ("env.goal_setter", "another autoreset_mode"),
        ),
        ({"name": "gymnasium/CartPole-v1", "goal_setter": "uniform"}, ("env.goal_setter", "JAX environment")),
    ],
)
def test_what_cannot_be_is_told(options: dict, words: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *words):
        create_env(options)


@pytest.mark.parametrize("mode", [AutoresetMode.NORMAL, AutoresetMode.FAST, AutoresetMode.DISABLED])
def test_a_partial_reset_of_none_changes_nothing(mode: AutoresetMode) -> None:
    env = _maze(UniformGoals(), mode)
    (_, state), _ = _played(env, 6)
    unchanged = env.partial_reset(state, jnp.zeros(NUM_ENVS, jnp.bool_), jax.random.key(4))
    assert_identical(unchanged, state)
    some = env.partial_reset(state, jnp.array([True, False, False]), jax.random.key(4))
    keys, keys_before = (jax.random.key_data(s._internal.goals.key) for s in (some, state))
    np.testing.assert_array_equal((keys != keys_before).any(axis=1), [True, False, False])

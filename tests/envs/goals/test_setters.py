"""Goal setters."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.cli.composition import compose_config
from evorl.cli.training import check_training
from evorl.config.values import declared_ranges, field_types
from evorl.envs import Box, create_env
from evorl.envs.goals.point_maze import MAZES, MazePositions
from evorl.envs.goals.setters import (
    SETTERS,
    AchievedGoals,
    ChainedSetters,
    CurriculumGoals,
    OwnGoals,
    SeveralGoals,
    UniformGoals,
    make_goal_setter,
)
from evorl.envs.goals.setting import GoalSetter, GoalStep
from evorl.envs.goals.task import GoalTask
from evorl.fields import Within
from evorl.runs.spec import RunSpec
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

TASK = GoalTask(Box(-1.0, 1.0, (2,)), lambda *_: jnp.zeros(()), lambda a, d: jnp.all(a == d))
OWN = np.array([0.25, 0.5], np.float32)


def _obs(achieved: Any, desired: Any = OWN) -> PyTreeDict:
    return PyTreeDict(
        observation=np.zeros(3, np.float32), achieved_goal=np.float32(achieved), desired_goal=np.float32(desired)
    )


def _step(achieved: Any = (0.0, 0.0), desired: Any = OWN, ends: bool = False, success: bool = False, t: int = 1) -> Any:
    return GoalStep(
        obs=_obs(achieved, desired),
        action=np.zeros(1, np.float32),
        next_obs=_obs(achieved, desired),
        is_success=np.bool_(success),
        steps=np.int32(t),
        reward=np.float32(-1.0),
        termination=np.bool_(False),
        truncation=np.bool_(ends),
        next_goal=np.float32(desired),
        is_followed=np.bool_(False),
    )


def _starts(setter: GoalSetter, memory: Any, num: int = 500) -> np.ndarray:
    """Return the goals of ``num`` starts with the same memory."""
    keys = jax.random.split(jax.random.key(1), num)
    return np.asarray(jax.jit(jax.vmap(lambda key: setter.start(memory, TASK, _obs([0.0, 0.0]), key)[0]))(keys))


def _after(setter: GoalSetter, steps: list[GoalStep]) -> Any:
    """Return the memory after these steps."""

    def after(memory: Any, step: GoalStep) -> tuple[Any, None]:
        return setter.after(memory, TASK, step, jax.random.key(0))[1], None

    stacked = jax.tree.map(lambda *x: np.stack(x), *steps)
    return jax.jit(lambda steps: jax.lax.scan(after, setter.init(TASK), steps)[0])(stacked)


def test_the_environments_own_goals_stay() -> None:
    np.testing.assert_array_equal(_starts(OwnGoals(), OwnGoals().init(TASK)), np.tile(OWN, (500, 1)))


def test_uniform_goals_are_all_over_the_space() -> None:
    goals = _starts(UniformGoals(), ())
    assert (np.abs(goals) <= 1.0).all()
    assert np.abs(goals.mean(axis=0)).max() < 0.1
    assert goals.std(axis=0) == pytest.approx(1 / np.sqrt(3), abs=0.05)


def test_achieved_goals_are_where_episodes_ended() -> None:
    setter = AchievedGoals(share=0.5, capacity=3)
    np.testing.assert_array_equal(_starts(setter, setter.init(TASK)), np.tile(OWN, (500, 1)))
    ended = [_step([i / 10, 0.0], ends=True) for i in range(5)]
    memory = _after(setter, [_step([0.9, 0.9]), *ended])
    goals, counts = np.unique(_starts(setter, memory), axis=0, return_counts=True)
    np.testing.assert_allclose(goals[:, 0], [0.2, 0.25, 0.3, 0.4], atol=1e-6)  # latest three, own goal
    assert abs(counts[1] / 500 - 0.5) < 0.1
    assert counts.min() > 50


def test_a_curriculum_is_of_intermediate_difficulty() -> None:
    """With goals on the left always reached and those on the right never, selected goals are in between."""
    setter = CurriculumGoals(own_share=0.0, width=0.1)
    rng = np.random.default_rng(0)
    goals = rng.uniform(-1.0, 1.0, (250, 2)).astype(np.float32)

    def remember(memory: Any, goal: jax.Array) -> tuple[Any, None]:
        return memory.with_goal(goal, goal[0] < 0.0, jnp.asarray(True)), None

    memory = jax.jit(lambda goals: jax.lax.scan(remember, setter.init(TASK), goals)[0])(goals)
    chosen = _starts(setter, memory)[:, 0]
    assert abs(np.median(chosen)) < 0.2
    assert np.quantile(np.abs(chosen), 0.9) < 0.5
    np.testing.assert_array_equal(_starts(setter, setter.init(TASK)), np.tile(OWN, (500, 1)))
    own = (_starts(CurriculumGoals(own_share=0.3), memory) == np.asarray(OWN)).all(axis=1).mean()
    assert abs(own - 0.3) < 0.07


def test_a_curriculum_remembers_what_was_tried_and_what_was_achieved() -> None:
    memory = _after(
        CurriculumGoals(), [_step(), _step([0.5, 0.0], ends=True), _step([0.25, 0.5], ends=True, success=True)]
    )
    assert memory.count == 4
    np.testing.assert_array_equal(memory.goals[:4, 0], [0.25, 0.5, 0.25, 0.25])
    np.testing.assert_array_equal(memory.is_reached[:4], [False, True, True, True])


@pytest.mark.parametrize(("every", "expected"), [(None, [0, 0, 1, 0]), (2, [0, 1, 0, 1])])
def test_several_goals_in_one_episode(every: int | None, expected: list[int]) -> None:
    setter = SeveralGoals(every=every)
    steps = [_step(t=t, success=t == 3) for t in range(1, 5)]
    after = jax.jit(lambda step: setter.after((), TASK, step, jax.random.key(5))[0])
    changed = [after(step) for step in steps]
    assert [int(np.any(np.asarray(step.next_goal) != OWN)) for step in changed] == expected
    assert all(step.reward == -1.0 for step in changed)


@dataclasses.dataclass(frozen=True)
class InTurn(GoalSetter):
    """Sets the goals 0, 1, 2, ..., one after another."""

    def init(self, task: GoalTask) -> Any:
        return jnp.zeros((), jnp.int32)

    def start(self, memory: Any, task: GoalTask, obs: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return jnp.full_like(obs.desired_goal, memory), memory + 1


def test_memory_advances_once_per_goal() -> None:
    setter = SeveralGoals(of=InTurn(), every=2)
    goal, memory = setter.start(setter.init(TASK), TASK, _obs([0.0, 0.0]), jax.random.key(0))
    goals = [float(goal[0])]
    for t in range(1, 7):
        step, memory = setter.after(memory, TASK, _step(desired=goal, t=t, ends=t == 6), jax.random.key(t))
        goal = step.next_goal
        goals.append(float(goal[0]))
    assert goals[:6] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert setter.start(memory, TASK, _obs([0.0, 0.0]), jax.random.key(0))[0][0] == 3.0  # the next episode


def test_every_goal_of_an_episode_is_remembered() -> None:
    setter = SeveralGoals(of=CurriculumGoals())
    memory = _after(setter, [_step(t=1), _step(t=2, success=True), _step(t=3), _step(t=4, ends=True)])
    assert memory.count == 4  # two attempted goals, and the two goals achieved at their ends
    np.testing.assert_array_equal(memory.is_reached[:4], [True, True, False, True])


def test_a_curriculum_stays_in_the_goal_space() -> None:
    """Goals near a reached position are never inside of walls."""
    places = MazePositions(MAZES["spiral"])
    task = dataclasses.replace(TASK, goal_space=places)
    setter = CurriculumGoals(own_share=0.0)
    memory = setter.init(task).with_goal(jnp.array([-2.0, -2.0]), True, jnp.asarray(True))
    keys = jax.random.split(jax.random.key(1), 200)
    start = jax.jit(jax.vmap(lambda key: setter.start(memory, task, _obs([0.0, 0.0]), key)[0]))
    assert np.all(jax.jit(places.contains)(start(keys)))


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 20, (2,), np.int8),
        Box(-100, 100, (2,), np.int8),  # sides and distances exceed int8
        Box([-(2**31), 0], [2**31 - 1, 0], dtype=np.int32),
        Box(0, 1, (2,), np.bool_),
        Box([-1.0, 0.5], [1.0, 0.5]),
        Box(-1.0, 1.0, (2,), jnp.bfloat16),
    ],
    ids=repr,
)
def test_a_curriculum_of_any_bounded_goal_space(space: Box) -> None:
    """In spaces of integers and with a side of length 0, too, goals of intermediate difficulty are chosen."""
    task, setter = dataclasses.replace(TASK, goal_space=space), CurriculumGoals(own_share=0.0)
    low, high = (jnp.asarray(x) for x in (space.low, space.high))
    memory = setter.init(task)
    for is_reached in (True, False):
        memory = memory.with_goal(low, is_reached, jnp.asarray(True))
    memory = memory.with_goal(high, False, jnp.asarray(True))
    obs = _obs([0.0, 0.0]).replace(desired_goal=low)
    keys = jax.random.split(jax.random.key(1), 100)
    chosen = jax.jit(jax.vmap(lambda key: setter.start(memory, task, obs, key)[0]))(keys)
    assert chosen.dtype == low.dtype
    assert space.contains(chosen).all()
    sides = np.maximum(space.high.astype(np.float64) - space.low, 1)
    shares = (np.asarray(chosen, np.float64) - space.low) / sides
    assert np.quantile(shares, 0.95) < 0.3


def test_a_curriculum_needs_bounds_of_goals() -> None:
    task = dataclasses.replace(TASK, goal_space=Box([-1.0, 0.0], [1.0, np.inf]))
    with raises_naming(ValueError, "env.goal_setter=curriculum", "inf", "bounds", "achieved"):
        CurriculumGoals().init(task)


def test_one_setter_after_another() -> None:
    """Chained setters apply in order, each with its own memory."""
    first, second = AchievedGoals(share=1.0), AchievedGoals(share=0.0)
    chained = ChainedSetters(first, second)
    memory = _after(chained, [_step([0.75, 0.75], ends=True)])
    assert [int(part.count) for part in memory] == [1, 1]
    np.testing.assert_allclose(_starts(chained, memory), 0.75)
    swapped = ChainedSetters(first, OwnGoals())
    np.testing.assert_allclose(_starts(swapped, _after(swapped, [_step([0.75, 0.75], ends=True)])), 0.75)


def test_a_setter_is_described_by_name_and_settings() -> None:
    assert make_goal_setter("curriculum") == CurriculumGoals()
    assert make_goal_setter(None) is None
    assert make_goal_setter({"name": "achieved", "share": 0.2}) == AchievedGoals(share=0.2)
    described = {"name": "several", "every": 10, "of": {"name": "chained", "first": "uniform", "second": "own"}}
    assert make_goal_setter(described) == SeveralGoals(ChainedSetters(UniformGoals(), OwnGoals()), every=10)
    for incomplete in ("chained", {"name": "chained", "first": "own"}, {"name": "several", "of": "chained"}):
        with raises_naming(ValueError, "env.goal_setter.", "name=chained", "needs a value for"):
            make_goal_setter(incomplete)
    mine = "evorl.envs.goals.setters:UniformGoals"
    assert make_goal_setter(mine) == UniformGoals()
    assert create_env("goal/bit_flip", goal_setter=mine).goal_setter == UniformGoals()


def _outside(interval: str) -> list[float]:
    """Return numbers outside of an interval of ``Within``, including open bounds."""
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    below = [low - 1.0, low] if interval[0] == "(" else [low - 1.0]
    return below if np.isinf(high) else [*below, high + 1.0]


NUMERIC = [
    (name, key)
    for name, setter in SETTERS.items()
    for key, annotation in field_types(setter).items()
    if {int, float} & {annotation, *typing.get_args(annotation)}
]


@pytest.mark.parametrize(("name", "setting"), NUMERIC)
def test_every_number_has_a_range(name: str, setting: str) -> None:
    """Numbers of all setters, described or built in Python, also within other setters, are checked."""
    for value in [*_outside(declared_ranges(SETTERS[name])[setting]), np.nan, "x", True]:
        described = {"name": name, setting: value}
        for setter in (described, SETTERS[name](**{setting: value})):
            with raises_naming(ValueError, f"env.goal_setter.{setting} must be", value):
                create_env("goal/bit_flip", goal_setter=setter)
            nested = {"name": "several", "of": {"name": "chained", "first": "own", "second": setter}}
            with raises_naming(ValueError, f"env.goal_setter.of.second.{setting} must be", value):
                make_goal_setter(nested)


def test_a_number_out_of_range_is_refused_on_the_command_line() -> None:
    command = ["agent=dqn", "env=goal/bit_flip", "env.goal_setter={name: achieved, share: 1.5}"]
    with raises_naming(ValueError, "env.goal_setter.share", "[0, 1]", "1.5"):
        check_training(RunSpec.from_config(compose_config(command)))


def test_a_range_of_a_users_setter_is_checked() -> None:
    mine = f"{__name__}:Sized"
    assert make_goal_setter({"name": mine, "size": 3, "steps": 0}) == Sized(3.0, 0)
    with raises_naming(ValueError, "env.goal_setter.size", "-1"):
        make_goal_setter({"name": mine, "size": -1})


@dataclasses.dataclass(frozen=True)
class Sized(UniformGoals):
    """A custom setter with a declared range, and a number without any."""

    size: Annotated[float, Within("[0, inf)")] = 1.0
    steps: int = 1

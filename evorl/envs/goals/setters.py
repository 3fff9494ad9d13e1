"""Goal setters, which choose the goals of episodes, and their creation from a config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import load_named, no_such
from evorl.config.values import check_names, checked_mapping, checked_value, declared_ranges, field_types
from evorl.envs.goals.setting import GoalSetter, GoalStep
from evorl.envs.goals.task import GoalTask
from evorl.fields import Within
from evorl.ops.trees import tree_where
from evorl.types import Key, Observation, PyTreeData


@dataclasses.dataclass(frozen=True)
class OwnGoals(GoalSetter):
    """Keeps the goals that the environment itself chooses."""

    def start(self, memory: Any, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        return obs.desired_goal, memory


@dataclasses.dataclass(frozen=True)
class UniformGoals(GoalSetter):
    """Draws each goal with ``goal_space.sample``, which is uniform for bounded spaces."""

    def start(self, memory: Any, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        return task.goal_space.sample(key), memory


class _GoalMemory(PyTreeData):
    """Ring buffer of the K most recent goals, each with its success.

    Attributes:
        goals: stored goals ``[K, G]``; only the first ``min(count, K)`` are valid.
        is_reached: true for goals that were reached, bool ``[K]``.
        count: number of goals ever added, int32.
    """

    goals: jax.Array
    is_reached: jax.Array
    count: jax.Array

    @property
    def is_filled(self) -> jax.Array:
        """True for the slots that hold a goal, bool ``[K]``."""
        return jnp.arange(self.goals.shape[0]) < self.count

    def with_goal(self, goal: jax.Array, is_reached: jax.Array | bool, mask: jax.Array) -> _GoalMemory:
        """Return the buffer with the goal added if ``mask``, a bool, is true; a full buffer evicts its oldest goal."""
        slot = jnp.where(mask, self.count % self.goals.shape[0], self.goals.shape[0])
        return _GoalMemory(
            goals=self.goals.at[slot].set(goal.astype(self.goals.dtype), mode="drop"),
            is_reached=self.is_reached.at[slot].set(is_reached, mode="drop"),
            count=self.count + mask,
        )


def _no_goals(task: GoalTask, capacity: int) -> _GoalMemory:
    return _GoalMemory(
        goals=task.goal_space.zeros((capacity,)),
        is_reached=jnp.zeros(capacity, jnp.bool_),
        count=jnp.zeros((), jnp.int32),
    )


@dataclasses.dataclass(frozen=True)
class AchievedGoals(GoalSetter):
    """Sets, in a part of the episodes, a goal achieved at the end of an earlier episode of the same environment.

    Other episodes keep the goal that the environment chooses.

    Attributes:
        share: probability of setting a goal achieved in an earlier episode; 0 while the goal buffer is empty.
        capacity: size of the goal buffer; a full buffer evicts its oldest goal.
    """

    share: Annotated[float, Within("[0, 1]")] = 0.5
    capacity: Annotated[int, Within("[1, inf)")] = 256

    def init(self, task: GoalTask) -> _GoalMemory:
        return _no_goals(task, self.capacity)

    def start(self, memory: _GoalMemory, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        share_key, slot_key = jax.random.split(key)
        num = jnp.minimum(memory.count, self.capacity)
        earlier = memory.goals[jax.random.randint(slot_key, (), 0, jnp.maximum(num, 1))]
        is_earlier = (jax.random.uniform(share_key) < self.share) & (num > 0)
        return jnp.where(is_earlier, earlier, obs.desired_goal), memory

    def after(self, memory: _GoalMemory, task: GoalTask, step: GoalStep, key: Key) -> tuple[GoalStep, Any]:
        return step, memory.with_goal(step.next_obs.achieved_goal, True, step.ends_goal)


@dataclasses.dataclass(frozen=True)
class CurriculumGoals(GoalSetter):
    """Chooses goals that are reached in about half of the episodes (Florensa et al. 2018, section 4).

    Half of the candidates are samples of the goal space, half are stored goals with added noise, rounded if goals are
    integers. The setter chooses the candidate in the goal space with the success rate closest to 0.5. A Gaussian kernel
    over the goal buffer estimates success rates, which are 0 far from all stored goals. The buffer stores desired goals
    of past episodes with their success, and the goals achieved at the ends of episodes, as successes.

    Attributes:
        own_share: probability of keeping the environment's own goal, which is always kept while the buffer is empty.
        num_candidates: number of candidates for each goal.
        width: standard deviation of kernel and noise, as a fraction of the side lengths of the (bounded) goal space.
        capacity: size of the goal buffer; a full buffer evicts its oldest goal.
    """

    own_share: Annotated[float, Within("[0, 1]")] = 0.2
    num_candidates: Annotated[int, Within("[1, inf)")] = 64
    width: Annotated[float, Within("(0, inf)")] = 0.1
    capacity: Annotated[int, Within("[1, inf)")] = 256

    def init(self, task: GoalTask) -> _GoalMemory:
        """Return an empty goal buffer. Raises ``ValueError`` if the goal space has an infinite bound."""
        if not task.goal_space.is_bounded:
            raise ValueError(
                f"env.goal_setter=curriculum scales its noise by the bounds of goals, but they are infinite in "
                f"{task.goal_space}: bound the goals in the environment, or use env.goal_setter=achieved."
            )
        return _no_goals(task, self.capacity)

    def start(self, memory: _GoalMemory, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        share_key, anywhere_key, slot_key, noise_key, choice_key = jax.random.split(key, 5)
        half, space = self.num_candidates // 2, task.goal_space
        is_float = jnp.issubdtype(space.dtype, jnp.floating)
        anywhere = jax.vmap(space.sample)(jax.random.split(anywhere_key, self.num_candidates - half))
        rows = jax.random.randint(slot_key, (half,), 0, jnp.clip(memory.count, 1, self.capacity))
        sides = jnp.asarray(np.subtract(space.high, space.low, dtype=None if is_float else np.float32))
        noise = self.width * sides * jax.random.normal(noise_key, (half, *sides.shape))
        perturbed = jnp.clip(memory.goals[rows] + noise, space.low, space.high)
        perturbed = perturbed if is_float else jnp.round(perturbed)
        candidates = jnp.concatenate([anywhere.astype(jnp.float32), perturbed])  # [C, G]
        rate = self._rate_of_success(memory, candidates, sides)
        difficulty = rate * (1.0 - rate) + 1e-3 * jax.random.uniform(choice_key, rate.shape)
        candidates = candidates.astype(anywhere.dtype)  # an integer Box contains no floats
        difficulty = jnp.where(jax.vmap(space.contains)(candidates), difficulty, -1.0)  # excludes walls, for example
        chosen = candidates[jnp.argmax(difficulty)].astype(obs.desired_goal.dtype)
        is_own = (jax.random.uniform(share_key) < self.own_share) | (memory.count == 0)
        return jnp.where(is_own, obs.desired_goal, chosen), memory

    def after(self, memory: _GoalMemory, task: GoalTask, step: GoalStep, key: Key) -> tuple[GoalStep, Any]:
        memory = memory.with_goal(step.obs.desired_goal, step.is_success, step.ends_goal)
        return step, memory.with_goal(step.next_obs.achieved_goal, True, step.ends_goal)

    def _rate_of_success(self, memory: _GoalMemory, candidates: jax.Array, sides: jax.Array) -> jax.Array:
        """Estimate success rates ``[C]`` with a Gaussian kernel around each candidate, and half a failure as prior."""
        width = jnp.maximum(self.width * sides, jnp.finfo(sides.dtype).tiny)  # avoids 0 / 0 for sides of length 0
        distances = (candidates[:, None] - memory.goals) / width  # [C, K, G]
        weights = jnp.where(memory.is_filled, jnp.exp(-0.5 * jnp.sum(jnp.square(distances), axis=-1)), 0.0)
        return (weights * memory.is_reached).sum(axis=-1) / (weights.sum(axis=-1) + 0.5)


@dataclasses.dataclass(frozen=True)
class SeveralGoals(GoalSetter):
    """Sets several goals one after another within an episode.

    Attributes:
        of: setter that chooses each goal.
        every: number of steps per goal; ``None`` sets the next goal once a goal is reached, if the episode continues.
    """

    of: GoalSetter = UniformGoals()
    every: Annotated[int | None, Within("[1, inf)")] = None

    def init(self, task: GoalTask) -> Any:
        return self.of.init(task)

    def start(self, memory: Any, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        return self.of.start(memory, task, obs, key)

    def after(self, memory: Any, task: GoalTask, step: GoalStep, key: Key) -> tuple[GoalStep, Any]:
        after_key, start_key = jax.random.split(key)
        is_next = step.is_success if self.every is None else step.steps % self.every == 0
        step, memory = self.of.after(memory, task, step.replace(is_followed=is_next), after_key)
        goal, started = self.of.start(memory, task, step.next_obs, start_key)
        memory = tree_where(is_next & ~step.ends, started, memory)
        return step.replace(next_goal=jnp.where(is_next, goal, step.next_goal)), memory


@dataclasses.dataclass(frozen=True)
class ChainedSetters(GoalSetter):
    """Applies two setters in sequence: the second receives the result of the first.

    Attributes:
        first: setter applied first.
        second: setter applied to the result of the first.
    """

    first: GoalSetter
    second: GoalSetter

    def init(self, task: GoalTask) -> Any:
        return self.first.init(task), self.second.init(task)

    def start(self, memory: Any, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        keys = jax.random.split(key)
        goal, first = self.first.start(memory[0], task, obs, keys[0])
        goal, second = self.second.start(memory[1], task, obs.replace(desired_goal=goal), keys[1])
        return goal, (first, second)

    def after(self, memory: Any, task: GoalTask, step: GoalStep, key: Key) -> tuple[GoalStep, Any]:
        keys = jax.random.split(key)
        step, first = self.first.after(memory[0], task, step, keys[0])
        step, second = self.second.after(memory[1], task, step, keys[1])
        return step, (first, second)


SETTERS: dict[str, type[GoalSetter]] = {
    "own": OwnGoals,
    "uniform": UniformGoals,
    "achieved": AchievedGoals,
    "curriculum": CurriculumGoals,
    "several": SeveralGoals,
    "chained": ChainedSetters,
}


def make_goal_setter(
    settings: GoalSetter | Mapping[str, Any] | str | None, path: str = "env.goal_setter"
) -> GoalSetter | None:
    """Create a setter from a config, or return a ``GoalSetter`` or ``None``; check the ranges of all settings.

    Args:
        settings: the name of one of ``SETTERS``, or ``"package.module:Class"`` of a user's class; or a mapping with
            ``name`` and the settings of the class. A setting that is itself a goal setter has the same forms.
        path: dotted key of the setter, for messages.

    Raises:
        ValueError: a name or setting does not exist, a required setting is missing, a class has the wrong type, or a
            value is out of the range that its field declares by ``Within``.
    """
    if settings is None:
        return None
    setter = settings if isinstance(settings, GoalSetter) else _described(settings, path)
    cls, checked = type(setter), {}
    for field in dataclasses.fields(setter):
        name, value, key = field.name, getattr(setter, field.name), f"{path}.{field.name}"
        if isinstance(value, GoalSetter):
            checked[name] = make_goal_setter(value, key)
        elif "Within" in str(field.type):
            checked[name] = checked_value(value, field_types(cls)[name], key, declared_ranges(cls)[name])
    return dataclasses.replace(setter, **checked) if checked else setter


def _described(settings: Mapping[str, Any] | str, path: str) -> GoalSetter:
    """Create a setter from a config; numbers are not checked yet."""
    chosen = dict(checked_mapping({"name": settings} if isinstance(settings, str) else settings, path))
    name = str(chosen.pop("name", None))
    cls = load_named(name, path) if ":" in name else SETTERS.get(name)
    if cls is None:
        raise ValueError(no_such(path, name, SETTERS))
    if not (isinstance(cls, type) and issubclass(cls, GoalSetter)):
        raise ValueError(f"{path}={name} must be a subclass of evorl.envs.goals.setters.GoalSetter.")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    check_names(chosen, fields, f"setting of {path}.name={name}")
    for key, field in fields.items():
        if key in chosen and "GoalSetter" in str(field.type):
            chosen[key] = make_goal_setter(chosen[key], f"{path}.{key}")
        elif key not in chosen and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{path}.name={name} needs a value for {key}.")
    return cls(**chosen)

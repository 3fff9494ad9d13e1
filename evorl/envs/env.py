"""The environment: a pure function from (state, action) to the next state.

``Env`` is one environment. A vector env (``evorl.envs.vector.VectorEnv``) steps B of them together and starts new
episodes by itself. Both speak ``EnvState``, so a rollout does not care which library is behind.
"""

from __future__ import annotations

import abc
import enum
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from evorl.envs.space import Space
from evorl.ops.trees import tree_where
from evorl.types import Action, ByValue, Key, Observation, PyTreeData, PyTreeDict, pytree_field

Tree = TypeVar("Tree")


class AutoresetMode(enum.Enum):
    """What a vector env does with an environment whose episode has ended.

    ``NORMAL``: the next episode starts in the same step, from a fresh random reset.
    ``FAST``: likewise, but every episode of an environment starts from its first state (random numbers of the
    episode itself still differ). Cheaper to compile, and a different, narrower start distribution: never a default.
    ``DISABLED``: the environment freezes; reward 0, nothing changes, ``done`` stays true. Mask by ``done``.
    ``ENVPOOL``: the step after the end is the reset step: its action is ignored, its reward is 0 and
    ``info.is_reset_step`` is true.
    """

    NORMAL = "normal"
    FAST = "fast"
    DISABLED = "disabled"
    ENVPOOL = "envpool"


class EnvState(PyTreeData):
    """Everything an environment knows after a reset or a step; leaves of a vector env lead with axis B.

    Attributes:
        env_state: the library's own state.
        obs: what the agent sees next (after an autoreset: the first observation of the new episode).
        reward: reward of the step, float32.
        done: whether the step ended the episode, bool.
        info: on every step ``termination`` and ``truncation`` (bool; never both), ``metrics`` (the library's own
            figures); with an ``EpisodeWrapper`` also ``steps``, ``episode_length`` (int32) and ``episode_return``
            (float32) of the episode the step belongs to; on a vector env also ``next_obs`` (the true successor
            observation, before any autoreset) and ``is_reset_step`` (bool).
    """

    env_state: Any
    obs: Observation
    reward: jax.Array
    done: jax.Array
    info: PyTreeDict = pytree_field(default_factory=PyTreeDict)
    _internal: PyTreeDict = pytree_field(default_factory=PyTreeDict)  # what wrappers remember


class _MissingSpace:
    """Placeholder of a class without a space; an attribute of the instance takes precedence."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, env: Any, owner: type) -> Any:
        if env is None:
            return self
        raise AttributeError(
            f"{owner.__name__} has no {self._name}: give it as a class attribute, as a property, or set it in "
            f"__init__, as in self.{self._name} = Discrete(2)."
        )


class Env(ByValue, abc.ABC):
    """One environment: static, hashable, its state outside.

    ``reset`` and ``step`` are pure, and what ``reset`` returns has the structure, shapes and dtypes of what ``step``
    returns. ``step`` reads ``env_state.env_state`` and ``env_state._internal``, never ``info``. Spaces are computed
    with numbers even where a trace asks for them, so that a property may build them with ``jax.numpy``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("obs_space", "action_space"):
            space = vars(cls).get(name)
            if isinstance(space, property) and space.fget is not None:
                setattr(cls, name, property(_outside_of_traces(space.fget), doc=space.__doc__))

    @abc.abstractmethod
    def reset(self, key: Key) -> EnvState:
        """The start of an episode, from a scalar ``key`` (typed or legacy)."""

    @abc.abstractmethod
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """One step; stepping an ended episode is allowed and means nothing."""

    # A class attribute, a property, or set in ``__init__``.
    if TYPE_CHECKING:

        @property
        def obs_space(self) -> Space:
            """The space of one environment's observations."""
            ...

        @property
        def action_space(self) -> Space:
            """The space of one environment's actions."""
            ...

    else:
        obs_space = _MissingSpace()
        action_space = _MissingSpace()

    @property
    def max_episode_steps(self) -> int | None:
        """The most steps an episode can have; ``None`` where nobody said."""
        return None

    @property
    def num_agents(self) -> int:
        """How many agents act in one copy of it: more than 1 are rows of a batch that only means something together."""
        return 1

    @property
    def num_skills(self) -> int:
        """Number of skills that observations end with, see ``SkillWrapper``; 0 without skills."""
        return 0

    @property
    def goal_task(self) -> Any:
        """What it is worth to reach a goal, an ``evorl.envs.goals.task.GoalTask``; ``None`` where nothing says so."""
        return None

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Positions and velocities of simulated bodies, by the names that the library has; empty where there are none.

        Arrays lead with the axes of ``env_state``. float64, which JAX computes in only when it is told to, stands as
        its bytes: uint8 ``[..., 8 k]`` for ``k`` numbers.
        """
        del env_state
        return PyTreeDict()

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` whose coordinates ``physics`` tells; ``None`` where there is none."""
        return None

    def draw_background(self, axes: Any, of: str, dimensions: tuple[int, ...]) -> None:
        """Draw what is always there behind goals or observations, as walls are: by default nothing.

        Args:
            axes: of matplotlib, whose horizontal axis is the first of the dimensions.
            of: ``"goal"`` or ``"observation"``: what is shown.
            dimensions: which of its numbers, one or two.
        """

    @property
    def unwrapped(self) -> Env:
        """The innermost environment."""
        return self


def _outside_of_traces(method: Callable) -> Callable:
    @functools.wraps(method)
    def compute(env: Env) -> Any:
        with jax.ensure_compile_time_eval():
            return method(env)

    return compute


class EnvAround(Env):
    """An environment around another one, ``env``: what it does not change is as there."""

    env: Env
    # Why goals cannot be told anew from what is seen outside; ``None`` where they can.
    hides_goals: ClassVar[str | None] = None

    @property
    def obs_space(self) -> Space:
        """See ``Env.obs_space``."""
        return self.env.obs_space

    @property
    def action_space(self) -> Space:
        """See ``Env.action_space``."""
        return self.env.action_space

    @property
    def max_episode_steps(self) -> int | None:
        """See ``Env.max_episode_steps``."""
        return self.env.max_episode_steps

    @property
    def num_agents(self) -> int:
        """See ``Env.num_agents``."""
        return self.env.num_agents

    @property
    def num_skills(self) -> int:
        return self.env.num_skills

    @property
    def goal_task(self) -> Any:
        """See ``Env.goal_task``."""
        return self.env.goal_task

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """See ``Env.physics``."""
        return self.env.physics(env_state)

    @property
    def mujoco_model(self) -> Any:
        """See ``Env.mujoco_model``."""
        return self.env.mujoco_model

    def draw_background(self, axes: Any, of: str, dimensions: tuple[int, ...]) -> None:
        """See ``Env.draw_background``."""
        self.env.draw_background(axes, of, dimensions)

    @property
    def unwrapped(self) -> Env:
        """The innermost environment."""
        return self.env.unwrapped


def freeze_ended(env_state: EnvState, stepped: EnvState) -> EnvState:
    """``stepped``; where the episode had ended before the step the state as it was, with reward 0.

    Args:
        env_state: the state before the step; its ``info`` may have more entries than that of ``stepped``.
        stepped: the state after it, of one environment or with leading axis B.
    """
    info = PyTreeDict({name: env_state.info[name] for name in stepped.info})
    last = env_state.replace(reward=jnp.zeros_like(env_state.reward), info=info)
    return tree_where(env_state.done, last, stepped)


def strongly_typed(tree: Tree) -> Tree:
    """Leaves as arrays whose dtype is not weak, so that a ``scan`` over steps keeps one type."""

    def convert(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return x if not x.aval.weak_type else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(convert, tree)


def compiled(method: Callable) -> Callable:
    """Compile a method of an environment when it is called outside a trace; inside one it is part of the caller.

    Physics run operation by operation takes minutes. Equal environments share one compiled program, and one trace:
    tracing a physics engine takes a second, and a program contains the same reset several times.
    """
    return functools.wraps(method)(jax.jit(method, static_argnums=0, inline=True))


class PhysicsEnv(Env):
    """An environment on a model of its physics, a pytree of arrays.

    A subclass tells how it starts and steps in a model like its own: of the same structure and shapes, with numbers
    that may be traced, and be others in each row of a batch.
    """

    @property
    @abc.abstractmethod
    def physics_model(self) -> Any:
        """The model that the environment has by itself."""

    @abc.abstractmethod
    def reset_in(self, model: Any, key: Key) -> EnvState:
        """The start of an episode in ``model``, from a scalar ``key``; inside a trace."""

    @abc.abstractmethod
    def step_in(self, model: Any, env_state: EnvState, action: Action) -> EnvState:
        """One step in ``model``; inside a trace."""

    @compiled
    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        return self.reset_in(self.physics_model, key)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        return self.step_in(self.physics_model, env_state, action)

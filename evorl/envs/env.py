"""The environment interface: a pure function from (state, action) to the next state.

``Env`` is one environment. A vector env (``evorl.envs.vector.VectorEnv``) steps B of them together and starts new
episodes by itself. Both use ``EnvState``, so a rollout does not depend on the library.
"""

from __future__ import annotations

import abc
import enum
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import jax
import jax.numpy as jnp

from evorl.envs.space import Space
from evorl.ops.trees import tree_where
from evorl.types import Action, ByValue, Key, Observation, PyTreeData, PyTreeDict, pytree_field

Method = TypeVar("Method", bound=Callable[..., Any])
Tree = TypeVar("Tree")


class AutoresetMode(enum.Enum):
    """Behavior of a vector env when an environment's episode has ended.

    ``NORMAL``: the next episode starts in the same step, from a new random reset.
    ``FAST``: the next episode starts in the same step, from the first start state of that environment; random numbers
    drawn during the episode still differ. Cheaper to compile, but the start distribution is different and narrower:
    never a default.
    ``DISABLED``: the environment freezes; reward 0, nothing changes, ``done`` stays true. Mask by ``done``.
    ``ENVPOOL``: the step after the end is the reset step: its action is ignored, its reward is 0 and
    ``info.is_reset_step`` is true.
    """

    NORMAL = "normal"
    FAST = "fast"
    DISABLED = "disabled"
    ENVPOOL = "envpool"


class EnvState(PyTreeData):
    """State of an environment after a reset or a step; leaves of a vector env have a leading axis B.

    Attributes:
        env_state: the library's own state.
        obs: observation for the next action (after an autoreset: the first observation of the new episode).
        reward: reward of the step, float32.
        done: true if the step ended the episode, bool.
        info: always ``termination`` and ``truncation`` (bool; never both) and ``metrics`` (the library's own figures).
            With an ``EpisodeWrapper`` also ``steps``, ``episode_length`` (int32) and ``episode_return`` (float32) of
            the episode that the step belongs to. On a vector env also ``next_obs`` (the true successor observation,
            before any autoreset) and ``is_reset_step`` (bool).
    """

    env_state: Any
    obs: Observation
    reward: jax.Array
    done: jax.Array
    info: PyTreeDict = pytree_field(default_factory=PyTreeDict)
    _internal: PyTreeDict = pytree_field(default_factory=PyTreeDict)  # state of wrappers


class _MissingSpace:
    """Placeholder in a class that defines no space; an attribute of the instance takes precedence."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, env: Any, owner: type) -> Any:
        if env is None:
            return self
        raise AttributeError(
            f"{owner.__name__} has no {self._name}: define it as a class attribute or a property, or set it in "
            f"__init__, as in self.{self._name} = Discrete(2)."
        )


class Env(ByValue, abc.ABC):
    """One environment: static and hashable, with its state passed in and out.

    ``reset`` and ``step`` are pure, and both return the same structure, shapes and dtypes. ``step`` reads
    ``env_state.env_state`` and ``env_state._internal``, never ``info``. Spaces are evaluated outside of any active
    trace, so that a property may build them with ``jax.numpy``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("obs_space", "action_space"):
            space = vars(cls).get(name)
            if isinstance(space, property) and space.fget is not None:
                setattr(cls, name, property(_outside_of_traces(space.fget), doc=space.__doc__))

    @abc.abstractmethod
    def reset(self, key: Key) -> EnvState:
        """Return the first state of an episode, drawn with a scalar ``key`` (typed or legacy)."""

    @abc.abstractmethod
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Return the state after one step; an ended episode may be stepped, with a meaningless result."""

    # A class attribute, a property, or set in ``__init__``.
    if TYPE_CHECKING:

        @property
        def obs_space(self) -> Space:
            """Observation space of one environment."""
            ...

        @property
        def action_space(self) -> Space:
            """Action space of one environment."""
            ...

    else:
        obs_space = _MissingSpace()
        action_space = _MissingSpace()

    @property
    def max_episode_steps(self) -> int | None:
        """Maximum number of steps of an episode; ``None`` if unknown."""
        return None

    @property
    def num_agents(self) -> int:
        """Number of agents that act in one copy; they occupy consecutive rows of a batch and are stepped together."""
        return 1

    @property
    def num_skills(self) -> int:
        """Number of skills whose one-hot code is appended to observations, see ``SkillWrapper``; 0 without skills."""
        return 0

    @property
    def goal_task(self) -> Any:
        """Reward function of goals, an ``evorl.envs.goals.task.GoalTask``; ``None`` for environments without goals."""
        return None

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Return positions and velocities of the simulated bodies, under the library's names; empty without bodies.

        Arrays have the leading axes of ``env_state``. float64, which JAX supports only when enabled, is returned as
        bytes: uint8 ``[..., 8 k]`` for ``k`` numbers.
        """
        del env_state
        return PyTreeDict()

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` whose coordinates ``physics`` returns; ``None`` for other engines."""
        return None

    def draw_background(self, axes: Any, of: str, dimensions: tuple[int, ...]) -> None:
        """Draw the static background of goal or observation plots, such as walls; the default draws nothing.

        Args:
            axes: Matplotlib axes; the horizontal axis is the first of the dimensions.
            of: quantity shown, ``"goal"`` or ``"observation"``.
            dimensions: indices of the components shown, one or two.
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


class EnvWithSpaces(Env):
    """Base of environments whose ``__init__`` sets the spaces, as ``_obs_space`` and ``_action_space``."""

    _obs_space: Any
    _action_space: Any

    @property
    def obs_space(self) -> Space:
        """Observation space of one environment."""
        return self._obs_space

    @property
    def action_space(self) -> Space:
        """Action space of one environment."""
        return self._action_space


class EnvWrapper(Env):
    """Base class of wrappers: forwards everything to the wrapped ``env`` unless overridden."""

    env: Env
    # Reason why rewards of other goals cannot be recomputed from the wrapped observations; ``None`` if they can.
    hides_goals: ClassVar[str | None] = None

    @property
    def obs_space(self) -> Space:
        """Observation space of one environment."""
        return self.env.obs_space

    @property
    def action_space(self) -> Space:
        """Action space of one environment."""
        return self.env.action_space

    @property
    def max_episode_steps(self) -> int | None:
        return self.env.max_episode_steps

    @property
    def num_agents(self) -> int:
        return self.env.num_agents

    @property
    def num_skills(self) -> int:
        return self.env.num_skills

    @property
    def goal_task(self) -> Any:
        return self.env.goal_task

    def physics(self, env_state: EnvState) -> PyTreeDict:
        return self.env.physics(env_state)

    @property
    def mujoco_model(self) -> Any:
        return self.env.mujoco_model

    def draw_background(self, axes: Any, of: str, dimensions: tuple[int, ...]) -> None:
        self.env.draw_background(axes, of, dimensions)

    @property
    def unwrapped(self) -> Env:
        return self.env.unwrapped


def freeze_ended(env_state: EnvState, stepped: EnvState) -> EnvState:
    """Return ``stepped``, but keep the old state, with reward 0, of environments whose episode had already ended.

    Args:
        env_state: the state before the step; its ``info`` may have more entries than that of ``stepped``.
        stepped: the state after the step, of one environment or with leading axis B.
    """
    info = PyTreeDict({name: env_state.info[name] for name in stepped.info})
    last = env_state.replace(reward=jnp.zeros_like(env_state.reward), info=info)
    return tree_where(env_state.done, last, stepped)


def strongly_typed(tree: Tree) -> Tree:
    """Convert leaves to arrays that are not weakly typed, so that a ``scan`` over steps keeps its carry type."""

    def convert(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return x if not x.aval.weak_type else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(convert, tree)


def compiled(method: Method) -> Method:
    """Compile a method of an environment; inside a trace it is inlined into the caller.

    Physics executed operation by operation takes minutes. Equal environments share one compiled program and one trace:
    tracing a physics engine takes a second, and a program contains the same reset several times.
    """
    return cast(Method, functools.wraps(method)(jax.jit(method, static_argnums=0, inline=True)))


class PhysicsEnv(Env):
    """An environment whose physics model is a pytree of arrays.

    A subclass defines reset and step for any model of the same structure and shapes as its own. The numbers of that
    model may be traced, and may differ between the environments of a batch.
    """

    @property
    @abc.abstractmethod
    def physics_model(self) -> Any:
        """The environment's default model."""

    @abc.abstractmethod
    def reset_in(self, model: Any, key: Key) -> EnvState:
        """Return the first state of an episode in ``model``, drawn with a scalar ``key``; called inside a trace."""

    @abc.abstractmethod
    def step_in(self, model: Any, env_state: EnvState, action: Action) -> EnvState:
        """Return the state after one step in ``model``; called inside a trace."""

    @compiled
    def reset(self, key: Key) -> EnvState:
        return self.reset_in(self.physics_model, key)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self.step_in(self.physics_model, env_state, action)

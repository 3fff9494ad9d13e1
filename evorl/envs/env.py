"""The environment interface: pure functions ``reset`` and ``step``, which return an ``EnvState``.

``Env`` is a single environment. A vector environment (``evorl.envs.vector.VectorEnv``) steps B environments together,
and restarts those whose episode has ended. Both use ``EnvState``, so a rollout does not depend on the library.
"""

from __future__ import annotations

import abc
import enum
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import jax
import jax.numpy as jnp

from evorl.config.names import no_such
from evorl.envs.space import Space
from evorl.ops.trees import tree_where
from evorl.types import Action, ByValue, Key, Observation, PyTreeData, PyTreeDict, pytree_field

Method = TypeVar("Method", bound=Callable[..., Any])
Tree = TypeVar("Tree")


class AutoresetMode(enum.Enum):
    """Behavior of a vector environment when the episode of one of its environments ends.

    ``NORMAL``: the step that ends an episode also starts the next one, from a new random reset.
    ``FAST``: like ``NORMAL``, but all episodes of an environment start from the state of its first reset. Random
    numbers of later steps still differ between episodes. This mode compiles faster, but has only B different start
    states. No part of evorl uses it by default.
    ``DISABLED``: the ended environment freezes: later steps have reward 0, and ``done`` stays true. Ignore those steps.
    ``ENVPOOL``: the step after the end of an episode is a reset step, which starts the next episode. It ignores its
    action, its reward is 0 and ``info.is_reset_step`` is true.
    """

    NORMAL = "normal"
    FAST = "fast"
    DISABLED = "disabled"
    ENVPOOL = "envpool"


def as_autoreset_mode(mode: AutoresetMode | str, valid: Iterable[AutoresetMode] = AutoresetMode) -> AutoresetMode:
    """Return a mode by its name, in upper or lower case; for others raise ``ValueError``, which suggests ``valid``."""
    if isinstance(mode, AutoresetMode):
        return mode
    if str(mode).upper() not in AutoresetMode.__members__:
        raise ValueError(no_such("autoreset_mode", mode, [member.value for member in valid]))
    return AutoresetMode[str(mode).upper()]


class EnvState(PyTreeData):
    """State of an environment after a reset or a step. In a vector environment, all leaves have a leading axis B.

    Attributes:
        env_state: state of the environment itself, a pytree.
        obs: observation for the next action (after an autoreset: the first observation of the new episode).
        reward: reward of the step, float32; 0 after a reset.
        done: true if the step ended the episode, bool.
        info: ``termination`` and ``truncation`` (bool; never both), and ``metrics`` (other numbers, by name).
            ``EpisodeWrapper`` adds counters of the step's episode: ``steps`` and ``episode_length`` (int32, equal), and
            ``episode_return`` (float32). ``GoalWrapper`` adds ``is_success`` (bool). Vector environments add
            ``next_obs`` (true successor, before any autoreset) and ``is_reset_step`` (see ``AutoresetMode.ENVPOOL``).
    """

    env_state: Any
    obs: Observation
    reward: jax.Array
    done: jax.Array
    info: PyTreeDict = pytree_field(default_factory=PyTreeDict)
    _internal: PyTreeDict = pytree_field(default_factory=PyTreeDict)  # state of wrappers and adapters, such as a key


class _MissingSpace:
    """Placeholder for a space: reading it raises ``AttributeError``, unless a subclass or the instance defines it."""

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
    """A single environment: an immutable, hashable object; its methods receive and return the changing state.

    ``reset`` and ``step`` are pure, and both return the same structure, shapes and dtypes. ``step`` reads
    ``env_state.env_state`` and ``env_state._internal``, never ``info`` or ``obs``. A property that returns a space may
    use ``jax.numpy``: it is evaluated outside of any active trace.
    """

    joins_batches: ClassVar[bool] = False  # if True, nested batches are stepped as one batch, see ``joining_vmap``

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
        """Return the state after one step. A step after the end of an episode is allowed; its result is undefined."""

    # Subclasses define the spaces as class attributes or properties, or set them in ``__init__``.
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
        """Maximum number of steps of an episode; ``None`` without a limit, or if the limit is unknown."""
        return None

    @property
    def num_agents(self) -> int:
        """Number of agents per environment copy. Each agent is a row of the batch; a copy's rows are consecutive."""
        return 1

    @property
    def num_skills(self) -> int:
        """Number of skills, see ``SkillWrapper``; 0 without skills."""
        return 0

    @property
    def goal_task(self) -> Any:
        """Reward and success functions of goals, a ``GoalTask``; ``None`` without goals or without known functions."""
        return None

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Return positions and velocities of the simulated bodies, by the library's names; empty without bodies.

        The arrays have the leading axes of ``env_state``. Simulators on the host return the bytes of float64 numbers,
        uint8 ``[..., 8 k]`` for ``k`` numbers, because JAX disables float64 by default.
        """
        del env_state
        return PyTreeDict()

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` of the bodies that ``physics`` describes; ``None`` for other engines."""
        return None

    def draw_background(self, axes: Any, of: str, dimensions: tuple[int, ...]) -> None:
        """Draw the static background of goal or observation plots, such as walls; the default draws nothing.

        Args:
            axes: Matplotlib axes; the horizontal axis shows the component ``dimensions[0]``.
            of: quantity that the plot shows, ``"goal"`` or ``"observation"``.
            dimensions: indices of the one or two components that the plot shows.
        """

    @property
    def unwrapped(self) -> Env:
        """The innermost environment, without wrappers."""
        return self


def _outside_of_traces(method: Callable) -> Callable:
    @functools.wraps(method)
    def compute(env: Env) -> Any:
        with jax.ensure_compile_time_eval():
            return method(env)

    return compute


class EnvWithSpaces(Env):
    """Base class of environments that set ``_obs_space`` and ``_action_space`` in ``__init__``.

    Environments with equal ``_spec`` are equal; without ``_spec``, those with the same ``_wrapped`` objects.
    """

    _obs_space: Any
    _action_space: Any
    _spec: Any = None
    _wrapped: tuple[Any, ...] = ()

    @property
    def obs_space(self) -> Space:
        """Observation space of one environment."""
        return self._obs_space

    @property
    def action_space(self) -> Space:
        """Action space of one environment."""
        return self._action_space

    def _identity(self) -> Any:
        by_object = tuple(map(id, self._wrapped)) or super()._identity()
        return by_object if self._spec is None else self._spec


class EnvWrapper(Env):
    """Base class of wrappers: forwards everything to the wrapped ``env`` unless overridden."""

    env: Env
    # Reason why ``goal_task`` cannot recompute this wrapper's rewards for other goals; ``None`` if it can.
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
    """Return ``stepped``; where ``env_state.done`` is true, return ``env_state`` with reward 0 instead.

    Args:
        env_state: the state before the step; entries of its ``info`` that ``stepped`` lacks are dropped.
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
    """Compile a method of an environment with ``jax.jit``; inside a trace, it is inlined into the caller.

    Without compilation, a call of a physics engine may take minutes. Equal environments share one compiled program and
    one trace: tracing a physics engine takes a second, and a program may contain the same reset several times.
    """
    return cast(Method, functools.wraps(method)(jax.jit(method, static_argnums=0, inline=True)))


class PhysicsEnv(Env):
    """An environment whose physics model is a pytree of arrays.

    A subclass implements ``reset_in`` and ``step_in`` for any model with the structure and shapes of ``physics_model``.
    The model's numbers may be traced, and may differ between the environments of a batch.
    """

    @property
    @abc.abstractmethod
    def physics_model(self) -> Any:
        """The default model; ``None`` if the environment has no model and therefore cannot be randomized."""

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

"""Gym-style tasks on MJX, MuJoCo's physics inside compiled programs: ``env=mjx/hopper``.

Start states, observations, rewards and terminations are as in version 5 of Gymnasium's environments.
``evorl.envs.mujoco_task`` defines them, and Gymnasium contains the models. Differences from ``env=host/...``:

- MJX computes in float32.
- MJX has no PGS solver, which the models of the humanoids request: Newton's method replaces it.
- An unstable simulation raises no error: its numbers become infinite or NaN.

MJX's contacts of capsules with planes are corrected, see ``evorl.envs.mjx_contacts``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import operator
from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.names import explain_missing_package
from evorl.config.values import positive
from evorl.envs.env import EnvState, EnvWithSpaces, PhysicsEnv
from evorl.envs.mjx_trace_cache import forward_traced_once
from evorl.envs.mujoco_catalog import TASKS, load_model, make_task, numbers_of_bodies
from evorl.envs.mujoco_task import Physics, Task
from evorl.envs.options import OPTION_NAMES, as_hashable, from_hashable, split_options
from evorl.envs.space import Box
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeData, PyTreeDict

# Tasks that sample start states directly. The other tasks use a NumPy loop.
ENV_NAMES = tuple(name for name in TASKS if name not in ("pusher", "reacher"))
SOLVER_OPTIONS = ("iterations", "ls_iterations")


class MjxState(PyTreeData):
    """The fields of ``mjx.Data`` that a step reads or a task observes; each physics step computes the other fields.

    Attributes:
        qpos: generalized positions ``[nq]``.
        qvel: generalized velocities ``[nv]``.
        qacc_warmstart: accelerations from which the solver starts, ``[nv]``.
        derived: the fields that the task lists in ``derived``, by name.
    """

    qpos: jax.Array
    qvel: jax.Array
    qacc_warmstart: jax.Array
    derived: PyTreeDict


class MjxAdapter(EnvWithSpaces, PhysicsEnv):
    """A task on MJX as an ``Env``, without a time limit.

    Actions are in the ranges of the model's actuators, and observations are unbounded. ``info.metrics`` has the reward
    terms and the ``measures`` of the task.

    Args:
        task: definition of the task.
        iterations: maximum solver iterations per substep, ``None`` for the model's value.
        ls_iterations: maximum line search iterations of the solver, ``None`` for the model's value.
        spec: hashable description of the task and the settings; adapters with equal ``spec`` are equal. Without
            ``spec``, an adapter is equal only to itself.

    Raises:
        ValueError: a number is not positive.
        ImportError: MJX, or Gymnasium, which contains the models, is not installed.
    """

    def __init__(
        self, task: Task, iterations: int | None = None, ls_iterations: int | None = None, spec: Any = None
    ) -> None:
        self.task, self._spec = task, spec
        self._mjx = _load_mjx()
        positive(task.frame_skip, "env.frame_skip")
        self.mj_model = mj_model = load_model(task)
        if mj_model.opt.solver not in set(self._mjx.SolverType):
            mj_model.opt.solver = self._mjx.SolverType.NEWTON
        for name, value in {"iterations": iterations, "ls_iterations": ls_iterations}.items():
            if value is not None:
                setattr(mj_model.opt, name, positive(value, f"env.{name}"))
        with jax.ensure_compile_time_eval():  # an environment may be created inside a trace
            self._model = self._mjx.put_model(mj_model, impl="jax")
            self._blank = self._mjx.make_data(mj_model, impl="jax")
        self._bodies = numbers_of_bodies(mj_model)
        self._action_space = Box(*mj_model.actuator_ctrlrange.T)
        obs = jax.eval_shape(lambda: task.observe(self._physics(self._model, self._to_state(self._blank))))
        self._obs_space = Box(-jnp.inf, jnp.inf, obs.shape)

    @property
    def physics_model(self) -> Any:
        """The ``mjx.Model`` of the task, a pytree."""
        return self._model

    def reset_in(self, model: Any, key: Key) -> EnvState:
        qpos, qvel = self.task.start(KeyDraws(as_typed_key(key)), model.qpos0, jnp.zeros(model.nv))
        with forward_traced_once():
            data = self._mjx.forward(model, self._blank.replace(qpos=qpos, qvel=qvel))
        state = self._to_state(data.replace(qpos=qpos))  # as sampled, because MJX normalizes rotations
        start = self._outcome(model, state, state, jnp.zeros(model.nu))
        nothing = jax.tree.map(jnp.zeros_like, (start.reward, start.done, start.info))
        return start.replace(reward=nothing[0], done=nothing[1], info=nothing[2])

    def step_in(self, model: Any, env_state: EnvState, action: Action) -> EnvState:
        before = env_state.env_state
        data = self._blank.replace(
            qpos=before.qpos, qvel=before.qvel, qacc_warmstart=before.qacc_warmstart, ctrl=action
        )
        with forward_traced_once():
            data, _ = jax.lax.scan(lambda x, _: (self._mjx.step(model, x), None), data, length=self.task.frame_skip)
        if "cfrc_ext" in self.task.derived:
            data = self._mjx.rne_postconstraint(model, data)
        return self._outcome(model, before, self._to_state(data), action)

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Return the generalized positions ``qpos`` and velocities ``qvel``."""
        return PyTreeDict(qpos=env_state.env_state.qpos, qvel=env_state.env_state.qvel)

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` from which the ``mjx.Model`` was created."""
        return self.mj_model

    def _to_state(self, data: Any) -> MjxState:
        sources = {name: data if name in type(data).__dataclass_fields__ else data._impl for name in self.task.derived}
        derived = PyTreeDict({name: getattr(source, name) for name, source in sources.items()})
        return MjxState(data.qpos, data.qvel, data.qacc_warmstart, derived)

    def _physics(self, model: Any, state: MjxState) -> Physics:
        return Physics(model, state.qpos, state.qvel, state.derived, self._bodies)

    def _outcome(self, model: Any, before: MjxState, after: MjxState, action: Action) -> EnvState:
        """Return the ``EnvState`` after a step from ``before`` to ``after``, with observation, reward and flags."""
        task, physics = self.task, self._physics(model, after)
        moved = task.position(physics) - task.position(self._physics(model, before))
        velocity = moved / (model.opt.timestep * task.frame_skip)
        healthy = task.healthy(physics)
        terms = task.reward_terms(physics, velocity, action, healthy)
        metrics = jax.tree.map(jnp.float32, terms | task.measures(physics, velocity))
        done = jnp.asarray(task.ends(healthy))
        info = PyTreeDict(termination=done, truncation=jnp.zeros_like(done), metrics=PyTreeDict(metrics))
        reward = jnp.float32(functools.reduce(operator.add, terms.values()))
        return EnvState(after, jnp.float32(task.observe(physics)), reward, done, info)

    def __repr__(self) -> str:
        return f"MjxAdapter({type(self.task).__name__})"


class KeyDraws:
    """Implements ``mujoco_task.Draws`` with a JAX key, which each draw splits; for use inside a trace."""

    def __init__(self, key: Key) -> None:
        self._key = key

    def uniform(self, low: Any, high: Any, size: Any) -> jax.Array:
        """Return samples of the uniform distribution on ``[low, high)``, of shape ``size``."""
        return jax.random.uniform(self._next(), size, minval=low, maxval=high)

    def standard_normal(self, size: Any) -> jax.Array:
        """Return samples of the standard normal distribution, of shape ``size``."""
        return jax.random.normal(self._next(), size)

    def _next(self) -> Key:
        self._key, key = jax.random.split(self._key)
        return key


def create_wrapped_mjx_env(env_name: str, **options: Any) -> VectorEnv:
    """Create a vector environment of a task on MJX. Agents act in ``[-1, 1]``.

    Args:
        env_name: one of ``ENV_NAMES``.
        **options: the fields of ``EnvOptions``, where ``max_episode_steps`` is Gymnasium's limit by default;
            ``iterations`` and ``ls_iterations``, see ``MjxAdapter``; all others are fields of the task's class
            (``reset_noise_scale`` ...), which have the names of Gymnasium's arguments.

    Raises:
        ValueError: the task or an option is unknown, or a value is out of range.
        ImportError: MJX, or Gymnasium, which contains the models, is not installed.
    """
    shared, arguments = split_options(options)
    adapter = make_mjx_adapter(env_name, as_hashable(arguments))
    return wrap_env(adapter, limit=adapter.task.max_episode_steps, **shared)


@functools.lru_cache(maxsize=16)
def make_mjx_adapter(env_name: str, arguments: tuple = ("dict", ())) -> MjxAdapter:
    """Create an ``MjxAdapter`` for the options ``arguments``, an output of ``as_hashable``; results are cached."""
    options = from_hashable(arguments)
    solver = {name: options.pop(name) for name in SOLVER_OPTIONS if name in options}
    task = make_task("mjx", env_name, options, ENV_NAMES, (*SOLVER_OPTIONS, *OPTION_NAMES))
    return MjxAdapter(task, **solver, spec=("mjx", env_name, arguments))


@functools.cache
def _load_mjx() -> Any:
    """Import and return ``mujoco.mjx``; suppress its printed message about a missing optional engine."""
    with explain_missing_package("tasks on MJX", "mujoco", "mujoco-mjx"), contextlib.redirect_stdout(io.StringIO()):
        import mujoco.mjx
    return mujoco.mjx

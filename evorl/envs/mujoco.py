"""Gym-style tasks on MuJoCo's C engine, in batches and without Gymnasium's classes: ``env=host/hopper``.

The states of all environments are rows of one array. Each thread steps its rows with one ``MjData``, which stays in the
CPU cache. This is as fast as MuJoCo's own ``rollout``, which returns neither the solver's warm start nor the forces and
inertias that some tasks observe.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from evorl.config.values import positive
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.seed_bits import WIDE_SEED_BITS
from evorl.envs.mujoco_catalog import TASKS, load_model, make_task, numbers_of_bodies
from evorl.envs.mujoco_frames import BodyRenderer
from evorl.envs.mujoco_task import Physics, Task, Terms
from evorl.envs.space import Box
from evorl.ops.platform import available_cores

ENV_NAMES = tuple(TASKS)
_ROWS_PER_THREAD = 4  # minimum number of rows; with fewer, the overhead cancels the gain of a second thread


class MujocoVectorEnv(HostVectorEnv):
    """Simulates B environments of a task in float64; results are float32. ``info`` has reward terms and ``measures``.

    Given the same seed and actions, an episode equals that of Gymnasium's environment to the last bit of float64.
    Results do not depend on the number of threads.

    Args:
        task: definition of the task.
        num_envs: number of environments B.
        max_episode_steps: number of steps after which an episode is truncated.
        num_threads: number of threads; ``None`` for one per available CPU, but at most one per four environments.

    Raises:
        ValueError: a number is not positive.
        ImportError: MuJoCo, or Gymnasium, which contains the models, is not installed.
    """

    seed_bits = WIDE_SEED_BITS

    def __init__(self, task: Task, num_envs: int, max_episode_steps: int, num_threads: int | None = None) -> None:
        import mujoco as engine

        mujoco: Any = engine  # its names come from compiled modules, which type checkers cannot see
        self._mujoco, self._task = mujoco, task
        self.num_envs = positive(num_envs, "num_envs")
        self.max_episode_steps = self._limit = positive(max_episode_steps, "env.max_episode_steps")
        self._model = model = load_model(task)
        self._bodies = numbers_of_bodies(model)
        # Otherwise unstable simulations restart silently.
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self._dt = model.opt.timestep * task.frame_skip
        parts = mujoco.mjtState
        self._parts = int(parts.mjSTATE_FULLPHYSICS) | int(parts.mjSTATE_WARMSTART)
        num_threads = self._num_threads(num_threads)
        self._data = [mujoco.MjData(model) for _ in range(num_threads)]
        self._blocks = [block.tolist() for block in np.array_split(np.arange(self.num_envs), num_threads)]
        self._pool = ThreadPoolExecutor(num_threads, "mujoco") if num_threads > 1 else None
        self._states = np.zeros((self.num_envs, mujoco.mj_stateSize(model, self._parts)))  # time, qpos, qvel, ...
        self._derived = {name: np.zeros((self.num_envs, *getattr(self._data[0], name).shape)) for name in task.derived}
        self._position = task.position(self._physics()).copy()
        self._elapsed = np.full(self.num_envs, -1, np.int64)  # -1 before the first reset
        self._renderer: Any = None
        low, high = model.actuator_ctrlrange.T
        self.action_space = Box(low, high)
        self.obs_space = Box(-math.inf, math.inf, (task.observe(self._physics()).shape[1],))
        nothing = np.zeros((self.num_envs, model.nu))
        rewards, measures = self._outcome(self._physics(), self._position, nothing, np.ones(self.num_envs, np.bool_))
        self.info_spec = dict.fromkeys([*rewards, *measures], ((), np.float32))

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.partial_reset(np.ones(self.num_envs, np.bool_), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        data, model = self._data[0], self._model
        for row in np.flatnonzero(mask).tolist():
            self._mujoco.mj_resetData(model, data)
            start = self._task.start(np.random.default_rng(int(seeds[row])), data.qpos.copy(), data.qvel.copy())
            data.qpos[:], data.qvel[:] = start
            self._mujoco.mj_forward(model, data)
            self._store(row, data)
        physics = self._physics()
        self._position = np.where(mask[:, None], self._task.position(physics), self._position)
        self._elapsed[mask] = 0
        return self._task.observe(physics).astype(np.float32)

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step all environments; see ``HostVectorEnv.step``.

        Raises:
            HostEnvError: a simulation has become unstable, or was never reset.
            ValueError: the actions have the wrong shape.
        """
        actions = np.asarray(actions, np.float64)
        if actions.shape != (self.num_envs, self._model.nu):
            raise ValueError(f"step expects actions [{self.num_envs}, {self._model.nu}], got {list(actions.shape)}.")
        if (self._elapsed < 0).any():
            raise HostEnvError(f"{type(self._task).__name__} was stepped before its first reset: call reset first.")
        run = map if self._pool is None else self._pool.map
        for _ in run(self._advance_rows, self._blocks, self._data, [actions] * len(self._blocks)):
            pass  # re-raises exceptions of the threads
        self._elapsed += 1
        if not np.isfinite(self._states).all():
            row = np.flatnonzero(~np.all(np.isfinite(self._states), axis=1))[0]
            raise HostEnvError(
                f"The simulation of {type(self._task).__name__} in environment {row} became unstable at step "
                f"{self._elapsed[row]} of its episode: some positions or velocities are not finite."
            )
        before, physics = self._position, self._physics()
        self._position = self._task.position(physics).copy()
        healthy = self._task.healthy(physics)
        rewards, measures = self._outcome(physics, before, actions, healthy)
        info = {name: value.astype(np.float32) for name, value in (rewards | measures).items()}
        obs, reward = self._task.observe(physics), functools.reduce(np.add, rewards.values())
        truncation = self._elapsed >= self._limit
        return obs.astype(np.float32), reward.astype(np.float32), self._task.ends(healthy), truncation, info

    def get_state(self) -> np.ndarray:
        """Return the complete state, uint8 ``[B, N]``; results after ``set_state`` are bitwise reproducible."""
        parts = [self._states, self._position, self._elapsed[:, None].astype(np.float64)]
        return np.concatenate(parts, axis=1).view(np.uint8)

    def set_state(self, state: np.ndarray) -> None:
        """Restore a result of ``get_state``. Raises ``ValueError`` for a state of another task or batch size."""
        expected = (self.num_envs, self.get_state().shape[1])
        if state.shape != expected or state.dtype != np.uint8:
            raise ValueError(
                f"set_state expects the result of get_state for {self.num_envs} environments of "
                f"{type(self._task).__name__}, uint8 {list(expected)}; got {state.dtype} {list(state.shape)}."
            )
        values = np.ascontiguousarray(state).view(np.float64)
        ends = np.cumsum([self._states.shape[1], self._position.shape[1]])
        self._states[:], position, elapsed = np.split(values, ends, axis=1)
        self._position, self._elapsed = position.copy(), elapsed[:, 0].astype(np.int64)

    def render(self) -> np.ndarray:
        """Return an image of the first environment, uint8 ``[480, 480, 3]``; raise ``HostEnvError`` on failure."""
        data, model = self._data[0], self._model
        if self._renderer is None:
            self._renderer = BodyRenderer(model)
        self._mujoco.mj_setState(model, data, self._states[0], self._parts)
        self._mujoco.mj_forward(model, data)
        return self._renderer.frame(data)

    def physics(self) -> dict[str, np.ndarray]:
        physics = self._physics()
        return {"qpos": physics.qpos, "qvel": physics.qvel}

    @property
    def mujoco_model(self) -> Any:
        return self._model

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._renderer is not None:
            self._renderer.close()

    def _num_threads(self, requested: int | None) -> int:
        if requested is not None:
            return min(positive(requested, "env.num_threads"), self.num_envs)
        return max(1, min(available_cores(), self.num_envs // _ROWS_PER_THREAD))

    def _advance_rows(self, rows: list[int], data: Any, actions: np.ndarray) -> None:
        """Step the environments ``rows`` one after another, with all substeps; MuJoCo releases the GIL in each step."""
        mujoco, model, frame_skip = self._mujoco, self._model, self._task.frame_skip
        needs_contact_forces = "cfrc_ext" in self._derived
        for row in rows:
            mujoco.mj_setState(model, data, self._states[row], self._parts)
            data.ctrl[:] = actions[row]
            mujoco.mj_step(model, data, frame_skip)
            if needs_contact_forces:
                mujoco.mj_rnePostConstraint(model, data)
            self._store(row, data)

    def _store(self, row: int, data: Any) -> None:
        self._mujoco.mj_getState(self._model, data, self._states[row], self._parts)
        for name, values in self._derived.items():
            values[row] = getattr(data, name)

    def _physics(self) -> Physics:
        nq, nv = self._model.nq, self._model.nv
        qpos, qvel = self._states[:, 1 : 1 + nq], self._states[:, 1 + nq : 1 + nq + nv]
        return Physics(self._model, qpos, qvel, self._derived, self._bodies)

    def _outcome(
        self, physics: Physics, before: np.ndarray, actions: np.ndarray, healthy: np.ndarray
    ) -> tuple[Terms, Terms]:
        """Return the reward terms and the measures of a step from the positions ``before`` ``[B, k]``."""
        velocity = (self._position - before) / self._dt
        return self._task.reward_terms(physics, velocity, actions, healthy), self._task.measures(physics, velocity)


def make_mujoco_simulators(
    name: str, num_envs: int, *, max_episode_steps: int | None = None, num_threads: int | None = None, **options: Any
) -> MujocoVectorEnv:
    """Create simulators of a task.

    Args:
        name: name of the task, one of ``ENV_NAMES``.
        num_envs: number of simulators.
        max_episode_steps: time limit in steps; ``None`` for the task's default.
        num_threads: number of threads; ``None`` for one per available CPU, but at most one per four environments.
        **options: fields of the task's class; they have the names of the arguments of Gymnasium's environment.

    Raises:
        ValueError: the task or an option is unknown, or a value has the wrong type.
        ImportError: MuJoCo or Gymnasium, which contains the models, is not installed.
    """
    task = make_task("host", name, options, ENV_NAMES, ())
    limit = task.max_episode_steps if max_episode_steps is None else max_episode_steps
    return MujocoVectorEnv(task, num_envs, limit, num_threads)

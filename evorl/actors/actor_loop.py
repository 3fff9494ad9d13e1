"""Training iterations with rollouts from actors: synchronous, or asynchronous in order of arrival."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.actors.actor_settings import ActorSettings
from evorl.actors.host_loop import stacked_rows
from evorl.actors.pools import make_pool
from evorl.actors.supervisor import Supervisor
from evorl.actors.worker import Worker, acting_template, leaves_of, tree_of
from evorl.execution.collector import PROGRAM, begin_acting, end_episodes
from evorl.runs.spec import RunSpec
from evorl.sample_batch import SampleBatch
from evorl.types import ByValue, PyTreeDict, State


class Actors(ByValue):
    """``Collector`` with the actors of one training run, which start on first use.

    Args:
        settings: number and kind of actors, and how the learner waits for them.
        spec: settings of a workflow with the environments of one actor.
    """

    def __init__(self, settings: ActorSettings, spec: RunSpec) -> None:
        self.settings, self._spec = settings, spec
        self._supervisor: Supervisor | None = None
        self._templates: Any = None
        self._requested_at: dict[int, int] = {}  # number of updates at the time of the request, by actor
        self._num_updates = 0

    is_one_program = False

    def check(self, workflow: Any) -> None:
        """Raise ``ValueError`` if a workflow does not support these actors."""
        name = type(workflow).__name__
        if not workflow.capabilities.rollouts:
            raise ValueError(f"{name} does not collect rollouts in a way that actors support: remove actors.")
        if workflow.execution.num_seeds is not None:
            seeds = workflow.execution.num_seeds
            raise ValueError(f"actors do not support num_seeds={seeds}: remove it, or sweep seeds (-m seed=0,1,2).")
        env, count = workflow.env, self.settings.count
        if getattr(env, "host", None) == "compiled":
            raise ValueError(
                "actors do not support env.host=compiled, because all actors would play the same episodes: use "
                "env.host=loop, or remove actors."
            )
        if self.settings.kind == "process" and self._spec.env.get("vectorization") == "async":
            raise ValueError(
                "env.vectorization=async starts more processes, which would outlive an actor that is killed: set "
                "env.vectorization=in_process, and a larger actors.count for more processes."
            )
        if not self.settings.is_async:
            if env.num_envs % (multiple := count * env.num_agents):
                raise ValueError(
                    f"num_envs={env.num_envs} must be a multiple of {multiple}: actors.count={count} times the number "
                    f"of agents in a copy of the environment, {env.num_agents}."
                )
            return
        if not workflow.capabilities.lag:
            raise ValueError(
                f"actors.mode=async collects with policies that are up to {self.settings.max_lag} updates old, and "
                f"{name} does not correct for that: use actors.mode=sync, IMPALA or an off-policy algorithm."
            )
        if not workflow.capabilities.single_steps:
            raise ValueError(
                f"{name} learns from consecutive steps, but rollouts of different actors are not consecutive: use "
                "actors.mode=sync, or remove the settings that need consecutive steps (n_step, reward_bound, "
                "replay.hindsight, replay.overwrite=random, normalize_rewards, random_first_step, intrinsic=e3b)."
            )

    def iterate(
        self, workflow: Any, state: State, num_iterations: int, message: Callable[[str], None]
    ) -> tuple[PyTreeDict, State]:
        """Run N = ``num_iterations`` iterations; return ``(metrics [N, ...], state)``. The state is donated.

        Raises:
            HostEnvError: an actor failed, or died repeatedly, see ``Supervisor.take``.
        """
        supervisor = self._started(workflow, message)
        iterate_once = self._next_slice if self.settings.is_async else self._whole_rollout
        rows = []
        for _ in range(num_iterations):
            metrics, state = iterate_once(workflow, state, supervisor)
            rows.append(metrics)
        return stacked_rows(rows), state

    def evaluate(self, workflow: Any, state: State) -> PyTreeDict:
        """Evaluate in a compiled program of this process, and return the metrics."""
        return PROGRAM.evaluate(workflow, state)

    def _started(self, workflow: Any, message: Callable[[str], None]) -> Supervisor:
        if self._supervisor is None:
            pool = make_pool(self.settings.kind, Worker, lambda number: self._spec)
            self._supervisor = Supervisor(pool, self.settings.count, self.settings.timeout, message)
            self._templates = acting_template(workflow)
            workflow.env.close()  # only needed for setup: the actors run the simulators afterwards
        self._supervisor.message = message
        return self._supervisor

    def _whole_rollout(self, workflow: Any, state: State, actors: Supervisor) -> tuple[PyTreeDict, State]:
        """Run one iteration with all actors, each with part of the environments; results equal a run in one process."""
        acting, state = begin_acting(workflow, state)
        acting_leaves, count = leaves_of(acting), self.settings.count
        rows = leaves_of(state.env_state)
        size = len(rows[0]) // count
        for i in range(count):
            actors.submit(i, (acting_leaves, [x[i * size : (i + 1) * size] for x in rows], None))
        parts: dict[int, Any] = {}
        while len(parts) < count:
            number, content = actors.take([i for i in range(count) if i not in parts])
            parts[number] = content
        trajectories, env_states, restarts = zip(*(parts[i] for i in range(count)), strict=True)
        trajectory = [np.concatenate(x, axis=1) for x in zip(*trajectories, strict=True)]
        env_state = [np.concatenate(x, axis=0) for x in zip(*env_states, strict=True)]
        _, env_template, trajectory_template = self._templates
        state = state.replace(env_state=tree_of(env_state, env_template))
        if any(restarts):
            state = end_episodes(state, np.repeat(restarts, size))
        return _learn(workflow, state, tree_of(trajectory, trajectory_template))

    def _next_slice(self, workflow: Any, state: State, actors: Supervisor) -> tuple[PyTreeDict, State]:
        """Request rollouts from idle actors; learn from the first result that lets all others meet ``max_lag``."""
        idle = [i for i in range(self.settings.count) if i not in actors.busy]
        for i in idle:
            acting, state = begin_acting(workflow, state)
            start_key = jax.random.key_data(jax.random.fold_in(acting.key, i))
            actors.submit(i, (leaves_of(acting), None, np.asarray(start_key)))
            self._requested_at[i] = self._num_updates
        candidates = [i for i in self._requested_at if self._leaves_time_for_others(i)]
        number, (leaves, *_) = actors.take(candidates)
        lag = self._num_updates - self._requested_at.pop(number)
        metrics, state = _learn(workflow, state, tree_of(leaves, self._templates[2]))
        self._num_updates += 1
        return metrics | {"policy_lag": jnp.asarray(lag, jnp.float32)}, state

    def _leaves_time_for_others(self, number: int) -> bool:
        """Return True if all other actors' rollouts, oldest first, can meet ``max_lag`` after that of ``number``."""
        others = sorted(at for i, at in self._requested_at.items() if i != number)
        return all(self._num_updates + 1 + i <= at + self.settings.max_lag for i, at in enumerate(others))

    def stop_when(self, should_stop: Callable[[], bool]) -> None:
        """Ignore the function: actors that do not answer in time are replaced, see ``Supervisor``."""

    def close(self) -> None:
        """Stop the actors."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None


@functools.partial(jax.jit, donate_argnames="state")
def _learn(workflow: Any, state: State, trajectory: SampleBatch) -> tuple[PyTreeDict, State]:
    return workflow.pure_step(state, trajectory)

"""Iterations whose rollouts come from actors: all of one policy, or of whoever is ready first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.actors.actor_settings import ActorSettings
from evorl.actors.host_loop import stacked_rows
from evorl.actors.pool import make_pool
from evorl.actors.supervisor import Supervisor
from evorl.actors.worker import acting_template, leaves_of, tree_of
from evorl.execution.collector import PROGRAM
from evorl.ops.trees import copied
from evorl.sample_batch import SampleBatch
from evorl.types import ByValue, PyTreeDict, State

_WORKER = "evorl.actors.worker:Worker"


class Actors(ByValue):
    """Collects by actors, see ``Collector``; they start when they are first needed.

    Args:
        settings: how many, where, and how they are waited for.
        config: of the workflow of one actor.
    """

    def __init__(self, settings: ActorSettings, config: Mapping[str, Any]) -> None:
        self.settings, self._config = settings, dict(config)
        self._supervisor: Supervisor | None = None
        self._templates: Any = None
        self._asked_at: dict[int, int] = {}  # updates there had been, by actor
        self._num_updates = 0

    is_one_program = False

    def check(self, workflow: Any) -> None:
        """Raises ``ValueError`` where a workflow cannot learn from such actors, in words."""
        name = type(workflow).__name__
        if not workflow.collects_as_its_family:
            raise ValueError(f"{name} does not collect rollouts that actors could: leave actors out.")
        if workflow.execution.num_seeds is not None:
            raise ValueError("actors collect for one seed: leave num_seeds out, or run a sweep of seeds.")
        if not self.settings.is_async:
            return
        if not workflow.corrects_lag:
            raise ValueError(
                f"actors.mode=async collects by policies that are up to {self.settings.max_lag} updates old, and "
                f"{name} does not correct for that: take mode=sync, or agent=impala, or an off-policy agent."
            )
        if not workflow.learns_from_single_steps:
            raise ValueError(
                f"{name} learns from several steps in a row, which slices of several actors are not: take "
                "actors.mode=sync, or leave out what needs them (n_step, replay.hindsight, replay.overwrite=random, "
                "normalize_rewards)."
            )

    def iterate(
        self, workflow: Any, state: State, num_iterations: int, message: Callable[[str], None]
    ) -> tuple[PyTreeDict, State]:
        """``(metrics [N, ...], state)`` after so many iterations; the state is donated.

        Raises:
            HostEnvError: an actor failed.
        """
        supervisor = self._started(workflow, message)
        one = self._next_slice if self.settings.is_async else self._whole_rollout
        rows = []
        for _ in range(num_iterations):
            metrics, state = one(workflow, state, supervisor)
            rows.append(metrics)
        return stacked_rows(rows), state

    def evaluate(self, workflow: Any, state: State) -> PyTreeDict:
        """Evaluate in this process."""
        return PROGRAM.evaluate(workflow, state)

    def _started(self, workflow: Any, message: Callable[[str], None]) -> Supervisor:
        if self._supervisor is None:
            pool = make_pool(self.settings.kind, _WORKER, lambda number: self._config)
            self._supervisor = Supervisor(pool, self.settings.count, self.settings.timeout, message)
            self._templates = acting_template(workflow)
            workflow.env.close()  # the set-up needed them; from now on the actors have simulators
        self._supervisor.message = message
        return self._supervisor

    def _whole_rollout(self, workflow: Any, state: State, actors: Supervisor) -> tuple[PyTreeDict, State]:
        """Every actor has its share of the environments: the numbers are those of one process."""
        acting, state = _begin(workflow, state)
        how, count = leaves_of(acting), self.settings.count
        rows = leaves_of(state.env_state)
        size = len(rows[0]) // count
        for i in range(count):
            actors.submit(i, (how, [x[i * size : (i + 1) * size] for x in rows], None))
        parts: dict[int, Any] = {}
        while len(parts) < count:
            number, content = actors.take([i for i in range(count) if i not in parts])
            parts[number] = content
        trajectories, env_states = zip(*(parts[i] for i in range(count)), strict=True)
        trajectory = [np.concatenate(x, axis=1) for x in zip(*trajectories, strict=True)]
        env_state = [np.concatenate(x, axis=0) for x in zip(*env_states, strict=True)]
        _, env_template, trajectory_template = self._templates
        state = state.replace(env_state=tree_of(env_state, env_template))
        return _learn(workflow, state, tree_of(trajectory, trajectory_template))

    def _next_slice(self, workflow: Any, state: State, actors: Supervisor) -> tuple[PyTreeDict, State]:
        """The rollout of the actor that is ready first; no rollout is older than ``max_lag`` updates."""
        idle = [i for i in range(self.settings.count) if i not in actors.busy]
        for i in idle:
            acting, state = _begin(workflow, state)
            start_key = jax.random.key_data(jax.random.fold_in(acting.key, i))
            actors.submit(i, (leaves_of(acting), None, np.asarray(start_key)))
            self._asked_at[i] = self._num_updates
        wanted = [i for i in self._asked_at if self._leaves_time_for_others(i)]
        number, (leaves, _) = actors.take(wanted)
        lag = self._num_updates - self._asked_at.pop(number)
        metrics, state = _learn(workflow, state, tree_of(leaves, self._templates[2]))
        self._num_updates += 1
        return metrics | {"policy_lag": jnp.asarray(lag, jnp.float32)}, state

    def _leaves_time_for_others(self, number: int) -> bool:
        """Whether all other rollouts can still be learned from before they are too old, if this one is next."""
        others = sorted(at for i, at in self._asked_at.items() if i != number)
        return all(self._num_updates + 1 + i <= at + self.settings.max_lag for i, at in enumerate(others))

    def close(self) -> None:
        """End the actors."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None


@functools.partial(jax.jit, donate_argnames="state")
def _begin(workflow: Any, state: State) -> tuple[Any, State]:
    acting, state = workflow.acting(state)
    # The learner's next update donates what the actors are told: they get copies.
    return copied(acting), state


@functools.partial(jax.jit, donate_argnames="state")
def _learn(workflow: Any, state: State, trajectory: SampleBatch) -> tuple[PyTreeDict, State]:
    return workflow.learn_once(state, trajectory)

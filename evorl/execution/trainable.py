"""Interfaces between workflows and their execution: pure functions, layout over devices, and collectors.

``evorl.workflows.workflow.Workflow`` implements ``Trainable``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import jax
from jax.sharding import AxisType, Mesh

from evorl.envs.vector import VectorEnv
from evorl.ops.collectives import DATA_AXIS
from evorl.runs.recorder import Chart
from evorl.types import Key, PyTreeDict, State

SEED_AXIS = "seeds"


class Collector(Protocol):
    """Steps the environments of a workflow, in this process or elsewhere.

    There are four: a compiled program (``ProgramCollector``), a loop on the host that steps simulators (``HostLoop``),
    actors in processes or on a Ray cluster (``Actors``), and a server for remote simulators (``TrainingServer``).
    """

    @property
    def is_one_program(self) -> bool:
        """True if an iteration is a single compiled program without work on the host."""
        ...

    def check(self, workflow: Any) -> None:
        """Raise ``ValueError`` if the workflow cannot learn from the data of this collector."""

    def iterate(
        self, workflow: Any, state: State, num_iterations: int, message: Callable[..., None]
    ) -> tuple[PyTreeDict | None, State]:
        """Run iterations.

        Args:
            workflow: workflow to train.
            state: state of the workflow; donated.
            num_iterations: number of iterations, at most ``programs.MAX_FOLD``.
            message: called with a message and optionally a key; only the first message of a key is shown, see
                ``KeyedMessages``.

        Returns:
            Metrics, with N valid rows at the start, and the state after N iterations. N is ``num_iterations``, or the
            number of rows if that is smaller because a stop was requested; metrics are ``None`` for N = 0.
        """
        ...

    def evaluate(self, workflow: Any, state: State) -> PyTreeDict:
        """Return the metrics of an evaluation, see ``Workflow.evaluate``."""
        ...

    def stop_when(self, should_stop: Callable[[], bool]) -> None:
        """Set a function to poll while the collector waits for clients; if it returns True, ``iterate`` ends early.

        Collectors without clients ignore the function.
        """

    def close(self) -> None:
        """Stop the processes, threads and servers of the collector."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """Execution plan of a workflow's step; hashable, as static fields of pytrees must be.

    Attributes:
        num_seeds: number of seeds that run in parallel in one program; ``None`` for one seed without a seed axis.
        num_devices: size of the device mesh.
        axis: axis that the mesh shards: ``SEED_AXIS``, ``DATA_AXIS`` or ``MEMBER_AXIS`` (see ``ops.collectives``);
            ``None`` on one device.
        in_order: run an iteration's operations sequentially on a CPU, because they are too small for several threads.
        collector: ``Actors`` or ``TrainingServer``; ``None`` for the collector that the workflow chooses itself.
    """

    num_seeds: int | None = None
    num_devices: int = 1
    axis: str | None = None
    in_order: bool = False
    collector: Collector | None = None

    @functools.cached_property
    def mesh(self) -> Mesh:
        """Mesh of ``num_devices`` devices: the first ``num_devices / P`` devices of each of the P processes."""
        return _mesh(self.num_devices, self.axis or DATA_AXIS)


@functools.lru_cache
def _mesh(num_devices: int, axis: str) -> Mesh:
    share = num_devices // jax.process_count()
    devices = [device for i in range(jax.process_count()) for device in jax.local_devices(process_index=i)[:share]]
    return jax.make_mesh((num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=devices)


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """Kinds of data that a workflow can learn from, each True if supported.

    Attributes:
        rollouts: rollouts of fixed length, collected with the workflow's ``acting`` by any collector.
        lag: data from a policy that is a few updates old.
        single_steps: rollouts that do not continue the previous rollouts of the same environments.
    """

    rollouts: bool = False
    lag: bool = False
    single_steps: bool = True


class Trainable(Protocol):
    """Interface of workflows for their execution; ``Workflow`` documents the attributes and methods in detail."""

    optional_metrics: ClassVar[tuple[str, ...]]
    latest_metrics: ClassVar[tuple[str, ...]]
    rows_stand_alone: ClassVar[bool]

    @property
    def env(self) -> VectorEnv:
        """Training environments."""
        ...

    @property
    def execution(self) -> Execution:
        """Execution plan: seeds and devices."""
        ...

    @property
    def eval_episodes(self) -> int:
        """Number of complete episodes per evaluation."""
        ...

    @property
    def total_timesteps(self) -> float:
        """Environment steps of the whole training run, per seed."""
        ...

    @property
    def log_interval(self) -> float:
        """Environment steps between two rows of metrics, per seed; 0 writes rows only at evaluations and at the end."""
        ...

    @property
    def eval_interval(self) -> float:
        """Environment steps between evaluations, per seed; 0 disables evaluations."""
        ...

    @property
    def checkpoint_interval(self) -> float:
        """Environment steps between checkpoints, per seed; 0 saves only new best states and the last state."""
        ...

    @property
    def timesteps_per_iteration(self) -> int:
        """Environment steps per iteration and seed; 0 if the number varies."""
        ...

    def starts(self, key: Key) -> Any:
        """Return the argument of ``setup`` for every seed, with a leading axis S if there are several."""
        ...

    def setup(self, key: Key) -> State:
        """Return the initial state of one seed. A pure function."""
        ...

    def pure_step(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Run one iteration of one seed; return metrics and the new state. A pure function."""
        ...

    def evaluation(self, state: Any) -> PyTreeDict:
        """Return the metrics of an evaluation of one seed. A pure function."""
        ...

    def charts(self, state: Any) -> Mapping[str, Chart]:
        """Return charts of the state at the end of a run, by name."""
        ...

    def init(self, key: Key | int = 0) -> State:
        """Return the initial state, from a compiled program."""
        ...

    def evaluate(self, state: Any) -> PyTreeDict:
        """Return the metrics of an evaluation of every seed, from a compiled program."""
        ...

    @property
    def collector(self) -> Collector:
        """Collector that steps the environments and runs iterations."""
        ...


W = TypeVar("W", bound=Any)


def collected_by(workflow: W, collector: Collector | None) -> W:
    """Return the workflow with ``execution.collector`` set to ``collector``, see ``Execution``."""
    return workflow.replace(execution=dataclasses.replace(workflow.execution, collector=collector))


def most_timesteps(workflow: Any) -> int:
    """Return the largest number of environment steps per iteration and seed."""
    return workflow.timesteps_per_iteration or workflow.max_timesteps_per_iteration


def loss_names(workflow: Any) -> tuple[str, ...]:
    """Return the names of metrics that are means over updates, in this workflow or in its learner or member."""
    trained = getattr(workflow, "inner", getattr(workflow, "learner", None))
    return loss_names(trained) if trained is not None else getattr(workflow, "loss_names", ())

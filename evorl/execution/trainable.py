"""Interface of workflows for execution: their pure functions, and the layout over devices.

``evorl.workflows.workflow.Workflow`` implements it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import jax
from jax.sharding import AxisType, Mesh

from evorl.envs.vector import VectorEnv
from evorl.ops.collectives import DATA_AXIS
from evorl.runs.recorder import Chart
from evorl.types import Key, PyTreeDict, State

SEED_AXIS = "seeds"


@dataclasses.dataclass(frozen=True)
class Execution:
    """Execution plan of a workflow's step; static and comparable.

    Attributes:
        num_seeds: number of seeds that run in parallel in one program; ``None`` for one seed without a seed axis.
        num_devices: size of the device mesh.
        axis: axis that the mesh shards: ``SEED_AXIS``, ``DATA_AXIS`` or ``MEMBER_AXIS`` (see ``ops.collectives``);
            ``None`` on one device.
        in_order: run an iteration's operations sequentially on a CPU, because they are too small for other threads.
    """

    num_seeds: int | None = None
    num_devices: int = 1
    axis: str | None = None
    in_order: bool = False

    @functools.cached_property
    def mesh(self) -> Mesh:
        """Mesh of the first ``num_devices`` devices, with the same number from each process."""
        return _mesh(self.num_devices, self.axis or DATA_AXIS)


@functools.lru_cache
def _mesh(num_devices: int, axis: str) -> Mesh:
    share = num_devices // jax.process_count()
    devices = [device for i in range(jax.process_count()) for device in jax.local_devices(process_index=i)[:share]]
    return jax.make_mesh((num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=devices)


class Trainable(Protocol):
    """Pure ``setup``, ``pure_step`` and ``evaluation``, and the plan of a run. See ``Workflow`` for their semantics."""

    sharded_axes: ClassVar[Mapping[str, int]]
    optional_metrics: ClassVar[tuple[str, ...]]
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
        """Environment steps between two rows of metrics."""
        ...

    @property
    def eval_interval(self) -> float:
        """Environment steps between evaluations; 0 disables them."""
        ...

    @property
    def checkpoint_interval(self) -> float:
        """Environment steps between checkpoints; 0 saves only the last state."""
        ...

    @property
    def timesteps_per_iteration(self) -> int:
        """Environment steps per iteration; 0 if iterations differ."""
        ...

    @property
    def max_timesteps_per_iteration(self) -> int:
        """Largest number of environment steps per iteration."""
        ...

    def starts(self, key: Key) -> Any:
        """Return the argument of ``setup`` for every seed."""
        ...

    def setup(self, key: Key) -> State:
        """Return the initial state of one seed; pure."""
        ...

    def pure_step(self, state: State) -> tuple[PyTreeDict, State]:
        """Run one iteration of one seed; pure."""
        ...

    def evaluation(self, state: State) -> PyTreeDict:
        """Evaluate one seed; pure."""
        ...

    def charts(self, state: State) -> Mapping[str, Chart]:
        """Return charts that describe the end of a run."""
        ...

    def init(self, key: Key | int = 0) -> State:
        """Return the initial state, from a compiled program."""
        ...

    def evaluate(self, state: State) -> PyTreeDict:
        """Evaluate, with a compiled program."""
        ...

    @property
    def collector(self) -> Any:
        """Steps the environments, see ``evorl.execution.collector.Collector``."""
        ...

    def iterate(
        self, state: State, num_iterations: int, message: Callable[..., None]
    ) -> tuple[PyTreeDict | None, State]:
        """Run iterations: metrics ``[N, ...]``, ``None`` for none, and the state, which is donated."""
        ...

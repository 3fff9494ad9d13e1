"""What the execution of a training needs of a workflow: its pure functions, and how they are laid out over devices.

``evorl.workflows.workflow.Workflow`` is such a one.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import jax
from jax.sharding import AxisType, Mesh

from evorl.envs.vector import VectorEnv
from evorl.ops.collectives import DATA_AXIS
from evorl.runs.recording import Chart
from evorl.types import Key, PyTreeDict, State

SEED_AXIS = "seeds"


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a workflow's step is run; a static, comparable description.

    Attributes:
        num_seeds: how many seeds run side by side in one program; ``None`` for one seed without an axis for it.
        num_devices: size of the device mesh.
        axis: what the mesh shares out: ``SEED_AXIS``, or ``DATA_AXIS`` or ``MEMBER_AXIS`` (see ``ops.collectives``);
            ``None`` on one device.
        in_order: whether a CPU does an iteration's operations one after another, because they are too small to be worth
            handing to other threads.
    """

    num_seeds: int | None = None
    num_devices: int = 1
    axis: str | None = None
    in_order: bool = False

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh of the first ``num_devices`` devices, of several processes as many of each."""
        return _mesh(self.num_devices, self.axis or DATA_AXIS)


@functools.lru_cache
def _mesh(num_devices: int, axis: str) -> Mesh:
    share = num_devices // jax.process_count()
    devices = [device for i in range(jax.process_count()) for device in jax.local_devices(process_index=i)[:share]]
    return jax.make_mesh((num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=devices)


class Trainable(Protocol):
    """Pure ``setup``, ``pure_step`` and ``evaluation``, and the plan of a run. See ``Workflow`` for what they mean."""

    sharded_axes: ClassVar[Mapping[str, int]]
    optional_metrics: ClassVar[tuple[str, ...]]
    rows_stand_alone: ClassVar[bool]

    @property
    def env(self) -> VectorEnv:
        """The training environments."""
        ...

    @property
    def execution(self) -> Execution:
        """Seeds and devices."""
        ...

    @property
    def eval_episodes(self) -> int:
        """Complete episodes in one evaluation."""
        ...

    @property
    def total_timesteps(self) -> float:
        """Environment steps of the whole training, for each seed."""
        ...

    @property
    def log_interval(self) -> float:
        """Environment steps between two rows of metrics."""
        ...

    @property
    def eval_interval(self) -> float:
        """Environment steps between evaluations; 0 for none."""
        ...

    @property
    def checkpoint_interval(self) -> float:
        """Environment steps between checkpoints; 0 for the last one only."""
        ...

    @property
    def timesteps_per_iteration(self) -> int:
        """Environment steps of an iteration; 0 where they differ."""
        ...

    @property
    def most_timesteps_per_iteration(self) -> int:
        """What they are at most."""
        ...

    def starts(self, key: Key) -> Any:
        """What the set-up of every seed starts from."""
        ...

    def setup(self, key: Key) -> State:
        """The first state of one seed; pure."""
        ...

    def pure_step(self, state: State) -> tuple[PyTreeDict, State]:
        """One iteration of one seed; pure."""
        ...

    def evaluation(self, state: State) -> PyTreeDict:
        """The evaluation of one seed; pure."""
        ...

    def charts(self, state: State) -> Mapping[str, Chart]:
        """What describes the end of a run."""
        ...

    def init(self, key: Key | int = 0) -> State:
        """The first state, compiled."""
        ...

    def evaluate(self, state: State) -> PyTreeDict:
        """The evaluation, compiled."""
        ...

    @property
    def is_one_program(self) -> bool:
        """Whether an iteration is a single compiled program."""
        ...

    def iterate(
        self, state: State, num_iterations: int, message: Callable[..., None]
    ) -> tuple[PyTreeDict | None, State]:
        """So many iterations: metrics ``[N, ...]``, ``None`` for none, and the state, which is donated."""
        ...

    def with_new_episodes(self, state: State) -> State:
        """The state itself, or with new episodes if its simulators are elsewhere."""
        ...

    def compile_ahead(self, key: Key | int = 0) -> threading.Thread:
        """Compile the training in the background."""
        ...

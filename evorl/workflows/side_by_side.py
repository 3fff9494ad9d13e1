"""Trainings with other numbers, and other seeds, side by side in one program: the rows of a sweep.

Numbers of a workflow are leaves of its tree, so trainings that differ in numbers alone are one program under ``vmap``,
as seeds are. What shapes a computation makes another program.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import no_such
from evorl.config.search_space import range_of_number
from evorl.config.values import checked_value
from evorl.execution.env_faults import watched_step
from evorl.execution.plan import plan_execution
from evorl.execution.trainable import SEED_AXIS
from evorl.ops.random import keys_of_seeds
from evorl.ops.trees import named_leaves, with_leaves
from evorl.types import Key, PyTreeData, PyTreeDict, State, pytree_field
from evorl.workflows.workflow import Workflow

# Numbers that the loop around the program reads: trainings that differ in them are not side by side.
OF_THE_LOOP = ("total_timesteps", "log_interval", "eval_interval", "checkpoint_interval")


class RowStart(PyTreeData):
    """What the set-up of a row starts from.

    Attributes:
        key: of its seed.
        numbers: its values of the numbers in which rows differ, ``[D]``.
    """

    key: Key
    numbers: jax.Array


class SideBySideWorkflow(Workflow):
    """Rows of trainings, each the solo run of its seed with its numbers; what is one row's reaches no other.

    Rows take the place of seeds: states and metrics have a leading axis of them. A row that diverges goes on as it is,
    with metrics that are not finite, and the others with it.

    Attributes:
        inner: what every row is, but for its numbers.
        paths: the numbers in which rows differ, by dotted paths in ``inner``.
        numbers: their values, ``[N, D]``.
        seeds: of each row, from the seed of the run on, int32 ``[N]``.
    """

    inner: Workflow = pytree_field(kw_only=True)
    paths: tuple[str, ...] = pytree_field(static=True, kw_only=True)
    numbers: jax.Array = pytree_field(kw_only=True)
    seeds: jax.Array = pytree_field(kw_only=True)

    rows_stand_alone: ClassVar[bool] = True
    sharded_axes: ClassVar[Mapping[str, int]] = {}  # whole rows are shared out

    @classmethod
    def of(
        cls,
        inner: Workflow,
        paths: Sequence[str],
        numbers: Any,
        seeds: Any,
        devices: str | int = "auto",
    ) -> Self:
        """Rows of a workflow.

        Args:
            inner: built for one seed and one device.
            paths: see the class, as ``numbers`` and ``seeds``.
            numbers: ``[N, D]``.
            seeds: ``[N]``.
            devices: that share the rows, if these are a multiple of them; a number, or ``"auto"``.

        Raises:
            ValueError: the workflow is not one compiled program, or has no such number.
        """
        leaves = named_leaves(inner)
        for path in paths:
            if path not in leaves:
                raise ValueError(no_such("number", path, leaves))
        if inner.env.steps_on_host or not inner.is_one_program:
            raise ValueError(
                "Settings are trained side by side in one compiled program, and the simulators of this environment are "
                "outside of JAX: sweep by -m, one training after another."
            )
        plan = functools.partial(
            plan_execution,
            inner.env,
            num_seeds=len(seeds),
            env_chunk=inner.env_chunk,
            min_bytes=inner.min_bytes_per_device,
            small_updates=inner.has_small_updates,
        )
        execution, _ = plan(devices)
        if execution.axis != SEED_AXIS:  # rows are not a multiple of the devices, or there is one
            execution, _ = plan(1)
        execution = dataclasses.replace(execution, num_seeds=len(seeds))  # an axis of rows, also of a single one
        shared = ("env", "eval_env", "agent", "discount", "eval_episodes", "env_chunk", *OF_THE_LOOP)
        return cls(
            inner=inner,
            paths=tuple(paths),
            numbers=jnp.asarray(numbers, jnp.float32).reshape(len(seeds), len(paths)),
            seeds=jnp.asarray(seeds, jnp.int32),
            execution=execution,
            **{name: getattr(inner, name) for name in shared},
        )

    @property
    def timesteps_per_iteration(self) -> int:
        """Environment steps of each row in an iteration."""
        return self.inner.timesteps_per_iteration

    @property
    def most_timesteps_per_iteration(self) -> int:
        """What they are at most."""
        return self.inner.most_timesteps_per_iteration

    @property
    def evaluation_entries(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of a row, and its numbers."""
        return (*self.inner.evaluation_entries, "numbers")

    def row(self, numbers: jax.Array) -> Workflow:
        """The training with these numbers, ``[D]``."""
        return with_leaves(self.inner, {path: numbers[i] for i, path in enumerate(self.paths)})

    def starts(self, key: Key) -> RowStart:
        """See ``Workflow.starts``."""
        return RowStart(key=keys_of_seeds(key, self.seeds), numbers=self.numbers)

    def setup(self, key: Any) -> State:
        """The first state of a row, from a ``RowStart``."""
        return self.row(key.numbers).setup(key.key) | {"numbers": key.numbers}

    def collect(self, state: State) -> tuple[Any, State]:
        """As a row collects."""
        return self._with_numbers(state, lambda row, rest: row.collect(rest))

    def update(self, state: State, batch: Any) -> tuple[PyTreeDict, State]:
        """As a row learns."""
        return self._with_numbers(state, lambda row, rest: row.update(rest, batch))

    def pure_step(self, state: State) -> tuple[PyTreeDict, State]:
        """As a row steps: some algorithms do it in another way than by ``collect`` and ``update``."""
        return self._with_numbers(state, lambda row, rest: row.pure_step(rest))

    def watched_step(self, state: State) -> tuple[PyTreeDict, State]:
        """Step as a row does, and look for faults of its environments; see ``evorl.execution.env_faults``."""
        return self._with_numbers(state, lambda row, rest: watched_step(row, rest))

    def describe_row(self, number: int) -> str:
        """Return the number of a row with its values and its seed."""
        values = np.asarray(self.numbers)[number]
        named = [f"{path}={value:.6g}" for path, value in zip(self.paths, values, strict=True)]
        return f"row {number} ({', '.join([*named, f'seed + {int(self.seeds[number])}'])})"

    def _with_numbers(self, state: State, method: Any) -> tuple[Any, State]:
        numbers = state.numbers
        result, rest = method(self.row(numbers), State({k: x for k, x in state.items() if k != "numbers"}))
        return result, rest | {"numbers": numbers}

    def evaluation(self, state: State) -> PyTreeDict:
        """As a row is evaluated."""
        return self.row(state.numbers).evaluation(State({k: x for k, x in state.items() if k != "numbers"}))


def numbers_side_by_side(workflow: Workflow, settings: Mapping[str, Any]) -> dict[str, float]:
    """Of these settings those that are numbers of the workflow, in which rows of one program may differ.

    Args:
        workflow: built with any of the values.
        settings: values by their paths in the config.

    Raises:
        ValueError: a number is out of the range that its class declares.
    """
    leaves = named_leaves(workflow)
    return {
        path: checked_value(value, float, path, range_of_number(workflow, path))
        for path, value in settings.items()
        if isinstance(leaves.get(path), float)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and path not in OF_THE_LOOP
    }

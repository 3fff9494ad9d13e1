"""Parallel training runs with different numeric hyperparameters and seeds in one program: the rows of a sweep.

Most float settings of a workflow are leaves of its pytree, so training runs that differ only in them run under one
``vmap``, like seeds. Settings that change shapes or control flow need separate programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.config.names import no_such
from evorl.config.search_space import range_of_number
from evorl.config.values import checked_value
from evorl.execution.env_faults import watched_step
from evorl.execution.plan import plan_execution
from evorl.execution.recorded_steps import with_recorded_steps
from evorl.execution.trainable import SEED_AXIS, most_timesteps
from evorl.ops.random import keys_of_seeds
from evorl.ops.trees import named_leaves, with_leaves
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeData, PyTreeDict, State, pytree_field
from evorl.workflows.workflow import Workflow

# Numbers that the host loop around the program reads; they must be equal in all rows of a program.
OF_THE_LOOP = ("total_timesteps", "log_interval", "eval_interval", "checkpoint_interval")


def with_numbers(workflow: Workflow, values: Mapping[str, Any]) -> Workflow:
    """Return the workflow with numbers replaced by path; ``agent`` stays a copy of its ``learner.agent``, if any."""
    copies = {path.replace("learner.agent.", "agent."): x for path, x in values.items()}
    return with_leaves(workflow, {**copies, **values})


class RowStart(PyTreeData):
    """Input to the setup of one row.

    Attributes:
        key: random key of the row's seed.
        numbers: this row's values of the numbers that differ between rows, ``[D]``.
    """

    key: Key
    numbers: jax.Array


class SideBySideWorkflow(Workflow):
    """Independent training runs in parallel: each row equals the single run with its seed and numbers.

    Rows replace seeds: states and metrics have a leading axis of rows. A row that diverges continues with non-finite
    metrics and does not affect the others.

    Attributes:
        inner: workflow of every row, except for the numbers that differ.
        paths: dotted paths in ``inner`` of the numbers that differ between rows.
        numbers: values of these numbers, ``[N, D]``.
        seeds: offset of each row's seed from the seed of the run, int32 ``[N]``.
    """

    inner: Workflow = pytree_field(kw_only=True)
    paths: tuple[str, ...] = pytree_field(static=True, kw_only=True)
    numbers: jax.Array = pytree_field(kw_only=True)
    seeds: jax.Array = pytree_field(kw_only=True)

    rows_stand_alone: ClassVar[bool] = True
    optional_metrics: ClassVar[Any] = property(lambda self: self.inner.optional_metrics)  # a tuple in other classes
    latest_metrics: ClassVar[Any] = property(lambda self: self.inner.latest_metrics)

    @classmethod
    def of(cls, inner: Workflow, paths: Sequence[str], numbers: Any, seeds: Any, devices: str | int = "auto") -> Self:
        """Build the workflow that trains rows of ``inner``.

        Args:
            inner: workflow built for one seed and one device.
            paths: dotted paths of the numbers that differ between rows.
            numbers: values of these numbers, ``[N, D]``.
            seeds: offsets of the rows' seeds, ``[N]``.
            devices: number of devices, or ``"auto"``; one device is used if the rows cannot be split evenly.

        Raises:
            ValueError: the workflow is not one compiled program, has no number at a path, or ``devices`` is invalid.
        """
        leaves = named_leaves(inner)
        for path in paths:
            if path not in leaves:
                raise ValueError(no_such("numeric setting", path, leaves))
        if inner.env.steps_on_host or not inner.collector.is_one_program:
            raise ValueError(
                "Training settings in parallel needs one compiled program, but the environments or actors of this run "
                "run outside JAX: use -m to train one run after another."
            )
        # ``evenly`` makes auto skip numbers of devices that divide nothing, but would reject an explicit number.
        rules = dataclasses.replace(inner.plan_rules, evenly=devices == "auto")
        options = {"num_seeds": len(seeds), "env_chunk": inner.env_chunk, "rules": rules}
        execution, _ = plan_execution(inner.env, devices, **options)
        if execution.axis != SEED_AXIS:  # the number of rows is not a multiple of the devices, or is 1
            execution, _ = plan_execution(inner.env, 1, **options)
        execution = dataclasses.replace(execution, num_seeds=len(seeds))  # a single row has a leading axis, too
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
        return self.inner.timesteps_per_iteration

    @property
    def max_timesteps_per_iteration(self) -> int:
        """Maximum environment steps of each row per iteration."""
        return most_timesteps(self.inner)

    @property
    def evaluation_entries(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Entries of the state that a row's evaluation reads, and the row's numbers."""
        return (*self.inner.evaluation_entries, "numbers")

    def row(self, numbers: jax.Array) -> Workflow:
        """Return the workflow with the numbers ``[D]`` of one row."""
        return with_numbers(self.inner, {path: numbers[i] for i, path in enumerate(self.paths)})

    def starts(self, key: Key) -> RowStart:
        return RowStart(key=keys_of_seeds(key, self.seeds), numbers=self.numbers)

    def setup(self, key: Any) -> State:
        """Initialize one row from ``key``, a ``RowStart``."""
        return State(self.row(key.numbers).setup(key.key), numbers=key.numbers)

    def init(self, key: Key | int = 0) -> State:
        """Return the initial state, see ``Workflow.init``; every row gets the transitions of ``replay.load``."""
        return with_recorded_steps(self, super().init(key))

    def take_in(self, state: State, batch: SampleBatch) -> State:
        """Add recorded steps ``[T, B, ...]`` to the row's state, see ``OffPolicyWorkflow.take_in``."""
        return self._with_numbers(state, lambda row, rest: (None, row.take_in(rest, batch)))[1]

    def collect(self, state: State) -> tuple[Any, State]:
        return self._with_numbers(state, lambda row, rest: row.collect(rest))

    def update(self, state: State, batch: Any) -> tuple[PyTreeDict, State]:
        return self._with_numbers(state, lambda row, rest: row.update(rest, batch))

    def pure_step(self, state: State, batch: Any = None) -> tuple[PyTreeDict, State]:
        return self._with_numbers(state, lambda row, rest: row.pure_step(rest, batch))

    def watched_step(self, state: State) -> tuple[PyTreeDict, State]:
        """Step the row's workflow and detect faults of its environments; see ``evorl.execution.env_faults``."""
        return self._with_numbers(state, lambda row, rest: watched_step(row, rest))

    def describe_row(self, number: int) -> str:
        """Describe a row by its number, values and seed: ``row 2 (discount=0.9, seed + 1)``."""
        values = np.asarray(self.numbers)[number]
        named = [f"{path}={value:.6g}" for path, value in zip(self.paths, values, strict=True)]
        return f"row {number} ({', '.join([*named, f'seed + {int(self.seeds[number])}'])})"

    def _with_numbers(self, state: State, method: Any) -> tuple[Any, State]:
        numbers = state.numbers
        result, rest = method(self.row(numbers), State({k: x for k, x in state.items() if k != "numbers"}))
        return result, rest | {"numbers": numbers}

    def evaluation(self, state: State) -> PyTreeDict:
        """Return the metrics of an evaluation by the row's workflow.

        ``episode_return`` is NaN if an agent has a non-finite parameter, because even NaN logits yield an action.
        """
        metrics = self.row(state.numbers).evaluation(State({k: x for k, x in state.items() if k != "numbers"}))
        nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AgentState))
        params = jax.tree.leaves([node.params for node in nodes if isinstance(node, AgentState)])
        finite = jnp.all(jnp.asarray([jnp.isfinite(x).all() for x in params]))
        return metrics | {"episode_return": jnp.where(finite, metrics.episode_return, jnp.nan)}


def numbers_side_by_side(workflow: Workflow, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the settings that are float leaves of ``workflow`` and may differ between rows of a program, as floats.

    Args:
        workflow: workflow built with one of the settings to compare.
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

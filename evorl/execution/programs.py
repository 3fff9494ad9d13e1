"""Execution: compiled programs around pure steps, over seeds and devices. The only place that names devices."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from evorl.execution.env_faults import watched_step
from evorl.execution.memory import check_memory, check_program_memory
from evorl.execution.trainable import SEED_AXIS, Execution, Trainable
from evorl.ops.collectives import on_cpu
from evorl.ops.random import keys_of_seeds
from evorl.types import Key, PyTreeDict, State

MAX_FOLD = 1024  # iterations in one call of the chunk program, and rows of its metrics


def state_specs(execution: Execution, sharded_axes: Mapping[str, int], state: State) -> State:
    """A ``PartitionSpec`` for every leaf of a state: which of its axes the mesh shares out.

    Args:
        execution: the plan.
        sharded_axes: for the state's entries that hold one row per environment (or member of a population), the axis
            of those rows.
        state: the state, or its shapes.
    """
    seed_axes = 0 if execution.num_seeds is None else 1

    def leaf_spec(name: str, leaf: Any) -> PartitionSpec:
        if execution.axis is None or name == "iterations":
            return PartitionSpec()
        if execution.axis == SEED_AXIS:
            return PartitionSpec(SEED_AXIS)
        axis = sharded_axes.get(name)
        if axis is None or leaf.ndim <= axis + seed_axes:
            return PartitionSpec()
        return PartitionSpec(*[None] * (axis + seed_axes), execution.axis)

    return State({name: jax.tree.map(functools.partial(leaf_spec, name), entry) for name, entry in state.items()})


def side_by_side(
    fn: Callable[[State], Any],
    state: State,
    shared: Collection[str] = (),
    returns_state: bool = False,
    axis_name: str | None = None,
) -> Any:
    """``fn(state)`` for every seed, or every member of a population.

    Args:
        fn: of one of them; returns anything, or anything and the state.
        state: entries ``[N, ...]``, but for those that all share.
        shared: names of the latter; ``iterations`` is always one, so that loops over it stay scalar. What ``fn`` makes
            of them must be equal for all.
        returns_state: whether ``fn`` returns the state, with the same entries.
        axis_name: of the axis, for collectives between members.
    """
    axes = State({name: None if name == "iterations" or name in shared else 0 for name in state})
    out_axes = (0, axes) if returns_state else 0
    return jax.vmap(fn, in_axes=(axes,), out_axes=out_axes, axis_name=axis_name)(state)


def over_seeds(execution: Execution, fn: Callable[[State], Any], state: State, returns_state: bool = False) -> Any:
    """``fn(state)``, of every seed if there are several: results have a leading axis S then."""
    return fn(state) if execution.num_seeds is None else side_by_side(fn, state, returns_state=returns_state)


def on_mesh(workflow: Trainable, fn: Callable[..., Any], returns_state: bool) -> Callable[..., Any]:
    """``fn(workflow, state, *args)`` on every device of the mesh, each with its part of the state.

    ``fn`` returns metrics, or metrics and a state if ``returns_state``. Metrics are equal on all devices, but with a
    mesh of seeds, where they have the seed axis first (second behind the axis of folded iterations).
    """
    execution = workflow.execution
    if execution.axis is None:
        return fn

    def sharded(workflow: Trainable, state: State, *args: Any) -> Any:
        specs = state_specs(execution, workflow.sharded_axes, state)
        by_seed = execution.axis == SEED_AXIS
        metric_specs = PartitionSpec(None, SEED_AXIS) if by_seed else PartitionSpec()
        if not returns_state:
            metric_specs = PartitionSpec(SEED_AXIS) if by_seed else PartitionSpec()
        run = jax.shard_map(
            fn,
            mesh=execution.mesh,
            in_specs=(PartitionSpec(), specs, *[PartitionSpec()] * len(args)),
            out_specs=(metric_specs, specs) if returns_state else metric_specs,
            check_vma=False,
        )
        return run(workflow, state, *args)

    return sharded


def initial_state(workflow: Trainable, key: Key) -> State:
    """Set-up as one program: parameters, first resets and buffers, each device making its part.

    ``key`` is one key, from which those of all seeds are made, or one for each seed. It composes with ``jit`` and
    ``vmap`` around it.

    Raises:
        ValueError: the memory of the machine cannot hold it.
    """
    if _inside_trace():
        return _initial_state(workflow, workflow.starts(key))
    state_shapes(workflow, key)
    return _init_program()(workflow, workflow.starts(key))


def state_shapes(workflow: Trainable, key: Key) -> State:
    """The shapes of the first state, which the memory can hold. The trace is that of the set-up, and is made once.

    Raises:
        ValueError: the memory cannot hold it.
    """
    state = jax.eval_shape(_init_program(), workflow, jax.eval_shape(workflow.starts, key))
    check_memory(workflow, state, state_specs(workflow.execution, workflow.sharded_axes, state))
    return state


def _inside_trace() -> bool:
    return isinstance(jax.lax.add(0, 0), jax.core.Tracer)


@functools.cache
def _init_program() -> Callable[[Trainable, Any], State]:
    # It runs once, so on a CPU, where that is the longer part, it is compiled without optimization: in a third of the
    # time. (A context of a megabyte is held for every kernel while the newer emitters compile a program.)
    if not on_cpu():
        return jax.jit(_initial_state)
    options = {"xla_backend_optimization_level": 0, **_known_option("xla_cpu_use_fusion_emitters", False)}
    return jax.jit(_initial_state, compiler_options=options)


def _known_option(name: str, value: Any) -> dict[str, Any]:
    """A compiler option, or none if this version of XLA does not have it: some are taken away without notice."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return {name: value}


class CompileThread(threading.Thread):
    """Compiles a program in the background. A failure is left to the program's first call to report."""

    def __init__(self, lowered: Any, num_devices: int) -> None:
        super().__init__(name="compile-training", daemon=True)
        self._lowered, self._num_devices = lowered, num_devices
        self._compiled: Any = None

    def run(self) -> None:
        """Compile."""
        with contextlib.suppress(Exception):
            self._compiled = self._lowered.compile()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the program.

        Raises:
            ValueError: the memory of the machine is not enough to run it.
        """
        super().join(timeout)
        if self._compiled is not None:
            check_program_memory(self._compiled, self._num_devices)


def compile_ahead(workflow: Trainable, key: Key) -> CompileThread:
    """Begin to compile the training program beside the set-up, from the shapes of the state. Join before the training.

    Tracing and lowering are done on return: as Python code they would only take turns with the set-up's.

    Raises:
        ValueError: the memory of the machine cannot hold the state.
    """
    thread = CompileThread(lowered_training(workflow, key), workflow.execution.num_devices)
    thread.start()
    return thread


def lowered_training(workflow: Trainable, key: Key) -> Any:
    """The training program, lowered; its first call finds it once it is compiled. Raises as ``compile_ahead``."""
    state = laid_out(workflow, state_shapes(workflow, key))
    return training_program(workflow.execution.in_order).lower(workflow, state, 1)


def laid_out(workflow: Trainable, shapes: State) -> State:
    """Shapes of a state, or of some of its entries, with the shardings that a mesh gives them."""
    execution = workflow.execution
    if execution.axis is None:
        return shapes
    return jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(execution.mesh, spec)),
        shapes,
        state_specs(execution, workflow.sharded_axes, shapes),
    )


def _initial_state(workflow: Trainable, starts: Any) -> State:
    execution = workflow.execution
    if execution.axis is None:
        return _set_up(workflow, starts)
    # The state's structure is known once it is traced, its specs are wanted before: so its leaves are returned in one
    # list for each way of laying them out, and put together outside.
    layouts = (PartitionSpec(), PartitionSpec(execution.axis), PartitionSpec(None, execution.axis))
    layouts += (PartitionSpec(None, None, execution.axis),)
    layout: dict[str, Any] = {}

    def set_up_share(workflow: Trainable, starts: Any) -> tuple[list, ...]:
        state = _set_up(workflow, starts)
        leaves, layout["treedef"] = jax.tree.flatten(state)
        specs = jax.tree.leaves(
            state_specs(execution, workflow.sharded_axes, state), is_leaf=lambda x: isinstance(x, PartitionSpec)
        )
        layout["places"] = [layouts.index(spec) for spec in specs]
        return tuple(
            [leaf for leaf, place in zip(leaves, layout["places"], strict=True) if place == i]
            for i in range(len(layouts))
        )

    key_spec = PartitionSpec(SEED_AXIS) if execution.axis == SEED_AXIS else PartitionSpec()
    groups = jax.shard_map(
        set_up_share, mesh=execution.mesh, in_specs=(PartitionSpec(), key_spec), out_specs=layouts, check_vma=False
    )(workflow, starts)
    members = [iter(group) for group in groups]
    return jax.tree.unflatten(layout["treedef"], [next(members[place]) for place in layout["places"]])


def _set_up(workflow: Trainable, starts: Any) -> State:
    """The state of every seed, from what it starts from."""
    if workflow.execution.num_seeds is None:
        return workflow.setup(starts)
    state = jax.vmap(workflow.setup)(starts)
    return state.replace(iterations=jax.tree.map(lambda x: x[0], state.iterations))


def _step(workflow: Trainable, state: State) -> tuple[PyTreeDict, State]:
    return over_seeds(workflow.execution, workflow.pure_step, state, returns_state=True)


@jax.jit  # one trace serves the shapes of the metrics and the body of the loop
def _traced_once(workflow: Trainable, state: State) -> tuple[PyTreeDict, State]:
    return over_seeds(workflow.execution, lambda state: watched_step(workflow, state), state, returns_state=True)


def _iterate(workflow: Trainable, state: State, num_iterations: jax.Array) -> tuple[PyTreeDict, State]:
    shapes, _ = jax.eval_shape(_traced_once, workflow, state)
    rows = jax.tree.map(lambda x: jnp.zeros((MAX_FOLD, *x.shape), x.dtype), shapes)

    def body(i: jax.Array, carry: tuple[PyTreeDict, State]) -> tuple[PyTreeDict, State]:
        rows, state = carry
        metrics, state = _traced_once(workflow, state)
        return jax.tree.map(lambda row, metric: row.at[i].set(metric), rows, metrics), state

    return jax.lax.fori_loop(0, num_iterations, body, (rows, state))


def _iterate_on_mesh(workflow: Trainable, state: State, num_iterations: jax.Array) -> tuple[PyTreeDict, State]:
    return on_mesh(workflow, _iterate, returns_state=True)(workflow, state, num_iterations)


def iterate_program(workflow: Trainable, state: State, num_iterations: int) -> tuple[PyTreeDict, State]:
    """``(metrics [MAX_FOLD, ...], state)`` after so many iterations in one call; the state is donated.

    The number is traced: chunks of any length are one program.
    """
    return training_program(workflow.execution.in_order)(workflow, state, num_iterations)


@functools.cache
def training_program(in_order: bool) -> Any:
    """Return the jitted function that ``iterate_program`` calls; ``in_order``: see ``Execution``.

    In order, PPO on CartPole takes 1.1 times the steps per second (AMD EPYC, two threads); physics 0.88 to 1.0.
    """
    options = _known_option("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED") if in_order else {}
    return jax.jit(_iterate_on_mesh, donate_argnames="state", compiler_options=options)


@jax.jit
def step_program(workflow: Trainable, state: State) -> tuple[PyTreeDict, State]:
    """One iteration; the state is not donated, so it may be used again."""
    metrics, state = on_mesh(workflow, _one_row, returns_state=True)(workflow, state)
    return jax.tree.map(lambda x: x[0], metrics), state


def _one_row(workflow: Trainable, state: State) -> tuple[PyTreeDict, State]:
    metrics, state = _step(workflow, state)
    return jax.tree.map(lambda x: x[None], metrics), state


@jax.jit
def evaluate_program(workflow: Trainable, state: State) -> Any:
    """Evaluation of every seed; the state is only read."""

    def evaluate(workflow: Trainable, state: State) -> Any:
        return over_seeds(workflow.execution, workflow.evaluation, state)

    return on_mesh(workflow, evaluate, returns_state=False)(workflow, state)


def place(workflow: Trainable, state: State) -> State:
    """Put a state from the host, or from another mesh, on this workflow's devices."""
    execution = workflow.execution
    if execution.axis is None:
        return jax.tree.map(_on_first_device, state)
    specs = state_specs(execution, workflow.sharded_axes, state)
    return jax.tree.map(lambda x, spec: _on_devices(x, NamedSharding(execution.mesh, spec)), state, specs)


def _on_devices(x: Any, sharding: NamedSharding) -> jax.Array:
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        # What was read as it is laid out stays: a program for each array would take longer than the reading.
        there = x.sharding.is_equivalent_to(sharding, x.ndim)
        return x if there else jax.jit(lambda x: x, out_shardings=sharding)(x)
    # Every process has the whole array, and gives its part.
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_on_devices(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])


def _on_first_device(x: Any) -> jax.Array:
    # Not bound to that device unless it must move: bound arrays would run another program than those of ``init``.
    first = jax.devices()[0]
    elsewhere = isinstance(x, jax.Array) and x.devices() != {first}
    return jax.device_put(x, first) if elsewhere else jax.device_put(x)


def seed_keys(execution: Execution, key: Key) -> Key:
    """The key of every seed ``[S]``, or the key itself: seed i of a run with seed s is the solo run with seed s + i.

    ``key`` must come from ``jax.random.key(seed)``, whose last word is the seed.
    """
    if execution.num_seeds is None or key.ndim == 1:
        return key
    return keys_of_seeds(key, jnp.arange(execution.num_seeds))

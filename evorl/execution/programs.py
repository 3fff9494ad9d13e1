"""Compiled programs that map the pure functions of a workflow over seeds, and shard them over devices."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from evorl.execution.env_faults import watched_step
from evorl.execution.memory import check_memory, check_program_memory
from evorl.execution.trainable import SEED_AXIS, Execution, Trainable
from evorl.ops.collectives import LOCAL_SEED_AXIS
from evorl.ops.loops import in_loop, unpacked
from evorl.ops.platform import platform
from evorl.ops.random import keys_of_seeds
from evorl.types import Entry, Key, PyTreeDict, State, check_entries, declared_entries

MAX_FOLD = 1024  # maximum number of iterations, each with a row of metrics, per call of the training program


def state_specs(execution: Execution, state: State) -> State:
    """Return a ``PartitionSpec`` for every leaf of a state, which names the axis that the mesh shards.

    Args:
        execution: execution plan.
        state: state or its shapes; its class declares the axes to shard. A plain ``State`` shards only ``env_state``.
    """
    declared = declared_entries(type(state)) or {"env_state": Entry(axis=0)}
    seed_axes = 0 if execution.num_seeds is None else 1

    def leaf_spec(name: str, leaf: Any) -> PartitionSpec:
        if execution.axis is None or name == "iterations":
            return PartitionSpec()
        if execution.axis == SEED_AXIS:
            return PartitionSpec(SEED_AXIS)
        axis = declared.get(name, Entry()).axis
        if axis is None or leaf.ndim <= axis + seed_axes:
            return PartitionSpec()
        return PartitionSpec(*[None] * (axis + seed_axes), execution.axis)

    return type(state)({name: jax.tree.map(functools.partial(leaf_spec, name), entry) for name, entry in state.items()})


def side_by_side(
    fn: Callable[[State], Any],
    state: State,
    shared: Collection[str] = (),
    returns_state: bool = False,
    axis_name: str | None = None,
) -> Any:
    """Return ``fn(state)``, mapped over N seeds or members; results except shared entries have a leading axis N.

    Args:
        fn: function of one seed or member; returns any results, or results and the state.
        state: entries ``[N, ...]``, except shared entries.
        shared: names of shared entries, for which ``fn`` must return equal values; ``iterations`` is always shared, so
            that control flow that depends on it is not vectorized.
        returns_state: True if ``fn`` returns the state, with the same entries.
        axis_name: name of the axis, for collectives between members.
    """
    axes = type(state)({name: None if name == "iterations" or name in shared else 0 for name in state})
    out_axes = (0, axes) if returns_state else 0
    return jax.vmap(fn, in_axes=(axes,), out_axes=out_axes, axis_name=axis_name)(state)


def over_seeds(execution: Execution, fn: Callable[[State], Any], state: State, returns_state: bool = False) -> Any:
    """Return ``fn(state)``; if the run has a seed axis, use ``side_by_side``, with a leading axis S in the results."""
    return fn(state) if execution.num_seeds is None else side_by_side(fn, state, (), returns_state, LOCAL_SEED_AXIS)


def on_mesh(workflow: Trainable, fn: Callable[..., Any], returns_state: bool) -> Callable[..., Any]:
    """Return a function that runs ``fn(workflow, state, *args)`` on each device of the mesh, with its state shard.

    ``fn`` returns metrics, or metrics and a state if ``returns_state``. Metrics are identical on all devices, except
    if seeds are sharded: the seed axis is then the first (with ``returns_state`` the second, after the iterations).
    """
    return fn if workflow.execution.axis is None else functools.partial(_run_on_mesh, fn, returns_state)


def _run_on_mesh(fn: Callable[..., Any], returns_state: bool, workflow: Trainable, state: State, *args: Any) -> Any:
    execution = workflow.execution
    specs, metric_specs = state_specs(execution, state), PartitionSpec()
    if execution.axis == SEED_AXIS:
        metric_specs = PartitionSpec(None, SEED_AXIS) if returns_state else PartitionSpec(SEED_AXIS)
    run = jax.shard_map(
        fn,
        mesh=execution.mesh,
        in_specs=(PartitionSpec(), specs, *[PartitionSpec()] * len(args)),
        out_specs=(metric_specs, specs) if returns_state else metric_specs,
        check_vma=False,
    )
    return run(workflow, state, *args)


def initial_state(workflow: Trainable, key: Key) -> State:
    """Return the initial state (parameters, first resets, buffers) from one program; each device creates its shard.

    ``key`` is one key, from which all seeds derive their keys, or one key per seed. Composes with ``jit`` and ``vmap``.

    Raises:
        ValueError: the state does not fit in memory.
    """
    if isinstance(jax.lax.add(0, 0), jax.core.Tracer):  # inside a trace
        return _initial_state(workflow, workflow.starts(key))
    state_shapes(workflow, key)
    return _init_program()(workflow, workflow.starts(key))


def state_shapes(workflow: Trainable, key: Key) -> State:
    """Return the shapes of the initial state; raise ``ValueError`` if it does not fit in memory.

    ``initial_state`` reuses the traced program.
    """
    state = jax.eval_shape(_init_program(), workflow, jax.eval_shape(workflow.starts, key))
    execution = workflow.execution
    check_memory(workflow, state, None if execution.axis is None else state_specs(execution, state))
    return state


def _init_program() -> Callable[[Trainable, Any], State]:
    return _init_program_for(platform())


@functools.cache
def _init_program_for(name: str) -> Callable[[Trainable, Any], State]:
    # The program runs only once. On a CPU, where compilation dominates, it is therefore compiled without optimization,
    # in a third of the time. (The newer emitters need a megabyte per kernel during compilation.)
    if name != "cpu":
        return jax.jit(_initial_state)
    options = {"xla_backend_optimization_level": 0, **_known_option("xla_cpu_use_fusion_emitters", False)}
    return jax.jit(_initial_state, compiler_options=options)


def _known_option(name: str, value: Any) -> dict[str, Any]:
    """Return a dict with a compiler option; empty if this version of XLA does not support the option."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return {name: value}


class CompileThread(threading.Thread):
    """Compiles a program in the background. If compilation fails, the first call of the program raises the error.

    A process that exits during compilation first waits for this thread, because XLA would otherwise abort the process.
    """

    def __init__(self, lowered: Any, num_devices: int) -> None:
        super().__init__(name="compile-training", daemon=False)
        self._lowered, self._num_devices = lowered, num_devices
        self._compiled: Any = None

    def run(self) -> None:
        """Compile the program."""
        with contextlib.suppress(Exception):
            self._compiled = self._lowered.compile()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the program is compiled, at most ``timeout`` seconds; ``None`` waits without a limit.

        Raises:
            ValueError: the program does not fit in memory.
        """
        super().join(timeout)
        if self._compiled is not None:
            check_program_memory(self._compiled, self._num_devices)


def compile_ahead(workflow: Trainable, key: Key) -> CompileThread:
    """Start compiling the training program from the shapes of the state; ``join`` the thread before training.

    Tracing and lowering are finished on return: as Python code, they cannot run in parallel with setup.

    Raises:
        ValueError: the state does not fit in memory.
    """
    thread = CompileThread(lowered_training(workflow, key), workflow.execution.num_devices)
    thread.start()
    return thread


def lowered_training(workflow: Trainable, key: Key) -> Any:
    """Return the lowered training program, which training reuses. Raise the errors of ``compile_ahead``."""
    state = laid_out(workflow, state_shapes(workflow, key))
    return training_program(workflow.execution.in_order).lower(workflow, state, 1)


def laid_out(workflow: Trainable, shapes: State) -> State:
    """Return the shapes of a state, or of some of its entries, with the shardings of the mesh."""
    execution = workflow.execution
    if execution.axis is None:
        return shapes
    return jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(execution.mesh, spec)),
        shapes,
        state_specs(execution, shapes),
    )


def _initial_state(workflow: Trainable, starts: Any) -> State:
    return _set_up(workflow, starts) if workflow.execution.axis is None else _set_up_on_mesh(workflow, starts)


def _set_up_on_mesh(workflow: Trainable, starts: Any) -> State:
    execution = workflow.execution
    # The structure of the state is known only after tracing, but specs are needed before. The leaves are therefore
    # returned in one list per layout and reassembled outside.
    layouts = (PartitionSpec(), PartitionSpec(execution.axis), PartitionSpec(None, execution.axis))
    layouts += (PartitionSpec(None, None, execution.axis),)
    layout: dict[str, Any] = {}

    def set_up_share(workflow: Trainable, starts: Any) -> tuple[list, ...]:
        state = _set_up(workflow, starts)
        leaves, layout["treedef"] = jax.tree.flatten(state)
        specs = jax.tree.leaves(state_specs(execution, state), is_leaf=lambda x: isinstance(x, PartitionSpec))
        layout["groups"] = [layouts.index(spec) for spec in specs]
        return tuple(
            [leaf for leaf, group in zip(leaves, layout["groups"], strict=True) if group == i]
            for i in range(len(layouts))
        )

    key_spec = PartitionSpec(SEED_AXIS) if execution.axis == SEED_AXIS else PartitionSpec()
    groups = jax.shard_map(
        set_up_share, mesh=execution.mesh, in_specs=(PartitionSpec(), key_spec), out_specs=layouts, check_vma=False
    )(workflow, starts)
    iterators = [iter(group) for group in groups]
    return jax.tree.unflatten(layout["treedef"], [next(iterators[group]) for group in layout["groups"]])


def _set_up(workflow: Trainable, starts: Any) -> State:
    """Return the initial state of every seed."""
    if workflow.execution.num_seeds is None:
        return check_entries(workflow.setup(starts))
    state = check_entries(jax.vmap(workflow.setup)(starts))
    return state.replace(iterations=jax.tree.map(lambda x: x[0], state.iterations))


@jax.jit  # the shapes of the metrics and the body of the loop share one trace
def _traced_once(workflow: Trainable, state: State) -> tuple[PyTreeDict, State]:
    return over_seeds(workflow.execution, lambda state: watched_step(workflow, state), state, returns_state=True)


def _iterate(workflow: Trainable, state: State, num_iterations: jax.Array | int) -> tuple[PyTreeDict, State]:
    shapes = jax.eval_shape(lambda state: in_loop(_traced_once(workflow, state)[0]), state)
    rows = jax.tree.map(lambda x: jnp.zeros((MAX_FOLD, *x.shape), x.dtype), shapes)

    def body(i: jax.Array, carry: tuple[Any, State]) -> tuple[Any, State]:
        rows, state = carry
        metrics, state = _traced_once(workflow, state)
        return jax.tree.map(lambda row, metric: row.at[i].set(metric), rows, in_loop(metrics)), state

    rows, state = jax.lax.fori_loop(0, num_iterations, body, (rows, state))
    return unpacked(rows), state


def iterations_on_mesh(workflow: Trainable, state: State, num_iterations: jax.Array | int) -> tuple[PyTreeDict, State]:
    """Run iterations as ``iterate_program`` does; this is the function that ``training_program`` compiles."""
    return on_mesh(workflow, _iterate, returns_state=True)(workflow, state, num_iterations)


def iterate_program(workflow: Trainable, state: State, num_iterations: int) -> tuple[PyTreeDict, State]:
    """Run iterations and donate the state; return ``MAX_FOLD`` rows of metrics, padded with 0, and the new state."""
    return training_program(workflow.execution.in_order)(workflow, state, num_iterations)


@functools.cache
def training_program(in_order: bool) -> Any:
    """Return the jitted function that ``iterate_program`` calls; see ``Execution`` for ``in_order``.

    With ``in_order``, PPO on CartPole runs 1.1 times as fast, physics tasks 0.88 to 1.0 times (AMD EPYC, two threads).
    """
    options = _known_option("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED") if in_order else {}
    return jax.jit(iterations_on_mesh, donate_argnames="state", compiler_options=options)


@jax.jit
def step_program(workflow: Trainable, state: State) -> tuple[PyTreeDict, State]:
    """Run one iteration; return its metrics and the new state. The passed state is not donated and may be reused."""
    metrics, state = on_mesh(workflow, _one_row, returns_state=True)(workflow, state)
    return jax.tree.map(lambda x: x[0], metrics), state


def _one_row(workflow: Trainable, state: State) -> tuple[PyTreeDict, State]:
    metrics, state = over_seeds(workflow.execution, workflow.pure_step, state, returns_state=True)
    return jax.tree.map(lambda x: x[None], metrics), state


@jax.jit
def evaluate_program(workflow: Trainable, state: State) -> Any:
    """Return the metrics of an evaluation, with a leading axis S if there is a seed axis; ``state`` is not donated."""

    def evaluate(workflow: Trainable, state: State) -> Any:
        return over_seeds(workflow.execution, workflow.evaluation, state)

    return on_mesh(workflow, evaluate, returns_state=False)(workflow, state)


def place(workflow: Trainable, state: State) -> State:
    """Return a state from the host, or from another mesh, on the devices of this workflow."""
    execution = workflow.execution
    if execution.axis is None:
        return jax.tree.map(_on_first_device, state)
    specs = state_specs(execution, state)
    return jax.tree.map(lambda x, spec: _on_devices(x, NamedSharding(execution.mesh, spec)), state, specs)


def _on_devices(x: Any, sharding: NamedSharding) -> jax.Array:
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        # Arrays with the right layout are returned unchanged: a program per array would take longer than reading them.
        is_in_place = x.sharding.is_equivalent_to(sharding, x.ndim)
        return x if is_in_place else jax.jit(lambda x: x, out_shardings=sharding)(x)
    # Every process has the whole array, and contributes its shard.
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_on_devices(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])


def _on_first_device(x: Any) -> jax.Array:
    # Commit arrays only if they must move: committed arrays would run a different program than the initial state.
    first = jax.devices()[0]
    elsewhere = isinstance(x, jax.Array) and x.devices() != {first}
    return jax.device_put(x, first) if elsewhere else jax.device_put(x)


def seed_keys(execution: Execution, key: Key) -> Key:
    """Return the keys ``[S]`` of the seeds ``s, s + 1, ..., s + S - 1``, where ``key = jax.random.key(s)``.

    Each seed then trains as in a run of this seed alone. Without a seed axis, or if ``key`` is ``[S]``, return ``key``.
    """
    if execution.num_seeds is None or key.ndim == 1:
        return key
    return keys_of_seeds(key, jnp.arange(execution.num_seeds))

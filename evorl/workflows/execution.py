"""Execution: compiled programs around pure steps, over seeds and devices. The only place that names devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from evorl.ops.collectives import DATA_AXIS
from evorl.types import Key, PyTreeDict, State

if TYPE_CHECKING:
    from evorl.workflows.workflow import Workflow

SEED_AXIS = "seeds"
MAX_FOLD = 1024  # iterations in one call of the chunk program, and rows of its metrics
# Entries of the state that do not depend on the seed; kept without the seed axis so that loops over them stay scalar.
SHARED_ENTRIES = ("iterations", "member_iterations")


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a workflow's step is run; a static, comparable description.

    Attributes:
        num_seeds: how many seeds run side by side in one program; ``None`` for one seed without an axis for it.
        num_devices: size of the device mesh.
        axis: what the mesh shares out: ``SEED_AXIS``, or ``DATA_AXIS`` or ``MEMBER_AXIS`` (see ``ops.collectives``);
            ``None`` on one device.
    """

    num_seeds: int | None = None
    num_devices: int = 1
    axis: str | None = None

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh of the first ``num_devices`` devices."""
        return _mesh(self.num_devices, self.axis or DATA_AXIS)


@functools.lru_cache
def _mesh(num_devices: int, axis: str) -> Mesh:
    devices = jax.devices()[:num_devices]
    return jax.make_mesh((num_devices,), (axis,), axis_types=(AxisType.Auto,), devices=devices)


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
        if execution.axis is None or name in SHARED_ENTRIES:
            return PartitionSpec()
        if execution.axis == SEED_AXIS:
            return PartitionSpec(SEED_AXIS)
        axis = sharded_axes.get(name)
        if axis is None or leaf.ndim <= axis + seed_axes:
            return PartitionSpec()
        return PartitionSpec(*[None] * (axis + seed_axes), execution.axis)

    return State({name: jax.tree.map(functools.partial(leaf_spec, name), entry) for name, entry in state.items()})


def over_seeds(execution: Execution, fn: Callable[[State], Any]) -> Callable[[State], Any]:
    """``fn`` for every seed of a state; results have a leading axis S, but for the shared entries of a state."""
    if execution.num_seeds is None:
        return fn

    def for_all_seeds(state: State) -> Any:
        shared = {name: state[name] for name in SHARED_ENTRIES if name in state}
        own = State({name: entry for name, entry in state.items() if name not in shared})
        out_shared: dict[str, Any] = {}

        def for_one_seed(own_entries: State) -> Any:
            out = fn(State({**own_entries, **shared}))
            return _without_shared(out, out_shared)

        out = jax.vmap(for_one_seed)(own)
        return _with_shared(out, out_shared)

    return for_all_seeds


def _without_shared(out: Any, shared: dict[str, Any]) -> Any:
    if isinstance(out, State):
        shared.update({name: out[name] for name in SHARED_ENTRIES if name in out})
        return State({name: entry for name, entry in out.items() if name not in shared})
    if isinstance(out, tuple):
        return tuple(_without_shared(item, shared) for item in out)
    return out


def _with_shared(out: Any, shared: dict[str, Any]) -> Any:
    if isinstance(out, State):
        return State({**out, **shared})
    if isinstance(out, tuple):
        return tuple(_with_shared(item, shared) for item in out)
    return out


def on_mesh(workflow: Workflow, fn: Callable[..., Any], returns_state: bool) -> Callable[..., Any]:
    """``fn(workflow, state, *args)`` on every device of the mesh, each with its part of the state.

    ``fn`` returns metrics, or metrics and a state if ``returns_state``. Metrics are equal on all devices, but with a
    mesh of seeds, where they have the seed axis first (second behind the axis of folded iterations).
    """
    execution = workflow.execution
    if execution.axis is None:
        return fn

    def sharded(workflow: Workflow, state: State, *args: Any) -> Any:
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


def initial_state(workflow: Workflow, key: Key) -> State:
    """Set-up as one program: parameters, first resets and buffers, each device making its part.

    ``key`` is one key, or one for each seed. It composes with ``jit`` and ``vmap`` around it.
    """
    return _initial_state(workflow, key) if _inside_trace() else _init_program()(workflow, key)


def _inside_trace() -> bool:
    return isinstance(jax.lax.add(0, 0), jax.core.Tracer)


@functools.cache
def _init_program() -> Callable[[Workflow, Key], State]:
    # It runs once, so on a CPU, where that is the longer part, it is compiled without optimization: in a third of the
    # time. (A context of a megabyte is held for every kernel while the newer emitters compile a program.)
    if jax.default_backend() != "cpu":
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


def compile_ahead(workflow: Workflow, key: Key) -> threading.Thread:
    """Begin to compile the training program beside the set-up, from the shapes of the state. Join before the training.

    Tracing and lowering are done on return: as Python code they would only take turns with the set-up's. A failure to
    compile is left to the training itself to report.
    """
    state = jax.eval_shape(_init_program(), workflow, key)
    execution = workflow.execution
    if execution.axis is not None:
        specs = state_specs(execution, workflow.sharded_axes, state)
        state = jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(execution.mesh, spec)),
            state,
            specs,
        )

    lowered = iterate_program.lower(workflow, state, 1)

    def compile_training() -> None:
        with contextlib.suppress(Exception):
            lowered.compile()

    thread = threading.Thread(target=compile_training, name="compile-training", daemon=True)
    thread.start()
    return thread


def _initial_state(workflow: Workflow, key: Key) -> State:
    execution = workflow.execution
    if execution.axis is None:
        return _set_up(workflow, key)
    # The state's structure is known once it is traced, its specs are wanted before: so its leaves are returned in one
    # list for each way of laying them out, and put together outside.
    layouts = (PartitionSpec(), PartitionSpec(execution.axis), PartitionSpec(None, execution.axis))
    layouts += (PartitionSpec(None, None, execution.axis),)
    found: dict[str, Any] = {}

    def set_up_share(workflow: Workflow, key: Key) -> tuple[list, ...]:
        state = _set_up(workflow, key)
        leaves, found["treedef"] = jax.tree.flatten(state)
        specs = jax.tree.leaves(
            state_specs(execution, workflow.sharded_axes, state), is_leaf=lambda x: isinstance(x, PartitionSpec)
        )
        found["places"] = [layouts.index(spec) for spec in specs]
        return tuple(
            [leaf for leaf, place in zip(leaves, found["places"], strict=True) if place == i]
            for i in range(len(layouts))
        )

    key_spec = PartitionSpec(SEED_AXIS) if execution.axis == SEED_AXIS else PartitionSpec()
    groups = jax.shard_map(
        set_up_share, mesh=execution.mesh, in_specs=(PartitionSpec(), key_spec), out_specs=layouts, check_vma=False
    )(workflow, key)
    members = [iter(group) for group in groups]
    return jax.tree.unflatten(found["treedef"], [next(members[place]) for place in found["places"]])


def _set_up(workflow: Workflow, key: Key) -> State:
    """The state of every seed whose key is given."""
    if workflow.execution.num_seeds is None:
        return workflow.setup(key)
    state = jax.vmap(workflow.setup)(key)
    for name in SHARED_ENTRIES:
        if name in state:
            state[name] = jax.tree.map(lambda x: x[0], state[name])
    return state


def _step(workflow: Workflow, state: State) -> tuple[PyTreeDict, State]:
    return over_seeds(workflow.execution, workflow.pure_step)(state)


# One trace serves the shapes of the metrics and the body of the loop.
_traced_once = jax.jit(_step)


def _iterate(workflow: Workflow, state: State, num_iterations: jax.Array) -> tuple[PyTreeDict, State]:
    shapes, _ = jax.eval_shape(_traced_once, workflow, state)
    rows = jax.tree.map(lambda x: jnp.zeros((MAX_FOLD, *x.shape), x.dtype), shapes)

    def body(i: jax.Array, carry: tuple[PyTreeDict, State]) -> tuple[PyTreeDict, State]:
        rows, state = carry
        metrics, state = _traced_once(workflow, state)
        return jax.tree.map(lambda row, metric: row.at[i].set(metric), rows, metrics), state

    return jax.lax.fori_loop(0, num_iterations, body, (rows, state))


def _iterate_on_mesh(workflow: Workflow, state: State, num_iterations: jax.Array) -> tuple[PyTreeDict, State]:
    return on_mesh(workflow, _iterate, returns_state=True)(workflow, state, num_iterations)


iterate_program = jax.jit(_iterate_on_mesh, donate_argnames="state")
"""``(workflow, state, n) -> (metrics [MAX_FOLD, ...], state)``: n iterations in one call; the state is donated.

n is a traced number: chunks of any length are one program.
"""


@jax.jit
def step_program(workflow: Workflow, state: State) -> tuple[PyTreeDict, State]:
    """One iteration; the state is not donated, so it may be used again."""
    metrics, state = on_mesh(workflow, _one_row, returns_state=True)(workflow, state)
    return jax.tree.map(lambda x: x[0], metrics), state


def _one_row(workflow: Workflow, state: State) -> tuple[PyTreeDict, State]:
    metrics, state = _step(workflow, state)
    return jax.tree.map(lambda x: x[None], metrics), state


@jax.jit
def evaluate_program(workflow: Workflow, state: State) -> Any:
    """Evaluation of every seed; the state is only read."""

    def evaluate(workflow: Workflow, state: State) -> Any:
        return over_seeds(workflow.execution, workflow.evaluation)(state)

    return on_mesh(workflow, evaluate, returns_state=False)(workflow, state)


def place(workflow: Workflow, state: State) -> State:
    """Put a state from the host, or from another mesh, on this workflow's devices."""
    execution = workflow.execution
    if execution.axis is None:
        return jax.tree.map(_on_first_device, state)
    specs = state_specs(execution, workflow.sharded_axes, state)
    return jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(execution.mesh, spec)), state, specs)


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
    words = jax.random.key_data(key)
    offsets = jnp.zeros_like(words, shape=(execution.num_seeds, *words.shape))
    offsets = offsets.at[:, -1].set(jnp.arange(execution.num_seeds, dtype=words.dtype))
    return jax.random.wrap_key_data(words + offsets, impl=jax.random.key_impl(key))

"""The ring buffer keeps the latest rows, in place, on any number of devices."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ops.collectives import DATA_AXIS
from evorl.replay_buffers.ring import ReplayState, add_rows, init_ring, replace_entries, take
from evorl.sample_batch import SampleBatch
from tests.support.errors import raises_naming

ENVS, ROWS = 4, 10
SPEC = SampleBatch(
    obs=jax.ShapeDtypeStruct((3,), jnp.uint8), rewards=0.0, dones=jax.ShapeDtypeStruct((), jnp.bool_), next_obs=None
)
add = jax.jit(add_rows)


def _rows(first: int, num: int) -> SampleBatch:
    """Return rows identified by their numbers: row r of environment b has reward 100 r + b."""
    rewards = (100 * np.arange(first, first + num)[:, None] + np.arange(ENVS)).astype(np.float32)
    obs = np.broadcast_to((rewards % 251)[..., None], (num, ENVS, 3)).astype(np.uint8)
    return SampleBatch(obs=obs, rewards=rewards, dones=rewards % 200 == 0)


def _zeros(num: int) -> np.ndarray:
    return np.zeros((num, ENVS), np.float32)


def _row_numbers(state: ReplayState) -> list[int]:
    """Return the numbers of stored rows from the oldest to the newest."""
    cursor, size = int(state.cursor), int(state.size)
    rows = [(cursor - size + i) % ROWS for i in range(size)]
    return [int(np.asarray(state.data.rewards)[row, 0]) // 100 for row in rows]


def test_an_empty_ring_has_the_dtypes_of_its_spec() -> None:
    state = init_ring(ROWS, ENVS, SPEC)
    assert state.data.obs.shape == (ROWS, ENVS, 3)
    assert [leaf.dtype for leaf in jax.tree.leaves(state.data)] == [jnp.uint8, jnp.float32, jnp.bool_]
    assert (int(state.cursor), int(state.size)) == (0, 0)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (3, 3, 3, 3, 3), (10, 10), (4, 7, 2, 9, 1)])
def test_the_latest_rows_are_kept_in_order_whatever_the_batch_length(lengths: tuple[int, ...]) -> None:
    state, expected, first = init_ring(ROWS, ENVS, SPEC), deque(maxlen=ROWS), 0
    for num in lengths:
        state = add(state, _rows(first, num))
        expected.extend(range(first, first + num))
        first += num
        assert _row_numbers(state) == list(expected)
    row = int(state.cursor) - 1
    newest = _rows(first - 1, 1)
    jax.tree.map(lambda stored, new: np.testing.assert_array_equal(np.asarray(stored)[row], new[0]), state.data, newest)


def test_masked_rows_leave_no_gap() -> None:
    state = add(init_ring(ROWS, ENVS, SPEC), _rows(0, 8))
    state = add(state, _rows(8, 4), np.array([True, False, True, True]))
    assert _row_numbers(state) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]
    unchanged = add(state, _rows(12, 4), np.zeros((), bool))
    jax.tree.map(np.testing.assert_array_equal, unchanged, state)
    assert _row_numbers(add(state, _rows(12, 1), True))[-1] == 12


@pytest.mark.parametrize(
    ("batch", "parts"),
    [
        (_rows(0, 11), ("11 rows", "10 rows")),
        (
            _rows(0, 2).replace(dones=np.zeros((2, ENVS), np.float32)),
            ("dones", "float32[2, 4]", "bool[T, 4]"),
        ),
        (_rows(0, 2).replace(obs=np.zeros((2, ENVS, 5), np.uint8)), ("obs", "uint8[2, 4, 5]")),
        (
            _rows(0, 2).replace(actions=_zeros(2)),
            ("the fields", "PyTreeDef"),
        ),
        (_rows(0, 2).replace(rewards=_zeros(3)), ("rows", "[2, 3]")),
    ],
)
def test_batches_that_do_not_fit_are_refused_in_words(batch: SampleBatch, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        add_rows(init_ring(ROWS, ENVS, SPEC), batch)


def test_environments_are_shared_evenly_or_not_at_all() -> None:
    mesh = jax.make_mesh((4,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    init = jax.shard_map(lambda: init_ring(ROWS, 6, SPEC).size, mesh=mesh, in_specs=(), out_specs=PartitionSpec())
    with raises_naming(ValueError, "6 rows"):
        init()


@pytest.mark.parametrize("devices", [2, 4])
def test_shards_together_do_what_one_device_does(devices: int) -> None:
    """Init, add and take inside ``shard_map`` return equal transitions, dtypes included, on every device."""
    rows, envs = np.array([[0, 9, 3], [4, 4, 1]]), np.array([[0, 3, 1], [2, 3, 2]])

    def run(first: SampleBatch, second: SampleBatch) -> Any:
        state = add_rows(add_rows(init_ring(ROWS, ENVS, SPEC), first), second)
        return take(state.data, rows, envs, ENVS)

    mesh = jax.make_mesh(
        (devices,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    by_env = PartitionSpec(None, DATA_AXIS)
    sharded = jax.shard_map(run, mesh=mesh, in_specs=(by_env, by_env), out_specs=PartitionSpec())
    batches = (_rows(0, 7), _rows(7, 6))
    expected, result = jax.jit(run)(*batches), jax.jit(sharded)(*batches)
    assert expected.rewards.shape == (2, 3)
    for one, many in zip(jax.tree.leaves(expected), jax.tree.leaves(result), strict=True):
        assert one.dtype == many.dtype
        np.testing.assert_array_equal(one, many)


def test_a_single_environment_is_whole_on_every_device() -> None:
    rows = np.array([0, 3, 5, 6])

    def run(batch: SampleBatch) -> SampleBatch:
        state = add_rows(init_ring(ROWS, 1, SPEC), batch, np.arange(9) % 4 != 1)
        return take(state.data, rows, jnp.zeros_like(rows), 1)

    mesh = jax.make_mesh((4,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    on_mesh = jax.shard_map(run, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    batch = jax.tree.map(lambda x: x[:, :1], _rows(0, 9))
    expected, result = jax.jit(run)(batch), jax.jit(on_mesh)(batch)
    np.testing.assert_array_equal(expected.rewards, batch.rewards[np.array([0, 4, 7, 8]), 0])
    jax.tree.map(np.testing.assert_array_equal, result, expected)


def _instructions_on_the_whole_buffer(add_fn: Callable[..., ReplayState], num_steps: int, seeds: int) -> Counter[str]:
    """Count the instructions that create arrays of the buffer's shape, in a donated loop of adding and sampling."""
    num_rows, width = 997, 13

    def loop(state: ReplayState, key: jax.Array) -> tuple[ReplayState, jax.Array]:
        def step(carry: Any, step_key: jax.Array) -> Any:
            state, total = carry
            state = add_fn(state, {"x": jnp.full((num_steps, ENVS, width), total)})
            rows = jax.random.randint(step_key, (5,), 0, state.size)
            return (state, total + take(state.data, rows, rows % ENVS, ENVS)["x"].sum()), None

        return jax.lax.scan(step, (state, 0.0), jax.random.split(key, 50))[0]

    state, key = init_ring(num_rows, ENVS, {"x": jax.ShapeDtypeStruct((width,), jnp.float32)}), jax.random.key(0)
    shape = f"{num_rows},{ENVS},{width}"
    if seeds:
        state, key = jax.tree.map(lambda x: jnp.stack([x] * seeds), (state, key))
        loop, shape = jax.vmap(loop), f"{seeds},{shape}"
    text = jax.jit(loop, donate_argnums=0).lower(state, key).compile().as_text()
    return Counter(re.findall(rf"= f32\[{shape}\]\S* ([\w-]+)\(", text))


@pytest.mark.parametrize(("num_steps", "seeds"), [(1, 0), (3, 0), (2, 2)])
def test_writing_inside_a_loop_copies_no_buffer(num_steps: int, seeds: int) -> None:
    instructions = _instructions_on_the_whole_buffer(add_rows, num_steps, seeds)
    writes = instructions["scatter"] + instructions["dynamic-update-slice"]
    assert writes == 1, f"the buffer is written once and in place, got {instructions}"
    assert not {"copy", "select", "conditional", "concatenate"} & set(instructions), str(instructions)


def test_the_search_for_copies_finds_one_where_there_is_one() -> None:
    def add_by_choice(state: ReplayState, batch: Any) -> ReplayState:
        return jax.tree.map(lambda new, old: jnp.where(state.size > 3, new, old), add_rows(state, batch), state)

    instructions = _instructions_on_the_whole_buffer(add_by_choice, 3, 0)
    assert instructions["copy"]
    assert instructions["select"]


def test_entries_of_stored_transitions_are_replaced() -> None:
    state = init_ring(4, 2, {"a": jnp.zeros(()), "b": {"c": jnp.zeros(3)}})
    rows, envs = jnp.array([1, 3, 2**31 - 1]), jnp.array([0, 1, 0])
    changed = jax.jit(replace_entries)(state, rows, envs, {"b": {"c": jnp.ones((3, 3), jnp.int32)}})
    stored = np.asarray(changed.data["b"]["c"])
    assert stored.dtype == np.float32
    assert [tuple(place) for place in np.argwhere(stored.any(axis=-1))] == [(1, 0), (3, 1)]
    assert not changed.data["a"].any()

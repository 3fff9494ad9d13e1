"""Contract of all replay buffers. The test of a buffer defines how to build it and inherits the rest."""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from evorl.ops.collectives import DATA_AXIS
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from tests.support.compilation import compiled_to_run_long
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical, static_fractions
from tests.support.whole_programs import Whole, whole

NUM_ENVS, ROWS, DRAWS = 4, 12, 400
LONGER_THAN_THE_RING = 30


def history(num_rows: int, first: int = 0) -> SampleBatch:
    """Return steps whose values are ``100 t + b`` for step t of environment b; episodes have four steps."""
    t, b = np.meshgrid(np.arange(first, first + num_rows), np.arange(NUM_ENVS), indexing="ij")
    number = (100 * t + b).astype(np.float32)
    return SampleBatch(obs=number, rewards=-number, dones=t % 4 == 3)


class ReplayBufferContract:
    """Inherit as ``Test...`` and define ``make``."""

    # HLO types of stored leaves that a program may copy, with the reason.
    copied: ClassVar[frozenset[str]] = frozenset()

    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        """Build the buffer under test, for the data of ``history``."""
        raise NotImplementedError

    @functools.cached_property
    def buffer(self) -> UniformReplayBuffer:
        """Return a buffer with room for ``ROWS`` steps of ``NUM_ENVS`` environments."""
        return self.make(ROWS * NUM_ENVS, NUM_ENVS)

    @functools.cached_property
    def whole(self) -> Any:
        """Return the buffer with each method compiled as one program."""
        return Whole(self.buffer)

    def empty(self) -> ReplayState:
        """Return the state of an empty buffer."""
        return self.init_state(self.buffer, jax.tree.map(lambda x: x[0, 0], history(1)))

    @staticmethod
    def init_state(buffer: Any, sample_spec: Any) -> ReplayState:
        """Return the initial state of a buffer."""
        return Whole(buffer).init(sample_spec)

    def check_same(self, actual: ReplayState, expected: ReplayState) -> None:
        """Assert equal contents in equal positions."""
        assert_identical(actual, expected)

    def stored(self, num_rows: int, rows_at_once: int = 3) -> ReplayState:
        """Return the state after adding ``history``."""
        state = self.empty()
        for first in range(0, num_rows, rows_at_once):
            state = self.whole.add(state, history(rows_at_once, first))
        return state

    def test_it_is_structure_but_for_its_numbers(self) -> None:
        assert not static_fractions(self.buffer)
        assert all(isinstance(leaf, float) for leaf in jax.tree.leaves(self.buffer))
        other = self.make(ROWS * NUM_ENVS, NUM_ENVS)
        assert hash(jax.tree.structure(other)) == hash(jax.tree.structure(self.buffer))
        assert jax.tree.structure(other) == jax.tree.structure(self.buffer)

    def test_memory_is_known_before_it_is_taken(self) -> None:
        spec, state = jax.tree.map(lambda x: x[0, 0], history(1)), self.empty()
        data = sum(leaf.nbytes for leaf in jax.tree.leaves(state.data))
        whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        assert data <= self.buffer.num_bytes(spec) <= whole
        assert int(self.whole.num_transitions(state)) == int(self.whole.num_choices(state)) == 0

    def test_the_latest_are_kept(self) -> None:
        for num_rows in (3, 9, LONGER_THAN_THE_RING):
            state = self.stored(num_rows)
            num_stored = min(num_rows, ROWS)
            assert int(self.whole.num_transitions(state)) == num_stored * NUM_ENVS
            assert 0 <= int(self.whole.num_choices(state)) <= num_stored * NUM_ENVS
        steps = np.asarray(state.data.obs)[:, 0] // 100
        assert sorted(steps) == list(range(LONGER_THAN_THE_RING - ROWS, LONGER_THAN_THE_RING))

    def test_adding_keeps_the_types_of_the_state(self) -> None:
        state = self.empty()
        after = jax.eval_shape(self.buffer.add, state, history(3))
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(after)] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(state)
        ]

    def test_rows_at_once_do_not_show(self) -> None:
        self.check_same(self.stored(12, 12), self.stored(12, 1))
        self.check_same(self.stored(24, 6), self.stored(24, 4))

    def test_masked_rows_are_as_never_added(self) -> None:
        mask = np.array([True, False, False, True, True])
        state, more = self.stored(9), history(5, 9)
        expected = self.whole.add(state, jax.tree.map(lambda x: x[mask], more))
        self.check_same(self.whole.add(state, more, mask), expected)
        assert_identical(self.whole.add(state, more, np.zeros((), bool)), state)

    def test_what_is_drawn_is_stored_and_belongs_together(self) -> None:
        for num_rows in (9, LONGER_THAN_THE_RING):
            sample = self.whole.sample(self.stored(num_rows), jax.random.key(0), DRAWS)
            sample = jax.tree.map(np.asarray, sample)
            assert sample.obs.shape == (DRAWS,)
            np.testing.assert_array_equal(sample.rewards, -sample.obs)
            steps, envs = sample.obs // 100, sample.obs % 100
            np.testing.assert_array_equal(sample.dones, steps % 4 == 3)
            assert steps.min() >= max(0, num_rows - ROWS)
            assert steps.max() < num_rows
            assert set(envs.tolist()) == set(range(NUM_ENVS))

    def test_draws_follow_from_the_key(self) -> None:
        state, draw = self.stored(9), self.whole.draw_indices
        first = draw(state, jax.random.key(1), DRAWS)
        assert [x.dtype for x in first] == [jnp.int32] * 2
        assert_identical(draw(state, jax.random.key(1), DRAWS), first)
        assert_identical(draw(state, jax.random.PRNGKey(1), DRAWS), first)
        other = draw(state, jax.random.key(2), DRAWS)
        assert (np.stack(other) != np.stack(first)).any(axis=0).mean() > 0.5

    def test_an_empty_buffer_gives_zeros(self) -> None:
        sample = self.whole.sample(self.empty(), jax.random.key(0), DRAWS)
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(sample))

    def test_batches_that_do_not_fit_are_refused_in_words(self) -> None:
        state, batch = self.empty(), history(2)
        wrong = {
            ("13 rows", "12 rows"): history(ROWS + 1),
            ("dones", "float32[2, 4]", "bool[T, 4]"): batch.replace(dones=batch.obs),
            ("obs", "float32[2, 4, 1]"): batch.replace(obs=batch.obs[..., None]),
            ("the fields", "PyTreeDef"): batch.replace(actions=batch.obs),
        }
        for parts, wrong_batch in wrong.items():
            with raises_naming(ValueError, *parts):
                self.whole.add(state, wrong_batch)

    def test_impossible_sizes_are_refused_in_words(self) -> None:
        for (capacity, num_envs), parts in {
            (3, 4): ("num_envs=4", "replay_capacity=3"),
            (2**31, 4): ("num_envs=4", "replay_capacity=2147483648"),
            (8, 0): ("got num_envs=0",),
        }.items():
            with raises_naming(ValueError, *parts):
                self.make(capacity, num_envs)

    @pytest.mark.parametrize("num_devices", [2, 4])
    def test_devices_do_not_show(self, num_devices: int) -> None:
        """Adding and sampling on a mesh of environments gives the same result for every number of devices."""
        state = self.stored(18)
        by_env, of_all = PartitionSpec(None, DATA_AXIS), PartitionSpec()
        spec = jax.tree.map(lambda x: by_env if x.ndim > 1 else of_all, state)
        _check_on_mesh(self.buffer, state, history(3, 18), num_devices, (spec, by_env))

    def test_a_single_environment_is_whole_on_every_device(self) -> None:
        """A buffer with one environment, as used for populations, is replicated on every device."""
        buffer, rows = self.make(ROWS, 1), history(ROWS)[:, :1]
        state = self.init_state(buffer, jax.tree.map(lambda x: x[0, 0], rows))
        _check_on_mesh(buffer, state, rows, 2, (PartitionSpec(), PartitionSpec()))

    @compiled_to_run_long()
    def test_adding_inside_a_loop_copies_nothing(self) -> None:
        """Programs compiled as in training write to the buffer in place."""
        num_rows = 996  # a size that no other array has
        buffer = self.make(num_rows * NUM_ENVS, NUM_ENVS)

        def loop(state: ReplayState, key: jax.Array) -> ReplayState:
            def step(state: ReplayState, step_key: jax.Array) -> tuple[ReplayState, None]:
                drawn = buffer.sample(state, step_key, 5).obs.sum()
                return buffer.add(state, jax.tree.map(lambda x: x + drawn.astype(x.dtype), history(3))), None

            return jax.lax.scan(step, state, jax.random.split(key, 50))[0]

        spec = jax.tree.map(lambda x: x[0, 0], history(1))
        state = jax.eval_shape(lambda: self.init_state(buffer, spec))
        shape = ",".join(map(str, state.data.obs.shape))
        text = jax.jit(loop, donate_argnums=0).lower(state, jax.random.key(0)).compile().as_text()
        found = re.findall(rf"= (\w+)\[{shape}\]\S* ([\w-]+)\(", text)
        instructions = {instruction for kind, instruction in found if kind not in self.copied}
        assert {"scatter", "dynamic-update-slice", "fusion"} & instructions
        assert not {"copy", "select", "conditional", "concatenate"} & instructions, str(found)


def _check_on_mesh(
    buffer: UniformReplayBuffer, state: ReplayState, batch: SampleBatch, num_devices: int, specs: tuple
) -> None:
    """Assert that samples after adding ``batch`` equal those on one device."""
    mesh = jax.make_mesh(
        (num_devices,), (DATA_AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:num_devices]
    )

    of_all, key = PartitionSpec(), jax.random.key(5)
    sharded = jax.shard_map(
        functools.partial(_add_and_draw, buffer),
        mesh=mesh,
        in_specs=(*specs, of_all),
        out_specs=of_all,
        check_vma=False,
    )
    assert_identical(jax.jit(sharded)(state, batch, key), whole(_add_and_draw)(buffer, state, batch, key))


def _add_and_draw(buffer: UniformReplayBuffer, state: ReplayState, batch: SampleBatch, key: jax.Array) -> Any:
    state = buffer.add(state, batch)
    return buffer.sample(state, key, DRAWS), buffer.num_choices(state)

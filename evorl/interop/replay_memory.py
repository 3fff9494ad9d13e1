"""Stateful replay memory on the host, for transitions as dicts of NumPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import no_such
from evorl.config.values import LARGEST_FLOAT, short_repr
from evorl.envs.host.answers import changes_values
from evorl.interop.host_ring import DrawsAhead, HostRing
from evorl.interop.transitions import narrowed
from evorl.ops.trees import concatenate_trees, leaf_name, merged, num_rows, shape_and_dtype
from evorl.replay_buffers.episode import EpisodeReplayBuffer
from evorl.replay_buffers.latest import CombinedReplayBuffer
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer
from evorl.replay_buffers.ring import ReplayState, check_batch, replace_entries, take
from evorl.replay_buffers.sequence import SequenceReplayBuffer
from evorl.replay_buffers.slots import SlotReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key, PyTreeDict

_ON_HOST = (UniformReplayBuffer, CombinedReplayBuffer)  # sampled by random integers only, so stored in NumPy arrays
_MOST_AT_ONCE = 4096  # maximum rows per call; inputs are padded to a few sizes, because each size is compiled


class ReplayMemory:
    """Wraps one of evorl's replay buffers with its state, and converts between host and device.

    Uniform and combined buffers are stored in NumPy arrays, others in JAX arrays. Both sample the same transitions as
    the buffer itself for the same keys. A batch from NumPy arrays has strided leaves, which are fields of one array.

    The first transitions determine entries, shapes and dtypes. Each batch also has ``indices``, int32 ``[N]``, which
    ``take`` and ``update`` accept, and with prioritized sampling ``weights`` ``[N]`` with maximum 1. With a sequence
    buffer, leaves are ``[N, L, ...]``, ``indices`` refer to first steps, and ``mask``, bool ``[N, L]``, is False for
    steps that are not stored yet; ``dones`` mark ends of episodes within a sequence.

    Args:
        buffer: replay buffer, which determines capacity and sampling. Its ``num_envs`` is B for transitions
            ``[T, B, ...]``, and 1 for transitions ``[N, ...]``.
        extra_columns: shapes of additional float32 entries, by name, which are zeros in transitions that lack them.
        importance_exponent: importance-sampling exponent of ``weights``: 0 disables the correction, 1 is unbiased.
        seed: seed of sampling.

    Attributes:
        buffer: the replay buffer.

    Raises:
        TypeError: the buffer is an ``EpisodeReplayBuffer`` or a ``SlotReplayBuffer``, which require a ``SampleBatch``.
    """

    def __init__(
        self,
        buffer: UniformReplayBuffer,
        *,
        extra_columns: Mapping[str, Sequence[int]] | None = None,
        importance_exponent: float = 1.0,
        seed: int = 0,
    ) -> None:
        if isinstance(buffer, EpisodeReplayBuffer | SlotReplayBuffer):
            taken = type(buffer).__name__
            raise TypeError(f"a replay memory stores dicts, but {taken} requires a SampleBatch: use another buffer.")
        self.buffer = buffer
        self._num_rows, self._num_envs = buffer.num_rows, buffer.num_envs
        self._state: ReplayState | HostRing | None = None
        self._extra_columns = {name: tuple(shape) for name, shape in (extra_columns or {}).items()}
        self._importance_exponent = importance_exponent
        self._key = jax.random.key(seed)
        self._draws_ahead = DrawsAhead(self._key)
        self._num_drawn = 0
        self._num_added = 0  # rows added so far
        self._can_draw = False

    def __len__(self) -> int:
        """Return the number of stored transitions."""
        return min(self._num_added, self._num_rows) * self._num_envs

    @property
    def state(self) -> ReplayState | None:
        """Stored transitions; ``None`` before the first. ``store`` and ``update`` change or delete these arrays."""
        return self._state.state if isinstance(self._state, HostRing) else self._state

    @property
    def num_bytes(self) -> int:
        """Allocated memory in bytes, including free capacity; 0 before the first transitions."""
        if isinstance(self._state, HostRing):
            return self._state.nbytes
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._state))

    def store(self, transitions: Mapping[str, Any]) -> np.ndarray:
        """Add transitions, evicting the oldest ones if the buffer is full.

        Args:
            transitions: leaves ``[N, ...]``, or ``[T, B, ...]`` with several environments.

        Returns:
            Indices of the transitions, int32 ``[N]`` or ``[T, B]``. If they exceed the capacity, only indices of the
            newest ones are valid.

        Raises:
            ValueError: leading axes are wrong, integers exceed 32 bits, or entries, shapes or dtypes have changed.
        """
        leaves = self._state.matching_leaves(transitions) if isinstance(self._state, HostRing) else None
        if isinstance(self._state, HostRing) and leaves is not None:
            total = len(leaves[0])
            self._state.add(leaves)
        else:
            total = self._store_converted(self._complete(transitions))
        indices = self._indices_of_new(total)
        self._num_added += total
        return indices

    def _store_converted(self, batch: PyTreeDict) -> int:
        """Check and add transitions ``[T, B, ...]``, with 64-bit numbers converted to 32 bits; return T."""
        if self._state is None:
            self._state = self._empty(batch)
        if isinstance(self._state, HostRing):
            self._state.add(self._host_leaves(self._state, batch))
        else:
            self._add_to_device(self._state, batch)
        return num_rows(batch)

    def _empty(self, batch: PyTreeDict) -> ReplayState | HostRing:
        spec = jax.tree.map(lambda x: shape_and_dtype(x.shape[2:], x.dtype), batch)
        if type(self.buffer) in _ON_HOST:
            return HostRing(self._num_rows, self._num_envs, spec)
        return jax.jit(self.buffer.init)(spec)

    def _host_leaves(self, ring: HostRing, batch: PyTreeDict) -> list[np.ndarray]:
        """Return the leaves of ``batch`` ``[T, B, ...]`` for ``HostRing.add``."""
        check_batch(ring.state.data, jax.tree.map(lambda x: x[: self._num_rows], batch))
        leaves = jax.tree.leaves(batch)
        return [x[:, 0] for x in leaves] if self._num_envs == 1 else leaves

    def _add_to_device(self, state: ReplayState, batch: PyTreeDict) -> None:
        total, most = num_rows(batch), min(self._num_rows, _MOST_AT_ONCE)
        for start in range(0, total, most):
            part = jax.tree.map(lambda x, a=start: x[a : a + most], batch)
            count = num_rows(part)
            padded = min(1 << (count - 1).bit_length(), most)
            part = jax.tree.map(lambda x, n=padded - count: _with_rows(x, n), part)
            self._state = state = _add(self.buffer, state, part, np.arange(padded) < count)

    def _indices_of_new(self, total: int) -> np.ndarray:
        num_envs, size = self._num_envs, self._num_rows
        first = self._num_added % size
        rows = np.arange(first, first + total, dtype=np.int32)
        if first + total > size:
            rows %= np.int32(size)
        return rows if num_envs == 1 else rows[:, None] * np.int32(num_envs) + np.arange(num_envs, dtype=np.int32)

    def sample(self, batch_size: int, num_batches: int | None = None) -> Any:
        """Sample random transitions with replacement.

        Returns:
            A batch, leaves ``[batch_size, ...]``; if ``num_batches`` is set, a list of ``num_batches`` independent
            batches. ``None`` if the buffer cannot be sampled yet.
        """
        state, count = self._state, 1 if num_batches is None else num_batches
        if state is None or self._num_added == 0:
            return None
        if isinstance(state, HostRing):
            batches = self._sample_on_host(state, batch_size, count)
        else:
            self._can_draw = self._can_draw or bool(self.buffer.num_choices(state) > 0)
            if not self._can_draw:
                return None
            call, exponent = np.uint32(self._num_drawn), self._importance_exponent
            size = {"batch_size": batch_size, "num_batches": count}
            drawn = jax.device_get(_draw(self.buffer, state, self._key, call, exponent, **size))
            batches = [jax.tree.map(lambda x, i=i: np.array(x[i]), drawn) for i in range(count)]
        self._num_drawn += 1
        return batches[0] if num_batches is None else batches

    def _sample_on_host(self, ring: HostRing, batch_size: int, num_batches: int) -> list[PyTreeDict]:
        num_envs = self._num_envs
        indices = self._draws_ahead.integers(self._num_drawn, num_batches, batch_size, ring.size * num_envs)
        if isinstance(self.buffer, CombinedReplayBuffer):
            newest = (ring.cursor - 1) % self._num_rows * num_envs
            indices[:, :num_envs] = np.arange(newest, newest + min(num_envs, batch_size))
        return [ring.take(of_batch) for of_batch in indices]

    def take(self, indices: Any) -> PyTreeDict:
        """Return the transitions, or the sequences, at indices ``[N]``: a batch without ``weights``.

        Raises:
            ValueError: nothing is stored yet, or an index is not an integer, or nothing is stored there.
        """
        state, indices = self._stored(), self._checked(indices)
        if isinstance(state, HostRing):
            return state.take(indices)
        return jax.tree.map(np.array, _take(self.buffer, state, indices))

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change stored transitions.

        Args:
            changes: ``indices`` ``[N]``; optionally finite ``errors`` ``[N]``, which set the priorities, and new values
                of entries by name, leaves ``[N, ...]``.

        Raises:
            ValueError: ``indices`` are missing or not integers, nothing is stored at an index or at all, an entry is
                unknown, has the wrong shape or does not fit the stored dtype, an error is not finite, or the buffer has
                no priorities for ``errors``. Nothing is changed then.
        """
        entries = dict(changes)
        indices = entries.pop("indices", None)
        if indices is None:
            raise ValueError(
                f"changes of stored transitions must have the entry 'indices', as in a batch; got {sorted(changes)}."
            )
        state, indices = self._stored(), self._checked(indices)
        data, leading = (state.state if isinstance(state, HostRing) else state).data, indices.shape
        errors = entries.pop("errors", None)
        for name in entries:
            if name not in data:
                raise ValueError(no_such("transition entry", name, data))
            entries[name] = jax.tree.map(functools.partial(_checked_values, name, leading), data[name], entries[name])
        if errors is not None:
            if not isinstance(self.buffer, PrioritizedReplayBuffer):
                raise ValueError(
                    f"errors set priorities, which {type(self.buffer).__name__} lacks: use a prioritized buffer."
                )
            errors = _checked_values("errors", leading, shape_and_dtype((0, 0), np.float32), errors)
            if not (np.abs(errors) <= LARGEST_FLOAT).all():
                raise ValueError(f"errors must be finite float32 numbers, got {short_repr(errors.tolist())}.")
        if isinstance(state, HostRing):
            state.replace(indices, entries)
            return
        rows, envs = np.divmod(indices, np.int32(self._num_envs))
        if entries:
            self._state = state = _replace(state, rows, envs, entries)  # deletes the previous state
        if errors is not None and errors.size:
            self._state = _set_priorities(self.buffer, state, rows, envs, errors.astype(np.float32))

    def _stored(self) -> ReplayState | HostRing:
        if self._state is None or not len(self):
            raise ValueError("nothing is stored yet: store transitions first.")
        return self._state

    def _checked(self, indices: Any) -> np.ndarray:
        """Return indices as int32; raise ``ValueError`` for one that is not an integer, or where nothing is stored."""
        checked = np.asarray(indices)
        is_whole = checked.dtype.kind in "iu"
        if checked.size and not (is_whole and checked.min() >= 0 and checked.max() < len(self)):
            got = f"{checked.min()} to {checked.max()}" if is_whole else f"dtype {checked.dtype.name}"
            raise ValueError(
                f"indices of stored transitions must be integers from 0 to {len(self) - 1}, as returned by store "
                f"and in each batch; got {got}."
            )
        return checked.astype(np.int32)

    def _complete(self, transitions: Mapping[str, Any]) -> PyTreeDict:
        """Return transitions with the extra columns and an axis of environments, leaves ``[T, B, ...]``."""
        num_envs = self._num_envs
        batch = jax.tree.map_with_path(lambda path, x: narrowed(leaf_name(path), x), PyTreeDict(transitions))
        if num_envs == 1:
            batch = jax.tree.map(lambda x: x[:, None], batch)
        leading = {x.shape[:2] for x in jax.tree.leaves(batch)}
        if len(leading) != 1 or next(iter(leading))[1:] != (num_envs,):
            shapes = {name: jax.tree.map(np.shape, entry) for name, entry in transitions.items()}
            axes = "[N]" if num_envs == 1 else f"[T, {num_envs}]"
            raise ValueError(f"all entries of transitions must start with the axes {axes}, got the shapes {shapes}.")
        shape = leading.pop()
        for name, column_shape in self._extra_columns.items():
            batch.setdefault(name, np.zeros((*shape, *column_shape), np.float32))
        first = batch.keys() if self.state is None else self.state.data.keys()
        if batch.keys() != first:
            raise ValueError(
                f"all transitions must have the same entries: unexpected {sorted(batch.keys() - first)}, missing "
                f"{sorted(first - batch.keys())}. List entries that only some transitions have in extra_columns."
            )
        return batch


def _checked_values(name: str, leading: tuple[int, ...], storage: Any, new: Any) -> np.ndarray:
    """Return new values of ``storage`` ``[R, B, ...]`` as an array ``[*leading, ...]`` that fits the stored dtype."""
    array, shape = np.asarray(new), (*leading, *storage.shape[2:])
    if array.shape != shape:
        raise ValueError(f"new values of {name} must have shape {list(shape)}, got {list(array.shape)}.")
    if not np.can_cast(array.dtype, np.float64, "same_kind") or changes_values(array, storage.dtype):
        raise ValueError(f"new values of {name} must fit {storage.dtype.name}, got {short_repr(array.tolist())}.")
    return array


def _with_rows(x: np.ndarray, count: int) -> np.ndarray:
    return concatenate_trees([x, np.zeros((count, *x.shape[1:]), x.dtype)]) if count else x


@functools.partial(jax.jit, donate_argnums=1)
def _add(buffer: UniformReplayBuffer, state: ReplayState, batch: PyTreeDict, mask: jax.Array) -> ReplayState:
    return buffer.add(state, batch, mask)


@functools.partial(jax.jit, static_argnames=("batch_size", "num_batches"))
def _draw(
    buffer: UniformReplayBuffer,
    state: ReplayState,
    key: Key,
    call: jax.Array,
    exponent: jax.Array,
    *,
    batch_size: int,
    num_batches: int,
) -> PyTreeDict:
    def draw(key: Key) -> PyTreeDict:
        rows, envs = buffer.draw_indices(state, key, batch_size)
        indices = rows * buffer.num_envs + envs
        others = PyTreeDict(indices=indices)
        if isinstance(buffer, PrioritizedReplayBuffer):
            # A prioritized buffer's state has priorities, which the annotated type lacks.
            weights = buffer.importance_weights(state, rows, envs, exponent)  # pyright: ignore[reportArgumentType]
            others.weights = weights / weights.max()
        return merged(_transitions(buffer, state, indices), others)

    return jax.vmap(draw)(jax.random.split(jax.random.fold_in(key, call), num_batches))


@jax.jit
def _take(buffer: UniformReplayBuffer, state: ReplayState, indices: jax.Array) -> PyTreeDict:
    return merged(_transitions(buffer, state, indices), {"indices": indices})


def _transitions(buffer: UniformReplayBuffer, state: ReplayState, indices: jax.Array) -> PyTreeDict:
    rows, envs = indices // buffer.num_envs, indices % buffer.num_envs
    if not isinstance(buffer, SequenceReplayBuffer):
        return take(state.data, rows, envs, buffer.num_envs)
    steps = jnp.arange(buffer.length, dtype=jnp.int32)
    window = (rows[:, None] + steps) % buffer.num_rows  # [N, L]
    batch = take(state.data, window, jnp.broadcast_to(envs[:, None], window.shape), buffer.num_envs)
    age = (rows - (state.cursor - state.size)) % buffer.num_rows
    return merged(batch, {"mask": steps < (state.size - age)[:, None]})


_replace = jax.jit(replace_entries, donate_argnums=0)


@functools.partial(jax.jit, donate_argnums=1)
def _set_priorities(
    buffer: PrioritizedReplayBuffer, state: Any, rows: jax.Array, envs: jax.Array, errors: jax.Array
) -> ReplayState:
    return buffer.set_priorities(state, rows, envs, errors)

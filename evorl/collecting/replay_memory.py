"""Stateful replay memory on the host, for transitions as dicts of NumPy arrays with any names."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import no_such
from evorl.ops.trees import concatenate_trees, merged, num_rows
from evorl.replay_buffers.episode import EpisodeReplayBuffer
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer
from evorl.replay_buffers.ring import ReplayState, replace_entries, take
from evorl.replay_buffers.sequence import SequenceReplayBuffer
from evorl.replay_buffers.slots import SlotReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key, PyTreeDict

_MOST_AT_ONCE = 4096  # maximum rows per call; inputs are padded to a few sizes, because each size is compiled


class ReplayMemory:
    """Wraps one of evorl's replay buffers with its state, and converts between host and device.

    The first transitions determine entries, shapes and dtypes. Each batch also has ``indices``, int32 ``[N]``, which
    ``take`` and ``update`` accept, and with prioritized sampling ``weights`` ``[N]`` with maximum 1. With a sequence
    buffer, leaves are ``[N, L, *]``, ``indices`` refer to first steps, and ``mask``, bool ``[N, L]``, is True for steps
    that are stored; ``dones`` mark ends of episodes within a sequence.

    Args:
        buffer: replay buffer, which determines capacity and sampling. Its ``num_envs`` is B for transitions
            ``[T, B, ...]``, and 1 for transitions ``[N, ...]``.
        extra_columns: shapes of additional float32 entries, by name, which are zeros in transitions that lack them.
        importance_exponent: importance-sampling exponent of ``weights``; 1 is unbiased.
        seed: seed of sampling.

    Attributes:
        state: state of the replay buffer; ``None`` before the first transitions.

    Raises:
        TypeError: the buffer samples episodes, which need another storage format.
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
            raise TypeError(f"a replay memory stores steps by any names; {taken} takes a SampleBatch.")
        self.buffer = buffer
        self.state: ReplayState | None = None
        self._extra_columns = {name: tuple(shape) for name, shape in (extra_columns or {}).items()}
        self._importance_exponent = importance_exponent
        self._key = jax.random.key(seed)
        self._num_drawn = 0
        self._num_added = 0  # rows, ever
        self._can_draw = False

    def __len__(self) -> int:
        """Return the number of stored transitions."""
        return min(self._num_added, self.buffer.num_rows) * self.buffer.num_envs

    @property
    def num_bytes(self) -> int:
        """Allocated memory in bytes, including free capacity; 0 before the first transitions."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.state))

    def store(self, transitions: Mapping[str, Any]) -> np.ndarray:
        """Add transitions, evicting the oldest ones if the buffer is full.

        Args:
            transitions: leaves ``[N, ...]``, or ``[T, B, ...]`` with several environments.

        Returns:
            Their indices, int32 ``[N]`` or ``[T, B]``. If there are more transitions than capacity, only the indices of
            the newest ones remain valid.

        Raises:
            ValueError: entries, shapes or dtypes differ from the first transitions.
        """
        num_envs, size = self.buffer.num_envs, self.buffer.num_rows
        batch = self._complete(transitions)
        if self.state is None:
            self.state = jax.jit(self.buffer.init)(
                jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), batch)
            )
        total, most = num_rows(batch), min(size, _MOST_AT_ONCE)
        for start in range(0, total, most):
            part = jax.tree.map(lambda x, a=start: x[a : a + most], batch)
            count = num_rows(part)
            padded = min(1 << (count - 1).bit_length(), most)
            part = jax.tree.map(lambda x, n=padded - count: _with_rows(x, n), part)
            self.state = _add(self.buffer, self.state, part, np.arange(padded) < count)
        rows = (self._num_added + np.arange(total)) % size
        self._num_added += total
        indices = (rows[:, None] * num_envs + np.arange(num_envs)).astype(np.int32)
        return indices[:, 0] if num_envs == 1 else indices

    def sample(self, batch_size: int, num_batches: int | None = None) -> Any:
        """Sample random transitions with replacement.

        Returns:
            A batch, leaves ``[batch_size, ...]``, or a list of ``num_batches`` independent batches; ``None`` as long as
            the buffer cannot be sampled.
        """
        if self.state is None:
            return None
        self._can_draw = self._can_draw or bool(self.buffer.num_choices(self.state) > 0)
        if not self._can_draw:
            return None
        call = np.uint32(self._num_drawn)
        self._num_drawn += 1
        drawn = _draw(self.buffer, self.state, self._key, call, self._importance_exponent, batch_size, num_batches or 1)
        drawn = jax.device_get(drawn)
        batches = [jax.tree.map(lambda x, i=i: np.array(x[i]), drawn) for i in range(num_batches or 1)]
        return batches[0] if num_batches is None else batches

    def take(self, indices: Any) -> PyTreeDict:
        """Return the transitions, or the sequences, at indices ``[N]``.

        Raises:
            ValueError: nothing is stored yet.
        """
        return jax.tree.map(np.array, _take(self.buffer, self._stored(), jnp.asarray(indices, jnp.int32)))

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change stored transitions.

        Args:
            changes: ``indices`` ``[N]``; optionally ``errors`` ``[N]``, which set their priorities, and new values of
                entries by name, leaves ``[N, ...]``.

        Raises:
            ValueError: ``indices`` are missing, an entry is unknown, the buffer is not prioritized, or nothing is
            stored
                yet.
        """
        entries = dict(changes)
        indices = entries.pop("indices", None)
        if indices is None:
            raise ValueError(
                f"changes of stored transitions name them by indices, as each batch has them; got {sorted(changes)}."
            )
        state = self._stored()
        rows, envs = np.divmod(np.asarray(indices, np.int32), np.int32(self.buffer.num_envs))
        errors = entries.pop("errors", None)
        for name in entries:
            if name not in state.data:
                raise ValueError(no_such("entry of stored transitions", name, state.data))
        if errors is not None and not isinstance(self.buffer, PrioritizedReplayBuffer):
            raise ValueError(
                f"{type(self.buffer).__name__} draws without priorities: errors are for prioritized buffers."
            )
        if entries:
            state = _replace(state, rows, envs, _as_stored(entries, state.data, rows.shape))
        if errors is not None:
            state = _set_priorities(self.buffer, state, rows, envs, np.asarray(errors, np.float32))
        self.state = state

    def _stored(self) -> ReplayState:
        if self.state is None:
            raise ValueError("nothing is stored yet: store transitions first.")
        return self.state

    def _complete(self, transitions: Mapping[str, Any]) -> PyTreeDict:
        """Add the extra columns, and the axis of environments: leaves ``[T, B, ...]``."""
        num_envs = self.buffer.num_envs
        batch = jax.tree.map(np.asarray, PyTreeDict(transitions))
        if num_envs == 1:
            batch = jax.tree.map(lambda x: x[:, None], batch)
        leading = {x.shape[:2] for x in jax.tree.leaves(batch)}
        if len(leading) != 1 or next(iter(leading))[1:] != (num_envs,):
            shapes = {name: jax.tree.map(np.shape, entry) for name, entry in transitions.items()}
            axes = "[N]" if num_envs == 1 else f"[T, {num_envs}]"
            raise ValueError(f"all entries of transitions lead with the axes {axes}, got {shapes}.")
        shape = leading.pop()
        for name, own in self._extra_columns.items():
            batch.setdefault(name, np.zeros((*shape, *own), np.float32))
        if self.state is not None and batch.keys() != self.state.data.keys():
            first = self.state.data.keys()
            raise ValueError(
                f"transitions have other entries than the first ones: new are {sorted(batch.keys() - first)}, lacking "
                f"{sorted(first - batch.keys())}. What is not always there is named in extra_columns."
            )
        return batch


def _as_stored(entries: Mapping[str, Any], data: PyTreeDict, leading: tuple[int, ...]) -> dict[str, Any]:
    """Convert new values of entries to arrays of the stored shapes, leaves ``[*leading, ...]``."""

    def as_stored(name: str) -> Any:
        def convert(storage: jax.Array, new: Any) -> np.ndarray:
            array, shape = np.asarray(new), (*leading, *storage.shape[2:])
            if array.shape != shape:
                raise ValueError(f"new values of {name} have the shape {list(shape)}, got {list(array.shape)}.")
            return array

        return jax.tree.map(convert, data[name], entries[name])

    return {name: as_stored(name) for name in entries}


def _with_rows(x: np.ndarray, count: int) -> np.ndarray:
    return concatenate_trees([x, np.zeros((count, *x.shape[1:]), x.dtype)]) if count else x


@functools.partial(jax.jit, donate_argnums=1)
def _add(buffer: UniformReplayBuffer, state: ReplayState, batch: PyTreeDict, mask: jax.Array) -> ReplayState:
    return buffer.add(state, batch, mask)


@functools.partial(jax.jit, static_argnums=(5, 6))
def _draw(
    buffer: UniformReplayBuffer,
    state: ReplayState,
    key: Key,
    call: jax.Array,
    exponent: jax.Array,
    batch_size: int,
    num_batches: int,
) -> PyTreeDict:
    def draw(key: Key) -> PyTreeDict:
        rows, envs = buffer.draw_indices(state, key, batch_size)
        indices = rows * buffer.num_envs + envs
        others = PyTreeDict(indices=indices)
        if isinstance(buffer, PrioritizedReplayBuffer):
            # The state of a prioritized buffer has priorities, which its annotated type lacks.
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


@functools.partial(jax.jit, donate_argnums=0)
def _replace(state: ReplayState, rows: jax.Array, envs: jax.Array, entries: dict[str, Any]) -> ReplayState:
    return replace_entries(state, rows, envs, entries)


@functools.partial(jax.jit, donate_argnums=1)
def _set_priorities(
    buffer: PrioritizedReplayBuffer, state: Any, rows: jax.Array, envs: jax.Array, errors: jax.Array
) -> ReplayState:
    return buffer.set_priorities(state, rows, envs, errors)

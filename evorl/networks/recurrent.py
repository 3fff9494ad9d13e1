"""Recurrent networks: a torso, a recurrent cell and a head.

The state of a cell is a pytree of arrays ``[..., *]``, zeros at the start of an episode. Its floats are float32,
also for a cell that computes in bfloat16: the cell rounds only the operands of matrix multiplications.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.config.custom_parts import custom_class, custom_part
from evorl.config.names import is_custom_name, name_and_options, no_such
from evorl.config.values import whole_number
from evorl.networks.gated_transformer import GTrXL, linear
from evorl.networks.heads import torso_output
from evorl.networks.layers import Dense, Dtype, float32_outputs, orthogonal_matrix
from evorl.networks.linear_cells import LRU, MIN_MODULUS, MinGRU
from evorl.networks.torsos import MAX_UNITS, Layer, Torso
from evorl.ops.trees import zeros_where
from evorl.types import Observation, PyTreeDict

CellState: TypeAlias = PyTreeDict
_SETTING = "agent.network.recurrent"  # for messages


class GatedCell(nn.Module):
    """Cell whose gates are sums of a part that depends on the inputs and a part that depends on the state.

    Attributes:
        size: number of units.
        dtype: dtype of the operands of matrix multiplications, float32 or bfloat16; results are float32.
    """

    size: int = 128
    dtype: Dtype = "float32"

    def inputs(self, x: jax.Array) -> jax.Array:
        """Return the input projections of all gates, ``[..., F] -> [..., gates * size]``, of one step or many."""
        return self.input_gates(x)


class GRU(GatedCell):
    """Gated recurrent unit (Cho et al. 2014, https://arxiv.org/abs/1406.1078); the reset gate multiplies ``W h``."""

    def initial_state(self, shape: tuple[int, ...] = ()) -> CellState:
        """Return ``hidden``, zeros ``[*shape, size]``."""
        return PyTreeDict(hidden=jnp.zeros((*shape, self.size)))

    def setup(self) -> None:
        self.input_gates = linear(3 * self.size, self.dtype)
        self.state_gates = _state_product(3 * self.size, self.dtype, use_bias=True)

    def __call__(self, state: CellState, inputs: jax.Array) -> tuple[CellState, jax.Array]:
        """Return the next state and the output ``[..., size]``; ``inputs`` is the result of the method ``inputs``."""
        reset_x, update_x, new_x = jnp.split(inputs, 3, axis=-1)
        reset_h, update_h, new_h = jnp.split(self.state_gates(state.hidden), 3, axis=-1)
        new = jnp.tanh(new_x + nn.sigmoid(reset_x + reset_h) * new_h)
        update = nn.sigmoid(update_x + update_h)
        hidden = (1.0 - update) * new + update * state.hidden
        return PyTreeDict(hidden=hidden), hidden


class LSTM(GatedCell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; with the forget gate of Gers et al. 2000)."""

    def initial_state(self, shape: tuple[int, ...] = ()) -> CellState:
        """Return ``cell`` and ``hidden``, zeros ``[*shape, size]``."""
        return PyTreeDict(cell=jnp.zeros((*shape, self.size)), hidden=jnp.zeros((*shape, self.size)))

    def setup(self) -> None:
        self.input_gates = linear(4 * self.size, self.dtype)
        self.state_gates = _state_product(4 * self.size, self.dtype)

    def __call__(self, state: CellState, inputs: jax.Array) -> tuple[CellState, jax.Array]:
        """Return the next state and the output ``[..., size]``; ``inputs`` is the result of the method ``inputs``."""
        gates = inputs + self.state_gates(state.hidden)
        write, forget, new, read = jnp.split(gates, 4, axis=-1)
        # A forget bias of 1 lets an untrained cell retain its content (Jozefowicz et al. 2015, section 4).
        cell = nn.sigmoid(forget + 1.0) * state.cell + nn.sigmoid(write) * jnp.tanh(new)
        hidden = nn.sigmoid(read) * jnp.tanh(cell)
        return PyTreeDict(cell=cell, hidden=hidden), hidden


class DilatedLSTM(LSTM):
    """LSTM whose units are divided into cores that update cyclically (after Vezhnevets et al. 2017, section 3.3,
    https://arxiv.org/abs/1703.01161).

    At step t of an episode only the units of core ``t mod num_cores`` change; the others keep their ``cell`` and
    ``hidden``, so that gradients reach ``num_cores`` times further back. With one core, this is a plain LSTM.

    Attributes:
        num_cores: number of cores; must divide ``size``.
    """

    num_cores: int = 4

    def initial_state(self, shape: tuple[int, ...] = ()) -> CellState:
        """Return ``cell`` and ``hidden``, zeros ``[*shape, size]``, and ``step``, int32 ``shape``."""
        return super().initial_state(shape) | {"step": jnp.zeros(shape, jnp.int32)}

    def __call__(self, state: CellState, inputs: jax.Array) -> tuple[CellState, jax.Array]:
        core = state.step[..., None] % self.num_cores
        is_active = jnp.arange(self.size) // (self.size // self.num_cores) == core  # [..., size]
        new_state, _ = super().__call__(state, inputs)
        cell, hidden = (jnp.where(is_active, new_state[name], state[name]) for name in ("cell", "hidden"))
        return PyTreeDict(cell=cell, hidden=hidden, step=state.step + 1), hidden


Cell: TypeAlias = GRU | LSTM | DilatedLSTM | MinGRU | LRU | GTrXL
_CELLS: dict[str, type[Cell]] = {
    "gru": GRU,
    "lstm": LSTM,
    "dilated_lstm": DilatedLSTM,
    "min_gru": MinGRU,
    "lru": LRU,
    "gtrxl": GTrXL,
}


class RecurrentNetwork(nn.Module):
    """Network whose outputs depend on the observations of the episode so far: torso, recurrent cell, head.

    Attributes:
        torso: maps an observation to the inputs of the cell; a module such as ``Torso``.
        cell: a recurrent cell, see ``build_cell``.
        head: network that reads the outputs of the cell, such as a ``PolicyNetwork`` or ``QNetwork``.
        observation_ndim: number of axes of one observation.
    """

    torso: nn.Module
    cell: Cell
    head: nn.Module
    observation_ndim: int = 1

    def initial_state(self, shape: tuple[int, ...] = ()) -> CellState:
        """Return the state at the start of an episode, zeros ``[*shape, ...]``."""
        return self.cell.initial_state(shape)

    def __call__(self, obs: Observation, state: CellState) -> tuple[jax.Array, CellState]:
        """Take one step; return the output for observations ``[..., *observation]`` and the next state ``[..., *]``."""
        state, outputs = self.cell(state, self._cell_inputs(obs))
        return self.head(outputs), state

    def unroll(self, obs: Observation, state: CellState, starts: jax.Array) -> tuple[jax.Array, CellState]:
        """Run the steps in sequence: return outputs ``[T, B, ...]`` and the state after each step, ``[T, B, *]``.

        Args:
            obs: ``[T, B, *observation]``.
            state: state before the first step, ``[B, *]``.
            starts: True where a step is the first of an episode, ``[T, B]``; the state is reset to zeros before it.
        """
        unroll = getattr(self.cell, "unroll", None)
        if unroll is not None:
            states, outputs = unroll(state, self._cell_inputs(obs), starts)
            return self.head(outputs), states

        def one_step(cell: Cell, state: CellState, row: tuple[jax.Array, jax.Array]) -> tuple[CellState, Any]:
            inputs, start = row
            state, outputs = cell(zeros_where(start, state), inputs)
            return state, (outputs, state)

        steps = nn.scan(one_step, variable_broadcast="params", split_rngs={"params": False})
        _, (outputs, states) = steps(self.cell, state, (self._cell_inputs(obs), starts))
        return self.head(outputs), states

    def after_burn_in(
        self, obs: Observation, next_obs: Observation, state: CellState, starts: jax.Array, burn_in: int
    ) -> tuple[jax.Array, jax.Array]:
        """Return the outputs for ``obs`` and for ``next_obs`` after the burn-in, ``[T - burn_in, N, ...]`` each.

        The first ``burn_in`` steps only update the state, without gradients (Kapturowski et al. 2019, section 3).
        ``next_obs`` is evaluated with the state of the same episode, even where ``obs`` continues with a new episode.

        Args:
            obs: ``[T, N, *observation]``.
            next_obs: ``[T, N, *observation]``.
            state: state before the first step, ``[N, *]``.
            starts: True where a step is the first of an episode, ``[T, N]``.
            burn_in: number of initial steps without outputs.
        """
        if burn_in:
            _, states = self.unroll(obs[:burn_in], state, starts[:burn_in])
            state = jax.lax.stop_gradient(jax.tree.map(lambda x: x[-1], states))
        outputs, states = self.unroll(obs[burn_in:], state, starts[burn_in:])
        return outputs, self(next_obs[burn_in:], states)[0]

    def _cell_inputs(self, obs: Observation) -> jax.Array:
        # user-defined cells expect float32
        return self.cell.inputs(torso_output(self.torso, obs, self.observation_ndim).astype(jnp.float32))


def assemble(
    torso: Torso,
    cell: Cell,
    head_layers: tuple[Layer, ...],
    head: Callable[[nn.Module, int], nn.Module],
    observation_ndim: int,
) -> nn.Module:
    """Build a network of a torso, a recurrent cell, the layers ``head_layers`` and a head.

    The function ``head`` builds a network, such as a ``PolicyNetwork``, from a torso and its number of input axes.
    """
    # Modules are cloned, because one that occurs twice in a network would share its parameters.
    cell = cell.clone(dtype=torso.dtype) if isinstance(cell, Cell) else cell.clone()
    return RecurrentNetwork(torso.clone(), cell, head(torso.clone(layers=head_layers), 1), observation_ndim)


def computing_in(network: nn.Module, dtype: Dtype) -> nn.Module:
    """Return a copy of a network whose layers and cells compute in ``dtype``; the parameters are the same."""
    changes: dict[str, Any] = {"dtype": dtype} if isinstance(network, Torso | Cell) else {}
    for field in dataclasses.fields(network):
        value = getattr(network, field.name)
        if isinstance(value, nn.Module) and field.name != "parent":
            changes[field.name] = computing_in(value, dtype)
    return network.clone(**changes)


def build_cell(config: Any) -> Cell | None:
    """Build a recurrent cell from a name, ``gru``, ``lstm``, ``dilated_lstm``, ``min_gru``, ``lru`` or ``gtrxl``, or
    from a mapping with ``name``, ``size`` and other attributes of the cell. Return ``None`` for ``None``.

    ``package.module:Class`` is a user-defined cell: a Flax module with ``initial_state``, ``inputs`` and ``__call__``,
    as in ``GRU``, and optionally ``unroll``, as in ``MinGRU``.

    Raises:
        ValueError: the cell or an option is unknown, a value is invalid, or a user-defined cell lacks a method.
    """
    if config is None:
        return None
    kind, options = name_and_options(config)
    if is_custom_name(kind):
        cls = custom_class(kind, nn.Module, f"{_SETTING}.name")
        if missing := [name for name in ("initial_state", "inputs", "__call__") if not hasattr(cls, name)]:
            raise ValueError(
                f"{_SETTING}.name={kind} lacks {' and '.join(missing)}: a cell has the methods initial_state, inputs "
                "and __call__, as in evorl.networks.recurrent.GRU."
            )
        return custom_part(kind, options, _SETTING).call()
    if not isinstance(kind, str) or kind not in _CELLS:
        raise ValueError(f"{_SETTING}: {no_such('recurrent cell', kind, _CELLS)}")
    names = [f.name for f in dataclasses.fields(_CELLS[kind]) if f.name not in ("dtype", "parent", "name")]
    for name, value in options.items():
        if name not in names:
            raise ValueError(f"{_SETTING}: {no_such(f'option of recurrent cell {kind}', name, names)}")
        options[name] = whole_number(value, f"{_SETTING}.{name}", 1, MAX_UNITS)
    cell = _CELLS[kind](**options)
    for name in ("num_cores", "num_heads"):
        if cell.size % (parts := getattr(cell, name, 1)):
            raise ValueError(
                f"{_SETTING}: size={cell.size} cannot be divided by {name}={parts}: set {name} to a divisor."
            )
    if isinstance(cell, LRU) and 1.0 - 1.0 / cell.horizon <= MIN_MODULUS:
        raise ValueError(f"{_SETTING}.horizon of lru must be more than 10 steps, got {cell.horizon}.")
    return cell


def _state_product(size: int, dtype: Dtype, use_bias: bool = False) -> nn.Dense:
    return Dense(size, use_bias=use_bias, kernel_init=orthogonal_matrix, **float32_outputs(dtype))

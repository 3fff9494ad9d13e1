"""State and update rules of the parameter server, as pure functions.

Workers fetch parameters (``pull``), learn from their own environments, and send gradients or parameter changes
(``push``). The mode determines how pushes of different staleness are combined:

- ``fifo``: asynchronous SGD (Mnih et al. 2016, https://arxiv.org/abs/1602.01783). Each gradient is one optimizer step,
  in the order of arrival, regardless of its staleness.
- ``averaging``: synchronous SGD with backup workers (Chen et al. 2016, https://arxiv.org/abs/1604.00981). The mean of
  ``num_gradients`` gradients is one optimizer step. Gradients of outdated parameters are dropped.
- ``delay_compensation``: ``g' = g + lambda g * g * (theta - theta_old)`` is one optimizer step, where ``theta_old`` are
  the parameters that the worker pulled (Zheng et al. 2017, https://arxiv.org/abs/1609.08326, equation 10).

Workers whose updates consist of several gradient steps send the change of their parameters instead (``send="delta"``):
then ``fifo`` adds each change, ``averaging`` adds the mean of several, and ``delay_compensation`` is not available.

``evorl.parameter_server.delayed_workers`` simulates workers with delays in one process,
``evorl.parameter_server.training`` runs workers over the network.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.values import checked_value, declared_ranges, require_positive
from evorl.fields import Within
from evorl.metrics import WideCounter
from evorl.ops.optimization import Optimizer
from evorl.ops.trees import copied, tree_where
from evorl.types import Params, PyTreeData, PyTreeNode, pytree_field

Mode: TypeAlias = Literal["fifo", "averaging", "delay_compensation"]
Sent: TypeAlias = Literal["gradient", "delta"]


class ParameterServerSettings(PyTreeNode):
    """Settings of a parameter server.

    Attributes:
        mode: update rule: apply each push (fifo); the mean of several pushes computed from the current parameters,
            dropping outdated ones (averaging); or each push with a correction for its staleness (delay_compensation).
        send: content of a push: a gradient (gradient), or the change of the parameters in an iteration (delta).
        num_gradients: number of pushes that mode averaging combines in one step.
        compensation: coefficient lambda of delay_compensation; 0 disables the correction.
        history: number of recent parameter versions, including the current one, that delay_compensation stores;
            gradients computed from older versions are not corrected.
        optimizer: optimizer that applies gradients.
        total_timesteps: environment steps of the whole training run, for the optimizer's schedule.

    Raises:
        ValueError: a value is out of its range, or delay_compensation is combined with deltas.
    """

    mode: Mode = "fifo"
    send: Sent = "gradient"
    num_gradients: int = 4
    compensation: Annotated[float, Within("[0, inf)")] = 0.05
    history: int = 20
    optimizer: Optimizer = pytree_field(setting=False, default=Optimizer())
    total_timesteps: Annotated[float, Within("(0, inf)")] = pytree_field(setting=False, default=1e6)

    def __post_init__(self) -> None:
        checked_value(self.mode, Mode, "parameters.mode")
        checked_value(self.send, Sent, "parameters.send")
        require_positive(self, "num_gradients", "history")
        if isinstance(self.compensation, int | float):
            within = declared_ranges(type(self))["compensation"]
            checked_value(self.compensation, float, "parameters.compensation", within)
        if self.mode == "delay_compensation" and self.send == "delta":
            raise ValueError(
                "parameters.mode=delay_compensation corrects gradients, but parameters.send=delta sends the sum of "
                "several optimizer steps, to which the correction does not apply: set parameters.mode to fifo or "
                "averaging, or parameters.send=gradient with one gradient step per iteration."
            )


class History(PyTreeData):
    """The H most recent parameter versions, including the current one.

    Attributes:
        params: parameters, leaves ``[H, ...]``.
        steps: the server's step at which each version became current, ``[H]``.
        age: number of pushes since then, int32 ``[H]``; -1 for empty slots.
    """

    params: Params
    steps: WideCounter
    age: jax.Array


class ParameterServerState(PyTreeData):
    """State of the server.

    Attributes:
        params: current parameters.
        opt_state: state of the optimizer; ``None`` if workers send deltas.
        step: environment steps of the pushes that were applied.
        updates: number of updates of the parameters.
        total: sum of the pending pushes, which are not applied yet; ``None`` unless the mode is averaging.
        count: number of pending pushes, int32.
        waiting: environment steps of the pending pushes.
        history: recent parameters; ``None`` unless the mode is delay_compensation.
    """

    params: Params
    opt_state: Any
    step: WideCounter
    updates: WideCounter
    total: Params
    count: jax.Array
    waiting: WideCounter
    history: History | None


@jax.jit
def create(settings: ParameterServerSettings, params: Params) -> ParameterServerState:
    """Create the state before the first push; ``params`` are copied."""
    params = copied(params)
    history = None
    if settings.mode == "delay_compensation":
        rows = jax.tree.map(lambda x: jnp.zeros((settings.history, *x.shape), x.dtype).at[0].set(x), params)
        zeros = jnp.zeros(settings.history, jnp.uint32)
        age = jnp.full(settings.history, -1, jnp.int32).at[0].set(0)
        history = History(params=rows, steps=WideCounter(high=zeros, low=zeros), age=age)
    return ParameterServerState(
        params=params,
        opt_state=settings.optimizer.init(params) if settings.send == "gradient" else None,
        step=WideCounter.create(),
        updates=WideCounter.create(),
        total=jax.tree.map(jnp.zeros_like, params) if settings.mode == "averaging" else None,
        count=jnp.zeros((), jnp.int32),
        waiting=WideCounter.create(),
        history=history,
    )


def push(
    settings: ParameterServerSettings, state: ParameterServerState, sent: Params, step_inc: int, worker_step: int
) -> tuple[ParameterServerState, bool]:
    """Apply a push; ``state`` is donated and must not be used again.

    Args:
        settings: settings of the server.
        state: state before the push.
        sent: gradient or delta, with the structure of the parameters.
        step_inc: environment steps since the worker's previous push.
        worker_step: the server's step when the worker pulled.

    Returns:
        The new state, and True if the push was accepted. Mode averaging drops pushes computed from outdated parameters;
        their steps do not count.

    Raises:
        ValueError: ``step_inc`` is not within 32 bits, or ``worker_step`` not within 64 bits.
    """
    if not 0 <= step_inc < 2**32:
        raise ValueError(f"step_inc must be a number of environment steps from 0 to 2^32 - 1, got {step_inc}.")
    state, accepted = _push(settings, state, sent, np.uint32(step_inc), WideCounter.create(worker_step))
    return state, bool(accepted)


def pull(state: ParameterServerState) -> tuple[Params, int]:
    """Return copies of the current parameters, and the server's step, the next push's ``worker_step``."""
    return copied(state.params), int(state.step)


@functools.partial(jax.jit, donate_argnames="state")
def _push(
    settings: ParameterServerSettings, state: ParameterServerState, sent: Params, inc: jax.Array, worker: WideCounter
) -> tuple[ParameterServerState, jax.Array]:
    if settings.mode == "averaging":
        return _averaged(settings, state, sent, inc, worker)
    if settings.mode == "delay_compensation":
        sent = _compensated(settings, state, sent, worker)
    state = _stepped(settings, state, sent)
    state = state.replace(step=state.step.add(inc))
    return (state if state.history is None else _remembered(state, state.history)), jnp.bool_(True)


def _averaged(
    settings: ParameterServerSettings, state: ParameterServerState, sent: Params, inc: jax.Array, worker: WideCounter
) -> tuple[ParameterServerState, jax.Array]:
    """Add a push to the pending sum unless it is outdated; apply the mean once ``num_gradients`` pushes are pending."""
    accepted = (worker.high > state.step.high) | ((worker.high == state.step.high) & (worker.low >= state.step.low))
    state = state.replace(
        total=tree_where(accepted, jax.tree.map(jnp.add, state.total, sent), state.total),
        count=state.count + accepted.astype(jnp.int32),
        waiting=state.waiting.add(jnp.where(accepted, inc, jnp.uint32(0))),
    )

    def applied(state: ParameterServerState) -> ParameterServerState:
        mean = jax.tree.map(lambda x: x / settings.num_gradients, state.total)
        stepped = _stepped(settings, state, mean)
        step = state.step.add(state.waiting.low)
        return stepped.replace(
            step=step.replace(high=step.high + state.waiting.high),
            total=jax.tree.map(jnp.zeros_like, state.total),
            count=jnp.zeros_like(state.count),
            waiting=jax.tree.map(jnp.zeros_like, state.waiting),
        )

    return jax.lax.cond(state.count >= settings.num_gradients, applied, lambda state: state, state), accepted


def _compensated(
    settings: ParameterServerSettings, state: ParameterServerState, gradient: Params, worker: WideCounter
) -> Params:
    """Return ``g + lambda g * g * (theta - theta_old)``; ``g`` if ``theta_old`` is current or not in the history."""
    history = state.history
    assert history is not None, "create() makes a history for this mode"
    matches = (history.steps.high == worker.high) & (history.steps.low == worker.low) & (history.age >= 0)
    row = jnp.argmin(jnp.where(matches, history.age, jnp.iinfo(jnp.int32).max))  # latest version with this step
    is_old = matches.any() & (history.age[row] > 0)

    def corrected(g: jax.Array, current: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.where(is_old, g + settings.compensation * g * g * (current - rows[row]), g)

    return jax.tree.map(corrected, gradient, state.params, history.params)


def _stepped(settings: ParameterServerSettings, state: ParameterServerState, sent: Params) -> ParameterServerState:
    """Take one optimizer step, or add a delta. Barriers isolate the step, so that modes agree bit for bit."""
    params, sent = jax.lax.optimization_barrier((state.params, sent))
    opt_state = state.opt_state
    if settings.send == "delta":
        params = jax.tree.map(jnp.add, params, sent)
    else:
        progress = jnp.minimum(state.step.as_float() / settings.total_timesteps, 1.0)
        params, opt_state = settings.optimizer.apply(sent, opt_state, params, progress)
    params, opt_state = jax.lax.optimization_barrier((params, opt_state))
    return state.replace(params=params, opt_state=opt_state, updates=state.updates.add(1))


def _remembered(state: ParameterServerState, history: History) -> ParameterServerState:
    """Write the current parameters to an empty slot of the history, or over the oldest version."""
    row = jnp.argmax(jnp.where(history.age < 0, jnp.iinfo(jnp.int32).max, history.age))
    steps = history.steps
    history = History(
        params=jax.tree.map(lambda rows, x: rows.at[row].set(x), history.params, state.params),
        steps=WideCounter(high=steps.high.at[row].set(state.step.high), low=steps.low.at[row].set(state.step.low)),
        age=jnp.where(history.age < 0, history.age, history.age + 1).at[row].set(0),
    )
    return state.replace(history=history)

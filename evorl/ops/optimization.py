"""Gradient steps: an optimizer with clipping and schedules, and functions that compute, reduce and apply gradients."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax

from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.custom_name import CustomName
from evorl.ops.loops import in_loop, unpacked
from evorl.ops.platform import on_cpu
from evorl.ops.projection import Projection, projected
from evorl.ops.random import unrolled
from evorl.ops.schedules import Schedule, value_at
from evorl.ops.trees import pack, polyak_update
from evorl.types import Params, PyTreeDict, PyTreeNode, pytree_field

# Optax optimizers whose updates depend only on gradients and parameters, and which accept scalar parameters.
OptimizerName: TypeAlias = Literal[
    "adabelief",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "adan",
    "amsgrad",
    "fromage",
    "lamb",
    "lars",
    "lion",
    "nadam",
    "nadamw",
    "novograd",
    "optimistic_gradient_descent",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "sign_sgd",
    "signum",
    "yogi",
]
NOT_PROPORTIONAL = ("fromage", "rprop")  # their steps are not proportional to the learning rate
_DECAY_RATES = ("b2", "b3", "decay", "rho")  # among the options of optax's optimizers
_ARGUMENTS_OF_FIELDS = {"epsilon": "eps", "beta1": "b1", "weight_decay": "weight_decay"}


@functools.cache
def _arguments(name: str) -> Mapping[str, Any]:
    """Return the arguments of an optimizer function that a config can set, with their defaults."""
    _, *arguments = inspect.signature(_maker(name)).parameters.values()  # the first one is the learning rate
    return {x.name: x.default for x in arguments if not x.name.endswith(("mask", "dtype"))}  # numbers, names and flags


def _maker(name: str) -> Callable[..., optax.GradientTransformation]:
    return name.function if isinstance(name, CustomName) else getattr(optax, name)


def _made(name: str, rate: Any, **options: Any) -> optax.GradientTransformation:
    """Make the optimizer called ``name``; raise ``ValueError`` if a user-defined function does not return one."""
    made = _maker(name)(rate, **options)
    if not (hasattr(made, "init") and hasattr(made, "update")):
        raise ValueError(
            f"the function {name} must return an optax optimizer, such as optax.adam(learning_rate), got "
            f"{type(made).__name__}."
        )
    return made


class Switch(PyTreeNode):
    """Value of an optimizer option that affects the structure of the computation, and is therefore static."""

    value: bool | int | str


class Optimizer(PyTreeNode):
    """Optax optimizer built inside the traced function, so that changing hyperparameters does not recompile.

    Attributes:
        name: name of an optax function (``adam``, ``adamw``, ``lion``, ``rmsprop``, ``sgd``, ...), or
            package.module:function for a user-defined one, whose first argument is the learning rate.
        learning_rate: step size, a number or a schedule.
        max_grad_norm: gradients with a larger global norm are scaled down to this norm; ``None`` disables clipping.
        epsilon: constant for numerical stability; some optimizers ignore it. ``None`` for the optimizer's default.
        beta1: decay rate of the first moment in adam and its variants; ``None`` for the optimizer's default.
        weight_decay: decoupled weight decay (Loshchilov & Hutter 2019); ``None`` for the optimizer's default, which is
            nonzero for some, such as adamw.
        options: other arguments of the optimizer function, such as ``{momentum: 0.9, nesterov: true}`` for sgd.
        projection: ``unit_norm`` scales the weights of each unit to norm 1 after each step; ``unit_norm_and_gains``
            scales gains and shifts of normalization layers as well, see ``evorl.ops.projection``; ``None``
            disables it.

    Raises:
        ValueError: the optimizer or an option is unknown, or the optimizer does not support a setting or its value.
    """

    name: OptimizerName | CustomName = "adam"
    learning_rate: Annotated[float | Schedule, Within("[0, inf)")] = 3e-4
    max_grad_norm: Annotated[float | None, Within("(0, inf)")] = None
    epsilon: Annotated[float | None, Within("[0, inf)")] = None
    beta1: Annotated[float | None, Within("[0, 1)")] = None
    weight_decay: Annotated[float | None, Within("[0, inf)")] = None
    options: Mapping = pytree_field(default_factory=PyTreeDict)
    projection: Projection | None = pytree_field(static=True, default=None)

    def __post_init__(self) -> None:
        if self.name not in typing.get_args(OptimizerName) and not isinstance(self.name, CustomName):
            valid = ", ".join(typing.get_args(OptimizerName))
            raise ValueError(f"name must be one of {valid}, or package.module:function; got {self.name!r}.")
        function = self.name.function if isinstance(self.name, CustomName) else None
        if isinstance(function, type) and not (hasattr(function, "init") and hasattr(function, "update")):
            raise ValueError(
                f"{self.name} is not a gradient optimizer: use a function whose first parameter is the learning "
                "rate and that returns an optax optimizer."
            )
        if self.beta1 is not None and "b1" not in _arguments(self.name):
            raise ValueError(f"beta1={self.beta1} applies to adam and its variants, not to {self.name}: remove it.")
        if self.weight_decay is not None and self.name in NOT_PROPORTIONAL:
            raise ValueError(f"weight_decay={self.weight_decay} does not work with {self.name}: drop it or use adamw.")
        if self.name == "rprop" and isinstance(self.learning_rate, Schedule):
            raise ValueError("rprop only uses the first learning rate: set learning_rate to a number, not a schedule.")
        options = PyTreeDict({name: self._checked_option(name, value) for name, value in self.options.items()})
        object.__setattr__(self, "options", options)

    def _checked_option(self, name: str, value: Any) -> Any:
        """Return an option: a ``Switch`` if it is a string or its default is a bool or int, else a number or None."""
        valid = {x: default for x, default in _arguments(self.name).items() if x not in _ARGUMENTS_OF_FIELDS.values()}
        if name not in valid:
            fields = [field for field, argument in _ARGUMENTS_OF_FIELDS.items() if argument == name]
            hint = f"set {fields[0]} instead" if fields else f"available: {', '.join(valid) or 'none'}"
            raise ValueError(f"options: {self.name} has no option {name!r}; {hint}.")
        default, is_own = valid[name], isinstance(self.name, CustomName)
        if value is None or isinstance(value, Switch) or (hasattr(value, "dtype") and not isinstance(default, int)):
            return value
        # Options without a default value are numbers in optax.
        if isinstance(default, int | float) or isinstance(value, bool) or (default is None and not is_own):
            is_rate = name in _DECAY_RATES and not is_own
            fits = type(value) in (int, float) and (0.0 <= value < 1.0 if is_rate else abs(value) < jnp.inf)
            expected = "a number in [0, 1)" if is_rate else "a finite number"
            if isinstance(default, bool):
                fits, expected = isinstance(value, bool), "true or false"
            if not fits:
                raise ValueError(f"options.{name} of {self.name} must be {expected}, got {value!r}.")
        if isinstance(default, int) or isinstance(value, str):
            return Switch(value)
        return float(value) if isinstance(value, int) else value

    def transformation(self, progress: jax.Array | float) -> optax.GradientTransformation:
        """Return the optax transformation, with the learning rate scheduled for ``progress`` in [0, 1]."""
        rate = value_at(self.learning_rate, progress)
        options = {name: x.value if isinstance(x, Switch) else x for name, x in self.options.items()}
        for field, argument in _ARGUMENTS_OF_FIELDS.items():
            if getattr(self, field) is not None and argument in _arguments(self.name):
                options[argument] = getattr(self, field)
        make = functools.partial(_made, self.name)
        parts = [] if self.max_grad_norm is None else [_clipped(self.max_grad_norm)]
        if self.weight_decay is None or "weight_decay" in options:
            return optax.chain(*parts, make(rate, **options))
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(*parts, make(-1.0, **options), decay, optax.scale(-1.0 * rate))

    def init(self, params: Params) -> Any:
        """Return the optimizer's initial state for these parameters."""
        return self.transformation(0.0).init(params)

    def apply(
        self, gradients: Params, opt_state: Any, params: Params, progress: jax.Array | float = 0.0
    ) -> tuple[Params, Any]:
        """Take one step, and return parameters and state; ``progress`` in [0, 1] is for the learning-rate schedule."""
        updates, opt_state = self.transformation(progress).update(gradients, opt_state, params)
        return self.projected(optax.apply_updates(params, updates)), opt_state

    def projected(self, params: Params) -> Params:
        """Return the parameters after the ``projection``, if any."""
        return params if self.projection is None else projected(params, self.projection)

    def scaled(self, part: str, scale: jax.Array | float | None) -> Optimizer:
        """Return a ``PartOptimizer`` with this ``part`` and ``scale``, or the optimizer itself if scale is ``None``."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Optimizer)}
        return self if scale is None else PartOptimizer(**fields, part=part, scale=scale)


def _clipped(max_norm: jax.Array | float) -> optax.GradientTransformation:
    """Return the transformation that clips gradients by global norm, computed in two kernels on accelerators."""
    clipping = optax.clip_by_global_norm(max_norm)
    if on_cpu():
        return clipping

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        norm = jnp.linalg.norm(jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(updates)]))
        scale = jnp.where(norm < max_norm, 1.0, max_norm / norm)
        return jax.tree.map(lambda x: x * scale.astype(x.dtype), updates), state

    return optax.GradientTransformation(clipping.init, update)


class PartOptimizer(Optimizer):
    """Optimizer with a different learning rate for one part of the parameters.

    Attributes:
        part: path in the parameters, such as ``value`` or ``optimizer/value``; other parts keep their learning rate.
        scale: factor by which the learning rate of this part is multiplied.
    """

    part: str = ""
    scale: jax.Array | float = 1.0

    def apply(
        self, gradients: Params, opt_state: Any, params: Params, progress: jax.Array | float = 0.0
    ) -> tuple[Params, Any]:
        """Take one step in which the part moves ``scale`` times as far; return parameters and optimizer state."""
        new_params, opt_state = super().apply(gradients, opt_state, params, progress)
        new_params = _with_scaled_step(params, new_params, self.part.split("/"), self.scale)
        return self.projected(new_params), opt_state


def _with_scaled_step(params: Any, new_params: Any, path: Sequence[str], scale: jax.Array | float) -> Any:
    """Return ``new_params``, with the step from ``params`` multiplied by ``scale`` in the part at ``path``."""
    if not path:
        return polyak_update(params, new_params, scale)
    name, *within = path
    return new_params.replace(**{name: _with_scaled_step(params[name], new_params[name], within, scale)})


def gradient_step(
    loss_fn: Callable[..., tuple[jax.Array, Any]],
    optimizer: Optimizer,
    params: Params,
    opt_state: Any,
    *args: Any,
    progress: jax.Array | float = 0.0,
) -> tuple[Params, Any, Any]:
    """Take one gradient step on ``loss_fn(params, *args) -> (loss, auxiliary)``.

    Gradients are averaged over the devices that share the minibatch.

    Returns:
        Parameters, optimizer state, and the auxiliary output of the loss.
    """
    gradients, auxiliary = jax.grad(loss_fn, has_aux=True)(params, *args)
    params, opt_state = optimizer.apply(collectives.mean_over_shares(gradients), opt_state, params, progress)
    return params, opt_state, auxiliary


def standardize(values: jax.Array, weights: jax.Array | float = 1.0) -> jax.Array:
    """Shift and scale ``values`` to mean 0 and variance 1 over the batch on all devices.

    ``weights``, of mean 1 and the shape of ``values``, are weights of the values in the mean and in the variance.
    """
    centered = values - collectives.mean_over_shares((weights * values).mean())
    return centered * jax.lax.rsqrt(collectives.mean_over_shares((weights * jnp.square(centered)).mean()) + 1e-8)


def _shuffles(key: jax.Array, num_shuffles: int, num_rows: int) -> jax.Array:
    """Return random permutations of ``num_rows`` indices, int32 ``[num_shuffles, num_rows]``.

    For up to 4096 rows, the low bits of each random sort key store the index. One array is then sorted instead of two,
    which is four times faster on a CPU. At least 20 random bits remain, so ties are rare.
    """
    index_bits = max(1, (num_rows - 1).bit_length())
    if index_bits > 12:
        return jax.vmap(lambda k: jax.random.permutation(k, num_rows))(jax.random.split(key, num_shuffles))
    mask = jnp.uint32((1 << index_bits) - 1)
    random = jax.random.bits(unrolled(key), (num_shuffles, num_rows), jnp.uint32)
    tagged = jnp.sort((random & ~mask) | jnp.arange(num_rows, dtype=jnp.uint32), axis=-1)
    return (tagged & mask).astype(jnp.int32)


def scan_minibatches(
    update: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    batch: Any,
    key: jax.Array,
    num_epochs: int,
    num_minibatches: int,
) -> tuple[Any, Any]:
    """Run several passes over a batch in reshuffled minibatches, as a single scan.

    Args:
        update: ``(carry, minibatch) -> (carry, metrics)``. Each device receives its share of every minibatch
            ``[N / num_minibatches, ...]``, see ``collectives.minibatch_share``.
        carry: initial carry of the scan.
        batch: leaves ``[N, ...]``, replicated on all devices.
        key: key for shuffling.
        num_epochs: number of passes.
        num_minibatches: minibatches per pass; must divide N.

    Returns:
        The final carry, and the metrics stacked over the ``num_epochs * num_minibatches`` updates.

    Raises:
        ValueError: N is not divisible by ``num_minibatches``.
    """
    num_rows = jax.tree.leaves(batch)[0].shape[0]
    if num_rows % num_minibatches:
        raise ValueError(
            f"a batch of {num_rows} rows cannot be split into {num_minibatches} equal minibatches: choose a divisor of "
            f"{num_rows}, or change the number of environments or steps."
        )
    order = _shuffles(key, num_epochs, num_rows).reshape(num_epochs * num_minibatches, -1)

    packed = pack(batch)

    def one_minibatch(carry: Any, rows: jax.Array) -> tuple[Any, Any]:
        local_rows = collectives.minibatch_share(rows)
        carry, metrics = update(unpacked(carry), jax.tree.map(lambda x: x[local_rows], packed).unpack())
        return in_loop(carry), in_loop(metrics)

    carry, metrics = jax.lax.scan(one_minibatch, in_loop(carry), order)
    return unpacked(carry), unpacked(metrics)


def scan_trajectories(
    update: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    trajectories: Any,
    key: jax.Array,
    num_epochs: int,
    num_minibatches: int,
) -> tuple[Any, Any]:
    """Run ``scan_minibatches`` over whole trajectories: leaves and minibatches are ``[T, B, ...]``, split along B.

    Raises:
        ValueError: B is not divisible by ``num_minibatches``.
    """

    def swapped(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)

    def one_minibatch(carry: Any, rows: Any) -> tuple[Any, Any]:
        return update(carry, swapped(rows))

    return scan_minibatches(one_minibatch, carry, swapped(trajectories), key, num_epochs, num_minibatches)

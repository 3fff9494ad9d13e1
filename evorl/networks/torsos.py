"""Torsos: the part of a network between an observation and its head, as a list of layers that a config can write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.config.names import load, no_such
from evorl.config.own_parts import OwnPart, is_own_name
from evorl.config.values import checked_value, positive
from evorl.networks.activations import (
    ACTIVATIONS,
    Activation,
    KernelActivation,
    KernelActivationLayer,
    apply_own_part,
    build_activation,
    check_features,
    own_network_part,
)
from evorl.networks.layers import BatchRenorm, convolution, dense
from evorl.types import Observation


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution over the two axes before the channels, followed by the activation.

    Attributes:
        filters: number of output channels.
        size: side of the square kernel.
        stride: step in both directions.
        border: ``same`` keeps the size before striding, ``valid`` uses whole windows only.
        activation: of this layer; ``None`` for that of the torso.
    """

    filters: int
    size: int = 3
    stride: int = 1
    border: Literal["same", "valid"] = "same"
    activation: Activation | None = None


@dataclasses.dataclass(frozen=True)
class ResidualStage:
    """A convolution, pooling to half the size, and residual blocks (Espeholt et al. 2018, figure 3, right).

    Attributes:
        filters: number of channels of all its convolutions.
        num_blocks: residual blocks of two convolutions each.
        activation: of all its convolutions; ``None`` for that of the torso.
    """

    filters: int
    num_blocks: int = 2
    activation: Activation | None = None


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense layer, followed by the activation.

    Attributes:
        size: number of outputs.
        activation: of this layer; ``None`` for that of the torso.
    """

    size: int
    activation: Activation | None = None


@dataclasses.dataclass(frozen=True)
class BatchRenormalization:
    """Batch renormalisation, see ``evorl.networks.layers``.

    Attributes:
        warmup: batches during which it is plain batch normalisation.
        momentum: share of the running statistics that stays in each batch.
    """

    warmup: int = 100_000
    momentum: float = 0.99


# A text is "flatten" or "layer_norm".
Layer: TypeAlias = Dense | Convolution | ResidualStage | BatchRenormalization | OwnPart | str

_ACTIVATED = (Dense, Convolution, ResidualStage)
_LAYERS: dict[str, type] = {
    "conv": Convolution,
    "dense": Dense,
    "residual": ResidualStage,
    "batch_renorm": BatchRenormalization,
}
_NAMES = ("flatten", "layer_norm")
_KINDS = ("a number (a dense layer)", *_LAYERS, *_NAMES, "package.module:name of your own")
PRESETS: dict[str, tuple[Layer, ...]] = {
    # Young & Tian 2019, section 3.
    "minatar": (Convolution(16, 3, 1, "valid"), "flatten", Dense(128)),
    # Mnih et al. 2015, methods.
    "nature": (
        Convolution(32, 8, 4, "valid"),
        Convolution(64, 4, 2, "valid"),
        Convolution(64, 3, 1, "valid"),
        "flatten",
        Dense(512),
    ),
    # Mnih et al. 2016, section 5.1, in front of its dense layer, and RELAAX (`universe: false`); both with relu.
    "classic": (Convolution(16, 8, 4, "same"), Convolution(32, 4, 2, "same"), "flatten"),
    # Pathak et al. 2017, section 3, and RELAAX for images (its `universe` input); both with activation elu.
    "universe": (*(4 * (Convolution(32, 3, 2, "same"),)), "flatten"),
    # Espeholt et al. 2018, figure 3, right.
    "impala": (ResidualStage(16), ResidualStage(32), ResidualStage(32), "flatten", Dense(256)),
}


class Torso(nn.Module):
    """Layers one after another: ``[..., *input] -> [..., F]``; without layers it is the identity.

    Attributes:
        layers: see ``Layer``.
        activation: a name of ``evorl.networks.activations``, a ``KernelActivation``, or one of the user's own.
        layer_norm: whether to normalise between each dense layer and its activation (Ba et al. 2016).
        orthogonal: orthogonal initial weights (gain sqrt(2)) instead of uniform ones of unit gain.
    """

    layers: tuple[Layer, ...] = ()
    activation: Activation = "tanh"
    layer_norm: bool = False
    orthogonal: bool = True

    def __post_init__(self) -> None:
        for layer in self.layers:
            kernels = getattr(layer, "activation", None) or self.activation
            if isinstance(layer, _ACTIVATED) and isinstance(kernels, KernelActivation):
                check_features(kernels, layer.size if isinstance(layer, Dense) else layer.filters)
        super().__post_init__()

    @property
    def input_ndim(self) -> int:
        """Number of axes of one input: 3 (height, width, channels) for convolutions, else 1."""
        return 3 if _is_spatial(self.layers) else 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        leading, is_spatial = x.shape[: x.ndim - self.input_ndim], self.input_ndim > 1
        if is_spatial:  # convolutions take one batch axis
            x = x.reshape((math.prod(leading), *x.shape[len(leading) :]))
        for layer in self.layers:
            if layer == "flatten":
                x = x.reshape((x.shape[0], -1)) if is_spatial else x
            elif layer == "layer_norm":
                x = nn.LayerNorm()(x)
            elif isinstance(layer, BatchRenormalization):
                x = BatchRenorm(layer.momentum, warmup=layer.warmup)(x)
            elif isinstance(layer, OwnPart):
                x = apply_own_part(layer, x)
            elif isinstance(layer, Convolution):
                x = self._activate(layer, self._convolution(layer, x))
            elif isinstance(layer, ResidualStage):
                x = self._residual_stage(layer, x)
            elif isinstance(layer, Dense):
                x = dense(layer.size, self.orthogonal, self._gain)(x)
                x = self._activate(layer, nn.LayerNorm()(x) if self.layer_norm else x)
        return x.reshape((*leading, x.shape[-1])) if is_spatial else x

    @property
    def _gain(self) -> float:
        return math.sqrt(2.0) if self.orthogonal else 1.0

    def _activate(self, layer: Dense | Convolution | ResidualStage, x: jax.Array) -> jax.Array:
        activation = layer.activation or self.activation
        if isinstance(activation, KernelActivation):
            return KernelActivationLayer(activation)(x)
        if isinstance(activation, OwnPart):
            return apply_own_part(activation, x)
        return ACTIVATIONS[activation](x)

    def _convolution(self, layer: Convolution, x: jax.Array) -> jax.Array:
        return convolution(layer.filters, layer.size, layer.stride, layer.border, self.orthogonal, self._gain)(x)

    def _residual_stage(self, layer: ResidualStage, x: jax.Array) -> jax.Array:
        window = Convolution(layer.filters)
        x = nn.max_pool(self._convolution(window, x), (3, 3), (2, 2), "SAME")
        for _ in range(layer.num_blocks):
            inner = self._convolution(window, self._activate(layer, x))
            x += self._convolution(window, self._activate(layer, inner))
        return self._activate(layer, x)


def dense_torso(*sizes: int, **options: Any) -> Torso:
    """A torso of dense layers of these sizes: a multi-layer perceptron. ``options`` are those of ``Torso``."""
    return Torso(tuple(Dense(size) for size in sizes), **options)


def build_torso(options: Mapping[str, Any], *, keeps_statistics: bool = False, **defaults: Any) -> Torso:
    """A torso from a mapping: the attributes of ``Torso``, with its layers as ``torso``.

    Layers are a list, or the name of one of ``PRESETS``. In the list a number is a dense layer of that size; others are
    ``{dense: 64}``, ``{conv: {filters: 16, size: 3, stride: 1, border: same}}``, ``{residual: {filters: 16}}``,
    ``{batch_renorm: {warmup: 1000, momentum: 0.99}}`` or just ``batch_renorm``, ``flatten`` and ``layer_norm``. A layer
    may have an ``activation`` of its own: ``{dense: {size: 64, activation: elu}}``. A layer of the user's is
    ``package.module:name``, or ``{name: package.module:name, size: 64}`` with settings: a module of Flax, or a function
    of an array. No activation follows it.

    Args:
        options: as a config gives them.
        keeps_statistics: whether the caller keeps the running statistics of ``batch_renorm``, beside the parameters.
        **defaults: for those that it does not give.

    Raises:
        ValueError: an option, a layer or an activation does not exist, a size is not a positive integer,
            convolutions do not end in ``flatten``, or nobody would keep running statistics.
    """
    options = {**defaults, **options}
    known = ("torso", "activation", "layer_norm", "orthogonal")
    for name in options:
        if name not in known:
            raise ValueError(no_such("network option", name, known))
    for name in ("layer_norm", "orthogonal"):
        if not isinstance(options.get(name, False), bool):
            raise ValueError(f"{name} must be true or false, got {options[name]!r}.")
    if "activation" in options:
        options["activation"] = build_activation(options["activation"])
    return Torso(build_layers(options.pop("torso", ()), "torso", keeps_statistics), **options)


def build_layers(layers: Any, where: str, keeps_statistics: bool = False) -> tuple[Layer, ...]:
    """Layers from a list or the name of a preset; ``where`` names them in messages. See ``build_torso``."""
    if is_own_name(layers):
        layers = [layers]
    if isinstance(layers, str):
        if layers not in PRESETS:
            raise ValueError(no_such("torso", layers, PRESETS))
        return PRESETS[layers]
    if not isinstance(layers, list | tuple):
        raise ValueError(
            f"{where} must be a list of layers, as in [64, 64], or one of {', '.join(PRESETS)}; got {layers!r}."
        )
    built = tuple(_layer(layer, where) for layer in layers)
    if any(isinstance(layer, BatchRenormalization) for layer in built) and not keeps_statistics:
        raise ValueError(
            f"{where}: batch_renorm has running statistics, which this algorithm does not keep. CrossQ does; "
            "layer_norm is for all algorithms."
        )
    if _is_spatial(built):
        flattened = built.index("flatten") if "flatten" in built else 0
        if any(isinstance(layer, Dense) for layer in built[:flattened]) or _is_spatial(built[flattened:]):
            raise ValueError(f"{where}: convolutions come first, then 'flatten', then dense layers; got {layers!r}.")
    return built


def _layer(layer: Any, where: str) -> Layer:
    if isinstance(layer, Dense | Convolution | ResidualStage | BatchRenormalization | OwnPart):
        return layer
    if is_own_name(layer.get("name") if isinstance(layer, Mapping) else layer):
        return own_network_part(layer, where)
    if layer == "batch_renorm":
        return BatchRenormalization()
    if isinstance(layer, Mapping):
        if "type" in layer:
            ours = load("evorl.config.other_words:layer_called_here")(layer)
            raise ValueError(f"{where}: {dict(layer)!r} has a type. Layers are written by their kind here: {ours}.")
        if len(layer) != 1:
            raise ValueError(f"{where}: a layer has one kind, as in {{dense: 64}}; got {dict(layer)!r}.")
        ((kind, options),) = layer.items()
        if kind not in _LAYERS:
            raise ValueError(f"{where}: {no_such('layer', kind, _KINDS)}")
        names = [field.name for field in dataclasses.fields(_LAYERS[kind])]
        options = options if isinstance(options, Mapping) else {names[0]: options}
        for name in options:
            if name not in names:
                raise ValueError(f"{where}: {no_such(f'option of {kind}', name, names)}")
        if names[0] not in options and dataclasses.fields(_LAYERS[kind])[0].default is dataclasses.MISSING:
            raise ValueError(f"{where}: a {kind} layer needs {names[0]!r}.")
        return _LAYERS[kind](**{name: _checked(name, value, where) for name, value in options.items()})
    if layer in _NAMES:
        return layer
    if isinstance(layer, str):
        raise ValueError(f"{where}: {no_such('layer', layer, _KINDS)}")
    return Dense(_checked("size", layer, where))


def _checked(name: str, value: Any, where: str) -> Any:
    if name == "activation":
        return None if value is None else build_activation(value)
    if name == "border":
        if value not in ("same", "valid"):
            raise ValueError(f"{where}: border is same or valid; got {value!r}.")
        return value
    if name == "momentum":
        return checked_value(value, float, f"{where}: momentum", "[0, 1)")
    return positive(value, f"{where}: {name}")


def _is_spatial(layers: tuple[Layer, ...]) -> bool:
    return any(isinstance(layer, Convolution | ResidualStage) for layer in layers)


def as_float(x: jax.typing.ArrayLike) -> jax.Array:
    """float32: pixels (uint8) scaled to [0, 1], other integers and bools cast."""
    x = jnp.asarray(x)
    return x.astype(jnp.float32) / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def network_input(obs: Observation, observation_ndim: int, input_ndim: int) -> jax.Array:
    """Return observations ``[..., *observation]`` as float32 of the rank a torso takes, ``[..., *input]``.

    Args:
        obs: an array, whose last ``observation_ndim`` axes are those of one observation.
        input_ndim: number of axes of one input of the torso: 1 flattens each observation.

    Raises:
        ValueError: the observation is a dict, or its rank is not what the torso takes.
    """
    if isinstance(obs, Mapping):
        raise ValueError(
            f"a network takes one array, got a dict with {', '.join(sorted(map(str, obs)))}: choose an entry "
            "(policy_obs_key, value_obs_key)."
        )
    x = as_float(jnp.asarray(obs))
    if x.ndim < observation_ndim:
        raise ValueError(f"an observation has {observation_ndim} axes, got an array of shape {x.shape}.")
    if observation_ndim == input_ndim:
        return x
    if input_ndim != 1:
        raise ValueError(
            f"this torso takes observations of {input_ndim} axes, these have {observation_ndim}: choose another torso."
        )
    leading = x.shape[: x.ndim - observation_ndim]
    return x.reshape(leading + (math.prod(x.shape[len(leading) :]),))

"""Torsos: stacks of layers between observation and head, which a config can define."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax

from evorl.config.custom_parts import CustomPart
from evorl.config.names import is_custom_name, name_and_options, no_such
from evorl.config.synonyms import convert_layer
from evorl.config.values import LONGEST_AXIS, check_names, checked_value, whole_number
from evorl.networks import blocks
from evorl.networks.activations import (
    ACTIVATIONS,
    Activation,
    KernelActivation,
    KernelActivationLayer,
    apply_custom_part,
    build_activation,
    check_features,
    custom_network_part,
)
from evorl.networks.blocks import RESIDUAL_BLOCKS, BatchRenormalization, Dense, ResidualBlocks
from evorl.networks.convolutions import convolution
from evorl.networks.layers import BatchRenorm, Dtype, compute_dtype, dense


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Settings of a convolution over the two axes before the channels, followed by the activation.

    Attributes:
        filters: number of output channels.
        size: side of the square kernel.
        stride: step in both directions.
        border: ``same`` pads with zeros, so that stride 1 keeps the size; ``valid`` does not pad.
        activation: activation of this layer; ``None`` for that of the torso.
    """

    filters: int
    size: int = 3
    stride: int = 1
    border: Literal["same", "valid"] = "same"
    activation: Activation | None = None


@dataclasses.dataclass(frozen=True)
class ResidualStage:
    """Settings of a convolution, pooling to half the size, and residual blocks (Espeholt et al. 2018, figure 3, right).

    Attributes:
        filters: number of channels of all convolutions.
        num_blocks: number of residual blocks, with two convolutions each.
        activation: activation of all convolutions; ``None`` for that of the torso.
    """

    filters: int
    num_blocks: int = 2
    activation: Activation | None = None


# A string is "flatten" or one of NORMALIZATIONS.
Layer: TypeAlias = Dense | Convolution | ResidualStage | ResidualBlocks | BatchRenormalization | CustomPart | str

_ACTIVATED = (Dense, Convolution, ResidualStage)
_LAYERS: dict[str, type] = {
    "conv": Convolution,
    "dense": Dense,
    "residual": ResidualStage,
    "batch_renorm": BatchRenormalization,
    **RESIDUAL_BLOCKS,
}
# Flax computes their statistics in float32.
NORMALIZATIONS = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}
_NAMES = ("flatten", "batch_norm", *NORMALIZATIONS)
MAX_LAYERS = 256
MAX_UNITS = 2**20  # outputs of a layer, units of a cell
MAX_VALUES = {"size": MAX_UNITS, "stride": 1024, "num_blocks": 64, "warmup": LONGEST_AXIS}
_CHECKS = {"batch_norm": bool, "rms_norm": bool, "border": Literal["same", "valid"], "momentum": float}
_KINDS = ("a number (a dense layer)", *_LAYERS, *_NAMES, "package.module:name for a user-defined layer")
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
    # Mnih et al. 2016, section 5.1, without the dense layer, and RELAAX (`universe: false`); both use activation relu.
    "classic": (Convolution(16, 8, 4, "same"), Convolution(32, 4, 2, "same"), "flatten"),
    # Pathak et al. 2017, section 3, and RELAAX for images (its `universe` input); both use activation elu.
    "universe": (*(4 * (Convolution(32, 3, 2, "same"),)), "flatten"),
    # Espeholt et al. 2018, figure 3, right.
    "impala": (ResidualStage(16), ResidualStage(32), ResidualStage(32), "flatten", Dense(256)),
}


class Torso(nn.Module):
    """Sequence of layers: ``[..., *input] -> [..., F]``; the identity if empty.

    Attributes:
        layers: layers in their order, see ``Layer`` and ``build_torso``.
        activation: a name in ``ACTIVATIONS``, a ``KernelActivation``, or a user-defined activation.
        layer_norm: normalize before the activation of each dense layer without another normalization (Ba et al. 2016).
        orthogonal: orthogonal initial weights (gain sqrt(2)) instead of uniform weights of unit gain.
        dtype: one of ``DTYPES``, in which layers compute, except for batch normalization and user-defined layers.
    """

    layers: tuple[Layer, ...] = ()
    activation: Activation = "tanh"
    layer_norm: bool = False
    orthogonal: bool = True
    dtype: Dtype = "float32"

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
        if is_spatial:  # convolutions expect one batch axis
            x = x.reshape((math.prod(leading), *x.shape[len(leading) :]))
        image = x.shape[-3:]
        for layer in self.layers:
            activation = getattr(layer, "activation", None) or self.activation
            if layer == "flatten":
                x = x.reshape((x.shape[0], -1)) if is_spatial else x
            elif isinstance(layer, str):
                x = NORMALIZATIONS[layer](dtype=compute_dtype(self.dtype))(x)
            elif isinstance(layer, ResidualBlocks):
                x = layer.module(layer.num_blocks, layer.size, self.dtype)(x)
            elif isinstance(layer, BatchRenormalization):
                x = BatchRenorm(layer.momentum, warmup=layer.warmup)(x)
            elif isinstance(layer, CustomPart):
                x = apply_custom_part(layer, x)
            elif isinstance(layer, Convolution):
                x = apply_activation(activation, self._convolution(layer, self._with_room(layer, x, image)))
            elif isinstance(layer, ResidualStage):
                x = self._residual_stage(layer, activation, self._with_room(layer, x, image))
            elif isinstance(layer, Dense):
                x = apply_activation(activation, self._dense(layer, x))
        return x.reshape((*leading, x.shape[-1])) if is_spatial else x

    def _with_room(self, layer: Convolution | ResidualStage, x: jax.Array, image: tuple[int, ...]) -> jax.Array:
        """Return the input of a layer; raise ``ValueError`` if the layer's output would be empty."""
        if all(_side_after(layer, side) > 0 for side in x.shape[1:3]):
            return x
        fitting = [name for name, layers in PRESETS.items() if min_side(layers) <= min(image[:2])]
        presets = f", or use a torso that fits ({', '.join(fitting)})" if fitting else ""
        raise ValueError(
            f"images of {image[0]} x {image[1]} are too small for the convolutions of this torso, whose output would "
            f"be empty: it needs sides of at least {min_side(self.layers)}. Use larger images, or reduce kernels or "
            f"strides in agent.network.torso{presets}."
        )

    @property
    def _gain(self) -> float:
        return math.sqrt(2.0) if self.orthogonal else 1.0

    def _dense(self, layer: Dense, x: jax.Array) -> jax.Array:
        """Return the pre-activations of a dense layer, after its normalization, if any."""
        options = {"use_bias": not layer.batch_norm, "dtype": compute_dtype(self.dtype)}
        x = dense(layer.size, self.orthogonal, self._gain, **options)(x)
        if layer.batch_norm:
            return BatchRenorm(warmup=None)(x)
        if not (self.layer_norm or layer.rms_norm):
            return x
        return NORMALIZATIONS["rms_norm" if layer.rms_norm else "layer_norm"](dtype=compute_dtype(self.dtype))(x)

    def _convolution(self, layer: Convolution, x: jax.Array) -> jax.Array:
        shape = (layer.filters, layer.size, layer.stride, layer.border)
        return convolution(*shape, self.orthogonal, self._gain, dtype=self.dtype)(x)

    def _residual_stage(self, layer: ResidualStage, activation: Activation, x: jax.Array) -> jax.Array:
        window = Convolution(layer.filters)
        x = nn.max_pool(self._convolution(window, x), (3, 3), (2, 2), "SAME")
        for _ in range(layer.num_blocks):
            inner = self._convolution(window, apply_activation(activation, x))
            x += self._convolution(window, apply_activation(activation, inner))
        return apply_activation(activation, x)


def apply_activation(activation: Activation, x: jax.Array) -> jax.Array:
    """Return the output of an activation for ``[..., F]``; call inside a module, because it may have parameters."""
    if isinstance(activation, KernelActivation):
        return KernelActivationLayer(activation)(x).astype(x.dtype)
    if isinstance(activation, CustomPart):
        return apply_custom_part(activation, x)
    return ACTIVATIONS[activation](x)


def _side_after(layer: Convolution | ResidualStage, side: int) -> int:
    """Return the side length of a layer's output, given the side length of its input; 0 for an empty output."""
    if isinstance(layer, ResidualStage):
        return -(-side // 2)
    return -(-side // layer.stride) if layer.border == "same" else max((side - layer.size) // layer.stride + 1, 0)


def min_side(layers: tuple[Layer, ...]) -> int:
    """Return the smallest image side for which outputs of convolutions and residual stages are not empty."""
    side = 1
    for layer in reversed(layers):
        if isinstance(layer, Convolution) and layer.border == "valid":
            side = (side - 1) * layer.stride + layer.size
        elif isinstance(layer, Convolution | ResidualStage):
            side = (side - 1) * (layer.stride if isinstance(layer, Convolution) else 2) + 1
    return side


def dense_torso(*sizes: int, **options: Any) -> Torso:
    """Return a multi-layer perceptron with these layer sizes; ``options`` are other fields of ``Torso``."""
    return Torso(tuple(Dense(size) for size in sizes), **options)


def build_torso(
    options: Mapping[str, Any], *, where: str = "agent.network", keeps_statistics: bool = False, **defaults: Any
) -> Torso:
    """Build a torso from a mapping with the attributes of ``Torso``, except that ``layers`` is called ``torso``.

    Layers are a list, or the name of one of ``PRESETS``. In the list, a number is a dense layer of that size; others:
    ``{dense: 64}``, ``{conv: {filters: 16, size: 3, stride: 1, border: same}}``, ``{residual: {filters: 16}}``,
    ``{batch_renorm: {warmup: 1000, momentum: 0.99}}`` or just ``batch_renorm``, ``batch_norm``, ``flatten``,
    ``layer_norm`` and ``rms_norm``. A layer may override the ``activation``: ``{dense: {size: 64, activation: elu}}``;
    ``{dense: {size: 64, batch_norm: true}}``, or ``rms_norm``, normalizes before the activation. ``{simba: 2}`` is two
    residual blocks; other kinds are ``simba_v2``, ``bro`` and ``flash``, see ``evorl.networks.blocks``. A dense layer
    with default settings directly before the blocks is their embedding. A user-defined layer (Flax module or function)
    is ``package.module:name``, or ``{name: package.module:name, size: 64}`` with settings; no activation follows it.

    Args:
        options: options from a config.
        where: path of the options, for messages.
        keeps_statistics: true if the caller stores running statistics of normalization with the parameters.
        **defaults: defaults for missing options.

    Raises:
        ValueError: an option, layer, activation or dtype is unknown, or has a wrong value; there are too many layers;
            the order is not convolutions, ``flatten``, dense layers; or required running statistics are not kept.
    """
    options = {**defaults, **options}
    kinds = {"torso": Any, "activation": Any, "layer_norm": bool, "orthogonal": bool, "dtype": Dtype}
    check_names(options, kinds, f"key of {where}")
    for name, value in options.items():
        checked_value(value, kinds[name], f"{where}.{name}")
    if "activation" in options:
        options["activation"] = build_activation(options["activation"], f"{where}.activation")
    return Torso(build_layers(options.pop("torso", ()), f"{where}.torso", keeps_statistics), **options)


def build_layers(layers: Any, where: str, keeps_statistics: bool = False) -> tuple[Layer, ...]:
    """Build layers from a list or a preset, see ``build_torso``; ``where`` is the setting's path in messages."""
    if is_custom_name(layers):
        layers = [layers]
    if isinstance(layers, str):
        if layers not in PRESETS:
            raise ValueError(f"{where}: {no_such('torso', layers, PRESETS)}")
        return PRESETS[layers]
    if not isinstance(layers, list | tuple):
        raise ValueError(
            f"{where} must be a list of layers, as in [64, 64], or one of {', '.join(PRESETS)}; got {layers!r}."
        )
    if len(layers) > MAX_LAYERS:
        raise ValueError(f"{where} has {len(layers):,} layers, but at most {MAX_LAYERS:,} are supported: use fewer.")
    built = tuple(_layer(layer, where) for layer in layers)
    if any(isinstance(layer, ResidualBlocks) for layer in built):
        built = blocks.with_embeddings(built)
    if any(blocks.has_statistics(layer) for layer in built) and not keeps_statistics:
        raise ValueError(
            f"{where}: batch_renorm, batch_norm and flash need running statistics, which this algorithm does not keep. "
            "Use agent=crossq, xqc or flash_sac, or layer_norm, which all algorithms support."
        )
    if _is_spatial(built):
        flattened = built.index("flatten") if "flatten" in built else 0
        before, after = built[:flattened], built[flattened:]
        if any(isinstance(layer, Dense | ResidualBlocks) for layer in before) or _is_spatial(after):
            raise ValueError(f"{where}: convolutions must be first, then 'flatten', then dense layers, got {layers!r}.")
    return built


def _layer(layer: Any, where: str) -> Layer:
    if isinstance(layer, (*_LAYERS.values(), CustomPart)):
        return layer
    name, options = name_and_options(layer)
    if is_custom_name(name):
        return custom_network_part(name, options, where)
    if layer in ("batch_norm", "batch_renorm"):
        return BatchRenormalization() if layer == "batch_renorm" else BatchRenormalization(warmup=None)
    if isinstance(layer, Mapping):
        if "type" in layer:
            name = convert_layer(layer)
            raise ValueError(f"{where}: {dict(layer)!r} has a key 'type'. Use the kind of layer as the key: {name}.")
        if len(layer) != 1:
            raise ValueError(f"{where}: a layer must have exactly one kind, as in {{dense: 64}}; got {dict(layer)!r}.")
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
        if options.get("batch_norm") is True and options.get("rms_norm") is True:
            raise ValueError(f"{where}: a dense layer has one normalization: choose batch_norm or rms_norm, not both.")
        return _LAYERS[kind](**{name: _checked(name, value, where) for name, value in options.items()})
    if layer in _NAMES:
        return layer
    if isinstance(layer, str):
        raise ValueError(f"{where}: {no_such('layer', layer, _KINDS)}")
    return Dense(_checked("size", layer, where))


def _checked(name: str, value: Any, where: str) -> Any:
    if name in ("activation", "warmup") and value is None:
        return None
    if name == "activation":
        return build_activation(value, where)
    if name in _CHECKS:
        return checked_value(value, _CHECKS[name], f"{where}: {name}", "[0, 1)")
    return whole_number(value, f"{where}: {name}", 1, MAX_VALUES.get(name, MAX_UNITS))


def _is_spatial(layers: tuple[Layer, ...]) -> bool:
    return any(isinstance(layer, Convolution | ResidualStage) for layer in layers)

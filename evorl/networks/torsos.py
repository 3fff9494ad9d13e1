"""Torsos from config: the part of a network between its input and its head."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from evorl.networks.activations import activation_by_name
from evorl.networks.cnn import CNN
from evorl.networks.mlp import MLP

_TORSOS: dict[str, type[nn.Module]] = {"cnn": CNN, "mlp": MLP}
_FLAGS = ("layer_norm", "orthogonal")
_NOT_CONFIGURABLE = ("parent", "name", "output_size", "output_scale")


def build_torso(config: Mapping[str, Any]) -> nn.Module:
    """A torso from a mapping: ``type`` ("mlp" by default, or "cnn") and the attributes of that module.

    Raises:
        ValueError: the type, an attribute or an activation does not exist, or a size is not a positive integer.
    """
    options = dict(config)
    kind = options.pop("type", "mlp")
    torso_class = _TORSOS.get(kind)
    if torso_class is None:
        raise ValueError(f"there is no torso {kind!r}.{_hint(kind, _TORSOS)} There are: {', '.join(_TORSOS)}.")
    known = [f.name for f in dataclasses.fields(torso_class) if f.name not in _NOT_CONFIGURABLE]
    for name in options:
        if name not in known:
            raise ValueError(f"a {kind} torso has no {name!r}.{_hint(name, known)} There are: {', '.join(known)}.")
    if "activation" in options:
        activation_by_name(options["activation"])
    return torso_class(**{name: _checked(name, value) for name, value in options.items()})


def _checked(name: str, value: Any) -> Any:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}.")
        return value
    if name == "activation":
        return value
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name} must be a list of positive integers, as in [64, 64]; got {value!r}.")
    sizes = tuple(value)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"{name} must be positive integers, got {list(sizes)}.")
    return sizes


def _hint(name: str, known: Any) -> str:
    nearest = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""

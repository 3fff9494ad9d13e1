"""Checks of networks for images: missing convolutions, misplaced channels, empty convolution outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax

from evorl.agent import Agent
from evorl.envs.space import Space
from evorl.networks.torsos import PRESETS

_IMAGE_AXES = 3  # height, width and channels
_MOST_CHANNELS = 16  # a first axis up to this size suggests that channels come first


def describe_flat_images(agent: Any, obs_space: Space) -> str | None:
    """Return a warning about networks of ``agent`` that misread images; ``None`` if there is nothing to report."""
    networks = list(_networks(agent))
    shape = obs_space.shape
    if any(_sees_flat(network) for network in networks):
        size = f" of {math.prod(shape):,} numbers" if isinstance(shape, tuple) else ""
        shown = f" {list(shape)}" if isinstance(shape, tuple) else ""
        presets = ", ".join(PRESETS)
        return (
            f"Observations are images{shown}, which a network without convolutions sees as one vector{size}. "
            f"Networks with convolutions: agent.network.torso=<one of {presets}>."
        )
    if _has_channels_first(shape) and any(_has_convolutions(network) for network in networks):
        return (
            f"Observations {list(shape)} look like images with channels first, but convolutions expect channels in the "
            f"last axis, here {shape[-1]}. If channels are first, set env.channels=first."
        )
    return None


def _has_channels_first(shape: Any) -> bool:
    is_image = isinstance(shape, tuple) and len(shape) == _IMAGE_AXES and all(isinstance(side, int) for side in shape)
    return is_image and shape[0] <= _MOST_CHANNELS and shape[0] < min(shape[1:]) and shape[2] > _MOST_CHANNELS


def _has_convolutions(network: nn.Module) -> bool:
    return getattr(getattr(network, "torso", None), "input_ndim", 1) == _IMAGE_AXES


def check_image_networks(agent: Agent, obs_space: Space, action_space: Space) -> None:
    """Check that convolutions have non-empty outputs for images of this space; computes only shapes.

    Raises:
        ValueError: images are too small; the message states the smallest size and the presets that fit.
    """
    if any(_has_convolutions(network) for network in _networks(agent)):
        key = jax.eval_shape(lambda: jax.random.key(0))
        jax.eval_shape(lambda key: agent.init_params(obs_space, action_space, key), key)


def _networks(node: Any) -> Iterator[nn.Module]:
    """Yield the networks among the fields of an agent, and their submodules."""
    for field in dataclasses.fields(node) if dataclasses.is_dataclass(node) else ():
        value = getattr(node, field.name, None)
        if field.name == "parent" or isinstance(value, type):  # Flax modules refer to their parent
            continue
        if isinstance(value, nn.Module):
            yield value
        yield from _networks(value)


def _sees_flat(network: nn.Module) -> bool:
    ndim, torso = getattr(network, "observation_ndim", None), getattr(network, "torso", None)
    return ndim == _IMAGE_AXES and getattr(torso, "input_ndim", None) == 1

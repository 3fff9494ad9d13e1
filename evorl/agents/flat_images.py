"""Images that a network without convolutions sees as one long vector, which is seldom meant."""

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


def flat_images_in_words(agent: Any, obs_space: Space) -> str | None:
    """A sentence on the networks of an agent that see images flat; ``None`` where none does.

    Args:
        agent: with networks among its fields.
        obs_space: of one observation, whose shape is told.
    """
    if not any(_sees_flat(network) for network in _networks(agent)):
        return None
    shape = obs_space.shape
    of_images = f" of {math.prod(shape):,} numbers" if isinstance(shape, tuple) else ""
    shown = f" {list(shape)}" if isinstance(shape, tuple) else ""
    presets = ", ".join(PRESETS)
    return (
        f"Observations are images{shown}, which a network without convolutions sees as one vector{of_images}. Networks "
        f"with convolutions: agent.network.torso=<one of {presets}>."
    )


def check_image_networks(agent: Agent, obs_space: Space, action_space: Space) -> None:
    """Refuse convolutions that leave nothing of the images of these observations; only shapes are computed.

    Raises:
        ValueError: images are too small; says the least size and which presets fit.
    """
    if any(getattr(getattr(net, "torso", None), "input_ndim", 1) == _IMAGE_AXES for net in _networks(agent)):
        key = jax.eval_shape(lambda: jax.random.key(0))
        jax.eval_shape(lambda key: agent.init_params(obs_space, action_space, key), key)


def _networks(node: Any) -> Iterator[nn.Module]:
    """The networks among the fields of an agent, and those that they are made of."""
    for field in dataclasses.fields(node) if dataclasses.is_dataclass(node) else ():
        value = getattr(node, field.name, None)
        if field.name == "parent" or isinstance(value, type):  # flax modules know the one that they stand in
            continue
        if isinstance(value, nn.Module):
            yield value
        yield from _networks(value)


def _sees_flat(network: nn.Module) -> bool:
    ndim, torso = getattr(network, "observation_ndim", None), getattr(network, "torso", None)
    return ndim == _IMAGE_AXES and getattr(torso, "input_ndim", None) == 1

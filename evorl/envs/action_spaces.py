"""Kinds of action spaces, with which an agent declares the spaces that it supports."""

from __future__ import annotations

import enum
import math

import numpy as np

from evorl.envs.action_conversion import refusal_of
from evorl.envs.space import Box, Discrete, Space


class ActionSpaces(enum.Flag):
    """Kinds of action spaces, combined with ``|``: Discrete spaces from 0, flat Boxes, and all other spaces.

    A Box is flat if its elements are vectors. It is bounded if every bound is finite; otherwise it is unbounded, even
    if some of its dimensions are bounded.
    """

    DISCRETE = enum.auto()
    BOUNDED_BOXES = enum.auto()
    UNBOUNDED_BOXES = enum.auto()
    OTHERS = enum.auto()
    BOXES = BOUNDED_BOXES | UNBOUNDED_BOXES
    DISCRETE_AND_BOXES = DISCRETE | BOXES
    ANY = DISCRETE_AND_BOXES | OTHERS


_DESCRIPTIONS = {
    ActionSpaces.DISCRETE: "Discrete spaces",
    ActionSpaces.BOXES: "flat Boxes",
    ActionSpaces.BOUNDED_BOXES: "flat, bounded Boxes",
    ActionSpaces.UNBOUNDED_BOXES: "flat, unbounded Boxes",
    ActionSpaces.OTHERS: "spaces of other kinds",
}


def describe_kinds(spaces: ActionSpaces) -> str:
    """Return the names of kinds of action spaces for a message, such as ``Discrete spaces and flat Boxes``."""
    texts = []
    for kind, text in _DESCRIPTIONS.items():
        if kind in spaces:
            texts.append(text)
            spaces &= ~kind
    return " and ".join(texts)


def kind_of(space: Space) -> ActionSpaces:
    """Return the kind of a space; a Box that is not flat, or in which no agent can act, counts as ``OTHERS``."""
    if isinstance(space, Discrete) and space.start == 0:
        return ActionSpaces.DISCRETE
    if isinstance(space, Box) and len(space.shape) == 1 and not refusal_of(space):
        return ActionSpaces.BOUNDED_BOXES if space.is_bounded else ActionSpaces.UNBOUNDED_BOXES
    return ActionSpaces.OTHERS


def num_outputs(space: Space) -> int:
    """Return A: the number of actions of a Discrete space, or the number of components of an action of a Box."""
    return space.n if isinstance(space, Discrete) else math.prod(space.shape)


def bounded_dimensions(space: Space) -> tuple[bool, ...]:
    """Return a bool per dimension of a Box, true if bounded; an empty tuple if all are bounded, or for other spaces."""
    if not isinstance(space, Box) or space.is_bounded:
        return ()
    return tuple((np.isfinite(space.low) & np.isfinite(space.high)).ravel().tolist())

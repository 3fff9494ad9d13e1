"""Test vectors of the RLX protocol: messages with their bytes, and frames that a reader must reject.

The file ``rlx_vectors.json`` contains every value with its wire type, such as ``{"INT4": 3}``, so that no language has
to guess the type. ``evorl check-client vectors`` prints the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from evorl.serving.rlx import Image


class Vector(NamedTuple):
    """A test vector: a message and its bytes.

    Attributes:
        name: unique name.
        message: keys and values; images are not decoded (``Image``).
        wire: bytes of the payload.
        framed: bytes of the frame that contains the payload.
        read_only: true if readers must accept the bytes although no writer sends them.
    """

    name: str
    message: dict[str, Any]
    wire: bytes
    framed: bytes
    read_only: bool


class Refused(NamedTuple):
    """A test vector that a reader must reject.

    Attributes:
        name: unique name.
        reason: noun phrase that describes the fault.
        framed: bytes of the frame.
    """

    name: str
    reason: str
    framed: bytes


def vectors_text() -> str:
    """Return the JSON text of all vectors."""
    return resources.files("evorl.serving").joinpath("rlx_vectors.json").read_text(encoding="utf-8")


def message_vectors() -> list[Vector]:
    """Return the valid messages in the order of the file."""
    return [
        Vector(
            entry["name"],
            {key: untagged(value) for key, value in entry["message"].items()},
            bytes.fromhex(entry["wire"]),
            bytes.fromhex(entry["framed"]),
            entry.get("read_only", False),
        )
        for entry in json.loads(vectors_text())["messages"]
    ]


def refused_vectors() -> list[Refused]:
    """Return the frames that a reader must reject, in the order of the file."""
    refused = json.loads(vectors_text())["refused"]
    return [Refused(entry["name"], entry["reason"], bytes.fromhex(entry["framed"])) for entry in refused]


def untagged(tagged: Mapping[str, Any]) -> Any:
    """Return the Python value of ``{type: value}``, for instance 3 for ``{"INT4": 3}``.

    An INT64 becomes a ``numpy.int64``, because the codec encodes an ``int`` within 32 bits as INT4.
    """
    ((kind, value),) = tagged.items()
    if kind == "LIST":
        return [untagged(item) for item in value]
    if kind == "DICT":
        return {key: untagged(item) for key, item in value.items()}
    if kind == "INT64":
        return np.int64(value)
    if kind == "NDARRAY":
        return np.array(value["values"], value["dtype"]).reshape(value["shape"])
    if kind == "IMAGE":
        return Image(value["mode"], value["width"], value["height"], bytes.fromhex(value["data"]))
    return value

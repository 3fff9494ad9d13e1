"""Messages as MessagePack: maps as they are, arrays as maps of dtype, shape and bytes, as robots' clients do."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from evorl.serving.rlx import Limits, ProtocolError

MOST_AXES = Limits().max_axes
_KINDS = "biuf"  # dtypes of numbers
_DTYPE = re.compile(r"[<>|=]?[biuf]\d{1,2}|[<>|=]?\?|bool|u?int\d{1,2}|float\d{2}")


def pack_message(message: Any) -> bytes:
    """A message, or a list of them, as bytes. Halves of surrogate pairs, which JSON can have, are escaped."""
    import msgpack

    packed = msgpack.packb(message, default=_as_map, use_bin_type=True, unicode_errors="backslashreplace")
    return bytes(packed or b"")


def unpack_message(data: bytes) -> Any:
    """What ``pack_message`` made, or another program.

    Nothing is allocated that the bytes do not hold; nothing but numbers, text, lists, maps and arrays of numbers comes.

    Raises:
        ProtocolError: it is not that; in words.
    """
    import msgpack

    try:
        return msgpack.unpackb(
            data,
            object_hook=_as_array,
            raw=False,
            strict_map_key=False,
            list_hook=_without_times,
            ext_hook=_refuse_extension,
        )
    except ProtocolError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"a frame is no MessagePack: {error or type(error).__name__}.") from error


def _as_map(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        data = np.ascontiguousarray(value)
        return {"__ndarray__": True, "data": data.tobytes(), "dtype": data.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return value.item()
    raise TypeError(f"a message cannot have a {type(value).__name__}.")


def _as_array(entries: dict[Any, Any]) -> Any:
    """An array where a map says it is one. Libraries write these keys as text or as bytes."""
    _without_times(list(entries.values()))
    names = {key.decode("ascii", "replace") if isinstance(key, bytes) else key: key for key in entries}
    if "__ndarray__" not in names:
        for key in entries:
            if not isinstance(key, str):
                raise ProtocolError(f"a message has names that are text, got {key!r}.")
        return entries
    told = {name: entries[key] for name, key in names.items()}
    data, dtype, shape = told.get("data"), told.get("dtype"), told.get("shape")
    dtype = dtype.decode("ascii", "replace") if isinstance(dtype, bytes) else dtype
    try:
        kind = np.dtype(dtype) if isinstance(dtype, str) and _DTYPE.fullmatch(dtype) else None
    except TypeError:
        kind = None
    if kind is None or kind.kind not in _KINDS:
        raise ProtocolError(f"an array has numbers, got dtype {str(dtype)[:20]!r}.")
    if not isinstance(shape, list | tuple) or len(shape) > MOST_AXES:
        raise ProtocolError(f"an array has a shape of at most {MOST_AXES} axes, got {shape!r}.")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise ProtocolError(f"a shape is whole numbers, got {shape!r}.")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * kind.itemsize:
        raise ProtocolError(f"an array of {kind.name} {list(shape)} came with another number of bytes.")
    return np.frombuffer(data, kind).reshape(shape)


def _without_times(values: list[Any]) -> list[Any]:
    if any(type(value).__name__ == "Timestamp" for value in values):  # an extension that the library reads itself
        raise ProtocolError("a frame has a time of MessagePack, which means nothing here.")
    return values


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ProtocolError(f"a frame has the MessagePack extension {code}, which means nothing here.")

"""Messages in MessagePack, with arrays as maps of dtype, shape and bytes, as openpi's robot clients send them."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from evorl.serving.rlx import Limits, ProtocolError

MAX_AXES = Limits().max_axes
_KINDS = "biuf"  # kinds of numeric dtypes
_DTYPE = re.compile(r"[<>|=]?[biuf]\d{1,2}|[<>|=]?\?|bool|u?int\d{1,2}|float\d{2}")


def pack_message(message: Any) -> bytes:
    """Encode a message or a list of messages; escape unpaired surrogates. Raise ``TypeError`` for unsupported types."""
    import msgpack

    packed = msgpack.packb(message, default=_as_map, use_bin_type=True, unicode_errors="backslashreplace")
    return bytes(packed or b"")


def unpack_message(data: bytes) -> Any:
    """Decode bytes of ``pack_message`` or of another program.

    The result contains only numbers, Booleans, None, strings, bytes, lists, dicts with string keys, and numeric or
    Boolean arrays. A wrong length in the bytes cannot make the decoder allocate excessive memory.

    Raises:
        ProtocolError: the bytes are invalid, or contain an unsupported type.
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
        raise ProtocolError(f"the frame is not valid MessagePack: {error or type(error).__name__}.") from error


def _as_map(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        data = np.ascontiguousarray(value)
        return {"__ndarray__": True, "data": data.tobytes(), "dtype": data.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return value.item()
    raise TypeError(
        f"values of type {type(value).__name__} cannot be sent: convert them to numbers, text, lists, dicts or arrays."
    )


def _as_array(entries: dict[Any, Any]) -> Any:
    """Return the array that a map represents, else the map. Libraries write the keys of arrays as strings or bytes."""
    _without_times(list(entries.values()))
    names = {key.decode("ascii", "replace") if isinstance(key, bytes) else key: key for key in entries}
    if "__ndarray__" not in names:
        for key in entries:
            if not isinstance(key, str):
                raise ProtocolError(f"the keys of a message must be strings, got {key!r}.")
        return entries
    fields = {name: entries[key] for name, key in names.items()}
    data, dtype, shape = fields.get("data"), fields.get("dtype"), fields.get("shape")
    dtype = dtype.decode("ascii", "replace") if isinstance(dtype, bytes) else dtype
    try:
        kind = np.dtype(dtype) if isinstance(dtype, str) and _DTYPE.fullmatch(dtype) else None
    except TypeError:
        kind = None
    if kind is None or kind.kind not in _KINDS:
        raise ProtocolError(f"the dtype of an array must be numeric or Boolean, got {str(dtype)[:20]!r}.")
    if not isinstance(shape, list | tuple) or len(shape) > MAX_AXES:
        raise ProtocolError(f"the shape of an array must be a list of at most {MAX_AXES} sizes, got {shape!r}.")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise ProtocolError(f"the shape of an array must contain non-negative integers, got {shape!r}.")
    size = math.prod(shape) * kind.itemsize
    if not isinstance(data, bytes) or len(data) != size:
        got = len(data) if isinstance(data, bytes) else type(data).__name__
        raise ProtocolError(f"data of {kind.name}{list(shape)} must be {size} bytes, got {got}.")
    return np.frombuffer(data, kind).reshape(shape)


def _without_times(values: list[Any]) -> list[Any]:
    if any(type(value).__name__ == "Timestamp" for value in values):  # msgpack decodes this extension type itself
        raise ProtocolError("the frame contains a MessagePack timestamp, which is not supported: send a number.")
    return values


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ProtocolError(f"the frame contains the MessagePack extension {code}: send arrays as maps with __ndarray__.")

"""Reads ``.npz`` files from untrusted sources: pickles are rejected, and every corruption raises ``NpzError``."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

# OverflowError, SyntaxError and TokenError come from an array's header, NotImplementedError and RuntimeError from
# compression or encryption that Python's zipfile does not support.
_DAMAGE = (OSError, EOFError, KeyError, ValueError, TypeError, OverflowError, MemoryError, SyntaxError, RuntimeError)
_DAMAGE += (tokenize.TokenError, zipfile.BadZipFile, zlib.error)


class NpzError(ValueError):
    """Raised for a file of arrays that cannot be read; the message is a clause, to be embedded in a sentence."""


def storable(array: Any) -> np.ndarray:
    """Return ``array`` for a file; floats that NumPy cannot read back, such as bfloat16, become float32, exactly."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.names is None else array


def read_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file by name, or only those in ``names``.

    Raises:
        NpzError: the file is missing or corrupted, lacks an array of ``names``, or an array is not bool, int or float.
    """
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise ValueError("it is not an .npz file")
            arrays = {name: stored[name] for name in (stored.files if names is None else names)}
    except _DAMAGE as error:
        raise NpzError(str(error)[:200] or type(error).__name__) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise NpzError(f"{name} is not an array of numbers")
    return arrays

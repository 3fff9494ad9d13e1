"""Files of arrays of a stranger: numbers, or one error."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.runs.npz_file import NpzError, read_npz
from tests.support.errors import raises_naming


def _saved(compressed: bool) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, a=np.arange(60.0).reshape(3, 20), b=np.zeros(2, np.bool_))
    return file.getvalue()


WHOLE = {compressed: _saved(compressed) for compressed in (False, True)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays") / "arrays.npz"


def test_it_is_read(path: Path) -> None:
    path.write_bytes(WHOLE[True])
    assert read_npz(path)["a"].shape == (3, 20)
    assert list(read_npz(path, ["b"])) == ["b"]
    with raises_naming(NpzError, "c"):
        read_npz(path, ["c"])
    with raises_naming(NpzError, "No such file"):
        read_npz(path.with_name("nowhere.npz"))


@given(
    compressed=st.booleans(),
    end=st.integers(0, 1000),
    changes=st.dictionaries(st.integers(0, 999), st.integers(0, 255)),
)
def test_any_damage(compressed: bool, end: int, changes: dict[int, int], path: Path) -> None:
    content = bytearray(WHOLE[compressed])
    for at, byte in changes.items():
        content[at % len(content)] = byte
    path.write_bytes(content[: max(end, 300)] if end < 500 else content)
    with contextlib.suppress(NpzError):
        assert all(array.dtype.kind in "biuf" for array in read_npz(path).values())


def _npy(header: str) -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999999999999,), }\n",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
        "{'descr': '<U5', 'fortran_order': False, 'shape': (), }\n",
        "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (), }\n",
        "{'descr': __import__('os'), 'fortran_order': False, 'shape': (), }\n",
        "{'descr': '<f8'\n",
        "(((((\n",
        "\x00\xff",
        "",
    ],
)
def test_a_header_that_is_none(header: str, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", _npy(header) + bytes(20))
    with pytest.raises(NpzError):
        read_npz(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"PK\x05\x06" + bytes(18), _npy("{}"), b"text", bytes(100)])
def test_what_is_no_archive(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    if content.startswith(b"PK"):
        assert read_npz(path) == {}
    else:
        with pytest.raises(NpzError):
            read_npz(path)


def test_other_members_of_an_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")
    with raises_naming(NpzError, "a.txt"):
        read_npz(path)
    np.save(path.with_suffix(".npy"), np.zeros(3))
    with raises_naming(NpzError, "npz"):
        read_npz(path.with_suffix(".npy"))

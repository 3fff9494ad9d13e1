"""Archives of trained policies: the same bytes each time, unpacked once into a run folder."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from evorl.runs import policy_archive
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import RunFolderError
from evorl.runs.policy_archive import (
    ARRAYS,
    CARD,
    CONFIG,
    MANIFEST,
    PROGRESS,
    STRUCTURE,
    open_archive,
    open_bytes,
    read_archive,
    unpacked,
    write_archive,
)
from tests.support.errors import raises_naming
from tests.support.packed_policies import STATE, manifest_of, packed_files, repacked, write_packed


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "evorl" / "policies"


def test_equal_files_make_equal_bytes(tmp_path: Path) -> None:
    digests = {write_packed(tmp_path / f"{name}.zip") for name in ("a", "b")}
    assert len(digests) == 1
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert list(tmp_path.glob(".*")) == []
    manifest = manifest_of(tmp_path / "a.zip")
    assert (manifest["format"], manifest["version"], manifest["algorithm"]) == ("evorl-policy", 1, "ppo")
    assert manifest["files"][ARRAYS]["bytes"] == 24


def test_an_unpacked_archive_is_a_run_folder_with_the_same_arrays(tmp_path: Path, cache: Path) -> None:
    digest = write_packed(tmp_path / "a.zip")
    folder = open_archive(tmp_path / "a.zip")
    assert folder.path == unpacked(digest).path == cache / digest
    assert cache.stat().st_mode & 0o777 == 0o700
    restored, progress = RunCheckpointer(folder.checkpoints).restore(STATE, "best")
    kernel = restored["agent_state"]["params"]["policy"]["kernel"]
    assert np.array_equal(kernel, STATE["agent_state"]["params"]["policy"]["kernel"])
    assert progress["timesteps"] == 70
    assert list(cache.glob(".*")) == []


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_packed(tmp_path / "a.zip")
    first = open_archive(tmp_path / "a.zip")
    monkeypatch.setattr(policy_archive, "_unpack", None)
    assert open_archive(tmp_path / "a.zip").path == first.path


def test_an_unwritten_archive_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_packed(tmp_path / "a.zip")
    before = (tmp_path / "a.zip").read_bytes()
    monkeypatch.setattr(policy_archive, "MAX_CONTENT", 100)
    with raises_naming(RunFolderError, "100 bytes"):
        write_packed(tmp_path / "a.zip", step=8)
    assert (tmp_path / "a.zip").read_bytes() == before
    with raises_naming(RunFolderError, "twice.zip", "'theirs.py'"):
        write_archive(tmp_path / "twice.zip", {**packed_files(), "theirs.py": b""}, {})


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "a.zip").symlink_to(tmp_path / "target")
    with raises_naming(RunFolderError, "a.zip", "symbolic link"):
        write_packed(tmp_path / "a.zip")
    assert (tmp_path / "target").read_text() == "mine"


def test_another_digest_is_an_error(tmp_path: Path, cache: Path) -> None:
    digest = write_packed(tmp_path / "a.zip")
    with raises_naming(RunFolderError, "a.zip", digest, "0" * 64):
        open_bytes((tmp_path / "a.zip").read_bytes(), "a.zip", "0" * 64)
    assert not cache.exists()


@pytest.mark.parametrize("name", [CONFIG, ARRAYS, STRUCTURE, PROGRESS, MANIFEST])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    write_packed(tmp_path / "a.zip")
    repacked(tmp_path / "a.zip", {name: None})
    with raises_naming(RunFolderError, "a.zip", name):
        open_archive(tmp_path / "a.zip")


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.zip")
    repacked(tmp_path / "a.zip", {ARRAYS: bytes(24)})
    with raises_naming(RunFolderError, "a.zip", ARRAYS, "SHA-256"):
        open_archive(tmp_path / "a.zip")
    repacked(tmp_path / "a.zip", {CARD: b"not in the manifest"})
    with raises_naming(RunFolderError, "a.zip", CARD, "manifest"):
        open_archive(tmp_path / "a.zip")


def test_a_later_version_of_the_format_is_named(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.zip")
    changed = manifest_of(tmp_path / "a.zip") | {"version": 2}
    repacked(tmp_path / "a.zip", {MANIFEST: json.dumps(changed).encode()})
    with raises_naming(RunFolderError, "version 2", "version 1"):
        open_archive(tmp_path / "a.zip")


@pytest.mark.parametrize(
    "files",
    [
        {PROGRESS: b"[]"},
        {PROGRESS: b'{"iterations": -1}'},
        {PROGRESS: b'{"iterations": "../../x"}'},
        {PROGRESS: b'{"iterations": 7}'},
        {STRUCTURE: b"{}"},
        {STRUCTURE: b'{"leaves": [{"path": "a", "shape": [2], "dtype": "float32", "offset": 99}]}'},
        {STRUCTURE: b'{"leaves": [{"path": "a", "shape": 2, "dtype": "float32", "offset": 0}]}'},
        {STRUCTURE: b"[" * 100_000},
        {ARRAYS: b""},
    ],
    ids=str,
)
def test_a_corrupted_checkpoint_leaves_nothing_behind(files: dict[str, bytes], tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path / "a.zip", packed_files() | files, {})
    with raises_naming(RunFolderError, "a.zip", "checkpoint"):
        open_archive(tmp_path / "a.zip")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("cut", [0, 1, 21, 22, 60, 400])
def test_an_incomplete_file_is_one_error(cut: int, tmp_path: Path) -> None:
    write_packed(tmp_path / "a.zip")
    data = (tmp_path / "a.zip").read_bytes()
    for part in (data[:cut], data[: len(data) - cut - 1], data[cut + 1 :]):
        with raises_naming(RunFolderError, "a.zip", "evorl pack"):
            read_archive(io.BytesIO(part), "a.zip")


def test_any_changed_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.zip")
    data = (tmp_path / "a.zip").read_bytes()
    expected = read_archive(io.BytesIO(data), "a.zip")
    for i in range(len(data)):
        changed = data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :]
        with contextlib.suppress(RunFolderError):
            assert read_archive(io.BytesIO(changed), "a.zip") == expected

"""Packed policies by path and by address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evorl.runs.best_run import find_run
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.shared_policy import shared_policy
from tests.support.errors import raises_naming
from tests.support.file_server import Answer, FileServer, file_server
from tests.support.packed_policies import write_packed


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder, and work in an empty one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "evorl" / "policies"


@pytest.fixture
def server() -> Iterator[FileServer]:
    """Serve scripted answers."""
    with file_server() as server:
        yield server


def test_a_path_is_found_here_and_below_the_folder_of_runs(tmp_path: Path, cache: Path) -> None:
    digest = write_packed(tmp_path / "runs" / "a.zip")
    for which in ("a.zip", "runs/a.zip", tmp_path / "runs" / "a.zip"):
        assert find_run(which, "runs").path == cache / digest


def test_other_names_are_no_packed_policies(tmp_path: Path) -> None:
    (tmp_path / "folder.zip").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for which in ("latest", "folder.zip", "notes.txt", "none.zip", "a//b"):
        assert shared_policy(which, "runs") is None


def test_a_packed_policy_is_not_resumed(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.zip")
    with raises_naming(RunFolderError, "a.zip", "run=a.zip", "init_from=a.zip"):
        RunFolder.find("a.zip", "runs")


def test_an_address_is_downloaded_once_with_a_digest(tmp_path: Path, cache: Path, server: FileServer) -> None:
    digest = write_packed(tmp_path / "a.zip")
    server.answers["/a.zip"] = Answer((tmp_path / "a.zip").read_bytes())
    address = f"{server.address}/a.zip"
    assert find_run(address, "runs").path == cache / digest
    assert find_run(f"{address}#sha256={digest.upper()}", "runs").path == cache / digest
    assert server.requests == ["GET /a.zip"]
    find_run(address, "runs")  # without a digest, the file may have changed
    assert server.requests == ["GET /a.zip"] * 2


def test_another_file_at_the_address_is_an_error(tmp_path: Path, cache: Path, server: FileServer) -> None:
    digest = write_packed(tmp_path / "a.zip")
    other = write_packed(tmp_path / "b.zip", step=8)
    server.answers["/a.zip"] = Answer((tmp_path / "b.zip").read_bytes())
    with raises_naming(RunFolderError, f"{server.address}/a.zip", digest, other):
        find_run(f"{server.address}/a.zip#sha256={digest}", "runs")
    assert not cache.exists()


def test_a_checksum_of_another_form_is_an_error(server: FileServer) -> None:
    for fragment in ("sha256=12", "md5=" + "0" * 32, "anything"):
        with raises_naming(RunFolderError, fragment, "#sha256="):
            find_run(f"{server.address}/a.zip#{fragment}", "runs")
    assert server.requests == []


def test_a_page_in_place_of_a_file_is_an_error(server: FileServer) -> None:
    server.answers["/a.zip"] = Answer(b"<html>Please log in</html>")
    with raises_naming(RunFolderError, f"{server.address}/a.zip", "not a ZIP file"):
        find_run(f"{server.address}/a.zip", "runs")

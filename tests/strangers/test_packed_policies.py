"""Untrusted packed policies: no code is executed, nothing is written outside of the cache, and sizes are limited."""

from __future__ import annotations

import io
import json
import os
import stat
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import evorl
from evorl.runs import policy_archive
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import RunFolderError
from evorl.runs.policy_archive import CARD, CONFIG, MANIFEST
from evorl.runs.structure import CheckpointError
from tests.strangers.conftest import Refused
from tests.strangers.test_run_folders import NAMES, filled, store
from tests.support.errors import assert_names, raises_naming
from tests.support.file_server import Answer, file_server
from tests.support.packed_policies import STATE, packed_files, repacked, write_packed
from tests.support.stranger_code import StrangerCode

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "evaluate": ("run=",),
    "save-replay": ("run=",),
    "render": ("run=",),
    "export": ("run=", "format=numpy"),
    "play": ("run=",),
    "act": ("run=", "bind=127.0.0.1:0"),
    "pack": ("run=",),
}
FACTORY = {"env": {"factory": "stranger:make"}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "evorl" / "policies"


def packed(tmp_path: Path, changes: Mapping[str, Any]) -> Path:
    """Pack a config of PPO on CartPole with an attacker's changes."""
    config = (store(tmp_path / "theirs", changes) / "config.yaml").read_bytes()
    files = packed_files() | {CONFIG: config}
    policy_archive.write_archive(tmp_path / "theirs.zip", files, {})
    return tmp_path / "theirs.zip"


@pytest.mark.parametrize("name", NAMES)
def test_no_evaluation_executes_what_a_packed_config_names(
    name: str, tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    path = packed(tmp_path, filled(NAMES[name], stranger.command))
    assert_names(refused("evaluate", f"run={path}"), "would execute code", "outside evorl", "trust=true")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_executes_what_a_packed_config_names(
    command: str, tmp_path: Path, stranger: StrangerCode, refused: Refused
) -> None:
    path = packed(tmp_path, FACTORY)
    which, *others = COMMANDS[command]
    assert_names(refused(command, f"{which}{path}", *others), "would execute code", "outside evorl", "trust=true")


def test_no_function_executes_what_a_packed_config_names(tmp_path: Path, stranger: StrangerCode) -> None:
    path = packed(tmp_path, FACTORY)
    for read in (evorl.load_policy, lambda run: evorl.render(run=run), lambda run: evorl.pack(run=run)):
        with raises_naming(RunFolderError, "execute code", "outside evorl"):
            read(path)


def test_an_address_is_as_untrusted_as_a_file(tmp_path: Path, stranger: StrangerCode, refused: Refused) -> None:
    path = packed(tmp_path, FACTORY)
    with file_server() as server:
        server.answers["/theirs.zip"] = Answer(path.read_bytes())
        message = refused("evaluate", f"run={server.address}/theirs.zip")
    assert_names(message, "env.factory=stranger:make", "trust=true")


@pytest.mark.parametrize(
    "target", ["file:///etc/hostname", "http://192.0.2.1/theirs.zip", "ftp://127.0.0.1/theirs.zip"]
)
def test_a_redirection_elsewhere_is_one_error(target: str, refused: Refused) -> None:
    with file_server() as server:
        server.answers["/theirs.zip"] = Answer(b"", 302, {"Location": target})
        assert_names(refused("evaluate", f"run={server.address}/theirs.zip"), server.address, target)


def test_the_cache_of_another_user_is_not_used(
    tmp_path: Path, cache: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = write_packed(tmp_path / "mine.zip")
    store(cache, {}, digest)
    assert policy_archive.open_archive(tmp_path / "mine.zip").path == cache / digest
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    cache.chmod(0o777)
    for which in (tmp_path / "mine.zip", f"https://127.0.0.1:1/mine.zip#sha256={digest}"):
        assert_names(refused("evaluate", f"run={which}"), str(cache), "another user")


def test_a_large_download_is_one_error(tmp_path: Path, cache: Path, refused: Refused) -> None:
    with file_server() as server:
        server.answers["/theirs.zip"] = Answer(lambda _: None, headers={"Content-Length": str(10**15)})
        message = refused("render", f"run={server.address}/theirs.zip")
    assert_names(message, server.address, f"{policy_archive.MAX_BYTES:,} bytes")
    assert not cache.exists()


@pytest.mark.parametrize(
    "name",
    ["../evil", "checkpoint/../../evil", "/etc/evil", "C:\\evil", "..\\evil", "a/", "checkpoint", "evil\0.csv",
     "sweep.csv", "sitecustomize.py", "state.json", "checkpoints/7/state/x", CONFIG.upper()],
)  # fmt: skip
def test_names_lead_nowhere(name: str, tmp_path: Path, cache: Path, refused: Refused) -> None:
    write_packed(tmp_path / "theirs.zip")
    info = zipfile.ZipInfo("x" * len(name))
    repacked(tmp_path / "theirs.zip", add=(info, b"evil"))
    raw = (tmp_path / "theirs.zip").read_bytes()  # zipfile itself would clean some of the names
    (tmp_path / "theirs.zip").write_bytes(raw.replace(b"x" * len(name), name.encode()))
    before = sorted(tmp_path.rglob("*"))
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), "theirs.zip", "no packed policy has")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
def test_links_and_special_files_are_errors(kind: int, tmp_path: Path, cache: Path, refused: Refused) -> None:
    write_packed(tmp_path / "theirs.zip")
    info = zipfile.ZipInfo(CARD)
    info.create_system, info.external_attr = 3, (kind | 0o777) << 16
    repacked(tmp_path / "theirs.zip", add=(info, b"/etc/passwd"))
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), CARD, "link")
    assert not cache.exists()


def test_a_compressed_bomb_is_not_read(tmp_path: Path, refused: Refused) -> None:
    write_packed(tmp_path / "theirs.zip")
    repacked(tmp_path / "theirs.zip", {CARD: bytes(50 * 2**20)}, method=zipfile.ZIP_DEFLATED)
    assert (tmp_path / "theirs.zip").stat().st_size < 100_000
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), CARD, "factor of 200")


def test_more_content_than_the_limit_is_not_read(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packed(tmp_path / "theirs.zip")
    monkeypatch.setattr(policy_archive, "MAX_CONTENT", 100)
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), "100 bytes")


def test_thousands_of_files_are_not_listed(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        for number in range(3000):
            archive.writestr(f"{number}", b"")
    monkeypatch.setattr(policy_archive.zipfile, "ZipFile", None)  # its table of contents is not read
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), "table of contents", "larger")


def test_a_declared_size_below_the_real_one_is_an_error(tmp_path: Path, refused: Refused) -> None:
    write_packed(tmp_path / "theirs.zip")
    repacked(tmp_path / "theirs.zip", {CARD: bytes(2**20 + 7)}, method=zipfile.ZIP_DEFLATED)
    raw = (tmp_path / "theirs.zip").read_bytes()
    (tmp_path / "theirs.zip").write_bytes(raw.replace((2**20 + 7).to_bytes(4, "little"), (9).to_bytes(4, "little")))
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), "theirs.zip")


def test_no_more_than_the_declared_size_is_decompressed(tmp_path: Path) -> None:
    """``ZipFile.read`` decompresses the whole file and cuts it then."""
    write_packed(tmp_path / "theirs.zip")
    size = 50 * 2**20 + 7
    repacked(tmp_path / "theirs.zip", {CARD: bytes(size)}, method=zipfile.ZIP_DEFLATED)
    raw = (tmp_path / "theirs.zip").read_bytes().replace(size.to_bytes(4, "little"), (9).to_bytes(4, "little"))
    tracemalloc.start()
    try:
        with raises_naming(RunFolderError, CARD):
            policy_archive.read_archive(io.BytesIO(raw), "theirs.zip")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_large_json_is_not_parsed(tmp_path: Path, refused: Refused) -> None:
    """Nested lists are twenty times as large in memory as in a file."""
    write_packed(tmp_path / "theirs.zip")
    for name in (MANIFEST, policy_archive.STRUCTURE, policy_archive.PROGRESS):
        repacked(tmp_path / "theirs.zip", {name: b"[]," * (policy_archive.MAX_JSON // 3 + 1)})
        assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), name, f"{policy_archive.MAX_JSON:,} bytes")
        write_packed(tmp_path / "theirs.zip")


def test_a_file_twice_is_an_error(tmp_path: Path, refused: Refused) -> None:
    write_packed(tmp_path / "theirs.zip")
    with pytest.warns(UserWarning, match="Duplicate"):
        repacked(tmp_path / "theirs.zip", add=(CONFIG, b"seed: 1"))
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), CONFIG, "twice")


def test_a_changed_file_is_an_error(tmp_path: Path, cache: Path, refused: Refused) -> None:
    write_packed(tmp_path / "theirs.zip")
    repacked(tmp_path / "theirs.zip", {CONFIG: b"seed: 1"})
    assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), CONFIG, MANIFEST)
    assert not cache.exists()


def test_a_file_that_is_no_policy_is_one_error(tmp_path: Path, refused: Refused) -> None:
    for content in (b"", b"PK\5\6" + bytes(18), b"PK\3\4" * 1000, bytes(100)):
        (tmp_path / "theirs.zip").write_bytes(content)
        assert_names(refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), "theirs.zip", "evorl pack")


def test_packing_follows_no_link(tmp_path: Path, refused: Refused) -> None:
    """A packed run would contain, and an upload publish, the file that a link in the run folder leads to."""
    folder = store(tmp_path, {})
    (tmp_path / "secret").write_text("timesteps\n1\n")
    (folder / "metrics.csv").symlink_to(tmp_path / "secret")
    assert_names(refused("pack", f"run={folder}"), "metrics.csv", "symbolic link")


def test_the_largest_array_is_bounded_by_the_file(tmp_path: Path, refused: Refused) -> None:
    structure = b'{"leaves": [{"path": "agent_state", "shape": [1000000000000], "dtype": "float32", "offset": 0}]}'
    files = packed_files() | {policy_archive.STRUCTURE: structure}
    policy_archive.write_archive(tmp_path / "theirs.zip", files, {})
    assert refused("evaluate", f"run={tmp_path / 'theirs.zip'}", "trust=true")


@pytest.mark.parametrize("offset", [3, 20, 1.5, True])
def test_an_array_outside_of_its_file_is_an_error(offset: float, tmp_path: Path) -> None:
    files = packed_files()
    structure = json.loads(files[policy_archive.STRUCTURE])
    structure["leaves"][0]["offset"] = offset
    files[policy_archive.STRUCTURE] = json.dumps(structure).encode()
    policy_archive.write_archive(tmp_path / "theirs.zip", files, {})
    folder = policy_archive.open_archive(tmp_path / "theirs.zip")
    with raises_naming(CheckpointError, "kernel", "not within its file"):
        RunCheckpointer(folder.checkpoints).restore(STATE, "best")


def test_progress_is_a_mapping(tmp_path: Path, refused: Refused) -> None:
    about = json.loads(packed_files()[policy_archive.PROGRESS]) | {"progress": [7]}
    policy_archive.write_archive(
        tmp_path / "theirs.zip", packed_files() | {policy_archive.PROGRESS: json.dumps(about).encode()}, {}
    )
    assert_names(
        refused("evaluate", f"run={tmp_path / 'theirs.zip'}"), "theirs.zip", "progress must be a mapping", "[7]"
    )

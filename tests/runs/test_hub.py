"""The backend for the Hugging Face Hub, against a stand-in server with the requests of its library."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evorl.runs import download as downloads
from evorl.runs import hub
from evorl.runs.best_run import find_run
from evorl.runs.files import RunFolderError
from evorl.runs.hub import HubAddress, download_from_hub, upload_to_hub
from tests.support.errors import raises_naming
from tests.support.file_server import Answer, FileServer, dripping_server, file_server
from tests.support.optional_packages import need
from tests.support.packed_policies import write_packed

need("huggingface_hub", "hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandIn:
    """A repository ``anna/policy`` of the Hub.

    Attributes:
        server: the server.
        files: uploaded contents by name.
    """

    def __init__(self, server: FileServer) -> None:
        self.server = server
        self.files: dict[str, bytes] = {}
        server.answers |= {
            "POST /api/repos/create": self._json({"url": f"{server.address}/anna/policy"}),
            "POST /api/validate-yaml": self._json({"warnings": [], "errors": []}),
            "POST /api/models/anna/policy/preupload/main": self._preupload,
            "POST /api/models/anna/policy/commit/main": self._commit,
        }

    @staticmethod
    def _json(content: object) -> Answer:
        return Answer(json.dumps(content).encode(), headers={"Content-Type": "application/json"})

    def _preupload(self, body: bytes) -> Answer:
        names = [file["path"] for file in json.loads(body)["files"]]
        files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
        return self._json({"files": files})

    def _commit(self, body: bytes) -> Answer:
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                self.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        url = f"{self.server.address}/anna/policy/commit/{COMMIT}"
        return self._json({"commitUrl": url, "commitOid": COMMIT, "hookOutput": "", "pullRequestUrl": None})

    def serve(self, content: bytes, revision: str = "main") -> None:
        """Serve a file under the name of the archive."""
        headers = {"ETag": '"abc"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        for name in (revision, COMMIT):
            self.server.answers[f"/anna/policy/resolve/{name}/policy.zip"] = Answer(content, headers=headers)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Serve a repository as the Hub does, with an empty cache."""
    with file_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", "hf_ofatest")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield StandIn(server)


def test_files_are_uploaded_in_one_commit(stand_in: StandIn) -> None:
    files = {"policy.zip": b"\0\1", "README.md": b"# A policy"}
    page = upload_to_hub("hf://anna/policy", files, "a policy")
    assert page == f"{stand_in.server.address}/anna/policy/commit/{COMMIT}"
    assert stand_in.files == files
    assert sum("commit" in request for request in stand_in.server.requests) == 1


@pytest.mark.parametrize("revision", ["main", "v1"])
def test_a_policy_is_downloaded_and_unpacked(revision: str, stand_in: StandIn, tmp_path: Path) -> None:
    digest = write_packed(tmp_path / "a.zip")
    stand_in.serve((tmp_path / "a.zip").read_bytes(), revision)
    address = "hf://anna/policy" + ("" if revision == "main" else f"@{revision}")
    assert find_run(address, "runs").path == tmp_path / "cache" / "evorl" / "policies" / digest
    stand_in.server.requests.clear()
    assert find_run(address, "runs").path.name == digest
    assert [request.split()[0] for request in stand_in.server.requests] == ["HEAD"]  # the commit is in the cache


def test_a_file_that_changes_after_its_size_was_checked_is_an_error(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.serve(b"x" * 1000)
    place = f"/anna/policy/resolve/{COMMIT}/policy.zip"
    sent = [0]

    def endless(handler: Any) -> None:
        while True:
            handler.wfile.write(b"x" * 65_536)
            sent[0] += 65_536

    stand_in.server.answers[place] = Answer(endless)
    with raises_naming(RunFolderError, "policy.zip", "more than 1,000 bytes"):
        download_from_hub("hf://anna/policy")
    assert sent[0] < 10**8
    stand_in.server.answers[place] = Answer(b"x" * 999)
    with raises_naming(RunFolderError, "hf://anna/policy", "999 of 1,000 bytes"):
        download_from_hub("hf://anna/policy")
    assert not list((tmp_path / "cache" / "evorl" / "hub").iterdir())


def test_a_hub_that_drips_its_headers_is_left(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TOTAL_SECONDS", 0.3)
    with dripping_server() as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with raises_naming(RunFolderError, "hf://anna/policy", "within 0.3 s"):
            download_from_hub("hf://anna/policy")


def test_a_server_without_commits_is_not_the_hub(stand_in: StandIn) -> None:
    stand_in.server.answers["/anna/policy/resolve/main/policy.zip"] = Answer(b"x", headers={"ETag": '"abc"'})
    with raises_naming(RunFolderError, "hf://anna/policy", "names no commit"):
        download_from_hub("hf://anna/policy")


def test_the_token_is_sent_to_the_hub(stand_in: StandIn) -> None:
    def needs_token(handler: Any) -> None:
        handler.wfile.write(b"x" * (10 if handler.headers.get("Authorization") == "Bearer hf_ofatest" else 9))

    stand_in.serve(b"x" * 10)
    stand_in.server.answers[f"/anna/policy/resolve/{COMMIT}/policy.zip"] = Answer(needs_token)
    assert download_from_hub("hf://anna/policy").read_bytes() == b"x" * 10


def test_a_large_file_is_not_downloaded(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.serve(b"x" * 11)
    monkeypatch.setattr(hub, "MAX_BYTES", 10)
    with raises_naming(RunFolderError, "hf://anna/policy", "11 bytes", "10"):
        download_from_hub("hf://anna/policy")
    assert not any(request.startswith("GET") for request in stand_in.server.requests)


def test_a_missing_repository_is_named(stand_in: StandIn) -> None:
    with raises_naming(RunFolderError, "hf://anna/nothing", "404"):
        download_from_hub("hf://anna/nothing")
    with raises_naming(RunFolderError, "hf://bob/policy", "hf auth login"):
        stand_in.server.answers["POST /api/repos/create"] = Answer(b"{}", 401)
        upload_to_hub("hf://bob/policy", {"a": b""}, "a policy")


def test_a_hub_that_cannot_be_reached_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with raises_naming(RunFolderError, "hf://anna/policy was not downloaded", "refused"):
        download_from_hub("hf://anna/policy")
    with raises_naming(RunFolderError, "hf://anna/policy was not uploaded", "refused"):
        upload_to_hub("hf://anna/policy", {"a": b""}, "a policy")


@pytest.mark.parametrize(
    "address", ["hf://anna", "hf://anna/a/b", "hf://../x", "hf://anna/x?y=1", "hf://anna/x@", "hf://anna/x#sha256=0"]
)
def test_other_addresses_are_errors(address: str) -> None:
    with raises_naming(RunFolderError, address, "hf://<owner>/<name>"):
        HubAddress.read(address)


def test_an_address_has_a_repository_and_a_revision() -> None:
    assert HubAddress.read("hf://anna/policy-1") == ("anna/policy-1", None)
    assert HubAddress.read("hf://anna/policy@refs/pr/1") == ("anna/policy", "refs/pr/1")

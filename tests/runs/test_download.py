"""Downloads with limits, from a server on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evorl.runs import download as downloads
from evorl.runs.download import check_address, download
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.file_server import Answer, FileServer, dripping_server, file_server


@pytest.fixture
def server() -> Iterator[FileServer]:
    """Serve scripted answers."""
    with file_server() as server:
        yield server


def _redirect(target: str, status: int = 302) -> Answer:
    return Answer(b"", status, {"Location": target})


def test_a_file_arrives(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # no proxy is asked for files of this machine
    server.answers |= {"/a": Answer(b"x" * 100_000), "/moved": _redirect("/a", 308)}
    assert download(f"{server.address}/a", 100_000) == b"x" * 100_000
    assert download(f"{server.address}/moved", 100_000) == b"x" * 100_000


def test_a_missing_file_and_a_missing_server_are_named(server: FileServer) -> None:
    with raises_naming(RunFolderError, f"{server.address}/b", "404"):
        download(f"{server.address}/b", 10)
    with raises_naming(RunFolderError, "http://127.0.0.1:1/b", "refused"):
        download("http://127.0.0.1:1/b", 10)


def test_a_large_file_is_not_read(server: FileServer) -> None:
    server.answers["/a"] = Answer(b"x" * 11)
    with raises_naming(RunFolderError, "10 bytes"):
        download(f"{server.address}/a", 10)


def test_a_file_without_end_is_not_read(server: FileServer) -> None:
    def endless(handler: Any) -> None:
        while True:
            handler.wfile.write(b"x" * 65_536)

    server.answers["/a"] = Answer(endless)
    with raises_naming(RunFolderError, "1,000,000 bytes"):
        download(f"{server.address}/a", 10**6)


def test_the_body_of_a_redirection_is_not_read(server: FileServer) -> None:
    def endless(handler: Any) -> None:
        while True:
            handler.wfile.write(b"x" * 65_536)

    server.answers |= {"/a": Answer(endless, 302, {"Location": "/b"}), "/b": Answer(b"abc")}
    assert download(f"{server.address}/a", 10) == b"abc"
    server.answers["/a"] = Answer(endless, 302, {"Location": "http://192.0.2.1/"})
    with raises_naming(RunFolderError, "192.0.2.1"):
        download(f"{server.address}/a", 10)


def test_a_slow_server_is_left(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(handler: Any) -> None:
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.01)

    server.answers["/a"] = Answer(slow)
    monkeypatch.setattr(downloads, "TOTAL_SECONDS", 0.1)
    with raises_naming(RunFolderError, f"{server.address}/a", "0.1 s"):
        download(f"{server.address}/a", 10**6)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: "], ids=["status", "header"])
def test_a_server_that_drips_its_headers_is_left(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TOTAL_SECONDS", 0.3)
    monkeypatch.setattr(downloads, "SECONDS", 0.2)  # never exceeded: each byte starts it again
    with dripping_server(start) as address, raises_naming(RunFolderError, f"{address}/a", "within 0.3 s"):
        download(f"{address}/a", 10**6)  # the headers never end: without the limit it never returns


def test_a_slow_chain_of_redirections_is_left(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(number: int) -> Callable[[bytes], Answer]:
        def answer(_: bytes) -> Answer:
            time.sleep(0.15)
            return _redirect(f"/{number + 1}")

        return answer

    server.answers |= {f"/{i}": slow(i) for i in range(4)} | {"/4": Answer(b"abc")}
    monkeypatch.setattr(downloads, "TOTAL_SECONDS", 0.3)
    with raises_naming(RunFolderError, f"{server.address}/0", "within 0.3 s"):
        download(f"{server.address}/0", 10)


def test_a_password_is_not_sent_to_other_servers(server: FileServer) -> None:
    seen: dict[str, str | None] = {}

    def note(handler: Any) -> None:
        seen[handler.path] = handler.headers.get("Authorization")
        handler.wfile.write(b"abc")

    with file_server() as other:
        server.answers |= {"/a": Answer(note), "/b": _redirect("/a"), "/c": _redirect(f"{other.address}/c")}
        other.answers["/c"] = Answer(note)
        for path in "abc":
            assert download(f"{server.address}/{path}", 3, {"Authorization": "Bearer hushhush"}) == b"abc"
    assert seen == {"/a": "Bearer hushhush", "/c": None}


def test_a_silent_server_is_left(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers["/a"] = Answer(lambda handler: time.sleep(0.5), headers={"Content-Length": "5"})
    monkeypatch.setattr(downloads, "SECONDS", 0.1)
    with raises_naming(RunFolderError, f"{server.address}/a", "timed out"):
        download(f"{server.address}/a", 10)


def test_an_incomplete_file_is_an_error(server: FileServer) -> None:
    server.answers["/a"] = Answer(lambda handler: handler.wfile.write(b"xx"), headers={"Content-Length": "5"})
    with raises_naming(RunFolderError, f"{server.address}/a"):
        download(f"{server.address}/a", 10)


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/a",
        "data:text/plain,abc",
        "http://192.0.2.1/a",
        "http://user:key@localhost/",
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_elsewhere_is_not_followed(server: FileServer, target: str, status: int) -> None:
    server.answers["/a"] = _redirect(target, status)
    with raises_naming(RunFolderError, target.partition(":")[0]) as raised:
        download(f"{server.address}/a", 10)
    assert "key" not in str(raised.value)


def test_a_circle_of_redirections_ends(server: FileServer) -> None:
    server.answers["/a"] = _redirect("/a")
    server.answers |= {f"/{i}": _redirect(f"/{i + 1}") for i in range(20)}
    for path in ("/a", "/0"):
        before = len(server.requests)
        with raises_naming(RunFolderError, f"{server.address}{path}"):
            download(f"{server.address}{path}", 10)
        assert len(server.requests) - before <= downloads.MAX_REDIRECTIONS + 1


def test_an_unknown_certificate_is_an_error(tmp_path: Path) -> None:
    with file_server(tmp_path) as server, raises_naming(RunFolderError, server.address, "certificate"):
        download(f"{server.address}/a", 10)
    assert server.requests == []


def test_https_is_verified_and_does_not_redirect_to_http(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    server.answers["/a"] = Answer(b"abc")
    with file_server(tmp_path) as safe:
        safe.answers |= {"/a": Answer(b"abc"), "/b": _redirect(f"{server.address}/a"), "/c": _redirect("/a")}
        assert download(f"{safe.address}/a", 3) == download(f"{safe.address}/c", 3) == b"abc"
        with raises_naming(RunFolderError, f"{safe.address}/b", server.address, "HTTP"):
            download(f"{safe.address}/b", 3)
    assert server.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "http://example.com/a.zip",
        "http://127.0.0.1.example.com/a.zip",
        "http://localhost.example.com/",
        "http://0.0.0.0/",
        "http://[::ffff:192.0.2.1]/",
        "http:///a.zip",
        "https:///a.zip",
        "ftp://example.com/a.zip",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "https://user:secret@example.com/a.zip",
        "https://user@example.com/a.zip",
        "https://example.com:port/",
        "https://[x/",
    ],
)
def test_other_addresses_are_errors(address: str) -> None:
    with pytest.raises(RunFolderError) as raised:
        check_address(address)
    assert "secret" not in str(raised.value)


def test_https_does_not_become_http() -> None:
    assert check_address("https://example.com/a") is False
    assert check_address("http://localhost:80/a") is check_address("http://[::1]/a") is True
    assert check_address("https://example.com/b", after="http://localhost/a") is False
    with raises_naming(RunFolderError, "https://example.com/a", "http://localhost/b", "HTTP"):
        check_address("http://localhost/b", after="https://example.com/a")

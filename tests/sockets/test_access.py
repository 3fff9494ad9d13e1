"""Addresses and tokens of all servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evorl.sockets.access import (
    host_and_port,
    is_same_secret,
    is_this_machine,
    require_token_beyond_this_machine,
    tls_context,
)
from tests.support.certificate import write_certificate
from tests.support.errors import raises_naming


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:7001", ("127.0.0.1", 7001)),
        ("[::1]:0", ("::1", 0)),
        (":7001", ("127.0.0.1", 7001)),
        ("localhost:1", ("localhost", 1)),
    ],
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert host_and_port(address, "serve.bind") == expected


@pytest.mark.parametrize("address", ["7001", "localhost", "localhost:", "localhost:http", "localhost:70000", "", None])
def test_what_is_no_address(address: Any) -> None:
    with raises_naming(ValueError, "serve.bind", "127.0.0.1:7001", f"got {address!r}"):
        host_and_port(address, "serve.bind")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_what_is_this_machine(host: str, expected: bool) -> None:
    assert is_this_machine(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org", ""])
def test_other_machines_need_a_token(host: str) -> None:
    for token in (None, ""):
        with raises_naming(ValueError, "bind=x", "token", "give one", "127.0.0.1"):
            require_token_beyond_this_machine(host, token, "bind=x", "give one")
    require_token_beyond_this_machine(host, "a good long token", "bind=x", "give one")


@pytest.mark.parametrize(
    "shown", [None, 1, True, b"secret", ["secret"], {}, "", "Secret", "secret ", "\ud800", "s\u00e9cret"]
)
def test_what_is_not_the_secret(shown: Any) -> None:
    assert not is_same_secret(shown, "secret")
    assert not is_same_secret(shown, None)


def test_the_secret() -> None:
    assert is_same_secret("s\u00e9cret", "s\u00e9cret")


def test_other_files_are_no_certificate(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    for given in ((key, cert), (tmp_path / "none.pem", key)):
        with raises_naming(ValueError, f"serve.cert={given[0]}", "certificate"):
            tls_context(*given, "serve.cert, serve.key")
    assert tls_context(cert, key) is not None


def test_tls_needs_both_files() -> None:
    with raises_naming(ValueError, "serve.cert=<file>", "serve.key=<file>"):
        tls_context("cert.pem", None, "serve.cert, serve.key")
    assert tls_context(None, None) is None

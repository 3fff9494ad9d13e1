"""Access control of the live page."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from evorl.live import page_guard
from evorl.live.page_guard import PageGuard, RateLimit, Refused
from evorl.sockets.access import tls_context
from tests.support.certificate import write_certificate
from tests.support.errors import raises_naming

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.3", "box.lan", ""])
def test_other_machines_need_a_token(bind: str) -> None:
    with raises_naming(ValueError, "token=new"):
        PageGuard(bind)
    assert PageGuard(bind, TOKEN).bind == bind


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_this_machine_needs_none(bind: str) -> None:
    assert PageGuard(bind).knows(None)


@pytest.mark.parametrize("token", ["", "short", "fifteen-letters", "a token\nof two lines", "ein-längeres-Zeichen"])
def test_poor_tokens_are_refused(token: str) -> None:
    with raises_naming(ValueError, "at least 16 characters", "printable ASCII"):
        PageGuard(token=token)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:7002", "[::1]:7002", "10.0.0.3", "box.lan:1"])
def test_names_of_this_machine(host: str) -> None:
    PageGuard(hosts=("Box.lan",)).check_host(host)


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "evil.example:7002", "127.0.0.1.evil.example", "a:b:c", "[x"]
)
def test_names_that_are_not_this_machine(host: str | None) -> None:
    with raises_naming(Refused, "hosts=") as refused:
        PageGuard().check_host(host)
    assert refused.value.status == 421


def test_other_pages_are_refused() -> None:
    guard = PageGuard()
    for origin in (None, "http://localhost:7002", "https://localhost:7002"):
        guard.check_origin(origin, "localhost:7002")
    for origin in ("null", "http://evil.example", "http://localhost:8000", ""):
        with raises_naming(Refused, "origin"):
            guard.check_origin(origin, "localhost:7002")


def test_the_token_and_the_cookie() -> None:
    guard = PageGuard(token=TOKEN)
    assert guard.knows(f"Bearer {TOKEN}")
    assert guard.knows(f"bearer  {TOKEN}")
    assert guard.knows(None, guard.session)
    for header in (None, "", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", "Bearer \udcff"):
        assert not guard.knows(header)
    assert not guard.knows(None, TOKEN)
    assert not guard.knows(None, "")
    assert guard.session != PageGuard(token=TOKEN).session
    assert guard.session not in repr(guard)


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    limit = RateLimit(10, 20, lambda: now[0])
    limit.take("a", 20)
    with raises_naming(Refused, "10 per second", "20 at once", "0.1 s") as refused:
        limit.take("a")
    assert refused.value.status == 429
    limit.take("b")
    now[0] = 0.5
    limit.take("a", 5)
    with pytest.raises(Refused):
        limit.take("a")
    with pytest.raises(Refused):
        limit.take("c", 21)
    limit.take("c", 20)
    monkeypatch.setattr(page_guard, "MAX_CLIENTS", 3)
    for client in "defgh":
        limit.take(client)
    assert len(limit._left) <= 4


def test_tls(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    assert tls_context(None, None) is None
    context = tls_context(cert, key)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    with raises_naming(ValueError, "TLS", "both files"):
        tls_context(cert, None)
    with raises_naming(ValueError, "certificate"):
        tls_context(key, cert)
    with raises_naming(ValueError, "certificate"):
        tls_context(tmp_path / "none", key)

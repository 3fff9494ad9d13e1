"""Malformed HTTP is rejected by every HTTP server, with at most one log line and no traceback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.servers import HTTP_SERVERS, all_it_says, running

pytest.importorskip("aiohttp", reason="pages need the extra serve")
LONG = b"a" * 9000
DIGITS = b"9" * 400
HOST = b"Host: localhost\r\n"
ASKED = b" HTTP/1.1\r\n" + HOST
MALFORMED = {
    "no method": b" / HTTP/1.1\r\n\r\n",
    "odd method": b"G\x00T / HTTP/1.1\r\n" + HOST + b"\r\n",
    "long method": LONG + b" /" + ASKED + b"\r\n",
    "no version": b"GET /\r\n\r\n",
    "odd version": b"GET / HTTP/9.9.9\r\n" + HOST + b"\r\n",
    "long line": b"GET /" + LONG + ASKED + b"\r\n",
    "long query": b"GET /api/scalars?name=" + LONG + ASKED + b"\r\n",
    "long header": b"GET / HTTP/1.1\r\n" + HOST + b"X-Long: " + LONG + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X-%d: 1\r\n" % i for i in range(500)) + b"\r\n",
    "no colon": b"GET / HTTP/1.1\r\n" + HOST + b"nonsense\r\n\r\n",
    "empty name": b"GET / HTTP/1.1\r\n" + HOST + b": nonsense\r\n\r\n",
    "null byte": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "negative length": b"POST /api/scalars" + ASKED + b"Content-Length: -5\r\n\r\n",
    "vast length": b"POST /api/scalars" + ASKED + b"Content-Length: " + DIGITS + b"\r\n\r\n",
    "two lengths": b"POST /api/scalars" + ASKED + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length of words": b"POST /api/scalars" + ASKED + b"Content-Length: many\r\n\r\n",
    "chunked and length": b"POST /api/scalars" + ASKED + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
    "odd chunk": b"POST /api/scalars"
    + ASKED
    + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "vast chunk": b"POST /api/scalars" + ASKED + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 400 + b"\r\n",
    "odd encoding": b"POST /api/scalars" + ASKED + b"Transfer-Encoding: odd\r\n\r\n",
    "odd compression": b"POST /api/scalars"
    + ASKED
    + b"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "RLX": b"35:" + bytes(35) + b",",
    "no Unicode": b"GET /\xff\xfe" + ASKED + b"\r\n",
    "odd percent": b"GET /%zz%" + ASKED + b"\r\n",
    "absolute": b"GET http://[::1" + ASKED + b"\r\n",
    "odd port": b"GET / HTTP/1.1\r\nHost: localhost:99999999\r\n\r\n",
    "odd host": b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "host of other bytes": b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    "host of control characters": b"GET / HTTP/1.1\r\nHost: \x01\x1b]0;x\x07\r\n\r\n",
    "long host": b"GET / HTTP/1.1\r\nHost: " + b"a" * 5000 + b"\r\n\r\n",
    "no host": b"GET / HTTP/1.0\r\n\r\n",
    "no host in 1.1": b"GET / HTTP/1.1\r\n\r\n",
    "empty host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "host of words": b"GET / HTTP/1.1\r\nHost: a b/c?d#e@f\r\n\r\n",
    "origin of other bytes": b"GET /" + ASKED + b"Origin: http://\xff\xfe\r\n\r\n",
    "odd origin": b"GET /" + ASKED + b"Origin: http://[::1\r\n\r\n",
    "token of other bytes": b"GET /metrics" + ASKED + b"Authorization: Bearer \xff\r\n\r\n",
    "expectation of other bytes": b"GET /" + ASKED + b"Expect: \xff\r\n\r\n",
    "second header of other bytes": b"GET /" + ASKED + b"X-A: 1\r\nX-A: \xff\r\n\r\n",
    "odd cookie": b"GET /" + ASKED + b'Cookie: a="\\\xff; ;=;\r\n\r\n',
    "half upgrade": b"GET /ws" + ASKED + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "odd upgrade": b"GET /ws"
    + ASKED
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 99\r\nSec-WebSocket-Key: ?\r\n\r\n",
    "number of digits": b"GET /api/scalars?name=a&most=" + DIGITS + ASKED + b"\r\n",
    "run of digits": b"GET /api/runs/" + DIGITS + b"/picture" + ASKED + b"\r\n",
}


NAMES = (
    b"Host Origin Cookie Authorization Content-Type Content-Length Content-Encoding Transfer-Encoding Upgrade Expect"
)
NAMES += (
    b" Connection Sec-WebSocket-Key Sec-WebSocket-Version Sec-WebSocket-Protocol Range Last-Event-ID Forwarded host"
)
VALUES = (
    b"localhost localhost:1 [::1] a..b xn--a null http://[v1.x] websocket Upgrade keep-alive close 13 chunked gzip br"
)
VALUES += (
    b' 0 5 -1 100-continue application/json;charset=odd Bearer a="\\777 %zz %ff \xff\xfe \xc3\xa9 \x01\x1b a,b;c=d'
)
PATHS = b"/ /ws /healthz /metrics /api/runs /api/scalars /api/runs/0/picture /?token=%ff /ws?token=\xff //a * a:80"
odd_bytes = st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b""))
headers = st.tuples(st.sampled_from(NAMES.split()), st.sampled_from(VALUES.split()) | odd_bytes)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Requests that are nearly right: a choice of methods, paths and headers, with other bytes in any place."""
    method = draw(st.sampled_from(b"GET GET POST HEAD OPTIONS CONNECT get".split()))
    path = draw(st.sampled_from(PATHS.split())) + draw(st.just(b"") | odd_bytes)
    lines = draw(st.lists(headers, max_size=4)) + draw(st.sampled_from([[], [(b"Host", b"localhost")]]))
    head = b"".join(name + b": " + value + b"\r\n" for name, value in lines)
    return method + b" " + path + b" HTTP/1.1\r\n" + head + b"\r\n" + draw(st.sampled_from([b"", b"{}", b"5\r\nab"]))


@pytest.mark.parametrize(("server", "token"), [("web", None), ("web", "a-secret"), ("page", None)])
@given(sent=st.lists(requests(), min_size=30, max_size=30))
@settings(max_examples=10, deadline=None, phases=[Phase.generate])
def test_any_request(server: str, token: str | None, sent: list[bytes]) -> None:
    async def run() -> list[bytes]:
        async with running(server, request_seconds=0.2, **({"token": token} if token else {})) as port:
            return await asyncio.gather(*(all_it_says(port, each) for each in sent))

    with caplog_at_info() as records:
        answers = asyncio.run(run())
    assert [record.exc_info for record in records if record.exc_info] == []
    assert len(records) <= len(sent)
    for request, answer in zip(sent, answers, strict=True):
        assert not answer or answer.split(b" ", 2)[1][:1] in (b"1", b"2", b"3", b"4"), (request, answer[:200])


@contextlib.contextmanager
def caplog_at_info() -> Iterator[list[logging.LogRecord]]:
    """The records of the root logger within, for tests that are called several times."""
    records: list[logging.LogRecord] = []
    handler, root = logging.Handler(logging.INFO), logging.getLogger()
    handler.emit = records.append
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield records
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@pytest.mark.parametrize("server", HTTP_SERVERS)
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests(
    server: str, name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
) -> None:
    async def run() -> None:
        async with running(server, request_seconds=0.3) as port:
            message = await all_it_says(port, MALFORMED[name])
            is_right = name == "odd cookie"  # other cookies, for a server that ignores cookies
            assert not message or message.split(b" ", 2)[1][:1] == b"4" or is_right, message[:200]
            assert b" 500 " not in message
            assert b"Traceback" not in message
            healthy = await all_it_says(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert healthy.startswith(b"HTTP/1.1 200"), healthy[:200]

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert [record.exc_info for record in caplog.records if record.exc_info] == []
    assert len(caplog.records) <= 1
    assert all("\n" not in record.getMessage() and len(record.getMessage()) < 500 for record in caplog.records)
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("path", ["/api/scalars", "/api/histograms"])
@pytest.mark.parametrize(
    "number", [DIGITS, b"-" + DIGITS, DIGITS * 20, b"1e999", b"NaN", b"0." + DIGITS, b"true", b'"1"']
)
def test_posted_numbers(path: str, number: bytes, caplog: pytest.LogCaptureFixture) -> None:
    value = b'"y": ' + number if path == "/api/scalars" else b'"values": [' + number + b"]"
    body = b'{"name": "a", ' + value + b"}"
    head = b"POST " + path.encode() + ASKED + b"Content-Type: application/json\r\nConnection: close\r\n"

    async def run() -> bytes:
        async with running("page") as port:
            return await all_it_says(port, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    with caplog.at_level(logging.INFO):
        message = asyncio.run(run())
    expected = b"200" if number.startswith(b"0.") else b"400"
    assert message.split(b" ", 2)[1] == expected, message[:300]
    assert caplog.records == []

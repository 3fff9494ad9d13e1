"""Malformed HTTP is rejected by every HTTP server, with at most one log line and no traceback."""

from __future__ import annotations

import asyncio
import logging

import pytest

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
    "odd cookie": b"GET /" + ASKED + b'Cookie: a="\\\xff; ;=;\r\n\r\n',
    "half upgrade": b"GET /ws" + ASKED + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "odd upgrade": b"GET /ws"
    + ASKED
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 99\r\nSec-WebSocket-Key: ?\r\n\r\n",
    "number of digits": b"GET /api/scalars?name=a&most=" + DIGITS + ASKED + b"\r\n",
    "run of digits": b"GET /api/runs/" + DIGITS + b"/picture" + ASKED + b"\r\n",
}


@pytest.mark.parametrize("server", HTTP_SERVERS)
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests(
    server: str, name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
) -> None:
    async def run() -> None:
        async with running(server, request_seconds=0.3) as port:
            message = await all_it_says(port, MALFORMED[name])
            is_right = name == "odd cookie"  # of others, for a server that looks at none
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

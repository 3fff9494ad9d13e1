"""A file server on this machine, for the tests of downloads: each path has a scripted answer."""

from __future__ import annotations

import contextlib
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.certificate import write_certificate


class Answer(NamedTuple):
    """An answer of the server.

    Attributes:
        body: content; a function receives the request handler, after the headers, and writes the body.
        status: HTTP status.
        headers: headers; without ``Content-Length`` the connection ends the body.
    """

    body: bytes | Callable[[Any], None] = b""
    status: int = 200
    headers: Mapping[str, str] = {}


class FileServer:
    """Scripted answers by path, and the requests that arrived.

    Attributes:
        address: address without a path.
        answers: answers by path, or functions from the request's body to an answer by method and path.
        requests: method and path of each request.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.answers: dict[str, Answer | Callable[[bytes], Answer]] = {}
        self.requests: list[str] = []


@contextlib.contextmanager
def file_server(certificate: Path | None = None) -> Iterator[FileServer]:
    """Serve until the end of the context; over TLS if a folder for the certificate is given."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            server.requests.append(f"{self.command} {path}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = server.answers.get(f"{self.command} {path}", server.answers.get(path, Answer(b"", 404)))
            if not isinstance(answer, Answer):
                answer = answer(body)
            self.send_response(answer.status)
            headers = dict(answer.headers)
            if isinstance(answer.body, bytes):
                headers.setdefault("Content-Length", str(len(answer.body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client ends the download
                if not isinstance(answer.body, bytes):
                    answer.body(self)
                elif self.command != "HEAD":
                    self.wfile.write(answer.body)

        do_GET = do_HEAD = do_POST = _answer

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing about clients that reject the certificate."""

    with Quiet(("127.0.0.1", 0), Handler) as listening:
        scheme = "http"
        if certificate is not None:
            context, scheme = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https"
            context.load_cert_chain(*write_certificate(certificate))
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        server = FileServer(f"{scheme}://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


@contextlib.contextmanager
def dripping_server(start: bytes = b"HTTP/1.1 200 OK\r\nX-Slow: ") -> Iterator[str]:
    """Serve an answer whose headers arrive one byte at a time and never end; yields the address."""
    stopped = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            with contextlib.suppress(OSError):  # the client leaves
                self.request.sendall(start)
                while not stopped.is_set():
                    self.request.sendall(b"x")
                    stopped.wait(0.01)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            stopped.set()
            listening.shutdown()
            thread.join()

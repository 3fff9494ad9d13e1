"""Sessions over WebSocket, and the monitoring pages /healthz, /readyz and /metrics.

aiohttp provides both WebSocket and HTTP, with 20 % less processor time per message than other libraries.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from evorl.config.names import explain_missing_package
from evorl.serving.connections import MessageRate, connection_limits
from evorl.serving.packed_messages import pack_message, unpack_message
from evorl.serving.rlx import ProtocolError
from evorl.serving.robots import talk_to_robot
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.session import Refused, Session, SessionError
from evorl.serving.switchboard import Switchboard
from evorl.sockets.access import host_and_port, is_same_secret, is_this_machine, tls_context
from evorl.sockets.http_server import HttpServer
from evorl.sockets.socket_server import Patience

if TYPE_CHECKING:
    from aiohttp import web

UNKNOWN_BYTES = 2**16  # maximum bytes of a connection before its token is accepted
MAX_AGENTS = 64  # maximum number of agents per connection
MAX_UNREAD = 4096  # maximum number of responses queued for a client that does not read them


class WebServer:
    """Listens for WebSocket clients, and serves the monitoring pages.

    Args:
        settings: address, token, TLS files and limits.
        switchboard: answers the requests.
        metadata: metadata of an exported policy, which is then served to robot clients at ``/``; ``None`` for none.

    Attributes:
        sockets: listening sockets, with their address.

    Raises:
        ImportError: aiohttp is not installed; the message states the command that installs it.
    """

    def __init__(
        self, settings: ServeSettings, switchboard: Switchboard, metadata: Mapping[str, Any] | None = None
    ) -> None:
        with explain_missing_package("clients over WebSocket", "aiohttp"):
            from aiohttp import web
        self.settings, self.switchboard, self._metadata, self._web = settings, switchboard, metadata, web
        self._connections: set[Any] = set()
        app = web.Application(middlewares=[self._only_by_its_name], client_max_size=UNKNOWN_BYTES)
        app.router.add_get("/ws", self._talk)
        if metadata is not None:
            app.router.add_get("/", self._serve_robot)
        for path, answer in {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}.items():
            app.router.add_get(path, answer)
        self._limits = connection_limits(settings)
        self._http = HttpServer(app, self._limits)
        self.sockets = self._http.sockets

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: the address is in use, or does not belong to this machine.
            ValueError: the address or certificate is invalid, or other machines could connect without a token.
        """
        settings = self.settings
        host, port = host_and_port(settings.web, "serve.web")
        tls = tls_context(settings.cert, settings.key, "serve.cert, serve.key")
        await self._http.start(host, port, settings.token, tls)

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        for socket in list(self._connections):
            await socket.close(code=1001, message=b"the server ends")
        await self._http.stop()

    def _is_trusted(self, request: web.Request) -> bool:
        shown = request.headers.get("Authorization", "").partition(" ")[2] or request.query.get("token", "")
        return self.settings.token is None or is_same_secret(shown, self.settings.token)

    @property
    def _only_by_its_name(self) -> Any:
        @self._web.middleware
        async def check(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            # A page of another site can reach this machine through a host name (DNS rebinding) or by a script.
            host = _host_of(f"//{request.headers.get('Host', '')}")
            origin = request.headers.get("Origin")
            if self.settings.token is None:
                if not is_this_machine(host):
                    raise self._web.HTTPForbidden(text=f"Without a token, the server rejects {host}: use localhost.\n")
                if origin is not None and not is_this_machine(_host_of(origin)):  # "null" may be a frame of any site
                    reason = f"Requests from pages of {origin} require a server with a token.\n"
                    raise self._web.HTTPForbidden(text=reason)
            try:
                return await handler(request)
            except ConnectionError:  # the client has disconnected
                return self._web.Response(status=499)

        return check

    async def _health(self, request: web.Request) -> web.Response:
        return self._web.Response(text="ok\n")

    async def _readiness(self, request: web.Request) -> web.Response:
        failure = self.switchboard.failure
        return self._web.Response(text="ready\n" if failure is None else f"{failure}\n", status=503 if failure else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._is_trusted(request):
            raise self._web.HTTPUnauthorized(text="This server requires Authorization: Bearer <token>.\n")
        numbers = self.switchboard.numbers()
        lines = [f"# TYPE evorl_{name} gauge\nevorl_{name} {value:.17g}\n" for name, value in numbers.items()]
        return self._web.Response(text="".join(lines), content_type="text/plain", charset="utf-8")

    async def _serve_robot(self, request: web.Request) -> web.StreamResponse:
        if not self._is_trusted(request):
            raise self._web.HTTPUnauthorized(text="This server requires Authorization: Api-Key <token>.\n")
        async with self._socket(request) as socket:
            await talk_to_robot(socket, self.switchboard, self._metadata or {}, self.settings)
        return socket

    @contextlib.asynccontextmanager
    async def _socket(self, request: web.Request) -> AsyncIterator[web.WebSocketResponse]:
        socket = self._web.WebSocketResponse(max_msg_size=self.settings.max_frame, heartbeat=30.0, compress=False)
        await socket.prepare(request)
        self._connections.add(socket)
        try:
            yield socket
        finally:
            self._connections.discard(socket)
            await socket.close()

    async def _talk(self, request: web.Request) -> web.WebSocketResponse:
        trusted = self._is_trusted(request)
        async with self._socket(request) as socket:
            patience = Patience(self._limits, asyncio.get_running_loop().time())
            conversation = Conversation(self, socket, trusted, patience)
            if not trusted and request.transport is not None:
                connection: Any = request.transport.get_protocol()
                connection.limit_bytes(UNKNOWN_BYTES, conversation.close_unless_trusted)
            tasks = [asyncio.create_task(each) for each in (conversation.write(), conversation.watch())]
            try:
                await conversation.read()
            finally:
                conversation.close()
                for task in tasks:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        return socket


class Conversation:
    """One WebSocket with the messages of up to ``MAX_AGENTS`` agents, distinguished by ``sid``.

    Text frames contain JSON, binary frames MessagePack. A frame may contain a list of messages; then responses that are
    ready at the same time are also sent as a list.
    """

    def __init__(self, server: WebServer, socket: web.WebSocketResponse, trusted: bool, patience: Patience) -> None:
        self._server, self._socket, self._trusted, self._patience = server, socket, trusted, patience
        self._sessions: dict[Any, Session] = {}
        self._out: list[dict[str, Any]] = []
        self._has_some = asyncio.Event()
        self._is_binary = self._in_lists = False
        self._rate = MessageRate(server.settings.max_messages_per_second)
        self._refusing: asyncio.Task[bool] | None = None

    async def read(self) -> None:
        """Process messages until the client disconnects, is rejected, or leaves too many responses unread."""
        from aiohttp import WSMsgType

        async for frame in self._socket:
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                break
            try:
                self._take(frame.data, frame.type == WSMsgType.BINARY)
            except (ProtocolError, Refused) as error:
                if isinstance(error, ProtocolError):
                    self._say(None, {"response": "error", "message": str(error)})
                await self._send()
                break
            if len(self._out) > MAX_UNREAD:
                break

    def _take(self, data: Any, is_binary: bool) -> None:
        self._is_binary = is_binary
        messages = unpack_message(data) if is_binary else _json(data)
        self._in_lists = isinstance(messages, list)
        messages = messages if self._in_lists else [messages]
        self._rate.take(asyncio.get_running_loop().time(), len(messages))
        for message in messages:
            if not isinstance(message, Mapping):
                raise ProtocolError(f"a message must be a mapping, got {type(message).__name__}.")
            self._hear(message)

    def _hear(self, message: Mapping[str, Any]) -> None:
        sid = message.get("sid")
        if sid is not None and not isinstance(sid, str | int):
            raise ProtocolError(f"sid must be a string or an integer, got {type(sid).__name__}.")
        if isinstance(sid, str) and not sid.isascii() and any("\ud800" <= letter <= "\udfff" for letter in sid):
            raise ProtocolError("sid contains an unpaired surrogate, which is not valid text.")
        command = message.get("command")
        if isinstance(command, str) and command == "disconnect":
            if sid in self._sessions:
                self._sessions.pop(sid).close()
            self._say(sid, {"response": "done"})
            return
        session = self._sessions.get(sid)
        if session is None:
            if len(self._sessions) >= MAX_AGENTS:
                raise ProtocolError(f"a connection may have at most {MAX_AGENTS} agents: open another connection.")
            session = Session(self._server.switchboard, lambda answer: self._say(sid, answer), self._trusted)
            self._sessions[sid] = session
        session.receive(message)
        self._patience.has_begun |= session.has_begun

    def _say(self, sid: Any, answer: dict[str, Any]) -> None:
        self._patience.note_request(asyncio.get_running_loop().time())
        self._out.append(answer if sid is None else {"sid": sid, **answer})
        self._has_some.set()

    async def write(self) -> None:
        """Send responses as they become ready, until the task is canceled."""
        while True:
            await self._has_some.wait()
            await self._send()

    async def _send(self) -> None:
        answers, self._out = self._out, []
        self._has_some.clear()
        for content in [answers] if self._in_lists and answers else answers:
            with contextlib.suppress(ConnectionError):
                if self._is_binary:
                    await self._socket.send_bytes(pack_message(content))
                else:
                    await self._socket.send_str(json.dumps(content, default=lambda array: array.tolist()))

    async def watch(self) -> None:
        """Close the connection once a timeout of the client has expired."""
        while True:
            await asyncio.sleep(min(1.0, self._server.settings.hello_seconds / 2))
            now = asyncio.get_running_loop().time()
            if any(session.is_waiting for session in self._sessions.values()):
                self._patience.note_request(now)  # the idle timeout starts after the response
            if self._patience.is_over(now):
                await self._socket.close(code=1008, message=b"timed out")
                return

    def close_unless_trusted(self) -> bool:
        """Close the connection and return True if no valid ``init`` was received; else return False."""
        if self._refusing is None and not self._patience.has_begun:
            reason = f"more than {UNKNOWN_BYTES} bytes before the token of this server"
            self._refusing = asyncio.create_task(self._socket.close(code=1009, message=reason.encode()))
        return self._refusing is not None

    def close(self) -> None:
        """Close all sessions of a client that has disconnected."""
        for session in self._sessions.values():
            session.close()


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the text frame is not valid JSON: {error}.") from error


def _no_number(name: str) -> Any:
    raise SessionError(f"{name} is not a JSON number")


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""

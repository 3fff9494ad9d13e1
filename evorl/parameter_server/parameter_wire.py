"""Network server of the parameter server: connections, authentication and dispatch of commands.

The transport is asyncio streams. Ray actors, the alternative, need 9 seconds and 1.3 GiB to start, use pickle, and let
a client call any method by name. This server has five commands, plain numbers and no dependencies.

All commands run in one thread, one after another, so the pushes of all workers form a sequence. Until a connection has
sent the token, if there is one, its frames are limited in size and its lifetime to seconds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from evorl.parameter_server.parameter_frames import (
    LENGTHS,
    MAX_HEADER,
    CommandRefused,
    WireError,
    frame,
    lengths,
    parsed_header,
)
from evorl.sockets.access import host_and_port, is_same_secret
from evorl.sockets.socket_server import ConnectionLimits, SocketServer

Handler: TypeAlias = Callable[[Mapping[str, Any], bytes], tuple[dict[str, Any], bytes]]
_READ_AHEAD = 1 << 18  # bytes buffered per connection before its sender is slowed down
STRANGER_HEADER = 4096  # maximum bytes of JSON before authentication
_LIMITS = ConnectionLimits(idle_seconds=24 * 3600.0)  # an iteration of a worker may take hours


@dataclasses.dataclass(frozen=True)
class Command:
    """Command that clients may call.

    Attributes:
        handler: ``(header, body) -> (header, body)``; raises ``CommandRefused`` for a refused request.
        max_body: maximum size of the body in bytes.
    """

    handler: Handler
    max_body: int = 0


class CommandProtocol(asyncio.StreamReaderProtocol):
    """Connection of one client to a ``CommandServer``, served by a coroutine.

    Args:
        converse: coroutine function of a reader and a writer that runs until the connection ends.
    """

    def __init__(self, converse: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(asyncio.StreamReader(_READ_AHEAD, loop), converse, loop)
        self._to: Any = None

    def connection_made(self, transport: Any) -> None:
        """Store the transport of a new connection and start the coroutine."""
        self._to = transport
        super().connection_made(transport)

    def refuse(self, message: str) -> None:
        """Send the reason why the connection will be closed."""
        self._to.write(frame({"error": message}))


class CommandServer:
    """Server of the registered commands.

    Args:
        commands: commands by name.
        token: access token that every connection must send first; ``None`` for no authentication.
        limits: limits of every connection.
        tls: for encrypted connections.

    Attributes:
        failure: exception of the server itself, as opposed to errors of clients; ``None`` if there was no failure.
    """

    def __init__(
        self,
        commands: Mapping[str, Command],
        token: str | None = None,
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.failure: Exception | None = None
        self._commands, self._token, self._tls = dict(commands), token, tls
        self._limits = limits or _LIMITS
        self._conversations: set[asyncio.Task] = set()
        self._one_thread = concurrent.futures.ThreadPoolExecutor(1, "parameter-server")
        self._sockets = SocketServer(lambda: CommandProtocol(self._connected), self._limits, "the parameter server")

    @property
    def num_connections(self) -> int:
        """Number of connected clients."""
        return len(self._sockets.connections)

    async def start(self, bind: str) -> str:
        """Listen at ``host:port``, where port 0 selects a free port; return the address.

        Raises:
            ValueError: the address is invalid, or other machines could connect without a token.
            OSError: the address is in use, or does not belong to this machine.
        """
        host, port = host_and_port(bind, "bind")
        await self._sockets.start(host, port, self._token, self._tls)
        return self._sockets.url_host

    async def close(self) -> None:
        """Finish the running command, then close all connections."""
        await self._sockets.stop_listening()
        for task in self._conversations:
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        await self._sockets.stop()
        await asyncio.to_thread(self._one_thread.shutdown)

    async def in_order(self, work: Callable[[], Any]) -> Any:
        """Run ``work()`` in the thread of the commands, in order of arrival, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._one_thread, work)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._conversations.add(task)
        try:
            await self._converse(reader, writer)
            writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # the client has disconnected or is too slow, or the server closes
        finally:
            self._conversations.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known = False
        while True:
            try:
                header, body_length = await self._next_header(reader, known)
                if not known and (refusal := self._refuse_stranger(header)):
                    raise WireError(refusal)
                known = True
                command = self._commands.get(str(header.get("command")))
                if body_length > (most := command.max_body if command else 0):
                    name = str(header.get("command"))[:40]
                    raise WireError(f"{name!r} takes up to {most:,} bytes behind its header, not {body_length:,}.")
            except WireError as error:
                await self._send(writer, {"error": str(error)})
                return
            async with asyncio.timeout(self._limits.frame_seconds):
                body = await reader.readexactly(body_length)
            if not await self._answer(writer, command, header, body):
                return

    async def _next_header(self, reader: asyncio.StreamReader, known: bool) -> tuple[dict[str, Any], int]:
        limits = self._limits
        async with asyncio.timeout((limits.idle_seconds or None) if known else limits.request_seconds) as patience:
            first = await reader.readexactly(1)
            if known:
                patience.reschedule(asyncio.get_running_loop().time() + limits.frame_seconds)
            rest = await reader.readexactly(LENGTHS.size - 1)
            header, body = lengths(first + rest, MAX_HEADER if known else STRANGER_HEADER)
            return parsed_header(await reader.readexactly(header)), body

    def _refuse_stranger(self, header: Mapping[str, Any]) -> str | None:
        if self._token is None or is_same_secret(header.get("token"), self._token):
            return None
        return "this server wants a token, and it was missing or another one."

    async def _answer(
        self, writer: asyncio.StreamWriter, command: Command | None, header: Mapping[str, Any], body: bytes
    ) -> bool:
        """Run a command and send the response; return False if the connection must end."""
        if command is None:
            name, known = str(header.get("command"))[:40], ", ".join(sorted(self._commands))
            await self._send(writer, {"error": f"there is no command {name!r}; there are: {known}."})
            return True
        try:
            answer, out = await self.in_order(lambda: command.handler(header, body))
        except CommandRefused as error:
            answer, out = {"error": str(error)}, b""
        except Exception as error:  # a server error: raised by serve_parameters, hidden from clients
            self.failure = self.failure or error
            await self._send(writer, {"error": "the server failed, and ends."})
            return False
        await self._send(writer, answer, out)
        return True

    async def _send(self, writer: asyncio.StreamWriter, header: Mapping[str, Any], body: bytes = b"") -> None:
        writer.write(frame(header, body))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(self._limits.frame_seconds):
                await writer.drain()

"""The parameter server's end of the wire: connections, the commands by name, one at a time.

The transport is asyncio's streams. Ray's actors, the other one at hand, take 9 seconds and 1.3 GiB to start, speak
pickle, and let a client call any method by its name; here are five commands, plain numbers, and nothing to install.

All commands run in one thread, one after another: pushes of any number of workers are a sequence. Until a connection
has shown the token, where there is one, its frames are small and it lives for seconds.
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
_READ_AHEAD = 1 << 18  # bytes that wait in a connection before its sender is slowed down
STRANGER_HEADER = 4096  # bytes of JSON before the token was shown
_LIMITS = ConnectionLimits(idle_seconds=24 * 3600.0)  # an iteration may take a worker hours


@dataclasses.dataclass(frozen=True)
class Command:
    """Commands that a client may call.

    Attributes:
        handler: ``(header, body) -> (header, body)``; raises ``CommandRefused`` for what it does not do.
        max_body: bytes behind the header, at most.
    """

    handler: Handler
    max_body: int = 0


class CommandProtocol(asyncio.StreamReaderProtocol):
    """One client of a ``CommandServer``, read by a coroutine.

    Args:
        converse: coroutine function of a reader and a writer that runs until the conversation ends.
    """

    def __init__(self, converse: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(asyncio.StreamReader(_READ_AHEAD, loop), converse, loop)
        self._to: Any = None

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        self._to = transport
        super().connection_made(transport)

    def refuse(self, message: str) -> None:
        """Tell the client why its connection ends."""
        self._to.write(frame({"error": message}))


class CommandServer:
    """Answers the commands that are registered, and nothing else.

    Args:
        commands: by name.
        token: that every connection has to show first; ``None`` for none.
        limits: of every connection.
        tls: for encrypted connections.

    Attributes:
        failure: what went wrong here, if something did: not at a client.
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
        """Clients that are connected."""
        return len(self._sockets.connections)

    async def start(self, bind: str) -> str:
        """Listen at ``host:port``, of which port 0 is any free one; returns the address.

        Raises:
            ValueError: others could connect, and there is no token; or it is no address.
            OSError: the address is taken, or not of this machine.
        """
        host, port = host_and_port(bind, "bind")
        await self._sockets.start(host, port, self._token, self._tls)
        return self._sockets.url_host

    async def close(self) -> None:
        """Hang up. A command that runs is finished first."""
        await self._sockets.stop_listening()
        for task in self._conversations:
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        await self._sockets.stop()
        await asyncio.to_thread(self._one_thread.shutdown)

    async def in_order(self, work: Callable[[], Any]) -> Any:
        """The result of ``work()``, which has its turn between two commands."""
        return await asyncio.get_running_loop().run_in_executor(self._one_thread, work)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._conversations.add(task)
        try:
            await self._converse(reader, writer)
            writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # the client has gone, or is too slow, or the server closes
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
        """Do what is asked; whether the connection goes on."""
        if command is None:
            name, known = str(header.get("command"))[:40], ", ".join(sorted(self._commands))
            await self._send(writer, {"error": f"there is no command {name!r}; there are: {known}."})
            return True
        try:
            answer, out = await self.in_order(lambda: command.handler(header, body))
        except CommandRefused as error:
            answer, out = {"error": str(error)}, b""
        except Exception as error:  # of the server: told by whoever runs it, not to a client
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

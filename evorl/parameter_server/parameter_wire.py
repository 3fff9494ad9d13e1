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
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from evorl.parameter_server.parameter_frames import (
    LENGTHS,
    MAX_HEADER,
    CommandRefused,
    WireError,
    frame,
    lengths,
    parsed_header,
    split_address,
)

Handler: TypeAlias = Callable[[Mapping[str, Any], bytes], tuple[dict[str, Any], bytes]]
_READ_AHEAD = 1 << 18  # bytes that wait in a connection before its sender is slowed down


@dataclasses.dataclass(frozen=True)
class Command:
    """What a client may call.

    Attributes:
        handler: ``(header, body) -> (header, body)``; raises ``CommandRefused`` for what it does not do.
        max_body: bytes behind the header, at most.
    """

    handler: Handler
    max_body: int = 0


@dataclasses.dataclass(frozen=True)
class WireLimits:
    """What a connection may take.

    Attributes:
        connections: at one time.
        stranger_header: bytes of JSON before the token was shown.
        stranger_seconds: time for the first frame.
        frame_seconds: time for each frame, from its first byte, and for the answer to be taken.
        idle_seconds: time between two frames.
    """

    connections: int = 1024
    stranger_header: int = 4096
    stranger_seconds: float = 10.0
    frame_seconds: float = 120.0
    idle_seconds: float = 24 * 3600.0


def refuse_open_bind(host: str, token: str | None) -> None:
    """Raises ``ValueError`` for an address that others can reach, where there is no token."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local and not token:
        raise ValueError(
            f"{host} can be reached from other machines: give a token that workers have to know, or bind 127.0.0.1."
        )


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
        limits: WireLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.failure: Exception | None = None
        self._commands, self._token, self._tls = dict(commands), token, tls
        self._limits = limits or WireLimits()
        self._connections: set[asyncio.Task] = set()
        self._one_thread = concurrent.futures.ThreadPoolExecutor(1, "parameter-server")
        self._server: asyncio.Server | None = None

    @property
    def num_connections(self) -> int:
        """Clients that are connected."""
        return len(self._connections)

    async def start(self, bind: str) -> str:
        """Listen at ``host:port``, of which port 0 is any free one; returns the address.

        Raises:
            ValueError: others could connect, and there is no token; or it is no address.
            OSError: the address is taken, or not of this machine.
        """
        host, port = split_address(bind)
        refuse_open_bind(host, self._token)
        self._server = await asyncio.start_server(self._connected, host, port, limit=_READ_AHEAD, ssl=self._tls)
        name = self._server.sockets[0].getsockname()
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    async def close(self) -> None:
        """Hang up. A command that runs is finished first."""
        # Who was let in a moment ago has a task that can be cancelled some turns of the loop later; a listener that was
        # closed meanwhile would leave such a socket open for good.
        for _ in range(4):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.to_thread(self._one_thread.shutdown)

    async def in_order(self, work: Callable[[], Any]) -> Any:
        """The result of ``work()``, which has its turn between two commands."""
        return await asyncio.get_running_loop().run_in_executor(self._one_thread, work)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._connections.add(task)
        try:
            if (sock := writer.get_extra_info("socket")) is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await self._converse(reader, writer)
            writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # the client has gone, or is too slow, or the server closes
        finally:
            self._connections.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known = False
        if len(self._connections) > self._limits.connections:
            await self._send(writer, {"error": f"this server takes {self._limits.connections} connections: try later."})
            return
        while True:
            try:
                header, body_length = await self._next_header(reader, known)
                if not known and (told := self._refuse_stranger(header)):
                    raise WireError(told)
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
        async with asyncio.timeout(limits.idle_seconds if known else limits.stranger_seconds) as patience:
            first = await reader.readexactly(1)
            if known:
                patience.reschedule(asyncio.get_running_loop().time() + limits.frame_seconds)
            rest = await reader.readexactly(LENGTHS.size - 1)
            header, body = lengths(first + rest, MAX_HEADER if known else limits.stranger_header)
            return parsed_header(await reader.readexactly(header)), body

    def _refuse_stranger(self, header: Mapping[str, Any]) -> str | None:
        if self._token is None:
            return None
        shown = str(header.get("token", ""))
        if hmac.compare_digest(shown.encode(errors="replace"), self._token.encode()):
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

"""Network server of the parameter server: connections, authentication and dispatch of commands.

The transport is TCP. Ray actors, an alternative, need 9 seconds and 1.3 GiB to start, use pickle, and let a client call
any method by name. This server has five commands, transfers only JSON and numbers, and needs no other package.

All commands run sequentially in one thread, so the pushes of all workers form a sequence. Until a connection has sent
the token, if required, its frames are limited to 4 KiB and its lifetime to seconds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import ssl
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from evorl.parameter_server.frames import LENGTHS, MAX_HEADER, CommandRefused, WireError, frame, lengths, parsed_header
from evorl.sockets.frame_server import HELLO_BYTES, FrameConnection, FrameServer, refused_token
from evorl.sockets.socket_server import ConnectionLimits

Handler: TypeAlias = Callable[[Mapping[str, Any], bytes], tuple[dict[str, Any], bytes]]
_LIMITS = ConnectionLimits(idle_seconds=24 * 3600.0)  # an iteration of a worker may take hours


@dataclasses.dataclass(frozen=True)
class Command:
    """Command that clients may call.

    Attributes:
        handler: ``(header, body) -> (header, body)``; raises ``CommandRefused`` for a rejected request.
        max_body: maximum size of the body in bytes.
    """

    handler: Handler
    max_body: int = 0


class CommandConnection(FrameConnection):
    """Connection of one client. A request is read after the response to the previous one was sent."""

    errors = (WireError,)

    def __init__(self, server: CommandServer) -> None:
        super().__init__()
        self._server = server
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None  # header of the incomplete frame
        self._body_length = 0
        self._has_ended = False  # True after the client has closed its sending direction
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_within_request(self) -> bool:
        """True if a part of an incomplete frame was received and no response is pending."""
        return not self.is_answering and (bool(self._buffer) or self._header is not None)

    def receive(self, data: bytes) -> None:
        """Store received bytes, and answer a request once it is complete."""
        self._buffer += data
        if not self.is_answering and (request := self._next_request()) is not None:
            self.num_requests += 1
            self.is_answering = True
            self._transport.pause_reading()
            self._server.run_task(self._answer(*request))

    def _next_request(self) -> tuple[dict[str, Any], bytes] | None:
        """Remove and return the first request in the buffer; ``None`` if it is incomplete."""
        if self._header is None:
            if len(self._buffer) < LENGTHS.size:
                return None
            size, body = lengths(bytes(self._buffer[: LENGTHS.size]), MAX_HEADER if self.has_begun else HELLO_BYTES)
            if len(self._buffer) < (end := LENGTHS.size + size):
                return None
            header = parsed_header(bytes(self._buffer[LENGTHS.size : end]))
            if not self.has_begun and (refusal := refused_token(header, self._server.token, "the first command")):
                raise WireError(refusal)
            self.has_begun = True
            if body > (limit := self._server.max_body(header.get("command"))):
                name = str(header.get("command"))[:40]
                raise WireError(f"the body of {name!r} may have at most {limit:,} bytes, got {body:,}.")
            self._header, self._body_length = header, body
            del self._buffer[:end]
        if len(self._buffer) < self._body_length:
            return None
        header, body = self._header, bytes(memoryview(self._buffer)[: self._body_length])
        del self._buffer[: self._body_length]
        self._header = None
        return header, body

    async def _answer(self, header: Mapping[str, Any], body: bytes) -> None:
        """Run a command, send the response, and continue with the next request when the client has read it."""
        try:
            response = await self._server.answer(header, body)
            if response is None:
                self.end("the server has failed and is shutting down.")
                return
            self.send(response)
            await self._writable.wait()
        except asyncio.CancelledError:  # the server closes
            self._transport.abort()
            return
        self.is_answering = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self.data_received(b"")
            if self._has_ended and not self.is_answering:
                self._transport.close()

    def error_frame(self, message: str) -> bytes:
        return frame({"error": message})

    def pause_writing(self) -> None:
        """Wait with the next request until the client has read its response."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue with the next request."""
        self._writable.set()

    def eof_received(self) -> bool:
        """Close the connection after the response to a pending request; at once with TLS."""
        self._has_ended = True
        return self.is_answering and self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for a client that has disconnected."""
        self._writable.set()


class CommandServer(FrameServer):
    """Server of the registered commands.

    Args:
        commands: commands by name.
        bind: address and port, such as ``127.0.0.1:7001``; port 0 selects a free port.
        token: access token that every connection must send first; ``None`` for no authentication.
        limits: limits of every connection; ``None`` for defaults with an idle timeout of 24 hours.
        tls: TLS context of encrypted connections; ``None`` for unencrypted ones.

    Attributes:
        token: access token; ``None`` for no authentication.
        failure: exception of the server itself, as opposed to errors of clients; ``None`` if there was no failure.
    """

    def __init__(
        self,
        commands: Mapping[str, Command],
        bind: str = "127.0.0.1:0",
        token: str | None = None,
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            lambda: CommandConnection(self), bind, limits or _LIMITS, token=token, tls=tls, name="the parameter server"
        )
        self.failure: Exception | None = None
        self.token = token
        self._commands = dict(commands)
        self._tasks: set[asyncio.Task] = set()
        self._one_thread = concurrent.futures.ThreadPoolExecutor(1, "parameter-server")

    async def stop(self) -> None:
        """Finish the running command, then close all connections."""
        await self.sockets.stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().stop()
        await asyncio.to_thread(self._one_thread.shutdown)

    def run_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of a connection until its end, or until the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def max_body(self, name: Any) -> int:
        """Return the maximum size of a command's body in bytes; 0 for an unknown command."""
        command = self._commands.get(str(name))
        return command.max_body if command else 0

    async def answer(self, header: Mapping[str, Any], body: bytes) -> bytes | None:
        """Run a command, after all earlier ones, and return its response's frame; ``None`` if the server has failed."""
        command = self._commands.get(str(header.get("command")))
        if command is None:
            name, known = str(header.get("command"))[:40], ", ".join(sorted(self._commands))
            return frame({"error": f"unknown command {name!r}: expected one of {known}."})
        loop = asyncio.get_running_loop()
        try:
            return frame(*await loop.run_in_executor(self._one_thread, command.handler, header, body))
        except CommandRefused as error:
            return frame({"error": str(error)})
        except Exception as error:  # a server error, which serve_parameters raises and clients do not see
            self.failure = self.failure or error
            return None

"""Thread with the event loop and all sockets of a server; the learner runs in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from evorl.serving.connections import RlxServer
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.switchboard import Switchboard
from evorl.serving.web import WebServer

STARTING_SECONDS = 30.0


class EventThread:
    """Thread whose event loop runs the configured servers; the constructor waits until they listen.

    Args:
        settings: addresses and limits.
        switchboard: answers the requests.
        metadata: metadata of an exported policy, sent to robot clients; ``None`` if robots are not served.

    Attributes:
        addresses: URLs of the servers.

    Raises:
        OSError: an address is in use, or does not belong to this machine; or the servers did not start in time.
        ValueError: an address or the certificate is invalid, or other machines could connect without a token.
        ImportError: ``settings.web`` is set, but aiohttp is not installed.
    """

    def __init__(
        self, settings: ServeSettings, switchboard: Switchboard, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.addresses: list[str] = []
        self._settings, self._switchboard, self._metadata = settings, switchboard, metadata
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="evorl-serving", daemon=True)
        self._thread.start()
        if not self._started.wait(STARTING_SECONDS):
            raise OSError(f"the server at {settings.bind} did not start within {STARTING_SECONDS:.0f} s.")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        servers: list[Any] = [RlxServer(self._settings, self._switchboard)]
        if self._settings.web is not None:
            servers.append(WebServer(self._settings, self._switchboard, self._metadata))
        started = []
        try:
            for server, scheme in zip(servers, ("rlx", "http"), strict=False):
                try:
                    await server.start()
                except OSError as error:
                    at = self._settings.bind if scheme == "rlx" else self._settings.web
                    raise OSError(f"cannot listen on {at}: {error.strerror or error}. Use another address.") from error
                started.append(server)
                tls = "s" if self._settings.cert is not None else ""
                self.addresses.append(f"{scheme}{tls}://{server.sockets.url_host}")
            self._started.set()
            await self._end.wait()
        finally:
            for server in started:
                await server.stop()

    def close(self) -> None:
        """Close all connections and end the thread."""
        loop, end = self._loop, self._end
        if loop is not None and end is not None and not loop.is_closed():
            loop.call_soon_threadsafe(end.set)
        self._thread.join(10.0)

"""The thread that owns all sockets of a server, beside that of the learner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from evorl.config.names import load
from evorl.serving.connections import RlxServer
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.switchboard import Switchboard

_WEB_SERVER = "evorl.serving.web:WebServer"  # of the extra serve
STARTING_SECONDS = 30.0


class EventThread:
    """An event loop with the servers that settings ask for; it has started when it is made.

    Args:
        settings: where to listen.
        switchboard: who answers.
        metadata: of a finished policy, what robots' clients are told first; ``None`` where they are not served.

    Attributes:
        addresses: where it listens, as URLs.

    Raises:
        OSError: an address is taken, or is none of this machine.
        ValueError: the certificate cannot be used.
        ImportError: WebSocket is asked for, and its extra is not installed.
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
            servers.append(load(_WEB_SERVER)(self._settings, self._switchboard, self._metadata))
        started = []
        try:
            for server, scheme in zip(servers, ("rlx", "http"), strict=False):
                try:
                    await server.start()
                except OSError as error:
                    where = self._settings.bind if scheme == "rlx" else self._settings.web
                    raise OSError(f"nothing can listen at {where}: {error.strerror or error}.") from error
                started.append(server)
                tls = "s" if self._settings.cert is not None else ""
                self.addresses.append(f"{scheme}{tls}://{server.sockets.url_host}")
            self._started.set()
            await self._end.wait()
        finally:
            for server in started:
                await server.stop()

    def close(self) -> None:
        """End all connections, and the thread."""
        loop, end = self._loop, self._end
        if loop is not None and end is not None and not loop.is_closed():
            loop.call_soon_threadsafe(end.set)
        self._thread.join(10.0)

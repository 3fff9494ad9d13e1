"""Server-sent events: open pages are told what is new, always as it is by then, however slowly they read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evorl.live.page_guard import Refused

if TYPE_CHECKING:
    from aiohttp import web

SECONDS_OF_SILENCE = 15.0  # until a sign of life, and for a page to read what it was sent


class PageEvents:
    """The streams of all open pages.

    Args:
        told: what is new since a version, with the key ``version``; -1 for all.
        most: pages that may be open at once.
    """

    def __init__(self, told: Callable[[int], dict[str, Any]], most: int = 64) -> None:
        self._told, self._most = told, most
        self._bell = asyncio.Event()  # a new one for each ring
        self._closed = False
        self.listeners = 0

    def ring(self) -> None:
        """Something is new."""
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self.ring()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer a page until it is closed.

        Raises:
            Refused: too many are open.
        """
        from aiohttp import web

        if self.listeners >= self._most:
            raise Refused(503, f"{self._most} pages are open already: close one.")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self.listeners += 1
        try:
            # A page whose machine is gone reads no more, and is forgotten then.
            with contextlib.suppress(ConnectionError, TimeoutError):
                await answer.prepare(request)
                await self._write(answer)
        finally:
            self.listeners -= 1
        return answer

    async def _write(self, answer: web.StreamResponse) -> None:
        version = -1
        while not self._closed:
            bell, told = self._bell, self._told(version)
            version = told["version"]
            await asyncio.wait_for(answer.write(f"data: {json.dumps(told)}\n\n".encode()), SECONDS_OF_SILENCE)
            while not bell.is_set():
                try:
                    await asyncio.wait_for(bell.wait(), SECONDS_OF_SILENCE)
                except TimeoutError:
                    await asyncio.wait_for(answer.write(b": still here\n\n"), SECONDS_OF_SILENCE)

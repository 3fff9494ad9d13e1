"""Server-sent events with changes for open pages; slow readers skip intermediate states."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evorl.live.page_guard import Refused

if TYPE_CHECKING:
    from aiohttp import web

SECONDS_OF_SILENCE = 15.0  # interval of keep-alive messages, and timeout of a write to a page


class PageEvents:
    """Event streams of all open pages.

    Args:
        changes: returns a dict of the changes since a version (-1: everything), with the new version as ``version``.
        most: maximum number of open pages.
    """

    def __init__(self, changes: Callable[[int], dict[str, Any]], most: int = 64) -> None:
        self._changes, self._most = changes, most
        self._bell = asyncio.Event()  # replaced at each ring
        self._closed = False
        self.listeners = 0

    def ring(self) -> None:
        """Notify all open pages of a change."""
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self.ring()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send events to a page until it is closed; raise ``Refused`` if too many pages are open."""
        from aiohttp import web

        if self.listeners >= self._most:
            raise Refused(503, f"{self._most} pages are already open: close one.")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self.listeners += 1
        try:
            # A page on an unreachable machine stops reading; its stream ends with a timeout.
            with contextlib.suppress(ConnectionError, TimeoutError):
                await answer.prepare(request)
                await self._write(answer)
        finally:
            self.listeners -= 1
        return answer

    async def _write(self, answer: web.StreamResponse) -> None:
        version = -1
        while not self._closed:
            bell, changes = self._bell, self._changes(version)
            version = changes["version"]
            await asyncio.wait_for(answer.write(f"data: {json.dumps(changes)}\n\n".encode()), SECONDS_OF_SILENCE)
            while not bell.is_set():
                try:
                    await asyncio.wait_for(bell.wait(), SECONDS_OF_SILENCE)
                except TimeoutError:
                    await asyncio.wait_for(answer.write(b": still here\n\n"), SECONDS_OF_SILENCE)

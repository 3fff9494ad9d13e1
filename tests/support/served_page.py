"""The live page for tests: requested by an aiohttp client, on a free port."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from evorl.live.live_page import LivePage
from evorl.live.metrics_store import MetricsStore
from evorl.live.watched_runs import WatchedRuns


@contextlib.asynccontextmanager
async def served(
    places: list[str] | None = None, store: MetricsStore | None = None, **options: Any
) -> AsyncIterator[TestClient[Any, Any]]:
    """Yield a client of the page on ``places``, which refreshes twenty times per second."""
    runs = WatchedRuns(places or [], "no such folder")
    runs.refresh()
    page = LivePage(runs, store or MetricsStore(), **{"interval": 0.05, **options})
    async with TestClient(TestServer(page.application())) as client:
        yield client


async def refused(answer: ClientResponse, status: int) -> str:
    """Return the error of a rejected request, which is JSON without traceback."""
    text = await answer.text()
    assert answer.status == status, text
    assert "Traceback" not in text
    return json.loads(text)["error"]


async def next_event(answer: ClientResponse) -> dict[str, Any]:
    """Return the next event of a stream, ignoring heartbeats."""
    while True:
        line = (await answer.content.readline()).decode()
        if line.startswith("data: "):
            return json.loads(line.removeprefix("data: "))
        assert line == "\n" or line.startswith(":"), repr(line)

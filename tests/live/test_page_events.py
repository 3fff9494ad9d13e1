"""Event streams: many pages, slow ones, and the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from evorl.live import page_events
from evorl.live.live_page import LivePage
from evorl.live.metrics_store import MetricsStore
from evorl.live.watched_runs import WatchedRuns
from tests.support.run_folders import make_run
from tests.support.served_page import next_event, refused, served


def test_every_page_is_told_all_at_first_and_then_what_changed(tmp_path: Path) -> None:
    for name in "ab":
        make_run(tmp_path, name, [[1.0]])

    async def conversation() -> None:
        async with served([str(tmp_path)]) as client, client.get("/events") as one:
            assert len((await next_event(one))["runs"]) == 2
            with (tmp_path / "b/metrics.csv").open("a") as file:
                file.write("2,2000,0.1,0.5,9.5\n")
            assert [run["name"] for run in (await asyncio.wait_for(next_event(one), 10))["runs"]] == ["b"]
            async with client.get("/events") as two:
                assert len((await next_event(two))["runs"]) == 2

    asyncio.run(conversation())


def test_there_are_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_events, "SECONDS_OF_SILENCE", 0.05)

    async def conversation() -> None:
        async with served() as client, client.get("/events") as stream:
            await next_event(stream)
            lines = [await asyncio.wait_for(stream.content.readline(), 10) for _ in range(6)]
            assert b": still here\n" in lines

    asyncio.run(conversation())


def test_so_many_pages_and_no_more_and_the_end_comes_at_once(tmp_path: Path) -> None:
    async def conversation() -> None:
        page = LivePage(WatchedRuns([], tmp_path), MetricsStore(), interval=0.05)
        page.events._most = 2
        async with TestClient(TestServer(page.application())) as client:
            streams = [await client.get("/events") for _ in range(2)]
            assert "2 pages are already open" in await refused(await client.get("/events"), 503)
            assert page.events.listeners == 2
            streams.pop().close()
            for _ in range(100):
                page.store.scalar("a", 1.0)  # a closed page is detected at the next write
                await asyncio.sleep(0.05)
                if page.events.listeners == 1:
                    break
            assert page.events.listeners == 1
            started = asyncio.get_running_loop().time()
            page.events.close()
            await asyncio.wait_for(streams[0].read(), 5)
            assert asyncio.get_running_loop().time() - started < 1
        assert page.events.listeners == 0

    asyncio.run(conversation())

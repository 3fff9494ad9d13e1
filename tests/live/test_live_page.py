"""Requests to the live page: responses and access control."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from prometheus_client.parser import text_string_to_metric_families

from evorl.live import live_page
from evorl.live.metrics_store import EnabledMetrics, MetricsStore
from evorl.live.page_guard import PageGuard
from evorl.live.watched_runs import WatchedRuns
from tests.recorders.test_tensorboard_recorder import read_events
from tests.support.errors import raises_naming
from tests.support.run_folders import PNG, make_run
from tests.support.served_page import next_event, refused, served

TOKEN = "a-token-of-some-length"
Ask = Callable[[TestClient[Any, Any]], Awaitable[None]]


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    make_run(tmp_path / "runs", "a<b>", [[1.0], [2.0]])
    make_run(tmp_path / "runs", "c", [[3.0]]).learning_curve.write_bytes(PNG)
    return [str(tmp_path / "runs")]


def ask(conversation: Ask, *places: str, **options: Any) -> None:
    """Call a function with a client of a page on these folders."""

    async def run() -> None:
        async with served(list(places), **options) as client:
            await conversation(client)

    asyncio.run(run())


def test_three_scalars_as_the_metrics_server_has_them(tmp_path: Path) -> None:
    async def conversation(client: TestClient[Any, Any]) -> None:
        for y in (1.0, 2.5, 4.0):
            async with client.post("/api/scalars", json={"name": "episode_reward", "y": y}) as answer:
                assert await answer.json() == {"stored": 1}
        async with client.get("/") as answer:
            assert answer.content_type == "text/html"
            assert '<a href="/api/scalars?name=episode_reward">episode_reward</a>' in await answer.text()
        async with client.get("/api/scalars?name=episode_reward") as answer:
            assert (await answer.json())["points"] == [[0.0, 1.0], [1.0, 2.5], [2.0, 4.0]]
        many = [{"name": "loss", "y": 1, "x": 700}, {"name": "episode_reward", "y": 5}]
        async with client.post("/api/scalars", json=many) as answer:
            assert await answer.json() == {"stored": 2}
        async with client.get("/api/scalars?name=episode_reward&most=2") as answer:
            assert (await answer.json())["points"][-1] == [700.0, 5.0]
        async with client.post("/api/histograms", json={"name": "w", "values": [1, 2, 2]}) as answer:
            assert await answer.json() == {"stored": 1}
        async with client.get("/api/histograms?name=w") as answer:
            (histogram,) = (await answer.json())["histograms"]
            assert (histogram["x"], sum(histogram["counts"])) == (700.0, 3)
        for address in ("/api/scalars?name=w", "/api/scalars", "/api/histograms?name=loss"):
            assert "unknown" in (await refused(await client.get(address), 404)).lower()

    ask(conversation, store=MetricsStore(tmp_path / "metrics"))
    events = read_events(tmp_path / "metrics/tensorboard")
    values = [value for event in events for value in event.summary.value if value.tag == "episode_reward"]
    assert [value.simple_value for value in values] == [1.0, 2.5, 4.0, 5.0]


def test_a_disabled_name_is_not_stored() -> None:
    store = MetricsStore(enabled=EnabledMetrics(False, {"loss": True}))

    async def conversation(client: TestClient[Any, Any]) -> None:
        async with client.post("/api/scalars", json=[{"name": "a", "y": 1}, {"name": "loss", "y": 1}]) as answer:
            assert await answer.json() == {"stored": 1}
        async with client.get("/api/enabled") as answer:
            assert await answer.json() == {"enable_unknown_metrics": False, "metrics": {"loss": True}}

    ask(conversation, store=store)
    assert store.names() == ["loss"]


def test_runs_are_listed_and_asked_for_by_number(runs: list[str]) -> None:
    async def conversation(client: TestClient[Any, Any]) -> None:
        async with client.get("/api/runs") as answer:
            output = await answer.json()
        assert [run["name"] for run in output["runs"]] == ["a<b>", "c"]
        assert output["ready"]
        async with client.get("/api/scalars?run=0&name=eval/episode_return") as answer:
            assert (await answer.json())["points"] == [[1000.0, 1.0], [2000.0, 2.0]]
        async with client.get("/api/runs/1/picture") as answer:
            assert (await answer.read(), answer.content_type) == (PNG, "image/png")
        async with client.get("/") as answer:
            text = await answer.text()
        assert "<h3>a&lt;b&gt;</h3>" in text
        assert '<a href="/api/scalars?name=train%2Fvalue_loss&amp;run=1">train/value_loss</a>' in text
        async with client.get("/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            families = list(text_string_to_metric_families(await answer.text()))
        samples = [sample for family in families for sample in family.samples]
        labels = {"run": "a<b>", "metric": "eval/episode_return"}
        assert [sample.value for sample in samples if sample.labels == labels] == [2.0]

    ask(conversation, *runs)


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/api/runs/0/picture", 404),
        ("/api/runs/2/picture", 404),
        ("/api/runs/..%2f..%2fetc%2fpasswd/picture", 400),
        ("/api/runs/-1/picture", 400),
        ("/api/runs/../../config.yaml", 404),
        ("/../page.js/../../live_page.py", 404),
        ("/%2e%2e/live_page.py", 404),
        ("/page/index.html", 404),
        ("/api/scalars?run=../a&name=eval/episode_return", 400),
        ("/api/scalars?run=99999999999&name=eval/episode_return", 400),
        ("/api/scalars?run=0&name=../../config.yaml", 404),
        ("/api/scalars?run=0&name=eval/episode_return&most=x", 400),
        ("/api/scalars?run=7&name=eval/episode_return", 404),
        ("/nothing", 404),
    ],
)
def test_no_way_leads_to_other_files(runs: list[str], address: str, status: int) -> None:
    async def conversation(client: TestClient[Any, Any]) -> None:
        reader, writer = await asyncio.open_connection(client.host, client.port)  # a client would tidy the way
        writer.write(f"GET {address} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        assert int(head.split()[1]) == status, head
        assert json.loads(body)["error"]
        assert "workflow" not in body

    ask(conversation, *runs)


def test_every_answer_has_its_headers(runs: list[str]) -> None:
    async def conversation(client: TestClient[Any, Any]) -> None:
        types = {"/page.js": "text/javascript", "/chart.js": "text/javascript", "/page.css": "text/css"}
        for path in ("/", *types, "/icon.svg", "/api/runs", "/api/runs/1/picture", "/nothing", "/metrics", "/healthz"):
            async with client.get(path) as answer:
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';"), path
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.content_type == types.get(path, answer.content_type)

    ask(conversation, *runs)


def test_names_of_other_hosts_and_pages_are_refused() -> None:
    async def conversation(client: TestClient[Any, Any]) -> None:
        for path in ("/", "/api/runs", "/events", "/healthz", "/nothing"):
            answer = await client.get(path, headers={"Host": "rebound.example:7002"})
            assert "'rebound.example'" in await refused(answer, 421)
        point = {"name": "a", "y": 1}
        answer = await client.post("/api/scalars", json=point, headers={"Origin": "http://evil.example"})
        assert "other origins" in await refused(answer, 403)
        answer = await client.post("/api/scalars", data=json.dumps(point), headers={"Content-Type": "text/plain"})
        assert "Content-Type: application/json" in await refused(answer, 415)
        async with client.get("/api/runs") as answer:
            assert (await answer.json())["store"]["metrics"] == []

    ask(conversation)


def test_with_a_token_everybody_is_asked_for_it(runs: list[str]) -> None:
    async def conversation(client: TestClient[Any, Any]) -> None:
        for path in ("/", "/api/runs", "/api/scalars?name=a", "/events", "/metrics", "/page.js", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"evorl-{client.port}=wrong"}):
                assert "Authorization: Bearer" in await refused(await client.get(path, headers=headers), 401)
        for path in ("/healthz", "/readyz"):
            async with client.get(path) as answer:
                assert answer.status == 200
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        async with client.post("/api/scalars", json={"name": "a", "y": 1}, headers=bearer) as answer:
            assert answer.status == 200
        assert "token is wrong" in await refused(await client.get("/?token=wrong"), 401)
        async with client.get(f"/?token={TOKEN}", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/")
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        headers = {"Cookie": cookie.split(";")[0]}
        async with client.get("/api/runs", headers=headers) as answer:
            assert answer.status == 200
        # Browsers attach cookies automatically, so a cookie does not authorize sending.
        answer = await client.post("/api/scalars", json={"name": "a", "y": 1}, headers=headers)
        await refused(answer, 401)

    ask(conversation, *runs, guard=PageGuard(token=TOKEN))


def test_what_is_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "SECONDS_OF_BODY", 0.2)
    store = MetricsStore(most_names=1)

    async def conversation(client: TestClient[Any, Any]) -> None:
        json_header = {"Content-Type": "application/json"}
        answer = await client.post(
            "/api/scalars", data=io.BytesIO(b" " * (live_page.MAX_BODY + 1)), headers=json_header
        )
        assert "Maximum request body size" in await refused(answer, 413)
        await client.post("/api/scalars", json={"name": "a", "y": 1})
        answer = await client.post("/api/scalars", json={"name": "b", "y": 1})
        assert "limit of 1 metrics" in await refused(answer, 400)
        answer = await client.post("/api/scalars", json=[{"name": "a", "y": 1}] * 99)
        assert "Retry in" in await refused(answer, 429)
        reader, writer = await asyncio.open_connection(client.host, client.port)
        head = (
            b"POST /api/scalars HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
        )
        writer.write(head + b"\r\n{")  # incomplete
        assert b"408" in await asyncio.wait_for(reader.readline(), 5)
        writer.close()

    ask(conversation, store=store, rate=5)
    assert store.points("a") == [(0.0, 1.0)]


def test_pages_are_told_of_a_new_row(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", [[1.0]])
    make_run(tmp_path, "b", [[1.0]])

    async def conversation(client: TestClient[Any, Any]) -> None:
        async with client.get("/events") as stream:
            assert stream.content_type == "text/event-stream"
            first = await next_event(stream)
            assert [run["timesteps"] for run in first["runs"]] == [1000, 1000]
            with folder.metrics_csv.open("a") as file:
                file.write("2,2000,0.1,0.5,9")  # half of a row; the rest follows
                file.flush()
                await asyncio.sleep(0.3)
                file.write(".5\n")
            while (event := await asyncio.wait_for(next_event(stream), 10))["runs"][0]["return"] != 9.5:
                assert event["runs"][0]["return"] == 1.0
            assert [run["name"] for run in event["runs"]] == ["a"]
            await client.post("/api/scalars", json={"name": "loss", "y": 1})
            event = await asyncio.wait_for(next_event(stream), 10)
            assert (event["runs"], event["store"]["metrics"]) == ([], ["loss"])

    ask(conversation, str(tmp_path))


def test_it_is_ready_when_all_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def conversation() -> None:
        page = live_page.LivePage(WatchedRuns([], tmp_path), MetricsStore())
        monkeypatch.setattr(page.runs, "refresh", lambda: None)
        from aiohttp.test_utils import TestServer

        async with TestClient(TestServer(page.application())) as client:
            assert "being read" in await refused(await client.get("/readyz"), 503)
            page.runs.looked = True
            async with client.get("/readyz") as answer:
                assert await answer.json() == {"status": "ready"}

    asyncio.run(conversation())


@pytest.mark.parametrize("rate", [1e-6, 0.05, 0.0999, 0.1, 1.0])
def test_every_rate_admits_a_point(rate: float) -> None:
    async def conversation(client: TestClient[Any, Any]) -> None:
        async with client.post("/api/scalars", json={"name": "a", "y": 1.0}) as answer:
            assert await answer.json() == {"stored": 1}
        assert "rate limit" in await refused(
            await client.post("/api/scalars", json=[{"name": "a", "y": 1.0}] * 10), 429
        )

    ask(conversation, rate=rate)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), "fast"])
def test_a_rate_is_a_positive_number(rate: Any) -> None:
    with raises_naming(ValueError, "rate must be", rate):
        live_page.LivePage(WatchedRuns([], "nowhere"), MetricsStore(), rate=rate)


def test_an_unexpected_error_of_a_scan_is_shown_and_the_next_scan_follows(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [PermissionError(13, "Permission denied"), KeyError("a"), OverflowError("too large")]
    refresh = WatchedRuns.refresh
    is_broken = False

    def failing(watched: WatchedRuns) -> bool:
        if is_broken:
            raise errors.pop() if len(errors) > 1 else errors[0]
        watched._look_again = 0.0  # without the pause between two searches for runs
        return refresh(watched)

    monkeypatch.setattr(WatchedRuns, "refresh", failing)

    async def conversation(client: TestClient[Any, Any]) -> None:
        nonlocal is_broken
        async with client.get("/events") as stream:
            await next_event(stream)
            is_broken = True
            async with asyncio.timeout(20):
                while (event := await next_event(stream))["notes"] != []:
                    if "Permission denied" in event["notes"][0]:
                        is_broken = False
                assert len(errors) == 1
                make_run(tmp_path / "runs", "new", [[1.0]])
                while "new" not in [run["name"] for run in (await next_event(stream))["runs"]]:
                    pass

    ask(conversation, *runs)


def test_pages_and_gauges_forget_a_deleted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "a", [[1.0]])
    deleted = make_run(tmp_path, "b", [[1.0]])
    refresh = WatchedRuns.refresh

    def refresh_at_once(watched: WatchedRuns) -> bool:
        watched._look_again = 0.0  # without the pause between two searches for runs
        return refresh(watched)

    monkeypatch.setattr(WatchedRuns, "refresh", refresh_at_once)

    async def conversation(client: TestClient[Any, Any]) -> None:
        async with client.get("/events") as stream:
            assert (await next_event(stream))["indices"] == [0, 1]
            shutil.rmtree(deleted.path)
            async with asyncio.timeout(20):
                while (await next_event(stream))["indices"] != [0]:
                    pass
        async with client.get("/api/runs") as answer:
            assert [run["name"] for run in (await answer.json())["runs"]] == ["a"]
        async with client.get("/metrics") as answer:
            text = await answer.text()
        assert 'run="a"' in text
        assert 'run="b"' not in text
        assert "does not exist" in await refused(await client.get("/api/scalars?run=1&name=eval/episode_return"), 404)

    ask(conversation, str(tmp_path))

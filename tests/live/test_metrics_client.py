"""The metrics client of simulators against the real server."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evorl.live import metrics_client
from evorl.live.live_page import LivePage
from evorl.live.metrics_client import MetricsClient
from evorl.live.metrics_store import EnabledMetrics, MetricsStore
from evorl.live.page_guard import PageGuard
from evorl.live.page_service import serving
from evorl.live.watched_runs import WatchedRuns
from tests.support.errors import raises_naming

TOKEN = "a-token-of-some-length"


def with_server(client: Callable[[str], None], store: MetricsStore, **options: Any) -> None:
    """Run a blocking client next to the server."""

    async def run() -> None:
        async with serving(LivePage(WatchedRuns([], "no such folder"), store, **options)) as address:
            await asyncio.to_thread(client, address)

    asyncio.run(run())


def test_a_simulator_sends_numbers(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)

    def simulate(address: str) -> None:
        with MetricsClient(address, TOKEN, client="game 1") as metrics:
            for episode in range(1200):
                metrics.scalar("episode_reward", episode, x=10 * episode)
            metrics.histogram("actions", [0, 1, 1])
            metrics.scalar("fps", 60.0)

    with_server(simulate, store, guard=PageGuard(token=TOKEN))
    assert store.points("episode_reward") == [(10.0 * i, float(i)) for i in range(1200)]
    assert store.points("fps") == [(11990.0, 60.0)]
    assert store.histograms("actions")[0].x == 11990.0


def test_a_disabled_name_is_not_even_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MetricsStore(enabled=EnabledMetrics(True, {"loss": False}))
    sent: list[Any] = []
    ask = MetricsClient._ask

    def recorded_ask(self: MetricsClient, path: str, body: Any = None) -> Any:
        sent.append((path, json.dumps(body)))
        return ask(self, path, body)

    monkeypatch.setattr(MetricsClient, "_ask", recorded_ask)

    def simulate(address: str) -> None:
        with MetricsClient(address) as metrics:
            metrics.scalar("loss", 1.0)
            metrics.flush()
            metrics.scalar("return", 1.0)
            metrics.scalar("loss", 2.0)
            metrics.histogram("loss", [1.0])

    with_server(simulate, store)
    assert sent == [("/api/enabled", "null"), ("/api/scalars", '[{"name": "return", "y": 1.0}]')]
    assert store.names() == ["return"]


def test_who_is_refused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(address: str) -> None:
        metrics = MetricsClient(address, "wrong")
        metrics.scalar("a", 1.0)
        with raises_naming(ConnectionError, "rejected", "token"):
            metrics.flush()
        metrics.flush()  # nothing is queued

    with_server(simulate, MetricsStore(), guard=PageGuard(token=TOKEN))
    with raises_naming(ValueError, "http://"):
        MetricsClient("file:///etc/passwd")


def test_without_a_server_numbers_wait_and_the_simulator_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_client, "MAX_WAITING", 5)
    store = MetricsStore()
    waiting = MetricsClient("http://127.0.0.1:9", seconds=0.0)  # no server there
    for i in range(8):
        waiting.scalar("a", i, x=i)
    waiting.histogram("h", [1.0])
    assert waiting.dropped == 4

    def later(address: str) -> None:
        waiting._address = address
        waiting.flush()

    with_server(later, store)
    assert store.points("a") == [(float(i), float(i)) for i in range(3, 8)]


@pytest.mark.parametrize("num_points", [1, 300, 2 * metrics_client.AT_ONCE])
def test_a_flush_makes_one_request_while_the_server_is_down(num_points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    monkeypatch.setattr(MetricsClient, "_ask", lambda self, path, body=None: requests.append(path))
    metrics = MetricsClient(seconds=1e9)
    for i in range(num_points):
        metrics.scalar("a", i)
    metrics.flush()
    assert requests == ["/api/enabled"]
    metrics.histogram("h", [1.0])
    assert requests == ["/api/enabled"] * 2


@pytest.mark.parametrize("rate", [1.0, 20.0, 49.0])
@pytest.mark.parametrize("num_points", [1, 500, 600])
def test_a_backlog_above_the_rate_limit_is_sent_in_smaller_requests(rate: float, num_points: int) -> None:
    """The server accepts no request above 10 times its rate; a flush sends as many points as allowed."""
    store = MetricsStore()

    def send_backlog(address: str) -> None:
        metrics = MetricsClient(address, seconds=1e9)
        for i in range(num_points):
            metrics.scalar("a", i, x=i)
        metrics.flush()
        assert len(metrics._waiting) == num_points - len(store.points("a"))

    with_server(send_backlog, store, rate=rate)
    points = store.points("a")
    assert points == [(float(i), float(i)) for i in range(len(points))]
    assert 0 < len(points) <= max(1, 12 * rate)


def test_requests_grow_again_after_a_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    ask = MetricsClient._ask

    def recorded_ask(self: MetricsClient, path: str, body: Any = None) -> Any:
        sizes.extend([len(body)] if path == "/api/scalars" else [])
        return ask(self, path, body)

    monkeypatch.setattr(MetricsClient, "_ask", recorded_ask)

    def simulate(address: str) -> None:
        metrics = MetricsClient(address, seconds=1e9)
        metrics._at_once = 100
        for i in range(1000):
            metrics.scalar("a", i)
        metrics.flush()

    with_server(simulate, MetricsStore())
    assert sizes == [100, 200, 400, 300]


@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
@pytest.mark.parametrize("body", ["late", "reset"])
def test_a_broken_answer_leaves_the_simulator_alone(status: int, body: str) -> None:
    """An answer whose body does not arrive in time, or is reset, counts as a server that cannot be reached."""

    def answer(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(f"HTTP/1.1 {status} Status\r\nContent-Length: 100\r\n\r\n{{".encode())
                if body == "late":
                    is_over.wait(30.0)
                else:  # closing sends a reset
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        metrics = MetricsClient(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=1e9, timeout=0.2)
        metrics.scalar("a", 1.0)
        metrics.flush()
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
    assert [point["name"] for point in metrics._waiting] == ["a"]


def test_a_histogram_above_the_rate_limit_is_counted_as_dropped() -> None:
    store = MetricsStore()

    def simulate(address: str) -> None:
        with MetricsClient(address) as metrics:
            metrics.histogram("h", [0.0] * 2000)  # counts as 21 points
            metrics.histogram("h", [0.0])
            assert metrics.dropped == 1

    with_server(simulate, store, rate=1.0)
    assert len(store.histograms("h")) == 1

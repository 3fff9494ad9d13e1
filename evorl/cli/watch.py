"""``evorl watch``: serves a live page of runs, and receives metrics from clients."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import webbrowser
from collections.abc import Callable, Sequence
from typing import Any

from evorl.cli.command_options import read_options
from evorl.cli.options import WATCH, WATCH_TOKEN
from evorl.execution.signals import stop_on_signals
from evorl.live.live_page import LivePage
from evorl.live.metrics_store import EnabledMetrics, MetricsStore
from evorl.live.page_guard import PageGuard
from evorl.live.page_service import serving
from evorl.live.watched_runs import WatchedRuns
from evorl.recorders.screen import print_line
from evorl.sockets.access import tls_context

_SECONDS_BETWEEN_LOOKS = 0.2  # between checks for a signal that stops the server


@dataclasses.dataclass(frozen=True)
class Request:
    """The live page, and the checked options with which it is served."""

    page: LivePage
    port: int
    tls: Any
    open: bool
    token_is_new: bool


def watch_runs(arguments: Sequence[str]) -> None:
    """Serve the page until a signal arrives, and print its address."""
    request = _request(arguments)
    with stop_on_signals() as is_stopped:
        asyncio.run(_serve(request, is_stopped))


def _request(arguments: Sequence[str]) -> Request:
    settings, places = read_options(arguments, WATCH, "evorl watch", unnamed="run")
    is_new = settings["token"] == "new"
    token = secrets.token_urlsafe(24) if is_new else settings["token"] or os.environ.get(WATCH_TOKEN) or None
    hosts = tuple(name.strip() for name in (settings["hosts"] or "").split(",") if name.strip())
    guard = PageGuard(settings["bind"], token, hosts)
    tls = tls_context(settings["cert"], settings["key"])
    enabled = EnabledMetrics(settings["enable_unknown_metrics"], settings["metrics"])
    runs = WatchedRuns(places, settings["runs_folder"])
    store = MetricsStore(settings["metrics_folder"], enabled, log=print_line if settings["log"] else None)
    return Request(LivePage(runs, store, guard), settings["port"], tls, settings["open"], is_new)


async def _serve(request: Request, is_stopped: Callable[[], bool]) -> None:
    guard = request.page.guard
    async with serving(request.page, request.port, request.tls) as address:
        with_token = f"{address}/?token={guard.token}" if guard.token else f"{address}/"
        # A token chosen by the user is not printed.
        shown = with_token if request.token_is_new or not guard.token else f"{address}/?token=..."
        print_line(f"Watching {request.page.runs.described_places} at {shown} (Ctrl-C ends it)")
        if request.open:
            await asyncio.to_thread(webbrowser.open, with_token)
        while not is_stopped():
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

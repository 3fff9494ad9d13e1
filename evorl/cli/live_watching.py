"""``evorl watch``: serves a live page on runs, and receives metrics from clients."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from evorl.cli.command_options import Option, read_options, whole

if TYPE_CHECKING:
    from evorl.live.live_page import LivePage

TOKEN = "EVORL_TOKEN"
_SECONDS_BETWEEN_LOOKS = 0.2  # polling interval for signals
OPTIONS = {
    "port": Option(7002, "to listen on; 0 for one that is free", whole(0, 65_535)),
    "bind": Option("127.0.0.1", "the address to listen on; any but this machine's own needs a token"),
    "token": Option(None, f"asked of everybody; new for a new one, null for that in {TOKEN} or none", text=True),
    "hosts": Option(None, "names of this machine that may stand in the address, as in hosts=box,box.lan", text=True),
    "cert": Option(None, "a certificate, PEM: the page is served by TLS", text=True),
    "key": Option(None, "the certificate's key, PEM", text=True),
    "open": Option(False, "whether the page is opened in a browser"),
    "runs_folder": Option("runs", "where runs are looked for by their names, and watched where none is named"),
    "metrics_folder": Option(
        "metrics", "folder for metrics that clients send; null keeps them in memory only", text=True, null=True
    ),
    "metrics": Option({}, "by name whether a client's metric is taken, as in metrics={loss: false}"),
    "enable_unknown_metrics": Option(True, "whether metrics are taken that metrics does not name"),
    "log": Option(False, "whether every number that a client sends is printed"),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """Checked request of the command; the attributes are its options."""

    page: LivePage
    port: int
    tls: Any
    open: bool
    token_is_new: bool


def watch_runs(arguments: Sequence[str]) -> None:
    """Serve the page until a signal arrives, and print its address.

    Args:
        arguments: run folders, ``latest``, folders that contain runs; and options.

    Raises:
        ValueError: an option is unknown or invalid, the page would be open to other machines without a token, or the
            port is not available.
        RunFolderError: a run or folder does not exist.
        ImportError: aiohttp is not installed.
    """
    request = _request(arguments)
    from evorl.cli.signals import stop_on_signals

    with stop_on_signals() as is_stopped:
        asyncio.run(_serve(request, is_stopped))


def _request(arguments: Sequence[str]) -> Request:
    from evorl.live.live_page import LivePage
    from evorl.live.metrics_store import EnabledMetrics, MetricsStore
    from evorl.live.page_guard import PageGuard
    from evorl.live.watched_runs import WatchedRuns
    from evorl.recorders.screen import print_line
    from evorl.sockets.access import tls_context

    settings, places = read_options(arguments, OPTIONS, "evorl watch", unnamed="run")
    is_new = settings["token"] == "new"
    token = secrets.token_urlsafe(24) if is_new else settings["token"] or os.environ.get(TOKEN) or None
    hosts = tuple(name.strip() for name in (settings["hosts"] or "").split(",") if name.strip())
    guard = PageGuard(settings["bind"], token, hosts)
    tls = tls_context(settings["cert"], settings["key"])
    enabled = EnabledMetrics(settings["enable_unknown_metrics"], settings["metrics"])
    runs = WatchedRuns(places, settings["runs_folder"])
    store = MetricsStore(settings["metrics_folder"], enabled, log=print_line if settings["log"] else None)
    return Request(LivePage(runs, store, guard), settings["port"], tls, settings["open"], is_new)


async def _serve(request: Request, is_stopped: Callable[[], bool]) -> None:
    from evorl.live.page_service import serving
    from evorl.recorders.screen import print_line

    guard = request.page.guard
    async with serving(request.page, request.port, request.tls) as address:
        with_token = f"{address}/?token={guard.token}" if guard.token else f"{address}/"
        # A token chosen by the user is known to them, and is not printed.
        shown = with_token if request.token_is_new or not guard.token else f"{address}/?token=..."
        print_line(f"Watching {request.page.runs.told_places} at {shown} (Ctrl-C ends it)")
        if request.open:
            import webbrowser

            await asyncio.to_thread(webbrowser.open, with_token)
        while not is_stopped():
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

"""Web application of the live page: curves of runs, metrics of clients, server-sent events, metrics for Prometheus.

Data of training runs is read from their folders (``WatchedRuns``), data of clients from their requests
(``MetricsStore``). A request refers to a run by its index in the list, never by a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from evorl.config.names import explain_missing_package, no_such
from evorl.config.values import checked_value
from evorl.live.metrics_store import MetricsRefusedError, MetricsStore
from evorl.live.page_events import PageEvents
from evorl.live.page_guard import PageGuard, RateLimit, Refused
from evorl.live.prometheus_text import CONTENT_TYPE, as_text
from evorl.live.run_gauges import gauges_of
from evorl.live.sent_metrics import store_histograms, store_scalars
from evorl.live.watched_runs import WatchedRuns, describe_error, thinned
from evorl.runs.files import RunFolderError

if TYPE_CHECKING:
    from aiohttp import web

MAX_BODY = 1 << 20  # maximum bytes of a request
SECONDS_OF_BODY = 10.0  # timeout of a request body
_PATIENCE = 5.0  # minimum pause after a scan, in units of the duration of the scan
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES = {
    "page.js": "text/javascript",
    "chart.js": "text/javascript",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_OPEN = ("/healthz", "/readyz")  # contain no data, so they need no token
_Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


class LivePage:
    """aiohttp application of the live page.

    Args:
        runs: displayed runs.
        store: metrics of clients; closed with the application.
        guard: access control; ``None`` serves this machine only, without a token.
        interval: minimum seconds between two scans of the folders.
        rate: maximum number of points per second from one client; bursts of ten times this number, or 1, are allowed.

    Raises:
        ValueError: ``rate`` is not a positive finite number.
        ImportError: aiohttp is not installed; the message states the command that installs it.
    """

    def __init__(
        self,
        runs: WatchedRuns,
        store: MetricsStore,
        guard: PageGuard | None = None,
        interval: float = 1.0,
        rate: float = 1000.0,
    ) -> None:
        with explain_missing_package("pages", "aiohttp"):
            from aiohttp import web
        self.runs, self.store, self.guard, self.interval = runs, store, guard or PageGuard(), interval
        self.events = PageEvents(self.changes)
        self._problems: list[str] = []  # errors of the last scan
        self._rate = RateLimit(checked_value(rate, float, "rate", "(0, inf)"), max(1.0, 10 * rate))
        self._web = web
        self._page = resources.files("evorl.live").joinpath("page")

    def application(self) -> web.Application:
        """Build the application with all routes and the background task that scans the folders; call it only once."""
        web = self._web

        @web.middleware
        async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._with_error_responses(request, handler)

        application = web.Application(middlewares=[guarded], client_max_size=MAX_BODY)
        doors = {
            "/": self._index,
            **{f"/{name}": self._file for name in _FILES},
            "/api/runs": self._list,
            "/api/runs/{index}/picture": self._picture,
            "/api/scalars": self._scalars,
            "/api/histograms": self._histograms,
            "/api/enabled": self._enabled,
            "/events": self.events.stream,
            "/metrics": self._metrics,
            "/healthz": self._health,
            "/readyz": self._ready,
        }
        application.add_routes([web.get(path, door) for path, door in doors.items()])
        application.add_routes([web.post(path, self._take) for path in ("/api/scalars", "/api/histograms")])
        application.on_response_prepare.append(_add_headers)
        application.on_shutdown.append(self._shut)
        application.cleanup_ctx.append(self._watching)
        return application

    def changes(self, since: int) -> dict[str, Any]:
        """Return the data for open pages: all indices, runs changed since version ``since``, and metrics of clients."""
        summaries = self.runs.summaries()
        return {
            # The version of these summaries; the runs may already have a newer one.
            "version": max([since, *(summary.version for summary in summaries)]),
            "ready": self.runs.looked,
            "places": self.runs.described_places,
            "notes": [*self.runs.notes, *self._problems],
            "indices": [summary.index for summary in summaries],
            "runs": [summary.data for summary in summaries if summary.version > since],
            "store": {
                "version": self.store.version,
                "metrics": self.store.names(),
                "histograms": self.store.histogram_names(),
                "step": self.store.step,
            },
        }

    async def _with_error_responses(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check access, call the handler, and return errors as JSON."""
        web = self._web
        try:
            self.guard.check_host(request.headers.get("Host"))
            if request.path not in _OPEN:
                if request.path == "/" and "token" in request.query:
                    return self._with_cookie(request)
                self._check_token(request)
            return await handler(request)
        except Refused as error:
            status, message = error.status, str(error)
        except (MetricsRefusedError, RunFolderError) as error:
            status, message = 400 if isinstance(error, MetricsRefusedError) else 507, str(error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            status, message = error.status, error.text or error.reason
        return web.json_response({"error": message}, status=status)

    def _check_token(self, request: web.Request) -> None:
        # Browsers also send the cookie with requests that other pages trigger, so it grants read access only.
        cookie = request.cookies.get(_cookie_name(request)) if request.method in ("GET", "HEAD") else None
        if not self.guard.knows(request.headers.get("Authorization"), cookie):
            raise Refused(
                401,
                "This page requires a token: send Authorization: Bearer <token>, or open /?token=<token> in a browser.",
            )
        self.guard.check_origin(request.headers.get("Origin"), request.headers.get("Host"))

    def _with_cookie(self, request: web.Request) -> web.Response:
        """Exchange the token in the URL for a cookie; redirect, so that the token does not stay in the history."""
        if not self.guard.is_token(request.query["token"]):
            raise Refused(401, "The token is wrong: open the address that evorl watch printed.")
        answer = self._web.Response(status=303, headers={"Location": "/"})
        name, session = _cookie_name(request), self.guard.session
        answer.set_cookie(name, session, httponly=True, samesite="Strict", secure=request.secure)
        return answer

    async def _index(self, request: web.Request) -> web.Response:
        text = self._page.joinpath("index.html").read_text(encoding="utf-8")
        text = text.replace("<!-- metrics -->", await asyncio.to_thread(self._metrics_in_html))
        return self._web.Response(body=_encoded(text), content_type="text/html", charset="utf-8")

    def _metrics_in_html(self) -> str:
        """Return HTML with a link to the points of every metric, for clients without scripts, such as curl."""
        lists: list[tuple[str, dict[str, int], list[str]]] = [("Sent by clients", {}, self.store.names())]
        lists += [(run.data["name"], {"run": run.index}, run.data["metrics"]) for run in self.runs.summaries()]
        lines = []
        for title, run, names in lists:
            queries = [urllib.parse.urlencode({"name": name, **run}) for name in names]
            links = [
                f'<li><a href="/api/scalars?{html.escape(query)}">{html.escape(name)}</a></li>'
                for name, query in zip(names, queries, strict=True)
            ]
            lines.append(f"<h3>{html.escape(title)}</h3>\n<ul>{''.join(links) or '<li>nothing yet</li>'}</ul>")
        return "\n".join(lines)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.path.removeprefix("/")
        text = self._page.joinpath(name).read_text(encoding="utf-8")
        return self._web.Response(text=text, content_type=_FILES[name])

    async def _list(self, request: web.Request) -> web.Response:
        return self._web.json_response(self.changes(-1))

    async def _picture(self, request: web.Request) -> web.Response:
        index = _whole(request.match_info["index"], "/api/runs/<index of a run>/picture")
        picture = await asyncio.to_thread(self.runs.picture, index)
        if picture is None:
            raise Refused(404, f"Run {index} does not exist or has no image: /api/runs lists runs.")
        return self._web.Response(body=picture[0], content_type=picture[1])

    async def _scalars(self, request: web.Request) -> web.Response:
        name, run = request.query.get("name", ""), request.query.get("run")
        most = max(2, _whole(request.query.get("most", "1000000000"), "most=<number of points>"))
        if run is not None:
            curve = await asyncio.to_thread(self.runs.curve, _whole(run, "run=<index of a run>"), name, most)
            if curve is None:
                raise Refused(
                    404, f"Run {run} with the metric {name[:80]!r} does not exist: /api/runs lists runs and metrics."
                )
            return self._web.json_response(curve)
        names = self.store.names()
        if name not in names:
            raise Refused(404, no_such("metric", name[:80], names))
        points = self.store.points(name)
        selected = thinned(np.array([y for _, y in points]), most)
        return self._web.json_response({"name": name, "points": [points[i] for i in selected]})

    async def _histograms(self, request: web.Request) -> web.Response:
        name, names = request.query.get("name", ""), self.store.histogram_names()
        if name not in names:
            raise Refused(404, no_such("histogram", name[:80], names))
        points = [{"x": each.x, "edges": each.edges, "counts": each.counts} for each in self.store.histograms(name)]
        return self._web.json_response({"name": name, "histograms": points})

    async def _enabled(self, request: web.Request) -> web.Response:
        return self._web.json_response(self.store.enabled.as_json())

    async def _take(self, request: web.Request) -> web.Response:
        peer = request.remote or ""
        self._rate.take(peer)
        # Pages of other origins cannot send this type without a preflight request.
        if request.content_type != "application/json":
            raise Refused(415, f"Send JSON with Content-Type: application/json, not {request.content_type[:80]}.")
        try:
            body = await asyncio.wait_for(request.read(), SECONDS_OF_BODY)
        except TimeoutError as error:
            raise Refused(408, f"The body was not received within {SECONDS_OF_BODY:g} s.") from error
        except self._web.RequestPayloadError as error:
            raise Refused(400, "The encoding of the body does not match its headers.") from error
        store = store_histograms if request.path == "/api/histograms" else store_scalars
        # In another thread: otherwise a slow disk would block the event loop for all clients.
        stored = await asyncio.to_thread(store, self.store, body, lambda number: self._rate.take(peer, number))
        return self._web.json_response({"stored": stored})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = as_text(await asyncio.to_thread(gauges_of, self.runs, self.store))
        return self._web.Response(body=_encoded(text), headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.Response:
        return self._web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        if not self.runs.looked:
            raise Refused(503, "The run folders are still being read: retry later.")
        return self._web.json_response({"status": "ready"})

    async def _watching(self, application: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.to_thread(self.store.close)

    async def _watch(self) -> None:
        """Scan the folders periodically, and notify open pages of changes."""
        loop, before = asyncio.get_running_loop(), self._versions()
        while True:
            started, problems = loop.time(), []
            for look in (self.runs.refresh, self.store.flush):
                try:
                    await asyncio.to_thread(look)
                except Exception as error:  # a missing folder may reappear, a full disk may be freed
                    problems.append(describe_error(error))
            self._problems = problems
            if before != (before := self._versions()):
                self.events.ring()
            await asyncio.sleep(max(self.interval, _PATIENCE * (loop.time() - started)))

    def _versions(self) -> tuple[Any, ...]:
        return self.runs.version, self.runs.looked, self.store.version, self._problems

    async def _shut(self, application: web.Application) -> None:
        self.events.close()


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def _encoded(text: str) -> bytes:
    """Encode a text as UTF-8; bytes in names of folders that are not UTF-8 are escaped."""
    return text.encode(errors="backslashreplace")


def _cookie_name(request: web.Request) -> str:
    """Return a cookie name with the port: browsers share cookies between all ports of a host."""
    return f"evorl-{request.url.port}"


def _whole(text: str, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise Refused(400, f"Expected {what}, got {text[:40]!r}.")
    return int(text)

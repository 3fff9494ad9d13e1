"""Metrics client for simulators: sends metrics to the live page over HTTP, using only the standard library.

Disabled metrics are not sent. Points are sent in batches, smaller ones if the server limits the rate. While the server
cannot be reached, points are buffered up to a limit. A simulator therefore does not fail if the page is down; each call
waits at most for the timeout of one request.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Self

MAX_WAITING = 10_000  # maximum number of buffered points; beyond it the oldest are dropped
AT_ONCE = 500  # maximum number of points per request
_LONGEST_ANSWER = 1 << 20  # maximum bytes of a response


class MetricsClient:
    """Sends scalars and histograms to ``evorl watch``.

    Args:
        address: URL of the page, ``http://127.0.0.1:7002``.
        token: access token of the page; ``None`` if it requires none.
        client: name of this client in the server's log; ``None`` for no name.
        seconds: minimum seconds between two batches that ``scalar`` sends.
        timeout: timeout of a request in seconds.

    Raises:
        ValueError: the address is not an HTTP URL.
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:7002",
        token: str | None = None,
        client: str | None = None,
        seconds: float = 1.0,
        timeout: float = 5.0,
    ) -> None:
        if not address.startswith(("http://", "https://")):
            raise ValueError(f"the address of a page must start with http:// or https://, got {address!r}.")
        self.dropped = 0  # points that did not fit in the buffer, and histograms that the server did not accept
        self._address, self._timeout, self._seconds = address.rstrip("/"), timeout, seconds
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = {} if client is None else {"client": client}
        self._enabled: Any = None  # the server's list of enabled metrics; None until it is received
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._at_once = AT_ONCE  # maximum number of points of the next request
        self._is_rate_limited = False  # true if the last request exceeded the server's rate limit
        self._next = time.monotonic() + seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Buffer a point of a curve, and send the buffer if due; without a step ``x``, the server uses its largest one.

        Raises:
            ConnectionError: the server rejected a request, which clears the buffer, or is not ``evorl watch``.
        """
        point = {"name": name, "y": float(y)} | ({} if x is None else {"x": float(x)}) | self._client
        self.dropped += len(self._waiting) == MAX_WAITING
        self._waiting.append(point)
        if time.monotonic() >= self._next:
            self.flush()

    def histogram(self, name: str, values: Sequence[float], x: float | None = None) -> None:
        """Send buffered points, then a histogram of ``values``; raises as ``scalar``.

        A histogram is not buffered: it is lost, and counted in ``dropped``, if the server is down or limits the rate.
        """
        self.flush()
        is_lost = bool(self._waiting) or not self._knows_names()
        if not is_lost and self._takes(name):
            item = {"name": name, "values": [float(value) for value in values]} | ({} if x is None else {"x": float(x)})
            is_lost = self._ask("/api/histograms", item | self._client) is None
        self.dropped += is_lost

    def flush(self) -> None:
        """Send all buffered points, or keep them if the server is down; raises as ``scalar`` does."""
        self._next = time.monotonic() + self._seconds
        while self._waiting and self._knows_names():
            batch = list(islice(self._waiting, self._at_once))
            taken = [point for point in batch if self._takes(point["name"])]
            if not taken or self._ask("/api/scalars", taken) is not None:
                for _ in batch:
                    self._waiting.popleft()
                self._at_once = min(AT_ONCE, 2 * self._at_once)
            elif self._is_rate_limited and len(taken) > 1:
                self._at_once = len(taken) // 2
            else:
                return  # the server cannot be reached: retry later

    def _knows_names(self) -> bool:
        """Request the server's list of enabled metrics until it is received; return False without it."""
        self._enabled = self._enabled or self._ask("/api/enabled")
        return self._enabled is not None

    def _takes(self, name: str) -> bool:
        try:
            return bool(self._enabled["metrics"].get(name, self._enabled["enable_unknown_metrics"]))
        except (TypeError, KeyError, AttributeError) as error:
            self._enabled = None
            raise ConnectionError(f"the server at {self._address} is not evorl watch: check the address.") from error

    def _ask(self, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON response; ``None`` if the server cannot be reached or requests a retry."""
        self._is_rate_limited = False
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, self._headers)
        try:
            try:
                answer: Any = urllib.request.urlopen(request, timeout=self._timeout)
            except urllib.error.HTTPError as error:
                answer = error  # also a response; reading its body may fail
            with answer:
                self._is_rate_limited = answer.status == 429
                content = answer.read(_LONGEST_ANSWER)
            if answer.status < 300:
                return json.loads(content)
        except (OSError, ValueError, http.client.HTTPException, RecursionError):
            return None
        if answer.status in (408, 429, 500, 502, 503, 504):
            return None
        self._waiting.clear()
        raise ConnectionError(f"{self._address} rejected the metrics: {content[:2000].decode(errors='replace')}")

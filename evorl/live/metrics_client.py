"""Metrics client for simulators: sends metrics to the live page over HTTP, using only the standard library.

Disabled metrics are not sent. Points are sent in batches; while the server cannot be reached they are buffered up to a
limit. A simulator therefore does not fail if the page is down, and waits at most for the timeout of a request.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
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
        self.dropped = 0  # points that were dropped because the buffer was full
        self._address, self._timeout, self._seconds = address.rstrip("/"), timeout, seconds
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = {} if client is None else {"client": client}
        self._enabled: dict[str, Any] | None = None
        self._waiting: deque[dict[str, Any]] = deque()
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
        self._waiting.append({"name": name, "y": float(y)} | ({} if x is None else {"x": float(x)}) | self._client)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        if time.monotonic() >= self._next:
            self.flush()

    def histogram(self, name: str, values: Sequence[float], x: float | None = None) -> None:
        """Send buffered points, then a histogram of ``values``, lost if the server is down; raises as ``scalar``."""
        self.flush()
        if not self._waiting and self._takes(name):
            item = {"name": name, "values": [float(value) for value in values]} | ({} if x is None else {"x": float(x)})
            self._ask("/api/histograms", item | self._client)

    def flush(self) -> None:
        """Send all buffered points, or keep them if the server is down; raises as ``scalar`` does."""
        self._next = time.monotonic() + self._seconds
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(AT_ONCE, len(self._waiting)))]
            taken = [point for point in batch if self._takes(point["name"])]
            if self._enabled is None or (taken and self._ask("/api/scalars", taken) is None):
                return  # the server cannot be reached: retry later
            for _ in batch:
                self._waiting.popleft()

    def _takes(self, name: str) -> bool:
        """Return True if the server's list, requested until received, enables the metric; False without this list."""
        if self._enabled is None:
            self._enabled = self._ask("/api/enabled")
        if self._enabled is None:
            return False
        try:
            return bool(self._enabled["metrics"].get(name, self._enabled["enable_unknown_metrics"]))
        except (TypeError, KeyError, AttributeError) as error:
            self._enabled = None
            raise ConnectionError(f"{self._address} does not answer like evorl watch: check the address.") from error

    def _ask(self, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON response; ``None`` if the server cannot be reached or requests a retry."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                return json.loads(answer.read(_LONGEST_ANSWER))
        except urllib.error.HTTPError as error:
            with error:
                reason = error.read(2000).decode(errors="replace")
            if error.code in (408, 429, 500, 502, 503, 504):
                return None
            self._waiting.clear()
            raise ConnectionError(f"{self._address} rejected the metrics: {reason}") from error
        except (OSError, ValueError, http.client.HTTPException, RecursionError):
            return None

"""Requests of metrics clients: JSON with points or histograms, validated and then stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from evorl.live.metrics_store import MAX_VALUES, MetricsRefusedError, MetricsStore

MAX_AT_ONCE = 1000  # maximum number of points or histograms per request
LONGEST_CLIENT = 100  # maximum characters of the name of a client
_SCALAR = ("name", "y", "x", "client")
_HISTOGRAM = ("name", "values", "x", "client")
Counted = Callable[[float], None]


def store_scalars(store: MetricsStore, body: bytes, count: Counted) -> int:
    """Store a point ``{"name": ..., "y": ..., "x": ..., "client": ...}`` or several; ``x`` and ``client`` are optional.

    Args:
        store: receives the points up to the first rejected one.
        body: JSON body of the request, one point or a list.
        count: called once before storing, with the number of points - 1 (the request counted as 1); raises to reject.

    Returns:
        The number of stored points; points of disabled metrics are not stored.

    Raises:
        MetricsRefusedError: the body or a point is invalid; the message states the entry and the reason.
    """
    points = _items(body, _SCALAR)
    count(len(points) - 1)
    return sum(store.scalar(p["name"], p["y"], p.get("x"), _client(p)) for p in points)


def store_histograms(store: MetricsStore, body: bytes, count: Counted) -> int:
    """Store histograms like ``store_scalars``: ``values`` replaces ``y``; ``count`` also gets 1 per 100 values."""
    items = _items(body, _HISTOGRAM)
    for item in items:
        if not isinstance(item["values"], list) or len(item["values"]) > MAX_VALUES:
            raise MetricsRefusedError(f"values: expected at most {MAX_VALUES:,} numbers, got {item['values']!s:.60}.")
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in item["values"]):
            raise MetricsRefusedError(f"values: expected only numbers, got {item['values']!s:.60}.")
    count(len(items) - 1 + sum(len(item["values"]) // 100 for item in items))
    return sum(store.histogram(item["name"], item["values"], item.get("x"), _client(item)) for item in items)


def _items(body: bytes, keys: tuple[str, ...]) -> list[Mapping[str, Any]]:
    required = " and ".join(repr(key) for key in keys[:2])
    try:
        content = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise MetricsRefusedError(f"the body is not valid JSON: {str(error)[:200]}") from error
    items = content if isinstance(content, list) else [content]
    if not 1 <= len(items) <= MAX_AT_ONCE:
        raise MetricsRefusedError(f"expected 1 to {MAX_AT_ONCE:,} points or histograms, got {len(items):,}.")
    for index, item in enumerate(items):
        if not isinstance(item, Mapping) or not set(keys[:2]) <= item.keys() or not item.keys() <= set(keys):
            raise MetricsRefusedError(
                f"item {index}: expected an object with {required}, optionally {' and '.join(map(repr, keys[2:]))}; "
                f"got {json.dumps(item)[:100]}."
            )
    return items


def _client(item: Mapping[str, Any]) -> str | None:
    client = item.get("client")
    if client is None:
        return None
    if not isinstance(client, str) or len(client) > LONGEST_CLIENT or not client.isprintable():
        raise MetricsRefusedError(f"client: expected up to {LONGEST_CLIENT} printable characters, got {client!r:.60}.")
    return client


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")

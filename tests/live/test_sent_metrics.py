"""Metrics sent by clients as JSON."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.live.metrics_store import EnabledMetrics, MetricsRefusedError, MetricsStore
from evorl.live.sent_metrics import store_histograms, store_scalars
from tests.support.errors import raises_naming
from tests.support.odd_values import ODD, label


def test_one_or_many() -> None:
    store, counted = MetricsStore(enabled=EnabledMetrics(True, {"off": False})), []
    assert store_scalars(store, b'{"name": "a", "y": 1}', counted.append) == 1
    many = [{"name": "a", "y": 2, "x": 5, "client": "c"}, {"name": "off", "y": 1}, {"name": "b", "y": 3, "x": None}]
    assert store_scalars(store, json.dumps(many).encode(), counted.append) == 2
    assert store_histograms(store, b'{"name": "h", "values": [1, 2.5]}', counted.append) == 1
    assert store.points("a") == [(0.0, 1.0), (5.0, 2.0)]
    assert store.points("b") == [(5.0, 3.0)]
    assert counted == [0, 2, 0]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"", ("JSON",)),
        (b"\xff", ("JSON",)),
        (b"[" * 100_000, ("JSON",)),
        (b'{"name": "a", "y": NaN}', ("NaN", "JSON number")),
        (b"[]", ("1 to 1,000 points", "got 0")),
        (json.dumps([{"name": "a", "y": 1}] * 1001).encode(), ("got 1,001",)),
        (b"[3]", ("item 0", "'name'", "'y'")),
        (b'[{"name": "a", "y": 1}, {"name": "a"}]', ("item 1", "'name'", "'y'")),
        (b'{"name": "a", "y": 1, "path": "/etc"}', ("item 0", "'name'", "'y'")),
        (b'{"name": "a", "y": "1"}', ("y: ", "finite")),
        (b'{"name": ["a"], "y": 1}', ("name of a metric",)),
        (b'{"name": "a", "y": 1e999}', ("y: ", "finite")),
        (b'{"name": "a", "y": 1, "client": 7}', ("client: ", "100")),
    ],
)
def test_what_is_none_is_refused(body: bytes, parts: tuple[str, ...]) -> None:
    store = MetricsStore()
    with raises_naming(MetricsRefusedError, *parts):
        store_scalars(store, body, lambda _: None)
    assert store.names() == []


@pytest.mark.parametrize("values", ["text", None, {"a": 1}, [True], ["1"], [[1]], [0.0] * 100_001, []])
def test_what_is_no_histogram_is_refused(values: Any) -> None:
    body = json.dumps({"name": "a", "values": values}).encode()
    with pytest.raises(MetricsRefusedError):
        store_histograms(MetricsStore(), body, lambda _: None)


@pytest.mark.parametrize("name", ["name", "y", "x", "client"])
@pytest.mark.parametrize("value", ODD, ids=label)
def test_any_value_of_a_point_is_taken_or_refused(name: str, value: Any, tmp_path: Path) -> None:
    store = MetricsStore(tmp_path / "kept")
    body = json.dumps({"name": "a", "y": 1.0, "x": 3, name: value}).encode()
    with contextlib.suppress(MetricsRefusedError):
        assert store_scalars(store, body, lambda _: None) == 1
    assert store_scalars(store, b'{"name": "b", "y": 2.0}', lambda _: None) == 1
    assert np.isfinite(np.asarray(list(store.latest().values()), np.float32)).all()
    assert all(np.isfinite(store.points(each)).all() for each in store.names())
    store.close()
    assert MetricsStore(tmp_path / "kept").names() == store.names()


@pytest.mark.parametrize("value", ODD, ids=label)
def test_any_value_in_a_histogram_is_taken_or_refused(value: Any) -> None:
    store = MetricsStore()
    for values in (value, [value], [1.0, value]):
        body = json.dumps({"name": "a", "values": values}).encode()
        with contextlib.suppress(MetricsRefusedError):
            store_histograms(store, body, lambda _: None)
    assert all(np.isfinite(each.edges).all() for each in store.histograms("a"))


@pytest.mark.parametrize(
    ("sizes", "expected"), [([1], 0), ([99], 0), ([100], 1), ([250], 2), ([1] * 1000, 999), ([250, 1, 1], 4)]
)
def test_every_histogram_counts_at_least_as_a_point(sizes: list[int], expected: int) -> None:
    counted: list[float] = []
    items = [{"name": "h", "values": [1.0] * size} for size in sizes]
    assert store_histograms(MetricsStore(), json.dumps(items).encode(), counted.append) == len(sizes)
    assert counted == [expected]

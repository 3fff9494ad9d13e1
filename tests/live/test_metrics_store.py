"""Storage of metrics sent by clients."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from evorl.live import metrics_store
from evorl.live.metrics_store import EnabledMetrics, MetricsRefusedError, MetricsStore
from tests.recorders.test_tensorboard_recorder import read_events
from tests.support.errors import raises_naming


def test_a_point_without_a_step_has_the_last_known_one() -> None:
    store = MetricsStore()
    assert store.scalar("episode_reward", 1.0)
    store.scalar("episode_reward", 2.0)
    assert store.points("episode_reward") == [(0.0, 1.0), (1.0, 2.0)]  # no client sent a step, so they are counted
    store.scalar("loss", 0.5, x=100)
    store.scalar("loss", 0.4, x=90)
    store.scalar("episode_reward", 3.0)
    store.advance(250)
    store.histogram("weights", [1.0, 2.0])
    assert store.points("episode_reward")[-1] == (100.0, 3.0)
    assert store.histograms("weights")[0].x == 250.0
    assert (store.names(), store.histogram_names()) == (["episode_reward", "loss"], ["weights"])
    assert store.latest() == {"episode_reward": 3.0, "loss": 0.4}
    assert store.points("nothing") == []


def test_what_is_not_enabled_is_not_stored() -> None:
    store = MetricsStore(enabled=EnabledMetrics(True, {"loss": False}))
    assert not store.scalar("loss", 1.0, x=7)
    assert not store.histogram("loss", [1.0])
    assert store.scalar("return", 1.0)
    assert (store.names(), store.histogram_names(), store.step) == (["return"], [], None)
    strict = MetricsStore(enabled=EnabledMetrics(False, {"loss": True}))
    assert [strict.scalar(name, 1.0) for name in ("loss", "return")] == [True, False]


def test_the_settings_of_the_filter_are_checked() -> None:
    with raises_naming(ValueError, "metrics.loss", "true or false", "got 'no'"):
        EnabledMetrics(metrics={"loss": "no"})  # pyright: ignore[reportArgumentType]
    with raises_naming(ValueError, "metrics", "true or false"):
        EnabledMetrics(metrics=["loss"])  # pyright: ignore[reportArgumentType]


def test_the_folder_keeps_points_and_events(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path / "metrics")
    assert not (tmp_path / "metrics").exists()
    for x in (10, 20, 30):
        store.scalar("episode_reward", x / 10, x=x)
    store.histogram("weights", np.linspace(0, 1, 100))
    store.close()
    with (tmp_path / "metrics/scalars.jsonl").open("a") as file:
        file.write('{"name": "episode_reward", "x": 40, "y": NaN}\n{"damaged\n{"name": "episode_reward", "x": 50, "y"')
    again = MetricsStore(tmp_path / "metrics")
    assert again.points("episode_reward") == [(10.0, 1.0), (20.0, 2.0), (30.0, 3.0)]
    assert again.step == 30.0
    again.scalar("episode_reward", 4.0)
    assert again.points("episode_reward")[-1] == (30.0, 4.0)
    again.close()
    events = [event for event in read_events(tmp_path / "metrics/tensorboard") if event.HasField("summary")]
    scalars = {(e.step, v.simple_value) for e in events for v in e.summary.value if v.tag == "episode_reward"}
    assert scalars == {(10, 1.0), (20, 2.0), (30, 3.0), (30, 4.0)}
    (histogram,) = [value.histo for event in events for value in event.summary.value if value.tag == "weights"]
    assert (histogram.num, histogram.min, histogram.max, sum(histogram.bucket)) == (100, 0.0, 1.0, 100)
    assert len(histogram.bucket) == len(histogram.bucket_limit)


@pytest.mark.parametrize(
    ("name", "y", "x", "parts"),
    [
        ("a", math.nan, None, ("y: ", "finite", "got nan")),
        ("a", "1", None, ("y: ", "finite", "got 1")),
        ("a", True, None, ("y: ", "finite", "got True")),
        ("a", 1.0, math.inf, ("x: ", "finite", "got inf")),
        ("a", 1.0, 1e300, ("x: ", "finite", "got 1e+300")),
        ("", 1.0, None, ("1 to 200", "printable")),
        ("x" * 201, 1.0, None, ("1 to 200", "printable")),
        ("a\nb", 1.0, None, ("1 to 200", "printable")),
        (7, 1.0, None, ("1 to 200", "printable")),
        ("timesteps", 1e30, 3.0, ("name", "'timesteps'")),  # the entry of a recorded row that has its step
    ],
)
def test_what_is_no_point_is_refused(name: str, y: float, x: float | None, parts: tuple[str, ...]) -> None:
    store = MetricsStore()
    with raises_naming(MetricsRefusedError, *parts):
        store.scalar(name, y, x)
    assert (store.names(), store.step, store.version) == ([], None, 0)


@pytest.mark.parametrize("values", [[], [math.nan], [1e200], ["a"], [[1.0], [1.0, 2.0]]])
def test_what_is_no_histogram_is_refused(values: list[float]) -> None:
    store = MetricsStore()
    with raises_naming(MetricsRefusedError, "histogram"):
        store.histogram("a", values)
    assert store.histogram_names() == []


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [1.0, 1.0 + 1e-15], [1e99, -1e99], [0.0, 5e-324]])
def test_histograms_of_odd_values(tmp_path: Path, values: list[float]) -> None:
    store = MetricsStore(tmp_path)
    store.histogram("a", values)
    (histogram,) = store.histograms("a")
    assert sum(histogram.counts) == len(values)
    assert len(histogram.edges) == len(histogram.counts) + 1
    store.close()


def test_there_are_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = MetricsStore(most_names=2)
    few.scalar("a", 1.0)
    few.histogram("b", [1.0])
    with raises_naming(MetricsRefusedError, "'c'", "2 metrics"):
        few.scalar("c", 1.0)
    few.scalar("a", 2.0)
    small = MetricsStore(tmp_path, most_bytes=100)
    small.scalar("a", 1.0)
    with raises_naming(MetricsRefusedError, "100 bytes"):
        small.scalar("a", 2.0)
    small.close()
    assert len((tmp_path / "scalars.jsonl").read_text().splitlines()) == 1
    monkeypatch.setattr(metrics_store, "MAX_POINTS", 10)
    for i in range(25):
        few.scalar("a", i, x=i)
    points = few.points("a")
    assert len(points) <= 10
    assert (points[0], points[-1]) == ((0.0, 1.0), (24.0, 24.0))
    for i in range(60):
        few.histogram("b", [i])
    assert len(few.histograms("b")) == metrics_store.KEPT_HISTOGRAMS


def test_every_number_can_be_said(tmp_path: Path) -> None:
    message: list[str] = []
    store = MetricsStore(tmp_path, log=message.append)
    store.scalar("reward", 1.5, x=1_000_000, client="game 3")
    store.histogram("weights", [1.0, 2.0])
    store.close()
    assert message == ["reward 1.5 at 1000000 from game 3", "weights: 2 values at 1000000"]
    (line,) = (tmp_path / "scalars.jsonl").read_text().splitlines()
    assert {"name": "reward", "x": 1e6, "y": 1.5}.items() <= json.loads(line).items()

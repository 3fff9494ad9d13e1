"""The picture of the speed shows every comparison with a peer, at its measured ratio."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks.pages import DOCS
from benchmarks.results import load
from benchmarks.speed.picture import COLORS, LABELS, measured_ratios, speed_picture, write_speed_pictures

READINGS = [
    {"side": side, "round": i, "steps_per_second": speed, "steps_per_cpu_second": speed}
    for i, (ours, theirs) in enumerate([(300.0, 100.0), (500.0, 200.0), (400.0, 100.0)])
    for side, speed in (("evorl", ours), ("rejax", theirs))
]
RESULTS = {"ppo_cartpole_1seed": {"readings": READINGS}}
SVG = "{http://www.w3.org/2000/svg}"


def test_a_bar_is_as_long_as_its_ratio() -> None:
    assert {key: ratio.value for key, ratio in measured_ratios(RESULTS).items()} == {
        ("ppo_cartpole_1seed", "rejax"): 4.0
    }
    picture = ET.fromstring(speed_picture(RESULTS, "light"))
    (bar,) = picture.iter(f"{SVG}rect")
    peer = next(line for line in picture.iter(f"{SVG}line") if line.get("stroke-width") == "2")
    start = float(bar.get("x", "nan"))
    assert float(bar.get("width", "nan")) == pytest.approx(4 * (float(peer.get("x1", "nan")) - start), abs=0.5)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert "PPO, CartPole: rejax" in texts
    assert "4x" in texts


def test_every_recorded_comparison_with_a_peer_has_a_bar() -> None:
    recorded = load("speed")
    assert {name for name, _ in measured_ratios(recorded)} == set(LABELS)
    picture = ET.fromstring(speed_picture(recorded, "dark"))
    assert len(list(picture.iter(f"{SVG}rect"))) == len(measured_ratios(recorded))


@pytest.mark.parametrize("scheme", COLORS)
def test_the_committed_picture_follows_from_the_results(scheme: str, tmp_path) -> None:
    write_speed_pictures(load("speed"), tmp_path)
    name = f"speed-{scheme}.svg"
    committed = (DOCS / "assets" / name).read_text("utf-8")
    assert committed == (tmp_path / name).read_text("utf-8"), "out of date: python -m benchmarks.pages"

"""Pictures of learning curves."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.learning.curves import MAX_POINTS, digest_of, draw_curve, thinned
from tests.benchmarks.learning.figures import over_seeds, point, published, result, task

FIGURES = {
    "values": over_seeds(1.0, 2.0, 3.0, timesteps=2000),
    "error": published(spread_over="seeds", num_seeds=9, spread=3.0),
    "mean": published(),
}
RESULT = result(point(100, 1.0, 2.0), point(200, 3.0, 5.0))


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_pictures_are_small_svg_with_the_same_bytes(figure):
    drawn = task(published=figure)
    light, dark = (draw_curve(drawn, RESULT, dark=dark) for dark in (False, True))
    ElementTree.fromstring(light)
    assert len(light.encode()) < 60_000
    assert light == draw_curve(drawn, RESULT)
    assert dark == draw_curve(drawn, RESULT, dark=True)
    assert light != dark
    assert "Somebody" in light
    assert drawn.title in light


def test_a_stale_result_is_marked_and_a_threshold_drawn():
    ours = task(threshold=2.5, within_timesteps=200)
    drawn = {stale: draw_curve(ours, RESULT, stale=stale) for stale in (False, True)}
    assert "threshold of our own, 2.5" in drawn[False]
    assert "stale" not in drawn[False]
    assert "SAC, a task: stale result of 2026-01-02" in drawn[True]


def test_a_picture_contains_the_digest_of_its_data():
    digest = digest_of(task(), RESULT)
    assert digest in draw_curve(task(), RESULT)
    others = [
        digest_of(task(), RESULT, stale=True),
        digest_of(task(published=published(mean=8.0)), RESULT),
        digest_of(task(), result(point(100, 1.0, 2.0), point(200, 3.0, 6.0))),
        digest_of(task(), {**RESULT, "config": {"env": {"action_repeat": 2}}}),
    ]
    assert len({digest, *others}) == 5


def test_a_single_seed_and_repeated_actions_are_drawn():
    single = result(point(100, 1.0), point(200, 3.0))
    one, eight = (draw_curve(task(), {**single, "config": {"env": {"action_repeat": n}}}) for n in (1, 8))
    assert one != eight
    assert "evorl, 1 seed<" in one
    only_mean = {**single, "seeds": [0, 1, 2]}
    assert "evorl, 3 seeds<" in draw_curve(task(), only_mean)


def test_long_curves_are_thinned_but_keep_their_ends():
    curve = [point(step, float(step)) for step in range(1, 5001)]
    points = thinned(curve)
    assert len(points) == MAX_POINTS
    assert (points[0], points[-1]) == (curve[0], curve[-1])
    assert thinned(curve[:3]) == curve[:3]
    assert len(draw_curve(task(), result(*curve)).encode()) < 100_000

"""Verdicts of comparisons."""

from __future__ import annotations

import re

import numpy as np

from evorl.reports.comparison_charts import Improvement, improvement
from evorl.reports.verdict import verdict
from tests.support.errors import assert_names


def said(probability: float, interval: tuple[float, float] | None, num_seeds: int = 10) -> str:
    return verdict(Improvement("ppo", "sac", probability, interval), num_seeds)


def test_an_interval_above_a_half_decides() -> None:
    assert said(0.9, (0.7, 1.0)).startswith("ppo is better than sac")
    assert "Undecided" in said(0.7, (0.5, 0.9))
    assert said(0.1, (0.0, 0.3)).startswith("sac is better than ppo")  # the better group comes first


def test_three_seeds_do_not_decide() -> None:
    """All three seeds of one of two equal agents score higher than the other's in one of ten comparisons."""

    def compared(num_seeds: int, num_envs: int) -> str:
        low = np.arange(float(num_seeds))
        envs = [f"env{i}" for i in range(num_envs)]
        pair = improvement("ppo", "sac", {"ppo": dict.fromkeys(envs, low + num_seeds), "sac": dict.fromkeys(envs, low)})
        assert pair is not None
        return verdict(pair, num_seeds)

    assert_names(compared(3, 1), "Undecided", "at least 4")
    assert compared(4, 1).startswith("ppo is better")
    assert compared(3, 2).startswith("ppo is better")
    assert compared(2, 2).startswith("Undecided")


def test_the_number_of_further_seeds_shrinks_the_interval_to_the_difference() -> None:
    """The lower half of the interval is 0.2 wide, the difference 0.1: four times as many seeds, 30 more than 10."""
    assert "about 30 more seeds" in said(0.6, (0.4, 0.8))


def test_no_number_of_seeds_is_named_without_a_difference() -> None:
    for probability, interval in ((0.5, (0.2, 0.8)), (0.501, (0.2, 0.8))):
        assert said(probability, interval).startswith("No difference")
    assert "too few seeds" in said(1.0, None)


def test_the_estimated_number_settles_a_difference_that_stays() -> None:
    """Scores of two normal distributions: with the named number of seeds the interval excludes a half."""
    levels = np.random.default_rng(0).normal(size=4000)

    def compared(num_seeds: int) -> Improvement:
        x, y = (
            np.quantile(levels, (np.arange(num_seeds) + 0.5) / num_seeds) + 0.5,
            np.quantile(levels, (np.arange(num_seeds) + 0.5) / num_seeds),
        )
        pair = improvement("x", "y", {"x": {"env": x}, "y": {"env": y}})
        assert pair is not None
        return pair

    text = verdict(compared(10), 10)
    more = int(re.findall(r"about (\d+) more", text)[0])
    assert "better" in verdict(compared(round(1.3 * (10 + more))), 10 + more)

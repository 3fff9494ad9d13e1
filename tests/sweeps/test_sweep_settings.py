"""Settings that a sweep compares, and errors for invalid ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.sweeps.sweep_settings import Halving, SweepSettings
from tests.support.errors import raises_naming


def test_lists_are_combined() -> None:
    sweep = SweepSettings.from_config({"agent": {"gae_lambda": [0.9, 0.95]}, "num_envs": [4, 8, 16], "discount": [0.9]})
    settings = sweep.settings(0)
    assert len(settings) == 6
    assert settings[0] == {"agent.gae_lambda": 0.9, "num_envs": 4, "discount": 0.9}
    assert settings[-1] == {"agent.gae_lambda": 0.95, "num_envs": 16, "discount": 0.9}
    assert sweep == SweepSettings.from_config(
        {"over": {"agent.gae_lambda": [0.9, 0.95], "num_envs": [4, 8, 16], "discount": [0.9]}}
    )


def test_draws_follow_from_the_seed_and_fill_their_ranges() -> None:
    over = {"a": {"low": 1e-4, "high": 1.0, "scale": "log"}, "b": {"low": -1.0, "high": 3.0}, "c": ["x", "y", "z"]}
    sweep = SweepSettings.from_config({"over": over, "draws": 600})
    settings = sweep.settings(3)
    assert settings == sweep.settings(3) != sweep.settings(4)
    exponents = np.log10([setting["a"] for setting in settings])
    assert np.histogram(exponents, 4, (-4.0, 0.0))[0] == pytest.approx(150, abs=45)
    assert np.histogram([setting["b"] for setting in settings], 4, (-1.0, 3.0))[0] == pytest.approx(150, abs=45)
    assert [sum(setting["c"] == name for setting in settings) for name in "xyz"] == pytest.approx([200] * 3, abs=60)


def test_rounds_of_halving() -> None:
    halving = Halving(first=1000.0, factor=3)
    assert halving.rungs(10_000, 500) == [1000, 3000, 9000, 10_000]
    assert halving.rungs(10_000, 992) == [992, 2976, 8928, 10_000]
    assert halving.rungs(8000, 1008) == [1008, 3024, 8000]
    assert halving.rungs(20_000, 4000) == [4000, 12_000, 20_000]  # a round has at least one evaluation
    assert halving.rungs(1000, 500) == [1000]
    assert [halving.num_left(n) for n in (27, 10, 2)] == [9, 3, 1]


@given(st.floats(0.1, 100.0), st.integers(2, 4), st.integers(1, 50), st.integers(50, 1000))
def test_every_round_of_halving_trains_further(first: float, factor: int, interval: int, total: int) -> None:
    rungs = Halving(first, factor).rungs(total, interval)
    assert rungs[-1] == total
    assert all(later > earlier and earlier % interval == 0 for earlier, later in itertools.pairwise(rungs))


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({}, ("sweep", "no values")),
        ({"over": {"a": [1]}, "drawn": 3}, ("'drawn'", "'draws'")),
        ({"a": []}, ("sweep.a", "empty")),
        ({"a": [1, 2, 1]}, ("twice", "num_seeds")),
        ({"a": {"low": 1.0, "high": 2.0}}, ("sweep.a", "range", "sweep.draws")),
        ({"over": {"a": {"low": 2.0, "high": 1.0}}, "draws": 2}, ("low=2", "high=1")),
        ({"over": {"a": {"low": 0.0, "high": 1.0, "scale": "log"}}, "draws": 2}, ("above 0", "logarithmic")),
        ({"over": {"a": {"low": 0.0, "high": 1.0, "scale": "lin"}}, "draws": 2}, ("scale", "'lin'", "'linear'")),
        ({"over": {"a": {"low": 0.0}}, "draws": 2}, ("list of values",)),
        ({"over": {"a": [1]}, "draws": 0}, ("sweep.draws", "got 0")),
        ({"over": {"a": [1]}, "halving": {"factor": 2}}, ("sweep.halving.first", "{'factor': 2}", "(0, inf)")),
        ({"over": {"a": [1]}, "halving": {"first": 10, "factor": 1}}, ("factor", "at least 2")),
        ({"over": {"a": [1]}, "memory": -1}, ("sweep.memory", "got -1")),
    ],
)
def test_what_cannot_be_is_refused_in_words(config: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        SweepSettings.from_config(config)

"""Search spaces: sampling, perturbation, and invalid settings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.config.search_space import SearchSpace
from tests.support.errors import raises_naming
from tests.support.small_workflows import small

CONFIG = {
    "optimizer": {"learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}},
    "discount": {"low": 0.9, "high": 1.0},
    "agent.entropy_coefficient": {"low": -1, "high": 1, "scale": "linear"},
    "agent": {"clip_epsilon": None},
}
PATHS = ("optimizer.learning_rate", "discount", "agent.entropy_coefficient")
LOW, HIGH = np.array([[1e-4, 0.9, -1.0], [1e-2, 1.0, 1.0]], np.float32)


def space_of(config: Any) -> SearchSpace:
    return SearchSpace.from_config(config, small("ppo"), not_searched=("total_timesteps",))


def test_paths_stand_with_dots_or_nested() -> None:
    space = space_of(CONFIG)
    assert space.paths == PATHS
    np.testing.assert_array_equal(space.low, LOW)
    np.testing.assert_array_equal(space.high, HIGH)
    assert space.logarithmic.tolist() == [True, False, False]
    named = space.named(jnp.arange(6.0).reshape(2, 3))
    assert {path: values.tolist() for path, values in named.items()} == dict(zip(PATHS, ([0, 3], [1, 4], [2, 5])))


def test_points_are_spread_evenly_over_the_scales() -> None:
    space = space_of(CONFIG)
    points = space.sample(jax.random.key(0), 20_000)
    assert points.shape == (20_000, 3)
    assert ((points >= LOW) & (points <= HIGH)).all()
    np.testing.assert_allclose(np.median(points, axis=0), [1e-3, 0.95, 0.0], rtol=0.05, atol=0.03)
    shares = np.asarray(space.to_unit(points))
    np.testing.assert_allclose(
        np.quantile(shares, [0.1, 0.5, 0.9], axis=0), [[0.1] * 3, [0.5] * 3, [0.9] * 3], atol=0.02
    )
    assert abs(np.corrcoef(shares.T) - np.eye(3)).max() < 0.03  # independent samples


def test_the_ends_of_a_schedule_can_be_searched() -> None:
    workflow = small("ppo", optimizer={"learning_rate": {"start": 1e-3, "end": 0.0}})
    bounds = {"low": 1e-4, "high": 1e-2, "scale": "log"}
    space = SearchSpace.from_config({"optimizer.learning_rate.start": bounds}, workflow, ())
    assert space.paths == ("optimizer.learning_rate.start",)
    with raises_naming(ValueError, "learning_rate.end.low", "at least 0", "got -1"):
        SearchSpace.from_config({"optimizer.learning_rate.end": {"low": -1, "high": 1}}, workflow, ())
    with raises_naming(ValueError, "schedule", "optimizer.learning_rate.start"):
        SearchSpace.from_config({"optimizer.learning_rate": bounds}, workflow, ())


def test_units_and_back() -> None:
    space = space_of(CONFIG)
    points = space.sample(jax.random.key(0), 100)
    np.testing.assert_allclose(space.from_unit(space.to_unit(points)), points, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(space.from_unit(jnp.array([[-0.5] * 3, [1.5] * 3])), np.stack([LOW, HIGH]))


def test_each_entry_is_perturbed_by_a_draw_of_its_own() -> None:
    space = space_of(CONFIG)
    middle = jnp.broadcast_to(jnp.float32([1e-3, 0.95, 0.0]), (8000, 3))
    moved = np.asarray(space.perturb(jax.random.key(0), middle, 1.25))
    for i, (down, up) in enumerate([(8e-4, 1.25e-3), (0.925, 0.975), (-0.5, 0.5)]):
        at_top = np.isclose(moved[:, i], up)
        assert (at_top | np.isclose(moved[:, i], down)).all()
        assert abs(at_top.mean() - 0.5) < 0.03
    ups = moved > np.asarray(middle)
    assert len(np.unique(ups, axis=0)) == 8
    assert abs(np.corrcoef(ups.T) - np.eye(3)).max() < 0.05


def test_perturbed_values_stay_within_bounds() -> None:
    space = space_of(CONFIG)
    moved = space.perturb(jax.random.key(0), jnp.broadcast_to(HIGH, (100, 3)), 3.0)
    assert ((moved >= LOW) & (moved <= HIGH)).all()
    assert (moved == HIGH).any(axis=0).all()


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_entries_are_drawn_anew_as_often_as_asked(probability: float) -> None:
    space = space_of(CONFIG)
    middle = jnp.broadcast_to(jnp.float32([1e-3, 0.95, 0.0]), (8000, 3))
    drawn = np.asarray(space.resample(jax.random.key(0), middle, probability))
    anew = drawn != np.asarray(middle)
    np.testing.assert_allclose(anew.mean(axis=0), probability, atol=0.02)
    if probability:
        assert (np.quantile(space.to_unit(drawn[anew.all(axis=1)]), 0.9, axis=0) > 0.85).all()


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (None, ("search_space", "empty")),
        (
            {"agent.clip_epsilom": {"low": 0, "high": 1}},
            ("'agent.clip_epsilom'", "'agent.clip_epsilon'"),
        ),
        ({"clip_epsilon": {"low": 0, "high": 1}}, ("'agent.clip_epsilon'",)),
        ({"num_epochs": {"low": 1, "high": 4}}, ("num_epochs", "shapes", "Valid paths: ")),
        ({"agent": {"network": {"torso": {"low": 1, "high": 4}}}}, ("'agent.network.torso'",)),
        ({"target_kl": {"low": 0.1, "high": 1}}, ("null", "inner.target_kl")),
        ({"total_timesteps": {"low": 1, "high": 4}}, ("'total_timesteps'",)),
        ({"discount": {"low": 0.9}}, ("search_space.discount", "mapping", "low")),
        ({"discount": 0.9}, ("search_space.discount", "mapping", "low")),
        ({"discount": {"low": 0.9, "high": 0.9}}, ("low=0.9", "high=0.9")),
        ({"discount": {"low": 0.9, "high": 1.1}}, ("search_space.discount.high", "[0, 1]", "got 1.1")),
        ({"discount": {"low": "x", "high": 1.0}}, ("search_space.discount.low", "number", "got 'x'")),
        ({"discount": {"low": 0.0, "high": 1.0, "scale": "log"}}, ("scale: log", "above 0", "low=0")),
        ({"discount": {"low": 0.1, "high": 1.0, "scale": "lgo"}}, ("'lgo'", "'log'")),
        ({"discount": {"low": 0.1, "high": 1.0, "scal": "log"}}, ("search_space.discount", "'scal'")),
        (
            {"agent.clip_epsilon": {"low": -1.0, "high": 1.0}},
            ("search_space.agent.clip_epsilon.low", "above 0", "got -1"),
        ),
        (
            {
                "gae_lambda": {"low": 0, "high": 1},
                "agent.clip_epsilon": {"low": 1, "high": 2},
                "agent": {"clip_epsilon": {"low": 1, "high": 2}},
            },
            ("agent.clip_epsilon", "twice"),
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_in_words(config: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        space_of(config)

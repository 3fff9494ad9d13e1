"""Nearest names, and options as hashable values."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.envs.naming import check_options, frozen, nearest_name, parameter_names, thawed


def test_nearest_name_ignores_case() -> None:
    assert "did you mean 'CartPole-v1'" in nearest_name("cartpole", ["Pendulum-v1", "CartPole-v1"])
    assert nearest_name("zzz", ["abc"]) == ". There are: abc."


def test_frozen_and_thawed() -> None:
    options = {"a": [1, 2.5], "b": {"c": np.arange(3)}, "d": None}
    other = {"d": None, "b": {"c": np.arange(3)}, "a": (1, 2.5)}
    assert frozen(options) == frozen(other)
    assert hash(frozen(options)) == hash(frozen(other))
    back = thawed(frozen(options))
    assert back["a"] == (1, 2.5)
    np.testing.assert_array_equal(back["b"]["c"], np.arange(3))
    assert frozen({"a": 1}) != frozen({"a": 2})
    with pytest.raises(TypeError):
        frozen({"a": {1, 2}})


def test_check_options() -> None:
    class Env:
        """With two arguments."""

        def __init__(self, size: int = 3, *, noise: float = 0.1, **others: object) -> None: ...

    assert parameter_names(Env) == {"size", "noise"}
    check_options("env", {"size": 1}, parameter_names(Env))
    with pytest.raises(ValueError, match="env has no option 'nois'; did you mean 'noise'"):
        check_options("env", {"nois": 1}, parameter_names(Env))
    with pytest.raises(ValueError, match="did you mean 'history'"):
        check_options("env", {"histry": 1}, parameter_names(Env))

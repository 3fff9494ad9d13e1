from __future__ import annotations

import importlib

import pytest

from evorl.config.names import did_you_mean, missing_in_words, no_such


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("rellu", ["relu", "tanh"]) == " Did you mean 'relu'?"
    assert did_you_mean("xyz", ["relu", "tanh"]) == ""
    assert did_you_mean(3, {"tanh": 1}) == ""


def test_what_there_is_is_listed() -> None:
    assert no_such("cell", "lsmt", ("gru", "lstm")) == (
        "there is no cell 'lsmt'. Did you mean 'lstm'? There are: gru, lstm."
    )
    assert no_such("cell", None, ["gru"]) == "there is no cell None. There are: gru."


def _import_what_is_missing(*told: str) -> None:
    with missing_in_words("robots", *told):
        importlib.import_module("not_there.inside")


def test_a_package_that_is_missing_is_told_with_the_line_that_installs_it() -> None:
    with pytest.raises(ImportError, match=r"robots need the package not_there: pip install not_there$"):
        _import_what_is_missing("not_there")
    with pytest.raises(ImportError, match=r"need the package not-there: pip install 'not-there\[all\]>=2'$"):
        _import_what_is_missing("not_there", "not-there[all]>=2")
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"):
        _import_what_is_missing("there")
